//! An image as a FUSE file system: dispatch of the requests, and those that need no module of their own. Called by the
//! listeners of the session.
#![deny(
    clippy::arithmetic_side_effects,
    reason = "numbers come from the kernel and from the image"
)]

mod node;
mod prefetch;
mod read;
mod readdir;
mod seek;
mod xattrs;

use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{Builder, JoinHandle};

use ferrofs_fuse::{
    Capabilities, Errno, FileSystem, InitParameters, NodeAttributes, NodeEntry, Notifier,
    Operation, Reply, ReplyOutcome, Request, Statfs,
};
use ferrofs_image::{Error, ErrorKind, FileType, Image, Inode, Nid, WalkEvent};
use ferrofs_workers::priority::{self, PriorityLevel};

use crate::settings::{LogCallback, MountLogEvent, MountSettings};
use crate::stats::{MountMetrics, OperationKind, StatsCollector, is_stats_ioctl, respond};
use prefetch::{PrefetchQueue, PrefetchTask, ReadPredictor};
use read::{PartialPages, RecentFiles};
use readdir::{AttributeInterest, ReaddirCache, ReaddirKey};

pub(crate) use node::NodeMap;

/// The longest name, in bytes. FUSE requests longer ones, too.
const NAME_MAX_BYTES: usize = 255;
/// Inodes that are searched for the path of one: a tenth of a second.
const NAMED_INODES_MAX: usize = 100_000;

/// The file system of an image.
pub(crate) struct ImageFs {
    image: Image,
    nodes: NodeMap,
    settings: MountSettings,
    files: RecentFiles,
    partial_pages: PartialPages,
    predictor: ReadPredictor,
    /// Files that are predicted, and readarounds of long extents.
    prefetch_queue: PrefetchQueue,
    /// Readarounds of short extents.
    readaround_queue: PrefetchQueue,
    attribute_interest: AttributeInterest,
    readdir_cache: ReaddirCache,
    notifier: OnceLock<Notifier>,
    init_parameters: InitParameters,
    metrics: Arc<MountMetrics>,
    on_event: Arc<LogCallback>,
}

/// The result of an operation, or the errno to reply.
type FsResult<T> = Result<T, Errno>;

impl ImageFs {
    pub(crate) fn new(
        image: Image,
        settings: MountSettings,
        init_parameters: InitParameters,
        metrics: Arc<MountMetrics>,
        on_event: Arc<LogCallback>,
    ) -> Arc<Self> {
        let sb = image.superblock();
        let nodes = NodeMap::new(sb.root, sb.metabox.is_some());
        Arc::new_cyclic(|self_ref: &Weak<Self>| {
            let queue = |name, max_threads| {
                let image_fs = Weak::clone(self_ref);
                PrefetchQueue::new(name, max_threads, settings.priority, move |task| {
                    if let Some(image_fs) = image_fs.upgrade() {
                        image_fs.run_task(task);
                    }
                })
            };
            Self {
                nodes,
                partial_pages: PartialPages::new(
                    settings.readaround.then(|| image.memory().budget()),
                ),
                image,
                settings,
                files: RecentFiles::new(settings.listeners),
                predictor: ReadPredictor::default(),
                prefetch_queue: queue("prefetch", settings.listeners),
                // One thread: more would compete with the reader and the listeners for the CPUs. While reads go on it is
                // awake, so that most tasks need no wake-up.
                readaround_queue: queue("readaround", 1),
                attribute_interest: AttributeInterest::default(),
                readdir_cache: ReaddirCache::default(),
                notifier: OnceLock::new(),
                init_parameters,
                metrics,
                on_event,
            }
        })
    }

    /// Ends the prefetch threads, after the session has ended.
    pub(crate) fn shut_down(&self) {
        self.prefetch_queue.shut_down();
        self.readaround_queue.shut_down();
    }

    /// Stores in the page cache are possible from here on.
    pub(crate) fn set_notifier(&self, notifier: Notifier) {
        self.notifier.set(notifier).ok();
    }

    fn inode(&self, node: u64) -> FsResult<Inode> {
        let nid = self.nodes.nid(node);
        self.image.inode(nid).map_err(|error| self.failed(nid, "the inode", &error))
    }

