//! The file that an image or a blob is written to. Until [`ImageWriter::publish`] succeeds, the image's name keeps
//! what it had before, and an error leaves nothing behind. An image in place has no valid superblock until then.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ferrofs_ondisk::BlockSize;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::BlockSink;
use crate::{BuildObserver, Error, ErrorKind, OutputMode, Result};

/// Bytes that are collected before they are written: few enough system calls, and small enough to stay
/// in a second-level cache.
const BUFFER_BYTES: usize = 512 << 10;
/// Names that are tried for a temporary file before giving up.
const NAMES_TRIED: u32 = 64;
/// What fills up a block.
const ZEROS: [u8; 512] = [0; 512];

/// An image that is being written, from its first block to its last; the head comes at the end.
#[derive(Debug)]
pub(crate) struct ImageWriter {
    file: File,
    name: NameState,
    /// The name that the image is to have, links resolved.
    target: PathBuf,
    /// The byte of the file at which the image starts.
    base: u64,
    block_size: BlockSize,
    /// What has been appended and not been written yet.
    buffer: Vec<u8>,
    /// Bytes of the image in front of the buffer.
    written: u64,
    /// Bytes of the head, once it may be in the file. Until the image is published, an image in place loses its
    /// head again when this is dropped.
    unpublished_head_bytes: u64,
}

/// Under which name the file can be seen while it is written.
#[derive(Debug)]
enum NameState {
    /// None: it is gone when it is closed.
    Unnamed,
    /// A name beside the image's.
    Temporary(PathBuf),
    /// The image's own: it is written in place.
    InPlace,
}

impl ImageWriter {
    /// Opens the file for an image that is to be known as `target`. The first `head_bytes`, whole
    /// blocks, are left out for [`publish`](Self::publish).
    ///
    /// # Errors
    /// A target that is no regular file, unless `output_mode` is [`OutputMode::InPlace`], and errors of
    /// the host.
    pub(crate) fn create(
        target: &Path,
        output_mode: OutputMode,
        block_size: BlockSize,
        head_bytes: u64,
    ) -> Result<Self> {
        let (target, file, name, base) = match output_mode {
            OutputMode::NewFile { offset } => {
                let target = resolve(target)?;
                check_replaceable(&target)?;
                let (file, name) = open_beside(&target)?;
                (target, file, name, offset)
            }
            // A link that is only opened need not lead to a name, as one to a file in memory.
            OutputMode::InPlace { offset } => {
                let opened = OpenOptions::new().write(true).open(target);
                let file = opened.map_err(|source| output_error("cannot open", target, source))?;
                (target.to_path_buf(), file, NameState::InPlace, offset)
            }
        };
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        let image = Self {
            file,
            name,
            target,
            base,
            block_size,
            buffer,
            written: head_bytes,
            unpublished_head_bytes: 0,
        };
        if matches!(image.name, NameState::InPlace) {
            image.invalidate_head(head_bytes)?;
        }
        Ok(image)
    }

