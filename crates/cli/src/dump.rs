//! dump.erofs: prints the superblock, an inode, or statistics, in the format of erofs-utils.

mod statistics;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

use anyhow::anyhow;
use ferrofs_image::{
    ExtentStorage, FileExtent, FilePiece, FileSource, FileType, Image, Inode, Nid,
};
use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_ondisk::{Compat, DataLayout, Incompat};

use crate::applets::dump::DumpArguments;
use crate::arguments::ReadArguments;
use crate::exit_status::CommandStatus;
use crate::metadata_text::{
    self, FoundInode, build_time, format_percent, format_uuid, permissions_text, stored_bytes,
};
use crate::output::{self, CopyError, Output, escape};
use crate::signals::ExitOnSignals;
use crate::source;

/// The exit status for an image that cannot be read: the negative number of EINVAL in 8 bits.
const UNREADABLE_STATUS: u8 = 234;

/// Prints what the arguments select. As dump.erofs has it, only an image that cannot be opened is a
/// failure; a path or inode that does not exist, and damage, are reported.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn run(
    arguments: &DumpArguments,
    _signals: &ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    match open(arguments) {
        Ok(image) => CommandStatus::Success.after_output(show(arguments, &image)),
        Err(status) => Ok(status),
    }
}

fn show(arguments: &DumpArguments, image: &Image) -> anyhow::Result<()> {
    let mut output = Output::new();
    if arguments.blkid_udev {
        show_for_udev(&mut output, image)?;
        return Ok(output.flush()?);
    }
    if arguments.cat && (arguments.superblock || arguments.statistics || arguments.ls) {
        output::print_message("--cat cannot be used with -s, -S or --ls; nothing is shown");
        return Ok(());
    }
    if arguments.shows_superblock() && !arguments.cat {
        show_superblock(&mut output, image)?;
    }
    if arguments.statistics {
        report(statistics::show(&mut output, image))?;
    }
    let needs_inode = arguments.cat || arguments.extents;
    let found = match (&arguments.path, arguments.nid) {
        (Some(path), _) => FoundInode::at(image, &absolute(path.as_bytes())).map(Some),
        (None, Some(nid)) => FoundInode::numbered(image, nid).map(Some),
        (None, None) if needs_inode => Err(anyhow!("-e and --cat need --nid or --path")),
        (None, None) => Ok(None),
    };
    let shown = found.and_then(|found| match found {
        Some(found) => show_found(arguments, &mut output, image, &found),
        None => Ok(()),
    });
    output.flush()?;
    report(shown)
}

/// Reports what is wrong with the image, so that the rest is shown.
///
/// # Errors
/// Standard output cannot be written.
fn report(shown: anyhow::Result<()>) -> anyhow::Result<()> {
    match shown {
        Err(error) if is_about_output(&error) => return Err(error),
        Err(error) => output::print_message(format_args!("{error:#}")),
        Ok(()) => {}
    }
    Ok(())
}

/// Opens the image, or reports why not and gives the exit status of dump.erofs for that.
fn open(arguments: &DumpArguments) -> Result<Image, CommandStatus> {
    for path in arguments.devices.iter().chain([&arguments.image]) {
        // What no system call refuses, such as a directory, is reported where the image is opened.
        let opened = FileSource::open_file(path).map(drop);
        if let Some(error) = opened.err().filter(|error| error.raw_os_error().is_some()) {
            output::print_path_message(path.as_os_str().as_bytes(), &error);
            let errno = error.raw_os_error().and_then(|errno| u8::try_from(errno).ok());
            return Err(CommandStatus::Number(errno.unwrap_or(1).wrapping_neg()));
        }
    }
    let read = |no_checksum| ReadArguments {
        partition: None,
        offset: arguments.offset,
        devices: arguments.devices.clone(),
        no_checksum,
        // Layouts are shown without the devices, too.
        quiet: true,
        ..ReadArguments::default()
    };
    let opened = source::open(&arguments.image, &read(false));
    opened.or_else(|error| match source::open(&arguments.image, &read(true)) {
        Ok(image) => {
            output::print_message(format_args!("warning: {error:#}"));
            Ok(image)
        }
        Err(error) => {
            output::print_message(format_args!("{error:#}"));
            Err(CommandStatus::Number(UNREADABLE_STATUS))
        }
    })
}

/// A path that begins with a slash and has none at its end.
fn absolute(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    [b"/", &*names.collect::<Vec<_>>().join(&b'/')].concat()
}

fn is_about_output(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<io::Error>())
}

fn show_found(
    arguments: &DumpArguments,
    output: &mut Output,
    image: &Image,
    found: &FoundInode,
) -> anyhow::Result<()> {
    if arguments.cat {
        return write_content(output, image, found);
    }
    show_inode(output, image, found)?;
    if arguments.ls {
        list(output, image, found)?;
    }
    if arguments.extents {
        show_extents(output, image, found)?;
    }
    Ok(())
}

