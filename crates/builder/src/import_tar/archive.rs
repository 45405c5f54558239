//! The contents of an archive: they are read from its file, from memory, or from a spool. A spool keeps bytes that can
//! be read only once, from a pipe or a compressed archive: first in memory, then in a file without a name.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::headers::SparseExtent;
use crate::spill::open_unlinked;
use crate::spill::paged::{RecordDecoder, RecordEncoder};
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

/// Small enough that little memory is reserved in vain, large enough that a spool has few chunks.
const CHUNK_BYTES: usize = 1 << 20;

/// Where contents that can be read only once are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpoolOptions {
    /// The most bytes in memory; more go into a file.
    pub memory_bytes_max: u64,
    /// The directory of that file, which has no name. `None`: a memfd, which can be swapped out.
    pub directory: Option<PathBuf>,
    /// The most bytes of the spool; `None`: as many as the host can store.
    pub spool_bytes_max: Option<u64>,
}

option_setters! { SpoolOptions {
    memory_bytes_max: u64,
    directory: Option<PathBuf>,
    spool_bytes_max: Option<u64>,
} }

impl Default for SpoolOptions {
    /// 64 MiB in memory, the rest in a memfd, without a limit.
    fn default() -> Self {
        Self { memory_bytes_max: 64 << 20, directory: None, spool_bytes_max: None }
    }
}

/// A spool that is being filled.
#[derive(Debug)]
pub(super) struct SpoolWriter {
    options: SpoolOptions,
    chunks: Vec<Vec<u8>>,
    memory_bytes: u64,
    file: Option<File>,
    file_bytes: u64,
}

impl SpoolWriter {
    /// An empty spool.
    pub(super) fn new(options: SpoolOptions) -> Self {
        Self { options, chunks: Vec::new(), memory_bytes: 0, file: None, file_bytes: 0 }
    }

    /// The number of bytes in the spool.
    pub(super) fn bytes(&self) -> u64 {
        self.memory_bytes + self.file_bytes
    }

    /// The most bytes that the spool may hold.
    pub(super) fn bytes_max(&self) -> Option<u64> {
        self.options.spool_bytes_max
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// The host has no space or memory for them.
    pub(super) fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() && self.file.is_none() {
            let spare = self.spare_capacity()?;
            let (front, rest) = bytes.split_at(spare.min(bytes.len()));
            if front.is_empty() {
                self.file = Some(self.new_file()?);
                break;
            }
            if let Some(chunk) = self.chunks.last_mut() {
                chunk.extend_from_slice(front);
            }
            self.memory_bytes += front.len() as u64;
            bytes = rest;
        }
        if let Some(file) = &self.file {
            let end = self.file_bytes + bytes.len() as u64;
            // Zeros become a hole, so that an archive of a few bytes cannot fill up the disk.
            let written = match bytes.iter().all(|byte| *byte == 0) {
                true => file.set_len(end),
                false => file.write_all_at(bytes, self.file_bytes),
            };
            written.map_err(|error| self.refused("cannot write to the spool", error))?;
            self.file_bytes = end;
        }
        Ok(())
    }

    /// The free bytes of the last chunk, which is a new one if necessary; 0 if the memory is used
    /// up.
    fn spare_capacity(&mut self) -> Result<usize> {
        let in_last = self.chunks.last().map_or(0, |chunk| CHUNK_BYTES - chunk.len());
        let left = self.options.memory_bytes_max.saturating_sub(self.memory_bytes);
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        if in_last > 0 || wanted == 0 {
            return Ok(in_last.min(wanted));
        }
        let mut chunk = Vec::new();
        // Without memory for a chunk the bytes go into the file.
        if chunk.try_reserve_exact(wanted).is_err() || self.chunks.try_reserve(1).is_err() {
            return Ok(0);
        }
        self.chunks.push(chunk);
        Ok(wanted)
    }

    fn new_file(&self) -> Result<File> {
        open_unlinked(self.options.directory.as_deref())
            .map_err(|error| self.refused("cannot create the spool file", error))
    }

    fn refused(&self, operation: &'static str, source: io::Error) -> Error {
        let error = Error::new(ErrorKind::Output { operation, source });
        match &self.options.directory {
            Some(directory) => error.at(directory),
            None => error,
        }
    }

    /// Ends writing; all threads can read the result.
    pub(super) fn finish(self) -> SpoolReader {
        SpoolReader { chunks: self.chunks, memory_bytes: self.memory_bytes, file: self.file }
    }
}

