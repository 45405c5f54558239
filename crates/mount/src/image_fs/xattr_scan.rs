//! Whether an image has any extended attribute at all. Where it has none, the kernel is told so once, and asks no
//! more: `ls -l` alone wants two of every file, a request each. Asked by `xattrs`.

use std::sync::atomic::{AtomicU8, Ordering};

use ferrofs_image::{Image, WalkEvent};

/// Images of more inodes than this are not searched: asking about each costs less than it takes.
const MAX_INODES: u64 = 4 << 20;

/// What is known.
#[derive(Debug, Default)]
pub(super) struct XattrScan(AtomicU8);

const NOT_STARTED: u8 = 0;
const RUNNING: u8 = 1;
const SOME_FOUND: u8 = 2;
const NONE_FOUND: u8 = 3;

impl XattrScan {
    /// Whether nobody has counted, so that the caller should have it [`run`](Self::run).
    pub(super) fn try_start(&self) -> bool {
        // Nothing else is handed over with the answer: relaxed, here and below.
        self.0.compare_exchange(NOT_STARTED, RUNNING, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Looks at every inode, until one has an attribute.
    pub(super) fn run(&self, image: &Image) {
        let found = if has_none(image) { NONE_FOUND } else { SOME_FOUND };
        self.0.store(found, Ordering::Relaxed);
    }

    /// Whether it is certain that there is none.
    pub(super) fn has_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == NONE_FOUND
    }
}

/// `false` also where it cannot be known.
fn has_none(image: &Image) -> bool {
    if image.superblock().inodes > MAX_INODES {
        return false;
    }
    let Ok(walk) = image.walk(b"/") else { return false };
    for visit in walk {
        match visit {
            WalkEvent::Enter(node) | WalkEvent::Leaf(node) if node.inode.has_xattrs() => {
                return false;
            }
            WalkEvent::Enter(_) | WalkEvent::Leaf(_) | WalkEvent::Leave(_) => {}
            WalkEvent::Problem(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xattr_scan(name: &str) -> XattrScan {
        let path = format!("{}/../../tests/data/{name}.erofs", env!("CARGO_MANIFEST_DIR"));
        let xattr_scan = XattrScan::default();
        assert!(xattr_scan.try_start());
        assert!(!xattr_scan.try_start());
        xattr_scan.run(&Image::open(path).unwrap());
        xattr_scan
    }

    #[test]
    fn an_image_without_attributes_is_known_as_one() {
        assert!(xattr_scan("xattr-none").has_none());
    }

    #[test]
    fn one_attribute_is_enough_to_be_asked_about() {
        assert!(!xattr_scan("plain").has_none());
        assert!(!xattr_scan("xattr-all-shared").has_none());
    }
}
