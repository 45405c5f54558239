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
use ferrofs_builder::{Error, ErrorKind, NoopObserver};
use ferrofs_image::{ExtentStorage, Image, WalkEntry};
use ferrofs_workers::CancelToken;

use super::block_list::for_each_file;
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
    from_tar_layers(sources.collect::<Result<_, _>>()?, &options, &NoopObserver, cancel).map(Some)
}

/// Writes the list of a complete image, whose contents are in places of archives; an empty one without them.
///
/// # Errors
/// The image cannot be read, or the list cannot be written.
pub(super) fn write(list: OutputTarget, contents: Option<(Image, &Tree)>) -> anyhow::Result<()> {
    let mut output = TextFile::at(list)?;
    let Some((image, places)) = contents else { return output.publish() };
    let mut seen = HashSet::new();
    for_each_file(&image, |entry| {
        if seen.insert(entry.inode.nid()) {
            write_file(&mut output, &image, entry, places)
                .map_err(|error| anyhow!("{}: {error}", escape(&entry.path)))?;
        }
        Ok(())
    })?;
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
