//! Decompresses archives as streams: gzip, xz and zstd ([`formats`]), which are detected by their first bytes.
//!
//! Several members, streams or frames in a row are one stream. Checksums are verified. A [`WindowMemory`]
//! bounds the memory, whatever a header demands. Damage is a [`CorruptStream`]
//! inside the [`io::Error`], with the byte of the compressed stream. Used by `import_tar`.

mod formats;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_workers::CancelToken;
use ferrofs_workers::memory::trim_heap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::context::check_cancelled;
use crate::spill::{MemoryReservation, SpillStore};
use crate::{Error, ErrorKind};
use formats::{GzipReader, XzStream, ZstdReader};

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// It is not compressed.
    Plain,
    /// gzip (RFC 1952), one member or several.
    Gzip,
    /// xz, one stream or several.
    Xz,
    /// Zstandard (RFC 8878), one frame or several.
    Zstd,
}

/// The most bytes that identify a format.
const MAGIC_BYTES_MAX: usize = 6;

impl Compression {
    /// The compression of a stream with these first bytes.
    pub(super) fn of(start: &[u8]) -> Self {
        match start {
            [0x1F, 0x8B, ..] => Self::Gzip,
            [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            // A frame, or a skippable frame.
            [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Self::Zstd,
            _ => Self::Plain,
        }
    }

    /// The compression of `input`; no byte is consumed.
    pub(super) fn detect(input: &mut CountingReader) -> io::Result<Self> {
        Ok(Self::of(input.peek(MAGIC_BYTES_MAX)?))
    }

    /// The name of a compression that is not supported here, by the first bytes of a stream.
    pub(super) fn foreign(start: &[u8]) -> Option<&'static str> {
        match start {
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Some("bzip2"),
            [0x5D, 0, 0, ..] => Some("lzma"),
            [b'L', b'Z', b'I', b'P', ..] => Some("lzip"),
            [0x04, 0x22, 0x4D, 0x18, ..] => Some("lz4"),
            [0x1F, 0x9D, ..] => Some("compress"),
            [0x89, b'L', b'Z', b'O', 0, ..] => Some("lzop"),
            _ => None,
        }
    }

    /// The decompressed stream, whose decoder may take `window`.
    ///
    /// # Errors
    /// As of reading the stream.
    pub(super) fn reader(
        self,
        input: CountingReader,
        window: WindowMemory,
    ) -> io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Self::Plain => Box::new(input),
            Self::Gzip => Box::new(GzipReader::new(input)),
            Self::Xz => Box::new(XzStream::new(input, window)?),
            Self::Zstd => Box::new(ZstdReader::new(input, window)),
        })
    }
}

/// A compressed stream is damaged.
#[derive(Debug)]
pub(super) struct CorruptStream {
    /// The damage.
    pub(super) what: String,
    /// The byte of the compressed stream at which it was found.
    pub(super) offset: u64,
}

impl CorruptStream {
    /// A read error with the damage.
    fn error(what: impl Into<String>, offset: u64) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, Self { what: what.into(), offset })
    }
}

impl fmt::Display for CorruptStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {} of the compressed stream", self.what, self.offset)
    }
}

impl std::error::Error for CorruptStream {}

/// Large enough that the cost of system calls does not matter.
const BUFFER_BYTES: usize = 128 << 10;

/// A buffered reader that counts the consumed bytes, and reads nothing more once it is cancelled. Decoders skip padding,
/// empty members and frames that are not for them without a byte of output, so nobody else can end that.
pub(crate) struct CountingReader {
    inner: CancellableReader,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    position: u64,
    /// Bytes that were read from `inner`, for others to see.
    read: Arc<AtomicU64>,
}

