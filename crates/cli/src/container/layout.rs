//! A container image in a layout directory, as a source of a build.

use std::io::{self, Read};
use std::path::Path;

use ferrofs_builder::CancelToken;
use ferrofs_remote::oci::{BlobReference, container_manifest};
use ferrofs_remote::{LayoutDirectory, LayoutReference};

use super::{BlobStore, ContainerImage};

impl BlobStore for LayoutDirectory {
    fn open(&self, blob: &BlobReference) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(self.open_blob(&blob.digest)?))
    }
}

/// Opens an image.
pub(super) fn open(
    directory: &Path,
    reference: &LayoutReference<'_>,
    cancel: &CancelToken,
) -> Result<ContainerImage, String> {
    let layout = LayoutDirectory::new(directory.to_owned());
    ContainerImage::of(&container_manifest(&layout.manifest(reference)?)?, &layout, cancel)
}
