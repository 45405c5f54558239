//! What a tree looks like, whoever shows it: an image, an archive, a directory of the host. The targets that write a tree
//! in one form and read it in another compare listings.

use std::collections::{BTreeMap, BTreeSet};

use ferrofs_builder::tree::{Content, Metadata, NodeKind, Tree};
use ferrofs_image::{FilePiece, FileType, Image, Inode, WalkEntry, WalkEvent};

/// Names of an image that are listed; an image with more is left alone.
const NAMES_MAX: usize = 400;
/// Bytes of contents that are read, holes not counted.
const CONTENTS_MAX_BYTES: u64 = 2 << 20;
/// Contents are compared in blocks of so many bytes.
const BLOCK_BYTES: usize = 512;

/// Paths, without a slash at their start, and what they name. The root has the empty path.
pub(crate) type Listing = BTreeMap<Vec<u8>, Entry>;

/// What a name names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: FileType,
    pub(crate) permissions: u16,
    pub(crate) owners: (u32, u32),
    pub(crate) mtime: (i64, u32),
    pub(crate) size: u64,
    pub(crate) contents: Contents,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same inode.
    pub(crate) first: Vec<u8>,
}

/// The bytes of a file, the target of a symlink, the number of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Blocks that are not all zeros, by their number.
    blocks: BTreeMap<u64, Vec<u8>>,
    pub(crate) device: (u32, u32),
}

impl Contents {
    /// Adds bytes; what is added twice has to be the same. Bytes of a block that nobody adds are zeros.
    pub(crate) fn add(&mut self, offset: u64, mut bytes: &[u8]) {
        let mut offset = offset;
        while !bytes.is_empty() {
            let within = usize::try_from(offset % BLOCK_BYTES as u64).expect("less than a block");
            let (part, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - within));
            if part.iter().any(|byte| *byte != 0) {
                let block = self.blocks.entry(offset / BLOCK_BYTES as u64);
                let block = block.or_insert_with(|| vec![0; BLOCK_BYTES]);
                block[within..within + part.len()].copy_from_slice(part);
            }
            offset += part.len() as u64;
            bytes = rest;
        }
    }

    fn of(bytes: &[u8]) -> Self {
        let mut contents = Self::default();
        contents.add(0, bytes);
        contents
    }
}

/// Names the first path of every inode of a listing whose entries came with a number of their inode. A damaged directory
/// can have several entries of one name, of which the first is extracted and the others are refused.
pub(crate) fn name_first<K: Ord>(entries: Vec<(Vec<u8>, K, Entry)>) -> Listing {
    let mut firsts: BTreeMap<K, Vec<u8>> = BTreeMap::new();
    let mut listing = Listing::new();
    let mut entries = entries;
    entries.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    for (path, inode, mut entry) in entries {
        entry.first = firsts.entry(inode).or_insert_with(|| path.clone()).clone();
        listing.entry(path).or_insert(entry);
    }
    listing
}

/// An image that was listed.
#[derive(Debug)]
pub(crate) struct ListedImage {
    pub(crate) listing: Listing,
    /// The size of the largest file in bytes, also of one that could not be read.
    pub(crate) largest_file: u64,
    /// Paths of entries that could not be read, with the regular files of each: a damaged directory can have several
    /// entries of one name. The listing does not have them.
    pub(crate) damaged: BTreeMap<Vec<u8>, Vec<Inode>>,
    /// Whether anything could not be read.
    pub(crate) has_problems: bool,
}

enum Stop {
    TooMuch,
    Damage,
}

impl From<ferrofs_image::Error> for Stop {
    fn from(error: ferrofs_image::Error) -> Self {
        assert!(!error.to_string().is_empty());
        Self::Damage
    }
}

/// Lists an image; `None` if it has too much for one input.
pub(crate) fn of_image(image: &Image) -> Option<ListedImage> {
    let mut has_problems = image.truncation().is_some();
    let mut entries = Vec::new();
    let mut damaged = BTreeSet::new();
    let mut files = Vec::new();
    let mut bytes_left = CONTENTS_MAX_BYTES;
    let mut largest_file = 0;
    let Ok(walk) = image.walk(b"/") else {
        let (listing, damaged) = (Listing::new(), BTreeMap::new());
        return Some(ListedImage { listing, largest_file, damaged, has_problems: true });
    };
    for (number, event) in walk.enumerate() {
        if number >= NAMES_MAX {
            return None;
        }
        match event {
            WalkEvent::Enter(node) | WalkEvent::Leaf(node) => {
                let path = node.path.strip_prefix(b"/").unwrap_or(&node.path).to_vec();
                if node.inode.file_type() == FileType::Regular {
                    largest_file = node.inode.size().max(largest_file);
                    files.push((path.clone(), node.inode.clone()));
                }
                match entry_of(image, &node, &mut bytes_left) {
                    Ok(entry) => entries.push((path, node.inode.nid().raw(), entry)),
                    Err(Stop::Damage) => drop(damaged.insert(path)),
                    Err(Stop::TooMuch) => return None,
                }
            }
            WalkEvent::Leave(_) => {}
            WalkEvent::Problem(_) => has_problems = true,
        }
    }
    // It may have been the damaged one of several entries with this name that was extracted.
    has_problems |= !damaged.is_empty();
    entries.retain(|(path, ..)| !damaged.contains(path));
    let mut damaged: BTreeMap<_, Vec<_>> =
        damaged.into_iter().map(|path| (path, Vec::new())).collect();
    for (path, file) in files {
        if let Some(files) = damaged.get_mut(&path) {
            files.push(file);
        }
    }
    Some(ListedImage { listing: name_first(entries), largest_file, damaged, has_problems })
}

