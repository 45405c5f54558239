//! Options that show in the image as a whole: hints, alignments, and where names of xattrs lie; directories in the packed
//! inode, and inodes in a metabox; and 48BIT: encoded extents, times of compact inodes, holes, far addresses, and no stray
//! byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ferrofs_codec::{LzmaContexts, Method};
use ferrofs_image::{ExtentStorage, Image, WalkEvent};
use ferrofs_ondisk::chunk::{ChunkAddress, ChunkFormat, ChunkTable};
use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_ondisk::zmap::{MAP_HEADER_BYTES, MapHeader, compact_bytes, header_offset};
use ferrofs_ondisk::{Compat, DataLayout, Incompat, Nid};
use tempfile::TempDir;

use super::tests::*;
use super::*;
use crate::data_map::{CompressedData, DataExtent, FileData};
use crate::packed_file::PackedFile;
use crate::test_source::{file, metadata, node, sparse_content};
use crate::tree::{Node, NodeKind, Timestamp};
use crate::write_data::write_data;
use crate::{
    Algorithms, CompressionHints, Deduplication, FragmentSharing, Fragments, IndexForm,
    NoopObserver, SuperblockTime, add_digests,
};

const METHODS: [Method; 5] = [
    Method::Lz4Hc { level: 9, max_distance: 65535 },
    Method::Zstd { level: 3, window_log: 15 },
    Method::Deflate { level: 1 },
    Method::Lzma { level: 1, dictionary_bytes: 65536, contexts: LzmaContexts::PRESET },
    // Of an algorithm that is there already, and with the larger window.
    Method::Zstd { level: 9, window_log: 17 },
];
const HINTS: &[u8] =
    b"0 0$\n16384 1 ^file-(1|4)\n4096 2 ^file-5\n65536 3 ^file-2\n131072 4 ^file-7\n";

fn several() -> BuildOptions {
    BuildOptions {
        algorithms: Some(Algorithms { default: 0, methods: METHODS.to_vec() }),
        hints: CompressionHints::parse(HINTS).unwrap(),
        ..BuildOptions::default()
    }
}

/// Text that every algorithm makes shorter, a little different in each file.
fn lines(variant: usize, bytes: usize) -> Vec<u8> {
    let line = |number: usize| format!("line {} of {variant}, and so on\n", number * number % 9973);
    let mut text: Vec<u8> =
        (0..).flat_map(|number| line(number).into_bytes()).take(bytes).collect();
    text.truncate(bytes);
    text
}

/// Files that the hints name, and some that they do not.
fn texts() -> Tree {
    let mut tree = Tree::new(metadata());
    for number in 0..90 {
        let id = tree.add(file(&lines(number / 2, 3000 + number * 1711))).unwrap();
        tree.link(Tree::ROOT, format!("file-{number}").as_bytes(), id).unwrap();
    }
    tree
}

/// An image that was compared with its tree.
struct CheckedImage {
    directory: TempDir,
    report: BuildReport,
}

impl CheckedImage {
    /// Builds, and compares what is read again; the image has a hidden xattr or not.
    fn of(tree: &Tree, options: &BuildOptions) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("image");
        let report = build(tree, options, &path, &NoopObserver, &CancelToken::new()).unwrap();
        let (found, mut wanted) = (facts_of_image(&path), facts_of_tree(tree));
        for facts in wanted.values_mut() {
            facts.xattrs.retain(|name, _| !name.starts_with(b"erofs."));
        }
        assert_eq!(found, wanted, "{options:?}");
        Self { directory, report }
    }

    fn image(&self) -> Image {
        Image::open(self.directory.path().join("image")).unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.directory.path().join("image")).unwrap()
    }
}

