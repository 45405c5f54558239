//! Turns the command line of mkfs.erofs into a request, with its names, meanings and defaults. What
//! mkfs.erofs accepts is accepted, with a warning if it has no effect.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ferrofs_builder::BuildOptions;
use ferrofs_builder::import::adjust::{
    Adjustments, CompactTime, ExcludePatterns, IdOverflow, MtimePolicy, OverlayPolicy,
    OwnerOverrides, XattrFilter,
};
use ferrofs_builder::import::{
    AccountFiles, Compression, DirectoryOptions, HardLinkPolicy, InputLimit, TarContentMode,
    TarImportOptions, UnreadablePolicy, WhiteoutPolicy,
};
use ferrofs_builder::output::ExistingOutput;
use ferrofs_builder::tree::Timestamp;
use ferrofs_codec::Method;

use super::algorithms::{self, parse_u32};
use super::mkfs_extended::ExtendedOptions;
use super::mkfs_sizes::{contents, sized};
use super::mkfs_warnings;
use super::request::{
    BlockMapRequest, BuildEnvironment, BuildRequest, IncrementalBase, LayerData, LayerOptions,
    OutputFormat, OutputOptions, SourceKind, Verify, at_offset, file_time, image_time, parse_label,
    parse_uuid,
};
use crate::amount::{parse_number, parse_size};
use crate::applets::mkfs::{MkfsArguments, TarCompression, TarMode};
use crate::arguments::{ConnectionArguments, MachineArguments, ProgressStyle};

/// The level of ZSTD from which on its encoder needs hundreds of megabytes, and memory for that.
const ZSTD_ULTRA_LEVEL: i32 = 20;
const ULTRA_MEMORY_BYTES: u64 = 1 << 30;

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
    let mut warnings: Vec<String> = typed.ineffective().into_iter().map(String::from).collect();
    let mut data = layer_data("--clean", typed.clean_mode(), &mut warnings)?;
    layer_data("--incremental", typed.incremental_mode(), &mut warnings)?;
    if typed.incremental_mode().is_some() {
        // The image that is added to is one file with all of its data.
        data = LayerData::Taken;
    }
    check_incremental(typed)?;
    let mut options = sized(typed, extended, environment, &mut warnings)?;
    options.time = image_time(times.build)?;
    options.uuid = parse_uuid(typed.uuid.as_deref().unwrap_or("random"), environment)?;
    let label = typed.label.as_ref().map(|label| label.as_bytes());
    options.label = parse_label(label.unwrap_or_default())?;
    options.output_mode = at_offset(typed.offset);
    options.xattr_share_above = u32::try_from(typed.xattr_tolerance).ok();
    options.xattr_prefixes = xattr_prefixes(typed, &mut warnings);
    take_metabox(typed, &mut options)?;
    options.compress_directories = typed.compresses_directories();
    if options.compress_directories && options.algorithms.is_none() {
        options.compress_directories = false;
        warnings.push("--zD has no effect without -z".to_owned());
    }
    warnings.extend(super::android::ineffective(&typed.android));
    options.digest_xattr = digest_xattr(typed, &mut warnings);
    options.root_xattr_bytes = parse_u32("attributes of the root", typed.root_xattr_bytes)?;
    extended.apply(&mut options, &mut warnings)?;
    mkfs_warnings::leave_out_data(typed, &mut options, &mut warnings);
    let adjustments = adjustments(typed, &options, times)?;
    let memory = memory(&options);
    Ok(BuildRequest {
        image: typed.image.clone(),
        sources: sources(typed)?,
        kind: kind(typed, data),
        source_warnings: mkfs_warnings::of_source(typed, &options, data),
        directory: directory(typed, &adjustments, &mut warnings)?,
        tar: tar(typed, times, &mut warnings)?,
        tar_adjustments: of_tar(adjustments),
        options,
        existing: match typed.incremental_mode() {
            Some(_) => ExistingOutput::Replace,
            None => ExistingOutput::Rewrite,
        },
        incremental: incremental_base(typed),
        block_map: typed.block_map().map(|path| BlockMapRequest {
            path: path.to_owned(),
            has_lines: typed.tar_mode() == Some(TarMode::MappedCopy),
        }),
        verify: Verify::Yes,
        is_dry_run: false,
        machine: MachineArguments { jobs: typed.jobs(), memory, ..MachineArguments::default() },
        connection: ConnectionArguments::default(),
        output: OutputOptions {
            form: match (typed.prints_summary(), typed.prints_names()) {
                (false, _) => OutputFormat::Nothing,
                (true, lists_files) => OutputFormat::Mkfs { lists_files },
            },
            progress: ProgressStyle::None,
            print_warnings: !typed.is_quiet(),
        },
        vmdk: typed.vmdk_desc.clone(),
        archive_copy: contents(typed).and(typed.raw_copy()).map(Path::to_owned),
        android: typed.android.clone(),
        sidecar: None,
        container_config: None,
        warnings,
    })
}

