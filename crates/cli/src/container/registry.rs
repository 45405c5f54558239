//! An image of a registry. The fetcher receives its blobs, and keeps them in its cache; the layers
//! behind the one that is imported are requested ahead.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferrofs_builder::CancelToken;
use ferrofs_image::ImageSource;
use ferrofs_remote::oci::{BlobReference, ContainerManifest, container_manifest};
use ferrofs_remote::protocol::RemoteOptions;
use ferrofs_remote::{FetchClient, RemoteLocation, RemoteSource};
use sha2::{Digest, Sha256};

use super::{BlobStore, CachedImage, ContainerImage};
use crate::arguments::ConnectionArguments;
use crate::remote;

/// Bytes of layers that are requested before they are imported.
const AHEAD_BYTES: u64 = 32 << 20;
/// Requested at once: as much as the fetcher receives with one request.
const STEP_BYTES: u64 = 4 << 20;
/// Read at once from what is cached.
const CHUNK_BYTES: usize = 256 << 10;
/// Fetched at once past the caches: more would not fit into the memory of a fetcher without a disk.
const AGAIN_BYTES: usize = 24 << 20;

/// The repository of an image.
#[derive(Clone)]
struct ImageRepository {
    client: Arc<FetchClient>,
    location: RemoteLocation,
    options: RemoteOptions,
    timeout: Duration,
    layers: Arc<Mutex<LayerQueue>>,
}

/// All layers in their order, as if they were one object.
#[derive(Default)]
struct LayerQueue {
    /// With the byte at which each begins.
    layers: Vec<(u64, Arc<RemoteSource>)>,
    length: u64,
    /// Bytes before this one were requested.
    requested: u64,
}

impl LayerQueue {
    /// Requests what will be read soon when byte `position` is read.
    fn advance(&mut self, position: u64) {
        let target = position.saturating_add(AHEAD_BYTES).min(self.length);
        // What was read without a request before was requested by its reader.
        self.requested = self.requested.max(position);
        while self.requested < target {
            let after = self.layers.partition_point(|(start, _)| *start <= self.requested);
            let Some((start, source)) = after.checked_sub(1).and_then(|at| self.layers.get(at))
            else {
                return;
            };
            let offset = self.requested - start;
            let bytes = STEP_BYTES.min(source.length().saturating_sub(offset));
            source.will_need(offset, bytes);
            self.requested += bytes.max(1);
        }
    }
}

impl ImageRepository {
    fn source(&self, blob: &BlobReference) -> io::Result<RemoteSource> {
        let location = self.location.blob(*blob);
        RemoteSource::open(&self.client, &location, &self.options, self.timeout)
    }
}

impl BlobStore for ImageRepository {
    fn open(&self, blob: &BlobReference) -> io::Result<Box<dyn Read + Send>> {
        let source = Arc::new(self.source(blob)?);
        let mut queue = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let start = queue.length;
        queue.layers.push((start, Arc::clone(&source)));
        queue.length += source.length();
        Ok(Box::new(LayerReader { source, start, offset: 0, queue: Arc::clone(&self.layers) }))
    }

    fn fetch_again(&self, blob: &BlobReference, cancel: &CancelToken) -> io::Result<bool> {
        let source = self.source(blob)?;
        let mut piece = vec![0; CHUNK_BYTES];
        let (mut sum, mut offset) = (Sha256::new(), 0);
        loop {
            check(cancel)?;
            let count = source.read_at(offset, &mut piece)?;
            if count == 0 {
                break;
            }
            sum.update(&piece[..count]);
            offset += count as u64;
        }
        if sum.finalize()[..] == blob.digest.as_bytes()[..] {
            return Ok(false);
        }
        for start in (0..source.length()).step_by(AGAIN_BYTES) {
            check(cancel)?;
            source.fetch_again(start..source.length().min(start + AGAIN_BYTES as u64))?;
        }
        Ok(true)
    }
}

fn check(cancel: &CancelToken) -> io::Result<()> {
    match cancel.is_cancelled() {
        true => Err(io::ErrorKind::Interrupted.into()),
        false => Ok(()),
    }
}

/// An image whose layers are opened again.
struct RegistryImage {
    repository: ImageRepository,
    manifest: ContainerManifest,
}

impl CachedImage for RegistryImage {
    fn again(&self, first: usize, cancel: &CancelToken) -> Result<Option<ContainerImage>, String> {
        let failed = |error: io::Error| error.to_string();
        for (number, blob) in self.manifest.layers.iter().enumerate().skip(first) {
            let was_wrong = self.repository.fetch_again(blob, cancel).map_err(failed)?;
            if number == first && !was_wrong {
                return Ok(None);
            }
        }
        let queue = Arc::default();
        let repository = ImageRepository { layers: queue, ..self.repository.clone() };
        ContainerImage::of(&self.manifest, &repository, cancel).map(Some)
    }
}

/// A layer from its first byte to its last.
struct LayerReader {
    source: Arc<RemoteSource>,
    /// Where it begins in the queue.
    start: u64,
    offset: u64,
    queue: Arc<Mutex<LayerQueue>>,
}

impl Read for LayerReader {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.advance(self.start + self.offset);
        drop(queue);
        let count = self.source.read_at(self.offset, output)?;
        self.offset += count as u64;
        Ok(count)
    }
}

/// Opens an image.
pub(super) fn open(
    location: &RemoteLocation,
    connection: &ConnectionArguments,
    cancel: &CancelToken,
) -> Result<ContainerImage, String> {
    let (client, timeout) = remote::client(connection).map_err(|error| format!("{error:#}"))?;
    let options = remote::connection_options(connection);
    let manifest = client.manifest(location, &options, timeout);
    let manifest = container_manifest(&manifest.map_err(|error| error.to_string())?)?;
    let layers = Arc::default();
    let location = location.clone();
    let repository = ImageRepository { client, location, options, timeout, layers };
    let image = ContainerImage::of(&manifest, &repository, cancel)?;
    Ok(ContainerImage { cached: Some(Box::new(RegistryImage { repository, manifest })), ..image })
}
