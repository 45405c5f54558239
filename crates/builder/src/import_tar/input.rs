//! An archive as one stream from its start to its end. Contents stay where they are, or are copied
//! to a spool. Layers of container images are digested while they are read, and the digest is compared at the end.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_workers::CancelToken;
use sha2::{Digest as _, Sha256};

use super::archive::{ArchiveBacking, ArchiveFingerprint, SpoolWriter, TarArchive};
use super::headers::{BLOCK_BYTES, SparseExtent};
use super::{TarContentMode, TarImportOptions, TarSource, display_name, refused};
use crate::context::check_cancelled;
use crate::decompress::{Compression, CorruptStream, CountingReader, PipeReader, WindowMemory};
use crate::{BuildOptions, Error, ErrorKind, Result};

/// Read at once for headers; it includes the contents of small files.
const WINDOW_BYTES: usize = 32 << 10;
/// Copied at once to a spool.
const COPY_BYTES: usize = 128 << 10;
/// Read after the end of an uncompressed stream, so that its writer does not get a broken pipe:
/// tars pad the last record, which has 10 KiB by default and hardly ever more than this.
const DRAINED_BYTES_MAX: u64 = 1 << 20;

/// Bytes that any archive may have by default, however small it is while it is compressed.
const BYTES_ALWAYS_ALLOWED: u64 = 1 << 30;
/// How many times as long an archive may become by default when it is decompressed. Files of zeros become longer.
const RATIO_MAX: u64 = 1000;
/// Bytes that an archive may have by default at most.
const BYTES_MAX: u64 = 1 << 40;

/// How many bytes an archive may have, after decompression, with its [stored holes](StoredHoles), and with 512 bytes for
/// each directory that has no entry, only paths below it. An archive of a few kilobytes can decompress to terabytes, or
/// claim a sparse file of that size, all of which would be read and stored; and its paths can lead through a thousand
/// times as many directories as it has entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputLimit {
    /// 1 GiB, or 1,000 times as many bytes as it has while it is compressed, and at most 1 TiB.
    #[default]
    Default,
    /// So many bytes.
    Bytes(u64),
}

impl InputLimit {
    /// The most bytes for an archive, or another source, that has `compressed_bytes` bytes itself.
    #[must_use]
    pub fn bytes(self, compressed_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Default => {
                compressed_bytes.saturating_mul(RATIO_MAX).clamp(BYTES_ALWAYS_ALLOWED, BYTES_MAX)
            }
        }
    }

    fn exceeded(self, bytes: u64) -> InputTooLarge {
        let why = match self {
            Self::Bytes(_) => "the limit for an archive",
            Self::Default if bytes >= BYTES_MAX => "the default limit for an archive",
            Self::Default => "1,000 times its compressed size",
        };
        InputTooLarge(format!(
            "the archive has more than {bytes} bytes, {why}; --max-input allows more"
        ))
    }
}

/// Which holes of sparse files count as bytes of the archive: those that the image stores as zeros, that are encoded, or that
/// a digest covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredHoles {
    /// All, as in images that are compressed, that have flat files, or that have digests of files.
    #[default]
    All,
    /// Those of files that have data, too.
    WithData,
    /// Those of files that are copied since no block of `block_bytes` bytes can refer to their data.
    Copied {
        /// Bytes of a block.
        block_bytes: u32,
    },
    /// None, as in images with chunks.
    None,
}

impl StoredHoles {
    /// What an image with these options stores of an archive that is imported with `contents`.
    #[must_use]
    pub fn of(options: &BuildOptions, contents: TarContentMode) -> Self {
        let block_bytes = options.block_size.bytes();
        match contents {
            TarContentMode::HeadersOnly => Self::None,
            _ if options.digest_xattr.is_some() => Self::All,
            _ if options.algorithms.is_none() && options.chunk_bytes.is_some() => Self::None,
            TarContentMode::Index => Self::Copied { block_bytes },
            TarContentMode::Copy if options.algorithms.is_none() && options.wide => Self::WithData,
            TarContentMode::Copy => Self::All,
        }
    }

