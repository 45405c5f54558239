//! Where every inode lies, and writing it there: in the metadata area behind the data, in the head, or in the
//! metabox, which is generated while it is written.

use ferrofs_ondisk::Nid;

use crate::Result;
use crate::context::BuildContext;
use crate::data_map::InternalFile;
use crate::image_file::ImageWriter;
use crate::metadata::allocator::{InodeAllocator, InodeExtent, SLOT_BYTES};
use crate::metadata::check_cancelled;
use crate::metadata::inode::{Features, InodeRecords, inode_number};
use crate::spill::paged::{PagedArray, Record};
use crate::spill::sorter::Sorter;
use crate::tree::{NodeId, Tree};

/// Where everything lies but the internal files, which come last.
#[derive(Debug)]
pub(super) struct InodePlacement {
    /// By the index of the node.
    places: PagedArray<InodeAddress>,
    has_metabox: bool,
    /// What lies in the area, and the root, each with its first byte in the image, in that order: the number of an
    /// inode and 1, or 0 for the shared xattrs.
    pub(super) area: PagedArray<(u64, u32)>,
    /// The first block behind the area.
    pub(super) area_end_block: u64,
    /// Blocks of directories and symlinks behind the area.
    own_blocks: u64,
    /// Byte of the image.
    pub(super) shared_at: u64,
    /// Numbers of the inodes in the metabox, each with its first byte in it; in that order.
    pub(super) metabox: PagedArray<(u64, u32)>,
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

impl Record for InodeAddress {
    const BYTES: usize = 16;

    fn store(self, output: &mut [u8]) {
        (self.start, self.block).store(output);
    }

    fn load(bytes: &[u8]) -> Self {
        let (start, block) = Record::load(bytes);
        Self { start, block }
    }
}

impl InodeRecords<'_, '_> {
    /// Finds a place for every inode but the root, which has one. `layout` allocates from the metadata area.
    ///
    /// # Errors
    /// A value that an inode cannot hold, or no block can hold, with its path.
    pub(super) fn place(
        &self,
        mut layout: InodeAllocator,
        context: &BuildContext<'_>,
    ) -> Result<InodePlacement> {
        let prepared = self.prepared;
        let has_metabox = prepared.options.metabox_pcluster_bytes.is_some();
        let mut metabox = has_metabox.then(|| InodeAllocator::new(self.block_size(), 0));
        let store = prepared.tree.store();
        let (mut area, mut in_metabox) = (Sorter::new(store), Sorter::new(store));
        let mut placement = InodePlacement {
            places: PagedArray::zeros(store, prepared.tree.len()),
            has_metabox,
            area: PagedArray::new(store),
            area_end_block: 0,
            own_blocks: 0,
            shared_at: 0,
            metabox: PagedArray::new(store),
            metabox_bytes: 0,
            features: Features::default(),
        };
        let shared = InodeExtent { core_bytes: prepared.xattrs.shared.len() as u64, tail: 0 };
        if shared.core_bytes > 0 {
            placement.shared_at = layout.place(shared);
            area.push((placement.shared_at, 0));
        }
        let mut blocks = 0;
        for (number, id) in prepared.inode_order.iter().enumerate() {
            check_cancelled(number, context)?;
            let loaded = self.load(number)?;
            let record = self.record(&loaded, 0)?;
            placement.features.add(&record);
            let start = match &mut metabox {
                _ if number == 0 => prepared.root_at,
                Some(metabox) => metabox.place(self.inode_extent(&record)?),
                None => layout.place(self.inode_extent(&record)?),
            };
            match has_metabox && number > 0 {
                true => in_metabox.push((start, inode_number(number))),
                false => area.push((start, inode_number(number))),
            }
            placement.places.set(id.index(), InodeAddress { start, block: blocks });
            blocks += self.own_blocks(&record);
        }
        area.finish().for_each(|item| placement.area.push(item));
        in_metabox.finish().for_each(|item| placement.metabox.push(item));
        store.check()?;
        placement.area_end_block = self.block_size().count(layout.end());
        placement.own_blocks = blocks;
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

    /// The first block behind the area and the blocks of directories and symlinks.
    pub(super) fn end_block(&self) -> u64 {
        self.area_end_block.saturating_add(self.own_blocks)
    }

    /// The first block of an inode's own blocks.
    pub(super) fn block(&self, id: NodeId) -> u64 {
        let block = self.places.get(id.index()).map_or(0, |place| place.block);
        self.area_end_block.saturating_add(block)
    }
}

impl InodeRecords<'_, '_> {
    /// Writes the inodes of those of `files` that there are, where `layout` has room. Returns the head, and
    /// the nid of each.
    ///
    /// # Errors
    /// A value that an inode cannot hold; errors of the host.
    pub(super) fn write_special(
        &self,
        files: [Option<&InternalFile>; 2],
        mut layout: InodeAllocator,
        features: &mut Features,
        mut area: MetadataArea<'_>,
    ) -> Result<(Vec<u8>, [Option<Nid>; 2])> {
        let mut inodes = Vec::new();
        let mut nids = [None; 2];
        for ((number, file), nid) in files.into_iter().enumerate().zip(&mut nids) {
            let Some(file) = file else { continue };
            let record = self.special(number, file)?;
            features.add(&record);
            let start = layout.place(self.inode_extent(&record)?);
            inodes.push((start, record.render(self.prepared.times.base, &[], &[])?));
            *nid = Some(Nid::new(start / SLOT_BYTES));
        }
        inodes.sort_unstable_by_key(|(start, _)| *start);
        for (start, bytes) in inodes {
            area.put(start, &bytes)?;
        }
        Ok((area.finish_block()?, nids))
    }
}

/// Writes inodes in the order of their places.
#[derive(Debug)]
pub(crate) struct MetadataArea<'i> {
    image: &'i mut ImageWriter,
    head: Vec<u8>,
}

impl<'i> MetadataArea<'i> {
    /// An area at the end of `image`, whose `head` is kept for the end of the build.
    pub(crate) fn new(image: &'i mut ImageWriter, head: Vec<u8>) -> Self {
        Self { image, head }
    }

