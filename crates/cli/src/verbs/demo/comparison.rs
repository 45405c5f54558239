//! Compares an unpacked tree with what it must be: every entry, every field, every byte. What the
//! caller's rights did not allow to unpack is not held against the tree, but counted.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use ferrofs_image::FileType;

use super::record::{Contents, Record, Xattrs};
use super::truth::{Known, Truth, walk_host};
use crate::moment;
use crate::progress::{Progress, Work};

/// Compares an unpacked tree with a truth.
pub(super) struct Comparison<'a> {
    unpacked: &'a Path,
    is_root: bool,
    progress: &'a mut Progress,
    result: ComparisonResult,
    /// Which file of the host each hard-linked file of the truth is.
    links: HashMap<Vec<u8>, Option<Vec<u8>>>,
}

/// What a comparison found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ComparisonResult {
    pub(super) done: Work,
    pub(super) differences: u64,
    /// Files that the caller could not read to compare them.
    pub(super) unreadable: u64,
}

impl<'a> Comparison<'a> {
    /// Compares everything and names each difference on standard error.
    pub(super) fn run(
        unpacked: &'a Path,
        truth: &Truth,
        progress: &'a mut Progress,
    ) -> anyhow::Result<ComparisonResult> {
        let mut comparison = Self {
            unpacked,
            is_root: rustix::process::geteuid().is_root(),
            progress,
            result: ComparisonResult::default(),
            links: HashMap::new(),
        };
        let mut missing = 0;
        truth.for_each(&mut |known| {
            match known {
                Known::Record(record) => missing += u64::from(!comparison.entry(&record)?),
                Known::Hidden => comparison.hidden(),
            }
            Ok(())
        })?;
        comparison.count_extra(missing)?;
        Ok(comparison.result)
    }

    /// Compares one entry; `false` if it was not unpacked.
    fn entry(&mut self, expected: &Record) -> anyhow::Result<bool> {
        let found = match Record::of_host(self.unpacked, &expected.path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !(self.may_be_missing(expected)) {
                    self.differs(expected, "is missing");
                }
                self.advance(expected);
                return Ok(false);
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !self.is_root => {
                self.result.unreadable += 1;
                self.advance(expected);
                return Ok(true);
            }
            Err(error) => return Err(error.into()),
        };
        self.fields(expected, &found);
        self.contents(expected, &found);
        self.links(expected, &found);
        self.advance(expected);
        Ok(true)
    }

    /// An entry that the caller may not look at where it comes from.
    fn hidden(&mut self) {
        self.result.unreadable += 1;
        self.result.done.entries += 1;
    }

    fn may_be_missing(&self, expected: &Record) -> bool {
        !self.is_root
            && matches!(
                expected.file_type,
                FileType::CharDevice | FileType::BlockDevice | FileType::Socket
            )
    }

    fn fields(&mut self, expected: &Record, found: &Record) {
        if expected.file_type != found.file_type {
            self.differs(expected, &format!("is a {}", found.file_type.name()));
        }
        if expected.mtime != found.mtime {
            let (at, instead) = (moment::exact(found.mtime), moment::exact(expected.mtime));
            self.differs(expected, &format!("has the time {at}, not {instead}"));
        }
        let mask = if self.is_root { 0o7777 } else { 0o1777 };
        if expected.file_type != FileType::Symlink && (expected.mode ^ found.mode) & mask != 0 {
            let text = format!("has the mode {:04o}, not {:04o}", found.mode, expected.mode);
            self.differs(expected, &text);
        }
        if self.is_root && (expected.uid, expected.gid) != (found.uid, found.gid) {
            self.differs(expected, &format!("belongs to {}:{}", found.uid, found.gid));
        }
        if self.kept(&expected.xattrs) != self.kept(&found.xattrs) {
            self.differs(expected, "has other extended attributes");
        }
    }

    /// The attributes that could be set; those of a security module are the host's own.
    fn kept<'x>(&self, xattrs: &'x Xattrs) -> Vec<(&'x Vec<u8>, &'x Vec<u8>)> {
        let kept = |name: &[u8]| {
            if self.is_root { name != b"security.selinux" } else { name.starts_with(b"user.") }
        };
        xattrs.iter().filter(|(name, _)| kept(name)).collect()
    }

    fn contents(&mut self, expected: &Record, found: &Record) {
        match (&expected.contents, &found.contents) {
            (Contents::Unreadable { size: a }, other)
            | (other, Contents::Unreadable { size: a }) => {
                self.result.unreadable += 1;
                if *a != other.bytes() {
                    self.differs(expected, "has another size");
                }
            }
            (a, b) if a == b => {}
            (Contents::Target(_), _) => self.differs(expected, "leads elsewhere"),
            (Contents::Device { .. }, _) => self.differs(expected, "is another device"),
            _ => self.differs(expected, "has other contents"),
        }
    }

    fn links(&mut self, expected: &Record, found: &Record) {
        let Some(key) = &expected.link_key else { return };
        let first = self.links.entry(key.clone()).or_insert_with(|| found.link_key.clone());
        if *first != found.link_key {
            self.differs(expected, "is not the same file as its other names");
        }
    }

    /// Every path of the truth was looked at, so more paths than that are too many.
    fn count_extra(&mut self, missing: u64) -> anyhow::Result<()> {
        let mut count = 0u64;
        walk_host(self.unpacked, &mut |_| {
            count += 1;
            Ok(())
        })?;
        let known = self.result.done.entries - missing;
        if count > known {
            self.result.differences += count - known;
            let text = format!("{} entries that do not belong there", count - known);
            self.progress.complain_about(b"/", text);
        }
        Ok(())
    }

    fn differs(&mut self, expected: &Record, how: &str) {
        self.result.differences += 1;
        self.progress.complain_about(&expected.path, how);
    }

    fn advance(&mut self, expected: &Record) {
        self.result.done.entries += 1;
        self.result.done.bytes += expected.contents.bytes();
        self.progress.update(self.result.done);
    }
}
