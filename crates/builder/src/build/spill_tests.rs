//! Builds whose tree does not fit into memory.

use std::fs;
use std::path::Path;

use ferrofs_codec::Method;
use tempfile::TempDir;

use super::tests::options;
use super::*;
use crate::import::{DirectoryOptions, TarImportOptions, TarSource, from_directory, from_tar};
use crate::report::NoopObserver;
use crate::test_source::{metadata, node};
use crate::tree::NodeKind;
use crate::{Algorithms, Deduplication, Fragments, SpillOptions, SpillStore};

/// Files of a few bytes and of some blocks, many of them equal, in directories of several pages.
fn source() -> TempDir {
    let source = TempDir::new().unwrap();
    for directory in 0..12_u32 {
        let folder = source.path().join(format!("directory {directory}"));
        fs::create_dir(&folder).unwrap();
        for number in 0..150_u32 {
            let bytes = (number as usize * 37) % 9000;
            let seed = if number % 3 == 0 { 0 } else { directory };
            let word = format!("{seed} and {number} ");
            let content = word.repeat(bytes / word.len() + 1);
            let name = folder.join(format!("a file with a long name, number {number}"));
            fs::write(&name, &content.as_bytes()[..bytes]).unwrap();
            if number % 10 == 0 {
                fs::hard_link(&name, source.path().join(format!("link {directory} {number}")))
                    .unwrap();
            }
        }
    }
    source
}

fn store_in(directory: &Path, memory_bytes: u64) -> SpillStore {
    let options = SpillOptions::default().memory_bytes_max(memory_bytes);
    SpillStore::new(options.directory(Some(directory.to_path_buf())))
}

fn forms() -> Vec<BuildOptions> {
    let methods =
        vec![Method::Lz4 { max_distance: 65535 }, Method::Zstd { level: 3, window_log: 16 }];
    let algorithms = Some(Algorithms { default: 0, methods });
    let compressed = BuildOptions { algorithms, ..options(12) };
    vec![
        options(9),
        BuildOptions { chunk_bytes: Some(4096), inline_data: false, ..options(12) },
        compressed.clone(),
        BuildOptions {
            fragments: Fragments::Tails,
            deduplication: Deduplication::On,
            ..compressed.clone()
        },
        BuildOptions {
            fragments: Fragments::All,
            compress_directories: true,
            metabox_pcluster_bytes: Some(8192),
            ..compressed.clone()
        },
        BuildOptions { wide: true, ..compressed },
    ]
}

#[test]
fn an_image_does_not_depend_on_how_much_of_its_tree_is_in_memory() {
    let (source, place) = (source(), TempDir::new().unwrap());
    let temporary = TempDir::new().unwrap();
    for (number, form) in forms().into_iter().enumerate() {
        let image = |memory_bytes| {
            let store = store_in(temporary.path(), memory_bytes);
            let import = DirectoryOptions::default().store(Some(store));
            let cancel = CancelToken::new();
            let tree = from_directory(source.path(), &import, &NoopObserver, &cancel).unwrap();
            let target = place.path().join("image");
            let report = build(&tree, &form, &target, &NoopObserver, &cancel).unwrap();
            let bytes = fs::read(&target).unwrap();
            fs::remove_file(&target).unwrap();
            (bytes, report)
        };
        let (in_memory, report) = image(u64::MAX);
        assert_eq!(report.spilled_bytes, 0);
        let (spilled, report) = image(0);
        assert!(report.spilled_bytes > 100_000, "{number}: {report:?}");
        assert!(report.store_bytes < 400_000, "{number}: {report:?}");
        assert!(in_memory == spilled, "options {number}");
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
    }
}

/// Special files in one directory: 100 bytes each.
fn large_tree(store: &SpillStore) -> Tree {
    let mut tree = Tree::in_store(metadata(), store);
    for number in 0..30_000_u32 {
        let child = tree.add(node(NodeKind::Fifo)).unwrap();
        tree.link(Tree::ROOT, format!("a name of a file, number {number}").as_bytes(), child)
            .unwrap();
    }
    tree
}

#[test]
fn a_temporary_file_that_cannot_be_made_ends_the_build_and_no_image_is_there() {
    let place = TempDir::new().unwrap();
    let target = place.path().join("image");
    let missing = place.path().join("missing");
    // The import has room for the tree, and the build has less.
    let tree = large_tree(&store_in(&missing, u64::MAX));
    let build_options = BuildOptions { memory_bytes: 40 << 20, ..options(12) };
    tree.store().set_memory_max(0);
    let error = build(&tree, &build_options, &target, &NoopObserver, &CancelToken::new());
    let error = error.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Output { .. }), "{error}");
    assert_eq!(error.path(), missing);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn an_import_that_cannot_spill_is_refused_with_the_directory() {
    let source = source();
    let missing = source.path().join("missing");
    let import = DirectoryOptions::default().store(Some(store_in(&missing, 0)));
    let cancel = CancelToken::new();
    let error = from_directory(source.path(), &import, &NoopObserver, &cancel).unwrap_err();
    let wanted = format!("{}: cannot create a temporary file: ", missing.display());
    assert!(error.to_string().starts_with(&wanted), "{error}");
}