    /// Whether the image stores the holes of a file of `bytes` bytes with these data ranges.
    pub(super) fn counts(self, extents: &[SparseExtent], bytes: u64) -> bool {
        match self {
            Self::All => true,
            Self::WithData => !extents.is_empty(),
            Self::Copied { block_bytes } => {
                let is_whole = |at: u64| at.is_multiple_of(u64::from(block_bytes));
                let is_aligned = |extent: &SparseExtent| {
                    let end = extent.start.saturating_add(extent.bytes);
                    let ends_well = end == bytes || is_whole(end);
                    is_whole(extent.place) && is_whole(extent.start) && ends_well
                };
                !extents.iter().all(is_aligned)
            }
            Self::None => false,
        }
    }
}

/// The error of an archive that is longer than its limit, inside an [`io::Error`].
#[derive(Debug)]
struct InputTooLarge(String);

impl fmt::Display for InputTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InputTooLarge {}

/// A stream that ends with an error where its limit is.
struct LimitedReader {
    inner: Box<dyn Read + Send>,
    limit: InputLimit,
    /// Bytes that were returned.
    bytes: u64,
    compressed: CompressedBytes,
}

impl Read for LimitedReader {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(output)?;
        self.bytes = self.bytes.saturating_add(count as u64);
        let limit = self.limit.bytes(self.compressed.known());
        match self.bytes > limit {
            true => Err(io::Error::other(self.limit.exceeded(limit))),
            false => Ok(count),
        }
    }
}

/// The length of a compressed stream.
#[derive(Clone, Debug)]
struct CompressedBytes {
    /// That of the file, if it is one.
    whole: Option<u64>,
    read: Arc<AtomicU64>,
}

impl CompressedBytes {
    /// The bytes that it has in any case.
    fn known(&self) -> u64 {
        self.read.load(Ordering::Relaxed).max(self.whole.unwrap_or_default())
    }
}

/// What the image stores beside the bytes of the archive.
#[derive(Debug, Default)]
struct AddedBytes {
    holes: AddedPart,
    /// Headers that directories without an entry would have.
    directories: AddedPart,
}

/// Bytes of one kind.
#[derive(Debug, Default)]
struct AddedPart {
    bytes: u64,
    /// The entry with the most of them, as it is shown, and its place in the archive.
    most: u64,
    name: String,
    offset: u64,
}

impl AddedPart {
    fn add(&mut self, bytes: u64, name: &[u8], offset: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if bytes > self.most {
            (self.most, self.name, self.offset) = (bytes, display_name(name), offset);
        }
    }
}

impl AddedBytes {
    /// Compares the bytes of an archive with the limit for one of so many compressed bytes.
    fn check(&self, limit: InputLimit, archive_bytes: u64, compressed_bytes: u64) -> Result<()> {
        let Self { holes, directories } = self;
        let bytes = limit.bytes(compressed_bytes);
        let added = holes.bytes.saturating_add(directories.bytes);
        if added == 0 || archive_bytes.saturating_add(added) <= bytes {
            return Ok(());
        }
        let why = match limit {
            InputLimit::Bytes(_) => "the limit for an archive",
            InputLimit::Default => "the default limit for an archive of its length",
        };
        if directories.bytes > holes.bytes {
            let why = format!(
                "{}: with the directories that have no entry, only paths below them, the archive has more than {bytes} \
                 bytes, {why}; --max-input allows more",
                directories.name
            );
            return Err(refused(why, directories.offset));
        }
        let why = format!(
            "{}: with its holes the archive has more than {bytes} bytes, {why}; --max-input allows more, or \
             use a chunk size without compression and digests: then the image stores no holes",
            holes.name
        );
        Err(refused(why, holes.offset))
    }
}

/// An archive that is being read.
pub(super) struct TarInput {
    archive: Arc<TarArchive>,
    from: InputSource,
    /// The bytes of the (decompressed) archive that were read or skipped.
    offset: u64,
    added: AddedBytes,
    limit: InputLimit,
    cancel: CancelToken,
}