/// The memory of a build whose encoders need more than the usual limit; mkfs.erofs has no option for
/// that.
fn memory(options: &BuildOptions) -> Option<u64> {
    let methods = options.algorithms.iter().flat_map(|algorithms| &algorithms.methods);
    let is_ultra =
        |method: &Method| matches!(method, Method::Zstd { level: ZSTD_ULTRA_LEVEL.., .. });
    methods.into_iter().any(is_ultra).then_some(ULTRA_MEMORY_BYTES)
}

/// What becomes of the data of source images by the word of `--clean` or `--incremental`, or by its number; an empty
/// word is the number 0.
fn layer_data(
    option: &str,
    word: Option<&str>,
    warnings: &mut Vec<String>,
) -> Result<LayerData, String> {
    let Some(word) = word else { return Ok(LayerData::Referred) };
    match (word, parse_number(word)) {
        ("data", _) | (_, Ok(1)) => Ok(LayerData::Taken),
        ("rvsp", _) | (_, Ok(2)) => {
            warnings.push(format!("{option}=rvsp: data is not left out, but copied"));
            Ok(LayerData::Taken)
        }
        (_, Ok(0)) => Ok(LayerData::Referred),
        _ => Err(format!("{option}: {word} is unknown; there are data (1), rvsp (2) and 0")),
    }
}

/// An image that is added to is one file with all of its data.
fn check_incremental(typed: &MkfsArguments) -> Result<(), String> {
    if typed.incremental_mode().is_none() {
        return Ok(());
    }
    let refused = [
        (typed.offset != 0, "--offset", "what lies before the image would be lost"),
        (typed.tar_mode() == Some(TarMode::Index), "--tar=i", "its data would be in two places"),
    ];
    match refused.iter().find(|(is_given, ..)| *is_given) {
        Some((_, option, why)) => Err(format!("--incremental cannot be used with {option}: {why}")),
        None => Ok(()),
    }
}

/// What of an image stays as it is when it is added to.
fn incremental_base(typed: &MkfsArguments) -> Option<IncrementalBase> {
    typed.incremental_mode().map(|_| IncrementalBase {
        keeps_uuid: typed.uuid.is_none(),
        keeps_label: typed.label.is_none(),
        keeps_algorithms: typed.algorithms.is_none(),
    })
}

/// The name of the attribute with a digest.
fn digest_xattr(typed: &MkfsArguments, warnings: &mut Vec<String>) -> Option<Vec<u8>> {
    let name = typed.digest_xattr.as_ref()?.as_bytes();
    if name.is_empty() {
        warnings.push("--xattr-inode-digest= has no effect: the name is empty".to_owned());
        return None;
    }
    Some(name.to_vec())
}