    /// Reports a failure, and returns the errno to reply.
    fn failed(&self, nid: Nid, what: &'static str, error: &Error) -> Errno {
        let errno = errno(error);
        // The caller's mistake, such as a lookup in a file.
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

    fn entry(&self, inode: &Inode) -> NodeEntry {
        NodeEntry { node: self.nodes.node(inode.nid()), attributes: self.attributes(inode) }
    }

    fn lookup(&self, node: u64, name: &[u8]) -> FsResult<NodeEntry> {
        if name.len() > NAME_MAX_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let dir = self.inode(node)?;
        // A handle of a file (NFS, open_by_handle_at) whose inode the kernel has dropped. It can be that of any file.
        if name == b"." {
            return Ok(self.entry(&dir));
        }
        match self.image.lookup(&dir, name) {
            Ok(Some(inode)) => {
                self.note_lookup(&dir, &inode);
                Ok(self.entry(&inode))
            }
            Ok(None) => Ok(NodeEntry::default()),
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
            // As Linux's EROFS does: there is no limit, and no tool reports that the file system has run out of inodes.
            files: u64::MAX,
            free_files: u64::MAX.saturating_sub(sb.inodes),
            block_bytes: sb.block_size.bytes(),
        }
    }
}

impl ImageFs {
    /// IOCTL on a file or directory. The only command is that of `ferrofs stats`.
    fn ioctl(&self, command: u32, input: &[u8], out_size: u32, reply: Reply<'_>) {
        if !is_stats_ioctl(command) {
            return reply.error(Errno::NOTTY);
        }
        let collector = StatsCollector {
            image: &self.image,
            nodes: &self.nodes,
            settings: &self.settings,
            metrics: &self.metrics,
            init_parameters: self.init_parameters,
            session: self.notifier.get().map(Notifier::stats),
        };
        match respond(input, &collector) {
            Ok(page) => {
                let length = usize::try_from(out_size).unwrap_or(usize::MAX).min(page.len());
                reply.ioctl(0, page.get(..length).unwrap_or_default());
            }
            Err(errno) => reply.error(errno),
        }
    }

    /// Reports that requests for a node get `EIO`, with the path of its inode.
    pub(crate) fn report_banned(&self, node: u64) {
        let nid = self.nodes.nid(node);
        let path = self.path_of(nid);
        (self.on_event)(&MountLogEvent::Banned { nid, path: path.as_deref() });
    }

    /// A path of an inode, if it is among the first ones of the image.
    fn path_of(&self, nid: Nid) -> Option<Vec<u8>> {
        self.image.walk(b"/").ok()?.take(NAMED_INODES_MAX).find_map(|event| match event {
            WalkEvent::Enter(found) | WalkEvent::Leaf(found) if found.inode.nid() == nid => {
                Some(found.path)
            }
            _ => None,
        })
    }

    /// Runs on a prefetch thread.
    fn run_task(&self, task: PrefetchTask) {
        match task {
            PrefetchTask::Files(files) => files.into_iter().for_each(|nid| self.prefetch_file(nid)),
            PrefetchTask::Readaround { file, offset, read } => {
                self.store_readaround(&file, offset, read);
            }
        }
    }
}

impl FileSystem for ImageFs {
    fn listener_started(&self) {
        let _reached: PriorityLevel = priority::apply(self.settings.priority);
    }

    fn spawn_listener(
        &self,
        builder: Builder,
        body: Box<dyn FnOnce() + Send>,
    ) -> io::Result<JoinHandle<()>> {
        priority::spawn(self.settings.priority, builder, body)
    }

    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let outcome = ReplyOutcome::default();
        self.dispatch(request, reply.record_into(&outcome));
        self.metrics.record_reply(OperationKind::of(&request.operation), request.node, &outcome);
    }
}

