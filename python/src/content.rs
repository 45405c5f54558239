//! Contents of files for a build: bytes of Python, files of the host, and archives that a Python
//! object reads.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

use ferrofs_builder::tree::{Content, ContentReader, ContentSource};
use ferrofs_builder::{Error, ErrorKind, Result};
use pyo3::pybacked::PyBackedBytes;

use crate::progress::CallerLink;

/// The most bytes that a Python object is asked for at a time.
const READ_MAX: usize = 1 << 20;

/// The content of a file as `bytes`; they are not copied.
pub(crate) fn of_bytes(name: String, bytes: PyBackedBytes) -> Content {
    let length = bytes.len() as u64;
    Content::new(Arc::new(BytesContent { name, bytes: Arc::new(bytes) }), length)
}

struct BytesContent {
    name: String,
    bytes: Arc<PyBackedBytes>,
}

impl ContentSource for BytesContent {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        Ok(Box::new(BytesReader(Arc::clone(&self.bytes))))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        Ok(std::iter::once(0..self.bytes.len() as u64).filter(|all| !all.is_empty()).collect())
    }
}

struct BytesReader(Arc<PyBackedBytes>);

impl ContentReader for BytesReader {
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let part =
            usize::try_from(offset).ok().and_then(|at| self.0.get(at..)?.get(..buffer.len()));
        let part = part.ok_or_else(|| {
            Error::new(ErrorKind::SourceChanged { how: "it ends before its size".to_owned() })
        })?;
        buffer.copy_from_slice(part);
        Ok(())
    }

    fn check_unchanged(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The content of a file of the host. It is read when the image is built.
pub(crate) fn of_file(path: PathBuf) -> Result<Content> {
    let refused = |operation, source| Error::new(ErrorKind::Input { operation, source }).at(&path);
    let metadata = std::fs::metadata(&path).map_err(|error| refused("cannot examine", error))?;
    if !metadata.is_file() {
        let what = "only a regular file can be the content of an entry".to_owned();
        return Err(Error::new(ErrorKind::Unsupported(what)).at(&path));
    }
    let state = FileState::of(&metadata);
    Ok(Content::new(Arc::new(HostContent { path, state }), metadata.len()))
}

/// What shows that a file is the one that was imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    identity: (u64, u64),
    bytes: u64,
    changed: (i64, i64),
}

impl FileState {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            identity: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

struct HostContent {
    path: PathBuf,
    state: FileState,
}

impl ContentSource for HostContent {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        let opened = File::open(&self.path);
        let file = opened.map_err(|source| {
            Error::new(ErrorKind::Input { operation: "cannot open", source }).at(&self.path)
        })?;
        let mut reader = HostReader { file, path: self.path.clone(), state: self.state };
        reader.check_unchanged()?;
        Ok(Box::new(reader))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        Ok(std::iter::once(0..self.state.bytes).filter(|all| !all.is_empty()).collect())
    }
}

struct HostReader {
    file: File,
    path: PathBuf,
    state: FileState,
}

impl ContentReader for HostReader {
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(|source| {
            Error::new(ErrorKind::Input { operation: "cannot read", source }).at(&self.path)
        })
    }

    fn check_unchanged(&mut self) -> Result<()> {
        let metadata = self.file.metadata().map_err(|source| {
            Error::new(ErrorKind::Input { operation: "cannot examine", source }).at(&self.path)
        })?;
        if FileState::of(&metadata) == self.state {
            return Ok(());
        }
        let how = "it was written to or replaced".to_owned();
        Err(Error::new(ErrorKind::SourceChanged { how }).at(&self.path))
    }
}

/// A Python object with `read` as a stream, which the caller's thread reads.
pub(crate) struct StreamReader(pub(crate) CallerLink);

impl Read for StreamReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(READ_MAX);
        let bytes = self.0.read(wanted)?;
        let count = bytes.len().min(wanted);
        buffer[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }
}
