//! A large file, which several threads write in segments at the same time. The thread that ends the
//! last segment checks that the segments meet, and returns a batch that completes the file, or
//! removes it. A file that is dropped before that is removed, too. Created by `extractor`.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrofs_image::WalkEntry;
use rustix::fs::Stat;

use crate::content::{ContentWriter, FileContent, set_size};
use crate::entry_writer::{EntryBatch, EntryTask, EntryWriter, ExtractContext, first_mode};
use crate::error::{Error, ErrorKind};
use crate::event::{FileBytes, TaskReport};
use crate::host_entry::{IncompleteFile, NewHostFile};
use crate::links::FirstNameResult;
use crate::metadata::MetadataTarget;
use crate::open_directory::OpenDirectory;

/// The minimum length of a segment: LZ4 takes a millisecond for it, the slowest codec twenty.
/// Longer segments leave threads idle at the end of a file; shorter ones spend their time on
/// overhead. They are short in tests, so that a cluster reaches across several.
const SEGMENT_BYTES: u64 = if cfg!(test) { 8 << 10 } else { 2 << 20 };

/// The most segments of a file: a file that is one hole can have any size.
const SEGMENTS_MAX: u64 = 1024;

/// The minimum size of a file that is written in segments.
const LARGE_BYTES: u64 = 2 * SEGMENT_BYTES;

/// A file that is being written in segments.
#[derive(Debug)]
pub(crate) struct LargeFile {
    context: Arc<ExtractContext>,
    node: WalkEntry,
    directory: Arc<OpenDirectory>,
    /// `None` once the file is complete or removed.
    file: Option<(NewHostFile, Box<Stat>)>,
    state: Mutex<LargeFileState>,
}

#[derive(Debug, Default)]
struct LargeFileState {
    /// The ranges that the segments have covered, in no order.
    covered: Vec<Range<u64>>,
    /// The failure of the first segment, in the order of the file, and the start of that segment.
    failure: Option<(u64, ErrorKind)>,
    /// A segment was not written, or not to its end, because everything stops.
    is_interrupted: bool,
    /// What the segments have counted.
    written: FileBytes,
}

impl LargeFileState {
    fn has_failed_before(&self, start: u64) -> bool {
        self.failure.as_ref().is_some_and(|(failed, _)| *failed < start)
    }
}

/// A segment of a large file, and its result.
#[derive(Debug)]
pub(crate) struct FileSegment {
    file: Arc<LargeFile>,
    range: Range<u64>,
    pub(crate) report: TaskReport,
}

/// Whether a file of this size is written in segments.
pub(crate) fn is_large(size: u64) -> bool {
    size >= LARGE_BYTES
}

impl LargeFile {
    /// Creates the file with its final size. There may be two errors: that a file is left, and why it
    /// is not whole.
    pub(crate) fn create(
        context: &Arc<ExtractContext>,
        node: &WalkEntry,
        directory: &Arc<OpenDirectory>,
    ) -> Result<Arc<Self>, Vec<ErrorKind>> {
        let new_entry = context.new_entry(directory, &node.path);
        let size = node.inode.size();
        let new = new_entry.create_file(first_mode(&node.inode, new_entry.foreign_acl));
        let new = new.map_err(|kind| vec![kind])?;
        let partial = IncompleteFile::new(new_entry, &new);
        let made = MetadataTarget::Open(new.file.as_fd()).stat();
        match made.and_then(|stat| set_size(&new.file, size).map(|()| stat)) {
            Ok(stat) => {
                partial.keep();
                Ok(Arc::new(Self {
                    context: Arc::clone(context),
                    node: node.clone(),
                    directory: Arc::clone(directory),
                    file: Some((new, Box::new(stat))),
                    state: Mutex::default(),
                }))
            }
            Err(kind) => Err(partial.remove().err().into_iter().chain([kind]).collect()),
        }
    }

    /// All segments of the file; each holds the file.
    pub(crate) fn segments(file: Arc<Self>) -> impl Iterator<Item = FileSegment> {
        let size = file.node.inode.size();
        let length = SEGMENT_BYTES.max(size.div_ceil(SEGMENTS_MAX));
        let mut at = 0u64;
        let mut file = Some(file);
        std::iter::from_fn(move || {
            let range = at..size.min(at.saturating_add(length));
            at = range.end;
            // The last segment takes the file itself, so that only segments hold it.
            let holder = if at < size { file.clone() } else { file.take() };
            holder.map(|file| FileSegment { file, range, report: TaskReport::default() })
        })
    }

