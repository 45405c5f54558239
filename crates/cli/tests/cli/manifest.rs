//! The manifest of tests/data, and the comparison of a tree with it; tests/data/README.md explains
//! its members.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::XattrFlags;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::{data, is_root};

/// The metadata that the test environment can store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    /// All rights of root: owners, devices, and every namespace of attributes.
    pub(crate) is_initial_root: bool,
    has_xattrs: bool,
    has_wide_times: bool,
}

impl Host {
    /// Tests what can be stored in `folder`.
    pub(crate) fn probe(folder: &Path) -> Self {
        let probe = folder.join("probe");
        let file = File::create(&probe).unwrap();
        let set = |name: &str| rustix::fs::fsetxattr(&file, name, b"1", XattrFlags::empty());
        let has_xattrs = set("user.probe").is_ok();
        let is_initial_root = is_root() && has_xattrs && set("trusted.probe").is_ok() && {
            let device = folder.join("device");
            let mode = rustix::fs::Mode::RUSR;
            let kind = rustix::fs::FileType::BlockDevice;
            let made = rustix::fs::mknodat(rustix::fs::CWD, &device, kind, mode, 1);
            made.is_ok_and(|()| fs::remove_file(&device).is_ok())
        };
        let late = UNIX_EPOCH + Duration::from_secs(1 << 33);
        file.set_times(FileTimes::new().set_modified(late)).unwrap();
        let has_wide_times = file.metadata().unwrap().mtime() == 1 << 33;
        fs::remove_file(probe).unwrap();
        Self { is_initial_root, has_xattrs, has_wide_times }
    }

    /// What an ordinary user can store there.
    pub(crate) fn for_ordinary_user(self) -> Self {
        Self { is_initial_root: false, ..self }
    }
}

/// An image of the manifest.
#[derive(Debug)]
pub(crate) struct TestImage {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) devices: Vec<String>,
    pub(crate) offset: u64,
    pub(crate) tree: Vec<Value>,
}

