//! From the command line of mkfs.erofs to a build: its names, its meanings and its defaults. What it would ignore is
//! refused here.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ferrofs_builder::import::adjust::{
    Adjustments, CompactTime, ExcludePatterns, MtimePolicy, OverlayPolicy, OwnerOverrides,
    XattrFilter,
};
use ferrofs_builder::import::{
    AccountFiles, Compression, DirectoryOptions, HardLinkPolicy, TarContentMode, TarImportOptions,
    UnreadablePolicy, WhiteoutPolicy,
};
use ferrofs_builder::tree::Timestamp;
use ferrofs_builder::{
    BlobOutput, BuildOptions, Deduplication, FragmentSharing, Fragments, IndexForm,
};

use super::algorithms;
use super::request::{
    BuildEnvironment, BuildRequest, CompressionSizes, LayerData, LayerOptions, OutputFormat,
    OutputOptions, SourceKind, Verify, at_offset, file_time, image_time, parse_label, parse_u32,
    parse_uuid,
};
use crate::amount::{parse_bytes, parse_number};
use crate::applets::mkfs::{MkfsArguments, TarMode};
use crate::arguments::{MachineArguments, ProgressStyle};

/// Where data can lie in an archive.
const TAR_UNIT_BYTES: u64 = 512;

/// Makes a build of what was typed.
///
/// # Errors
/// What is out of range, contradicts itself or is not supported, in words that name the option.
pub(crate) fn request(
    typed: &MkfsArguments,
    environment: &BuildEnvironment,
) -> Result<BuildRequest, String> {
    let times = MkfsTimes::of(typed, environment)?;
    let extended = ExtendedOptions::read(typed)?;
    let mut options = sized(typed, extended, environment)?;
    options.time = image_time(times.build)?;
    options.uuid = parse_uuid(typed.uuid.as_deref().unwrap_or("random"), environment)?;
    let label = typed.label.as_ref().map(|label| label.as_bytes());
    options.label = parse_label(label.unwrap_or_default())?;
    options.output_mode = at_offset(typed.offset);
    options.xattr_share_above = u32::try_from(typed.xattr_tolerance).ok();
    options.xattr_prefixes =
        typed.xattr_prefix.iter().map(|prefix| prefix.as_bytes().to_vec()).collect();
    if typed.compresses_directories() && options.algorithms.is_none() {
        return Err("--zD: nothing is compressed without -z".to_owned());
    }
    options.compress_directories = typed.compresses_directories();
    take_metabox(typed, &mut options)?;
    options.digest_xattr = typed.digest_xattr.as_ref().map(|name| name.as_bytes().to_vec());
    options.root_xattr_bytes = parse_u32("attributes of the root", typed.root_xattr_bytes)?;
    let stores_nothing = contents(typed).is_some_and(|contents| contents != TarContentMode::Copy);
    extended.apply(&mut options, stores_nothing)?;
    check_contents(typed, &options)?;
    let adjustments = adjustments(typed, &options, times)?;
    Ok(BuildRequest {
        image: typed.image.clone(),
        sources: sources(typed)?,
        kind: kind(typed),
        directory: directory(typed, &adjustments)?,
        tar: tar(typed, times)?,
        tar_adjustments: of_tar(adjustments),
        options,
        replaces: true,
        verify: Verify::Yes,
        is_dry_run: false,
        machine: MachineArguments { jobs: typed.workers, ..MachineArguments::default() },
        output: OutputOptions {
            form: if typed.is_verbose() { OutputFormat::Mkfs } else { OutputFormat::Nothing },
            progress: ProgressStyle::None,
            notices: !typed.is_quiet(),
        },
    })
}

/// Where the contents of an archive are to be, if the source is one.
fn contents(typed: &MkfsArguments) -> Option<TarContentMode> {
    typed.tar_mode().map(|mode| match mode {
        TarMode::Full => TarContentMode::Copy,
        TarMode::Index => TarContentMode::Index,
        TarMode::Headers => TarContentMode::HeadersOnly,
    })
}

/// Where no data is stored, nothing can be said about how.
fn check_contents(typed: &MkfsArguments, options: &BuildOptions) -> Result<(), String> {
    let way = match contents(typed) {
        Some(TarContentMode::Index) => "--tar=i",
        Some(TarContentMode::HeadersOnly) => "--tar=headerball",
        Some(TarContentMode::Copy) | None => return Ok(()),
    };
    let block_bytes = u64::from(options.block_size.bytes());
    if way == "--tar=i" && block_bytes != TAR_UNIT_BYTES {
        let what = "data lies at multiples of 512 bytes in an archive";
        return Err(format!("-b: {way} needs blocks of 512 bytes: {what}"));
    }
    let unused = [
        (options.algorithms.is_some(), "-z"),
        (typed.chunk_bytes.is_some(), "--chunksize"),
        (options.chunk_bytes.is_some(), "-E: dedupe"),
    ];
    match unused.iter().find(|(is_given, _)| *is_given) {
        Some((_, option)) => Err(format!("{option}: no data is stored with {way}; leave it out")),
        None => Ok(()),
    }
}

