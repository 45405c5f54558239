//! Inodes in the format of the image: the record of each, its size, its bytes, and the features that it needs.

use std::collections::BTreeSet;

use ferrofs_ondisk::FileType::{Directory, Symlink};
use ferrofs_ondisk::chunk::{ChunkAddress, ChunkFormat};
use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_ondisk::{
    BlockSize, DataLayout, DiskInode, FileType, InodeForm, Payload, TimeBase, Timestamp,
};

use crate::data_map::{DataMap, FileData, InternalFile};
use crate::metadata::MetadataWriter;
use crate::metadata::index::{IndexParams, IndexPlan};
use crate::tree::{Node, NodeId, NodeKind};
use crate::{BuildOptions, Error, ErrorKind, Result};

/// An inode with what follows it.
#[derive(Clone, Debug)]
pub(crate) struct InodeRecord<'d> {
    /// Which node it is; `None` for an internal file.
    pub(crate) node: Option<NodeId>,
    pub(crate) inode: DiskInode,
    pub(crate) form: InodeForm,
    pub(crate) tail: InodeTail<'d>,
}

/// What follows an inode and its xattrs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InodeTail<'d> {
    /// Nothing.
    Nothing,
    /// The last bytes of flat data.
    Tail(&'d [u8]),
    /// The last bytes of a directory, which are made when all nids are known.
    DirectoryTail(u32),
    /// A table of chunks.
    Chunks(ChunkFormat, &'d [Option<ChunkAddress>]),
    /// An index, and maybe an inline pcluster.
    Index(IndexPlan<'d>),
}

/// Bytes of a slot of inodes: nids count slots.
pub(crate) const SLOT_BYTES: u64 = 32;

/// What an inode takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeExtent {
    /// The inode, its xattrs and its index: they may cross blocks.
    pub(crate) core_bytes: u64,
    /// What is inline behind them: it ends in the block in which `core_bytes` end.
    pub(crate) tail: u64,
}

impl InodeExtent {
    /// All of it.
    pub(super) fn bytes(self) -> u64 {
        self.core_bytes.saturating_add(self.tail)
    }

    /// Whether there is a place for it at all. Where the core ends in its block depends on its length modulo 32.
    pub(crate) fn is_possible(self, block_size: BlockSize) -> bool {
        let min = match self.core_bytes % SLOT_BYTES {
            0 => SLOT_BYTES,
            rest => rest,
        };
        self.tail == 0 || min.saturating_add(self.tail) <= u64::from(block_size.bytes())
    }
}

/// What all inodes of an image have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeParams {
    pub(crate) base: TimeBase,
    pub(crate) index: IndexParams,
    pub(crate) forced: Option<InodeForm>,
    /// Compact inodes may have a time of their own, by seconds (48BIT).
    pub(crate) wide: bool,
    /// Directories have no entry for themselves.
    pub(crate) omit_dot: bool,
}

/// What is known of an inode besides its node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeIdentity {
    pub(crate) id: NodeId,
    pub(crate) number: u32,
    pub(crate) links: u32,
    pub(crate) xattr_bytes: u32,
}

/// Where flat data lies, and what of it goes inline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlatData<'d> {
    pub(crate) bytes: u64,
    pub(crate) start_block: Option<u64>,
    pub(crate) tail: InodeTail<'d>,
}

impl InodeParams {
    /// As the options say, with times counted from `base`.
    pub(crate) fn new(options: &BuildOptions, base: TimeBase, index: IndexParams) -> Self {
        let forced = match (options.force_compact_inodes, options.force_extended_inodes) {
            (true, _) => Some(InodeForm::Compact),
            (_, true) => Some(InodeForm::Extended),
            _ => None,
        };
        Self { base, index, forced, wide: options.wide, omit_dot: options.omit_dot }
    }

