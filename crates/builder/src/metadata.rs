//! Everything of an image but the contents of its regular files: inodes, directories, xattrs, indexes.
//!
//! [`MetadataWriter`] is made before the data is written, since the root lies in the head of the image, in front
//! of the data; [`MetadataWriter::write`] does the rest behind it:
//!
//! ```text
//! head: superblock, configuration records, long prefixes, root, and whatever else fits its last block
//! data: as the data path appended it
//! metadata area: shared xattrs, inodes
//! whole blocks of directories and of long symlinks
//! data of the packed inode, which compressed directories are a part of
//! data of the metabox, if the inodes lie in it and not in the metadata area
//! the inodes of these two, if the head has no room for them
//! ```
//!
//! With `metadata_first`, [`MetadataWriter::write_first`] writes it in front of the data, so that a reader of a remote
//! image gets all of it with its first request:
//!
//! ```text
//! head: as above
//! metadata area: the packed inode's inode, shared xattrs, inodes with their indexes
//! whole blocks of directories and of long symlinks
//! data of files and of the packed inode
//! ```
//!
//! How long indexes and tails are is known when the data is encoded. So the data goes to a temporary file first, as if
//! it followed the head, and is copied behind the metadata, which counts it from there. Data is moved, never encoded
//! again.
//!
//! Nids count from the start of the image (`meta_blkaddr` is 0), so that none is 0 and the root's is small;
//! for the same reason the root never lies in the metabox.

mod directory;
mod index;
mod inode;
mod placement;
mod superblock;
mod xattrs;

use ferrofs_ondisk::{FileType, Nid};

use crate::context::{BuildContext, BuildMemory};
use crate::data_map::{CompressedData, DataMap, FileData, InternalFile, PackedFragment};
use crate::image_file::ImageWriter;
use crate::metadata::directory::Directories;
use crate::metadata::inode::{InodeRecords, InodeTail, SLOT_BYTES};
use crate::metadata::placement::{InodeAllocator, InodePlacement, MetaboxGenerator, MetadataArea};
use crate::metadata::superblock::SuperblockTimes;
use crate::metadata::xattrs::XattrPlan;
use crate::packed_file::PackedFile;
use crate::spill::paged::PagedBytes;
use crate::split::GeneratedFile;
use crate::tree::{Node, NodeId, NodeKind, Tree, stored_content};
use crate::write_data::{write_metabox, write_packed};
use crate::{BuildOptions, BuildPhase, Error, ErrorKind, Result};

pub(crate) use self::inode::Features;
pub(crate) use self::placement::InodeOrder;
pub(crate) use self::superblock::SuperblockArea;

/// Bytes of shared xattrs that are written at once.
const SHARED_PIECE_BYTES: usize = 64 << 10;

/// Inodes between two reads of the token that cancels the build.
const CANCEL_CHECK_INODES: usize = 1024;

/// A tree that has been checked, and the head of its image.
#[derive(Debug)]
pub(crate) struct MetadataWriter<'t> {
    tree: &'t Tree,
    options: &'t BuildOptions,
    pub(crate) inode_order: InodeOrder,
    xattrs: XattrPlan<'t>,
    times: SuperblockTimes,
    allocator: InodeAllocator,
    root_at: u64,
    /// Bytes of the head: whole blocks.
    pub(crate) head_bytes: u64,
}

/// What the superblock says of the metadata.
#[derive(Debug)]
pub(crate) struct WrittenMetadata {
    /// The head, but for what lies in front of the root.
    pub(crate) head: Vec<u8>,
    pub(crate) features: Features,
    pub(crate) root: Nid,
    pub(crate) packed: Option<Nid>,
    pub(crate) metabox: Option<Nid>,
    pub(crate) xattr_block: u32,
    pub(crate) inodes: u64,
}

/// Data that waits for its place behind the metadata.
#[derive(Debug)]
pub(crate) struct WaitingData {
    /// As if the data followed the head of the image.
    pub(crate) file: ImageWriter,
    pub(crate) packed: PackedFile,
}

impl<'t> MetadataWriter<'t> {
    /// Checks `tree`, and plans its inodes and xattrs.
    ///
    /// # Errors
    /// Whatever an image cannot hold, with the path.
    pub(crate) fn new(
        tree: &'t Tree,
        options: &'t BuildOptions,
        memory: &BuildMemory,
    ) -> Result<Self> {
        let inode_order = InodeOrder::new(tree)?;
        let xattrs = XattrPlan::new(tree, &inode_order, options, memory)
            .map_err(|(id, error)| error.at(tree.first_path(id)))?;
        let of_inodes = inode_order.iter().map(|id| tree.record(id).mtime);
        let times = SuperblockTimes::choose(options.time, options.wide, of_inodes, tree.store());
        let allocator = InodeAllocator::new(options.block_size, 0);
        Ok(Self { tree, options, inode_order, xattrs, times, allocator, root_at: 0, head_bytes: 0 })
    }

