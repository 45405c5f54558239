//! Checked access: fields and structures of a slice within its bounds, and numbers in fields without loss.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::error::{Error, ErrorKind, Result};

/// Views the front of `bytes` as `T`.
///
/// # Errors
/// [`ErrorKind::Truncated`] if the slice is shorter than `T`.
pub(crate) fn view<T: FromBytes + Immutable + KnownLayout + Unaligned>(bytes: &[u8]) -> Result<&T> {
    match T::ref_from_prefix(bytes) {
        Ok((value, _)) => Ok(value),
        Err(_) => Err(truncated(size_of::<T>(), bytes.len())),
    }
}

/// The error for a structure that needs `wanted` bytes where `got` are left.
#[cold]
pub(crate) fn truncated(wanted: usize, got: usize) -> Error {
    let at = to_u64(got);
    Error::new(ErrorKind::Truncated { wanted: to_u64(wanted), got: at }, at)
}

/// `length` as the format's 64-bit number. Lossless on every platform that Rust supports.
pub(crate) fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// The four bytes of `bytes` at `at`, little-endian.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(field.try_into().ok()?))
}

/// The eight bytes of `bytes` at `at`, little-endian.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

/// `value` in the width of a field; `at` is the field's byte in its structure.
///
/// # Errors
/// [`ErrorKind::TooLarge`] if it does not fit.
pub(crate) fn fit<T: TryFrom<u64>>(value: u64, field: &'static str, at: u64) -> Result<T> {
    T::try_from(value).map_err(|_| Error::new(ErrorKind::TooLarge { field, value }, at))
}

/// The low 32 bits of `value`.
pub(crate) fn low_half(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or(0)
}

/// The high 32 bits of `value`.
pub(crate) fn high_half(value: u64) -> u32 {
    u32::try_from(value >> 32).unwrap_or(0)
}
