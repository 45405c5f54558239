//! `ferrofs push`: publishes an image in a registry. This file digests the image, makes its chunk
//! index and the documents that name it; the fetcher uploads them.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Context, anyhow, bail};
use ferrofs_image::FileSource;
use ferrofs_image::android::SparseSource;
use ferrofs_remote::oci::{ImageDocuments, PublishedLayer};
use ferrofs_remote::protocol::{PushBlob, PushReport, PushRequest};
use ferrofs_remote::{CHUNK_INDEX_MAX_BYTES, ChunkIndex, ContentDigest, memory_file};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::amount::human_bytes;
use crate::arguments::{PushArguments, ReadArguments};
use crate::exit_status::CommandStatus;
use crate::output::{JsonBytes, Output, escape};
use crate::progress::{ProgressDisplay, WorkAmount};
use crate::remote;
use crate::signals::{ExitOnSignals, SecondSignal, StopRequest};
use crate::source;
use crate::text_file::read_text_file;

/// Bytes of a chunk of an index that is made here, as `ferrofs build --chunk-index` has them.
const CHUNK_BYTES: u64 = 1 << 20;
/// The longest configuration, in bytes: the limit that registries have for documents.
const CONFIG_MAX_BYTES: u64 = 4 << 20;

#[derive(Serialize)]
struct PushSummary {
    image: JsonBytes,
    location: String,
    /// Of the manifest, by which the image can be requested.
    digest: String,
    layer: String,
    bytes: u64,
    uploaded_bytes: u64,
    present_bytes: u64,
    chunk_index: &'static str,
    seconds: f64,
}

/// Publishes.
///
/// # Errors
/// The image cannot be read or is damaged, the registry refuses it, or a signal arrived.
pub(super) fn run(
    arguments: &PushArguments,
    signals: ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let location = remote::parse_publication(&arguments.location)?;
    let started = Instant::now();
    let image = PushedImage::open(arguments)?;
    // Nothing is left behind that has to be removed.
    let stop = signals.into_stop_request(SecondSignal::Exits)?;
    let total = WorkAmount { entries: 0, bytes: image.length.saturating_mul(2) };
    let mut progress = ProgressDisplay::new(arguments.summary.progress.progress, "push", || total);
    let blob = image.digest(&stop, &mut progress)?;
    let platform = location.platform.as_deref();
    let documents = match &arguments.container_config {
        Some(path) => {
            let name = escape(path.as_os_str().as_encoded_bytes());
            let config = read_text_file(path, CONFIG_MAX_BYTES).map_err(|why| anyhow!(why))?;
            ImageDocuments::with_config(&blob.layer, platform, &config)
                .map_err(|why| anyhow!("{name}: {why}"))?
        }
        None => ImageDocuments::new(&blob.layer, platform),
    };
    let digest = ContentDigest::of(documents.manifest.as_bytes()).to_string();
    let display_name = location.to_string();
    let options = remote::connection_options(&arguments.connection);
    let mut request = PushRequest::new(location, options, documents.manifest);
    let config_file = document(documents.config.as_bytes())?;
    let index_file = blob.appended.as_deref().map(document).transpose()?;
    let mut files: Vec<BorrowedFd<'_>> = vec![image.file.as_fd()];
    let mut parts = vec![image.length];
    if let (Some(file), Some(index)) = (&index_file, &blob.appended) {
        files.push(file.as_fd());
        parts.push(index.len() as u64);
    }
    files.push(config_file.as_fd());
    request.blobs.push(PushBlob { digest: blob.layer.digest, parts });
    let config = documents.config.as_bytes();
    let parts = vec![config.len() as u64];
    request.blobs.push(PushBlob { digest: ContentDigest::of(config), parts });
    let mut done = WorkAmount { entries: 0, bytes: image.length };
    let pushed = remote::push(&request, &files, &arguments.connection, &mut |bytes| {
        done.bytes = image.length + bytes.min(image.length);
        progress.update(done);
        stop.check_io()
    });
    progress.finish(if pushed.is_ok() { total } else { done });
    stop.check()?;
    let report = pushed.map_err(|error| anyhow!("{}", escape(error.to_string().as_bytes())))?;
    let PushReport { uploaded_bytes, present_bytes, .. } = report;
    let summary = PushSummary {
        image: JsonBytes::from(arguments.image.as_os_str().as_encoded_bytes()),
        location: display_name,
        digest,
        layer: blob.layer.digest.to_string(),
        bytes: blob.layer.length,
        uploaded_bytes,
        present_bytes,
        chunk_index: if blob.appended.is_some() { "appended" } else { "embedded" },
        seconds: started.elapsed().as_secs_f64(),
    };
    CommandStatus::Success.after_output(print(arguments, &summary))
}

