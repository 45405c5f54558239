//! Where the bytes of an image come from: sources, and the devices of an image as one address
//! space.
//!
//! A source is read by offset and never written to. Files are not mapped: if a file shrinks while
//! it is read, that must be an error, not a signal.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use ferrofs_ondisk::{BlockSize, DeviceSlot, SUPERBLOCK_OFFSET};
use rustix::fs::{Advice, OFlags};

use crate::error::{Error, ErrorKind, Result, address};

/// What a remote image has cost since it was opened, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteStats {
    /// Requests of readers that waited for them.
    pub fetches: u64,
    /// Those that were repeated, because the server failed or the bytes were damaged.
    pub repeated: u64,
    /// Bytes that these requests asked for.
    pub fetched_bytes: u64,
    /// Reads of a part of a chunk that no request preceded.
    pub hits: u64,
    /// How long readers waited, all together, in nanoseconds.
    pub waited_ns: u64,
    /// How long one waited at most, in nanoseconds.
    pub longest_ns: u64,
    /// How often the fetcher had to be reached again.
    pub reconnects: u64,
    /// The process that fetches; `None` if it cannot be reached.
    pub fetcher: Option<FetcherTotals>,
}

/// What the process that fetches has counted since it started, for all images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetcherTotals {
    /// Requests sent to servers, repeated ones included.
    pub requests: u64,
    /// Requests that were repeated.
    pub retries: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Tokens that were requested of registries.
    pub token_requests: u64,
    /// Requests that mirrors of registries have answered.
    pub mirror_requests: u64,
    /// Bytes that servers sent.
    pub received_bytes: u64,
    /// Bytes that were missing and requested.
    pub requested_bytes: u64,
    /// Bytes that were received and not stored.
    pub wasted_bytes: u64,
    /// Bytes that were compared with a digest.
    pub verified_bytes: u64,
    /// Chunks that were requested and were there already.
    pub cache_hits: u64,
    /// The sum of the times to the first byte of an answer, in microseconds.
    pub latency_us: u64,
}

impl RemoteStats {
    /// The sum over the sources of an image. They share the fetcher.
    fn joined(self, other: Self) -> Self {
        Self {
            fetches: self.fetches.saturating_add(other.fetches),
            repeated: self.repeated.saturating_add(other.repeated),
            fetched_bytes: self.fetched_bytes.saturating_add(other.fetched_bytes),
            hits: self.hits.saturating_add(other.hits),
            waited_ns: self.waited_ns.saturating_add(other.waited_ns),
            longest_ns: self.longest_ns.max(other.longest_ns),
            reconnects: self.reconnects.max(other.reconnects),
            fetcher: self.fetcher.or(other.fetcher),
        }
    }
}

/// Bytes that can be read at any offset, from many threads at once.
pub trait ImageSource: Send + Sync + fmt::Debug {
    /// Reads into `buffer` from byte `offset` on. Returns fewer bytes than asked for only at the
    /// end.
    ///
    /// # Errors
    /// Any error of the medium.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// The length in bytes.
    fn length(&self) -> u64;

    /// The length now, for messages: a file may have shrunk meanwhile. The default is
    /// [`ImageSource::length`].
    fn current_length(&self) -> u64 {
        self.length()
    }

    /// A hint that these bytes will be read soon. The default does nothing.
    fn will_need(&self, _offset: u64, _bytes: u64) {}

    /// Whether reads may wait for a server. Before a read of a file occupies a decoder, its ranges
    /// are then made ready. The default is no.
    fn is_remote(&self) -> bool {
        false
    }

    /// What fetching has cost so far. The default is nothing: the source is local.
    fn remote_stats(&self) -> Option<RemoteStats> {
        None
    }

    /// Waits until reads of these ranges wait for nothing, as far as that can be. All of them are
    /// requested at the same time. The default does nothing.
    ///
    /// # Errors
    /// Any error of the medium.
    fn make_ready(&self, _ranges: &[Range<u64>]) -> io::Result<()> {
        Ok(())
    }
}

/// A file or block device as a source, from a byte of it on.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    start: u64,
    length: u64,
}

