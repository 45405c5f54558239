//! The packed inode before it is written: which parts of which files lie in it, each once. This module holds no
//! bytes of files; they are read again from their sources when the packed inode is compressed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::compress::output::FileTail;
use crate::digest::Sha256Digest;
use crate::tree::{Content, ContentReader, ContentSource, memory_content};
use crate::{Error, ErrorKind, FragmentSharing, Result};

/// Tails with the same end that are compared with a new one, at most.
const CANDIDATES_MAX: usize = 8;
/// Two tails are compared in parts of this many bytes.
const COMPARE_BYTES: u64 = 64 << 10;

/// What the packed inode is to hold.
#[derive(Debug)]
pub(crate) struct PackedFile {
    sharing: FragmentSharing,
    parts: Vec<PackedPart>,
    bytes: u64,
    by_digest: HashMap<(Sha256Digest, u64), u64>,
    /// Parts by the digest of their last bytes.
    by_end: HashMap<Sha256Digest, Vec<usize>>,
}

/// A range of a file, and where it lies in the packed inode.
#[derive(Clone, Debug)]
struct PackedPart {
    content: Content,
    range: Range<u64>,
    at: u64,
}

impl PackedFile {
    /// With `prefix` at its start, which belongs to no file.
    pub(crate) fn new(prefix: &[u8], sharing: FragmentSharing) -> Self {
        let (parts, bytes) = (Vec::new(), 0);
        let (by_digest, by_end) = (HashMap::new(), HashMap::new());
        let mut this = Self { sharing, parts, bytes, by_digest, by_end };
        if !prefix.is_empty() {
            let bytes = prefix.len() as u64;
            let name = "the prefixes of xattrs";
            let content = memory_content(name, 0, prefix.to_vec(), bytes);
            this.parts.push(PackedPart { content, range: 0..bytes, at: 0 });
            this.bytes = bytes;
        }
        this
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
        if let Some(&at) = self.by_digest.get(&(tail.digest, tail.bytes)) {
            return Ok(at);
        }
        let range = content.bytes().saturating_sub(tail.bytes)..content.bytes();
        let mut found = None;
        for &part in tail.end.iter().filter_map(|end| self.by_end.get(end)).flatten() {
            if let Some(part) = self.parts.get(part)
                && ends_with(part, content, range.clone())?
            {
                found = Some(part.at + (part.range.end - part.range.start) - tail.bytes);
                break;
            }
        }
        if let Some(at) = found {
            return Ok(at);
        }
        if let Some(end) = tail.end {
            let candidates = self.by_end.entry(end).or_default();
            if candidates.len() < CANDIDATES_MAX {
                candidates.push(self.parts.len());
            }
        }
        let at = self.append(content, range)?;
        self.by_digest.insert((tail.digest, tail.bytes), at);
        Ok(at)
    }

    /// Puts all of a file in, unless what has the same digest is there already. Returns where it lies.
    pub(crate) fn add_file(
        &mut self,
        content: &Content,
        digest: Option<Sha256Digest>,
    ) -> Result<u64> {
        let key = digest.map(|digest| (digest, content.bytes()));
        if let Some(&at) = key.and_then(|key| self.by_digest.get(&key)) {
            return Ok(at);
        }
        let at = self.append(content, 0..content.bytes())?;
        self.by_digest.extend(key.map(|key| (key, at)));
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
        self.parts.push(PackedPart { content: content.clone(), range, at });
        Ok(at)
    }

    /// The packed inode as a file to be read; none if it is empty.
    pub(crate) fn take_content(&mut self) -> Option<Content> {
        let parts = std::mem::take(&mut self.parts);
        (self.bytes > 0)
            .then(|| Content::new(Arc::new(PackedSource { parts: parts.into() }), self.bytes))
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
    parts: Arc<[PackedPart]>,
}

struct PackedReader {
    parts: Arc<[PackedPart]>,
    /// The part that was read last, which a long one goes on with.
    current: Option<(usize, Box<dyn ContentReader>)>,
}

impl ContentSource for PackedSource {
    fn name(&self) -> String {
        "the packed inode".to_owned()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        Ok(Box::new(PackedReader { parts: Arc::clone(&self.parts), current: None }))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        let end = self.parts.last().map_or(0, |part| part.at + (part.range.end - part.range.start));
        Ok(std::iter::once(0..end).collect())
    }
}

impl PackedReader {
    /// Reads from one part what of it belongs into `buffer`, and says how much that is.
    fn read_part(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let index = self.parts.partition_point(|part| part.at <= offset);
        let found = index.checked_sub(1).and_then(|index| Some((index, self.parts.get(index)?)));
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
        let index = self.parts.partition_point(|part| part.at <= offset);
        match index.checked_sub(1).and_then(|index| self.parts.get(index)) {
            Some(part) => error.at(part.content.source().name()),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_source::content;

    fn read(packed: &mut PackedFile) -> Vec<u8> {
        let content = packed.take_content().unwrap();
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
        let mut packed = PackedFile::new(&[], FragmentSharing::Parts);
        assert_eq!(packed.add_tail(&one, FileTail::of(&long)).unwrap(), 0);
        assert_eq!(packed.add_tail(&same, FileTail::of(&long)).unwrap(), 0);
        assert_eq!(packed.add_tail(&end, FileTail::of(&long[100..])).unwrap(), 100);
        assert_eq!(packed.add_tail(&other, FileTail::of(&long[..100])).unwrap(), 200);
        assert_eq!(read(&mut packed), [&long[..], &long[..100]].concat());
    }

    #[test]
    fn a_longer_tail_with_the_same_end_is_stored_again() {
        let long: Vec<u8> = (0..200).collect();
        let mut packed = PackedFile::new(&[], FragmentSharing::Parts);
        packed.add_tail(&content("short", &long[100..]), FileTail::of(&long[100..])).unwrap();
        assert_eq!(packed.add_tail(&content("long", &long), FileTail::of(&long)).unwrap(), 100);
    }

    #[test]
    fn only_the_end_of_a_file_goes_in() {
        let whole: Vec<u8> = (0..50).collect();
        let mut packed = PackedFile::new(&[], FragmentSharing::Parts);
        packed.add_tail(&content("file", &whole), FileTail::of(&whole[40..])).unwrap();
        assert_eq!(read(&mut packed), &whole[40..]);
    }

    #[test]
    fn sharing_is_of_parts_of_files_or_off() {
        let long: Vec<u8> = (0..200).collect();
        let places = |sharing| {
            let mut packed = PackedFile::new(b"front", sharing);
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
        let mut packed = PackedFile::new(b"front", FragmentSharing::Parts);
        packed.add_file(&content("file", b"file"), None).unwrap();
        assert_eq!(read(&mut packed), b"frontfile");
    }
}