    /// Bytes of the image so far, the head among them.
    pub(crate) fn bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Appends `bytes` right behind what is there.
    ///
    /// # Errors
    /// Errors of the host, with the byte of the image.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        if bytes.len() < BUFFER_BYTES {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        self.write_at(bytes, self.written)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Fills the last block up with zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn fill_block(&mut self) -> Result<()> {
        let used = u64::from(self.block_size.within(self.bytes()));
        match used {
            0 => Ok(()),
            _ => self.write_zeros(u64::from(self.block_size.bytes()) - used),
        }
    }

    /// Appends `missing` zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn write_zeros(&mut self, mut missing: u64) -> Result<()> {
        while missing > 0 {
            let zeros = zeros(missing);
            self.write(zeros)?;
            missing -= zeros.len() as u64;
        }
        Ok(())
    }

    /// Writes the head, lets `observer` inspect the whole image with its blob, makes all of it durable, and gives
    /// each its name, the image last.
    ///
    /// # Errors
    /// Errors of the host, or [`ErrorKind::Rejected`]; the name then still has what it had before, unless
    /// the image is written in place, or its blob replaces another.
    pub(crate) fn publish(
        mut self,
        head: &[u8],
        mut blob: Option<Self>,
        observer: &dyn BuildObserver,
    ) -> Result<()> {
        self.finish_data()?;
        if let Some(blob) = &mut blob {
            blob.finish_data()?;
        }
        self.unpublished_head_bytes = head.len() as u64;
        self.write_at(head, 0)?;
        self.inspect(blob.as_ref(), observer)?;
        if let Some(blob) = blob {
            if blob.replaces() {
                self.remove_previous()?;
            }
            blob.name()?;
        }
        self.name()
    }

    /// Removes the image that has had the name, unless it is written over: its blob is about to become
    /// another one, and no image may refer to chunks of another image.
    ///
    /// # Errors
    /// Errors of the host.
    pub(crate) fn remove_previous(&self) -> Result<()> {
        if matches!(self.name, NameState::InPlace) {
            return Ok(());
        }
        match fs::remove_file(&self.target) {
            Ok(()) => self.sync_directory(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(output_error("cannot remove the former image", &self.target, error)),
        }
    }

    /// Whether publishing replaces something.
    pub(crate) fn replaces(&self) -> bool {
        matches!(self.name, NameState::InPlace) || fs::symlink_metadata(&self.target).is_ok()
    }

    /// Brings all that was appended to the file.
    fn finish_data(&mut self) -> Result<()> {
        self.fill_block()?;
        self.flush()?;
        match self.name {
            // A superblock must not be durable before what it describes.
            NameState::InPlace => self.sync(),
            NameState::Unnamed | NameState::Temporary(_) => Ok(()),
        }
    }

    /// Makes the file durable, and then its name.
    fn name(mut self) -> Result<()> {
        self.sync()?;
        self.unpublished_head_bytes = 0;
        match std::mem::replace(&mut self.name, NameState::Unnamed) {
            NameState::InPlace => return Ok(()),
            NameState::Temporary(part) => self.rename(&part)?,
            NameState::Unnamed => self.link()?,
        }
        self.sync_directory()
    }

    /// Lets `observer` inspect the whole image.
    fn inspect(&self, blob: Option<&Self>, observer: &dyn BuildObserver) -> Result<()> {
        let blob = blob.map(Self::path);
        let inspected = observer.inspect(&self.path(), blob.as_deref());
        inspected.map_err(|why| Error::new(ErrorKind::Rejected(why)))
    }

    /// Where the file can be opened now.
    fn path(&self) -> PathBuf {
        match &self.name {
            NameState::Unnamed => descriptor_path(&self.file),
            NameState::Temporary(part) => part.clone(),
            NameState::InPlace => self.target.clone(),
        }
    }

    /// An image in place stops being one before its first byte is overwritten.
    fn invalidate_head(&self, head_bytes: u64) -> Result<()> {
        let mut at = 0;
        while at < head_bytes {
            let zeros = zeros(head_bytes - at);
            self.write_at(zeros, at)?;
            at += zeros.len() as u64;
        }
        self.sync()
    }

    fn flush(&mut self) -> Result<()> {
        self.write_at(&self.buffer, self.written)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<()> {
        let place = self.base.checked_add(at).ok_or_else(|| {
            let too_large = io::Error::from(io::ErrorKind::FileTooLarge);
            output_error("cannot write", &self.target, too_large).at_byte(at)
        })?;
        let done = self.file.write_all_at(bytes, place);
        done.map_err(|source| output_error("cannot write", &self.target, source).at_byte(at))
    }

    fn sync(&self) -> Result<()> {
        let done = self.file.sync_all();
        done.map_err(|source| output_error("cannot sync", &self.target, source))
    }

    /// Renames the temporary file; it is removed if that fails.
    fn rename(&self, part: &Path) -> Result<()> {
        let renamed = fs::rename(part, &self.target);
        renamed.map_err(|source| {
            remove(part);
            output_error("cannot name the image", &self.target, source)
        })
    }

    /// Gives a file without a name its name. A link never replaces a file, so where there is one, it
    /// goes by way of a name beside it.
    fn link(&self) -> Result<()> {
        let from = descriptor_path(&self.file);
        let link = |to: &Path| rustix::fs::linkat(CWD, &from, CWD, to, AtFlags::SYMLINK_FOLLOW);
        match link(&self.target) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => {
                return Err(output_error("cannot name the image", &self.target, errno.into()));
            }
        }
        let part = try_names(&self.target, |part| link(part).map_err(io::Error::from));
        let ((), part) =
            part.map_err(|source| output_error("cannot name the image", &self.target, source))?;
        self.rename(&part)
    }

    /// Makes the name durable.
    fn sync_directory(&self) -> Result<()> {
        let synced = File::open(parent(&self.target)).and_then(|directory| directory.sync_all());
        match synced {
            // Some file systems cannot sync a directory.
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                Err(output_error("cannot sync its directory", &self.target, error))
            }
            _ => Ok(()),
        }
    }
}

