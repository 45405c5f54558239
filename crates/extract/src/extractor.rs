//! The walk of an extraction. It decides what is selected, creates the directories, makes the
//! links, and gives everything else to the pool. Directories are created in the order of the walk,
//! each before the entries in it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ferrofs_image::{FileType, Image, TreeWalk, WalkEntry, WalkEvent};
use ferrofs_workers::workqueue::RequestOutcome;

use crate::deferred_modes::DeferredModes;
use crate::destination::open_destination;
use crate::directory_stack::{DirectoryFailure, DirectoryStack};
use crate::entry_writer::{EntryBatch, EntryTask, ExtractContext};
use crate::error::{Error, ErrorKind, Result, catch_panic};
use crate::event::{ExtractEvent, ExtractSummary, Reporter};
use crate::large_file::{LargeFile, is_large};
use crate::limits::ENTRY_WORK;
use crate::links::{FirstDirectory, FirstNameResult, LinkAction, LinkTable, PendingName};
use crate::metadata::{CallerId, MetadataPolicy, permissions};
use crate::open_directory::{FinalMetadata, PublishFailures};
use crate::options::ExtractOptions;
use crate::pool::{Completion, ExtractPool, PoolRequest, ThreadLimit, end_segment};
use crate::selection::{MatchedPatterns, Selection, SelectionMatch};

/// Permission of the owner to look up names in a directory.
const OWNER_SEARCH: u32 = 0o100;
/// After so many events of the walk the bytes that were decoded are compared with the limit.
const EVENTS_PER_CHECK: u64 = 64;
/// Permissions that the owner needs to fill a directory.
const OWNER_ALL: u32 = 0o700;

/// Extracts `image` into the directory `destination`, which is created if it is missing: then it
/// appears when everything is extracted, or when the extraction ends with an error.
///
/// An entry that fails is passed to `on_event` and counted; the rest is extracted. The destination
/// gets the owner, mode, times and attributes of the image's root, unless
/// [`ExtractOptions::skip_destination_metadata`] is set. `on_event` is called on the caller's
/// thread. With several threads the order of the failures may differ from run to run; the files and
/// the summary do not.
///
/// # Errors
/// Only errors after which nothing can be extracted: the destination cannot be used, or is not
/// empty under [`ExistingFiles::Refuse`](crate::ExistingFiles::Refuse); the root cannot be read;
/// the host has no space left; the table of inodes with several names does not fit into the memory
/// budget; [`ExtractOptions::cancel`] was cancelled ([`ErrorKind::Cancelled`]). Every file that is
/// not whole has been removed when this returns; one that could not be removed is an
/// [`ExtractEvent::Failed`].
pub fn extract(
    image: &Image,
    destination: &Path,
    options: &ExtractOptions,
    on_event: &mut dyn FnMut(ExtractEvent),
) -> Result<ExtractSummary> {
    // More threads than decode slots would only wait for each other.
    let most = options.max_threads.unwrap_or(usize::MAX).min(image.decode_slots());
    extract_with(image, destination, options, ThreadLimit::at_most(Some(most)), on_event)
}

/// As [`extract`], with a given number of threads.
pub(crate) fn extract_with(
    image: &Image,
    destination: &Path,
    options: &ExtractOptions,
    threads: ThreadLimit,
    on_event: &mut dyn FnMut(ExtractEvent),
) -> Result<ExtractSummary> {
    let source: &[u8] =
        if options.source_directory.is_empty() { b"/" } else { &options.source_directory };
    // Paths of errors count from the source directory.
    let walk = catch_panic(|| Ok(image.walk(source)?)).map_err(|kind| {
        // As in `Extractor::problem`.
        let is_cancelled = options.cancel.is_cancelled();
        if is_cancelled { Error::new(ErrorKind::Cancelled, b"") } else { Error::new(kind, b"/") }
    })?;
    let failures = PublishFailures::default();
    let opened = open_destination(destination, options.existing, &failures)?;
    let credentials = CallerId::current();
    let (owners, masked, skip_set_id) = (options.owners, options.umask, options.skip_set_id);
    let policy = MetadataPolicy { credentials, owners, masked, skip_set_id };
    let context = Arc::new(ExtractContext::new(image.clone(), policy, options));
    let without_path = |kind| Error::new(kind, b"");
    let of_destination = |kind| Error::of_destination(kind, destination.as_os_str().as_bytes());
    let stack = DirectoryStack::new(opened.directory, options.existing, &failures);
    let mut reporter = Reporter::new(on_event);
    opened.leftover.into_iter().for_each(|path| reporter.leftover(path));
    let mut extractor = Extractor {
        pool: ExtractPool::new(&context, threads).map_err(without_path)?,
        stack: stack.map_err(of_destination)?,
        reporter,
        failures,
        links: LinkTable::new(image, &context.limits.work),
        first_directory: FirstDirectory::default(),
        selection: &options.selection,
        matches: options.selection.matches(),
        deferred_modes: DeferredModes::new(image.memory().budget()),
        above_bytes: None,
        context,
    };
    let walk = walk.work_meter(&extractor.context.limits.work).entry_work(ENTRY_WORK);
    let walk = walk.contents_are_work();
    let ended = extractor.run(walk);
    if ended.is_err() {
        extractor.context.stop();
        extractor.abandon();
    }
    let summary = extractor.finish();
    ended.map(|()| summary)
}

