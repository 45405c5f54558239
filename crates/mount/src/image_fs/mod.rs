//! An image as a file system that the kernel asks. One module an operation; what they share is here: which inode is
//! meant, what an error of the image is to the kernel, and what its attributes are.
#![deny(
    clippy::arithmetic_side_effects,
    reason = "numbers come from the kernel and from the image"
)]

mod files;
mod ioctl;
mod listing;
mod predictor;
mod prefetch_queue;
mod read;
mod readaround;
mod seek;
mod xattr_scan;
mod xattrs;

use std::sync::{Arc, OnceLock, Weak};

use ferrofs_fuse::{
    Entry, Errno, FileSystem, InitParameters, NodeAttributes, Notifier, Operation, Reply,
    ReplyOutcome, Request, Statfs,
};
use ferrofs_image::{Error, ErrorKind, FileType, Image, Inode, Nid};
use ferrofs_workers::priority::{self, PriorityLevel};

use crate::log_event::MountLogEvent;
use crate::node::NodeMap;
use crate::settings::MountSettings;
use crate::stats::{MountMetrics, OperationKind};
use files::RecentFiles;
use listing::{AttributeInterest, ReaddirCache};
use predictor::ReadPredictor;
use prefetch_queue::PrefetchQueue;
use xattr_scan::XattrScan;

/// The longest name. FUSE asks for longer ones, too.
const NAME_BYTES: usize = 255;

type LogCallback = dyn Fn(&MountLogEvent<'_>) + Send + Sync;

/// Answers requests from an image.
pub(crate) struct ImageFs {
    image: Image,
    nodes: NodeMap,
    settings: MountSettings,
    files: RecentFiles,
    predictor: ReadPredictor,
    prefetch_queue: PrefetchQueue,
    attribute_interest: AttributeInterest,
    readdir_cache: ReaddirCache,
    xattr_scan: XattrScan,
    self_ref: Weak<Self>,
    notifier: OnceLock<Notifier>,
    init_parameters: InitParameters,
    metrics: Arc<MountMetrics>,
    on_event: Arc<LogCallback>,
}

/// A request that was answered with an error.
type FsResult<T> = Result<T, Errno>;

impl ImageFs {
    pub(crate) fn new(
        image: Image,
        settings: &MountSettings,
        init_parameters: InitParameters,
        metrics: Arc<MountMetrics>,
        on_event: Arc<LogCallback>,
    ) -> Arc<Self> {
        let sb = image.superblock();
        let nodes = NodeMap::new(sb.root, sb.metabox.is_some());
        Arc::new_cyclic(|self_ref| Self {
            nodes,
            image,
            settings: *settings,
            files: RecentFiles::new(),
            predictor: ReadPredictor::default(),
            prefetch_queue: PrefetchQueue::new(settings.listeners, settings.priority),
            attribute_interest: AttributeInterest::default(),
            readdir_cache: ReaddirCache::default(),
            xattr_scan: XattrScan::default(),
            self_ref: Weak::clone(self_ref),
            notifier: OnceLock::new(),
            init_parameters,
            metrics,
            on_event,
        })
    }

    /// The mount is over.
    pub(crate) fn end(&self) {
        self.prefetch_queue.shut_down();
    }

    /// From here on the kernel can be told things.
    pub(crate) fn begin(&self, notifier: Notifier) {
        self.notifier.set(notifier).ok();
    }

    fn inode(&self, node: u64) -> FsResult<Inode> {
        let nid = self.nodes.nid(node);
        self.image.inode(nid).map_err(|error| self.failed(nid, "the inode", &error))
    }

    /// Tells the log, and answers what the kernel is told.
    fn failed(&self, nid: Nid, what: &'static str, error: &Error) -> Errno {
        let errno = errno(error);
        // Asking a file for entries and the like is the caller's fault.
        if errno != Errno::NOTDIR && errno != Errno::INVAL {
            (self.on_event)(&MountLogEvent::Failed { nid, what, error });
        }
        errno
    }

    fn attributes(&self, inode: &Inode) -> NodeAttributes {
        let block = self.image.superblock().block_size;
        let blocks = match inode.compressed_blocks() {
            Some(blocks) => blocks.saturating_mul(u64::from(block.bytes()) / 512),
            None => block.count(inode.size()).saturating_mul(u64::from(block.bytes()) / 512),
        };
        NodeAttributes {
            ino: self.nodes.ino(inode.nid()),
            size: inode.size(),
            blocks,
            mode: u32::from(inode.mode()),
            links: inode.nlink(),
            uid: inode.uid(),
            gid: inode.gid(),
            rdev: inode.device().map_or(0, |(major, minor)| encoded_device(major, minor)),
            block_bytes: block.bytes(),
            seconds: inode.mtime().seconds,
            nanoseconds: inode.mtime().nanoseconds,
        }
    }

    fn entry(&self, inode: &Inode) -> Entry {
        Entry { node: self.nodes.node(inode.nid()), attributes: self.attributes(inode) }
    }

    fn lookup(&self, node: u64, name: &[u8]) -> FsResult<Entry> {
        if name.len() > NAME_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let dir = self.inode(node)?;
        match self.image.lookup(&dir, name) {
            Ok(Some(inode)) => {
                self.note_lookup(&inode);
                Ok(self.entry(&inode))
            }
            Ok(None) => Ok(Entry::default()),
            Err(error) => Err(self.failed(dir.nid(), "a name", &error)),
        }
    }

    fn read_link(&self, node: u64) -> FsResult<Vec<u8>> {
        let link = self.inode(node)?;
        self.image.read_link(&link).map_err(|error| self.failed(link.nid(), "the target", &error))
    }

    fn statfs(&self) -> Statfs {
        let sb = self.image.superblock();
        let extra = self.image.device_slots().iter().map(|slot| slot.blocks);
        Statfs {
            blocks: extra.fold(sb.blocks, u64::saturating_add),
            // As Linux's EROFS: nothing bounds them, so that nobody takes the mount for one that ran out of them.
            files: u64::MAX,
            free_files: u64::MAX.saturating_sub(sb.inodes),
            block_bytes: sb.block_size.bytes(),
        }
    }
}

impl FileSystem for ImageFs {
    fn listener_started(&self) {
        let _reached: PriorityLevel = priority::apply(self.settings.priority);
    }

    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let outcome = ReplyOutcome::default();
        self.answer(request, reply.record_into(&outcome));
        self.metrics.record_reply(OperationKind::of(&request.operation), request.node, &outcome);
    }
}