/// Prefixes of names; those that no extended attribute can have are left out.
fn xattr_prefixes(typed: &MkfsArguments, warnings: &mut Vec<String>) -> Vec<Vec<u8>> {
    let mut prefixes = Vec::new();
    for prefix in typed.xattr_prefix.iter().map(|prefix| prefix.as_bytes().to_vec()) {
        let options = BuildOptions::default().xattr_prefixes(vec![prefix.clone()]);
        if prefixes.contains(&prefix) {
            continue;
        }
        match options.check() {
            Ok(()) => prefixes.push(prefix),
            Err(error) => warnings.push(format!("--xattr-prefix has no effect: {error}")),
        }
    }
    prefixes
}

/// Times as the options and the environment give them.
#[derive(Clone, Copy, Debug)]
struct MkfsTimes {
    build: u64,
    files: MtimePolicy,
}

impl MkfsTimes {
    fn of(typed: &MkfsArguments, environment: &BuildEnvironment) -> Result<Self, String> {
        let is_empty = environment.source_date_epoch.as_ref().is_some_and(|text| text.is_empty());
        // An empty word is the number 0 for strtoull.
        let epoch = if is_empty { Some(0) } else { environment.epoch()? };
        if let Some(build) = epoch {
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

/// Reads `-m`: a size, and an algorithm or the number of one of `-z`.
fn take_metabox(typed: &MkfsArguments, options: &mut BuildOptions) -> Result<(), String> {
    let Some(text) = &typed.metabox else { return Ok(()) };
    let (size, algorithm) = match text.split_once(':') {
        Some((size, algorithm)) => (size, Some(algorithm)),
        None => (text.as_str(), None),
    };
    let bytes = parse_size(size).map_err(|why| format!("-m: {size}: {why}"))?;
    let number = algorithm.and_then(|algorithm| parse_number(algorithm).ok());
    let text = match algorithm {
        Some(algorithm) if number.is_none() => format!("{bytes}:{algorithm}"),
        _ => bytes.to_string(),
    };
    algorithms::take_metabox(&text, options).map_err(|why| format!("-m: {why}"))?;
    let Some(number) = number else { return Ok(()) };
    let count = options.algorithms.as_ref().map_or(0, |algorithms| algorithms.methods.len());
    let method = usize::try_from(number).ok().filter(|number| *number < count.max(1));
    let method = method
        .ok_or_else(|| format!("-m: no algorithm {number}: -z has {count}, counted from 0"))?;
    options.metabox_method = options.algorithms.is_some().then_some(method);
    Ok(())
}

fn adjustments(
    typed: &MkfsArguments,
    options: &BuildOptions,
    times: MkfsTimes,
) -> Result<Adjustments, String> {
    // Neither of these has inodes that would be smaller for it.
    let is_of_use = !options.wide && !options.force_extended_inodes;
    let compact_time = (typed.ignore_mtime || options.force_compact_inodes) && is_of_use;
    let owners = OwnerOverrides::default()
        .force_uid(typed.force_uid)
        .force_gid(typed.force_gid)
        .uid_offset(typed.uid_offset)
        .gid_offset(typed.gid_offset)
        .overflow(IdOverflow::Wrap);
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

fn directory(
    typed: &MkfsArguments,
    adjustments: &Adjustments,
    warnings: &mut Vec<String>,
) -> Result<DirectoryOptions, String> {
    let paths = typed.exclude_path.iter().map(|path| path.as_bytes().to_vec());
    let mut expressions = Vec::new();
    for expression in &typed.exclude_regex {
        match ExcludePatterns::new([] as [Vec<u8>; 0], [expression]) {
            Ok(_) => expressions.push(expression),
            Err(error) => warnings.push(format!("--exclude-regex has no effect: {error}")),
        }
    }
    let exclude_patterns = ExcludePatterns::new(paths, &expressions);
    let hard_links = match typed.hard_dereference {
        true => HardLinkPolicy::Separate,
        false => HardLinkPolicy::Joined,
    };
    Ok(DirectoryOptions::default()
        .exclude_patterns(exclude_patterns.map_err(|error| format!("--exclude-regex: {error}"))?)
        .adjustments(adjustments.clone())
        .hard_links(hard_links)
        .unreadable(UnreadablePolicy::Fail))
}

fn tar(
    typed: &MkfsArguments,
    times: MkfsTimes,
    warnings: &mut Vec<String>,
) -> Result<TarImportOptions, String> {
    let contents = contents(typed);
    if contents.is_some() {
        mkfs_warnings::of_archive(typed, warnings);
    }
    if contents.is_none() && typed.tar_compression().is_some() {
        warnings.push("--ungzip, --unxz and --gzinfo have no effect without --tar".to_owned());
    }
    let is_index = contents == Some(TarContentMode::Index);
    // The first bytes show the compression, except where the archive is to be a device.
    let compression = match typed.tar_compression().filter(|_| is_index) {
        Some(TarCompression::Gzip) => Some(Compression::Gzip),
        Some(TarCompression::Xz) => Some(Compression::Xz),
        None => None,
    };
    let whiteouts = if typed.aufs { WhiteoutPolicy::ToOverlay } else { WhiteoutPolicy::Keep };
    Ok(TarImportOptions::default()
        .input(typed.max_input.map_or(InputLimit::Default, InputLimit::Bytes))
        .compression(compression)
        .accounts(Some(AccountFiles::of_host()))
        .contents(contents.unwrap_or_default())
        .whiteouts(whiteouts)
        .missing_mtime(Timestamp { seconds: file_time(times.build)?, nanoseconds: 0 }))
}

fn kind(typed: &MkfsArguments, data: LayerData) -> SourceKind {
    if contents(typed).is_some() {
        return SourceKind::Tar;
    }
    let (has_block_size, is_aufs) = (typed.block_bytes.is_some(), typed.aufs);
    SourceKind::DirectoryOrImages(LayerOptions { data, has_block_size, is_aufs })
}

fn sources(typed: &MkfsArguments) -> Result<Vec<PathBuf>, String> {
    match (typed.sources.as_slice(), contents(typed).is_some()) {
        ([], true) => Ok(vec![PathBuf::from("-")]),
        ([], false) => Err("SOURCE is missing".to_owned()),
        ([one], true) => Ok(vec![one.clone()]),
        ([one], false) if one == Path::new("-") => {
            Err("an archive on standard input needs --tar=f".to_owned())
        }
        (images, false) => Ok(images.to_vec()),
        _ => Err("several archives are not supported; use `ferrofs build` for layers".to_owned()),
    }
}

#[cfg(test)]
mod tests {

    use ferrofs_builder::{
        BlobOutput, Deduplication, FragmentSharing, Fragments, IndexForm, OutputMode,
        SuperblockTime,
    };

    use ferrofs_codec::LzmaContexts;

    use super::*;
    use crate::build::request::tests::test_environment;

    fn made(words: &[&str]) -> Result<BuildRequest, String> {
        made_in(words, &test_environment())
    }

    fn made_in(words: &[&str], environment: &BuildEnvironment) -> Result<BuildRequest, String> {
        let words = [&["mkfs.erofs"], words, &["image", "dir"]].concat();
        let typed = MkfsArguments::read(words).map_err(|error| error.to_string())?;
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
        assert_eq!(request.output.form, OutputFormat::Mkfs { lists_files: true });
        assert!(request.warnings.is_empty(), "{:?}", request.warnings);
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
        assert_eq!(
            methods,
            [Method::Lzma {
                level: 6,
                dictionary_bytes: 256 << 10,
                contexts: LzmaContexts::default()
            }]
        );
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
    fn options_without_effect_cause_warnings() {
        let warned = |words: &[&str], part: &str| {
            let warnings = made(words).unwrap().warnings;
            assert!(warnings.iter().any(|text| text.contains(part)), "{words:?}: {warnings:?}");
        };
        warned(&["--mount-point=/vendor"], "--mount-point has no effect without --file-contexts");
        warned(&["-Efragdedupe=inode"], "-Efragdedupe has no effect without -z");
        warned(&["-zlz4", "-Efragdedupe"], "-Efragdedupe has no effect without fragments");
        warned(&["-Eplain-xattr-prefixes"], "-Eplain-xattr-prefixes has no effect without");
        warned(&["--xattr-inode-digest="], "--xattr-inode-digest= has no effect");
        warned(&["--tar=f", "--clean"], "--clean has no effect with --tar");
        for words in [
            &["-zlz4", "-Efragments,fragdedupe=inode"][..],
            &["-Eplain-xattr-prefixes", "--xattr-prefix=user.a"],
            &["-Eplain-xattr-prefixes", "--xattr-inode-digest"],
            &["--zfeature-bits=64"],
            &["--mount-point=/vendor", "--block-list-file=x"],
        ] {
            assert_eq!(made(words).unwrap().warnings, [] as [&str; 0], "{words:?}");
        }
    }

    #[test]
    fn options_without_effect_on_a_kind_of_source_cause_warnings_about_it() {
        let options = |warnings: Vec<String>| -> Vec<String> {
            let words = warnings.iter().map(|text| text.split(" has no effect").next().unwrap());
            words.map(str::to_owned).collect()
        };
        let found = made(&["--aufs", "--max-input=1m", "--clean"]).unwrap().source_warnings;
        assert_eq!(options(found.of_directory), ["--aufs", "--max-input", "--clean"]);
        assert!(found.of_images.is_empty());
        let of_directories = ["--exclude-path=a", "--exclude-regex=b", "--hard-dereference"];
        let of_data = ["-zlz4", "-Ededupe", "--chunksize=65536"];
        let found = made(&[of_directories, of_data].concat()).unwrap().source_warnings;
        let without_data = ["--hard-dereference", "--exclude-path", "--exclude-regex"];
        let all = [without_data, ["-z", "--chunksize", "-E: dedupe"]].concat();
        assert_eq!(options(found.of_images), all);
        assert!(found.of_directory.is_empty());
        for copies in ["--clean=data", "--clean=1", "--incremental"] {
            let words = [&of_directories[..], &of_data, &[copies]].concat();
            assert_eq!(options(made(&words).unwrap().source_warnings.of_images), without_data);
        }
        // The image that is added to has this limit.
        let found = made(&["--incremental", "--max-input=1m"]).unwrap().source_warnings;
        assert!(found.of_directory.is_empty());
    }

    #[test]
    fn what_becomes_of_the_data_of_images_is_a_word_or_a_number() {
        let data = |words: &[&str]| match made(words).unwrap().kind {
            SourceKind::DirectoryOrImages(layering) => layering.data,
            kind => panic!("{kind:?}"),
        };
        for words in [&[][..], &["--clean="], &["--clean=0"], &["--clean=0x0"]] {
            assert_eq!(data(words), LayerData::Referred, "{words:?}");
        }
        for words in [&["--clean"][..], &["--clean=1"], &["--clean=2"], &["--incremental="]] {
            assert_eq!(data(words), LayerData::Taken, "{words:?}");
        }
        for words in [["--clean=x"], ["--clean=4"]] {
            assert!(made(&words).unwrap_err().contains("there are data (1), rvsp (2) and 0"));
        }
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
        assert_eq!(times(&[], Some("")), (fixed(0), MtimePolicy::Clamp(0)));
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
        assert!(request.directory.exclude_patterns.excludes(b"proc"));
        assert!(request.directory.exclude_patterns.excludes(b"tmp/x"));
        assert!(!request.directory.exclude_patterns.excludes(b"var/tmp"));
        assert_eq!(request.directory.hard_links, HardLinkPolicy::Separate);
        assert_eq!(request.machine.jobs, Some(3));
        assert_eq!(request.options.output_mode, OutputMode::NewFile { offset: 512 });
        assert_eq!(request.options.xattr_prefixes, [b"trusted.overlay.".to_vec()]);
    }

    #[test]
    fn archives_come_from_standard_input_unless_they_are_named() {
        let tar = |words: &[&str]| {
            let words = [&["mkfs.erofs", "--tar=f", "image"], words].concat();
            request(&MkfsArguments::read(words).unwrap(), &test_environment())
        };
        let found = tar(&[]).unwrap();
        assert_eq!((found.kind, found.sources), (SourceKind::Tar, vec![PathBuf::from("-")]));
        assert_eq!(tar(&["-"]).unwrap().sources, [PathBuf::from("-")]);
        assert_eq!(tar(&["a.tar", "--aufs"]).unwrap().tar.whiteouts, WhiteoutPolicy::ToOverlay);
        // The first bytes of the archive show whether it is compressed.
        assert_eq!(tar(&["a.tar", "--ungzip"]).unwrap().tar.compression, None);
        let indexed = tar(&["a.tar", "--tar=i", "--unxz=raw"]).unwrap();
        assert_eq!(indexed.tar.compression, Some(Compression::Xz));
        assert_eq!(indexed.archive_copy, Some("raw".into()));
        assert_eq!(tar(&["a.tar"]).unwrap().tar.contents, TarContentMode::Copy);
        assert!(tar(&["a.tar", "b.tar"]).unwrap_err().contains("ferrofs build"));
        let excluding = tar(&["a.tar", "--exclude-path=x"]).unwrap().warnings;
        assert_eq!(excluding, ["--exclude-path has no effect with --tar"]);
        let product = tar(&["a.tar", "--product-out=out", "--fs-config-file=f"]).unwrap().warnings;
        assert!(product.iter().any(|line| line.starts_with("--product-out has no effect")));
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
                let request = made(&[&tar, option]).unwrap();
                let warning = request.warnings.last().unwrap();
                assert!(warning.contains(named) && warning.contains(&tar), "{warning}");
                request.options.check().unwrap();
                assert!(
                    request.options.algorithms.is_none() && request.options.chunk_bytes.is_none()
                );
            }
        }
        let request = made(&["--tar=i", "-b4096"]).unwrap();
        assert_eq!(request.options.block_size.bytes(), 512);
        assert!(request.warnings[0].contains("-b has no effect"), "{:?}", request.warnings);
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
    fn what_has_no_effect_is_accepted_with_a_warning() {
        for (words, part) in [
            (&["-Eztailpacking"][..], "-Eztailpacking has no effect without -z"),
            (&["-Efragments"], "-Efragments has no effect"),
            (&["-Eall-fragments"], "-Eall-fragments has no effect"),
            (&["-Elegacy-compress"], "-Elegacy-compress has no effect"),
            (&["--zD"], "--zD has no effect without -z"),
            (&["--max-extent-bytes=65536"], "--max-extent-bytes has no effect"),
            (&["--max-extent-bytes=5000", "-zlz4"], "extents have 4096 bytes at most"),
            (&["--max-extent-bytes=-8192", "-zlz4", "-E48bit"], "pclusters stay aligned"),
            (&["-b3000"], "blocks have 2048 bytes"),
            (&["--exclude-regex=("], "--exclude-regex has no effect"),
            (&["--xattr-prefix=nothing"], "--xattr-prefix has no effect"),
            (&["--async-queue-limit=4"], "--async-queue-limit"),
            (&["--sort=none"], "--sort"),
            (&["--ungzip"], "without --tar"),
        ] {
            let request = made(words).unwrap();
            let warnings = request.warnings.join("; ");
            assert!(warnings.contains(part), "{words:?}: {warnings}");
            request.options.check().unwrap();
        }
        let environment =
            BuildEnvironment { hints: Some(b"65536 x".to_vec()), ..test_environment() };
        let request = made_in(&["--compress-hints=file"], &environment).unwrap();
        assert!(request.options.hints.all().is_empty());
        assert_eq!(request.warnings, ["--compress-hints has no effect without -z"]);
    }

    #[test]
    fn a_pcluster_of_2_mib_without_an_algorithm_is_not_used() {
        assert_eq!(options(&["-C2m"]).pcluster_bytes, 4096);
        made(&["-C2m", "-zlz4"]).unwrap().options.check().unwrap_err();
        made(&["-C5000"]).unwrap_err();
    }

    #[test]
    fn the_encoder_of_zstd_22_gets_the_memory_that_it_needs() {
        assert_eq!(made(&["-zzstd,22"]).unwrap().machine.memory, Some(1 << 30));
        assert_eq!(made(&["-zzstd,19"]).unwrap().machine.memory, None);
    }

    #[test]
    fn empty_items_of_a_list_of_algorithms_are_none() {
        assert_eq!(options(&["-zlz4:"]).algorithms.unwrap().methods.len(), 1);
        assert!(options(&["-z:"]).algorithms.is_none());
        let of_metabox = options(&["-m4096:lz4"]);
        assert_eq!(of_metabox.algorithms.unwrap().methods.len(), 1);
        assert_eq!(options(&["-m4096:0", "-zlz4"]).metabox_method, Some(0));
        assert!(made(&["-m4096:1", "-zlz4"]).unwrap_err().contains("-z has 1"));
    }

    #[test]
    fn numbers_are_read_as_in_c() {
        assert_eq!(options(&["-C0x10000", "-zlz4"]).pcluster_bytes, 65536);
        assert_eq!(options(&["-b4k"]).block_size.bytes(), 4096);
        assert_eq!(options(&["-x0x10"]).xattr_share_above, Some(16));
        let owners = made(&["--force-gid=0x10"]).unwrap().directory.adjustments.owners;
        assert_eq!(owners.force_gid, Some(16));
        assert_eq!(made(&["--workers=0"]).unwrap().machine.jobs, Some(1));
    }

    #[test]
    fn bits_switch_features_on_and_those_below_them_off() {
        let found = options(&["-zlz4", "--zfeature-bits=6"]);
        assert!(found.inline_pclusters && found.fragments == Fragments::Tails);
        assert_eq!(found.index, IndexForm::Compact);
        assert!(options(&["--zfeature-bits=0xff"]).omit_dot);
        assert!(made(&["--zfeature-bits=256"]).unwrap_err().contains("8 bits"));
    }

    #[test]
    fn forced_compact_inodes_get_the_time_of_the_build() {
        let request = made(&["-Eforce-inode-compact"]).unwrap();
        let time = request.directory.adjustments.compact_time;
        assert_eq!(time, Some(CompactTime { seconds: 1_700_000_000 }));
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        for (words, part) in [
            (&["-b511"][..], "512 to 65536"),
            (&["--clean=x"], "--clean: x is unknown"),
            (&["--incremental=x"], "--incremental: x is unknown"),
            (&["--incremental", "--offset=512"], "--incremental cannot be used with --offset"),
            (&["--incremental", "--tar=i"], "--incremental cannot be used with --tar=i"),
            (&["-Efragments=5000"], "fragments: 5000 bytes are not whole blocks"),
            (&["-zzstd,level=x"], "not a number"),
            (&["-zfoo"], "-z: no algorithm foo"),
            (&["-Ebogus"], "bogus is unknown"),
            (&["-E,"], "is unknown"),
            (&["-Efragments=x"], "fragments=x: not a size"),
            (&["-Eztailpacking=3", "-zlz4"], "does not accept the value 3"),
            (&["-E^fragments=4096", "-zlz4"], "does not accept the value 4096"),
            (&["--dsunit=4294967296"], "--dsunit: 4294967296 blocks"),
            (&["--fsalignblks=9223372036854775809"], "--fsalignblks: "),
            (&["-L", "0123456789abcdef"], "15 fit"),
            (&["-Uxyz"], "not a UUID"),
            (&["-Tabc"], "not a number"),
            (&["-m4096:foo", "-zlz4"], "-m: no algorithm foo"),
            (&["-m6x"], "-m: 6x: not a size"),
            (&["--chunksize=4k"], "not a number"),
            (&["--max-extent-bytes=-65536", "-zlz4"], "needs -E48bit"),
            (&["--max-extent-bytes=99999999999", "-zlz4"], "too many"),
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
            let error = MkfsArguments::read(words).unwrap_err();
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
