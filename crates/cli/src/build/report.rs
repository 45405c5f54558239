//! The summary of a build: as text, as JSON, and in the format of mkfs.erofs; and the estimate of a
//! dry run.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::mem;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferrofs_builder::tree::{Content, ContentReader, ContentSource, Node, NodeKind, Tree};
use ferrofs_builder::{BuildOptions, BuildPhase, BuildReport, Error, Result};
use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_workers::CancelToken;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::import;
use super::monitor::BuildStep;
use super::request::{BuildRequest, OutputFormat, Verify};
use crate::amount::{counted, human_bytes};
use crate::metadata_text::{format_percent, format_uuid};
use crate::output::{JsonBytes, Output, escape, hex};
use crate::read_stats::process_peak_bytes;

/// Read of the image at a time for its digest.
const BUFFER_BYTES: usize = 1 << 20;

/// A finished build.
#[derive(Debug)]
pub(super) struct BuildSummary<'a> {
    pub(super) request: &'a BuildRequest,
    pub(super) options: &'a BuildOptions,
    pub(super) report: &'a BuildReport,
    pub(super) warnings: u64,
    pub(super) steps: Vec<(BuildStep, Duration)>,
    pub(super) elapsed: Duration,
}

#[derive(Serialize)]
struct JsonReport {
    image: JsonBytes,
    bytes: u64,
    /// Of the blob beside it, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    blob_bytes: Option<u64>,
    /// Of the chunk index, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk_index: Option<JsonChunkIndex>,
    blocks: u64,
    block_size: u32,
    inodes: u64,
    content_bytes: u64,
    uuid: String,
    algorithms: Vec<JsonAlgorithm>,
    saved_by_dedupe_bytes: u64,
    saved_by_fragments_bytes: u64,
    packed_bytes: u64,
    /// Of memory for the tree and the tables of the build, at one time.
    tree_memory_bytes: u64,
    /// Of the temporary file for what did not fit.
    temporary_bytes: u64,
    /// Of the process; absent where the system does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_memory_bytes: Option<u64>,
    verified: bool,
    warnings: u64,
    seconds: f64,
    steps: JsonSteps,
    sha256: String,
}