    /// Places the root behind the first `front_bytes` of the image, which belong to others, and sets the length
    /// of the head.
    ///
    /// # Errors
    /// A value of the root that an image cannot hold.
    pub(crate) fn place_root(&mut self, front_bytes: u64) -> Result<()> {
        let mut data = DataMap::new(self.tree.store(), 1);
        if self.options.compress_directories {
            // How much it takes does not depend on where its fragment lies.
            data.set(0, &packed_directory(0, 0));
        }
        let records = InodeRecords { writer: self, data: &data };
        let inode_extent = records.inode_extent(&records.record(&records.load(0)?, 0)?)?;
        self.allocator = InodeAllocator::new(self.options.block_size, front_bytes);
        self.root_at = self.allocator.place(inode_extent);
        let block = u64::from(self.options.block_size.bytes());
        self.head_bytes = self.allocator.end().next_multiple_of(block);
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

    /// The number of the long prefix that marks digests of files.
    pub(crate) fn digest_prefix(&self) -> Option<u8> {
        self.xattrs.digest_prefix()
    }

    /// Whether any inode has an xattr.
    pub(crate) fn has_xattrs(&self) -> bool {
        self.xattrs.has_any()
    }

    /// Writes all metadata behind the data, which lies as `data` says, and the packed inode. `data` comes to
    /// say where that lies, too, and where compressed directories do.
    ///
    /// # Errors
    /// Errors of the host, and whatever an image cannot hold.
    pub(crate) fn write(
        &mut self,
        data: &mut DataMap,
        packed: PackedFile,
        image: &mut ImageWriter,
        context: &BuildContext<'_>,
    ) -> Result<WrittenMetadata> {
        image.fill_block()?;
        if self.options.compress_directories {
            self.pack_directories(data, packed.bytes())?;
        }
        let block_size = self.options.block_size;
        let mut rest = std::mem::replace(&mut self.allocator, InodeAllocator::new(block_size, 0));
        rest.resume_at(image.bytes());
        // What the head has left over is kept for the internal files, if there will be any.
        let area = match self.has_special_files(&packed) {
            true => InodeAllocator::new(block_size, image.bytes()),
            false => std::mem::replace(&mut rest, InodeAllocator::new(block_size, 0)),
        };
        let records = InodeRecords { writer: self, data };
        let mut placement = records.place(area, context)?;
        let area = MetadataArea::new(image, self.empty_head());
        let head = records.write_area(&placement, None, area, context)?;
        records.write_blocks(&placement, image, context)?;
        data.packed = self.write_packed(&placement, packed, image, context)?;
        let metabox = self.write_metabox(&placement, data, image, context)?;
        rest.resume_at(image.bytes());
        let records = InodeRecords { writer: self, data };
        let files = [data.packed.as_ref(), metabox.as_ref()];
        let (head, nids) = records.write_special(
            files,
            rest,
            &mut placement.features,
            MetadataArea::new(image, head),
        )?;
        let places = nids.map(|nid| nid.and_then(Nid::byte_offset));
        self.written(placement, head, places)
    }

    /// Writes all metadata behind the head, and `waiting` behind that. `data` comes to say where everything lies then.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn write_first(
        &mut self,
        data: &mut DataMap,
        waiting: WaitingData,
        image: &mut ImageWriter,
        context: &BuildContext<'_>,
    ) -> Result<WrittenMetadata> {
        let block_size = self.options.block_size;
        let WaitingData { file: mut waiting, packed } = waiting;
        if let Some(content) = packed.into_content() {
            context.observer.phase(BuildPhase::Data);
            data.packed = Some(write_packed(&content, context, &mut waiting)?);
            context.observer.phase(BuildPhase::Metadata);
        }
        waiting.fill_block()?;
        let mut area = std::mem::replace(&mut self.allocator, InodeAllocator::new(block_size, 0));
        area.resume_at(image.bytes());
        let records = InodeRecords { writer: self, data };
        let packed_at = records.place_special(data.packed.as_ref(), &mut area)?;
        let mut placement = records.place(area, context)?;
        let end = block_size.offset_of(placement.end_block()).ok_or_else(too_large)?;
        let unit = u64::from(self.options.data_alignment_blocks) * u64::from(block_size.bytes());
        let shift_bytes = (end - self.head_bytes).next_multiple_of(unit);
        data.shift(shift_bytes, block_size);
        let data_end = block_size.count(waiting.bytes().saturating_add(shift_bytes));
        if u32::try_from(data_end).is_err() {
            let what = "metadata in front of more than 2^32 blocks of data: use larger blocks";
            return Err(Error::new(ErrorKind::Unsupported(what.to_owned())));
        }
        let records = InodeRecords { writer: self, data };
        let special = match packed_at.zip(data.packed.as_ref()) {
            Some((start, file)) => {
                let record = records.special(0, file)?;
                placement.features.add(&record);
                Some((start, record.render(self.times.base, &[], &[])?))
            }
            None => None,
        };
        let area = MetadataArea::new(image, self.empty_head());
        let head = records.write_area(&placement, special, area, context)?;
        records.write_blocks(&placement, image, context)?;
        image.write_zeros(self.head_bytes + shift_bytes - image.bytes())?;
        waiting.copy_to(image, self.head_bytes, context)?;
        self.written(placement, head, [packed_at, None])
    }

