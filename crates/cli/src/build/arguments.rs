//! From the command line of `ferrofs build` to a build.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;

use ferrofs_builder::import::adjust::{
    Adjustments, ExcludePatterns, MtimePolicy, OverlayPolicy, OwnerOverrides, XattrFilter,
};
use ferrofs_builder::import::{
    AccountFiles, DirectoryOptions, HardLinkPolicy, InputLimit, TarImportOptions, UnreadablePolicy,
    WhiteoutPolicy,
};
use ferrofs_builder::output::ExistingOutput;
use ferrofs_builder::tree::Timestamp;
use ferrofs_builder::{
    BlobOutput, BuildOptions, ChunkIndexOutput, Deduplication, FragmentSharing, Fragments,
    IndexForm, SuperblockTime,
};

use super::algorithms::{self, parse_u32};
use super::android::{self, PATH_FILES, is_mount_point_unused};
use super::request::{
    BuildEnvironment, BuildRequest, CompressionSizes, OutputFormat, OutputOptions, SourceKind,
    SourceWarnings, Verify, at_offset, file_time, image_time, parse_label, parse_uuid,
};
use super::source_kind;
use crate::arguments::{
    AndroidArguments, BuildArguments, BuildContent, EMBEDDED_CHUNK_INDEX, FragmentChoice,
    MachineArguments, SharingChoice, WhiteoutChoice,
};
use crate::container::is_container;
use crate::output::escape;

/// The default size of the largest pcluster, in bytes.
const PCLUSTER_BYTES: u64 = 64 << 10;

/// Makes a build request from the arguments.
///
/// # Errors
/// What is out of range or contradicts itself, in words that name the option.
pub(crate) fn request(
    typed: &BuildArguments,
    environment: &BuildEnvironment,
) -> Result<BuildRequest, String> {
    let times = BuildTimes::of(typed, environment)?;
    let mut options = compressed(typed, environment.hints.as_deref())?;
    let layout = &typed.layout;
    if let Some(text) = &layout.metabox {
        algorithms::take_metabox(text, &mut options).map_err(|why| format!("--metabox: {why}"))?;
    }
    options.inline_data = !layout.no_inline_data;
    options.chunk_bytes = layout.chunk_size;
    options.wide = layout.wide;
    options.blob = layout.blob.clone().map(BlobOutput::NewFile);
    let label = layout.label.as_ref().map(|label| label.as_bytes());
    options.metadata_first = layout.metadata_first;
    options.chunk_index = layout.chunk_index.clone().map(chunk_index);
    options.label =
        parse_label(label.unwrap_or_default()).map_err(|why| format!("--label: {why}"))?;
    let uuid =
        layout.uuid.as_deref().unwrap_or(if layout.reproducible { "clear" } else { "random" });
    options.uuid = parse_uuid(uuid, environment).map_err(|why| format!("--uuid: {why}"))?;
    options.time = times.image;
    options.output_mode = at_offset(layout.offset);
    options.xattr_share_above = Some(layout.xattr_share_above);
    options.xattr_prefixes = as_bytes(&layout.xattr_prefix);
    options.plain_xattr_prefixes = layout.plain_xattr_prefixes;
    options.digest_xattr = layout.digest_xattr.as_ref().map(|name| name.as_bytes().to_vec());
    options.root_xattr_bytes = parse_u32("attributes of the root", layout.root_xattr_room)?;
    let block_bytes = layout.block_size;
    options.data_alignment_blocks = blocks("--align-data", layout.align_data, block_bytes)?;
    options.image_alignment_blocks = blocks("--align-image", layout.align_image, block_bytes)?;
    let adjustments = adjustments(&typed.content, times)?;
    check_mount_point(&typed.android)?;
    let kind = source_kind::kind(typed)?;
    if typed.container_config.is_some() && kind != SourceKind::Container {
        return Err("--container-config: the source is not a container image".to_owned());
    }
    Ok(BuildRequest {
        image: typed.image.clone(),
        sources: typed.sources.clone(),
        kind,
        directory: directory(typed, &adjustments)?,
        tar: tar(typed, times),
        tar_adjustments: adjustments,
        options,
        existing: match typed.force {
            true => ExistingOutput::Replace,
            false => ExistingOutput::Refuse,
        },
        verify: if typed.no_verify { Verify::No } else { Verify::Yes },
        is_dry_run: typed.dry_run,
        machine: machine(typed),
        connection: typed.connection.clone(),
        output: OutputOptions {
            form: match (typed.json, typed.quiet) {
                (true, _) => OutputFormat::Json,
                (_, true) => OutputFormat::Nothing,
                _ => OutputFormat::Text,
            },
            progress: typed.progress.progress,
            print_warnings: !typed.quiet,
        },
        vmdk: None,
        archive_copy: None,
        container_config: typed.container_config.clone(),
        android: typed.android.clone(),
        sidecar: typed.sidecar.clone(),
        incremental: None,
        block_map: None,
        warnings: android::ineffective(&typed.android),
        source_warnings: SourceWarnings::default(),
    })
}

