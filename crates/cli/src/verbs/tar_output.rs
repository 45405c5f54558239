//! Where a tar archive goes: standard output, a device or FIFO, or a file that gets its name only
//! when it is complete. An archive that ends between two members looks complete to most programs,
//! so one that could not be finished is removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;

use ferrofs_builder::output::{ExistingOutput, NewFile, OutputTarget};

use crate::text_file::InputFiles;

/// The output of a tar archive.
#[derive(Debug)]
pub(crate) enum TarOutput {
    /// Standard output, a FIFO or a device.
    Stream(File),
    New(Box<NewFile>),
}

/// Why an output cannot be used.
#[derive(Debug)]
pub(crate) enum TarOutputError {
    /// It is a terminal.
    Terminal,
    /// It is a file that is read; the text names it.
    Input(String),
    /// The system refused.
    Io(io::Error),
    /// The file cannot be created.
    Target(ferrofs_builder::Error),
}

impl TarOutput {
    /// Opens `path`; `-` is standard output. None of the files that are read must be replaced.
    pub(crate) fn create(path: &Path, inputs: &InputFiles<'_>) -> Result<Self, TarOutputError> {
        if path == Path::new("-") {
            let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(TarOutputError::Io)?;
            return Self::stream(stdout.into());
        }
        if Self::is_stream_path(path) {
            // A FIFO waits here for its reader.
            let file = OpenOptions::new().write(true).open(path).map_err(TarOutputError::Io)?;
            if file.metadata().map_err(TarOutputError::Io)?.is_file() {
                let replaced = io::Error::other("another process replaced it");
                return Err(TarOutputError::Io(replaced));
            }
            return Self::stream(file);
        }
        let target = OutputTarget::open(path, ExistingOutput::Replace);
        let target = target.map_err(TarOutputError::Target)?;
        if let Some(input) = inputs.replaced_by(&target) {
            return Err(TarOutputError::Input(input));
        }
        Ok(Self::New(Box::new(target.create().map_err(TarOutputError::Target)?)))
    }

    fn stream(file: File) -> Result<Self, TarOutputError> {
        if file.is_terminal() { Err(TarOutputError::Terminal) } else { Ok(Self::Stream(file)) }
    }

    /// Whether `path` is written as a stream: it is standard output, or exists and is no regular
    /// file.
    pub(crate) fn is_stream_path(path: &Path) -> bool {
        path == Path::new("-") || fs::metadata(path).is_ok_and(|existing| !existing.is_file())
    }

    /// Whether the archive is a stream; a summary must not go to the same place then.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// Makes the complete archive durable and gives it its name.
    ///
    /// # Errors
    /// The file cannot be synced or named; it is removed.
    pub(crate) fn finish(self) -> Result<(), ferrofs_builder::Error> {
        match self {
            Self::Stream(_) => Ok(()),
            Self::New(mut new) => new.publish(),
        }
    }

    fn file(&self) -> &File {
        match self {
            Self::Stream(file) => file,
            Self::New(new) => new.file(),
        }
    }
}

impl Write for TarOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

impl std::fmt::Display for TarOutputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Terminal => {
                f.write_str("a tar archive cannot be written to a terminal; give a file or a pipe")
            }
            Self::Input(input) => write!(f, "the tar archive would replace {input}"),
            Self::Io(error) => write!(f, "cannot create the tar archive: {error}"),
            Self::Target(error) => write!(f, "cannot create the tar archive: {}", error.kind()),
        }
    }
}
