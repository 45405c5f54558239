//! Errors of the libraries as exceptions of `ferrofs.errors`: kind, errno, path, nid and byte.

use std::os::unix::ffi::OsStrExt;
use std::{fmt, io};

use ferrofs_image::{ErrorKind, FormatErrorKind};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

/// What an exception says. The names of classes and errno values are those of Python.
#[derive(Debug)]
pub(crate) struct Failure(Box<FailureParts>);

#[derive(Debug)]
struct FailureParts {
    class: &'static str,
    code: ErrorCode,
    message: String,
    path: Option<Vec<u8>>,
    nid: Option<u64>,
    byte: Option<u64>,
    /// What a Python object raised that was called for this.
    cause: Option<PyErr>,
    /// Whether the cause is no `Exception`: [`Failure::is_exit`].
    is_exit: bool,
}

#[derive(Clone, Copy, Debug)]
enum ErrorCode {
    Named(&'static str),
    Number(i32),
}

/// A result that becomes a value or an exception once the thread is attached again.
pub(crate) type BindingResult<T> = Result<T, Failure>;

impl Failure {
    /// A failure of `class` with an errno that has a name.
    pub(crate) fn new(class: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(FailureParts {
            class,
            code: ErrorCode::Named(code),
            message: message.into(),
            path: None,
            nid: None,
            byte: None,
            cause: None,
            is_exit: false,
        }))
    }

    pub(crate) fn not_found() -> Self {
        Self::new("NotFoundError", "ENOENT", "no such file or directory in the image")
    }

    /// The system refused something that has nothing to do with the bytes of an image.
    pub(crate) fn of_io(error: &io::Error) -> Self {
        let code = match (error.raw_os_error(), error.kind()) {
            (Some(number), _) => ErrorCode::Number(number),
            (None, io::ErrorKind::NotFound) => ErrorCode::Named("ENOENT"),
            (None, io::ErrorKind::IsADirectory) => ErrorCode::Named("EISDIR"),
            (None, io::ErrorKind::PermissionDenied) => ErrorCode::Named("EACCES"),
            (None, io::ErrorKind::TimedOut) => ErrorCode::Named("ETIMEDOUT"),
            (None, _) => ErrorCode::Named("EIO"),
        };
        let raised = error.get_ref().and_then(|inner| inner.downcast_ref::<PyErr>());
        let raised = raised.and_then(|raised| Python::try_attach(|py| raised.clone_ref(py)));
        let failure = Self::new("ErofsError", "EIO", error.to_string()).with_code(code);
        match raised {
            Some(raised) => failure.caused_by(raised),
            None => failure,
        }
    }

    /// The system started no thread: there is no memory for its stack, or there are too many.
    pub(crate) fn of_thread(error: &io::Error) -> Self {
        let message = format!("cannot start a thread: {error}; raise the limits of the process");
        Self::of_io(error).with_message(message)
    }

    /// The bytes of an image could not be read. That no host or server has them any more says nothing
    /// about the names in the image: it is never taken for one that is missing.
    fn of_read(error: &io::Error) -> Self {
        let served = error.get_ref().and_then(|inner| inner.downcast_ref::<ServerError>());
        let read = served.map_or(error, |served| &served.0);
        let failure = match read.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                Self::of_io(read).with_code(ErrorCode::Named("EIO"))
            }
            _ => Self::of_io(read),
        };
        match served {
            Some(_) => failure.remote(),
            None => failure,
        }
    }

    fn with_code(mut self, code: ErrorCode) -> Self {
        self.0.code = code;
        self
    }

    fn caused_by(mut self, raised: PyErr) -> Self {
        let is_exit = Python::try_attach(|py| !raised.is_instance_of::<PyException>(py));
        self.0.is_exit = is_exit.unwrap_or_default();
        self.0.cause = Some(raised);
        self
    }

    /// Whether a path leads to nothing: a name is missing, or below something that is no directory.
    pub(crate) fn leads_nowhere(&self) -> bool {
        matches!(self.0.code, ErrorCode::Named("ENOENT" | "ENOTDIR" | "ELOOP"))
    }

    /// Whether a Python object raised something that is no `Exception`: `KeyboardInterrupt`,
    /// `SystemExit` and the like. That is no failure of the object or of the image. It ends the work,
    /// and is raised as it is.
    pub(crate) fn is_exit(&self) -> bool {
        self.0.is_exit
    }

    /// Whether a Python object raised an exception that is known to be the reason.
    pub(crate) fn has_cause(&self) -> bool {
        self.0.cause.is_some()
    }

    /// An image could not be opened: bytes that are not there, or are others, are no image.
    pub(crate) fn of_opening(error: ferrofs_image::Error) -> Self {
        let is_foreign = matches!(
            error.kind(),
            ErrorKind::Format(FormatErrorKind::BadMagic(_) | FormatErrorKind::Truncated { .. })
        );
        let mut failure = Self::from(error);
        if is_foreign {
            (failure.0.class, failure.0.code) = ("NotAnImageError", ErrorCode::Named("EINVAL"));
        }
        failure
    }

    /// The same failure, of an object at a URL.
    pub(crate) fn remote(mut self) -> Self {
        self.0.class = "RemoteError";
        self
    }

    fn with_message(mut self, message: String) -> Self {
        self.0.message = message;
        self
    }

    fn in_inode(mut self, nid: Option<u64>, byte: Option<u64>) -> Self {
        (self.0.nid, self.0.byte) = (nid, byte);
        self
    }

    /// The same failure at a path, unless it has one.
    pub(crate) fn at(mut self, path: &[u8]) -> Self {
        self.0.path.get_or_insert_with(|| path.to_vec());
        self
    }

    /// The exception; the cause itself if it [is an exit](Self::is_exit).
    pub(crate) fn raise(mut self, py: Python<'_>) -> PyErr {
        if self.0.is_exit
            && let Some(cause) = self.0.cause.take()
        {
            return cause;
        }
        self.instance(py).map_or_else(|error| error, PyErr::from_value)
    }

    /// The exception as an object.
    pub(crate) fn instance(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let make = MAKE.get_or_try_init(py, || {
            Ok::<_, PyErr>(py.import("ferrofs.errors")?.getattr("_make")?.unbind())
        })?;
        let parts = *self.0;
        let code = match parts.code {
            ErrorCode::Named(name) => name.into_pyobject(py)?.into_any(),
            ErrorCode::Number(number) => number.into_pyobject(py)?.into_any(),
        };
        let path = parts.path.map(|path| PyBytes::new(py, &path));
        let place = (parts.nid, parts.byte);
        let error = make.bind(py).call1((parts.class, code, parts.message, path, place))?;
        if let Some(cause) = parts.cause {
            error.setattr("__cause__", cause.into_value(py))?;
        }
        Ok(error)
    }
}

