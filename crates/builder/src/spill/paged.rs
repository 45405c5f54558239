//! Arrays in pages of a [`SpillStore`]: of bytes, and of records of a fixed size; records of other sizes, in few bytes
//! ([`RecordEncoder`]); and an external sort ([`Sorter`]), whose runs are sorted in memory and merged.
//!
//! Only this process reads what it wrote. What lies behind the end reads as zeros.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::marker::PhantomData;

use super::{PAGE_BYTES, SpillStore};

/// Read at once of a blob.
const BLOB_FRONT_BYTES: usize = 128;
/// The longest record.
const RECORD_BYTES_MAX: usize = 64;

/// Bytes that are appended, changed in place, and read in any order.
#[derive(Debug)]
pub(crate) struct PagedBytes {
    store: SpillStore,
    pages: Vec<u32>,
    bytes: u64,
}

impl PagedBytes {
    /// No bytes.
    pub(crate) fn new(store: &SpillStore) -> Self {
        Self { store: store.clone(), pages: Vec::new(), bytes: 0 }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.bytes
    }

    /// Appends bytes, and returns where they lie.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> u64 {
        let at = self.bytes;
        self.append_zeros(bytes.len() as u64);
        self.write(at, bytes);
        at
    }

    /// Appends `count` zeros, which take no memory until they are changed.
    pub(crate) fn append_zeros(&mut self, count: u64) {
        self.bytes += count;
        while (self.pages.len() as u64) * (PAGE_BYTES as u64) < self.bytes {
            self.pages.push(self.store.allocate());
        }
    }

    /// Replaces bytes that are there.
    pub(crate) fn write(&mut self, at: u64, mut bytes: &[u8]) {
        let mut at = at;
        while let Some((page, start, count)) = self.piece(at, bytes.len()) {
            let (front, rest) = bytes.split_at(count);
            self.store.write(page, |page| page[start..start + count].copy_from_slice(front));
            at += count as u64;
            bytes = rest;
        }
    }

    /// Reads bytes; what lies behind the end is zeros.
    pub(crate) fn read(&self, at: u64, output: &mut [u8]) {
        let mut at = at;
        let mut output = output;
        while let Some((page, start, count)) = self.piece(at, output.len()) {
            let (front, rest) = output.split_at_mut(count);
            self.store.read(page, |page| front.copy_from_slice(&page[start..start + count]));
            at += count as u64;
            output = rest;
        }
        output.fill(0);
    }

    /// Reads `count` bytes, or as many as there are.
    pub(crate) fn read_vec(&self, at: u64, count: usize) -> Vec<u8> {
        let left = usize::try_from(self.bytes.saturating_sub(at)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; count.min(left)];
        self.read(at, &mut bytes);
        bytes
    }

    /// Appends bytes with their length, and returns where they lie.
    pub(crate) fn append_blob(&mut self, bytes: &[u8]) -> u64 {
        // Blobs are names, maps and attributes, and far shorter.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let at = self.append(&length.to_le_bytes());
        self.append(bytes);
        at
    }

    /// Reads what [`append_blob`](Self::append_blob) put at `at`.
    pub(crate) fn read_blob(&self, at: u64) -> Vec<u8> {
        // Most blobs are short: one look at the store is enough.
        let mut front = [0; BLOB_FRONT_BYTES];
        self.read(at, &mut front);
        let length = u32::from_le_bytes(first(&front)) as usize;
        match front.get(4..length.saturating_add(4)) {
            Some(bytes) => bytes.to_vec(),
            None => self.read_vec(at + 4, length),
        }
    }

    /// Checks the store.
    ///
    /// # Errors
    /// As [`SpillStore::check`].
    pub(crate) fn check(&self) -> crate::Result<()> {
        self.store.check()
    }

    /// Drops the bytes from `bytes` on.
    pub(crate) fn truncate(&mut self, bytes: u64) {
        self.bytes = self.bytes.min(bytes);
        let pages = usize::try_from(self.bytes.div_ceil(PAGE_BYTES as u64)).unwrap_or(usize::MAX);
        let freed = self.pages.split_off(pages.min(self.pages.len()));
        self.store.free(&freed);
    }

    /// The page that byte `at` lies in, where in it, and how many of `count` bytes lie there; none for no bytes.
    fn piece(&self, at: u64, count: usize) -> Option<(u32, usize, usize)> {
        let page = *self.pages.get(usize::try_from(at / PAGE_BYTES as u64).ok()?)?;
        let start = usize::try_from(at % PAGE_BYTES as u64).ok()?;
        (count > 0).then(|| (page, start, count.min(PAGE_BYTES - start)))
    }
}