fn print(arguments: &PushArguments, summary: &PushSummary) -> io::Result<()> {
    let mut output = Output::new();
    if arguments.summary.json {
        output.json(summary)?;
    } else if !arguments.summary.quiet {
        let PushSummary { location, uploaded_bytes, present_bytes, .. } = summary;
        let (uploaded, present) = (human_bytes(*uploaded_bytes), human_bytes(*present_bytes));
        let seconds = summary.seconds;
        writeln!(
            output,
            "{location}: {uploaded} uploaded, {present} there already, in {seconds:.1} s"
        )?;
        writeln!(output, "{}", summary.digest)?;
    }
    output.flush()
}

/// An image that is to be published.
struct PushedImage {
    /// For messages.
    name: String,
    file: File,
    /// Bytes of the file.
    length: u64,
    /// Where its last block ends. A chunk index may follow.
    end: u64,
}

/// The layer that it becomes.
struct LayerBlob {
    layer: PublishedLayer,
    /// The chunk index, if the image has none.
    appended: Option<Vec<u8>>,
}

impl PushedImage {
    fn open(arguments: &PushArguments) -> anyhow::Result<Self> {
        let name = remote::terminal_form(&arguments.image);
        if remote::is_remote(&arguments.image) {
            bail!("{name}: the image is remote; `ferrofs pull` makes a file of it");
        }
        let image = source::open(&arguments.image, &ReadArguments::default())?;
        if source::lacks_devices(&image) {
            bail!(
                "{name}: the image has devices in other files, but a layer is one file; build it without them"
            );
        }
        let superblock = image.superblock();
        let end = superblock.block_size.offset_of(superblock.blocks);
        let file = File::open(&arguments.image).with_context(|| name.clone())?;
        let metadata = file.metadata().with_context(|| name.clone())?;
        let stored = FileSource::open(&arguments.image, 0).with_context(|| name.clone())?;
        if !metadata.is_file() || SparseSource::is_sparse(&stored).with_context(|| name.clone())? {
            bail!("{name}: not a regular file with an EROFS image that starts at its first byte");
        }
        let length = metadata.len();
        match end.filter(|end| *end <= length) {
            Some(end) => Ok(Self { name, file, length, end }),
            None => bail!("{name}: the file has {length} bytes and is shorter than its image"),
        }
    }

    /// The chunk index behind the last block.
    fn embedded_index(&self) -> anyhow::Result<Option<(ChunkIndex, Vec<u8>)>> {
        let count = usize::try_from(self.length - self.end).unwrap_or(usize::MAX);
        if count == 0 || count > CHUNK_INDEX_MAX_BYTES {
            return Ok(None);
        }
        let mut bytes = vec![0; count];
        self.file.read_exact_at(&mut bytes, self.end).with_context(|| self.name.clone())?;
        let index = ChunkIndex::parse(&bytes).ok().filter(|index| index.length() == self.end);
        Ok(index.map(|index| (index, bytes)))
    }

    /// Reads the image once: the digest of the whole blob, and of each chunk.
    fn digest(
        &self,
        stop: &StopRequest,
        progress: &mut ProgressDisplay,
    ) -> anyhow::Result<LayerBlob> {
        let embedded = self.embedded_index()?;
        let data_end = if embedded.is_some() { self.end } else { self.length };
        let mut whole = Sha256::new();
        let mut digests = Vec::new();
        let (mut at, mut buffer) = (0, Vec::new());
        while at < data_end {
            stop.check()?;
            let known = embedded.as_ref().and_then(|(index, _)| index.chunk(digests.len()));
            let end = known.as_ref().map_or(at + CHUNK_BYTES, |(range, _)| range.end).min(data_end);
            buffer.resize(usize::try_from(end - at)?, 0);
            self.file.read_exact_at(&mut buffer, at).with_context(|| self.name.clone())?;
            whole.update(&buffer);
            let digest = ContentDigest::of(&buffer);
            if known.is_some_and(|(_, known)| known != digest) {
                bail!(
                    "{}: byte {at}: the bytes do not match the digest of the chunk index; the image is damaged",
                    self.name
                );
            }
            digests.push(digest);
            at = end;
            progress.update(WorkAmount { entries: 0, bytes: at });
        }
        let (index, is_embedded) = match embedded {
            Some((_, bytes)) => (bytes, true),
            None => {
                let index = ChunkIndex::uniform(data_end, CHUNK_BYTES, digests)
                    .map(|index| index.to_bytes());
                let index = index.filter(|index| index.len() <= CHUNK_INDEX_MAX_BYTES);
                (index.ok_or_else(|| anyhow!("{}: too long for a chunk index", self.name))?, false)
            }
        };
        whole.update(&index);
        let range = Range { start: data_end, end: data_end + index.len() as u64 };
        let layer = PublishedLayer {
            digest: ContentDigest::from_bytes(whole.finalize().into()),
            length: range.end,
            index: range,
            index_digest: ContentDigest::of(&index),
        };
        Ok(LayerBlob { layer, appended: (!is_embedded).then_some(index) })
    }
}

/// A file in memory with these bytes.
fn document(bytes: &[u8]) -> anyhow::Result<File> {
    let file = memory_file("ferrofs-push").context("a file in memory")?;
    file.write_all_at(bytes, 0).context("a file in memory")?;
    Ok(file)
}