/// Times as the options and the environment give them.
#[derive(Clone, Copy, Debug)]
struct MkfsTimes {
    build: u64,
    files: MtimePolicy,
}

impl MkfsTimes {
    fn of(typed: &MkfsArguments, environment: &BuildEnvironment) -> Result<Self, String> {
        if let Some(build) = environment.epoch()? {
            return Ok(Self { build, files: MtimePolicy::Clamp(file_time(build)?) });
        }
        let build = typed.time.unwrap_or(environment.now);
        let is_for_all =
            typed.time.is_some() && !typed.is_build_time_only() || typed.forces_build_time();
        let files =
            if is_for_all { MtimePolicy::All(file_time(build)?) } else { MtimePolicy::Keep };
        Ok(Self { build, files })
    }
}

/// Block, pcluster, extent and chunk sizes, what compresses, and how things are aligned.
fn sized(
    typed: &MkfsArguments,
    extended: ExtendedOptions,
    environment: &BuildEnvironment,
) -> Result<BuildOptions, String> {
    let usual = match contents(typed) {
        Some(TarContentMode::Index) => TAR_UNIT_BYTES,
        _ => BuildOptions::default().block_size.bytes().into(),
    };
    let sizes = CompressionSizes {
        block_bytes: typed.block_bytes.unwrap_or(usual),
        // It says how long a pcluster may be; without -z there is none, and nothing is longer.
        pcluster_bytes: typed.pcluster_bytes,
        pcluster_default: 0,
        extent_bytes_max: typed.max_extent_bytes,
        algorithms: typed.algorithms.as_deref(),
        max_distance: u16::MAX,
        hints: environment.hints.as_deref(),
        packed_pcluster_bytes: extended.packed_pcluster,
    };
    let options = sizes.options("-z")?;
    if typed.compress_hints.is_some() && options.algorithms.is_none() {
        return Err("--compress-hints: nothing is compressed without -z".to_owned());
    }
    let image = typed.image_alignment_blocks.unwrap_or(1).max(1);
    let image = image.checked_next_power_of_two().unwrap_or(u64::MAX);
    Ok(BuildOptions {
        chunk_bytes: typed.chunk_bytes,
        blob: typed.blobdev.clone().map(BlobOutput::NewFile),
        data_alignment_blocks: alignment(typed.data_alignment_blocks.unwrap_or(1), "--dsunit")?,
        image_alignment_blocks: alignment(image, "--fsalignblks")?,
        ..options
    })
}

/// A number of blocks; 0 is as good as 1.
fn alignment(blocks: u64, option: &str) -> Result<u32, String> {
    u32::try_from(blocks.max(1)).map_err(|_| format!("{option}: {blocks} blocks are too many"))
}

fn take_metabox(typed: &MkfsArguments, options: &mut BuildOptions) -> Result<(), String> {
    let Some(text) = &typed.metabox else { return Ok(()) };
    algorithms::take_metabox(text, options).map_err(|why| format!("-m: {why}"))
}

/// The words of `-E`.
#[derive(Clone, Copy, Debug)]
struct ExtendedOptions {
    fragments: Fragments,
    fragment_sharing: FragmentSharing,
    plain_prefixes: bool,
    /// Bytes of the packed inode's pclusters, where they are given.
    packed_pcluster: Option<u64>,
    dedupe: bool,
    ztailpacking: bool,
    inline_data: bool,
    full_indexes: bool,
    compact_inodes: bool,
    extended_inodes: bool,
    chunk_indexes: bool,
    block_maps: bool,
    checksum: bool,
    xattr_filter: bool,
    wide: bool,
    omit_dot: bool,
}

impl ExtendedOptions {
    fn read(typed: &MkfsArguments) -> Result<Self, String> {
        let mut this = Self {
            fragments: Fragments::None,
            fragment_sharing: FragmentSharing::Parts,
            plain_prefixes: false,
            packed_pcluster: None,
            dedupe: false,
            ztailpacking: false,
            inline_data: true,
            full_indexes: false,
            compact_inodes: false,
            extended_inodes: false,
            chunk_indexes: false,
            block_maps: false,
            checksum: true,
            xattr_filter: true,
            wide: false,
            omit_dot: false,
        };
        for word in typed.extended.iter().filter(|word| !word.is_empty()) {
            this.take(word).map_err(|why| format!("-E: {why}"))?;
        }
        Ok(this)
    }

