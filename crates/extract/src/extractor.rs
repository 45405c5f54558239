//! The walk through an image that has written what it meets: decides what is selected, keeps the
//! directories of the host in step with those of the image, makes links, and hands everything else to
//! the pool. Directories are made in the order of the walk, each before anything in it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use ferrofs_image::{FileType, Image, TreeWalk, WalkEntry, WalkEvent};
use ferrofs_workers::workqueue::RequestOutcome;
use rustix::fs::Mode;

use crate::batch::{EntryBatch, EntryTask, FirstNameResult};
use crate::credentials::Credentials;
use crate::destination;
use crate::directory::FinalMetadata;
use crate::directory_stack::{DirectoryFailure, DirectoryStack};
use crate::entry_writer::{ExtractContext, link};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{ExtractEvent, ExtractSummary};
use crate::hard_links::{LinkAction, LinkTable, PendingName};
use crate::large_file::{LargeFile, is_large};
use crate::metadata::{MetadataPolicy, permissions};
use crate::options::ExtractOptions;
use crate::pool::{Completion, ExtractPool, ThreadLimit};
use crate::reporter::Reporter;
use crate::selection::{MatchedPatterns, Selection, SelectionMatch};
use crate::worker::{self, ExtractRequest};

/// Permission of an owner to look things up in a directory.
const OWNER_SEARCH: u32 = 0o100;
/// What an owner needs to fill a directory.
const OWNER_ALL: u32 = 0o700;

/// Extracts `image` into the directory `destination`, which is created if it is missing.
///
/// Whatever fails is passed to `on_event` and counted; the rest is extracted. The destination
/// itself gets the owner, mode, times and attributes of the image's root. Events come on the caller's
/// thread. With several threads failures come in an order that may differ from run to run; what is
/// written and counted does not.
///
/// # Errors
/// Only what makes all further work pointless: the destination cannot be used, or is not empty
/// under [`ExistingFiles::Refuse`](crate::ExistingFiles::Refuse); the root cannot be read; the host
/// has no space left; the table of inodes with several names does not fit into the memory budget;
/// [`ExtractOptions::cancel`] was cancelled ([`ErrorKind::Cancelled`]). Every file that is not whole
/// has been removed when this returns; one that could not be removed is an
/// [`ExtractEvent::Failed`].
pub fn extract(
    image: &Image,
    destination: &Path,
    options: &ExtractOptions,
    on_event: &mut dyn FnMut(ExtractEvent),
) -> Result<ExtractSummary> {
    // More threads than can read at a time would only wait for each other.
    let most = options.max_threads.unwrap_or(usize::MAX).min(image.decode_slots());
    extract_with(image, destination, options, ThreadLimit::at_most(Some(most)), on_event)
}

/// The same with a given number of threads.
pub(crate) fn extract_with(
    image: &Image,
    destination: &Path,
    options: &ExtractOptions,
    threads: ThreadLimit,
    on_event: &mut dyn FnMut(ExtractEvent),
) -> Result<ExtractSummary> {
    let source: &[u8] =
        if options.source_directory.is_empty() { b"/" } else { &options.source_directory };
    let walk = catch_panic(|| image.walk(source))?;
    let walk = walk.map_err(|error| Error::new(error.into(), source))?;
    let opened = destination::open(destination, options.existing)?;
    let credentials = Credentials::current();
    let masked = options.umask;
    let policy = MetadataPolicy { credentials, owners: options.owners, masked };
    let context = Arc::new(ExtractContext::new(image.clone(), policy, options));
    let in_whole = |kind| Error::new(kind, b"");
    let mut extractor = Extractor {
        pool: ExtractPool::new(&context, threads).map_err(in_whole)?,
        stack: DirectoryStack::new(opened, options.existing).map_err(in_whole)?,
        reporter: Reporter::new(on_event),
        links: LinkTable::new(image).map_err(in_whole)?,
        selection: &options.selection,
        matches: options.selection.matches(),
        deferred_modes: Vec::new(),
        above_bytes: None,
        context,
    };
    let ended = extractor.run(walk);
    if ended.is_err() {
        extractor.context.stop();
        extractor.abandon();
    }
    ended.map(|()| extractor.reporter.summary)
}

struct Extractor<'a> {
    context: Arc<ExtractContext>,
    pool: ExtractPool,
    stack: DirectoryStack,
    reporter: Reporter<'a>,
    links: LinkTable,
    selection: &'a Selection,
    matches: MatchedPatterns,
    /// Directories that their owner may not search, and their permissions. An ordinary user could
    /// not make hard links to the files in them any more, so they get these at the very end.
    deferred_modes: Vec<(Vec<u8>, u32)>,
    /// How many bytes of each path lie above the directory that becomes the destination; not known
    /// before that one has been met.
    above_bytes: Option<usize>,
}

