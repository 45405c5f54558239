//! Known defects of other readers of the format. Each test is one of them.

use std::ops::ControlFlow;
use std::sync::Arc;

use ferrofs_image::{
    ErrorKind, FilePiece, FileType, Image, ImageSource, Nid, OpenOptions, VerifyEvent,
    VerifyOptions,
};

use crate::crafted::{BLOCK, CompactInode, CraftedImage, directory};
use crate::manifest::ImageSet;

fn bytes_of(name: &str) -> Vec<u8> {
    let set = ImageSet::corpus();
    let listed = set.manifest.images.iter().find(|one| one.name == name).unwrap();
    std::fs::read(set.dir.join(&listed.file)).unwrap()
}

fn open(bytes: Vec<u8>) -> Result<Image, ferrofs_image::Error> {
    OpenOptions::new().open_sources(Arc::new(bytes) as Arc<dyn ImageSource>, Vec::new())
}

fn open_unchecked(bytes: Vec<u8>) -> Image {
    let source: Arc<dyn ImageSource> = Arc::new(bytes);
    OpenOptions::new().ignore_checksum(true).open_sources(source, Vec::new()).unwrap()
}

fn kinds(image: &Image) -> Vec<String> {
    let mut kinds = Vec::new();
    image
        .verify(&VerifyOptions::new(), &mut |event| {
            if let VerifyEvent::Problem(problem) = event {
                kinds.push(format!("{:?}", problem.error.kind()));
            }
        })
        .unwrap();
    kinds
}

#[test]
fn a_wrong_superblock_checksum_is_an_error() {
    let mut bytes = bytes_of("plain");
    bytes[1024 + 64] ^= 1;
    let error = open(bytes.clone()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Checksum { .. }), "{error}");
    assert_eq!(error.offset(), Some(1028));
    assert_eq!(kinds(&open_unchecked(bytes)), [""; 0]);
}

/// An archive of such an image could not be read by any program, and Linux lists two names.
#[test]
fn an_xattr_name_with_a_nul_is_a_problem_of_its_file_alone() {
    let mut bytes = bytes_of("plain");
    let entry = bytes.windows(16).position(|bytes| bytes == b"commenta comment").unwrap();
    bytes[entry + 3] = 0;
    assert_eq!(kinds(&open_unchecked(bytes)), ["XattrName"]);
}

/// Linux has no call that could read such an attribute, and an extraction could not set it.
#[test]
fn an_xattr_name_that_is_too_long_with_its_prefix_is_a_problem() {
    let read = |name_bytes: u8| {
        let entry = [&[name_bytes, 1, 0, 0][..], &vec![b'n'; usize::from(name_bytes)]].concat();
        let mut body = [&[0; 12][..], &entry].concat();
        body.resize(body.len().next_multiple_of(4), 0);
        let xattr_count = u16::try_from((body.len() - 12) / 4 + 1).unwrap();
        let mut image = CraftedImage::new(20);
        image.inode(1, CompactInode { xattr_count, ..CompactInode::fifo() }, &body);
        image.inode(0, CompactInode::directory(0, 0), &[]);
        let image = open(image.finish()).unwrap();
        let inode = image.inode(Nid::new(CraftedImage::nid(1))).unwrap();
        image.xattrs(&inode).map(|xattrs| xattrs[0].name.len())
    };
    assert_eq!(read(250).unwrap(), 255);
    assert!(matches!(read(251).unwrap_err().kind(), ErrorKind::XattrName));
}

