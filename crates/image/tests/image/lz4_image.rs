//! Writes small images, of LZ4 or ZSTD, with extents of any length, which no image of the corpus has. It owns
//! the layout of such an image and the plain text of its files. It makes sequences up, and executes
//! them one byte at a time to know the text. The tests of the engine call it.

use std::sync::Arc;

use ferrofs_codec::{Encoder, Method};
use ferrofs_image::{Image, ImageSource, Inode, OpenOptions, VerifyOptions};

const BLOCK: usize = 4096;
/// The algorithms in the lengths of encoded extents.
const LZ4_FORMAT: u32 = 1;
const ZSTD_FORMAT: u32 = 4;
/// Where the inodes lie.
const META: usize = BLOCK;

/// A small generator of numbers that look random: no test depends on how they look.
#[derive(Debug)]
pub(crate) struct XorshiftRng(pub(crate) u64);

impl XorshiftRng {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.below(256).to_le_bytes()[0]
    }

    pub(crate) fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap()
    }
}

/// An LZ4 block and its decoded text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lz4Block {
    pub(crate) encoded: Vec<u8>,
    pub(crate) text: Vec<u8>,
}

impl Lz4Block {
    /// A block of about `bytes` bytes whose matches reach back `most` bytes at most, and that far
    /// now and then.
    pub(crate) fn new(numbers: &mut XorshiftRng, bytes: usize, most: usize) -> Self {
        let mut block = Self::default();
        while block.text.len() < bytes {
            let literals: Vec<u8> = (0..1 + numbers.index(20)).map(|_| numbers.byte()).collect();
            let reach = most.min(block.text.len() + literals.len());
            let distance = if numbers.below(4) == 0 { reach } else { 1 + numbers.index(reach) };
            block.sequence(&literals, distance, 4 + numbers.index(1500));
        }
        block.end();
        block
    }

    /// Adds literals and a match.
    pub(crate) fn sequence(&mut self, literals: &[u8], distance: usize, length: usize) {
        self.token(literals.len(), length - 4);
        self.length(literals.len());
        self.encoded.extend_from_slice(literals);
        self.text.extend_from_slice(literals);
        self.encoded.extend_from_slice(&u16::try_from(distance).unwrap().to_le_bytes());
        self.length(length - 4);
        for _ in 0..length {
            self.text.push(self.text[self.text.len() - distance]);
        }
    }

    /// The literals at the end that the format requires.
    pub(crate) fn end(&mut self) {
        self.token(13, 0);
        self.encoded.extend_from_slice(b"the last ones");
        self.text.extend_from_slice(b"the last ones");
    }

    fn token(&mut self, literals: usize, rest: usize) {
        let nibble = |length: usize| u8::try_from(length.min(15)).unwrap();
        self.encoded.push(nibble(literals) << 4 | nibble(rest));
    }

    fn length(&mut self, length: usize) {
        let Some(mut rest) = length.checked_sub(15) else { return };
        while rest >= 255 {
            self.encoded.push(255);
            rest -= 255;
        }
        self.encoded.push(u8::try_from(rest).unwrap());
    }
}

/// An image in memory and the text of its files.
#[derive(Clone, Debug)]
pub(crate) struct Lz4Image {
    pub(crate) bytes: Vec<u8>,
    pub(crate) texts: Vec<Vec<u8>>,
    /// Where the clusters begin, file by file.
    pub(crate) clusters: Vec<Vec<u64>>,
}

impl Lz4Image {
    /// An image that declares `distance` and has a file of each row of blocks.
    pub(crate) fn new(distance: u16, files: &[Vec<Lz4Block>]) -> Self {
        Self::of_format(distance, files, LZ4_FORMAT)
    }