#[test]
fn hints_choose_algorithms_and_sizes_file_by_file() {
    let tree = texts();
    let built = CheckedImage::of(&tree, &several());
    let used: Vec<_> = built.report.by_algorithm.keys().flatten().copied().collect();
    let all = [AlgorithmId::Lz4, AlgorithmId::Lzma, AlgorithmId::Deflate, AlgorithmId::Zstd];
    assert_eq!(used, all);
    let image = built.image();
    assert_eq!(image.compression().zstd_window_log, Some(17));
    // Also of libdeflate, with which mkfs.erofs says 0.
    assert_eq!(image.compression().deflate_window_bits, Some(15));
    let layout = |name: &[u8]| image.resolve(name).unwrap().unwrap().layout();
    assert_eq!(layout(b"/file-20"), DataLayout::FlatInline);
    assert_eq!(layout(b"/file-41"), DataLayout::CompressedCompact);
    // What no hint names is as it would be without hints.
    let unhinted =
        CheckedImage::of(&tree, &BuildOptions { hints: CompressionHints::default(), ..several() });
    assert_eq!(unhinted.report.by_algorithm.keys().flatten().count(), 1);
}

#[test]
fn hints_go_together_with_what_files_share() {
    let tree = texts();
    for (fragments, deduplication, chunk_bytes) in [
        (Fragments::None, Deduplication::On, None),
        (Fragments::Tails, Deduplication::On, None),
        (Fragments::All, Deduplication::On, None),
        (Fragments::Tails, Deduplication::Off, Some(8192)),
    ] {
        let options = BuildOptions {
            fragments,
            deduplication,
            chunk_bytes,
            inline_pclusters: true,
            packed_pcluster_bytes: (fragments != Fragments::None).then_some(32768),
            ..several()
        };
        let built = CheckedImage::of(&tree, &options);
        let one = CheckedImage::of(&tree, &BuildOptions { jobs: Some(1), ..options });
        assert!(built.bytes() == one.bytes());
    }
}

#[test]
fn what_does_not_compress_is_stored_as_it_is_and_counted() {
    let mut state = 1_u64;
    let mut noise = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let noise: Vec<u8> = (0..300_000).map(|_| noise()).collect();
    let mut tree = Tree::new(metadata());
    for (name, bytes) in [(b"noise", &noise), (b"texts", &lines(1, 300_000))] {
        let id = tree.add(file(bytes)).unwrap();
        tree.link(Tree::ROOT, name, id).unwrap();
    }
    for method in METHODS {
        let algorithms = Some(Algorithms { default: 0, methods: vec![method] });
        let options = BuildOptions { algorithms, pcluster_bytes: 65536, ..BuildOptions::default() };
        for (chunk_bytes, layout) in
            [(None, DataLayout::FlatInline), (Some(4096), DataLayout::Chunk)]
        {
            let built = CheckedImage::of(&tree, &BuildOptions { chunk_bytes, ..options.clone() });
            let image = built.image();
            assert_eq!(image.resolve(b"/noise").unwrap().unwrap().layout(), layout);
            let stored: Vec<_> =
                built.report.by_algorithm.values().map(|stored| stored.bytes_in).collect();
            assert_eq!(stored, [300_000, 300_000], "{method:?}");
        }
    }
}

#[test]
fn data_and_images_are_aligned() {
    let tree = texts();
    for (algorithms, chunk_bytes) in
        [(None, None), (None, Some(16384)), (None, Some(4096)), (several().algorithms, None)]
    {
        let options = BuildOptions {
            algorithms,
            chunk_bytes,
            data_alignment_blocks: 4,
            image_alignment_blocks: 64,
            inline_data: false,
            ..BuildOptions::default()
        };
        let built = CheckedImage::of(&tree, &options);
        assert_eq!((built.report.blocks % 64, built.bytes().len() % (64 << 12)), (0, 0));
        let image = built.bytes();
        if options.algorithms.is_none() {
            let starts = |front: &[u8]| image.chunks(4 << 12).any(|unit| unit.starts_with(front));
            for number in 0..90 {
                assert!(starts(&lines(number / 2, 3000)), "{number}");
            }
        }
    }
}

