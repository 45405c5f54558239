//! Building images from a directory or a tar archive.
#![allow(unsafe_code, reason = "functions that C calls get pointers")]

use std::ffi::{c_char, c_int};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofs_builder::import::adjust::{Adjustments, MtimePolicy, OwnerOverrides, XattrFilter};
use ferrofs_builder::import::{
    DirectoryOptions, TarImportOptions, TarSource, erofs_image_name, from_directory, from_tar,
};
use ferrofs_builder::output::{ExistingOutput, OutputTarget};
use ferrofs_builder::tree::Tree;
use ferrofs_builder::{
    AlgorithmContext, Algorithms, BuildObserver, BuildOutputs, BuildReport, CancelToken,
    Deduplication, Fragments, SpillOptions, SpillStore, SuperblockTime, build_into,
};
use ferrofs_ondisk::BlockSize;

use crate::error::{CallError, CallResult, Code};
use crate::guard;
use crate::io::{Answer, Callbacks};
use crate::open::host_path;
use crate::pointer;
use crate::structs::{BuildOptions, BuildSummary};
use crate::work::nonzero;

/// Bits of `FERROFS_BUILD_*`.
mod build_flag {
    pub(super) const REPLACE: u32 = 1;
    pub(super) const ALL_ROOT: u32 = 2;
    pub(super) const DEDUPE: u32 = 4;
    pub(super) const FRAGMENTS: u32 = 8;
    pub(super) const NO_XATTRS: u32 = 16;
    pub(super) const TIME: u32 = 32;
    pub(super) const ALL: u32 = 63;
}

const DEFAULT_BLOCK_BYTES: u32 = 4096;
/// The tree takes one part in so many of the memory while the source is imported.
const TREE_SHARE: u64 = 2;

/// `ferrofs_build`.
///
/// # Safety
/// `source` and `output` are texts, `options` and `summary` begin with their size or are NULL, the
/// function of `options` can be called from any thread, `error` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_build(
    source: *const c_char,
    output: *const c_char,
    options: *const BuildOptions,
    summary: *mut BuildSummary,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let (source, output) =
            unsafe { (pointer::text(source, "source")?, pointer::text(output, "output")?) };
        // SAFETY: this function's contract.
        let options = unsafe { pointer::options(options) }?;
        // SAFETY: this function's contract.
        let place = unsafe { pointer::result_place(summary) }?;
        // SAFETY: this function's contract.
        let texts = unsafe {
            BuildTexts {
                compression: pointer::optional_text(options.compression),
                label: pointer::optional_text(options.label).unwrap_or_default(),
            }
        };
        let report = build(host_path(source), host_path(output), &options, texts)?;
        let result = BuildSummary {
            bytes: report.bytes,
            inodes: report.inodes,
            content_bytes: report.content_bytes,
            ..BuildSummary::new()
        };
        // SAFETY: this function's contract, and the size is checked.
        unsafe { place.write(&result) };
        Ok(0)
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

/// The texts of the options.
#[derive(Clone, Copy)]
struct BuildTexts<'a> {
    compression: Option<&'a [u8]>,
    label: &'a [u8],
}

fn build(
    source: &Path,
    output: &Path,
    options: &BuildOptions,
    texts: BuildTexts<'_>,
) -> CallResult<BuildReport> {
    let has = |flag| options.flags & flag != 0;
    if has(!build_flag::ALL) || options.reserved != 0 {
        return Err(CallError::new(Code::Unsupported, "an unknown flag to build"));
    }
    let building = build_options(options, texts)?;
    building.check()?;
    let existing = match has(build_flag::REPLACE) {
        true => ExistingOutput::Replace,
        false => ExistingOutput::Refuse,
    };
    let outputs = BuildOutputs::new(OutputTarget::open(output, existing)?);
    let cancel = CancelToken::new();
    let monitor = CallerMonitor {
        callbacks: Mutex::new(SendCallbacks(Callbacks {
            problem: None,
            progress: options.progress,
            ctx: options.ctx,
        })),
        cancel: &cancel,
        bytes: AtomicU64::new(0),
        entries: AtomicU64::new(0),
    };
    let spill = SpillOptions::default()
        .memory_bytes_max(building.memory_bytes / TREE_SHARE)
        .directory(output.parent().map(|parent| match parent.as_os_str().is_empty() {
            true => Path::new(".").to_owned(),
            false => parent.to_owned(),
        }));
    let tree = import(source, adjustments(options), SpillStore::new(spill), &monitor)?;
    Ok(build_into(&tree, &building, outputs, &monitor, &cancel)?)
}

fn import(
    source: &Path,
    adjustments: Adjustments,
    store: SpillStore,
    monitor: &CallerMonitor<'_>,
) -> CallResult<Tree> {
    let found = fs::metadata(source).map_err(|error| {
        let message = format!("{}: cannot examine the source: {error}", source.display());
        CallError::io(&error, message).at_path(source.as_os_str().as_bytes())
    })?;
    if found.is_dir() {
        let options = DirectoryOptions::default().adjustments(adjustments).store(Some(store));
        return Ok(from_directory(source, &options, monitor, monitor.cancel)?);
    }
    let options =
        TarImportOptions::default().foreign_name(Some(erofs_image_name)).store(Some(store));
    let source = TarSource::Path(source.to_owned());
    let mut tree = from_tar(source, &options, monitor, monitor.cancel)?;
    adjustments.apply(&mut tree)?;
    Ok(tree)
}

