//! Turns the command line of mkfs.erofs into a request, with its names, meanings and defaults. What
//! mkfs.erofs would ignore is refused.

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
use ferrofs_builder::output::ExistingOutput;
use ferrofs_builder::tree::Timestamp;
use ferrofs_builder::{
    BlobOutput, BuildOptions, Deduplication, FragmentSharing, Fragments, IndexForm,
};

use super::algorithms::{self, parse_u32};
use super::request::{
    BuildEnvironment, BuildRequest, CompressionSizes, LayerData, LayerOptions, OutputFormat,
    OutputOptions, SourceKind, Verify, at_offset, file_time, image_time, parse_label, parse_uuid,
};
use crate::amount::{parse_bytes, parse_number};
use crate::applets::mkfs::{MkfsArguments, TarMode};
use crate::arguments::{MachineArguments, ProgressStyle};

/// Where data can lie in an archive.
const TAR_UNIT_BYTES: u64 = 512;

/// Makes a build request from the arguments.
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
        existing: ExistingOutput::Rewrite,
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

/// Where the contents of an archive are stored, if the source is an archive.
fn contents(typed: &MkfsArguments) -> Option<TarContentMode> {
    typed.tar_mode().map(|mode| match mode {
        TarMode::Full => TarContentMode::Copy,
        TarMode::Index => TarContentMode::Index,
        TarMode::Headers => TarContentMode::HeadersOnly,
    })
}

/// Options about data are refused if no data is stored.
fn check_contents(typed: &MkfsArguments, options: &BuildOptions) -> Result<(), String> {
    let way = match contents(typed) {
        Some(TarContentMode::Index) => "--tar=i",
        Some(TarContentMode::HeadersOnly) => "--tar=headerball",
        Some(TarContentMode::Copy) | None => return Ok(()),
    };
    let block_bytes = u64::from(options.block_size.bytes());
    if way == "--tar=i" && block_bytes != TAR_UNIT_BYTES {
        let what = "data in an archive starts at multiples of 512 bytes";
        return Err(format!("-b: {way} needs blocks of 512 bytes, as {what}"));
    }
    let unused = [
        (options.algorithms.is_some(), "-z"),
        (typed.chunk_bytes.is_some(), "--chunksize"),
        (options.chunk_bytes.is_some(), "-E: dedupe"),
    ];
    match unused.iter().find(|(is_given, _)| *is_given) {
        Some((_, option)) => Err(format!("{option}: {way} stores no data; leave it out")),
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
        // It limits the length of a pcluster; without -z there are no pclusters.
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
    let data = alignment(typed.data_alignment_blocks.unwrap_or(1), "--dsunit")?;
    Ok(options
        .chunk_bytes(typed.chunk_bytes)
        .blob(typed.blobdev.clone().map(BlobOutput::NewFile))
        .data_alignment_blocks(data)
        .image_alignment_blocks(alignment(image, "--fsalignblks")?))
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
            _ => return Err(format!("{name} is unknown")),
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
            // An uncompressed image has no index, but scripts for archives use the option.
            (self.full_indexes && !stores_nothing, "legacy-compress"),
        ] {
            if is_asked && !is_compressed {
                return Err(format!("-E: {name} needs compression; add -z"));
            }
        }
        if self.block_maps && options.blob.is_some() {
            let what = "a block map cannot refer to a device, as --blobdev needs";
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
        (_, value) => Err(format!("fragdedupe={} is unknown", value.unwrap_or_default())),
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
    let owners = OwnerOverrides::default()
        .force_uid(root.or(typed.force_uid))
        .force_gid(root.or(typed.force_gid))
        .uid_offset(typed.uid_offset)
        .gid_offset(typed.gid_offset);
    let compact_time = match compact_time {
        true => Some(CompactTime { seconds: file_time(times.build)? }),
        false => None,
    };
    let xattrs = if typed.xattr_tolerance < 0 { XattrFilter::None } else { XattrFilter::All };
    let overlay =
        if typed.strips_overlay() { OverlayPolicy::Strip } else { OverlayPolicy::MarkOrigins };
    Ok(Adjustments::default()
        .owners(owners)
        .mtime(times.files)
        .compact_time(compact_time)
        .xattrs(xattrs)
        .overlay(overlay))
}

/// An archive's whiteouts get marks only with --aufs; the importer does that.
fn of_tar(adjustments: Adjustments) -> Adjustments {
    let overlay = match adjustments.overlay {
        OverlayPolicy::MarkOrigins => OverlayPolicy::Keep,
        overlay => overlay,
    };
    adjustments.overlay(overlay)
}

fn directory(typed: &MkfsArguments, adjustments: &Adjustments) -> Result<DirectoryOptions, String> {
    let paths = typed.exclude_path.iter().map(|path| path.as_bytes().to_vec());
    let exclusions = ExcludePatterns::new(paths, &typed.exclude_regex);
    let hard_links = match typed.hard_dereference {
        true => HardLinkPolicy::Separate,
        false => HardLinkPolicy::Joined,
    };
    Ok(DirectoryOptions::default()
        .exclusions(exclusions.map_err(|error| format!("--exclude-regex: {error}"))?)
        .adjustments(adjustments.clone())
        .hard_links(hard_links)
        .unreadable(UnreadablePolicy::Fail))
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
    let compression = match (typed.ungzip, typed.unxz) {
        (true, _) => Some(Compression::Gzip),
        (_, true) => Some(Compression::Xz),
        _ => None,
    };
    let whiteouts = if typed.aufs { WhiteoutPolicy::ToOverlay } else { WhiteoutPolicy::Keep };
    Ok(TarImportOptions::default()
        .compression(compression)
        .accounts(Some(AccountFiles::of_host()))
        .contents(contents(typed).unwrap_or_default())
        .whiteouts(whiteouts)
        .missing_mtime(Timestamp { seconds: file_time(times.build)?, nanoseconds: 0 }))
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
            Err("standard input holds an archive, which needs --tar=f".to_owned())
        }
        (images, false) => Ok(images.to_vec()),
        _ => Err("several archives are not supported; use `ferrofs build` for layers".to_owned()),
    }
}

