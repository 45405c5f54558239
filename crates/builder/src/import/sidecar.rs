//! The sidecar of an extracted image: the metadata of every path, so that a user who cannot set it
//! on files can still build the same image again.
//!
//! A sidecar is UTF-8 text with one JSON object a line:
//!
//! ```text
//! {"path":"/bin/ping","type":"f","mode":"0755","uid":0,"gid":0,"mtime":1700000000,
//!  "nanoseconds":0,"xattrs":[{"name":"security.capability","value":"01000002…"}]}
//! ```
//!
//! `path` begins with a slash; a path or a name that is not UTF-8 is an object `{"hex": "…"}`. `type`
//! is one of `f`, `d`, `l`, `c`, `b`, `p` and `s`. Devices have `device`, a list of their major and
//! minor number, and symlinks have `target`. Values of xattrs are hexadecimal. (The example is one
//! line.) What is not in the source is created from its line, but for regular files; a directory has
//! its line before those of the files in it.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use ferrofs_ondisk::FileType;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::adjust::XattrFilter;
use super::android_text::{hex, parse_hex};
use crate::tree::{Metadata, Node, NodeId, NodeKind, Timestamp, Tree};

/// The longest line: the longest path, and all xattrs that an inode can have.
const LINE_BYTES_MAX: u64 = 4 << 20;
/// Lines of a sidecar: more inodes than any image has.
const LINES_MAX: usize = 64 << 20;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SidecarEntry {
    /// The absolute path.
    pub path: JsonBytes,
    /// The letter of the type, as of [`type_letter`].
    #[serde(rename = "type")]
    pub file_type: String,
    /// The permissions, octal.
    pub mode: String,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Seconds since 1970.
    pub mtime: i64,
    /// Less than a second.
    pub nanoseconds: u32,
    /// In any order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<SidecarXattr>,
    /// Major and minor number of a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<(u32, u32)>,
    /// The target of a symlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<JsonBytes>,
}

/// An xattr of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SidecarXattr {
    /// The full name.
    pub name: JsonBytes,
    /// Hexadecimal.
    pub value: String,
}

/// The letter of a type.
#[must_use]
pub fn type_letter(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "f",
        FileType::Directory => "d",
        FileType::Symlink => "l",
        FileType::CharDevice => "c",
        FileType::BlockDevice => "b",
        FileType::Fifo => "p",
        FileType::Socket => "s",
    }
}

/// A name in JSON: a string if it is UTF-8, else an object `{"hex": "…"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonBytes(pub Vec<u8>);

impl From<&[u8]> for JsonBytes {
    fn from(name: &[u8]) -> Self {
        Self(name.to_vec())
    }
}

impl Serialize for JsonBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Hex {
            hex: String,
        }
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Hex { hex: hex(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for JsonBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Name {
            Text(String),
            Hex { hex: String },
        }
        match Name::deserialize(deserializer)? {
            Name::Text(text) => Ok(Self(text.into_bytes())),
            Name::Hex { hex } => parse_hex(&hex)
                .map(Self)
                .ok_or_else(|| serde::de::Error::custom("a name is not hexadecimal")),
        }
    }
}

/// The longest target of a symlink on Linux, in bytes.
const TARGET_BYTES_MAX: usize = 4095;

/// What a sidecar did not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SidecarMismatch {
    /// Lines about paths that are not in the tree, or are of another type.
    pub unused_lines: u64,
    /// Paths that no line is about.
    pub unnamed_paths: u64,
}

/// Gives every inode the metadata that the sidecar `input` has for its path, with those of its xattrs that `xattrs` keeps.
/// Messages call it `name`.
///
/// # Errors
/// The sidecar cannot be read, or a line is malformed; the error names it.
pub fn apply(
    name: &str,
    mut input: impl BufRead,
    tree: &mut Tree,
    xattrs: &XattrFilter,
) -> Result<SidecarMismatch, String> {
    let mut is_named = vec![false; tree.len()];
    let mut mismatch = SidecarMismatch::default();
    let mut line = Vec::new();
    for number in 1..=LINES_MAX {
        line.clear();
        let read = (&mut input).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line);
        let count = read.map_err(|error| format!("cannot read {name}: {error}"))?;
        if count == 0 {
            let paths = is_named.iter().filter(|is_named| !**is_named).count();
            mismatch.unnamed_paths = paths as u64;
            return Ok(mismatch);
        }
        if count as u64 > LINE_BYTES_MAX {
            return Err(format!("{name}:{number}: more than {LINE_BYTES_MAX} bytes"));
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let mut entry = parse(&line).map_err(|why| format!("{name}:{number}: {why}"))?;
        entry.metadata.xattrs.retain(|name, _| xattrs.keeps(name));
        match entry.apply(tree).map_err(|why| format!("{name}:{number}: {why}"))? {
            Some(id) if id.index() < is_named.len() => is_named[id.index()] = true,
            Some(_) => {}
            None => mismatch.unused_lines += 1,
        }
    }
    Err(format!("{name}: more than {LINES_MAX} lines"))
}

