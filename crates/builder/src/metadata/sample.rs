//! Nodes and contents for tests, made in memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::Result;
use crate::tree::{Content, ContentReader, ContentSource, Metadata, Node, NodeKind, Timestamp};

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
