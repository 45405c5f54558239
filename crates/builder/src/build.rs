//! A build from a tree to an image: options checked, data written, metadata behind it, and the superblock
//! last of all.

use std::path::Path;

use ferrofs_workers::CancelToken;

use crate::BlockSink;
use crate::context::{BuildContext, BuildMemory};
use crate::data_map::{DataMap, DataSinks};
use crate::digest::chunk_index_report;
use crate::image_file::{FilesBeside, ImageWriter};
use crate::metadata::{MetadataWriter, SuperblockArea, WaitingData};
use crate::output::{ExistingOutput, OutputTarget};
use crate::packed_file::PackedFile;
use crate::report::{BuildObserver, BuildPhase, BuildReport};
use crate::tree::{Device, NodeId, Tree};
use crate::write_data::chunk_tables::is_referable;
use crate::{
    BlobOutput, BuildOptions, ChunkIndexOutput, ChunkIndexReport, Error, ErrorKind, OutputMode,
    Result,
};

/// The places that a build writes to.
#[derive(Debug)]
#[non_exhaustive]
pub struct BuildOutputs {
    /// The image.
    pub image: OutputTarget,
    /// The file for chunks, if [`BuildOptions::blob`] asks for one.
    pub blob: Option<OutputTarget>,
    /// The file for the chunk index, if [`BuildOptions::chunk_index`] asks for one.
    pub chunk_index: Option<OutputTarget>,
}

impl BuildOutputs {
    /// A build that writes an image and nothing else.
    #[must_use]
    pub fn new(image: OutputTarget) -> Self {
        Self { image, blob: None, chunk_index: None }
    }

    /// Sets where chunks are written.
    #[must_use]
    pub fn blob(mut self, blob: Option<OutputTarget>) -> Self {
        self.blob = blob;
        self
    }

    /// Sets where the chunk index is written.
    #[must_use]
    pub fn chunk_index(mut self, chunk_index: Option<OutputTarget>) -> Self {
        self.chunk_index = chunk_index;
        self
    }

    /// Opens the places that the options name.
    fn open(options: &BuildOptions, target: &Path) -> Result<Self> {
        let open = |path: &Path, is_in_place| {
            if is_in_place {
                return OutputTarget::in_place(path);
            }
            let target = OutputTarget::open(path, ExistingOutput::Replace)?;
            if target.is_in_place() {
                let what = "is a block device, which is overwritten only on request";
                return Err(Error::new(ErrorKind::InvalidOptions(what.to_owned())).at(path));
            }
            Ok(target)
        };
        let is_in_place = matches!(options.output_mode, OutputMode::InPlace { .. });
        let blob = match &options.blob {
            None => None,
            Some(BlobOutput::NewFile(path)) => Some(open(path, false)?),
            Some(BlobOutput::InPlace(path)) => Some(open(path, true)?),
        };
        let chunk_index = match &options.chunk_index {
            Some(ChunkIndexOutput::NewFile(path)) => Some(open(path, false)?),
            Some(ChunkIndexOutput::Embedded) | None => None,
        };
        Ok(Self { image: open(target, is_in_place)?, blob, chunk_index })
    }
}

/// Builds an image of `tree` under the name `target`, which has what it had before until the image is whole.
/// `cancel` ends the build early: every thread reads it between two steps of work.
///
/// # Errors
/// [`ErrorKind::InvalidOptions`] before anything is written; whatever the source or the host refuses, with its
/// path, the first in the order of the files; what the format cannot hold; [`ErrorKind::Cancelled`] once `cancel` is
/// cancelled. No error leaves anything behind, but in a target that is written in place, which then holds no
/// image. Where a blob is replaced, the image that was there is removed first, as it would refer to what is not
/// its own.
pub fn build(
    tree: &Tree,
    options: &BuildOptions,
    target: &Path,
    observer: &dyn BuildObserver,
    cancel: &CancelToken,
) -> Result<BuildReport> {
    options.check()?;
    build_into(tree, options, BuildOutputs::open(options, target)?, observer, cancel)
}

/// As [`build`], into places that have been opened before. They have the last word about where the
/// image and the blob go; the options give the offset, and whether there is a blob.
///
/// # Errors
/// As [`build`]. [`ErrorKind::Exists`] if something has got the name of the image or the blob
/// meanwhile, and must not be replaced.
pub fn build_into(
    tree: &Tree,
    options: &BuildOptions,
    outputs: BuildOutputs,
    observer: &dyn BuildObserver,
    cancel: &CancelToken,
) -> Result<BuildReport> {
    options.check()?;
    let memory = BuildMemory::new(options, tree)?;
    let context = BuildContext { options, memory: &memory, observer, cancel };
    build_with(tree, &context, outputs, crate::write_data::write_data)
}

/// Puts the contents of a tree's files into sinks, but for what is to lie in the packed inode.
///
/// The bytes are what the packed inode is to start with.
type WriteData =
    fn(&Tree, &BuildContext<'_>, &[u8], DataSinks<'_>) -> Result<(DataMap, PackedFile)>;