impl Drop for PagedBytes {
    fn drop(&mut self) {
        self.store.free(&self.pages);
    }
}

/// A value of a fixed size. All zeros are a value, too.
pub(crate) trait Record: Copy {
    /// Its size; 64 at most.
    const BYTES: usize;

    /// Puts it into `output`, which is [`BYTES`](Self::BYTES) long.
    fn store(self, output: &mut [u8]);

    /// Gets it out of `bytes`, which is [`BYTES`](Self::BYTES) long.
    fn load(bytes: &[u8]) -> Self;
}

impl Record for u32 {
    const BYTES: usize = 4;

    fn store(self, output: &mut [u8]) {
        output.copy_from_slice(&self.to_le_bytes());
    }

    fn load(bytes: &[u8]) -> Self {
        Self::from_le_bytes(first(bytes))
    }
}

impl Record for u64 {
    const BYTES: usize = 8;

    fn store(self, output: &mut [u8]) {
        output.copy_from_slice(&self.to_le_bytes());
    }

    fn load(bytes: &[u8]) -> Self {
        Self::from_le_bytes(first(bytes))
    }
}

impl<A: Record, B: Record> Record for (A, B) {
    const BYTES: usize = A::BYTES + B::BYTES;

    fn store(self, output: &mut [u8]) {
        let (first, second) = output.split_at_mut(A::BYTES);
        self.0.store(first);
        self.1.store(second);
    }

    fn load(bytes: &[u8]) -> Self {
        let (first, second) = bytes.split_at(A::BYTES);
        (A::load(first), B::load(second))
    }
}

/// The first bytes of `bytes`; zeros where there are fewer.
pub(crate) fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}

/// Records by number.
#[derive(Debug)]
pub(crate) struct PagedArray<R> {
    bytes: PagedBytes,
    records: PhantomData<R>,
}

impl<R: Record> PagedArray<R> {
    /// No records.
    pub(crate) fn new(store: &SpillStore) -> Self {
        const { assert!(R::BYTES <= RECORD_BYTES_MAX) };
        Self { bytes: PagedBytes::new(store), records: PhantomData }
    }

    /// `count` records of zeros.
    pub(crate) fn zeros(store: &SpillStore, count: usize) -> Self {
        let mut array = Self::new(store);
        array.bytes.append_zeros((count as u64).saturating_mul(R::BYTES as u64));
        array
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.bytes.len() / R::BYTES as u64).unwrap_or(usize::MAX)
    }

    /// Adds a record.
    pub(crate) fn push(&mut self, record: R) {
        let mut buffer = [0; RECORD_BYTES_MAX];
        record.store(&mut buffer[..R::BYTES]);
        self.bytes.append(&buffer[..R::BYTES]);
    }

    /// The record with this number, if there are so many.
    pub(crate) fn get(&self, index: usize) -> Option<R> {
        (index < self.len()).then(|| {
            let mut buffer = [0; RECORD_BYTES_MAX];
            self.bytes.read(place::<R>(index), &mut buffer[..R::BYTES]);
            R::load(&buffer[..R::BYTES])
        })
    }

    /// Replaces a record that is there.
    pub(crate) fn set(&mut self, index: usize, record: R) {
        if index < self.len() {
            let mut buffer = [0; RECORD_BYTES_MAX];
            record.store(&mut buffer[..R::BYTES]);
            self.bytes.write(place::<R>(index), &buffer[..R::BYTES]);
        }
    }

    /// All records, read some at a time.
    pub(crate) fn iter(&self) -> impl Iterator<Item = R> {
        let (mut next, mut batch) = (0, Vec::new().into_iter());
        std::iter::from_fn(move || {
            if let Some(record) = batch.next() {
                return Some(record);
            }
            batch = self.batch(next).into_iter();
            next += batch.len();
            batch.next()
        })
    }

    /// Some records from `index` on; none behind the last one.
    pub(crate) fn batch(&self, index: usize) -> Vec<R> {
        let count = self.len().saturating_sub(index).min(PAGE_BYTES / R::BYTES);
        let bytes = self.bytes.read_vec(place::<R>(index), count * R::BYTES);
        bytes.chunks_exact(R::BYTES).map(R::load).collect()
    }

    /// The first index from which on `is_before` does not hold; it holds for a front of the records only.
    pub(crate) fn partition_point(&self, is_before: impl Fn(R) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.get(middle) {
                Some(record) if is_before(record) => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }
}