impl BlockSink for ImageWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        let address = self.bytes();
        self.write(bytes)?;
        self.fill_block()?;
        Ok(address)
    }
}

impl Drop for ImageWriter {
    fn drop(&mut self) {
        match &self.name {
            NameState::Temporary(part) => remove(part),
            NameState::InPlace if self.unpublished_head_bytes > 0 => {
                // A failure is not reported: an earlier error is.
                drop(self.invalidate_head(self.unpublished_head_bytes));
            }
            NameState::InPlace | NameState::Unnamed => {}
        }
    }
}

/// At most `wanted` zeros.
fn zeros(wanted: u64) -> &'static [u8] {
    let count = usize::try_from(wanted).unwrap_or(usize::MAX);
    ZEROS.get(..count).unwrap_or(&ZEROS)
}

/// A link at the image's name is followed, as an open would: what it leads to is replaced, not itself.
fn resolve(target: &Path) -> Result<PathBuf> {
    match fs::symlink_metadata(target) {
        Ok(metadata) if metadata.file_type().is_symlink() => fs::canonicalize(target)
            .map_err(|source| output_error("cannot follow the symlink", target, source)),
        Ok(_) => Ok(target.to_path_buf()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(target.to_path_buf()),
        Err(source) => Err(output_error("cannot examine", target, source)),
    }
}

/// Only a regular file is replaced. A device or a directory under the image's name is more likely a
/// mistake.
fn check_replaceable(target: &Path) -> Result<()> {
    let Ok(metadata) = fs::symlink_metadata(target) else { return Ok(()) };
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let what = if kind.is_dir() {
        "a directory"
    } else if kind.is_block_device() {
        "a block device, which is overwritten only on request"
    } else {
        "a special file, which is overwritten only on request"
    };
    Err(Error::new(ErrorKind::InvalidOptions(format!("the image's name is that of {what}")))
        .at(target))
}

/// A new file in the directory of `target`: without a name where the file system can do that.
fn open_beside(target: &Path) -> Result<(File, NameState)> {
    let mode = Mode::from_raw_mode(0o666);
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(descriptor) = rustix::fs::openat(CWD, parent(target), flags, mode) {
        let file = File::from(descriptor);
        // Without /proc only root could give it a name later.
        if fs::symlink_metadata(descriptor_path(&file)).is_ok() {
            return Ok((file, NameState::Unnamed));
        }
    }
    let opened = try_names(target, |part| {
        OpenOptions::new().write(true).create_new(true).mode(0o666).open(part)
    });
    let (file, part) = opened.map_err(|source| output_error("cannot create", target, source))?;
    Ok((file, NameState::Temporary(part)))
}

/// Calls `make` with names beside `target` until one is free.
fn try_names<T>(
    target: &Path,
    mut make: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<(T, PathBuf)> {
    let name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut number = 0;
    loop {
        let mut part = OsString::from(".");
        part.push(name);
        part.push(format!(".{}", std::process::id()));
        if number > 0 {
            part.push(format!(".{number}"));
        }
        part.push(".part");
        let part = target.with_file_name(part);
        match make(&part) {
            Ok(made) => return Ok((made, part)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < NAMES_TRIED => {
                number += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn parent(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn descriptor_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Removes a temporary file. A failure is not reported: an earlier error is.
fn remove(part: &Path) {
    drop(fs::remove_file(part));
}

#[cold]
fn output_error(operation: &'static str, path: &Path, source: io::Error) -> Error {
    Error::new(ErrorKind::Output { operation, source }).at(path)
}