    /// The inode of `node`, whose data, if it has any, lies at `place`.
    ///
    /// # Errors
    /// A value that the forced form cannot hold.
    pub(crate) fn flat<'d>(
        &self,
        node: &Node,
        identity: InodeIdentity,
        place: FlatData<'d>,
    ) -> Result<InodeRecord<'d>> {
        let mut inode = self.inode(node, identity);
        inode.size = place.bytes;
        if let InodeTail::Tail(_) | InodeTail::DirectoryTail(_) = place.tail {
            inode.layout = DataLayout::FlatInline;
        }
        inode.payload = match node.kind {
            NodeKind::CharacterDevice { major, minor } | NodeKind::BlockDevice { major, minor } => {
                Payload::Device { major, minor }
            }
            NodeKind::Fifo | NodeKind::Socket => Payload::Nothing,
            _ => flat_payload(inode.layout, place)?,
        };
        self.record(identity, inode, place.tail)
    }

    /// The inode of `node`, a regular file or a compressed directory of `bytes` bytes, with this data.
    ///
    /// # Errors
    /// A value that the forced form or the index cannot hold.
    pub(crate) fn file<'d>(
        &self,
        node: &Node,
        identity: InodeIdentity,
        bytes: u64,
        data: &'d FileData,
    ) -> Result<InodeRecord<'d>> {
        let mut inode = self.inode(node, identity);
        inode.size = bytes;
        let tail = self.set_data(&mut inode, data)?;
        self.record(identity, inode, tail)
    }

    /// The packed inode, or the metabox.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    pub(crate) fn special<'d>(
        &self,
        number: u32,
        bytes: u64,
        data: &'d FileData,
    ) -> Result<InodeRecord<'d>> {
        let mut inode = self.empty(FileType::Regular);
        (inode.ino, inode.size, inode.nlink) = (number, bytes, 1);
        let tail = self.set_data(&mut inode, data)?;
        let form = self.form(&inode)?;
        Ok(InodeRecord { node: None, inode, form, tail })
    }

    fn set_data<'d>(&self, inode: &mut DiskInode, data: &'d FileData) -> Result<InodeTail<'d>> {
        match data {
            FileData::Flat { start_block, tail } => {
                let tail = if tail.is_empty() { InodeTail::Nothing } else { InodeTail::Tail(tail) };
                if let InodeTail::Tail(_) = tail {
                    inode.layout = DataLayout::FlatInline;
                }
                let place = FlatData { bytes: inode.size, start_block: *start_block, tail };
                inode.payload = flat_payload(inode.layout, place)?;
                Ok(tail)
            }
            FileData::Chunks { format, places } => {
                inode.layout = DataLayout::Chunk;
                inode.payload = Payload::Chunks(*format);
                Ok(InodeTail::Chunks(*format, places))
            }
            FileData::Compressed(compressed) => {
                let plan = IndexPlan::new(compressed, self.index)?;
                inode.layout = plan.layout;
                inode.payload = Payload::CompressedBlocks(plan.blocks());
                Ok(InodeTail::Index(plan))
            }
            FileData::Hole => {
                inode.payload = Payload::StartBlock(None);
                Ok(InodeTail::Nothing)
            }
        }
    }

    fn inode(&self, node: &Node, identity: InodeIdentity) -> DiskInode {
        let metadata = &node.metadata;
        let mut inode = self.empty(node.kind.file_type());
        inode.mode |= metadata.permissions & 0o7777;
        (inode.uid, inode.gid) = (metadata.uid, metadata.gid);
        inode.nlink = identity.links;
        inode.mtime = metadata.mtime;
        inode.ino = identity.number;
        inode.xattr_bytes = identity.xattr_bytes;
        inode.has_no_dot = self.omit_dot && inode.file_type == Directory;
        inode
    }

    fn empty(&self, file_type: FileType) -> DiskInode {
        DiskInode {
            bytes: 0,
            layout: DataLayout::FlatPlain,
            file_type,
            mode: file_type.mode_bits(),
            uid: 0,
            gid: 0,
            nlink: 0,
            size: 0,
            mtime: Timestamp { seconds: self.base.epoch, nanoseconds: self.base.fixed_nsec },
            ino: 0,
            xattr_bytes: 0,
            payload: Payload::Nothing,
            has_no_dot: false,
        }
    }

    fn record<'d>(
        &self,
        identity: InodeIdentity,
        inode: DiskInode,
        tail: InodeTail<'d>,
    ) -> Result<InodeRecord<'d>> {
        let form = self.form(&inode)?;
        Ok(InodeRecord { node: Some(identity.id), inode, form, tail })
    }

    fn form(&self, inode: &DiskInode) -> Result<InodeForm> {
        let fits = inode.fits_compact(self.base, self.wide);
        match self.forced {
            Some(InodeForm::Compact) if !fits => Err(Error::new(ErrorKind::Unsupported(
                "an owner, size, link count or time that does not fit into a compact inode"
                    .to_owned(),
            ))),
            Some(form) => Ok(form),
            None if fits => Ok(InodeForm::Compact),
            None => Ok(InodeForm::Extended),
        }
    }
}

