//! The walk through an image that has written what it meets: decides what is selected, keeps the
//! directories of the host in step with those of the image, makes links, and hands everything else to
//! the crew. Directories are made in the order of the walk, each before anything in it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use ferrofs_image::{FileType, Image, Node, Visit, Walk};
use ferrofs_workers::workqueue::Outcome;
use rustix::fs::Mode;

use crate::batch::{Batch, Job, Settled};
use crate::caller::Caller;
use crate::crew::{Crew, Finished, Threads};
use crate::destination;
use crate::directory::Left;
use crate::directory_stack::{Blocked, DirectoryStack};
use crate::entry_writer::{Task, link};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Summary};
use crate::hard_links::{HardLinks, Next, Parked};
use crate::large_file::{LargeFile, is_large};
use crate::metadata::{Keeper, permissions};
use crate::options::Options;
use crate::reporter::Reporter;
use crate::selection::{Matches, Selection, Verdict};
use crate::worker::{self, Request};

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
/// under [`Existing::Refuse`](crate::Existing::Refuse); the root cannot be read; the host has no space
/// left; the memory does not suffice for what is to be remembered; [`Options::stop`] wants it to end. Then no file is
/// left half written.
pub fn extract(
    image: &Image,
    destination: &Path,
    options: &Options,
    on_event: &mut dyn FnMut(Event),
) -> Result<Summary> {
    // More threads than can read at a time would only wait for each other.
    let most = options.max_threads.unwrap_or(usize::MAX).min(image.stations());
    extract_with(image, destination, options, Threads::at_most(Some(most)), on_event)
}

/// The same with a given number of threads.
pub(crate) fn extract_with(
    image: &Image,
    destination: &Path,
    options: &Options,
    threads: Threads,
    on_event: &mut dyn FnMut(Event),
) -> Result<Summary> {
    let from: &[u8] = if options.from.is_empty() { b"/" } else { &options.from };
    let walk = contained(|| image.walk(from))?;
    let walk = walk.map_err(|error| Error::new(error.into(), from))?;
    let opened = destination::open(destination, options.existing)?;
    let caller = Caller::current();
    let masked = options.masked_permissions;
    let keeper = Keeper { caller, owners: options.owners, masked };
    let task = Arc::new(Task::new(image.clone(), keeper, options));
    let in_whole = |kind| Error::new(kind, b"");
    let mut extractor = Extractor {
        crew: Crew::new(&task, threads).map_err(in_whole)?,
        stack: DirectoryStack::new(opened, options.existing).map_err(in_whole)?,
        reporter: Reporter::new(on_event),
        links: HardLinks::new(image).map_err(in_whole)?,
        selection: &options.selection,
        matches: options.selection.matches(),
        late_modes: Vec::new(),
        above_bytes: None,
        task,
    };
    let ended = extractor.run(walk);
    if ended.is_err() {
        // The crew is dropped next: what runs ends soon, and what waits is dropped undone.
        extractor.task.stop();
    }
    ended.map(|()| extractor.reporter.summary)
}

struct Extractor<'a> {
    task: Arc<Task>,
    crew: Crew,
    stack: DirectoryStack,
    reporter: Reporter<'a>,
    links: HardLinks,
    selection: &'a Selection,
    matches: Matches,
    /// Directories that their owner may not search, and their permissions. An ordinary user could
    /// not make hard links to the files in them any more, so they get these at the very end.
    late_modes: Vec<(Vec<u8>, u32)>,
    /// How many bytes of each path lie above the directory that becomes the destination; not known
    /// before that one has been met.
    above_bytes: Option<usize>,
}

