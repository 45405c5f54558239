//! Numbers and byte strings in few bytes: numbers of seven bits a byte, the lowest first, and strings behind their
//! length. Only this process reads what it wrote; bytes that end early read as zeros.

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
}
