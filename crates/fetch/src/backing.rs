//! The files of an object, which readers get: in the cache directory, or in memory without one. What
//! is kept in memory has one bound for all objects of the fetcher.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use ferrofs_remote::cache::{CacheKey, ChunkLayout, ObjectIdentity, ObjectWriter};
use ferrofs_remote::memory_file;
use rustix::fs::{Mode, OFlags};

use crate::lock::lock;
use crate::space::{CacheSpace, DiskObject};

/// Bytes of chunks that are kept in memory for all objects: twice as many chunks as a mount has
/// readers, so that a chunk is usually read before others take its place.
const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// The chunks of all objects that are kept in memory, oldest first.
#[derive(Debug, Default)]
pub(crate) struct MemoryChunks {
    resident: Mutex<VecDeque<Resident>>,
}

#[derive(Debug)]
struct Resident {
    writer: Weak<ObjectWriter>,
    chunk: u32,
    bytes: u64,
}

impl MemoryChunks {
    /// A chunk was stored: the oldest ones go. The newest stays, however long it is.
    fn add(&self, writer: &Arc<ObjectWriter>, chunk: u32, bytes: u64) -> io::Result<()> {
        let writer_of = Arc::downgrade(writer);
        let mut resident = lock(&self.resident);
        resident.retain(|one| one.writer.strong_count() > 0 && !one.is(&writer_of, chunk));
        resident.push_back(Resident { writer: writer_of, chunk, bytes });
        let mut sum: u64 = resident.iter().map(|one| one.bytes).sum();
        while sum > MEMORY_BYTES_MAX && resident.len() > 1 {
            let Some(oldest) = resident.pop_front() else { break };
            sum -= oldest.bytes;
            if let Some(writer) = oldest.writer.upgrade() {
                writer.discard(oldest.chunk..oldest.chunk + 1)?;
            }
        }
        Ok(())
    }

    /// A chunk is used: others go before it.
    fn set_used(&self, writer: &Arc<ObjectWriter>, chunk: u32) {
        let writer = Arc::downgrade(writer);
        let mut resident = lock(&self.resident);
        if let Some(at) = resident.iter().position(|one| one.is(&writer, chunk))
            && let Some(used) = resident.remove(at)
        {
            resident.push_back(used);
        }
    }
}

impl Resident {
    fn is(&self, writer: &Weak<ObjectWriter>, chunk: u32) -> bool {
        self.chunk == chunk && self.writer.ptr_eq(writer)
    }
}

/// The files of an object: in the cache directory, or in memory.
#[derive(Debug)]
pub(crate) struct Backing {
    storage: Storage,
    data: File,
    records: File,
}

#[derive(Debug)]
enum Storage {
    Disk(Arc<DiskObject>),
    Memory { writer: Arc<ObjectWriter>, chunks: Arc<MemoryChunks> },
}

impl Backing {
    /// Files in the cache directory, which has room for a chunk.
    pub(crate) fn on_disk(
        space: &Arc<CacheSpace>,
        identity: &ObjectIdentity,
        layout: ChunkLayout,
        first_generation: u32,
    ) -> io::Result<Self> {
        let object = space.open(identity, layout, first_generation)?;
        let first = layout.bytes_of(0);
        if !object.writer().is_present(0) {
            drop(space.reserve(first.end - first.start)?);
        }
        let (data, records) = space.cache().reader_files(&identity.key())?;
        Ok(Self { storage: Storage::Disk(object), data, records })
    }

    /// Files in memory, with the chunks of `chunks` within one bound.
    pub(crate) fn in_memory(
        key: CacheKey,
        layout: ChunkLayout,
        first_generation: u32,
        chunks: &Arc<MemoryChunks>,
    ) -> io::Result<Self> {
        let (data, records) = (memory_file("data")?, memory_file("index")?);
        let readable = (read_only(&data)?, read_only(&records)?);
        let writer = Arc::new(ObjectWriter::new(key, layout, data, records, first_generation)?);
        let storage = Storage::Memory { writer, chunks: Arc::clone(chunks) };
        Ok(Self { storage, data: readable.0, records: readable.1 })
    }

    pub(crate) fn writer(&self) -> &ObjectWriter {
        match &self.storage {
            Storage::Disk(object) => object.writer(),
            Storage::Memory { writer, .. } => writer,
        }
    }

    pub(crate) fn is_on_disk(&self) -> bool {
        matches!(self.storage, Storage::Disk(_))
    }

    /// A reader uses a chunk: it is evicted later.
    pub(crate) fn set_used(&self, chunk: u32) {
        match &self.storage {
            Storage::Disk(object) => object.set_used(chunk),
            Storage::Memory { writer, chunks } => chunks.set_used(writer, chunk),
        }
    }

    pub(crate) fn store(&self, chunk: u32, bytes: &[u8]) -> io::Result<()> {
        match &self.storage {
            Storage::Disk(object) => object.store(chunk, bytes),
            Storage::Memory { writer, chunks } => {
                writer.store(chunk, bytes)?;
                chunks.add(writer, chunk, bytes.len() as u64)
            }
        }
    }

    /// The files for readers.
    pub(crate) fn files(&self) -> [BorrowedFd<'_>; 2] {
        [self.data.as_fd(), self.records.as_fd()]
    }
}

/// A file in memory with these bytes, for clients.
pub(crate) fn document_file(name: &str, bytes: &[u8]) -> io::Result<File> {
    let file = memory_file(name)?;
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0)?;
    read_only(&file)
}

/// The same file, opened again without the right to write.
fn read_only(file: &File) -> io::Result<File> {
    let number = std::os::fd::AsRawFd::as_raw_fd(file);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened: OwnedFd =
        rustix::fs::open(format!("/proc/self/fd/{number}"), flags, Mode::empty())?;
    Ok(File::from(opened))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_objects_together_keep_a_bounded_number_of_bytes_in_memory() {
        let chunks = Arc::new(MemoryChunks::default());
        let layout = ChunkLayout::new(100 << 20).unwrap();
        let object = |key| Backing::in_memory([key; 32], layout, 1, &chunks).unwrap();
        let objects = [object(1), object(2), object(3)];
        for chunk in 0..40 {
            for object in &objects {
                object.store(chunk, &vec![7; 1 << 20]).unwrap();
                objects[0].set_used(0);
            }
        }
        let present = |number: usize| objects[number].writer().present_chunks().unwrap();
        let counts = [present(0).len(), present(1).len(), present(2).len()];
        assert_eq!(counts.iter().sum::<usize>(), 64, "{counts:?}");
        assert_eq!(present(0).first(), Some(&0), "it was used");
        assert_eq!(present(1).last(), Some(&39));
        let blocks = rustix::fs::fstat(&objects[0].data).unwrap().st_blocks;
        assert!(blocks <= (23 << 20) / 512, "{blocks}");
    }
}