    fn state(&self) -> MutexGuard<'_, LargeFileState> {
        // No panic can happen between two changes of the state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The batch that completes a whole file; a file that is not whole is removed.
    fn into_finish_batch(mut self, report: TaskReport) -> EntryBatch {
        let LargeFileState { covered, failure, is_interrupted, written } =
            std::mem::take(&mut *self.state());
        let failure = match failure {
            Some((_, kind)) => Some(kind),
            // The gaps say nothing about the image.
            None if is_interrupted => None,
            None => coverage_error(covered, &self.node),
        };
        let (node, directory) = (self.node.clone(), Arc::clone(&self.directory));
        let Some((new, stat)) = self.file.take() else { return EntryBatch::default() };
        if failure.is_none() && !is_interrupted {
            let task = EntryTask::Finish { node, directory, file: new, stat, written };
            return EntryBatch::of(task, report);
        }
        let new_entry = self.context.new_entry(&directory, &node.path);
        let left = IncompleteFile::new(new_entry, &new).remove().err();
        let mut batch = EntryBatch::of(EntryTask::Release(Arc::clone(&directory)), report);
        batch.report.removed.add(written);
        let (mut content, context) = (ContentWriter::default(), &*self.context);
        let report = &mut batch.report;
        let mut writer = EntryWriter { context, content: &mut content, report };
        left.into_iter().chain(failure).for_each(|kind| writer.fail(kind, &node));
        if node.inode.nlink() > 1 {
            batch.first_names.push(FirstNameResult::failed(&node));
        }
        batch.progress_marks.push(batch.report.counted.bytes);
        batch
    }
}

impl Drop for LargeFile {
    fn drop(&mut self) {
        if let Some((new, _)) = self.file.take() {
            // The extraction has ended with an error, which has been reported.
            let new_entry = self.context.new_entry(&self.directory, &self.node.path);
            IncompleteFile::new(new_entry, &new).remove().ok();
        }
    }
}

/// The error of segments that do not meet or do not cover the file.
fn coverage_error(mut covered: Vec<Range<u64>>, node: &WalkEntry) -> Option<ErrorKind> {
    covered.sort_by_key(|range| (range.start, range.end));
    let size = node.inode.size();
    let mut end = 0;
    for range in covered {
        if range.start != end {
            return Some(ErrorKind::Torn { end, start: range.start });
        }
        end = range.end;
    }
    (end != size).then_some(ErrorKind::Short { delivered: end, size })
}

impl FileSegment {
    /// Writes the segment, unless the file has failed or everything stops.
    pub(crate) fn write(&mut self, content: &mut ContentWriter) {
        let LargeFile { context, node, file, .. } = &*self.file;
        let Some((NewHostFile { file, .. }, _)) = file else { return };
        if context.should_stop() {
            self.file.state().is_interrupted = true;
            return;
        }
        // The first failure in the order of the file is reported, whatever the threads do.
        if self.file.state().has_failed_before(self.range.start) {
            return;
        }
        let ExtractContext { image, cancel, limits, .. } = &**context;
        let contents = FileContent { image, inode: &node.inode, cancel, limits };
        match content.write_range(contents, self.range.clone(), file) {
            Ok((covered, written)) => {
                self.report.counted.add_bytes(written);
                let mut state = self.file.state();
                state.covered.push(covered);
                state.written.add(written);
            }
            Err(kind) => self.fail(kind),
        }
    }

    fn fail(&mut self, kind: ErrorKind) {
        let LargeFile { context, node, .. } = &*self.file;
        if kind.stops_everything() || matches!(kind, ErrorKind::Cancelled) {
            // It must not wait for the end of the file, nor yield to another failure of it.
            let error = Error::new(kind, &node.path).about(&node.inode);
            self.report.failures.extend(context.record_failure(error));
            self.file.state().is_interrupted = true;
            return;
        }
        let mut state = self.file.state();
        if !state.has_failed_before(self.range.start) {
            state.failure = Some((self.range.start, kind));
        }
    }

    /// A thread panicked while it wrote this segment.
    pub(crate) fn mark_panicked(&mut self) {
        self.fail(ErrorKind::Panicked);
    }

    /// Releases the file. The last segment returns the batch that completes it.
    pub(crate) fn end(self) -> SegmentEnd {
        let Self { file, report, .. } = self;
        match Arc::into_inner(file) {
            Some(file) => SegmentEnd::Last(file.into_finish_batch(report)),
            None => SegmentEnd::OneOfMany(report),
        }
    }
}

/// The result of a segment.
#[derive(Debug)]
pub(crate) enum SegmentEnd {
    /// Other segments of the file are still being written.
    OneOfMany(TaskReport),
    /// It was the last segment; the batch completes the file.
    Last(EntryBatch),
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use ferrofs_image::{Image, WalkEvent};
    use tempfile::TempDir;

