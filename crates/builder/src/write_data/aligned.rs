//! A sink in which the data of each file starts at a multiple of some blocks.

use crate::{BlockSink, Result};

/// What fills up the front of a file's data.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Passes data on, behind zeros where a file begins.
pub(crate) struct AlignedSink<'s> {
    sink: &'s mut dyn BlockSink,
    /// Bytes: whole blocks. 0 stands for any place.
    unit: u64,
    /// The file has no data so far.
    is_due: bool,
}

impl<'s> AlignedSink<'s> {
    /// For data that starts at multiples of `unit` bytes, which are whole blocks; 0 stands for any place.
    pub(crate) fn new(sink: &'s mut dyn BlockSink, unit: u64) -> Self {
        Self { sink, unit, is_due: true }
    }

    /// What comes next is of another file.
    pub(crate) fn begin_file(&mut self) {
        self.is_due = true;
    }

    fn align(&mut self) -> Result<()> {
        let at = self.sink.append(&[])?;
        let mut missing = at.next_multiple_of(self.unit) - at;
        while missing > 0 {
            let count = usize::try_from(missing).unwrap_or(usize::MAX);
            let zeros = ZEROS.get(..count).unwrap_or(&ZEROS);
            self.sink.append(zeros)?;
            missing -= zeros.len() as u64;
        }
        Ok(())
    }
}

impl BlockSink for AlignedSink<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        if std::mem::take(&mut self.is_due) && self.unit > 0 {
            self.align()?;
        }
        self.sink.append(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct CountingSink(u64);

    impl BlockSink for CountingSink {
        fn append(&mut self, bytes: &[u8]) -> Result<u64> {
            let address = self.0;
            self.0 += (bytes.len() as u64).next_multiple_of(512);
            Ok(address)
        }
    }

    #[test]
    fn only_the_first_data_of_a_file_is_moved() {
        let mut image = CountingSink(512);
        let mut sink = AlignedSink::new(&mut image, 3 << 16);
        assert_eq!(sink.append(&[1; 100]).unwrap(), 3 << 16);
        assert_eq!(sink.append(&[1; 100]).unwrap(), (3 << 16) + 512);
        sink.begin_file();
        sink.begin_file();
        assert_eq!(sink.append(&[1; 100]).unwrap(), 6 << 16);
        let mut image = CountingSink(512);
        assert_eq!(AlignedSink::new(&mut image, 0).append(&[1; 100]).unwrap(), 512);
    }
}
