//! Inodes as values: what an importer adds to a tree, and what a tree returns. A tree stores an inode as a record of
//! 48 bytes and the number of its set of xattrs. Inodes with the same xattrs share one set. [`NodeSet`] is a set of
//! inodes, a bit for each, in the store of the tree: it takes memory as the tree does.

use std::collections::{BTreeMap, HashMap};

use ferrofs_ondisk::{FileType, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

use super::content::Content;
use crate::spill::SpillStore;
use crate::spill::paged::{PagedArray, PagedBytes, Record, RecordDecoder, RecordEncoder, first};

/// Extended attributes by their full name, as in `security.capability`.
pub type XattrMap = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// Which inode of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    pub(crate) const ROOT: Self = Self(0);

    pub(crate) fn from_index(index: u32) -> Self {
        Self(index)
    }

    /// The number of the inode in its tree, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The same in 32 bits.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Node {
    /// Owner, permissions, time and xattrs.
    pub metadata: Metadata,
    /// What it is.
    pub kind: NodeKind,
}

/// What an inode is.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// A directory. The tree has its entries.
    Directory,
    /// A regular file.
    File(Content),
    /// A symlink and its target.
    Symlink(Box<[u8]>),
    /// A character device.
    CharacterDevice {
        /// Major number, 12 bits.
        major: u32,
        /// Minor number, 20 bits.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Major number, 12 bits.
        major: u32,
        /// Minor number, 20 bits.
        minor: u32,
    },
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

impl NodeKind {
    /// What it is called in an image.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        match self {
            Self::Directory => FileType::Directory,
            Self::File(_) => FileType::Regular,
            Self::Symlink(_) => FileType::Symlink,
            Self::CharacterDevice { .. } => FileType::CharDevice,
            Self::BlockDevice { .. } => FileType::BlockDevice,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
        }
    }
}

impl Node {
    /// A directory.
    #[must_use]
    pub fn directory(metadata: Metadata) -> Self {
        Self { metadata, kind: NodeKind::Directory }
    }

    /// Whether this is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, NodeKind::Directory)
    }

    /// The content, if this is a regular file.
    #[must_use]
    pub fn content(&self) -> Option<&Content> {
        match &self.kind {
            NodeKind::File(content) => Some(content),
            _ => None,
        }
    }
}

/// Owner, permissions, time and xattrs of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Permission bits with set-uid, set-gid and sticky: 0o7777 at most.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Extended attributes by their full name, as in `security.capability`.
    pub xattrs: XattrMap,
}

/// An inode without its xattrs, target or content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeRecord {
    pub(crate) file_type: FileType,
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Timestamp,
    /// The number of its set of xattrs; 0 for none.
    pub(crate) xattrs: u32,
    /// How many names it has, in whichever directories.
    pub(crate) names: u32,
    /// Bytes of a file or of a target; the major number above the minor number of a device.
    pub(crate) size: u64,
    /// Where the target or the content lies.
    pub(crate) blob: u64,
}

impl Record for NodeRecord {
    const BYTES: usize = 48;

    fn store(self, output: &mut [u8]) {
        output[..2].copy_from_slice(&self.file_type.mode_bits().to_le_bytes());
        output[2..4].copy_from_slice(&self.permissions.to_le_bytes());
        output[4..8].copy_from_slice(&self.uid.to_le_bytes());
        output[8..12].copy_from_slice(&self.gid.to_le_bytes());
        output[12..16].copy_from_slice(&self.mtime.nanoseconds.to_le_bytes());
        output[16..24].copy_from_slice(&self.mtime.seconds.to_le_bytes());
        output[24..28].copy_from_slice(&self.xattrs.to_le_bytes());
        output[28..32].copy_from_slice(&self.names.to_le_bytes());
        output[32..40].copy_from_slice(&self.size.to_le_bytes());
        output[40..48].copy_from_slice(&self.blob.to_le_bytes());
    }

    fn load(bytes: &[u8]) -> Self {
        let seconds = i64::from_le_bytes(first(&bytes[16..]));
        let nanoseconds = u32::from_le_bytes(first(&bytes[12..]));
        let mode = u16::from_le_bytes(first(bytes));
        Self {
            // Zeros, a record that was never stored, are a regular file without content.
            file_type: FileType::from_mode(mode).unwrap_or(FileType::Regular),
            permissions: u16::from_le_bytes(first(&bytes[2..])),
            uid: u32::from_le_bytes(first(&bytes[4..])),
            gid: u32::from_le_bytes(first(&bytes[8..])),
            mtime: Timestamp { seconds, nanoseconds },
            xattrs: u32::from_le_bytes(first(&bytes[24..])),
            names: u32::from_le_bytes(first(&bytes[28..])),
            size: u64::from_le_bytes(first(&bytes[32..])),
            blob: u64::from_le_bytes(first(&bytes[40..])),
        }
    }
}

/// Sets whose hash is kept, so that equal ones are found. More of them are stored again.
const KNOWN_SETS_MAX: usize = 1 << 14;

/// All sets of xattrs of a tree. The empty one has the number 0.
#[derive(Debug)]
pub(crate) struct XattrSets {
    places: PagedArray<u64>,
    sets: PagedBytes,
    known: HashMap<u64, u32>,
}