/// Whether an image with these entries can have too much for [`of_image`]: hard links of a large file count again.
pub(crate) fn may_be_too_much(listing: &Listing) -> bool {
    let bytes = |entry: &Entry| {
        entry.size + entry.xattrs.values().map(|value| value.len() as u64).sum::<u64>()
    };
    let bytes = listing.values().map(bytes).fold(0, u64::saturating_add);
    listing.len() >= NAMES_MAX / 2 || bytes > CONTENTS_MAX_BYTES
}

fn entry_of(image: &Image, node: &WalkEntry, bytes_left: &mut u64) -> Result<Entry, Stop> {
    let inode = &node.inode;
    let mut xattrs = BTreeMap::new();
    if inode.has_xattrs() {
        for xattr in image.xattrs(inode)? {
            *bytes_left = bytes_left.checked_sub(xattr.value.len() as u64).ok_or(Stop::TooMuch)?;
            xattrs.entry(xattr.name).or_insert(xattr.value);
        }
    }
    let (size, contents) = match inode.file_type() {
        FileType::Regular => (inode.size(), contents_of(image, inode, bytes_left)?),
        FileType::Symlink => {
            let target = image.read_link(inode)?;
            (target.len() as u64, Contents::of(&target))
        }
        FileType::CharDevice | FileType::BlockDevice => {
            let device = inode.device().unwrap_or_default();
            (0, Contents { device, ..Contents::default() })
        }
        _ => (0, Contents::default()),
    };
    Ok(Entry {
        kind: inode.file_type(),
        permissions: inode.mode() & 0o7777,
        owners: (inode.uid(), inode.gid()),
        mtime: (inode.mtime().seconds, inode.mtime().nanoseconds),
        size,
        contents,
        xattrs,
        first: Vec::new(),
    })
}

/// Whether a regular file has these contents, or is too long to check.
pub(crate) fn has_contents(image: &Image, file: &Inode, size: u64, contents: &Contents) -> bool {
    let mut bytes_left = CONTENTS_MAX_BYTES;
    match contents_of(image, file, &mut bytes_left) {
        Ok(read) => file.size() == size && read == *contents,
        Err(Stop::TooMuch) => true,
        Err(Stop::Damage) => false,
    }
}

fn contents_of(image: &Image, inode: &Inode, bytes_left: &mut u64) -> Result<Contents, Stop> {
    let mut contents = Contents::default();
    image.for_each_piece(inode, |piece| {
        if let FilePiece::Data { offset, bytes } = piece {
            *bytes_left = bytes_left.checked_sub(bytes.len() as u64).ok_or(Stop::TooMuch)?;
            contents.add(offset, bytes);
        }
        Ok::<(), Stop>(())
    })?;
    Ok(contents)
}

/// Lists a tree, whose contents must be readable.
pub(crate) fn of_tree(tree: &Tree) -> Listing {
    let mut entries = Vec::new();
    let walked: Result<(), std::convert::Infallible> = tree.walk(|path, id| {
        let node = tree.node(id);
        let entry = entry_of_node(&node.metadata, &node.kind);
        entries.push((path.to_vec(), id.index(), entry));
        Ok(())
    });
    let Ok(()) = walked;
    name_first(entries)
}

fn entry_of_node(metadata: &Metadata, kind: &NodeKind) -> Entry {
    let (size, contents) = match kind {
        NodeKind::File(content) => (content.bytes(), contents_of_file(content)),
        NodeKind::Symlink(target) => (target.len() as u64, Contents::of(target)),
        NodeKind::CharacterDevice { major, minor } | NodeKind::BlockDevice { major, minor } => {
            (0, Contents { device: (*major, *minor), ..Contents::default() })
        }
        _ => (0, Contents::default()),
    };
    let xattrs = metadata.xattrs.iter().map(|(name, value)| (name.to_vec(), value.to_vec()));
    Entry {
        kind: kind.file_type(),
        permissions: metadata.permissions,
        owners: (metadata.uid, metadata.gid),
        mtime: (metadata.mtime.seconds, metadata.mtime.nanoseconds),
        size,
        contents,
        xattrs: xattrs.collect(),
        first: Vec::new(),
    }
}

fn contents_of_file(content: &Content) -> Contents {
    let mut contents = Contents::default();
    let mut reader = content.source().open().expect("contents in memory");
    for range in content.source().data_ranges().expect("contents in memory") {
        let bytes = usize::try_from(range.end - range.start).expect("contents in memory");
        let mut buffer = vec![0; bytes];
        reader.read_exact_at(range.start, &mut buffer).expect("contents in memory");
        contents.add(range.start, &buffer);
    }
    contents
}

/// Panics with the first entry that differs, or that only `wanted` has. Entries that only `wanted` has are allowed if
/// `may_lack` says so, those that only `found` has never are.
pub(crate) fn compare(wanted: &Listing, found: &Listing, may_lack: impl Fn(&Entry) -> bool) {
    for (path, entry) in found {
        let shown = || path.escape_ascii().to_string();
        let Some(twin) = wanted.get(path) else { panic!("{} has come from nowhere", shown()) };
        if twin != entry {
            let short = |entry: &Entry| {
                let Entry { kind, permissions, owners, mtime, size, xattrs, first, .. } = entry;
                format!("{kind:?} {permissions:o} {owners:?} {mtime:?} {size} {xattrs:?} {first:?}")
            };
            panic!("{} is not as it was:\n{}\n{}", shown(), short(twin), short(entry));
        }
    }
    for (path, entry) in wanted {
        let is_there = found.contains_key(path) || may_lack(entry);
        assert!(is_there, "{} is gone", path.escape_ascii());
    }
}
