//! Options that show in the image as a whole: hints, alignments, and where names of xattrs lie.

use std::fs;

use ferrofs_image::Image;
use ferrofs_ondisk::Compat;
use ferrofs_ondisk::DataLayout;
use ferrofs_ondisk::compression::AlgorithmId;
use tempfile::TempDir;

use super::tests::{all_kinds_tree, facts_of_image, facts_of_tree};
use super::*;
use crate::report::NoopObserver;
use crate::test_source::{file, metadata};
use crate::{Algorithms, CompressionHints, Deduplication, Fragments, add_digests};
use ferrofs_codec::{LzmaContexts, Method};

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
fn lines(seed: usize, bytes: usize) -> Vec<u8> {
    let line = |number: usize| format!("line {} of {seed}, and so on\n", number * number % 9973);
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

struct BuiltImage {
    directory: TempDir,
    report: BuildReport,
}

impl BuiltImage {
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
    let built = BuiltImage::of(&tree, &several());
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
        BuiltImage::of(&tree, &BuildOptions { hints: CompressionHints::default(), ..several() });
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
        let built = BuiltImage::of(&tree, &options);
        let one = BuiltImage::of(&tree, &BuildOptions { jobs: Some(1), ..options });
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
            let built = BuiltImage::of(&tree, &BuildOptions { chunk_bytes, ..options.clone() });
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
        let built = BuiltImage::of(&tree, &options);
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
        let built = BuiltImage::of(&all_kinds_tree(), &options);
        let image = built.image();
        let sb = image.superblock();
        assert_eq!(sb.compat.has(Compat::PLAIN_XATTR_PFX), is_plain);
        assert_eq!((sb.xattr_prefix_count, sb.xattr_prefix_start == 0), (2, !is_plain));
    }
    // They alone make a packed inode.
    let mut tree = Tree::new(metadata());
    tree.node_mut(Tree::ROOT).metadata.xattrs.insert((*b"user.app.x").into(), (*b"y").into());
    let built = BuiltImage::of(&tree, &BuildOptions { fragments: Fragments::Tails, ..options });
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
        let built = BuiltImage::of(&tree, &options);
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
