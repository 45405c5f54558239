//! The packed inode before it is written: which parts of which files lie in it, each once. This module holds no
//! bytes of files; they are read again from their sources when the packed inode is compressed.

use std::ops::Range;
use std::sync::Arc;

use crate::compress::FileTail;
use crate::digest::Sha256Digest;
use crate::spill::SpillStore;
use crate::spill::paged::{PagedArray, Record, first};
use crate::tree::{Content, ContentReader, ContentSource, ContentTable, memory_content};
use crate::{Error, ErrorKind, FragmentSharing, Result};

/// Tails with the same end that are compared with a new one, at most.
const CANDIDATES_MAX: usize = 8;
/// Two tails are compared in parts of this many bytes.
const COMPARE_BYTES: u64 = 64 << 10;

/// Slots of a [`DigestIndex`] at first, a power of two.
const SLOTS_MIN: usize = 1 << 10;
/// No entry in a slot.
const VACANT: u32 = u32::MAX;

/// What the packed inode is to hold.
#[derive(Debug)]
pub(crate) struct PackedFile {
    sharing: FragmentSharing,
    parts: PackedParts,
    bytes: u64,
    /// Where what has a digest and a length lies. Entries beyond what memory allows are not kept, so that later tails
    /// are stored again.
    by_digest: DigestIndex,
    /// The numbers of parts by the digest of their last bytes.
    by_end: DigestIndex,
}

/// The parts, and their contents.
#[derive(Debug)]
struct PackedParts {
    records: PagedArray<PartRecord>,
    contents: ContentTable,
}

/// A part as it is stored: where its content is described, the length of the content, where the part starts in it and
/// in the packed inode. It ends where the next one starts.
type PartRecord = ((u64, u64), (u64, u64));

/// A range of a file, and where it lies in the packed inode.
#[derive(Clone, Debug)]
struct PackedPart {
    content: Content,
    range: Range<u64>,
    at: u64,
}

impl PackedParts {
    fn get(&self, index: usize, packed_bytes: u64) -> Option<PackedPart> {
        let ((place, bytes), (start, at)) = self.records.get(index)?;
        let next = self.records.get(index + 1).map_or(packed_bytes, |(_, (_, next))| next);
        let range = start..start.saturating_add(next.saturating_sub(at));
        Some(PackedPart { content: self.contents.get(place, bytes), range, at })
    }
}

impl PackedFile {
    /// With `prefix` at its start, which belongs to no file.
    pub(crate) fn new(prefix: &[u8], sharing: FragmentSharing, store: &SpillStore) -> Self {
        let mut this = Self {
            sharing,
            parts: PackedParts {
                records: PagedArray::new(store),
                contents: ContentTable::new(store),
            },
            bytes: 0,
            by_digest: DigestIndex::new(store),
            by_end: DigestIndex::new(store),
        };
        if !prefix.is_empty() {
            let bytes = prefix.len() as u64;
            let name = "the prefixes of xattrs";
            this.push(&memory_content(name, 0, prefix.to_vec(), bytes), 0, 0);
            this.bytes = bytes;
        }
        this
    }

    /// Bounds the parts that can be found again.
    pub(crate) fn set_known_max(&mut self, count: usize) {
        self.by_digest.set_count_max(count);
        self.by_end.set_count_max(count);
    }

    fn push(&mut self, content: &Content, start: u64, at: u64) {
        let place = self.parts.contents.add(content);
        self.parts.records.push(((place, content.bytes()), (start, at)));
    }

    /// Puts the end of a file in, unless it is there already and may be shared. Returns where it lies.
    pub(crate) fn add_tail(&mut self, content: &Content, tail: FileTail) -> Result<u64> {
        match self.sharing {
            FragmentSharing::Parts => {}
            FragmentSharing::Files if tail.bytes == content.bytes() => {
                return self.add_file(content, Some(tail.digest));
            }
            FragmentSharing::Files | FragmentSharing::Off => {
                let range = content.bytes().saturating_sub(tail.bytes)..content.bytes();
                return self.append(content, range);
            }
        }
        if let Some(at) = self.by_digest.find(&tail.digest, |bytes, _| bytes == tail.bytes) {
            return Ok(at);
        }
        let range = content.bytes().saturating_sub(tail.bytes)..content.bytes();
        let mut found = None;
        let candidates = tail.end.map_or_else(Vec::new, |end| self.by_end.all(&end));
        for part in &candidates {
            let part = usize::try_from(*part).unwrap_or(usize::MAX);
            if let Some(part) = self.parts.get(part, self.bytes)
                && ends_with(&part, content, range.clone())?
            {
                found = Some(part.at + (part.range.end - part.range.start) - tail.bytes);
                break;
            }
        }
        if let Some(at) = found {
            return Ok(at);
        }
        if let Some(end) = tail.end.filter(|_| candidates.len() < CANDIDATES_MAX) {
            self.by_end.push(&end, 0, self.parts.records.len() as u64);
        }
        let at = self.append(content, range)?;
        self.by_digest.push(&tail.digest, tail.bytes, at);
        Ok(at)
    }

