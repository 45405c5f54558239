//! Imports a directory of the host.

mod listing;
mod options;
#[cfg(test)]
mod tests;
mod walk;
mod xattr_reader;

pub use options::{DirectoryOptions, HardLinkPolicy, UnreadablePolicy};

use std::path::Path;

use crate::tree::Tree;
use ferrofs_workers::CancelToken;

use crate::{BuildObserver, BuildPhase, Result};

/// The tree below the directory `source`, whose contents stay where they are: they are read when the
/// image is built, and compared with what they were now.
///
/// A symlink may lead to `source` itself; none is followed below it. Mounts below it are walked into.
/// The numbers of the inodes depend on names only, not on the order in which the host lists them.
///
/// Ordinary users see no `trusted.*` xattrs, and neither does their image. Xattrs are read with the help
/// of `/proc`, which must be mounted unless none are wanted.
///
/// # Errors
/// What cannot be listed, examined or opened, by its path, unless [`UnreadablePolicy::LeaveOut`]; an entry that
/// is another one by the time it is opened; a name or a device number that the format cannot store;
/// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) once `cancel` is cancelled.
pub fn from_directory(
    source: &Path,
    options: &DirectoryOptions,
    observer: &dyn BuildObserver,
    cancel: &CancelToken,
) -> Result<Tree> {
    observer.phase(BuildPhase::Import);
    let mut tree = walk::DirectoryWalk::new(source, options, observer, cancel)?.run()?;
    options.adjustments.apply(&mut tree)?;
    Ok(tree)
}
