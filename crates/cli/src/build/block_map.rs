//! Writes the list of `--tar=i,MAP`: which blocks of the image hold which bytes of the archive. Each
//! line has the first block, the number of blocks, the position in the archive, and the number of
//! bytes of the last block that are zero; the second number is hexadecimal, the last one decimal.
//! Called by `build`.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use anyhow::anyhow;
use ferrofs_builder::import::{TarContentMode, from_tar_layers};
use ferrofs_builder::output::OutputTarget;
use ferrofs_builder::tree::{SourceExtent, Tree};
use ferrofs_builder::{Error, ErrorKind};
use ferrofs_image::{ExtentStorage, FileType, Image, OpenOptions, WalkEntry, WalkEvent};
use ferrofs_workers::CancelToken;

use super::request::BuildRequest;
use crate::output::escape;
use crate::text_file::TextFile;

/// Where an archive has the contents of its files: a tree that refers to them.
///
/// # Errors
/// The archive cannot be read twice, or is malformed.
pub(super) fn places(request: &BuildRequest, cancel: &CancelToken) -> Result<Option<Tree>, Error> {
    if !request.block_map.as_ref().is_some_and(|map| map.has_lines) {
        return Ok(None);
    }
    if request.sources.iter().any(|source| source == Path::new("-")) {
        let why = "--tar=i,MAP reads the archive twice; give a file".to_owned();
        return Err(Error::new(ErrorKind::InvalidOptions(why)));
    }
    let mut options = request.tar.clone();
    options.contents = TarContentMode::Index;
    options.uncompressed_copy = None;
    let sources = request.sources.iter().map(|source| super::import::tar_source(source));
    from_tar_layers(sources.collect::<Result<_, _>>()?, &options, cancel).map(Some)
}

/// Writes the list of a complete image.
///
/// # Errors
/// The image cannot be read, or the list cannot be written.
pub(super) fn write(
    list: OutputTarget,
    request: &BuildRequest,
    places: Option<&Tree>,
) -> anyhow::Result<()> {
    let mut output = TextFile::at(list)?;
    let Some(places) = places else { return output.publish() };
    let offset = request.options.output_mode.offset();
    let image = OpenOptions::new().offset(offset).open(&request.image)?;
    let mut seen = HashSet::new();
    for event in image.walk(b"/")? {
        let WalkEvent::Leaf(entry) = event else { continue };
        if entry.inode.file_type() == FileType::Regular && seen.insert(entry.inode.nid()) {
            write_file(&mut output, &image, &entry, places)
                .map_err(|error| anyhow!("{}: {error}", escape(&entry.path)))?;
        }
    }
    output.publish()
}

/// The lines of a file. One with holes has none: its last blocks have more than zeros behind its
/// parts.
fn write_file(
    output: &mut TextFile,
    image: &Image,
    entry: &WalkEntry,
    places: &Tree,
) -> anyhow::Result<()> {
    let names = entry.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let node = names.into_iter().try_fold(Tree::ROOT, |parent, name| places.child(parent, name));
    let Some(content) = node.and_then(|node| places.content(node)) else { return Ok(()) };
    let Some([SourceExtent { start: 0, bytes, place: Some(place) }]) = content.extents() else {
        return Ok(());
    };
    if *bytes != entry.inode.size() {
        return Ok(());
    }
    let bits = u32::from(image.superblock().block_size.bits());
    for extent in image.file_extents(&entry.inode, 0)? {
        let extent = extent?;
        let Some(location) = extent.location.filter(|_| extent.storage == ExtentStorage::Plain)
        else {
            continue;
        };
        let bytes = extent.end.min(entry.inode.size()) - extent.start;
        let blocks = bytes.div_ceil(1 << bits);
        let zeros = (blocks << bits) - bytes;
        let from = place.offset + extent.start;
        writeln!(output, "{:08x} {blocks:8x} {from:08x} {zeros:08}", location.offset >> bits)?;
    }
    Ok(())
}
