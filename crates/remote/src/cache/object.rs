//! One cached object: its data file, its index file, and the two ways to use them. Readers (any
//! process of the user) check what they read; the fetcher is the only writer.
//!
//! The protocol between them, in steps; a model of it is in the tests of this file:
//!
//! * **D1.** The writer writes zeros over the record of the chunk.
//! * **D2.** The writer changes the data: it writes the whole chunk, or punches a hole.
//! * **D3.** After writing a chunk, the writer writes its record with a new generation. One thread
//!   at a time takes the steps D1 to D3 of a chunk.
//! * **D4.** A reader reads the record. If its generation is not the one that this process has
//!   verified, the reader computes the checksum of the data and compares.
//! * **D5.** The reader reads the bytes that it needs.
//! * **D6.** The reader reads the record again. If it is the one of D4, the bytes of D5 belong to
//!   it, since D1 comes before D2. Otherwise the reader starts again.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::FallocateFlags;
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::Xxh3Default;

use super::record::{CacheKey, ChunkLayout, ChunkRecord, HEADER_BYTES, RECORD_BYTES, header};
use crate::chunk_index::ChunkIndex;
use crate::lock::lock;

/// Data is verified in pieces of so many bytes, so that threads that verify need little memory.
const VERIFY_PIECE_BYTES: usize = 64 << 10;
/// How often a reader starts again when the writer changes the chunk under it. Each start again
/// means that the chunk was fetched meanwhile.
const RESTARTS_MAX: u32 = 16;
/// Locks of a writer; chunk N has lock N modulo this. As many as requests are in flight, so that
/// threads which store seldom wait for each other.
const WRITER_LOCKS: usize = 16;
/// The usual block of a file system, in bytes.
const BLOCK: u64 = 4096;
/// Records that are read at once when all are looked at.
const RECORDS_AT_ONCE: u32 = 4096;

/// What a reader found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ChunkRead {
    /// The bytes are in the buffer.
    Served,
    /// The chunk is not in the cache.
    Absent,
    /// The chunk is in the cache, but its bytes have not the checksum of the record or of the
    /// chunk index.
    Damaged,
}

/// An object as readers see it. Threads share it.
#[derive(Debug)]
pub struct CachedObject {
    key: CacheKey,
    layout: ChunkLayout,
    data: File,
    records: File,
    /// The generation of each chunk that this process has verified; 0 for none.
    verified: Box<[AtomicU32]>,
    chunk_index: Option<Arc<ChunkIndex>>,
}

