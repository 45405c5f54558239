//! A tree that is deeper than any path: work and memory are bounded, and the depth is reported.

use std::sync::Arc;

use ferrofs_image::{ErrorKind, ImageSource, OpenOptions, WalkEvent};

/// Bytes between the directories of the image; each lies in one block with its entries.
const SPACING: usize = 512;
/// The first directory, behind the superblock's block.
const FIRST: usize = 4096;

/// A directory with `.`, `..` and one entry with a name of 255 bytes.
fn directory(number: usize, count: usize) -> Vec<u8> {
    let nid = |number: usize| ((FIRST + number * SPACING) / 32) as u64;
    let child = (number + 1).min(count - 1);
    let entries: [(&[u8], u64); 3] =
        [(b".", nid(number)), (b"..", nid(number.saturating_sub(1))), (&[b'd'; 255], nid(child))];
    let names: Vec<&[u8]> = entries.iter().map(|(name, _)| *name).collect();
    let mut data = Vec::new();
    let mut offset = 36;
    for (name, nid) in entries {
        data.extend_from_slice(&nid.to_le_bytes());
        data.extend_from_slice(&u16::try_from(offset).unwrap().to_le_bytes());
        data.extend_from_slice(&[2, 0]);
        offset += name.len();
    }
    data.extend_from_slice(&names.concat());
    let mut inode = vec![0u8; 64];
    inode[0] = 1 | 2 << 1;
    inode[4..6].copy_from_slice(&0o040_755u16.to_le_bytes());
    inode[8..16].copy_from_slice(&(data.len() as u64).to_le_bytes());
    inode[44] = 3;
    [inode, data].concat()
}

fn image(depth: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; FIRST + depth * SPACING];
    bytes[1024..1028].copy_from_slice(&0xE0F5_E1E2u32.to_le_bytes());
    bytes[1036] = 12;
    bytes[1038..1040].copy_from_slice(&u16::try_from(FIRST / 32).unwrap().to_le_bytes());
    for number in 0..depth {
        let directory = directory(number, depth);
        let at = FIRST + number * SPACING;
        bytes[at..at + directory.len()].copy_from_slice(&directory);
    }
    bytes
}

#[test]
fn a_tree_deeper_than_any_path_is_cut_off_and_reported() {
    let source: Arc<dyn ImageSource> = Arc::new(image(2000));
    let image = OpenOptions::new().open_sources(source, Vec::new()).unwrap();
    let (mut entered, mut longest, mut reported) = (0, 0, 0);
    for visit in image.walk(b"/").unwrap() {
        match visit {
            WalkEvent::Enter(node) => {
                entered += 1;
                longest = longest.max(node.path.len());
            }
            WalkEvent::Problem(problem) => {
                assert!(matches!(problem.error.kind(), ErrorKind::PathTooLong), "{problem:?}");
                reported += 1;
            }
            WalkEvent::Leaf(_) | WalkEvent::Leave(_) => {}
        }
    }
    assert_eq!((entered, longest, reported), (257, 65_536, 1));
}
