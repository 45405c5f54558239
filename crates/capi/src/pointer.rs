//! Pointers of the caller: reading structures that begin with their size, texts, handles, and
//! writing results. All other modules go through these functions.
#![allow(unsafe_code, reason = "reads and writes through pointers of C callers")]

use std::ffi::{CStr, c_char, c_void};
use std::mem::size_of;

use crate::error::{CallError, CallResult, Code};

/// A structure of the header: made of integers and pointers only, with its size as a `usize` first.
///
/// # Safety
/// The type is `repr(C)`, all bytes zero are a valid value, and so are any bytes that C wrote for
/// the structure of the header. It has no padding.
pub(crate) unsafe trait SizedStruct: Copy {}

/// The largest structure that a newer header may have.
const STRUCT_BYTES_MAX: usize = 4096;

/// Reads options; NULL stands for the defaults.
///
/// # Safety
/// As [`options_with_rest`].
pub(crate) unsafe fn options<T: SizedStruct>(options: *const T) -> CallResult<T> {
    // SAFETY: this function's contract.
    let (value, rest) = unsafe { options_with_rest(options) }?;
    rest?;
    Ok(value)
}

/// Reads options, and whether this version knows all of them; NULL stands for the defaults.
///
/// # Safety
/// `options` is NULL or points to a `usize`, and that many bytes from there on are readable.
pub(crate) unsafe fn options_with_rest<T: SizedStruct>(
    options: *const T,
) -> CallResult<(T, CallResult<()>)> {
    // SAFETY: zeros are a value of the type, by the contract of the trait.
    let mut value: T = unsafe { std::mem::zeroed() };
    if options.is_null() {
        return Ok((value, Ok(())));
    }
    // SAFETY: this function's contract.
    let size = unsafe { options.cast::<usize>().read_unaligned() };
    check_size(size)?;
    let known = size.min(size_of::<T>());
    // SAFETY: `known` bytes are readable by this function's contract, and `value` has as many. Any
    // bytes of C are a value, and zeros stay behind them.
    unsafe {
        std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut value).cast::<u8>(), known);
    }
    // SAFETY: this function's contract: `size` bytes are readable.
    let rest = unsafe { std::slice::from_raw_parts(options.cast::<u8>().add(known), size - known) };
    if rest.iter().any(|byte| *byte != 0) {
        let message = "a member of an options structure is unknown to this version";
        return Ok((value, Err(CallError::new(Code::Unsupported, message))));
    }
    Ok((value, Ok(())))
}

/// A structure of the caller for a result, whose size was checked. The size is read once: the caller's functions may run
/// before the result is written.
#[derive(Debug)]
pub(crate) struct ResultPlace<T> {
    /// NULL: the caller wants no result.
    target: *mut T,
    size: usize,
}

/// The place for a result.
///
/// # Safety
/// `target` is NULL or points to a `usize`.
pub(crate) unsafe fn result_place<T: SizedStruct>(target: *mut T) -> CallResult<ResultPlace<T>> {
    let mut size = 0;
    if !target.is_null() {
        // SAFETY: this function's contract.
        size = unsafe { target.cast::<usize>().read_unaligned() };
        check_size(size)?;
    }
    Ok(ResultPlace { target, size })
}

fn check_size(size: usize) -> CallResult<()> {
    if (size_of::<usize>()..=STRUCT_BYTES_MAX).contains(&size) {
        return Ok(());
    }
    Err(CallError::invalid(format!(
        "a structure of {size} bytes: set its first member to the sizeof of its type"
    )))
}

impl<T: SizedStruct> ResultPlace<T> {
    /// Writes a result, as far as the structure goes. Bytes behind what this version knows become zero.
    ///
    /// # Safety
    /// As many bytes as the first member of the structure said can be written.
    pub(crate) unsafe fn write(self, value: &T) {
        if self.target.is_null() {
            return;
        }
        let known = self.size.min(size_of::<T>());
        let (first, target) = (size_of::<usize>(), self.target.cast::<u8>());
        let source = std::ptr::from_ref(value).cast::<u8>();
        // SAFETY: `size` bytes can be written by this function's contract, at least `first` of them by `check_size`, and
        // `known` bytes of `value` can be read. The first member stays. The structures are distinct: `value` is ours.
        unsafe {
            std::ptr::copy_nonoverlapping(source.add(first), target.add(first), known - first);
            target.add(known).write_bytes(0, self.size - known);
        }
    }
}

/// Writes a number or a handle; NULL is ignored.
///
/// # Safety
/// `target` is NULL or valid for a write.
pub(crate) unsafe fn write<T>(target: *mut T, value: T) {
    if !target.is_null() {
        // SAFETY: this function's contract.
        unsafe { target.write(value) };
    }
}

