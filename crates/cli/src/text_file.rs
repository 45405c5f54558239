//! Texts of a verb. Those that it writes beside its main output, such as lists of blocks, sidecars and
//! files for Android, are published as images are: no symlink of another user is followed, and the file
//! gets its name when it is complete and on stable storage. Those that it reads have a bounded length.

use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use ferrofs_builder::ErrorKind;
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
        self.find(|input| target.is_file(input))
    }

    /// The words for the file that a write into the existing file `output` would change, if it is one
    /// of these. A block device is the same under each of its names. Loop devices and partitions of it
    /// are not found.
    pub(crate) fn changed_by(&self, output: &Metadata) -> Option<String> {
        let is_block_device = |file: &Metadata| file.file_type().is_block_device();
        self.find(|input| {
            let Ok(input) = fs::metadata(input) else { return false };
            let is_same_device = is_block_device(&input) && is_block_device(output);
            (input.dev(), input.ino()) == (output.dev(), output.ino())
                || (is_same_device && input.rdev() == output.rdev())
        })
    }

    fn find(&self, is_it: impl Fn(&Path) -> bool) -> Option<String> {
        if is_it(self.image) {
            return Some("the image".to_owned());
        }
        let device = self.devices.iter().find(|device| is_it(device))?;
        Some(format!("{}, a device of the image", escape(device.as_os_str().as_bytes())))
    }
}

/// Refuses outputs of which one would replace another one; each comes with what it is.
///
/// # Errors
/// Two outputs have the same place.
pub(crate) fn check_apart(targets: &[(&str, &OutputTarget)]) -> anyhow::Result<()> {
    for (number, (what, target)) in targets.iter().enumerate() {
        let mut before = targets.iter().take(number);
        if let Some((other, _)) = before.find(|(_, other)| target.is_same_place(other)) {
            let name = escape(target.path().as_os_str().as_bytes());
            return Err(usage_error(format_args!(
                "{name}: {other} and {what} cannot be the same file"
            )));
        }
    }
    Ok(())
}

/// A text that has no name yet.
#[derive(Debug)]
pub(crate) struct TextFile {
    new: NewFile,
    output: BufWriter<File>,
}

impl TextFile {
    /// Opens the place of a text that will be known as `path`; `existing` says what happens to a file that has the
    /// name.
    ///
    /// # Errors
    /// The place cannot be used: it is a device or a FIFO, or the system refuses; or there is a file, and it must not
    /// be replaced.
    pub(crate) fn target(
        path: &Path,
        existing: ExistingOutput,
    ) -> Result<OutputTarget, ferrofs_builder::Error> {
        let target = OutputTarget::open(path, existing)?;
        if target.is_in_place() {
            let what = "this output must be a file, not a device".to_owned();
            return Err(ferrofs_builder::Error::new(ErrorKind::InvalidOptions(what)).at(path));
        }
        Ok(target)
    }

    /// Opens the place of a text that replaces what has the name. It must not replace one of `inputs`.
    ///
    /// # Errors
    /// The place cannot be used, or is that of an input.
    pub(crate) fn target_beside(
        path: &Path,
        inputs: &InputFiles<'_>,
    ) -> anyhow::Result<OutputTarget> {
        let target = Self::target(path, ExistingOutput::Replace);
        let target = target.map_err(|error| match error.kind() {
            ErrorKind::InvalidOptions(_) => usage_error(error),
            _ => anyhow!("{error}"),
        })?;
        if let Some(input) = inputs.replaced_by(&target) {
            let terminal_form = escape(path.as_os_str().as_bytes());
            return Err(usage_error(format_args!(
                "{terminal_form}: the text would replace {input}"
            )));
        }
        Ok(target)
    }

    /// Creates the file at its place.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn at(target: OutputTarget) -> anyhow::Result<Self> {
        let new = target.create().map_err(|error| anyhow!("{error}"))?;
        let file = new.file().try_clone();
        let file = file.map_err(|error| cannot_write(new.path(), &error))?;
        Ok(Self { new, output: BufWriter::new(file) })
    }

    /// The path as it was given.
    pub(crate) fn path(&self) -> &Path {
        self.new.path()
    }

    /// Makes the complete text durable and gives it its name.
    ///
    /// # Errors
    /// It cannot be written, synced or named; then the name has what it had before.
    pub(crate) fn publish(mut self) -> anyhow::Result<()> {
        self.flush()?;
        self.new.publish().map_err(|error| anyhow!("{error}"))
    }
}

/// Errors name the file.
impl Write for TextFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes);
        written.map_err(|error| cannot_write(self.path(), &error))
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.output.flush();
        flushed.map_err(|error| cannot_write(self.path(), &error))
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> io::Error {
    let terminal_form = escape(path.as_os_str().as_bytes());
    io::Error::new(error.kind(), format!("cannot write {terminal_form}: {error}"))
}