    fn take(&mut self, word: &str) -> Result<(), String> {
        let (is_wanted, word) = word.strip_prefix('^').map_or((true, word), |word| (false, word));
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let kept_value = match name {
            "fragments" | "all-fragments" => {
                self.take_fragments(name, is_wanted, value)?;
                return Ok(());
            }
            "fragdedupe" => {
                self.fragment_sharing = fragment_sharing(is_wanted, value)?;
                return Ok(());
            }
            _ => value,
        };
        if let Some(value) = kept_value {
            return Err(format!("{name} takes no value such as {value}"));
        }
        match name {
            "dedupe" => self.dedupe = is_wanted,
            "ztailpacking" => self.ztailpacking = is_wanted,
            "inline_data" => self.inline_data = is_wanted,
            "noinline_data" => self.inline_data = !is_wanted,
            "legacy-compress" => self.full_indexes = is_wanted,
            "force-inode-compact" => {
                (self.compact_inodes, self.extended_inodes) = (is_wanted, false);
            }
            "force-inode-extended" => {
                (self.extended_inodes, self.compact_inodes) = (is_wanted, false);
            }
            "force-inode-blockmap" => (self.chunk_indexes, self.block_maps) = (false, true),
            "force-chunk-indexes" => (self.chunk_indexes, self.block_maps) = (is_wanted, false),
            "nosbcrc" => self.checksum = !is_wanted,
            "xattr-name-filter" => self.xattr_filter = is_wanted,
            "48bit" => self.wide = is_wanted,
            "dot-omitted" => (self.omit_dot, self.wide) = (is_wanted, self.wide || is_wanted),
            "plain-xattr-prefixes" => self.plain_prefixes = is_wanted,
            _ => return Err(format!("{name} is not known")),
        }
        Ok(())
    }

    fn take_fragments(
        &mut self,
        name: &str,
        is_wanted: bool,
        value: Option<&str>,
    ) -> Result<(), String> {
        self.packed_pcluster = match (is_wanted, value) {
            (true, Some(value)) => Some(parse_size(value)?),
            (true, None) => self.packed_pcluster,
            (false, Some(value)) => return Err(format!("^{name} takes no value such as {value}")),
            (false, None) => None,
        };
        self.fragments = match (is_wanted, name) {
            (false, _) => Fragments::None,
            (true, "fragments") => Fragments::Tails,
            (true, _) => Fragments::All,
        };
        Ok(())
    }

    fn apply(self, options: &mut BuildOptions, stores_nothing: bool) -> Result<(), String> {
        let is_compressed = options.algorithms.is_some();
        for (is_asked, name) in [
            (self.ztailpacking, "ztailpacking"),
            (self.fragments != Fragments::None, "fragments"),
            // What is not compressed has no index: scripts that refer to archives say it, too.
            (self.full_indexes && !stores_nothing, "legacy-compress"),
        ] {
            if is_asked && !is_compressed {
                return Err(format!("-E: nothing is compressed without -z, and {name} needs that"));
            }
        }
        if self.block_maps && options.blob.is_some() {
            let what = "a block map names no device, which --blobdev needs";
            return Err(format!("-E: force-inode-blockmap: {what}"));
        }
        options.fragments = self.fragments;
        options.fragment_sharing = self.fragment_sharing;
        options.plain_xattr_prefixes = self.plain_prefixes;
        options.inline_pclusters = self.ztailpacking;
        options.inline_data = self.inline_data;
        options.index = if self.full_indexes { IndexForm::Full } else { IndexForm::Compact };
        options.force_compact_inodes = self.compact_inodes;
        options.force_extended_inodes = self.extended_inodes;
        options.force_chunk_indexes = self.chunk_indexes;
        options.superblock_checksum = self.checksum;
        options.xattr_filter = self.xattr_filter;
        options.wide = self.wide;
        options.omit_dot = self.omit_dot;
        if self.dedupe {
            options.deduplication = Deduplication::On;
            if !is_compressed && options.chunk_bytes.is_none() {
                // Equal blocks are found as equal chunks, as mkfs.erofs has it.
                options.chunk_bytes = Some(options.block_size.bytes().into());
            }
        }
        Ok(())
    }
}