/// `check` called an image sound from which `extract` could not set an attribute.
#[test]
fn an_xattr_name_that_does_not_fit_its_prefix_is_a_problem() {
    let kinds_with = |prefix: u8, name: &[u8], value: &[u8]| {
        let [name_bytes, value_bytes] = [name, value].map(|of| u8::try_from(of.len()).unwrap());
        let body = [&[0; 12][..], &[name_bytes, prefix, value_bytes, 0], name, value].concat();
        let xattr_count = u16::try_from((body.len() - 12) / 4 + 1).unwrap();
        let mut image = CraftedImage::new(20);
        image.inode(1, CompactInode { xattr_count, ..CompactInode::fifo() }, &body);
        let [root_nid, nid] = [0, 1].map(CraftedImage::nid);
        let root = directory(&[(".", root_nid, 2), ("..", root_nid, 2), ("fifo", nid, 5)]);
        let block = image.data(&root);
        image.inode(0, CompactInode::directory(root.len(), block), &[]);
        kinds(&open(image.finish()).unwrap())
    };
    let (trusted, access_acl, empty_acl) = (4, 2, [2, 0, 0, 0]);
    assert_eq!(kinds_with(trusted, b"name", b""), [""; 0]);
    assert_eq!(kinds_with(trusted, b"", b""), ["XattrName"]);
    assert_eq!(kinds_with(access_acl, b"", &empty_acl), [""; 0]);
    assert_eq!(kinds_with(access_acl, b"name", &empty_acl), ["XattrName"]);
}

/// The list named both, so an extraction ended with the second.
#[test]
fn of_two_xattrs_of_one_name_the_first_counts() {
    let entry = |value: u8| [1, 1, 1, 0, b'n', value, 0, 0];
    let body = [&[0; 12][..], &entry(b'1'), &entry(b'2')].concat();
    let mut image = CraftedImage::new(20);
    image.inode(1, CompactInode { xattr_count: 5, ..CompactInode::fifo() }, &body);
    image.inode(0, CompactInode::directory(0, 0), &[]);
    let image = open(image.finish()).unwrap();
    let inode = image.inode(Nid::new(CraftedImage::nid(1))).unwrap();
    assert_eq!(image.xattr(&inode, b"user.n").unwrap(), Some(b"1".to_vec()));
    let xattrs = image.xattrs(&inode).unwrap();
    let found: Vec<_> = xattrs.iter().map(|xattr| (&*xattr.name, &*xattr.value)).collect();
    assert_eq!(found, [(&b"user.n"[..], &b"1"[..])]);
}

/// An inode of a kilobyte can refer to 255 values of 64 KiB under one name. Extracting an image of such
/// inodes took eight seconds for each mebibyte of it. The second value here is not in the image, so that
/// reading it would fail.
#[test]
fn values_under_a_name_that_came_before_are_not_read() {
    let (first, second) = ([1, 1, 0x88, 0x13, b'n', 0, 0, 0], [1, 1, 0xFF, 0xFF, b'n', 0, 0, 0]);
    let mut entries = [first, second].concat();
    entries.resize(2 * BLOCK, b'v');
    let mut image = CraftedImage::new(20);
    image.xattr_block = image.data(&entries);
    let body = [&[0; 4][..], &[255, 0, 0, 0, 0, 0, 0, 0], &[0; 4], &[2, 0, 0, 0].repeat(254)];
    let body = body.concat();
    image.inode(1, CompactInode { xattr_count: 256, ..CompactInode::fifo() }, &body);
    image.inode(0, CompactInode::directory(0, 0), &[]);
    let image = open(image.finish()).unwrap();
    let inode = image.inode(Nid::new(CraftedImage::nid(1))).unwrap();
    let xattrs = image.xattrs(&inode).unwrap();
    assert_eq!((xattrs.len(), xattrs[0].value.len()), (1, 5000));
    assert_eq!(image.xattrs_bytes(&inode).unwrap(), 5000 + 6);
    assert_eq!(image.xattr(&inode, b"user.n").unwrap().map(|value| value.len()), Some(5000));
    assert_eq!(image.xattr(&inode, b"user.o").unwrap(), None);
}