impl CountingReader {
    pub(crate) fn new(inner: Box<dyn Read + Send>, cancel: CancelToken) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        let inner = CancellableReader { inner, cancel };
        Self { inner, buffer, start: 0, end: 0, position: 0, read: Arc::default() }
    }

    /// A counter of the bytes that were read, which outlives this reader.
    pub(crate) fn read_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.read)
    }

    /// # Errors
    /// The reader is cancelled: a decoder replaces the error of such a read by one of its own.
    fn check_cancelled(&self) -> io::Result<()> {
        self.inner.check_cancelled()
    }

    fn note_read(&self, bytes: usize) {
        // A statistic: it orders nothing.
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The number of consumed bytes.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The next `count` bytes, or fewer at the end; none is consumed. `count` is small.
    pub(super) fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        if self.end - self.start < count {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        while self.end - self.start < count && self.end < self.buffer.len() {
            let got = self.inner.read_some(&mut self.buffer[self.end..])?;
            if got == 0 {
                break;
            }
            self.note_read(got);
            self.end += got;
        }
        Ok(&self.buffer[self.start..self.end.min(self.start + count)])
    }

    /// The bytes in the buffer, which is filled if it is empty; empty at the end of the stream.
    pub(super) fn fill(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            self.start = 0;
            self.end = self.inner.read_some(&mut self.buffer)?;
            self.note_read(self.end);
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Consumes `count` of the bytes that [`fill`](Self::fill) returned.
    pub(super) fn consume(&mut self, count: usize) {
        let count = count.min(self.end - self.start);
        self.start += count;
        self.position += count as u64;
    }

    /// The next byte.
    pub(super) fn byte(&mut self) -> io::Result<Option<u8>> {
        let first = self.fill()?.first().copied();
        self.consume(usize::from(first.is_some()));
        Ok(first)
    }
}

impl Read for CountingReader {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        // Large reads bypass the buffer.
        if self.start == self.end && output.len() >= BUFFER_BYTES {
            let got = self.inner.read_some(output)?;
            self.note_read(got);
            self.position += got as u64;
            return Ok(got);
        }
        let ready = self.fill()?;
        let count = ready.len().min(output.len());
        output[..count].copy_from_slice(&ready[..count]);
        self.consume(count);
        Ok(count)
    }
}

struct CancellableReader {
    inner: Box<dyn Read + Send>,
    cancel: CancelToken,
}

impl CancellableReader {
    /// # Errors
    /// [`ErrorKind::Cancelled`], inside of the read error.
    fn check_cancelled(&self) -> io::Result<()> {
        check_cancelled(&self.cancel).map_err(io::Error::other)
    }