    /// An image with a file of each row of texts, each text an extent that ZSTD has encoded with a window of 1 MiB.
    pub(crate) fn of_zstd(files: &[Vec<Vec<u8>>]) -> Self {
        const WINDOW_LOG: u8 = 20;
        let method = Method::Zstd { level: 1, window_log: WINDOW_LOG };
        let mut encoder = Encoder::new(&method, 1 << 20, 12 << 20).unwrap();
        let mut encode = |text: &Vec<u8>| {
            let mut encoded = vec![0; 1 << 20];
            encoder.restart();
            let sizes = encoder.fill(text, &mut encoded).unwrap().unwrap();
            assert_eq!(sizes.input_bytes, text.len());
            encoded.truncate(sizes.output_bytes);
            Lz4Block { encoded, text: text.clone() }
        };
        let files: Vec<Vec<Lz4Block>> =
            files.iter().map(|texts| texts.iter().map(&mut encode).collect()).collect();
        let mut written = Self::of_format(1 << 3, &files, ZSTD_FORMAT);
        // With the configuration of the algorithm behind the superblock.
        written.bytes[1024 + 80] |= 2;
        written.bytes[1024 + 128..1024 + 136].copy_from_slice(&[
            6,
            0,
            0,
            WINDOW_LOG - 10,
            0,
            0,
            0,
            0,
        ]);
        written
    }

    /// `distance` is what the superblock has there: the distance of LZ4, or the bits of the algorithms.
    fn of_format(distance: u16, files: &[Vec<Lz4Block>], format: u32) -> Self {
        let inode_bytes: Vec<usize> =
            files.iter().map(|blocks| (64 + 16 + 16 * blocks.len()).next_multiple_of(32)).collect();
        let meta = 64 + inode_bytes.iter().sum::<usize>();
        let directory_at = (META + meta).next_multiple_of(BLOCK);
        let mut bytes = vec![0u8; directory_at + BLOCK];
        superblock(&mut bytes, distance);
        let nids: Vec<u64> = inode_bytes
            .iter()
            .scan(64, |at, size| Some(std::mem::replace(at, *at + size) as u64 / 32))
            .collect();
        let directory = directory(&nids);
        let block = u32::try_from(directory_at / BLOCK).unwrap();
        inode(&mut bytes[META..], 0, 0o040_755, directory.len() as u64, block);
        bytes[directory_at..directory_at + directory.len()].copy_from_slice(&directory);
        let mut clusters = Vec::new();
        for (blocks, nid) in files.iter().zip(&nids) {
            let at = META + usize::try_from(nid * 32).unwrap();
            clusters.push(file(&mut bytes, at, blocks, format));
        }
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        let texts =
            files.iter().map(|blocks| blocks.iter().flat_map(|one| one.text.clone()).collect());
        Self { texts: texts.collect(), bytes, clusters }
    }

    /// Files of so many extents of about `bytes` decoded bytes.
    pub(crate) fn of_extents(distance: u16, counts: &[usize], bytes: usize) -> Self {
        let mut numbers = XorshiftRng(0x9e37_79b9_7f4a_7c15);
        let mut block = || Lz4Block::new(&mut numbers, bytes, usize::from(distance));
        let files: Vec<Vec<Lz4Block>> =
            counts.iter().map(|count| (0..*count).map(|_| block()).collect()).collect();
        Self::new(distance, &files)
    }

    pub(crate) fn open(&self, options: &OpenOptions) -> Image {
        self.open_as(options, Arc::new(self.bytes.clone()))
    }

    pub(crate) fn open_as(&self, options: &OpenOptions, source: Arc<dyn ImageSource>) -> Image {
        options.open_sources(source, Vec::new()).unwrap()
    }

    /// The file of this number.
    pub(crate) fn file(image: &Image, number: usize) -> Inode {
        image.resolve(format!("/{number:04}").as_bytes()).unwrap().unwrap()
    }
}

