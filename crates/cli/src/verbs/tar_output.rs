//! Where a tar goes: standard output, a device or FIFO, or a file that appears under its name only when
//! it is complete. A tar that ends between two members looks complete to most programs, so one that
//! could not be finished must not stay under the name that was asked for.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A tar's way out.
#[derive(Debug)]
pub(crate) struct TarOutput {
    file: File,
    partial: Option<PartialFile>,
}

/// Why there is no way out.
#[derive(Debug)]
pub(crate) enum TarOutputError {
    /// Nobody wants a tar there.
    Terminal,
    /// The image would be replaced by its own tar.
    Image,
    /// The system refused.
    Io(io::Error),
}

/// A file that is not complete; removed when this is dropped.
#[derive(Debug)]
struct PartialFile {
    path: PathBuf,
    target: PathBuf,
}

impl TarOutput {
    /// Opens `path`; `-` is standard output. `image` is what must not be replaced.
    pub(crate) fn create(path: &Path, image: &Path) -> Result<Self, TarOutputError> {
        if path == Path::new("-") {
            let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(TarOutputError::Io)?;
            return Self::stream(stdout.into());
        }
        let existing = match fs::metadata(path) {
            Ok(existing) => Some(existing),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(TarOutputError::Io(error)),
        };
        let Some(existing) = existing else {
            return Self::partial(path.to_owned()).map_err(TarOutputError::Io);
        };
        if !existing.is_file() {
            let opened = OpenOptions::new().write(true).open(path);
            return Self::stream(opened.map_err(TarOutputError::Io)?);
        }
        let identity = |file: &fs::Metadata| (file.dev(), file.ino());
        if fs::metadata(image).is_ok_and(|image| identity(&image) == identity(&existing)) {
            return Err(TarOutputError::Image);
        }
        // A symlink goes on to lead where it led.
        let target = path.canonicalize().map_err(TarOutputError::Io)?;
        let created = Self::partial(target).map_err(TarOutputError::Io)?;
        created.file.set_permissions(existing.permissions()).map_err(TarOutputError::Io)?;
        Ok(created)
    }

    fn stream(file: File) -> Result<Self, TarOutputError> {
        if file.is_terminal() {
            Err(TarOutputError::Terminal)
        } else {
            Ok(Self { file, partial: None })
        }
    }

    fn partial(target: PathBuf) -> io::Result<Self> {
        let mut name = target.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        let path = target.with_file_name(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(Self { file, partial: Some(PartialFile { path, target }) })
    }

    /// Whether others read it while it is written; standard output is then not for anything else.
    pub(crate) fn is_stream(&self) -> bool {
        self.partial.is_none()
    }

    /// The tar is complete: gives it its name.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let Some(partial) = self.partial.take() else { return Ok(()) };
        fs::rename(&partial.path, &partial.target)?;
        // There is nothing to remove any more.
        let _renamed = std::mem::ManuallyDrop::new(partial);
        Ok(())
    }
}

impl Write for TarOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Its name says what it is if it cannot be removed.
        fs::remove_file(&self.path).unwrap_or_default();
    }
}

impl std::fmt::Display for TarOutputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Terminal => f.write_str("a tar is not for a terminal; give a file or a pipe"),
            Self::Image => f.write_str("the tar would replace the image"),
            Self::Io(error) => write!(f, "cannot create the tar: {error}"),
        }
    }
}
