//! The target of extraction: extracts an image into a directory in memory, and compares what is there with the image, and
//! so with what the tar writer has of it.
//!
//! Input: as [`crate::image_input`] reads it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_extract::{
    ErrorKind, ExistingFiles, ExtractEvent, ExtractOptions, ExtractSummary,
    extract as extract_image,
};
use ferrofs_image::{FileType, Image};

use crate::image_input::{decode, open, problems};
use crate::listing::{self, Contents, Entry, ListedImage, Listing};

/// Longer files are not written, though they may be nothing but a hole: what is read back is read whole.
const FILE_MAX_BYTES: u64 = 4 << 20;

const CAPABILITY: &[u8] = b"security.capability";
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// Entries of an ACL that name a user or a group. Linux gives out others with an ID of all ones, whatever was stored.
const NAMED_ACL_TAGS: [u8; 2] = [2, 8];

/// A directory that is removed with everything below it.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    /// In memory where the host has such a place.
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("ferrofs-fuzz-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                // A fuzzer that was killed had the same process number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => {
                    created.expect("a directory that is new");
                    return Self(path);
                }
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if fs::remove_dir_all(&self.0).is_err() {
            unlock(&self.0);
            drop(fs::remove_dir_all(&self.0));
        }
    }
}

/// Lets the owner into every directory.
fn unlock(path: &Path) {
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    drop(fs::set_permissions(path, all));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            unlock(&entry.path());
        }
    }
}

/// Extracts an image and looks at what is there.
pub fn extract(bytes: &[u8]) {
    let Some(image) = open(&(Arc::new(decode(bytes)) as _), 0) else { return };
    let Some(listed) = listing::of_image(&image) else { return };
    if listed.largest_file > FILE_MAX_BYTES {
        return;
    }
    let folder = Folder::new();
    let is_sound = !listed.has_problems && problems(&image) == 0;
    let mut is_refused = false;
    let options = ExtractOptions::new().existing(ExistingFiles::Refuse).max_threads(Some(1));
    let extracted = extract_image(&image, &folder.0, &options, &mut |event| {
        let ExtractEvent::Failed(error) = event else { return };
        assert!(!error.to_string().is_empty());
        assert!(!matches!(error.kind(), ErrorKind::Panicked), "{error}");
        let of_host = matches!(error.kind(), ErrorKind::Output { .. });
        assert!(!is_sound || of_host, "a sound image fails: {error}");
        is_refused = true;
    });
    match extracted {
        Ok(summary) => {
            let expectation =
                Expectation { is_sound, is_refused, is_root: is_root(&folder.0), summary };
            expectation.check(&image, &listed, &folder.0);
        }
        Err(error) => assert!(!is_sound, "a sound image fails: {error}"),
    }
}

fn is_root(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|metadata| metadata.uid() == 0)
}

/// What an extraction should have left behind.
#[derive(Debug)]
struct Expectation {
    is_sound: bool,
    /// Something was refused, be it by the host.
    is_refused: bool,
    is_root: bool,
    summary: ExtractSummary,
}

impl Expectation {
    fn check(&self, image: &Image, listed: &ListedImage, folder: &Path) {
        let mut found = of_folder(folder);
        let mut wanted = listed.listing.clone();
        // A symlink has no permissions on Linux.
        let is_link = |entry: &&mut Entry| entry.kind == FileType::Symlink;
        for link in wanted.values_mut().chain(found.values_mut()).filter(is_link) {
            link.permissions = 0;
        }
        // Linux stores capabilities without a value, but does not give them out.
        for entry in wanted.values_mut().chain(found.values_mut()) {
            entry.xattrs.retain(|name, value| name != CAPABILITY || !value.is_empty());
            let is_acl = |name: &[u8]| ACLS.contains(&name);
            entry
                .xattrs
                .iter_mut()
                .filter(|(name, _)| is_acl(name))
                .for_each(|(_, acl)| clear_ids(acl));
            if let Some(permissions) = entry.xattrs.get(ACLS[0]).and_then(|acl| mode_of_acl(acl)) {
                entry.permissions = entry.permissions & !0o777 | permissions;
            }
        }
        if !self.is_sound || self.is_refused {
            check_damaged(image, listed, &found);
            return check_files(&wanted, &found);
        }
        if !self.summary.skipped.is_empty() || !self.is_root {
            for entry in wanted.values_mut().chain(found.values_mut()) {
                entry.owners = (0, 0);
                entry.permissions &= 0o777;
                entry.xattrs = BTreeMap::new();
                entry.mtime = (0, 0);
                entry.first = Vec::new();
            }
        }
        let is_special = |entry: &Entry| {
            !matches!(entry.kind, FileType::Regular | FileType::Directory | FileType::Symlink)
        };
        let skipped = self.summary.skipped.special;
        listing::compare(&wanted, &found, |entry| skipped > 0 && is_special(entry));
    }
}

/// Gives the entries of an ACL that need no ID the one that Linux gives out. After 4 bytes of version, an entry has 8:
/// tag, permissions, ID.
fn clear_ids(acl: &mut [u8]) {
    for entry in acl.get_mut(4..).unwrap_or_default().chunks_exact_mut(8) {
        if !NAMED_ACL_TAGS.contains(&entry[0]) {
            entry[4..].fill(0xFF);
        }
    }
}

