//! SHA-256 of ranges and files: equal digests are taken for equal bytes, since SHA-256 is collision resistant.

use ferrofs_workers::CancelToken;
use sha2::{Digest as _, Sha256};

use crate::Result;
use crate::context::check_cancelled;
use crate::split::SEGMENT_BYTES;
use crate::tree::{Content, Tree};

/// The SHA-256 of a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sha256Digest([u8; 32]);

impl Sha256Digest {
    /// The digest of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of all of a file, however long, read through `buffer`.
    ///
    /// # Errors
    /// A source that cannot be read or has changed; [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    pub(crate) fn of_file(
        content: &Content,
        buffer: &mut Vec<u8>,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let mut reader = content.source().open()?;
        let mut hasher = Sha256::new();
        let mut at = 0;
        while at < content.bytes() {
            check_cancelled(cancel)?;
            let bytes = (content.bytes() - at).min(SEGMENT_BYTES);
            let count = usize::try_from(bytes).unwrap_or(usize::MAX);
            if buffer.len() < count {
                buffer.resize(count, 0);
            }
            let buffer = buffer.get_mut(..count).unwrap_or_default();
            reader.read_exact_at(at, buffer).map_err(|error| error.at_byte(at))?;
            hasher.update(&*buffer);
            at += bytes;
        }
        reader.check_unchanged()?;
        Ok(Self(hasher.finalize().into()))
    }

    /// Its 32 bytes.
    pub(crate) fn array(self) -> [u8; 32] {
        self.0
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What stands before the 32 bytes of a digest.
const DIGEST_PREFIX: &[u8] = b"sha256:";

/// Gives every regular file that is not empty the xattr `name`: `sha256:` and the 32 bytes of the SHA-256 of its
/// content, as `--xattr-inode-digest` of mkfs.erofs has it. [`BuildOptions::digest_xattr`](crate::BuildOptions::digest_xattr)
/// must have the same name.
///
/// # Errors
/// A file that cannot be read or has changed, with its path; [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) once `cancel` is cancelled.
pub fn add_digests(tree: &mut Tree, name: &[u8], cancel: &CancelToken) -> Result<()> {
    let mut buffer = Vec::new();
    for id in tree.ids() {
        let content = tree.content(id).filter(|content| content.bytes() > 0);
        let Some(content) = content else { continue };
        let digest = Sha256Digest::of_file(&content, &mut buffer, cancel);
        let digest = digest.map_err(|error| error.at(content.source().name()))?;
        tree.set_xattr(id, name, &[DIGEST_PREFIX, digest.bytes()].concat());
    }
    tree.store().check()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_source::{file, metadata};

    #[test]
    fn files_that_are_not_empty_get_their_digest() {
        let mut tree = Tree::new(metadata());
        let (some, none) = (tree.add(file(b"abc")).unwrap(), tree.add(file(b"")).unwrap());
        add_digests(&mut tree, b"erofs.fingerprint.v1", &CancelToken::new()).unwrap();
        let found = |id| tree.node(id).metadata.xattrs.get(&b"erofs.fingerprint.v1"[..]).cloned();
        let value = found(some).unwrap();
        assert_eq!((&value[..7], value.len()), (DIGEST_PREFIX, 39));
        assert_eq!(value[7..11], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!((found(none), found(Tree::ROOT)), (None, None));
    }
}
