//! A buffered stream that knows how many bytes of it were used.

use std::io::{self, Read};

/// Large enough that system calls do not count.
const BUFFER_BYTES: usize = 128 << 10;

/// A stream with a buffer and a position.
pub(in crate::import) struct CountingReader {
    inner: Box<dyn Read + Send>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    position: u64,
}

impl CountingReader {
    pub(in crate::import) fn new(inner: Box<dyn Read + Send>) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self { inner, buffer, start: 0, end: 0, position: 0 }
    }

    /// How many bytes were used.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The next bytes, none of them used up: `count` of them, or fewer at the end. `count` is small.
    pub(super) fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        if self.end - self.start < count {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        while self.end - self.start < count && self.end < self.buffer.len() {
            let got = read_some(&mut self.inner, &mut self.buffer[self.end..])?;
            if got == 0 {
                break;
            }
            self.end += got;
        }
        Ok(&self.buffer[self.start..self.end.min(self.start + count)])
    }

    /// What is in the buffer, after filling it where it was empty; nothing at the end.
    pub(super) fn fill(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            self.start = 0;
            self.end = read_some(&mut self.inner, &mut self.buffer)?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Uses `count` bytes of those that [`fill`](Self::fill) gave.
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
        // What is wanted in large pieces goes past the buffer.
        if self.start == self.end && output.len() >= BUFFER_BYTES {
            let got = read_some(&mut self.inner, output)?;
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

fn read_some(inner: &mut dyn Read, output: &mut [u8]) -> io::Result<usize> {
    loop {
        match inner.read(output) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
