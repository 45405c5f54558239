//! Reading any range of a file.

use ferrofs_ondisk::FileType;

use crate::cluster::{ClusterPlace, Coding};
use crate::error::{Error, ErrorKind, Place, Result, address};
use crate::image::Core;
use crate::inode::Inode;
use crate::map::{Data, Extent, Map};
use crate::source::outside;

impl Core {
    /// Reads the bytes of `inode` from `offset` on; fewer than asked only at its end.
    pub(crate) fn read_at(&self, inode: &Inode, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let rest = inode.size().saturating_sub(offset);
        let count = buffer.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        let mut target = buffer.get_mut(..count).unwrap_or_default();
        if target.is_empty() {
            return Ok(0);
        }
        let mut map = Map::new(self, inode)?;
        let mut at = offset;
        while !target.is_empty() {
            let extent = map.extent_at(at)?;
            let left = usize::try_from(extent.end().saturating_sub(at)).unwrap_or(usize::MAX);
            let (part, rest) = target.split_at_mut(left.min(target.len()));
            self.read_part(inode, &extent, at, part).in_inode(inode.nid())?;
            at = at.saturating_add(u64::try_from(part.len()).unwrap_or(u64::MAX));
            target = rest;
        }
        Ok(count)
    }

    /// Reads into `part` from byte `at` of the file, all of it inside `extent`.
    fn read_part(&self, inode: &Inode, extent: &Extent, at: u64, part: &mut [u8]) -> Result<()> {
        let skip = at.saturating_sub(extent.start);
        match extent.data {
            Data::Hole => {
                part.fill(0);
                Ok(())
            }
            Data::Raw { device, offset } => {
                self.devices.read(device, address(offset.checked_add(skip))?, part)
            }
            Data::Inline { offset } => {
                let from = address(offset.checked_add(skip))?;
                let bytes = self.meta(inode.place().0, from, part.len())?;
                part.copy_from_slice(&bytes);
                Ok(())
            }
            Data::Fragment { offset } => {
                self.read_packed(inode, address(offset.checked_add(skip))?, part)
            }
            Data::Cluster(cluster) => match (cluster.id.coding, cluster.id.place) {
                (Coding::Plain { wrapped_bytes: 0 }, ClusterPlace::Data(offset)) => {
                    self.devices.read(0, address(offset.checked_add(skip))?, part)
                }
                _ if skip == 0 && u64::try_from(part.len()) == Ok(extent.length) => {
                    self.decode_into(&mut self.scratches.lease(), &cluster, part)
                }
                _ => {
                    let shared = self.shared_cluster(&mut self.scratches.lease(), &cluster)?;
                    let from = usize::try_from(skip).unwrap_or(usize::MAX);
                    let bytes = from.checked_add(part.len()).and_then(|to| shared.get(from..to));
                    part.copy_from_slice(address(bytes)?);
                    Ok(())
                }
            },
        }
    }

    /// Reads a fragment.
    fn read_packed(&self, inode: &Inode, offset: u64, part: &mut [u8]) -> Result<()> {
        let packed = self.packed_for(inode)?;
        if self.read_at(packed, offset, part)? == part.len() {
            return Ok(());
        }
        let wanted = u64::try_from(part.len()).unwrap_or(u64::MAX);
        Err(outside(offset, wanted, packed.size()).in_inode(packed.nid()))
    }

    /// The packed inode, for a fragment of `inode`; it must not have fragments itself.
    pub(crate) fn packed_for(&self, inode: &Inode) -> Result<&Inode> {
        let packed = self.packed.as_ref().filter(|packed| packed.nid() != inode.nid());
        packed.ok_or_else(|| Error::new(ErrorKind::NoPackedInode).at(inode.end()))
    }

    /// The target of a symlink.
    pub(crate) fn read_link(&self, link: &Inode) -> Result<Vec<u8>> {
        link.require(FileType::Symlink)?;
        let bad = || {
            let kind = ErrorKind::SymlinkTarget(link.size());
            Error::new(kind).in_inode(link.nid()).at(link.place().1)
        };
        let size = usize::try_from(link.size()).ok().filter(|size| (1..=TARGET_MAX).contains(size));
        let mut target = crate::source::zeroed(size.ok_or_else(bad)?)?;
        self.read_at(link, 0, &mut target)?;
        if target.contains(&0) { Err(bad()) } else { Ok(target) }
    }
}

/// The longest symlink target, in bytes: Linux's `PATH_MAX`.
const TARGET_MAX: usize = 4096;
