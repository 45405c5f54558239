//! Container images as the source of a build: which layers, and streams of them that end with an
//! error if a byte is not what the image says (docs/remote.md, C1 to C5). The folder has the places
//! that images come from: a layout directory, an archive of docker, and a registry.

mod docker_archive;
mod layout;
mod registry;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrofs_builder::import::{TarImportOptions, TarSource, from_tar_layers};
use ferrofs_builder::tree::Tree;
use ferrofs_builder::{CancelToken, Error, ErrorKind, NoopObserver};
use ferrofs_remote::oci::{BlobReference, ContainerManifest, diff_ids};
use ferrofs_remote::{ContentDigest, LayoutReference, Location, RemoteObject};
use sha2::{Digest, Sha256};

use crate::arguments::ConnectionArguments;
use crate::remote;

/// The longest manifest or configuration, in bytes: the limit that registries have.
const DOCUMENT_MAX_BYTES: u64 = 4 << 20;
/// Most layers: a limit of docker's is 127.
const LAYERS_MAX: usize = 1024;
const DOCKER_ARCHIVE: &str = "docker-archive:";

/// Whether a source is a container image, and no path.
pub(crate) fn is_container(source: &Path) -> bool {
    let is_image = |text: &str| {
        [DOCKER_ARCHIVE, "oci-layout:", "oci://"].iter().any(|scheme| text.starts_with(scheme))
    };
    source.to_str().is_some_and(is_image)
}

/// The file that holds a container image, if it is one file.
pub(crate) fn archive_file(source: &Path) -> Option<PathBuf> {
    let archive = source.to_str()?.strip_prefix(DOCKER_ARCHIVE)?;
    Some(PathBuf::from(docker_archive::split(archive).0))
}

/// What every place of images can do.
trait BlobStore {
    /// The bytes of a blob. Nothing of them is checked yet.
    fn open(&self, blob: &BlobReference) -> io::Result<Box<dyn Read + Send>>;

    /// Fetches a blob once more past all caches if what is cached has not its digest. False if there was
    /// nothing to do, or there is no cache.
    fn fetch_again(&self, _blob: &BlobReference, _cancel: &CancelToken) -> io::Result<bool> {
        Ok(false)
    }
}

/// An image whose blobs are cached, maybe with wrong bytes.
trait CachedImage {
    /// The image again, after its layers from number `first` on were compared with their digests, and
    /// fetched once more where they differ. `None` if layer `first` does not.
    fn again(&self, first: usize, cancel: &CancelToken) -> Result<Option<ContainerImage>, String>;
}

/// The layers of an image, the lowest first.
#[derive(Default)]
struct ContainerImage {
    /// The configuration, as it is.
    config: Vec<u8>,
    layers: Vec<TarSource>,
    /// Set for each layer whose compressed bytes were all read and have their digest.
    verified: Vec<Arc<AtomicBool>>,
    /// Of a registry.
    cached: Option<Box<dyn CachedImage>>,
}

impl ContainerImage {
    /// The first layer of which not all bytes have their digest.
    fn first_unverified(verified: &[Arc<AtomicBool>]) -> Option<usize> {
        verified.iter().position(|verified| !verified.load(Ordering::Acquire))
    }
}

/// Imports the layers of an image. Returns its configuration, too.
///
/// # Errors
/// The image cannot be read, or is not what its digests say; as
/// [`from_tar_layers`].
pub(crate) fn import(
    source: &Path,
    options: &TarImportOptions,
    connection: &ConnectionArguments,
    cancel: &CancelToken,
) -> Result<(Tree, Vec<u8>), Error> {
    let refused =
        |why: String| Error::new(ErrorKind::Archive(why)).at(remote::terminal_form(source));
    let text = source.to_str().unwrap_or_default();
    let image = match text.strip_prefix(DOCKER_ARCHIVE) {
        Some(archive) => docker_archive::open(archive, options, cancel),
        None => open(source, connection, cancel),
    };
    let ContainerImage { config, mut layers, mut verified, mut cached } = image.map_err(refused)?;
    let tree = loop {
        let error = match from_tar_layers(layers, options, &NoopObserver, cancel) {
            Ok(tree) => break tree,
            Err(error) => error,
        };
        // As a download: once more, without what is cached (docs/remote.md, L3).
        let first = ContainerImage::first_unverified(&verified).filter(|_| !cancel.is_cancelled());
        let again = match (cached.take(), first) {
            (Some(image), Some(first)) => image.again(first, cancel).unwrap_or_default(),
            _ => None,
        };
        let Some(again) = again else { return Err(error) };
        (layers, verified) = (again.layers, again.verified);
    };
    match ContainerImage::first_unverified(&verified) {
        None => Ok((tree, config)),
        Some(number) => Err(refused(format!("layer {number} has bytes after its end"))),
    }
}

