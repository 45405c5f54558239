//! An open file of an image: reads by offset, with readahead.

use std::sync::Arc;

use ferrofs_image::{Nid, OpenFile};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::bytes_object::read_bytes;
use crate::calls::detached;
use crate::errors::Failure;
use crate::image::NativeImage;
use crate::lookup::regular_file;
use crate::process::PerProcess;

/// A regular file of an image.
#[pyclass(module = "ferrofs._native", frozen)]
#[derive(Debug)]
pub(crate) struct NativeFile {
    image: Py<NativeImage>,
    nid: Nid,
    size: u64,
    path: Vec<u8>,
    opened: PerProcess<Arc<OpenFile>>,
}

impl NativeFile {
    /// The open file of this process; a forked child opens it again.
    fn opened(&self, py: Python<'_>) -> PyResult<Arc<OpenFile>> {
        let image = self.image.get().image(py)?;
        if let Some(file) = self.opened.get() {
            return Ok(file);
        }
        let opened = detached(py, || {
            let opened = image.inode(self.nid).and_then(|inode| image.open_file(&inode));
            opened.map_err(|error| Failure::from(error).at(&self.path))
        })?;
        Ok(self.opened.get_or_keep(Arc::new(opened)))
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
        let opened = PerProcess::of(Arc::new(file));
        Ok(Self { image, nid, size, path: path.to_vec(), opened })
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