#[cfg(test)]
mod tests {

    use clap::Parser;
    use ferrofs_builder::{OutputMode, SuperblockTime};
    use ferrofs_codec::Method;

    use super::*;
    use crate::build::request::tests::test_environment;

    fn made(words: &[&str]) -> Result<BuildRequest, String> {
        made_in(words, &test_environment())
    }

    fn made_in(words: &[&str], environment: &BuildEnvironment) -> Result<BuildRequest, String> {
        let words = [&["mkfs.erofs"], words, &["image", "dir"]].concat();
        let typed = MkfsArguments::try_parse_from(words).map_err(|error| error.to_string())?;
        request(&typed, environment)
    }

    fn options(words: &[&str]) -> BuildOptions {
        made(words).unwrap().options
    }

    #[test]
    fn without_options_the_defaults_are_those_of_mkfs() {
        let request = made(&[]).unwrap();
        let options = request.options;
        assert_eq!((options.block_size.bytes(), options.pcluster_bytes), (4096, 4096));
        assert!(options.algorithms.is_none() && options.inline_data && options.superblock_checksum);
        assert_eq!(options.xattr_share_above, Some(2));
        assert_eq!(options.time, SuperblockTime::Fixed(1_700_000_000));
        assert_ne!(options.uuid, [0; 16]);
        assert_eq!(request.directory.adjustments.mtime, MtimePolicy::Keep);
        assert_eq!(request.directory.adjustments.overlay, OverlayPolicy::MarkOrigins);
        assert_eq!(request.tar_adjustments.overlay, OverlayPolicy::Keep);
        assert!(request.existing == ExistingOutput::Rewrite && request.verify == Verify::Yes);
        let layering =
            LayerOptions { data: LayerData::Referred, has_block_size: false, is_aufs: false };
        assert_eq!(request.kind, SourceKind::DirectoryOrImages(layering));
        assert_eq!(request.output.form, OutputFormat::Mkfs);
    }

