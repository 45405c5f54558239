//! Where the bytes of an image come from: a file of the system, `bytes`, a Python object with
//! `seek` and `readinto`, or a URL.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferrofs_image::{FileSource, ImageSource};
use ferrofs_remote::Location;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyMemoryView};

use crate::calls::keep_exit;
use crate::errors::Failure;
use crate::remote;

/// How long the end of the interpreter waits for reads of Python objects.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it looks whether they have ended.
const STOP_PAUSE: Duration = Duration::from_millis(1);
/// The most bytes that a Python object is asked for at a time.
const OBJECT_READ_MAX: usize = 1 << 20;

/// A place of an image or of a device, as the caller gave it. It makes sources for as long as the
/// image lives, since a forked child needs its own.
#[derive(Debug)]
pub(crate) enum Place {
    /// An open file. Its descriptor is read by offset, so a child shares it.
    File(Arc<FileSource>),
    Bytes(Arc<BytesSource>),
    /// All sources made of it share this one reference to the object, so that the garbage collector
    /// sees whose it is.
    Object(Arc<Py<PyAny>>),
    Url(String),
}

impl Place {
    /// Takes `("path", p)`, `("bytes", b)`, `("object", o)` or `("url", u)`; `start` is the byte of
    /// a file at which the image begins.
    pub(crate) fn new(py: Python<'_>, given: &GivenPlace, start: u64) -> PyResult<Self> {
        let (kind, value) = given;
        let value = value.bind(py);
        match kind.as_str() {
            "path" => {
                let path: PathBuf = value.extract()?;
                let opened = py.detach(|| FileSource::open(&path, start));
                let source = opened.map_err(|error| {
                    use std::os::unix::ffi::OsStrExt;
                    Failure::of_io(&error).at(path.as_os_str().as_bytes()).raise(py)
                })?;
                Ok(Self::File(Arc::new(source)))
            }
            "bytes" => {
                let bytes: PyBackedBytes = value.extract()?;
                Ok(Self::Bytes(Arc::new(BytesSource { bytes, start })))
            }
            "url" => Ok(Self::Url(value.extract()?)),
            _ => Ok(Self::Object(Arc::new(value.clone().unbind()))),
        }
    }

    /// A source of this process. The thread is attached.
    pub(crate) fn source(&self, py: Python<'_>, start: u64) -> PyResult<Arc<dyn ImageSource>> {
        match self {
            Self::File(source) => Ok(Arc::clone(source) as Arc<dyn ImageSource>),
            Self::Bytes(source) => Ok(Arc::clone(source) as Arc<dyn ImageSource>),
            Self::Object(object) => Ok(Arc::new(ObjectSource::new(py, object, start)?)),
            Self::Url(url) => remote::open(py, url, start),
        }
    }
}

/// What Python passes for a [`Place`]: its kind and the object.
pub(crate) type GivenPlace = (String, Py<PyAny>);

/// Whether a text names an object at a URL. A path of the host need not be UTF-8: it is encoded as
/// `os.fsencode` does it.
#[pyo3::pyfunction]
pub(crate) fn is_url(text: OsString) -> bool {
    !matches!(Location::parse(&text), Ok(Location::Local(_)))
}

/// A `bytes` object as a source; it is not copied.
#[derive(Debug)]
pub(crate) struct BytesSource {
    bytes: PyBackedBytes,
    start: u64,
}

