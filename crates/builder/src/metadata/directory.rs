//! Directories in the format of the image: entries with `.` and `..` in byte order, split into blocks.

use ferrofs_ondisk::dirent::{DirBlockSplit, DirBlockWriter, NewDirent};
use ferrofs_ondisk::{BlockSize, Nid};

use crate::metadata::inode_order::InodeOrder;
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
        let entries = self.entries(id, &|_| Nid::new(0));
        Ok(self.split(&entries)?.bytes)
    }

    /// The directory `id`; its last block ends behind the last name.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub(crate) fn render(&self, id: NodeId, nid_of: NidOf<'_>) -> Result<Vec<u8>> {
        let entries = self.entries(id, nid_of);
        let split = self.split(&entries)?;
        let mut bytes = vec![0; usize::try_from(split.bytes).unwrap_or(usize::MAX)];
        let mut rest = &entries[..];
        for (count, block) in split.counts.iter().zip(bytes.chunks_mut(self.block_bytes)) {
            let (here, behind) = rest.split_at_checked(*count).unwrap_or((rest, &[]));
            self.writer.write_block(here, block).map_err(format)?;
            rest = behind;
        }
        Ok(bytes)
    }

    fn split(&self, entries: &[NewDirent<'_>]) -> Result<DirBlockSplit> {
        self.writer.split(entries).map_err(format)
    }

    fn entries(&self, id: NodeId, nid_of: NidOf<'_>) -> Vec<NewDirent<'t>> {
        let own = [(&b"."[..], id), (&b".."[..], self.inode_order.parent(id))];
        let children = self.tree.node(id).entries().into_iter().flatten();
        let mut entries: Vec<_> = own
            .into_iter()
            .skip(usize::from(self.omit_dot))
            .chain(children.map(|(name, child)| (&**name, *child)))
            .map(|(name, node)| NewDirent {
                name,
                nid: nid_of(node),
                file_type: self.tree.node(node).kind.file_type(),
            })
            .collect();
        // Only the first two can be out of order: some names come before them (docs/format.md F17).
        entries.sort_by_key(|entry| entry.name);
        entries
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