    fn read_some(&mut self, output: &mut [u8]) -> io::Result<usize> {
        loop {
            self.check_cancelled()?;
            match self.inner.read(output) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

/// How long a read of a pipe waits until it looks whether it is cancelled, in milliseconds.
const WAIT_MILLISECONDS: i64 = 200;

/// A pipe, terminal or socket: a read of it waits for bytes, but not once it is cancelled.
pub(crate) struct PipeReader {
    file: File,
    cancel: CancelToken,
}

impl PipeReader {
    pub(crate) fn new(file: File, cancel: CancelToken) -> Self {
        Self { file, cancel }
    }

    /// Opens a file for reading. If it is a FIFO, the open waits for no writer; the first read does.
    pub(crate) fn open_file(path: &Path) -> io::Result<File> {
        let is_fifo = std::fs::metadata(path)?.file_type().is_fifo();
        // On a regular file, the flag would make a lease of another process an error.
        let flags = if is_fifo { OFlags::NONBLOCK } else { OFlags::empty() };
        File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)
    }
}

impl Read for PipeReader {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let wait = Timespec { tv_sec: 0, tv_nsec: WAIT_MILLISECONDS * 1_000_000 };
        loop {
            check_cancelled(&self.cancel).map_err(io::Error::other)?;
            let mut waiting = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut waiting, Some(&wait)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(errno.into()),
            }
            match self.file.read(output) {
                // Another process has taken the bytes.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }
}

/// The longest window without other options: that of `xz --lzma2=dict=256MiB`, and twice that of `zstd --long=27`.
pub(crate) const WINDOW_BYTES_MAX: u64 = 256 << 20;

/// The memory for the window of one decoder: the header of an archive says how long it is, so it is reserved before a
/// decoder allocates it. The decoders of xz and zstd do so; that of gzip has a window of 32 KiB.
///
/// While a window is reserved, the store of the tree has so much less memory. All of it comes back when the decoder is
/// dropped.
#[derive(Debug)]
pub(crate) struct WindowMemory {
    bytes_max: u64,
    store: SpillStore,
    reservation: Option<MemoryReservation>,
}

impl WindowMemory {
    /// At most `bytes_max` bytes, which `store` reserves.
    pub(crate) fn new(bytes_max: u64, store: SpillStore) -> Self {
        Self { bytes_max, store, reservation: None }
    }

    fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Reserves memory for a window that takes `bytes` bytes, in place of what was reserved before. The header that asks for
    /// it is at byte `offset` of the compressed stream, or before.
    ///
    /// # Errors
    /// [`ErrorKind::WindowTooLong`], inside of the read error.
    fn reserve(&mut self, format: &'static str, bytes: u64, offset: u64) -> io::Result<()> {
        if bytes > self.bytes_max {
            return Err(self.too_long(format, Some(bytes), offset));
        }
        if self.reservation.as_ref().is_none_or(|reservation| reservation.bytes() < bytes) {
            // The reservation before ends first, as the store knows one at a time.
            self.reservation = None;
            self.reservation = Some(self.store.reserve(bytes));
            trim_heap();
        }
        Ok(())
    }

    /// The error of a window of `bytes` bytes, `None`: of more than there may be. It is inside of a read error.
    fn too_long(&self, format: &'static str, bytes: Option<u64>, offset: u64) -> io::Error {
        let (window_bytes, limit_bytes) = (bytes, self.bytes_max);
        let kind = ErrorKind::WindowTooLong { format, window_bytes, limit_bytes };
        io::Error::other(Error::new(kind).at_byte(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::formats::Crc32;
    use super::{Compression, CountingReader, WindowMemory};
    use crate::spill::{SpillOptions, SpillStore};
    use ferrofs_workers::CancelToken;
    use std::io::{Cursor, Read};
    use std::path::Path;

    fn made(name: &str) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tar");
        std::fs::read(folder.join(name)).unwrap()
    }

    const MADE: [&str; 6] = [
        "pax.tar.gz",
        "pax-two.tar.gzip",
        "pax.tar.xz",
        "pax-two.tar.xz",
        "pax.tar.zst",
        "pax-two.tar.zstd",
    ];

    /// What is in a stream that comes in pieces of `step` bytes.
    fn decode(bytes: &[u8], step: usize) -> Result<Vec<u8>, String> {
        decode_within(bytes, step, 64 << 20)
    }

    /// The same with a window of at most `window_bytes`.
    fn decode_within(bytes: &[u8], step: usize, window_bytes: u64) -> Result<Vec<u8>, String> {
        struct SlowReader(Cursor<Vec<u8>>, usize);
        impl Read for SlowReader {
            fn read(&mut self, output: &mut [u8]) -> std::io::Result<usize> {
                let count = output.len().min(self.1);
                self.0.read(&mut output[..count])
            }
        }
        let mut input = CountingReader::new(
            Box::new(SlowReader(Cursor::new(bytes.to_vec()), step)),
            CancelToken::new(),
        );
        let compression = Compression::detect(&mut input).unwrap();
        let window = WindowMemory::new(window_bytes, SpillStore::new(SpillOptions::default()));
        let mut output = Vec::new();
        let reader = compression.reader(input, window);
        match reader.and_then(|mut reader| reader.read_to_end(&mut output)) {
            Ok(_) => Ok(output),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn all_kinds_hold_the_same_bytes() {
        let wanted = decode(&made("pax.tar.zst"), usize::MAX).unwrap();
        assert_eq!(wanted.len() % 512, 0);
        for name in MADE {
            for step in [1, 7, 4096] {
                assert!(decode(&made(name), step).unwrap() == wanted, "{name} {step}");
            }
        }
    }

    #[test]
    fn a_stream_cut_anywhere_is_an_error_with_its_place() {
        for name in MADE {
            let bytes = made(name);
            let wanted = decode(&bytes, usize::MAX).unwrap();
            for length in 8..bytes.len() {
                match decode(&bytes[..length], usize::MAX) {
                    Err(error) => {
                        assert!(error.contains(" of the compressed stream"), "{name}: {error}");
                    }
                    // Between the parts a cut leaves whole streams.
                    Ok(found) => {
                        assert!(
                            name.contains("two") && wanted.starts_with(&found),
                            "{name} {length}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_changed_byte_is_never_a_wrong_byte() {
        for name in MADE {
            let bytes = made(name);
            let wanted = decode(&bytes, usize::MAX).unwrap();
            for at in 8..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= 0x10;
                if let Ok(found) = decode(&bytes, usize::MAX) {
                    // A second stream that begins with zeros is padding.
                    assert!(found == wanted, "{name} {at}");
                }
            }
        }
    }

    #[test]
    fn what_follows_a_stream_is_padding_or_an_error() {
        for (name, message) in [
            ("pax.tar.gz", "the gzip data has no header where a member should begin"),
            ("pax.tar.xz", "the xz data cannot be decoded"),
            ("pax.tar.zst", "the zstd data has no frame where one should begin"),
        ] {
            let mut bytes = made(name);
            bytes.extend_from_slice(b"something else");
            assert!(decode(&bytes, usize::MAX).unwrap_err().starts_with(message), "{name}");
        }
        for name in ["pax.tar.gz", "pax.tar.xz"] {
            let mut bytes = made(name);
            let wanted = decode(&bytes, usize::MAX).unwrap();
            bytes.extend_from_slice(&[0; 512]);
            assert!(decode(&bytes, usize::MAX).unwrap() == wanted, "{name}");
        }
    }

    #[test]
    fn frames_of_zstd_that_are_not_for_us_are_skipped() {
        let bytes = made("pax.tar.zst");
        let skipped =
            [&b"\x5A\x2A\x4D\x18\x05\0\0\0hello"[..], &bytes, b"\x50\x2A\x4D\x18\0\0\0\0"].concat();
        assert!(decode(&skipped, 3).unwrap() == decode(&bytes, 3).unwrap());
        let cut = b"\x5A\x2A\x4D\x18\xFF\xFF\xFF\xFFhello";
        let message = "the zstd data ends too early at byte 13 of the compressed stream";
        assert_eq!(decode(cut, 3).unwrap_err(), message);
    }

    /// `pax.tar.xz` with another window: its size is the last byte of the block header's only filter.
    fn xz_with_window(bits: u8) -> Vec<u8> {
        let mut bytes = made("pax.tar.xz");
        let at = bytes.windows(2).position(|pair| pair == [0x21, 1]).unwrap() + 2;
        bytes[at] = bits;
        let size = (usize::from(bytes[12]) + 1) * 4;
        let mut checksum = Crc32::new();
        checksum.update(&bytes[12..12 + size - 4]);
        let checksum = checksum.value().to_le_bytes();
        bytes[12 + size - 4..12 + size].copy_from_slice(&checksum);
        bytes
    }

    #[test]
    fn a_window_longer_than_its_memory_is_refused_with_both_lengths() {
        let refused = |bytes: &[u8], limit: u64, window: &str| {
            let error = decode_within(bytes, 7, limit).unwrap_err();
            let wanted = format!("a window of {window}");
            assert!(
                error.contains(&wanted) && error.ends_with("a larger --memory allows more"),
                "{error}"
            );
            assert!(error.contains(&limit.to_string()), "{error}");
        };
        // 64 MiB, as of `xz -9`.
        let xz = xz_with_window(28);
        assert_eq!(
            decode_within(&xz, 7, 64 << 20).unwrap(),
            decode(&made("pax.tar.xz"), 7).unwrap()
        );
        refused(&xz, (64 << 20) - 1, "67108864 bytes");
        refused(&xz_with_window(40), 1 << 30, "4294967295 bytes");
        let later = [made("pax.tar.xz"), xz].concat();
        refused(&later, (64 << 20) - 1, "more than the 67108863 bytes");
        decode_within(&later, 7, 64 << 20).unwrap();
        // 128 MiB, as of `zstd --long=27`, and 7/8 more. The frame has one block of one byte, repeated.
        let frame = |window: u8| [0x28, 0xB5, 0x2F, 0xFD, 0, window, 3 | 5 << 3, 0, 0, b'x'];
        assert_eq!(decode_within(&frame(17 << 3), 1, 128 << 20).unwrap(), b"xxxxx");
        refused(&frame(17 << 3), (128 << 20) - 1, "134217728 bytes");
        // Its buffer has a power of two.
        refused(&frame(17 << 3 | 7), 255 << 20, "268435456 bytes");
        assert_eq!(decode_within(&frame(17 << 3 | 7), 1, 256 << 20).unwrap(), b"xxxxx");
        // The length of the contents is that of the window; a later frame has a longer one.
        let single = |bytes: u32| {
            [&[0x28, 0xB5, 0x2F, 0xFD, 0xA0][..], &bytes.to_le_bytes(), &[3 | 5 << 3, 0, 0, b'x']]
                .concat()
        };
        let both = [single(5), single(1 << 20)].concat();
        refused(&both, 1 << 19, "1048576 bytes");
        assert!(decode_within(&both, 7, 1 << 20).unwrap_err().contains("differs from its header"));
    }

    /// Bytes over and over, up to a great many. The token is cancelled after some of them.
    struct Repeated(&'static [u8], usize, CancelToken);

    impl Read for Repeated {
        fn read(&mut self, output: &mut [u8]) -> std::io::Result<usize> {
            let whole = output.len() / self.0.len() * self.0.len();
            if self.1 == 0 || whole == 0 {
                return Ok(0);
            }
            for piece in output[..whole].chunks_exact_mut(self.0.len()) {
                piece.copy_from_slice(self.0);
            }
            self.1 -= 1;
            if self.1 == 40 {
                self.2.cancel();
            }
            Ok(whole)
        }
    }

    #[test]
    fn what_no_byte_comes_out_of_ends_when_it_is_cancelled() {
        let member = b"\x1F\x8B\x08\0\0\0\0\0\0\xFF\x03\0\0\0\0\0\0\0\0\0".as_slice();
        for (front, endless) in [
            (made("pax.tar.gz"), b"\0".as_slice()),
            (made("pax.tar.gz"), member),
            (made("pax.tar.zst"), b"\x50\x2A\x4D\x18\0\0\0\0"),
            (b"\x50\x2A\x4D\x18\xFF\xFF\xFF\xFF".to_vec(), b"\0"),
        ] {
            let cancel = CancelToken::new();
            let behind = Repeated(endless, 50, cancel.clone());
            let mut input = CountingReader::new(Box::new(Cursor::new(front).chain(behind)), cancel);
            let read = input.read_counter();
            let compression = Compression::detect(&mut input).unwrap();
            let window = WindowMemory::new(64 << 20, SpillStore::new(SpillOptions::default()));
            let mut reader = compression.reader(input, window).unwrap();
            let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
            let error = error.downcast::<crate::Error>().unwrap();
            assert!(matches!(error.kind(), crate::ErrorKind::Cancelled), "{error}");
            assert!(read.load(std::sync::atomic::Ordering::Relaxed) < 12 * (128 << 10));
        }
    }

    /// Ends a read as a signal does, whose handler cancels.
    struct CancelledRead(CancelToken);

    impl Read for CancelledRead {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            self.0.cancel();
            Err(std::io::ErrorKind::Interrupted.into())
        }
    }

    #[test]
    fn a_cancellation_within_a_stream_is_no_damage() {
        for name in MADE {
            let bytes = made(name);
            for length in [8, 14, bytes.len() / 4, bytes.len() / 2] {
                let cancel = CancelToken::new();
                let behind = CancelledRead(cancel.clone());
                let front = Cursor::new(bytes[..length].to_vec());
                let mut input = CountingReader::new(Box::new(front.chain(behind)), cancel);
                let compression = Compression::detect(&mut input).unwrap();
                let window = WindowMemory::new(64 << 20, SpillStore::new(SpillOptions::default()));
                let reader = compression.reader(input, window);
                let read = reader.and_then(|mut reader| reader.read_to_end(&mut Vec::new()));
                let error = read.unwrap_err().downcast::<crate::Error>();
                let error = error.unwrap_or_else(|error| panic!("{name} {length}: {error}"));
                assert!(matches!(error.kind(), crate::ErrorKind::Cancelled), "{error}");
            }
        }
    }

    #[test]
    fn checksums_are_those_of_the_standard() {
        let mut checksum = Crc32::new();
        checksum.update(b"123456789");
        assert_eq!(checksum.value(), 0xCBF4_3926);
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let mut whole = Crc32::new();
        whole.update(&bytes);
        let mut parts = Crc32::new();
        bytes.chunks(13).for_each(|part| parts.update(part));
        assert_eq!(whole.value(), parts.value());
    }

    #[test]
    fn a_window_takes_memory_from_the_store_until_it_is_dropped() {
        let options = SpillOptions::default().memory_bytes_max(64 << 20);
        let store = SpillStore::new(options);
        store.set_memory_max(48 << 20);
        let mut window = WindowMemory::new(40 << 20, store.clone());
        for (bytes, left) in [(8, 40), (2, 40), (16, 32), (40, 8)] {
            window.reserve("zstd", bytes << 20, 7).unwrap();
            assert_eq!(store.memory_max(), left << 20);
        }
        let error = window.reserve("zstd", (40 << 20) + 1, 7).unwrap_err().to_string();
        assert_eq!(
            error,
            "byte 7: the zstd data has a window of 41943041 bytes, and 41943040 are allowed for it; a larger \
             --memory allows more"
        );
        drop(window);
        assert_eq!(store.memory_max(), 48 << 20);
    }
}
