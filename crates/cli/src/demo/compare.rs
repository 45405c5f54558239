//! What an image must contain (by a manifest, by its source directory, or by a direct read), and
//! the comparison of a mount with that: every entry, every field, every byte, on several threads.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ferrofs_image::{FileType, Image, Timestamp, WalkEvent};
use ferrofs_workers::jobs::OrderedPipeline;
use serde_json::Value;

use super::entry::{CurrentUser, EntryMetadata, FileEntry, below, digest, digest_of_device};
use crate::output::escape;
use crate::progress::{ProgressDisplay, WorkAmount};
use crate::signals::StopRequest;

/// The built-in image.
pub(super) const IMAGE: &[u8] = include_bytes!("../../data/demo.erofs");
/// The trees of the test images; tests/data/README.md explains the members.
const MANIFEST: &str = include_str!("../../data/manifest.json");

#[derive(Clone, Debug)]
pub(super) enum FileTree {
    /// That of the built-in image, by the manifest.
    Manifest,
    Directory(PathBuf),
    Image(Image),
}

/// A path of a tree, before its contents are read.
enum TreePath {
    Entry(Box<FileEntry>),
    Path(Vec<u8>),
}

pub(super) struct TreeComparer<'a> {
    pub(super) expected: &'a FileTree,
    pub(super) found: &'a FileTree,
    pub(super) user: CurrentUser,
    pub(super) threads: usize,
    pub(super) stop: &'a StopRequest,
}

/// What a comparison found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CompareSummary {
    pub(super) done: WorkAmount,
    pub(super) differences: u64,
    /// Entries that the user may not read.
    pub(super) unreadable: u64,
}

#[derive(Default)]
struct ComparedEntry {
    path: Vec<u8>,
    bytes: u64,
    is_missing: bool,
    is_unreadable: bool,
    differences: Vec<String>,
    /// The keys of its hard links: the expected one, and the one that was found.
    links: Option<(Vec<u8>, Option<Vec<u8>>)>,
}

impl FileTree {
    /// The name for messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Manifest => "its list of digests".to_owned(),
            Self::Directory(path) => escape(path.as_os_str().as_bytes()),
            Self::Image(_) => "a second, direct read of the image".to_owned(),
        }
    }

    /// Every path, in no order.
    fn paths(
        &self,
        user: CurrentUser,
    ) -> anyhow::Result<Box<dyn Iterator<Item = anyhow::Result<TreePath>> + '_>> {
        Ok(match self {
            Self::Manifest => {
                let entries = manifest_entries(user)?.into_iter();
                Box::new(entries.map(|entry| Ok(TreePath::Entry(Box::new(entry)))))
            }
            Self::Directory(root) => Box::new(host_paths(root)),
            Self::Image(image) => Box::new(image.walk(b"/")?.filter_map(|event| match event {
                WalkEvent::Enter(node) | WalkEvent::Leaf(node) => {
                    Some(Ok(TreePath::Path(node.path)))
                }
                WalkEvent::Leave(_) => None,
                WalkEvent::Problem(problem) => {
                    Some(Err(anyhow!("{}: {}", escape(&problem.path), problem.error)))
                }
            })),
        })
    }

    /// Looks a path up and reads its entry.
    fn find(
        &self,
        path: &[u8],
        user: CurrentUser,
        stop: &StopRequest,
    ) -> anyhow::Result<Option<FileEntry>> {
        match self {
            Self::Manifest => Ok(None),
            Self::Directory(root) => match FileEntry::of_host(root, path, user, stop) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                entry => Ok(Some(entry?)),
            },
            Self::Image(image) => {
                let Some(inode) = image.resolve(path)? else { return Ok(None) };
                FileEntry::of_image(image, path, &inode, user, stop).map(Some)
            }
        }
    }
}