enum InputSource {
    /// The backing can be read in any order; the archive is the range of `bytes` bytes from `base`.
    Seekable { base: u64, bytes: u64, window: Vec<u8>, window_at: u64 },
    /// The archive can be read once.
    Stream {
        reader: Box<dyn Read + Send>,
        compressed: CompressedBytes,
        /// It is read to its end, where its checksum or its digest is compared.
        is_checked: bool,
        /// Its end is an error if it has another digest than it should have.
        is_digested: bool,
        /// Whether contents are copied to the spool.
        is_kept: bool,
        spool: SpoolWriter,
        buffer: Box<[u8]>,
    },
}

/// How to open one archive.
struct ArchiveOpener<'a> {
    name: PathBuf,
    options: &'a TarImportOptions,
    device: Option<u16>,
    window: WindowMemory,
    cancel: &'a CancelToken,
}

impl ArchiveOpener<'_> {
    fn open_file(self, mut file: File) -> Result<TarInput> {
        let metadata = file.metadata().map_err(|error| cannot_open(error).at(&self.name))?;
        if !metadata.is_file() {
            let reader = PipeReader::new(file, self.cancel.clone());
            return self.open_stream(Box::new(reader), None, None);
        }
        // A redirected file may have been read in part.
        let base = file.stream_position().map_err(|error| cannot_open(error).at(&self.name))?;
        let mut start = Vec::new();
        let read = (&mut file).take(WINDOW_BYTES as u64).read_to_end(&mut start);
        read.and_then(|_| file.seek(io::SeekFrom::Start(base)))
            .map_err(|error| cannot_open(error).at(&self.name))?;
        let compression = self.options.compression.unwrap_or_else(|| Compression::of(&start));
        let fingerprint = ArchiveFingerprint::of(&metadata);
        let bytes = fingerprint.bytes.saturating_sub(base);
        if compression != Compression::Plain || self.options.uncompressed_copy.is_some() {
            return self.open_stream(Box::new(file), Some(bytes), None);
        }
        self.open_seekable(ArchiveBacking::File { file, fingerprint }, base, bytes)
    }

    fn open_bytes(self, bytes: Arc<[u8]>) -> Result<TarInput> {
        let compression = self.options.compression.unwrap_or_else(|| Compression::of(&bytes));
        let length = bytes.len() as u64;
        if compression != Compression::Plain || self.options.uncompressed_copy.is_some() {
            return self.open_stream(Box::new(io::Cursor::new(bytes)), Some(length), None);
        }
        self.open_seekable(ArchiveBacking::Bytes(bytes), 0, length)
    }

    fn open_seekable(self, backing: ArchiveBacking, base: u64, bytes: u64) -> Result<TarInput> {
        if let InputLimit::Bytes(limit) = self.options.input
            && bytes > limit
        {
            return Err(refused(self.options.input.exceeded(limit).0, limit).at(&self.name));
        }
        let archive = Arc::new(TarArchive::new(self.name, self.device));
        archive.set_backing(backing);
        let from = InputSource::Seekable { base, bytes, window: Vec::new(), window_at: 0 };
        let (limit, cancel) = (self.options.input, self.cancel.clone());
        Ok(TarInput { archive, from, offset: 0, added: AddedBytes::default(), limit, cancel })
    }

    /// `length` is that of the stream before it is decompressed, if it is known.
    fn open_stream(
        self,
        reader: Box<dyn Read + Send>,
        length: Option<u64>,
        sha256: Option<[u8; 32]>,
    ) -> Result<TarInput> {
        let Self { name, options, device, window, cancel } = self;
        let mut input = CountingReader::new(reader, cancel.clone());
        let compression = match options.compression {
            Some(compression) => compression,
            None => Compression::detect(&mut input).map_err(|error| unreadable(error).at(&name))?,
        };
        if device.is_some() && options.compression.is_none() && compression != Compression::Plain {
            let why = "compressed, so no image can refer to its contents: decompress it first, or give its \
                       compression, to refer to the decompressed archive";
            return Err(refused(why, 0).at(&name));
        }
        let compressed = CompressedBytes { whole: length, read: input.read_counter() };
        let inner =
            compression.reader(input, window).map_err(|error| unreadable(error).at(&name))?;
        let limited =
            LimitedReader { inner, limit: options.input, bytes: 0, compressed: compressed.clone() };
        let mut reader: Box<dyn Read + Send> = Box::new(limited);
        if let Some(sha256) = sha256 {
            reader = Box::new(DigestedReader::new(reader, sha256));
        }
        if let Some(copy) = &options.uncompressed_copy {
            reader = Box::new(CopyingReader { inner: reader, copy: Arc::clone(copy) });
        }
        let from = InputSource::Stream {
            is_kept: device.is_none(),
            reader,
            compressed,
            is_checked: compression != Compression::Plain || sha256.is_some(),
            is_digested: sha256.is_some(),
            spool: SpoolWriter::new(options.spool.clone()),
            buffer: vec![0; COPY_BYTES].into_boxed_slice(),
        };
        let archive = Arc::new(TarArchive::new(name, device));
        let (limit, cancel) = (options.input, cancel.clone());
        Ok(TarInput { archive, from, offset: 0, added: AddedBytes::default(), limit, cancel })
    }
}

