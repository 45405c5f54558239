//! An image in a layout directory (OCI image specification, "image layout"), as `umoci`, `skopeo` and
//! `buildah` write it: its documents, its blobs, and a layer that is an EROFS image, as a source. Needs
//! no fetcher.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ferrofs_image::ImageSource;
use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};

use crate::chunk_index::{CHUNK_INDEX_MAX_BYTES, ChunkIndex};
use crate::digest::{BlobReference, ContentDigest};
use crate::location::{RemoteLocation, RemoteObject};
use crate::oci::{IndexPlace, Layer, choose_layer, choose_manifest, layout_manifest};
use crate::protocol::{Verification, VerifyMode};

/// The longest manifest or index, in bytes: the limit that registries have.
const DOCUMENT_MAX_BYTES: u64 = 4 << 20;
/// A chunk is digested in pieces of so many bytes, so that threads that verify need little memory.
const VERIFY_PIECE_BYTES: usize = 64 << 10;

/// A layout directory.
#[derive(Clone, Debug)]
pub struct LayoutDirectory {
    path: PathBuf,
}

/// Which image of a layout; the only one without a tag and a digest.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayoutReference<'a> {
    /// Its name in `index.json`.
    pub tag: Option<&'a str>,
    /// The digest of its manifest or index.
    pub digest: Option<&'a str>,
    /// Which manifest of an image index; that of this machine without one.
    pub platform: Option<&'a str>,
}

impl LayoutDirectory {
    /// The layout at `path`. Looks at nothing.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Opens a blob. Nothing of it is verified.
    ///
    /// # Errors
    /// It is missing, or is no regular file.
    pub fn open_blob(&self, digest: &ContentDigest) -> io::Result<File> {
        open_file(&self.path.join("blobs/sha256").join(digest.hex()))
    }

    /// The manifest of an image, by way of its index if it has one. It has its digest.
    ///
    /// # Errors
    /// A text: a document is missing, malformed or not what its digest says, or there is no such
    /// image.
    pub fn manifest(&self, reference: &LayoutReference<'_>) -> Result<Vec<u8>, String> {
        let top = match reference.digest {
            Some(digest) => self.blob(digest.parse().map_err(|error| format!("{error}"))?)?,
            None => {
                let path = self.path.join("index.json");
                let mut index = Vec::new();
                open_file(&path)
                    .and_then(|file| file.take(DOCUMENT_MAX_BYTES).read_to_end(&mut index))
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                layout_manifest(&index, reference.tag)?
            }
        };
        let manifest = self.document(&top, DOCUMENT_MAX_BYTES)?;
        let Some(digest) = choose_manifest("", &manifest, reference.platform)? else {
            return Ok(manifest);
        };
        let manifest = self.document(&self.blob(digest)?, DOCUMENT_MAX_BYTES)?;
        match choose_manifest("", &manifest, None)? {
            None => Ok(manifest),
            Some(_) => Err("an image index lists an image index".to_owned()),
        }
    }

    /// A document of at most `limit` bytes, with its digest.
    fn document(&self, blob: &BlobReference, limit: u64) -> Result<Vec<u8>, String> {
        let BlobReference { digest, length } = *blob;
        if length > limit {
            return Err(format!("{digest}: a document of {length} bytes is too long"));
        }
        let mut bytes = Vec::new();
        self.open_blob(&digest)
            .and_then(|file| file.take(length + 1).read_to_end(&mut bytes))
            .map_err(|error| format!("{digest}: {error}"))?;
        if bytes.len() as u64 != length {
            return Err(format!(
                "{digest}: the blob does not have the length in the manifest, {length} bytes"
            ));
        }
        match ContentDigest::of(&bytes) == digest {
            true => Ok(bytes),
            false => Err(format!("{digest}: the bytes of the blob have another digest")),
        }
    }

    /// A blob whose length is that of its file.
    fn blob(&self, digest: ContentDigest) -> Result<BlobReference, String> {
        let file = self.open_blob(&digest).and_then(|file| file.metadata());
        let length = file.map_err(|error| format!("{digest}: {error}"))?.len();
        Ok(BlobReference { digest, length })
    }