#[test]
fn long_prefixes_lie_where_older_kernels_look() {
    let xattr_prefixes = vec![b"user.app.".to_vec(), b"trusted.overlay.".to_vec()];
    let algorithms = several().algorithms;
    let options = BuildOptions { algorithms, xattr_prefixes, ..BuildOptions::default() };
    for (fragments, plain_xattr_prefixes, is_plain) in [
        (Fragments::None, false, true),
        (Fragments::Tails, false, false),
        (Fragments::All, false, false),
        (Fragments::All, true, true),
    ] {
        let options = BuildOptions { fragments, plain_xattr_prefixes, ..options.clone() };
        let built = CheckedImage::of(&all_kinds_tree(), &options);
        let image = built.image();
        let sb = image.superblock();
        assert_eq!(sb.compat.has(Compat::PLAIN_XATTR_PFX), is_plain);
        assert_eq!((sb.xattr_prefix_count, sb.xattr_prefix_start == 0), (2, !is_plain));
    }
    // They alone make a packed inode.
    let mut tree = Tree::new(metadata());
    tree.node_mut(Tree::ROOT).metadata.xattrs.insert((*b"user.app.x").into(), (*b"y").into());
    let built = CheckedImage::of(&tree, &BuildOptions { fragments: Fragments::Tails, ..options });
    assert!(built.image().superblock().packed.is_some());
}

#[test]
fn digests_are_marked_and_the_root_has_room() {
    for (name, is_listed) in [("erofs.fingerprint.v1", false), ("trusted.erofs.fp", true)] {
        let mut tree = texts();
        add_digests(&mut tree, name.as_bytes(), &CancelToken::new()).unwrap();
        let digest_xattr = Some(name.into());
        let options =
            BuildOptions { digest_xattr, root_xattr_bytes: 1001, ..BuildOptions::default() };
        let built = CheckedImage::of(&tree, &options);
        let image = built.image();
        assert!(image.superblock().compat.has(Compat::ISHARE_XATTRS));
        assert_eq!(image.superblock().digest_prefix, Some(0));
        let inode = image.resolve(b"/file-8").unwrap().unwrap();
        assert_eq!(image.xattrs(&inode).unwrap().len(), usize::from(is_listed));
        // The digest of two equal files is there, whether it is listed or not.
        let node = tree.node(tree.child(Tree::ROOT, b"file-8").unwrap());
        let digest = node.metadata.xattrs.values().last().unwrap();
        assert!(built.bytes().windows(digest.len()).any(|window| *window == **digest));
        let root = image.resolve(b"/").unwrap().unwrap();
        assert!(root.has_xattrs() && image.xattrs(&root).unwrap().is_empty());
    }
}

fn compressed(bits: u8) -> BuildOptions {
    let methods =
        vec![Method::Lz4 { max_distance: 65535 }, Method::Zstd { level: 3, window_log: 16 }];
    let algorithms = Some(Algorithms { default: 0, methods });
    BuildOptions { algorithms, pcluster_bytes: 4 << bits, jobs: Some(2), ..options(bits) }
}

/// With compressed directories, with a metabox, and with both.
fn with_special_files(options: &BuildOptions) -> [BuildOptions; 3] {
    let directories = BuildOptions { compress_directories: true, ..options.clone() };
    let pcluster = Some(2 * options.block_size.bytes());
    let inodes = BuildOptions { metabox_pcluster_bytes: pcluster, ..options.clone() };
    let both = BuildOptions {
        metabox_pcluster_bytes: Some(options.block_size.bytes()),
        metabox_method: Some(1),
        ..directories.clone()
    };
    [directories, inodes, both]
}

/// The nids of everything but the root.
fn nids(path: &Path) -> Vec<Nid> {
    let image = Image::open(path).unwrap();
    let visits = image.walk(b"/").unwrap();
    let nodes = visits.filter_map(|visit| match visit {
        WalkEvent::Leaf(node) | WalkEvent::Enter(node) if node.path != b"/" => {
            Some(node.inode.nid())
        }
        _ => None,
    });
    nodes.collect()
}

