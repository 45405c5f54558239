//! Images whose directories lie in the packed inode, and whose inodes lie in a metabox.

use ferrofs_codec::Method;
use ferrofs_ondisk::{Incompat, Nid};
use std::fs;
use std::path::Path;

use ferrofs_image::{Image, WalkEvent};
use tempfile::TempDir;

use super::tests::*;
use super::*;
use crate::test_source::{file, metadata};
use crate::write_data::write_data;
use crate::{Algorithms, Deduplication, Fragments};
use crate::{IndexForm, NoopObserver};

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