    #[test]
    fn usual_combinations_are_understood() {
        let found = options(&[
            "-zzstd,level=12",
            "-C65536",
            "-Eall-fragments,dedupe,fragdedupe=inode",
            "-Lx",
        ]);
        assert_eq!(found.fragments, Fragments::All);
        assert_eq!(found.deduplication, Deduplication::On);
        assert_eq!((found.pcluster_bytes, found.label[0]), (65536, b'x'));
        let methods = found.algorithms.unwrap().methods;
        assert_eq!(methods, [Method::Zstd { level: 12, window_log: 19 }]);
        let found =
            options(&["-C", "64k", "-zlz4hc", "-E", "fragments=65536", "-x", "-1", "-U", "clear"]);
        assert_eq!((found.fragments, found.xattr_share_above), (Fragments::Tails, None));
        assert_eq!((found.uuid, found.pcluster_bytes), ([0; 16], 65536));
        assert_eq!(options(&["-zlz4", "-Elegacy-compress"]).index, IndexForm::Full);
    }

    #[test]
    fn packed_files_have_pclusters_and_sharing_of_their_own() {
        let found = options(&["-zlzma", "-C4096", "-Eall-fragments=65536,fragdedupe=inode"]);
        assert_eq!((found.pcluster_bytes, found.packed_pcluster_bytes), (4096, Some(65536)));
        assert_eq!(found.fragment_sharing, FragmentSharing::Files);
        // The dictionary suits the largest.
        let methods = found.algorithms.unwrap().methods;
        assert_eq!(methods, [Method::Lzma { level: 6, dictionary_bytes: 256 << 10 }]);
        for off in ["-E^fragdedupe", "-Efragdedupe=off"] {
            assert_eq!(options(&["-zlz4", off]).fragment_sharing, FragmentSharing::Off);
        }
        assert_eq!(options(&["-zlz4", "-Efragdedupe"]).fragment_sharing, FragmentSharing::Parts);
    }

    #[test]
    fn hints_and_alignments_reach_the_build() {
        let hints = Some(b"65536 1 \\.so$\n".to_vec());
        let environment = BuildEnvironment { hints, ..test_environment() };
        let request = made_in(&["-zlz4:zstd", "--compress-hints=file"], &environment).unwrap();
        let hint = request.options.hints.find(b"lib/a.so").unwrap();
        assert_eq!((hint.pcluster_bytes, hint.method), (65536, 1));
        assert_eq!(request.options.pcluster_bytes, 4096);
        assert_eq!(
            request.options.algorithms.unwrap().methods[1],
            Method::Zstd { level: 3, window_log: 19 }
        );
        let found = options(&["--dsunit=8", "--fsalignblks=5", "--chunksize=65536", "-C65536"]);
        assert_eq!((found.data_alignment_blocks, found.image_alignment_blocks), (8, 8));
        let found = options(&["--xattr-inode-digest", "--root-xattr-isize=1024"]);
        assert_eq!(found.digest_xattr.unwrap(), b"erofs.fingerprint.v1");
        assert_eq!(found.root_xattr_bytes, 1024);
        let named = options(&["--xattr-inode-digest=trusted.fp", "-Eplain-xattr-prefixes"]);
        assert_eq!(
            (named.digest_xattr.unwrap(), named.plain_xattr_prefixes),
            (b"trusted.fp".to_vec(), true)
        );
    }

