//! What the options of mkfs.erofs come to.

use clap::Parser;
use ferrofs_builder::{OutputMode, SuperblockTime};
use ferrofs_codec::Method;

use super::*;
use crate::verbs::build::request::tests::test_environment;

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
    assert!(request.replaces && request.verify == Verify::Yes);
    let layering =
        LayerOptions { data: LayerData::Referred, has_block_size: false, is_aufs: false };
    assert_eq!(request.kind, SourceKind::DirectoryOrImages(layering));
    assert_eq!(request.output.form, OutputFormat::Mkfs);
}

#[test]
fn usual_combinations_are_understood() {
    let found =
        options(&["-zzstd,level=12", "-C65536", "-Eall-fragments,dedupe,fragdedupe=inode", "-Lx"]);
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
    assert!(made(&words).map(|_| ()).unwrap_err().contains("names no device"));
}

#[test]
fn what_would_be_ignored_or_is_wrong_is_refused_by_name() {
    for (words, part) in [
        (&["-b3000"][..], "512 to 65536"),
        (&["-zfoo"], "-z: no algorithm foo"),
        (&["-Eztailpacking"], "ztailpacking"),
        (&["-Eall-fragments"], "fragments"),
        (&["-Ebogus"], "bogus is not known"),
        (&["-Eztailpacking=3", "-zlz4"], "takes no value"),
        (&["-E^fragments=4096", "-zlz4"], "takes no value"),
        (&["--compress-hints=x"], "without -z"),
        (&["--dsunit=4294967296"], "--dsunit: 4294967296 blocks"),
        (&["--fsalignblks=9223372036854775809"], "--fsalignblks: "),
        (&["-Efragdedupe=x", "-zlz4"], "fragdedupe=x"),
        (&["-L", "0123456789abcdef"], "15 fit"),
        (&["-Uxyz"], "no UUID"),
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

/// The text of `mkfs.erofs --help` of erofs-utils 1.9.4, one option a line, as far as options go.
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
    // Where the program is at hand its own words are taken, so that a newer one is noticed.
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
                    || (!name.starts_with("--") && known.starts_with(&name[..2.min(name.len())]))
            });
            assert!(is_listed || name.len() < 2, "{name} of {line}");
            seen += 1;
        }
    }
    assert!(seen > 50, "{text}");
}
