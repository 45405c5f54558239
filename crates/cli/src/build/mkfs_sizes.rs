//! The sizes that mkfs.erofs is given: blocks, pclusters, extents, chunks and alignments, and the
//! algorithms that depend on them. Called by `mkfs`.

use ferrofs_builder::import::TarContentMode;
use ferrofs_builder::{BlobOutput, BuildOptions};

use super::mkfs_extended::ExtendedOptions;
use super::mkfs_hints;
use super::request::{BuildEnvironment, CompressionSizes};
use crate::amount::parse_size;
use crate::applets::mkfs::{MkfsArguments, TarMode};

/// Where data can lie in an archive.
const TAR_UNIT_BYTES: u64 = 512;
/// The only window that DEFLATE is written with.
const DEFLATE_WINDOW_BYTES: u64 = 32 << 10;

/// Where the contents of an archive are stored, if the source is an archive.
pub(super) fn contents(typed: &MkfsArguments) -> Option<TarContentMode> {
    typed.tar_mode().map(|mode| match mode {
        TarMode::Full | TarMode::MappedCopy => TarContentMode::Copy,
        TarMode::Index => TarContentMode::Index,
        TarMode::Headers => TarContentMode::HeadersOnly,
    })
}

/// Block, pcluster, extent and chunk sizes, what compresses, and how things are aligned.
pub(super) fn sized(
    typed: &MkfsArguments,
    extended: ExtendedOptions,
    environment: &BuildEnvironment,
    warnings: &mut Vec<String>,
) -> Result<BuildOptions, String> {
    let block_bytes = block_bytes(typed, warnings);
    let algorithms = algorithm_list(typed, warnings);
    let is_compressed = algorithms.is_some();
    let hints = match &environment.hints {
        Some(text) => Some(mkfs_hints::usable_lines(text, block_bytes, warnings)?),
        None => None,
    };
    if typed.pcluster_bytes.is_some() && !is_compressed {
        warnings.push("-C has no effect without -z".to_owned());
    }
    if hints.is_some() && !is_compressed {
        warnings.push("--compress-hints has no effect without -z".to_owned());
    }
    let sizes = CompressionSizes {
        block_bytes,
        pcluster_bytes: pcluster_bytes(typed, block_bytes, is_compressed)?,
        pcluster_default: 0,
        extent_bytes_max: extent_bytes(typed, extended, block_bytes, warnings)?,
        algorithms: algorithms.as_deref(),
        max_distance: u16::MAX,
        hints: hints.as_deref().filter(|_| is_compressed),
        packed_pcluster_bytes: packed_bytes(extended, block_bytes)?.filter(|_| is_compressed),
    };
    let options = sizes.options("-z")?;
    let image = typed.image_alignment_blocks.unwrap_or(1).max(1);
    let image = image.checked_next_power_of_two().unwrap_or(u64::MAX);
    let data = alignment(typed.data_alignment_blocks.unwrap_or(1), "--dsunit")?;
    Ok(options
        .chunk_bytes(typed.chunk_bytes)
        .blob(typed.blobdev.clone().map(BlobOutput::NewFile))
        .data_alignment_blocks(data)
        .image_alignment_blocks(alignment(image, "--fsalignblks")?))
}

/// The block size: that of `-b`, or the next lower power of two.
fn block_bytes(typed: &MkfsArguments, warnings: &mut Vec<String>) -> u64 {
    let usual = u64::from(BuildOptions::default().block_size.bytes());
    let is_index = contents(typed) == Some(TarContentMode::Index);
    match typed.block_bytes {
        None if is_index => TAR_UNIT_BYTES,
        None => usual,
        Some(given) if is_index => {
            if given != TAR_UNIT_BYTES {
                let why = "data in an archive starts at multiples of 512 bytes";
                warnings.push(format!("-b has no effect with --tar=i: {why}"));
            }
            TAR_UNIT_BYTES
        }
        Some(given) => {
            let bytes = given.checked_ilog2().map_or(0, |log| 1 << log);
            if bytes != given && bytes >= TAR_UNIT_BYTES {
                warnings
                    .push(format!("-b: {given} is not a power of two; blocks have {bytes} bytes"));
            }
            bytes
        }
    }
}