/// The memory without `--memory`, with `--reproducible`, in bytes: what is shared must not follow the memory of the host.
const REPRODUCIBLE_MEMORY_BYTES: u64 = 256 << 20;

/// The limits of the process.
fn machine(typed: &BuildArguments) -> MachineArguments {
    let default = typed.layout.reproducible.then_some(REPRODUCIBLE_MEMORY_BYTES);
    let machine = typed.machine.clone();
    MachineArguments { memory: machine.memory.or(default), ..machine }
}

/// A mount point alone has no effect.
fn check_mount_point(android: &AndroidArguments) -> Result<(), String> {
    if !is_mount_point_unused(android) {
        return Ok(());
    }
    Err(format!("--mount-point is about the paths in other files: it needs {PATH_FILES}"))
}

/// Times as the options and the environment give them.
#[derive(Clone, Copy, Debug)]
struct BuildTimes {
    image: SuperblockTime,
    files: MtimePolicy,
    /// The time of directories that have no entry in an archive.
    missing: i64,
}

impl BuildTimes {
    fn of(typed: &BuildArguments, environment: &BuildEnvironment) -> Result<Self, String> {
        let epoch = environment.epoch()?;
        let is_reproducible = typed.layout.reproducible;
        let image = match (typed.layout.time, epoch) {
            (Some(time), _) | (None, Some(time)) => image_time(time)?,
            _ if is_reproducible => SuperblockTime::Newest,
            _ => image_time(environment.now)?,
        };
        let files = match (typed.content.mtime, epoch) {
            (Some(time), _) => MtimePolicy::All(file_time(time)?),
            (None, Some(time)) => MtimePolicy::Clamp(file_time(time)?),
            _ => MtimePolicy::Keep,
        };
        let missing = match epoch {
            Some(time) => file_time(time)?,
            // The image must not depend on the clock.
            None if is_reproducible => 0,
            None => file_time(environment.now)?,
        };
        Ok(Self { image, files, missing })
    }
}

/// An alignment in bytes as a number of blocks; 1 without an alignment.
fn blocks(option: &str, bytes: Option<u64>, block_bytes: u64) -> Result<u32, String> {
    let bytes = bytes.unwrap_or(block_bytes);
    let blocks = bytes.checked_div(block_bytes).filter(|_| bytes.is_multiple_of(block_bytes));
    let blocks = blocks.and_then(|blocks| u32::try_from(blocks).ok());
    blocks.ok_or_else(|| {
        format!("{option}: {bytes} bytes are not a multiple of the block size {block_bytes}")
    })
}

/// `embedded`, or a file; `./embedded` is a file of that name.
fn chunk_index(typed: OsString) -> ChunkIndexOutput {
    match typed.to_str() {
        Some(EMBEDDED_CHUNK_INDEX) => ChunkIndexOutput::Embedded,
        _ => ChunkIndexOutput::NewFile(typed.into()),
    }
}

