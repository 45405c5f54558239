//! Where every inode lies, once its inode_extent is known: in the area behind the data, or in the metabox.

use ferrofs_ondisk::Nid;

use super::check_cancelled;
use super::features::Features;
use super::layout::{InodeAllocator, InodeExtent, SLOT_BYTES};
use super::records::InodeRecords;
use crate::Result;
use crate::observer::BuildObserver;
use crate::tree::{NodeId, Tree};

/// Where everything lies but the special files, which come last.
#[derive(Debug)]
pub(super) struct InodePlacement {
    /// By the index of the node.
    places: Vec<InodeAddress>,
    has_metabox: bool,
    /// What lies in the area, and the root, each with its first byte in the image; in that order.
    pub(super) area: Vec<(u64, AreaItem)>,
    /// The first block behind the area.
    pub(super) area_end_block: u64,
    /// Byte of the image.
    pub(super) shared_at: u64,
    /// Numbers of the inodes in the metabox, each with its first byte in it; in that order.
    pub(super) metabox: Vec<(u64, usize)>,
    pub(super) metabox_bytes: u64,
    pub(super) features: Features,
}

/// Where an inode lies.
#[derive(Clone, Copy, Debug, Default)]
struct InodeAddress {
    /// Its first byte, in the image or in the metabox.
    start: u64,
    /// Its first block of those behind the area, counted from the first of them.
    block: u64,
}

/// What is written into the area.
#[derive(Clone, Copy, Debug)]
pub(super) enum AreaItem {
    /// The inode with this number in the order.
    Inode(usize),
    SharedXattrs,
}

impl InodeRecords<'_, '_> {
    /// Finds a place for every inode but the root, which has one. The area is laid out by `layout`.
    ///
    /// # Errors
    /// What an inode cannot say, or no block can hold, with its path.
    pub(super) fn place(
        &self,
        mut layout: InodeAllocator,
        observer: &dyn BuildObserver,
    ) -> Result<InodePlacement> {
        let prepared = self.prepared;
        let has_metabox = prepared.options.metabox_pcluster_bytes.is_some();
        let mut metabox = has_metabox.then(|| InodeAllocator::new(self.block_size(), 0));
        let mut placement = InodePlacement {
            places: vec![InodeAddress::default(); prepared.tree.len()],
            has_metabox,
            area: Vec::new(),
            area_end_block: 0,
            shared_at: 0,
            metabox: Vec::new(),
            metabox_bytes: 0,
            features: Features::default(),
        };
        let shared = InodeExtent { core_bytes: prepared.xattrs.shared.len() as u64, tail: 0 };
        if shared.core_bytes > 0 {
            placement.shared_at = layout.place(shared);
            placement.area.push((placement.shared_at, AreaItem::SharedXattrs));
        }
        let mut blocks = 0;
        for (number, id) in prepared.inode_order.order.iter().enumerate() {
            check_cancelled(number, observer)?;
            let record = self.record(number, 0)?;
            placement.features.add(&record);
            let start = match &mut metabox {
                _ if number == 0 => prepared.root_at,
                Some(metabox) => metabox.place(self.inode_extent(&record)?),
                None => layout.place(self.inode_extent(&record)?),
            };
            match has_metabox && number > 0 {
                true => placement.metabox.push((start, number)),
                false => placement.area.push((start, AreaItem::Inode(number))),
            }
            if let Some(place) = placement.places.get_mut(id.index()) {
                *place = InodeAddress { start, block: blocks };
            }
            blocks += self.own_blocks(&record);
        }
        placement.area.sort_unstable_by_key(|(start, _)| *start);
        placement.metabox.sort_unstable_by_key(|(start, _)| *start);
        placement.area_end_block = self.block_size().count(layout.end());
        placement.metabox_bytes = metabox.map_or(0, |layout| layout.end());
        Ok(placement)
    }
}

impl InodePlacement {
    /// The nid of an inode.
    pub(super) fn nid(&self, id: NodeId) -> Nid {
        let slot = self.places.get(id.index()).map_or(0, |place| place.start) / SLOT_BYTES;
        match self.has_metabox && id != Tree::ROOT {
            true => Nid::in_metabox(slot),
            false => Nid::new(slot),
        }
    }

    /// The first block of an inode's own blocks.
    pub(super) fn block(&self, id: NodeId) -> u64 {
        let block = self.places.get(id.index()).map_or(0, |place| place.block);
        self.area_end_block.saturating_add(block)
    }
}