/// The size of `-C`, which without compression is only checked.
fn pcluster_bytes(
    typed: &MkfsArguments,
    block_bytes: u64,
    is_compressed: bool,
) -> Result<Option<u64>, String> {
    let Some(bytes) = typed.pcluster_bytes else { return Ok(None) };
    if block_bytes == 0 || !bytes.is_multiple_of(block_bytes) || bytes == 0 {
        return Err(format!("-C: {bytes} bytes are not whole blocks of {block_bytes}"));
    }
    Ok(Some(bytes).filter(|_| is_compressed))
}

/// The size of pclusters in the packed file, which without compression is only checked.
fn packed_bytes(extended: ExtendedOptions, block_bytes: u64) -> Result<Option<u64>, String> {
    let given = extended.packed_pcluster();
    match given.filter(|bytes| *bytes == 0 || !bytes.is_multiple_of(block_bytes.max(1))) {
        Some(bytes) => {
            Err(format!("-E: fragments: {bytes} bytes are not whole blocks of {block_bytes}"))
        }
        None => Ok(given),
    }
}

/// The size of `--max-extent-bytes` in whole blocks.
fn extent_bytes(
    typed: &MkfsArguments,
    extended: ExtendedOptions,
    block_bytes: u64,
    warnings: &mut Vec<String>,
) -> Result<Option<u64>, String> {
    let option = "--max-extent-bytes";
    // 0 is no limit of its own.
    let Some(given) = typed.max_extent_bytes.filter(|given| *given != 0) else { return Ok(None) };
    if i32::try_from(given).is_err() {
        return Err(format!("{option}: {given} bytes are too many"));
    }
    if typed.algorithms.is_none() {
        warnings.push(format!("{option} has no effect without -z"));
        return Ok(None);
    }
    if given < 0 && !extended.is_wide() {
        return Err(format!("{option}: a negative size needs -E48bit"));
    }
    let bytes = given.unsigned_abs();
    if given < 0 {
        warnings.push(format!(
            "{option}: the minus sign has no effect: pclusters stay aligned to blocks; extents have {bytes} bytes at most"
        ));
    }
    let whole = bytes.checked_div(block_bytes).unwrap_or(0) * block_bytes;
    if whole == 0 {
        return Err(format!("{option}: {given} bytes are less than a block of {block_bytes}"));
    }
    if whole != bytes {
        warnings.push(format!(
            "{option}: {bytes} bytes are not whole blocks; extents have {whole} bytes at most"
        ));
    }
    Ok(Some(whole))
}

/// The algorithms of `-z`; without `-z`, that of `-m`.
fn algorithm_list(typed: &MkfsArguments, warnings: &mut Vec<String>) -> Option<String> {
    let of_metabox = typed.metabox.as_ref().and_then(|text| text.split_once(':'));
    let of_metabox = of_metabox.map(|(_, algorithm)| algorithm);
    let of_metabox = of_metabox.filter(|text| text.parse::<u32>().is_err());
    let given = typed.algorithms.as_deref().or(of_metabox)?;
    // An empty item is none, as for mkfs.erofs.
    let items = given.split(':').filter(|item| !item.is_empty());
    let items: Vec<_> = items.map(|item| understood(item, warnings)).collect();
    (!items.is_empty()).then(|| items.join(":"))
}

/// An item of `-z` without the words that mkfs.erofs ignores, and without a window of DEFLATE, which
/// cannot be chosen.
fn understood(item: &str, warnings: &mut Vec<String>) -> String {
    let words: Vec<_> = item.split(',').collect();
    match words.as_slice() {
        [name, level, _, ..] if level.starts_with(|letter: char| letter.is_ascii_digit()) => {
            warnings.push(format!("-z: words after the level {level} of {name} have no effect"));
            format!("{name},{level}")
        }
        ["deflate", parameters @ ..] => {
            let is_window = |word: &str| {
                let bytes = word.strip_prefix("dictsize=").and_then(|bytes| parse_size(bytes).ok());
                bytes.is_some_and(|bytes| bytes < DEFLATE_WINDOW_BYTES)
            };
            let kept = parameters.iter().filter(|word| !is_window(word));
            let kept: Vec<_> = std::iter::once(&"deflate").chain(kept).copied().collect();
            if kept.len() < words.len() {
                warnings.push(format!(
                    "-z: dictsize has no effect: the window of deflate has {DEFLATE_WINDOW_BYTES} bytes"
                ));
            }
            kept.join(",")
        }
        _ => item.to_owned(),
    }
}

/// A number of blocks; 0 is as good as 1.
fn alignment(blocks: u64, option: &str) -> Result<u32, String> {
    u32::try_from(blocks.max(1)).map_err(|_| format!("{option}: {blocks} blocks are too many"))
}