    #[test]
    fn carets_negate() {
        let found = options(&["-zlz4", "-Eztailpacking,dedupe", "-E^ztailpacking,^inline_data"]);
        assert!(!found.inline_pclusters && !found.inline_data);
        assert_eq!(found.deduplication, Deduplication::On);
        assert!(!options(&["-Enoinline_data"]).inline_data);
        assert!(options(&["-E^noinline_data"]).inline_data);
        assert!(!options(&["-Enosbcrc"]).superblock_checksum);
        assert!(!options(&["-E^xattr-name-filter"]).xattr_filter);
        assert_eq!(options(&["-zlz4", "-Efragments,^fragments"]).fragments, Fragments::None);
    }

    #[test]
    fn without_an_algorithm_dedupe_is_that_of_chunks() {
        let found = options(&["-Ededupe", "-b1024"]);
        assert_eq!((found.chunk_bytes, found.deduplication), (Some(1024), Deduplication::On));
        assert_eq!(options(&["-Ededupe", "--chunksize=65536"]).chunk_bytes, Some(65536));
        assert_eq!(options(&["-Ededupe", "-zlz4"]).chunk_bytes, None);
    }

    #[test]
    fn times_are_those_of_the_build_the_files_or_the_epoch() {
        let times = |words: &[&str], epoch: Option<&str>| {
            let source_date_epoch = epoch.map(Into::into);
            let environment = BuildEnvironment { source_date_epoch, ..test_environment() };
            let request = made_in(words, &environment).unwrap();
            (request.options.time, request.directory.adjustments.mtime)
        };
        let fixed = SuperblockTime::Fixed;
        assert_eq!(times(&["-T7"], None), (fixed(7), MtimePolicy::All(7)));
        assert_eq!(times(&["-T7", "--all-time"], None), (fixed(7), MtimePolicy::All(7)));
        assert_eq!(times(&["-T7", "--mkfs-time"], None), (fixed(7), MtimePolicy::Keep));
        assert_eq!(times(&["--mkfs-time"], None), (fixed(1_700_000_000), MtimePolicy::Keep));
        assert_eq!(
            times(&["--all-time"], None),
            (fixed(1_700_000_000), MtimePolicy::All(1_700_000_000))
        );
        assert_eq!(times(&[], Some("9")), (fixed(9), MtimePolicy::Clamp(9)));
        assert_eq!(times(&["-T7"], Some("9")), (fixed(9), MtimePolicy::Clamp(9)));
        let ignored = made(&["-T7", "--mkfs-time", "--ignore-mtime"]).unwrap();
        assert_eq!(ignored.directory.adjustments.compact_time, Some(CompactTime { seconds: 7 }));
    }

    #[test]
    fn owners_xattrs_and_exclusions_reach_the_import() {
        let request = made(&[
            "--all-root",
            "--uid-offset=5",
            "--gid-offset=70000",
            "-x-1",
            "--exclude-path=proc",
            "--exclude-regex=^tmp/",
            "--hard-dereference",
            "--ovlfs-strip=1",
            "--workers=3",
            "--offset=512",
            "--xattr-prefix=trusted.overlay.",
        ]);
        let request = request.unwrap();
        let owners = request.directory.adjustments.owners;
        assert_eq!((owners.force_uid, owners.force_gid), (Some(0), Some(0)));
        assert_eq!((owners.uid_offset, owners.gid_offset), (5, 70000));
        assert_eq!(request.directory.adjustments.xattrs, XattrFilter::None);
        assert_eq!(request.directory.adjustments.overlay, OverlayPolicy::Strip);
        assert!(request.directory.exclusions.excludes(b"proc"));
        assert!(request.directory.exclusions.excludes(b"tmp/x"));
        assert!(!request.directory.exclusions.excludes(b"var/tmp"));
        assert_eq!(request.directory.hard_links, HardLinkPolicy::Separate);
        assert_eq!(request.machine.jobs, Some(3));
        assert_eq!(request.options.output_mode, OutputMode::NewFile { offset: 512 });
        assert_eq!(request.options.xattr_prefixes, [b"trusted.overlay.".to_vec()]);
    }

