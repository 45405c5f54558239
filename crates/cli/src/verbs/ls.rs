//! `ferrofs ls`: lists directories, with everything below if `-R` is given.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use ferrofs_image::{FileType, Image, Inode, WalkEvent};

use crate::arguments::LsArguments;
use crate::diagnostics::MessageLimiter;
use crate::exit_status::CommandStatus;
use crate::metadata_text::{self, JsonInode, mode_text};
use crate::output::{self, Output};
use crate::signals::ExitOnSignals;
use crate::source;

/// Lists each path.
pub(crate) fn run(
    arguments: &LsArguments,
    _signals: &ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let image = source::open(&arguments.image, &arguments.read)?;
    let mut lister = Lister {
        image: &image,
        arguments,
        output: Output::new(),
        status: CommandStatus::Success,
        messages: MessageLimiter::default(),
    };
    let written = lister.list_all();
    lister.messages.print_rest();
    lister.status.after_output(written)
}

struct Lister<'a> {
    image: &'a Image,
    arguments: &'a LsArguments,
    output: Output,
    status: CommandStatus,
    messages: MessageLimiter,
}

impl Lister<'_> {
    fn list_all(&mut self) -> anyhow::Result<()> {
        for (at, path) in self.arguments.paths.iter().enumerate() {
            self.list(path.as_bytes(), at > 0)?;
        }
        Ok(self.output.flush()?)
    }

    fn list(&mut self, path: &[u8], is_further: bool) -> anyhow::Result<()> {
        let inode = match self.image.resolve(path) {
            Ok(Some(inode)) => inode,
            Ok(None) => {
                self.print_message(path, "no such path in the image");
                return Ok(());
            }
            Err(error) => {
                self.print_message(path, error);
                return Ok(());
            }
        };
        let is_directory = inode.file_type() == FileType::Directory;
        if self.arguments.recursive {
            self.list_below(path)
        } else if is_directory && !self.arguments.directory {
            self.head(path, is_further)?;
            self.list_directory(path, &inode)
        } else {
            self.entry(path, path, &inode)
        }
    }

    /// Names the directory if there are several.
    fn head(&mut self, path: &[u8], is_further: bool) -> anyhow::Result<()> {
        if self.arguments.paths.len() > 1 && !self.arguments.json {
            if is_further {
                writeln!(self.output)?;
            }
            self.output.name(path)?;
            writeln!(self.output, ":")?;
        }
        Ok(())
    }

    fn list_directory(&mut self, path: &[u8], inode: &Inode) -> anyhow::Result<()> {
        let entries = match self.image.read_dir(inode) {
            Ok(entries) => entries,
            Err(error) => {
                self.print_message(path, error);
                return Ok(());
            }
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.print_message(path, error);
                    continue;
                }
            };
            if !self.arguments.long && !self.arguments.json {
                self.output.name(&entry.name)?;
                writeln!(self.output)?;
                continue;
            }
            let below = join(path, &entry.name);
            match self.image.inode(entry.nid) {
                Ok(inode) => self.entry(&below, &entry.name, &inode)?,
                Err(error) => self.print_message(&below, error),
            }
        }
        Ok(())
    }

    fn list_below(&mut self, path: &[u8]) -> anyhow::Result<()> {
        let walk = match self.image.walk(path) {
            Ok(walk) => walk,
            Err(error) => {
                self.print_message(path, error);
                return Ok(());
            }
        };
        for visit in walk {
            match visit {
                WalkEvent::Enter(node) | WalkEvent::Leaf(node) => {
                    self.entry(&node.path, &node.path, &node.inode)?;
                }
                WalkEvent::Leave(_) => {}
                WalkEvent::Problem(problem) => self.print_message(&problem.path, problem.error),
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &[u8], name: &[u8], inode: &Inode) -> anyhow::Result<()> {
        if !self.arguments.long && !self.arguments.json {
            self.output.name(name)?;
            writeln!(self.output)?;
            return Ok(());
        }
        let target = self.target(path, inode);
        if self.arguments.json {
            self.output.json(&JsonInode::new(path, inode, target))?;
            return Ok(());
        }
        let size = match inode.device() {
            Some((major, minor)) => format!("{major}, {minor}"),
            None => inode.size().to_string(),
        };
        let (mode, time) = (mode_text(inode), metadata_text::format_seconds(inode.mtime()));
        let (nlink, uid, gid) = (inode.nlink(), inode.uid(), inode.gid());
        write!(self.output, "{mode} {nlink:>3} {uid:>5} {gid:>5} {size:>11} {time} ")?;
        self.output.name(name)?;
        if let Some(target) = target {
            write!(self.output, " -> ")?;
            self.output.name(&target)?;
        }
        writeln!(self.output)?;
        Ok(())
    }

    fn target(&mut self, path: &[u8], inode: &Inode) -> Option<Vec<u8>> {
        if inode.file_type() != FileType::Symlink {
            return None;
        }
        match self.image.read_link(inode) {
            Ok(target) => Some(target),
            Err(error) => {
                self.print_message(path, error);
                None
            }
        }
    }

    fn print_message(&mut self, path: &[u8], what: impl std::fmt::Display) {
        if let Some(message) = self.messages.message(path, what) {
            output::print_message(message);
        }
        self.status = CommandStatus::Failure;
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, separator, name].concat()
}