/// The permissions that Linux gives a file with this ACL, whatever its mode was.
fn mode_of_acl(acl: &[u8]) -> Option<u16> {
    const OWNER: u8 = 1;
    const GROUP: u8 = 4;
    const MASK: u8 = 16;
    const OTHER: u8 = 32;
    let of = |tag: u8| {
        let mut entries = acl.get(4..)?.chunks_exact(8);
        entries.find(|entry| entry[0] == tag).map(|entry| u16::from(entry[2]))
    };
    Some(of(OWNER)? << 6 | of(MASK).or(of(GROUP))? << 3 | of(OTHER)?)
}

/// Every file is whole or absent, whatever failed.
fn check_files(wanted: &Listing, found: &Listing) {
    for (path, entry) in found.iter().filter(|(_, entry)| entry.kind == FileType::Regular) {
        if let Some(twin) = wanted.get(path)
            && twin.kind == FileType::Regular
        {
            let is_whole = entry.size == twin.size && entry.contents == twin.contents;
            assert!(is_whole, "{} is not whole", path.escape_ascii());
        }
    }
}

/// The same for files of which something cannot be read: if it is their contents, they are absent.
fn check_damaged(image: &Image, listed: &ListedImage, found: &Listing) {
    for (path, files) in &listed.damaged {
        let Some(entry) = found.get(path).filter(|entry| entry.kind == FileType::Regular) else {
            continue;
        };
        let mut files = files.iter();
        let is_whole =
            files.any(|file| listing::has_contents(image, file, entry.size, &entry.contents));
        assert!(is_whole, "{} is damaged, and not absent", path.escape_ascii());
    }
}

/// Lists a directory of the host.
fn of_folder(folder: &Path) -> Listing {
    let mut entries = Vec::new();
    let mut left = vec![PathBuf::new()];
    while let Some(path) = left.pop() {
        let full = folder.join(&path);
        let metadata = full.symlink_metadata().expect("an entry that nobody removes");
        if metadata.is_dir() {
            let Ok(names) = fs::read_dir(&full) else { continue };
            left.extend(names.flatten().map(|entry| path.join(entry.file_name())));
        }
        let entry = entry_of(&full, &metadata);
        entries.push((path.as_os_str().as_bytes().to_vec(), metadata.ino(), entry));
    }
    listing::name_first(entries)
}

fn entry_of(path: &Path, metadata: &fs::Metadata) -> Entry {
    let mut contents = Contents::default();
    let file_type = metadata.file_type();
    let (kind, size) = if metadata.is_dir() {
        (FileType::Directory, 0)
    } else if metadata.is_symlink() {
        let target = fs::read_link(path).expect("a symlink");
        contents.add(0, target.as_os_str().as_bytes());
        (FileType::Symlink, metadata.len())
    } else if metadata.is_file() {
        contents.add(0, &fs::read(path).unwrap_or_default());
        (FileType::Regular, metadata.len())
    } else {
        let device = metadata.rdev();
        let kind = match () {
            () if file_type.is_fifo() => FileType::Fifo,
            () if file_type.is_socket() => FileType::Socket,
            () if file_type.is_char_device() => FileType::CharDevice,
            () => FileType::BlockDevice,
        };
        if matches!(kind, FileType::CharDevice | FileType::BlockDevice) {
            contents.device = (rustix::fs::major(device), rustix::fs::minor(device));
        }
        (kind, 0)
    };
    Entry {
        kind,
        permissions: u16::try_from(metadata.mode() & 0o7777).expect("twelve bits"),
        owners: (metadata.uid(), metadata.gid()),
        mtime: (metadata.mtime(), u32::try_from(metadata.mtime_nsec()).unwrap_or(0)),
        size,
        contents,
        xattrs: xattrs(path),
        first: Vec::new(),
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let mut value = vec![0; 64 << 10];
    let count = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    let names = names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let with_value = names.filter_map(|name| {
        let count = rustix::fs::lgetxattr(path, name, &mut value).ok()?;
        Some((name.to_vec(), value[..count].to_vec()))
    });
    with_value.collect()
}

#[cfg(test)]
mod tests {
    use ferrofs_image::WalkEvent;

    use super::*;

    #[test]
    #[should_panic(expected = "is damaged, and not absent")]
    fn a_file_that_is_not_as_the_image_has_it_is_found() {
        let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");
        let image = Image::open(image).expect("a test image");
        let mut listed = listing::of_image(&image).expect("a small image");
        let mut files = image.walk(b"/").expect("a sound image").filter_map(|event| match event {
            WalkEvent::Leaf(node) if node.inode.size() > 0 => Some(node),
            _ => None,
        });
        let node = files
            .find(|node| node.inode.file_type() == FileType::Regular)
            .expect("a file with contents");
        let path = node.path[1..].to_vec();
        let mut found = listed.listing.clone();
        listed.damaged.insert(path.clone(), vec![node.inode]);
        // As the image has it, it may be there.
        check_damaged(&image, &listed, &found);
        found.get_mut(&path).expect("a file").contents = Contents::default();
        check_damaged(&image, &listed, &found);
    }
}
