//! Images built from a tree of everything are read back, and what must not be written is not.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use ferrofs_image::{Image, WalkEvent};
use ferrofs_ondisk::BlockSize;
use tempfile::TempDir;

use super::*;
use crate::data_map::{CompressedData, DataExtent, FileData, InlineExtent, PackedFragment};
use crate::packed_file::PackedFile;
use crate::report::NoopObserver;
use crate::test_source::{file, metadata, node};
use crate::tree::memory_content;
use crate::tree::{Node, NodeId, NodeKind, Timestamp};
use crate::{FragmentSharing, IndexForm, OutputMode, SuperblockTime};

/// A data path that stores everything as it is.
pub(crate) fn flat_only(
    tree: &Tree,
    context: &BuildContext<'_>,
    _packed_prefix: &[u8],
    sinks: DataSinks<'_>,
) -> Result<(DataMap, PackedFile)> {
    let sink = sinks.image;
    let options = context.options;
    let block = options.block_size.bytes() as usize;
    map_files(tree, |mut bytes| {
        let rest = bytes.len() % block;
        let inline = if options.inline_data && rest <= block - 64 { rest } else { 0 };
        let tail = bytes.split_off(bytes.len() - inline).into();
        let start_block = match bytes.is_empty() {
            true => None,
            false => Some(sink.append(&bytes)? >> options.block_size.bits()),
        };
        Ok(FileData::Flat { start_block, tail })
    })
}

/// A data path that cuts everything into plain pclusters of a block.
fn plain_pclusters(
    tree: &Tree,
    context: &BuildContext<'_>,
    _packed_prefix: &[u8],
    sinks: DataSinks<'_>,
) -> Result<(DataMap, PackedFile)> {
    let sink = sinks.image;
    let options = context.options;
    map_files(tree, |bytes| {
        if bytes.is_empty() {
            return Ok(FileData::Flat { start_block: None, tail: Box::default() });
        }
        let mut data = CompressedData::default();
        for piece in bytes.chunks(options.block_size.bytes() as usize) {
            if options.inline_pclusters && piece.len() < 300 {
                let (bytes, pcluster) = (piece.len() as u64, piece.into());
                data.inline = Some(InlineExtent { bytes, algorithm: None, pcluster });
                continue;
            }
            let address = sink.append(piece)?;
            data.extents.push(DataExtent {
                bytes: piece.len() as u64,
                algorithm: None,
                address,
                pcluster_bytes: options.block_size.bytes(),
                partial: false,
            });
        }
        Ok(FileData::Compressed(data))
    })
}

/// A data path that puts the end of each file, or all of it, into the packed inode.
fn fragments(
    tree: &Tree,
    context: &BuildContext<'_>,
    packed_prefix: &[u8],
    sinks: DataSinks<'_>,
) -> Result<(DataMap, PackedFile)> {
    let sink = sinks.image;
    let options = context.options;
    let block = options.block_size.bytes();
    let mut packed = packed_prefix.to_vec();
    let (map, mut file) = map_files(tree, |mut bytes| {
        let mut data = CompressedData::default();
        if bytes.len() > 3 * block as usize {
            let tail = bytes.split_off(block as usize);
            let address = sink.append(&bytes)?;
            let pcluster_bytes = block;
            let (bytes, algorithm, partial) = (u64::from(block), None, false);
            data.extents.push(DataExtent { bytes, algorithm, address, pcluster_bytes, partial });
            data.fragment =
                Some(PackedFragment { bytes: tail.len() as u64, offset: packed.len() as u64 });
            packed.extend_from_slice(&tail);
        } else if !bytes.is_empty() {
            data.fragment =
                Some(PackedFragment { bytes: bytes.len() as u64, offset: packed.len() as u64 });
            packed.extend_from_slice(&bytes);
        } else {
            return Ok(FileData::Flat { start_block: None, tail: Box::default() });
        }
        Ok(FileData::Compressed(data))
    })?;
    let bytes = packed.len() as u64;
    file.add_file(&memory_content("the packed inode", 0, packed, bytes), None)?;
    Ok((map, file))
}

