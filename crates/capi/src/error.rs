//! Errors as objects of the caller: a code, a number of errno.h, a message, and the place. Every
//! error of the libraries becomes one here.

mod functions;

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;

use ferrofs_image::{ErrorKind as ImageErrorKind, FileType, FormatErrorKind};

/// `enum ferrofs_code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Invalid = -1,
    Io = -2,
    Corrupt = -3,
    NotFound = -4,
    Type = -5,
    Unsupported = -6,
    Memory = -7,
    Limit = -8,
    Cancelled = -9,
    Exists = -10,
    Range = -11,
    Loop = -12,
    Internal = -13,
}

/// Numbers of errno.h, which are the same on all Linux systems that this library supports.
mod errno {
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EIO: i32 = 5;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EISDIR: i32 = 21;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EFBIG: i32 = 27;
    pub(super) const ERANGE: i32 = 34;
    pub(super) const ELOOP: i32 = 40;
    pub(super) const ENODATA: i32 = 61;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const EUCLEAN: i32 = 117;
    pub(super) const ECANCELED: i32 = 125;
}

/// An error of a call. The type is `ferrofs_error` in C.
#[derive(Debug)]
pub(crate) struct CallError {
    code: Code,
    errno: i32,
    message: CString,
    path: CString,
    nid: Option<u64>,
    offset: Option<u64>,
}

/// The result of a call.
pub(crate) type CallResult<T> = Result<T, CallError>;

impl CallError {
    pub(crate) fn new(code: Code, message: impl AsRef<str>) -> Self {
        let errno = match code {
            Code::Invalid => errno::EINVAL,
            Code::Io | Code::Internal => errno::EIO,
            Code::Corrupt => errno::EUCLEAN,
            Code::NotFound => errno::ENOENT,
            Code::Type => errno::ENOTDIR,
            Code::Unsupported => errno::EOPNOTSUPP,
            Code::Memory => errno::ENOMEM,
            Code::Limit => errno::EFBIG,
            Code::Cancelled => errno::ECANCELED,
            Code::Exists => errno::EEXIST,
            Code::Range => errno::ERANGE,
            Code::Loop => errno::ELOOP,
        };
        let message = message.as_ref().replace(char::is_control, "?");
        Self { code, errno, message: text(message), path: text(""), nid: None, offset: None }
    }

    /// An argument that is wrong.
    pub(crate) fn invalid(message: impl AsRef<str>) -> Self {
        Self::new(Code::Invalid, message)
    }

    /// No such path.
    pub(crate) fn not_found(path: &[u8]) -> Self {
        Self::new(Code::NotFound, format!("{}: no such file or directory", path.escape_ascii()))
            .at_path(path)
    }

    /// No such attribute.
    pub(crate) fn no_attribute(name: &[u8]) -> Self {
        let message = format!("{}: no such attribute", name.escape_ascii());
        Self { errno: errno::ENODATA, ..Self::new(Code::NotFound, message) }
    }

    /// A component of a path that is not the last one and no directory.
    pub(crate) fn not_a_directory(path: &[u8]) -> Self {
        Self::new(Code::Type, format!("{}: not a directory", path.escape_ascii())).at_path(path)
    }

    /// The same error about a path.
    pub(crate) fn at_path(mut self, path: &[u8]) -> Self {
        if self.path.is_empty() {
            self.path = text(path);
        }
        self
    }

    /// The same error about an inode.
    pub(crate) fn in_inode(mut self, nid: u64) -> Self {
        self.nid = self.nid.or(Some(nid));
        self
    }

    pub(crate) fn code(&self) -> Code {
        self.code
    }

    fn with_errno(mut self, errno: Option<i32>) -> Self {
        self.errno = errno.unwrap_or(self.errno);
        self
    }