/// Only an inline inode without whole blocks has no start block: elsewhere that would be a hole.
fn flat_payload(layout: DataLayout, place: FlatData<'_>) -> Result<Payload> {
    match (layout, place.start_block) {
        (DataLayout::FlatPlain, None) if place.bytes > 0 => {
            Err(Error::new(ErrorKind::Internal("flat data without a place")))
        }
        (DataLayout::FlatPlain, None) => Ok(Payload::StartBlock(Some(0))),
        (_, start) => Ok(Payload::StartBlock(start)),
    }
}

impl InodeRecord<'_> {
    /// What the inode takes; `None` past 2^64.
    pub(crate) fn inode_extent(&self) -> Option<InodeExtent> {
        let core = u64::from(self.form.bytes()) + u64::from(self.inode.xattr_bytes);
        let (after, tail) = match self.tail {
            InodeTail::Nothing => (0, 0),
            InodeTail::Tail(tail) => (0, tail.len() as u64),
            InodeTail::DirectoryTail(bytes) => (0, u64::from(bytes)),
            InodeTail::Chunks(format, places) => {
                let unit = u64::from(format.entry_bytes());
                let start = core.next_multiple_of(unit);
                (start - core + unit.checked_mul(places.len() as u64)?, 0)
            }
            InodeTail::Index(plan) => {
                (plan.bytes(core, self.inode.size)?, plan.inline().len() as u64)
            }
        };
        Some(InodeExtent { core_bytes: core.checked_add(after)?, tail })
    }

    /// The inode and what follows it. `xattrs` is its body, `directory_tail` the end of a
    /// directory.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for a value that the format cannot hold.
    pub(crate) fn render(
        &self,
        base: TimeBase,
        xattrs: &[u8],
        directory_tail: &[u8],
    ) -> Result<Vec<u8>> {
        let mut bytes = self.inode.to_bytes(base, self.form).map_err(format)?;
        bytes.extend_from_slice(xattrs);
        match self.tail {
            InodeTail::Nothing => {}
            InodeTail::Tail(tail) => bytes.extend_from_slice(tail),
            InodeTail::DirectoryTail(_) => bytes.extend_from_slice(directory_tail),
            InodeTail::Chunks(chunk_format, places) => {
                bytes.resize(bytes.len().next_multiple_of(chunk_format.entry_bytes().into()), 0);
                for place in places {
                    chunk_format.push_entry(*place, &mut bytes).map_err(format)?;
                }
            }
            InodeTail::Index(plan) => {
                plan.write(self.inode.size, &mut bytes)?;
                bytes.extend_from_slice(plan.inline());
            }
        }
        Ok(bytes)
    }
}

fn format(error: ferrofs_ondisk::Error) -> Error {
    Error::new(ErrorKind::Format(error))
}

/// Makes records.
#[derive(Clone, Copy, Debug)]
pub(super) struct InodeRecords<'a, 't> {
    pub(super) writer: &'a MetadataWriter<'t>,
    pub(super) data: &'a DataMap,
}

/// An inode and where its data lies, as they are read from the store.
#[derive(Debug)]
pub(super) struct LoadedInode {
    pub(super) id: NodeId,
    /// Its number in the order.
    number: usize,
    pub(super) node: Node,
    pub(super) data: Option<FileData>,
}