/// A feature, as dump.erofs names it, and the first Linux that reads it.
type Feature = (u32, &'static str, (u8, u8));

const INCOMPAT: [Feature; 9] = [
    (Incompat::ZERO_PADDING, "lz4_0padding", (5, 4)),
    (Incompat::COMPR_CFGS, "compr_cfgs big_pcluster", (5, 13)),
    (Incompat::CHUNKED_FILE, "chunked_file", (5, 15)),
    (Incompat::DEVICE_TABLE, "device_table", (5, 16)),
    (Incompat::ZTAILPACKING, "ztailpacking", (5, 17)),
    (Incompat::FRAGMENTS, "fragments dedupe", (6, 1)),
    (Incompat::XATTR_PREFIXES, "xattr_prefixes", (6, 4)),
    (Incompat::BIT48, "48bit", (6, 15)),
    (Incompat::METABOX, "metabox", (6, 17)),
];

const COMPAT: [(u32, &str); 6] = [
    (Compat::SB_CHKSUM, "sb_csum"),
    (Compat::MTIME, "mtime"),
    (Compat::XATTR_FILTER, "xattr_filter"),
    (Compat::SHARED_EA_IN_METABOX, "shared_ea_in_metabox"),
    (Compat::PLAIN_XATTR_PFX, "plain_xattr_pfx"),
    (Compat::ISHARE_XATTRS, "ishare_xattrs"),
];

/// Shows it.
fn show_superblock(output: &mut Output, image: &Image) -> io::Result<()> {
    let sb = image.superblock();
    let mut line = |key: &str, value: &str| writeln!(output, "{:<46}{value}", format!("{key}:"));
    line("Filesystem magic number", "0xE0F5E1E2")?;
    line("Filesystem blocksize", &sb.block_size.bytes().to_string())?;
    let devices = image.device_slots().iter().map(|device| device.blocks);
    let blocks = devices.fold(sb.blocks, u64::saturating_add);
    line("Filesystem blocks", &blocks.to_string())?;
    line("Filesystem inode metadata start block", &sb.meta_block.to_string())?;
    line("Filesystem shared xattr metadata start block", &sb.xattr_block.to_string())?;
    line("Filesystem root nid", &sb.root.raw().to_string())?;
    for (nid, key) in [(sb.packed, "packed"), (sb.metabox, "metabox")] {
        if let Some(nid) = nid.map(Nid::raw) {
            line(&format!("Filesystem {key} nid"), &nid.to_string())?;
        }
    }
    if sb.incompat.has(Incompat::COMPR_CFGS) {
        let names: Vec<_> = algorithms(image).iter().map(|one| name(*one)).collect();
        line("Filesystem compr_algs", &names.join(", "))?;
    } else {
        line("Filesystem lz4_max_distance", &sb.algorithms_or_distance.to_string())?;
    }
    line("Filesystem sb_size", &sb.bytes.to_string())?;
    line("Filesystem inode count", &sb.inodes.to_string())?;
    line("Filesystem created", &metadata_text::format_ctime(build_time(image)))?;
    line("Filesystem compatible features", &compatible(image))?;
    line("Filesystem incompatible features", &incompatible(image))?;
    line("Filesystem UUID", &format_uuid(sb.uuid))?;
    if let Some((major, minor)) = min_linux_version(image) {
        line("Required upstream Linux kernel version", &format!("{major}.{minor}"))?;
    }
    Ok(())
}

/// Shows what udev imports about a file system.
fn show_for_udev(output: &mut Output, image: &Image) -> io::Result<()> {
    let sb = image.superblock();
    let label = sb.label_text();
    if !label.is_empty() {
        writeln!(output, "ID_FS_LABEL={}", with_replaced(label))?;
        writeln!(output, "ID_FS_LABEL_ENC={}", with_escapes(label))?;
    }
    let uuid = format_uuid(sb.uuid);
    writeln!(output, "ID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}")?;
    writeln!(output, "ID_FS_TYPE=erofs\nID_FS_USAGE=filesystem")
}

fn is_harmless(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&byte)
}

/// A label in which special characters are replaced with underscores.
fn with_replaced(label: &[u8]) -> String {
    label.iter().map(|&byte| if is_harmless(byte) { char::from(byte) } else { '_' }).collect()
}

/// A label in which special characters are written as `\xNN`.
fn with_escapes(label: &[u8]) -> String {
    let escaped = |&byte: &u8| match is_harmless(byte) {
        true => char::from(byte).to_string(),
        false => format!("\\x{byte:02x}"),
    };
    label.iter().map(escaped).collect()
}

/// The names, each followed by a blank.
fn compatible(image: &Image) -> String {
    let word = image.superblock().compat;
    COMPAT.iter().filter(|(bit, _)| word.has(*bit)).map(|(_, name)| format!("{name} ")).collect()
}

