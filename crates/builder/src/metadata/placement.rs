//! Which inodes an image gets, in which order ([`InodeOrder`]), where every one lies, and writing it there: in the
//! metadata area behind the data, in the head, or in the metabox, which is generated while it is written.
//!
//! An inode gets slots of 32 bytes, and no inline tail crosses a block. [`InodeAllocator`] is best fit: it keeps the
//! gaps that large inodes leave at the end of blocks, and takes the smallest one that is large enough; of equal ones
//! the first. The result depends on the sizes of the inodes and their order only.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use ferrofs_ondisk::{BlockSize, FileType, Nid};

use crate::context::BuildContext;
use crate::data_map::InternalFile;
use crate::image_file::ImageWriter;
use crate::metadata::check_cancelled;
use crate::metadata::inode::{Features, InodeExtent, InodeRecords, SLOT_BYTES, inode_number};
use crate::spill::paged::{PagedArray, Record, Sorter};
use crate::tree::{NodeId, NodeKind, Tree, shown_path};
use crate::{Error, ErrorKind, Result};

/// Every inode of a tree that has a name, once: the order in which inodes and their data lie in the image, how many names
/// each has, and the parents of directories.
#[derive(Debug)]
pub(crate) struct InodeOrder {
    /// In depth-first order of names, each where its first name is. The root comes first.
    order: PagedArray<u32>,
    /// By the index of the node: names, and for directories what Linux counts. 0: it has no name.
    links: PagedArray<u32>,
    /// By the index of the node: the directory that a directory lies in. The root lies in itself.
    parents: PagedArray<u32>,
}

impl InodeOrder {
    /// Lists what has a name in `tree`.
    ///
    /// # Errors
    /// A directory with two names, which also is what a tree with a cycle has, and a symlink to nowhere
    /// or farther than Linux follows.
    pub(crate) fn new(tree: &Tree) -> Result<Self> {
        let store = tree.store();
        let mut inode_order = Self {
            order: PagedArray::new(store),
            links: PagedArray::zeros(store, tree.len()),
            parents: PagedArray::zeros(store, tree.len()),
        };
        tree.walk(|path, id| {
            inode_order.note(tree, id).map_err(|error| error.at(shown_path(path)))
        })?;
        inode_order.note_parents(tree);
        store.check()?;
        Ok(inode_order)
    }

    /// Names of `id`; for directories two and one more for each directory in it.
    pub(crate) fn links(&self, id: NodeId) -> u32 {
        self.links.get(id.index()).unwrap_or(0)
    }

    /// The directory that the directory `id` lies in.
    pub(crate) fn parent(&self, id: NodeId) -> NodeId {
        NodeId::from_index(self.parents.get(id.index()).unwrap_or(0))
    }

    /// How many inodes there are.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The inode with this number.
    pub(crate) fn get(&self, number: usize) -> Option<NodeId> {
        self.order.get(number).map(NodeId::from_index)
    }

    /// All inodes in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = NodeId> {
        self.order.iter().map(NodeId::from_index)
    }

    fn note(&mut self, tree: &Tree, id: NodeId) -> Result<()> {
        let (links, file_type) = (self.links(id), tree.file_type(id));
        if file_type == FileType::Directory && links > 0 {
            return Err(unsupported("a directory with two names"));
        }
        if links == 0 {
            self.order.push(id.number());
        }
        let more = links.checked_add(1).ok_or_else(|| unsupported("an inode with 2^32 names"))?;
        self.links.set(id.index(), more);
        match file_type {
            FileType::Symlink if links == 0 => check_target(tree, id),
            _ => Ok(()),
        }
    }

    fn note_parents(&mut self, tree: &Tree) {
        for id in self.order.iter().map(NodeId::from_index).filter(|id| tree.is_directory(*id)) {
            let mut directories = 0u32;
            for (_, child) in tree.entries(id).filter(|(_, child)| tree.is_directory(*child)) {
                directories = directories.saturating_add(1);
                self.parents.set(child.index(), id.number());
            }
            self.links.set(id.index(), directories.saturating_add(2));
        }
    }
}

