//! Listing directories: entries are read in batches and handed out one at a time.
#![allow(unsafe_code, reason = "functions that C calls get pointers")]

use std::collections::VecDeque;
use std::ffi::{CString, c_int};
use std::ops::ControlFlow;

use ferrofs_image::{DirEntryRef, Image, Inode};

use crate::error::{CallError, CallResult};
use crate::guard;
use crate::inode::InodeHandle;
use crate::pointer;
use crate::structs::Dirent;

/// Entries that are read at once: a block of names or so.
const BATCH_ENTRIES: usize = 128;

/// An open directory. The type is `ferrofs_dir` in C.
#[derive(Debug)]
pub(crate) struct DirHandle {
    image: Image,
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
            let Some(from) = self.next.take() else { return Ok(None) };
            let batch = &mut self.batch;
            let mut next = None;
            let mut visit = |entry: &DirEntryRef<'_>| {
                batch.extend(BatchEntry::of(entry));
                if batch.len() < BATCH_ENTRIES {
                    return ControlFlow::Continue(());
                }
                next = Some(entry.next);
                ControlFlow::Break(())
            };
            let listed = self.image.list(&self.inode, from, &mut visit);
            self.next = next;
            if let Err(error) = listed {
                // Entries before the damage come first, then the error again.
                if self.batch.is_empty() {
                    return Err(error.into());
                }
                let seen = self.batch.len();
                self.next = Some(self.position_behind(from, seen)?);
            }
        }
        self.current = self.batch.pop_front();
        Ok(self.current.as_ref())
    }

    /// The position behind the last of `count` entries from `from` on.
    fn position_behind(&self, from: u64, count: usize) -> CallResult<u64> {
        let (mut seen, mut position) = (0, from);
        let mut visit = |entry: &DirEntryRef<'_>| {
            seen += usize::from(!matches!(entry.name, b"." | b".."));
            position = entry.next;
            if seen == count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        self.image.list(&self.inode, from, &mut visit)?;
        Ok(position)
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