impl XattrSets {
    /// The empty set.
    pub(crate) fn new(store: &SpillStore) -> Self {
        let mut places = PagedArray::new(store);
        places.push(0);
        Self { places, sets: PagedBytes::new(store), known: HashMap::new() }
    }

    /// How many there are, with the empty one.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// The bytes of all sets.
    pub(crate) fn bytes(&self) -> u64 {
        self.sets.len()
    }

    /// The number of a set, which is added if it is new.
    pub(crate) fn add(&mut self, xattrs: &XattrMap) -> u32 {
        if xattrs.is_empty() {
            return 0;
        }
        let mut encoder = RecordEncoder::default();
        for (name, value) in xattrs {
            encoder.string(name).string(value);
        }
        let hash = xxh3_64(&encoder.bytes);
        if let Some(&number) = self.known.get(&hash)
            && self.encoded(number) == encoder.bytes
        {
            return number;
        }
        // There are no more sets than inodes, of which 32 bits count all.
        let number = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        self.places.push(self.sets.append_blob(&encoder.bytes));
        if self.known.len() < KNOWN_SETS_MAX {
            self.known.entry(hash).or_insert(number);
        }
        number
    }

    /// The set with this number.
    pub(crate) fn get(&self, number: u32) -> XattrMap {
        let encoded = self.encoded(number);
        let mut decoder = RecordDecoder::new(&encoded);
        let mut xattrs = XattrMap::new();
        while !decoder.is_empty() {
            let name = decoder.string();
            xattrs.insert(name.into(), decoder.string().into());
        }
        xattrs
    }

    fn encoded(&self, number: u32) -> Vec<u8> {
        match (number, self.places.get(number as usize)) {
            (1.., Some(place)) => self.sets.read_blob(place),
            _ => Vec::new(),
        }
    }
}

/// Bytes of the set that are read at once.
const BATCH_BYTES: usize = 512;

/// A set of inodes of one tree. What does not fit into memory goes to the file of the tree.
#[derive(Debug)]
pub(crate) struct NodeSet {
    bits: PagedBytes,
    count: u64,
}

impl NodeSet {
    /// The empty set.
    pub(crate) fn new(store: &SpillStore) -> Self {
        Self { bits: PagedBytes::new(store), count: 0 }
    }

    /// Adds an inode; false if it was there.
    pub(crate) fn insert(&mut self, id: NodeId) -> bool {
        let (at, bit) = place(id);
        let missing = (at + 1).saturating_sub(self.bits.len());
        self.bits.append_zeros(missing);
        let mut byte = [0];
        self.bits.read(at, &mut byte);
        let is_new = byte[0] & bit == 0;
        if is_new {
            self.bits.write(at, &[byte[0] | bit]);
            self.count += 1;
        }
        is_new
    }

    /// Whether an inode is in the set.
    pub(crate) fn contains(&self, id: NodeId) -> bool {
        let (at, bit) = place(id);
        let mut byte = [0];
        if self.count > 0 {
            self.bits.read(at, &mut byte);
        }
        byte[0] & bit != 0
    }

    /// Whether it has no inode.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Removes all inodes.
    pub(crate) fn clear(&mut self) {
        self.bits.truncate(0);
        self.count = 0;
    }

    /// All inodes, in the order of the tree.
    pub(crate) fn iter(&self) -> impl Iterator<Item = NodeId> {
        let bytes = self.bits.len();
        let batches = (0..bytes).step_by(BATCH_BYTES);
        let with_places = batches.flat_map(|at| (at..).zip(self.bits.read_vec(at, BATCH_BYTES)));
        with_places
            .filter(|(_, byte)| *byte != 0)
            .flat_map(|(at, byte)| {
                let set = (0..8_u32).filter(move |bit| byte >> bit & 1 != 0);
                // There are no more inodes than 32 bits count.
                set.filter_map(move |bit| u32::try_from(at * 8 + u64::from(bit)).ok())
            })
            .map(NodeId::from_index)
    }
}

/// The byte of an inode, and its bit in it.
fn place(id: NodeId) -> (u64, u8) {
    let number = u64::from(id.number());
    (number / 8, 1 << (number % 8))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::spill::tests::small_store;

    #[test]
    fn it_is_a_set_in_order() {
        let (store, _directory) = small_store();
        let (mut set, mut truth) = (NodeSet::new(&store), BTreeSet::new());
        let mut number = 1_u32;
        for _ in 0..20_000 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let id = NodeId::from_index(number >> 12);
            assert_eq!(set.contains(id), truth.contains(&id.number()));
            assert_eq!(set.insert(id), truth.insert(id.number()));
            assert!(set.contains(id));
        }
        assert!(set.iter().map(NodeId::number).eq(truth));
        assert!(!set.contains(NodeId::from_index(u32::MAX)));
        set.clear();
        assert!(set.is_empty() && set.iter().next().is_none());
        assert!(!set.contains(NodeId::from_index(number >> 12)));
        assert!(set.insert(NodeId::from_index(3)) && set.iter().count() == 1);
    }
}
