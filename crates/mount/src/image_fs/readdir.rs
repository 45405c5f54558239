//! READDIR and READDIRPLUS. The next page of a long directory is prepared before it is requested.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use ferrofs_fuse::{DirentBuffer, DirentName, Reply};
use ferrofs_image::{DirEntryRef, FileType, Inode};

use super::predictor::ListedFile;
use super::{FsResult, ImageFs};

/// The largest page, in bytes; C libraries request 32 KiB.
const MAX_PAGE_BYTES: u32 = 64 << 10;
/// The largest number of prepared pages.
const MAX_PAGES: usize = 8;

/// A directory of at most this size, some three hundred names, is always listed with all attributes: it takes one request
/// in any case.
const SMALL_DIRECTORY_BYTES: u64 = 8192;

/// A request for a page of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReaddirKey {
    pub(super) node: u64,
    pub(super) offset: u64,
    /// The size of the page, in bytes.
    pub(super) size: u32,
    /// READDIRPLUS.
    pub(super) is_plus: bool,
}

/// A page of a directory.
#[derive(Debug)]
struct ReaddirPage {
    key: ReaddirKey,
    bytes: Vec<u8>,
    /// Its regular files.
    files: Vec<ListedFile>,
    /// The offset of the next page, if this one is full.
    next: Option<u64>,
}

/// Prepared pages. A caller that lists a long directory requests the next page soon.
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
        let removed = if pages.len() > MAX_PAGES { pages.pop_front() } else { None };
        drop(pages);
        drop(removed);
    }
}

impl ImageFs {
    pub(super) fn read_dir(&self, key: ReaddirKey, reply: Reply<'_>) {
        let key = ReaddirKey { size: key.size.min(MAX_PAGE_BYTES), ..key };
        let page = self.readdir_cache.take(&key).map_or_else(|| self.page(key), Ok);
        let page = match page {
            Ok(page) => page,
            Err(errno) => return reply.error(errno),
        };
        // Before the reply, so that the first read finds the files in the predictor.
        self.predictor.record_listing(&page.files);
        reply.bytes(&page.bytes);
        if let Some(offset) = page.next
            && let Ok(next) = self.page(ReaddirKey { offset, ..key })
        {
            self.readdir_cache.put(next);
        }
    }

    /// The kernel has looked an inode up, so a caller needs more than its name.
    pub(super) fn note_lookup(&self, inode: &Inode) {
        if inode.file_type() != FileType::Directory {
            self.attribute_interest.raise();
            self.predictor.mark_known(inode.nid());
        }
    }

    /// Lists the readable part of a directory. An error is returned only if no entry comes before it.
    fn page(&self, key: ReaddirKey) -> FsResult<ReaddirPage> {
        let dir = self.inode(key.node)?;
        let with_files = key.is_plus
            && (dir.size() <= SMALL_DIRECTORY_BYTES || self.attribute_interest.is_raised());
        let mut page = ReaddirPage { key, bytes: Vec::new(), files: Vec::new(), next: None };
        let size = usize::try_from(key.size).unwrap_or(0);
        page.bytes.reserve_exact(size);
        let mut listing = DirentBuffer::new(&mut page.bytes, size, key.is_plus);
        let mut last = key.offset;
        let listed = self.image.list(&dir, key.offset, &mut |entry| {
            if !self.add(entry, with_files, &mut listing) {
                page.next = Some(last);
                return ControlFlow::Break(());
            }
            last = entry.next;
            if entry.type_hint == Some(FileType::Regular) {
                page.files.push(ListedFile { nid: entry.nid, is_known: with_files });
            }
            ControlFlow::Continue(())
        });
        match listed {
            Err(error) if page.bytes.is_empty() => Err(self.failed(dir.nid(), "an entry", &error)),
            _ => Ok(page),
        }
    }

    /// Returns `false` if the entry does not fit.
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
        // An inode that cannot be read is listed without attributes; its lookup reports the error.
        let inode = (listing.is_plus() && is_wanted && !is_dot)
            .then(|| self.image.inode(entry.nid).ok())
            .flatten();
        listing.push(&listed, inode.map(|inode| self.entry(&inode)).as_ref())
    }
}

/// Whether callers that list directories use attributes. Attributes in a listing cost the kernel one inode each, and
/// save one request each if they are used: `ls -l` uses them, `find` does not. So listings have them for a while after
/// the attributes of a file were requested.
#[derive(Debug, Default)]
pub(super) struct AttributeInterest(AtomicU32);

/// Listings that have attributes after a request for some.
const INTEREST_LISTINGS: u32 = 256;

impl AttributeInterest {
    fn raise(&self) {
        // Relaxed, here and below: a heuristic, which publishes nothing.
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
