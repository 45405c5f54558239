//! Listing directories: entries are read in batches and handed out one at a time.
#![allow(unsafe_code, reason = "functions that C calls get pointers")]

use std::collections::VecDeque;
use std::ffi::{CString, c_int};
use std::ops::ControlFlow;

use ferrofs_image::{DirEntryRef, Inode};

use crate::error::{CallError, CallResult};
use crate::guard;
use crate::inode::InodeHandle;
use crate::open::SharedImage;
use crate::pointer;
use crate::structs::Dirent;

/// Entries that are read at once: a block of names or so.
const BATCH_ENTRIES: usize = 128;

/// An open directory. The type is `ferrofs_dir` in C.
#[derive(Debug)]
pub(crate) struct DirHandle {
    image: SharedImage,
    inode: Inode,
    batch: VecDeque<BatchEntry>,
    /// The entry that was handed out last; its name is the caller's until the next call.
    current: Option<BatchEntry>,
    /// Where the next batch starts; `None` at the end.
    next: Option<u64>,
}

#[derive(Debug)]
struct BatchEntry {
    nid: u64,
    mode: u32,
    name: CString,
}

impl BatchEntry {
    fn of(entry: &DirEntryRef<'_>) -> Option<Self> {
        if matches!(entry.name, b"." | b"..") {
            return None;
        }
        let mode = entry.type_hint.map_or(0, |kind| u32::from(kind.mode_bits()));
        // The format library refuses names with a NUL.
        let name = CString::new(entry.name).ok()?;
        Some(Self { nid: entry.nid.raw(), mode, name })
    }
}

impl DirHandle {
    fn new(handle: &InodeHandle) -> CallResult<Self> {
        // Fails unless it is a directory.
        handle.image.read_dir(&handle.inode)?;
        Ok(Self {
            image: handle.image.clone(),
            inode: handle.inode.clone(),
            batch: VecDeque::new(),
            current: None,
            next: Some(0),
        })
    }

    fn advance(&mut self) -> CallResult<Option<&BatchEntry>> {
        self.current = None;
        while self.batch.is_empty() {
            let Some(from) = self.next else { return Ok(None) };
            let (batch, mut position) = (&mut self.batch, from);
            let mut is_full = false;
            let mut visit = |entry: &DirEntryRef<'_>| {
                batch.extend(BatchEntry::of(entry));
                position = entry.next;
                is_full = batch.len() >= BATCH_ENTRIES;
                if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let listed = self.image.list(&self.inode, from, &mut visit);
            let is_complete = listed.is_ok() && !is_full;
            self.next = (!is_complete).then_some(position);
            // Entries before the damage come first, then the error, again in each call.
            if self.batch.is_empty() {
                listed?;
            }
        }
        self.current = self.batch.pop_front();
        Ok(self.current.as_ref())
    }
}

/// `ferrofs_opendir`.
///
/// # Safety
/// `inode` is an inode, `dir` and `error` can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_opendir(
    inode: *const InodeHandle,
    dir: *mut *mut DirHandle,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let handle = unsafe { pointer::handle(inode, "inode") }?;
        pointer::require(dir, "dir")?;
        // SAFETY: this function's contract.
        unsafe { pointer::write_handle(dir, DirHandle::new(handle)?) };
        Ok(0)
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

/// `ferrofs_readdir`.
///
/// # Safety
/// `dir` is an open directory that no other thread uses, `entry` begins with its size, `error` can be
/// written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_readdir(
    dir: *mut DirHandle,
    entry: *mut Dirent,
    error: *mut *mut CallError,
) -> c_int {
    let body = || {
        // SAFETY: this function's contract.
        let dir = unsafe { pointer::handle_mut(dir, "dir") }?;
        pointer::require(entry, "entry")?;
        // SAFETY: this function's contract.
        let place = unsafe { pointer::result_place(entry) }?;
        let Some(found) = dir.advance()? else { return Ok(0) };
        let result = Dirent {
            nid: found.nid,
            name: found.name.as_ptr(),
            name_length: found.name.count_bytes(),
            mode: found.mode,
            ..Dirent::new()
        };
        // SAFETY: this function's contract, and the size is checked.
        unsafe { place.write(&result) };
        Ok(1)
    };
    // SAFETY: this function's contract.
    unsafe { guard::call(error, body) }
}

