//! Inodes as they are written: what each says, how much it takes, and its bytes.

use ferrofs_ondisk::chunk::{ChunkFormat, ChunkPlace};
use ferrofs_ondisk::{DataLayout, FileType, Inode, InodeForm, Payload, TimeBase, Timestamp};

use super::indexes::{IndexPlan, IndexStyle};
use super::layout::Shape;
use crate::data::FileData;
use crate::tree::{Kind, Node, NodeId};
use crate::{Error, ErrorKind, Options, Result};

/// An inode with what stands behind it.
#[derive(Clone, Debug)]
pub(crate) struct Record<'d> {
    /// Which node it is; `None` for a special file.
    pub(crate) node: Option<NodeId>,
    pub(crate) inode: Inode,
    pub(crate) form: InodeForm,
    pub(crate) behind: Behind<'d>,
}

/// What stands behind an inode and its xattrs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Behind<'d> {
    /// Nothing.
    Nothing,
    /// The last bytes of flat data.
    Tail(&'d [u8]),
    /// The last bytes of a directory, which are made when all nids are known.
    DirectoryTail(u32),
    /// A table of chunks.
    Chunks(ChunkFormat, &'d [Option<ChunkPlace>]),
    /// An index, and maybe an inline pcluster.
    Index(IndexPlan<'d>),
}

/// What every inode of an image is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeStyle {
    pub(crate) base: TimeBase,
    pub(crate) index: IndexStyle,
    pub(crate) forced: Option<InodeForm>,
    /// Compact inodes may have a time of their own, by seconds (48BIT).
    pub(crate) wide: bool,
    /// Directories have no entry for themselves.
    pub(crate) omit_dot: bool,
}

/// What is known of an inode besides its node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) id: NodeId,
    pub(crate) number: u32,
    pub(crate) links: u32,
    pub(crate) xattr_bytes: u32,
}

/// Where flat data lies, and what of it goes inline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlatPlace<'d> {
    pub(crate) bytes: u64,
    pub(crate) start_block: Option<u64>,
    pub(crate) tail: Behind<'d>,
}

impl InodeStyle {
    /// As the options say, with times counted from `base`.
    pub(crate) fn new(options: &Options, base: TimeBase, index: IndexStyle) -> Self {
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
    /// What the forced form cannot say.
    pub(crate) fn flat<'d>(
        &self,
        node: &Node,
        identity: Identity,
        place: FlatPlace<'d>,
    ) -> Result<Record<'d>> {
        let mut inode = self.inode(node, identity);
        inode.size = place.bytes;
        if let Behind::Tail(_) | Behind::DirectoryTail(_) = place.tail {
            inode.layout = DataLayout::FlatInline;
        }
        inode.payload = match node.kind {
            Kind::CharacterDevice { major, minor } | Kind::BlockDevice { major, minor } => {
                Payload::Device { major, minor }
            }
            Kind::Fifo | Kind::Socket => Payload::Nothing,
            _ => flat_payload(inode.layout, place)?,
        };
        self.record(identity, inode, place.tail)
    }

    /// The inode of `node`, a regular file or a compressed directory of `bytes` bytes, with this data.
    ///
    /// # Errors
    /// What the forced form or the index cannot say.
    pub(crate) fn file<'d>(
        &self,
        node: &Node,
        identity: Identity,
        bytes: u64,
        data: &'d FileData,
    ) -> Result<Record<'d>> {
        let mut inode = self.inode(node, identity);
        inode.size = bytes;
        let behind = self.set_data(&mut inode, data)?;
        self.record(identity, inode, behind)
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
    ) -> Result<Record<'d>> {
        let mut inode = self.empty(FileType::Regular);
        (inode.ino, inode.size, inode.nlink) = (number, bytes, 1);
        let behind = self.set_data(&mut inode, data)?;
        let form = self.form(&inode)?;
        Ok(Record { node: None, inode, form, behind })
    }

    fn set_data<'d>(&self, inode: &mut Inode, data: &'d FileData) -> Result<Behind<'d>> {
        match data {
            FileData::Flat { start_block, tail } => {
                let tail = if tail.is_empty() { Behind::Nothing } else { Behind::Tail(tail) };
                if let Behind::Tail(_) = tail {
                    inode.layout = DataLayout::FlatInline;
                }
                let place = FlatPlace { bytes: inode.size, start_block: *start_block, tail };
                inode.payload = flat_payload(inode.layout, place)?;
                Ok(tail)
            }
            FileData::Chunks { format, places } => {
                inode.layout = DataLayout::Chunk;
                inode.payload = Payload::Chunks(*format);
                Ok(Behind::Chunks(*format, places))
            }
            FileData::Compressed(compressed) => {
                let plan = IndexPlan::new(compressed, self.index)?;
                inode.layout = plan.layout;
                inode.payload = Payload::CompressedBlocks(plan.blocks());
                Ok(Behind::Index(plan))
            }
            FileData::Hole => {
                inode.payload = Payload::StartBlock(None);
                Ok(Behind::Nothing)
            }
        }
    }

    fn inode(&self, node: &Node, identity: Identity) -> Inode {
        let metadata = &node.metadata;
        let mut inode = self.empty(node.kind.file_type());
        inode.mode |= metadata.permissions & 0o7777;
        (inode.uid, inode.gid) = (metadata.uid, metadata.gid);
        inode.nlink = identity.links;
        inode.mtime = metadata.mtime;
        inode.ino = identity.number;
        inode.xattr_bytes = identity.xattr_bytes;
        inode.has_no_dot = self.omit_dot && inode.file_type == FileType::Directory;
        inode
    }

    fn empty(&self, file_type: FileType) -> Inode {
        Inode {
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
        identity: Identity,
        inode: Inode,
        behind: Behind<'d>,
    ) -> Result<Record<'d>> {
        let form = self.form(&inode)?;
        Ok(Record { node: Some(identity.id), inode, form, behind })
    }

    fn form(&self, inode: &Inode) -> Result<InodeForm> {
        let fits = inode.fits_compact(self.base, self.wide);
        match self.forced {
            Some(InodeForm::Compact) if !fits => Err(Error::new(ErrorKind::Unsupported(
                "an owner, a size, a link count or a time that no compact inode holds".to_owned(),
            ))),
            Some(form) => Ok(form),
            None if fits => Ok(InodeForm::Compact),
            None => Ok(InodeForm::Extended),
        }
    }
}