impl Extractor<'_> {
    fn run(&mut self, mut walk: TreeWalk<'_>) -> Result<()> {
        if let Some(error) = self.context.image.truncation() {
            self.reporter.fail(Error::new(error.into(), b""));
        }
        while let Some(visit) = catch_panic(|| walk.next())? {
            match self.below(visit) {
                WalkEvent::Enter(node) => {
                    if !self.enter(&node)? {
                        walk.skip_children();
                    }
                }
                WalkEvent::Leaf(node) => self.leaf(node)?,
                WalkEvent::Leave(node) => self.leave(node)?,
                WalkEvent::Problem(problem) => self.problem(&problem.path, problem.error),
            }
            self.collect_completed()?;
        }
        self.drain()?;
        self.apply_deferred_modes();
        for pattern in self.selection.unmatched(&self.matches) {
            self.reporter.fail(Error::new(ErrorKind::NothingMatches, pattern));
        }
        self.reporter.queue(self.pool.snapshot());
        Ok(())
    }

    /// The visit with a path that counts from the directory that becomes the destination.
    fn below(&mut self, mut visit: WalkEvent) -> WalkEvent {
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

    /// Goes into a directory; `false` if nothing in it is to be visited.
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
        if let Err(blocked) = made {
            self.stack.pop();
            self.blocked(blocked)?;
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
            Err(blocked) => self.blocked(blocked),
        }
    }

    fn leave(&mut self, node: WalkEntry) -> Result<()> {
        if !self.stack.is_at(&node.path) {
            return Ok(());
        }
        let mut left = None;
        if self.stack.is_created() {
            // It may have to be found again.
            let ready = self.stack.ready().map(|_| ());
            if let Err(blocked) = ready {
                self.blocked(blocked)?;
                self.reporter.entry();
            } else {
                let policy = self.context.policy;
                let last = policy.unmasked(permissions(&node.inode));
                let mode = first_mode(policy.credentials, last);
                if mode != last {
                    self.deferred_modes.push((node.path.clone(), last));
                }
                left = Some(FinalMetadata { node, mode });
            }
        }
        // The walk lets go of it before the task does, so that somebody is the last.
        let directory = self.stack.pop();
        if let (Some(directory), Some(left)) = (directory, left) {
            directory.leave(left);
            self.pool.add(EntryTask::Release(directory));
        }
        Ok(())
    }

    /// Writes a name, links it, or parks it.
    fn lookup(&mut self, name: PendingName) -> Result<()> {
        let (name, first) = match self.links.lookup(name) {
            LinkAction::Wait => return Ok(()),
            LinkAction::Write(name) => return self.write(name),
            LinkAction::Link(name, first) => (name, first),
        };
        let place = self.context.place(&name.directory, &name.node.path);
        match link(&self.stack, place, &first) {
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

    /// Hands an entry to the pool.
    fn write(&mut self, PendingName { node, directory }: PendingName) -> Result<()> {
        let inode = &node.inode;
        let is_cut = inode.file_type() == FileType::Regular && is_large(inode.size());
        if !is_cut || self.pool.is_single_threaded() {
            self.pool.add(EntryTask::Write { node, directory });
            return Ok(());
        }
        match LargeFile::create(&self.context, &node, &directory) {
            Ok(file) => {
                // The file holds it from here on, and is not the last one yet.
                drop(directory);
                for segment in LargeFile::segments(file) {
                    self.pool.submit(ExtractRequest::Segment(segment));
                }
            }
            Err(kind) => {
                self.reporter.entry();
                self.fail(kind, &node)?;
                self.pool.add(EntryTask::Release(directory));
                self.resolve(FirstNameResult::failed(&node))?;
            }
        }
        Ok(())
    }

    /// What waited for a file is met again.
    fn resolve(&mut self, first_names: FirstNameResult) -> Result<()> {
        for name in self.links.resolve(first_names) {
            self.lookup(name)?;
        }
        Ok(())
    }

    /// Waits until a name can wait or an entry can be created again.
    fn wait_for_capacity(&mut self) -> Result<()> {
        self.links.settle_charge().map_err(|kind| Error::new(kind, b""))?;
        if self.links.is_full() || self.stack.is_deep() { self.drain() } else { Ok(()) }
    }

    /// After an error that ends everything: waits for what runs, which ends soon, and reports the
    /// files that are not whole and could not be removed. What waits is dropped undone.
    fn abandon(&mut self) {
        self.pool.wait();
        let finished = self.pool.finished();
        self.report_incomplete_files(finished);
    }

    fn report_incomplete_files(&mut self, finished: Vec<Completion>) {
        for (request, _) in finished {
            let (ExtractRequest::Batch(EntryBatch { report, .. }) | ExtractRequest::Ended(report)) =
                request
            else {
                continue;
            };
            for error in report.failures {
                if error.kind().leaves_incomplete_file() {
                    self.reporter.fail(error);
                }
            }
        }
    }

    /// Until nothing is left to do.
    fn drain(&mut self) -> Result<()> {
        loop {
            self.pool.flush();
            self.pool.wait();
            if !self.collect_completed()? {
                return Ok(());
            }
        }
    }

    /// Takes back what has been done; `false` if that was nothing.
    fn collect_completed(&mut self) -> Result<bool> {
        let mut is_any = false;
        loop {
            let finished = self.pool.finished();
            // Read after `finished`: an entry that was cut short by the cancellation has not failed.
            if self.context.is_cancelled() {
                self.report_incomplete_files(finished);
                return Err(Error::new(ErrorKind::Cancelled, b""));
            }
            if finished.is_empty() {
                return Ok(is_any);
            }
            is_any = true;
            for one in finished {
                self.complete_request(one)?;
            }
        }
    }

    fn complete_request(&mut self, (request, outcome): Completion) -> Result<()> {
        let is_whole = outcome == RequestOutcome::Done;
        match request {
            ExtractRequest::Batch(mut batch) if !is_whole => {
                batch.mark_panicked();
                self.pool.submit(ExtractRequest::Batch(batch));
            }
            ExtractRequest::Batch(batch) => self.complete_batch(batch)?,
            ExtractRequest::Segment(segment) => {
                segment.mark_panicked();
                match worker::end(segment) {
                    ExtractRequest::Ended(report) => self.reporter.record_batch(report, &[])?,
                    request => self.pool.submit(request),
                }
            }
            ExtractRequest::Ended(report) => self.reporter.record_batch(report, &[])?,
            ExtractRequest::Nothing if is_whole => {}
            ExtractRequest::Nothing => {
                self.reporter.fail(Error::new(ErrorKind::WorkerPanicked, b""))
            }
        }
        Ok(())
    }

    fn complete_batch(&mut self, batch: EntryBatch) -> Result<()> {
        self.reporter.record_batch(batch.report, &batch.progress_marks)?;
        for first_names in batch.first_names {
            self.resolve(first_names)?;
        }
        Ok(())
    }

    fn problem(&mut self, path: &[u8], error: ferrofs_image::Error) {
        if self.selection.classify(path, &mut self.matches) != SelectionMatch::Outside {
            self.reporter.fail(Error::new(error.into(), path));
        }
    }

    fn fail(&mut self, kind: ErrorKind, node: &WalkEntry) -> Result<()> {
        self.reporter.fail_or_stop(Error::new(kind, &node.path).about(&node.inode))
    }

    fn blocked(&mut self, blocked: DirectoryFailure) -> Result<()> {
        match blocked {
            DirectoryFailure::Now(error) => self.reporter.fail_or_stop(error),
            DirectoryFailure::Before => Ok(()),
        }
    }

    fn apply_deferred_modes(&mut self) {
        // Children come before their parents, so each can still be reached.
        for (path, mode) in std::mem::take(&mut self.deferred_modes) {
            if let Err(kind) = self.apply_deferred_mode(&path, mode) {
                self.reporter.fail(Error::new(kind, &path));
            }
        }
    }

    fn apply_deferred_mode(&self, path: &[u8], mode: u32) -> Result<(), ErrorKind> {
        let directory = self.stack.open(path)?;
        rustix::fs::fchmod(directory, Mode::from_raw_mode(mode))
            .map_err(ErrorKind::output("cannot set the mode"))
    }
}

/// Reads the image on the caller's thread: a source that panics is an error here as it is on others.
fn catch_panic<T>(read: impl FnOnce() -> T) -> Result<T> {
    // What was being read is not looked at again.
    catch_unwind(AssertUnwindSafe(read)).map_err(|_| Error::new(ErrorKind::WorkerPanicked, b""))
}

/// The permissions that a complete directory gets at first, if `last` are those it ends with.
fn first_mode(credentials: Credentials, last: u32) -> u32 {
    let needs_search = !credentials.is_root() && last & OWNER_SEARCH == 0;
    if needs_search { last | OWNER_ALL } else { last }
}