    /// A head is the superblock, at most 33 KiB of long prefixes, and a root.
    fn empty_head(&self) -> Vec<u8> {
        vec![0; usize::try_from(self.head_bytes).unwrap_or(0)]
    }

    /// What the superblock says, with the packed inode and the metabox at these bytes.
    fn written(
        &self,
        placement: InodePlacement,
        head: Vec<u8>,
        special: [Option<u64>; 2],
    ) -> Result<WrittenMetadata> {
        let inodes = self.inode_order.len() as u64 + special.iter().flatten().count() as u64;
        let [packed, metabox] = special.map(|at| at.map(|at| Nid::new(at / SLOT_BYTES)));
        let block = u64::from(self.options.block_size.bytes());
        let xattr_block = u32::try_from(placement.shared_at / block).map_err(|_| {
            let what = "shared xattrs past block 2^32: share none, or use larger blocks";
            Error::new(ErrorKind::Unsupported(what.to_owned()))
        })?;
        Ok(WrittenMetadata {
            head,
            features: placement.features,
            root: Nid::new(self.root_at / SLOT_BYTES),
            packed,
            metabox,
            xattr_block,
            inodes,
        })
    }

    fn has_special_files(&self, packed: &PackedFile) -> bool {
        let options = self.options;
        let has_metabox = options.metabox_pcluster_bytes.is_some();
        packed.bytes() > 0 || options.compress_directories || has_metabox
    }

    /// Gives every directory its place in the packed inode, in which the ends of files take `at` bytes.
    fn pack_directories(&self, data: &mut DataMap, mut at: u64) -> Result<()> {
        for id in self.inode_order.iter().filter(|id| self.tree.is_directory(*id)) {
            let bytes = self.directories().bytes(id)?;
            data.set(id.index(), &packed_directory(bytes, at));
            // Names are in memory, so that these sums are far from their end.
            at = at.saturating_add(bytes);
        }
        Ok(())
    }

    /// Writes the data of the packed inode, if there is any; directories lie behind what files have in it.
    fn write_packed(
        &self,
        placement: &InodePlacement,
        mut packed: PackedFile,
        image: &mut ImageWriter,
        context: &BuildContext<'_>,
    ) -> Result<Option<InternalFile>> {
        if self.options.compress_directories {
            let mut all = PagedBytes::new(self.tree.store());
            let block = u64::from(self.options.block_size.bytes());
            for (number, id) in self.inode_order.iter().enumerate() {
                check_cancelled(number, context)?;
                if !self.tree.is_directory(id) {
                    continue;
                }
                let start = all.len();
                self.directories().for_each_block(id, &|id| placement.nid(id), &mut |bytes| {
                    let at = start + (all.len() - start).next_multiple_of(block);
                    all.append_zeros(at - all.len());
                    all.append(bytes);
                    Ok(())
                })?;
            }
            self.tree.store().check()?;
            packed.add_file(&stored_content("the directories", all), None)?;
        }
        let Some(content) = packed.into_content() else { return Ok(None) };
        context.observer.phase(BuildPhase::Data);
        let written = write_packed(&content, context, image)?;
        context.observer.phase(BuildPhase::Metadata);
        Ok(Some(written))
    }

    /// Writes the data of the metabox, if inodes lie in it.
    fn write_metabox(
        &self,
        placement: &InodePlacement,
        data: &DataMap,
        image: &mut ImageWriter,
        context: &BuildContext<'_>,
    ) -> Result<Option<InternalFile>> {
        if placement.metabox_bytes == 0 {
            return Ok(None);
        }
        let mut bytes =
            MetaboxGenerator::new(InodeRecords { writer: self, data }, placement, context);
        let mut next = |count| bytes.next(count);
        let file = GeneratedFile::new("the metabox", placement.metabox_bytes, &mut next);
        write_metabox(file, context, image).map(Some)
    }