    /// An error of the system, about a file of the host.
    pub(crate) fn io(error: &io::Error, what: impl AsRef<str>) -> Self {
        let code = match error.kind() {
            io::ErrorKind::NotFound => Code::NotFound,
            io::ErrorKind::OutOfMemory => Code::Memory,
            // Something that is no image file, as the library says: the system has a number.
            io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory
                if error.raw_os_error().is_none() =>
            {
                Code::Invalid
            }
            _ => Code::Io,
        };
        let is_directory = error.kind() == io::ErrorKind::IsADirectory;
        let errno = error.raw_os_error().or(is_directory.then_some(errno::EISDIR));
        Self::new(code, what).with_errno(errno)
    }

    /// An error of the source of an open image. Whatever its number is, it says nothing of names in
    /// the image: a server answers 404 for an object that is gone.
    fn source(error: &io::Error, what: impl AsRef<str>) -> Self {
        Self::new(Code::Io, what).with_errno(error.raw_os_error())
    }
}

/// Text for C. Messages and paths without a NUL stay as they are.
fn text(bytes: impl AsRef<[u8]>) -> CString {
    let bytes = bytes.as_ref().split(|byte| *byte == 0).next().unwrap_or_default();
    CString::new(bytes).unwrap_or_default()
}

impl From<ferrofs_image::Error> for CallError {
    fn from(error: ferrofs_image::Error) -> Self {
        let mut made = match error.kind() {
            ImageErrorKind::Io(source) => Self::source(source, error.to_string()),
            ImageErrorKind::OpenDevice { path, source } => {
                Self::io(source, error.to_string()).at_path(path.as_os_str().as_bytes())
            }
            kind => Self::new(code_of(kind), error.to_string()).with_errno(errno_of(kind)),
        };
        made.nid = error.nid().map(|nid| nid.raw());
        made.offset = error.offset();
        made
    }
}

fn code_of(kind: &ImageErrorKind) -> Code {
    match kind {
        ImageErrorKind::Io(_) | ImageErrorKind::OpenDevice { .. } => Code::Io,
        ImageErrorKind::WrongType { .. } => Code::Type,
        ImageErrorKind::SymlinkLoop => Code::Loop,
        ImageErrorKind::DeviceCount { .. } | ImageErrorKind::PathTooLong => Code::Invalid,
        ImageErrorKind::Cancelled => Code::Cancelled,
        ImageErrorKind::WorkLimit { .. } | ImageErrorKind::MemoryLimit { .. } => Code::Limit,
        ImageErrorKind::OutOfMemory { .. } | ImageErrorKind::Workers(_) => Code::Memory,
        ImageErrorKind::Panicked => Code::Internal,
        ImageErrorKind::Format(
            FormatErrorKind::UnknownIncompat(_) | FormatErrorKind::UnknownAlgorithms(_),
        ) => Code::Unsupported,
        _ => Code::Corrupt,
    }
}

/// The number where that of the code does not fit: what the system says of an inode of the wrong type.
fn errno_of(kind: &ImageErrorKind) -> Option<i32> {
    match kind {
        ImageErrorKind::WrongType { wanted: FileType::Directory, .. } => Some(errno::ENOTDIR),
        ImageErrorKind::WrongType { wanted: FileType::Regular, found: FileType::Directory } => {
            Some(errno::EISDIR)
        }
        ImageErrorKind::WrongType { .. } => Some(errno::EINVAL),
        _ => None,
    }
}

