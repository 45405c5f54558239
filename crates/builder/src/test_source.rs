//! Contents in memory, for the tests of the data path.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::tree::{Content, ContentReader, ContentSource, Metadata, Node, NodeKind, Timestamp};
use crate::{Error, ErrorKind, Result};

struct MemorySource {
    name: String,
    bytes: Arc<[u8]>,
    ranges: Vec<Range<u64>>,
}

struct OpenMemory(String, Arc<[u8]>);

impl ContentSource for MemorySource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        Ok(Box::new(OpenMemory(self.name.clone(), Arc::clone(&self.bytes))))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        Ok(self.ranges.clone())
    }
}

impl ContentReader for OpenMemory {
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap();
        let Some(bytes) = self.1.get(start..start + buffer.len()) else {
            let how = "it became shorter".to_owned();
            let error = Error::new(ErrorKind::SourceChanged { how });
            return Err(error.at(&self.0).at_byte(self.1.len() as u64));
        };
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn check_unchanged(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A content of these bytes.
pub(crate) fn content(name: &str, bytes: &[u8]) -> Content {
    let everything = 0..bytes.len() as u64;
    sparse_content(name, bytes, vec![everything])
}

/// A content of these bytes with holes beside `ranges`.
pub(crate) fn sparse_content(name: &str, bytes: &[u8], ranges: Vec<Range<u64>>) -> Content {
    let source = MemorySource { name: name.to_owned(), bytes: bytes.into(), ranges };
    Content::new(Arc::new(source), bytes.len() as u64)
}

/// A content that says that it has more bytes than there are.
pub(crate) fn shrunk_content(name: &str, bytes: &[u8], declared_bytes: u64) -> Content {
    let source = MemorySource { name: name.to_owned(), bytes: bytes.into(), ranges: Vec::new() };
    Content::new(Arc::new(source), declared_bytes)
}

pub(crate) fn metadata() -> Metadata {
    Metadata {
        permissions: 0o755,
        uid: 0,
        gid: 0,
        mtime: Timestamp { seconds: 1_700_000_000, nanoseconds: 0 },
        xattrs: BTreeMap::new(),
    }
}

pub(crate) fn node(kind: NodeKind) -> Node {
    Node { metadata: metadata(), kind }
}

pub(crate) fn file(bytes: &[u8]) -> Node {
    let source = TestSource(bytes.into());
    node(NodeKind::File(Content::new(Arc::new(source), bytes.len() as u64)))
}

#[derive(Clone, Debug)]
struct TestSource(Arc<[u8]>);

impl ContentSource for TestSource {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        Ok(Box::new(self.clone()))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        Ok(std::iter::once(0..self.0.len() as u64).collect())
    }
}

impl ContentReader for TestSource {
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap();
        buffer.copy_from_slice(&self.0[start..start + buffer.len()]);
        Ok(())
    }

    fn check_unchanged(&mut self) -> Result<()> {
        Ok(())
    }
}