    #[test]
    fn archives_come_from_standard_input_unless_they_are_named() {
        let tar = |words: &[&str]| {
            let words = [&["mkfs.erofs", "--tar=f", "image"], words].concat();
            request(&MkfsArguments::try_parse_from(words).unwrap(), &test_environment())
        };
        let found = tar(&[]).unwrap();
        assert_eq!((found.kind, found.sources), (SourceKind::Tar, vec![PathBuf::from("-")]));
        assert_eq!(tar(&["-"]).unwrap().sources, [PathBuf::from("-")]);
        assert_eq!(tar(&["a.tar", "--aufs"]).unwrap().tar.whiteouts, WhiteoutPolicy::ToOverlay);
        assert_eq!(tar(&["a.tar", "--ungzip"]).unwrap().tar.compression, Some(Compression::Gzip));
        assert_eq!(tar(&["a.tar", "--unxz"]).unwrap().tar.compression, Some(Compression::Xz));
        assert_eq!(tar(&["a.tar"]).unwrap().tar.contents, TarContentMode::Copy);
        assert!(tar(&["a.tar", "b.tar"]).unwrap_err().contains("ferrofs build"));
        assert!(tar(&["a.tar", "--exclude-path=x"]).unwrap_err().contains("--exclude-path"));
    }

    #[test]
    fn archives_may_keep_their_contents_or_have_none() {
        for (way, contents, block_bytes) in
            [("i", TarContentMode::Index, 512), ("headerball", TarContentMode::HeadersOnly, 4096)]
        {
            let tar = format!("--tar={way}");
            let request = made(&[&tar, "-Elegacy-compress"]).unwrap();
            assert_eq!((request.tar.contents, request.kind), (contents, SourceKind::Tar));
            assert_eq!(request.options.block_size.bytes(), block_bytes);
            for (option, named) in
                [("-zlz4", "-z"), ("--chunksize=4096", "--chunksize"), ("-Ededupe", "dedupe")]
            {
                let message = made(&[&tar, option]).map(|_| ()).unwrap_err();
                assert!(message.contains(named) && message.contains(&tar), "{message}");
            }
        }
        assert!(made(&["--tar=i", "-b4096"]).unwrap_err().contains("blocks of 512 bytes"));
        made(&["--tar=headerball", "-b1024"]).unwrap();
    }

    #[test]
    fn several_images_are_layers() {
        let request = made(&["--clean=data", "-b512", "--aufs", "more"]).unwrap();
        let layering = LayerOptions { data: LayerData::Taken, has_block_size: true, is_aufs: true };
        assert_eq!(request.kind, SourceKind::DirectoryOrImages(layering));
        assert_eq!(request.sources, ["image", "dir"].map(PathBuf::from));
        assert_eq!(request.image, PathBuf::from("more"));
    }

    #[test]
    fn a_blob_is_for_chunks() {
        let options = options(&["--chunksize=4096", "--blobdev=blob"]);
        assert_eq!(options.blob, Some(BlobOutput::NewFile("blob".into())));
        assert!(made(&["--blobdev=blob"]).map(|_| ()).unwrap_err().contains("--chunksize"));
        let words = ["--chunksize=4096", "--blobdev=blob", "-Eforce-inode-blockmap"];
        assert!(made(&words).map(|_| ()).unwrap_err().contains("cannot refer to a device"));
    }