#[derive(Serialize)]
struct JsonChunkIndex {
    /// The byte of the image at which it starts, if it is embedded.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    bytes: u64,
    /// As in `#index=` of a URL.
    digest: String,
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
    /// Prints the summary.
    ///
    /// # Errors
    /// Standard output cannot be written, or the image not be read for its digest.
    pub(super) fn print(&self) -> anyhow::Result<()> {
        let mut output = Output::new();
        match self.request.output.form {
            OutputFormat::Nothing => {}
            OutputFormat::Json => output.json(&self.json()?)?,
            OutputFormat::Text => self.show(&mut output)?,
            OutputFormat::Mkfs { .. } => self.show_as_mkfs(&mut output)?,
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
        let seconds = self.elapsed.as_secs_f64();
        write!(output, "built {inodes}, {content} into {image} ({share} %) in {seconds:.2} s")?;
        let verified = match self.request.verify {
            Verify::Yes => "verified",
            Verify::ButContents => "verified except for contents",
            Verify::No => "not verified",
        };
        write!(output, ", {verified}")?;
        if let Some(peak) = process_peak_bytes() {
            write!(output, ", peak memory {}", human_bytes(peak))?;
        }
        if report.spilled_bytes > 0 {
            write!(output, ", {} in a temporary file", human_bytes(report.spilled_bytes))?;
        }
        if let Some(index) = &report.chunk_index {
            write!(output, ", chunk index sha256:{}", hex(&index.sha256))?;
        }
        writeln!(output)
    }

    fn show_as_mkfs(&self, output: &mut Output) -> io::Result<()> {
        let report = self.report;
        if let OutputFormat::Mkfs { lists_files: true } = self.request.output.form {
            if report.packed_bytes > 0 {
                writeln!(output, "Processing packed data ...")?;
            }
            writeln!(output, "Build completed.\n")?;
        }
        writeln!(output, "------")?;
        writeln!(output, "Filesystem UUID: {}", format_uuid(self.options.uuid))?;
        let (blocks, block_bytes) = (report.blocks, report.block_bytes);
        writeln!(output, "Filesystem total blocks: {blocks} (of {block_bytes}-byte blocks)")?;
        writeln!(output, "Filesystem total inodes: {}", report.image_inodes)?;
        let data: u64 = report.by_algorithm.values().map(|stored| stored.bytes_out).sum();
        let in_image = data.saturating_sub(report.blob_bytes.min(data));
        // Tails of files share blocks with metadata.
        let metadata = report.bytes.saturating_sub(in_image);
        let metadata = metadata.div_ceil(u64::from(block_bytes).max(1));
        writeln!(output, "Filesystem total metadata blocks: {metadata}")?;
        let saved = report.deduplicated_bytes;
        writeln!(output, "Filesystem total deduplicated bytes (of source files): {saved}")
    }

    fn json(&self) -> anyhow::Result<JsonReport> {
        let report = self.report;
        let image = &self.request.image;
        let offset = self.options.output_mode.offset();
        let embedded = report.chunk_index.as_ref().filter(|index| index.is_embedded);
        let bytes = report.bytes + embedded.map_or(0, |index| index.bytes);
        let sha256 = digest(image, offset, bytes).map_err(|error| {
            let image = escape(image.as_os_str().as_bytes());
            anyhow::anyhow!("{image}: cannot compute the SHA-256: {error}")
        })?;
        Ok(JsonReport {
            image: image.as_os_str().as_bytes().into(),
            bytes: report.bytes,
            blob_bytes: self.options.blob.as_ref().map(|_| report.blob_bytes),
            chunk_index: report.chunk_index.as_ref().map(|index| JsonChunkIndex {
                offset: index.is_embedded.then_some(report.bytes),
                bytes: index.bytes,
                digest: format!("sha256:{}", hex(&index.sha256)),
            }),
            blocks: report.blocks,
            block_size: report.block_bytes,
            inodes: report.inodes,
            content_bytes: report.content_bytes,
            uuid: format_uuid(self.options.uuid),
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
            tree_memory_bytes: report.store_bytes,
            temporary_bytes: report.spilled_bytes,
            peak_memory_bytes: process_peak_bytes(),
            verified: self.request.verify == Verify::Yes,
            warnings: self.warnings,
            seconds: self.elapsed.as_secs_f64(),
            steps: self.steps(),
            sha256,
        })
    }

    fn steps(&self) -> JsonSteps {
        let mut steps = JsonSteps::default();
        for (step, elapsed) in &self.steps {
            let seconds = match step {
                BuildStep::Build(BuildPhase::Import) => &mut steps.import,
                BuildStep::Build(BuildPhase::Deduplicate) => &mut steps.deduplicate,
                BuildStep::Build(BuildPhase::Data) => &mut steps.data,
                BuildStep::Build(BuildPhase::Metadata) => &mut steps.metadata,
                BuildStep::Verify => &mut steps.verify,
                BuildStep::Build(BuildPhase::Publish) => &mut steps.publish,
                BuildStep::Finished => continue,
            };
            *seconds += elapsed.as_secs_f64();
        }
        steps
    }
}

/// Prints a line for each inode with a name, as mkfs.erofs does while it reads: the entries of a
/// directory, then those of its first directory, and so on. On a terminal, nothing.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn print_names(tree: &Tree) -> io::Result<()> {
    if io::stdout().is_terminal() {
        return Ok(());
    }
    let mut output = Output::new();
    writeln!(output, "Processing / ...")?;
    let mut is_printed = vec![false; tree.len()];
    let mut directories = VecDeque::from([(Vec::new(), Tree::ROOT)]);
    while let Some((path, directory)) = directories.pop_front() {
        for (name, id) in tree.entries(directory) {
            let is_new =
                is_printed.get_mut(id.index()).is_some_and(|done| !mem::replace(done, true));
            if !is_new {
                continue;
            }
            let path: Vec<u8> = match path.is_empty() {
                true => name.to_vec(),
                false => [&path, &b"/"[..], &name].concat(),
            };
            write!(output, "Processing ")?;
            output.name(&path)?;
            writeln!(output, " ...")?;
            if tree.is_directory(id) {
                directories.push_back((path, id));
            }
        }
    }
    output.flush()
}