/// A line that has been checked.
struct PathMetadata {
    /// Relative to the root.
    path: Vec<u8>,
    file_type: String,
    metadata: Metadata,
    device: Option<(u32, u32)>,
    target: Option<Vec<u8>>,
}

/// The inode at a path that is relative to the root.
fn find(tree: &Tree, path: &[u8]) -> Option<NodeId> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(Tree::ROOT, |directory, name| tree.child(directory, name))
}

fn parse(line: &[u8]) -> Result<PathMetadata, String> {
    let entry: SidecarEntry = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let permissions = u16::from_str_radix(&entry.mode, 8).ok().filter(|mode| *mode <= 0o7777);
    let permissions = permissions.ok_or_else(|| format!("{} is not a mode", entry.mode))?;
    if entry.nanoseconds >= 1_000_000_000 {
        return Err(format!("{} nanoseconds are a second or more", entry.nanoseconds));
    }
    let path = entry.path.0.strip_prefix(b"/").ok_or("the path does not begin with a slash")?;
    let mut xattrs = BTreeMap::new();
    for xattr in entry.xattrs {
        let value = parse_hex(&xattr.value);
        let value = value.ok_or_else(|| {
            format!("the value of {} is not hexadecimal", xattr.name.0.escape_ascii())
        })?;
        xattrs.insert(xattr.name.0.into(), value.into());
    }
    let mtime = Timestamp { seconds: entry.mtime, nanoseconds: entry.nanoseconds };
    let (uid, gid) = (entry.uid, entry.gid);
    let metadata = Metadata { permissions, uid, gid, mtime, xattrs };
    Ok(PathMetadata {
        path: path.to_vec(),
        file_type: entry.file_type,
        metadata,
        device: entry.device,
        target: entry.target.map(|target| target.0),
    })
}

impl PathMetadata {
    /// Sets the metadata of the inode at the path; what is missing is added, unless it is a file with
    /// contents.
    fn apply(self, tree: &mut Tree) -> Result<Option<NodeId>, String> {
        if let Some(id) = find(tree, &self.path) {
            let mut node = tree.node_mut(id);
            if type_letter(node.kind.file_type()) != self.file_type {
                return Ok(None);
            }
            node.metadata = self.metadata;
            return Ok(Some(id));
        }
        let kind = match (self.file_type.as_str(), self.target) {
            ("c" | "b", _) => {
                // The numbers 0 and 0 would make a whiteout of overlayfs.
                let (major, minor) =
                    self.device.ok_or("a device without \"device\": [MAJOR, MINOR]")?;
                match self.file_type.as_str() {
                    "c" => NodeKind::CharacterDevice { major, minor },
                    _ => NodeKind::BlockDevice { major, minor },
                }
            }
            ("p", _) => NodeKind::Fifo,
            ("s", _) => NodeKind::Socket,
            ("d", _) => NodeKind::Directory,
            ("l", Some(target)) => {
                check_target(&target)?;
                NodeKind::Symlink(target.into())
            }
            _ => return Ok(None),
        };
        let slash = self.path.iter().rposition(|byte| *byte == b'/');
        let (parent, name) = match slash {
            Some(slash) => (&self.path[..slash], &self.path[slash + 1..]),
            None => (&[][..], &self.path[..]),
        };
        let parent = find(tree, parent).filter(|id| tree.is_directory(*id));
        let Some(parent) = parent else { return Ok(None) };
        let node = Node { metadata: self.metadata, kind };
        let id = tree.add(node).map_err(|error| error.to_string())?;
        tree.link(parent, name, id).map_err(|error| error.to_string())?;
        Ok(Some(id))
    }
}

