//! Zstandard (RFC 8878): any number of frames, each with its checksum and length verified where it
//! has them.

use std::io::{self, Read};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use xxhash_rust::xxh64::Xxh64;

use super::window::WindowMemory;
use super::{CorruptStream, CountingReader};

/// Bytes of the header of a frame at most: magic, descriptor, window, dictionary, length of the contents.
const FRAME_HEADER_BYTES_MAX: usize = 4 + 1 + 1 + 4 + 8;

/// What the reader expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ZstdState {
    /// A frame, or the end.
    Start {
        is_first: bool,
    },
    /// The data of a frame.
    Frame,
    End,
}

/// The decompressed stream of a zstd file.
pub(super) struct ZstdReader {
    input: CountingReader,
    window: WindowMemory,
    decoder: FrameDecoder,
    state: ZstdState,
    checksum: Xxh64,
    frame_bytes: u64,
}

impl ZstdReader {
    pub(super) fn new(input: CountingReader, window: WindowMemory) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(window.bytes_max());
        let state = ZstdState::Start { is_first: true };
        Self { input, window, decoder, state, checksum: Xxh64::new(0), frame_bytes: 0 }
    }

    fn damage(&self, what: &str) -> io::Error {
        CorruptStream::error(format!("the zstd data {what}"), self.input.position())
    }

    fn start(&mut self, is_first: bool) -> io::Result<()> {
        match *self.input.peek(4)? {
            [] if !is_first => self.state = ZstdState::End,
            [0x28, 0xB5, 0x2F, 0xFD] => {
                if let Some(bytes) = window_bytes(self.input.peek(FRAME_HEADER_BYTES_MAX)?) {
                    // The buffer of the decoder has a power of two.
                    let bytes = bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
                    self.window.reserve("zstd", bytes, self.input.position())?;
                }
                if let Err(error) = self.decoder.reset(&mut self.input) {
                    return Err(
                        self.damage(&format!("has a frame that cannot be decoded ({error})"))
                    );
                }
                (self.checksum, self.frame_bytes) = (Xxh64::new(0), 0);
                self.state = ZstdState::Frame;
            }
            [0x50..=0x5F, 0x2A, 0x4D, 0x18] => {
                self.skip_frame()?;
                self.state = ZstdState::Start { is_first: false };
            }
            _ => return Err(self.damage("has no frame where one should begin")),
        }
        Ok(())
    }

    /// Skips a skippable frame.
    fn skip_frame(&mut self) -> io::Result<()> {
        let mut header = [0; 8];
        for byte in &mut header {
            *byte = self.input.byte()?.ok_or_else(|| self.damage("ends too early"))?;
        }
        let [.., a, b, c, d] = header;
        let mut left = u64::from(u32::from_le_bytes([a, b, c, d]));
        while left > 0 {
            let ready = self.input.fill()?.len();
            if ready == 0 {
                return Err(self.damage("ends too early"));
            }
            let count = ready.min(usize::try_from(left).unwrap_or(usize::MAX));
            self.input.consume(count);
            left -= count as u64;
        }
        Ok(())
    }

    /// Decodes until there are bytes to return or the frame has ended.
    fn decode(&mut self) -> io::Result<()> {
        while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
            let strategy = BlockDecodingStrategy::UptoBlocks(1);
            if let Err(error) = self.decoder.decode_blocks(&mut self.input, strategy) {
                return Err(self.damage(&format!("cannot be decoded ({error})")));
            }
        }
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        let wanted = self.decoder.content_size();
        if wanted != 0 && wanted != self.frame_bytes {
            return Err(self.damage("has a frame whose length differs from its header"));
        }
        // A frame stores the lower half of the hash.
        let checksum = self.checksum.digest() & 0xFFFF_FFFF;
        if self.decoder.get_checksum_from_data().is_some_and(|kept| u64::from(kept) != checksum) {
            return Err(self.damage("has a frame with a wrong checksum"));
        }
        self.state = ZstdState::Start { is_first: false };
        Ok(())
    }
}

impl Read for ZstdReader {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        if output.is_empty() {
            return Ok(0);
        }
        loop {
            match self.state {
                ZstdState::End => return Ok(0),
                ZstdState::Start { is_first } => self.start(is_first)?,
                ZstdState::Frame => {
                    self.decode()?;
                    let count = self.decoder.read(output)?;
                    if count == 0 {
                        self.end_frame()?;
                        continue;
                    }
                    self.checksum.update(&output[..count]);
                    self.frame_bytes += count as u64;
                    return Ok(count);
                }
            }
        }
    }
}

/// The bytes of the window of a frame, if its header is whole; if not, the decoder reports it.
fn window_bytes(header: &[u8]) -> Option<u64> {
    let descriptor = *header.get(4)?;
    if descriptor & 0x20 == 0 {
        let window = *header.get(5)?;
        let base = 1u64.checked_shl(10 + u32::from(window >> 3))?;
        return base.checked_add(base / 8 * u64::from(window & 7));
    }
    // The window is all of the contents.
    let at = 5 + [0, 1, 2, 4][usize::from(descriptor & 3)];
    let (count, more) = [(1, 0), (2, 256), (4, 0), (8, 0)][usize::from(descriptor >> 6)];
    let bytes = header.get(at..)?.get(..count)?;
    let value = bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    value.checked_add(more)
}