impl TreeComparer<'_> {
    /// Compares everything, and prints each difference on standard error.
    ///
    /// # Errors
    /// The expected tree cannot be read, or a signal arrived.
    pub(super) fn run(&self, progress: &mut ProgressDisplay) -> anyhow::Result<CompareSummary> {
        let mut summary = CompareSummary::default();
        let (mut missing, mut links) = (0, HashMap::new());
        OrderedPipeline::new().max_threads(self.threads).run(
            self.expected.paths(self.user)?,
            || (),
            |(), path| {
                self.stop.check()?;
                self.compare(path?)
            },
            |mut entry| {
                if let Some((expected, found)) = entry.links
                    && *links.entry(expected).or_insert_with(|| found.clone()) != found
                {
                    entry.differences.push("is not the same file as its other names".to_owned());
                }
                for what in &entry.differences {
                    progress.print_path_message(&entry.path, what);
                }
                missing += u64::from(entry.is_missing);
                summary.differences += entry.differences.len() as u64;
                summary.unreadable += u64::from(entry.is_unreadable);
                summary.done.entries += 1;
                summary.done.bytes += entry.bytes;
                progress.update(summary.done);
                Ok(())
            },
        )?;
        // Every expected path was looked up, so further paths do not belong there.
        let mut count = 0u64;
        for path in self.found.paths(self.user)? {
            self.stop.check()?;
            path?;
            count += 1;
        }
        let extra = count.saturating_sub(summary.done.entries - missing);
        if extra > 0 {
            summary.differences += extra;
            progress.print_path_message(b"/", format_args!("{extra} unexpected entries"));
        }
        Ok(summary)
    }

    fn compare(&self, path: TreePath) -> anyhow::Result<ComparedEntry> {
        let mut compared = ComparedEntry::default();
        let expected = match path {
            TreePath::Entry(entry) => *entry,
            TreePath::Path(path) => match self.expected.find(&path, self.user, self.stop) {
                Err(error) if self.is_denied(&error) => {
                    return Ok(ComparedEntry { is_unreadable: true, ..compared });
                }
                found => found
                    .and_then(|entry| entry.context("is missing"))
                    .with_context(|| escape(&path))?,
            },
        };
        (compared.path, compared.bytes) = (expected.path.clone(), expected.bytes);
        match self.found.find(&expected.path, self.user, self.stop) {
            Ok(Some(found)) => {
                let is_unknown = |entry: &FileEntry| entry.fields.get("contents") == Some(&None);
                compared.is_unreadable = is_unknown(&expected) || is_unknown(&found);
                let has_links = !matches!(self.expected, FileTree::Directory(_));
                compared.differences = differences(&expected, &found, has_links);
                compared.links = expected.link_key.map(|key| (key, found.link_key));
            }
            Ok(None) => {
                compared.is_missing = true;
                compared.differences.push("is missing".to_owned());
            }
            Err(error) if self.is_denied(&error) => compared.is_unreadable = true,
            Err(error) => {
                self.stop.check()?;
                compared.differences.push(format!("cannot be read: {error:#}"));
            }
        }
        Ok(compared)
    }

    fn is_denied(&self, error: &anyhow::Error) -> bool {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        kind == Some(io::ErrorKind::PermissionDenied) && !self.user.is_initial_root()
    }
}

/// The known fields that differ. A directory of the host counts links in its own way.
fn differences(expected: &FileEntry, found: &FileEntry, has_links: bool) -> Vec<String> {
    let names: BTreeSet<_> = expected.fields.keys().chain(found.fields.keys()).collect();
    let mut differences = Vec::new();
    for name in names.into_iter().filter(|name| has_links || *name != "link count") {
        let (Some(expected), Some(found)) = (known(expected, name), known(found, name)) else {
            continue;
        };
        if expected != found {
            differences.push(match name.as_str() {
                "contents" => "has different contents".to_owned(),
                name => format!("the {name} is {found}, not {expected}"),
            });
        }
    }
    differences
}

/// The value of a field, "none" for a missing field; `None` if it is not known.
fn known<'e>(entry: &'e FileEntry, name: &str) -> Option<&'e str> {
    entry.fields.get(name).map_or(Some("none"), Option::as_deref)
}

