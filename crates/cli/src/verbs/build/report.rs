//! What was built: for people, for programs, and in the lines of mkfs.erofs.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use ferrofs_builder::{BuildOptions, BuildPhase, BuildReport};
use ferrofs_ondisk::compression::AlgorithmId;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::estimate::BuildEstimate;
use super::monitor::BuildStep;
use super::request::{BuildRequest, OutputFormat, Verify};
use crate::amount::{counted, human_bytes};
use crate::escape::{JsonBytes, escape, hex};
use crate::output::Output;
use crate::stored_size::format_percent;
use crate::verbs::info::uuid_text;

/// Read of the image at a time for its digest.
const BUFFER_BYTES: usize = 1 << 20;

/// A build that has ended well.
#[derive(Debug)]
pub(super) struct BuildSummary<'a> {
    pub(super) request: &'a BuildRequest,
    pub(super) options: &'a BuildOptions,
    pub(super) report: &'a BuildReport,
    pub(super) warnings: u64,
    pub(super) steps: Vec<(BuildStep, Duration)>,
    pub(super) took: Duration,
}

#[derive(Serialize)]
struct JsonReport {
    image: JsonBytes,
    bytes: u64,
    /// Of the blob beside it, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    blob_bytes: Option<u64>,
    blocks: u64,
    block_size: u32,
    inodes: u64,
    content_bytes: u64,
    uuid: String,
    algorithms: Vec<JsonAlgorithm>,
    saved_by_dedupe_bytes: u64,
    saved_by_fragments_bytes: u64,
    packed_bytes: u64,
    verified: bool,
    warnings: u64,
    seconds: f64,
    steps: JsonSteps,
    sha256: String,
}

#[derive(Serialize)]
struct JsonAlgorithm {
    name: &'static str,
    bytes_in: u64,
    bytes_out: u64,
    clusters: u64,
}

/// Seconds of each step.
#[derive(Default, Serialize)]
struct JsonSteps {
    import: f64,
    deduplicate: f64,
    data: f64,
    metadata: f64,
    verify: f64,
    publish: f64,
}