/// `ferrofs_rewinddir`.
///
/// # Safety
/// `dir` is NULL or an open directory that no other thread uses.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_rewinddir(dir: *mut DirHandle) {
    guard::drop_quietly(|| {
        // SAFETY: this function's contract.
        if let Ok(dir) = unsafe { pointer::handle_mut(dir, "dir") } {
            dir.batch.clear();
            dir.current = None;
            dir.next = Some(0);
        }
    });
}

/// `ferrofs_closedir`.
///
/// # Safety
/// `dir` is NULL or an open directory.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ferrofs_closedir(dir: *mut DirHandle) {
    // SAFETY: this function's contract.
    guard::drop_quietly(|| unsafe { pointer::free(dir) });
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ferrofs_builder::import::{DirectoryOptions, from_directory};
    use ferrofs_builder::{BuildOptions, CancelToken, NoopObserver};
    use ferrofs_image::{FileSource, ImageSource, OpenOptions};

    use super::*;
    use crate::error::Code;
    use crate::io::CallerTables;
    use crate::open::ImageHandle;

    /// Two of three reads fail once the count is not zero.
    #[derive(Debug)]
    struct Failing {
        file: FileSource,
        reads: Arc<AtomicUsize>,
    }

    impl ImageSource for Failing {
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            let reads = self.reads.load(Ordering::Relaxed);
            if reads > 0 {
                self.reads.store(reads + 1, Ordering::Relaxed);
            }
            if !reads.is_multiple_of(3) {
                return Err(io::Error::from_raw_os_error(2));
            }
            self.file.read_at(offset, buffer)
        }

        fn length(&self) -> u64 {
            self.file.length()
        }
    }

    /// A listing of 1,000 names in several blocks, and the count of its source.
    fn long_listing() -> io::Result<(DirHandle, Arc<AtomicUsize>)> {
        let dir = tempfile::tempdir()?;
        let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
        std::fs::create_dir(&tree)?;
        for number in 0..1000 {
            std::fs::write(tree.join(format!("{number:040}")), "")?;
        }
        let (observer, cancel) = (NoopObserver, CancelToken::new());
        let tree = from_directory(&tree, &DirectoryOptions::default(), &observer, &cancel).unwrap();
        let options = BuildOptions::default();
        ferrofs_builder::build(&tree, &options, &image, &observer, &cancel).unwrap();
        let reads = Arc::new(AtomicUsize::new(0));
        let source = Failing { file: FileSource::open(&image, 0)?, reads: Arc::clone(&reads) };
        let image = OpenOptions::new().open_sources(Arc::new(source), Vec::new()).unwrap();
        let image = ImageHandle::new(image, CallerTables::default()).image;
        let inode = image.root().unwrap();
        Ok((DirHandle::new(&InodeHandle { image, inode }).unwrap(), reads))
    }

    #[test]
    fn an_error_ends_no_listing() {
        let (mut dir, reads) = long_listing().unwrap();
        reads.store(1, Ordering::Relaxed);
        let (mut names, mut errors) = (Vec::new(), 0);
        loop {
            match dir.advance() {
                Ok(Some(entry)) => names.push(entry.name.clone()),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(error.code(), Code::Io);
                    errors += 1;
                }
            }
        }
        assert!(errors > 2, "{errors}");
        let expected: Vec<_> =
            (0..1000).map(|number| CString::new(format!("{number:040}")).unwrap()).collect();
        assert_eq!(names, expected);
        assert!(dir.advance().unwrap().is_none());
    }
}