/// Listing the names of an inode of a kilobyte read 255 values of 64 KiB. The values here are not in the image, so that
/// reading one would fail.
#[test]
fn names_and_lengths_of_attributes_are_found_without_their_values() {
    let mut entries = Vec::new();
    for name in *b"abb" {
        entries.extend([1, 1, 0xFF, 0xFF, name, 0, 0, 0]);
    }
    entries.resize(2 * BLOCK, b'v');
    let mut image = CraftedImage::new(20);
    image.xattr_block = image.data(&entries);
    let shared = [0, 2, 4].map(|id: u8| [id, 0, 0, 0]);
    // A shared one with each of the three entries, and an inline one of the name that came twice.
    let inline = [1, 1, 1, 0, b'b', b'1', 0, 0, 1, 1, 1, 0, b'c', b'1', 0, 0];
    let body = [&[0; 4][..], &[3, 0, 0, 0, 0, 0, 0, 0], shared.as_flattened(), &inline].concat();
    image.inode(1, CompactInode { xattr_count: 8, ..CompactInode::fifo() }, &body);
    image.inode(0, CompactInode::directory(0, 0), &[]);
    let image = open(image.finish()).unwrap();
    let inode = image.inode(Nid::new(CraftedImage::nid(1))).unwrap();
    assert_eq!(image.xattr_names(&inode).unwrap(), [b"user.a", b"user.b", b"user.c"]);
    assert_eq!(image.xattr_length(&inode, b"user.b").unwrap(), Some(65_535));
    assert_eq!(image.xattr_length(&inode, b"user.c").unwrap(), Some(1));
    assert_eq!(image.xattr_length(&inode, b"user.d").unwrap(), None);
    assert!(image.xattr(&inode, b"user.b").is_err() && image.xattrs(&inode).is_err());
}

#[test]
fn an_image_that_is_shorter_than_it_says_is_an_error() {
    let mut bytes = bytes_of("plain");
    bytes.truncate(bytes.len() - 1);
    let found = kinds(&open(bytes).unwrap());
    assert!(found[0].starts_with("Truncated"), "{found:?}");
}

#[test]
fn a_wrong_file_type_in_a_directory_is_an_error() {
    let bytes = bytes_of("inline");
    let image = open(bytes.clone()).unwrap();
    let root = image.root().unwrap();
    let victim = image.read_dir(&root).unwrap().map(Result::unwrap).last().unwrap();
    // A dirent is the nid, the name's offset, and the type.
    let nid = victim.nid.raw().to_le_bytes();
    let at = (1024..bytes.len() - 12).find(|at| bytes[*at..*at + 8] == nid).unwrap();
    for wrong in [6, 200] {
        let mut bytes = bytes.clone();
        assert_ne!(bytes[at + 10], wrong);
        bytes[at + 10] = wrong;
        let found = kinds(&open_unchecked(bytes));
        let is_named = |kind: &String| kind.contains("TypeHint") || kind.contains("DirentType");
        assert!(found.iter().any(is_named), "{found:?}");
    }
}

#[test]
fn a_link_count_that_no_names_explain_is_an_error() {
    let bytes = bytes_of("extended");
    let image = open(bytes.clone()).unwrap();
    let root = image.root().unwrap();
    let files = image.read_dir(&root).unwrap().map(Result::unwrap);
    let file = files.map(|entry| image.inode(entry.nid).unwrap());
    let file = file.into_iter().find(|inode| inode.file_type() == FileType::Regular);
    let Some(file) = file else { panic!("the root has a file") };
    let meta = u64::try_from(image.superblock().meta_offset().unwrap()).unwrap();
    let at = usize::try_from(meta + file.nid().byte_offset().unwrap()).unwrap();
    let mut bytes = bytes;
    bytes[at + 44] = bytes[at + 44].wrapping_add(1);
    let found = kinds(&open_unchecked(bytes));
    assert!(found.iter().any(|kind| kind.contains("LinkCount")), "{found:?}");
}

#[test]
fn a_trailing_hole_is_part_of_the_file() {
    let mut holes = 0;
    for set in ImageSet::all() {
        for listed in &set.manifest.images {
            let image = set.open(listed);
            for visit in image.walk(b"/").unwrap() {
                let ferrofs_image::WalkEvent::Leaf(node) = visit else { continue };
                if node.inode.file_type() != FileType::Regular {
                    continue;
                }
                let mut end = 0;
                let mut ends_in_hole = false;
                image
                    .for_each_piece(&node.inode, |piece| {
                        (end, ends_in_hole) = match piece {
                            FilePiece::Data { offset, bytes } => {
                                (offset + bytes.len() as u64, false)
                            }
                            FilePiece::Hole { offset, length } => (offset + length, true),
                        };
                        Ok::<_, ferrofs_image::Error>(())
                    })
                    .unwrap();
                assert_eq!(end, node.inode.size(), "{}", listed.name);
                holes += u32::from(ends_in_hole);
            }
        }
    }
    assert!(holes > 0, "some image has a file that ends in a hole");
}

