//! An image of a registry. The fetcher receives its blobs, and keeps them in its cache; the layers
//! behind the one that is imported are requested ahead.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferrofs_image::ImageSource;
use ferrofs_remote::oci::{BlobReference, container_manifest};
use ferrofs_remote::protocol::RemoteOptions;
use ferrofs_remote::{FetchClient, RemoteLocation, RemoteSource};

use super::{BlobStore, ContainerImage};
use crate::arguments::ConnectionArguments;
use crate::remote;

/// Bytes of layers that are requested before they are imported.
const AHEAD_BYTES: u64 = 32 << 20;
/// Requested at once: as much as the fetcher receives with one request.
const STEP_BYTES: u64 = 4 << 20;

/// The repository of an image.
struct Repository {
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

impl BlobStore for Repository {
    fn open(&self, blob: &BlobReference) -> io::Result<Box<dyn Read + Send>> {
        let location = self.location.blob(*blob);
        let opened = RemoteSource::open(&self.client, &location, &self.options, self.timeout);
        let source = Arc::new(opened?);
        let mut queue = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let start = queue.length;
        queue.layers.push((start, Arc::clone(&source)));
        queue.length += source.length();
        Ok(Box::new(LayerReader { source, start, offset: 0, queue: Arc::clone(&self.layers) }))
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
) -> Result<ContainerImage, String> {
    let (client, timeout) = remote::client(connection).map_err(|error| format!("{error:#}"))?;
    let options = remote::connection_options(connection);
    let manifest = client.manifest(location, &options, timeout);
    let manifest = container_manifest(&manifest.map_err(|error| error.to_string())?)?;
    let layers = Arc::default();
    let location = location.clone();
    let repository = Repository { client, location, options, timeout, layers };
    ContainerImage::of(&manifest, &repository)
}
