//! `bytes` objects that are filled while other threads of Python run.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::calls::detached;
use crate::errors::{BindingResult, Failure};

/// Reads up to this many bytes go through a buffer of their own: a copy is cheaper than a second
/// wait for the interpreter.
const COPIED_MAX: usize = 32 << 10;

/// As [`COPIED_MAX`], for reads that do not pay for so large a buffer.
const SMALL_COPIED_MAX: usize = 4 << 10;

/// A `bytes` object of `count` bytes that `read` fills, detached from the interpreter. It may fill
/// fewer. `path` is for errors.
pub(crate) fn read_bytes<'py>(
    py: Python<'py>,
    path: &[u8],
    count: u64,
    read: impl Fn(&mut [u8]) -> BindingResult<usize> + Send + Sync,
) -> PyResult<Bound<'py, PyBytes>> {
    let size = usize::try_from(count).ok().filter(|size| isize::try_from(*size).is_ok());
    let Some(count) = size else { return Err(too_large(path, count).raise(py)) };
    if count <= SMALL_COPIED_MAX {
        return read_copied::<SMALL_COPIED_MAX>(py, |buffer| read(&mut buffer[..count]));
    }
    if count <= COPIED_MAX {
        return read_copied::<COPIED_MAX>(py, |buffer| read(&mut buffer[..count]));
    }
    let (mut filled, mut is_allocated) = (0, false);
    let bytes = PyBytes::new_with(py, count, |buffer| {
        is_allocated = true;
        filled = detached(py, || read(buffer))?;
        Ok(())
    });
    let bytes = match bytes {
        Err(_) if !is_allocated => return Err(too_large(path, count as u64).raise(py)),
        bytes => bytes?,
    };
    // Fewer than the inode says: the file was damaged in a way that reading tolerates.
    match filled == count {
        true => Ok(bytes),
        false => Ok(PyBytes::new(py, &bytes.as_bytes()[..filled])),
    }
}

/// As [`read_bytes`], of a source that `find` names together with how many bytes are to be read of
/// it. A small one is found and read in one wait for the interpreter.
pub(crate) fn find_and_read_bytes<'py, S: Send + Sync>(
    py: Python<'py>,
    path: &[u8],
    find: impl FnOnce() -> BindingResult<(S, u64)> + Send,
    read: impl Fn(&S, &mut [u8]) -> BindingResult<usize> + Send + Sync,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut large = None;
    let small = read_copied::<COPIED_MAX>(py, |buffer| {
        let (source, count) = find()?;
        match usize::try_from(count).ok().and_then(|count| buffer.get_mut(..count)) {
            Some(part) => read(&source, part),
            None => {
                large = Some((source, count));
                Ok(0)
            }
        }
    })?;
    match large {
        Some((source, count)) => read_bytes(py, path, count, |buffer| read(&source, buffer)),
        None => Ok(small),
    }
}

fn read_copied<'py, const BYTES: usize>(
    py: Python<'py>,
    read: impl FnOnce(&mut [u8; BYTES]) -> BindingResult<usize> + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut buffer = [0u8; BYTES];
    let filled = detached(py, || read(&mut buffer))?;
    Ok(PyBytes::new(py, &buffer[..filled]))
}

/// The size comes from an inode, so this is an error of the package and no bare `MemoryError`.
fn too_large(path: &[u8], count: u64) -> Failure {
    let message = format!("there is no memory for {count} bytes; read parts of the file");
    Failure::new("ErofsError", "ENOMEM", message).at(path)
}