/// Every path below `root` in no order, but for those in directories that the user may not list.
fn host_paths(root: &Path) -> impl Iterator<Item = anyhow::Result<TreePath>> {
    let mut pending = vec![b"/".to_vec()];
    std::iter::from_fn(move || {
        let path = pending.pop()?;
        Some(push_children(root, &path, &mut pending).map(|()| TreePath::Path(path)))
    })
}

fn push_children(root: &Path, path: &[u8], pending: &mut Vec<Vec<u8>>) -> anyhow::Result<()> {
    let place = below(root, path);
    if !place.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(());
    }
    let listed = match std::fs::read_dir(&place) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        listed => listed.with_context(|| escape(path))?,
    };
    let directory = path.strip_suffix(b"/").unwrap_or(path);
    for entry in listed {
        pending.push([directory, b"/", entry?.file_name().as_bytes()].concat());
    }
    Ok(())
}

fn manifest_entries(user: CurrentUser) -> anyhow::Result<Vec<FileEntry>> {
    let manifest: Value = serde_json::from_str(MANIFEST)?;
    let entries = manifest["trees"]["demo"].as_array().context("the manifest has no demo tree")?;
    let first_names = entries.iter().filter(|entry| entry["same_as"].is_null());
    let groups: HashMap<&str, &Value> =
        first_names.filter_map(|entry| Some((entry["hardlink_group"].as_str()?, entry))).collect();
    let inode = |name: &Value| groups.get(name.as_str()?).copied();
    entries.iter().map(|e| manifest_entry(e, inode(&e["same_as"]).unwrap_or(e), user)).collect()
}

fn manifest_entry(entry: &Value, inode: &Value, user: CurrentUser) -> anyhow::Result<FileEntry> {
    let text = |name: &str| inode[name].as_str().unwrap_or_default();
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let small = |value: &Value| u32::try_from(number(value)).unwrap_or_default();
    let device = (small(&inode["rdev"][0]), small(&inode["rdev"][1]));
    let (file_type, digest) = match text("type") {
        "reg" => {
            let sha256 = bytes_of(text("sha256"))?.try_into();
            (FileType::Regular, sha256.map_err(|_| anyhow!("not a digest"))?)
        }
        "lnk" => (FileType::Symlink, digest(&name(text("target"))?)),
        "chr" => (FileType::CharDevice, digest_of_device(device)),
        "blk" => (FileType::BlockDevice, digest_of_device(device)),
        "dir" => (FileType::Directory, digest(b"")),
        "fifo" => (FileType::Fifo, digest(b"")),
        _ => (FileType::Socket, digest(b"")),
    };
    let metadata = EntryMetadata {
        file_type,
        mode: u32::from_str_radix(text("mode"), 8)?,
        owner: (small(&inode["uid"]), small(&inode["gid"])),
        link_count: Some(number(&inode["nlink"])),
        mtime: Timestamp {
            seconds: inode["mtime"].as_i64().unwrap_or_default(),
            nanoseconds: small(&inode["mtime_nsec"]),
        },
        size: number(&inode["size"]),
    };
    let xattrs = inode["xattrs"].as_object().into_iter().flatten();
    let xattrs = xattrs
        .map(|(key, value)| Ok((name(key)?, Some(bytes_of(value.as_str().unwrap_or_default())?))));
    let xattrs = xattrs.collect::<anyhow::Result<_>>()?;
    let path = name(entry["path"].as_str().unwrap_or_default())?;
    let mut entry = FileEntry::new(&path, metadata, Some(digest), xattrs, user);
    entry.link_key = inode["hardlink_group"].as_str().map(|group| group.as_bytes().to_vec());
    Ok(entry)
}

/// A name: text, or `hex:` and the digits of its bytes.
fn name(text: &str) -> anyhow::Result<Vec<u8>> {
    text.strip_prefix("hex:").map_or_else(|| Ok(text.as_bytes().to_vec()), bytes_of)
}

fn bytes_of(digits: &str) -> anyhow::Result<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(byte).collect::<Option<_>>().ok_or_else(|| anyhow!("not hexadecimal: {digits}"))
}