/// Only an inline inode without whole blocks has no start block: elsewhere that would be a hole.
fn flat_payload(layout: DataLayout, place: FlatPlace<'_>) -> Result<Payload> {
    match (layout, place.start_block) {
        (DataLayout::FlatPlain, None) if place.bytes > 0 => {
            Err(Error::new(ErrorKind::Defect("flat data without a place")))
        }
        (DataLayout::FlatPlain, None) => Ok(Payload::StartBlock(Some(0))),
        (_, start) => Ok(Payload::StartBlock(start)),
    }
}

impl Record<'_> {
    /// What the inode takes; `None` past 2^64.
    pub(crate) fn shape(&self) -> Option<Shape> {
        let core = u64::from(self.form.bytes()) + u64::from(self.inode.xattr_bytes);
        let (behind, tail) = match self.behind {
            Behind::Nothing => (0, 0),
            Behind::Tail(tail) => (0, tail.len() as u64),
            Behind::DirectoryTail(bytes) => (0, u64::from(bytes)),
            Behind::Chunks(format, places) => {
                let unit = u64::from(format.entry_bytes());
                let start = core.next_multiple_of(unit);
                (start - core + unit.checked_mul(places.len() as u64)?, 0)
            }
            Behind::Index(plan) => (plan.bytes(core, self.inode.size)?, plan.inline().len() as u64),
        };
        Some(Shape { lead: core.checked_add(behind)?, tail })
    }

    /// The inode and what stands behind it. `xattrs` is its body, `directory_tail` the end of a
    /// directory.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for what the format cannot say.
    pub(crate) fn render(
        &self,
        base: TimeBase,
        xattrs: &[u8],
        directory_tail: &[u8],
    ) -> Result<Vec<u8>> {
        let mut bytes = self.inode.to_bytes(base, self.form).map_err(format)?;
        bytes.extend_from_slice(xattrs);
        match self.behind {
            Behind::Nothing => {}
            Behind::Tail(tail) => bytes.extend_from_slice(tail),
            Behind::DirectoryTail(_) => bytes.extend_from_slice(directory_tail),
            Behind::Chunks(chunk_format, places) => {
                bytes.resize(bytes.len().next_multiple_of(chunk_format.entry_bytes().into()), 0);
                for place in places {
                    chunk_format.push_entry(*place, &mut bytes).map_err(format)?;
                }
            }
            Behind::Index(plan) => {
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
