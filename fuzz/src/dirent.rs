//! The directory block target.
//!
//! Input: a block of a directory.

use ferrofs_ondisk::dirent::{DirBlock, Dirent, NAME_MAX_BYTES, check_name};

/// Lists a block and looks its names up.
pub fn dirent(bytes: &[u8]) {
    let block = match DirBlock::parse(bytes) {
        Ok(block) => block,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let area = block.count() * 12;
    assert!(area > 0 && area < bytes.len());
    let mut entries = Vec::new();
    for entry in block.entries() {
        let Ok(entry) = entry else { break };
        check_entry(&entry, bytes, area);
        entries.push(entry);
    }
    assert_eq!(block.entries().count(), block.count());
    if block.entry(block.count()).is_ok() || block.entry(usize::MAX).is_ok() {
        panic!("an entry past the last one");
    }
    check_find(&block, &entries);
}

fn check_entry(entry: &Dirent<'_>, bytes: &[u8], area: usize) {
    assert!((1..=NAME_MAX_BYTES).contains(&entry.name.len()));
    let (block, name) = (bytes.as_ptr_range(), entry.name.as_ptr_range());
    let at = name.start.addr() - block.start.addr();
    assert!(at >= area && name.end <= block.end, "a name outside of the name area");
    let stays = !entry.name.contains(&b'/') && !entry.name.contains(&0);
    assert_eq!(check_name(entry.name).is_ok(), stays);
}

/// In a sound block a binary search finds what a scan finds, and nothing else.
fn check_find(block: &DirBlock<'_>, entries: &[Dirent<'_>]) {
    let is_sorted = entries.is_sorted_by(|a, b| a.name < b.name);
    let is_sound = is_sorted && entries.len() == block.count();
    let absent: [&[u8]; 4] = [b"", b"a", b"\xff\xff", &[0xff; 255]];
    let wanted = entries.iter().map(|entry| entry.name).take(256).chain(absent);
    for name in wanted {
        let scanned = entries.iter().find(|entry| entry.name == name);
        match block.find(name) {
            Ok(found) if is_sound => assert_eq!(found.as_ref(), scanned),
            Ok(found) => assert!(found.is_none_or(|found| found.name == name)),
            Err(error) => assert!(entries.len() < block.count(), "{error}"),
        }
    }
}
