//! An open file of an image: reads by offset, with readahead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrofs_image::{Nid, OpenFile};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes_object::read_bytes;
use crate::calls::detached;
use crate::errors::Failure;
use crate::image::NativeImage;
use crate::lookup::regular_file;
use crate::opened_files::OpenSlot;
use crate::process::PerProcess;

/// A regular file of an image.
#[pyclass(module = "ferrofs._native", frozen)]
#[derive(Debug)]
pub(crate) struct NativeFile {
    image: Py<NativeImage>,
    nid: Nid,
    size: u64,
    path: Vec<u8>,
    opened: Arc<OpenSlot>,
    closed: AtomicBool,
}

impl NativeFile {
    /// The open file of this process; a forked child opens it again.
    fn opened(&self, py: Python<'_>) -> PyResult<Arc<OpenFile>> {
        self.check_open(py)?;
        let image = self.image.get().image(py)?;
        if let Some(file) = self.opened.get() {
            return Ok(file);
        }
        let opened = detached(py, || {
            let opened = image.inode(self.nid).and_then(|inode| image.open_file(&inode));
            opened.map_err(|error| Failure::from(error).at(&self.path))
        })?;
        let opened = self.opened.get_or_keep(Arc::new(opened));
        // It may have been closed meanwhile, and found nothing here to drop.
        self.check_open(py)?;
        Ok(opened)
    }

    /// Raises if the file or its image was closed; then nothing is held open.
    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        let is_closed = self.closed.load(Ordering::SeqCst);
        let checked = match is_closed {
            true => Err(PyValueError::new_err("I/O operation on closed file")),
            false => self.image.get().check_open(),
        };
        checked.inspect_err(|_| self.release(py))
    }

    fn release(&self, py: Python<'_>) {
        let opened = self.opened.take();
        py.detach(|| drop(opened));
    }
}

#[pymethods]
impl NativeFile {
    /// Opens the file at a path.
    #[new]
    fn new(py: Python<'_>, image: Py<NativeImage>, path: &[u8]) -> PyResult<Self> {
        let file = image.get().detached(py, |image| {
            let inode = regular_file(image, path)?;
            image.open_file(&inode).map_err(|error| Failure::from(error).at(path))
        })?;
        let (nid, size) = (file.inode().nid(), file.inode().size());
        let opened = Arc::new(PerProcess::of(Arc::new(file)));
        image.get().files().add(&opened);
        let closed = AtomicBool::new(false);
        let file = Self { image, nid, size, path: path.to_vec(), opened, closed };
        file.check_open(py)?;
        Ok(file)
    }

    /// Shows the garbage collector the image, which may be part of a circle.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.image)
    }

    /// Ends the use of the file, and releases what it holds of the image.
    fn close(&self, py: Python<'_>) {
        self.closed.store(true, Ordering::SeqCst);
        self.release(py);
    }

    /// The size of the file in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.size
    }

    /// The number of its inode.
    #[getter]
    fn nid(&self) -> u64 {
        self.nid.raw()
    }

    /// Reads at most `count` bytes from byte `offset` on; fewer only at the end of the file.
    fn pread<'py>(
        &self,
        py: Python<'py>,
        count: u64,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.opened(py)?;
        let count = count.min(self.size.saturating_sub(offset));
        read_bytes(py, &self.path, count, |buffer| {
            file.read_at(offset, buffer).map_err(|error| Failure::from(error).at(&self.path))
        })
    }
}