impl FileSource {
    /// Opens `path`; byte 0 of the source is byte `start` of the file.
    ///
    /// # Errors
    /// As [`FileSource::open_file`], or its length cannot be found.
    pub fn open(path: &Path, start: u64) -> io::Result<Self> {
        Self::of_file(Self::open_file(path)?, start)
    }

    /// The same for a file that [`FileSource::open_file`] has opened. Its offset changes, and is not used.
    ///
    /// # Errors
    /// Its length cannot be found.
    pub fn of_file(mut file: File, start: u64) -> io::Result<Self> {
        // Seeking finds the length of block devices, too.
        let end = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, start, length: end.saturating_sub(start) })
    }

    /// Opens a regular file or a block device to read it. Of other types nothing is waited for: opening
    /// a FIFO would wait for a writer.
    ///
    /// # Errors
    /// The file cannot be opened. [`io::ErrorKind::IsADirectory`] for a directory,
    /// [`io::ErrorKind::InvalidInput`] for a FIFO, a socket or a character device.
    pub fn open_file(path: &Path) -> io::Result<File> {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = match opened {
            Ok(file) => file,
            Err(error) => {
                // A socket cannot be opened, so its type is asked for by name.
                let found = path.metadata().map(|metadata| metadata.file_type());
                found.map_or(Ok(()), require_bytes)?;
                if error.kind() != io::ErrorKind::WouldBlock {
                    return Err(error);
                }
                // Another program has a lease on the file, as file servers do, and gives it back.
                File::open(path)?
            }
        };
        require_bytes(file.metadata()?.file_type())?;
        // Reads of the file of a FUSE file system would carry the flag, too.
        rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
        Ok(file)
    }

    /// Opens the file of an extra device.
    ///
    /// # Errors
    /// [`ErrorKind::OpenDevice`], as [`FileSource::open`].
    pub fn open_device(path: &Path) -> Result<Self> {
        Self::open(path, 0)
            .map_err(|source| ErrorKind::OpenDevice { path: path.to_owned(), source }.into())
    }
}

/// An error unless bytes of what has this type can be read at any offset.
fn require_bytes(found: std::fs::FileType) -> io::Result<()> {
    if found.is_file() || found.is_block_device() {
        return Ok(());
    }
    if found.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    let name = match () {
        () if found.is_fifo() => "a FIFO",
        () if found.is_socket() => "a socket",
        () if found.is_char_device() => "a character device",
        () => "this",
    };
    let text = format!("{name} cannot be read as an image; name a regular file or a block device");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

impl ImageSource for FileSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match self.start.checked_add(offset) {
            Some(at) if i64::try_from(at).is_ok() => self.file.read_at(buffer, at),
            _ => Ok(0),
        }
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn current_length(&self) -> u64 {
        match self.file.metadata() {
            Ok(metadata) if metadata.is_file() => metadata.len().saturating_sub(self.start),
            _ => self.length,
        }
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        if let (Some(at), Some(bytes)) = (self.start.checked_add(offset), NonZeroU64::new(bytes)) {
            // A hint: a file system may ignore it.
            rustix::fs::fadvise(&self.file, at, Some(bytes), Advice::WillNeed).ok();
        }
    }
}

/// An image in memory.
impl ImageSource for Vec<u8> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(rest) = usize::try_from(offset).ok().and_then(|at| self.get(at..)) else {
            return Ok(0);
        };
        let count = rest.len().min(buffer.len());
        if let (Some(target), Some(bytes)) = (buffer.get_mut(..count), rest.get(..count)) {
            target.copy_from_slice(bytes);
        }
        Ok(count)
    }

    fn length(&self) -> u64 {
        u64::try_from(self.len()).unwrap_or(u64::MAX)
    }
}

/// Where the superblock says how many extra devices there are.
const COUNT_FIELD: u64 = SUPERBLOCK_OFFSET | 86;

/// The image and the blobs beside it, as one address space (docs/format.md F8).
#[derive(Debug)]
pub(crate) struct Devices {
    primary: Arc<dyn ImageSource>,
    extra: Vec<ExtraDevice>,
    is_remote: bool,
}

#[derive(Debug)]
struct ExtraDevice {
    source: Option<Arc<dyn ImageSource>>,
    /// Where the device lies in the unified address space, in bytes.
    unified: Option<Range<u64>>,
}

