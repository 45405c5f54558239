//! Whiteouts that become marks for overlayfs, in several archives that become one tree: the marks hide nothing of the
//! archives in the same tree.

use super::tests::{ArchiveBuilder, ROOT, layer, listing, options};
use super::{WhiteoutPolicy, from_tar_layers};
use crate::NoopObserver;
use ferrofs_workers::CancelToken;

/// Paths and xattrs of the tree of some archives, the root left out; for another name of a file, which it is.
fn merged(layers: &[Vec<u8>]) -> Vec<String> {
    let layers = layers.iter().cloned().map(layer).collect();
    let options = options(WhiteoutPolicy::ToOverlay);
    let lines =
        listing(&from_tar_layers(layers, &options, &NoopObserver, &CancelToken::new()).unwrap());
    assert_eq!(lines[0], ROOT);
    let shortened = |line: &String| match line.split_once(" 0:0 0.000000000") {
        Some((kind, xattrs)) => format!("{}{xattrs}", kind.split(' ').next().unwrap()),
        None => line.clone(),
    };
    lines[1..].iter().map(shortened).collect()
}

#[test]
fn whiteouts_for_overlayfs_delete_what_lower_layers_have_in_any_order() {
    let lower = ArchiveBuilder::new().file("a/old", "1").file("a/deep/x", "2");
    let lower = lower.file("a/.wh.gone", "").file("b", "3").end();
    for mark in [".wh.a", "a/.wh..wh..opq"] {
        for position in 0..3 {
            let mut upper = ArchiveBuilder::new();
            for step in 0..3 {
                upper = if step == position { upper.file(mark, "") } else { upper };
                upper = match step {
                    0 => upper.directory("a"),
                    1 => upper.file("a/deep/new", "4"),
                    _ => upper,
                };
            }
            let found = merged(&[lower.clone(), upper.end()]);
            let wanted = ["a trusted.overlay.opaque=y", "a/deep", "a/deep/new", "b"];
            assert_eq!(found, wanted, "{mark} {position}");
        }
    }
}

#[test]
fn an_opaque_mark_of_a_lower_layer_deletes_nothing_of_an_upper_one() {
    let lowest = ArchiveBuilder::new().file("a/old", "1").end();
    let middle = ArchiveBuilder::new().file("a/.wh..wh..opq", "").file("a/middle", "2").end();
    let upper = ArchiveBuilder::new().file("a/new", "3").end();
    let wanted = ["a trusted.overlay.opaque=y", "a/middle", "a/new"];
    assert_eq!(merged(&[lowest, middle, upper]), wanted);
}

#[test]
fn an_opaque_mark_for_overlayfs_leaves_hard_links_of_its_own_layer() {
    let lower = ArchiveBuilder::new().file("file", "").directory("d");
    let lower = lower.link(b'1', "d/link", "file").file("d/gone", "");
    let upper = ArchiveBuilder::new().link(b'1', "d/link", "file").file("d/.wh..wh..opq", "");
    let wanted = ["d trusted.overlay.opaque=y", "d/link", "file is d/link"];
    assert_eq!(merged(&[lower.end(), upper.end()]), wanted);
}
