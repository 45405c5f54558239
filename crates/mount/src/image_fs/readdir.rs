//! READDIR and READDIRPLUS. The next page of a long directory is prepared before it is requested.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ferrofs_fuse::{DirentBuffer, DirentName, Reply};
use ferrofs_image::{DirEntryRef, FileType, Inode};

use super::prefetch::ListedFile;
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
    /// The thread that lists.
    pub(super) caller: u32,
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

    /// The kernel has looked an inode up, so a caller needs more than its name. Callers that know names from elsewhere, as git
    /// does, list no directory: after two lookups in a small one, it is listed for the predictor.
    pub(super) fn note_lookup(&self, dir: &Inode, inode: &Inode) {
        if inode.file_type() == FileType::Directory {
            return;
        }
        self.attribute_interest.raise();
        if inode.file_type() == FileType::Regular
            && self.predictor.on_lookup(dir.nid(), inode.nid())
            && dir.size() <= SMALL_DIRECTORY_BYTES
        {
            let mut files = Vec::new();
            let listed = self.image.list(dir, 0, &mut |entry| {
                if entry.type_hint == Some(FileType::Regular) {
                    files.push(ListedFile { nid: entry.nid, is_known: entry.nid == inode.nid() });
                }
                ControlFlow::Continue(())
            });
            // The readable part of a damaged directory; a listing reports the error.
            drop(listed);
            self.predictor.record_listing(&files);
        }
    }

    /// Lists the readable part of a directory. An error is returned only if no entry comes before it.
    fn page(&self, key: ReaddirKey) -> FsResult<ReaddirPage> {
        let dir = self.inode(key.node)?;
        let mut files = if !key.is_plus {
            ListedAttributes::Directories
        } else if dir.size() <= SMALL_DIRECTORY_BYTES {
            ListedAttributes::All
        } else {
            self.attribute_interest.of_page(key.caller, key.offset == 0)
        };
        let mut page = ReaddirPage { key, bytes: Vec::new(), files: Vec::new(), next: None };
        let size = usize::try_from(key.size).unwrap_or(0);
        page.bytes.reserve_exact(size);
        let mut listing = DirentBuffer::new(&mut page.bytes, size, key.is_plus);
        let mut last = key.offset;
        let listed = self.image.list(&dir, key.offset, &mut |entry| {
            let is_file = entry.type_hint != Some(FileType::Directory);
            let with_attributes = !is_file || files == ListedAttributes::All;
            if !self.add(entry, with_attributes, &mut listing) {
                page.next = Some(last);
                return ControlFlow::Break(());
            }
            last = entry.next;
            if entry.type_hint == Some(FileType::Regular) {
                page.files.push(ListedFile { nid: entry.nid, is_known: with_attributes });
            }
            if is_file && files == ListedAttributes::AllButOne {
                files = ListedAttributes::All;
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
        with_attributes: bool,
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
        // An inode that cannot be read is listed without attributes; its lookup reports the error.
        let inode = (listing.is_plus() && with_attributes && !is_dot)
            .then(|| self.image.inode(entry.nid).ok())
            .flatten();
        listing.push(&listed, inode.map(|inode| self.entry(&inode)).as_ref())
    }
}

/// Which entries of a page carry attributes. Without them the kernel looks an entry up when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListedAttributes {
    Directories,
    All,
    /// All but the first file: a lookup of it shows that callers still use attributes.
    AllButOne,
}

/// Which callers use the attributes of the files in large directories. An entry with attributes costs the kernel an inode,
/// some 2 us, and saves a LOOKUP of some 35 us if it is used: `find -size` uses it, `find -name` does not. Since both read
/// the names of a directory first, to its end or 100,000 of them, a caller gets attributes until it shows that it does not
/// use them. Entries with attributes need no lookup, so a few files, the probes, have none. A caller that goes on to another
/// directory and has looked no probe up, or that reads [`MAX_PAGES_UNUSED`] pages of one, gets names only. The next lookup
/// of a file, by whomever, gives all callers attributes again.
#[derive(Debug, Default)]
pub(super) struct AttributeInterest {
    /// A file was looked up since the last page.
    has_lookup: AtomicBool,
    /// The callers that have read pages since the last lookup, the most recent one last.
    callers: Mutex<VecDeque<ListingCaller>>,
}

/// A thread that lists large directories.
#[derive(Debug)]
struct ListingCaller {
    thread: u32,
    /// Pages with attributes since the last lookup.
    pages: u32,
    /// It uses names only.
    is_done: bool,
}

/// Callers that are remembered: more than usually list at a time.
const MAX_CALLERS: usize = 16;
/// Pages with attributes without a lookup: 190,000 names in pages of 32 KiB.
const MAX_PAGES_UNUSED: u32 = 1024;
/// One of so many pages has a probe.
const PROBE_PAGES: u32 = 8;

impl AttributeInterest {
    fn raise(&self) {
        // Relaxed, here and below: a heuristic, which publishes nothing. The load first, so that lookups do not write the
        // line while nobody lists.
        if !self.has_lookup.load(Ordering::Relaxed) {
            self.has_lookup.store(true, Ordering::Relaxed);
        }
    }

    /// What the next page of a large directory carries.
    fn of_page(&self, thread: u32, is_first: bool) -> ListedAttributes {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_lookup.swap(false, Ordering::Relaxed) {
            callers.clear();
        }
        let known = callers.iter().position(|caller| caller.thread == thread);
        let mut caller = known.and_then(|place| callers.remove(place)).unwrap_or(ListingCaller {
            thread,
            pages: 0,
            is_done: false,
        });
        // Its first page had a probe.
        caller.is_done |= caller.pages >= if is_first { 1 } else { MAX_PAGES_UNUSED };
        let attributes = if caller.is_done {
            ListedAttributes::Directories
        } else if caller.pages.is_multiple_of(PROBE_PAGES) {
            ListedAttributes::AllButOne
        } else {
            ListedAttributes::All
        };
        if !caller.is_done {
            caller.pages = caller.pages.saturating_add(1);
        }
        if callers.len() >= MAX_CALLERS {
            callers.pop_front();
        }
        callers.push_back(caller);
        attributes
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

#[cfg(test)]
mod tests {
    use super::ListedAttributes::{All, AllButOne, Directories};
    use super::*;

    #[test]
    fn a_caller_that_looks_no_probe_up_gets_names_only_from_its_second_directory_on() {
        let attribute_interest = AttributeInterest::default();
        assert_eq!(attribute_interest.of_page(7, true), AllButOne);
        for page in 1..20 {
            let wanted = if page % 8 == 0 { AllButOne } else { All };
            assert_eq!(attribute_interest.of_page(7, false), wanted, "page {page}");
        }
        assert_eq!(attribute_interest.of_page(7, true), Directories);
        assert_eq!(attribute_interest.of_page(7, false), Directories);
        assert_eq!(attribute_interest.of_page(8, true), AllButOne, "another caller");
    }

    #[test]
    fn a_lookup_of_a_file_brings_attributes_back() {
        let attribute_interest = AttributeInterest::default();
        for _ in 0..3 {
            assert_eq!(attribute_interest.of_page(7, true), AllButOne);
            assert_eq!(attribute_interest.of_page(7, true), Directories);
            attribute_interest.raise();
        }
    }

    #[test]
    fn a_long_directory_whose_files_nobody_looks_up_is_listed_without_attributes_in_the_end() {
        let attribute_interest = AttributeInterest::default();
        let pages =
            (0..5000).take_while(|page| attribute_interest.of_page(7, *page == 0) != Directories);
        assert_eq!(pages.count(), 1024);
    }

    #[test]
    fn only_a_few_callers_are_remembered() {
        let attribute_interest = AttributeInterest::default();
        for thread in 0..1000 {
            assert_eq!(attribute_interest.of_page(thread, true), AllButOne);
        }
        assert_eq!(attribute_interest.callers.lock().unwrap().len(), MAX_CALLERS);
        assert_eq!(attribute_interest.of_page(999, true), Directories);
        assert_eq!(attribute_interest.of_page(0, true), AllButOne, "forgotten");
    }
}