fn superblock(bytes: &mut [u8], distance: u16) {
    let sb = &mut bytes[1024..];
    sb[..4].copy_from_slice(&0xE0F5_E1E2u32.to_le_bytes());
    sb[12] = 12;
    sb[40..44].copy_from_slice(&1u32.to_le_bytes());
    // LZ4 at the right of its pcluster, and addresses of bytes.
    sb[80..84].copy_from_slice(&0x81u32.to_le_bytes());
    sb[84..86].copy_from_slice(&distance.to_le_bytes());
}

/// An extended inode, with the layout that these images use for its type.
fn inode(meta: &mut [u8], at: usize, mode: u16, size: u64, start: u32) {
    let layout = u8::from(mode & 0o100_000 != 0);
    let inode = &mut meta[at..at + 64];
    inode[0] = 1 | layout << 1;
    inode[4..6].copy_from_slice(&mode.to_le_bytes());
    inode[8..16].copy_from_slice(&size.to_le_bytes());
    inode[16..20].copy_from_slice(&start.to_le_bytes());
    inode[44] = if layout == 0 { 2 } else { 1 };
}

/// The root: `.`, `..`, and files called by their numbers.
fn directory(nids: &[u64]) -> Vec<u8> {
    let dots = [(".".to_owned(), 0, 2u8), ("..".to_owned(), 0, 2)];
    let files = nids.iter().enumerate().map(|(number, nid)| (format!("{number:04}"), *nid, 1));
    let entries: Vec<_> = dots.into_iter().chain(files).collect();
    let mut data = Vec::new();
    let mut name_at = entries.len() * 12;
    for (name, nid, kind) in &entries {
        data.extend_from_slice(&nid.to_le_bytes());
        data.extend_from_slice(&u16::try_from(name_at).unwrap().to_le_bytes());
        data.extend_from_slice(&[*kind, 0]);
        name_at += name.len();
    }
    data.extend(entries.iter().flat_map(|(name, ..)| name.bytes()));
    assert!(data.len() <= BLOCK, "a directory of one block");
    data
}

/// A file of encoded extents. Returns where its clusters begin.
fn file(bytes: &mut Vec<u8>, at: usize, blocks: &[Lz4Block], format: u32) -> Vec<u64> {
    let size: usize = blocks.iter().map(|block| block.text.len()).sum();
    inode(bytes, at, 0o100_644, size as u64, 0);
    let header = at + 64;
    bytes[header..header + 4].copy_from_slice(&u32::try_from(blocks.len()).unwrap().to_le_bytes());
    // Encoded extents in records of 16 bytes.
    bytes[header + 4] = 5;
    let table = (header + 8).next_multiple_of(16);
    let mut start = 0u32;
    let mut places = Vec::new();
    for (number, block) in blocks.iter().enumerate() {
        let place = bytes.len();
        places.push(place as u64);
        bytes.extend_from_slice(&block.encoded);
        let length = format << 28 | u32::try_from(block.encoded.len()).unwrap();
        let record = table + 16 * number;
        bytes[record..record + 4].copy_from_slice(&length.to_le_bytes());
        bytes[record + 4..record + 8].copy_from_slice(&u32::try_from(place).unwrap().to_le_bytes());
        bytes[record + 12..record + 16].copy_from_slice(&start.to_le_bytes());
        start += u32::try_from(block.text.len()).unwrap();
    }
    places
}

#[test]
fn a_written_image_is_read_as_it_was_meant() {
    let written = Lz4Image::of_extents(65_535, &[3, 1], 200_000);
    let image = written.open(&OpenOptions::new());
    for (number, text) in written.texts.iter().enumerate() {
        let inode = Lz4Image::file(&image, number);
        let mut bytes = vec![0; text.len()];
        assert_eq!(image.read_at(&inode, 0, &mut bytes).unwrap(), text.len());
        assert!(bytes == *text);
    }
    assert_eq!(
        image.verify(&VerifyOptions::new().max_threads(1), &mut |_| {}).unwrap().problems,
        0
    );
    assert_eq!(image.stats().clusters_decoded, 8);
}
