//! How entries are completed: what gets an owner, a mode or a time is the entry that was created,
//! and directories that existed stay as they are until everything in them is written.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferrofs_image::{Image, OpenOptions, WalkEvent, Xattr};
use rustix::fs::{CWD, Mode};

use super::faults::{HookedSource, skip};
use super::fixture::{ImageFixture, snapshot_tree};
use super::{extract_with_options, new_folder};
use crate::event::SkippedMetadata;
use crate::host_entry::NewEntry;
use crate::metadata::{
    ACL_ACCESS, ACL_DEFAULT, CallerId, ForeignAcl, MetadataPolicy, MetadataTarget, NewMetadata,
};
use crate::{ErrorKind, ExistingFiles, ExtractOptions, OwnerPolicy};

pub(super) fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

pub(super) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

pub(super) fn make_fifo(path: &Path) {
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), 0).unwrap();
}

fn image_of_fifo(mode: u16) -> Image {
    let mut made = ImageFixture::new();
    let fifo = made.fifo(0, "fifo");
    made.set_mode(fifo, mode);
    made.open()
}

/// The inode of the only entry of an image.
pub(super) fn inode_of(image: &Image) -> ferrofs_image::Inode {
    let leaf = |event| if let WalkEvent::Leaf(entry) = event { Some(entry.inode) } else { None };
    image.walk(b"/").unwrap().find_map(leaf).unwrap()
}

fn policy(owners: OwnerPolicy) -> MetadataPolicy {
    let credentials = CallerId::current();
    MetadataPolicy { credentials, owners, masked: 0, skip_set_id: false }
}

#[test]
fn an_entry_that_was_swapped_at_once_is_not_taken_for_the_new_one() {
    let folder = new_folder();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("victim"), "precious").unwrap();
    make_fifo(&path("other"));
    let directory = fs::File::open(folder.path()).unwrap();
    let new_entry = NewEntry {
        directory: directory.as_fd(),
        name: b"fifo",
        existing: ExistingFiles::Refuse,
        foreign_acl: ForeignAcl::None,
        is_staged: false,
    };
    let swaps: [&dyn Fn(); 4] = [
        &|| symlink(path("victim"), path("fifo")).unwrap(),
        &|| fs::hard_link(path("victim"), path("fifo")).unwrap(),
        &|| fs::hard_link(path("other"), path("fifo")).unwrap(),
        &|| fs::create_dir(path("fifo")).unwrap(),
    ];
    for swap in swaps {
        make_fifo(&path("fifo"));
        new_entry.pin(rustix::fs::FileType::Fifo, 0).unwrap();
        fs::remove_file(path("fifo")).unwrap();
        let gone = new_entry.pin(rustix::fs::FileType::Fifo, 0).unwrap_err();
        assert!(matches!(gone, ErrorKind::Replaced), "{gone}");
        swap();
        let error = new_entry.pin(rustix::fs::FileType::Fifo, 0).unwrap_err();
        assert!(matches!(error, ErrorKind::Replaced), "{error}");
        fs::remove_file(path("fifo")).or_else(|_| fs::remove_dir(path("fifo"))).unwrap();
    }
}

#[test]
fn an_entry_that_is_swapped_while_it_is_completed_keeps_its_metadata() {
    let folder = new_folder();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("victim"), "precious").unwrap();
    set_mode(&path("victim"), 0o600);
    let before = fs::metadata(path("victim")).unwrap();
    let directory = fs::File::open(folder.path()).unwrap();
    let new_entry = NewEntry {
        directory: directory.as_fd(),
        name: b"fifo",
        existing: ExistingFiles::Refuse,
        foreign_acl: ForeignAcl::None,
        is_staged: false,
    };
    let image = image_of_fifo(0o644);
    let inode = inode_of(&image);
    for is_symlink in [false, true] {
        let pinned = new_entry.create_special(&inode).unwrap().unwrap();
        fs::rename(path("fifo"), path("moved")).unwrap();
        match is_symlink {
            true => symlink(path("victim"), path("fifo")).unwrap(),
            false => fs::hard_link(path("victim"), path("fifo")).unwrap(),
        }
        let attributes = NewMetadata {
            inode: &inode,
            xattrs: &[],
            mode: 0o644,
            stat: &pinned.stat,
            foreign_acl: ForeignAcl::Possible,
        };
        let target = MetadataTarget::Pinned(pinned.fd.as_fd());
        let mut skipped = SkippedMetadata::default();
        let errors = policy(OwnerPolicy::IfRoot).apply(target, attributes, &mut skipped);
        assert!(errors.is_empty(), "{errors:?}");
        let after = fs::metadata(path("victim")).unwrap();
        assert_eq!((after.mode(), after.mtime()), (before.mode(), before.mtime()));
        assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
        let moved = fs::metadata(path("moved")).unwrap();
        assert_eq!((moved.mode(), moved.mtime()), (0o010_644, 1_000_000_001));
        fs::remove_file(path("fifo")).unwrap();
        fs::remove_file(path("moved")).unwrap();
    }
}

