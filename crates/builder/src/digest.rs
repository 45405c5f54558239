//! SHA-256 of ranges and files: equal digests are taken for equal bytes, since SHA-256 is collision resistant. And of the
//! chunks of a finished image, for its chunk index.

use ferrofs_workers::CancelToken;
use sha2::{Digest as _, Sha256};

use crate::context::check_cancelled;
use crate::report::ChunkIndexReport;
use crate::split::SEGMENT_BYTES;
use crate::tree::{Content, Tree};
use crate::{Error, ErrorKind, Result};

/// The SHA-256 of a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sha256Digest([u8; 32]);

impl Sha256Digest {
    /// The digest of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of all of a file, however long, read through `buffer`.
    ///
    /// # Errors
    /// A source that cannot be read or has changed; [`ErrorKind::Cancelled`].
    pub(crate) fn of_file(
        content: &Content,
        buffer: &mut Vec<u8>,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let mut reader = content.source().open()?;
        let mut hasher = Sha256::new();
        let mut at = 0;
        while at < content.bytes() {
            check_cancelled(cancel)?;
            let bytes = (content.bytes() - at).min(SEGMENT_BYTES);
            let count = usize::try_from(bytes).unwrap_or(usize::MAX);
            if buffer.len() < count {
                buffer.resize(count, 0);
            }
            let buffer = buffer.get_mut(..count).unwrap_or_default();
            reader.read_exact_at(at, buffer).map_err(|error| error.at_byte(at))?;
            hasher.update(&*buffer);
            at += bytes;
        }
        reader.check_unchanged()?;
        Ok(Self(hasher.finalize().into()))
    }

    /// Its 32 bytes.
    fn array(self) -> [u8; 32] {
        self.0
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What stands before the 32 bytes of a digest.
const DIGEST_PREFIX: &[u8] = b"sha256:";

/// Gives every regular file that is not empty the xattr `name`: `sha256:` and the 32 bytes of the SHA-256 of its
/// content, as `--xattr-inode-digest` of mkfs.erofs has it. [`BuildOptions::digest_xattr`](crate::BuildOptions::digest_xattr)
/// must have the same name.
///
/// # Errors
/// A file that cannot be read or has changed, with its path; [`ErrorKind::Cancelled`] once `cancel` is cancelled.
pub fn add_digests(tree: &mut Tree, name: &[u8], cancel: &CancelToken) -> Result<()> {
    let mut buffer = Vec::new();
    for id in tree.ids() {
        let content = tree.content(id).filter(|content| content.bytes() > 0);
        let Some(content) = content else { continue };
        let digest = Sha256Digest::of_file(&content, &mut buffer, cancel);
        let digest = digest.map_err(|error| error.at(content.source().name()))?;
        tree.set_xattr(id, name, &[DIGEST_PREFIX, digest.bytes()].concat());
    }
    tree.store().check()?;
    Ok(())
}

/// Bytes of a chunk; the last one may be shorter. A reader fetches whole chunks, and a request below 1 MiB is mostly
/// round trip.
const CHUNK_BYTES: usize = 1 << 20;
/// The most chunks: an index of 64 MiB, the longest that is read.
const CHUNKS_MAX: usize = ((64 << 20) - INDEX_HEADER_BYTES) / INDEX_ENTRY_BYTES;
/// Bytes of the header of a chunk index.
const INDEX_HEADER_BYTES: usize = 32;
const INDEX_ENTRY_BYTES: usize = 48;
const INDEX_MAGIC: [u8; 4] = [0xcd, 0xe4, 0xec, 0x67];
/// Version 1, chunks stored as they are, no flags.
const INDEX_VERSION: [u8; 4] = [1, 0, 0, 0];
/// SHA-2 with 32 bytes.
const INDEX_HASH: [u8; 2] = [1, 32];

/// Writes the chunk index of an image, `application/vnd.erofs.chunk-index.v1` (EROFS image specification, section
/// 3.4): the SHA-256 of every chunk of the finished image, by which a reader can verify a part of it. The bytes are
/// digested while they are written, so that nothing is read back: from the head to the end, but for the head, which comes
/// last. What the bytes mean does not matter.
///
/// Layout (little endian): a header of 32 bytes, then for each chunk its offset in the file, the same offset in the
/// image, and its digest.
#[derive(Debug)]
pub(crate) struct ChunkDigester {
    head_bytes: u64,
    /// The bytes of the first chunk that lie behind the head, where both lie in one chunk.
    shared: Vec<u8>,
    shared_bytes: usize,
    /// Bytes of the chunk that is being written.
    pending: Vec<u8>,
    /// Of the chunks behind the head.
    digests: Vec<Sha256Digest>,
    bytes: u64,
}

impl ChunkDigester {
    /// For an image with a head of `head_bytes` bytes.
    pub(crate) fn new(head_bytes: u64) -> Self {
        let chunk = CHUNK_BYTES as u64;
        let shared_bytes = head_bytes.next_multiple_of(chunk) - head_bytes;
        Self {
            head_bytes,
            shared: Vec::new(),
            // Less than a chunk.
            shared_bytes: usize::try_from(shared_bytes).unwrap_or(0),
            pending: Vec::new(),
            digests: Vec::new(),
            bytes: head_bytes,
        }
    }

    /// Adds the next bytes of the image.
    ///
    /// # Errors
    /// The image has more chunks than an index can have.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        let missing = self.shared_bytes - self.shared.len();
        let (shared, rest) = bytes.split_at(missing.min(bytes.len()));
        self.shared.extend_from_slice(shared);
        bytes = rest;
        while !bytes.is_empty() {
            let (some, rest) = bytes.split_at((CHUNK_BYTES - self.pending.len()).min(bytes.len()));
            bytes = rest;
            if some.len() == CHUNK_BYTES {
                self.digests.push(Sha256Digest::of(some));
                continue;
            }
            self.pending.extend_from_slice(some);
            if self.pending.len() == CHUNK_BYTES {
                self.digests.push(Sha256Digest::of(&self.pending));
                self.pending.clear();
            }
        }
        if self.digests.len() > CHUNKS_MAX {
            let what =
                format!("a chunk index of more than {CHUNKS_MAX} chunks of {CHUNK_BYTES} bytes");
            return Err(Error::new(ErrorKind::Unsupported(what)));
        }
        Ok(())
    }

    /// The index of the image, whose head is `head`.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub(crate) fn finish(mut self, head: &[u8]) -> Result<Vec<u8>> {
        debug_assert_eq!(head.len() as u64, self.head_bytes);
        let (whole, rest) = head.as_chunks::<CHUNK_BYTES>();
        let mut digests: Vec<_> = whole.iter().map(|chunk| Sha256Digest::of(chunk)).collect();
        if !rest.is_empty() {
            digests.push(Sha256Digest::of(&[rest, &self.shared].concat()));
        }
        digests.append(&mut self.digests);
        if !self.pending.is_empty() {
            digests.push(Sha256Digest::of(&self.pending));
        }
        let count = u32::try_from(digests.len()).ok().filter(|_| digests.len() <= CHUNKS_MAX);
        let count = count.ok_or_else(|| {
            let what = "a chunk index of more than 64 MiB".to_owned();
            Error::new(ErrorKind::Unsupported(what))
        })?;
        let mut index = Vec::with_capacity(INDEX_HEADER_BYTES + digests.len() * INDEX_ENTRY_BYTES);
        index.extend_from_slice(&INDEX_MAGIC);
        index.extend_from_slice(&INDEX_VERSION);
        index.extend_from_slice(&self.bytes.to_le_bytes());
        index.extend_from_slice(&count.to_le_bytes());
        index.extend_from_slice(&INDEX_HASH);
        index.resize(INDEX_HEADER_BYTES, 0);
        for (number, digest) in digests.iter().enumerate() {
            let start = (number as u64 * CHUNK_BYTES as u64).to_le_bytes();
            index.extend_from_slice(&start);
            index.extend_from_slice(&start);
            index.extend_from_slice(digest.bytes());
        }
        Ok(index)
    }
}