fn failing(
    _: &Tree,
    _: &BuildContext<'_>,
    _: &[u8],
    sinks: DataSinks<'_>,
) -> Result<(DataMap, PackedFile)> {
    let sink = sinks.image;
    sink.append(&vec![7; 100_000])?;
    Err(Error::new(ErrorKind::SourceChanged { how: "it was deleted".to_owned() }))
}

fn map_files(
    tree: &Tree,
    mut place: impl FnMut(Vec<u8>) -> Result<FileData>,
) -> Result<(DataMap, PackedFile)> {
    let mut files = Vec::new();
    for (_, node) in tree.nodes() {
        let data = node.content().map(|content| {
            let mut bytes = vec![0; usize::try_from(content.bytes()).unwrap()];
            content.source().open()?.read_exact_at(0, &mut bytes)?;
            place(bytes)
        });
        files.push(data.transpose()?);
    }
    let packed = PackedFile::new(&[], FragmentSharing::Parts, tree.store());
    Ok((DataMap::of_files(&files, None), packed))
}

/// One of everything, and many of some.
pub(crate) fn all_kinds_tree() -> Tree {
    let mut tree = Tree::new(metadata());
    let mut add = |parent, name: &[u8], node| {
        let id = tree.add(node).unwrap();
        tree.link(parent, name, id).unwrap();
        id
    };
    let root = Tree::ROOT;
    for bytes in [0usize, 1, 60, 448, 449, 511, 512, 513, 4032, 4095, 4096, 5000, 20_000, 70_000] {
        let content: Vec<u8> =
            (0..bytes).map(|at| ((at * 7 + at / 251 + bytes) % 256).try_into().unwrap()).collect();
        add(root, format!("file-{bytes}").as_bytes(), file(&content));
    }
    for bytes in [1usize, 100, 447, 460, 511, 512, 1000, 4000, 4095] {
        let target = vec![b'x'; bytes];
        add(root, format!("link-{bytes}").as_bytes(), node(NodeKind::Symlink(target.into())));
    }
    add(root, b"null", node(NodeKind::CharacterDevice { major: 1, minor: 3 }));
    add(root, b"disk", node(NodeKind::BlockDevice { major: 0xfff, minor: 0xf_ffff }));
    add(root, b"fifo", node(NodeKind::Fifo));
    add(root, b"!socket", node(NodeKind::Socket));
    let large = add(root, b"large", Node::directory(metadata()));
    for number in 0..700 {
        let mut child = node(NodeKind::Fifo);
        child.metadata.permissions = number % 0o7777;
        add(large, format!("child with a long name, number {number}").as_bytes(), child);
    }
    let mut deep = root;
    for _ in 0..30 {
        deep = add(deep, b"deep", Node::directory(metadata()));
    }
    add_owners(&mut add, deep);
    add_xattrs(&mut add, root);
    let linked = tree.child(root, b"file-5000").unwrap();
    tree.link(deep, b"linked", linked).unwrap();
    tree.link(root, b"zz-linked", linked).unwrap();
    tree
}

pub(super) fn add_owners(add: &mut impl FnMut(NodeId, &[u8], Node) -> NodeId, parent: NodeId) {
    let owners = [(0, 0), (65535, 65535), (65536, 1), (1, 4_294_967_294)];
    for (number, (uid, gid)) in owners.into_iter().enumerate() {
        let mut child = file(b"owned");
        (child.metadata.uid, child.metadata.gid) = (uid, gid);
        add(parent, format!("owner-{number}").as_bytes(), child);
    }
    let times = [(-1, 0), (0, 1), (1 << 33, 999_999_999), (1_700_000_000, 5)];
    for (number, (seconds, nanoseconds)) in times.into_iter().enumerate() {
        let mut child = node(NodeKind::Symlink(b"somewhere".as_slice().into()));
        child.metadata.mtime = Timestamp { seconds, nanoseconds };
        add(parent, format!("time-{number}").as_bytes(), child);
    }
}