#[test]
fn special_files_go_with_every_way_to_store_data() {
    for bits in [9, 12, 14] {
        let changes: [fn(&mut BuildOptions); 6] = [
            |_| (),
            |options| options.inline_pclusters = true,
            |options| options.fragments = Fragments::Tails,
            |options| options.fragments = Fragments::All,
            |options| {
                options.fragments = Fragments::All;
                options.deduplication = Deduplication::On;
            },
            |options| options.index = IndexForm::Full,
        ];
        for change in changes {
            let mut options = compressed(bits);
            change(&mut options);
            for options in with_special_files(&options) {
                check_all_kinds(&options, write_data);
            }
        }
    }
}

#[test]
fn inodes_of_an_uncompressed_image_lie_in_a_metabox_as_it_is() {
    for chunk_bytes in [None, Some(4096)] {
        let metabox_pcluster_bytes = Some(4096);
        check_all_kinds(
            &BuildOptions { chunk_bytes, metabox_pcluster_bytes, ..options(12) },
            write_data,
        );
    }
}

#[test]
fn all_inodes_but_the_root_lie_in_the_metabox() {
    let directory = TempDir::new().unwrap();
    let options = BuildOptions { metabox_pcluster_bytes: Some(4096), ..compressed(12) };
    let path = build_here(&directory, &all_kinds_tree(), &options, write_data);
    let superblock = Image::open(&path).unwrap().superblock().clone();
    assert!(superblock.incompat.has(Incompat::METABOX) && superblock.metabox.is_some());
    assert!(!superblock.root.is_in_metabox());
    let nids = nids(&path);
    assert!(nids.len() > 700 && nids.iter().all(|nid| nid.is_in_metabox()));
    let path = build_here(&directory, &Tree::new(metadata()), &options, write_data);
    let superblock = Image::open(&path).unwrap().superblock().clone();
    assert!(!superblock.incompat.has(Incompat::METABOX) && superblock.metabox.is_none());
}

#[test]
fn a_large_metabox_and_a_large_directory_are_read_back_and_the_same_for_any_number_of_threads() {
    let mut tree = Tree::new(metadata());
    for number in 0..20_000u32 {
        let text = format!("{number} ").repeat(80);
        let child = tree.add(file(text.as_bytes())).unwrap();
        tree.link(Tree::ROOT, format!("file number {number:09}").as_bytes(), child).unwrap();
    }
    let wanted = facts_of_tree(&tree);
    // Tails lie behind the inodes, so that the metabox has several segments.
    let inline = BuildOptions { metabox_pcluster_bytes: Some(4096), ..options(12) };
    let options = with_special_files(&compressed(12)).into_iter().chain([inline]);
    for options in options {
        let directory = TempDir::new().unwrap();
        let mut images = [1, 3].map(|jobs| {
            let options = BuildOptions { jobs: Some(jobs), ..options.clone() };
            let path = build_here(&directory, &tree, &options, write_data);
            assert!(facts_of_image(&path) == wanted, "{options:?}");
            fs::read(path).unwrap()
        });
        let [one, three] = &mut images;
        assert!(one == three, "{options:?}");
    }
}

#[test]
fn fragments_of_directories_are_no_shared_ones() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("image");
    let options = BuildOptions { compress_directories: true, ..compressed(12) };
    let report = build_at(&path, &all_kinds_tree(), &options, &NoopObserver, write_data).unwrap();
    assert!(report.packed_bytes > 0);
    assert_eq!(report.shared_fragment_bytes, 0);
}

/// Lines that compress, noise that does not, and both in turn.
fn mixed(count: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut bytes = Vec::with_capacity(count + 64);
    while bytes.len() < count {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        match bytes.len() / 40_000 % 3 {
            0 => bytes.extend_from_slice(format!("line {:04} of many\n", state >> 54).as_bytes()),
            _ => bytes.extend_from_slice(&state.to_le_bytes()),
        }
    }
    bytes.truncate(count);
    bytes
}

