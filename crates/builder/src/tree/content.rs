//! The bytes of a regular file: their number, and how to read them, any number of times; external devices on
//! which they may lie; and contents in a store: of each the number of its provider and its key there, so that it
//! takes little memory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::spill::SpillStore;
use crate::spill::paged::PagedBytes;
use crate::spill::paged::{RecordDecoder, RecordEncoder};
use crate::{Error, ErrorKind, Result};

/// Where the bytes of a regular file come from.
///
/// They are read by several threads, more than once, and must be the same each time: a [`ContentSource`] whose
/// bytes changed returns an error instead of other bytes.
#[derive(Clone)]
pub struct Content {
    origin: ContentOrigin,
    bytes: u64,
    extents: Option<Arc<[SourceExtent]>>,
}

/// Where a source comes from.
#[derive(Clone)]
pub(super) enum ContentOrigin {
    /// It is there, and a tree keeps it in memory.
    Source(Arc<dyn ContentSource>),
    /// It is made when it is needed, and a tree keeps the bytes that say which file it is.
    Provider(Arc<dyn ContentProvider>, Arc<[u8]>),
}

/// Something that has many files, such as an archive, and makes the source of each when it is needed. A tree stores
/// what says which file it is, so that a million of files takes little memory.
pub trait ContentProvider: Send + Sync {
    /// The source of the file `key`.
    fn content_source(self: Arc<Self>, key: &[u8]) -> Arc<dyn ContentSource>;
}

/// Something that holds the bytes of one file, and can be opened any number of times.
pub trait ContentSource: Send + Sync {
    /// What messages call it: a path of the host, or of an archive with the name in it.
    fn name(&self) -> String;

    /// Opens it for reading.
    ///
    /// # Errors
    /// The host refuses, or the file changed after its import.
    fn open(&self) -> Result<Box<dyn ContentReader>>;

    /// The ranges that hold data, ascending and apart; what lies between them is holes, which read as
    /// zeros. One range of everything where holes are not known.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    fn data_ranges(&self) -> Result<Vec<Range<u64>>>;
}

/// An open file of the source.
pub trait ContentReader: Send {
    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The host refuses, or the file ends before the buffer is full, which is a changed source.
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// Checks that what was read is what was imported. To be called after the last byte.
    ///
    /// # Errors
    /// [`ErrorKind::SourceChanged`](crate::ErrorKind::SourceChanged).
    fn check_unchanged(&mut self) -> Result<()>;
}

impl Content {
    /// The content that `source` holds, of `bytes` bytes.
    #[must_use]
    pub fn new(source: Arc<dyn ContentSource>, bytes: u64) -> Self {
        Self { origin: ContentOrigin::Source(source), bytes, extents: None }
    }

    /// The content of the file `key` of `provider`, of `bytes` bytes.
    #[must_use]
    pub fn of_provider(provider: Arc<dyn ContentProvider>, key: &[u8], bytes: u64) -> Self {
        Self { origin: ContentOrigin::Provider(provider, key.into()), bytes, extents: None }
    }

    /// Whether its source is made anew each time, which takes as long as what says which file it is, such as the map of a
    /// sparse file.
    pub(crate) fn is_provided(&self) -> bool {
        matches!(self.origin, ContentOrigin::Provider(..))
    }

    /// Whether it is a clone of `other`.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same = match (&self.origin, &other.origin) {
            (ContentOrigin::Source(one), ContentOrigin::Source(other)) => Arc::ptr_eq(one, other),
            (ContentOrigin::Provider(_, one), ContentOrigin::Provider(_, other)) => {
                Arc::ptr_eq(one, other)
            }
            _ => false,
        };
        is_same && self.bytes == other.bytes && self.extents == other.extents
    }

    pub(super) fn origin(&self) -> &ContentOrigin {
        &self.origin
    }

    /// The same content, which lies on devices of its tree: the image refers to the extents there, as far as
    /// each begins at a block's start in the file and on its device. What lies between extents is holes.
    #[must_use]
    pub fn on_devices(self, extents: Vec<SourceExtent>) -> Self {
        Self { extents: Some(extents.into()), ..self }
    }

    /// The extents that lie on devices, if any do.
    #[must_use]
    pub fn extents(&self) -> Option<&[SourceExtent]> {
        self.extents.as_deref()
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it is.
    #[must_use]
    pub fn source(&self) -> Arc<dyn ContentSource> {
        match &self.origin {
            ContentOrigin::Source(source) => Arc::clone(source),
            ContentOrigin::Provider(provider, key) => Arc::clone(provider).content_source(key),
        }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content")
            .field("source", &self.source().name())
            .field("bytes", &self.bytes)
            .finish()
    }
}

/// A file or block device that an image can refer to. The first of a tree has the number 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// A name or digest for the image's device table, padded with zeros; all zeros for none.
    pub tag: [u8; 64],
    /// Its size in bytes.
    pub bytes: u64,
}

/// A range of a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceExtent {
    /// The first byte in the file.
    pub start: u64,
    /// How many; not 0.
    pub bytes: u64,
    /// Where they lie; `None` for bytes that lie on no device, which are copied to the image.
    pub place: Option<DeviceAddress>,
}

impl SourceExtent {
    /// The byte of the file behind it.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

/// A byte of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAddress {
    /// The device's number, from 1.
    pub device: u16,
    /// The byte of it.
    pub offset: u64,
}

/// A file of `file_bytes` bytes of which only the part from byte `start` on exists; the rest is never read.
/// Messages call it `name`.
pub(crate) fn memory_content(
    name: &'static str,
    start: u64,
    part: Vec<u8>,
    file_bytes: u64,
) -> Content {
    Content::new(Arc::new(MemoryContent { name, start, part: part.into() }), file_bytes)
}