impl BuildSummary<'_> {
    /// Tells it in the form that was asked for.
    ///
    /// # Errors
    /// Standard output cannot be written, or the image not be read for its digest.
    pub(super) fn print(&self) -> anyhow::Result<()> {
        let mut output = Output::new();
        match self.request.output.form {
            OutputFormat::Nothing => {}
            OutputFormat::Json => output.json(&self.json()?)?,
            OutputFormat::Text => self.show(&mut output)?,
            OutputFormat::Mkfs => self.show_as_mkfs(&mut output)?,
        }
        output.flush()?;
        Ok(())
    }

    fn show(&self, output: &mut Output) -> io::Result<()> {
        let report = self.report;
        let inodes = counted(report.inodes, "inode", "inodes");
        let bytes = report.bytes.saturating_add(report.blob_bytes);
        let (content, image) = (human_bytes(report.content_bytes), human_bytes(bytes));
        let share = format_percent(bytes, report.content_bytes);
        let seconds = self.took.as_secs_f64();
        write!(output, "built {inodes}, {content} into {image} ({share} %) in {seconds:.2} s")?;
        let verified = match self.request.verify {
            Verify::Yes => "verified",
            Verify::ButContents => "verified but for contents",
            Verify::No => "not verified",
        };
        writeln!(output, ", {verified}")
    }

    fn show_as_mkfs(&self, output: &mut Output) -> io::Result<()> {
        let report = self.report;
        writeln!(output, "Build completed.\n------")?;
        writeln!(output, "Filesystem UUID: {}", uuid_text(self.options.uuid))?;
        let (blocks, block_bytes) = (report.blocks, report.block_bytes);
        writeln!(output, "Filesystem total blocks: {blocks} (of {block_bytes}-byte blocks)")?;
        writeln!(output, "Filesystem total inodes: {}", report.inodes)?;
        let data: u64 = report.by_algorithm.values().map(|stored| stored.bytes_out).sum();
        let in_image = data.saturating_sub(report.blob_bytes.min(data));
        let metadata = report.bytes.saturating_sub(in_image) / u64::from(block_bytes).max(1);
        writeln!(output, "Filesystem total metadata blocks: {metadata}")?;
        let saved = report.deduplicated_bytes;
        writeln!(output, "Filesystem total deduplicated bytes (of source files): {saved}")
    }

    fn json(&self) -> anyhow::Result<JsonReport> {
        let report = self.report;
        let image = &self.request.image;
        let offset = self.options.output_mode.offset();
        let sha256 = digest(image, offset, report.bytes).map_err(|error| {
            let image = escape(image.as_os_str().as_bytes());
            anyhow::anyhow!("{image}: cannot read it for its digest: {error}")
        })?;
        Ok(JsonReport {
            image: image.as_os_str().as_bytes().into(),
            bytes: report.bytes,
            blob_bytes: self.options.blob.as_ref().map(|_| report.blob_bytes),
            blocks: report.blocks,
            block_size: report.block_bytes,
            inodes: report.inodes,
            content_bytes: report.content_bytes,
            uuid: uuid_text(self.options.uuid),
            algorithms: report
                .by_algorithm
                .iter()
                .map(|(algorithm, stored)| JsonAlgorithm {
                    name: algorithm.map_or("none", name),
                    bytes_in: stored.bytes_in,
                    bytes_out: stored.bytes_out,
                    clusters: stored.pclusters,
                })
                .collect(),
            saved_by_dedupe_bytes: report.deduplicated_bytes,
            saved_by_fragments_bytes: report.shared_fragment_bytes,
            packed_bytes: report.packed_bytes,
            verified: self.request.verify == Verify::Yes,
            warnings: self.warnings,
            seconds: self.took.as_secs_f64(),
            steps: self.steps(),
            sha256,
        })
    }

    fn steps(&self) -> JsonSteps {
        let mut steps = JsonSteps::default();
        for (step, took) in &self.steps {
            let seconds = match step {
                BuildStep::Build(BuildPhase::Import) => &mut steps.import,
                BuildStep::Build(BuildPhase::Deduplicate) => &mut steps.deduplicate,
                BuildStep::Build(BuildPhase::Data) => &mut steps.data,
                BuildStep::Build(BuildPhase::Metadata) => &mut steps.metadata,
                BuildStep::Verify => &mut steps.verify,
                BuildStep::Build(BuildPhase::Publish) => &mut steps.publish,
                BuildStep::Finished => continue,
            };
            *seconds += took.as_secs_f64();
        }
        steps
    }
}

/// Tells what a build would come to.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn print_estimate(request: &BuildRequest, estimate: &BuildEstimate) -> io::Result<()> {
    let mut output = Output::new();
    match request.output.form {
        OutputFormat::Json => output.json(estimate)?,
        OutputFormat::Nothing => {}
        OutputFormat::Text | OutputFormat::Mkfs => {
            let inodes = counted(estimate.inodes, "inode", "inodes");
            let content = human_bytes(estimate.content_bytes);
            let image = human_bytes(estimate.image_bytes);
            let sampled = human_bytes(estimate.sampled_bytes);
            writeln!(
                output,
                "would build {inodes}, {content} into about {image} (from {sampled})"
            )?;
        }
    }
    output.flush()
}

fn name(algorithm: AlgorithmId) -> &'static str {
    match algorithm {
        AlgorithmId::Lz4 => "lz4",
        AlgorithmId::Lzma => "lzma",
        AlgorithmId::Deflate => "deflate",
        AlgorithmId::Zstd => "zstd",
    }
}

/// The SHA-256 of the image in a file.
fn digest(path: &Path, offset: u64, bytes: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut image = file.take(bytes);
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; BUFFER_BYTES]);
    loop {
        let count = image.read(&mut buffer)?;
        if count == 0 {
            return Ok(hex(&digest.finalize()));
        }
        digest.update(&buffer[..count]);
    }
}