fn incompatible(image: &Image) -> String {
    let word = image.superblock().incompat;
    let set = INCOMPAT.iter().filter(|(bit, ..)| word.has(*bit));
    set.map(|(_, name, _)| format!("{name} ")).collect()
}

fn min_linux_version(image: &Image) -> Option<(u8, u8)> {
    let word = image.superblock().incompat;
    let features = INCOMPAT.iter().filter(|(bit, ..)| word.has(*bit)).map(|(.., linux)| *linux);
    let declared = if word.has(Incompat::COMPR_CFGS) { algorithms(image) } else { Vec::new() };
    let algorithms = declared.into_iter().map(|algorithm| match algorithm {
        AlgorithmId::Lz4 => (5, 4),
        AlgorithmId::Lzma => (5, 16),
        AlgorithmId::Deflate => (6, 6),
        AlgorithmId::Zstd => (6, 10),
    });
    features.chain(algorithms).max()
}

fn algorithms(image: &Image) -> Vec<AlgorithmId> {
    let compression = image.compression();
    AlgorithmId::ALL.into_iter().filter(|algorithm| compression.has(*algorithm)).collect()
}

fn name(algorithm: AlgorithmId) -> &'static str {
    match algorithm {
        AlgorithmId::Lz4 => "lz4",
        AlgorithmId::Lzma => "lzma",
        AlgorithmId::Deflate => "deflate",
        AlgorithmId::Zstd => "zstd",
    }
}

/// Zeros that are written at a time where there is a hole.
const ZEROS: [u8; 4096] = [0; 4096];

/// Prints the metadata of an inode.
fn show_inode(output: &mut Output, image: &Image, found: &FoundInode) -> anyhow::Result<()> {
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
    let mode = inode.mode() & 0o777;
    let text = permissions_text(mode);
    write!(output, "Uid: {}   Gid: {}  ", inode.uid(), inode.gid())?;
    writeln!(output, "Access: {mode:04o}/{text}")?;
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
fn list(output: &mut Output, image: &Image, found: &FoundInode) -> anyhow::Result<()> {
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
fn write_content(output: &mut Output, image: &Image, found: &FoundInode) -> anyhow::Result<()> {
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

/// Prints the extents of an inode.
fn show_extents(output: &mut Output, image: &Image, found: &FoundInode) -> anyhow::Result<()> {
    let header = "\n Ext:   logical offset   |  length :     physical offset    |  length";
    writeln!(output, "{header}")?;
    let mut count = 0u64;
    if has_data(&found.inode) {
        let failed = |error: ferrofs_image::Error| about(found, &error);
        for range in image.file_extents(&found.inode, 0).map_err(failed)? {
            let range = in_blocks(range.map_err(failed)?, image, &found.inode);
            show_extent(output, count, &range)?;
            count += 1;
        }
    }
    output.name(found.path.as_deref().unwrap_or(b"(not found)"))?;
    writeln!(output, ": {count} extents found")?;
    Ok(())
}

/// An extent as dump.erofs shows it: data that is not compressed takes whole blocks, unless it lies
/// next to the inode.
fn in_blocks(mut range: FileExtent, image: &Image, inode: &Inode) -> FileExtent {
    let block = u64::from(image.superblock().block_size.bytes());
    let is_inline = inode.layout() == DataLayout::FlatInline && !range.end.is_multiple_of(block);
    let is_in_blocks = matches!(range.storage, ExtentStorage::Plain | ExtentStorage::Hole);
    if is_in_blocks && !inode.layout().is_compressed() && !is_inline {
        range.end = range.end.checked_next_multiple_of(block).unwrap_or(range.end);
        if let Some(place) = &mut range.location {
            place.bytes = place.bytes.checked_next_multiple_of(block).unwrap_or(place.bytes);
        }
    }
    range
}

fn show_extent(output: &mut Output, number: u64, range: &FileExtent) -> io::Result<()> {
    let (start, end) = (range.start, range.end);
    write!(output, "{number:>4}: {start:>8}..{end:>8} | {:>7} : ", end - start)?;
    // Data without a place in the image is shown with address and length 0.
    let place = range.location.filter(|_| range.storage != ExtentStorage::Fragment);
    let (first, bytes) = place.map_or((0, 0), |place| (place.offset, place.bytes));
    write!(output, "{first:>10}..{:>10} | {bytes:>7}", first.saturating_add(bytes))?;
    match place {
        Some(place) if place.device > 0 => writeln!(output, "  # device {}", place.device),
        _ => writeln!(output),
    }
}

fn about(found: &FoundInode, error: &ferrofs_image::Error) -> anyhow::Error {
    match &found.path {
        Some(path) => anyhow!("{}: {error}", escape(path)),
        None => anyhow!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_reach_udev_as_text_only() {
        assert_eq!(with_replaced(b"a b\n;"), "a_b__");
        assert_eq!(with_escapes(b"a b\n;"), "a\\x20b\\x0a\\x3b");
    }
}
