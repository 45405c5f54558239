//! What a read has to do: a range of a file as the places where its bytes are. It reads metadata only,
//! and decides nothing about when and where clusters are decoded.

use std::ops::Range;

use crate::error::{ErrorContext, Result, address};
use crate::extent::{Cluster, ClusterPlace, Coding};
use crate::image::ImageInner;
use crate::inner::AddressSpace;
use crate::inode::Inode;
use crate::map::{Data, ExtentMap, MappedExtent};
use crate::source::outside;

use ferrofs_ondisk::Nid;

/// Bytes of one plan at most; longer reads take several.
const PLAN_MAX_BYTES: usize = 4 << 20;
/// Parts of one plan at most: extents of a damaged index can be a byte long.
const PARTS_MAX: usize = 1024;

/// A range of a file, part by part, without gaps.
#[derive(Debug)]
pub(crate) struct ReadPlan {
    pub(crate) parts: Vec<ReadSegment>,
    /// How many bytes it covers.
    pub(crate) length: usize,
}

/// Some bytes of a read.
#[derive(Clone, Debug)]
pub(crate) struct ReadSegment {
    /// Where they go in the reader's buffer.
    pub(crate) target: Range<usize>,
    pub(crate) origin: Origin,
    /// The inode in whose map they were found.
    pub(crate) nid: Nid,
}

/// Where the bytes of a part are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// Nowhere: they are zeros.
    Hole,
    /// On a device, as they are.
    Raw { device: u16, offset: u64 },
    /// Among the metadata, as they are.
    MetaBytes { space: AddressSpace, offset: u64 },
    /// In a cluster.
    Cluster {
        cluster: Cluster,
        /// Bytes of the extent before the part.
        skip: usize,
        /// Other files may have the same cluster.
        is_common: bool,
    },
}

impl ReadPlan {
    /// Plans to read the `bytes` bytes of `inode` from `offset` on, or the first of them. They lie
    /// within the file.
    pub(crate) fn build(
        inner: &ImageInner,
        inode: &Inode,
        offset: u64,
        bytes: usize,
    ) -> Result<Self> {
        let mut plan = Self { parts: Vec::new(), length: 0 };
        let end = offset.saturating_add(u64::try_from(bytes.min(PLAN_MAX_BYTES)).unwrap_or(0));
        plan.extend(inner, inode, offset..end)?;
        Ok(plan)
    }

    fn extend(&mut self, inner: &ImageInner, inode: &Inode, range: Range<u64>) -> Result<()> {
        let mut map = ExtentMap::new(inner, inode)?;
        let mut at = range.start;
        // A fragment that is cut off here ends the loop of its file, too.
        while at < range.end && self.parts.len() < PARTS_MAX {
            let extent = map.extent_at(at)?;
            let end = extent.end().min(range.end);
            self.add(inner, inode, &extent, at..end).in_inode(inode.nid())?;
            at = end;
        }
        Ok(())
    }

    /// Adds `range` of the file, which lies within `extent`.
    fn add(
        &mut self,
        inner: &ImageInner,
        inode: &Inode,
        extent: &MappedExtent,
        range: Range<u64>,
    ) -> Result<()> {
        let skip = range.start.saturating_sub(extent.start);
        let length = range.end.saturating_sub(range.start);
        let origin = match extent.data {
            Data::Hole => Origin::Hole,
            Data::Raw { device, offset } => {
                Origin::Raw { device, offset: address(offset.checked_add(skip))? }
            }
            Data::Inline { offset } => {
                let offset = address(offset.checked_add(skip))?;
                Origin::MetaBytes { space: inode.place().0, offset }
            }
            Data::Fragment { offset } => {
                let packed = inner.packed_for(inode)?;
                let start = address(offset.checked_add(skip))?;
                let end = start.checked_add(length).filter(|end| *end <= packed.size());
                let missing = || outside(start, length, packed.size()).in_inode(packed.nid());
                return self.extend(inner, packed, start..end.ok_or_else(missing)?);
            }
            Data::Cluster(cluster) => match (cluster.id.coding, cluster.id.place) {
                (Coding::Plain { wrapped_bytes: 0 }, ClusterPlace::Data(offset)) => {
                    Origin::Raw { device: 0, offset: address(offset.checked_add(skip))? }
                }
                _ => Origin::Cluster {
                    cluster,
                    skip: usize::try_from(skip).unwrap_or(usize::MAX),
                    is_common: inner.is_common(inode.nid()) || cluster.is_partial,
                },
            },
        };
        let start = self.length;
        self.length = start.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
        self.parts.push(ReadSegment { target: start..self.length, origin, nid: inode.nid() });
        Ok(())
    }
}
