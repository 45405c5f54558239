//! The file that an image or a blob is written to. Until [`ImageWriter::publish`] succeeds, the image's name keeps
//! what it had before, and an error leaves nothing behind. An image in place has no superblock until it is complete,
//! also if the process is killed or the host fails: its superblock is written last, in one sector, when everything
//! else is durable.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ferrofs_ondisk::BlockSize;

use crate::BlockSink;
use crate::context::BuildContext;
use crate::digest::ChunkDigester;
use crate::output::{
    InPlaceFile, NewFile, OutputPlace, OutputTarget, descriptor_path, has_descriptor_path,
};
use crate::spill::open_unlinked;
use crate::{BuildObserver, Error, ErrorKind, Result};

/// The superblock with its magic number lies in this sector of the image. A write of one sector is never divided:
/// neither by a signal that ends the process, nor by a disk.
const SUPERBLOCK_SECTOR: std::ops::Range<usize> = 1024..1536;
/// Bytes that are collected before they are written: few enough system calls, and small enough to stay
/// in a second-level cache.
const BUFFER_BYTES: usize = 512 << 10;
/// What fills up a block.
const ZEROS: [u8; 512] = [0; 512];

/// An image that is being written, from its first block to its last; the head comes at the end.
#[derive(Debug)]
pub(crate) struct ImageWriter {
    output: ImageOutput,
    /// The path of the image as it was given.
    path: PathBuf,
    /// The byte of the file at which the image starts.
    base: u64,
    block_size: BlockSize,
    /// What has been appended and not been written yet.
    buffer: Vec<u8>,
    /// Bytes of the image in front of the buffer.
    written: u64,
    /// Digests what is appended, if the image gets a chunk index.
    digester: Option<ChunkDigester>,
    /// Bytes of the head, once it may be in the file. Until the image is published, an image in place loses its
    /// head again when this is dropped.
    unpublished_head_bytes: u64,
    /// If it is not, the file loses its name again when this is dropped.
    is_published: bool,
}

/// What gets its name together with an image.
#[derive(Debug, Default)]
pub(crate) struct FilesBeside {
    pub(crate) blob: Option<ImageWriter>,
    pub(crate) chunk_index: Option<ImageWriter>,
}

impl FilesBeside {
    /// In the order in which they get their names.
    fn all(&mut self) -> impl Iterator<Item = &mut ImageWriter> {
        [&mut self.blob, &mut self.chunk_index].into_iter().flatten()
    }
}

#[derive(Debug)]
enum ImageOutput {
    New(NewFile),
    InPlace(InPlaceFile),
    /// A file without a name, which never gets one.
    Temporary(File),
}

impl ImageOutput {
    fn file(&self) -> &File {
        match self {
            Self::New(new) => new.file(),
            Self::InPlace(in_place) => &in_place.file,
            Self::Temporary(file) => file,
        }
    }
}

impl ImageWriter {
    /// Opens the file of `target` for an image that starts at byte `offset`. The first `head_bytes`, whole blocks,
    /// are left out for [`publish`](Self::publish).
    ///
    /// # Errors
    /// Errors of the host.
    pub(crate) fn create(
        target: OutputTarget,
        offset: u64,
        block_size: BlockSize,
        head_bytes: u64,
    ) -> Result<Self> {
        let path = target.path.clone();
        let output = match target.place {
            OutputPlace::InPlace(in_place) => ImageOutput::InPlace(in_place),
            OutputPlace::Name(_) => ImageOutput::New(target.create()?),
        };
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        let image = Self {
            output,
            path,
            base: offset,
            block_size,
            buffer,
            written: head_bytes,
            digester: None,
            unpublished_head_bytes: 0,
            is_published: false,
        };
        image.invalidate(head_bytes)?;
        Ok(image)
    }

    /// A temporary file in `directory`, or in memory, for data that is copied to an image later. The first
    /// `head_bytes` are a hole.
    ///
    /// # Errors
    /// Errors of the host.
    pub(crate) fn temporary(
        directory: Option<PathBuf>,
        block_size: BlockSize,
        head_bytes: u64,
    ) -> Result<Self> {
        let file = open_unlinked(directory.as_deref());
        let path = directory.unwrap_or_default();
        let file =
            file.map_err(|source| output_error("cannot create a temporary file", &path, source))?;
        Ok(Self {
            output: ImageOutput::Temporary(file),
            path,
            base: 0,
            block_size,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            written: head_bytes,
            digester: None,
            unpublished_head_bytes: 0,
            is_published: false,
        })
    }

