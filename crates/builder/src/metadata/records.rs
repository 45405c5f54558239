//! The record of each inode: what it says and what stands behind it, once it is known where data lies.

use ferrofs_ondisk::BlockSize;
use ferrofs_ondisk::FileType::{Directory, Symlink};

use super::Prepared;
use super::indexes::IndexStyle;
use super::inodes::{Behind, FlatPlace, Identity, InodeStyle, Record};
use super::inventory::path_of;
use super::layout::Shape;
use crate::data::{DataMap, FileData, SpecialFile};
use crate::tree::{Kind, Node, NodeId};
use crate::{Error, ErrorKind, Result};

/// Makes records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Records<'a, 't> {
    pub(super) prepared: &'a Prepared<'t>,
    pub(super) data: &'a DataMap,
}

impl<'a> Records<'a, '_> {
    /// The inode with this number in the order. `start_block` is where its own blocks start, if it is a
    /// directory or a symlink that has some.
    ///
    /// # Errors
    /// What the form of the inode or its index cannot say, with its path.
    pub(super) fn record(&self, number: usize, start_block: u64) -> Result<Record<'a>> {
        let prepared = self.prepared;
        let Some(&id) = prepared.inventory.order.get(number) else {
            return Err(Error::new(ErrorKind::Defect("an inode out of order")));
        };
        let identity = Identity {
            id,
            number: inode_number(number),
            links: prepared.inventory.links(id),
            xattr_bytes: prepared.xattrs.body_bytes(id),
        };
        let node = prepared.node(id);
        let record = match &node.kind {
            Kind::File(content) => self.file(node, identity, content.bytes()),
            Kind::Directory(_) => self.directory(node, identity, start_block),
            Kind::Symlink(target) => self.symlink(node, identity, target, start_block),
            _ => {
                let place = FlatPlace { bytes: 0, start_block: None, tail: Behind::Nothing };
                self.style().flat(node, identity, place)
            }
        };
        record.map_err(|error| self.at(id, error))
    }

    /// The `nth` inode behind those that have a name.
    ///
    /// # Errors
    /// What the form of the inode or its index cannot say.
    pub(super) fn special(&self, nth: usize, file: &'a SpecialFile) -> Result<Record<'a>> {
        let number = inode_number(self.prepared.inventory.order.len().saturating_add(nth));
        self.style().special(number, file.bytes, &file.data)
    }

    /// What an inode takes.
    ///
    /// # Errors
    /// There is no place for it in any block.
    pub(super) fn shape(&self, record: &Record<'_>) -> Result<Shape> {
        self.possible_shape(record).ok_or_else(|| {
            let what = "an inode whose tail does not fit a block, or whose index is too large";
            let error = Error::new(ErrorKind::Unsupported(what.to_owned()));
            match record.node {
                Some(id) => self.at(id, error),
                None => error,
            }
        })
    }

    fn possible_shape(&self, record: &Record<'_>) -> Option<Shape> {
        record.shape().filter(|shape| shape.is_possible(self.block_size()))
    }

    /// How many blocks of its own a directory or a symlink has.
    pub(super) fn own_blocks(&self, record: &Record<'_>) -> u64 {
        let has_blocks = matches!(record.inode.file_type, Directory | Symlink);
        let elsewhere = match record.behind {
            Behind::Tail(tail) => tail.len() as u64,
            Behind::DirectoryTail(bytes) => u64::from(bytes),
            // It lies in the packed inode.
            Behind::Index(_) => record.inode.size,
            Behind::Nothing | Behind::Chunks(..) => 0,
        };
        let bytes = record.inode.size.saturating_sub(elsewhere);
        if has_blocks { self.block_size().count(bytes) } else { 0 }
    }

    pub(super) fn block_size(&self) -> BlockSize {
        self.prepared.options.block_size
    }

    fn file(&self, node: &Node, identity: Identity, bytes: u64) -> Result<Record<'a>> {
        let data = self.data_of(identity.id);
        let data =
            data.ok_or_else(|| Error::new(ErrorKind::Defect("a file whose data has no place")))?;
        self.style().file(node, identity, bytes, data)
    }

    /// The last bytes of a directory are inline, wherever that is possible.
    fn directory(&self, node: &Node, identity: Identity, start_block: u64) -> Result<Record<'a>> {
        let bytes = self.prepared.directories().bytes(identity.id)?;
        if let Some(data) = self.data_of(identity.id) {
            return self.style().file(node, identity, bytes, data);
        }
        let rest = self.block_size().within(bytes);
        let start = Some(start_block);
        if rest > 0 {
            let start_block = start.filter(|_| bytes > u64::from(rest));
            let tail = Behind::DirectoryTail(rest);
            let place = FlatPlace { bytes, start_block, tail };
            let record = self.style().flat(node, identity, place)?;
            if self.possible_shape(&record).is_some() {
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
        if self.possible_shape(&record).is_some() {
            return Ok(record);
        }
        let place = FlatPlace { bytes, start_block: Some(start_block), tail: Behind::Nothing };
        self.style().flat(node, identity, place)
    }

    fn data_of(&self, id: NodeId) -> Option<&'a FileData> {
        self.data.files.get(id.index())?.as_ref()
    }

    fn style(&self) -> InodeStyle {
        let options = self.prepared.options;
        InodeStyle::new(options, self.prepared.times.base, IndexStyle::new(options))
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
