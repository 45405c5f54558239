//! Contents in a store: of each the number of its provider and its key there, so that it takes little memory.

use std::fmt;
use std::sync::Arc;

use super::content::{Content, ContentOrigin, ContentProvider, DeviceAddress, SourceExtent};
use super::memory_content;
use crate::spill::SpillStore;
use crate::spill::encoding::{RecordDecoder, RecordEncoder};
use crate::spill::paged::PagedBytes;

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