    /// Puts all of a file in, unless what has the same digest is there already. Returns where it lies.
    pub(crate) fn add_file(
        &mut self,
        content: &Content,
        digest: Option<Sha256Digest>,
    ) -> Result<u64> {
        let find = |digest: &Sha256Digest| {
            self.by_digest.find(digest, |bytes, _| bytes == content.bytes())
        };
        if let Some(at) = digest.as_ref().and_then(find) {
            return Ok(at);
        }
        let at = self.append(content, 0..content.bytes())?;
        if let Some(digest) = digest {
            self.by_digest.push(&digest, content.bytes(), at);
        }
        Ok(at)
    }

    /// How many bytes lie in it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn append(&mut self, content: &Content, range: Range<u64>) -> Result<u64> {
        let at = self.bytes;
        let end = at.checked_add(range.end - range.start).filter(|&end| end < 1 << 63);
        self.bytes = end.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported("a packed inode of 2^63 bytes or more".to_owned()))
        })?;
        self.push(content, range.start, at);
        Ok(at)
    }

    /// The packed inode as a file to be read; none if it is empty. Nothing can be added behind that.
    pub(crate) fn into_content(self) -> Option<Content> {
        let Self { parts, bytes, .. } = self;
        let source = PackedSource { parts: Arc::new(parts), bytes };
        (bytes > 0).then(|| Content::new(Arc::new(source), bytes))
    }
}

/// Whether the part ends with that range of the file.
fn ends_with(part: &PackedPart, content: &Content, range: Range<u64>) -> Result<bool> {
    let bytes = range.end - range.start;
    let Some(start) = part.range.end.checked_sub(bytes).filter(|&start| start >= part.range.start)
    else {
        return Ok(false);
    };
    let (mut one, mut other) = (part.content.source().open()?, content.source().open()?);
    let (mut of_one, mut of_other) = (Vec::new(), Vec::new());
    let mut done = 0;
    while done < bytes {
        let count = usize::try_from((bytes - done).min(COMPARE_BYTES)).unwrap_or(usize::MAX);
        of_one.resize(count, 0);
        of_other.resize(count, 0);
        one.read_exact_at(start + done, &mut of_one)?;
        other.read_exact_at(range.start + done, &mut of_other)?;
        if of_one != of_other {
            return Ok(false);
        }
        done += count as u64;
    }
    Ok(true)
}

/// The packed inode as a content source: it reads from the sources of its parts.
struct PackedSource {
    parts: Arc<PackedParts>,
    bytes: u64,
}

struct PackedReader {
    parts: Arc<PackedParts>,
    bytes: u64,
    /// The part that was read last, which a long one goes on with.
    current: Option<(usize, Box<dyn ContentReader>)>,
}

impl ContentSource for PackedSource {
    fn name(&self) -> String {
        "the packed inode".to_owned()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        Ok(Box::new(PackedReader {
            parts: Arc::clone(&self.parts),
            bytes: self.bytes,
            current: None,
        }))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        Ok(std::iter::once(0..self.bytes).collect())
    }
}

impl PackedReader {
    /// The part in which a byte lies, and its number.
    fn part_at(&self, offset: u64) -> Option<(usize, PackedPart)> {
        let index =
            self.parts.records.partition_point(|(_, (_, at))| at <= offset).checked_sub(1)?;
        Some((index, self.parts.get(index, self.bytes)?))
    }

    /// Reads from one part what of it belongs into `buffer`, and says how much that is.
    fn read_part(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let found = self.part_at(offset);
        let gone = || Error::new(ErrorKind::Internal("a read behind the end of the packed inode"));
        let (index, part) = found.ok_or_else(gone)?;
        let start = part.range.start + (offset - part.at);
        let left = part.range.end.checked_sub(start).filter(|&left| left > 0).ok_or_else(gone)?;
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let mut reader = match self.current.take() {
            Some((current, reader)) if current == index => reader,
            _ => part.content.source().open()?,
        };
        reader.read_exact_at(start, buffer.get_mut(..count).unwrap_or_default())?;
        if count as u64 == left {
            reader.check_unchanged()?;
        } else {
            self.current = Some((index, reader));
        }
        Ok(count)
    }
}

