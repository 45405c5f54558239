//! Archives whose contents stay where they are, and archives without any.

use std::path::Path;

use super::super::{TarContentMode, TarImportOptions, TarSource, from_tar};
use super::{ArchiveBuilder, TestHeader, import, listing};
use crate::import::Compression;
use crate::tree::{DeviceAddress, SourceExtent, Tree};

fn referred() -> TarImportOptions {
    TarImportOptions { contents: TarContentMode::Index, ..TarImportOptions::default() }
}

fn bare() -> TarImportOptions {
    TarImportOptions { contents: TarContentMode::HeadersOnly, ..TarImportOptions::default() }
}

fn from_bytes(bytes: &[u8], options: &TarImportOptions) -> crate::Result<Tree> {
    from_tar(TarSource::Bytes { name: "a.tar".into(), bytes: bytes.into() }, options)
}

fn from_stream(bytes: &[u8], options: &TarImportOptions) -> crate::Result<Tree> {
    let reader = Box::new(std::io::Cursor::new(bytes.to_vec()));
    from_tar(TarSource::Stream { name: "a.tar".into(), reader }, options)
}

fn parts(tree: &Tree, name: &[u8]) -> Vec<SourceExtent> {
    let id = tree.child(Tree::ROOT, name).unwrap();
    tree.node(id).content().unwrap().extents().unwrap().to_vec()
}

#[test]
fn contents_lie_where_the_archive_has_them() {
    let archive =
        ArchiveBuilder::new().file("a", "1").file("b", &"2".repeat(600)).file("c", "").end();
    for tree in [from_bytes(&archive, &referred()), from_stream(&archive, &referred())] {
        let tree = tree.unwrap();
        let place = |offset| Some(DeviceAddress { device: 1, offset });
        assert_eq!(parts(&tree, b"a"), [SourceExtent { start: 0, bytes: 1, place: place(512) }]);
        assert_eq!(parts(&tree, b"b"), [SourceExtent { start: 0, bytes: 600, place: place(1536) }]);
        assert_eq!(parts(&tree, b"c"), []);
        let [device] = tree.devices() else { panic!("{:?}", tree.devices()) };
        assert_eq!(device.bytes, archive.len() as u64);
    }
}

#[test]
fn replaced_files_take_no_device_away() {
    let archive = ArchiveBuilder::new().file("a", "1").file("a", "2").end();
    assert_eq!(from_bytes(&archive, &referred()).unwrap().devices().len(), 1);
}

#[test]
fn what_went_by_cannot_be_read() {
    let archive = ArchiveBuilder::new().file("a", "1").end();
    let tree = from_stream(&archive, &referred()).unwrap();
    let id = tree.child(Tree::ROOT, b"a").unwrap();
    let mut reader = tree.node(id).content().unwrap().source().open().unwrap();
    let error = reader.read_exact_at(0, &mut [0]).unwrap_err();
    assert!(error.to_string().contains("it went by and was not kept"), "{error}");
}

#[test]
fn a_compressed_archive_is_referred_to_only_by_who_says_so() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tar");
    let path = folder.join("pax.tar.gz");
    let error = from_tar(TarSource::Path(path.clone()), &referred()).unwrap_err();
    assert!(error.to_string().contains("no image can refer to it"), "{error}");
    let said = TarImportOptions { compression: Some(Compression::Gzip), ..referred() };
    let tree = from_tar(TarSource::Path(path), &said).unwrap();
    let [device] = tree.devices() else { panic!("{:?}", tree.devices()) };
    assert_eq!(device.bytes % 512, 0);
    let ends = tree.nodes().filter_map(|(_, node)| node.content()?.extents()?.last().copied());
    let ends: Vec<SourceExtent> = ends.collect();
    assert!(ends.len() > 3);
    assert!(ends.iter().filter_map(|part| part.place).all(|place| place.offset < device.bytes));
}

#[test]
fn files_of_an_archive_without_contents_have_sizes_and_zeros() {
    let mut large = TestHeader::new(b'0', b"large", 0);
    large.set(124, b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff");
    let mut archive = Vec::new();
    for block in [TestHeader::new(b'0', b"a", 600), TestHeader::new(b'5', b"d", 0), large] {
        archive.extend_from_slice(&block.sealed());
    }
    // Whoever leaves out contents may leave out the end, too.
    for bytes in [archive.clone(), [archive, vec![0; 1024]].concat()] {
        let tree = import_unlisted(&bytes, &bare());
        let size = |name| {
            let id = tree.child(Tree::ROOT, name).unwrap();
            tree.node(id).content().unwrap().bytes()
        };
        assert_eq!((size(b"a"), size(b"large")), (600, i64::MAX.unsigned_abs()));
        assert_eq!((parts(&tree, b"a"), tree.devices().len()), (Vec::new(), 0));
    }
    let small = TestHeader::new(b'0', b"a", 3).sealed().to_vec();
    let tree = import(&small, &bare()).unwrap();
    assert_eq!(listing(&tree)[1], "a file of 3 bytes, sum 0 644 0:0 0.000000000");
}

/// Files of 8 EiB are not listed byte by byte.
fn import_unlisted(bytes: &[u8], options: &TarImportOptions) -> Tree {
    from_stream(bytes, options).unwrap();
    from_bytes(bytes, options).unwrap()
}
