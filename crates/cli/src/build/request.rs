//! A request to build, which both command lines fill in. Nothing here touches the system.

use std::path::PathBuf;

use ferrofs_builder::import::adjust::Adjustments;
use ferrofs_builder::import::{DirectoryOptions, TarImportOptions};
use ferrofs_builder::output::ExistingOutput;
use ferrofs_builder::{
    AlgorithmContext, Algorithms, BuildOptions, CompressionHints, OutputMode, SuperblockTime,
};
use ferrofs_ondisk::BlockSize;

use super::algorithms::parse_u32;
use crate::arguments::{AndroidArguments, ConnectionArguments, MachineArguments, ProgressStyle};

/// What is to be built. What depends on the source is decided later.
#[derive(Debug)]
pub(crate) struct BuildRequest {
    /// The path of the image.
    pub(crate) image: PathBuf,
    /// One directory, or the archives of layers from the lowest on; `-` is standard input.
    pub(crate) sources: Vec<PathBuf>,
    pub(crate) kind: SourceKind,
    pub(crate) options: BuildOptions,
    pub(crate) directory: DirectoryOptions,
    pub(crate) tar: TarImportOptions,
    /// Changes to the tree of an archive; `directory` has those to the tree of a directory.
    pub(crate) tar_adjustments: Adjustments,
    /// What happens to an existing image, and to an existing blob.
    pub(crate) existing: ExistingOutput,
    pub(crate) verify: Verify,
    pub(crate) is_dry_run: bool,
    pub(crate) machine: MachineArguments,
    /// How a registry is reached.
    pub(crate) connection: ConnectionArguments,
    pub(crate) output: OutputOptions,
    /// A file for a VMDK descriptor of the image.
    pub(crate) vmdk: Option<PathBuf>,
    /// A file for the archive as it is after decompression.
    pub(crate) archive_copy: Option<PathBuf>,
    /// A file for the configuration of a container image.
    pub(crate) container_config: Option<PathBuf>,
    pub(crate) android: AndroidArguments,
    /// A file with the metadata of all paths.
    pub(crate) sidecar: Option<PathBuf>,
    /// The sources are laid over the files of the present image.
    pub(crate) incremental: Option<IncrementalBase>,
    /// A file for the list of what lies where in the image and in the archive.
    pub(crate) block_map: Option<BlockMapRequest>,
    /// Options that have no effect, or another one than the user may expect.
    pub(crate) warnings: Vec<String>,
    pub(crate) source_warnings: SourceWarnings,
}

/// Options that have no effect on a kind of source. Which kind it is, is known when it is examined.
#[derive(Debug, Default)]
pub(crate) struct SourceWarnings {
    pub(crate) of_directory: Vec<String>,
    pub(crate) of_images: Vec<String>,
}

/// What of an image stays as it is when files are added to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IncrementalBase {
    pub(crate) keeps_uuid: bool,
    pub(crate) keeps_label: bool,
    /// Without new ones, files are compressed by the algorithms that the image has.
    pub(crate) keeps_algorithms: bool,
}

/// The list of what lies where in the image and in the archive.
#[derive(Clone, Debug)]
pub(crate) struct BlockMapRequest {
    pub(crate) path: PathBuf,
    /// Whether it has lines; the list of an archive that is only copied is empty.
    pub(crate) has_lines: bool,
}

/// The kind of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceKind {
    Directory,
    Tar,
    /// A container image, of which all layers are merged.
    Container,
    /// A directory, or an archive if the path is not a directory.
    AsFound,
    /// A directory, or EROFS images as layers if the path is not a directory.
    DirectoryOrImages(LayerOptions),
}

/// How images are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerOptions {
    pub(crate) data: LayerData,
    /// The block size is that of the options; else it is that of the images, if data stays there.
    pub(crate) has_block_size: bool,
    /// The images come from layers with whiteouts of aufs, of which none may be left.
    pub(crate) is_aufs: bool,
}

/// How the data of source images is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerData {
    /// It stays in the source images.
    Referred,
    /// It is copied into the new image.
    Taken,
}

/// Whether the image is compared with its source before it gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    Yes,
    /// Everything except contents, which came through a pipe and cannot be read again.
    ButContents,
    No,
}

/// What is printed about a build, besides errors.
#[derive(Clone, Debug)]
pub(crate) struct OutputOptions {
    pub(crate) form: OutputFormat,
    pub(crate) progress: ProgressStyle,
    /// Whether warnings are printed, too.
    pub(crate) print_warnings: bool,
}

