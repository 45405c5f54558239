//! A decode whose output lies between guard bytes, done twice over different old contents.

use ferrofs_codec::{Algorithm, DecodeMode, Decoder, Error, Padding};

const GUARD: [u8; 64] = [0xC7; 64];

/// The arguments of a decode, but for the output.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) algorithm: Algorithm,
    pub(crate) padding: Padding,
    pub(crate) input: &'a [u8],
    pub(crate) mode: DecodeMode,
}

impl Job<'_> {
    /// Decodes `length` bytes.
    ///
    /// A byte that is reported as decoded and was not written shows as a difference between the two
    /// passes; a byte written outside the output shows in the guards.
    pub(crate) fn run(&self, decoder: &mut Decoder, length: usize) -> Result<Vec<u8>, Error> {
        let first = self.pass(decoder, length, 0x00);
        let second = self.pass(decoder, length, 0xFF);
        assert_eq!(first, second, "the outcome depends on what the output held before");
        first
    }

    fn pass(&self, decoder: &mut Decoder, length: usize, old: u8) -> Result<Vec<u8>, Error> {
        let mut buffer = [&GUARD[..], &vec![old; length], &GUARD[..]].concat();
        let output = &mut buffer[GUARD.len()..][..length];
        let result = decoder.decode(self.algorithm, self.padding, self.input, output, self.mode);
        let decoded = output.to_vec();
        assert!(buffer.starts_with(&GUARD), "a byte before the output was written");
        assert!(buffer.ends_with(&GUARD), "a byte behind the output was written");
        result.map(|()| decoded)
    }
}
