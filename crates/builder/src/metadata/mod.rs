//! Everything of an image but the contents of its regular files: inodes, directories, xattrs, indexes.
//!
//! [`Prepared`] is made before the data is written, since the root lies in the head of the image, in front
//! of the data; [`Prepared::write`] does the rest behind it:
//!
//! ```text
//! head: superblock, configuration records, long prefixes, root, and whatever else fits its last block
//! data: as the data path appended it
//! zone: inodes, shared xattrs
//! whole blocks of directories and of long symlinks
//! ```
//!
//! Nids count from the start of the image (`meta_blkaddr` is 0), so that none is 0 and the root's is small.

mod directories;
mod extents;
mod features;
mod indexes;
mod inodes;
mod inventory;
mod layout;
#[cfg(test)]
pub(crate) mod sample;
mod time_base;
mod xattrs;
mod zone;

use ferrofs_ondisk::{BlockSize, Nid};

pub(crate) use self::features::Features;
pub(crate) use self::inventory::Inventory;
pub(crate) use self::time_base::SuperblockTimes;
pub(crate) use self::xattrs::long_prefix;

use self::directories::Directories;
use self::indexes::IndexStyle;
use self::inodes::{Behind, FlatPlace, Identity, InodeStyle, Record};
use self::inventory::path_of;
use self::layout::{Layout, SLOT_BYTES, Shape};
use self::xattrs::XattrPlan;
use self::zone::Zone;
use crate::data::DataMap;
use crate::image_file::ImageFile;
use crate::tree::{Kind, Node, NodeId, Tree};
use crate::watch::Watch;
use crate::{Error, ErrorKind, Options, Result};

/// Inodes that are handled between two looks at whether to stop.
const INODES_A_LOOK: usize = 1024;

/// A tree that has been looked through, and the head of its image.
#[derive(Debug)]
pub(crate) struct Prepared<'t> {
    tree: &'t Tree,
    options: &'t Options,
    pub(crate) inventory: Inventory,
    xattrs: XattrPlan<'t>,
    pub(crate) times: SuperblockTimes,
    layout: Layout,
    root_at: u64,
    /// Bytes of the head: whole blocks.
    pub(crate) head_bytes: u64,
}

/// What the superblock says of the metadata.
#[derive(Debug)]
pub(crate) struct Written {
    /// The head, but for what lies in front of the root.
    pub(crate) head: Vec<u8>,
    pub(crate) features: Features,
    pub(crate) root: Nid,
    pub(crate) packed: Option<Nid>,
    pub(crate) xattr_block: u32,
    pub(crate) inodes: u64,
}

/// Where an inode lies.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    start: u64,
    /// Its first block of those behind the zone, counted from the first of them.
    block: u64,
}

/// What is written into the zone.
#[derive(Clone, Copy, Debug)]
enum Item {
    /// The inode with this number in the order.
    Inode(usize),
    Packed,
    SharedXattrs,
}

impl<'t> Prepared<'t> {
    /// Looks through `tree`.
    ///
    /// # Errors
    /// Whatever an image cannot hold, with the path.
    pub(crate) fn new(tree: &'t Tree, options: &'t Options) -> Result<Self> {
        let inventory = Inventory::new(tree)?;
        let xattrs = XattrPlan::new(tree, &inventory.order, options)
            .map_err(|(id, error)| error.at(path_of(tree, id)))?;
        let of_inodes = inventory.order.iter().map(|id| tree.node(*id).metadata.mtime);
        let times = SuperblockTimes::choose(options.time, options.wide, of_inodes);
        let layout = Layout::new(options.block_size, 0);
        Ok(Self { tree, options, inventory, xattrs, times, layout, root_at: 0, head_bytes: 0 })
    }

    /// Places the root behind the first `front_bytes` of the image, which belong to others, and settles how
    /// long the head is.
    ///
    /// # Errors
    /// What an image cannot say of its root.
    pub(crate) fn settle_head(&mut self, front_bytes: u64) -> Result<()> {
        let files = DataMap::default();
        let root = Job { prepared: self, data: &files }.record(0, 0);
        let shape = root.and_then(|root| self.shape(&root)).map_err(|error| error.at("/"))?;
        self.layout = Layout::new(self.options.block_size, front_bytes);
        self.root_at = self.layout.place(shape);
        let block = u64::from(self.options.block_size.bytes());
        self.head_bytes = self.layout.end().next_multiple_of(block);
        Ok(())
    }