pub(super) fn add_xattrs(add: &mut impl FnMut(NodeId, &[u8], Node) -> NodeId, parent: NodeId) {
    let mut with = |name: &str, xattrs: &[(&str, &[u8])]| {
        let mut child = file(&[b'a'; 333]);
        for (key, value) in xattrs {
            child.metadata.xattrs.insert(key.as_bytes().into(), (*value).into());
        }
        add(parent, name.as_bytes(), child);
    };
    let acl = [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255];
    with("acl", &[("system.posix_acl_access", &acl), ("system.posix_acl_default", &acl)]);
    with("large-value", &[("user.large", &vec![9; 5000]), ("user.empty", b"")]);
    for number in 0..5u8 {
        let name = format!("shared-{number}");
        with(&name, &[("security.selinux", b"a_label"), ("user.app.number", &[number])]);
    }
    with("prefixed", &[("user.app.", b"whole"), ("trusted.overlay.opaque", b"y")]);
    let many: Vec<_> = (0..300).map(|number| format!("user.m{number}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), &b"v"[..])).collect();
    for number in 0..3 {
        with(&format!("many-{number}"), &many);
    }
}

/// What a tree and an image are compared by.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    mode: u16,
    owner: (u32, u32),
    links: u32,
    time: (i64, u32),
    content: Vec<u8>,
    device: Option<(u32, u32)>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub(crate) fn facts_of_tree(tree: &Tree) -> BTreeMap<Vec<u8>, NodeFacts> {
    let inode_order = crate::metadata::InodeOrder::new(tree).unwrap();
    let mut all = BTreeMap::new();
    let walked: Result<()> = tree.walk(|path, id| {
        let node = tree.node(id);
        let metadata = &node.metadata;
        let (kind_bits, device, content) = match &node.kind {
            NodeKind::Directory => (0o040_000, None, Vec::new()),
            NodeKind::File(content) => {
                let mut bytes = vec![0; usize::try_from(content.bytes()).unwrap()];
                content.source().open()?.read_exact_at(0, &mut bytes)?;
                (0o100_000, None, bytes)
            }
            NodeKind::Symlink(target) => (0o120_000, None, target.to_vec()),
            NodeKind::CharacterDevice { major, minor } => {
                (0o020_000, Some((*major, *minor)), vec![])
            }
            NodeKind::BlockDevice { major, minor } => (0o060_000, Some((*major, *minor)), vec![]),
            NodeKind::Fifo => (0o010_000, None, Vec::new()),
            NodeKind::Socket => (0o140_000, None, Vec::new()),
        };
        let xattrs = metadata.xattrs.iter().map(|(name, value)| (name.to_vec(), value.to_vec()));
        let facts = NodeFacts {
            mode: kind_bits | metadata.permissions,
            owner: (metadata.uid, metadata.gid),
            links: inode_order.links(id),
            time: (metadata.mtime.seconds, metadata.mtime.nanoseconds),
            content,
            device,
            xattrs: xattrs.collect(),
        };
        all.insert(path.to_vec(), facts);
        Ok(())
    });
    walked.unwrap();
    all
}

pub(crate) fn facts_of_image(path: &Path) -> BTreeMap<Vec<u8>, NodeFacts> {
    facts_of(&Image::open(path).unwrap())
}

pub(super) fn facts_of(image: &Image) -> BTreeMap<Vec<u8>, NodeFacts> {
    let mut all = BTreeMap::new();
    for visit in image.walk(b"/").unwrap() {
        let node = match visit {
            WalkEvent::Leaf(node) | WalkEvent::Enter(node) => node,
            WalkEvent::Problem(problem) => panic!("{}", problem.error),
            _ => continue,
        };
        let inode = &node.inode;
        let content = match inode.mode() & 0o170_000 {
            0o100_000 => {
                let mut bytes = vec![0; usize::try_from(inode.size()).unwrap()];
                let count = image.read_at(inode, 0, &mut bytes).unwrap();
                assert_eq!(count, bytes.len());
                bytes
            }
            0o120_000 => image.read_link(inode).unwrap(),
            _ => Vec::new(),
        };
        let xattrs = image.xattrs(inode).unwrap();
        let facts = NodeFacts {
            mode: inode.mode(),
            owner: (inode.uid(), inode.gid()),
            links: inode.nlink(),
            time: (inode.mtime().seconds, inode.mtime().nanoseconds),
            content,
            device: inode.device(),
            xattrs: xattrs.into_iter().map(|xattr| (xattr.name, xattr.value)).collect(),
        };
        let path = node.path.strip_prefix(b"/").unwrap_or(&node.path);
        all.insert(path.to_vec(), facts);
    }
    all
}

pub(super) fn block_size(bits: u8) -> BlockSize {
    BlockSize::from_bits(bits).unwrap()
}

pub(crate) fn options(bits: u8) -> BuildOptions {
    let block_size = block_size(bits);
    BuildOptions {
        block_size,
        pcluster_bytes: block_size.bytes(),
        extent_bytes_max: 1 << 20,
        ..BuildOptions::default()
    }
}

/// Builds as [`build`] does, with the contents that `data` writes.
pub(super) fn build_at(
    path: &Path,
    tree: &Tree,
    options: &BuildOptions,
    observer: &dyn BuildObserver,
    data: WriteData,
) -> Result<BuildReport> {
    options.check()?;
    let (memory, cancel) = (BuildMemory::new(options, tree)?, CancelToken::new());
    let context = BuildContext { options, memory: &memory, observer, cancel: &cancel };
    let outputs = BuildOutputs::open(options, path)?;
    build_with(tree, &context, outputs, data)
}

pub(crate) fn build_here(
    directory: &TempDir,
    tree: &Tree,
    options: &BuildOptions,
    data: WriteData,
) -> std::path::PathBuf {
    let path = directory.path().join("image");
    build_at(&path, tree, options, &NoopObserver, data).unwrap();
    let names: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    path
}

pub(super) fn check_all_kinds(options: &BuildOptions, data: WriteData) {
    check(&all_kinds_tree(), options, data);
}

/// Builds an image of the tree and compares both.
pub(crate) fn check(tree: &Tree, options: &BuildOptions, data: WriteData) {
    let directory = TempDir::new().unwrap();
    let path = build_here(&directory, tree, options, data);
    let (found, wanted) = (facts_of_image(&path), facts_of_tree(tree));
    assert_eq!(found.len(), wanted.len());
    for (path, facts) in &wanted {
        let escaped = path.escape_ascii();
        assert_eq!(found.get(path).expect("a name"), facts, "{escaped} with {options:?}");
    }
    let length = fs::metadata(&path).unwrap().len();
    assert_eq!(length % u64::from(options.block_size.bytes()), 0);
}

#[test]
fn every_kind_of_inode_is_read_back_at_every_block_size() {
    for bits in 9..=16 {
        check_all_kinds(&options(bits), flat_only);
    }
}

#[test]
fn no_option_of_metadata_changes_what_is_read_back() {
    let changes: [fn(&mut BuildOptions); 8] = [
        |options| options.inline_data = false,
        |options| options.force_extended_inodes = true,
        |options| options.xattr_share_above = None,
        |options| options.xattr_share_above = Some(0),
        |options| options.xattr_filter = false,
        |options| {
            options.xattr_prefixes = vec![b"user.app.".to_vec(), b"trusted.overlay.".to_vec()];
        },
        |options| options.superblock_checksum = false,
        |options| options.time = SuperblockTime::Fixed(1_600_000_000),
    ];
    for change in changes {
        for bits in [9, 12] {
            let mut options = options(bits);
            change(&mut options);
            check_all_kinds(&options, flat_only);
        }
    }
}

#[test]
fn files_with_an_index_are_read_back() {
    for bits in [9, 10, 12, 14, 16] {
        for form in [IndexForm::Compact, IndexForm::Full] {
            for inline_pclusters in [false, true] {
                let algorithms = crate::Algorithms {
                    default: 0,
                    methods: vec![ferrofs_codec::Method::Lz4 { max_distance: 65535 }],
                };
                let options = BuildOptions {
                    index: form,
                    inline_pclusters,
                    algorithms: Some(algorithms),
                    ..options(bits)
                };
                check_all_kinds(&options, plain_pclusters);
                check_all_kinds(&options, fragments);
            }
        }
    }
}

#[test]
fn metadata_in_front_of_the_data_changes_nothing_that_is_read() {
    for bits in [9, 12] {
        let lz4 = ferrofs_codec::Method::Lz4 { max_distance: 65535 };
        let algorithms = crate::Algorithms { default: 0, methods: vec![lz4] };
        let plain = BuildOptions { metadata_first: true, ..options(bits) };
        check_all_kinds(&plain, flat_only);
        check_all_kinds(&BuildOptions { data_alignment_blocks: 8, ..plain.clone() }, flat_only);
        let compressed = BuildOptions { algorithms: Some(algorithms), ..plain };
        let inline = BuildOptions { inline_pclusters: true, ..compressed.clone() };
        for (options, data) in [
            (&compressed, plain_pclusters as WriteData),
            (&inline, plain_pclusters),
            (&compressed, fragments),
            (&compressed, crate::write_data::write_data),
        ] {
            check_all_kinds(options, data);
        }
    }
}

#[test]
fn metadata_lies_in_front_of_all_data() {
    let directory = TempDir::new().unwrap();
    let mut tree = all_kinds_tree();
    let marked = [b"marker of data".as_slice(), &vec![7; 100_000]].concat();
    let marked = tree.add(file(&marked)).unwrap();
    tree.link(Tree::ROOT, b"a marked file", marked).unwrap();
    let place = |options: &BuildOptions| {
        let bytes = fs::read(build_here(&directory, &tree, options, flat_only)).unwrap();
        let find =
            |wanted: &[u8]| bytes.windows(wanted.len()).position(|found| found == wanted).unwrap();
        (find(b"child with a long name, number 699"), find(b"marker of data"))
    };
    let (name, data) = place(&options(12));
    assert!(name > data);
    let (name, data) = place(&BuildOptions { metadata_first: true, ..options(12) });
    assert!(name < data && data < 600_000, "{name} {data}");
}

#[test]
fn what_cannot_lie_in_front_of_the_data_is_refused() {
    let changes: [fn(&mut BuildOptions); 3] = [
        |options| options.metabox_pcluster_bytes = Some(4096),
        |options| options.compress_directories = true,
        |options| options.wide = true,
    ];
    for change in changes {
        let lz4 = ferrofs_codec::Method::Lz4 { max_distance: 65535 };
        let algorithms = Some(crate::Algorithms { default: 0, methods: vec![lz4] });
        let mut options = BuildOptions { metadata_first: true, algorithms, ..options(12) };
        options.check().unwrap();
        change(&mut options);
        let error = options.check().unwrap_err();
        assert!(error.to_string().contains("in front of the data cannot be used with"), "{error}");
    }
}

#[test]
fn a_chunk_index_covers_every_byte_and_changes_none() {
    use sha2::{Digest as _, Sha256};

    let directory = TempDir::new().unwrap();
    let mut tree = all_kinds_tree();
    let large: Vec<u8> = (0u32..900_000).flat_map(u32::to_le_bytes).collect();
    let id = tree.add(file(&large)).unwrap();
    tree.link(Tree::ROOT, b"large file", id).unwrap();
    let (image, beside) = (directory.path().join("image"), directory.path().join("index"));
    for metadata_first in [false, true] {
        let built = |chunk_index| {
            let options = BuildOptions { chunk_index, metadata_first, ..options(12) };
            let report =
                build_at(&image, &tree, &options, &NoopObserver, crate::write_data::write_data);
            (report.unwrap(), fs::read(&image).unwrap())
        };
        let (_, plain) = built(None);
        let (report, with_file) = built(Some(ChunkIndexOutput::NewFile(beside.clone())));
        let index = fs::read(&beside).unwrap();
        let (_, embedded) = built(Some(ChunkIndexOutput::Embedded));
        assert!(plain == with_file && embedded == [&plain[..], &index].concat());
        assert_eq!(report.bytes, plain.len() as u64);
        let reported = report.chunk_index.unwrap();
        assert_eq!((reported.bytes, reported.is_embedded), (index.len() as u64, false));
        assert_eq!(reported.sha256, *Sha256::digest(&index));
        let entries = index[32..].chunks(48);
        assert_eq!(entries.len(), plain.len().div_ceil(1 << 20));
        for (entry, chunk) in entries.zip(plain.chunks(1 << 20)) {
            assert_eq!(entry[16..], *Sha256::digest(chunk));
        }
        assert_eq!(facts_of_image(&image), facts_of_tree(&tree));
    }
}

#[test]
fn a_chunk_index_of_an_image_within_a_file_is_refused() {
    let options = BuildOptions {
        chunk_index: Some(ChunkIndexOutput::Embedded),
        output_mode: OutputMode::NewFile { offset: 4096 },
        ..options(12)
    };
    let error = options.check().unwrap_err();
    assert!(error.to_string().contains("write the image to byte 0, not 4096"), "{error}");
}

#[test]
fn the_same_tree_gives_the_same_bytes() {
    let directory = TempDir::new().unwrap();
    let built = || {
        let path = build_here(&directory, &all_kinds_tree(), &options(12), flat_only);
        fs::read(path).unwrap()
    };
    assert!(built() == built());
}

#[test]
fn an_image_at_an_offset_leaves_what_lies_before_it() {
    let directory = TempDir::new().unwrap();
    let placed = |output_mode| BuildOptions { output_mode, ..options(12) };
    let plain =
        fs::read(build_here(&directory, &all_kinds_tree(), &options(12), flat_only)).unwrap();
    let options = placed(OutputMode::NewFile { offset: 1024 });
    let shifted = fs::read(build_here(&directory, &all_kinds_tree(), &options, flat_only)).unwrap();
    assert!(shifted[..1024] == [0; 1024] && shifted[1024..] == plain);
    fs::write(directory.path().join("image"), [9; 2048]).unwrap();
    let options = placed(OutputMode::InPlace { offset: 512 });
    let inside = fs::read(build_here(&directory, &all_kinds_tree(), &options, flat_only)).unwrap();
    assert!(inside[..512] == [9; 512] && inside[512..] == plain);
}

#[test]
fn a_build_that_fails_leaves_what_was_there() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("image");
    fs::write(&path, b"an older image").unwrap();
    let error =
        build_at(&path, &all_kinds_tree(), &options(12), &NoopObserver, failing).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SourceChanged { .. }));
    assert_eq!(fs::read(&path).unwrap(), b"an older image");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_device_that_is_full_is_an_error_with_its_place() {
    let output_mode = OutputMode::InPlace { offset: 0 };
    let error = build_at(
        Path::new("/dev/full"),
        &all_kinds_tree(),
        &BuildOptions { output_mode, ..options(12) },
        &NoopObserver,
        flat_only,
    )
    .unwrap_err();
    assert_eq!(error.path().as_os_str().as_bytes(), b"/dev/full");
    let ErrorKind::Output { source, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(error.offset(), Some(0));
}

#[test]
fn a_device_under_the_images_name_is_not_replaced() {
    let error =
        build_at(Path::new("/dev/full"), &all_kinds_tree(), &options(12), &NoopObserver, flat_only)
            .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidOptions(_)), "{error}");
}

