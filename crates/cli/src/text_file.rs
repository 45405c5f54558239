//! Texts of a verb. Those that it writes beside its main output, such as lists of blocks, sidecars and
//! files for Android, are published as images are: no symlink of another user is followed, and the file
//! gets its name when it is complete and on stable storage. Those that it reads have a bounded length.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ferrofs_builder::output::{ExistingOutput, NewFile, OutputTarget};

use crate::exit_status::usage_error;
use crate::output::escape;

/// Reads a whole file of at most `limit` bytes.
///
/// # Errors
/// A text with the name: the file cannot be read, or is longer.
pub(crate) fn read_text_file(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let name = escape(path.as_os_str().as_bytes());
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut text));
    read.map_err(|error| format!("cannot read {name}: {error}"))?;
    if text.len() as u64 > limit {
        return Err(format!("{name} has more than {limit} bytes"));
    }
    Ok(text)
}

/// The files that a verb reads, or has just written, and that a further output must not replace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputFiles<'a> {
    image: &'a Path,
    devices: &'a [PathBuf],
}

impl<'a> InputFiles<'a> {
    pub(crate) fn new(image: &'a Path, devices: &'a [PathBuf]) -> Self {
        Self { image, devices }
    }

    /// The words for the file that `target` would replace, if it is one of these.
    pub(crate) fn replaced_by(&self, target: &OutputTarget) -> Option<String> {
        if target.is_file(self.image) {
            return Some("the image".to_owned());
        }
        let device = self.devices.iter().find(|device| target.is_file(device))?;
        Some(format!("{}, a device of the image", escape(device.as_os_str().as_bytes())))
    }
}

impl<'a> From<&'a Path> for InputFiles<'a> {
    fn from(image: &'a Path) -> Self {
        Self::new(image, &[])
    }
}

/// A text that has no name yet.
#[derive(Debug)]
pub(crate) struct TextFile {
    new: NewFile,
    output: BufWriter<File>,
}

impl TextFile {
    /// Creates the file that will be known as `path`, in place of what has that name. It must not
    /// replace one of `inputs`.
    ///
    /// # Errors
    /// The place cannot be used: it is a device, a FIFO or an input, or the system refuses.
    pub(crate) fn create<'a>(
        path: &Path,
        inputs: impl Into<InputFiles<'a>>,
    ) -> anyhow::Result<Self> {
        Self::create_beside(path, inputs, ExistingOutput::Replace)
    }

    /// The same; `existing` says what happens to a file that has the name.
    ///
    /// # Errors
    /// Those of [`create`](Self::create); or there is a file, and it must not be replaced.
    pub(crate) fn create_beside<'a>(
        path: &Path,
        inputs: impl Into<InputFiles<'a>>,
        existing: ExistingOutput,
    ) -> anyhow::Result<Self> {
        let shown = escape(path.as_os_str().as_bytes());
        let target = OutputTarget::open(path, existing).map_err(|error| anyhow!("{error}"))?;
        if target.is_in_place() {
            return Err(usage_error(format_args!("{shown}: a text is not written to a device")));
        }
        if let Some(input) = inputs.into().replaced_by(&target) {
            return Err(usage_error(format_args!("{shown}: the text would replace {input}")));
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
