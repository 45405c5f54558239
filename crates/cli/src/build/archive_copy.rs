//! The copy of an archive as it is after decompression (`--ungzip=FILE`, `--unxz=FILE`). A regular file is published as an
//! image is, when the archive has been read. A FIFO or a character device, such as a pipe of the shell, receives the bytes
//! while they are read. Called by `outputs` and `build`.

use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use ferrofs_builder::output::{ExistingOutput, NewFile, OutputTarget};

use crate::output::escape;
use crate::text_file::TextFile;

/// The place of the copy.
#[derive(Debug)]
pub(super) enum CopyTarget {
    /// Of a regular file.
    Name(OutputTarget),
    /// A FIFO or a character device.
    Stream(File),
}

impl CopyTarget {
    /// Opens the place. Nothing is created or changed.
    ///
    /// # Errors
    /// The place cannot be used.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let is_stream =
            |kind: fs::FileType| kind.is_fifo() || kind.is_char_device() || kind.is_socket();
        if !fs::metadata(path).is_ok_and(|found| is_stream(found.file_type())) {
            let target = TextFile::target(path, ExistingOutput::Replace);
            return Ok(Self::Name(target.map_err(|error| anyhow!("{error}"))?));
        }
        let terminal_form = escape(path.as_os_str().as_bytes());
        let opened = OpenOptions::new().write(true).open(path);
        let file = opened.with_context(|| format!("cannot write {terminal_form}"))?;
        // Another process can have replaced it meanwhile.
        if !is_stream(file.metadata().with_context(|| terminal_form.clone())?.file_type()) {
            bail!("{terminal_form}: another process has replaced it");
        }
        Ok(Self::Stream(file))
    }

    pub(super) fn output(&self) -> Option<&OutputTarget> {
        match self {
            Self::Name(target) => Some(target),
            Self::Stream(_) => None,
        }
    }

    /// Creates the file.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn create(self) -> anyhow::Result<ArchiveCopy> {
        let (file, new) = match self {
            Self::Stream(file) => (file, None),
            Self::Name(target) => {
                let new = target.create().map_err(|error| anyhow!("{error}"))?;
                let file = new.file().try_clone().with_context(|| {
                    format!("cannot write {}", escape(new.path().as_os_str().as_bytes()))
                })?;
                (file, Some(new))
            }
        };
        Ok(ArchiveCopy { file: Arc::new(file), new })
    }
}

/// A copy that is being written.
#[derive(Debug)]
pub(super) struct ArchiveCopy {
    file: Arc<File>,
    new: Option<NewFile>,
}

impl ArchiveCopy {
    /// Where the importer writes.
    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Gives the complete copy its name.
    ///
    /// # Errors
    /// It cannot be synced or named.
    pub(super) fn publish(self) -> anyhow::Result<()> {
        match self.new {
            Some(mut new) => new.publish().map_err(|error| anyhow!("{error}")),
            None => Ok(()),
        }
    }
}
