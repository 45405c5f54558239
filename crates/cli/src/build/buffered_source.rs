//! An open file of the source that is read in large pieces and compared in small ones. A cluster is
//! often only a few kilobytes long, and a system call for each would cost half as much as the copy.
//! Reads at ascending offsets are fast; other offsets work as well.

use std::ops::Range;

use ferrofs_builder::Result;
use ferrofs_builder::tree::{Content, ContentReader};

/// A file, and the bytes of it that were read last.
pub(super) struct BufferedSource<'b> {
    reader: Box<dyn ContentReader>,
    /// What is read at a time is no more than this.
    buffer: &'b mut [u8],
    /// Where the bytes in the buffer lie in the file.
    ready: Range<u64>,
    /// Readahead ends here.
    end: u64,
}

impl<'b> BufferedSource<'b> {
    /// Opens the file. Callers read up to `end`, or little more. The buffer is not empty.
    pub(super) fn open(content: &Content, end: u64, buffer: &'b mut [u8]) -> Result<Self> {
        let reader = content.source().open()?;
        Ok(Self { reader, buffer, ready: 0..0, end: end.min(content.bytes()) })
    }

    /// The bytes from `offset` on: at most `wanted`, at least one if that many are wanted.
    pub(super) fn get(&mut self, offset: u64, wanted: usize) -> Result<&[u8]> {
        if !self.ready.contains(&offset) {
            let ahead = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
            let count = wanted.max(ahead).min(self.buffer.len());
            // After an error, the buffer holds nothing.
            self.ready = 0..0;
            self.reader.read_exact_at(offset, &mut self.buffer[..count])?;
            self.ready = offset..offset.saturating_add(count as u64);
        }
        let count = usize::try_from(self.ready.end - offset).unwrap_or(usize::MAX).min(wanted);
        let at = usize::try_from(offset - self.ready.start).unwrap_or(usize::MAX);
        Ok(&self.buffer[at..at + count])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ferrofs_builder::tree::ContentSource;
    use ferrofs_builder::{Error, ErrorKind};

    use super::*;

    /// A source of known bytes that counts its reads.
    #[derive(Clone, Default)]
    struct CountingSource(Arc<ReadRequests>);

    #[derive(Default)]
    struct ReadRequests {
        times: AtomicUsize,
        bytes: AtomicUsize,
    }

    impl ContentSource for CountingSource {
        fn name(&self) -> String {
            "source".to_owned()
        }

        fn open(&self) -> Result<Box<dyn ContentReader>> {
            Ok(Box::new(self.clone()))
        }

        fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
            Ok(Vec::new())
        }
    }

    impl ContentReader for CountingSource {
        fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
            for (at, byte) in (offset..).zip(buffer.iter_mut()) {
                *byte = pattern(at);
            }
            self.0.bytes.fetch_add(buffer.len(), Ordering::Relaxed);
            // The third time it fails, when half of the buffer is another one.
            match self.0.times.fetch_add(1, Ordering::Relaxed) {
                2 => Err(Error::new(ErrorKind::Cancelled)),
                _ => Ok(()),
            }
        }

        fn check_unchanged(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn pattern(at: u64) -> u8 {
        (at % 251).to_le_bytes()[0]
    }

    /// All of a range, in as many turns as it takes.
    fn read(window: &mut BufferedSource<'_>, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let bytes = window.get(at, usize::try_from(range.end - at).unwrap())?;
            assert!(!bytes.is_empty());
            for byte in bytes {
                assert_eq!(*byte, pattern(at), "{at}");
                at += 1;
            }
        }
        assert_eq!(at, range.end);
        Ok(())
    }

    #[test]
    fn many_small_pieces_take_few_reads_and_none_behind_the_end() {
        let source = CountingSource::default();
        let content = Content::new(Arc::new(source.clone()), 1_000_000);
        let mut buffer = vec![0; 20_000];
        let mut window = BufferedSource::open(&content, 30_000, &mut buffer).unwrap();
        for start in (0..30_000).step_by(500) {
            read(&mut window, start..start + 500).unwrap();
        }
        let requests = |source: &CountingSource| {
            (source.0.times.load(Ordering::Relaxed), source.0.bytes.load(Ordering::Relaxed))
        };
        assert_eq!(requests(&source), (2, 30_000));
    }

    #[test]
    fn what_lies_behind_the_end_is_read_as_far_as_it_is_asked_for() {
        let source = CountingSource::default();
        let content = Content::new(Arc::new(source.clone()), 10_000);
        let mut buffer = vec![0; 20_000];
        let mut window = BufferedSource::open(&content, 5000, &mut buffer).unwrap();
        read(&mut window, 4900..5300).unwrap();
        assert_eq!(source.0.bytes.load(Ordering::Relaxed), 100 + 300);
    }

    #[test]
    fn a_piece_longer_than_the_buffer_and_one_further_back_come_right() {
        let content = Content::new(Arc::new(CountingSource::default()), 1000);
        let mut buffer = vec![0; 600];
        let mut window = BufferedSource::open(&content, 1000, &mut buffer).unwrap();
        read(&mut window, 0..1000).unwrap();
        // The third read fails; nothing of it is taken for ready.
        read(&mut window, 100..200).unwrap_err();
        read(&mut window, 100..200).unwrap();
        read(&mut window, 650..700).unwrap();
    }
}