/// Another process replaces new FIFOs with another name of a file as fast as it can.
#[test]
fn a_file_that_is_linked_in_place_of_new_entries_is_never_changed() {
    let mut made = ImageFixture::new();
    for number in 0..500 {
        let fifo = made.fifo(0, &format!("{number:03}"));
        made.set_mode(fifo, 0o4755);
    }
    let folder = new_folder();
    let (tree, victim) = (folder.path().join("tree"), folder.path().join("victim"));
    fs::create_dir(&tree).unwrap();
    fs::write(&victim, "precious").unwrap();
    set_mode(&victim, 0o600);
    let before = fs::metadata(&victim).unwrap();
    let is_done = Arc::new(AtomicBool::new(false));
    let swapper = {
        let (is_done, tree, victim) = (Arc::clone(&is_done), tree.clone(), victim.clone());
        let swap = move || {
            let mut number = 0;
            while !is_done.load(Ordering::Relaxed) && number < 500 {
                let path = tree.join(format!("{number:03}"));
                if fs::remove_file(&path).is_ok() {
                    fs::hard_link(&victim, path).ok();
                    number += 1;
                }
            }
        };
        std::thread::Builder::new().spawn(swap).unwrap()
    };
    let options = ExtractOptions::new();
    let extracted = extract_with_options(&made.open(), &tree, 0, options);
    is_done.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    extracted.result.unwrap();
    let is_replaced = |kind: &ErrorKind| {
        matches!(kind, ErrorKind::Replaced | ErrorKind::Exists | ErrorKind::Output { .. })
    };
    assert!(extracted.failures.iter().all(|error| is_replaced(error.kind())));
    let after = fs::metadata(&victim).unwrap();
    assert_eq!((after.mode(), after.mtime()), (before.mode(), before.mtime()));
}

/// An image with a directory of files, whose directories have modes of their own.
fn image_bytes() -> Vec<u8> {
    let mut made = ImageFixture::new();
    let outer = made.directory(0, "outer");
    let inner = made.directory(outer, "inner");
    for number in 0..8 {
        made.file(inner, &format!("{number}"), &vec![b'x'; 20_000]);
    }
    made.set_mode(outer, 0o700);
    made.set_mode(inner, 0o711);
    made.bytes()
}

#[test]
fn directories_that_existed_keep_their_modes_until_they_are_complete() {
    let names = ["", "outer", "outer/inner"];
    for existing in [ExistingFiles::Replace, ExistingFiles::Keep] {
        let folder = new_folder();
        let tree = folder.path().join("tree");
        for name in names {
            fs::create_dir(tree.join(name)).unwrap();
            set_mode(&tree.join(name), 0o775);
        }
        let looked = Arc::new(AtomicU64::new(0));
        for at_read in 0..6 {
            let (hook_tree, seen) = (tree.clone(), Arc::clone(&looked));
            let hook = move || {
                // Only while files are written: the last of them completes its directory.
                if hook_tree.join("outer/inner/7").exists() {
                    return;
                }
                for name in names {
                    assert_eq!(mode_of(&hook_tree.join(name)), 0o775, "{name}");
                }
                seen.fetch_add(1, Ordering::Relaxed);
            };
            let reads = AtomicU64::new(0);
            let source = Arc::new(HookedSource { bytes: image_bytes(), reads, at_read, hook });
            let image = OpenOptions::new().open_sources(source, Vec::new()).unwrap();
            let options = ExtractOptions::new().existing(existing);
            let extracted = extract_with_options(&image, &tree, 0, options);
            extracted.result.unwrap();
            assert!(extracted.failures.is_empty(), "{:?}", extracted.failures);
            assert_eq!(mode_of(&tree.join("outer")), 0o700);
            assert_eq!(mode_of(&tree.join("outer/inner")), 0o711);
            names.iter().for_each(|name| set_mode(&tree.join(name), 0o775));
            (0..8).for_each(|name| {
                fs::remove_file(tree.join(format!("outer/inner/{name}"))).unwrap();
            });
        }
        assert!(looked.load(Ordering::Relaxed) > 0, "it was never looked");
    }
}

