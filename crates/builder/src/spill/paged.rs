//! Arrays in pages of a [`SpillStore`]: of bytes, and of records of a fixed size.

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

#[cfg(test)]
mod tests {
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
}
