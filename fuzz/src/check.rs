//! The whole-image targets: open, walk, list, look up, read, verify.
//!
//! Input: an image; for `patched`, the number of a test image and changes to it. Its checksum is ignored, or no change to the superblock would pass. What a body
//! does with a directory or file is bounded, as an image may say that it has exabytes.

use std::sync::Arc;

use ferrofs_image::{
    FileType, Image, ImageSource, Inode, VerifyEvent, VerifyOptions, WalkEntry, WalkEvent,
};
use ferrofs_ondisk::dirent::DirBlock;

use crate::image_input::open;
use crate::patched::patch;
use crate::reading::{End, Front, Trust};

/// Steps of a walk.
const VISITS_MAX: usize = 400;
/// Files whose ranges are compared.
const FILES_MAX: usize = 24;
/// Inodes whose attributes are read.
const XATTRS_MAX: usize = 64;
/// Bytes of a directory that are listed a second time.
const DIR_MAX_BYTES: u64 = 64 << 10;
/// Names of a directory that are looked up.
const NAMES_MAX: usize = 64;
/// Files of more bytes are not read whole, which `verify` would do.
const VERIFIED_MAX_BYTES: u64 = 8 << 20;
/// The image is also opened with devices if it has this many or fewer.
const DEVICES_MAX: usize = 3;

/// Does everything with an image that a user can.
pub fn check(bytes: &[u8]) {
    let source: Arc<dyn ImageSource> = Arc::new(bytes.to_vec());
    let Some(image) = open(&source, 0) else { return };
    visit_all(&image);
    let devices = image.device_slots().len();
    if (1..=DEVICES_MAX).contains(&devices)
        && let Some(image) = open(&source, devices)
    {
        visit_all(&image);
    }
}

/// Changes an image and does everything with it that [`check`] does.
pub fn patched(bytes: &[u8]) {
    check(&patch(bytes));
}

/// What a walk has seen so far.
#[derive(Debug, Default)]
struct Tour {
    visits: usize,
    files: usize,
    xattrs: usize,
    problems: usize,
    /// Files, and what their pieces gave.
    read: Vec<(Inode, Front)>,
    /// Everything was read to its end, and `verify` has no more to do than this walk had.
    is_small: bool,
}

fn visit_all(image: &Image) {
    let mut tour = Tour { is_small: true, ..Tour::default() };
    if let Some(error) = image.truncation() {
        assert!(!error.to_string().is_empty());
        tour.problems += 1;
    }
    let Ok(walk) = image.walk(b"/") else { return };
    for visit in walk {
        tour.visits += 1;
        if tour.visits > VISITS_MAX {
            tour.is_small = false;
            break;
        }
        match visit {
            WalkEvent::Enter(node) => {
                tour.inode(image, &node);
                list(image, &node);
            }
            WalkEvent::Leaf(node) => {
                tour.inode(image, &node);
                tour.leaf(image, &node);
            }
            WalkEvent::Leave(_) => {}
            WalkEvent::Problem(problem) => {
                tour.problems += 1;
                assert!(!problem.error.to_string().is_empty());
            }
        }
    }
    let is_sound = tour.is_small && verify(image, tour.problems) == 0;
    let trust = if is_sound { Trust::Sound } else { Trust::Doubtful };
    for (file, front) in &tour.read {
        front.compare(image, file, trust);
    }
}

impl Tour {
    fn inode(&mut self, image: &Image, node: &WalkEntry) {
        assert!(node.path.starts_with(b"/") && !node.path.contains(&0));
        self.xattrs += 1;
        if self.xattrs > XATTRS_MAX {
            self.is_small &= !node.inode.has_xattrs();
            return;
        }
        let Ok(all) = image.xattrs(&node.inode) else {
            self.problems += 1;
            return;
        };
        for attribute in all.iter().take(NAMES_MAX) {
            // A filter may hide what is there; it may not invent anything.
            if let Ok(Some(value)) = image.xattr(&node.inode, &attribute.name) {
                let is_listed =
                    all.iter().any(|one| one.name == attribute.name && one.value == value);
                assert!(is_listed, "an attribute that is not listed");
            }
        }
    }