/// A reader that writes what it reads to a file.
struct CopyingReader {
    inner: Box<dyn Read + Send>,
    copy: Arc<File>,
}

impl Read for CopyingReader {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(output)?;
        let read = output.get(..count).unwrap_or_default();
        (&*self.copy).write_all(read).map_err(|error| {
            io::Error::new(error.kind(), format!("the copy of the archive: {error}"))
        })?;
        Ok(count)
    }
}

impl TarInput {
    /// Opens an archive. `device` is its number as a device of the image, if contents stay in it. A decoder may take
    /// `window`.
    pub(super) fn open(
        source: TarSource,
        options: &TarImportOptions,
        device: Option<u16>,
        window: WindowMemory,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let opener = ArchiveOpener { name: source.name(), options, device, window, cancel };
        match source {
            TarSource::Path(path) => {
                let opened = PipeReader::open_file(&path);
                let file = opened.map_err(|error| cannot_open(error).at(&path))?;
                opener.open_file(file)
            }
            TarSource::File { file, .. } => opener.open_file(file),
            TarSource::Bytes { bytes, .. } => opener.open_bytes(bytes),
            TarSource::Stream { reader, .. } => opener.open_stream(reader, None, None),
            TarSource::Digested { reader, sha256, .. } => {
                opener.open_stream(reader, None, Some(sha256))
            }
        }
    }

    /// The archive, from which contents will be read.
    pub(super) fn archive(&self) -> &Arc<TarArchive> {
        &self.archive
    }

    /// Whether the end of the stream is that of the whole archive, as its digest proves.
    pub(super) fn has_proved_end(&self) -> bool {
        matches!(self.from, InputSource::Stream { is_digested: true, .. })
    }

    /// The offset in the decompressed archive.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// What has to be asked from time to time where much is read and nothing is stored. The limit is that of the reader.
    ///
    /// # Errors
    /// The import was cancelled.
    pub(super) fn check_cancelled(&self) -> Result<()> {
        check_cancelled(&self.cancel)
    }

    /// Counts the `bytes` bytes of holes of the file `name`, whose entry is at `offset`: the image stores them. The limit
    /// of a stream of unknown length grows with it, so that it is compared at the end; nothing is stored until then.
    ///
    /// # Errors
    /// With them the archive has more bytes than it may.
    pub(super) fn count_holes(&mut self, bytes: u64, name: &[u8], offset: u64) -> Result<()> {
        self.added.holes.add(bytes, name, offset);
        self.check_added()
    }

    /// Counts `count` directories that have no entry, each as the header that it would have. The path `name` of the entry
    /// at `offset` leads through them.
    ///
    /// # Errors
    /// As [`count_holes`](Self::count_holes).
    pub(super) fn count_directories(&mut self, count: u64, name: &[u8], offset: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        self.added.directories.add(count.saturating_mul(BLOCK_BYTES as u64), name, offset);
        self.check_added()
    }