    /// Writes `bytes` at byte `start` of the image: in the head, or behind all that came before.
    ///
    /// # Errors
    /// Errors of the host.
    ///
    /// # Panics
    /// If two inodes overlap, which only a bug in the allocator makes.
    pub(crate) fn put(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        let in_head = usize::try_from(start).ok().filter(|start| *start < self.head.len());
        if let Some(start) = in_head {
            let place = self.head.get_mut(start..start.saturating_add(bytes.len()));
            place.expect("an inode of the head ends in it").copy_from_slice(bytes);
            return Ok(());
        }
        self.fill_to(start)?;
        self.image.write(bytes)
    }

    /// Ends the area at byte `end` of the image. Returns the head.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub(crate) fn end(mut self, end: u64) -> Result<Vec<u8>> {
        self.fill_to(end)?;
        Ok(self.head)
    }

    /// Ends the area with its last block. Returns the head.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub(crate) fn finish_block(self) -> Result<Vec<u8>> {
        self.image.fill_block()?;
        Ok(self.head)
    }

    fn fill_to(&mut self, start: u64) -> Result<()> {
        let at = self.image.bytes();
        assert!(at <= start, "what ends at byte {at} overlaps what starts at byte {start}");
        self.image.write_zeros(start - at)
    }
}

/// Generates the bytes of the metabox from the first to the last.
pub(super) struct MetaboxGenerator<'a, 't> {
    records: InodeRecords<'a, 't>,
    placement: &'a InodePlacement,
    context: &'a BuildContext<'a>,
    /// How many inodes were made.
    inodes: usize,
    /// How many bytes were returned.
    handed_out: u64,
    /// What was made and not returned.
    made: Vec<u8>,
}

impl<'a, 't> MetaboxGenerator<'a, 't> {
    /// The inodes of `placement` as `records` say them.
    pub(super) fn new(
        records: InodeRecords<'a, 't>,
        placement: &'a InodePlacement,
        context: &'a BuildContext<'a>,
    ) -> Self {
        Self { records, placement, context, inodes: 0, handed_out: 0, made: Vec::new() }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// A value that an inode cannot hold, with its path.
    ///
    /// # Panics
    /// If two inodes overlap, which only a bug in the allocator makes.
    pub(super) fn next(&mut self, count: usize) -> Result<Vec<u8>> {
        while self.made.len() < count {
            let Some((start, number)) = self.placement.metabox.get(self.inodes) else {
                self.made.resize(count, 0);
                break;
            };
            check_cancelled(self.inodes, self.context)?;
            self.inodes += 1;
            let start = usize::try_from(start - self.handed_out).unwrap_or(usize::MAX);
            assert!(self.made.len() <= start, "inode {number} starts in the one before it");
            self.made.resize(start, 0);
            self.made.extend(self.records.render((number - 1) as usize, self.placement)?);
        }
        let rest = self.made.split_off(count);
        self.handed_out += count as u64;
        Ok(std::mem::replace(&mut self.made, rest))
    }
}
