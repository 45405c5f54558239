//! An open image, as Python holds it: a handle that opens the image again in a forked child.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrofs_image::{Image, Inode, LastLink, MemoryPool, Nid, OpenOptions};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::bytes_object::{find_and_read_bytes, read_bytes};
use crate::calls::detached;
use crate::check::{CheckTuple, check};
use crate::errors::{BindingResult, Failure};
use crate::extract::{ExtractTuple, GivenExtraction, extract};
use crate::inode_fields::{InodeTuple, entries, inode_tuple, name_object};
use crate::lookup::{directory, find, last_link, regular_file};
use crate::opened_files::OpenedFiles;
use crate::process::PerProcess;
use crate::source::{GivenPlace, Place};

/// Bytes of a block, blocks, inodes, UUID, label, seconds since 1970.
type SuperblockTuple = (u32, u64, u64, [u8; 16], Vec<u8>, i64);

/// An image. Any number of threads may use it.
#[pyclass(module = "ferrofs._native", frozen)]
#[derive(Debug)]
pub(crate) struct NativeImage {
    /// What the image is opened from again in a forked child; `None` once it was closed. As in [`PerProcess`], the lock
    /// is held for single statements that neither wait nor call Python.
    places: Mutex<Option<Arc<[Place]>>>,
    offset: u64,
    memory: Option<u64>,
    opened: PerProcess<Image>,
    files: OpenedFiles,
    closed: AtomicBool,
}

impl NativeImage {
    /// The image of this process; a forked child opens it again. No lock is held meanwhile, as
    /// opening may call Python.
    pub(crate) fn image(&self, py: Python<'_>) -> PyResult<Image> {
        self.check_open()?;
        match self.opened.get() {
            Some(image) => Ok(image),
            None => Ok(self.opened.get_or_keep(self.open(py)?)),
        }
    }

    /// Raises if it was closed.
    pub(crate) fn check_open(&self) -> PyResult<()> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(closed_error()),
            false => Ok(()),
        }
    }

    pub(crate) fn files(&self) -> &OpenedFiles {
        &self.files
    }

    fn open(&self, py: Python<'_>) -> PyResult<Image> {
        let places = self.places().clone().ok_or_else(closed_error)?;
        let mut sources = Vec::with_capacity(places.len());
        for (number, place) in places.iter().enumerate() {
            let start = if number == 0 { self.offset } else { 0 };
            sources.push(place.source(py, start)?);
        }
        detached(py, || {
            let devices = sources.split_off(1);
            let primary = sources.pop().ok_or_else(Failure::not_found)?;
            let options = OpenOptions::new();
            let options = match self.memory {
                Some(bytes) => options.memory(&MemoryPool::new(bytes)?),
                None => options,
            };
            options.open_sources(primary, devices).map_err(Failure::of_opening)
        })
    }

    fn places(&self) -> MutexGuard<'_, Option<Arc<[Place]>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the image, detached.
    pub(crate) fn detached<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Image) -> BindingResult<T> + Send,
    ) -> PyResult<T> {
        let image = self.image(py)?;
        detached(py, || work(&image))
    }
}

/// The error of a call on a closed image.
fn closed_error() -> PyErr {
    PyValueError::new_err("I/O operation on a closed image")
}

#[pymethods]
impl NativeImage {
    /// Opens the image at the first place; the others are its devices.
    #[new]
    fn new(
        py: Python<'_>,
        places: Vec<GivenPlace>,
        offset: u64,
        memory: Option<u64>,
    ) -> PyResult<Self> {
        let mut opened = Vec::with_capacity(places.len());
        for (number, place) in places.iter().enumerate() {
            opened.push(Place::new(py, place, if number == 0 { offset } else { 0 })?);
        }
        let image = Self {
            places: Mutex::new(Some(opened.into())),
            offset,
            memory,
            opened: PerProcess::empty(),
            files: OpenedFiles::default(),
            closed: AtomicBool::new(false),
        };
        image.image(py)?;
        Ok(image)
    }

    /// Ends the use of the image, and releases its sources. Open files of it cannot be read any more.
    fn close(&self, py: Python<'_>) {
        self.closed.store(true, Ordering::SeqCst);
        let (image, files) = (self.opened.take(), self.files.take());
        py.detach(|| drop((image, files)));
        // The lock is released before this drops what Python gave.
        let places = self.places().take();
        drop(places);
    }