    fn check_added(&self) -> Result<()> {
        let length = match &self.from {
            InputSource::Seekable { bytes, .. } => Some(*bytes),
            InputSource::Stream { compressed, .. } => compressed.whole,
        };
        self.added.check(self.limit, self.offset, length.unwrap_or(u64::MAX))
    }

    /// Fills `output`, or less at the end of the archive. Returns the number of bytes.
    pub(super) fn read(&mut self, output: &mut [u8]) -> Result<usize> {
        let count = match &mut self.from {
            InputSource::Seekable { base, bytes, window, window_at } => {
                let left = usize::try_from(bytes.saturating_sub(self.offset)).unwrap_or(usize::MAX);
                let count = output.len().min(left);
                let output = output.get_mut(..count).unwrap_or_default();
                let within =
                    self.offset.checked_sub(*window_at).and_then(|at| usize::try_from(at).ok());
                let ready = within.and_then(|at| window.get(at..)?.get(..count));
                if let Some(ready) = ready {
                    output.copy_from_slice(ready);
                } else if count >= WINDOW_BYTES {
                    self.archive.read_exact_at(*base + self.offset, output)?;
                } else {
                    window.resize(left.min(WINDOW_BYTES), 0);
                    *window_at = self.offset;
                    self.archive.read_exact_at(*base + self.offset, window)?;
                    output.copy_from_slice(window.get(..count).unwrap_or_default());
                }
                count
            }
            InputSource::Stream { reader, .. } => read_full(reader, output).map_err(unreadable)?,
        };
        self.offset += count as u64;
        Ok(count)
    }

    /// Skips up to `bytes` bytes. Returns the number of bytes.
    pub(super) fn skip(&mut self, bytes: u64) -> Result<u64> {
        let count = match &mut self.from {
            InputSource::Seekable { bytes: whole, .. } => {
                bytes.min(whole.saturating_sub(self.offset))
            }
            InputSource::Stream { reader, buffer, .. } => {
                for_each(&self.cancel, reader, buffer, bytes, &mut |_| Ok(()))?
            }
        };
        self.offset += count;
        Ok(count)
    }

    /// Skips `bytes` bytes and stores them, so that they can be read later. Returns their offset in
    /// the backing, or `None` if the archive ends before. `name` is the file, for messages.
    pub(super) fn store(&mut self, bytes: u64, name: &[u8]) -> Result<Option<u64>> {
        let (place, count) = match &mut self.from {
            InputSource::Seekable { base, bytes: whole, .. } => {
                (*base + self.offset, bytes.min(whole.saturating_sub(self.offset)))
            }
            InputSource::Stream { reader, buffer, is_kept: false, .. } => {
                (self.offset, for_each(&self.cancel, reader, buffer, bytes, &mut |_| Ok(()))?)
            }
            InputSource::Stream { reader, spool, buffer, .. } => {
                let place = spool.bytes();
                if let Some(max) = spool.bytes_max()
                    && place.saturating_add(bytes) > max
                {
                    let why = format!(
                        "{}: contents of more than {max} bytes, the limit of the spool",
                        display_name(name)
                    );
                    return Err(refused(why, self.offset));
                }
                (
                    place,
                    for_each(&self.cancel, reader, buffer, bytes, &mut |piece| {
                        spool.append(piece)
                    })?,
                )
            }
        };
        self.offset += count;
        Ok((count == bytes).then_some(place))
    }

    /// Ends reading, so that contents can be read. Returns the length of the archive.
    pub(super) fn finish(self) -> Result<u64> {
        let Self { archive, from, offset, added, limit, cancel } = self;
        let (mut reader, compressed, is_checked, is_kept, spool, mut buffer) = match from {
            InputSource::Stream {
                reader, compressed, is_checked, is_kept, spool, buffer, ..
            } => (reader, compressed, is_checked, is_kept, spool, buffer),
            InputSource::Seekable { base, bytes, .. } => {
                archive.check_unchanged()?;
                added.check(limit, offset, bytes)?;
                return Ok(base + bytes);
            }
        };
        let most = if is_checked { u64::MAX } else { DRAINED_BYTES_MAX };
        let rest = for_each(&cancel, &mut reader, &mut buffer, most, &mut |_| Ok(()))?;
        added.check(limit, offset, compressed.known())?;
        let backing =
            if is_kept { ArchiveBacking::Spool(spool.finish()) } else { ArchiveBacking::NotKept };
        archive.set_backing(backing);
        Ok(offset.saturating_add(rest))
    }
}

