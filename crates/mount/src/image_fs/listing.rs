//! Entries of directories, with attributes where the kernel wants them.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use ferrofs_fuse::{DirentBuffer, DirentName, Reply};
use ferrofs_image::{DirEntryRef, FileType, Inode, Nid};

use super::{FsResult, ImageFs};

/// The longest answer; C libraries ask for 32 KiB at a time.
const ROOM_BYTES: u32 = 64 << 10;
/// Answers that are readdir_cache before they are asked for, at most.
const MAX_PAGES: usize = 8;

/// A directory of at most so many bytes, some three hundred names, is listed with all attributes at once: it is one
/// request in any case.
const SMALL_DIRECTORY_BYTES: u64 = 8192;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReaddirKey {
    node: u64,
    offset: u64,
    room: u32,
    is_plus: bool,
}

/// An answer.
#[derive(Debug)]
struct ReaddirPage {
    key: ReaddirKey,
    bytes: Vec<u8>,
    /// The regular files in it, each with whether the kernel will know it.
    files: Vec<(Nid, bool)>,
    /// Where the next one starts, if there was no room for all.
    next: Option<u64>,
}

/// Answers that will be asked for next: whoever lists a long directory goes on, and finds the next part made while it
/// was at the last one.
#[derive(Debug, Default)]
pub(super) struct ReaddirCache(Mutex<VecDeque<ReaddirPage>>);

impl ReaddirCache {
    fn take(&self, key: &ReaddirKey) -> Option<ReaddirPage> {
        let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = pages.iter().position(|page| page.key == *key)?;
        pages.remove(place)
    }

    fn put(&self, page: ReaddirPage) {
        let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pages.push_back(page);
        let gone = if pages.len() > MAX_PAGES { pages.pop_front() } else { None };
        drop(pages);
        drop(gone);
    }
}

impl ImageFs {
    pub(super) fn read_dir(
        &self,
        node: u64,
        (offset, size): (u64, u32),
        is_plus: bool,
        reply: Reply<'_>,
    ) {
        let key = ReaddirKey { node, offset, room: size.min(ROOM_BYTES), is_plus };
        let page = self.readdir_cache.take(&key).map_or_else(|| self.page(key), Ok);
        let page = match page {
            Ok(page) => page,
            Err(errno) => return reply.error(errno),
        };
        // Before the kernel knows of them, so that reading them is understood.
        self.predictor.record_listing(&page.files);
        reply.bytes(&page.bytes);
        if let Some(offset) = page.next
            && let Ok(next) = self.page(ReaddirKey { offset, ..key })
        {
            self.readdir_cache.put(next);
        }
    }

    /// Somebody wants more of an inode than its name.
    pub(super) fn note_lookup(&self, inode: &Inode) {
        if inode.file_type() != FileType::Directory {
            self.attribute_interest.raise();
            self.predictor.mark_known(inode.nid());
        }
    }

    /// What can be read of a directory is listed; an error comes when nothing is left before it.
    fn page(&self, key: ReaddirKey) -> FsResult<ReaddirPage> {
        let dir = self.inode(key.node)?;
        let with_files = key.is_plus
            && (dir.size() <= SMALL_DIRECTORY_BYTES || self.attribute_interest.is_raised());
        let mut page = ReaddirPage { key, bytes: Vec::new(), files: Vec::new(), next: None };
        let room = usize::try_from(key.room).unwrap_or(0);
        page.bytes.reserve_exact(room);
        let mut listing = DirentBuffer::new(&mut page.bytes, room, key.is_plus);
        let mut last = key.offset;
        let listed = self.image.list(&dir, key.offset, &mut |entry| {
            if !self.add(entry, with_files, &mut listing) {
                page.next = Some(last);
                return ControlFlow::Break(());
            }
            last = entry.next;
            if entry.type_hint == Some(FileType::Regular) {
                page.files.push((entry.nid, with_files));
            }
            ControlFlow::Continue(())
        });
        match listed {
            Err(error) if page.bytes.is_empty() => Err(self.failed(dir.nid(), "an entry", &error)),
            _ => Ok(page),
        }
    }

    /// `false` if there is no room.
    fn add(
        &self,
        entry: &DirEntryRef<'_>,
        with_files: bool,
        listing: &mut DirentBuffer<'_>,
    ) -> bool {
        if !listing.fits(entry.name.len()) {
            return false;
        }
        let listed = DirentName {
            ino: self.nodes.ino(entry.nid),
            next: entry.next,
            file_type: entry.type_hint.map_or(0, d_type),
            name: entry.name,
        };
        let is_dot = matches!(entry.name, b"." | b"..");
        let is_wanted = with_files || entry.type_hint == Some(FileType::Directory);
        // An inode that cannot be read is listed all the same; looking it up says what is wrong.
        let inode = (listing.is_plus() && is_wanted && !is_dot)
            .then(|| self.image.inode(entry.nid).ok())
            .flatten();
        listing.push(&listed, inode.map(|inode| self.entry(&inode)).as_ref())
    }
}

/// Whether those who list directories want more than names. Attributes in a listing cost the kernel an inode each,
/// and save a request each where somebody looks at them: `ls -l` does, `find` does not. So they are in what is
/// listed after somebody has asked for those of a file, and no more once nobody has for long.
#[derive(Debug, Default)]
pub(super) struct AttributeInterest(AtomicU32);

/// Listings that have attributes after one was asked for.
const INTEREST_LISTINGS: u32 = 256;

impl AttributeInterest {
    fn raise(&self) {
        // A guess, which orders nothing: relaxed, here and below.
        self.0.store(INTEREST_LISTINGS, Ordering::Relaxed);
    }

    fn is_raised(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if left > 0 {
            self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        }
        left > 0
    }
}

/// As in `d_type`.
fn d_type(file_type: FileType) -> u8 {
    match file_type {
        FileType::Fifo => 1,
        FileType::CharDevice => 2,
        FileType::Directory => 4,
        FileType::BlockDevice => 6,
        FileType::Regular => 8,
        FileType::Symlink => 10,
        FileType::Socket => 12,
    }
}