#[test]
fn a_link_is_followed_to_what_it_names() {
    let directory = TempDir::new().unwrap();
    let (real, link) = (directory.path().join("real"), directory.path().join("link"));
    fs::write(&real, b"old").unwrap();
    std::os::unix::fs::symlink("real", &link).unwrap();
    build_at(&link, &all_kinds_tree(), &options(12), &NoopObserver, flat_only).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    Image::open(&real).unwrap();
}

/// Cancels the build at the beginning of a phase.
struct CancellingObserver(BuildPhase, CancelToken);

impl BuildObserver for CancellingObserver {
    fn phase(&self, phase: BuildPhase) {
        if phase == self.0 {
            self.1.cancel();
        }
    }
}

#[test]
fn a_cancelled_build_leaves_nothing() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("image");
    for phase in [BuildPhase::Data, BuildPhase::Metadata] {
        let observer = CancellingObserver(phase, CancelToken::new());
        let error =
            build(&all_kinds_tree(), &options(12), &path, &observer, &observer.1).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Cancelled));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

/// Opens the whole image before it has its name, and accepts it or not.
struct ImageInspector {
    accepts: bool,
    inodes: std::sync::atomic::AtomicUsize,
}

impl BuildObserver for ImageInspector {
    fn inspect(&self, image: &Path, _: Option<&Path>) -> std::result::Result<(), String> {
        let inodes = facts_of_image(image).len();
        self.inodes.store(inodes, std::sync::atomic::Ordering::Relaxed);
        if self.accepts { Ok(()) } else { Err("not as it should be".to_owned()) }
    }
}

