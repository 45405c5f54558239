//! The contents of an archive: they are read from its file, from memory, or from a spool.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::pax::SparseExtent;
use crate::import::spool::SpoolReader;
use crate::spill::encoding::{RecordDecoder, RecordEncoder};
use crate::tree::{
    Content, ContentProvider, ContentReader, ContentSource, DeviceAddress, SourceExtent,
};
use crate::{Error, ErrorKind, Result};

/// Where the contents of the files of an archive are.
#[derive(Debug)]
pub(super) enum ArchiveBacking {
    /// In the uncompressed archive, a file that must not change.
    File { file: File, fingerprint: ArchiveFingerprint },
    /// In the uncompressed archive, in memory.
    Bytes(Arc<[u8]>),
    /// In a spool, the contents of one file after another.
    Spool(SpoolReader),
    /// In an archive that was a stream. Only the image refers to them.
    NotKept,
}

/// Size and times of an archive, by which a change is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArchiveFingerprint {
    pub(super) bytes: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl ArchiveFingerprint {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            bytes: metadata.len(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// An archive. Its contents can be read once it has been read to its end.
#[derive(Debug)]
pub(super) struct TarArchive {
    name: PathBuf,
    /// Its number as a device of the image, if the image refers to it.
    device: Option<u16>,
    /// Set when a spool is complete.
    backing: OnceLock<ArchiveBacking>,
}

impl TarArchive {
    pub(super) fn new(name: PathBuf, device: Option<u16>) -> Self {
        Self { name, device, backing: OnceLock::new() }
    }

    /// The name for messages.
    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    /// Sets where the contents are, once.
    pub(super) fn set_backing(&self, backing: ArchiveBacking) {
        let kept = self.backing.set(backing);
        assert!(kept.is_ok(), "an archive has one backing");
    }

    /// Fills `buffer` with the bytes at `place`.
    pub(super) fn read_exact_at(&self, place: u64, buffer: &mut [u8]) -> Result<()> {
        let read = match self.backing.get() {
            Some(ArchiveBacking::File { file, .. }) => file.read_exact_at(buffer, place),
            Some(ArchiveBacking::Bytes(bytes)) => copy(bytes, place, buffer),
            Some(ArchiveBacking::Spool(spooled)) => spooled.read_exact_at(place, buffer),
            Some(ArchiveBacking::NotKept) => {
                Err(io::Error::other("it was read as a stream and cannot be read again"))
            }
            None => Err(io::Error::other("the archive was not read to its end")),
        };
        read.map_err(|source| {
            // A file that is too short has changed since it was opened.
            self.check_unchanged().err().unwrap_or_else(|| {
                let kind = ErrorKind::Input { operation: "cannot read", source };
                Error::new(kind).at(&self.name).at_byte(place)
            })
        })
    }

    /// Checks that the file has not changed.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let Some(ArchiveBacking::File { file, fingerprint }) = self.backing.get() else {
            return Ok(());
        };
        let now = match file.metadata() {
            Ok(metadata) => ArchiveFingerprint::of(&metadata),
            Err(source) => {
                let kind = ErrorKind::Input { operation: "cannot read", source };
                return Err(Error::new(kind).at(&self.name));
            }
        };
        let how = if now.bytes != fingerprint.bytes {
            format!("its size was {} bytes and is now {}", fingerprint.bytes, now.bytes)
        } else if now.mtime != fingerprint.mtime {
            "its modification time has changed".to_owned()
        } else if now.ctime != fingerprint.ctime {
            "its change time has changed".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::SourceChanged { how }).at(&self.name))
    }
}

fn copy(bytes: &[u8], place: u64, buffer: &mut [u8]) -> io::Result<()> {
    let start = usize::try_from(place).unwrap_or(usize::MAX);
    let found = bytes.get(start..).and_then(|rest| rest.get(..buffer.len()));
    buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
    Ok(())
}

/// A regular file of an archive.
pub(super) struct TarFileContent(Arc<TarFileExtents>);

