//! The walk through an image that writes what it meets: decides what is selected, keeps the
//! directories of the host in step with those of the image, and completes each directory after
//! everything in it.

use std::path::Path;

use ferrofs_image::{Image, Node, Visit, Walk};
use rustix::fs::Mode;

use crate::caller::Caller;
use crate::content::ContentWriter;
use crate::destination;
use crate::directory_stack::{Blocked, DirectoryStack};
use crate::entry_writer::EntryWriter;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Summary};
use crate::hard_links::HardLinks;
use crate::metadata::{Keeper, permissions};
use crate::options::{Existing, Options};
use crate::place::Place;
use crate::reporter::Reporter;
use crate::selection::{Matches, Selection, Verdict};

/// Permission of an owner to look things up in a directory.
const OWNER_SEARCH: u32 = 0o100;
/// What an owner needs to fill a directory.
const OWNER_ALL: u32 = 0o700;

/// Extracts `image` into the directory `destination`, which is created if it is missing.
///
/// Whatever fails is passed to `on_event` and counted; the rest is extracted. The destination
/// itself gets the owner, mode, times and attributes of the image's root.
///
/// # Errors
/// Only what makes all further work pointless: the destination cannot be used, or is not empty
/// under [`Existing::Refuse`]; the root cannot be read; the host has no space left.
pub fn extract(
    image: &Image,
    destination: &Path,
    options: &Options,
    on_event: &mut dyn FnMut(Event),
) -> Result<Summary> {
    let walk = image.walk(b"/").map_err(|error| Error::new(error.into(), b"/"))?;
    let opened = destination::open(destination, options.existing)?;
    let keeper = Keeper { caller: Caller::current(), owners: options.owners };
    let extractor = Extractor {
        writer: EntryWriter {
            image,
            keeper,
            reporter: Reporter::new(on_event),
            links: HardLinks::default(),
            content: ContentWriter::default(),
        },
        stack: DirectoryStack::new(opened, options.existing),
        existing: options.existing,
        selection: &options.selection,
        matches: options.selection.matches(),
        late_modes: Vec::new(),
    };
    extractor.run(walk)
}

struct Extractor<'a> {
    writer: EntryWriter<'a>,
    stack: DirectoryStack,
    existing: Existing,
    selection: &'a Selection,
    matches: Matches,
    /// Directories that their owner may not search, and their permissions. An ordinary user could
    /// not make hard links to the files in them any more, so they get these at the very end.
    late_modes: Vec<(Vec<u8>, u32)>,
}

impl Extractor<'_> {
    fn run(mut self, mut walk: Walk<'_>) -> Result<Summary> {
        if let Some(error) = self.writer.image.truncation() {
            self.writer.reporter.fail(Error::new(error.into(), b""));
        }
        while let Some(visit) = walk.next() {
            match visit {
                Visit::Enter(node) => {
                    if !self.enter(&node)? {
                        walk.skip_children();
                    }
                }
                Visit::Leaf(node) => self.leaf(&node)?,
                Visit::Leave(node) => self.leave(&node)?,
                Visit::Problem(problem) => self.problem(&problem.path, problem.error),
            }
        }
        self.set_late_modes();
        for pattern in self.selection.unmatched(&self.matches) {
            self.writer.reporter.fail(Error::new(ErrorKind::NothingMatches, pattern));
        }
        Ok(self.writer.reporter.summary)
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
        let made = self.stack.ready().map(|_| ());
        if let Err(blocked) = made {
            self.stack.pop();
            self.blocked(blocked)?;
            return Ok(false);
        }
        Ok(true)
    }

    fn leaf(&mut self, node: &Node) -> Result<()> {
        if self.selection.judge(&node.path, &mut self.matches) != Verdict::Inside {
            return Ok(());
        }
        let Some(name) = self.stack.name_in_top(&node.path) else {
            return self.fail(ErrorKind::UnsafeName, node);
        };
        if let Err(blocked) = self.stack.ready() {
            return self.blocked(blocked);
        }
        let Some(directory) = self.stack.top() else { return Ok(()) };
        let place = Place { directory, name, existing: self.existing };
        let written = self.writer.write(&self.stack, place, node);
        self.writer.reporter.entry();
        written.or_else(|kind| self.fail(kind, node))
    }

    fn leave(&mut self, node: &Node) -> Result<()> {
        if !self.stack.is_at(&node.path) {
            return Ok(());
        }
        if self.stack.is_created() {
            match self.stack.ready() {
                Ok(directory) => {
                    let mode = directory_mode(self.writer.keeper.caller, node);
                    self.writer.complete_directory(directory, node, mode);
                    if mode != permissions(&node.inode) {
                        self.late_modes.push((node.path.clone(), permissions(&node.inode)));
                    }
                }
                Err(blocked) => self.blocked(blocked)?,
            }
            self.writer.reporter.entry();
        }
        self.stack.pop();
        Ok(())
    }

    fn problem(&mut self, path: &[u8], error: ferrofs_image::Error) {
        if self.selection.judge(path, &mut self.matches) != Verdict::Outside {
            self.writer.reporter.fail(Error::new(error.into(), path));
        }
    }

    fn fail(&mut self, kind: ErrorKind, node: &Node) -> Result<()> {
        self.writer.reporter.fail_or_stop(Error::new(kind, &node.path).about(&node.inode))
    }

    fn blocked(&mut self, blocked: Blocked) -> Result<()> {
        match blocked {
            Blocked::Now(error) => self.writer.reporter.fail_or_stop(error),
            Blocked::Before => Ok(()),
        }
    }

    fn set_late_modes(&mut self) {
        // Children come before their parents, so each can still be reached.
        for (path, mode) in std::mem::take(&mut self.late_modes) {
            if let Err(kind) = self.set_late_mode(&path, mode) {
                self.writer.reporter.fail(Error::new(kind, &path));
            }
        }
    }

    fn set_late_mode(&self, path: &[u8], mode: u32) -> Result<(), ErrorKind> {
        let directory = self.stack.open(path)?;
        rustix::fs::fchmod(directory, Mode::from_raw_mode(mode))
            .map_err(ErrorKind::output("cannot set the mode"))
    }
}

/// The permissions that a complete directory gets at first.
fn directory_mode(caller: Caller, node: &Node) -> u32 {
    let mode = permissions(&node.inode);
    let needs_search = !caller.is_root() && mode & OWNER_SEARCH == 0;
    if needs_search { mode | OWNER_ALL } else { mode }
}
