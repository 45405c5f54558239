//! Where data and holes begin.

use ferrofs_fuse::Errno;
use ferrofs_image::ExtentStorage;

use super::{FsResult, ImageFs};

/// `SEEK_DATA`.
const DATA: u32 = 3;
/// `SEEK_HOLE`.
const HOLE: u32 = 4;

impl ImageFs {
    pub(super) fn seek(&self, node: u64, offset: u64, whence: u32) -> FsResult<u64> {
        let inode = self.inode(node)?;
        if !matches!(whence, DATA | HOLE) {
            return Err(Errno::INVAL);
        }
        if offset >= inode.size() {
            return Err(Errno::NXIO);
        }
        let failed = |error| self.failed(inode.nid(), "the extents", &error);
        for range in self.image.file_extents(&inode, offset).map_err(failed)? {
            let range = range.map_err(failed)?;
            if (range.storage == ExtentStorage::Hole) == (whence == HOLE) {
                return Ok(range.start);
            }
        }
        // Behind its last byte every file has a hole.
        if whence == HOLE { Ok(inode.size()) } else { Err(Errno::NXIO) }
    }
}