/// The format of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    Nothing,
    Text,
    Json,
    /// As mkfs.erofs has it, with or without the name of each file.
    Mkfs {
        lists_files: bool,
    },
}

/// The clock, environment variables and random bytes, read once.
#[derive(Clone, Debug)]
pub(crate) struct BuildEnvironment {
    /// `SOURCE_DATE_EPOCH`, as it is.
    pub(crate) source_date_epoch: Option<std::ffi::OsString>,
    /// Seconds since 1970.
    pub(crate) now: u64,
    /// Random bytes.
    pub(crate) random: [u8; 16],
    /// The file of hints, if one was named.
    pub(crate) hints: Option<Vec<u8>>,
}

impl BuildEnvironment {
    /// The time that `SOURCE_DATE_EPOCH` gives, if it is set.
    ///
    /// # Errors
    /// It is no number of seconds that an image can hold.
    pub(crate) fn epoch(&self) -> Result<Option<u64>, String> {
        let Some(text) = &self.source_date_epoch else { return Ok(None) };
        let number = text.to_str().and_then(|text| text.parse().ok());
        let number = number.filter(|seconds| i64::try_from(*seconds).is_ok());
        number
            .map(Some)
            .ok_or_else(|| format!("SOURCE_DATE_EPOCH={}: not a number of seconds", text.display()))
    }

    /// A UUID of its own (RFC 9562, version 4).
    fn random_uuid(&self) -> [u8; 16] {
        let mut uuid = self.random;
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }
}

/// Reads a UUID, or `clear` or `random`.
pub(crate) fn parse_uuid(text: &str, environment: &BuildEnvironment) -> Result<[u8; 16], String> {
    match text {
        "clear" => return Ok([0; 16]),
        "random" => return Ok(environment.random_uuid()),
        _ => {}
    }
    let refused = || format!("{text} is not a UUID, such as 12b8c075-d915-5e57-8730-a4a4b2ca06f2");
    let groups: Vec<usize> = text.split('-').map(str::len).collect();
    if groups != [8, 4, 4, 4, 12] {
        return Err(refused());
    }
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| !pair.starts_with('+'));
        *byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).ok_or_else(refused)?;
    }
    Ok(uuid)
}

/// The size of the label field, including the final zero.
const LABEL_BYTES_MAX: usize = 15;

/// Reads a label.
pub(crate) fn parse_label(text: &[u8]) -> Result<[u8; 16], String> {
    let mut label = [0; 16];
    if text.len() > LABEL_BYTES_MAX || text.contains(&0) {
        let bytes = text.len();
        return Err(format!("the label has {bytes} bytes; at most {LABEL_BYTES_MAX} fit"));
    }
    for (byte, given) in label.iter_mut().zip(text) {
        *byte = *given;
    }
    Ok(label)
}

/// Reads a block size.
pub(crate) fn parse_block_size(bytes: u64) -> Result<BlockSize, String> {
    let bits = u8::try_from(bytes.trailing_zeros()).ok().filter(|_| bytes.is_power_of_two());
    let size = bits.and_then(|bits| BlockSize::from_bits(bits).ok());
    size.filter(|size| size.bytes() <= 64 << 10).ok_or_else(|| {
        format!("block size {bytes} is not supported; use a power of two from 512 to 65536")
    })
}

/// Sizes and algorithms as given, independent of the names of the options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompressionSizes<'a> {
    pub(crate) block_bytes: u64,
    /// `None`: `pcluster_default`, or a block if that is longer.
    pub(crate) pcluster_bytes: Option<u64>,
    pub(crate) pcluster_default: u64,
    pub(crate) extent_bytes_max: Option<u64>,
    pub(crate) algorithms: Option<&'a str>,
    pub(crate) max_distance: u16,
    /// The file of hints, as it was read.
    pub(crate) hints: Option<&'a [u8]>,
    pub(crate) packed_pcluster_bytes: Option<u64>,
}