#[test]
fn an_image_that_is_not_accepted_gets_no_name() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("image");
    let tree = all_kinds_tree();
    for (accepts, output_mode) in [
        (false, OutputMode::NewFile { offset: 0 }),
        (true, OutputMode::NewFile { offset: 0 }),
        (true, OutputMode::InPlace { offset: 0 }),
        (false, OutputMode::InPlace { offset: 0 }),
    ] {
        let observer = ImageInspector { accepts, inodes: Default::default() };
        let built = build_at(
            &path,
            &tree,
            &BuildOptions { output_mode, ..options(12) },
            &observer,
            flat_only,
        );
        assert!(observer.inodes.into_inner() > 1);
        assert_eq!(built.is_ok(), accepts);
        if let Err(error) = built {
            assert!(matches!(error.kind(), ErrorKind::Rejected(_)), "{error}");
            let in_place = output_mode == OutputMode::InPlace { offset: 0 };
            assert_eq!(path.exists(), in_place);
            assert!(!in_place || Image::open(&path).is_err());
        }
    }
}

#[test]
fn an_empty_tree_is_one_block() {
    let directory = TempDir::new().unwrap();
    let tree = Tree::new(metadata());
    let path = build_here(&directory, &tree, &options(12), flat_only);
    assert_eq!(fs::metadata(&path).unwrap().len(), 4096);
    assert_eq!(facts_of_image(&path).len(), 1);
}

