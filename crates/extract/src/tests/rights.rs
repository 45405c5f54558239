//! Rights that new entries give: never those of another owner or group, nor more than the caller asked
//! for, at no time; and entries that are replaced, which stay if nothing takes their place.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrofs_image::Xattr;
use rustix::fs::Mode;

use super::completion::{acl, inode_of, make_fifo, mode_of, set_mode};
use super::faults::skip;
use super::fixture::ImageFixture;
use super::staging::WatchedSource;
use super::{extract_with_options, new_folder};
use crate::event::SkippedMetadata;
use crate::host_entry::NewEntry;
use crate::metadata::{
    ACL_ACCESS, CallerId, ForeignAcl, MetadataPolicy, MetadataTarget, NewMetadata,
};
use crate::{ErrorKind, ExistingFiles, ExtractOptions, OwnerPolicy};

/// An image of a file with a mode and an owner.
fn image_of_file(mode: u16, (uid, gid): (u32, u32)) -> ferrofs_image::Image {
    let mut made = ImageFixture::new();
    let file = made.file(0, "file", b"");
    made.set_mode(file, mode);
    made.set_owner(file, uid, gid);
    made.open()
}

fn new_entry<'a>(directory: &'a File, name: &'a [u8]) -> NewEntry<'a> {
    NewEntry {
        directory: directory.as_fd(),
        name,
        existing: ExistingFiles::Replace,
        foreign_acl: ForeignAcl::None,
        is_staged: false,
    }
}

