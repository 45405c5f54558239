//! SHA-256 of ranges and files: equal digests are taken for equal bytes, since SHA-256 is collision resistant.
//! And an index from digests to numbers: 8 bytes of memory a slot; digests and numbers lie in a store, and are looked
//! at when 32 bits of a digest are equal.

use ferrofs_workers::CancelToken;
use sha2::{Digest as _, Sha256};

use crate::Result;
use crate::context::check_cancelled;
use crate::spill::SpillStore;
use crate::spill::paged::{PagedArray, Record, first};
use crate::split::SEGMENT_BYTES;
use crate::tree::{Content, Tree};

/// The SHA-256 of a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sha256Digest([u8; 32]);

impl Sha256Digest {
    /// The digest of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of all of a file, however long, read through `buffer`.
    ///
    /// # Errors
    /// A source that cannot be read or has changed; [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    pub(crate) fn of_file(
        content: &Content,
        buffer: &mut Vec<u8>,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let mut reader = content.source().open()?;
        let mut hasher = Sha256::new();
        let mut at = 0;
        while at < content.bytes() {
            check_cancelled(cancel)?;
            let bytes = (content.bytes() - at).min(SEGMENT_BYTES);
            let count = usize::try_from(bytes).unwrap_or(usize::MAX);
            if buffer.len() < count {
                buffer.resize(count, 0);
            }
            let buffer = buffer.get_mut(..count).unwrap_or_default();
            reader.read_exact_at(at, buffer).map_err(|error| error.at_byte(at))?;
            hasher.update(&*buffer);
            at += bytes;
        }
        reader.check_unchanged()?;
        Ok(Self(hasher.finalize().into()))
    }

    /// Its 32 bytes.
    pub(crate) fn array(self) -> [u8; 32] {
        self.0
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What stands before the 32 bytes of a digest.
const DIGEST_PREFIX: &[u8] = b"sha256:";

/// Gives every regular file that is not empty the xattr `name`: `sha256:` and the 32 bytes of the SHA-256 of its
/// content, as `--xattr-inode-digest` of mkfs.erofs has it. [`BuildOptions::digest_xattr`](crate::BuildOptions::digest_xattr)
/// must have the same name.
///
/// # Errors
/// A file that cannot be read or has changed, with its path; [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) once `cancel` is cancelled.
pub fn add_digests(tree: &mut Tree, name: &[u8], cancel: &CancelToken) -> Result<()> {
    let mut buffer = Vec::new();
    for id in tree.ids() {
        let content = tree.content(id).filter(|content| content.bytes() > 0);
        let Some(content) = content else { continue };
        let digest = Sha256Digest::of_file(&content, &mut buffer, cancel);
        let digest = digest.map_err(|error| error.at(content.source().name()))?;
        tree.set_xattr(id, name, &[DIGEST_PREFIX, digest.bytes()].concat());
    }
    tree.store().check()?;
    Ok(())
}

/// Slots at first, a power of two.
const SLOTS_MIN: usize = 1 << 10;
/// No entry.
const VACANT: u32 = u32::MAX;

/// Numbers by digest, of which several entries may be equal.
#[derive(Debug)]
pub(crate) struct DigestIndex {
    entries: PagedArray<DigestEntry>,
    /// Part of a digest, and the number of its entry; a power of two of them.
    slots: Vec<(u32, u32)>,
    count_max: usize,
}

/// A digest and two numbers.
#[derive(Clone, Copy, Debug)]
struct DigestEntry {
    digest: [u8; 32],
    length: u64,
    value: u64,
}

impl Record for DigestEntry {
    const BYTES: usize = 48;

    fn store(self, output: &mut [u8]) {
        output[..32].copy_from_slice(&self.digest);
        (self.length, self.value).store(&mut output[32..]);
    }

    fn load(bytes: &[u8]) -> Self {
        let (length, value) = Record::load(&bytes[32..]);
        Self { digest: first(bytes), length, value }
    }
}

impl DigestIndex {
    /// An empty index.
    pub(crate) fn new(store: &SpillStore) -> Self {
        Self { entries: PagedArray::new(store), slots: Vec::new(), count_max: VACANT as usize - 1 }
    }

    /// Bounds the entries. Later ones are not added.
    pub(crate) fn set_count_max(&mut self, count: usize) {
        self.count_max = count.min(VACANT as usize - 1);
    }

    /// The value of the first entry with this digest whose length and value are as wanted.
    pub(crate) fn find(
        &self,
        digest: &Sha256Digest,
        is_wanted: impl Fn(u64, u64) -> bool,
    ) -> Option<u64> {
        self.with(digest).find(|(length, value)| is_wanted(*length, *value)).map(|(_, value)| value)
    }

    /// The values of all entries with this digest, in the order in which they were added.
    pub(crate) fn all(&self, digest: &Sha256Digest) -> Vec<u64> {
        let mut values: Vec<u64> = self.with(digest).map(|(_, value)| value).collect();
        values.sort_unstable();
        values
    }

    /// Adds an entry, unless there are too many.
    pub(crate) fn push(&mut self, digest: &Sha256Digest, length: u64, value: u64) {
        let count = self.entries.len();
        if count >= self.count_max {
            return;
        }
        if (count + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        let digest = first(digest.bytes());
        self.entries.push(DigestEntry { digest, length, value });
        // There are fewer than VACANT.
        insert(&mut self.slots, tag(&digest), u32::try_from(count).unwrap_or(VACANT));
    }

    fn with(&self, digest: &Sha256Digest) -> impl Iterator<Item = (u64, u64)> {
        let (digest, mask) = (first::<32>(digest.bytes()), self.slots.len().wrapping_sub(1));
        let tag = tag(&digest);
        (0..self.slots.len())
            .map(move |probe| self.slots[(tag as usize).wrapping_add(probe) & mask])
            .take_while(|(_, index)| *index != VACANT)
            .filter(move |(other, _)| *other == tag)
            .filter_map(|(_, index)| self.entries.get(index as usize))
            .filter(move |entry| entry.digest == digest)
            .map(|entry| (entry.length, entry.value))
    }

    fn grow(&mut self) {
        let mut slots = vec![(0, VACANT); (self.slots.len() * 2).max(SLOTS_MIN)];
        for (tag, index) in self.slots.drain(..).filter(|(_, index)| *index != VACANT) {
            insert(&mut slots, tag, index);
        }
        self.slots = slots;
    }
}

/// Bits of a digest. SHA-256 spreads them evenly, whoever chooses the bytes.
fn tag(digest: &[u8; 32]) -> u32 {
    u32::from_le_bytes(first(digest))
}

fn insert(slots: &mut [(u32, u32)], tag: u32, index: u32) {
    let mask = slots.len() - 1;
    let probes = (0..slots.len()).map(|probe| (tag as usize).wrapping_add(probe) & mask);
    // A quarter of the slots is vacant.
    if let Some(slot) = probes.into_iter().find(|slot| slots[*slot].1 == VACANT) {
        slots[slot] = (tag, index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_source::{file, metadata};

    #[test]
    fn files_that_are_not_empty_get_their_digest() {
        let mut tree = Tree::new(metadata());
        let (some, none) = (tree.add(file(b"abc")).unwrap(), tree.add(file(b"")).unwrap());
        add_digests(&mut tree, b"erofs.fingerprint.v1", &CancelToken::new()).unwrap();
        let found = |id| tree.node(id).metadata.xattrs.get(&b"erofs.fingerprint.v1"[..]).cloned();
        let value = found(some).unwrap();
        assert_eq!((&value[..7], value.len()), (DIGEST_PREFIX, 39));
        assert_eq!(value[7..11], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!((found(none), found(Tree::ROOT)), (None, None));
    }

    use crate::spill::tests::small_store;

    #[test]
    fn entries_are_found_by_digest_and_no_more_are_kept_than_allowed() {
        let (store, _directory) = small_store();
        let mut index = DigestIndex::new(&store);
        index.set_count_max(20_000);
        let digest = |number: u64| Sha256Digest::of(&number.to_le_bytes());
        for number in 0..30_000 {
            index.push(&digest(number / 2), number % 2, number);
        }
        assert_eq!(index.find(&digest(7), |length, _| length == 1), Some(15));
        assert_eq!(index.find(&digest(7), |length, _| length == 2), None);
        assert_eq!(index.all(&digest(9_999)), [19_998, 19_999]);
        assert_eq!(index.all(&digest(10_000)), [0; 0]);
        assert_eq!(index.all(&digest(77_777)), [0; 0]);
    }
}