struct Extractor<'a> {
    context: Arc<ExtractContext>,
    pool: ExtractPool,
    stack: DirectoryStack,
    reporter: Reporter<'a>,
    /// Those of staged directories.
    failures: PublishFailures,
    links: LinkTable,
    first_directory: FirstDirectory,
    selection: &'a Selection,
    matches: MatchedPatterns,
    deferred_modes: DeferredModes,
    /// The length of the path of [`ExtractOptions::source_directory`], which is cut off all paths;
    /// known from the first event of the walk on.
    above_bytes: Option<usize>,
}

impl Extractor<'_> {
    fn run(&mut self, mut walk: TreeWalk<'_>) -> Result<()> {
        if let Some(error) = self.context.image.truncation() {
            self.reporter.fail(Error::new(error.into(), b""));
        }
        let mut events = 0u64;
        while let Some(visit) = next_event(&mut walk)? {
            events += 1;
            if events.is_multiple_of(EVENTS_PER_CHECK) {
                let checked = self.context.limits.check_decoding();
                checked.map_err(|kind| Error::new(kind, b""))?;
            }
            match self.relative(visit) {
                WalkEvent::Enter(node) => {
                    if !self.enter(&node)? {
                        walk.skip_children();
                    }
                }
                WalkEvent::Leaf(node) => self.leaf(node)?,
                WalkEvent::Leave(node) => self.leave(node)?,
                WalkEvent::Problem(problem) => self.problem(&problem.path, problem.error)?,
            }
            self.collect_completed()?;
        }
        self.drain()?;
        let budget = self.context.image.memory().budget();
        let modes = std::mem::replace(&mut self.deferred_modes, DeferredModes::new(budget));
        let failed = |kind, path: &[u8]| self.reporter.fail(Error::new(kind, path));
        let applied = modes.apply(&self.stack, &self.context.cancel, failed);
        applied.map_err(|kind| Error::new(kind, b""))?;
        for pattern in self.selection.unmatched(&self.matches) {
            self.reporter.fail(Error::new(ErrorKind::NothingMatches, pattern));
        }
        self.reporter.queue(self.pool.snapshot());
        Ok(())
    }

    /// The event with a path that counts from the source directory.
    fn relative(&mut self, mut visit: WalkEvent) -> WalkEvent {
        let path = match &mut visit {
            WalkEvent::Enter(node) | WalkEvent::Leaf(node) | WalkEvent::Leave(node) => {
                &mut node.path
            }
            WalkEvent::Problem(problem) => &mut problem.path,
        };
        let above_bytes =
            *self.above_bytes.get_or_insert(if path == b"/" { 0 } else { path.len() });
        if above_bytes > 0 && path.len() >= above_bytes {
            path.drain(..above_bytes);
            if path.is_empty() {
                path.push(b'/');
            }
        }
        visit
    }

    /// Enters a directory; `false` if its entries are skipped.
    fn enter(&mut self, node: &WalkEntry) -> Result<bool> {
        let selection_match = self.selection.classify(&node.path, &mut self.matches);
        if selection_match == SelectionMatch::Outside {
            return Ok(false);
        }
        if self.stack.is_at(&node.path) {
            return Ok(true);
        }
        let Some(name) = self.stack.name_in_top(&node.path) else {
            self.fail(ErrorKind::UnsafeName, node)?;
            return Ok(false);
        };
        self.stack.push(name);
        if selection_match == SelectionMatch::Ancestor {
            return Ok(true);
        }
        self.wait_for_capacity()?;
        let made = self.stack.ready().map(|_| ());
        if let Err(failure) = made {
            self.stack.pop();
            self.directory_failed(failure)?;
            return Ok(false);
        }
        Ok(true)
    }

    fn leaf(&mut self, node: WalkEntry) -> Result<()> {
        if self.selection.classify(&node.path, &mut self.matches) != SelectionMatch::Inside {
            return Ok(());
        }
        if self.stack.name_in_top(&node.path).is_none() {
            return self.fail(ErrorKind::UnsafeName, &node);
        }
        self.wait_for_capacity()?;
        match self.stack.ready().map(Arc::clone) {
            Ok(directory) => self.lookup(PendingName { node, directory }),
            Err(failure) => self.directory_failed(failure),
        }
    }

    fn leave(&mut self, node: WalkEntry) -> Result<()> {
        if !self.stack.is_at(&node.path) {
            return Ok(());
        }
        let mut left = None;
        if self.stack.is_created() {
            // It may have been closed meanwhile.
            match self.stack.ready().map(|directory| directory.file_id()) {
                Err(failure) => {
                    self.directory_failed(failure)?;
                    self.reporter.entry();
                }
                Ok(file_id) => {
                    let policy = self.context.policy;
                    let last = policy.unmasked(permissions(&node.inode));
                    let mode = first_mode(policy.credentials, last);
                    if mode != last && self.context.sets_metadata_of(&node.path) {
                        let added = self.deferred_modes.add(&node.path, last, file_id);
                        added.map_err(|kind| Error::new(kind, &node.path))?;
                    }
                    left = Some(FinalMetadata { node, mode });
                }
            }
        }
        // The walk releases it before the task does, so the task is the last holder.
        let directory = self.stack.pop();
        if let (Some(directory), Some(left)) = (directory, left) {
            directory.leave(left);
            self.pool.add(EntryTask::Release(directory));
        }
        Ok(())
    }

    /// Writes a name, links it, or lets it wait.
    fn lookup(&mut self, name: PendingName) -> Result<()> {
        let found = self.links.lookup(name).map_err(|kind| Error::new(kind, b""))?;
        let (name, first) = match found {
            LinkAction::Wait => return Ok(()),
            LinkAction::Write(name) => return self.write(name),
            LinkAction::Link(name, first) => (name, first),
        };
        let new_entry = self.context.new_entry(&name.directory, &name.node.path);
        let work = &self.context.limits.work;
        match self.first_directory.link(&self.stack, new_entry, &first, work) {
            Ok(true) => {
                self.links.count(&name.node.inode);
                self.reporter.summary.hard_links += 1;
            }
            Ok(false) => {
                self.reporter.summary.skipped.copied_links += 1;
                self.links.begin(&name.node.inode);
                return self.write(name);
            }
            Err(kind) => self.fail(kind, &name.node)?,
        }
        self.reporter.entry();
        self.pool.add(EntryTask::Release(name.directory));
        Ok(())
    }

    /// Gives an entry to the pool.
    fn write(&mut self, PendingName { node, directory }: PendingName) -> Result<()> {
        let inode = &node.inode;
        let is_cut = inode.file_type() == FileType::Regular && is_large(inode.size());
        if !is_cut || self.pool.is_single_threaded() {
            self.pool.add(EntryTask::Write { node, directory });
            return Ok(());
        }
        match LargeFile::create(&self.context, &node, &directory) {
            Ok(file) => {
                // The file holds the directory from here on.
                drop(directory);
                for segment in LargeFile::segments(file) {
                    self.pool.submit(PoolRequest::Segment(segment));
                }
            }
            Err(kinds) => {
                self.reporter.entry();
                for kind in kinds {
                    self.fail(kind, &node)?;
                }
                self.pool.add(EntryTask::Release(directory));
                self.resolve(FirstNameResult::failed(&node))?;
            }
        }
        Ok(())
    }

    /// The first name is written or has failed: the names that waited for it are looked up again.
    fn resolve(&mut self, first_names: FirstNameResult) -> Result<()> {
        for name in self.links.resolve(first_names) {
            self.lookup(name)?;
        }
        Ok(())
    }

    /// Waits while too many names wait or too many levels are open.
    fn wait_for_capacity(&mut self) -> Result<()> {
        self.links.settle_charge().map_err(|kind| Error::new(kind, b""))?;
        if self.links.is_full() || self.stack.is_deep() { self.drain() } else { Ok(()) }
    }

    /// After an error that ends everything: waits for the tasks in flight, which end soon, and
    /// reports their failures; after a cancellation only the files that are not whole and could not
    /// be removed.
    fn abandon(&mut self) {
        self.pool.wait();
        let finished = self.pool.finished();
        self.report_unhandled(finished);
        // It came after the error that ended the extraction.
        let stopped = self.context.take_stop_error();
        let left = stopped.filter(|error| error.kind().leaves_incomplete_file());
        left.into_iter().for_each(|error| self.reporter.fail(error));
    }

    /// Gives what is still staged its name: the destination, if it was made, and after an error that
    /// ended everything other directories, too.
    fn finish(self) -> ExtractSummary {
        let Self { mut reporter, failures, pool, stack, links, .. } = self;
        // They have the last holders.
        drop((pool, links, stack));
        failures.take().into_iter().for_each(|error| reporter.fail(error));
        reporter.into_summary()
    }

    /// Reports the failures of requests that are not handled any more. A cancellation makes entries
    /// fail; then only files that are left count.
    fn report_unhandled(&mut self, finished: impl IntoIterator<Item = Completion>) {
        let is_cancelled = self.context.is_cancelled();
        for Completion { request, .. } in finished {
            let (PoolRequest::Batch(EntryBatch { report, .. }) | PoolRequest::Ended(report)) =
                request
            else {
                continue;
            };
            for error in report.failures {
                if !is_cancelled || error.kind().leaves_incomplete_file() {
                    self.reporter.fail(error);
                }
            }
        }
    }

    /// Waits until nothing is left to do.
    fn drain(&mut self) -> Result<()> {
        loop {
            self.pool.flush();
            self.pool.wait();
            if !self.collect_completed()? {
                return Ok(());
            }
        }
    }

    /// Handles the requests that have come back; `false` if there were none.
    fn collect_completed(&mut self) -> Result<bool> {
        let mut is_any = false;
        loop {
            let finished = self.pool.finished();
            // Read after `finished`: an entry that was cut short by the cancellation has not
            // failed.
            let ended = match self.context.is_cancelled() {
                true => Some(Error::new(ErrorKind::Cancelled, b"")),
                false => self.context.take_stop_error(),
            };
            if let Some(error) = ended {
                self.report_unhandled(finished);
                return Err(error);
            }
            if finished.is_empty() {
                return Ok(is_any);
            }
            is_any = true;
            let mut finished = finished.into_iter();
            while let Some(one) = finished.next() {
                if let Err(error) = self.complete_request(one) {
                    self.report_unhandled(finished);
                    return Err(error);
                }
            }
        }
    }

    fn complete_request(&mut self, completion: Completion) -> Result<()> {
        let Completion { request, outcome } = completion;
        let is_whole = outcome == RequestOutcome::Done;
        match request {
            PoolRequest::Batch(mut batch) if !is_whole => {
                batch.mark_panicked();
                self.pool.submit(PoolRequest::Batch(batch));
            }
            PoolRequest::Batch(batch) => self.complete_batch(batch)?,
            PoolRequest::Segment(mut segment) => {
                segment.mark_panicked();
                match end_segment(segment) {
                    PoolRequest::Ended(report) => self.reporter.record_batch(report, &[]),
                    request => self.pool.submit(request),
                }
            }
            PoolRequest::Ended(report) => self.reporter.record_batch(report, &[]),
            PoolRequest::Nothing if is_whole => {}
            PoolRequest::Nothing => self.reporter.fail(Error::new(ErrorKind::Panicked, b"")),
        }
        Ok(())
    }

    fn complete_batch(&mut self, batch: EntryBatch) -> Result<()> {
        self.reporter.record_batch(batch.report, &batch.progress_marks);
        self.failures.take().into_iter().for_each(|error| self.reporter.fail(error));
        for first_names in batch.first_names {
            self.resolve(first_names)?;
        }
        Ok(())
    }

    fn problem(&mut self, path: &[u8], error: ferrofs_image::Error) -> Result<()> {
        if self.selection.classify(path, &mut self.matches) == SelectionMatch::Outside {
            return Ok(());
        }
        // A read that fails after a cancellation, as of a server that is gone, is no damage.
        if self.context.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, b""));
        }
        self.reporter.fail_or_stop(Error::new(error.into(), path))
    }

    fn fail(&mut self, kind: ErrorKind, node: &WalkEntry) -> Result<()> {
        self.reporter.fail_or_stop(Error::new(kind, &node.path).about(&node.inode))
    }

    fn directory_failed(&mut self, failure: DirectoryFailure) -> Result<()> {
        match failure {
            DirectoryFailure::Now(error) => self.reporter.fail_or_stop(error),
            DirectoryFailure::Before => Ok(()),
        }
    }
}

/// The next step of the walk. It reads the image on the caller's thread, where no pool catches a
/// panic.
fn next_event(walk: &mut TreeWalk<'_>) -> Result<Option<WalkEvent>> {
    catch_panic(|| Ok(walk.next())).map_err(|kind| Error::new(kind, b""))
}

/// The permissions that a complete directory gets at first, if `last` are the final ones.
fn first_mode(credentials: CallerId, last: u32) -> u32 {
    let needs_search = !credentials.is_root() && last & OWNER_SEARCH == 0;
    if needs_search { last | OWNER_ALL } else { last }
}
