//! An inode, what is in it and where that lies, in the lines of dump.erofs.

use std::io::{self, Write};
use std::ops::ControlFlow;

use anyhow::anyhow;
use ferrofs_image::{ExtentStorage, FileExtent, FilePiece, FileType, Image, Inode};
use ferrofs_ondisk::DataLayout;

use crate::metadata_text::{self, FoundInode, format_percent, mode_text, stored_bytes};
use crate::output::CopyError;
use crate::output::{Output, escape};

/// Zeros that are written at a time where there is a hole.
const ZEROS: [u8; 4096] = [0; 4096];

/// Shows what the inode says.
pub(super) fn show(output: &mut Output, image: &Image, found: &FoundInode) -> anyhow::Result<()> {
    let inode = &found.inode;
    write!(output, "Path : ")?;
    output.name(found.path.as_deref().unwrap_or(b"(not found)"))?;
    writeln!(output)?;
    let (size, stored) = (inode.size(), stored_bytes(image, inode));
    writeln!(output, "Size: {size}  On-disk size: {stored}  {}", kind(inode))?;
    let (nid, nlink, layout) = (inode.nid().raw(), inode.nlink(), layout_number(inode));
    write!(output, "NID: {nid}   Links: {nlink}   Layout: {layout}")?;
    writeln!(output, "   Compression ratio: {}%", format_percent(stored, size))?;
    writeln!(output, "Inode size: {}   Xattr size: {}", inode.bytes(), inode.xattr_bytes())?;
    let (mode, text) = (inode.mode() & 0o777, mode_text(inode));
    write!(output, "Uid: {}   Gid: {}  ", inode.uid(), inode.gid())?;
    writeln!(output, "Access: {mode:04o}/{}", text.get(1..).unwrap_or_default())?;
    writeln!(
        output,
        "Timestamp: {}",
        metadata_text::format_exact(inode.mtime()).trim_end_matches(" UTC")
    )?;
    Ok(())
}

fn kind(inode: &Inode) -> &'static str {
    match inode.file_type() {
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::CharDevice => "char dev",
        FileType::BlockDevice => "block dev",
        FileType::Fifo => "FIFO file",
        FileType::Socket => "SOCK file",
        FileType::Symlink => "symlink file",
    }
}

/// The number that the format gives the layout (docs/format.md F10).
fn layout_number(inode: &Inode) -> u8 {
    match inode.layout() {
        DataLayout::FlatPlain => 0,
        DataLayout::CompressedFull => 1,
        DataLayout::FlatInline => 2,
        DataLayout::CompressedCompact => 3,
        DataLayout::Chunk => 4,
    }
}

/// Lists a directory, `.` and `..` included.
pub(super) fn list(output: &mut Output, image: &Image, found: &FoundInode) -> anyhow::Result<()> {
    writeln!(output, "\n       NID TYPE  FILENAME")?;
    let mut written = Ok(());
    let listed = image.list(&found.inode, 0, &mut |entry| {
        let number = entry.type_hint.map_or(0, type_number);
        let line = write!(output, "{:>10} {number:>4}  ", entry.nid.raw());
        written = line.and_then(|()| output.name(entry.name)).and_then(|()| writeln!(output));
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    listed.map_err(|error| about(found, &error))?;
    Ok(written?)
}

/// The number that directories have for a type (docs/format.md F18).
fn type_number(kind: FileType) -> u8 {
    match kind {
        FileType::Regular => 1,
        FileType::Directory => 2,
        FileType::CharDevice => 3,
        FileType::BlockDevice => 4,
        FileType::Fifo => 5,
        FileType::Socket => 6,
        FileType::Symlink => 7,
    }
}

/// Writes the bytes of a file, or of a symlink or a directory.
pub(super) fn write_content(
    output: &mut Output,
    image: &Image,
    found: &FoundInode,
) -> anyhow::Result<()> {
    if !has_data(&found.inode) {
        return Ok(());
    }
    let written = image.for_each_piece(&found.inode, |piece| {
        match piece {
            FilePiece::Data { bytes, .. } => output.write_all(bytes)?,
            FilePiece::Hole { length, .. } => write_zeros(output, length)?,
        }
        Ok(())
    });
    written.map_err(|failure| match failure {
        CopyError::Image(error) => about(found, &error),
        CopyError::Output(error) => error.into(),
    })
}

fn has_data(inode: &Inode) -> bool {
    matches!(inode.file_type(), FileType::Regular | FileType::Directory | FileType::Symlink)
}

fn write_zeros(output: &mut Output, mut length: u64) -> io::Result<()> {
    while length > 0 {
        let count = usize::try_from(length).map_or(ZEROS.len(), |length| length.min(ZEROS.len()));
        output.write_all(&ZEROS[..count])?;
        length -= count as u64;
    }
    Ok(())
}

/// Shows where the inode's data lies, extent by extent.
pub(super) fn show_extents(
    output: &mut Output,
    image: &Image,
    found: &FoundInode,
) -> anyhow::Result<()> {
    let header = "\n Ext:   logical offset   |  length :     physical offset    |  length";
    writeln!(output, "{header}")?;
    let mut count = 0u64;
    if has_data(&found.inode) {
        let failed = |error: ferrofs_image::Error| about(found, &error);
        for range in image.file_extents(&found.inode, 0).map_err(failed)? {
            show_extent(output, count, &range.map_err(failed)?)?;
            count += 1;
        }
    }
    output.name(found.path.as_deref().unwrap_or(b"(not found)"))?;
    writeln!(output, ": {count} extents found")?;
    Ok(())
}

fn show_extent(output: &mut Output, number: u64, range: &FileExtent) -> io::Result<()> {
    let (start, end) = (range.start, range.end);
    write!(output, "{number:>4}: {start:>8}..{end:>8} | {:>7} : ", end - start)?;
    // What has no place in the image is shown as nothing at its start.
    let place = range.location.filter(|_| range.storage != ExtentStorage::Fragment);
    let (first, bytes) = place.map_or((0, 0), |place| (place.offset, place.bytes));
    write!(output, "{first:>10}..{:>10} | {bytes:>7}", first.saturating_add(bytes))?;
    match (range.storage, range.location) {
        (ExtentStorage::Hole, _) => write!(output, "  # hole")?,
        (ExtentStorage::Fragment, Some(place)) => {
            write!(output, "  # packed file {}", place.offset)?
        }
        (_, Some(place)) if place.device > 0 => write!(output, "  # device {}", place.device)?,
        _ => {}
    }
    writeln!(output)
}

fn about(found: &FoundInode, error: &ferrofs_image::Error) -> anyhow::Error {
    match &found.path {
        Some(path) => anyhow!("{}: {error}", escape(path)),
        None => anyhow!("{error}"),
    }
}
