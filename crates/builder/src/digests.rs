//! Digests of the contents of files, as xattrs: by them a kernel or a tool sees that two files hold the same.

use crate::compress::worker::hash;
use crate::observer::BuildObserver;
use crate::tree::{NodeId, Tree};
use crate::{Error, ErrorKind, Result};

/// What stands before the 32 bytes of a digest.
const KIND: &[u8] = b"sha256:";

/// Gives every regular file that is not empty the xattr `name`: `sha256:` and the 32 bytes of the SHA-256 of its
/// content, as `--xattr-inode-digest` of mkfs.erofs has it. [`BuildOptions::digest_xattr`](crate::BuildOptions::digest_xattr)
/// must have the same name.
///
/// # Errors
/// A file that cannot be read or has changed, with its path; [`ErrorKind::Cancelled`] if `observer` said so.
pub fn add_digests(tree: &mut Tree, name: &[u8], observer: &dyn BuildObserver) -> Result<()> {
    let mut buffer = Vec::new();
    let mut digests: Vec<(NodeId, Box<[u8]>)> = Vec::new();
    for (id, node) in tree.nodes() {
        let Some(content) = node.content().filter(|content| content.bytes() > 0) else { continue };
        if observer.should_stop() {
            return Err(Error::new(ErrorKind::Cancelled));
        }
        let digest =
            hash(content, &mut buffer).map_err(|error| error.at(content.source().name()))?;
        digests.push((id, [KIND, digest.bytes()].concat().into()));
    }
    for (id, value) in digests {
        tree.node_mut(id).metadata.xattrs.insert(name.into(), value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::sample::{file, metadata};
    use crate::observer::NoopObserver;

    #[test]
    fn files_that_are_not_empty_get_their_digest() {
        let mut tree = Tree::new(metadata());
        let (some, none) = (tree.add(file(b"abc")).unwrap(), tree.add(file(b"")).unwrap());
        add_digests(&mut tree, b"erofs.fingerprint.v1", &NoopObserver).unwrap();
        let found = |id| tree.node(id).metadata.xattrs.get(&b"erofs.fingerprint.v1"[..]);
        let value = found(some).unwrap();
        assert_eq!((&value[..7], value.len()), (KIND, 39));
        assert_eq!(value[7..11], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!((found(none), found(Tree::ROOT)), (None, None));
    }
}