    fn directories(&self) -> Directories<'_> {
        let options = self.options;
        Directories::new(self.tree, &self.inode_order, options.block_size, options.omit_dot)
    }

    fn node(&self, id: NodeId) -> Node {
        self.tree.node(id)
    }
}

/// A directory of `bytes` bytes at byte `offset` of the packed inode.
fn packed_directory(bytes: u64, offset: u64) -> FileData {
    let fragment = Some(PackedFragment { bytes, offset });
    FileData::Compressed(CompressedData { fragment, ..CompressedData::default() })
}

impl InodeRecords<'_, '_> {
    /// The place of the inode of an internal file, if there is one. Its length does not depend on where the data lies.
    fn place_special(
        &self,
        file: Option<&InternalFile>,
        area: &mut InodeAllocator,
    ) -> Result<Option<u64>> {
        let Some(file) = file else { return Ok(None) };
        let inode_extent = self.inode_extent(&self.special(0, file)?)?;
        Ok(Some(area.place(inode_extent)))
    }

    /// Writes the metadata area, with an inode `special` in it that has no name. Returns the head.
    fn write_area(
        &self,
        placement: &InodePlacement,
        mut special: Option<(u64, Vec<u8>)>,
        mut area: MetadataArea<'_>,
        context: &BuildContext<'_>,
    ) -> Result<Vec<u8>> {
        for (count, (start, item)) in placement.area.iter().enumerate() {
            check_cancelled(count, context)?;
            if let Some((at, bytes)) = special.take_if(|(at, _)| *at < start) {
                area.put(at, &bytes)?;
            }
            match item.checked_sub(1) {
                Some(number) => area.put(start, &self.render(number as usize, placement)?)?,
                None => {
                    let shared = &self.writer.xattrs.shared;
                    let mut at = 0;
                    while at < shared.len() {
                        let piece = shared.read_vec(at, SHARED_PIECE_BYTES);
                        area.put(start + at, &piece)?;
                        at += piece.len() as u64;
                    }
                }
            }
        }
        if let Some((at, bytes)) = special {
            area.put(at, &bytes)?;
        }
        area.end(self.block_size().offset_of(placement.area_end_block).ok_or_else(too_large)?)
    }

    /// The bytes of an inode with what stands behind it.
    fn render(&self, number: usize, placement: &InodePlacement) -> Result<Vec<u8>> {
        let writer = self.writer;
        let loaded = self.load(number)?;
        let id = loaded.id;
        let record = self.record(&loaded, placement.block(id))?;
        let shared_at = self.block_size().within(placement.shared_at);
        let xattrs = writer.xattrs.body_of_node(id, shared_at)?;
        let directory_tail = match record.tail {
            InodeTail::DirectoryTail(_) => {
                let mut last = Vec::new();
                let directories = writer.directories();
                directories.for_each_block(id, &|id| placement.nid(id), &mut |block| {
                    last.clear();
                    last.extend_from_slice(block);
                    Ok(())
                })?;
                last
            }
            _ => Vec::new(),
        };
        let memory_content = record.render(writer.times.base, &xattrs, &directory_tail);
        memory_content.map_err(|error| error.at(writer.tree.first_path(id)))
    }

    /// Writes the whole blocks of directories and of long symlinks.
    fn write_blocks(
        &self,
        placement: &InodePlacement,
        image: &mut ImageWriter,
        context: &BuildContext<'_>,
    ) -> Result<()> {
        for (number, id) in self.writer.inode_order.iter().enumerate() {
            check_cancelled(number, context)?;
            let file_type = self.writer.tree.file_type(id);
            if !matches!(file_type, FileType::Directory | FileType::Symlink) {
                continue;
            }
            let loaded = self.load(number)?;
            let record = self.record(&loaded, placement.block(id))?;
            let blocks = self.own_blocks(&record);
            if blocks == 0 {
                continue;
            }
            let NodeKind::Symlink(target) = &loaded.node.kind else {
                let mut left = blocks;
                let directories = self.writer.directories();
                directories.for_each_block(id, &|id| placement.nid(id), &mut |block| {
                    if left > 0 {
                        left -= 1;
                        image.write(block)?;
                        image.fill_block()?;
                    }
                    Ok(())
                })?;
                continue;
            };
            image.write(target)?;
            image.fill_block()?;
        }
        Ok(())
    }
}

/// Reads the token of the build once for [`CANCEL_CHECK_INODES`] inodes.
fn check_cancelled(number: usize, context: &BuildContext<'_>) -> Result<()> {
    if number.is_multiple_of(CANCEL_CHECK_INODES) { context.check_cancelled() } else { Ok(()) }
}

#[cold]
fn too_large() -> Error {
    Error::new(ErrorKind::Unsupported("an image of 2^64 bytes or more".to_owned()))
}
