//! Whether an image has any extended attribute at all. Where it has none, the kernel is told so once, and asks no
//! more: `ls -l` alone wants two of every file, a request each. Asked by `xattrs`.

use std::sync::atomic::{AtomicU8, Ordering};

use ferrofs_image::{Image, Visit};

/// Images of more inodes than this are not searched: asking about each costs less than it takes.
const MOST_INODES: u64 = 4 << 20;

/// What is known.
#[derive(Debug, Default)]
pub(super) struct Census(AtomicU8);

const NOT_ASKED: u8 = 0;
const UNDER_WAY: u8 = 1;
const HAS_SOME: u8 = 2;
const HAS_NONE: u8 = 3;

impl Census {
    /// Whether nobody has counted, so that the caller should have it [`run`](Self::run).
    pub(super) fn is_due(&self) -> bool {
        // Nothing else is handed over with the answer: relaxed, here and below.
        self.0.compare_exchange(NOT_ASKED, UNDER_WAY, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Looks at every inode, until one has an attribute.
    pub(super) fn run(&self, image: &Image) {
        let found = if has_none(image) { HAS_NONE } else { HAS_SOME };
        self.0.store(found, Ordering::Relaxed);
    }

    /// Whether it is certain that there is none.
    pub(super) fn has_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == HAS_NONE
    }
}

/// `false` also where it cannot be known.
fn has_none(image: &Image) -> bool {
    if image.superblock().inodes > MOST_INODES {
        return false;
    }
    let Ok(walk) = image.walk(b"/") else { return false };
    for visit in walk {
        match visit {
            Visit::Enter(node) | Visit::Leaf(node) if node.inode.has_xattrs() => return false,
            Visit::Enter(_) | Visit::Leaf(_) | Visit::Leave(_) => {}
            Visit::Problem(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(name: &str) -> Census {
        let path = format!("{}/../../tests/data/{name}.erofs", env!("CARGO_MANIFEST_DIR"));
        let census = Census::default();
        assert!(census.is_due());
        assert!(!census.is_due());
        census.run(&Image::open(path).unwrap());
        census
    }

    #[test]
    fn an_image_without_attributes_is_known_as_one() {
        assert!(census("xattr-none").has_none());
    }

    #[test]
    fn one_attribute_is_enough_to_be_asked_about() {
        assert!(!census("plain").has_none());
        assert!(!census("xattr-all-shared").has_none());
    }
}