impl Extractor<'_> {
    fn run(&mut self, mut walk: Walk<'_>) -> Result<()> {
        if let Some(error) = self.task.image.truncation() {
            self.reporter.fail(Error::new(error.into(), b""));
        }
        while let Some(visit) = contained(|| walk.next())? {
            match self.below(visit) {
                Visit::Enter(node) => {
                    if !self.enter(&node)? {
                        walk.skip_children();
                    }
                }
                Visit::Leaf(node) => self.leaf(node)?,
                Visit::Leave(node) => self.leave(node)?,
                Visit::Problem(problem) => self.problem(&problem.path, problem.error),
            }
            self.take_back()?;
        }
        self.drain()?;
        self.set_late_modes();
        for pattern in self.selection.unmatched(&self.matches) {
            self.reporter.fail(Error::new(ErrorKind::NothingMatches, pattern));
        }
        self.reporter.queue(self.crew.snapshot());
        Ok(())
    }

    /// The visit with a path that counts from the directory that becomes the destination.
    fn below(&mut self, mut visit: Visit) -> Visit {
        let path = match &mut visit {
            Visit::Enter(node) | Visit::Leaf(node) | Visit::Leave(node) => &mut node.path,
            Visit::Problem(problem) => &mut problem.path,
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
    fn enter(&mut self, node: &Node) -> Result<bool> {
        let verdict = self.selection.judge(&node.path, &mut self.matches);
        if verdict == Verdict::Outside {
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
        if verdict == Verdict::Passage {
            return Ok(true);
        }
        self.make_room()?;
        let made = self.stack.ready().map(|_| ());
        if let Err(blocked) = made {
            self.stack.pop();
            self.blocked(blocked)?;
            return Ok(false);
        }
        Ok(true)
    }

    fn leaf(&mut self, node: Node) -> Result<()> {
        if self.selection.judge(&node.path, &mut self.matches) != Verdict::Inside {
            return Ok(());
        }
        if self.stack.name_in_top(&node.path).is_none() {
            return self.fail(ErrorKind::UnsafeName, &node);
        }
        self.make_room()?;
        match self.stack.ready().map(Arc::clone) {
            Ok(directory) => self.meet(Parked { node, directory }),
            Err(blocked) => self.blocked(blocked),
        }
    }

    fn leave(&mut self, node: Node) -> Result<()> {
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
                let keeper = self.task.keeper;
                let last = keeper.unmasked(permissions(&node.inode));
                let mode = first_mode(keeper.caller, last);
                if mode != last {
                    self.late_modes.push((node.path.clone(), last));
                }
                left = Some(Left { node, mode });
            }
        }
        // The walk lets go of it before the job does, so that somebody is the last.
        let directory = self.stack.pop();
        if let (Some(directory), Some(left)) = (directory, left) {
            directory.leave(left);
            self.crew.add(Job::Release(directory));
        }
        Ok(())
    }

    /// Writes a name, links it, or parks it.
    fn meet(&mut self, name: Parked) -> Result<()> {
        let (name, first) = match self.links.meet(name) {
            Next::Wait => return Ok(()),
            Next::Write(name) => return self.write(name),
            Next::Link(name, first) => (name, first),
        };
        let place = self.task.place(&name.directory, &name.node.path);
        match link(&self.stack, place, &first) {
            Ok(true) => {
                self.links.count(&name.node.inode);
                self.reporter.summary.hard_links += 1;
            }
            Ok(false) => {
                self.reporter.summary.withheld.copied_links += 1;
                self.links.begin(&name.node.inode);
                return self.write(name);
            }
            Err(kind) => self.fail(kind, &name.node)?,
        }
        self.reporter.entry();
        self.crew.add(Job::Release(name.directory));
        Ok(())
    }

    /// Hands an entry to the crew.
    fn write(&mut self, Parked { node, directory }: Parked) -> Result<()> {
        let inode = &node.inode;
        let is_cut = inode.file_type() == FileType::Regular && is_large(inode.size());
        if !is_cut || self.crew.is_alone() {
            self.crew.add(Job::Write { node, directory });
            return Ok(());
        }
        match LargeFile::create(&self.task, &node, &directory) {
            Ok(file) => {
                // The file holds it from here on, and is not the last one yet.
                drop(directory);
                for segment in LargeFile::segments(file) {
                    self.crew.submit(Request::Segment(segment));
                }
            }
            Err(kind) => {
                self.reporter.entry();
                self.fail(kind, &node)?;
                self.crew.add(Job::Release(directory));
                self.settle(Settled::failed(&node))?;
            }
        }
        Ok(())
    }

    /// What waited for a file is met again.
    fn settle(&mut self, settled: Settled) -> Result<()> {
        for name in self.links.settle(settled) {
            self.meet(name)?;
        }
        Ok(())
    }

    /// Waits until something can be parked or created again.
    fn make_room(&mut self) -> Result<()> {
        self.links.settle_charge().map_err(|kind| Error::new(kind, b""))?;
        if self.links.is_full() || self.stack.is_crowded() { self.drain() } else { Ok(()) }
    }

    /// Until nothing is left to do.
    fn drain(&mut self) -> Result<()> {
        loop {
            self.crew.flush();
            self.crew.wait();
            if !self.take_back()? {
                return Ok(());
            }
        }
    }

    /// Takes back what has been done; `false` if that was nothing.
    fn take_back(&mut self) -> Result<bool> {
        let mut is_any = false;
        loop {
            let finished = self.crew.finished();
            // Asked only now: what was cut short for this reason has not failed.
            if self.task.is_unwanted() {
                return Err(Error::new(ErrorKind::Stopped, b""));
            }
            if finished.is_empty() {
                return Ok(is_any);
            }
            is_any = true;
            for one in finished {
                self.take_one_back(one)?;
            }
        }
    }

    fn take_one_back(&mut self, (request, outcome): Finished) -> Result<()> {
        let is_whole = outcome == Outcome::Done;
        match request {
            Request::Batch(mut batch) if !is_whole => {
                batch.blame();
                self.crew.submit(Request::Batch(batch));
            }
            Request::Batch(batch) => self.take_batch_back(batch)?,
            Request::Segment(segment) => {
                segment.blame();
                match worker::end(segment) {
                    Request::Ended(report) => self.reporter.take_in(report, &[])?,
                    request => self.crew.submit(request),
                }
            }
            Request::Ended(report) => self.reporter.take_in(report, &[])?,
            Request::Nothing if is_whole => {}
            Request::Nothing => self.reporter.fail(Error::new(ErrorKind::WorkerPanicked, b"")),
        }
        Ok(())
    }

    fn take_batch_back(&mut self, batch: Batch) -> Result<()> {
        self.reporter.take_in(batch.report, &batch.marks)?;
        for settled in batch.settled {
            self.settle(settled)?;
        }
        Ok(())
    }

    fn problem(&mut self, path: &[u8], error: ferrofs_image::Error) {
        if self.selection.judge(path, &mut self.matches) != Verdict::Outside {
            self.reporter.fail(Error::new(error.into(), path));
        }
    }

    fn fail(&mut self, kind: ErrorKind, node: &Node) -> Result<()> {
        self.reporter.fail_or_stop(Error::new(kind, &node.path).about(&node.inode))
    }

    fn blocked(&mut self, blocked: Blocked) -> Result<()> {
        match blocked {
            Blocked::Now(error) => self.reporter.fail_or_stop(error),
            Blocked::Before => Ok(()),
        }
    }

    fn set_late_modes(&mut self) {
        // Children come before their parents, so each can still be reached.
        for (path, mode) in std::mem::take(&mut self.late_modes) {
            if let Err(kind) = self.set_late_mode(&path, mode) {
                self.reporter.fail(Error::new(kind, &path));
            }
        }
    }

    fn set_late_mode(&self, path: &[u8], mode: u32) -> Result<(), ErrorKind> {
        let directory = self.stack.open(path)?;
        rustix::fs::fchmod(directory, Mode::from_raw_mode(mode))
            .map_err(ErrorKind::output("cannot set the mode"))
    }
}

/// Reads the image on the caller's thread: a source that panics is an error here as it is on others.
fn contained<T>(read: impl FnOnce() -> T) -> Result<T> {
    // What was being read is not looked at again.
    catch_unwind(AssertUnwindSafe(read)).map_err(|_| Error::new(ErrorKind::WorkerPanicked, b""))
}

/// The permissions that a complete directory gets at first, if `last` are those it ends with.
fn first_mode(caller: Caller, last: u32) -> u32 {
    let needs_search = !caller.is_root() && last & OWNER_SEARCH == 0;
    if needs_search { last | OWNER_ALL } else { last }
}
