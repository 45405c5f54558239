//! The second walk of a verification, only if something could not be read: which other files have the same data. It reads
//! metadata; of data it reads only what the first walk has left unknown. A file that was reported for its contents is not
//! reported again, so the set of paths does not depend on which thread read shared data first.

use std::cell::Cell;

use ferrofs_ondisk::FileType;

use super::damaged_data::Soundness;
use super::{Inspector, VerifyOptions, VerifyReport, catch};
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{DataLocation, MappedExtent};
use crate::inode::Inode;
use crate::map::ExtentMap;
use crate::pieces::{ExtentFilter, FilePiece};
use crate::walk::{PathError, TreeWalk, WalkEvent};

/// Reports the files that share damaged data with one that was reported.
///
/// # Errors
/// The token was cancelled, or there is no memory to record which files were met.
pub(super) fn report_shared_damage(
    inspector: &Inspector<'_>,
    options: &VerifyOptions,
    report: &mut VerifyReport<'_>,
) -> Result<()> {
    // Beyond the limit, the first walk has ended early, too.
    let is_over = inspector.work.spent() > inspector.work.limit();
    if is_over || !inspector.verified.has_damaged() {
        return Ok(());
    }
    let mut walk = match TreeWalk::new(inspector.inner, &options.path) {
        Ok(walk) => walk.work_meter(&inspector.work),
        Err(error) => {
            report.problem(options.path.clone(), error);
            return Ok(());
        }
    };
    loop {
        inspector.check_cancelled()?;
        let node = match catch(|| Ok(walk.next())) {
            Ok(None) => return Ok(()),
            Ok(Some(WalkEvent::Leaf(node))) => node,
            Ok(Some(WalkEvent::Problem(PathError { path, error }))) if ends(&error) => {
                report.problem(path, error);
                return Ok(());
            }
            // The first walk has reported what is wrong with the tree.
            Ok(Some(_)) => continue,
            Err(error) => {
                report.problem(Vec::new(), error);
                return Ok(());
            }
        };
        if node.inode.file_type() != FileType::Regular || !report.failed.insert(node.inode.nid())? {
            continue;
        }
        if let Some(error) = damage_of(inspector, &node.inode) {
            inspector.check_cancelled()?;
            let is_over = ends(&error);
            report.problem(node.path, error);
            if is_over {
                return Ok(());
            }
        }
    }
}

fn ends(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WorkLimit { .. })
}

/// What is wrong with the data of a file whose map the first walk has followed.
fn damage_of(inspector: &Inspector<'_>, inode: &Inode) -> Option<Error> {
    let filter = DamagedExtents { inspector, is_about_data: Cell::new(false) };
    let read = catch(|| {
        inspector.add_index_work(&ExtentMap::new(inspector.inner, inode)?, inode)?;
        let mut check = |_: FilePiece<'_>| inspector.check_cancelled();
        inspector.inner.for_wanted_pieces_in(inode, 0..inode.size(), Some(&filter), &mut check)
    });
    // Other errors of the map were reported.
    read.err().filter(|error| {
        filter.is_about_data.get() || ends(error) || matches!(error.kind(), ErrorKind::Panicked)
    })
}

/// Fails at data that is damaged, and wants data that may be.
struct DamagedExtents<'a> {
    inspector: &'a Inspector<'a>,
    /// Data is read, or was found to be damaged.
    is_about_data: Cell<bool>,
}

impl ExtentFilter for DamagedExtents<'_> {
    fn wants(&self, extent: &MappedExtent) -> Result<bool> {
        self.inspector.check_cancelled()?;
        let soundness = self.inspector.verified.soundness(extent, &self.inspector.work)?;
        self.is_about_data.set(soundness != Soundness::Sound);
        match (soundness, &extent.location) {
            (Soundness::Damaged, DataLocation::Cluster(cluster)) => {
                Err(Error::new(ErrorKind::SharedDamage).at(cluster.id.address.offset()))
            }
            (soundness, _) => Ok(soundness == Soundness::Unknown),
        }
    }

    fn has_searched(&self, steps: u64) -> Result<()> {
        self.inspector.add_search_work(steps)
    }

    fn has_read(&self) {
        self.is_about_data.set(false);
    }
}
