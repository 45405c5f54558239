//! Slow storage: a FUSE file system with one file, an image, on which each read takes a while, however many there are at the
//! same time. Threads of this process serve it. The page cache above it is new with each mount; the image itself should be in
//! the page cache, so that nothing but the delay takes time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use ferrofs_fuse::attach::{AttachOptions, Attachment, attach};
use ferrofs_fuse::{
    Capabilities, Errno, FileSystem, InitRequest, NegotiatedSession, NodeAttributes, NodeEntry,
    Operation, Reply, Request, SessionOptions,
};

/// Reads that wait at the same time: more than any program has in flight, or they would queue.
const READS_MAX: u16 = 128;
const FILE_NODE: u64 = 2;

#[derive(Debug)]
struct SlowFile {
    file: File,
    delay: Duration,
}

/// Mounts slow storage with this image on a directory; the file there bears any name. It is unmounted when the answer is
/// dropped, or when this process is killed; its threads end with the mount.
pub(crate) fn mount_slow(image: &Path, directory: &Path, delay: Duration) -> Result<Attachment> {
    let file = File::open(image).with_context(|| image.display().to_string())?;
    let options = AttachOptions::new("slow-storage", "slow-storage");
    let mut attachment = attach(directory, &options)?;
    attachment.start_unmount_helper(|_| Ok(()))?;
    let capabilities = Capabilities::ASYNC_READ.union(Capabilities::NO_OPEN_SUPPORT);
    let request = InitRequest::new(capabilities).max_background(READS_MAX);
    let options = SessionOptions::new(request).listeners(READS_MAX.into());
    let device = attachment.device().try_clone().context("/dev/fuse")?;
    let session = NegotiatedSession::new(device, &options)?;
    session.start(Arc::new(SlowFile { file, delay }), |_| {})?;
    Ok(attachment)
}

impl SlowFile {
    fn attributes(&self, node: u64) -> NodeAttributes {
        let size = self.file.metadata().map_or(0, |found| found.len());
        let mode = if node == FILE_NODE { 0o100_444 } else { 0o040_555 };
        NodeAttributes { ino: node, mode, size, links: 1, ..NodeAttributes::default() }
    }
}

impl FileSystem for SlowFile {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        match request.operation {
            Operation::Lookup { .. } => {
                let attributes = self.attributes(FILE_NODE);
                reply.entry(&NodeEntry { node: FILE_NODE, attributes });
            }
            Operation::GetAttr => reply.attributes(&self.attributes(request.node)),
            Operation::Read { offset, size } => {
                sleep(self.delay);
                let mut bytes = vec![0; size as usize];
                // Without a reply it is an error.
                if let Ok(count) = self.file.read_at(&mut bytes, offset) {
                    reply.bytes(bytes.get(..count).unwrap_or_default());
                }
            }
            _ => reply.error(Errno::NOSYS),
        }
    }
}