/// The entry that nobody may do anything but the owner, who may do everything, and a named user
/// who may read, in the form of the kernel.
pub(super) fn acl() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, u32::MAX),
        (0x02, 4, 12_345),
        (0x04, 0, u32::MAX),
        (0x10, 4, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn entries_inherit_no_acl_from_a_directory_that_existed() {
    let folder = new_folder();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    for name in [ACL_DEFAULT, ACL_ACCESS] {
        if rustix::fs::setxattr(&tree, name, &acl(), flags).is_err() {
            return skip("needs a file system with ACLs");
        }
    }
    let mut made = ImageFixture::new();
    let directory = made.directory(0, "directory");
    let (near, far) = (made.file(0, "file", b"near"), made.file(directory, "file", b"far"));
    made.file(0, "large", &vec![b'x'; 100_000]);
    made.fifo(0, "fifo");
    made.set_mode(near, 0o664);
    made.set_mode(far, 0o604);
    let options = ExtractOptions::new().existing(ExistingFiles::Keep);
    let extracted = extract_with_options(&made.open(), &tree, 2, options);
    extracted.result.unwrap();
    assert!(extracted.failures.is_empty(), "{:?}", extracted.failures);
    let seen = snapshot_tree(&tree);
    let modes = [
        ("", 0o040_755),
        ("file", 0o100_664),
        ("large", 0o100_640),
        ("fifo", 0o010_600),
        ("directory", 0o040_755),
        ("directory/file", 0o100_604),
    ];
    assert_eq!(seen.len(), modes.len());
    for (name, mode) in modes {
        let entry = &seen[Path::new(name)];
        assert_eq!(entry.mode, mode, "{name}: {:o}", entry.mode);
        assert!(entry.xattrs.keys().all(|name| !name.starts_with(b"system.")), "{name}");
    }
}

#[test]
fn set_id_bits_are_left_out_if_the_caller_becomes_the_owner_or_asks_for_it() {
    let mut made = ImageFixture::new();
    for (name, mode) in [("user", 0o4755), ("group", 0o2755), ("plain", 0o755)] {
        let file = made.file(0, name, b"");
        made.set_mode(file, mode);
    }
    let directory = made.directory(0, "directory");
    made.set_mode(directory, 0o2755);
    let image = made.open();
    let is_root = CallerId::current().is_root();
    let default = ExtractOptions::new();
    for (options, keeps, dropped) in [
        (default.clone(), is_root, if is_root { 0 } else { 2 }),
        (default.clone().owners(OwnerPolicy::Caller), false, 2),
        (default.skip_set_id(true), false, 0),
    ] {
        let folder = new_folder();
        let extracted = extract_with_options(&image, folder.path(), 0, options);
        assert_eq!(extracted.result.unwrap().skipped.set_id_bits, dropped);
        let mode = |name| mode_of(&folder.path().join(name));
        assert_eq!(mode("user"), if keeps { 0o4755 } else { 0o755 });
        assert_eq!(mode("group"), if keeps { 0o2755 } else { 0o755 });
        assert_eq!((mode("plain"), mode("directory")), (0o755, 0o2755));
    }
}

#[test]
fn capabilities_are_left_out_if_root_becomes_the_owner_or_the_caller_asks_for_it() {
    let name = b"security.capability".to_vec();
    let xattrs = [Xattr { name, value: vec![1] }];
    let keeps = |uid, owners, skip_set_id| {
        let mut skipped = SkippedMetadata::default();
        let credentials = CallerId::of_user(uid);
        let policy = MetadataPolicy { credentials, owners, masked: 0, skip_set_id };
        (policy.keeps_capabilities(&xattrs, &mut skipped), skipped.capabilities)
    };
    assert_eq!(keeps(0, OwnerPolicy::IfRoot, false), (true, 0));
    assert_eq!(keeps(0, OwnerPolicy::Caller, false), (false, 1));
    assert_eq!(keeps(0, OwnerPolicy::IfRoot, true), (false, 0));
    assert_eq!(keeps(1000, OwnerPolicy::Caller, false), (true, 0));
}

#[test]
fn device_nodes_are_left_out_on_request() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/plain.erofs");
    let folder = new_folder();
    let options = ExtractOptions::new().skip_devices(true);
    let image = Image::open(data).unwrap();
    let extracted = extract_with_options(&image, folder.path(), 2, options);
    assert!(extracted.failures.is_empty());
    assert_eq!(extracted.result.unwrap().skipped.special, 0);
    let mut fifos = 0;
    for (path, entry) in snapshot_tree(folder.path()) {
        let kind = entry.mode & 0o170_000;
        assert!(![0o020_000, 0o060_000].contains(&kind), "{path:?} is a device");
        fifos += usize::from(kind == 0o010_000);
    }
    assert!(fifos > 0);
}