    #[test]
    fn what_would_be_ignored_or_is_wrong_is_refused_by_name() {
        for (words, part) in [
            (&["-b3000"][..], "512 to 65536"),
            (&["-zfoo"], "-z: no algorithm foo"),
            (&["-Eztailpacking"], "ztailpacking"),
            (&["-Eall-fragments"], "fragments"),
            (&["-Ebogus"], "bogus is unknown"),
            (&["-Eztailpacking=3", "-zlz4"], "takes no value"),
            (&["-E^fragments=4096", "-zlz4"], "takes no value"),
            (&["--compress-hints=x"], "without -z"),
            (&["--dsunit=4294967296"], "--dsunit: 4294967296 blocks"),
            (&["--fsalignblks=9223372036854775809"], "--fsalignblks: "),
            (&["-Efragdedupe=x", "-zlz4"], "fragdedupe=x"),
            (&["-L", "0123456789abcdef"], "15 fit"),
            (&["-Uxyz"], "not a UUID"),
            (&["-Tabc"], "not a number"),
            (&["--zD"], "--zD: nothing is compressed without -z"),
            (&["-m4096:lzma"], "-m: lzma: nothing is compressed without -z"),
            (&["--exclude-regex=("], "--exclude-regex"),
            (&["--chunksize=4k"], "not a number"),
            (&["-xfoo"], "invalid"),
            (&["-d10"], "invalid"),
        ] {
            let message = made(words).map(|_| ()).unwrap_err();
            assert!(message.contains(part), "{words:?}: {message}");
        }
    }

    /// The text of `mkfs.erofs --help` of erofs-utils 1.9.4, one option a line, as far as options
    /// go.
    const UPSTREAM_OPTIONS: &str = "-V --version -h --help -b# -d<0-9> -x# -zX -C# -EX -L -m# -T# --all-time --mkfs-time -UX \
        --zD --MZ --all-root --async-queue-limit=# --blobdev=X --chunksize=# --clean=X --incremental=X \
        --compress-hints=X --dsunit=# --exclude-path=X --exclude-regex=X --file-contexts=X --force-uid=# \
        --force-gid=# --fsalignblks=# --uid-offset=# --gid-offset=# --hard-dereference --ignore-mtime \
        --max-extent-bytes=# --mount-point=X --preserve-mtime --offset=# --root-xattr-isize=# --aufs --sort=<path,none> \
        --s3=X --oci --tar=X --ovlfs-strip=<0,1> --quiet --ungzip --unxz --gzinfo --vmdk-desc=X --workers=# \
        --xattr-inode-digest=X --xattr-prefix=X --zfeature-bits=#";

    #[test]
    fn every_option_of_theirs_is_honoured_or_refused_by_name() {
        use clap::CommandFactory;
        let command = MkfsArguments::command();
        for option in UPSTREAM_OPTIONS.split_whitespace() {
            let is_known = match option.strip_prefix("--") {
                Some(long) => {
                    let name = long.split('=').next().unwrap_or(long);
                    name == "help"
                        || command.get_arguments().any(|known| known.get_long() == Some(name))
                }
                None => {
                    let letter = option.chars().nth(1);
                    letter == Some('h')
                        || command.get_arguments().any(|known| known.get_short() == letter)
                }
            };
            if is_known {
                continue;
            }
            let given = option.split('=').next().unwrap_or(option);
            let words = ["mkfs.erofs", &format!("{given}=1"), "image", "dir"];
            let error = MkfsArguments::try_parse_from(words).unwrap_err();
            let message = crate::applets::mkfs::refusal(&error).unwrap_or_default();
            assert!(message.starts_with(given), "{given}: {message}");
        }
    }

    #[test]
    fn their_help_has_no_option_that_is_not_listed_here() {
        // If the program is installed, its own help is used, so that new options are noticed.
        let Some(program) = std::env::var_os("FERROFS_MKFS") else { return };
        let output = std::process::Command::new(program).arg("--help").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let listed: Vec<&str> = UPSTREAM_OPTIONS
            .split_whitespace()
            .map(|word| word.split(['=', '#', '<']).next().unwrap())
            .collect();
        let mut seen = 0;
        for line in text.lines() {
            for word in line.split([' ', ',']).filter(|word| word.starts_with('-')).take(2) {
                let name = word.split(['=', '#', '<', '[', ':']).next().unwrap();
                let is_listed = listed.iter().any(|known| {
                    *known == name
                        || (!name.starts_with("--")
                            && known.starts_with(&name[..2.min(name.len())]))
                });
                assert!(is_listed || name.len() < 2, "{name} of {line}");
                seen += 1;
            }
        }
        assert!(seen > 50, "{text}");
    }
}
