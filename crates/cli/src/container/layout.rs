//! An image in a layout directory (OCI image specification, "image layout"), as `umoci`, `skopeo`
//! and `buildah` write it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ferrofs_remote::ContentDigest;
use ferrofs_remote::oci::{BlobReference, choose_manifest, container_manifest, layout_manifest};
use rustix::fs::OFlags;

use super::{BlobStore, ContainerImage, DOCUMENT_MAX_BYTES, read_document};

/// Which image of a layout.
pub(super) struct ImageReference<'a> {
    pub(super) tag: Option<&'a str>,
    /// Of the manifest or index.
    pub(super) digest: Option<&'a str>,
    pub(super) platform: Option<&'a str>,
}

struct Layout {
    directory: PathBuf,
}

impl Layout {
    fn file(&self, digest: &ContentDigest) -> io::Result<File> {
        open_file(&self.directory.join("blobs/sha256").join(digest.hex()))
    }
}

/// A FIFO in the place of a blob must not make the build wait.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

impl BlobStore for Layout {
    fn open(&self, blob: &BlobReference) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(self.file(&blob.digest)?))
    }
}

/// Opens an image.
pub(super) fn open(
    directory: &Path,
    reference: &ImageReference<'_>,
) -> Result<ContainerImage, String> {
    let layout = Layout { directory: directory.to_owned() };
    let top = match reference.digest {
        Some(digest) => {
            let digest: ContentDigest = digest.parse().map_err(|error| format!("{error}"))?;
            let file = layout.file(&digest).and_then(|file| file.metadata());
            let length = file.map_err(|error| format!("{digest}: {error}"))?.len();
            BlobReference { digest, length }
        }
        None => {
            let path = directory.join("index.json");
            let mut index = Vec::new();
            open_file(&path)
                .and_then(|file| file.take(DOCUMENT_MAX_BYTES).read_to_end(&mut index))
                .map_err(|error| format!("{}: {error}", path.display()))?;
            layout_manifest(&index, reference.tag)?
        }
    };
    let mut manifest = read_document(&layout, &top)?;
    if let Some(digest) = choose_manifest("", &manifest, reference.platform)? {
        let file = layout.file(&digest).and_then(|file| file.metadata());
        let length = file.map_err(|error| format!("{digest}: {error}"))?.len();
        manifest = read_document(&layout, &BlobReference { digest, length })?;
        if choose_manifest("", &manifest, None)?.is_some() {
            return Err("an image index lists an image index".to_owned());
        }
    }
    ContainerImage::of(&container_manifest(&manifest)?, &layout)
}