/// Passes up to `bytes` bytes to `take`, piece by piece. Returns the number of bytes.
fn for_each(
    cancel: &CancelToken,
    reader: &mut dyn Read,
    buffer: &mut [u8],
    bytes: u64,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<u64> {
    let mut left = bytes;
    while left > 0 {
        check_cancelled(cancel)?;
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let piece = buffer.get_mut(..wanted).unwrap_or_default();
        let got = read_full(reader, piece).map_err(unreadable)?;
        take(piece.get(..got).unwrap_or_default())?;
        left -= got as u64;
        if got < wanted {
            break;
        }
    }
    Ok(bytes - left)
}

/// Reads until `output` is full or the stream ends.
fn read_full(reader: &mut dyn Read, output: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < output.len() {
        match reader.read(output.get_mut(count..).unwrap_or_default()) {
            Ok(0) => break,
            Ok(got) => count += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

fn cannot_open(source: io::Error) -> Error {
    Error::new(ErrorKind::Input { operation: "cannot open", source })
}

/// The error of a stream: what a decompressor found, or an error of the host.
fn unreadable(source: io::Error) -> Error {
    let source = match source.downcast::<Error>() {
        Ok(error) => return error,
        Err(source) => source,
    };
    if let Some(limit) = source.get_ref().and_then(|inner| inner.downcast_ref::<InputTooLarge>()) {
        return Error::new(ErrorKind::Archive(limit.to_string()));
    }
    if let Some(wrong) = source.get_ref().and_then(|inner| inner.downcast_ref::<WrongDigest>()) {
        return Error::new(ErrorKind::Archive(wrong.to_string()));
    }
    match source.get_ref().and_then(|inner| inner.downcast_ref::<CorruptStream>()) {
        Some(damage) => refused(damage.to_string(), damage.offset),
        None => Error::new(ErrorKind::Input { operation: "cannot read", source }),
    }
}

/// A reader whose end is an error if the bytes do not have the digest.
struct DigestedReader {
    inner: Box<dyn Read + Send>,
    digest: Sha256,
    wanted: [u8; 32],
}

impl DigestedReader {
    pub(super) fn new(inner: Box<dyn Read + Send>, wanted: [u8; 32]) -> Self {
        Self { inner, digest: Sha256::new(), wanted }
    }
}

impl Read for DigestedReader {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(output)?;
        self.digest.update(output.get(..count).unwrap_or_default());
        let is_end = count == 0 && !output.is_empty();
        if is_end && self.digest.clone().finalize()[..] != self.wanted {
            return Err(io::Error::new(io::ErrorKind::InvalidData, WrongDigest));
        }
        Ok(count)
    }
}

/// The error of a stream with another digest, inside an [`io::Error`].
#[derive(Clone, Copy, Debug)]
struct WrongDigest;

impl fmt::Display for WrongDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the uncompressed archive does not have the digest that it should have")
    }
}

impl std::error::Error for WrongDigest {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_an_error_at_the_end() {
        let read = |bytes: &'static [u8]| {
            let wanted = Sha256::digest(b"some bytes").into();
            let mut output = Vec::new();
            DigestedReader::new(Box::new(bytes), wanted).read_to_end(&mut output).map(|_| output)
        };
        assert_eq!(read(b"some bytes").unwrap(), b"some bytes");
        for other in [&b"some byte"[..], b"some bytes.", b"", b"Some bytes"] {
            let error = read(other).unwrap_err();
            assert!(error.get_ref().unwrap().is::<WrongDigest>(), "{error}");
        }
    }
}
