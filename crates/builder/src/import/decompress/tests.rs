//! Streams that tools made, whole, cut and damaged.

use std::io::{Cursor, Read};
use std::path::Path;

use super::crc32::Crc32;
use super::{Compression, CountingReader};

fn made(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tar");
    std::fs::read(folder.join(name)).unwrap()
}

const MADE: [&str; 6] = [
    "pax.tar.gz",
    "pax-two.tar.gzip",
    "pax.tar.xz",
    "pax-two.tar.xz",
    "pax.tar.zst",
    "pax-two.tar.zstd",
];

/// What is in a stream that comes in pieces of `step` bytes.
fn decode(bytes: &[u8], step: usize) -> Result<Vec<u8>, String> {
    struct SlowReader(Cursor<Vec<u8>>, usize);
    impl Read for SlowReader {
        fn read(&mut self, output: &mut [u8]) -> std::io::Result<usize> {
            let count = output.len().min(self.1);
            self.0.read(&mut output[..count])
        }
    }
    let mut input = CountingReader::new(Box::new(SlowReader(Cursor::new(bytes.to_vec()), step)));
    let compression = Compression::detect(&mut input).unwrap();
    let mut output = Vec::new();
    match compression.reader(input).read_to_end(&mut output) {
        Ok(_) => Ok(output),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn all_kinds_hold_the_same_bytes() {
    let wanted = decode(&made("pax.tar.zst"), usize::MAX).unwrap();
    assert_eq!(wanted.len() % 512, 0);
    for name in MADE {
        for step in [1, 7, 4096] {
            assert!(decode(&made(name), step).unwrap() == wanted, "{name} {step}");
        }
    }
}

#[test]
fn a_stream_cut_anywhere_is_an_error_with_its_place() {
    for name in MADE {
        let bytes = made(name);
        let wanted = decode(&bytes, usize::MAX).unwrap();
        for length in 8..bytes.len() {
            match decode(&bytes[..length], usize::MAX) {
                Err(error) => {
                    assert!(error.contains(" of the compressed stream"), "{name}: {error}");
                }
                // Between the parts a cut leaves whole streams.
                Ok(found) => {
                    assert!(name.contains("two") && wanted.starts_with(&found), "{name} {length}");
                }
            }
        }
    }
}

#[test]
fn a_changed_byte_is_never_a_wrong_byte() {
    for name in MADE {
        let bytes = made(name);
        let wanted = decode(&bytes, usize::MAX).unwrap();
        for at in 8..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x10;
            if let Ok(found) = decode(&bytes, usize::MAX) {
                // A second stream that begins with zeros is padding.
                assert!(found == wanted, "{name} {at}");
            }
        }
    }
}

#[test]
fn what_follows_a_stream_is_padding_or_an_error() {
    for (name, message) in [
        ("pax.tar.gz", "the gzip data has no header where a member should begin"),
        ("pax.tar.xz", "the xz data cannot be decoded"),
        ("pax.tar.zst", "the zstd data has no frame where one should begin"),
    ] {
        let mut bytes = made(name);
        bytes.extend_from_slice(b"something else");
        assert!(decode(&bytes, usize::MAX).unwrap_err().starts_with(message), "{name}");
    }
    for name in ["pax.tar.gz", "pax.tar.xz"] {
        let mut bytes = made(name);
        let wanted = decode(&bytes, usize::MAX).unwrap();
        bytes.extend_from_slice(&[0; 512]);
        assert!(decode(&bytes, usize::MAX).unwrap() == wanted, "{name}");
    }
}

#[test]
fn frames_of_zstd_that_are_not_for_us_are_skipped() {
    let bytes = made("pax.tar.zst");
    let skipped =
        [&b"\x5A\x2A\x4D\x18\x05\0\0\0hello"[..], &bytes, b"\x50\x2A\x4D\x18\0\0\0\0"].concat();
    assert!(decode(&skipped, 3).unwrap() == decode(&bytes, 3).unwrap());
    let cut = b"\x5A\x2A\x4D\x18\xFF\xFF\xFF\xFFhello";
    let message = "the zstd data ends too early at byte 13 of the compressed stream";
    assert_eq!(decode(cut, 3).unwrap_err(), message);
}

#[test]
fn an_xz_header_that_asks_for_much_memory_is_refused() {
    // The dictionary's size is the last byte of the block header's only filter.
    let mut bytes = made("pax.tar.xz");
    let at = bytes.windows(2).position(|pair| pair == [0x21, 1]).unwrap() + 2;
    bytes[at] = 40;
    let size = (usize::from(bytes[12]) + 1) * 4;
    let mut checksum = Crc32::new();
    checksum.update(&bytes[12..12 + size - 4]);
    let checksum = checksum.value().to_le_bytes();
    bytes[12 + size - 4..12 + size].copy_from_slice(&checksum);
    let error = decode(&bytes, usize::MAX).unwrap_err();
    assert!(error.contains("memory"), "{error}");
}

#[test]
fn checksums_are_those_of_the_standard() {
    let mut checksum = Crc32::new();
    checksum.update(b"123456789");
    assert_eq!(checksum.value(), 0xCBF4_3926);
    let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let mut whole = Crc32::new();
    whole.update(&bytes);
    let mut parts = Crc32::new();
    bytes.chunks(13).for_each(|part| parts.update(part));
    assert_eq!(whole.value(), parts.value());
}