/// Why an object at a URL could not be read.
#[derive(Debug)]
pub(crate) struct ServerError(pub(crate) io::Error);

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for ServerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl From<ferrofs_image::Error> for Failure {
    fn from(error: ferrofs_image::Error) -> Self {
        let (nid, byte) = (error.nid().map(|nid| nid.raw()), error.offset());
        let base = match error.kind() {
            ErrorKind::Io(error) => Self::of_read(error),
            ErrorKind::OpenDevice { path, source } => {
                Self::of_io(source).at(path.as_os_str().as_bytes())
            }
            kind => {
                let (class, code) = class_of(kind);
                Self::new(class, code, error.to_string())
            }
        };
        base.in_inode(nid, byte)
    }
}

fn class_of(kind: &ErrorKind) -> (&'static str, &'static str) {
    match kind {
        ErrorKind::Format(
            FormatErrorKind::UnknownIncompat(_) | FormatErrorKind::UnknownAlgorithms(_),
        ) => ("UnsupportedError", "EOPNOTSUPP"),
        ErrorKind::WrongType { wanted, .. } if wanted.name() == "directory" => {
            ("ErofsError", "ENOTDIR")
        }
        ErrorKind::WrongType { .. } | ErrorKind::DeviceCount { .. } => ("ErofsError", "EINVAL"),
        ErrorKind::MemoryLimit { .. } => ("ErofsError", "EINVAL"),
        ErrorKind::OutOfMemory { .. } | ErrorKind::Workers(_) => ("ErofsError", "ENOMEM"),
        ErrorKind::WorkLimit { .. } => ("ErofsError", "EFBIG"),
        ErrorKind::SymlinkLoop => ("ErofsError", "ELOOP"),
        ErrorKind::Cancelled => ("CancelledError", "ECANCELED"),
        ErrorKind::Panicked => ("ErofsError", "EIO"),
        _ => ("CorruptImageError", "EUCLEAN"),
    }
}

impl From<ferrofs_extract::Error> for Failure {
    fn from(error: ferrofs_extract::Error) -> Self {
        use ferrofs_extract::ErrorKind as Kind;
        let (nid, byte) = (error.nid().map(|nid| nid.raw()), error.offset());
        let message = error.reason().to_string();
        let base = match error.kind() {
            Kind::Output { source, .. } => Self::of_io(source).with_message(message),
            Kind::Image(inner) => match inner.kind() {
                ErrorKind::Io(source) => Self::of_read(source).with_message(message),
                kind => {
                    let (class, code) = class_of(kind);
                    Self::new(class, code, message)
                }
            },
            Kind::NothingMatches => Self::new("NotFoundError", "ENOENT", message),
            Kind::NotPublished { source, .. } => match &**source {
                Kind::Output { source, .. } => Self::of_io(source).with_message(message),
                _ => Self::new("ErofsError", "EEXIST", message),
            },
            Kind::Exists | Kind::DirectoryInTheWay | Kind::NotEmpty | Kind::Leftover { .. } => {
                Self::new("ErofsError", "EEXIST", message)
            }
            Kind::Cancelled => Self::new("CancelledError", "ECANCELED", message),
            Kind::NoProc { .. } => Self::new("UnsupportedError", "EOPNOTSUPP", message),
            Kind::Panicked | Kind::Replaced => Self::new("ErofsError", "EIO", message),
            Kind::OutputLimit { .. } => Self::new("ErofsError", "EFBIG", message),
            Kind::Memory(_) | Kind::Threads(_) => Self::new("ErofsError", "ENOMEM", message),
            _ => Self::new("CorruptImageError", "EUCLEAN", message),
        };
        base.in_inode(nid, byte).at(error.path())
    }
}

impl From<ferrofs_builder::Error> for Failure {
    fn from(error: ferrofs_builder::Error) -> Self {
        use ferrofs_builder::ErrorKind as Kind;
        use std::os::unix::ffi::OsStrExt;
        let message = error.kind().to_string();
        let base = match error.kind() {
            Kind::Input { source, .. } | Kind::Output { source, .. } => {
                Self::of_io(source).with_message(message)
            }
            Kind::Exists => Self::new("ErofsError", "EEXIST", message),
            Kind::Cancelled => Self::new("CancelledError", "ECANCELED", message),
            Kind::Workers(_) => Self::new("ErofsError", "ENOMEM", message),
            Kind::SourceChanged { .. } => Self::new("BuildError", "ESTALE", message),
            _ => Self::new("BuildError", "EINVAL", message),
        };
        let base = base.in_inode(None, error.offset());
        match error.path().as_os_str().is_empty() {
            true => base,
            false => base.at(error.path().as_os_str().as_bytes()),
        }
    }
}