    /// Appends all bytes from `start` on to `image`.
    ///
    /// # Errors
    /// Errors of the host; [`ErrorKind::Cancelled`].
    pub(crate) fn copy_to(
        mut self,
        image: &mut Self,
        start: u64,
        context: &BuildContext<'_>,
    ) -> Result<()> {
        self.flush()?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut at = start;
        while at < self.written {
            context.check_cancelled()?;
            let count = usize::try_from(self.written - at).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            buffer.resize(count, 0);
            let read = self.output.file().read_exact_at(&mut buffer, at);
            read.map_err(|source| {
                output_error("cannot read back", &self.path, source).at_byte(at)
            })?;
            image.write(&buffer)?;
            at += count as u64;
        }
        Ok(())
    }

    /// From here on what is appended is digested for a chunk index; nothing has been appended yet.
    pub(crate) fn digest_chunks(&mut self) {
        self.digester = Some(ChunkDigester::new(self.written));
    }

    /// Ends the image, whose head will be `head`, and returns its chunk index, if it gets one.
    ///
    /// # Errors
    /// Errors of the host; more chunks than an index can have.
    pub(crate) fn finish_chunks(&mut self, head: &[u8]) -> Result<Option<Vec<u8>>> {
        self.fill_block()?;
        self.digester.take().map(|digester| digester.finish(head)).transpose()
    }

    /// Bytes of the image so far, the head among them.
    pub(crate) fn bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Appends `bytes` right behind what is there.
    ///
    /// # Errors
    /// Errors of the host, with the byte of the image.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(digester) = &mut self.digester {
            digester.update(bytes).map_err(|error| error.at(&self.path))?;
        }
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        if bytes.len() < BUFFER_BYTES {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        self.write_at(bytes, self.written)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Fills the last block up with zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn fill_block(&mut self) -> Result<()> {
        let used = u64::from(self.block_size.within(self.bytes()));
        match used {
            0 => Ok(()),
            _ => self.write_zeros(u64::from(self.block_size.bytes()) - used),
        }
    }

    /// Appends `missing` zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn write_zeros(&mut self, mut missing: u64) -> Result<()> {
        while missing > 0 {
            let zeros = zeros(missing);
            self.write(zeros)?;
            missing -= zeros.len() as u64;
        }
        Ok(())
    }

    /// Writes the head, lets `observer` inspect the whole image with its blob, makes all of it and the files beside
    /// it durable, and gives each its name, the image last.
    ///
    /// # Errors
    /// Errors of the host, [`ErrorKind::Exists`] or [`ErrorKind::Rejected`]; the name then still has what it had before,
    /// unless the image is written in place, or its blob replaces another. The files beside it have no names then.
    pub(crate) fn publish(
        mut self,
        head: &[u8],
        mut beside: FilesBeside,
        observer: &dyn BuildObserver,
    ) -> Result<()> {
        if let Some(blob) = &mut beside.blob {
            blob.fill_block()?;
        }
        self.finish_data()?;
        for file in beside.all() {
            file.finish_data()?;
        }
        self.unpublished_head_bytes = head.len() as u64;
        self.write_head(head)?;
        self.inspect(beside.blob.as_ref(), observer)?;
        let named = self.name_with(&mut beside);
        // An image that has its name needs its blob, even if its directory could not be synced.
        let is_published = named.is_ok() || self.has_name();
        for file in beside.all().chain([&mut self]) {
            file.is_published = is_published;
        }
        named
    }

    /// Gives the files beside the image and then the image their names. What can fail before the first name is tried
    /// before.
    fn name_with(&mut self, beside: &mut FilesBeside) -> Result<()> {
        for file in beside.all().chain([&mut *self]) {
            if let ImageOutput::New(new) = &file.output {
                new.prepare()?;
            }
        }
        if beside.blob.as_ref().is_some_and(Self::replaces) {
            self.remove_previous()?;
        }
        // Readers refuse the index of another image, so that it may come first.
        for file in beside.all() {
            file.name()?;
        }
        self.name()
    }

    fn has_name(&self) -> bool {
        matches!(&self.output, ImageOutput::New(new) if new.has_name())
    }

    /// Removes the image that is to be replaced: its blob is about to become another one, and no image may refer to chunks
    /// of another image. An image that is written over stays, and so does one that another process has created since the
    /// output was opened.
    ///
    /// # Errors
    /// Errors of the host.
    pub(crate) fn remove_previous(&self) -> Result<()> {
        let ImageOutput::New(new) = &self.output else { return Ok(()) };
        let removed = new.remove_previous();
        removed
            .map_err(|source| output_error("cannot remove the previous image", &self.path, source))
    }

    /// Whether publishing replaces something.
    pub(crate) fn replaces(&self) -> bool {
        match &self.output {
            ImageOutput::New(new) => new.replaces(),
            ImageOutput::InPlace(_) => true,
            ImageOutput::Temporary(_) => false,
        }
    }

    /// Brings all that was appended to the file. What is behind the image is no block.
    fn finish_data(&mut self) -> Result<()> {
        self.flush()?;
        match self.output {
            // A superblock must not be durable before what it describes.
            ImageOutput::InPlace(_) => self.sync(),
            ImageOutput::New(_) | ImageOutput::Temporary(_) => Ok(()),
        }
    }

    /// Writes the head; in place, the sector of the superblock comes after all the rest.
    fn write_head(&self, head: &[u8]) -> Result<()> {
        let ImageOutput::InPlace(_) = self.output else { return self.write_at(head, 0) };
        let [before, behind, superblock] = head_parts(head);
        self.write_at(before.1, before.0)?;
        self.write_at(behind.1, behind.0)?;
        self.sync()?;
        self.write_at(superblock.1, superblock.0)
    }

    /// Makes a file in place durable, and gives a new one, which is durable, its name.
    fn name(&mut self) -> Result<()> {
        match &mut self.output {
            ImageOutput::New(new) => new.give_name(),
            ImageOutput::InPlace(_) => self.sync(),
            ImageOutput::Temporary(_) => Ok(()),
        }
    }

    /// Lets `observer` inspect the whole image.
    fn inspect(&self, blob: Option<&Self>, observer: &dyn BuildObserver) -> Result<()> {
        let blob = blob.map(Self::readable_path);
        let inspected = observer.inspect(&self.readable_path(), blob.as_deref());
        inspected.map_err(|why| Error::new(ErrorKind::Rejected(why)))
    }

    /// Where the file can be opened now.
    fn readable_path(&self) -> PathBuf {
        match &self.output {
            ImageOutput::New(new) => new.readable_path(),
            ImageOutput::InPlace(InPlaceFile { file, .. }) if has_descriptor_path(file) => {
                descriptor_path(file)
            }
            ImageOutput::InPlace(_) | ImageOutput::Temporary(_) => self.path.clone(),
        }
    }

    /// An image in place stops being one before its first byte is overwritten.
    fn invalidate(&self, head_bytes: u64) -> Result<()> {
        let ImageOutput::InPlace(in_place) = &self.output else { return Ok(()) };
        if in_place.is_emptied {
            let emptied = in_place.empty();
            return emptied.map_err(|source| output_error("cannot empty", &self.path, source));
        }
        let mut at = 0;
        while at < head_bytes {
            let zeros = zeros(head_bytes - at);
            self.write_at(zeros, at)?;
            at += zeros.len() as u64;
        }
        self.sync()
    }

    fn flush(&mut self) -> Result<()> {
        self.write_at(&self.buffer, self.written)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<()> {
        let place = self.base.checked_add(at).ok_or_else(|| {
            let too_large = io::Error::from(io::ErrorKind::FileTooLarge);
            output_error("cannot write", &self.path, too_large).at_byte(at)
        })?;
        let done = self.output.file().write_all_at(bytes, place);
        done.map_err(|source| output_error("cannot write", &self.path, source).at_byte(at))
    }

    fn sync(&self) -> Result<()> {
        let done = self.output.file().sync_all();
        done.map_err(|source| output_error("cannot sync", &self.path, source))
    }
}