impl CachedObject {
    /// Uses files that are open. `chunk_index` is checked when a chunk is used for the first time.
    ///
    /// # Errors
    /// The index file cannot be read, or belongs to another object (`InvalidData`).
    pub fn new(
        key: CacheKey,
        layout: ChunkLayout,
        data: File,
        records: File,
        chunk_index: Option<Arc<ChunkIndex>>,
    ) -> io::Result<Self> {
        let mut found = [0; HEADER_BYTES];
        records.read_exact_at(&mut found, 0)?;
        if found != header(&key, &layout) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, super::record::ForeignIndex));
        }
        let verified = (0..layout.count()).map(|_| AtomicU32::new(0)).collect();
        Ok(Self { key, layout, data, records, verified, chunk_index })
    }

    /// Bytes of the image: the object without the chunk index behind it, if that is known.
    pub(crate) fn image_length(&self) -> u64 {
        let index = self.chunk_index.as_ref();
        index.map_or(self.layout.length(), |index| index.length())
    }

    /// How the object is divided.
    #[must_use]
    pub fn layout(&self) -> &ChunkLayout {
        &self.layout
    }

    /// The key of the object.
    #[must_use]
    pub fn key(&self) -> &CacheKey {
        &self.key
    }

    /// Whether chunk `number` has a record. Its data may be damaged.
    #[must_use]
    pub fn is_present(&self, number: u32) -> bool {
        self.record(number).is_ok_and(|record| record.is_some())
    }

    /// Compares the whole chunk `number` with its record, whether or not this process has verified
    /// it before.
    ///
    /// # Errors
    /// A file of the cache cannot be read.
    pub fn check(&self, number: u32) -> io::Result<ChunkRead> {
        for _ in 0..RESTARTS_MAX {
            let Some(record) = self.record(number)? else { return Ok(ChunkRead::Absent) };
            let is_good = self.verify(number, &record)?;
            if self.record(number)? == Some(record) {
                return Ok(if is_good { ChunkRead::Served } else { ChunkRead::Damaged });
            }
        }
        Ok(ChunkRead::Absent)
    }

    /// Reads `buffer.len()` bytes from byte `offset` of the object on, which all belong to chunk
    /// `number`.
    ///
    /// # Errors
    /// A file of the cache cannot be read.
    pub fn read(&self, number: u32, offset: u64, buffer: &mut [u8]) -> io::Result<ChunkRead> {
        for _ in 0..RESTARTS_MAX {
            // D4
            let Some(record) = self.record(number)? else { return Ok(ChunkRead::Absent) };
            let slot = self.verified.get(number as usize);
            // Relaxed: the generation is compared with the record, which orders nothing.
            let is_verified =
                slot.is_some_and(|slot| slot.load(Ordering::Relaxed) == record.generation);
            let is_good = is_verified || self.verify(number, &record)?;
            // D5
            let is_whole = is_good && read_whole(&self.data, offset, buffer)?;
            // D6
            if self.record(number)? != Some(record) {
                continue;
            }
            if !is_whole {
                return Ok(ChunkRead::Damaged);
            }
            if let Some(slot) = slot {
                slot.store(record.generation, Ordering::Relaxed);
            }
            return Ok(ChunkRead::Served);
        }
        Ok(ChunkRead::Absent)
    }

    fn record(&self, number: u32) -> io::Result<Option<ChunkRecord>> {
        let mut bytes = [0; RECORD_BYTES];
        let is_there = read_whole(&self.records, ChunkRecord::offset(number), &mut bytes)?;
        Ok(is_there
            .then_some(&bytes)
            .and_then(|bytes| ChunkRecord::parse(bytes, &self.key, number)))
    }

    /// Whether the data of a chunk has its checksum, and the digests of the chunk index.
    fn verify(&self, number: u32, record: &ChunkRecord) -> io::Result<bool> {
        let range = self.layout.bytes_of(number);
        let mut sum = Xxh3Default::new();
        let is_read = self.each_piece(range.clone(), |piece| sum.update(piece))?;
        if !is_read || sum.digest() != record.checksum {
            return Ok(false);
        }
        let Some(index) = &self.chunk_index else { return Ok(true) };
        if !self.verify_tail(index, &range)? {
            return Ok(false);
        }
        for number in index.chunks_in(range.clone()) {
            let Some((bytes, digest)) = index.chunk(number) else { continue };
            // A piece that reaches into another chunk was verified before it was stored.
            if bytes.start < range.start || bytes.end > range.end {
                continue;
            }
            let mut sum = Sha256::new();
            let is_read = self.each_piece(bytes, |piece| sum.update(piece))?;
            if !is_read || <[u8; 32]>::from(sum.finalize()) != *digest.as_bytes() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether what a chunk has behind the image are bytes of the chunk index.
    fn verify_tail(&self, index: &ChunkIndex, chunk: &Range<u64>) -> io::Result<bool> {
        let mut at = chunk.start.max(index.length()) - index.length();
        let mut is_index = true;
        let tail = chunk.start.max(index.length())..chunk.end;
        let is_read = self.each_piece(tail, |piece| {
            is_index &= index.has_bytes_at(at, piece);
            at += piece.len() as u64;
        })?;
        Ok(is_read && is_index)
    }

    /// Calls `consume` with the bytes of `range`; false if the file is too short.
    fn each_piece(&self, range: Range<u64>, mut consume: impl FnMut(&[u8])) -> io::Result<bool> {
        let mut buffer = vec![0; VERIFY_PIECE_BYTES];
        let mut at = range.start;
        while at < range.end {
            let rest = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let piece = &mut buffer[..rest.min(VERIFY_PIECE_BYTES)];
            if !read_whole(&self.data, at, piece)? {
                return Ok(false);
            }
            consume(piece);
            at += piece.len() as u64;
        }
        Ok(true)
    }
}

/// Fills `buffer`; false if the file ends before.
fn read_whole(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact_at(buffer, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// An object as its only writer sees it.
#[derive(Debug)]
pub struct ObjectWriter {
    key: CacheKey,
    layout: ChunkLayout,
    data: File,
    records: File,
    /// The generation of the next chunk that is stored.
    generation: AtomicU32,
    /// Held from D1 to D3, so that the steps of two threads never mix in one chunk.
    changing: [Mutex<()>; WRITER_LOCKS],
}

impl ObjectWriter {
    /// Takes over two files that are open for reading and writing. An index that belongs to
    /// another object, or is damaged, is emptied. Generations count from `first_generation`,
    /// so that they differ from those of a writer before this one: a clock will do.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn new(
        key: CacheKey,
        layout: ChunkLayout,
        data: File,
        records: File,
        first_generation: u32,
    ) -> io::Result<Self> {
        let changing = std::array::from_fn(|_| Mutex::new(()));
        let generation = AtomicU32::new(first_generation);
        let writer = Self { key, layout, data, records, generation, changing };
        writer.restore()?;
        writer.records.set_len(ChunkRecord::offset(layout.count()))?;
        writer.data.set_len(layout.length())?;
        Ok(writer)
    }

    /// Empties an index whose header somebody else has changed since it was opened, so that new
    /// readers accept it. All chunks are absent then. Nothing happens to an index that is right.
    ///
    /// # Errors
    /// The index cannot be read or written.
    pub fn restore(&self) -> io::Result<()> {
        let wanted = header(&self.key, &self.layout);
        let mut found = [0; HEADER_BYTES];
        if read_whole(&self.records, 0, &mut found)? && found == wanted {
            return Ok(());
        }
        self.records.set_len(0)?;
        self.records.write_all_at(&wanted, 0)?;
        self.records.set_len(ChunkRecord::offset(self.layout.count()))
    }

    /// How the object is divided.
    #[must_use]
    pub fn layout(&self) -> &ChunkLayout {
        &self.layout
    }

    /// The key of the object.
    #[must_use]
    pub fn key(&self) -> &CacheKey {
        &self.key
    }

    /// Stores the whole chunk `number`, whose bytes the caller has verified. Waits while another
    /// thread stores or discards the same chunk.
    ///
    /// # Errors
    /// A file cannot be written; the chunk is absent then. `InvalidInput` if the number of bytes is
    /// not that of the chunk.
    pub fn store(&self, number: u32, bytes: &[u8]) -> io::Result<()> {
        let range = self.layout.bytes_of(number);
        if range.end - range.start != bytes.len() as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut sum = Xxh3Default::new();
        sum.update(bytes);
        let _changing = self.lock(number);
        self.erase_record(number)?;
        self.data.write_all_at(bytes, range.start)?;
        // Relaxed: only the value matters, and it is never 0.
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        let generation = if generation == 0 { u32::MAX } else { generation };
        let record = ChunkRecord { checksum: sum.digest(), generation };
        // D3
        let bytes = record.to_bytes(&self.key, number);
        self.records.write_all_at(&bytes, ChunkRecord::offset(number))
    }

    /// Discards chunks and returns their space to the file system (D1, D2).
    ///
    /// # Errors
    /// A file cannot be changed. Some chunks may be absent already.
    pub fn discard(&self, numbers: Range<u32>) -> io::Result<()> {
        for number in numbers {
            let range = self.layout.bytes_of(number);
            if range.is_empty() {
                break;
            }
            let _changing = self.lock(number);
            self.erase_record(number)?;
            self.punch(range)?;
        }
        Ok(())
    }

    /// Returns the space of data without a record to the file system: what a writer left that was
    /// killed between D1 and D2, or before D3. Nobody else may store meanwhile.
    ///
    /// # Errors
    /// The index cannot be read, or the data not be changed.
    pub fn reclaim(&self) -> io::Result<()> {
        let present = self.present_chunks()?;
        let length = |number: &u32| {
            let bytes = self.layout.bytes_of(*number);
            (bytes.end - bytes.start).next_multiple_of(BLOCK)
        };
        let known: u64 = present.iter().map(length).sum();
        let blocks = rustix::fs::fstat(&self.data)?.st_blocks;
        if u64::try_from(blocks).unwrap_or(0).saturating_mul(512) <= known {
            return Ok(());
        }
        let mut start = 0;
        for number in present.into_iter().chain([self.layout.count()]) {
            let hole = self.layout.bytes_of(start).start..self.layout.bytes_of(number).start;
            if !hole.is_empty() {
                self.punch(hole)?;
            }
            start = number.saturating_add(1);
        }
        Ok(())
    }

    /// The chunks that have a record, in ascending order.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn present_chunks(&self) -> io::Result<Vec<u32>> {
        let mut present = Vec::new();
        let mut bytes = vec![0; RECORD_BYTES * RECORDS_AT_ONCE as usize];
        let count = self.layout.count();
        for first in (0..count).step_by(RECORDS_AT_ONCE as usize) {
            let some = (count - first).min(RECORDS_AT_ONCE) as usize;
            let part = &mut bytes[..some * RECORD_BYTES];
            if !read_whole(&self.records, ChunkRecord::offset(first), part)? {
                break;
            }
            let (records, _) = part.as_chunks::<RECORD_BYTES>();
            let numbers = (first..count).zip(records);
            let there = numbers
                .filter(|(number, bytes)| ChunkRecord::parse(bytes, &self.key, *number).is_some());
            present.extend(there.map(|(number, _)| number));
        }
        Ok(present)
    }

    /// D2 of a chunk that is discarded.
    fn punch(&self, bytes: Range<u64>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // The last block is freed only if the hole has all of it.
        let is_last = bytes.end == self.layout.length();
        let end = if is_last { bytes.end.next_multiple_of(BLOCK) } else { bytes.end };
        Ok(rustix::fs::fallocate(&self.data, flags, bytes.start, end - bytes.start)?)
    }

    /// Whether chunk `number` has a record.
    #[must_use]
    pub fn is_present(&self, number: u32) -> bool {
        let mut bytes = [0; RECORD_BYTES];
        read_whole(&self.records, ChunkRecord::offset(number), &mut bytes).unwrap_or(false)
            && ChunkRecord::parse(&bytes, &self.key, number).is_some()
    }

    fn lock(&self, number: u32) -> MutexGuard<'_, ()> {
        lock(&self.changing[number as usize % WRITER_LOCKS])
    }

    /// D1.
    fn erase_record(&self, number: u32) -> io::Result<()> {
        self.records.write_all_at(&[0; RECORD_BYTES], ChunkRecord::offset(number))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::digest::ContentDigest;

    const KEY: CacheKey = [3; 32];
    const LENGTH: u64 = (2 << 20) + 100;

    struct Files {
        data: File,
        records: File,
        _directory: tempfile::TempDir,
    }

    fn files() -> Files {
        let directory = tempfile::tempdir().unwrap();
        let create = |name| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            options.open(directory.path().join(name)).unwrap()
        };
        Files { data: create("data"), records: create("index"), _directory: directory }
    }

    impl Files {
        fn writer(&self, first_generation: u32) -> ObjectWriter {
            let layout = ChunkLayout::new(LENGTH).unwrap();
            let [data, records] = [&self.data, &self.records].map(|file| file.try_clone().unwrap());
            ObjectWriter::new(KEY, layout, data, records, first_generation).unwrap()
        }

        fn reader(&self, index: Option<ChunkIndex>) -> CachedObject {
            let layout = ChunkLayout::new(LENGTH).unwrap();
            let [data, records] = [&self.data, &self.records].map(|file| file.try_clone().unwrap());
            CachedObject::new(KEY, layout, data, records, index.map(Arc::new)).unwrap()
        }
    }

    fn read(object: &CachedObject, number: u32) -> (ChunkRead, u8) {
        let mut byte = [0xee];
        let start = object.layout().bytes_of(number).start;
        (object.read(number, start, &mut byte).unwrap(), byte[0])
    }

    #[test]
    fn what_was_stored_is_served_and_nothing_else() {
        let files = files();
        let writer = files.writer(1);
        let reader = files.reader(None);
        assert_eq!(read(&reader, 1).0, ChunkRead::Absent);
        writer.store(1, &vec![5; 1 << 20]).unwrap();
        writer.store(2, &[6; 100]).unwrap();
        assert_eq!(read(&reader, 1), (ChunkRead::Served, 5));
        assert_eq!(read(&reader, 2), (ChunkRead::Served, 6));
        assert_eq!(read(&reader, 0).0, ChunkRead::Absent);
        assert!(writer.store(2, &[6; 99]).is_err(), "a part is no chunk");
        writer.discard(0..2).unwrap();
        assert_eq!(read(&reader, 1).0, ChunkRead::Absent);
        assert_eq!(read(&reader, 2), (ChunkRead::Served, 6));
        writer.store(1, &vec![7; 1 << 20]).unwrap();
        assert_eq!(read(&reader, 1), (ChunkRead::Served, 7));
    }

    #[test]
    fn a_new_writer_keeps_what_is_there() {
        let files = files();
        files.writer(1).store(0, &vec![1; 1 << 20]).unwrap();
        let writer = files.writer(9);
        assert!(writer.is_present(0) && !writer.is_present(1));
        assert_eq!(read(&files.reader(None), 0), (ChunkRead::Served, 1));
    }

    #[test]
    fn data_without_a_record_is_reclaimed() {
        let files = files();
        let writer = files.writer(1);
        for (number, length) in [(0, 1 << 20), (1, 1 << 20), (2, 100)] {
            writer.store(number, &vec![7; length]).unwrap();
        }
        // As if the writer was killed between D1 and D2.
        writer.erase_record(0).unwrap();
        writer.erase_record(2).unwrap();
        let blocks = || rustix::fs::fstat(&files.data).unwrap().st_blocks;
        let before = blocks();
        let next = files.writer(5);
        assert_eq!(next.present_chunks().unwrap(), [1]);
        next.reclaim().unwrap();
        assert!(blocks() <= (1 << 20) / 512 && before > blocks(), "{before} {}", blocks());
        assert_eq!(read(&files.reader(None), 1), (ChunkRead::Served, 7));
        assert_eq!(files.reader(None).check(1).unwrap(), ChunkRead::Served);
        files.data.write_all_at(&[1], (1 << 20) + 5).unwrap();
        assert_eq!(files.reader(None).check(1).unwrap(), ChunkRead::Damaged);
    }

    #[test]
    fn damaged_data_is_found_at_first_use_in_each_process() {
        let files = files();
        files.writer(1).store(0, &vec![1; 1 << 20]).unwrap();
        for at in [0, 1000, (1 << 20) - 1] {
            files.data.write_all_at(&[2], at).unwrap();
            assert_eq!(read(&files.reader(None), 0).0, ChunkRead::Damaged, "byte {at}");
            files.data.write_all_at(&[1], at).unwrap();
        }
        assert_eq!(read(&files.reader(None), 0).0, ChunkRead::Served);
        files.data.set_len(1000).unwrap();
        assert_eq!(read(&files.reader(None), 0).0, ChunkRead::Damaged);
    }

    #[test]
    fn a_damaged_index_is_refused_by_readers_and_emptied_by_the_writer() {
        let files = files();
        files.writer(1).store(0, &vec![1; 1 << 20]).unwrap();
        files.records.write_all_at(&[9], 20).unwrap();
        let layout = ChunkLayout::new(LENGTH).unwrap();
        let [data, records] = [&files.data, &files.records].map(|file| file.try_clone().unwrap());
        let error = CachedObject::new(KEY, layout, data, records, None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(!files.writer(1).is_present(0));
        assert_eq!(read(&files.reader(None), 0).0, ChunkRead::Absent);
    }

    #[test]
    fn bytes_that_the_chunk_index_does_not_know_are_damaged() {
        let files = files();
        files.writer(1).store(0, &vec![1; 1 << 20]).unwrap();
        let digests = |byte| {
            let chunk = |length: usize| ContentDigest::of(&vec![byte; length]);
            vec![chunk(1 << 20), chunk(1 << 20), chunk(100)]
        };
        let index = |byte| ChunkIndex::uniform(LENGTH, 1 << 20, digests(byte));
        assert_eq!(read(&files.reader(index(1)), 0).0, ChunkRead::Served);
        assert_eq!(read(&files.reader(index(2)), 0).0, ChunkRead::Damaged);
    }

    /// The stress test of D1 to D6: each stored chunk has one value in all its bytes, so a read
    /// that mixes two of them, or a hole, is seen.
    #[test]
    fn a_reader_never_sees_a_chunk_that_changes_under_it() {
        let files = files();
        let writer = files.writer(1);
        let reader = files.reader(None);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut buffer = vec![0; 256 << 10];
                    while !stop.load(Ordering::Relaxed) {
                        if reader.read(0, 4096, &mut buffer).unwrap() == ChunkRead::Served {
                            assert!(buffer[0] != 0 && buffer.iter().all(|b| *b == buffer[0]));
                        }
                    }
                });
            }
            // Beside the thread that stores and discards, another one discards.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    writer.discard(0..1).unwrap();
                    std::thread::yield_now();
                }
            });
            for round in 0..200u8 {
                writer.store(0, &vec![round | 1; 1 << 20]).unwrap();
                if round % 3 == 0 {
                    writer.discard(0..1).unwrap();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