/// A file of `bytes`, which lie in a store. Messages call it `name`.
pub(crate) fn stored_content(name: &'static str, bytes: PagedBytes) -> Content {
    let length = bytes.len();
    Content::new(Arc::new(StoredContent { name, bytes: Arc::new(bytes) }), length)
}

#[derive(Clone)]
struct StoredContent {
    name: &'static str,
    bytes: Arc<PagedBytes>,
}

impl ContentSource for StoredContent {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        Ok(Box::new(self.clone()))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        Ok(std::iter::once(0..self.bytes.len()).collect())
    }
}

impl ContentReader for StoredContent {
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.bytes.read(offset, buffer);
        self.bytes.check()
    }

    fn check_unchanged(&mut self) -> Result<()> {
        Ok(())
    }
}

#[derive(Clone)]
struct MemoryContent {
    name: &'static str,
    start: u64,
    part: Arc<Vec<u8>>,
}

impl ContentSource for MemoryContent {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        Ok(Box::new(self.clone()))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        let end = self.start.saturating_add(self.part.len() as u64);
        Ok(std::iter::once(self.start..end).collect())
    }
}

impl ContentReader for MemoryContent {
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let from = offset.checked_sub(self.start).and_then(|from| usize::try_from(from).ok());
        let bytes = from.and_then(|from| self.part.get(from..)?.get(..buffer.len()));
        let gone = || Error::new(ErrorKind::Internal("a read outside of what was made"));
        buffer.copy_from_slice(bytes.ok_or_else(gone)?);
        Ok(())
    }

    fn check_unchanged(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Contents by the place where they are described.
pub(crate) struct ContentTable {
    descriptions: PagedBytes,
    /// Contents that no provider can make again.
    kept: Vec<Content>,
    providers: Vec<Arc<dyn ContentProvider>>,
    has_extents: bool,
}

impl fmt::Debug for ContentTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentTable").field("kept", &self.kept.len()).finish_non_exhaustive()
    }
}

impl ContentTable {
    pub(crate) fn new(store: &SpillStore) -> Self {
        let descriptions = PagedBytes::new(store);
        Self { descriptions, kept: Vec::new(), providers: Vec::new(), has_extents: false }
    }

    /// The bytes of all descriptions.
    pub(crate) fn bytes(&self) -> u64 {
        self.descriptions.len()
    }

    /// Whether some content lies on devices.
    pub(crate) fn has_extents(&self) -> bool {
        self.has_extents
    }

    /// Adds a content, and returns where it is described.
    pub(crate) fn add(&mut self, content: &Content) -> u64 {
        self.has_extents |= content.extents().is_some();
        let mut encoder = RecordEncoder::default();
        match content.origin() {
            ContentOrigin::Source(_) => {
                encoder.number(0).number(self.kept.len() as u64);
                self.kept.push(content.clone());
                return self.descriptions.append_blob(&encoder.bytes);
            }
            ContentOrigin::Provider(provider, key) => {
                let known = self.providers.iter().rposition(|known| Arc::ptr_eq(known, provider));
                let number = known.unwrap_or_else(|| {
                    self.providers.push(Arc::clone(provider));
                    self.providers.len() - 1
                });
                encoder.number(number as u64 + 1).string(key);
            }
        }
        if let Some(extents) = content.extents() {
            encoder.number(1);
            for extent in extents {
                let place = extent.place.unwrap_or(DeviceAddress { device: 0, offset: 0 });
                encoder.number(extent.start).number(extent.bytes);
                encoder.number(place.device.into()).number(place.offset);
            }
        }
        self.descriptions.append_blob(&encoder.bytes)
    }

    /// The content that is described at `place`, of `bytes` bytes.
    pub(crate) fn get(&self, place: u64, bytes: u64) -> Content {
        let description = self.descriptions.read_blob(place);
        let mut decoder = RecordDecoder::new(&description);
        let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        // Only a description that could not be read describes nothing; then the store has an error.
        let lost = || memory_content("a file that could not be read back", 0, Vec::new(), bytes);
        let Some(number) = decoder.number().checked_sub(1) else {
            return self.kept.get(index(decoder.number())).cloned().unwrap_or_else(lost);
        };
        let Some(provider) = self.providers.get(index(number)) else { return lost() };
        let content = Content::of_provider(Arc::clone(provider), decoder.string(), bytes);
        if decoder.is_empty() {
            return content;
        }
        decoder.number();
        let mut extents = Vec::new();
        while !decoder.is_empty() {
            let (start, bytes) = (decoder.number(), decoder.number());
            let device = u16::try_from(decoder.number()).unwrap_or(u16::MAX);
            let place = DeviceAddress { device, offset: decoder.number() };
            extents.push(SourceExtent { start, bytes, place: Some(place).filter(|_| device > 0) });
        }
        content.on_devices(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_where_it_lies_in_the_file() {
        let content = memory_content("made", 100, vec![1, 2, 3, 4], 1000);
        let mut reader = content.source().open().unwrap();
        let mut buffer = [0; 2];
        reader.read_exact_at(101, &mut buffer).unwrap();
        assert_eq!((buffer, content.bytes()), ([2, 3], 1000));
        assert_eq!(content.source().data_ranges().unwrap().first(), Some(&(100..104)));
        for outside in [99, 103, 104] {
            reader.read_exact_at(outside, &mut buffer).unwrap_err();
        }
    }
}