    /// Shows the garbage collector the source objects: one that refers to its image is collected with
    /// it. The lock is free, as only attached threads take it, and the collector is one. A decode
    /// thread that still reads ahead has a share of the same reference, and keeps the object's memory.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for place in self.places().iter().flat_map(|places| places.iter()) {
            if let Place::Object(object) = place {
                visit.call(&**object)?;
            }
        }
        Ok(())
    }

    /// Breaks such a circle. Nothing refers to the image any more.
    fn __clear__(&self, py: Python<'_>) {
        self.close(py);
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Block size, blocks, inodes, UUID, label and build time of the superblock.
    fn superblock(&self, py: Python<'_>) -> PyResult<SuperblockTuple> {
        let image = self.image(py)?;
        let sb = image.superblock();
        let label = sb.label_text().to_vec();
        let built = sb.epoch.saturating_add(sb.build_time.into());
        Ok((sb.block_size.bytes(), sb.blocks, sb.inodes, sb.uuid, label, built))
    }

    /// The inode at a path.
    fn stat(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<InodeTuple> {
        self.detached(py, |image| {
            let inode = find(image, path, last_link(follow))?;
            Ok(inode_tuple(&inode, image.superblock().block_size.bytes().into()))
        })
    }

    /// The inode with this number.
    fn stat_nid(&self, py: Python<'_>, nid: u64) -> PyResult<InodeTuple> {
        self.detached(py, |image| {
            let inode = image.inode(Nid::new(nid))?;
            Ok(inode_tuple(&inode, image.superblock().block_size.bytes().into()))
        })
    }

    /// The entries of a directory: name, type bits and nid of each. With the `nid` of the directory,
    /// `path` is for errors only: a walk that looked up each path would take time with the square of
    /// the depth.
    #[pyo3(signature = (path, nid=None))]
    fn list<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        nid: Option<u64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let found = self.detached(py, |image| {
            let directory = directory(image, path, nid)?;
            entries(image, &directory).map_err(|failure| failure.at(path))
        })?;
        let list = PyList::empty(py);
        for entry in found {
            list.append((name_object(py, &entry.name)?, entry.type_bits, entry.nid.raw()))?;
        }
        Ok(list)
    }

    /// The entries of a directory: name and inode of each; `nid` is as for `list`.
    #[pyo3(signature = (path, nid=None))]
    fn list_inodes<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        nid: Option<u64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let found = self.detached(py, |image| {
            let block_bytes = image.superblock().block_size.bytes().into();
            let directory = directory(image, path, nid)?;
            let found = entries(image, &directory).map_err(|failure| failure.at(path))?;
            let with_inode = |entry: crate::inode_fields::Entry| {
                let inode = image.inode(entry.nid)?;
                Ok((entry.name, inode_tuple(&inode, block_bytes)))
            };
            found
                .into_iter()
                .map(with_inode)
                .collect::<BindingResult<Vec<(OsString, InodeTuple)>>>()
        })?;
        let list = PyList::empty(py);
        for (name, inode) in found {
            list.append((name_object(py, &name)?, inode))?;
        }
        Ok(list)
    }

    /// The bytes of a file, all of them or a part.
    fn read<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        part: Option<(u64, u64)>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let image = self.image(py)?;
        let (offset, count) = part.unwrap_or((0, u64::MAX));
        let find = || -> BindingResult<(Inode, u64)> {
            let inode = regular_file(&image, path)?;
            let count = count.min(inode.size().saturating_sub(offset));
            Ok((inode, count))
        };
        find_and_read_bytes(py, path, find, |inode, buffer| {
            let read = image.read_at(inode, offset, buffer);
            read.map_err(|error| Failure::from(error).at(path))
        })
    }

    /// All bytes of the regular file with this number. Its size is known from a listing, so it is
    /// read in one wait for the interpreter. `path` is for errors.
    fn read_nid<'py>(
        &self,
        py: Python<'py>,
        nid: u64,
        size: u64,
        path: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let image = self.image(py)?;
        read_bytes(py, path, size, |buffer| {
            let read =
                image.inode(Nid::new(nid)).and_then(|inode| image.read_at(&inode, 0, buffer));
            read.map_err(|error| Failure::from(error).at(path))
        })
    }

    /// The target of a symlink.
    fn readlink<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let target = self.detached(py, |image| {
            let link = find(image, path, LastLink::Keep)?;
            if link.file_type() != ferrofs_image::FileType::Symlink {
                return Err(Failure::new("ErofsError", "EINVAL", "not a symlink").at(path));
            }
            image.read_link(&link).map_err(|error| Failure::from(error).at(path))
        })?;
        Ok(PyBytes::new(py, &target))
    }

    /// The names of all extended attributes.
    fn listxattr<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        follow: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let names = self.detached(py, |image| {
            let inode = find(image, path, last_link(follow))?;
            image.xattr_names(&inode).map_err(|error| Failure::from(error).at(path))
        })?;
        PyList::new(py, names.iter().map(|name| PyBytes::new(py, name)))
    }

    /// The value of one extended attribute.
    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: &[u8],
        name: &[u8],
        follow: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.detached(py, |image| {
            let inode = find(image, path, last_link(follow))?;
            let value = image.xattr(&inode, name);
            value.map_err(Failure::from)?.ok_or_else(|| {
                let name = String::from_utf8_lossy(name);
                Failure::new("ErofsError", "ENODATA", format!("no attribute {name}")).at(path)
            })
        })?;
        Ok(PyBytes::new(py, &value))
    }

    /// Verifies what `path` names: inodes, bytes, problems, and the problems that are described.
    fn check(
        &self,
        py: Python<'_>,
        path: &[u8],
        progress: Option<Py<PyAny>>,
    ) -> PyResult<CheckTuple> {
        check(py, &self.image(py)?, path, progress)
    }

    /// Extracts to a directory: entries and bytes.
    fn extract(
        &self,
        py: Python<'_>,
        given: GivenExtraction,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<ExtractTuple> {
        extract(py, &self.image(py)?, given, progress)
    }
}