#[test]
fn xattrs_without_a_value_do_not_end_the_list() {
    let set = ImageSet::corpus();
    let mut followed = 0;
    for listed in &set.manifest.images {
        let image = set.open(listed);
        for visit in image.walk(b"/").unwrap() {
            let ferrofs_image::WalkEvent::Leaf(node) = visit else { continue };
            let xattrs = image.xattrs(&node.inode).unwrap();
            let empty = xattrs.iter().position(|xattr| xattr.value.is_empty());
            followed += empty.map_or(0, |at| xattrs.len() - at - 1);
        }
    }
    assert!(followed > 0, "some empty xattr is followed by others");
}

#[test]
fn a_flat_device_is_read_from_behind_the_image() {
    let set = ImageSet::corpus();
    let listed = set.manifest.images.iter().find(|one| one.name == "tar-index-flat").unwrap();
    assert!(listed.devices.is_empty());
    let image = set.open(listed);
    assert!(!image.device_slots().is_empty());
    assert_eq!(kinds(&image), [""; 0]);
}

#[test]
fn nanoseconds_are_kept() {
    let set = ImageSet::corpus();
    let listed = set.manifest.images.iter().find(|one| one.name == "extended").unwrap();
    let image = set.open(listed);
    let has_fraction = |visit| match visit {
        ferrofs_image::WalkEvent::Leaf(node) => node.inode.mtime().nanoseconds != 0,
        _ => false,
    };
    assert!(image.walk(b"/").unwrap().any(has_fraction));
}

/// Linux gives out 4,095 bytes at most, and cuts a longer target.
#[test]
fn a_symlink_target_that_linux_would_cut_is_an_error() {
    let link = |bytes: usize| {
        let mut image = CraftedImage::new(2);
        let block = image.data(&vec![b'x'; bytes]);
        let inode =
            CompactInode { mode: 0o120_777, size: bytes, payload: block, ..CompactInode::fifo() };
        image.inode(1, inode, &[]);
        image.inode(0, CompactInode::directory(0, 0), &[]);
        let image = open(image.finish()).unwrap();
        let inode = image.inode(Nid::new(CraftedImage::nid(1))).unwrap();
        image.read_link(&inode)
    };
    assert_eq!(link(4095).unwrap(), vec![b'x'; 4095]);
    assert!(matches!(link(4096).unwrap_err().kind(), ErrorKind::SymlinkTarget(4096)));
}

/// A mount showed them: programs saw a part of the name, or could not read the directory.
#[test]
fn a_name_with_a_slash_or_a_nul_ends_a_listing_with_an_error() {
    for byte in [0, b'/'] {
        let mut bytes = bytes_of("plain");
        let at = bytes.windows(6).position(|part| part == b"b.txtb").unwrap();
        bytes[at + 1] = byte;
        let image = open_unchecked(bytes);
        let root = image.root().unwrap();
        let is_expected = |error: &ferrofs_image::Error| {
            let kind = ferrofs_ondisk::ErrorKind::NameBytes(byte);
            matches!(error.kind(), ErrorKind::Format(found) if *found == kind)
        };
        let mut names = Vec::new();
        let mut add = |entry: &ferrofs_image::DirEntryRef<'_>| {
            names.push(entry.name.to_vec());
            ControlFlow::Continue(())
        };
        let error = image.list(&root, 0, &mut add).unwrap_err();
        assert!(is_expected(&error) && error.nid() == Some(root.nid()), "{error}");
        assert_eq!(names, [&b"."[..], b"..", b"a.txt"]);
        let entries: Vec<_> = image.read_dir(&root).unwrap().collect();
        assert!(entries.len() == 2 && entries[0].as_ref().unwrap().name == b"a.txt"[..].into());
        assert!(is_expected(entries[1].as_ref().unwrap_err()));
    }
}