impl ImageSource for BytesSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let at = self.start.checked_add(offset).and_then(|at| usize::try_from(at).ok());
        let rest = at.and_then(|at| self.bytes.get(at..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn length(&self) -> u64 {
        (self.bytes.len() as u64).saturating_sub(self.start)
    }
}

/// A Python object with a position, as a source. Readers take turns: the lock is waited for by
/// detached threads only, so the thread that holds it can always attach.
#[derive(Debug)]
struct ObjectSource {
    object: Arc<Py<PyAny>>,
    start: u64,
    length: u64,
    turn: Mutex<()>,
}

impl ObjectSource {
    fn new(py: Python<'_>, shared: &Arc<Py<PyAny>>, start: u64) -> PyResult<Self> {
        let object = shared.bind(py);
        let end: u64 = object.call_method1("seek", (0, 2))?.extract().or_else(|_| {
            // Some objects return nothing from seek.
            object.call_method0("tell")?.extract()
        })?;
        let length = end.saturating_sub(start);
        Ok(Self { object: Arc::clone(shared), start, length, turn: Mutex::new(()) })
    }

    /// As [`ObjectSource::read_attached`]; what is no `Exception` is kept for the call, too.
    fn read_or_exit(&self, py: Python<'_>, at: u64, buffer: &mut [u8]) -> PyResult<usize> {
        self.read_attached(py, at, buffer).inspect_err(|error| {
            if !error.is_instance_of::<PyException>(py) {
                keep_exit(error.clone_ref(py));
            }
        })
    }

    fn read_attached(&self, py: Python<'_>, at: u64, buffer: &mut [u8]) -> PyResult<usize> {
        let object = self.object.bind(py);
        object.call_method1("seek", (at,))?;
        let mut filled = 0;
        while filled < buffer.len() {
            let wanted = (buffer.len() - filled).min(OBJECT_READ_MAX);
            let read = object.call_method1("read", (wanted,))?;
            if read.is_none() {
                break;
            }
            let bytes = returned_bytes(&read, wanted)?;
            if bytes.is_empty() {
                break;
            }
            buffer[filled..filled + bytes.len()].copy_from_slice(&bytes);
            filled += bytes.len();
        }
        Ok(filled)
    }
}

/// What `read` was asked for `wanted` bytes and returned: `bytes`, or an object that has bytes. More
/// than that is refused: the position has moved on behind what fits, so that a later read would
/// return other bytes than those of its place.
pub(crate) fn returned_bytes(read: &Bound<'_, PyAny>, wanted: usize) -> PyResult<PyBackedBytes> {
    let bytes: PyBackedBytes = match read.extract() {
        Ok(bytes) => bytes,
        // A view refuses what has no bytes; `bytearray(1 << 40)` would be so many zeros.
        Err(_) => PyByteArray::from(PyMemoryView::from(read)?.as_any())?.into_any().extract()?,
    };
    match bytes.len() > wanted {
        true => {
            let message = format!("read({wanted}) returned {} bytes", bytes.len());
            Err(PyValueError::new_err(message))
        }
        false => Ok(bytes),
    }
}

impl ImageSource for ObjectSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(at) = self.start.checked_add(offset) else { return Ok(0) };
        let _running = RunningRead::begin()?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let read = Python::try_attach(|py| self.read_or_exit(py, at, buffer));
        match read {
            Some(read) => read.map_err(io::Error::other),
            None => Err(io::Error::other("the interpreter ends")),
        }
    }

    fn length(&self) -> u64 {
        self.length
    }
}

/// How many reads of Python objects run, and whether the interpreter is about to end: a thread that
/// attached then would be stopped in the middle of a read. No lock, as a forked child could inherit
/// it locked.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
static STOPPED: AtomicBool = AtomicBool::new(false);

struct RunningRead;

impl RunningRead {
    fn begin() -> io::Result<Self> {
        // Both are sequentially consistent: either this read sees that it has come too late, or
        // `stop_sources` sees the read.
        RUNNING.fetch_add(1, Ordering::SeqCst);
        let read = Self;
        match STOPPED.load(Ordering::SeqCst) {
            true => Err(io::Error::other("the interpreter ends")),
            false => Ok(read),
        }
    }
}

impl Drop for RunningRead {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Ends the reads of Python objects. Called when the interpreter ends.
#[pyo3::pyfunction]
pub(crate) fn stop_sources(py: Python<'_>) {
    STOPPED.store(true, Ordering::SeqCst);
    py.detach(|| {
        let deadline = Instant::now() + STOP_TIMEOUT;
        while RUNNING.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            std::thread::sleep(STOP_PAUSE);
        }
    });
}

/// Forgets the reads of the parent's threads. Called in a forked child.
#[pyo3::pyfunction]
pub(crate) fn forget_parent_reads() {
    RUNNING.store(0, Ordering::SeqCst);
}
