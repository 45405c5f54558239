//! Directories in the format of the image: entries with `.` and `..` in byte order, split into blocks.

use ferrofs_ondisk::dirent::{DirBlockWriter, NewDirent};
use ferrofs_ondisk::{BlockSize, Nid};

use crate::metadata::placement::InodeOrder;
use crate::tree::{NodeId, Tree};
use crate::{Error, ErrorKind, Result};

/// Writes the directories of one tree.
#[derive(Debug)]
pub(crate) struct Directories<'t> {
    tree: &'t Tree,
    inode_order: &'t InodeOrder,
    writer: DirBlockWriter,
    block_bytes: usize,
    omit_dot: bool,
}

/// Bytes of an entry beside its name (docs/format.md F16).
const DIRENT_BYTES: usize = 12;

/// Which inode a node has become.
pub(crate) type NidOf<'a> = &'a dyn Fn(NodeId) -> Nid;

impl<'t> Directories<'t> {
    /// The directories of `tree`; with `omit_dot` none has an entry for itself.
    pub(crate) fn new(
        tree: &'t Tree,
        inode_order: &'t InodeOrder,
        block_size: BlockSize,
        omit_dot: bool,
    ) -> Self {
        Self {
            tree,
            inode_order,
            writer: DirBlockWriter::new(block_size),
            block_bytes: block_size.bytes() as usize,
            omit_dot,
        }
    }

    /// Bytes of the directory `id`, which depend on its names alone.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for a name that no directory may hold.
    pub(crate) fn bytes(&self, id: NodeId) -> Result<u64> {
        let mut bytes = 0_u64;
        self.for_each_block(id, &|_| Nid::new(0), &mut |block| {
            // All blocks but the last are whole.
            bytes = bytes.next_multiple_of(self.block_bytes as u64) + block.len() as u64;
            Ok(())
        })?;
        Ok(bytes)
    }

    /// All of the directory `id`.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    #[cfg(test)]
    pub(crate) fn render(&self, id: NodeId, nid_of: NidOf<'_>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.for_each_block(id, nid_of, &mut |block| {
            bytes.resize(bytes.len().next_multiple_of(self.block_bytes), 0);
            bytes.extend_from_slice(block);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Calls `visit` with one block of the directory `id` after another; each ends behind its last name, and all but
    /// the last are to be filled up with zeros. So a directory of any size takes the memory of a block.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes); those of `visit`.
    pub(crate) fn for_each_block(
        &self,
        id: NodeId,
        nid_of: NidOf<'_>,
        visit: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut own = vec![(Box::from(&b".."[..]), self.inode_order.parent(id))];
        if !self.omit_dot {
            own.insert(0, (Box::from(&b"."[..]), id));
        }
        let mut own = own.into_iter().peekable();
        let mut children = self.tree.entries(id).peekable();
        let mut block: Vec<(Box<[u8]>, NodeId)> = Vec::new();
        let mut used = 0;
        let mut before = Box::default();
        loop {
            // Some names come before the first two (docs/format.md F17).
            let is_own = match (own.peek(), children.peek()) {
                (Some((own, _)), Some((name, _))) => own < name,
                (own, _) => own.is_some(),
            };
            let next = if is_own { own.next() } else { children.next() };
            let more = next.as_ref().map_or(0, |(name, _)| DIRENT_BYTES + name.len());
            if !block.is_empty() && (next.is_none() || used + more > self.block_bytes) {
                self.write_block(&block, used, nid_of, visit)?;
                before = block.pop().map_or(before, |(name, _)| name);
                block.clear();
                used = 0;
            }
            let Some((name, child)) = next else { return Ok(()) };
            if block.is_empty() && !before.is_empty() && *before >= *name {
                return Err(Error::new(ErrorKind::Internal("names of a directory out of order")));
            }
            used += more;
            block.push((name, child));
        }
    }

    fn write_block<'b>(
        &self,
        block: &'b [(Box<[u8]>, NodeId)],
        used: usize,
        nid_of: NidOf<'_>,
        visit: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let entry = |(name, node): &'b (Box<[u8]>, NodeId)| NewDirent {
            name,
            nid: nid_of(*node),
            file_type: self.tree.file_type(*node),
        };
        let entries: Vec<NewDirent<'b>> = block.iter().map(entry).collect();
        let mut bytes = vec![0; used];
        self.writer.write_block(&entries, &mut bytes).map_err(format)?;
        visit(&bytes)
    }
}

fn format(error: ferrofs_ondisk::Error) -> Error {
    Error::new(ErrorKind::Format(error))
}

#[cfg(test)]
mod tests {
    use ferrofs_ondisk::dirent::DirBlock;

    use super::*;
    use crate::test_source::{metadata, node};
    use crate::tree::NodeKind;

    #[test]
    fn names_before_the_dot_come_before_it() {
        let mut tree = Tree::new(metadata());
        for name in [&b"!"[..], b"-", b"...", b"a"] {
            let child = tree.add(node(NodeKind::Fifo)).unwrap();
            tree.link(Tree::ROOT, name, child).unwrap();
        }
        let inode_order = InodeOrder::new(&tree).unwrap();
        let names = |omit_dot| {
            let block_size = BlockSize::from_bits(12).unwrap();
            let directories = Directories::new(&tree, &inode_order, block_size, omit_dot);
            let nid = |node: NodeId| Nid::new(node.index() as u64);
            let bytes = directories.render(Tree::ROOT, &nid).unwrap();
            assert_eq!(bytes.len() as u64, directories.bytes(Tree::ROOT).unwrap());
            let block = DirBlock::parse(&bytes).unwrap();
            let names = block.entries().map(|entry| entry.unwrap().name.to_vec());
            names.collect::<Vec<_>>().join(&b' ')
        };
        assert_eq!(names(false), b"! - . .. ... a");
        assert_eq!(names(true), b"! - .. ... a");
    }

    #[test]
    fn a_large_directory_has_whole_blocks_and_a_rest() {
        let mut tree = Tree::new(metadata());
        for number in 0..100u32 {
            let child = tree.add(node(NodeKind::Socket)).unwrap();
            tree.link(Tree::ROOT, format!("{number:020}").as_bytes(), child).unwrap();
        }
        let inode_order = InodeOrder::new(&tree).unwrap();
        let block_size = BlockSize::from_bits(9).unwrap();
        let directories = Directories::new(&tree, &inode_order, block_size, false);
        let bytes = directories.render(Tree::ROOT, &|node| Nid::new(node.index() as u64)).unwrap();
        let blocks: Vec<_> =
            bytes.chunks(512).map(|block| DirBlock::parse(block).unwrap()).collect();
        assert_eq!(blocks.iter().map(DirBlock::count).sum::<usize>(), 102);
        assert!(blocks.len() > 5);
    }
}
