//! How much there is to extract, known beforehand: for showing progress.

use std::collections::HashSet;

use ferrofs_image::{FileType, Image, Inode, WalkEvent};

use crate::event::ExtractProgress;
use crate::selection::{Selection, SelectionMatch};

/// Walks through the metadata and counts what [`extract`](crate::extract) would write.
///
/// What cannot be read is not counted, and names that are damaged neither, so the result is an
/// estimate for images that are not sound.
#[must_use]
pub fn measure(image: &Image, selection: &Selection) -> ExtractProgress {
    let mut total = ExtractProgress::default();
    let mut linked = HashSet::new();
    let mut matches = selection.matches();
    let Ok(mut walk) = image.walk(b"/") else { return total };
    while let Some(visit) = walk.next() {
        let (WalkEvent::Enter(node) | WalkEvent::Leaf(node)) = &visit else { continue };
        match selection.classify(&node.path, &mut matches) {
            SelectionMatch::Outside if matches!(visit, WalkEvent::Enter(_)) => walk.skip_children(),
            SelectionMatch::Inside => {
                total.entries += 1;
                total.bytes = total.bytes.saturating_add(new_bytes(&node.inode, &mut linked));
            }
            _ => {}
        }
    }
    total
}

/// The bytes of a regular file that has not been counted under another name.
fn new_bytes(inode: &Inode, linked: &mut HashSet<ferrofs_image::Nid>) -> u64 {
    let is_new = inode.nlink() < 2 || linked.insert(inode.nid());
    if is_new && inode.file_type() == FileType::Regular { inode.size() } else { 0 }
}