/// A tree of all kinds of inodes, and what is large enough for several extents.
fn large_tree() -> Tree {
    let mut tree = all_kinds_tree();
    let bytes = mixed(700_000);
    let hole = sparse_content("hole", &vec![0; 50_000], Vec::new());
    let nodes = [
        ("text", file(&"the same line again\n".repeat(25_000).into_bytes())),
        ("empty", Node::directory(metadata())),
        ("mixed", file(&bytes)),
        ("mixed-again", file(&[&bytes[100_000..], &bytes[..90_000]].concat())),
        ("noise", file(&bytes[41_000..79_000])),
        ("a-hole", node(NodeKind::File(hole))),
    ];
    for (name, node) in nodes {
        let id = tree.add(node).unwrap();
        tree.link(Tree::ROOT, name.as_bytes(), id).unwrap();
    }
    tree
}

fn wide(bits: u8, method: Option<Method>) -> BuildOptions {
    let algorithms = method.map(|method| Algorithms { default: 0, methods: vec![method] });
    BuildOptions { wide: true, algorithms, jobs: Some(2), ..options(bits) }
}

const LZ4: Method = Method::Lz4 { max_distance: 65535 };
const ZSTD: Method = Method::Zstd { level: 1, window_log: 17 };

/// An image with its bytes.
struct BuiltImage {
    bytes: Vec<u8>,
    image: Image,
}

impl BuiltImage {
    fn of(tree: &Tree, options: &BuildOptions) -> Self {
        let directory = TempDir::new().unwrap();
        let path = build_here(&directory, tree, options, write_data);
        Self { bytes: fs::read(&path).unwrap(), image: Image::open(&path).unwrap() }
    }

    fn inodes(&self) -> Vec<ferrofs_image::Inode> {
        let visits = self.image.walk(b"/").unwrap();
        let inodes = visits.filter_map(|visit| match visit {
            WalkEvent::Leaf(node) | WalkEvent::Enter(node) => Some(node.inode),
            WalkEvent::Problem(problem) => panic!("{}", problem.error),
            _ => None,
        });
        let packed = self.image.superblock().packed;
        inodes.chain(packed.map(|nid| self.image.inode(nid).unwrap())).collect()
    }

    fn inode(&self, path: &str) -> ferrofs_image::Inode {
        self.image.resolve(path.as_bytes()).unwrap().unwrap()
    }

    /// Where the map header lies, and what it says.
    fn map_header(&self, inode: &ferrofs_image::Inode) -> (u64, MapHeader) {
        let at = header_offset(behind(inode)).unwrap();
        let block_size = self.image.superblock().block_size;
        let bytes = &self.bytes[usize::try_from(at).unwrap()..];
        (at, MapHeader::parse(bytes, inode.layout(), block_size).unwrap())
    }

    /// The bytes of every record of encoded extents, file by file.
    fn record_sizes(&self) -> BTreeSet<u64> {
        let compressed = self.inodes().into_iter().filter(|inode| inode.layout().is_compressed());
        let sizes = compressed.filter_map(|inode| match self.map_header(&inode).1 {
            MapHeader::Extents(table) => Some(table.record_bytes()),
            _ => None,
        });
        sizes.collect()
    }

    fn has(&self, bit: u32) -> bool {
        self.image.superblock().incompat.has(bit)
    }

    /// The map header of a file of so many extents, and the entries or records behind it.
    fn index_ranges(&self, inode: &ferrofs_image::Inode, extents: u64) -> [Range<u64>; 2] {
        let (at, header) = self.map_header(inode);
        let end = at + MAP_HEADER_BYTES;
        let entries = match header {
            MapHeader::Extents(table) => {
                let start = table.start(at).unwrap();
                start..table.record_offset(start, extents).unwrap()
            }
            MapHeader::Index(index) => end..end + compact_bytes(at, inode.size(), &index).unwrap(),
            MapHeader::WholeFragment(_) => end..end,
        };
        [at..end, entries]
    }

