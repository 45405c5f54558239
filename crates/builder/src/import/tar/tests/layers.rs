//! Whiteouts, and several archives that make one tree.

use super::super::{TarImportOptions, WhiteoutPolicy, from_tar_layers};
use super::{ArchiveBuilder, import, layer, listing};
use crate::tree::Tree;

const ROOT: &str = " directory 755 0:0 0.000000000";

fn options(whiteouts: WhiteoutPolicy) -> TarImportOptions {
    TarImportOptions { whiteouts, ..TarImportOptions::default() }
}

fn names(tree: &Tree) -> Vec<String> {
    listing(tree)
        .iter()
        .skip(1)
        .map(|line| line.split(' ').next().unwrap_or("").to_owned())
        .collect()
}

fn applied(layers: Vec<Vec<u8>>) -> Vec<String> {
    let layers = layers.into_iter().map(layer).collect();
    names(&from_tar_layers(layers, &options(WhiteoutPolicy::Apply)).unwrap())
}

#[test]
fn whiteouts_become_those_of_overlayfs() {
    let archive = ArchiveBuilder::new()
        .directory("a/")
        .file("a/.wh.gone", "")
        .file("b/.wh..wh..opq", "")
        .directory("b")
        .end();
    let tree = import(&archive, &options(WhiteoutPolicy::ToOverlay)).unwrap();
    let wanted = [
        ROOT,
        "a directory 644 0:0 0.000000000 trusted.overlay.origin=",
        "a/gone character device 0:0 644 0:0 0.000000000",
        "b directory 644 0:0 0.000000000 trusted.overlay.opaque=y",
    ];
    assert_eq!(listing(&tree), wanted);
}

#[test]
fn whiteouts_are_kept_as_files_unless_told_otherwise() {
    let archive = ArchiveBuilder::new().file("a/.wh.gone", "").file(".wh..wh..opq", "").end();
    let tree = import(&archive, &options(WhiteoutPolicy::Keep)).unwrap();
    assert_eq!(names(&tree), [".wh..wh..opq", "a", "a/.wh.gone"]);
}

#[test]
fn the_order_of_a_whiteout_and_a_new_directory_does_not_matter() {
    let mark = |archive: ArchiveBuilder| archive.file(".wh.a", "");
    let wanted = [
        ROOT,
        "a directory 644 0:0 0.000000000 trusted.overlay.opaque=y",
        "a/new file of 1 bytes, sum 120 644 0:0 0.000000000",
    ];
    let new = |archive: ArchiveBuilder| archive.directory("a").file("a/new", "x");
    for archive in [new(mark(ArchiveBuilder::new())), mark(new(ArchiveBuilder::new()))] {
        let tree = import(&archive.end(), &options(WhiteoutPolicy::ToOverlay)).unwrap();
        assert_eq!(listing(&tree), wanted);
    }
}

#[test]
fn an_applied_whiteout_takes_away_what_lower_layers_have() {
    let lower = ArchiveBuilder::new()
        .file("a/x", "1")
        .file("a/y", "2")
        .file("b/z", "3")
        .file("c", "4")
        .end();
    let upper =
        ArchiveBuilder::new().file("a/.wh.x", "").file(".wh.b", "").file(".wh.not-there", "").end();
    assert_eq!(applied(vec![lower, upper]), ["a", "a/y", "c"]);
}

#[test]
fn an_applied_whiteout_leaves_what_its_own_layer_has() {
    let lower = ArchiveBuilder::new().file("a/x", "1").file("a/deep/y", "2").end();
    for is_first in [true, false] {
        for mark in [".wh.a", "a/.wh..wh..opq"] {
            let mut upper = ArchiveBuilder::new();
            if is_first {
                upper = upper.file(mark, "");
            }
            upper = upper.file("a/deep/new", "3");
            if !is_first {
                upper = upper.file(mark, "");
            }
            let found = applied(vec![lower.clone(), upper.end()]);
            assert_eq!(found, ["a", "a/deep", "a/deep/new"], "{mark} {is_first}");
        }
    }
}

#[test]
fn an_upper_layer_replaces_a_directory_by_a_file_and_back() {
    let directory = ArchiveBuilder::new().file("a/x", "1").end();
    let file = ArchiveBuilder::new().file("a", "1").end();
    let empty = ArchiveBuilder::new().directory("a").end();
    assert_eq!(applied(vec![directory.clone(), file.clone()]), ["a"]);
    assert_eq!(applied(vec![file, empty, directory]), ["a", "a/x"]);
}

#[test]
fn a_hard_link_may_lead_to_a_lower_layer_and_outlive_its_name() {
    let lower = ArchiveBuilder::new().file("a", "1").end();
    let upper = ArchiveBuilder::new().link(b'1', "b", "a").file(".wh.a", "").end();
    assert_eq!(applied(vec![lower, upper]), ["b"]);
}

#[test]
fn bookkeeping_of_aufs_is_left_out() {
    let archive = ArchiveBuilder::new()
        .directory(".wh..wh.plnk")
        .file(".wh..wh.plnk/1.2", "x")
        .file("a", "")
        .end();
    for whiteouts in [WhiteoutPolicy::ToOverlay, WhiteoutPolicy::Apply] {
        assert_eq!(names(&import(&archive, &options(whiteouts)).unwrap()), ["a"]);
    }
}

#[test]
fn strange_whiteouts_are_refused() {
    for (path, wanted) in [
        ("a/.wh.", "\"a/.wh.\" is a whiteout of nothing"),
        (".wh.a/b", "\".wh.a/b\" lies below a whiteout"),
        ("x/.wh...", "\"x/.wh...\" is a whiteout of nothing"),
    ] {
        let archive = ArchiveBuilder::new().file(path, "").end();
        let error = import(&archive, &options(WhiteoutPolicy::ToOverlay)).unwrap_err();
        assert_eq!(error.to_string(), format!("a.tar: byte 0: {wanted}"));
    }
}