fn check_target(tree: &Tree, id: NodeId) -> Result<()> {
    match tree.node(id).kind {
        NodeKind::Symlink(target) if target.is_empty() => {
            Err(unsupported("a symlink without a target"))
        }
        NodeKind::Symlink(target) if target.len() > TARGET_MAX_BYTES => {
            Err(unsupported("a symlink with a target of more than 4,095 bytes"))
        }
        NodeKind::Symlink(target) if target.contains(&0) => {
            Err(unsupported("a symlink with a NUL in its target"))
        }
        _ => Ok(()),
    }
}

/// The longest target that Linux follows: a path of 4,096 bytes with its NUL.
const TARGET_MAX_BYTES: usize = 4095;

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported(what.to_owned()))
}

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
    /// Finds a place for every inode but the root, which has one. `allocator` allocates from the metadata area.
    ///
    /// # Errors
    /// A value that an inode cannot hold, or no block can hold, with its path.
    pub(super) fn place(
        &self,
        mut allocator: InodeAllocator,
        context: &BuildContext<'_>,
    ) -> Result<InodePlacement> {
        let writer = self.writer;
        let has_metabox = writer.options.metabox_pcluster_bytes.is_some();
        let mut metabox = has_metabox.then(|| InodeAllocator::new(self.block_size(), 0));
        let store = writer.tree.store();
        let (mut area, mut in_metabox) = (Sorter::new(store), Sorter::new(store));
        let mut placement = InodePlacement {
            places: PagedArray::zeros(store, writer.tree.len()),
            has_metabox,
            area: PagedArray::new(store),
            area_end_block: 0,
            own_blocks: 0,
            shared_at: 0,
            metabox: PagedArray::new(store),
            metabox_bytes: 0,
            features: Features::default(),
        };
        let shared = InodeExtent { core_bytes: writer.xattrs.shared.len(), tail: 0 };
        if shared.core_bytes > 0 {
            placement.shared_at = allocator.place(shared);
            area.push((placement.shared_at, 0));
        }
        let mut blocks = 0;
        for (number, id) in writer.inode_order.iter().enumerate() {
            check_cancelled(number, context)?;
            let loaded = self.load(number)?;
            let record = self.record(&loaded, 0)?;
            placement.features.add(&record);
            let start = match &mut metabox {
                _ if number == 0 => writer.root_at,
                Some(metabox) => metabox.place(self.inode_extent(&record)?),
                None => allocator.place(self.inode_extent(&record)?),
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
        placement.area_end_block = self.block_size().count(allocator.end());
        placement.own_blocks = blocks;
        placement.metabox_bytes = metabox.map_or(0, |allocator| allocator.end());
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
    /// Writes the inodes of those of `files` that there are, where `allocator` has room. Returns the head, and
    /// the nid of each.
    ///
    /// # Errors
    /// A value that an inode cannot hold; errors of the host.
    pub(super) fn write_special(
        &self,
        files: [Option<&InternalFile>; 2],
        mut allocator: InodeAllocator,
        features: &mut Features,
        mut area: MetadataArea<'_>,
    ) -> Result<(Vec<u8>, [Option<Nid>; 2])> {
        let mut inodes = Vec::new();
        let mut nids = [None; 2];
        for ((number, file), nid) in files.into_iter().enumerate().zip(&mut nids) {
            let Some(file) = file else { continue };
            let record = self.special(number, file)?;
            features.add(&record);
            let start = allocator.place(self.inode_extent(&record)?);
            inodes.push((start, record.render(self.writer.times.base, &[], &[])?));
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
pub(super) struct MetadataArea<'i> {
    image: &'i mut ImageWriter,
    head: Vec<u8>,
}

impl<'i> MetadataArea<'i> {
    /// An area at the end of `image`, whose `head` is kept for the end of the build.
    pub(super) fn new(image: &'i mut ImageWriter, head: Vec<u8>) -> Self {
        Self { image, head }
    }

    /// Writes `bytes` at byte `start` of the image: in the head, or behind all that came before.
    ///
    /// # Errors
    /// Errors of the host.
    ///
    /// # Panics
    /// If two inodes overlap, which only a bug in the allocator makes.
    pub(super) fn put(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
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
    pub(super) fn end(mut self, end: u64) -> Result<Vec<u8>> {
        self.fill_to(end)?;
        Ok(self.head)
    }

    /// Ends the area with its last block. Returns the head.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn finish_block(self) -> Result<Vec<u8>> {
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

/// Allocates from some byte of the image, or of the metabox, on.
#[derive(Debug)]
pub(super) struct InodeAllocator {
    block_bytes: u64,
    /// Everything from here on is free.
    end: u64,
    /// What is free before `end`: by the length in slots, where gaps of that length start. None crosses a block.
    gaps: Vec<BinaryHeap<Reverse<u64>>>,
}

impl InodeAllocator {
    /// An allocator that starts at byte `start` of the image.
    pub(super) fn new(block_size: BlockSize, start: u64) -> Self {
        Self {
            block_bytes: u64::from(block_size.bytes()),
            end: start.next_multiple_of(SLOT_BYTES),
            gaps: Vec::new(),
        }
    }

    /// The byte behind the last one that is taken.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Goes on at `start`, the start of a block. What is left of the last block is used, too.
    pub(super) fn resume_at(&mut self, start: u64) {
        let rest = self.end..self.end.next_multiple_of(self.block_bytes).min(start);
        self.add_gap(rest);
        self.end = start;
    }

    /// Finds a place for a [possible](InodeExtent::is_possible) inode: where it starts, a multiple of 32.
    pub(super) fn place(&mut self, inode_extent: InodeExtent) -> u64 {
        let bytes = inode_extent.bytes();
        if let Some((gap, start)) = self.take_gap(bytes) {
            self.add_gap(start.saturating_add(bytes)..start.saturating_add(gap));
            return start;
        }
        let start = self.first_fit(inode_extent);
        self.add_gap(self.end..start);
        self.end = start.saturating_add(bytes).next_multiple_of(SLOT_BYTES);
        start
    }

    /// The smallest gap of at least `bytes` bytes, of equal ones the first: its length and its start.
    fn take_gap(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let min = usize::try_from(bytes.div_ceil(SLOT_BYTES)).ok()?;
        let slots = (min..self.gaps.len()).find(|slots| !self.gaps[*slots].is_empty())?;
        let Reverse(start) = self.gaps[slots].pop()?;
        Some((slots as u64 * SLOT_BYTES, start))
    }

    /// The first place from the end on. If the tail does not fit into the block in which the core would
    /// end, it is the next block's start or a place behind it: an inode in one block is read at once.
    fn first_fit(&self, inode_extent: InodeExtent) -> u64 {
        if self.fits_at(self.end, inode_extent) {
            return self.end;
        }
        let mut start = self.end.next_multiple_of(self.block_bytes);
        // The core ends somewhere in its block, in steps of 32: one block of such steps finds the place.
        for _ in 0..self.block_bytes / SLOT_BYTES {
            if self.fits_at(start, inode_extent) {
                break;
            }
            start = start.saturating_add(SLOT_BYTES);
        }
        start
    }

    fn fits_at(&self, start: u64, inode_extent: InodeExtent) -> bool {
        if inode_extent.tail == 0 {
            return true;
        }
        // Old kernels look for a symlink's target in the block in which its inode ends.
        let used = start.saturating_add(inode_extent.core_bytes) % self.block_bytes;
        used != 0 && used.saturating_add(inode_extent.tail) <= self.block_bytes
    }

    /// Keeps a free range for later, block by block.
    fn add_gap(&mut self, free: Range<u64>) {
        let mut start = free.start.next_multiple_of(SLOT_BYTES);
        while start < free.end {
            let end = start.saturating_add(1).next_multiple_of(self.block_bytes).min(free.end);
            // A block has a few thousand slots.
            let slots = usize::try_from(end.saturating_sub(start) / SLOT_BYTES).unwrap_or(0);
            if slots > 0 {
                if self.gaps.len() <= slots {
                    self.gaps.resize_with(slots + 1, BinaryHeap::new);
                }
                self.gaps[slots].push(Reverse(start));
            }
            start = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_source::{metadata, node};
    use crate::tree::Node;

    #[test]
    fn an_inode_comes_once_and_counts_its_names() {
        let mut tree = Tree::new(metadata());
        let file = tree.add(node(NodeKind::Fifo)).unwrap();
        let directory = tree.add(Node::directory(metadata())).unwrap();
        let nameless = tree.add(node(NodeKind::Socket)).unwrap();
        tree.link(Tree::ROOT, b"z", file).unwrap();
        tree.link(Tree::ROOT, b"a", directory).unwrap();
        tree.link(directory, b"link", file).unwrap();
        let inode_order = InodeOrder::new(&tree).unwrap();
        assert!(inode_order.iter().eq([Tree::ROOT, directory, file]));
        assert_eq!(inode_order.links(Tree::ROOT), 3);
        assert_eq!((inode_order.links(directory), inode_order.links(file)), (2, 2));
        assert_eq!(inode_order.links(nameless), 0);
        assert_eq!(inode_order.parent(directory), Tree::ROOT);
    }

    #[test]
    fn a_directory_in_itself_is_refused_with_its_path() {
        let mut tree = Tree::new(metadata());
        let outer = tree.add(Node::directory(metadata())).unwrap();
        tree.link(Tree::ROOT, b"outer", outer).unwrap();
        tree.link(outer, b"again", outer).unwrap();
        let error = InodeOrder::new(&tree).unwrap_err();
        assert_eq!(error.to_string(), "outer/again: a directory with two names");
    }

    #[test]
    fn a_symlink_that_leads_nowhere_is_refused() {
        let targets: [&[u8]; 3] = [b"", &[b'x'; 4096], b"a\0b"];
        for target in targets {
            let mut tree = Tree::new(metadata());
            let link = tree.add(node(NodeKind::Symlink(target.into()))).unwrap();
            tree.link(Tree::ROOT, b"link", link).unwrap();
            InodeOrder::new(&tree).unwrap_err();
        }
    }

    fn block_size(bits: u8) -> BlockSize {
        BlockSize::from_bits(bits).unwrap()
    }

    fn inode_extent(core_bytes: u64, tail: u64) -> InodeExtent {
        InodeExtent { core_bytes, tail }
    }

    #[test]
    fn a_tail_that_would_cross_a_block_goes_to_the_next_one() {
        let mut allocator = InodeAllocator::new(block_size(9), 512);
        assert_eq!(allocator.place(inode_extent(32, 300)), 512);
        assert_eq!(allocator.place(inode_extent(32, 300)), 1024);
        assert_eq!(allocator.place(inode_extent(32, 100)), 864);
        assert_eq!(allocator.place(inode_extent(64, 0)), 1376);
        assert_eq!(allocator.end(), 1440);
    }

    #[test]
    fn a_tail_never_starts_a_block() {
        let mut allocator = InodeAllocator::new(block_size(9), 480);
        assert_eq!(allocator.place(inode_extent(32, 10)), 512);
        assert_eq!(allocator.place(inode_extent(32, 0)), 480);
    }

    #[test]
    fn what_is_left_of_the_head_is_used() {
        let mut allocator = InodeAllocator::new(block_size(12), 1152);
        assert_eq!(allocator.place(inode_extent(32, 60)), 1152);
        allocator.resume_at(1 << 20);
        assert_eq!(allocator.place(inode_extent(32, 2000)), 1248);
        assert_eq!(allocator.place(inode_extent(32, 2000)), 1 << 20);
        assert_eq!(allocator.place(inode_extent(32, 700)), 3296);
        assert_eq!(allocator.place(inode_extent(32, 28)), 4032);
    }

    #[test]
    fn a_tail_that_fits_no_block_is_not_possible() {
        assert!(inode_extent(32, 480).is_possible(block_size(9)));
        assert!(!inode_extent(32, 481).is_possible(block_size(9)));
        assert!(inode_extent(44, 500).is_possible(block_size(9)));
        assert!(!inode_extent(44, 501).is_possible(block_size(9)));
    }

    proptest! {
        #[test]
        fn no_two_inodes_overlap_and_no_tail_crosses_a_block(
            shapes in proptest::collection::vec((32u64..1500, 0u64..480), 1..200), bits in 9u8..13,
        ) {
            let size = block_size(bits);
            let block = u64::from(size.bytes());
            let mut allocator = InodeAllocator::new(size, 1152);
            let mut taken = Vec::new();
            for (core_bytes, tail) in shapes {
                let inode_extent = InodeExtent { core_bytes, tail };
                if !inode_extent.is_possible(size) {
                    continue;
                }
                let start = allocator.place(inode_extent);
                prop_assert_eq!(start % 32, 0);
                let behind = start + core_bytes;
                prop_assert!(tail == 0 || (behind - 1) / block == (behind + tail - 1) / block);
                taken.push(start..behind + tail);
            }
            taken.sort_by_key(|range| range.start);
            prop_assert!(taken.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert!(taken.last().is_none_or(|range| range.end <= allocator.end()));
        }
    }
}
