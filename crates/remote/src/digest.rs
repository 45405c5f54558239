//! Content digests, as OCI writes them.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest of some content, written `sha256:` and 64 hexadecimal digits in lower case (OCI
/// image specification, descriptors).
///
/// ```
/// use ferrofs_remote::ContentDigest;
///
/// let empty = ContentDigest::of(b"");
/// assert!(empty.to_string().starts_with("sha256:e3b0c442"));
/// assert_eq!(empty.to_string().parse(), Ok(empty));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentDigest([u8; 32]);

/// A blob as documents of OCI name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlobReference {
    /// Its digest.
    pub digest: ContentDigest,
    /// Its length in bytes.
    pub length: u64,
}

/// A text that is no SHA-256 digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DigestError {
    /// The text does not begin with `sha256:`.
    UnknownAlgorithm,
    /// After `sha256:` there are not exactly 64 hexadecimal digits in lower case.
    NotHexadecimal,
}

impl ContentDigest {
    /// Digests `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The 32 bytes of a digest.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> String {
        use fmt::Write;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a String cannot fail.
            write!(text, "{byte:02x}").ok();
            text
        })
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ContentDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl FromStr for ContentDigest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let digits = text.strip_prefix("sha256:").ok_or(DigestError::UnknownAlgorithm)?.as_bytes();
        if digits.len() != 64 {
            return Err(DigestError::NotHexadecimal);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = [nibble(pair[0]), nibble(pair[1])];
            *byte = high
                .zip(low)
                .map(|(high, low)| high << 4 | low)
                .ok_or(DigestError::NotHexadecimal)?;
        }
        Ok(Self(bytes))
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for DigestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownAlgorithm => "a digest begins with \"sha256:\"",
            Self::NotHexadecimal => {
                "after \"sha256:\" a digest has 64 hexadecimal digits in lower case"
            }
        })
    }
}

impl std::error::Error for DigestError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lower_case_sha256_is_a_digest() {
        let good = ContentDigest::of(b"abc").to_string();
        assert_eq!(good.parse(), Ok(ContentDigest::of(b"abc")));
        let parse = |text: &str| text.parse::<ContentDigest>();
        assert_eq!(parse("sha512:00"), Err(DigestError::UnknownAlgorithm));
        assert_eq!(parse(&good[..70]), Err(DigestError::NotHexadecimal));
        assert_eq!(parse(&good.to_uppercase()), Err(DigestError::UnknownAlgorithm));
        assert_eq!(parse(&good.replace('b', "B")), Err(DigestError::NotHexadecimal));
        assert_eq!(parse(&format!("{good}0")), Err(DigestError::NotHexadecimal));
        assert_eq!(parse("sha256:é"), Err(DigestError::NotHexadecimal));
    }
}