    /// All bytes that something in the image speaks of.
    fn described(&self) -> Vec<Range<u64>> {
        // Superblock and the record of ZSTD.
        let front = 1024 + u64::from(self.image.superblock().bytes) + 8;
        let mut all: Vec<Range<u64>> = std::iter::once(1024..front).collect();
        for inode in self.inodes() {
            all.push(inode.offset()..behind(&inode));
            let ranges = self.image.file_extents(&inode, 0).unwrap().map(Result::unwrap);
            let ranges: Vec<_> = ranges.collect();
            let in_packed = |storage| storage == ExtentStorage::Fragment;
            let stored = ranges.iter().filter(|range| !in_packed(range.storage));
            all.extend(stored.filter_map(|range| {
                range.location.map(|place| place.offset..place.offset + place.bytes)
            }));
            if inode.layout().is_compressed() {
                all.extend(self.index_ranges(&inode, ranges.len() as u64));
            }
        }
        all
    }
}

/// Where an inode ends with its xattrs.
fn behind(inode: &ferrofs_image::Inode) -> u64 {
    inode.offset() + u64::from(inode.bytes()) + u64::from(inode.xattr_bytes())
}

#[test]
fn wide_images_are_read_back_with_their_times() {
    let tree = large_tree();
    for bits in [9, 12, 14] {
        for omit_dot in [false, true] {
            let options = BuildOptions { omit_dot, ..wide(bits, None) };
            check(&tree, &options, write_data);
        }
        for method in [LZ4, ZSTD] {
            for (fragments, deduplication, inline_pclusters) in [
                (Fragments::None, Deduplication::Off, false),
                (Fragments::None, Deduplication::On, true),
                (Fragments::Tails, Deduplication::On, false),
                (Fragments::All, Deduplication::On, false),
            ] {
                let options = BuildOptions {
                    fragments,
                    deduplication,
                    inline_pclusters,
                    pcluster_bytes: 4 << bits,
                    ..wide(bits, Some(method))
                };
                check(&tree, &options, write_data);
            }
        }
        let chunks = BuildOptions { chunk_bytes: Some(2 << bits), ..wide(bits, None) };
        check(&tree, &chunks, write_data);
    }
}

#[test]
fn encoded_extents_stand_where_they_are_shorter() {
    let tree = large_tree();
    let options = BuildOptions { pcluster_bytes: 64 << 10, ..wide(12, Some(ZSTD)) };
    let built = BuiltImage::of(&tree, &options);
    assert!(built.has(Incompat::BIT48) && built.has(Incompat::COMPR_CFGS));
    assert_eq!(built.record_sizes(), BTreeSet::from([4, 16]));
    let regular = BuildOptions { extent_bytes_max: 64 << 10, ..options.clone() };
    let built = BuiltImage::of(&tree, &regular);
    let (_, header) = built.map_header(&built.inode("/text"));
    let MapHeader::Extents(table) = header else { panic!("{header:?}") };
    assert_eq!((table.record_bytes(), table.lcluster_bytes()), (4, Some(1 << 16)));
    let full = BuildOptions { index: IndexForm::Full, ..options.clone() };
    assert_eq!(BuiltImage::of(&tree, &full).record_sizes(), BTreeSet::new());
    let narrow = BuildOptions { wide: false, ..options };
    let built = BuiltImage::of(&tree, &narrow);
    assert_eq!(built.record_sizes(), BTreeSet::new());
    assert!(!built.has(Incompat::BIT48));
}