impl BlockSink for ImageWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        let address = self.bytes();
        self.write(bytes)?;
        self.fill_block()?;
        Ok(address)
    }
}

impl Drop for ImageWriter {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        // A failure is not reported: an earlier error is.
        match &self.output {
            ImageOutput::New(new) => drop(new.unlink_own()),
            ImageOutput::InPlace(in_place) => {
                if in_place.is_emptied || self.unpublished_head_bytes > 0 {
                    drop(self.invalidate(self.unpublished_head_bytes));
                }
            }
            ImageOutput::Temporary(_) => {}
        }
    }
}

/// The parts of a head with their places, in the order in which they are written.
fn head_parts(head: &[u8]) -> [(u64, &[u8]); 3] {
    let (before, rest) = head.split_at(SUPERBLOCK_SECTOR.start.min(head.len()));
    let (superblock, behind) = rest.split_at(SUPERBLOCK_SECTOR.len().min(rest.len()));
    let at = before.len() as u64;
    [(0, before), (at + superblock.len() as u64, behind), (at, superblock)]
}

/// At most `wanted` zeros.
fn zeros(wanted: u64) -> &'static [u8] {
    let count = usize::try_from(wanted).unwrap_or(usize::MAX);
    ZEROS.get(..count).unwrap_or(&ZEROS)
}

#[cold]
fn output_error(operation: &'static str, path: &Path, source: io::Error) -> Error {
    Error::new(ErrorKind::Output { operation, source }).at(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_its_last_part_a_head_has_no_superblock() {
        for bytes in [1536, 4096, 65536] {
            let head: Vec<u8> = (0..bytes).map(|at: u32| at.to_le_bytes()[1] | 1).collect();
            let mut file = vec![0; head.len()];
            let parts = head_parts(&head);
            for (at, part) in parts {
                assert!(file[1024..1536].iter().all(|byte| *byte == 0));
                let at = usize::try_from(at).unwrap();
                file[at..at + part.len()].copy_from_slice(part);
            }
            assert!(file == head);
        }
    }
}