    /// The table of long xattr prefixes, and how many there are.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for a prefix that is too long.
    pub(crate) fn prefixes(&self) -> Result<(Vec<u8>, u8)> {
        Ok((self.xattrs.prefix_table()?, self.xattrs.prefix_count()))
    }

    /// How many devices there are beside the image.
    ///
    /// # Errors
    /// More than 16 bits count.
    pub(crate) fn devices(&self) -> Result<u16> {
        let count = self.tree.devices().len() + usize::from(self.options.blob.is_some());
        u16::try_from(count)
            .map_err(|_| Error::new(ErrorKind::Unsupported("more than 65,535 devices".to_owned())))
    }

    /// Whether any inode has an xattr.
    pub(crate) fn has_xattrs(&self) -> bool {
        self.xattrs.has_any()
    }

    /// Writes all metadata behind the data, which lies as `data` says.
    ///
    /// # Errors
    /// The host's, and whatever an image cannot hold.
    pub(crate) fn write(
        mut self,
        data: &DataMap,
        image: &mut ImageFile,
        watch: &dyn Watch,
    ) -> Result<Written> {
        image.fill_block()?;
        let mut layout =
            std::mem::replace(&mut self.layout, Layout::new(self.options.block_size, 0));
        layout.go_on_at(image.bytes());
        let placed = Job { prepared: &self, data }.place(layout, watch)?;
        let zone = Zone::new(image, self.head_bytes);
        let head = Job { prepared: &self, data }.write_zone(&placed, zone, watch)?;
        Job { prepared: &self, data }.write_blocks(&placed, image, watch)?;
        let block = u64::from(self.options.block_size.bytes());
        let xattr_block = u32::try_from(placed.shared_at / block).map_err(|_| {
            let what = "shared xattrs behind 2^32 blocks: share none, or use larger blocks";
            Error::new(ErrorKind::Unsupported(what.to_owned()))
        })?;
        Ok(Written {
            head,
            features: placed.features,
            root: nid(self.root_at),
            packed: data.packed.is_some().then(|| nid(placed.packed_at)),
            xattr_block,
            inodes: self.inventory.order.len() as u64,
        })
    }

    fn shape(&self, record: &Record<'_>) -> Result<Shape> {
        let shape = record.shape().filter(|shape| shape.is_possible(self.options.block_size));
        shape.ok_or_else(|| {
            let what = "an inode whose tail does not fit a block, or whose index is too large";
            Error::new(ErrorKind::Unsupported(what.to_owned()))
        })
    }

    fn node(&self, id: NodeId) -> &'t Node {
        self.tree.node(id)
    }
}

/// Where everything lies.
#[derive(Debug)]
struct Placed {
    /// By the index of the node.
    places: Vec<Place>,
    packed_at: u64,
    shared_at: u64,
    /// The first block behind the zone.
    zone_end_block: u64,
    features: Features,
}

/// The making of metadata, once it is known where data lies.
#[derive(Debug)]
struct Job<'a, 't> {
    prepared: &'a Prepared<'t>,
    data: &'a DataMap,
}