#[test]
fn an_xattr_that_the_format_cannot_hold_is_reported_with_its_path() {
    let mut tree = all_kinds_tree();
    let id = tree.child(Tree::ROOT, b"fifo").unwrap();
    tree.node_mut(id).metadata.xattrs.insert(b"bogus.name".as_slice().into(), Box::default());
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("image");
    let error = build_at(&path, &tree, &options(12), &NoopObserver, flat_only).unwrap_err();
    let wanted = "fifo: the xattr bogus.name has a prefix that EROFS does not support";
    assert_eq!(error.to_string(), wanted);
}

#[test]
fn owners_that_no_compact_inode_holds_are_reported() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("image");
    let options = BuildOptions { force_compact_inodes: true, ..options(12) };
    let error = build_at(&path, &all_kinds_tree(), &options, &NoopObserver, flat_only).unwrap_err();
    assert!(error.path().ends_with("owner-2"), "{error}");
}

#[test]
fn the_report_counts_what_lies_in_the_image() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("image");
    let tree = all_kinds_tree();
    let report = build_at(&path, &tree, &options(12), &NoopObserver, flat_only).unwrap();
    assert_eq!(report.bytes, fs::metadata(&path).unwrap().len());
    assert_eq!(report.inodes, tree.len() as u64);
    assert_eq!(report.blocks * 4096, report.bytes);
    let content: u64 = tree.ids().filter_map(|id| tree.content_bytes(id)).sum();
    assert_eq!(report.content_bytes, content);
}