/// A spool that is complete.
#[derive(Debug)]
pub(super) struct SpoolReader {
    /// All but the last are [`CHUNK_BYTES`] long.
    chunks: Vec<Vec<u8>>,
    memory_bytes: u64,
    file: Option<File>,
}

impl SpoolReader {
    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The host cannot read them, or the spool is shorter.
    fn read_exact_at(&self, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() && offset < self.memory_bytes {
            let chunk_bytes = CHUNK_BYTES as u64;
            let number = usize::try_from(offset / chunk_bytes).unwrap_or(usize::MAX);
            let at = usize::try_from(offset % chunk_bytes).unwrap_or(usize::MAX);
            let ready = self.chunks.get(number).and_then(|chunk| chunk.get(at..));
            let ready = ready.filter(|ready| !ready.is_empty());
            let ready = ready.ok_or(io::ErrorKind::UnexpectedEof)?;
            let (front, rest) = buffer.split_at_mut(ready.len().min(buffer.len()));
            front.copy_from_slice(&ready[..front.len()]);
            offset += front.len() as u64;
            buffer = rest;
        }
        match &self.file {
            _ if buffer.is_empty() => Ok(()),
            Some(file) => file.read_exact_at(buffer, offset - self.memory_bytes),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..=250).cycle().flat_map(|byte| [byte; 7]).take(bytes).collect()
    }

    fn check(options: SpoolOptions, bytes: usize, piece: usize) -> SpoolReader {
        let wanted = pattern(bytes);
        let mut spool = SpoolWriter::new(options);
        for piece in wanted.chunks(piece) {
            spool.append(piece).unwrap();
        }
        assert_eq!(spool.bytes(), bytes as u64);
        let spooled = spool.finish();
        for (start, length) in [(0, bytes), (1, bytes - 1), (bytes / 2, bytes / 3), (bytes - 1, 1)]
        {
            let mut buffer = vec![0; length];
            spooled.read_exact_at(start as u64, &mut buffer).unwrap();
            assert!(buffer == wanted[start..start + length], "{start} {length}");
        }
        let mut buffer = [0; 2];
        assert!(spooled.read_exact_at(bytes as u64 - 1, &mut buffer).is_err());
        spooled
    }

    #[test]
    fn bytes_stay_in_memory_up_to_the_limit() {
        let spooled = check(SpoolOptions::default(), 3_500_000, 9_999);
        assert!(spooled.file.is_none());
    }

    #[test]
    fn what_is_more_goes_into_a_file_without_a_name() {
        let directory = tempfile::tempdir().unwrap();
        for place in [None, Some(directory.path().to_path_buf())] {
            for memory_bytes_max in [0, 1, 1 << 20, 1_500_000] {
                let options = SpoolOptions {
                    memory_bytes_max,
                    directory: place.clone(),
                    spool_bytes_max: None,
                };
                let spooled = check(options, 3_500_000, 70_001);
                assert_eq!(spooled.memory_bytes, memory_bytes_max);
                assert!(spooled.file.is_some());
            }
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn zeros_take_no_blocks_of_the_spool_file() {
        use std::os::unix::fs::MetadataExt;

        let directory = tempfile::tempdir().unwrap();
        let options = SpoolOptions::default()
            .memory_bytes_max(0)
            .directory(Some(directory.path().to_path_buf()));
        let mut spool = SpoolWriter::new(options);
        let zeros = vec![0; 128 << 10];
        spool.append(b"front").unwrap();
        for _ in 0..64 {
            spool.append(&zeros).unwrap();
        }
        spool.append(b"back").unwrap();
        let spooled = spool.finish();
        let file = spooled.file.as_ref().unwrap().metadata().unwrap();
        assert_eq!(file.len(), (8 << 20) + 9);
        assert!(file.blocks() * 512 < 1 << 20, "{}", file.blocks());
        let mut end = [1; 8];
        spooled.read_exact_at((8 << 20) + 1, &mut end).unwrap();
        assert_eq!(&end, b"\0\0\0\0back");
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let options = SpoolOptions {
            memory_bytes_max: 0,
            directory: Some("/nowhere/at/all".into()),
            spool_bytes_max: None,
        };
        let error = SpoolWriter::new(options).append(b"x").unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/at/all: cannot create the spool file: "));
    }
}
