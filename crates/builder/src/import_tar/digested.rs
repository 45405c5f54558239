//! A stream that is digested while it is read, and whose digest is compared at its end. Used by
//! `input` for layers of container images.

use std::fmt;
use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

/// A reader whose end is an error if the bytes do not have the digest.
pub(super) struct DigestedReader {
    inner: Box<dyn Read + Send>,
    digest: Sha256,
    wanted: [u8; 32],
}

impl DigestedReader {
    pub(super) fn new(inner: Box<dyn Read + Send>, wanted: [u8; 32]) -> Self {
        Self { inner, digest: Sha256::new(), wanted }
    }
}

impl Read for DigestedReader {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(output)?;
        self.digest.update(output.get(..count).unwrap_or_default());
        let is_end = count == 0 && !output.is_empty();
        if is_end && self.digest.clone().finalize()[..] != self.wanted {
            return Err(io::Error::new(io::ErrorKind::InvalidData, WrongDigest));
        }
        Ok(count)
    }
}

/// The error of a stream with another digest, inside an [`io::Error`].
#[derive(Clone, Copy, Debug)]
pub(super) struct WrongDigest;

impl fmt::Display for WrongDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the uncompressed archive has not the digest that it should have")
    }
}

impl std::error::Error for WrongDigest {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_an_error_at_the_end() {
        let read = |bytes: &'static [u8]| {
            let wanted = Sha256::digest(b"some bytes").into();
            let mut output = Vec::new();
            DigestedReader::new(Box::new(bytes), wanted).read_to_end(&mut output).map(|_| output)
        };
        assert_eq!(read(b"some bytes").unwrap(), b"some bytes");
        for other in [&b"some byte"[..], b"some bytes.", b"", b"Some bytes"] {
            let error = read(other).unwrap_err();
            assert!(error.get_ref().unwrap().is::<WrongDigest>(), "{error}");
        }
    }
}