/// An address, resolved to a source and a byte of it.
#[derive(Debug)]
pub(crate) struct ResolvedAddress<'a> {
    pub(crate) source: &'a dyn ImageSource,
    pub(crate) offset: u64,
}

impl Devices {
    /// Joins the image with the sources of its devices. Without any, data on devices is looked up
    /// in the image itself, behind its own blocks (a flat device).
    pub(crate) fn new(
        primary: Arc<dyn ImageSource>,
        slots: &[DeviceSlot],
        mut sources: Vec<Arc<dyn ImageSource>>,
        block_size: BlockSize,
    ) -> Result<Self> {
        let count = u16::try_from(slots.len()).unwrap_or(u16::MAX);
        if !sources.is_empty() && sources.len() != slots.len() {
            let kind = ErrorKind::DeviceCount { table: count, given: sources.len() };
            return Err(Error::new(kind).at(COUNT_FIELD));
        }
        let mut given = sources.drain(..);
        let mut extra = Vec::with_capacity(slots.len());
        for slot in slots {
            let start = address(block_size.offset_of(slot.unified_block))?;
            let length = address(block_size.offset_of(slot.blocks))?;
            let end = address(start.checked_add(length))?;
            let unified = (start != 0).then_some(start..end);
            extra.push(ExtraDevice { source: given.next(), unified });
        }
        drop(given);
        let mut sources = extra.iter().filter_map(|extra| extra.source.as_ref());
        let is_remote = primary.is_remote() || sources.any(|source| source.is_remote());
        Ok(Self { primary, extra, is_remote })
    }

    /// Resolves byte `offset` of `device`. Device 0 is the unified address space, in which other
    /// devices may have a range, too. An id past the table is an error, although a reader that
    /// masks it would find other bytes.
    pub(crate) fn locate(&self, device: u16, offset: u64) -> Result<ResolvedAddress<'_>> {
        if device == 0 {
            return Ok(self.locate_unified(offset));
        }
        let slot = self.extra.get(usize::from(device).wrapping_sub(1));
        let extra = slot.ok_or_else(|| Error::new(ErrorKind::UnknownDevice(device)).at(offset))?;
        if let Some(source) = &extra.source {
            return Ok(ResolvedAddress { source: &**source, offset });
        }
        let unified = extra.unified.as_ref();
        let start = unified.ok_or_else(|| {
            Error::new(ErrorKind::DeviceCount {
                table: u16::try_from(self.extra.len()).unwrap_or(u16::MAX),
                given: 0,
            })
        })?;
        Ok(ResolvedAddress {
            source: &*self.primary,
            offset: address(start.start.checked_add(offset))?,
        })
    }

    fn locate_unified(&self, offset: u64) -> ResolvedAddress<'_> {
        let owner = self.extra.iter().find_map(|extra| {
            let unified = extra.unified.as_ref().filter(|unified| unified.contains(&offset))?;
            let source = extra.source.as_ref()?;
            Some(ResolvedAddress { source: &**source, offset: offset.wrapping_sub(unified.start) })
        });
        owner.unwrap_or(ResolvedAddress { source: &*self.primary, offset })
    }

    /// Fills `buffer` from byte `offset` of `device`.
    pub(crate) fn read(&self, device: u16, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let place = self.locate(device, offset)?;
        read_exact(place.source, place.offset, buffer)
    }

    /// Passes on the hint that these bytes of `device` will be read soon.
    pub(crate) fn will_need(&self, device: u16, offset: u64, bytes: usize) {
        if let Ok(place) = self.locate(device, offset) {
            place.source.will_need(place.offset, u64::try_from(bytes).unwrap_or(u64::MAX));
        }
    }

    /// Whether reads may wait for a server.
    pub(crate) fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// What fetching has cost so far; `None` if all sources are local.
    pub(crate) fn remote_stats(&self) -> Option<RemoteStats> {
        let extra = self.extra.iter().filter_map(|extra| extra.source.as_ref());
        let sources = std::iter::once(&self.primary).chain(extra);
        sources.filter_map(|source| source.remote_stats()).reduce(RemoteStats::joined)
    }

    /// Makes ranges of devices ready. Each source gets its ranges in one call.
    pub(crate) fn make_ready(&self, wanted: impl Iterator<Item = (u16, Range<u64>)>) -> Result<()> {
        let mut places: Vec<(&dyn ImageSource, Vec<Range<u64>>)> = Vec::new();
        for (device, range) in wanted {
            let ResolvedAddress { source, offset } = self.locate(device, range.start)?;
            let length = range.end.saturating_sub(range.start);
            let range = offset..offset.saturating_add(length);
            match places.iter_mut().find(|(known, _)| std::ptr::addr_eq(*known, source)) {
                Some((_, ranges)) => ranges.push(range),
                None => places.push((source, vec![range])),
            }
        }
        for (source, ranges) in places {
            let first = ranges.first().map_or(0, |range| range.start);
            source.make_ready(&ranges).map_err(|error| Error::from(error).at(first))?;
        }
        Ok(())
    }

    /// Whether the image has no other devices.
    pub(crate) fn is_one_source(&self) -> bool {
        self.extra.is_empty()
    }

    /// The image itself.
    pub(crate) fn primary(&self) -> &dyn ImageSource {
        &*self.primary
    }

    /// The length of each device; `None` for one that was not given.
    pub(crate) fn given_lengths(&self) -> impl Iterator<Item = Option<u64>> {
        self.extra.iter().map(|extra| extra.source.as_ref().map(|source| source.length()))
    }
}