#[test]
fn extents_that_start_at_one_place_have_one_length() {
    for fragments in [Fragments::None, Fragments::Tails, Fragments::All] {
        let (deduplication, pcluster_bytes) = (Deduplication::On, 64 << 10);
        let options =
            BuildOptions { fragments, deduplication, pcluster_bytes, ..wide(12, Some(LZ4)) };
        let built = BuiltImage::of(&large_tree(), &options);
        let mut lengths = BTreeMap::new();
        let mut shared = 0;
        for inode in built.inodes() {
            for range in built.image.file_extents(&inode, 0).unwrap().map(Result::unwrap) {
                let Some(place) =
                    range.location.filter(|_| range.storage == ExtentStorage::Cluster)
                else {
                    continue;
                };
                let before = lengths.insert(place.offset, place.bytes);
                shared += u32::from(before.is_some());
                assert!(before.is_none_or(|bytes| bytes == place.bytes), "{place:?}, {before:?}");
            }
        }
        assert!(shared > 10, "{shared}");
    }
}

#[test]
fn a_hole_has_no_data_and_a_directory_no_entry_for_itself() {
    let options = BuildOptions { omit_dot: true, ..wide(12, None) };
    let built = BuiltImage::of(&large_tree(), &options);
    let hole = built.inode("/a-hole");
    assert_eq!((hole.layout(), hole.bytes()), (DataLayout::FlatPlain, 32));
    let ranges: Vec<_> = built.image.file_extents(&hole, 0).unwrap().map(Result::unwrap).collect();
    assert_eq!((ranges.len(), ranges[0].storage), (1, ExtentStorage::Hole));
    // An entry has 12 bytes, and its name.
    assert_eq!(built.inode("/empty").size(), 12 + 2);
    let with_dots = BuiltImage::of(&large_tree(), &wide(12, None));
    assert_eq!(with_dots.inode("/empty").size(), 2 * 12 + 3);
}

#[test]
fn files_of_zeros_are_stored_without_data_whatever_holes_the_host_reports() {
    let image = |ranges: &[Range<u64>]| {
        let mut tree = Tree::new(metadata());
        let content = sparse_content("zeros", &vec![0; 200_000], ranges.to_vec());
        let id = tree.add(node(NodeKind::File(content))).unwrap();
        tree.link(Tree::ROOT, b"zeros", id).unwrap();
        let built = BuiltImage::of(&tree, &wide(12, None));
        let zeros = built.inode("/zeros");
        let extents = built.image.file_extents(&zeros, 0).unwrap().map(Result::unwrap);
        assert!(extents.map(|extent| extent.storage).eq([ExtentStorage::Hole]), "{ranges:?}");
        built.bytes
    };
    let sparse = image(&[]);
    let everything = 0..200_000;
    assert_eq!(image(&[everything]), sparse);
    assert_eq!(image(&[4096..8192, 100_000..200_000]), sparse);
}

/// format.md of the reference's defects, 11: its 48-bit images hold bytes of the heap, and lose nanoseconds
/// and times before 1970 and after 2106.
#[test]
fn no_byte_is_left_to_chance() {
    let mut tree = Tree::new(metadata());
    let bytes = mixed(300_000);
    let times = [
        (-(1 << 31), 1),
        (-1, 999_999_999),
        (0, 0),
        (7, 5),
        (7, 6),
        (u32::MAX.into(), 5),
        (1 << 33, 5),
    ];
    for (number, (seconds, nanoseconds)) in times.into_iter().enumerate() {
        let mut node = file(&bytes[number * 7_001..]);
        node.metadata.mtime = Timestamp { seconds, nanoseconds };
        let id = tree.add(node).unwrap();
        tree.link(Tree::ROOT, format!("file-{number}").as_bytes(), id).unwrap();
    }
    for fragments in [Fragments::None, Fragments::Tails] {
        let pcluster_bytes = 64 << 10;
        let options = BuildOptions { fragments, pcluster_bytes, ..wide(12, Some(ZSTD)) };
        let built = BuiltImage::of(&tree, &options);
        assert!(built.bytes == BuiltImage::of(&tree, &options).bytes);
        let more_jobs = BuildOptions { jobs: Some(5), ..options };
        assert!(built.bytes == BuiltImage::of(&tree, &more_jobs).bytes);
        assert!(built.record_sizes().contains(&16));
        let mut rest = built.bytes.clone();
        for range in built.described() {
            let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
            rest[range].fill(0);
        }
        let stray = rest.iter().position(|byte| *byte != 0);
        assert_eq!(stray, None);
        for (number, (seconds, nanoseconds)) in times.into_iter().enumerate() {
            let found = built.inode(&format!("/file-{number}")).mtime();
            assert_eq!((found.seconds, found.nanoseconds), (seconds, nanoseconds));
        }
    }
}

