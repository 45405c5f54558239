//! The target of the files that Android keeps images in: sparse images, and partitions of super images.
//!
//! Input: a byte of switches (1: a sparse image, else a super image; 2: its magic is right), then the bytes of a sparse
//! image; or the geometry without its checksum, two bytes with the lengths of header and tables in units of 16 bytes,
//! header and tables. The checksums of a super image are made right, so that the tables are read.

use std::io;
use std::sync::Arc;

use ferrofs_image::ImageSource;
use ferrofs_image::android::{PartitionError, PartitionSource, SparseSource};
use sha2::{Digest, Sha256};

use crate::input::Input;

/// Of an expanded image or a partition, so much is read.
const READ_MAX_BYTES: usize = 256 << 10;
const SUPER_BYTES: usize = 32 << 10;
const GEOMETRY_AT: usize = 4096;
const HEADER_AT: usize = 12288;

/// A source in memory.
#[derive(Debug)]
struct Memory(Vec<u8>);

impl ImageSource for Memory {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len());
        let count = buffer.len().min(self.0.len() - start);
        buffer[..count].copy_from_slice(&self.0[start..start + count]);
        Ok(count)
    }

    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    /// Ranges that nothing is stored in are a mistake of the caller.
    fn make_ready(&self, ranges: &[std::ops::Range<u64>]) -> io::Result<()> {
        assert!(ranges.iter().all(|range| range.start < range.end && range.end <= self.length()));
        Ok(())
    }
}

/// Opens a file, and reads the image in it in two ways.
pub fn android(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let switches = input.u8();
    if switches & 1 != 0 {
        let mut file = input.rest().to_vec();
        if switches & 2 != 0 && file.len() >= 4 {
            file[..4].copy_from_slice(&[0x3a, 0xff, 0x26, 0xed]);
        }
        let source = Memory(file);
        SparseSource::is_sparse(&source).expect("memory");
        if let Ok(sparse) = SparseSource::open(Arc::new(source)) {
            read_both_ways(&sparse);
        }
        return;
    }
    let whole = Arc::new(Memory(super_image(input)));
    for name in ["a", "system", ""] {
        match PartitionSource::find(Arc::<Memory>::clone(&whole), name) {
            Ok(partition) => read_both_ways(&partition),
            Err(PartitionError::NoSuchName(names)) => assert!(names.len() <= 64),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// A super image whose checksums are right.
fn super_image(mut input: Input<'_>) -> Vec<u8> {
    let mut image = vec![0; SUPER_BYTES];
    let mut geometry = [0; 52];
    geometry[40..].copy_from_slice(input.take(12).first_chunk::<12>().unwrap_or(&[0xff; 12]));
    geometry[..4].copy_from_slice(b"gDla");
    let (header_bytes, tables_bytes) = (usize::from(input.u8()) * 16, usize::from(input.u8()) * 16);
    let mut header = input.take(header_bytes).to_vec();
    header.resize(header_bytes.max(128), 0);
    let tables = input.take(tables_bytes);
    header[..4].copy_from_slice(b"0PLA");
    header[44..48].copy_from_slice(&u32::try_from(tables.len()).expect("4 KiB").to_le_bytes());
    header[48..80].copy_from_slice(&Sha256::digest(tables));
    header[12..44].fill(0);
    // The checksum covers what the header says it has; where that is another length, it is wrong.
    let sum = Sha256::digest(&header);
    header[12..44].copy_from_slice(&sum);
    let sum = Sha256::digest(geometry);
    geometry[8..40].copy_from_slice(&sum);
    image[GEOMETRY_AT..GEOMETRY_AT + geometry.len()].copy_from_slice(&geometry);
    image[HEADER_AT..HEADER_AT + header.len()].copy_from_slice(&header);
    let tables_at = HEADER_AT + header.len();
    image[tables_at..tables_at + tables.len()].copy_from_slice(tables);
    image
}

/// One read of all bytes, and many small ones, give the same; nothing is beyond the length.
fn read_both_ways(source: &dyn ImageSource) {
    let length = usize::try_from(source.length()).unwrap_or(usize::MAX).min(READ_MAX_BYTES);
    let mut whole = vec![0xee; length];
    let Ok(count) = source.read_at(0, &mut whole) else { return };
    assert_eq!(count, length, "a read ends before the end");
    let range = 0..length as u64;
    source.make_ready(std::slice::from_ref(&range)).expect("memory is ready");
    let mut at = 0;
    let mut piece = [0xdd; 3001];
    while at < length {
        let count = source.read_at(at as u64, &mut piece).expect("the whole was read");
        let expected = &whole[at..(at + piece.len()).min(length)];
        assert!(count >= expected.len() && piece[..expected.len()] == *expected, "byte {at}");
        at += piece.len();
    }
    assert_eq!(source.read_at(source.length(), &mut piece).expect("the end"), 0);
    assert_eq!(source.read_at(u64::MAX, &mut piece).expect("behind the end"), 0);
}