/// Reads until `buffer` is full or the source ends. Returns how many bytes were read.
pub(crate) fn read_up_to(
    source: &dyn ImageSource,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize> {
    let mut filled = 0usize;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = offset.saturating_add(u64::try_from(filled).unwrap_or(u64::MAX));
        match source.read_at(at, rest) {
            Ok(0) => break,
            Ok(count) => filled = filled.saturating_add(count.min(rest.len())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::from(error).at(at)),
        }
    }
    Ok(filled)
}

/// Fills `buffer` from `offset` on.
pub(crate) fn read_exact(source: &dyn ImageSource, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let wanted = buffer.len();
    if read_up_to(source, offset, buffer)? == wanted {
        return Ok(());
    }
    Err(outside(offset, u64::try_from(wanted).unwrap_or(u64::MAX), source.current_length()))
}

/// The error for `bytes` bytes at `offset` of something that has only `length`.
#[cold]
pub(crate) fn outside(offset: u64, bytes: u64, length: u64) -> Error {
    let end = offset.saturating_add(bytes);
    Error::new(ErrorKind::OutsideImage { end, length }).at(offset)
}

/// A buffer of `bytes` zeros, or an error if there is no memory.
pub(crate) fn zeroed(bytes: usize) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    grow(&mut buffer, bytes)?;
    Ok(buffer)
}

