//! `bytes` objects that are filled while other threads of Python run.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{Failure, Outcome};

/// Reads up to this many bytes go through a buffer of their own: a copy is cheaper than a second
/// wait for the interpreter.
const COPIED_MAX: usize = 32 << 10;

/// A `bytes` object of `count` bytes that `read` fills, detached from the interpreter. It may fill
/// fewer.
pub(crate) fn read_bytes<'py>(
    py: Python<'py>,
    count: u64,
    read: impl Fn(&mut [u8]) -> Outcome<usize> + Send + Sync,
) -> PyResult<Bound<'py, PyBytes>> {
    let count = usize::try_from(count).map_err(|_| too_long(py))?;
    if count <= COPIED_MAX {
        let mut buffer = [0u8; COPIED_MAX];
        let filled = py.detach(|| read(&mut buffer[..count]));
        let filled = filled.map_err(|failure| failure.raise(py))?;
        return Ok(PyBytes::new(py, &buffer[..filled]));
    }
    let mut filled = 0;
    let bytes = PyBytes::new_with(py, count, |buffer| {
        let read = py.detach(|| read(buffer));
        filled = read.map_err(|failure| failure.raise(py))?;
        Ok(())
    })?;
    // Fewer than the inode says: the file was damaged in a way that reading tolerates.
    match filled == count {
        true => Ok(bytes),
        false => Ok(PyBytes::new(py, &bytes.as_bytes()[..filled])),
    }
}

fn too_long(py: Python<'_>) -> PyErr {
    Failure::new("ErofsError", "EFBIG", "more bytes than this machine can address").raise(py)
}
