//! An inode that is asked for by its path or its number. Called by the names of erofs-utils, whose programs take both.

use anyhow::anyhow;
use ferrofs_image::{Image, Inode, Nid, WalkEvent};

use crate::escape::escape;

/// An inode and how it is reached.
#[derive(Clone, Debug)]
pub(super) struct FoundInode {
    /// Its first name; none for an inode that no directory names, such as the packed one.
    pub(super) path: Option<Vec<u8>>,
    pub(super) inode: Inode,
}

impl FoundInode {
    /// Looks up what `path` names.
    pub(super) fn at(image: &Image, path: &[u8]) -> anyhow::Result<Self> {
        let found = image.resolve(path).map_err(|error| anyhow!("{}: {error}", escape(path)))?;
        let inode = found.ok_or_else(|| anyhow!("{}: no such path in the image", escape(path)))?;
        Ok(Self { path: Some(path.to_vec()), inode })
    }

    /// Reads the inode `number` and looks through the image for its name.
    pub(super) fn numbered(image: &Image, number: u64) -> anyhow::Result<Self> {
        let nid = Nid::new(number);
        let inode = image.inode(nid).map_err(|error| anyhow!("{error}"))?;
        let walk = image.walk(b"/").map_err(|error| anyhow!("/: {error}"))?;
        let path = walk.into_iter().find_map(|visit| match visit {
            WalkEvent::Enter(node) | WalkEvent::Leaf(node) if node.inode.nid() == nid => {
                Some(node.path)
            }
            _ => None,
        });
        Ok(Self { path, inode })
    }
}
