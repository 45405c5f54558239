//! The bytes of a regular file: how many there are, and how to read them, as often as needed.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::SourceExtent;
use crate::Result;

/// Where the bytes of a regular file come from.
///
/// They are read by several threads, more than once, and must be the same each time: a [`ContentSource`] whose
/// bytes changed says so instead of handing out others.
#[derive(Clone)]
pub struct Content {
    source: Arc<dyn ContentSource>,
    bytes: u64,
    extents: Option<Arc<[SourceExtent]>>,
}

/// Something that holds the bytes of one file, and can be opened any number of times.
pub trait ContentSource: Send + Sync {
    /// What messages call it: a path of the host, or of an archive with the name in it.
    fn name(&self) -> String;

    /// Opens it for reading.
    ///
    /// # Errors
    /// The host refuses, or it is not what it was when it was imported.
    fn open(&self) -> Result<Box<dyn ContentReader>>;

    /// The ranges that hold data, ascending and apart; what lies between them is holes, which read as
    /// zeros. One range of everything where holes cannot be told.
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

    /// Whether what was read is what was imported: to be asked after the last byte.
    ///
    /// # Errors
    /// [`ErrorKind::SourceChanged`](crate::ErrorKind::SourceChanged).
    fn check_unchanged(&mut self) -> Result<()>;
}

impl Content {
    /// The content that `source` holds, of `bytes` bytes.
    #[must_use]
    pub fn new(source: Arc<dyn ContentSource>, bytes: u64) -> Self {
        Self { source, bytes, extents: None }
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
    pub fn source(&self) -> &Arc<dyn ContentSource> {
        &self.source
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content")
            .field("source", &self.source.name())
            .field("bytes", &self.bytes)
            .finish()
    }
}