    fn leaf(&mut self, image: &Image, node: &WalkEntry) {
        let file = &node.inode;
        match file.file_type() {
            FileType::Symlink => match image.read_link(file) {
                Ok(target) => {
                    assert!(target.len() as u64 == file.size() && !target.contains(&0));
                    assert!((1..=4096).contains(&target.len()));
                }
                Err(_) => self.problems += 1,
            },
            FileType::Regular => {
                self.files += 1;
                self.is_small &= file.size() <= VERIFIED_MAX_BYTES && self.files <= FILES_MAX;
                if self.files > FILES_MAX {
                    return;
                }
                let front = Front::read(image, file);
                match front.end {
                    End::Complete => {}
                    End::Stopped => self.is_small = false,
                    End::Failed => self.problems += 1,
                }
                self.read.push((file.clone(), front));
            }
            _ => {}
        }
    }
}

const ABSENT_NAME: &[u8] = b"no such name \xff";

/// In a sound directory a lookup finds what the listing has.
fn list(image: &Image, node: &WalkEntry) {
    let dir = &node.inode;
    let Ok(listed) = image.read_dir(dir) else { panic!("a walk entered what is no directory") };
    let mut names = Vec::new();
    for entry in listed.take(NAMES_MAX) {
        let Ok(entry) = entry else { break };
        assert!(!matches!(&*entry.name, b"." | b"..") && (1..=255).contains(&entry.name.len()));
        names.push(entry);
    }
    let is_sound = is_sorted(image, dir);
    for entry in &names {
        match image.lookup(dir, &entry.name) {
            Ok(Some(found)) if is_sound => assert_eq!(found.nid(), entry.nid),
            Ok(None) if is_sound => panic!("a name that is listed is not found"),
            Err(_) if is_sound => {
                assert!(image.inode(entry.nid).is_err(), "a sound inode is not found");
            }
            _ => {}
        }
    }
    let absent = image.lookup(dir, ABSENT_NAME);
    let is_absent = names.iter().all(|entry| *entry.name != *ABSENT_NAME);
    assert!(!is_sound || !is_absent || absent.is_ok_and(|found| found.is_none()));
    drop(image.resolve(&node.path));
}

/// Whether all entries can be read and their names ascend from block to block.
fn is_sorted(image: &Image, dir: &Inode) -> bool {
    let Some(size) = usize::try_from(dir.size()).ok().filter(|_| dir.size() <= DIR_MAX_BYTES)
    else {
        return false;
    };
    let mut bytes = vec![0; size];
    if image.read_at(dir, 0, &mut bytes).is_err() {
        return false;
    }
    let block_bytes = usize::try_from(image.superblock().block_size.bytes()).unwrap_or(512);
    let mut last: Vec<u8> = Vec::new();
    for block in bytes.chunks(block_bytes) {
        let Ok(block) = DirBlock::parse(block) else { return false };
        for entry in block.entries() {
            match entry {
                Ok(entry) if *last < *entry.name => last = entry.name.to_vec(),
                _ => return false,
            }
        }
    }
    true
}

/// Verifying agrees with the walk about whether there is anything wrong; answers how much is.
fn verify(image: &Image, problems: usize) -> u64 {
    let mut reported = 0;
    let mut last = (0, 0);
    let summary = image
        .verify(&VerifyOptions::new().max_threads(1), &mut |event| match event {
            VerifyEvent::Problem(_) => reported += 1,
            VerifyEvent::Progress(progress) => {
                assert!(last <= (progress.inodes, progress.bytes), "progress goes back");
                last = (progress.inodes, progress.bytes);
            }
        })
        .unwrap();
    assert_eq!(summary.problems, reported);
    assert!((summary.inodes, summary.bytes) >= last);
    assert!(reported > 0 || problems == 0, "{problems} problems that a verification does not see");
    reported
}