fn compressed(typed: &BuildArguments, hints: Option<&[u8]>) -> Result<BuildOptions, String> {
    let compression = &typed.compression;
    let sizes = CompressionSizes {
        block_bytes: typed.layout.block_size,
        pcluster_bytes: compression.pcluster,
        pcluster_default: if compression.compress.is_some() { PCLUSTER_BYTES } else { 0 },
        extent_bytes_max: compression.max_extent,
        algorithms: compression.compress.as_deref(),
        max_distance: compression.max_distance,
        hints,
        packed_pcluster_bytes: compression.fragments_pcluster,
    };
    let options = sizes.options("--compress")?;
    let needs_compression = [
        (compression.pcluster.is_some(), "--pcluster"),
        (compression.hints.is_some(), "--hints"),
        (compression.max_extent.is_some(), "--max-extent"),
        (compression.max_distance != u16::MAX, "--max-distance"),
        (compression.fragments.is_some(), "--fragments"),
        (compression.inline_pclusters, "--inline-pclusters"),
        (compression.full_indexes, "--full-indexes"),
        (compression.compress_directories, "--compress-directories"),
        (compression.dedupe && typed.layout.chunk_size.is_none(), "--dedupe"),
    ];
    if let (None, Some((_, option))) =
        (&options.algorithms, needs_compression.iter().find(|(is_given, _)| *is_given))
    {
        return Err(format!("{option} needs --compress"));
    }
    let fragments = match compression.fragments {
        None => Fragments::None,
        Some(FragmentChoice::Tails) => Fragments::Tails,
        Some(FragmentChoice::All) => Fragments::All,
    };
    let sharing = match compression.share_fragments {
        None | Some(SharingChoice::Parts) => FragmentSharing::Parts,
        Some(SharingChoice::Files) => FragmentSharing::Files,
        Some(SharingChoice::Off) => FragmentSharing::Off,
    };
    let index = if compression.full_indexes { IndexForm::Full } else { IndexForm::Compact };
    let dedupe = if compression.dedupe { Deduplication::On } else { Deduplication::Off };
    Ok(options
        .index(index)
        .inline_pclusters(compression.inline_pclusters)
        .compress_directories(compression.compress_directories)
        .fragments(fragments)
        .fragment_sharing(sharing)
        .deduplication(dedupe))
}

fn adjustments(content: &BuildContent, times: BuildTimes) -> Result<Adjustments, String> {
    let root = content.all_root.then_some(0);
    let owners = OwnerOverrides::default()
        .force_uid(root.or(content.uid))
        .force_gid(root.or(content.gid))
        .uid_offset(content.uid_offset)
        .gid_offset(content.gid_offset);
    let overlay = if content.strip_overlay { OverlayPolicy::Strip } else { OverlayPolicy::Keep };
    Ok(Adjustments::default()
        .owners(owners)
        .mtime(times.files)
        .xattrs(xattrs(content))
        .overlay(overlay))
}

fn xattrs(content: &BuildContent) -> XattrFilter {
    if content.no_xattrs {
        return XattrFilter::None;
    }
    if content.xattr.is_empty() && content.no_xattr.is_empty() {
        return XattrFilter::All;
    }
    XattrFilter::Named { include: as_bytes(&content.xattr), exclude: as_bytes(&content.no_xattr) }
}

fn directory(
    typed: &BuildArguments,
    adjustments: &Adjustments,
) -> Result<DirectoryOptions, String> {
    let content = &typed.content;
    let excluded = content.exclude.iter().map(|path| excluded_path(path));
    let excluded = excluded.collect::<Result<Vec<_>, _>>()?;
    let exclude_patterns = ExcludePatterns::new(excluded, &content.exclude_regex);
    let hard_links = match content.separate_hard_links {
        true => HardLinkPolicy::Separate,
        false => HardLinkPolicy::Joined,
    };
    let unreadable =
        if typed.keep_going { UnreadablePolicy::LeaveOut } else { UnreadablePolicy::Fail };
    Ok(DirectoryOptions::default()
        .exclude_patterns(exclude_patterns.map_err(|error| format!("--exclude-regex: {error}"))?)
        .adjustments(adjustments.clone())
        .hard_links(hard_links)
        .unreadable(unreadable))
}

/// An excluded path as the importer compares it: relative to the source, without empty names and `.`.
fn excluded_path(typed: &OsStr) -> Result<Vec<u8>, String> {
    let names = typed.as_bytes().split(|byte| *byte == b'/');
    let names: Vec<_> = names.filter(|name| !matches!(*name, b"" | b".")).collect();
    let why = if names.contains(&&b".."[..]) {
        "contains \"..\"; give the path below SOURCE"
    } else if names.is_empty() {
        "is all of SOURCE; give a path below it"
    } else {
        return Ok(names.join(&b'/'));
    };
    Err(format!("--exclude: {} {why}", escape(typed.as_bytes())))
}