/// Checks the target of a symlink as Linux does.
fn check_target(target: &[u8]) -> Result<(), String> {
    match target.len() {
        1..=TARGET_BYTES_MAX if !target.contains(&0) => Ok(()),
        1..=TARGET_BYTES_MAX => Err("the target contains a NUL byte".to_owned()),
        bytes => Err(format!("a target of {bytes} bytes, not 1 to {TARGET_BYTES_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Metadata {
        let mtime = Timestamp { seconds: 1, nanoseconds: 2 };
        Metadata { permissions: 0o700, uid: 1000, gid: 1000, mtime, xattrs: BTreeMap::new() }
    }

    fn apply(tree: &mut Tree, text: &str) -> Result<SidecarMismatch, String> {
        super::apply("sidecar", text.as_bytes(), tree, &XattrFilter::All)
    }

    #[test]
    fn missing_directories_and_symlinks_are_added() {
        let mut tree = Tree::new(metadata());
        let rest = r#""mode":"0700","uid":7,"gid":0,"mtime":0,"nanoseconds":0"#;
        let text = format!(
            r#"{{"path":"/","type":"d",{rest}}}
{{"path":"/a","type":"d",{rest}}}
{{"path":"/a/b","type":"d",{rest}}}
{{"path":"/a/b/link","type":"l",{rest},"target":{{"hex":"2e2eff"}}}}
{{"path":"/late/link","type":"l",{rest},"target":"x"}}
{{"path":"/old","type":"l",{rest}}}
"#
        );
        let mismatch = apply(&mut tree, &text).unwrap();
        assert_eq!(mismatch, SidecarMismatch { unused_lines: 2, unnamed_paths: 0 });
        let link = tree.node(find(&tree, b"a/b/link").unwrap());
        assert!(matches!(link.kind, NodeKind::Symlink(target) if *target == *b"..\xff"));
        assert_eq!(tree.node(find(&tree, b"a").unwrap()).metadata.uid, 7);
        for target in ["", "a\\u0000", &"x".repeat(4096)] {
            let line = format!(r#"{{"path":"/l","type":"l",{rest},"target":"{target}"}}"#);
            let error = apply(&mut Tree::new(metadata()), &line).unwrap_err();
            assert!(error.starts_with("sidecar:1: ") && error.contains("target"), "{error}");
        }
    }

    #[test]
    fn metadata_comes_back_and_special_files_are_added() {
        let mut tree = Tree::new(metadata());
        let dir = tree.add(Node::directory(metadata())).unwrap();
        tree.link(Tree::ROOT, b"dev", dir).unwrap();
        let text = r#"{"path":"/","type":"d","mode":"0755","uid":0,"gid":5,"mtime":-7,"nanoseconds":9,"xattrs":[{"name":"security.selinux","value":"61"}]}
{"path":"/dev/null","type":"c","mode":"0666","uid":0,"gid":0,"mtime":0,"nanoseconds":0,"device":[1,3]}
{"path":"/gone","type":"f","mode":"0644","uid":0,"gid":0,"mtime":0,"nanoseconds":0}
"#;
        let mismatch = apply(&mut tree, text).unwrap();
        assert_eq!(mismatch, SidecarMismatch { unused_lines: 1, unnamed_paths: 1 });
        let root = tree.node(Tree::ROOT).metadata;
        assert_eq!((root.permissions, root.gid, root.mtime.seconds), (0o755, 5, -7));
        assert_eq!(&*root.xattrs[&b"security.selinux"[..]], b"a");
        let null = tree.child(dir, b"null").unwrap();
        assert!(matches!(tree.node(null).kind, NodeKind::CharacterDevice { major: 1, minor: 3 }));
    }

    #[test]
    fn a_device_without_numbers_is_refused_by_its_line() {
        let rest = r#""mode":"0600","uid":0,"gid":0,"mtime":0,"nanoseconds":0"#;
        for letter in ["c", "b"] {
            let line = format!(r#"{{"path":"/d","type":"{letter}",{rest}}}"#);
            let error = apply(&mut Tree::new(metadata()), &line).unwrap_err();
            assert_eq!(error, "sidecar:1: a device without \"device\": [MAJOR, MINOR]");
        }
    }

    #[test]
    fn xattrs_that_are_left_out_do_not_come_back_with_the_metadata() {
        let line = r#"{"path":"/","type":"d","mode":"0755","uid":0,"gid":0,"mtime":0,"nanoseconds":0,"xattrs":[{"name":"user.a","value":"61"},{"name":"user.b","value":"62"}]}"#;
        let exclude = vec![b"user.a".to_vec()];
        let named = XattrFilter::Named { include: Vec::new(), exclude };
        for (xattrs, kept) in [(XattrFilter::All, 2), (XattrFilter::None, 0), (named, 1)] {
            let mut tree = Tree::new(metadata());
            super::apply("sidecar", line.as_bytes(), &mut tree, &xattrs).unwrap();
            assert_eq!(tree.node(Tree::ROOT).metadata.xattrs.len(), kept, "{xattrs:?}");
        }
    }

    #[test]
    fn malformed_lines_are_refused_by_number() {
        let line =
            r#"{"path":"/","type":"d","mode":"0755","uid":0,"gid":0,"mtime":0,"nanoseconds":0}"#;
        for (from, to, part) in [
            ("\"0755\"", "\"0999\"", "0999 is not a mode"),
            ("\"/\"", "\"a\"", "does not begin with a slash"),
            ("\"nanoseconds\":0", "\"nanoseconds\":1000000000", "a second or more"),
            ("\"uid\":0", "\"uid\":-1", "sidecar:1: "),
            ("{", "[", "sidecar:1: "),
        ] {
            let error = apply(&mut Tree::new(metadata()), &line.replacen(from, to, 1)).unwrap_err();
            assert!(error.starts_with("sidecar:1: ") && error.contains(part), "{error}");
        }
    }
}
