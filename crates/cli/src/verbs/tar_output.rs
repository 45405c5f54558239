//! Where a tar archive goes: standard output, a device or FIFO, or a file that gets its name only
//! when it is complete. An archive that ends between two members looks complete to most programs,
//! so one that could not be finished is removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The output of a tar archive.
#[derive(Debug)]
pub(crate) struct TarOutput {
    file: File,
    partial: Option<PartialFile>,
}

/// Why an output cannot be used.
#[derive(Debug)]
pub(crate) enum TarOutputError {
    /// It is a terminal.
    Terminal,
    /// It is the image itself.
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
    /// Opens `path`; `-` is standard output. `image` must not be replaced.
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
        // The file that a symlink points to is replaced, not the symlink.
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
        let partial = Some(PartialFile { path, target });
        Ok(Self { file, partial })
    }

    /// Whether `path` is written as a stream: it is standard output, or exists and is no regular
    /// file.
    pub(crate) fn is_stream_path(path: &Path) -> bool {
        path == Path::new("-") || fs::metadata(path).is_ok_and(|existing| !existing.is_file())
    }

    /// Whether the archive is a stream; a summary must not go to the same place then.
    pub(crate) fn is_stream(&self) -> bool {
        self.partial.is_none()
    }

    /// Gives the complete archive its name.
    ///
    /// # Errors
    /// The file cannot be renamed; it is removed.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let Some(partial) = self.partial.take() else { return Ok(()) };
        fs::rename(&partial.path, &partial.target)?;
        // It has its name and must not be removed.
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
        // If it cannot be removed, its name still shows that it is temporary.
        fs::remove_file(&self.path).unwrap_or_default();
    }
}

impl std::fmt::Display for TarOutputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Terminal => {
                f.write_str("a tar archive cannot be written to a terminal; give a file or a pipe")
            }
            Self::Image => f.write_str("the tar archive would replace the image"),
            Self::Io(error) => write!(f, "cannot create the tar archive: {error}"),
        }
    }
}