/// All images of the manifest.
pub(crate) fn images() -> Vec<TestImage> {
    let manifest: Value =
        serde_json::from_slice(&fs::read(data("manifest.json")).unwrap()).unwrap();
    let trees = &manifest["trees"];
    let images = manifest["images"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    images
        .map(|image| TestImage {
            name: text(&image["name"]),
            file: text(&image["file"]),
            devices: image["devices"].as_array().unwrap().iter().map(text).collect(),
            offset: image["offset"].as_u64().unwrap(),
            tree: trees[text(&image["tree"])].as_array().unwrap().clone(),
        })
        .collect()
}

/// Compares what lies below `root` with a tree of the manifest; gives the differences.
pub(crate) fn differences(root: &Path, tree: &[Value], host: Host) -> Vec<String> {
    let mut found = Vec::new();
    let mut expected_paths = 0;
    let mut groups: HashMap<String, &Value> = HashMap::new();
    let mut links: HashMap<String, u64> = HashMap::new();
    for entry in tree {
        if let Some(group) = entry["hardlink_group"].as_str() {
            groups.insert(group.to_owned(), entry);
        }
        let inode = entry["same_as"].as_str().map_or(entry, |group| groups[group]);
        let place = below(root, &bytes_of(&entry["path"]));
        let complain = |what: String| format!("{}: {what}", entry["path"]);
        let is_device = matches!(inode["type"].as_str(), Some("chr" | "blk" | "sock"));
        if is_device && !host.is_initial_root && !exists(&place) {
            continue;
        }
        expected_paths += 1;
        match compare(&place, inode, host) {
            Ok(what) => found.extend(what.into_iter().map(complain)),
            // Its directory has the right mode, so not even its owner can enter it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_root() => {}
            Err(error) => found.push(complain(error.to_string())),
        }
        if let (Some(group), Ok(metadata)) =
            (inode["hardlink_group"].as_str(), place.symlink_metadata())
        {
            let first = *links.entry(group.to_owned()).or_insert(metadata.ino());
            if first != metadata.ino() {
                found.push(complain("is not the same file".to_owned()));
            }
        }
    }
    let count = count(root);
    if count != expected_paths {
        found.push(format!("{count} entries instead of {expected_paths}"));
    }
    found
}

/// The name of a field, its expected value, and its actual value.
type Field = (&'static str, Value, Value);

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn compare(place: &Path, inode: &Value, host: Host) -> io::Result<Vec<String>> {
    let metadata = place.symlink_metadata()?;
    let mut fields: Vec<(&str, Value, Value)> =
        vec![("type", inode["type"].clone(), type_of(&metadata).into())];
    let mode = u32::from_str_radix(inode["mode"].as_str().unwrap(), 8).unwrap();
    let mask = if host.is_initial_root { 0o7777 } else { 0o1777 };
    fields.push(("mode", (mode & mask).into(), (metadata.mode() & mask).into()));
    if host.is_initial_root {
        fields.push(("uid", inode["uid"].clone(), metadata.uid().into()));
        fields.push(("gid", inode["gid"].clone(), metadata.gid().into()));
    }
    let seconds = inode["mtime"].as_i64().unwrap();
    if host.has_wide_times || i32::try_from(seconds).is_ok() {
        fields.push(("mtime", seconds.into(), metadata.mtime().into()));
        fields.push(("mtime_nsec", inode["mtime_nsec"].clone(), metadata.mtime_nsec().into()));
    }
    fields.push(("nlink", inode["nlink"].clone(), metadata.nlink().into()));
    fields.extend(contents(place, inode, &metadata)?);
    if host.has_xattrs {
        let (expected, found) = (expected_xattrs(inode, host), xattrs(place, host)?);
        fields.push(("xattrs", format!("{expected:?}").into(), format!("{found:?}").into()));
    }
    // Devices that an ordinary user could not make are names that are missing.
    let is_short_of_names = |field: &str| field == "nlink" && !host.is_initial_root;
    let differ = fields.into_iter().filter(|(field, a, b)| a != b && !is_short_of_names(field));
    Ok(differ.map(|(field, a, b)| format!("{field} is {b} instead of {a}")).collect())
}

/// Size and digest, target, or device number.
fn contents(place: &Path, inode: &Value, metadata: &fs::Metadata) -> io::Result<Vec<Field>> {
    let mut fields: Vec<Field> = Vec::new();
    match inode["type"].as_str().unwrap() {
        "reg" => {
            fields.push(("size", inode["size"].clone(), metadata.len().into()));
            if let Some(digest) = digest(place)? {
                fields.push(("sha256", inode["sha256"].clone(), digest.into()));
            }
        }
        "lnk" => {
            let target = place.read_link()?.into_os_string();
            let same = target.as_bytes() == bytes_of(&inode["target"]);
            fields.push(("target", true.into(), same.into()));
        }
        "chr" | "blk" => {
            let number = metadata.rdev();
            let pair = vec![rustix::fs::major(number), rustix::fs::minor(number)];
            fields.push(("rdev", inode["rdev"].clone(), pair.into()));
        }
        _ => {}
    }
    Ok(fields)
}

fn type_of(metadata: &fs::Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => "dir",
        () if kind.is_symlink() => "lnk",
        () if kind.is_char_device() => "chr",
        () if kind.is_block_device() => "blk",
        () if kind.is_fifo() => "fifo",
        () if kind.is_socket() => "sock",
        () => "reg",
    }
}

fn digest(place: &Path) -> io::Result<Option<String>> {
    match fs::read(place) {
        Ok(bytes) => {
            let digest: [u8; 32] = Sha256::digest(bytes).into();
            Ok(Some(digest.iter().map(|byte| format!("{byte:02x}")).collect()))
        }
        // It has the right mode, so not even its owner can read it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(error),
    }
}

type Xattrs = BTreeMap<String, String>;

fn is_kept(name: &str, host: Host) -> bool {
    host.is_initial_root || name.starts_with("user.") || name.starts_with("system.posix_acl_")
}

fn expected_xattrs(inode: &Value, host: Host) -> Xattrs {
    let Some(xattrs) = inode["xattrs"].as_object() else { return Xattrs::new() };
    let pairs = xattrs.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().into()));
    pairs.filter(|(name, _)| is_kept(name, host)).collect()
}

fn xattrs(place: &Path, host: Host) -> io::Result<Xattrs> {
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(place, &mut names)?;
    let mut xattrs = Xattrs::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let text = String::from_utf8(name.to_vec()).unwrap();
        if is_kept(&text, host) {
            let mut value = vec![0; 1 << 16];
            let length = rustix::fs::lgetxattr(place, name, &mut value)?;
            let digits = value[..length].iter().map(|byte| format!("{byte:02x}")).collect();
            xattrs.insert(text, digits);
        }
    }
    Ok(xattrs)
}

fn bytes_of(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    let Some(digits) = text.strip_prefix("hex:") else { return text.as_bytes().to_vec() };
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn below(root: &Path, path: &[u8]) -> PathBuf {
    match path.strip_prefix(b"/") {
        Some([]) | None => root.to_owned(),
        Some(relative) => root.join(OsStr::from_bytes(relative)),
    }
}

/// Counts the entries below `root`, and `root` itself.
fn count(root: &Path) -> usize {
    let mut count = 1;
    for entry in fs::read_dir(root).into_iter().flatten() {
        let entry = entry.unwrap();
        count += if entry.file_type().unwrap().is_dir() { self::count(&entry.path()) } else { 1 };
    }
    count
}
