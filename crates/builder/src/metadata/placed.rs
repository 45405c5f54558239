//! Where every inode lies, once its shape is known: in the zone behind the data, or in the metabox.

use ferrofs_ondisk::Nid;

use super::features::Features;
use super::layout::{Layout, SLOT_BYTES, Shape};
use super::look;
use super::records::Records;
use crate::Result;
use crate::tree::{NodeId, Tree};
use crate::watch::Watch;

/// Where everything lies but the special files, which come last.
#[derive(Debug)]
pub(super) struct Placed {
    /// By the index of the node.
    places: Vec<Place>,
    has_metabox: bool,
    /// What lies in the zone, and the root, each with its first byte in the image; in that order.
    pub(super) zone: Vec<(u64, Item)>,
    /// The first block behind the zone.
    pub(super) zone_end_block: u64,
    /// Byte of the image.
    pub(super) shared_at: u64,
    /// Numbers of the inodes in the metabox, each with its first byte in it; in that order.
    pub(super) metabox: Vec<(u64, usize)>,
    pub(super) metabox_bytes: u64,
    pub(super) features: Features,
}

/// Where an inode lies.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Its first byte, in the image or in the metabox.
    start: u64,
    /// Its first block of those behind the zone, counted from the first of them.
    block: u64,
}

/// What is written into the zone.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    /// The inode with this number in the order.
    Inode(usize),
    SharedXattrs,
}

impl Records<'_, '_> {
    /// Finds a place for every inode but the root, which has one. The zone is laid out by `layout`.
    ///
    /// # Errors
    /// What an inode cannot say, or no block can hold, with its path.
    pub(super) fn place(&self, mut layout: Layout, watch: &dyn Watch) -> Result<Placed> {
        let prepared = self.prepared;
        let has_metabox = prepared.options.metabox_pcluster_bytes.is_some();
        let mut metabox = has_metabox.then(|| Layout::new(self.block_size(), 0));
        let mut placed = Placed {
            places: vec![Place::default(); prepared.tree.len()],
            has_metabox,
            zone: Vec::new(),
            zone_end_block: 0,
            shared_at: 0,
            metabox: Vec::new(),
            metabox_bytes: 0,
            features: Features::default(),
        };
        let shared = Shape { lead: prepared.xattrs.shared.len() as u64, tail: 0 };
        if shared.lead > 0 {
            placed.shared_at = layout.place(shared);
            placed.zone.push((placed.shared_at, Item::SharedXattrs));
        }
        let mut blocks = 0;
        for (number, id) in prepared.inventory.order.iter().enumerate() {
            look(number, watch)?;
            let record = self.record(number, 0)?;
            placed.features.note(&record);
            let start = match &mut metabox {
                _ if number == 0 => prepared.root_at,
                Some(metabox) => metabox.place(self.shape(&record)?),
                None => layout.place(self.shape(&record)?),
            };
            match has_metabox && number > 0 {
                true => placed.metabox.push((start, number)),
                false => placed.zone.push((start, Item::Inode(number))),
            }
            if let Some(place) = placed.places.get_mut(id.index()) {
                *place = Place { start, block: blocks };
            }
            blocks += self.own_blocks(&record);
        }
        placed.zone.sort_unstable_by_key(|(start, _)| *start);
        placed.metabox.sort_unstable_by_key(|(start, _)| *start);
        placed.zone_end_block = self.block_size().count(layout.end());
        placed.metabox_bytes = metabox.map_or(0, |layout| layout.end());
        Ok(placed)
    }
}

impl Placed {
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
        self.zone_end_block.saturating_add(block)
    }
}
