//! The record of each inode: what it says and what stands behind it, once it is known where data lies.

use ferrofs_ondisk::BlockSize;
use ferrofs_ondisk::FileType::{Directory, Symlink};

use super::MetadataWriter;
use super::indexes::IndexParams;
use super::inodes::{FlatData, InodeIdentity, InodeParams, InodeRecord, InodeTail};
use super::inventory::path_of;
use super::layout::InodeExtent;
use crate::data::{DataMap, FileData, InternalFile};
use crate::tree::{Node, NodeId, NodeKind};
use crate::{Error, ErrorKind, Result};

/// Makes records.
#[derive(Clone, Copy, Debug)]
pub(super) struct InodeRecords<'a, 't> {
    pub(super) prepared: &'a MetadataWriter<'t>,
    pub(super) data: &'a DataMap,
}

impl<'a> InodeRecords<'a, '_> {
    /// The inode with this number in the order. `start_block` is where its own blocks start, if it is a
    /// directory or a symlink that has some.
    ///
    /// # Errors
    /// What the form of the inode or its index cannot say, with its path.
    pub(super) fn record(&self, number: usize, start_block: u64) -> Result<InodeRecord<'a>> {
        let prepared = self.prepared;
        let Some(&id) = prepared.inode_order.order.get(number) else {
            return Err(Error::new(ErrorKind::Internal("an inode out of order")));
        };
        let identity = InodeIdentity {
            id,
            number: inode_number(number),
            links: prepared.inode_order.links(id),
            xattr_bytes: prepared.xattrs.body_bytes(id),
        };
        let node = prepared.node(id);
        let record = match &node.kind {
            NodeKind::File(content) => self.file(node, identity, content.bytes()),
            NodeKind::Directory(_) => self.directory(node, identity, start_block),
            NodeKind::Symlink(target) => self.symlink(node, identity, target, start_block),
            _ => {
                let place = FlatData { bytes: 0, start_block: None, tail: InodeTail::Nothing };
                self.style().flat(node, identity, place)
            }
        };
        record.map_err(|error| self.at(id, error))
    }

    /// The `nth` inode behind those that have a name.
    ///
    /// # Errors
    /// What the form of the inode or its index cannot say.
    pub(super) fn special(&self, nth: usize, file: &'a InternalFile) -> Result<InodeRecord<'a>> {
        let number = inode_number(self.prepared.inode_order.order.len().saturating_add(nth));
        self.style().special(number, file.bytes, &file.data)
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
        self.prepared.options.block_size
    }

    fn file(&self, node: &Node, identity: InodeIdentity, bytes: u64) -> Result<InodeRecord<'a>> {
        let data = self.data_of(identity.id);
        let data =
            data.ok_or_else(|| Error::new(ErrorKind::Internal("a file whose data has no place")))?;
        self.style().file(node, identity, bytes, data)
    }

    /// The last bytes of a directory are inline, wherever that is possible.
    fn directory(
        &self,
        node: &Node,
        identity: InodeIdentity,
        start_block: u64,
    ) -> Result<InodeRecord<'a>> {
        let bytes = self.prepared.directories().bytes(identity.id)?;
        if let Some(data) = self.data_of(identity.id) {
            return self.style().file(node, identity, bytes, data);
        }
        let rest = self.block_size().within(bytes);
        let start = Some(start_block);
        if rest > 0 {
            let start_block = start.filter(|_| bytes > u64::from(rest));
            let tail = InodeTail::DirectoryTail(rest);
            let place = FlatData { bytes, start_block, tail };
            let record = self.style().flat(node, identity, place)?;
            if self.placeable_extent(&record).is_some() {
                return Ok(record);
            }
        }
        let place = FlatData { bytes, start_block: start, tail: InodeTail::Nothing };
        self.style().flat(node, identity, place)
    }

    /// A target is inline as a whole, so that following it needs nothing but the inode, or not at all.
    fn symlink(
        &self,
        node: &Node,
        identity: InodeIdentity,
        target: &'a [u8],
        start_block: u64,
    ) -> Result<InodeRecord<'a>> {
        let bytes = target.len() as u64;
        let place = FlatData { bytes, start_block: None, tail: InodeTail::Tail(target) };
        let record = self.style().flat(node, identity, place)?;
        if self.placeable_extent(&record).is_some() {
            return Ok(record);
        }
        let place = FlatData { bytes, start_block: Some(start_block), tail: InodeTail::Nothing };
        self.style().flat(node, identity, place)
    }

    fn data_of(&self, id: NodeId) -> Option<&'a FileData> {
        self.data.files.get(id.index())?.as_ref()
    }

    fn style(&self) -> InodeParams {
        let options = self.prepared.options;
        InodeParams::new(options, self.prepared.times.base, IndexParams::new(options))
    }

    #[cold]
    fn at(&self, id: NodeId, error: Error) -> Error {
        error.at(path_of(self.prepared.tree, id))
    }
}

/// Nothing depends on it but 32-bit programs, which want it not to be 0.
fn inode_number(number: usize) -> u32 {
    u32::try_from(number.saturating_add(1)).unwrap_or(u32::MAX)
}
