//! Where a tar archive goes: standard output, a device or FIFO, or a file that gets its name only
//! when it is complete. An archive that ends between two members looks complete to most programs,
//! so one that could not be finished is removed.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ferrofs_builder::output::{ExistingOutput, NewFile, OutputTarget};

use crate::text_file::InputFiles;

/// The place of a tar archive. Nothing is created or changed there.
#[derive(Debug)]
pub(crate) enum TarTarget {
    Stdout(File),
    /// A FIFO or a device.
    Stream(PathBuf),
    Name(OutputTarget),
}

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

impl TarTarget {
    /// Opens the place that `path` names; `-` is standard output. None of the files that are read must be replaced.
    ///
    /// # Errors
    /// The place cannot be used, or is that of an input.
    pub(crate) fn open(path: &Path, inputs: &InputFiles<'_>) -> Result<Self, TarOutputError> {
        if path == Path::new("-") {
            let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(TarOutputError::Io)?;
            let stdout = File::from(stdout);
            if stdout.is_terminal() {
                return Err(TarOutputError::Terminal);
            }
            check_input(&stdout.metadata().map_err(TarOutputError::Io)?, inputs)?;
            return Ok(Self::Stdout(stdout));
        }
        if let Ok(existing) = fs::metadata(path)
            && !existing.is_file()
        {
            check_input(&existing, inputs)?;
            return Ok(Self::Stream(path.to_owned()));
        }
        let target = OutputTarget::open(path, ExistingOutput::Replace);
        let target = target.map_err(TarOutputError::Target)?;
        match inputs.replaced_by(&target) {
            Some(input) => Err(TarOutputError::Input(input)),
            None => Ok(Self::Name(target)),
        }
    }

    /// The place of a regular file.
    pub(crate) fn name(&self) -> Option<&OutputTarget> {
        match self {
            Self::Name(target) => Some(target),
            Self::Stdout(_) | Self::Stream(_) => None,
        }
    }

    /// Creates the file, or opens the stream: a FIFO waits here for its reader.
    ///
    /// # Errors
    /// The system refuses, it is a terminal, or the name has come to lead to one of the files that are read.
    pub(crate) fn create(self, inputs: &InputFiles<'_>) -> Result<TarOutput, TarOutputError> {
        let file = match self {
            Self::Name(target) => {
                let new = target.create().map_err(TarOutputError::Target)?;
                return Ok(TarOutput::New(Box::new(new)));
            }
            Self::Stdout(file) => file,
            Self::Stream(path) => {
                let file = OpenOptions::new().write(true).open(path).map_err(TarOutputError::Io)?;
                let opened = file.metadata().map_err(TarOutputError::Io)?;
                check_input(&opened, inputs)?;
                if opened.is_file() {
                    let replaced = io::Error::other("another process replaced it");
                    return Err(TarOutputError::Io(replaced));
                }
                file
            }
        };
        if file.is_terminal() {
            return Err(TarOutputError::Terminal);
        }
        Ok(TarOutput::Stream(file))
    }
}

/// Refuses an output that is read: the archive would be written over it.
fn check_input(output: &Metadata, inputs: &InputFiles<'_>) -> Result<(), TarOutputError> {
    inputs.changed_by(output).map_or(Ok(()), |input| Err(TarOutputError::Input(input)))
}

impl TarOutput {
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