impl<'a> InodeRecords<'a, '_> {
    /// Reads the inode with this number in the order.
    ///
    /// # Errors
    /// There are not so many.
    pub(super) fn load(&self, number: usize) -> Result<LoadedInode> {
        let id = self.writer.inode_order.get(number);
        let id = id.ok_or_else(|| Error::new(ErrorKind::Internal("an inode out of order")))?;
        let (node, data) = (self.writer.node(id), self.data.get(id.index()));
        Ok(LoadedInode { id, number, node, data })
    }

    /// The inode `loaded`. `start_block` is where its own blocks start, if it is a
    /// directory or a symlink that has some.
    ///
    /// # Errors
    /// A value that the form of the inode or its index cannot hold, with the path.
    pub(super) fn record<'l>(
        &self,
        loaded: &'l LoadedInode,
        start_block: u64,
    ) -> Result<InodeRecord<'l>> {
        let writer = self.writer;
        let LoadedInode { id, number, node, data } = loaded;
        let (id, number) = (*id, *number);
        let identity = InodeIdentity {
            id,
            number: inode_number(number),
            links: writer.inode_order.links(id),
            xattr_bytes: writer.xattrs.body_bytes(id),
        };
        let record = match &node.kind {
            NodeKind::File(content) => self.file(loaded, identity, content.bytes()),
            NodeKind::Directory => self.directory(node, identity, data.as_ref(), start_block),
            NodeKind::Symlink(target) => self.symlink(node, identity, target, start_block),
            _ => {
                let place = FlatData { bytes: 0, start_block: None, tail: InodeTail::Nothing };
                self.params().flat(node, identity, place)
            }
        };
        record.map_err(|error| self.at(id, error))
    }

    /// The `nth` inode behind those that have a name.
    ///
    /// # Errors
    /// A value that the form of the inode or its index cannot hold.
    pub(super) fn special(&self, nth: usize, file: &'a InternalFile) -> Result<InodeRecord<'a>> {
        let number = inode_number(self.writer.inode_order.len().saturating_add(nth));
        self.params().special(number, file.bytes, &file.data)
    }

    /// What an inode takes.
    ///
    /// # Errors
    /// There is no place for it in any block.
    pub(super) fn inode_extent(&self, record: &InodeRecord<'_>) -> Result<InodeExtent> {
        self.placeable_extent(record).ok_or_else(|| {
            let what = "an inode whose tail does not fit a block, or whose index is too large";
            let error = Error::new(ErrorKind::Unsupported(what.to_owned()));
            match record.node {
                Some(id) => self.at(id, error),
                None => error,
            }
        })
    }

    fn placeable_extent(&self, record: &InodeRecord<'_>) -> Option<InodeExtent> {
        record.inode_extent().filter(|inode_extent| inode_extent.is_possible(self.block_size()))
    }

    /// How many blocks of its own a directory or a symlink has.
    pub(super) fn own_blocks(&self, record: &InodeRecord<'_>) -> u64 {
        let has_blocks = matches!(record.inode.file_type, Directory | Symlink);
        let elsewhere = match record.tail {
            InodeTail::Tail(tail) => tail.len() as u64,
            InodeTail::DirectoryTail(bytes) => u64::from(bytes),
            // It lies in the packed inode.
            InodeTail::Index(_) => record.inode.size,
            InodeTail::Nothing | InodeTail::Chunks(..) => 0,
        };
        let bytes = record.inode.size.saturating_sub(elsewhere);
        if has_blocks { self.block_size().count(bytes) } else { 0 }
    }

    pub(super) fn block_size(&self) -> BlockSize {
        self.writer.options.block_size
    }

    fn file<'l>(
        &self,
        loaded: &'l LoadedInode,
        identity: InodeIdentity,
        bytes: u64,
    ) -> Result<InodeRecord<'l>> {
        let data = loaded.data.as_ref();
        let data =
            data.ok_or_else(|| Error::new(ErrorKind::Internal("a file whose data has no place")))?;
        self.params().file(&loaded.node, identity, bytes, data)
    }

    /// The last bytes of a directory are inline, wherever that is possible.
    fn directory<'l>(
        &self,
        node: &Node,
        identity: InodeIdentity,
        data: Option<&'l FileData>,
        start_block: u64,
    ) -> Result<InodeRecord<'l>> {
        let bytes = self.writer.directories().bytes(identity.id)?;
        if let Some(data) = data {
            return self.params().file(node, identity, bytes, data);
        }
        let rest = self.block_size().within(bytes);
        let start = Some(start_block);
        if rest > 0 {
            let start_block = start.filter(|_| bytes > u64::from(rest));
            let tail = InodeTail::DirectoryTail(rest);
            let place = FlatData { bytes, start_block, tail };
            let record = self.params().flat(node, identity, place)?;
            if self.placeable_extent(&record).is_some() {
                return Ok(record);
            }
        }
        let place = FlatData { bytes, start_block: start, tail: InodeTail::Nothing };
        self.params().flat(node, identity, place)
    }

    /// A target is inline as a whole, so that following it needs nothing but the inode, or not at all.
    fn symlink<'l>(
        &self,
        node: &Node,
        identity: InodeIdentity,
        target: &'l [u8],
        start_block: u64,
    ) -> Result<InodeRecord<'l>> {
        let bytes = target.len() as u64;
        let place = FlatData { bytes, start_block: None, tail: InodeTail::Tail(target) };
        let record = self.params().flat(node, identity, place)?;
        if self.placeable_extent(&record).is_some() {
            return Ok(record);
        }
        let place = FlatData { bytes, start_block: Some(start_block), tail: InodeTail::Nothing };
        self.params().flat(node, identity, place)
    }

    fn params(&self) -> InodeParams {
        let options = self.writer.options;
        InodeParams::new(options, self.writer.times.base, IndexParams::new(options))
    }

    #[cold]
    fn at(&self, id: NodeId, error: Error) -> Error {
        error.at(self.writer.tree.first_path(id))
    }
}