impl<'a> Job<'a, '_> {
    /// Finds a place for every inode but the root, which has one.
    fn place(&self, mut layout: Layout, watch: &dyn Watch) -> Result<Placed> {
        let prepared = self.prepared;
        let mut features = Features::default();
        let mut places = vec![Place::default(); prepared.tree.len()];
        let shared = Shape { lead: prepared.xattrs.shared.len() as u64, tail: 0 };
        let shared_at = if shared.lead == 0 { 0 } else { layout.place(shared) };
        let mut packed_at = 0;
        if let Some(record) = self.packed_record()? {
            features.note(&record);
            packed_at = layout.place(prepared.shape(&record)?);
        }
        let mut blocks = 0;
        for (number, id) in prepared.inventory.order.iter().enumerate() {
            look(number, watch)?;
            let record = self.record(number, 0).map_err(|error| self.at(*id, error))?;
            features.note(&record);
            let start = if number == 0 {
                prepared.root_at
            } else {
                let shape = prepared.shape(&record).map_err(|error| self.at(*id, error))?;
                layout.place(shape)
            };
            if let Some(place) = places.get_mut(id.index()) {
                *place = Place { start, block: blocks };
            }
            blocks += self.blocks_behind(&record);
        }
        let zone_end_block = self.block_size().count(layout.end());
        Ok(Placed { places, packed_at, shared_at, zone_end_block, features })
    }

    /// Writes inodes and shared xattrs in the order of their places. Returns the head.
    fn write_zone(
        &self,
        placed: &Placed,
        mut zone: Zone<'_>,
        watch: &dyn Watch,
    ) -> Result<Vec<u8>> {
        let order = &self.prepared.inventory.order;
        let mut items: Vec<_> = order
            .iter()
            .enumerate()
            .map(|(number, id)| (placed.start(*id), Item::Inode(number)))
            .collect();
        if !self.prepared.xattrs.shared.is_empty() {
            items.push((placed.shared_at, Item::SharedXattrs));
        }
        if self.data.packed.is_some() {
            items.push((placed.packed_at, Item::Packed));
        }
        items.sort_unstable_by_key(|(start, _)| *start);
        for (count, (start, item)) in items.into_iter().enumerate() {
            look(count, watch)?;
            match item {
                Item::Inode(number) => zone.put(start, &self.render(number, placed)?)?,
                Item::SharedXattrs => zone.put(start, &self.prepared.xattrs.shared)?,
                Item::Packed => {
                    let Some(record) = self.packed_record()? else { continue };
                    zone.put(start, &record.render(self.prepared.times.base, &[], &[])?)?;
                }
            }
        }
        zone.end(self.block_size().offset_of(placed.zone_end_block).ok_or_else(too_large)?)
    }

    /// The bytes of an inode with what stands behind it.
    fn render(&self, number: usize, placed: &Placed) -> Result<Vec<u8>> {
        let prepared = self.prepared;
        let Some(&id) = prepared.inventory.order.get(number) else { return Ok(Vec::new()) };
        let record = self.record(number, placed.block(id)).map_err(|error| self.at(id, error))?;
        let shared_at = self.block_size().within(placed.shared_at);
        let xattrs = prepared.xattrs.body_of_node(id, shared_at)?;
        let directory_tail = match record.behind {
            Behind::DirectoryTail(bytes) => {
                let mut all = self.directories().render(id, &|id| nid(placed.start(id)))?;
                all.split_off(all.len().saturating_sub(bytes as usize))
            }
            _ => Vec::new(),
        };
        let rendered = record.render(prepared.times.base, &xattrs, &directory_tail);
        rendered.map_err(|error| self.at(id, error))
    }

    /// Writes the whole blocks of directories and of long symlinks.
    fn write_blocks(
        &self,
        placed: &Placed,
        image: &mut ImageFile,
        watch: &dyn Watch,
    ) -> Result<()> {
        for (number, &id) in self.prepared.inventory.order.iter().enumerate() {
            look(number, watch)?;
            if !matches!(self.prepared.node(id).kind, Kind::Directory(_) | Kind::Symlink(_)) {
                continue;
            }
            let record = self.record(number, placed.block(id))?;
            let blocks = self.blocks_behind(&record);
            if blocks == 0 {
                continue;
            }
            let whole = blocks.saturating_mul(u64::from(self.block_size().bytes()));
            let whole = usize::try_from(whole).map_err(|_| too_large())?;
            match &self.prepared.node(id).kind {
                Kind::Symlink(target) => image.write(target)?,
                _ => {
                    let bytes = self.directories().render(id, &|id| nid(placed.start(id)))?;
                    image.write(bytes.get(..whole).unwrap_or(&bytes))?;
                }
            }
            image.fill_block()?;
        }
        Ok(())
    }

    /// How many blocks behind the zone belong to an inode.
    fn blocks_behind(&self, record: &Record<'_>) -> u64 {
        use ferrofs_ondisk::FileType::{Directory, Symlink};
        let has_blocks = matches!(record.inode.file_type, Directory | Symlink);
        let inline = match record.behind {
            Behind::Tail(tail) => tail.len() as u64,
            Behind::DirectoryTail(bytes) => u64::from(bytes),
            _ => 0,
        };
        let bytes = record.inode.size.saturating_sub(inline);
        if has_blocks { self.block_size().count(bytes) } else { 0 }
    }

    /// The inode with this number in the order. `start_block` is where its own blocks start, if it is a
    /// directory or a symlink that has some.
    fn record(&self, number: usize, start_block: u64) -> Result<Record<'a>> {
        let prepared = self.prepared;
        let Some(&id) = prepared.inventory.order.get(number) else {
            return Err(Error::new(ErrorKind::Defect("an inode out of order")));
        };
        let identity = Identity {
            id,
            // Nothing depends on it but 32-bit programs, which want it not to be 0.
            number: u32::try_from(number.saturating_add(1)).unwrap_or(u32::MAX),
            links: prepared.inventory.links(id),
            xattr_bytes: prepared.xattrs.body_bytes(id),
        };
        let node = prepared.node(id);
        match &node.kind {
            Kind::File(content) => {
                let data = self.data.files.get(id.index()).and_then(Option::as_ref);
                let data = data.ok_or_else(|| {
                    Error::new(ErrorKind::Defect("a file whose data has no place"))
                })?;
                self.style().file(node, identity, content.bytes(), data)
            }
            Kind::Directory(_) => self.directory(node, identity, start_block),
            Kind::Symlink(target) => self.symlink(node, identity, target, start_block),
            _ => {
                let place = FlatPlace { bytes: 0, start_block: None, tail: Behind::Nothing };
                self.style().flat(node, identity, place)
            }
        }
    }

    /// The last bytes of a directory are inline, wherever that is possible.
    fn directory(&self, node: &Node, identity: Identity, start_block: u64) -> Result<Record<'a>> {
        let bytes = self.directories().bytes(identity.id)?;
        let rest = self.block_size().within(bytes);
        let start = Some(start_block);
        if rest > 0 {
            let start_block = start.filter(|_| bytes > u64::from(rest));
            let tail = Behind::DirectoryTail(rest);
            let place = FlatPlace { bytes, start_block, tail };
            let record = self.style().flat(node, identity, place)?;
            if self.prepared.shape(&record).is_ok() {
                return Ok(record);
            }
        }
        let place = FlatPlace { bytes, start_block: start, tail: Behind::Nothing };
        self.style().flat(node, identity, place)
    }

    /// A target is inline as a whole, so that following it needs nothing but the inode, or not at all.
    fn symlink(
        &self,
        node: &Node,
        identity: Identity,
        target: &'a [u8],
        start_block: u64,
    ) -> Result<Record<'a>> {
        let bytes = target.len() as u64;
        let place = FlatPlace { bytes, start_block: None, tail: Behind::Tail(target) };
        let record = self.style().flat(node, identity, place)?;
        if self.prepared.shape(&record).is_ok() {
            return Ok(record);
        }
        let place = FlatPlace { bytes, start_block: Some(start_block), tail: Behind::Nothing };
        self.style().flat(node, identity, place)
    }

    fn packed_record(&self) -> Result<Option<Record<'a>>> {
        let Some(packed) = &self.data.packed else { return Ok(None) };
        let number = self.prepared.inventory.order.len().saturating_add(1);
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.style().packed(number, packed.bytes, &packed.data).map(Some)
    }

    fn style(&self) -> InodeStyle {
        let options = self.prepared.options;
        InodeStyle::new(options, self.prepared.times.base, IndexStyle::new(options))
    }

    fn directories(&self) -> Directories<'_> {
        let Prepared { tree, inventory, options, .. } = self.prepared;
        Directories::new(tree, inventory, options.block_size, options.omit_dot)
    }

    fn block_size(&self) -> BlockSize {
        self.prepared.options.block_size
    }

    #[cold]
    fn at(&self, id: NodeId, error: Error) -> Error {
        error.at(path_of(self.prepared.tree, id))
    }
}

impl Placed {
    fn start(&self, id: NodeId) -> u64 {
        self.places.get(id.index()).map_or(0, |place| place.start)
    }

    fn block(&self, id: NodeId) -> u64 {
        let block = self.places.get(id.index()).map_or(0, |place| place.block);
        self.zone_end_block.saturating_add(block)
    }
}

fn nid(start: u64) -> Nid {
    Nid::new(start / SLOT_BYTES)
}

fn look(count: usize, watch: &dyn Watch) -> Result<()> {
    if count.is_multiple_of(INODES_A_LOOK) && watch.should_stop() {
        return Err(Error::new(ErrorKind::Stopped));
    }
    Ok(())
}

#[cold]
fn too_large() -> Error {
    Error::new(ErrorKind::Unsupported("an image of 2^64 bytes or more".to_owned()))
}