/// What a report says of `index`.
pub(crate) fn chunk_index_report(index: &[u8], is_embedded: bool) -> ChunkIndexReport {
    let sha256 = Sha256Digest::of(index).array();
    ChunkIndexReport { is_embedded, bytes: index.len() as u64, sha256 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_source::{file, metadata};

    #[test]
    fn files_that_are_not_empty_get_their_digest() {
        let mut tree = Tree::new(metadata());
        let (some, none) = (tree.add(file(b"abc")).unwrap(), tree.add(file(b"")).unwrap());
        add_digests(&mut tree, b"erofs.fingerprint.v1", &CancelToken::new()).unwrap();
        let found = |id| tree.node(id).metadata.xattrs.get(&b"erofs.fingerprint.v1"[..]).cloned();
        let value = found(some).unwrap();
        assert_eq!((&value[..7], value.len()), (DIGEST_PREFIX, 39));
        assert_eq!(value[7..11], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!((found(none), found(Tree::ROOT)), (None, None));
    }

    fn image(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| u8::try_from((at * 7 + (at >> 11)) % 251).unwrap()).collect()
    }

    /// The same, of an image that lies in memory.
    fn simple_index(image: &[u8]) -> Vec<u8> {
        let count = image.len().div_ceil(CHUNK_BYTES);
        let mut index = vec![0; INDEX_HEADER_BYTES];
        index[..4].copy_from_slice(&INDEX_MAGIC);
        index[4] = 1;
        index[8..16].copy_from_slice(&(image.len() as u64).to_le_bytes());
        index[16..20].copy_from_slice(&u32::try_from(count).unwrap().to_le_bytes());
        index[20..22].copy_from_slice(&[1, 32]);
        for number in 0..count {
            let range = number * CHUNK_BYTES..((number + 1) * CHUNK_BYTES).min(image.len());
            index.extend((range.start as u64).to_le_bytes());
            index.extend((range.start as u64).to_le_bytes());
            index.extend(Sha256Digest::of(&image[range]).bytes());
        }
        index
    }

    #[test]
    fn the_index_does_not_depend_on_how_the_image_is_written() {
        let chunk = CHUNK_BYTES;
        for (bytes, head) in [
            (4096, 4096),
            (8192, 4096),
            (chunk, 4096),
            (chunk + 4096, 4096),
            (3 * chunk + 5000, 4096),
            (3 * chunk, chunk),
            (4 * chunk + 512, 2 * chunk + 512),
        ] {
            let image = image(bytes);
            let wanted = simple_index(&image);
            for piece in [4096, 65_537, chunk, 5 * chunk] {
                let mut digester = ChunkDigester::new(head as u64);
                for piece in image[head..].chunks(piece) {
                    digester.update(piece).unwrap();
                }
                assert!(
                    digester.finish(&image[..head]).unwrap() == wanted,
                    "{bytes} {head} {piece}"
                );
            }
        }
    }

    #[test]
    fn no_more_than_two_chunks_are_kept() {
        let mut digester = ChunkDigester::new(4096);
        for piece in image(5 << 20).chunks(10_000) {
            digester.update(piece).unwrap();
            assert!(digester.pending.capacity() <= 2 * CHUNK_BYTES);
            assert!(digester.shared.len() < CHUNK_BYTES);
        }
    }
}