impl ImageFs {
    fn dispatch(&self, request: &Request<'_>, reply: Reply<'_>) {
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
            // Files and directories need no OPEN, and the kernel caches them. Before Linux 5.1 it takes NOSYS for a failure
            // to open the directory.
            Operation::OpenDir if !self.has_no_opendir() => reply.opened(),
            Operation::Open | Operation::OpenDir => reply.error(Errno::NOSYS),
            Operation::Read { offset, size } => self.read(node, offset, size, reply),
            Operation::Statfs => reply.statfs(&self.statfs()),
            Operation::GetXattr { name, size } => self.get_xattr(node, name, size, reply),
            Operation::ListXattr { size } => self.list_xattrs(request, size, reply),
            Operation::ReadDir { offset, size } => {
                let caller = request.pid;
                self.read_dir(ReaddirKey { node, offset, size, is_plus: false, caller }, reply);
            }
            Operation::ReadDirPlus { offset, size } => {
                let caller = request.pid;
                self.read_dir(ReaddirKey { node, offset, size, is_plus: true, caller }, reply);
            }
            Operation::Lseek { offset, whence } => {
                match self.seek(node, offset, whence, &|| reply.is_answered()) {
                    Ok(found) => reply.offset(found),
                    Err(errno) => reply.error(errno),
                }
            }
            Operation::Ioctl { command, input, out_size } => {
                self.ioctl(command, input, out_size, reply);
            }
        }
    }
}

impl ImageFs {
    /// Whether the kernel accepts that directories need no OPENDIR.
    fn has_no_opendir(&self) -> bool {
        self.init_parameters.granted.contains(Capabilities::NO_OPENDIR_SUPPORT)
    }
}

/// The errno for an error of the image.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(image: &str) -> Arc<ImageFs> {
        mounted_with(image, Capabilities::default())
    }

    fn mounted_with(image: &str, granted: Capabilities) -> Arc<ImageFs> {
        let path = format!("{}/../../tests/data/{image}.erofs", env!("CARGO_MANIFEST_DIR"));
        mounted_image(Image::open(path).unwrap(), granted)
    }

    pub(super) fn mounted_image(image: Image, granted: Capabilities) -> Arc<ImageFs> {
        let init_parameters = InitParameters {
            protocol: (7, 45),
            offered: Capabilities::default(),
            requested: Capabilities::default(),
            granted,
            max_read: 1 << 20,
            offered_readahead: 0,
            requested_readahead: 0,
            max_background: 16,
        };
        let settings = MountSettings::default();
        let metrics = Arc::new(MountMetrics::new(settings.listeners));
        ImageFs::new(
            image,
            settings,
            init_parameters,
            metrics,
            Arc::new(|_: &MountLogEvent<'_>| ()),
        )
    }

    /// Before Linux 5.1 no directory could be opened.
    #[test]
    fn directories_are_opened_unless_the_kernel_says_that_they_need_not_be() {
        for (granted, is_needless) in
            [(Capabilities::ASYNC_READ, false), (Capabilities::NO_OPENDIR_SUPPORT, true)]
        {
            let file_system = mounted_with("plain", granted);
            assert_eq!(file_system.has_no_opendir(), is_needless);
            file_system.shut_down();
        }
    }

    #[test]
    fn a_file_whose_inode_the_kernel_has_dropped_is_found_by_its_handle() {
        // One image leaves out the dot of its directories.
        for image in ["plain", "dot-omitted"] {
            let file_system = mounted(image);
            let mut count = 0;
            for event in file_system.image.walk(b"/").unwrap() {
                let (WalkEvent::Enter(found) | WalkEvent::Leaf(found)) = event else { continue };
                let node = file_system.nodes.node(found.inode.nid());
                let entry = file_system.lookup(node, b".").unwrap();
                assert_eq!(entry.node, node, "{image}");
                assert_eq!(entry.attributes.ino, file_system.nodes.ino(found.inode.nid()));
                count += 1;
            }
            assert!(count > 1);
            let root = file_system.nodes.node(file_system.image.root().unwrap().nid());
            assert_eq!(file_system.lookup(root, b"..").unwrap().node, root);
            let name: &[u8] = if image == "plain" { b"sub" } else { b"deep" };
            let below = file_system.lookup(root, name).unwrap().node;
            assert_eq!(file_system.lookup(below, b"..").unwrap().node, root, "{image}");
            file_system.shut_down();
        }
    }
}