struct TarFileExtents {
    archive: Arc<TarArchive>,
    name: Box<[u8]>,
    segments: Box<[SparseExtent]>,
    bytes: u64,
}

/// The content of the file `name` of `bytes` bytes.
pub(super) fn content(
    archive: &Arc<TarArchive>,
    name: &[u8],
    segments: &[SparseExtent],
    bytes: u64,
) -> Content {
    let parts = archive.device.map(|device| {
        let place = |segment: &SparseExtent| Some(DeviceAddress { device, offset: segment.place });
        let part = |segment: &SparseExtent| SourceExtent {
            start: segment.start,
            bytes: segment.bytes,
            place: place(segment),
        };
        segments.iter().map(part).collect()
    });
    let mut encoder = RecordEncoder::default();
    encoder.string(name).number(bytes);
    for segment in segments {
        encoder.number(segment.start).number(segment.bytes).number(segment.place);
    }
    let archive: Arc<dyn ContentProvider> = Arc::<TarArchive>::clone(archive);
    let content = Content::of_provider(archive, &encoder.bytes, bytes);
    match parts {
        Some(parts) => content.on_devices(parts),
        None => content,
    }
}

impl ContentProvider for TarArchive {
    fn content_source(self: Arc<Self>, key: &[u8]) -> Arc<dyn ContentSource> {
        let mut decoder = RecordDecoder::new(key);
        let (name, bytes) = (decoder.string().into(), decoder.number());
        let mut segments = Vec::new();
        while !decoder.is_empty() {
            let (start, bytes) = (decoder.number(), decoder.number());
            segments.push(SparseExtent { start, bytes, place: decoder.number() });
        }
        let extents = TarFileExtents { archive: self, name, segments: segments.into(), bytes };
        Arc::new(TarFileContent(Arc::new(extents)))
    }
}

impl ContentSource for TarFileContent {
    fn name(&self) -> String {
        format!("{}: {}", self.0.archive.name().display(), String::from_utf8_lossy(&self.0.name))
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        self.0.archive.check_unchanged()?;
        Ok(Box::new(TarFileReader(Arc::clone(&self.0))))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        Ok(self.0.segments.iter().map(|part| part.start..part.start + part.bytes).collect())
    }
}

struct TarFileReader(Arc<TarFileExtents>);

impl ContentReader for TarFileReader {
    fn read_exact_at(&mut self, mut offset: u64, mut buffer: &mut [u8]) -> Result<()> {
        let parts = &*self.0;
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > parts.bytes) {
            let source = io::ErrorKind::UnexpectedEof.into();
            let kind = ErrorKind::Input { operation: "cannot read to its end", source };
            return Err(Error::new(kind)
                .at(TarFileContent(Arc::clone(&self.0)).name())
                .at_byte(offset));
        }
        let next = parts.segments.partition_point(|part| part.start + part.bytes <= offset);
        for part in parts.segments.iter().skip(next) {
            let hole = part.start.saturating_sub(offset);
            let zeros = split_front(&mut buffer, hole);
            zeros.fill(0);
            offset += zeros.len() as u64;
            if buffer.is_empty() {
                break;
            }
            let within = offset - part.start;
            let data = split_front(&mut buffer, part.bytes - within);
            parts.archive.read_exact_at(part.place + within, data)?;
            offset += data.len() as u64;
        }
        buffer.fill(0);
        Ok(())
    }

    fn check_unchanged(&mut self) -> Result<()> {
        self.0.archive.check_unchanged()
    }
}

/// Splits up to `bytes` bytes off the front of `buffer`.
fn split_front<'a>(buffer: &mut &'a mut [u8], bytes: u64) -> &'a mut [u8] {
    let whole = std::mem::take(buffer);
    let count = usize::try_from(bytes).unwrap_or(usize::MAX).min(whole.len());
    let (front, rest) = whole.split_at_mut(count);
    *buffer = rest;
    front
}