/// Which fragments are stored once.
fn fragment_sharing(is_wanted: bool, value: Option<&str>) -> Result<FragmentSharing, String> {
    match (is_wanted, value) {
        (true, Some("full") | None) => Ok(FragmentSharing::Parts),
        (true, Some("inode")) => Ok(FragmentSharing::Files),
        (true, Some("off")) | (false, None) => Ok(FragmentSharing::Off),
        (_, value) => Err(format!("fragdedupe={} is not known", value.unwrap_or_default())),
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    parse_number(text).or_else(|_| parse_bytes(text)).map_err(|why| format!("{text}: {why}"))
}

fn adjustments(
    typed: &MkfsArguments,
    options: &BuildOptions,
    times: MkfsTimes,
) -> Result<Adjustments, String> {
    let root = typed.all_root.then_some(0);
    // Neither of these has inodes that would be smaller for it.
    let is_of_use = !options.wide && !options.force_extended_inodes;
    let compact_time = typed.ignore_mtime && is_of_use;
    Ok(Adjustments {
        owners: OwnerOverrides {
            force_uid: root.or(typed.force_uid),
            force_gid: root.or(typed.force_gid),
            uid_offset: typed.uid_offset,
            gid_offset: typed.gid_offset,
        },
        mtime: times.files,
        compact_time: match compact_time {
            true => Some(CompactTime { seconds: file_time(times.build)? }),
            false => None,
        },
        xattrs: if typed.xattr_tolerance < 0 { XattrFilter::None } else { XattrFilter::All },
        overlay: if typed.strips_overlay() {
            OverlayPolicy::Strip
        } else {
            OverlayPolicy::MarkOrigins
        },
    })
}

/// An archive's whiteouts get marks only with --aufs, which the importer sees to.
fn of_tar(adjustments: Adjustments) -> Adjustments {
    let overlay = match adjustments.overlay {
        OverlayPolicy::MarkOrigins => OverlayPolicy::Keep,
        overlay => overlay,
    };
    Adjustments { overlay, ..adjustments }
}

fn directory(typed: &MkfsArguments, adjustments: &Adjustments) -> Result<DirectoryOptions, String> {
    let paths = typed.exclude_path.iter().map(|path| path.as_bytes().to_vec());
    let exclusions = ExcludePatterns::new(paths, &typed.exclude_regex);
    Ok(DirectoryOptions {
        exclusions: exclusions.map_err(|error| format!("--exclude-regex: {error}"))?,
        adjustments: adjustments.clone(),
        hard_links: match typed.hard_dereference {
            true => HardLinkPolicy::Separate,
            false => HardLinkPolicy::Joined,
        },
        unreadable: UnreadablePolicy::Fail,
    })
}

fn tar(typed: &MkfsArguments, times: MkfsTimes) -> Result<TarImportOptions, String> {
    let only_of_directories = [
        (typed.hard_dereference, "--hard-dereference"),
        (!typed.exclude_path.is_empty(), "--exclude-path"),
        (!typed.exclude_regex.is_empty(), "--exclude-regex"),
    ];
    let refused =
        only_of_directories.iter().find(|(is_asked, _)| *is_asked && contents(typed).is_some());
    if let Some((_, option)) = refused {
        return Err(format!("{option} is for directories, and not supported with --tar"));
    }
    Ok(TarImportOptions {
        compression: match (typed.ungzip, typed.unxz) {
            (true, _) => Some(Compression::Gzip),
            (_, true) => Some(Compression::Xz),
            _ => None,
        },
        accounts: Some(AccountFiles::of_host()),
        contents: contents(typed).unwrap_or_default(),
        whiteouts: if typed.aufs { WhiteoutPolicy::ToOverlay } else { WhiteoutPolicy::Keep },
        missing_mtime: Timestamp { seconds: file_time(times.build)?, nanoseconds: 0 },
        ..TarImportOptions::default()
    })
}

fn kind(typed: &MkfsArguments) -> SourceKind {
    if contents(typed).is_some() {
        return SourceKind::Tar;
    }
    let data = if typed.copies_data() { LayerData::Taken } else { LayerData::Referred };
    let (has_block_size, is_aufs) = (typed.block_bytes.is_some(), typed.aufs);
    SourceKind::DirectoryOrImages(LayerOptions { data, has_block_size, is_aufs })
}

fn sources(typed: &MkfsArguments) -> Result<Vec<PathBuf>, String> {
    match (typed.sources.as_slice(), contents(typed).is_some()) {
        ([], true) => Ok(vec![PathBuf::from("-")]),
        ([], false) => Err("SOURCE is missing".to_owned()),
        ([one], true) => Ok(vec![one.clone()]),
        ([one], false) if one == Path::new("-") => {
            Err("standard input holds an archive: that needs --tar=f".to_owned())
        }
        (images, false) => Ok(images.to_vec()),
        _ => {
            Err("several archives are not supported: `ferrofs build` takes those of layers"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests;