/// Makes `buffer` at least `bytes` long.
pub(crate) fn grow(buffer: &mut Vec<u8>, bytes: usize) -> Result<()> {
    let more = bytes.saturating_sub(buffer.len());
    if more == 0 {
        return Ok(());
    }
    buffer.try_reserve_exact(more).map_err(|_| {
        Error::new(ErrorKind::OutOfMemory { bytes: u64::try_from(bytes).unwrap_or(u64::MAX) })
    })?;
    buffer.resize(bytes, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_source_says_what_is_missing() {
        let source = vec![1u8, 2, 3];
        let mut buffer = [0u8; 2];
        read_exact(&source, 1, &mut buffer).unwrap();
        assert_eq!(buffer, [2, 3]);
        let error = read_exact(&source, 2, &mut buffer).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutsideImage { end: 4, length: 3 }));
        assert_eq!(error.offset(), Some(2));
        assert!(read_exact(&source, u64::MAX, &mut buffer).is_err());
    }

    /// Opening the FIFO would wait for a writer, which never comes.
    #[test]
    fn only_regular_files_and_block_devices_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let (mode, kind) = (rustix::fs::Mode::RUSR, rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, name) in
            [(&*fifo, "a FIFO"), (&*socket, "a socket"), (Path::new("/dev/null"), "a character")]
        {
            let error = FileSource::open(path, 0).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().starts_with(name), "{error}");
        }
        let error = FileSource::open(dir.path(), 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        let regular = dir.path().join("regular");
        std::fs::write(&regular, "abc").unwrap();
        let source = FileSource::open(&regular, 1).unwrap();
        assert_eq!(source.length(), 2);
        let flags = rustix::fs::fcntl_getfl(&source.file).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
        let flags = rustix::io::fcntl_getfd(&source.file).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn interrupted_reads_go_on() {
        #[derive(Debug)]
        struct Jittery(std::sync::Mutex<u32>);
        impl ImageSource for Jittery {
            fn read_at(&self, _: u64, buffer: &mut [u8]) -> io::Result<usize> {
                let mut calls = self.0.lock().unwrap();
                *calls += 1;
                if *calls % 2 == 1 {
                    return Err(io::Error::from(io::ErrorKind::Interrupted));
                }
                buffer[0] = 7;
                Ok(1)
            }
            fn length(&self) -> u64 {
                9
            }
        }
        let mut buffer = [0u8; 3];
        read_exact(&Jittery(std::sync::Mutex::new(0)), 0, &mut buffer).unwrap();
        assert_eq!(buffer, [7; 3]);
    }

    #[test]
    fn each_source_makes_its_ranges_ready_in_one_call() {
        #[derive(Debug, Default)]
        struct Remote(std::sync::Mutex<Vec<Vec<Range<u64>>>>);
        impl ImageSource for Remote {
            fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
                Ok(0)
            }
            fn length(&self) -> u64 {
                1 << 20
            }
            fn is_remote(&self) -> bool {
                true
            }
            fn make_ready(&self, ranges: &[Range<u64>]) -> io::Result<()> {
                self.0.lock().unwrap().push(ranges.to_vec());
                Ok(())
            }
        }
        let [primary, blob] = [(), ()].map(|()| Arc::new(Remote::default()));
        let slots = [slot(2, 100)];
        let block_size = BlockSize::from_bits(9).unwrap();
        let given: Vec<Arc<dyn ImageSource>> = vec![Arc::clone(&blob) as _];
        let all = Devices::new(Arc::clone(&primary) as _, &slots, given, block_size).unwrap();
        assert!(all.is_remote());
        let wanted = [(0, 0..9), (1, 5..7), (0, 20..30), (0, 51_200..51_300)];
        all.make_ready(wanted.into_iter()).unwrap();
        assert_eq!(*primary.0.lock().unwrap(), [vec![0..9, 20..30]]);
        assert_eq!(*blob.0.lock().unwrap(), [vec![5..7, 0..100]]);
        assert!(!devices(&slots, Vec::new()).unwrap().is_remote());
    }

    fn slot(blocks: u64, unified_block: u64) -> DeviceSlot {
        DeviceSlot { tag: [0; 64], blocks, unified_block }
    }

    fn devices(slots: &[DeviceSlot], sources: Vec<Arc<dyn ImageSource>>) -> Result<Devices> {
        let primary: Arc<dyn ImageSource> = Arc::new(vec![0u8; 2048]);
        Devices::new(primary, slots, sources, BlockSize::from_bits(9).unwrap())
    }

    #[test]
    fn a_device_answers_by_id_and_by_unified_address() {
        let blob: Arc<dyn ImageSource> = Arc::new(vec![9u8; 1024]);
        let all = devices(&[slot(2, 100)], vec![blob]).unwrap();
        let mut byte = [0u8; 1];
        all.read(1, 1023, &mut byte).unwrap();
        assert_eq!(byte, [9]);
        all.read(0, 100 * 512 + 5, &mut byte).unwrap();
        assert_eq!(byte, [9]);
        all.read(0, 5, &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }

    #[test]
    fn without_blobs_a_device_lies_behind_the_image() {
        let all = devices(&[slot(2, 2)], Vec::new()).unwrap();
        assert_eq!(all.locate(1, 7).unwrap().offset, 1031);
        assert!(all.read(1, 0, &mut [0; 1024]).is_ok());
        assert!(all.read(1, 0, &mut [0; 1025]).is_err());
    }

    #[test]
    fn too_few_and_dangling_devices_are_named() {
        let blob: Arc<dyn ImageSource> = Arc::new(vec![9u8; 1024]);
        let error = devices(&[slot(1, 0), slot(1, 0)], vec![blob]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DeviceCount { table: 2, given: 1 }));
        let all = devices(&[slot(1, 0), slot(1, 0)], Vec::new()).unwrap();
        let error = all.locate(3, 0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::UnknownDevice(3)));
        assert!(all.locate(1, 0).is_err());
    }
}