    use super::*;
    use crate::metadata::{CallerId, MetadataPolicy};
    use crate::new_directory::open_existing;
    use crate::options::{ExtractOptions, OwnerPolicy};

    /// The segments of a file, which is made in `folder`.
    fn segments(folder: &TempDir) -> (Arc<ExtractContext>, Vec<FileSegment>) {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/lz4.erofs");
        let image = Image::open(data).unwrap();
        let large = |event| match event {
            WalkEvent::Leaf(node) if is_large(node.inode.size()) => Some(node),
            _ => None,
        };
        let node = image.walk(b"/").unwrap().find_map(large).unwrap();
        let (credentials, owners) = (CallerId::current(), OwnerPolicy::Caller);
        let policy = MetadataPolicy { credentials, owners, masked: 0, skip_set_id: false };
        let context = Arc::new(ExtractContext::new(image, policy, &ExtractOptions::new()));
        let directory = Arc::new(open_existing(File::open(folder.path()).unwrap().into()).unwrap());
        let file = LargeFile::create(&context, &node, &directory).unwrap();
        let segments: Vec<_> = LargeFile::segments(file).collect();
        assert!(segments.len() > 1);
        (context, segments)
    }

    /// The reports of all segments, and the number of tasks that are left.
    fn end(segments: Vec<FileSegment>) -> (Vec<TaskReport>, usize) {
        let mut tasks = 0;
        let end = |segment: FileSegment| match segment.end() {
            SegmentEnd::OneOfMany(report) => report,
            SegmentEnd::Last(batch) => {
                tasks += batch.tasks.iter().filter(|task| !is_release(task)).count();
                batch.report
            }
        };
        (segments.into_iter().map(end).collect(), tasks)
    }

    fn is_release(task: &EntryTask) -> bool {
        matches!(task, EntryTask::Release(_))
    }

    #[test]
    fn an_error_that_stops_everything_is_kept_before_and_after_other_failures_of_the_file() {
        for is_first in [true, false] {
            let folder = TempDir::new().unwrap();
            let (context, mut segments) = segments(&folder);
            let mut fail = [(1, ErrorKind::OutputLimit { limit: 7 }), (0, ErrorKind::Panicked)];
            if !is_first {
                fail.reverse();
            }
            fail.into_iter().for_each(|(number, kind)| segments[number].fail(kind));
            let (reports, tasks) = end(segments);
            let error = context.take_stop_error().unwrap();
            assert!(matches!(error.kind(), ErrorKind::OutputLimit { limit: 7 }), "{error}");
            assert!(context.should_stop() && tasks == 0);
            let failures: Vec<_> = reports.into_iter().flat_map(|report| report.failures).collect();
            let [other] = &*failures else { panic!("{failures:?}") };
            assert!(matches!(other.kind(), ErrorKind::Panicked), "{other}");
        }
    }

    #[test]
    fn the_bytes_of_a_file_whose_completion_panics_do_not_count() {
        let folder = TempDir::new().unwrap();
        let (_, mut segments) = segments(&folder);
        let mut content = ContentWriter::default();
        let mut counted = 0;
        for segment in &mut segments {
            segment.write(&mut content);
            counted += segment.report.counted.bytes;
        }
        let last = segments.into_iter().fold(None, |_, segment| Some(segment.end()));
        let Some(SegmentEnd::Last(mut batch)) = last else { panic!("{last:?}") };
        assert!(counted > 0 && batch.report.removed.bytes == 0);
        batch.mark_panicked();
        assert_eq!(batch.report.removed.bytes, counted);
        assert_eq!(batch.report.failures.len(), 1);
    }

    #[test]
    fn a_file_that_was_interrupted_is_removed_and_is_no_failure() {
        let folder = TempDir::new().unwrap();
        let (context, mut segments) = segments(&folder);
        let mut content = ContentWriter::default();
        segments[0].write(&mut content);
        segments[1].fail(ErrorKind::OutputLimit { limit: 7 });
        segments[1..].iter_mut().for_each(|segment| segment.write(&mut content));
        let (reports, tasks) = end(segments);
        assert!(reports.iter().all(|report| report.failures.is_empty()), "{reports:?}");
        let counted: u64 = reports.iter().map(|report| report.counted.bytes).sum();
        let removed: u64 = reports.iter().map(|report| report.removed.bytes).sum();
        assert!(counted > 0 && counted == removed && tasks == 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(context.take_stop_error().is_some());
    }
}