fn adjustments(options: &BuildOptions) -> Adjustments {
    let has = |flag| options.flags & flag != 0;
    let mut made = Adjustments::default();
    if has(build_flag::ALL_ROOT) {
        made = made.owners(OwnerOverrides::all_root());
    }
    if has(build_flag::NO_XATTRS) {
        made = made.xattrs(XattrFilter::None);
    }
    if has(build_flag::TIME) {
        made = made.mtime(MtimePolicy::Clamp(options.time));
    }
    made
}

fn build_options(
    options: &BuildOptions,
    texts: BuildTexts<'_>,
) -> CallResult<ferrofs_builder::BuildOptions> {
    let has = |flag| options.flags & flag != 0;
    let block_bytes =
        if options.block_bytes == 0 { DEFAULT_BLOCK_BYTES } else { options.block_bytes };
    let block_size = u8::try_from(block_bytes.trailing_zeros()).ok();
    let block_size = block_size.filter(|_| block_bytes.is_power_of_two());
    let block_size = block_size.and_then(|bits| BlockSize::from_bits(bits).ok());
    let block_size = block_size.ok_or_else(|| {
        CallError::invalid(format!("blocks of {block_bytes} bytes: use 512, 1024, ... or 65536"))
    })?;
    let pcluster_bytes = options.pcluster_bytes.max(block_bytes);
    let mut label = [0; 16];
    let Some(field) = label.get_mut(..texts.label.len()).filter(|field| field.len() < 16) else {
        return Err(CallError::invalid("the label has more than 15 bytes"));
    };
    field.copy_from_slice(texts.label);
    let defaults = ferrofs_builder::BuildOptions::default();
    let extent_bytes_max = defaults.extent_bytes_max / block_bytes * block_bytes;
    let mut made = defaults
        .block_size(block_size)
        .pcluster_bytes(pcluster_bytes)
        .extent_bytes_max(extent_bytes_max)
        .algorithms(algorithms(texts.compression, pcluster_bytes)?)
        .uuid(options.uuid)
        .label(label)
        .jobs(nonzero(options.threads))
        .time(superblock_time(options)?);
    if options.memory_bytes > 0 {
        made = made.memory_bytes(options.memory_bytes);
    }
    if has(build_flag::DEDUPE) {
        made = made.deduplication(Deduplication::On);
    }
    if has(build_flag::FRAGMENTS) {
        made = made.fragments(Fragments::Tails);
    }
    Ok(made)
}

fn algorithms(text: Option<&[u8]>, pcluster_bytes: u32) -> CallResult<Option<Algorithms>> {
    let Some(text) = text else { return Ok(None) };
    let text = std::str::from_utf8(text);
    let text = text.map_err(|_| CallError::invalid("the compression is not UTF-8"))?;
    let context =
        AlgorithmContext { pcluster_bytes: pcluster_bytes.into(), ..AlgorithmContext::default() };
    Ok(Some(Algorithms::parse(text, context)?))
}

fn superblock_time(options: &BuildOptions) -> CallResult<SuperblockTime> {
    if options.flags & build_flag::TIME == 0 {
        return Ok(SuperblockTime::Newest);
    }
    let seconds = u64::try_from(options.time);
    let seconds = seconds.map_err(|_| CallError::invalid("the time of an image is before 1970"))?;
    Ok(SuperblockTime::Fixed(seconds))
}

/// Callbacks that the threads of a build call.
#[derive(Debug)]
struct SendCallbacks(Callbacks);

// SAFETY: the header says that any thread of a build calls the function; this library only passes
// the pointer on.
unsafe impl Send for SendCallbacks {}

/// Passes progress on to the caller.
#[derive(Debug)]
struct CallerMonitor<'a> {
    callbacks: Mutex<SendCallbacks>,
    cancel: &'a CancelToken,
    bytes: AtomicU64,
    entries: AtomicU64,
}

impl CallerMonitor<'_> {
    fn show(&self) {
        // If another thread is in the function now, that is enough: nobody waits for the lock.
        if let Ok(callbacks) = self.callbacks.try_lock() {
            // The numbers are only shown, so they need no order.
            let entries = self.entries.load(Ordering::Relaxed);
            let bytes = self.bytes.load(Ordering::Relaxed);
            if callbacks.0.progress(entries, bytes) == Answer::Stop {
                self.cancel.cancel();
            }
        }
    }
}

impl BuildObserver for CallerMonitor<'_> {
    fn bytes_done(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.show();
    }

    fn entry_found(&self, _is_directory: bool) {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.show();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It begins with the zeros that end an archive, and the result was an empty image.
    #[test]
    fn an_image_is_no_archive() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), "x").unwrap();
        let build_from = |source: &Path, output: &Path| {
            let texts = BuildTexts { compression: None, label: &[] };
            build(source, output, &BuildOptions::new(), texts)
        };
        build_from(&tree, &image).unwrap();
        let again = dir.path().join("again");
        let error = build_from(&image, &again).unwrap_err();
        assert!(format!("{error:?}").contains("this is an EROFS image"), "{error:?}");
        assert!(!again.exists());
        // Zeros alone are an empty archive.
        fs::write(&image, [0; 1024]).unwrap();
        assert_eq!(build_from(&image, &again).unwrap().inodes, 1);
    }
}