/// Prints an estimate.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn print_estimate(request: &BuildRequest, estimate: &BuildEstimate) -> io::Result<()> {
    let mut output = Output::new();
    match request.output.form {
        OutputFormat::Json => output.json(estimate)?,
        OutputFormat::Nothing => {}
        OutputFormat::Text | OutputFormat::Mkfs { .. } => {
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

/// Bytes of files that are built at most: some seconds with the slowest algorithm.
const SAMPLE_BYTES: u64 = 16 << 20;
/// Bytes that are taken of one file at most, so that one file does not stand for all.
const FILE_BYTES: u64 = 1 << 20;

/// An estimate of a build.
#[derive(Clone, Copy, Debug, Serialize, PartialEq, Eq)]
pub(super) struct BuildEstimate {
    pub(super) inodes: u64,
    pub(super) content_bytes: u64,
    /// Bytes of the image.
    pub(super) image_bytes: u64,
    /// Bytes of files in the sample.
    pub(super) sampled_bytes: u64,
}

/// Builds a part of `tree` in memory and estimates the whole image from it.
///
/// # Errors
/// As the build.
pub(super) fn estimate(
    tree: &Tree,
    options: &BuildOptions,
    cancel: &CancelToken,
) -> Result<BuildEstimate> {
    let (inodes, content_bytes) = (tree.len() as u64, content_bytes(tree));
    let sample = sample(tree, content_bytes)?;
    let sampled_bytes = self::content_bytes(&sample);
    let built = import::build_in_memory(&sample, options, cancel)?;
    let data_bytes: u64 = built.by_algorithm.values().map(|stored| stored.bytes_out).sum();
    let other_bytes = built.bytes.saturating_sub(data_bytes);
    let block = u64::from(built.block_bytes).max(1);
    let data = scaled(data_bytes, content_bytes, sampled_bytes);
    let other = scaled(other_bytes, inodes, sample.len() as u64);
    let image_bytes = data.saturating_add(other).div_ceil(block).saturating_mul(block);
    Ok(BuildEstimate { inodes, content_bytes, image_bytes, sampled_bytes })
}

/// What all regular files have together.
pub(super) fn content_bytes(tree: &Tree) -> u64 {
    tree.ids()
        .filter_map(|id| tree.content_bytes(id))
        .fold(0, |sum, bytes| sum.saturating_add(bytes))
}

/// `part` in the proportion of `whole` to `sampled`.
fn scaled(part: u64, whole: u64, sampled: u64) -> u64 {
    let scaled = (u128::from(part) * u128::from(whole)).checked_div(sampled.into());
    scaled.map_or(0, |scaled| u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// A tree of some of the files, from all over, each with the beginning of its contents; all of them
/// if they are few.
fn sample(tree: &Tree, content_bytes: u64) -> Result<Tree> {
    let root = tree.node(Tree::ROOT).metadata;
    let mut sample = Tree::new(root);
    // So many bytes of the source pass for each byte that is taken.
    let step = content_bytes.div_ceil(SAMPLE_BYTES).max(1);
    let (mut passed, mut taken) = (0u64, 0u64);
    let mut error = None;
    let walked = tree.walk(|_, id| {
        let Some(content) = tree.content(id) else { return Ok(()) };
        passed = passed.saturating_add(content.bytes());
        let due = (passed / step).saturating_sub(taken);
        if due == 0 && content.bytes() > 0 {
            return Ok(());
        }
        let bytes = content.bytes().min(FILE_BYTES).min(due.max(FILE_BYTES / 16));
        taken = taken.saturating_add(bytes);
        let kind = NodeKind::File(Content::new(Arc::new(FilePrefix::of(&content, bytes)), bytes));
        let node = Node { metadata: tree.node(id).metadata, kind };
        let name = sample.len().to_string();
        let added = sample.add(node).and_then(|id| sample.link(Tree::ROOT, name.as_bytes(), id));
        added.map(|_| ()).map_err(|found| error = Some(found))
    });
    match (walked, error) {
        (Err(()), Some(error)) => Err(error),
        _ => Ok(sample),
    }
}

/// The beginning of a file.
struct FilePrefix {
    whole: Arc<dyn ContentSource>,
    bytes: u64,
}

impl FilePrefix {
    fn of(content: &Content, bytes: u64) -> Self {
        Self { whole: content.source(), bytes }
    }
}

impl ContentSource for FilePrefix {
    fn name(&self) -> String {
        self.whole.name()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>, Error> {
        self.whole.open()
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>, Error> {
        let ranges = self.whole.data_ranges()?.into_iter();
        let clamped = ranges.map(|range| range.start..range.end.min(self.bytes));
        Ok(clamped.filter(|range| range.start < range.end).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::scaled;

    #[test]
    fn parts_grow_in_proportion() {
        assert_eq!(scaled(10, 300, 100), 30);
        assert_eq!(scaled(10, 0, 0), 0);
        assert_eq!(scaled(u64::MAX, u64::MAX, 1), u64::MAX);
    }
}