    fn chunk_index(&self, layer: &Layer, blob: &File) -> Result<Option<ChunkIndex>, String> {
        let (bytes, wanted) = match &layer.index {
            None => return Ok(None),
            Some(IndexPlace::Embedded { range, digest }) => {
                // The manifest was checked: the range is short, and lies in the blob.
                let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
                blob.read_exact_at(&mut bytes, range.start)
                    .map_err(|error| format!("{}: the chunk index: {error}", layer.digest))?;
                (bytes, *digest)
            }
            Some(IndexPlace::Layer { digest }) => {
                let limit = CHUNK_INDEX_MAX_BYTES as u64;
                (self.document(&self.blob(*digest)?, limit)?, *digest)
            }
        };
        let found = ContentDigest::of(&bytes);
        if wanted != found {
            return Err(format!("the chunk index has the digest {found} instead of {wanted}"));
        }
        let index = ChunkIndex::parse(&bytes).map_err(|error| error.to_string())?;
        let (described, length) = (index.length(), layer.length);
        if !index.covers(length) {
            return Err(format!(
                "the chunk index describes {described} bytes, and the layer has {length}"
            ));
        }
        // As long as the index, which is at most 64 MiB.
        let mut tail = vec![0; usize::try_from(length - described).unwrap_or(0)];
        blob.read_exact_at(&mut tail, described)
            .map_err(|error| format!("{}: the bytes behind the image: {error}", layer.digest))?;
        match index.has_bytes_at(0, &tail) {
            true => Ok(Some(index)),
            false => Err("the bytes behind the image are not its chunk index".to_owned()),
        }
    }
}

/// A FIFO in the place of a blob must not make the reader wait.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// An EROFS layer of an image in a layout directory, as a source. Threads share it.
pub struct LayoutSource {
    file: File,
    /// Byte 0 of the source is this byte of the layer.
    start: u64,
    length: u64,
    digest: ContentDigest,
    index: Option<ChunkIndex>,
    /// The chunks of the index that this process has compared with their digests.
    verified: Box<[AtomicBool]>,
}

impl fmt::Debug for LayoutSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayoutSource").field("digest", &self.digest).finish_non_exhaustive()
    }
}

