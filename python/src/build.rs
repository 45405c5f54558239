//! Builds an image from a directory, an archive, or entries that Python lists.

use std::path::{Path, PathBuf};

use ferrofs_builder::import::adjust::{Adjustments, ExcludePatterns, OwnerOverrides};
use ferrofs_builder::import::{
    DirectoryOptions, TarImportOptions, TarSource, erofs_image_name, from_directory, from_tar,
};
use ferrofs_builder::output::{ExistingOutput, OutputTarget};
use ferrofs_builder::tree::Tree;
use ferrofs_builder::{
    AlgorithmContext, Algorithms, BuildObserver, BuildOptions, BuildOutputs, BuildPhase,
    BuildReport, Deduplication, Fragments, SpillOptions, SpillStore, SuperblockTime, build_into,
};
use ferrofs_image::CancelToken;
use ferrofs_ondisk::BlockSize;
use pyo3::prelude::*;

use crate::content::StreamReader;
use crate::errors::{BindingResult, Failure};
use crate::progress::{CallerLink, Supervision, WorkCounters, supervise};
use crate::tree::{GivenEntry, TreeBuilder};

/// The phases of a build, as progress names them.
const PHASES: [&str; 5] = ["import", "deduplicate", "data", "metadata", "publish"];

/// The kind of a source that is a directory.
const DIRECTORY: &str = "directory";

/// The kind of a source that is a Python object with an archive.
const STREAM: &str = "stream";

/// The tree takes one part in so many of the memory while the source is imported, as in the C library.
const TREE_SHARE: u64 = 2;

/// Bytes of the image, its inodes, and bytes of the files in it.
pub(crate) type BuildTuple = (u64, u64, u64);

/// What to build, and how.
#[derive(Debug, FromPyObject)]
pub(crate) struct GivenBuild {
    output: PathBuf,
    overwrite: bool,
    compression: Option<String>,
    block_size: u32,
    pcluster_size: u32,
    dedupe: bool,
    /// None, tails or all.
    fragments: String,
    inline_pclusters: bool,
    label: Vec<u8>,
    uuid: [u8; 16],
    /// Seconds of the superblock; the newest time of the source if there is none.
    timestamp: Option<u64>,
    /// Paths and POSIX expressions that are left out of a directory.
    exclude: Vec<Vec<u8>>,
    exclude_regex: Vec<String>,
    all_root: bool,
    jobs: Option<usize>,
    memory: Option<u64>,
}

/// Where the tree comes from: `("directory", path)`, `("tar", path)`, `("stream", object)` or
/// `("entries", iterator)`.
pub(crate) type GivenSource = (String, Py<PyAny>);

enum BuildSource {
    Directory(PathBuf),
    Tar(PathBuf),
    /// An archive that the caller's thread reads.
    Stream,
    Tree(Box<Tree>),
}

/// Builds an image.
#[pyo3::pyfunction]
pub(crate) fn build(
    py: Python<'_>,
    source: GivenSource,
    given: GivenBuild,
    progress: Option<Py<PyAny>>,
) -> PyResult<BuildTuple> {
    let options = build_options(&given).map_err(|failure| failure.raise(py))?;
    check_exclusions(&source.0, &given).map_err(|failure| failure.raise(py))?;
    let cancel = CancelToken::new();
    let counters = WorkCounters::default();
    // Refused before the source is read.
    let existing = if given.overwrite { ExistingOutput::Replace } else { ExistingOutput::Refuse };
    let image = py.detach(|| OutputTarget::open(&given.output, existing));
    let image = image.map_err(|error| Failure::from(error).raise(py))?;
    let stream = (source.0 == STREAM).then_some(&source.1);
    let store = tree_store(&options, &given.output);
    let source = build_source(py, &source, &store, &counters)?;
    let supervision = Supervision { phases: &PHASES, counters: &counters, cancel: &cancel, stream };
    let report = supervise(py, &supervision, progress.as_ref(), |caller| {
        let observer = CountingObserver { counters: &counters, caller };
        let tree = import(source, &given, store, &observer, &cancel)?;
        Ok(build_into(&tree, &options, BuildOutputs::new(image), &observer, &cancel)?)
    })?;
    Ok(figures(&report))
}

fn figures(report: &BuildReport) -> BuildTuple {
    (report.bytes, report.inodes, report.content_bytes)
}

/// Where the tree is kept: in memory, and beyond the share of it in a file beside the image.
fn tree_store(options: &BuildOptions, output: &Path) -> SpillStore {
    let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty());
    let spill = SpillOptions::default()
        .memory_bytes_max(options.memory_bytes / TREE_SHARE)
        .directory(Some(parent.unwrap_or(Path::new(".")).to_owned()));
    SpillStore::new(spill)
}

/// Only a directory has something that can be left out.
fn check_exclusions(kind: &str, given: &GivenBuild) -> BindingResult<()> {
    let is_empty = given.exclude.is_empty() && given.exclude_regex.is_empty();
    if kind == DIRECTORY || is_empty {
        return Ok(());
    }
    let message = "exclude and exclude_regex are for directories, but the source is none";
    Err(Failure::new("BuildError", "EINVAL", message.to_owned()))
}

