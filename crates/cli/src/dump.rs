//! What dump.erofs is asked for: the superblock, an inode, statistics, in the lines that scripts look for.

mod inode;
mod statistics;

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use ferrofs_image::{Image, Nid};
use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_ondisk::{Compat, Incompat};

use crate::applets::dump::DumpArguments;
use crate::arguments::ReadArguments;
use crate::exit_status::CommandStatus;
use crate::metadata_text::{self, FoundInode, build_time, format_uuid};
use crate::output::Output;
use crate::signals::ExitOnSignals;
use crate::source;

/// Shows what is asked for.
pub(crate) fn run(
    arguments: &DumpArguments,
    _signals: &ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let read = ReadArguments {
        offset: arguments.offset,
        devices: arguments.devices.clone(),
        no_checksum: false,
        // Layouts can be shown without what lies elsewhere.
        quiet: true,
    };
    let image = source::open(&arguments.image, &read)?;
    let mut output = Output::new();
    if arguments.blkid_udev {
        show_for_udev(&mut output, &image)?;
        output.flush()?;
        return Ok(CommandStatus::Success);
    }
    if arguments.shows_superblock() {
        show_superblock(&mut output, &image)?;
    }
    if arguments.statistics {
        statistics::show(&mut output, &image)?;
    }
    let found = match (&arguments.path, arguments.nid) {
        (Some(path), _) => Some(FoundInode::at(&image, path.as_bytes())?),
        (None, Some(nid)) => Some(FoundInode::numbered(&image, nid)?),
        (None, None) => None,
    };
    if let Some(found) = &found {
        if arguments.cat {
            inode::write_content(&mut output, &image, found)?;
        } else {
            inode::show(&mut output, &image, found)?;
        }
        if arguments.ls {
            inode::list(&mut output, &image, found)?;
        }
        if arguments.extents {
            inode::show_extents(&mut output, &image, found)?;
        }
    }
    output.flush()?;
    Ok(CommandStatus::Success)
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
pub(super) fn show_superblock(output: &mut Output, image: &Image) -> io::Result<()> {
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
    if let Some((major, minor)) = least_linux(image) {
        line("Required upstream Linux kernel version", &format!("{major}.{minor}"))?;
    }
    Ok(())
}

/// Shows what udev imports about a file system.
pub(super) fn show_for_udev(output: &mut Output, image: &Image) -> io::Result<()> {
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

/// A label in which what could be more than text is an underscore.
fn with_replaced(label: &[u8]) -> String {
    label.iter().map(|&byte| if is_harmless(byte) { char::from(byte) } else { '_' }).collect()
}

/// A label in which what could be more than text is `\xNN`.
fn with_escapes(label: &[u8]) -> String {
    let shown = |&byte: &u8| match is_harmless(byte) {
        true => char::from(byte).to_string(),
        false => format!("\\x{byte:02x}"),
    };
    label.iter().map(shown).collect()
}

/// The names, each with a blank behind it.
fn compatible(image: &Image) -> String {
    let word = image.superblock().compat;
    COMPAT.iter().filter(|(bit, _)| word.has(*bit)).map(|(_, name)| format!("{name} ")).collect()
}

fn incompatible(image: &Image) -> String {
    let word = image.superblock().incompat;
    let set = INCOMPAT.iter().filter(|(bit, ..)| word.has(*bit));
    set.map(|(_, name, _)| format!("{name} ")).collect()
}

fn least_linux(image: &Image) -> Option<(u8, u8)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_reach_udev_as_text_only() {
        assert_eq!(with_replaced(b"a b\n;"), "a_b__");
        assert_eq!(with_escapes(b"a b\n;"), "a\\x20b\\x0a\\x3b");
    }
}
