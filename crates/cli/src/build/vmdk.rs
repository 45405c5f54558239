//! Writes a VMDK descriptor, a text that presents the image and its devices as one virtual disk.
//! Called by `build`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context;
use ferrofs_builder::BuildReport;
use ferrofs_builder::output::OutputTarget;
use ferrofs_builder::tree::Tree;

use super::request::BuildRequest;
use crate::text_file::TextFile;

/// Bytes of a sector.
const SECTOR_BYTES: u64 = 512;
/// The most sectors of an extent of this kind of disk: 2 GiB.
const EXTENT_SECTORS_MAX: u64 = (2 << 30) / SECTOR_BYTES;
/// The geometry that such disks have.
const HEADS: u64 = 16;
const SECTORS_PER_TRACK: u64 = 63;

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
    let text = descriptor(request.options.uuid, &disks);
    let mut output = TextFile::at(target)?;
    output.write_all(text.as_bytes()).context("cannot write the descriptor")?;
    output.publish()
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

/// The descriptor of a disk that consists of these files, each with its bytes.
fn descriptor(uuid: [u8; 16], files: &[(String, u64)]) -> String {
    let words = uuid
        .chunks_exact(4)
        .map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte)));
    let cid = words.fold(0, |sum, word| sum ^ word);
    let mut text = format!(
        "# Disk DescriptorFile\nversion=1\nCID={cid:x}\nparentCID=ffffffff\n\
         createType=\"twoGbMaxExtentFlat\"\n\n# Extent description\n"
    );
    let mut total = 0u64;
    for (file, bytes) in files {
        let sectors = bytes.div_ceil(SECTOR_BYTES);
        total = total.saturating_add(sectors);
        let mut at = 0;
        while at < sectors {
            let count = EXTENT_SECTORS_MAX.min(sectors - at);
            // Writing to a String cannot fail.
            writeln!(text, "RW {count} FLAT \"{file}\" {at}").unwrap_or_default();
            at += count;
        }
    }
    let cylinders = total.div_ceil(SECTORS_PER_TRACK * HEADS);
    write!(
        text,
        "\n# The Disk Data Base\n#DDB\n\nddb.virtualHWVersion = \"4\"\n\
         ddb.geometry.cylinders = \"{cylinders}\"\nddb.geometry.heads = \"{HEADS}\"\n\
         ddb.geometry.sectors = \"{SECTORS_PER_TRACK}\"\nddb.adapterType = \"ide\"\n"
    )
    .unwrap_or_default();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_have_several_extents() {
        let files = [("a.img".to_owned(), (2 << 30) + 4096), ("b.tar".to_owned(), 1000)];
        let mut uuid = [0; 16];
        (uuid[0], uuid[4]) = (0x12, 0x04);
        let text = descriptor(uuid, &files);
        assert!(text.contains("CID=16\n"), "{text}");
        let extents: Vec<_> = text.lines().filter(|line| line.starts_with("RW ")).collect();
        assert_eq!(
            extents,
            ["RW 4194304 FLAT \"a.img\" 0", "RW 8 FLAT \"a.img\" 4194304", "RW 2 FLAT \"b.tar\" 0"]
        );
        assert!(text.contains("ddb.geometry.cylinders = \"4162\""), "{text}");
    }
}