fn names(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// A directory with a set-group-id bit gives its group to new files.
#[test]
fn no_set_id_bit_is_set_for_a_group_that_the_directory_gave() {
    let folder = new_folder();
    let path = folder.path().join("file");
    fs::write(&path, "").unwrap();
    if chown(&path, Some(1000), Some(27)).is_err() {
        return skip("only root can give files away");
    }
    let (file, image) = (File::open(&path).unwrap(), image_of_file(0o6755, (1000, 1000)));
    let target = MetadataTarget::Open(file.as_fd());
    let attributes = NewMetadata {
        inode: &inode_of(&image),
        xattrs: &[],
        mode: 0o6755,
        stat: &target.stat().unwrap(),
        foreign_acl: ForeignAcl::None,
    };
    let (credentials, owners) = (CallerId::of_user(1000), OwnerPolicy::IfRoot);
    let policy = MetadataPolicy { credentials, owners, masked: 0, skip_set_id: false };
    let mut skipped = SkippedMetadata::default();
    let errors = policy.apply(target, attributes, &mut skipped);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(mode_of(&path), 0o4755);
    assert_eq!((skipped.owners, skipped.set_id_bits), (1, 1));
}

#[test]
fn an_acl_brings_no_masked_bits_back() {
    let folder = new_folder();
    let path = folder.path().join("file");
    fs::write(&path, "").unwrap();
    let owner = fs::metadata(&path).map(|found| (found.uid(), found.gid())).unwrap();
    let (file, image) = (File::open(&path).unwrap(), image_of_file(0o740, owner));
    let target = MetadataTarget::Open(file.as_fd());
    let xattrs = [Xattr { name: ACL_ACCESS.as_bytes().to_vec(), value: acl() }];
    let mode_with = |masked| {
        let attributes = NewMetadata {
            inode: &inode_of(&image),
            xattrs: &xattrs,
            mode: 0o740,
            stat: &target.stat().unwrap(),
            foreign_acl: ForeignAcl::None,
        };
        let (credentials, owners) = (CallerId::current(), OwnerPolicy::IfRoot);
        let policy = MetadataPolicy { credentials, owners, masked, skip_set_id: false };
        let mut skipped = SkippedMetadata::default();
        let errors = policy.apply(target, attributes, &mut skipped);
        assert!(errors.is_empty(), "{errors:?}");
        (skipped.xattrs_unsupported == 0).then(|| mode_of(&path))
    };
    let Some(unmasked) = mode_with(0) else { return skip("needs a file system with ACLs") };
    assert_eq!((unmasked, mode_with(0o077)), (0o740, Some(0o700)));
}

#[test]
fn nobody_else_can_open_a_file_under_its_temporary_name() {
    let folder = new_folder();
    let directory = File::open(folder.path()).unwrap();
    let new = new_entry(&directory, b"file").create_named_file(Mode::from_raw_mode(0o666)).unwrap();
    assert_eq!(new.file.metadata().unwrap().mode() & 0o077, 0);
}

#[test]
fn a_destination_without_metadata_of_the_image_keeps_its_own() {
    let mut made = ImageFixture::new();
    made.set_mode(0, 0o555);
    made.set_owner(0, 1000, 1000);
    let directory = made.directory(0, "directory");
    made.file(directory, "file", b"");
    made.set_mode(directory, 0o500);
    let image = made.open();
    for (is_missing, mode) in [(true, 0o700), (false, 0o710)] {
        for workers in [0, 2] {
            let folder = new_folder();
            let tree = folder.path().join("tree");
            if !is_missing {
                fs::create_dir(&tree).unwrap();
                set_mode(&tree, mode);
            }
            let options = ExtractOptions::new().skip_destination_metadata(true);
            let extracted = extract_with_options(&image, &tree, workers, options);
            assert_eq!(extracted.result.unwrap().directories, 2);
            assert!(extracted.failures.is_empty(), "{:?}", extracted.failures);
            assert_eq!(mode_of(&tree), mode);
            let (own, above) = (fs::metadata(&tree).unwrap(), fs::metadata(folder.path()).unwrap());
            assert_eq!(own.uid(), above.uid());
            assert_ne!(own.mtime(), 1_000_000_000);
            assert_eq!(mode_of(&tree.join("directory")), 0o500);
        }
    }
}

/// As on a host that takes `A` and `a` for one name.
#[test]
fn nothing_in_a_new_directory_is_replaced() {
    let mut made = ImageFixture::new();
    let names = ["file", "large"];
    for (name, bytes) in [("file", 100), ("large", 40_000)] {
        made.file(0, name, &vec![b'x'; bytes]);
    }
    for workers in [0, 2] {
        let folder = new_folder();
        let target = folder.path().join("tree");
        let (staged, is_done) = (folder.path().join(".tree.part"), AtomicBool::new(false));
        let image = made.open_as(|bytes| {
            let hook = move || {
                if staged.exists() && !is_done.swap(true, Ordering::Relaxed) {
                    names.iter().for_each(|name| fs::write(staged.join(name), "first").unwrap());
                }
            };
            Arc::new(WatchedSource { bytes, hook })
        });
        let options = ExtractOptions::new().existing(ExistingFiles::Replace);
        let run = extract_with_options(&image, &target, workers, options);
        run.result.unwrap();
        assert_eq!(run.failures.len(), 2, "{:?}", run.failures);
        assert!(run.failures.iter().all(|error| matches!(error.kind(), ErrorKind::Exists)));
        names.iter().for_each(|name| assert_eq!(fs::read(target.join(name)).unwrap(), b"first"));
    }
}

#[test]
fn an_entry_is_replaced_in_one_step_and_leaves_no_temporary_name() {
    let folder = new_folder();
    let path = |name: &str| folder.path().join(name);
    let directory = File::open(folder.path()).unwrap();
    fs::write(path("first"), "first").unwrap();
    fs::write(path("link"), "old").unwrap();
    new_entry(&directory, b"link").create_symlink(b"nowhere").unwrap();
    assert_eq!(fs::read_link(path("link")).unwrap(), Path::new("nowhere"));
    make_fifo(&path("second"));
    // The second time, both are names of one file, which rename(2) leaves alone.
    for _ in 0..2 {
        new_entry(&directory, b"second").create_link(directory.as_fd(), b"first").unwrap();
        assert_eq!(fs::read(path("second")).unwrap(), b"first");
        assert_eq!(names(folder.path()), 3);
    }
    fs::create_dir(path("directory")).unwrap();
    new_entry(&directory, b"directory").create_symlink(b"nowhere").unwrap_err();
    assert_eq!(names(folder.path()), 4);
}