fn open(
    source: &Path,
    connection: &ConnectionArguments,
    cancel: &CancelToken,
) -> Result<ContainerImage, String> {
    let location = match Location::parse(source.as_os_str()) {
        Ok(Location::Remote(location)) => location,
        Ok(_) => return Err("not a container image".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    if location.layer.is_some() {
        return Err("layer= cannot be used here: all layers are converted; leave it out".to_owned());
    }
    match &location.object {
        RemoteObject::OciLayout { directory, tag, digest } => {
            let reference = LayoutReference {
                tag: tag.as_deref(),
                digest: digest.as_deref(),
                platform: location.platform.as_deref(),
            };
            layout::open(directory, &reference, cancel)
        }
        RemoteObject::Oci { .. } => registry::open(&location, connection, cancel),
        _ => Err("not a container image".to_owned()),
    }
}

impl ContainerImage {
    /// The layers that a manifest and its configuration name.
    fn of(
        manifest: &ContainerManifest,
        store: &dyn BlobStore,
        cancel: &CancelToken,
    ) -> Result<Self, String> {
        let count = manifest.layers.len();
        if count > LAYERS_MAX {
            return Err(format!("the image has {count} layers; at most {LAYERS_MAX} are read"));
        }
        let config = match read_document(store, &manifest.config) {
            Err(_) if matches!(store.fetch_again(&manifest.config, cancel), Ok(true)) => {
                read_document(store, &manifest.config)?
            }
            other => other?,
        };
        let mut image = Self::default();
        for (blob, diff_id) in manifest.layers.iter().zip(diff_ids(&config, count)?) {
            let reader = store.open(blob).map_err(|error| format!("{}: {error}", blob.digest))?;
            image.add(BlobReader::new(reader, blob.length, Some(blob.digest)), diff_id);
        }
        image.config = config;
        Ok(image)
    }

    fn add(&mut self, reader: BlobReader, diff_id: ContentDigest) {
        let number = self.layers.len();
        let name = match &reader.wanted {
            Some(digest) => format!("layer {number}, {digest}"),
            None => format!("layer {number}"),
        };
        self.verified.push(Arc::clone(&reader.verified));
        self.layers.push(TarSource::Digested {
            name: PathBuf::from(name),
            reader: Box::new(reader),
            sha256: *diff_id.as_bytes(),
        });
    }
}

/// A manifest, an index or a configuration: all of it, with its digest.
fn read_document(store: &dyn BlobStore, blob: &BlobReference) -> Result<Vec<u8>, String> {
    let BlobReference { digest, length } = *blob;
    if length > DOCUMENT_MAX_BYTES {
        return Err(format!("{digest}: a document of {length} bytes is too long"));
    }
    let mut bytes = Vec::new();
    store
        .open(blob)
        .and_then(|reader| BlobReader::new(reader, length, Some(digest)).read_to_end(&mut bytes))
        .map_err(|error| format!("{digest}: {error}"))?;
    Ok(bytes)
}

/// A blob of a known length, and in most cases with a known digest. Its end is an error if one of
/// them is another.
struct BlobReader {
    inner: Box<dyn Read + Send>,
    left: u64,
    digest: Sha256,
    wanted: Option<ContentDigest>,
    verified: Arc<AtomicBool>,
}

impl BlobReader {
    fn new(inner: Box<dyn Read + Send>, length: u64, wanted: Option<ContentDigest>) -> Self {
        let digest = Sha256::new();
        Self { inner, left: length, digest, wanted, verified: Arc::default() }
    }

    fn check_end(&mut self) -> io::Result<()> {
        let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        if self.inner.read(&mut [0])? > 0 {
            return Err(damaged("the blob is longer than the image says"));
        }
        let found = self.digest.clone().finalize();
        if self.wanted.is_some_and(|wanted| wanted.as_bytes()[..] != found[..]) {
            return Err(damaged("the blob does not have the digest that the image states"));
        }
        self.verified.store(true, Ordering::Release);
        Ok(())
    }
}

impl Read for BlobReader {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(output.len());
        if self.left == 0 {
            return self.check_end().map(|()| 0);
        }
        let count = self.inner.read(&mut output[..most])?;
        if count == 0 && most > 0 {
            let what = "the blob is shorter than the image says";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        self.digest.update(&output[..count]);
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_has_its_length_and_its_digest() {
        let read = |bytes: &'static [u8], length| {
            let wanted = Some(ContentDigest::of(b"blob"));
            let mut reader = BlobReader::new(Box::new(bytes), length, wanted);
            let mut output = Vec::new();
            let result = reader.read_to_end(&mut output);
            let is_verified = reader.verified.load(Ordering::Acquire);
            assert_eq!(is_verified, result.is_ok());
            result.map_err(|error| error.to_string())
        };
        assert_eq!(read(b"blob", 4), Ok(4));
        assert!(read(b"blob", 5).unwrap_err().contains("shorter"));
        assert!(read(b"blob", 3).unwrap_err().contains("longer"));
        assert!(read(b"blow", 4).unwrap_err().contains("digest"));
        assert!(read(b"", 0).unwrap_err().contains("digest"));
    }

    #[test]
    fn images_are_known_by_their_scheme() {
        for text in ["oci-layout:dir", "docker-archive:x.tar", "oci://host/name:v1"] {
            assert!(is_container(Path::new(text)), "{text}");
        }
        for text in ["dir", "./oci-layout:dir", "http://host/x", "oci", "-"] {
            assert!(!is_container(Path::new(text)), "{text}");
        }
    }
}
