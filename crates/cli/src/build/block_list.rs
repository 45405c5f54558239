//! Writes which blocks of an image hold the data of each file, as tools for updates of Android read
//! it. Called by `build`.

use std::io::Write;
use std::path::Path;

use anyhow::anyhow;
use ferrofs_builder::output::OutputTarget;
use ferrofs_image::{ExtentStorage, FileType, Image, Inode, OpenOptions, WalkEvent};

use crate::output::escape;
use crate::text_file::TextFile;

/// Writes one line for each file with blocks of its own: its path below the mount point, and ranges
/// of blocks, the last one included.
///
/// # Errors
/// The image cannot be read, or the list cannot be written.
pub(super) fn write(
    list: OutputTarget,
    image: &Path,
    offset: u64,
    mount_point: &[u8],
) -> anyhow::Result<()> {
    let mut output = TextFile::at(list)?;
    let image = OpenOptions::new().offset(offset).open(image)?;
    for event in image.walk(b"/")? {
        let WalkEvent::Leaf(entry) = event else { continue };
        if entry.inode.file_type() != FileType::Regular {
            continue;
        }
        let blocks = blocks(&image, &entry.inode)
            .map_err(|error| anyhow!("{}: {error}", escape(&entry.path)))?;
        if blocks.is_empty() {
            continue;
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
    }
    output.publish()
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