/// Nothing depends on it but 32-bit programs, which want it not to be 0.
pub(super) fn inode_number(number: usize) -> u32 {
    u32::try_from(number.saturating_add(1)).unwrap_or(u32::MAX)
}

/// What the inodes of an image need of a reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features {
    /// Algorithms that an index names.
    pub(crate) algorithms: BTreeSet<AlgorithmId>,
    /// Some file is compressed, or lies in a compressed one.
    pub(crate) has_compressed: bool,
    pub(crate) has_big_pclusters: bool,
    pub(crate) has_two_algorithms: bool,
    pub(crate) has_inline_pclusters: bool,
    pub(crate) has_shared_pclusters: bool,
    pub(crate) has_chunks: bool,
    /// Something needs 48BIT.
    pub(crate) has_wide: bool,
    /// The byte behind the last pcluster of the files so far: data is written in their order.
    seen: u64,
}

impl Features {
    /// Notes what `record` needs: those that have a name in the order of their data.
    pub(crate) fn add(&mut self, record: &InodeRecord<'_>) {
        self.has_wide |= is_wide(record);
        match record.tail {
            InodeTail::Chunks(..) => self.has_chunks = true,
            InodeTail::Index(plan) => {
                self.has_compressed = true;
                self.algorithms.extend(plan.named_algorithms());
                self.has_big_pclusters |= plan.has_big_pclusters();
                self.has_two_algorithms |= plan.has_two_algorithms();
                self.has_inline_pclusters |= !plan.inline().is_empty();
                if record.node.is_some() {
                    self.note_extents(plan.extents());
                }
            }
            InodeTail::Nothing | InodeTail::Tail(_) | InodeTail::DirectoryTail(_) => {}
        }
    }

    fn note_extents(&mut self, extents: &[crate::data_map::DataExtent]) {
        for extent in extents {
            self.has_shared_pclusters |= extent.partial || extent.address < self.seen;
            self.seen = self.seen.max(extent.address + u64::from(extent.pcluster_bytes));
        }
    }
}

/// Whether a reader without 48BIT would take the inode for something else.
fn is_wide(record: &InodeRecord<'_>) -> bool {
    let in_payload = match record.inode.payload {
        // Without 48BIT an inline tail is all that has no start block.
        Payload::StartBlock(None) => record.inode.layout == DataLayout::FlatPlain,
        Payload::StartBlock(Some(number)) | Payload::CompressedBlocks(number) => {
            number >= u64::from(u32::MAX)
        }
        Payload::Chunks(format) => format.is_wide(),
        Payload::Device { .. } | Payload::Nothing => false,
    };
    let has_encoded_extents = match record.tail {
        InodeTail::Index(plan) => plan.has_encoded_extents(),
        _ => false,
    };
    in_payload || has_encoded_extents || record.inode.has_no_dot
}