/// The warnings about excluded paths that the source does not have.
pub(super) fn unmatched_excludes(typed: &BuildArguments) -> Vec<String> {
    let [source] = typed.sources.as_slice() else { return Vec::new() };
    let is_missing = |typed: &&OsString| {
        let path = excluded_path(typed).map(|path| source.join(OsStr::from_bytes(&path)));
        let found = path.map(fs::symlink_metadata);
        matches!(found, Ok(Err(error)) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
    };
    let missing = typed.content.exclude.iter().filter(is_missing);
    let source = escape(source.as_os_str().as_bytes());
    let warning =
        |path: &OsString| format!("--exclude: there is no {} in {source}", escape(path.as_bytes()));
    missing.map(warning).collect()
}

fn tar(typed: &BuildArguments, times: BuildTimes) -> TarImportOptions {
    let content = &typed.content;
    let whiteouts = match content.whiteouts {
        // The layers of an image are one tree.
        _ if typed.sources.iter().any(|source| is_container(source)) => WhiteoutPolicy::Apply,
        WhiteoutChoice::Keep => WhiteoutPolicy::Keep,
        WhiteoutChoice::Overlay => WhiteoutPolicy::ToOverlay,
        WhiteoutChoice::Apply => WhiteoutPolicy::Apply,
    };
    let input = content.max_input.map_or(InputLimit::Default, InputLimit::Bytes);
    TarImportOptions::default()
        .whiteouts(whiteouts)
        .input(input)
        .foreign_name(Some(source_kind::foreign_name))
        // The image must not depend on the host's user names.
        .accounts((!typed.layout.reproducible).then(AccountFiles::of_host))
        .missing_mtime(Timestamp { seconds: times.missing, nanoseconds: 0 })
}

fn as_bytes(words: &[OsString]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ferrofs_codec::Method;

    use super::*;
    use crate::arguments::{Arguments, Verb};
    use crate::build::request::tests::test_environment;

    fn made_in(words: &[&str], epoch: Option<&str>) -> Result<BuildRequest, String> {
        let words = [&["ferrofs", "build"], words, &["image"]].concat();
        let words = if words.contains(&"a.tar") { words } else { [&words[..], &["tree"]].concat() };
        let typed = Arguments::try_parse_from(words).map_err(|error| error.to_string())?.verb;
        let Verb::Build(typed) = typed else { panic!("{typed:?}") };
        let source_date_epoch = epoch.map(Into::into);
        request(&typed, &BuildEnvironment { source_date_epoch, ..test_environment() })
    }

    fn made(words: &[&str]) -> Result<BuildRequest, String> {
        made_in(words, None)
    }

    #[test]
    fn a_plain_build_is_uncompressed_verified_and_replaces_nothing() {
        let request = made(&[]).unwrap();
        assert!(request.options.algorithms.is_none() && request.existing == ExistingOutput::Refuse);
        assert_eq!((request.verify, request.kind), (Verify::Yes, SourceKind::AsFound));
        assert_eq!(request.options.time, SuperblockTime::Fixed(1_700_000_000));
        assert_eq!(request.directory.adjustments, Adjustments::default());
    }

    #[test]
    fn compression_is_spelled_out() {
        let words = [
            "-z",
            "lz4hc,level=12",
            "-C1m",
            "--max-distance=16384",
            "--fragments=all",
            "--dedupe",
            "--inline-pclusters",
            "--full-indexes",
            "--max-extent=128k",
        ];
        let options = made(&words).unwrap().options;
        let methods = options.algorithms.unwrap().methods;
        assert_eq!(methods, [Method::Lz4Hc { level: 12, max_distance: 16384 }]);
        assert_eq!((options.pcluster_bytes, options.extent_bytes_max), (1 << 20, 128 << 10));
        assert_eq!((options.fragments, options.index), (Fragments::All, IndexForm::Full));
        assert_eq!(options.deduplication, Deduplication::On);
        assert!(!options.wide && made(&["--48bit"]).unwrap().options.wide);
        assert!(options.inline_pclusters);
        let options = made(&["-zzstd", "--fragments"]).unwrap().options;
        assert_eq!((options.fragments, options.pcluster_bytes), (Fragments::Tails, 65536));
    }

    #[test]
    fn reproducible_images_show_nothing_of_where_and_when_they_were_built() {
        let request = made(&["--reproducible"]).unwrap();
        assert_eq!((request.options.uuid, request.options.time), ([0; 16], SuperblockTime::Newest));
        assert_eq!(request.tar.missing_mtime.seconds, 0);
        assert_eq!(request.machine.memory, Some(256 << 20));
        let request = made(&["--reproducible", "--memory=64m"]).unwrap();
        assert_eq!(request.machine.memory, Some(64 << 20));
        assert_eq!(made(&[]).unwrap().machine.memory, None);
        let request = made_in(&["--reproducible"], Some("9")).unwrap();
        assert_eq!(request.options.time, SuperblockTime::Fixed(9));
        assert_eq!(request.directory.adjustments.mtime, MtimePolicy::Clamp(9));
        let given = ["--reproducible", "--time=5", "-U01234567-89ab-cdef-0123-456789abcdef"];
        let request = made_in(&given, Some("9")).unwrap();
        assert_eq!(request.options.time, SuperblockTime::Fixed(5));
        assert_ne!(request.options.uuid, [0; 16]);
    }

    #[test]
    fn content_is_chosen_and_changed() {
        let words =
            ["--uid=5", "--gid-offset=7", "--xattr=user.*", "--no-xattr=user.x", "--mtime=3"];
        let adjustments = made(&words).unwrap().directory.adjustments;
        assert_eq!((adjustments.owners.force_uid, adjustments.owners.gid_offset), (Some(5), 7));
        assert_eq!(adjustments.mtime, MtimePolicy::All(3));
        let include = vec![b"user.*".to_vec()];
        let exclude = vec![b"user.x".to_vec()];
        assert_eq!(adjustments.xattrs, XattrFilter::Named { include, exclude });
        assert_eq!(made(&[]).unwrap().tar.input, InputLimit::Default);
        let request = made(&["--max-input=3g"]).unwrap();
        assert_eq!(request.tar.input, InputLimit::Bytes(3 << 30));
        let request = made(&["--keep-going", "--exclude=proc"]).unwrap();
        assert_eq!(request.kind, SourceKind::Directory);
        assert_eq!(request.directory.unreadable, UnreadablePolicy::LeaveOut);
        let request = made(&["out", "a.tar", "--whiteouts=apply"]).unwrap();
        assert_eq!((request.kind, request.tar.whiteouts), (SourceKind::Tar, WhiteoutPolicy::Apply));
    }

    #[test]
    fn directories_and_inodes_are_compressed_where_that_is_asked_for() {
        let options = made(&["-zlz4"]).unwrap().options;
        assert!(!options.compress_directories && options.metabox_pcluster_bytes.is_none());
        let words = ["-zlz4", "--compress-directories", "--metabox=16k:zstd"];
        let options = made(&words).unwrap().options;
        assert!(options.compress_directories && options.algorithms.unwrap().methods.len() == 2);
        let metabox = (options.metabox_pcluster_bytes, options.metabox_method);
        assert_eq!(metabox, (Some(16 << 10), Some(1)));
    }

    #[test]
    fn what_does_not_go_together_is_named() {
        for (words, part) in [
            (&["--dedupe"][..], "--dedupe needs --compress"),
            (&["--fragments"], "--fragments needs"),
            (&["--compress-directories"], "--compress-directories needs"),
            (&["--metabox=4k:lz4"], "--metabox: lz4: nothing is compressed"),
            (&["--max-distance=4096"], "--max-distance needs"),
            (&["--max-distance=4095", "-zlz4"], "4095"),
            (&["--max-distance=65536", "-zlz4"], "65536"),
            (&["-zfoo"], "--compress: no algorithm foo"),
            (&["-b3000"], "512 to 65536"),
            (&["-Uxyz"], "--uuid: xyz"),
            (&["-Lsixteen-chars-xx"], "--label"),
            (&["out", "a.tar", "--exclude=x"], "--exclude is for a directory"),
            (&["--all-root", "--uid=3"], "cannot be used with"),
            (&["--no-xattrs", "--xattr=x"], "cannot be used with"),
            (&["--exclude-regex=("], "--exclude-regex"),
        ] {
            let message = made(words).map(|_| ()).unwrap_err();
            assert!(message.contains(part), "{words:?}: {message}");
        }
    }
}