fn place<R: Record>(index: usize) -> u64 {
    index as u64 * R::BYTES as u64
}

/// Bytes of a number at most.
const NUMBER_BYTES_MAX: usize = 10;

/// Puts values one after another.
#[derive(Debug, Default)]
pub(crate) struct RecordEncoder {
    /// What was put so far.
    pub(crate) bytes: Vec<u8>,
}

impl RecordEncoder {
    /// Puts a number.
    pub(crate) fn number(&mut self, mut number: u64) -> &mut Self {
        while number >= 0x80 {
            self.bytes.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.bytes.push(number.to_le_bytes()[0]);
        self
    }

    /// Puts a number that may be negative.
    pub(crate) fn signed(&mut self, number: i64) -> &mut Self {
        self.number((number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned())
    }

    /// Puts bytes of which the reader knows how many there are.
    pub(crate) fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Puts a byte string.
    pub(crate) fn string(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
        self
    }
}

/// Takes values in the order in which they were put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordDecoder<'b> {
    rest: &'b [u8],
}

impl<'b> RecordDecoder<'b> {
    /// Takes values from `bytes`.
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Takes a number.
    pub(crate) fn number(&mut self) -> u64 {
        let mut number = 0;
        for place in 0..NUMBER_BYTES_MAX {
            let Some((byte, rest)) = self.rest.split_first() else { break };
            self.rest = rest;
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                break;
            }
        }
        number
    }

    /// Takes a number of 32 bits.
    pub(crate) fn short(&mut self) -> u32 {
        u32::try_from(self.number()).unwrap_or(u32::MAX)
    }