/// The bytes of a text.
///
/// # Safety
/// `text` is NULL or ends with NUL, and stays unchanged as long as the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> CallResult<&'a [u8]> {
    if text.is_null() {
        return Err(CallError::invalid(format!("{name} is NULL")));
    }
    // SAFETY: this function's contract.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A text that may be NULL.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: this function's contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// The items of an array.
///
/// # Safety
/// `first` is NULL or points to `count` items, which stay unchanged as long as the result is used.
pub(crate) unsafe fn array<'a, T>(first: *const T, count: usize) -> CallResult<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(CallError::invalid(format!("an array of {count} items is NULL"))),
        // SAFETY: this function's contract.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}

/// The texts of an array.
///
/// # Safety
/// As [`array`], and each item is NULL or ends with NUL.
pub(crate) unsafe fn texts<'a>(
    first: *const *const c_char,
    count: usize,
    name: &str,
) -> CallResult<Vec<&'a [u8]>> {
    // SAFETY: this function's contract.
    let items = unsafe { array(first, count) }?;
    // SAFETY: this function's contract.
    items.iter().map(|item| unsafe { text(*item, name) }).collect()
}

/// What a handle points to.
///
/// # Safety
/// `handle` is NULL or a handle of this library that is not freed as long as the result is used.
pub(crate) unsafe fn handle<'a, T>(handle: *const T, name: &str) -> CallResult<&'a T> {
    // SAFETY: this function's contract.
    unsafe { optional_handle(handle) }.ok_or_else(|| CallError::invalid(format!("{name} is NULL")))
}

/// What a handle points to, or none for NULL.
///
/// # Safety
/// As [`handle`].
pub(crate) unsafe fn optional_handle<'a, T>(handle: *const T) -> Option<&'a T> {
    // SAFETY: this function's contract.
    unsafe { handle.as_ref() }
}

/// The same for a handle that belongs to one thread.
///
/// # Safety
/// As [`handle`], and no other thread uses it.
pub(crate) unsafe fn handle_mut<'a, T>(handle: *mut T, name: &str) -> CallResult<&'a mut T> {
    // SAFETY: this function's contract.
    unsafe { handle.as_mut() }.ok_or_else(|| CallError::invalid(format!("{name} is NULL")))
}

/// The bytes of a buffer that is written to. `count` of 0 needs no buffer.
///
/// # Safety
/// `count` bytes can be written at `buffer`, which no other thread uses. The result is written before it is
/// read, so the bytes may be uninitialized in C.
pub(crate) unsafe fn buffer<'a>(buffer: *mut c_void, count: usize) -> CallResult<&'a mut [u8]> {
    if count == 0 {
        return Ok(&mut []);
    }
    require(buffer, "buffer")?;
    let count = count.min(isize::MAX.unsigned_abs());
    // SAFETY: this function's contract, and the length is one that a slice can have.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), count) })
}

/// Makes a handle, and writes it.
///
/// # Safety
/// `target` is valid for a write.
pub(crate) unsafe fn write_handle<T>(target: *mut *mut T, value: T) {
    // SAFETY: this function's contract.
    unsafe { write(target, Box::into_raw(Box::new(value))) };
}

/// Fails if there is no place for a handle or a number.
pub(crate) fn require<T>(target: *mut T, name: &str) -> CallResult<()> {
    if target.is_null() {
        return Err(CallError::invalid(format!("{name} is NULL")));
    }
    Ok(())
}

/// Frees a handle; NULL is ignored.
///
/// # Safety
/// `handle` is NULL, or [`write_handle`] or `guard::call` made it and it was not freed.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: this function's contract: the box that `write_handle` or `guard::call` gave away.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// What follows bytes in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    None,
    Nul,
}

/// Copies `bytes` and their ending to a buffer of `size` bytes and sets `*length`, which does not count a NUL. A size of 0
/// asks for the length only.
///
/// # Safety
/// `size` bytes can be written at `buffer`, and `length` is NULL or valid for a write.
pub(crate) unsafe fn write_bytes(
    bytes: &[u8],
    ending: Ending,
    buffer: *mut u8,
    size: usize,
    length: *mut usize,
) -> CallResult<()> {
    let needed = bytes.len() + usize::from(ending == Ending::Nul);
    if size == 0 {
        // SAFETY: this function's contract.
        unsafe { write(length, bytes.len()) };
        return Ok(());
    }
    require(buffer, "buffer")?;
    if needed > size {
        // SAFETY: this function's contract.
        unsafe { write(length, needed) };
        let message = format!("the buffer has {size} bytes, but {needed} are needed");
        return Err(CallError::new(Code::Range, message));
    }
    // SAFETY: `size` bytes can be written, and `needed` is no more; `bytes` are ours, so they do not overlap.
    unsafe {
        write(length, bytes.len());
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len());
        if ending == Ending::Nul {
            buffer.add(bytes.len()).write(0);
        }
    }
    Ok(())
}
