//! Zstandard (RFC 8878): any number of frames, each with its checksum and length verified where it
//! has them.

use std::io::{self, Read};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use xxhash_rust::xxh64::Xxh64;

use super::{CorruptStream, CountingReader};

/// The largest window of a frame. `zstd --ultra -22` and `--long=27` need it; the `zstd` command
/// accepts no larger one by default.
const WINDOW_BYTES_MAX: u64 = 128 << 20;

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
    decoder: FrameDecoder,
    state: ZstdState,
    checksum: Xxh64,
    frame_bytes: u64,
}

impl ZstdReader {
    pub(super) fn new(input: CountingReader) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_BYTES_MAX);
        let state = ZstdState::Start { is_first: true };
        Self { input, decoder, state, checksum: Xxh64::new(0), frame_bytes: 0 }
    }

    fn damage(&self, what: &str) -> io::Error {
        CorruptStream::error(format!("the zstd data {what}"), self.input.position())
    }

    fn start(&mut self, is_first: bool) -> io::Result<()> {
        match *self.input.peek(4)? {
            [] if !is_first => self.state = ZstdState::End,
            [0x28, 0xB5, 0x2F, 0xFD] => {
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