impl ContentReader for PackedReader {
    fn read_exact_at(&mut self, mut offset: u64, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            let count =
                self.read_part(offset, buffer).map_err(|error| self.named(error, offset))?;
            buffer = buffer.get_mut(count..).unwrap_or_default();
            offset += count as u64;
        }
        Ok(())
    }

    /// Each part was checked after its last byte.
    fn check_unchanged(&mut self) -> Result<()> {
        Ok(())
    }
}

impl PackedReader {
    /// The error at the file that the part comes from, not at the packed inode.
    fn named(&self, error: Error, offset: u64) -> Error {
        match self.part_at(offset) {
            Some((_, part)) => error.at(part.content.source().name()),
            None => error,
        }
    }
}

/// Numbers by digest, of which several entries may be equal: 8 bytes of memory a slot. Digests and numbers lie in a store,
/// and are looked at when 32 bits of a digest are equal.
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
    /// An empty index, without a bound.
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
    fn all(&self, digest: &Sha256Digest) -> Vec<u64> {
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

/// Puts the entry `index` into the first slot for `tag` that is vacant.
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
    use crate::spill::tests::small_store;
    use crate::test_source::content;

    fn new(prefix: &[u8], sharing: FragmentSharing) -> PackedFile {
        PackedFile::new(prefix, sharing, &SpillStore::new(crate::SpillOptions::default()))
    }

    fn read(packed: &mut PackedFile) -> Vec<u8> {
        let content =
            std::mem::replace(packed, new(&[], FragmentSharing::Off)).into_content().unwrap();
        let mut bytes = vec![0; usize::try_from(content.bytes()).unwrap()];
        let (prefix, back) = bytes.split_at_mut(3);
        let mut reader = content.source().open().unwrap();
        reader.read_exact_at(0, prefix).unwrap();
        reader.read_exact_at(3, back).unwrap();
        bytes
    }

    #[test]
    fn equal_tails_and_tails_of_tails_lie_there_once() {
        let long: Vec<u8> = (0..200).collect();
        let (one, same) = (content("one", &long), content("same", &long));
        let end = content("end", &long[100..]);
        let other = content("other", &long[..100]);
        let mut packed = new(&[], FragmentSharing::Parts);
        assert_eq!(packed.add_tail(&one, FileTail::of(&long)).unwrap(), 0);
        assert_eq!(packed.add_tail(&same, FileTail::of(&long)).unwrap(), 0);
        assert_eq!(packed.add_tail(&end, FileTail::of(&long[100..])).unwrap(), 100);
        assert_eq!(packed.add_tail(&other, FileTail::of(&long[..100])).unwrap(), 200);
        assert_eq!(read(&mut packed), [&long[..], &long[..100]].concat());
    }

    #[test]
    fn a_longer_tail_with_the_same_end_is_stored_again() {
        let long: Vec<u8> = (0..200).collect();
        let mut packed = new(&[], FragmentSharing::Parts);
        packed.add_tail(&content("short", &long[100..]), FileTail::of(&long[100..])).unwrap();
        assert_eq!(packed.add_tail(&content("long", &long), FileTail::of(&long)).unwrap(), 100);
    }

    #[test]
    fn only_the_end_of_a_file_goes_in() {
        let whole: Vec<u8> = (0..50).collect();
        let mut packed = new(&[], FragmentSharing::Parts);
        packed.add_tail(&content("file", &whole), FileTail::of(&whole[40..])).unwrap();
        assert_eq!(read(&mut packed), &whole[40..]);
    }

    #[test]
    fn sharing_is_of_parts_of_files_or_off() {
        let long: Vec<u8> = (0..200).collect();
        let places = |sharing| {
            let mut packed = new(b"front", sharing);
            let mut add = |name, bytes: &[u8], tail: &[u8]| {
                packed.add_tail(&content(name, bytes), FileTail::of(tail)).unwrap()
            };
            [
                add("one", &long, &long),
                add("same", &long, &long),
                add("end", &long, &long[100..]),
                add("same end", &long, &long[100..]),
            ]
        };
        assert_eq!(places(FragmentSharing::Parts), [5, 5, 105, 105]);
        assert_eq!(places(FragmentSharing::Files), [5, 5, 205, 305]);
        assert_eq!(places(FragmentSharing::Off), [5, 205, 405, 505]);
    }

    #[test]
    fn the_prefix_comes_first() {
        let mut packed = new(b"front", FragmentSharing::Parts);
        packed.add_file(&content("file", b"file"), None).unwrap();
        assert_eq!(read(&mut packed), b"frontfile");
    }

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