impl CompressionSizes<'_> {
    /// Options with these, and the defaults of all others. `option` is what algorithms were typed
    /// behind.
    ///
    /// # Errors
    /// What is out of range or cannot be read.
    pub(crate) fn options(&self, option: &str) -> Result<BuildOptions, String> {
        let defaults = BuildOptions::default();
        let block_size = parse_block_size(self.block_bytes)?;
        let pcluster_bytes =
            self.pcluster_bytes.unwrap_or(self.pcluster_default.max(self.block_bytes));
        let hints = CompressionHints::parse(self.hints.unwrap_or_default());
        let hints = hints.map_err(|error| error.to_string())?;
        let of_hints = hints.all().iter().map(|hint| u64::from(hint.pcluster_bytes));
        let largest = of_hints.chain(self.packed_pcluster_bytes).fold(pcluster_bytes, u64::max);
        let setting = AlgorithmContext { pcluster_bytes: largest, max_distance: self.max_distance };
        let algorithms = self.algorithms.map(|text| Algorithms::parse(text, setting)).transpose();
        let algorithms = algorithms.map_err(|error| format!("{option}: {error}"))?;
        let extent_bytes_max = match self.extent_bytes_max {
            None => defaults.extent_bytes_max / block_size.bytes() * block_size.bytes(),
            Some(bytes) => parse_u32("extents", bytes)?,
        };
        let packed = self.packed_pcluster_bytes.map(|bytes| parse_u32("pclusters", bytes));
        Ok(defaults
            .block_size(block_size)
            .algorithms(algorithms)
            .pcluster_bytes(parse_u32("pclusters", pcluster_bytes)?)
            .packed_pcluster_bytes(packed.transpose()?)
            .hints(hints)
            .extent_bytes_max(extent_bytes_max))
    }
}

/// A time of files.
pub(crate) fn file_time(seconds: u64) -> Result<i64, String> {
    i64::try_from(seconds).map_err(|_| format!("{seconds} seconds are too many for a time"))
}

/// The fixed time of an image.
pub(crate) fn image_time(seconds: u64) -> Result<SuperblockTime, String> {
    file_time(seconds).map(|_| SuperblockTime::Fixed(seconds))
}

/// A new file that begins with a hole of `offset` bytes.
pub(crate) fn at_offset(offset: u64) -> OutputMode {
    OutputMode::NewFile { offset }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An environment without special values.
    pub(crate) fn test_environment() -> BuildEnvironment {
        BuildEnvironment {
            source_date_epoch: None,
            now: 1_700_000_000,
            random: [0xff; 16],
            hints: None,
        }
    }

    #[test]
    fn uuids_are_read_made_or_cleared() {
        let uuid = |text| parse_uuid(text, &test_environment());
        assert_eq!(uuid("clear"), Ok([0; 16]));
        let random = uuid("random").unwrap();
        assert_eq!((random[6], random[8], random[0]), (0x4f, 0xbf, 0xff));
        let known = uuid("01234567-89ab-cdef-0123-456789ABCDEF").unwrap();
        assert_eq!(known[..4], [0x01, 0x23, 0x45, 0x67]);
        assert_eq!(known[15], 0xef);
        for wrong in [
            "xyz",
            "0123456789abcdef0123456789abcdef",
            "01234567-89ab-cdef-0123-456789abcdeg",
            "01234567-89ab-cdef-0123-4567+9abcdef",
            "01234567-89ab-cdef-0123-456789abcd\u{e9}",
            "",
        ] {
            assert!(uuid(wrong).unwrap_err().contains("not a UUID"), "{wrong}");
        }
    }

    #[test]
    fn labels_of_fifteen_bytes_fit() {
        assert_eq!(parse_label(b"fifteen-chars-x").unwrap()[14..], [b'x', 0]);
        parse_label(b"sixteen-chars-xx").unwrap_err();
        parse_label(b"a\0b").unwrap_err();
        assert_eq!(parse_label(b""), Ok([0; 16]));
    }

    #[test]
    fn block_sizes_are_powers_of_two_in_range() {
        assert_eq!(parse_block_size(512).unwrap().bytes(), 512);
        assert_eq!(parse_block_size(65536).unwrap().bytes(), 65536);
        for wrong in [0, 1, 256, 3000, 131_072, u64::MAX] {
            assert!(parse_block_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_epoch_of_the_source_is_a_number_or_an_error() {
        let epoch = |text: Option<&str>| {
            let source_date_epoch = text.map(Into::into);
            BuildEnvironment { source_date_epoch, ..test_environment() }.epoch()
        };
        assert_eq!(epoch(None), Ok(None));
        assert_eq!(epoch(Some("1700000000")), Ok(Some(1_700_000_000)));
        for wrong in ["", "x", "-1", "1.5", "18446744073709551615"] {
            assert!(epoch(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