/// Cancels a build when its metadata is about to be written.
struct CancelsMetadata(CancelToken);

impl BuildObserver for CancelsMetadata {
    fn phase(&self, phase: BuildPhase) {
        if phase == BuildPhase::Metadata {
            self.0.cancel();
        }
    }
}

#[test]
fn a_build_that_is_cancelled_while_it_spills_leaves_nothing_behind() {
    let (place, temporary) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let tree = large_tree(&store_in(temporary.path(), 0));
    assert!(tree.store().stats().file_bytes > 0);
    let cancel = CancelToken::new();
    let observer = CancelsMetadata(cancel.clone());
    let target = place.path().join("image");
    let error = build(&tree, &options(12), &target, &observer, &cancel).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    drop(tree);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn distinct_xattrs_of_many_entries_are_spilled_and_equal_ones_are_stored_once() {
    let temporary = TempDir::new().unwrap();
    let store = store_in(temporary.path(), 0);
    let mut tree = Tree::in_store(metadata(), &store);
    let with_value = |tree: &mut Tree, number: u32, value: Vec<u8>| {
        let mut child = node(NodeKind::Fifo);
        child.metadata.xattrs.insert(b"user.x".as_slice().into(), value.into());
        let id = tree.add(child).unwrap();
        tree.link(Tree::ROOT, number.to_string().as_bytes(), id).unwrap();
        id
    };
    for number in 0..100 {
        with_value(&mut tree, number, vec![7; 60_000]);
    }
    assert!(tree.store_bytes() < 200_000, "{}", tree.store_bytes());
    for number in 100..200 {
        with_value(&mut tree, number, number.to_string().repeat(20_000).into_bytes());
    }
    assert!(tree.store_bytes() > 6_000_000);
    assert!(store.stats().memory_bytes_peak < 400_000);
    let (_, last) = tree.nodes().last().unwrap();
    assert_eq!(&*last.metadata.xattrs[&b"user.x"[..]], "199".repeat(20_000).as_bytes());
    store.check().unwrap();
}

#[test]
fn an_archive_of_many_entries_is_imported_within_the_memory_of_its_store() {
    let (temporary, place) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let store = store_in(temporary.path(), 1 << 20);
    let tree = large_tree(&SpillStore::new(SpillOptions::default()));
    // A tar of special files: one header each.
    let mut archive = Vec::new();
    for number in 0..tree.len() - 1 {
        let mut header = [0_u8; 512];
        let name = format!("entry-{number}");
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[108..124].copy_from_slice(b"0000000\x000000000\0");
        header[124..148].copy_from_slice(b"00000000000\x0000000000000\0");
        header[156] = b'6';
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&header);
    }
    archive.resize(archive.len() + 1024, 0);
    let source = TarSource::Bytes { name: "a.tar".into(), bytes: archive.into() };
    let import = TarImportOptions::default().store(Some(store.clone()));
    let imported = from_tar(source, &import, &NoopObserver, &CancelToken::new()).unwrap();
    assert_eq!(imported.len(), tree.len());
    let stats = store.stats();
    assert!(stats.memory_bytes_peak <= 1 << 20 && stats.file_bytes > 0, "{stats:?}");
    let target = place.path().join("image");
    build(&imported, &options(12), &target, &NoopObserver, &CancelToken::new()).unwrap();
    assert!(store.stats().memory_bytes_peak <= 1 << 20);
}

/// A tree of so many small files that differ.
fn small_files(count: u32) -> Tree {
    let mut tree = Tree::new(metadata());
    for number in 0..count {
        let name = format!("{number:06}");
        let file = tree.add(crate::test_source::file(name.repeat(20).as_bytes())).unwrap();
        tree.link(Tree::ROOT, name.as_bytes(), file).unwrap();
    }
    tree
}

#[test]
fn the_packed_inode_gets_the_memory_of_the_indexes_of_its_parts() {
    let place = TempDir::new().unwrap();
    // The least memory that a build needs, to 16 KiB.
    let least = |tree: &Tree| {
        let builds = |memory_bytes| {
            let options = BuildOptions { memory_bytes, jobs: Some(1), ..forms()[3].clone() };
            let target = place.path().join("image");
            build(tree, &options, &target, &NoopObserver, &CancelToken::new()).is_ok()
        };
        let (mut low, mut high) = (0_u64, 4096_u64);
        while low + 1 < high {
            let middle = low.midpoint(high);
            if builds(middle << 14) {
                high = middle;
            } else {
                low = middle;
            }
        }
        high << 14
    };
    let (few, many) = (least(&small_files(100)), least(&small_files(8000)));
    assert!(few > 20 << 20, "{few}");
    // Indexes of 8,000 parts take 500 KiB, and all that is left if that is less.
    assert!(many < few + (256 << 10), "{few} {many}");
}