impl ImageFs {
    fn answer(&self, request: &Request<'_>, reply: Reply<'_>) {
        let node = request.node;
        match request.operation {
            Operation::Lookup { name } => match self.lookup(node, name) {
                Ok(entry) => reply.entry(&entry),
                Err(errno) => reply.error(errno),
            },
            Operation::GetAttr => match self.inode(node) {
                Ok(inode) => reply.attributes(&self.attributes(&inode)),
                Err(errno) => reply.error(errno),
            },
            Operation::ReadLink => match self.read_link(node) {
                Ok(target) => reply.bytes(&target),
                Err(errno) => reply.error(errno),
            },
            // No file and no directory needs opening, and the kernel keeps what it has read of them.
            Operation::Open | Operation::OpenDir => reply.error(Errno::NOSYS),
            Operation::Read { offset, size } => self.read(node, offset, size, reply),
            Operation::Statfs => reply.statfs(&self.statfs()),
            Operation::GetXattr { name, size } => self.get_xattr(node, name, size, reply),
            Operation::ListXattr { size } => self.list_xattrs(request, size, reply),
            Operation::ReadDir { offset, size } => {
                self.read_dir(node, (offset, size), false, reply);
            }
            Operation::ReadDirPlus { offset, size } => {
                self.read_dir(node, (offset, size), true, reply);
            }
            Operation::Lseek { offset, whence } => match self.seek(node, offset, whence) {
                Ok(found) => reply.offset(found),
                Err(errno) => reply.error(errno),
            },
            Operation::Ioctl { command, input, out_size } => {
                self.ioctl((command, input), out_size, reply);
            }
        }
    }
}

/// What an error of the image is to the kernel.
fn errno(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::Io(_) => Errno::IO,
        ErrorKind::OutOfMemory { .. } => Errno::NOMEM,
        ErrorKind::WrongType { wanted: FileType::Directory, .. } => Errno::NOTDIR,
        ErrorKind::WrongType { .. } => Errno::INVAL,
        // Linux: EFSCORRUPTED.
        _ => Errno::UCLEAN,
    }
}

/// The kernel's encoding of a device in 32 bits.
fn encoded_device(major: u32, minor: u32) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
}
