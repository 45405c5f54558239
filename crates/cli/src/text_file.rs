//! A text that a verb writes beside its main output: lists of blocks, sidecars, files for Android. It
//! is published as images are: no symlink of another user is followed, and the file gets its name
//! when it is complete and on stable storage.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, anyhow};
use ferrofs_builder::output::{ExistingOutput, NewFile, OutputTarget};

use crate::exit_status::usage_error;
use crate::output::escape;

/// A text that has no name yet.
#[derive(Debug)]
pub(crate) struct TextFile {
    new: NewFile,
    output: BufWriter<File>,
}

impl TextFile {
    /// Creates the file that will be known as `path`, in place of what has that name. It must not
    /// replace `image`.
    ///
    /// # Errors
    /// The place cannot be used: it is a device, a FIFO or the image, or the system refuses.
    pub(crate) fn create(path: &Path, image: &Path) -> anyhow::Result<Self> {
        Self::create_beside(path, image, ExistingOutput::Replace)
    }

    /// The same; `existing` says what happens to a file that has the name.
    ///
    /// # Errors
    /// Those of [`create`](Self::create); or there is a file, and it must not be replaced.
    pub(crate) fn create_beside(
        path: &Path,
        image: &Path,
        existing: ExistingOutput,
    ) -> anyhow::Result<Self> {
        let shown = escape(path.as_os_str().as_bytes());
        let target = OutputTarget::open(path, existing).map_err(|error| anyhow!("{error}"))?;
        if target.is_in_place() {
            return Err(usage_error(format_args!("{shown}: a text is not written to a device")));
        }
        if target.is_file(image) {
            return Err(usage_error(format_args!("{shown}: the text would replace the image")));
        }
        let new = target.create().map_err(|error| anyhow!("{error}"))?;
        let file = new.file().try_clone().with_context(|| format!("cannot write {shown}"))?;
        Ok(Self { new, output: BufWriter::new(file) })
    }

    /// Makes the complete text durable and gives it its name.
    ///
    /// # Errors
    /// It cannot be written, synced or named; then the name has what it had before.
    pub(crate) fn publish(mut self) -> anyhow::Result<()> {
        let shown = escape(self.new.path().as_os_str().as_bytes());
        self.output.flush().with_context(|| format!("cannot write {shown}"))?;
        self.new.publish().map_err(|error| anyhow!("{error}"))
    }
}

impl Write for TextFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
