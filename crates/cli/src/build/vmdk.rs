//! Writes a VMDK descriptor, a text that presents the image and its devices as one virtual disk.
//! Called by `build`.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ferrofs_builder::BuildReport;
use ferrofs_builder::import::TarContentMode;
use ferrofs_builder::output::OutputTarget;
use ferrofs_builder::tree::Tree;

use super::request::{BuildRequest, LayerData, SourceKind};
use crate::output::escape;
use crate::text_file::TextFile;

/// Bytes of a sector.
const SECTOR_BYTES: u64 = 512;
/// The most sectors of an extent of this kind of disk: 2 GiB.
const EXTENT_SECTORS_MAX: u64 = (2 << 30) / SECTOR_BYTES;
/// The geometry that such disks have.
const HEADS: u64 = 16;
const SECTORS_PER_TRACK: u64 = 63;

/// Refuses names that a descriptor cannot hold, before anything is written.
///
/// # Errors
/// The text has the name.
pub(super) fn check(request: &BuildRequest) -> Result<(), String> {
    if request.vmdk.is_none() {
        return Ok(());
    }
    let are_devices = match request.kind {
        SourceKind::DirectoryOrImages(layering) => layering.data == LayerData::Referred,
        _ => request.tar.contents == TarContentMode::Index,
    };
    let devices = request.sources.iter().filter(|path| are_devices && !path.is_dir());
    let blob = request.options.blob.iter().map(|blob| blob.path());
    let mut paths = blob.chain(devices.map(|path| path.as_path()));
    let refused = |path: &&Path| name(path).iter().any(|byte| matches!(byte, b'"' | b'\n'));
    match std::iter::once(request.image.as_path()).chain(&mut paths).find(refused) {
        Some(path) => Err(format!(
            "{}: a VMDK descriptor cannot hold a name with a double quote or a line feed; rename the file, or leave \
             out --vmdk-desc",
            escape(name(path))
        )),
        None => Ok(()),
    }
}

/// Writes the descriptor of a finished image.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write_descriptor(
    target: OutputTarget,
    request: &BuildRequest,
    report: &BuildReport,
    tree: &Tree,
) -> anyhow::Result<()> {
    let mut disks = vec![(name(&request.image), report.bytes)];
    if let Some(blob) = &request.options.blob {
        disks.push((name(blob.path()), report.blob_bytes));
    }
    let sources = request.sources.iter().map(|source| name(source));
    disks.extend(sources.zip(tree.devices().iter().map(|device| device.bytes)));
    let mut output = TextFile::at(target)?;
    descriptor(&mut output, request.options.uuid, &disks)?;
    output.publish()
}

/// The name as it is: another one would be another file.
fn name(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Writes the descriptor of a disk that consists of these files, each with its bytes.
fn descriptor(to: &mut impl Write, uuid: [u8; 16], files: &[(&[u8], u64)]) -> io::Result<()> {
    let words = uuid
        .chunks_exact(4)
        .map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte)));
    let cid = words.fold(0, |sum, word| sum ^ word);
    write!(
        to,
        "# Disk DescriptorFile\nversion=1\nCID={cid:x}\nparentCID=ffffffff\n\
         createType=\"twoGbMaxExtentFlat\"\n\n# Extent description\n"
    )?;
    let mut total = 0u64;
    for (file, bytes) in files {
        let sectors = bytes.div_ceil(SECTOR_BYTES);
        total = total.saturating_add(sectors);
        let mut at = 0;
        while at < sectors {
            let count = EXTENT_SECTORS_MAX.min(sectors - at);
            write!(to, "RW {count} FLAT \"")?;
            to.write_all(file)?;
            writeln!(to, "\" {at}")?;
            at += count;
        }
    }
    let cylinders = total.div_ceil(SECTORS_PER_TRACK * HEADS);
    write!(
        to,
        "\n# The Disk Data Base\n#DDB\n\nddb.virtualHWVersion = \"4\"\n\
         ddb.geometry.cylinders = \"{cylinders}\"\nddb.geometry.heads = \"{HEADS}\"\n\
         ddb.geometry.sectors = \"{SECTORS_PER_TRACK}\"\nddb.adapterType = \"ide\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_have_several_extents() {
        let files = [(&b"a.img"[..], (2 << 30) + 4096), (b"b.tar", 1000)];
        let mut uuid = [0; 16];
        (uuid[0], uuid[4]) = (0x12, 0x04);
        let mut text = Vec::new();
        descriptor(&mut text, uuid, &files).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("CID=16\n"), "{text}");
        let extents: Vec<_> = text.lines().filter(|line| line.starts_with("RW ")).collect();
        assert_eq!(
            extents,
            ["RW 4194304 FLAT \"a.img\" 0", "RW 8 FLAT \"a.img\" 4194304", "RW 2 FLAT \"b.tar\" 0"]
        );
        assert!(text.contains("ddb.geometry.cylinders = \"4162\""), "{text}");
    }
}