impl From<ferrofs_extract::Error> for CallError {
    fn from(error: ferrofs_extract::Error) -> Self {
        use ferrofs_extract::ErrorKind;
        let message = error.to_string();
        let mut made = match error.kind() {
            ErrorKind::Image(source) => match source.kind() {
                ImageErrorKind::Io(source) => Self::source(source, message),
                kind => Self::new(code_of(kind), message).with_errno(errno_of(kind)),
            },
            ErrorKind::Output { source, .. } => Self::io(source, message),
            ErrorKind::Cancelled => Self::new(Code::Cancelled, message),
            ErrorKind::Memory(_) | ErrorKind::Threads(_) => Self::new(Code::Memory, message),
            ErrorKind::NotPublished { source, .. } => match &**source {
                ErrorKind::Output { source, .. } => Self::io(source, message),
                _ => Self::new(Code::Exists, message),
            },
            ErrorKind::Exists
            | ErrorKind::DirectoryInTheWay
            | ErrorKind::NotEmpty
            | ErrorKind::Leftover { .. } => Self::new(Code::Exists, message),
            ErrorKind::NothingMatches => Self::new(Code::NotFound, message),
            ErrorKind::OutputLimit { .. } => Self::new(Code::Limit, message),
            ErrorKind::FirstNameLeftOut => Self::new(Code::Invalid, message),
            ErrorKind::Panicked => Self::new(Code::Internal, message),
            ErrorKind::Replaced => Self::new(Code::Io, message),
            ErrorKind::NoProc { .. } => Self::new(Code::Unsupported, message),
            _ => Self::new(Code::Corrupt, message),
        };
        made.nid = error.nid().map(|nid| nid.raw());
        made.offset = error.offset();
        made.at_path(error.path())
    }
}

impl From<ferrofs_image::PathError> for CallError {
    fn from(problem: ferrofs_image::PathError) -> Self {
        Self::from(problem.error).at_path(&problem.path)
    }
}

impl From<ferrofs_builder::Error> for CallError {
    fn from(error: ferrofs_builder::Error) -> Self {
        use ferrofs_builder::ErrorKind;
        let message = error.to_string();
        let made = match error.kind() {
            ErrorKind::Input { source, .. } | ErrorKind::Output { source, .. } => {
                Self::io(source, message)
            }
            ErrorKind::Exists => Self::new(Code::Exists, message),
            ErrorKind::SourceChanged { .. } => Self::new(Code::Io, message),
            ErrorKind::Unsupported(_) => Self::new(Code::Unsupported, message),
            ErrorKind::Archive(_) => Self::new(Code::Corrupt, message),
            ErrorKind::WindowTooLong { .. } => Self::new(Code::Limit, message),
            ErrorKind::Workers(_) => Self::new(Code::Memory, message),
            ErrorKind::Cancelled => Self::new(Code::Cancelled, message),
            ErrorKind::Encoder(_) | ErrorKind::Internal(_) => Self::new(Code::Internal, message),
            _ => Self::new(Code::Invalid, message),
        };
        Self { offset: error.offset(), ..made.at_path(error.path().as_os_str().as_bytes()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_without_control_characters() {
        let error = CallError::invalid("a\nb\0c\u{1b}[31m");
        assert_eq!(error.message.to_str(), Ok("a?b?c?[31m"));
        assert_eq!((error.code as i32, error.errno), (-1, errno::EINVAL));
    }

    #[test]
    fn an_error_keeps_the_first_path() {
        let error = CallError::not_found(b"/a").at_path(b"/b");
        assert_eq!(error.path.to_bytes(), b"/a");
        assert_eq!(error.errno, errno::ENOENT);
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_named() {
        let failed = ferrofs_image::FileSource::open_device("/nowhere/blob".as_ref()).unwrap_err();
        let error = CallError::from(failed).at_path(b"image");
        assert_eq!((error.code, error.errno), (Code::NotFound, errno::ENOENT));
        assert_eq!(error.path.to_bytes(), b"/nowhere/blob");
    }

    #[test]
    fn an_error_of_the_source_names_no_missing_path() {
        for number in [errno::ENOENT, errno::ENOMEM] {
            let failed = io::Error::from_raw_os_error(number);
            let error = CallError::from(ferrofs_image::Error::from(failed));
            assert_eq!((error.code, error.errno), (Code::Io, number));
        }
    }

    #[test]
    fn numbers_of_the_system_stay() {
        let error = CallError::io(&io::Error::from_raw_os_error(13), "x");
        assert_eq!((error.code, error.errno), (Code::Io, 13));
    }
}
