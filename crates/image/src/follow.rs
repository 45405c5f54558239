//! Follows symlinks inside an image as Linux does on a mount. [`Image::resolve`] follows none. Programs that take
//! paths from people call it, such as the bindings for C and Python.

use ferrofs_ondisk::FileType;

use crate::dir::NAMES_MAX_BYTES;
use crate::error::{Error, ErrorKind, Result};
use crate::image::Image;
use crate::inode::Inode;

/// As many symlinks as Linux follows in one path.
const SYMLINKS_MAX: u32 = 40;

/// What happens to a symlink at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLink {
    /// It is followed, as by `stat`.
    Follow,
    /// It is found itself, as by `lstat`, unless the path ends with a slash.
    Keep,
}

/// Where a path leads.
#[derive(Clone, Debug)]
pub struct FollowedPath {
    /// The inode.
    pub inode: Inode,
    /// The path from the root without symlinks, `.` and `..`: `/`, or `/a/b`.
    pub path: Vec<u8>,
}

impl Image {
    /// What `path` names, as Linux finds it in a mount. The path and the targets of symlinks begin at the root of
    /// the image, targets without a slash at the directory of their symlink; `..` goes up from where symlinks have
    /// led. A slash at the end asks for a directory. `None` if a name does not exist.
    ///
    /// ```no_run
    /// # fn main() -> ferrofs_image::Result<()> {
    /// use ferrofs_image::{Image, LastLink};
    ///
    /// let image = Image::open("app.erofs")?;
    /// if let Some(found) = image.follow(b"/bin/sh", LastLink::Follow)? {
    ///     println!("{}", String::from_utf8_lossy(&found.path));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::WrongType`] if a name stands for something else than the directory that is needed,
    /// [`ErrorKind::SymlinkLoop`] for more than 40 symlinks, [`ErrorKind::PathTooLong`] for more than 64 KiB of
    /// names. An inode, a directory or a symlink on the path is damaged.
    pub fn follow(&self, path: &[u8], last: LastLink) -> Result<Option<FollowedPath>> {
        let mut left = NamesLeft::default();
        left.push(path)?;
        let mut wants_directory = ends_as_directory(path);
        let mut here = self.root()?;
        // The directories above, and the names that lead from each of them to the next.
        let (mut parents, mut names): (Vec<Inode>, Vec<Vec<u8>>) = Default::default();
        let mut symlinks = 0u32;
        while let Some(name) = left.pop() {
            require_directory(&here)?;
            if name == b".." {
                here = parents.pop().unwrap_or(here);
                names.pop();
                continue;
            }
            let Some(found) = self.lookup(&here, &name)? else { return Ok(None) };
            let is_last = left.names.is_empty() && !wants_directory;
            if found.file_type() != FileType::Symlink || (is_last && last == LastLink::Keep) {
                parents.push(std::mem::replace(&mut here, found));
                names.push(name);
                continue;
            }
            symlinks = symlinks.saturating_add(1);
            if symlinks > SYMLINKS_MAX {
                return Err(Error::new(ErrorKind::SymlinkLoop).in_inode(found.nid()));
            }
            let target = self.read_link(&found)?;
            wants_directory |= left.names.is_empty() && ends_as_directory(&target);
            if target.starts_with(b"/") {
                parents.clear();
                names.clear();
                here = self.root()?;
            }
            left.push(&target)?;
        }
        if wants_directory {
            require_directory(&here)?;
        }
        Ok(Some(FollowedPath { inode: here, path: [b"/", names.join(&b'/').as_slice()].concat() }))
    }
}

/// Names that are to be looked up, the next one last.
#[derive(Default)]
struct NamesLeft {
    names: Vec<Vec<u8>>,
    /// Their bytes, with a slash behind each.
    bytes: usize,
}

impl NamesLeft {
    /// Puts the names of `path` before the others.
    fn push(&mut self, path: &[u8]) -> Result<()> {
        let names = path.split(|byte| *byte == b'/');
        for name in names.rev().filter(|name| !matches!(*name, b"" | b".")) {
            self.bytes = self.bytes.saturating_add(name.len()).saturating_add(1);
            if self.bytes > NAMES_MAX_BYTES {
                return Err(Error::new(ErrorKind::PathTooLong));
            }
            self.names.push(name.to_vec());
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let name = self.names.pop()?;
        self.bytes = self.bytes.saturating_sub(name.len()).saturating_sub(1);
        Some(name)
    }
}

/// Whether a path names a directory by its end, so that a symlink there is followed, too.
fn ends_as_directory(path: &[u8]) -> bool {
    path.rsplit(|byte| *byte == b'/').next().is_some_and(|last| matches!(last, b"" | b"."))
}

fn require_directory(inode: &Inode) -> Result<()> {
    match inode.file_type() {
        FileType::Directory => Ok(()),
        found => Err(Error::new(ErrorKind::WrongType { wanted: FileType::Directory, found })
            .in_inode(inode.nid())),
    }
}
