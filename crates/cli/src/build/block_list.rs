//! Writes which blocks of an image hold the data of each file, as tools for updates of Android read
//! it. Called by `build`.

use std::io::Write;

use anyhow::anyhow;
use ferrofs_builder::output::OutputTarget;
use ferrofs_image::{ExtentStorage, FileType, Image, Inode, WalkEntry, WalkEvent};

use crate::output::escape;
use crate::text_file::TextFile;

/// Writes one line for each file with blocks of its own: its path below the mount point, and ranges
/// of blocks, the last one included.
///
/// # Errors
/// The image cannot be read, or the list cannot be written.
pub(super) fn write(list: OutputTarget, image: &Image, mount_point: &[u8]) -> anyhow::Result<()> {
    let mut output = TextFile::at(list)?;
    for_each_file(image, |entry| {
        let blocks = blocks(image, &entry.inode)
            .map_err(|error| anyhow!("{}: {error}", escape(&entry.path)))?;
        if blocks.is_empty() {
            return Ok(());
        }
        let path = super::android::host_path(
            mount_point,
            entry.path.strip_prefix(b"/").unwrap_or(&entry.path),
        );
        output.write_all(&ferrofs_builder::import::android_text::escape_path(&path))?;
        for (first, last) in blocks {
            match first == last {
                true => write!(output, " {first}")?,
                false => write!(output, " {first}-{last}")?,
            }
        }
        writeln!(output)?;
        Ok(())
    })?;
    output.publish()
}

/// Calls `visit` with each name of each regular file of a complete image.
///
/// # Errors
/// A directory or an inode cannot be read, as a list without its files would be wrong; those of `visit`.
pub(super) fn for_each_file(
    image: &Image,
    mut visit: impl FnMut(&WalkEntry) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for event in image.walk(b"/").map_err(|error| anyhow!("/: {error}"))? {
        match event {
            WalkEvent::Leaf(entry) if entry.inode.file_type() == FileType::Regular => {
                visit(&entry)?;
            }
            WalkEvent::Problem(problem) => {
                return Err(anyhow!("{}: {}", escape(&problem.path), problem.error));
            }
            WalkEvent::Enter(_) | WalkEvent::Leaf(_) | WalkEvent::Leave(_) => {}
        }
    }
    Ok(())
}

/// The first and the last block of each run of blocks of a file.
fn blocks(image: &Image, inode: &Inode) -> Result<Vec<(u64, u64)>, ferrofs_image::Error> {
    let bits = u32::from(image.superblock().block_size.bits());
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for extent in image.file_extents(inode, 0)? {
        let extent = extent?;
        let is_stored = !matches!(extent.storage, ExtentStorage::Hole | ExtentStorage::Fragment);
        let Some(place) = extent.location.filter(|place| is_stored && place.device == 0) else {
            continue;
        };
        let end = place.offset.saturating_add(place.bytes).saturating_sub(1);
        let (first, last) = (place.offset >> bits, end >> bits);
        match runs.last_mut() {
            Some(run) if first <= run.1.saturating_add(1) && first >= run.0 => {
                run.1 = run.1.max(last);
            }
            _ => runs.push((first, last)),
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ferrofs_builder::output::ExistingOutput;
    use ferrofs_builder::tree::{Metadata, Tree, XattrMap};
    use ferrofs_image::{Nid, OpenOptions};

    use super::super::block_map;
    use super::*;

    const IMAGE: &[u8] = include_bytes!("../../data/demo.erofs");

    /// The list was shorter, and the exit status 0.
    #[test]
    fn a_directory_that_cannot_be_read_is_no_shorter_list() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("image");
        fs::write(&path, IMAGE).unwrap();
        let image = OpenOptions::new().open(&path).unwrap();
        let is_inner = |event| match event {
            WalkEvent::Enter(entry) if entry.path != b"/" => Some(entry.inode.nid()),
            _ => None,
        };
        let directory: Nid = image.walk(b"/").unwrap().find_map(is_inner).unwrap();
        let superblock = image.superblock();
        let meta = usize::try_from(superblock.meta_block).unwrap();
        let meta = meta * usize::try_from(superblock.block_size.bytes()).unwrap();
        let mut damaged = IMAGE.to_vec();
        let inode = meta + 32 * usize::try_from(directory.raw()).unwrap();
        // A format that no inode has.
        damaged[inode..inode + 2].fill(0xff);
        fs::write(&path, damaged).unwrap();
        let image = OpenOptions::new().ignore_checksum(true).open(&path).unwrap();
        let (list, map) = (folder.path().join("list"), folder.path().join("map"));
        let target = |path| TextFile::target(path, ExistingOutput::Refuse).unwrap();
        let root = Metadata {
            permissions: 0o755,
            uid: 0,
            gid: 0,
            mtime: crate::metadata_text::build_time(&image),
            xattrs: XattrMap::default(),
        };
        let places = Tree::new(root);
        write(target(&list), &image, b"").unwrap_err();
        block_map::write(target(&map), Some((image, &places))).unwrap_err();
        assert!(!list.exists() && !map.exists());
    }
}
