//! Bytes of files.

use std::sync::Arc;

use ferrofs_fuse::{Errno, Reply};
use ferrofs_image::{ErrorKind, OpenFile, ReadOutcome};

use super::{FsResult, ImageFs};

impl ImageFs {
    pub(super) fn read(&self, node: u64, offset: u64, size: u32, reply: Reply<'_>) {
        if let Err((reply, errno)) = self.try_read(node, offset, size, reply) {
            reply.error(errno);
        }
    }

    fn try_read<'a>(
        &self,
        node: u64,
        offset: u64,
        size: u32,
        reply: Reply<'a>,
    ) -> Result<(), (Reply<'a>, Errno)> {
        let file = match self.file(node) {
            Ok(file) => file,
            Err(errno) => return Err((reply, errno)),
        };
        let rest = file.inode().size().saturating_sub(offset);
        let bytes = u64::from(size).min(rest);
        if bytes == 0 {
            reply.bytes(&[]);
            return Ok(());
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let read = self.image.demand_buffer(bytes).and_then(|mut buffer| {
            let read =
                file.read_with_outcome(offset, buffer.get_mut(..bytes).unwrap_or_default())?;
            Ok((buffer, read))
        });
        match read {
            Ok((buffer, read)) => {
                reply.bytes(buffer.get(..read.bytes).unwrap_or_default());
                drop(buffer);
                self.after_read(&file, offset, read);
                Ok(())
            }
            Err(error) => {
                self.failed(file.inode().nid(), "data", &error);
                let is_memory = matches!(error.kind(), ErrorKind::OutOfMemory { .. });
                // What Linux says of pages that cannot be read.
                Err((reply, if is_memory { Errno::NOMEM } else { Errno::IO }))
            }
        }
    }

    /// What is done once the reader has its bytes, for what it will want next.
    fn after_read(&self, file: &Arc<OpenFile>, offset: u64, read: ReadOutcome) {
        if !self.settings.readaround {
            return;
        }
        if offset == 0 {
            self.prefetch_queue.push(&self.predictor.on_read(file.inode().nid()), &self.self_ref);
        }
        self.store_readaround(file, offset, read);
    }

    fn file(&self, node: u64) -> FsResult<Arc<OpenFile>> {
        if let Some(file) = self.files.get(node) {
            return Ok(file);
        }
        let inode = self.inode(node)?;
        let file = self.image.open_file(&inode);
        let file = file.map_err(|error| self.failed(inode.nid(), "data", &error))?;
        let file = Arc::new(file);
        self.files.put(node, Arc::clone(&file));
        Ok(file)
    }
}