/// Attached: entries are listed by Python.
fn build_source(
    py: Python<'_>,
    source: &GivenSource,
    store: &SpillStore,
    counters: &WorkCounters,
) -> PyResult<BuildSource> {
    let (kind, value) = source;
    let value = value.bind(py);
    match kind.as_str() {
        DIRECTORY => Ok(BuildSource::Directory(value.extract()?)),
        "tar" => Ok(BuildSource::Tar(value.extract()?)),
        STREAM => Ok(BuildSource::Stream),
        _ => {
            let mut tree = TreeBuilder::new(store);
            for entry in value.try_iter()? {
                let entry: GivenEntry = entry?.extract()?;
                tree.add(py, entry).map_err(|failure| failure.raise(py))?;
                counters.add_entry();
            }
            Ok(BuildSource::Tree(Box::new(tree.into_tree())))
        }
    }
}

fn import(
    source: BuildSource,
    given: &GivenBuild,
    store: SpillStore,
    observer: &CountingObserver<'_>,
    cancel: &CancelToken,
) -> BindingResult<Tree> {
    let owners = match given.all_root {
        true => OwnerOverrides::all_root(),
        false => OwnerOverrides::default(),
    };
    let adjustments = Adjustments::default().owners(owners);
    match source {
        BuildSource::Directory(path) => {
            let (paths, expressions) = (given.exclude.iter().cloned(), &given.exclude_regex);
            let exclude_patterns = ExcludePatterns::new(paths, expressions)?;
            let options = DirectoryOptions::default()
                .exclude_patterns(exclude_patterns)
                .adjustments(adjustments)
                .store(Some(store));
            Ok(from_directory(&path, &options, observer, cancel)?)
        }
        BuildSource::Tar(path) => {
            import_tar(TarSource::Path(path), store, &adjustments, observer, cancel)
        }
        BuildSource::Stream => {
            let reader = Box::new(StreamReader(observer.caller.clone()));
            let source = TarSource::Stream { reader, name: PathBuf::from("archive") };
            import_tar(source, store, &adjustments, observer, cancel)
        }
        BuildSource::Tree(mut tree) => {
            adjustments.apply(&mut tree)?;
            Ok(*tree)
        }
    }
}

fn import_tar(
    source: TarSource,
    store: SpillStore,
    adjustments: &Adjustments,
    observer: &CountingObserver<'_>,
    cancel: &CancelToken,
) -> BindingResult<Tree> {
    let options =
        TarImportOptions::default().foreign_name(Some(erofs_image_name)).store(Some(store));
    let mut tree = from_tar(source, &options, observer, cancel)?;
    adjustments.apply(&mut tree)?;
    Ok(tree)
}

fn build_options(given: &GivenBuild) -> BindingResult<BuildOptions> {
    let refused = |message: String| Failure::new("BuildError", "EINVAL", message);
    let defaults = BuildOptions::default();
    let bits = u8::try_from(given.block_size.trailing_zeros()).ok();
    let bits = bits.filter(|_| given.block_size.is_power_of_two());
    let block_size = bits.and_then(|bits| BlockSize::from_bits(bits).ok()).ok_or_else(|| {
        let bytes = given.block_size;
        refused(format!("blocks have 512 to 65536 bytes, a power of two, not {bytes}"))
    })?;
    let context =
        AlgorithmContext { pcluster_bytes: u64::from(given.pcluster_size), max_distance: u16::MAX };
    let algorithms = given.compression.as_deref();
    let algorithms = algorithms.map(|text| Algorithms::parse(text, context)).transpose()?;
    let fragments = match given.fragments.as_str() {
        "none" => Fragments::None,
        "tails" => Fragments::Tails,
        "all" => Fragments::All,
        other => return Err(refused(format!("fragments are none, tails or all, not {other}"))),
    };
    let mut label = defaults.label;
    match label.get_mut(..given.label.len()) {
        Some(front) => front.copy_from_slice(&given.label),
        None => return Err(refused("a label has at most 16 bytes".to_owned())),
    }
    let deduplication = if given.dedupe { Deduplication::On } else { Deduplication::Off };
    let options = defaults
        .block_size(block_size)
        .algorithms(algorithms)
        .pcluster_bytes(given.pcluster_size.max(given.block_size))
        .deduplication(deduplication)
        .fragments(fragments)
        .inline_pclusters(given.inline_pclusters)
        .label(label)
        .uuid(given.uuid)
        .time(given.timestamp.map_or(SuperblockTime::Newest, SuperblockTime::Fixed))
        .jobs(given.jobs);
    let options = match given.memory {
        Some(bytes) => options.memory_bytes(bytes),
        None => options,
    };
    options.check()?;
    Ok(options)
}

/// Counts, and asks the caller's thread whether the finished image may get its name.
struct CountingObserver<'a> {
    counters: &'a WorkCounters,
    caller: &'a CallerLink,
}

impl BuildObserver for CountingObserver<'_> {
    fn bytes_done(&self, bytes: u64) {
        self.counters.add_bytes(bytes);
    }

    fn entry_found(&self, _is_directory: bool) {
        self.counters.add_entry();
    }

    fn phase(&self, phase: BuildPhase) {
        self.counters.enter(match phase {
            BuildPhase::Import => 0,
            BuildPhase::Deduplicate => 1,
            BuildPhase::Data => 2,
            BuildPhase::Metadata => 3,
            BuildPhase::Publish => 4,
        });
    }

    fn inspect(&self, _image: &Path, _blob: Option<&Path>) -> Result<(), String> {
        match self.caller.may_finish() {
            true => Ok(()),
            false => Err("cancelled".to_owned()),
        }
    }
}