impl LayoutSource {
    /// Opens the layer that a location of the kind `oci-layout:` names. With a chunk index, each
    /// chunk is verified when it is used first.
    ///
    /// # Errors
    /// `InvalidInput` for another kind of location. `InvalidData`: the layout has no such layer, is
    /// damaged, or does not satisfy `verify`.
    pub fn open(location: &RemoteLocation, verify: VerifyMode) -> io::Result<Self> {
        let RemoteObject::OciLayout { directory, tag, digest } = &location.object else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let layout = LayoutDirectory::new(directory.clone());
        let reference = LayoutReference {
            tag: tag.as_deref(),
            digest: digest.as_deref(),
            platform: location.platform.as_deref(),
        };
        let opened = layout.manifest(&reference).and_then(|manifest| {
            let layer = choose_layer(&manifest, location.layer.as_ref())?;
            Self::of_layer(&layout, &layer, verify)
        });
        opened
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, format!("{location}: {why}")))
    }

    fn of_layer(
        layout: &LayoutDirectory,
        layer: &Layer,
        verify: VerifyMode,
    ) -> Result<Self, String> {
        let digest = layer.digest;
        let with_digest = |error: io::Error| format!("{digest}: {error}");
        let file = layout.open_blob(&digest).map_err(with_digest)?;
        let length = file.metadata().map_err(with_digest)?.len();
        if length != layer.length {
            let wanted = layer.length;
            return Err(format!("{digest}: the blob has {length} bytes instead of {wanted}"));
        }
        let index = match verify {
            VerifyMode::Off => None,
            VerifyMode::Try | VerifyMode::Require => layout.chunk_index(layer, &file)?,
        };
        if verify == VerifyMode::Require && index.is_none() {
            return Err("--verify=require needs a chunk index, and the image has none".to_owned());
        }
        let count = index.as_ref().map_or(0, ChunkIndex::count);
        let verified = (0..count).map(|_| AtomicBool::new(false)).collect();
        Ok(Self { file, start: 0, length, digest, index, verified })
    }

    /// The same, with byte `start` of the layer as byte 0.
    #[must_use]
    pub fn starting_at(mut self, start: u64) -> Self {
        self.start = start;
        self
    }

    /// How its bytes are verified.
    #[must_use]
    pub fn verification(&self) -> Verification {
        match self.index {
            Some(_) => Verification::ChunkIndex,
            None => Verification::WholeDigestLater,
        }
    }

    /// Compares the chunks that `range` touches with their digests, each once. What lies behind the
    /// image was compared when the layer was opened: it is the chunk index.
    fn verify(&self, range: &Range<u64>) -> io::Result<()> {
        let Some(index) = &self.index else { return Ok(()) };
        let range = range.start..range.end.min(index.length());
        if range.is_empty() {
            return Ok(());
        }
        for number in index.chunks_in(range) {
            let known = self.verified.get(number);
            // Relaxed: it orders nothing; the bytes are in the file.
            if known.is_some_and(|known| known.load(Ordering::Relaxed)) {
                continue;
            }
            let Some((bytes, digest)) = index.chunk(number) else { continue };
            if self.digest_of(&bytes)? != digest {
                let (layer, start) = (self.digest, bytes.start);
                let why =
                    format!("{layer}: the chunk at byte {start} does not match the chunk index");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            if let Some(known) = known {
                known.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn digest_of(&self, range: &Range<u64>) -> io::Result<ContentDigest> {
        let mut buffer = vec![0; VERIFY_PIECE_BYTES];
        let mut sum = Sha256::new();
        let mut at = range.start;
        while at < range.end {
            let rest = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let piece = &mut buffer[..rest.min(VERIFY_PIECE_BYTES)];
            self.file.read_exact_at(piece, at)?;
            sum.update(&*piece);
            at += piece.len() as u64;
        }
        Ok(ContentDigest::from_bytes(sum.finalize().into()))
    }
}

impl ImageSource for LayoutSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let start = self.start.saturating_add(offset);
        let rest = self.length.saturating_sub(start);
        let count = buffer.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        if count == 0 {
            return Ok(0);
        }
        self.verify(&(start..start + count as u64))?;
        self.file.read_at(&mut buffer[..count], start)
    }

    fn length(&self) -> u64 {
        self.length.saturating_sub(self.start)
    }

    fn current_length(&self) -> u64 {
        let length = self.file.metadata().map_or(self.length, |metadata| metadata.len());
        length.saturating_sub(self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index of these bytes.
    fn index(image: &[u8]) -> Vec<u8> {
        let digests = image.chunks(1000).map(ContentDigest::of).collect();
        ChunkIndex::uniform(image.len() as u64, 1000, digests).unwrap().to_bytes()
    }

    /// A layout with one image, whose layer is `blob`, and an index of the first `indexed` bytes.
    fn layout(blob: &[u8], indexed: Option<usize>) -> (tempfile::TempDir, RemoteLocation) {
        layout_of(blob, indexed, "")
    }

    /// The same with these annotations of the layer.
    fn layout_of(
        blob: &[u8],
        indexed: Option<usize>,
        more: &str,
    ) -> (tempfile::TempDir, RemoteLocation) {
        let directory = tempfile::tempdir().unwrap();
        let blobs = directory.path().join("blobs/sha256");
        std::fs::create_dir_all(&blobs).unwrap();
        let put = |bytes: &[u8]| {
            let digest = ContentDigest::of(bytes);
            std::fs::write(blobs.join(digest.hex()), bytes).unwrap();
            digest
        };
        let mut layers = vec![format!(
            r#"{{"mediaType":"application/vnd.erofs","digest":"{}","size":{}{more}}}"#,
            put(blob),
            blob.len()
        )];
        if let Some(length) = indexed {
            let index = index(&blob[..length]);
            layers.push(format!(
                r#"{{"mediaType":"application/vnd.erofs.chunk-index.v1","digest":"{}","size":{}}}"#,
                put(&index),
                index.len()
            ));
        }
        let manifest = format!(r#"{{"schemaVersion":2,"layers":[{}]}}"#, layers.join(","));
        let digest = put(manifest.as_bytes());
        let size = manifest.len();
        let index = format!(r#"{{"manifests":[{{"digest":"{digest}","size":{size}}}]}}"#);
        std::fs::write(directory.path().join("index.json"), index).unwrap();
        let location = format!("oci-layout:{}", directory.path().display()).parse().unwrap();
        (directory, location)
    }

    fn bytes() -> Vec<u8> {
        (0..5300u32).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
    }

    #[test]
    fn a_layer_is_read_from_any_byte() {
        let with_index = [&bytes()[..5000], &index(&bytes()[..5000])].concat();
        let cases = [(bytes(), None), (bytes(), Some(5300)), (with_index, Some(5000))];
        for (all, indexed) in cases {
            let (_directory, location) = layout(&all, indexed);
            let source = LayoutSource::open(&location, VerifyMode::Try).unwrap().starting_at(100);
            let end = all.len();
            assert_eq!(source.length(), end as u64 - 100);
            for (offset, length) in [(0, end), (900, 1), (5099, 200), (5200, 1), (u64::MAX, 1)] {
                let mut buffer = vec![0; length];
                let count = source.read_at(offset, &mut buffer).unwrap();
                let from = usize::try_from(offset.saturating_add(100)).unwrap().min(end);
                assert_eq!(buffer[..count], all[from..(from + length).min(end)]);
            }
            let required = LayoutSource::open(&location, VerifyMode::Require);
            assert_eq!(required.is_ok(), indexed.is_some());
        }
    }

    #[test]
    fn bytes_behind_the_image_are_its_chunk_index_or_refused() {
        let image = &bytes()[..5000];
        let mut with_index = [image, &index(image)].concat();
        *with_index.last_mut().unwrap() ^= 1;
        for (all, part) in
            [(bytes(), "5000 bytes, and the layer has 5300"), (with_index, "not its")]
        {
            let (_directory, location) = layout(&all, Some(5000));
            for verify in [VerifyMode::Try, VerifyMode::Require] {
                let error = LayoutSource::open(&location, verify).unwrap_err().to_string();
                assert!(error.contains(part), "{error}");
            }
            LayoutSource::open(&location, VerifyMode::Off).unwrap();
        }
    }

    /// Nothing proves such an index, which whoever made the blob has written.
    #[test]
    fn an_embedded_chunk_index_without_a_digest_is_none() {
        let image = &bytes()[..5000];
        let blob = [image, &index(image)].concat();
        let range = r#","annotations":{"org.erofs.chunk-index.range":"5000"}"#;
        let (_directory, location) = layout_of(&blob, None, range);
        let source = LayoutSource::open(&location, VerifyMode::Try).unwrap();
        assert_eq!(source.verification(), Verification::WholeDigestLater);
        let error = LayoutSource::open(&location, VerifyMode::Require).unwrap_err().to_string();
        assert!(error.contains("needs a chunk index"), "{error}");
    }

    #[test]
    fn a_damaged_chunk_is_an_error_and_others_are_read() {
        let (directory, location) = layout(&bytes(), Some(5300));
        let name = ContentDigest::of(&bytes()).hex();
        let mut damaged = bytes();
        damaged[2500] ^= 1;
        std::fs::write(directory.path().join("blobs/sha256").join(name), &damaged).unwrap();
        let read = |verify, offset: u64| {
            let source = LayoutSource::open(&location, verify).unwrap();
            source.read_at(offset, &mut [0; 10])
        };
        assert!(read(VerifyMode::Try, 2000).unwrap_err().to_string().contains("byte 2000"));
        read(VerifyMode::Try, 1995).unwrap_err();
        assert_eq!(read(VerifyMode::Try, 3000).unwrap(), 10);
        assert_eq!(read(VerifyMode::Off, 2500).unwrap(), 10);
    }

    #[test]
    fn documents_and_blobs_that_are_not_what_they_should_be_are_refused() {
        let change = |what: fn(&Path, &Path)| {
            let (directory, location) = layout(&bytes(), Some(5300));
            let blobs = directory.path().join("blobs/sha256");
            what(directory.path(), &blobs.join(ContentDigest::of(&bytes()).hex()));
            LayoutSource::open(&location, VerifyMode::Try).unwrap_err().to_string()
        };
        assert!(change(|_, blob| std::fs::write(blob, "short").unwrap()).contains("5 bytes"));
        assert!(change(|_, blob| std::fs::remove_file(blob).unwrap()).contains("No such file"));
        let fifo = |_: &Path, blob: &Path| {
            std::fs::remove_file(blob).unwrap();
            let mode = rustix::fs::Mode::RWXU;
            rustix::fs::mknodat(rustix::fs::CWD, blob, rustix::fs::FileType::Fifo, mode, 0)
                .unwrap();
        };
        assert!(change(fifo).contains("not a regular file"));
        let all_but = |directory: &Path, blob: &Path| {
            for entry in std::fs::read_dir(directory.join("blobs/sha256")).unwrap() {
                let path = entry.unwrap().path();
                let mut bytes = std::fs::read(&path).unwrap();
                if path != blob {
                    bytes[30] ^= 1;
                    std::fs::write(path, bytes).unwrap();
                }
            }
        };
        assert!(change(all_but).contains("digest"));
        assert!(
            change(|directory, _| std::fs::remove_file(directory.join("index.json")).unwrap())
                .contains("index.json")
        );
    }
}