fn build_with(
    tree: &Tree,
    context: &BuildContext<'_>,
    outputs: BuildOutputs,
    write_data: WriteData,
) -> Result<BuildReport> {
    let BuildContext { options, observer, .. } = *context;
    let (block_size, offset) = (options.block_size, options.output_mode.offset());
    let mut metadata = MetadataWriter::new(tree, options, context.memory)?;
    let front = SuperblockArea::plan(&metadata, options)?;
    metadata.place_root(front.bytes())?;
    let is_block_device = outputs.image.is_block_device();
    let mut image = ImageWriter::create(outputs.image, offset, block_size, metadata.head_bytes)?;
    let mut blob = create_blob(tree, options, outputs.blob, &image)?;
    let index_file = create_chunk_index(options, outputs.chunk_index, is_block_device)?;
    if options.chunk_index.is_some() {
        image.digest_chunks();
    }
    observer.phase(BuildPhase::Data);
    let waiting = options.metadata_first.then(|| {
        let directory = tree.store().directory();
        ImageWriter::temporary(directory, block_size, metadata.head_bytes)
    });
    let mut waiting = waiting.transpose()?;
    let sinks = DataSinks {
        image: waiting.as_mut().unwrap_or(&mut image),
        blob: blob.as_mut().map(|blob| -> &mut dyn BlockSink { blob }),
    };
    let (mut data, packed) = write_data(tree, context, front.packed(), sinks)?;
    observer.phase(BuildPhase::Metadata);
    let mut written = match waiting {
        Some(file) => {
            let waiting = WaitingData { file, packed };
            metadata.write_first(&mut data, waiting, &mut image, context)?
        }
        None => metadata.write(&mut data, packed, &mut image, context)?,
    };
    let mut report = report(tree, options, &metadata, &data);
    let unit = u64::from(options.image_alignment_blocks) * u64::from(block_size.bytes());
    image.write_zeros(image.bytes().next_multiple_of(unit) - image.bytes())?;
    report.image_inodes = written.inodes;
    report.bytes = image.bytes();
    report.blocks = block_size.count(report.bytes);
    report.blob_bytes = blob.as_ref().map_or(0, ImageWriter::bytes);
    let of_blob = blob.as_ref().map(|blob| Device { tag: [0; 64], bytes: blob.bytes() });
    let devices = of_blob.as_ref().map_or(tree.devices(), std::slice::from_ref);
    front.write(options, &mut written, report.blocks, devices)?;
    context.check_cancelled()?;
    let spilled = tree.store().stats();
    report.store_bytes = spilled.memory_bytes_peak;
    report.spilled_bytes = spilled.file_bytes;
    tree.store().check()?;
    observer.phase(BuildPhase::Publish);
    let mut beside = FilesBeside { blob, chunk_index: index_file };
    report.chunk_index = write_chunk_index(&mut image, &written.head, beside.chunk_index.as_mut())?;
    image.publish(&written.head, beside, observer)?;
    Ok(report)
}

/// Opens the file for the chunks that are not to lie in the image.
fn create_blob(
    tree: &Tree,
    options: &BuildOptions,
    target: Option<OutputTarget>,
    image: &ImageWriter,
) -> Result<Option<ImageWriter>> {
    if target.is_some() != options.blob.is_some() {
        let what = "a blob needs both an option and a place";
        return Err(Error::new(ErrorKind::InvalidOptions(what.to_owned())));
    }
    let Some(target) = target else { return Ok(None) };
    if !tree.devices().is_empty() {
        let what = "a blob for files that lie on other devices already";
        return Err(Error::new(ErrorKind::InvalidOptions(what.to_owned())));
    }
    let is_in_place = target.is_in_place();
    let file = ImageWriter::create(target, 0, options.block_size, 0)?;
    if is_in_place {
        image.remove_previous()?;
    }
    Ok(Some(file))
}

/// Opens the file for a chunk index that is not to lie in the image's.
fn create_chunk_index(
    options: &BuildOptions,
    target: Option<OutputTarget>,
    is_block_device: bool,
) -> Result<Option<ImageWriter>> {
    let refused = |what: &str| Err(Error::new(ErrorKind::InvalidOptions(what.to_owned())));
    let output = options.chunk_index.as_ref();
    if target.is_some() != matches!(output, Some(ChunkIndexOutput::NewFile(_))) {
        return refused("a chunk index in a file needs both an option and a place");
    }
    if is_block_device && output == Some(&ChunkIndexOutput::Embedded) {
        return refused("a chunk index at the end of a block device cannot be found; use a file");
    }
    target.map(|target| ImageWriter::create(target, 0, options.block_size, 0)).transpose()
}

/// Writes the chunk index of `image`, if it gets one: to `file`, or behind its last block.
fn write_chunk_index(
    image: &mut ImageWriter,
    head: &[u8],
    file: Option<&mut ImageWriter>,
) -> Result<Option<ChunkIndexReport>> {
    let Some(index) = image.finish_chunks(head)? else { return Ok(None) };
    let is_embedded = file.is_none();
    file.unwrap_or(image).write(&index)?;
    Ok(Some(chunk_index_report(&index, is_embedded)))
}

fn report(
    tree: &Tree,
    options: &BuildOptions,
    metadata: &MetadataWriter<'_>,
    data: &DataMap,
) -> BuildReport {
    let mut report = BuildReport {
        block_bytes: options.block_size.bytes(),
        inodes: metadata.inode_order.len() as u64,
        ..BuildReport::default()
    };
    let is_referring = |id: NodeId| {
        let content = if tree.has_extents() { tree.content(id) } else { None };
        content.is_some_and(|content| {
            let extents = content.extents();
            extents.is_some_and(|extents| is_referable(&content, extents, options.block_size))
        })
    };
    let files = |first: bool| {
        let files = metadata.inode_order.iter().filter(move |id| is_referring(*id) == first);
        files.filter_map(|id| Some((id.index(), tree.content_bytes(id)?)))
    };
    let device = u16::from(options.blob.is_some());
    report.add_data(data, options.block_size, device, files(true).chain(files(false)));
    report
}

#[cfg(test)]
mod host_tests;
#[cfg(test)]
mod option_tests;
#[cfg(test)]
pub(crate) mod tests;
