//! The kernel mounts each image, and sees what we see.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ferrofs_image::{FileType, Image, WalkEntry, WalkEvent};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::golden::digest;
use crate::manifest::{ImageSet, ListedImage, hex, skip};

/// What the kernel, or the library, reports about a path.
#[derive(Debug, PartialEq, Eq)]
struct InodeView {
    mode: u32,
    owner: (u32, u32),
    nlink: u64,
    size: u64,
    mtime: (i64, i64),
    device: Option<(u32, u32)>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    content: String,
}

/// A mount that ends with its value.
struct ErofsMount(PathBuf);

impl Drop for ErofsMount {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).expect("what was mounted can be unmounted");
    }
}

fn mounted(
    set: &ImageSet,
    listed: &ListedImage,
    dir: &Path,
) -> Result<ErofsMount, rustix::io::Errno> {
    let mut options: Vec<String> = listed
        .devices
        .iter()
        .map(|device| format!("device={}", set.dir.join(device).display()))
        .collect();
    if listed.offset != 0 {
        options.push(format!("fsoffset={}", listed.offset));
    }
    let options = std::ffi::CString::new(options.join(",")).unwrap();
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
    mount(set.dir.join(&listed.file), dir, "erofs", flags, options.as_c_str())?;
    Ok(ErofsMount(dir.to_owned()))
}

fn kernel_view(path: &Path) -> InodeView {
    let meta = fs::symlink_metadata(path).unwrap();
    let is_device = meta.mode() & 0o170_000 == 0o020_000 || meta.mode() & 0o170_000 == 0o060_000;
    let content = if meta.is_file() {
        use sha2::Digest;
        hex(&sha2::Sha256::digest(fs::read(path).unwrap()))
    } else if meta.is_symlink() {
        hex(fs::read_link(path).unwrap().as_os_str().as_bytes())
    } else {
        String::new()
    };
    InodeView {
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        nlink: meta.nlink(),
        size: meta.size(),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        device: is_device.then(|| (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()))),
        xattrs: kernel_xattrs(path),
        content,
    }
}

fn kernel_xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0u8; 1 << 16];
    let count = rustix::fs::llistxattr(path, &mut names).unwrap();
    let names = names[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0u8; 1 << 16];
            let text = std::str::from_utf8(name).unwrap();
            let count = rustix::fs::lgetxattr(path, text, &mut value).unwrap();
            value.truncate(count);
            (name.to_vec(), value)
        })
        .collect()
}

fn our_view(image: &Image, node: &WalkEntry) -> InodeView {
    let inode = &node.inode;
    let content = match inode.file_type() {
        FileType::Regular => digest(image, inode).unwrap(),
        FileType::Symlink => hex(&image.read_link(inode).unwrap()),
        _ => String::new(),
    };
    let xattrs = image.xattrs(inode).unwrap().into_iter();
    InodeView {
        mode: u32::from(inode.mode()),
        owner: (inode.uid(), inode.gid()),
        nlink: u64::from(inode.nlink()),
        size: inode.size(),
        mtime: (inode.mtime().seconds, i64::from(inode.mtime().nanoseconds)),
        device: inode.device(),
        xattrs: xattrs.map(|xattr| (xattr.name, xattr.value)).collect(),
        content,
    }
}

/// All paths below `root`, as paths in the image.
fn kernel_paths(root: &Path) -> Vec<Vec<u8>> {
    let mut paths = vec![b"/".to_vec()];
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let inside = path.strip_prefix(root).unwrap().as_os_str().as_bytes();
            paths.push([b"/", inside].concat());
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                dirs.push(path);
            }
        }
    }
    paths.sort();
    paths
}

fn compare(listed: &ListedImage, image: &Image, root: &Path) {
    let mut ours = Vec::new();
    for visit in image.walk(b"/").unwrap() {
        let (WalkEvent::Enter(node) | WalkEvent::Leaf(node)) = visit else { continue };
        let inside = node.path.strip_prefix(b"/").unwrap();
        let path = root.join(std::ffi::OsString::from_vec(inside.to_vec()));
        assert_eq!(our_view(image, &node), kernel_view(&path), "{}: {path:?}", listed.name);
        ours.push(node.path);
    }
    ours.sort();
    assert_eq!(ours, kernel_paths(root), "{}: the same paths", listed.name);
}

fn kernel_has_erofs() -> bool {
    let known = || fs::read_to_string("/proc/filesystems").unwrap_or_default().contains("\terofs");
    known() || std::process::Command::new("modprobe").arg("erofs").status().is_ok_and(|_| known())
}

#[test]
fn the_kernel_sees_the_same_tree() {
    if !rustix::process::geteuid().is_root() || !kernel_has_erofs() {
        return skip("mounting needs root and a kernel with EROFS");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for set in ImageSet::all() {
        for listed in &set.manifest.images {
            let image = set.open(listed);
            let block_bytes = image.superblock().block_size.bytes();
            let mount = match mounted(&set, listed, dir.path()) {
                Ok(mount) => mount,
                Err(error) if u64::from(block_bytes) > rustix::param::page_size() as u64 => {
                    skip(format_args!("{} has blocks of {block_bytes}: {error}", listed.name));
                    continue;
                }
                Err(rustix::io::Errno::PERM) => {
                    return skip("this root may not mount");
                }
                Err(error) => panic!("{}: the kernel refuses it: {error}", listed.name),
            };
            compare(listed, &image, &mount.0);
            compared += 1;
        }
    }
    assert!(compared > 0, "some image was compared");
}