    /// Takes a number that may be negative.
    pub(crate) fn signed(&mut self) -> i64 {
        let number = self.number();
        (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
    }

    /// Takes so many bytes; zeros if there are fewer.
    pub(crate) fn fixed<const N: usize>(&mut self) -> [u8; N] {
        let Some((bytes, rest)) = self.rest.split_first_chunk() else { return [0; N] };
        self.rest = rest;
        *bytes
    }

    /// Takes a byte string.
    pub(crate) fn string(&mut self) -> &'b [u8] {
        let length = usize::try_from(self.number()).unwrap_or(usize::MAX);
        let (string, rest) = self.rest.split_at(length.min(self.rest.len()));
        self.rest = rest;
        string
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// Bytes of a run, which is sorted in memory.
const RUN_BYTES: usize = 2 << 20;

/// Takes records in any order.
#[derive(Debug)]
pub(crate) struct Sorter<R> {
    store: SpillStore,
    runs: Vec<PagedArray<R>>,
    buffer: Vec<R>,
}

impl<R: Record + Ord> Sorter<R> {
    /// No records.
    pub(crate) fn new(store: &SpillStore) -> Self {
        Self { store: store.clone(), runs: Vec::new(), buffer: Vec::new() }
    }

    /// Adds a record.
    pub(crate) fn push(&mut self, record: R) {
        if self.buffer.len() >= RUN_BYTES / size_of::<R>() {
            self.end_run();
        }
        self.buffer.push(record);
    }

    /// All records in ascending order.
    pub(crate) fn finish(mut self) -> SortedRecords<R> {
        if !self.runs.is_empty() {
            self.end_run();
        }
        self.buffer.sort_unstable();
        let in_memory = std::mem::take(&mut self.buffer).into_iter();
        let mut sorted = SortedRecords { in_memory, runs: Vec::new(), heads: BinaryHeap::new() };
        for (number, records) in self.runs.into_iter().enumerate() {
            sorted.runs.push(RunReader { records, next: 0, batch: Vec::new().into_iter() });
            sorted.pull(number);
        }
        sorted
    }

    fn end_run(&mut self) {
        self.buffer.sort_unstable();
        let mut run = PagedArray::new(&self.store);
        for record in self.buffer.drain(..) {
            run.push(record);
        }
        self.runs.push(run);
    }
}

/// Records in ascending order.
#[derive(Debug)]
pub(crate) struct SortedRecords<R> {
    /// All of them, if there is one run only.
    in_memory: std::vec::IntoIter<R>,
    runs: Vec<RunReader<R>>,
    /// The next record of each run.
    heads: BinaryHeap<Reverse<(R, usize)>>,
}

#[derive(Debug)]
struct RunReader<R> {
    records: PagedArray<R>,
    next: usize,
    batch: std::vec::IntoIter<R>,
}

impl<R: Record + Ord> SortedRecords<R> {
    fn pull(&mut self, number: usize) {
        let Some(run) = self.runs.get_mut(number) else { return };
        if run.batch.len() == 0 {
            run.batch = run.records.batch(run.next).into_iter();
            run.next += run.batch.len();
        }
        self.heads.extend(run.batch.next().map(|record| Reverse((record, number))));
    }
}

impl<R: Record + Ord> Iterator for SortedRecords<R> {
    type Item = R;

    fn next(&mut self) -> Option<R> {
        if self.runs.is_empty() {
            return self.in_memory.next();
        }
        let Reverse((record, number)) = self.heads.pop()?;
        self.pull(number);
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::spill::tests::small_store;

    #[test]
    fn bytes_cross_pages_and_can_be_cut() {
        let (store, _directory) = small_store();
        let mut log = PagedBytes::new(&store);
        let pattern: Vec<u8> = (0..=250).cycle().take(1_000_000).collect();
        for piece in pattern.chunks(7001) {
            log.append(piece);
        }
        assert!(log.read_vec(0, usize::MAX) == pattern);
        assert_eq!(log.read_vec(4090, 10), pattern[4090..4100]);
        log.write(4094, b"abcd");
        assert_eq!(
            log.read_vec(4093, 6),
            [&pattern[4093..4094], b"abcd", &pattern[4098..4099]].concat()
        );
        log.truncate(4096);
        assert_eq!(log.append(b"xy"), 4096);
        assert_eq!(log.read_vec(4094, 100), b"abxy");
        assert_eq!(log.pages.len(), 2);
    }

    #[test]
    fn records_are_found_by_number() {
        let (store, _directory) = small_store();
        let mut array = PagedArray::<(u64, u32)>::new(&store);
        for number in 0..100_000_u32 {
            array.push((u64::from(number) * 3, number));
        }
        assert_eq!(array.get(77_777), Some((233_331, 77_777)));
        assert_eq!(array.get(100_000), None);
        array.set(5, (1, 2));
        assert_eq!(array.get(5), Some((1, 2)));
        assert_eq!(
            array.iter().skip(6).map(|(start, _)| start).sum::<u64>(),
            (6..100_000).map(|n| n * 3).sum::<u64>()
        );
        assert_eq!(array.partition_point(|(start, _)| start <= 300), 101);
        assert_eq!(PagedArray::<u32>::zeros(&store, 5000).iter().sum::<u32>(), 0);
    }

    proptest! {
        #[test]
        fn values_come_back(numbers: Vec<u64>, signed: Vec<i64>, string: Vec<u8>) {
            let mut encoder = RecordEncoder::default();
            for number in &numbers {
                encoder.number(*number);
            }
            for number in &signed {
                encoder.signed(*number);
            }
            encoder.string(&string);
            let mut decoder = RecordDecoder::new(&encoder.bytes);
            for number in numbers {
                prop_assert_eq!(decoder.number(), number);
            }
            for number in signed {
                prop_assert_eq!(decoder.signed(), number);
            }
            prop_assert_eq!(decoder.string(), &string[..]);
            prop_assert!(decoder.is_empty());
            prop_assert_eq!((decoder.number(), decoder.string()), (0, &[][..]));
        }
    }

    #[test]
    fn records_come_out_in_order_however_many_runs_there_are() {
        let (store, _directory) = small_store();
        for count in [0, 10, 100_000, 700_000_u32] {
            let mut sorter = Sorter::new(&store);
            for number in 0..count {
                sorter.push((u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40, number));
            }
            let sorted: Vec<(u64, u32)> = sorter.finish().collect();
            assert_eq!(sorted.len(), count as usize);
            assert!(sorted.is_sorted());
            assert_eq!(
                sorted.iter().map(|(_, number)| u64::from(*number)).sum::<u64>(),
                (0..u64::from(count)).sum::<u64>()
            );
        }
        store.check().unwrap();
    }
}