#[test]
fn compact_inodes_differ_by_seconds_only() {
    let mut tree = Tree::new(metadata());
    for (number, (seconds, nanoseconds)) in [
        (5, 7),
        (6, 7),
        (5 + i64::from(u32::MAX), 7),
        (6 + i64::from(u32::MAX), 7),
        (5, 8),
        (-1, 7),
    ]
    .into_iter()
    .enumerate()
    {
        let mut node = node(NodeKind::Fifo);
        node.metadata.mtime = Timestamp { seconds, nanoseconds };
        let id = tree.add(node).unwrap();
        tree.link(Tree::ROOT, number.to_string().as_bytes(), id).unwrap();
    }
    let options = BuildOptions { time: SuperblockTime::Fixed(1 << 32), ..wide(12, None) };
    let built = BuiltImage::of(&tree, &options);
    let lengths: Vec<u8> =
        (0..6).map(|number| built.inode(&format!("/{number}")).bytes()).collect();
    assert_eq!(lengths, [32, 32, 32, 64, 64, 64]);
    let superblock = built.image.superblock();
    assert_eq!(superblock.epoch + i64::from(superblock.build_time), 1 << 32);
}

/// Blocks of 512 bytes behind the first 2^32, and what lies there.
const FAR: u64 = (1 << 32) + 5;
const FAR_BYTES: [u8; 2048] = [b'f'; 2048];

/// A data path that says that every file lies far behind.
fn far_away(
    tree: &Tree,
    context: &BuildContext<'_>,
    _packed_prefix: &[u8],
    _sinks: DataSinks<'_>,
) -> Result<(DataMap, PackedFile)> {
    let address = context.options.block_size.offset_of(FAR).unwrap();
    let forms = [
        FileData::Flat { start_block: Some(FAR), tail: Box::default() },
        FileData::Compressed(CompressedData {
            extents: vec![DataExtent {
                bytes: 2048,
                algorithm: None,
                address,
                pcluster_bytes: 2048,
                partial: false,
            }],
            ..CompressedData::default()
        }),
        FileData::Chunks {
            format: ChunkFormat::new(2, ChunkTable::WideIndexes).unwrap(),
            places: vec![Some(ChunkAddress { device: 0, block: FAR })],
        },
    ];
    let mut forms = forms.into_iter();
    let files = tree.nodes().map(|(_, node)| node.content().and_then(|_| forms.next()));
    Ok((
        DataMap::of_files(&files.collect::<Vec<_>>(), None),
        PackedFile::new(&[], FragmentSharing::Parts, tree.store()),
    ))
}

#[test]
fn addresses_have_48_bits_where_they_need_them_also_without_the_option() {
    let directory = TempDir::new().unwrap();
    let mut tree = Tree::new(metadata());
    for name in ["flat", "compressed", "in chunks"] {
        let id = tree.add(file(&FAR_BYTES)).unwrap();
        tree.link(Tree::ROOT, name.as_bytes(), id).unwrap();
    }
    let path = build_here(&directory, &tree, &options(9), far_away);
    let bytes = OpenOptions::new().write(true).open(&path).unwrap();
    bytes.write_all_at(&FAR_BYTES, FAR * 512).unwrap();
    let (found, wanted) = (facts_of_image(&path), facts_of_tree(&tree));
    assert_eq!(found, wanted);
    let image = Image::open(&path).unwrap();
    assert!(image.superblock().incompat.has(Incompat::BIT48));
}
