//! Opens the image that the arguments describe: a file, a sparse image of Android, or a partition of
//! a super image.

pub(crate) mod foreign;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use ferrofs_image::android::{PartitionSource, SparseSource};
use ferrofs_image::{Error, FileSource, Image, ImageSource, OpenOptions};
use ferrofs_ondisk::DeviceSlot;

use crate::amount::counted;
use crate::arguments::{ReadArguments, VerifyChoice};
use crate::diagnostics;
use crate::exit_status::usage_error;
use crate::output;
use crate::remote::{self, RemoteImage, RemoteMount};
use crate::resources::Resources;

/// Up to the end of the superblock.
const MIN_IMAGE_BYTES: u64 = ferrofs_ondisk::SUPERBLOCK_OFFSET + 128;

/// The files of a local image that are open already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenedFiles<'a> {
    pub(crate) image: &'a File,
    pub(crate) devices: &'a [File],
}

/// Where the files of a local image come from.
#[derive(Clone, Copy)]
enum LocalFiles<'a> {
    ByName(&'a Path, &'a ReadArguments),
    Opened(OpenedFiles<'a>),
}

impl LocalFiles<'_> {
    fn image(self, start: u64) -> io::Result<FileSource> {
        match self {
            Self::ByName(path, _) => FileSource::open(path, start),
            Self::Opened(files) => FileSource::of_file(files.image.try_clone()?, start),
        }
    }

    fn devices(self) -> Result<Vec<Arc<dyn ImageSource>>, Error> {
        let mut devices: Vec<Arc<dyn ImageSource>> = Vec::new();
        match self {
            Self::ByName(_, read) => {
                for device in &read.devices {
                    devices.push(Arc::new(FileSource::open_device(device)?));
                }
            }
            Self::Opened(files) => {
                for device in files.devices {
                    devices.push(Arc::new(FileSource::of_file(device.try_clone()?, 0)?));
                }
            }
        }
        Ok(devices)
    }
}

/// Opens an image to read its metadata.
pub(crate) fn open(path: &Path, read: &ReadArguments) -> anyhow::Result<Image> {
    open_with(path, read, OpenOptions::new().retain_memory(true))
}

/// Opens an image for a verb that reads each file once.
pub(crate) fn open_for_work(
    path: &Path,
    read: &ReadArguments,
    resources: &Resources,
) -> anyhow::Result<Image> {
    let options = OpenOptions::new()
        .memory(&resources.memory)
        .retain_memory(true)
        .workers(&resources.workers)
        .cache_limit_bytes(resources.shared_bytes());
    open_with(path, read, options)
}

/// Opens an image for a mount, which returns memory to the system when nothing is read. The root
/// must be a directory: otherwise every access to the mount would fail. For a remote image also
/// returns what the mount keeps beside it.
pub(crate) fn open_for_mount(
    path: &Path,
    read: &ReadArguments,
    resources: &Resources,
) -> anyhow::Result<(Image, Option<RemoteMount>)> {
    let remote = RemoteImage::of(path, &read.devices)?;
    let needs_fetcher = remote.is_some_and(|remote| remote.needs_fetcher());
    let remote = needs_fetcher.then(|| RemoteMount::connect(&read.remote)).transpose()?;
    let files = LocalFiles::ByName(path, read);
    let image = open_mounted(path, read, files, remote.as_ref(), resources)?;
    Ok((image, remote))
}

/// The same for a local image whose files are open: names, and permissions to open them, may be gone by now. `path` is for
/// messages.
pub(crate) fn open_opened_for_mount(
    path: &Path,
    files: OpenedFiles<'_>,
    read: &ReadArguments,
    resources: &Resources,
) -> anyhow::Result<Image> {
    open_mounted(path, read, LocalFiles::Opened(files), None, resources)
}

fn open_mounted(
    path: &Path,
    read: &ReadArguments,
    files: LocalFiles<'_>,
    remote: Option<&RemoteMount>,
    resources: &Resources,
) -> anyhow::Result<Image> {
    let options = OpenOptions::new().memory(&resources.memory).workers(&resources.workers);
    // Capabilities and users belong to threads, so the sandbox comes first.
    let options = options.defer_threads(true);
    // The kernel keeps what it reads in its page cache.
    let image = open_on(path, read, options.caller_caches(true), files, remote)?;
    let root = image.root().and_then(|root| image.read_dir(&root).map(drop));
    root.map_err(|error| anyhow!("{}: the root: {error}", remote::terminal_form(path)))?;
    Ok(image)
}

fn open_with(path: &Path, read: &ReadArguments, options: OpenOptions) -> anyhow::Result<Image> {
    open_on(path, read, options, LocalFiles::ByName(path, read), None)
}

fn open_on(
    path: &Path,
    read: &ReadArguments,
    options: OpenOptions,
    files: LocalFiles<'_>,
    mount: Option<&RemoteMount>,
) -> anyhow::Result<Image> {
    let options = options.offset(read.offset).ignore_checksum(read.no_checksum);
    let terminal_form = remote::terminal_form(path);
    let with_path = |why| anyhow!("{terminal_form}: {why}");
    let (opened, source) = match RemoteImage::of(path, &read.devices)? {
        Some(remote) => {
            let sources = remote.open(read.offset, &read.remote, mount)?;
            let special = special_source(&sources.image, read).map_err(with_path)?;
            let source = special.unwrap_or(sources.image);
            (options.open_sources(Arc::clone(&source), sources.devices), Some(source))
        }
        None => {
            if read.remote.verify == Some(VerifyChoice::Require) {
                return Err(usage_error(format_args!(
                    "--verify=require is for remote images, but {terminal_form} is a local file; leave it out"
                )));
            }
            let special = special_file(files, read).map_err(with_path)?;
            let source = match &special {
                Some(source) => Ok(Arc::clone(source)),
                None => files.image(read.offset).map(|file| Arc::new(file) as _),
            };
            let opened = source
                .map_err(Error::from)
                .and_then(|source| options.open_sources(source, files.devices()?));
            (opened, special)
        }
    };
    let image = opened.map_err(|error| {
        if !diagnostics::is_about_magic(&error) {
            return anyhow!("{terminal_form}: {error}{}", diagnostics::for_image_error(&error));
        }
        let file = || Some(Arc::new(files.image(read.offset).ok()?) as _);
        let text = foreign_text(source.or_else(file).as_deref(), read, &error);
        anyhow!("{terminal_form}: {text}")
    })?;
    if read.devices.is_empty() && lacks_devices(&image) && !read.quiet {
        output::print_message(format_args!(
            "the device table has {}, but no --device=FILE was given",
            counted(image.device_slots().len() as u64, "device", "devices")
        ));
    }
    Ok(image)
}

/// What is wrong with a file or a partition that holds no image, and what to do about it.
fn foreign_text(source: Option<&dyn ImageSource>, read: &ReadArguments, error: &Error) -> String {
    let length = source.map(ImageSource::length);
    if read.offset > 0 && length == Some(0) {
        return format!("--offset={} is past the end of the file", read.offset);
    }
    let kind = source.and_then(foreign::identify);
    match (&read.partition, kind) {
        (Some(name), kind) => {
            let kind = kind.map_or("something else", |kind| kind.name);
            format!(
                "the partition {name} holds {kind}, not an EROFS image: {error}; name another one with \
                 --partition"
            )
        }
        (None, Some(foreign::ForeignKind { name, remedy })) => {
            let remedy = remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
            format!("this is {name}, not an EROFS image: {error}{remedy}")
        }
        (None, None) => match length.filter(|length| *length < MIN_IMAGE_BYTES) {
            Some(length) => {
                let bytes = counted(length, "byte", "bytes");
                format!(
                    "this is not an EROFS image, or only the start of one: the file has {bytes} ({error})"
                )
            }
            None => format!("{error}{}", diagnostics::for_image_error(error)),
        },
    }
}

/// The image in a sparse image or in a partition; `None` for a file that is an image itself.
fn special_file(
    files: LocalFiles<'_>,
    read: &ReadArguments,
) -> Result<Option<Arc<dyn ImageSource>>, String> {
    // What cannot be opened or read is reported as every image is.
    let Ok(file) = files.image(0) else { return Ok(None) };
    if read.partition.is_none() && SparseSource::is_sparse(&file).is_err() {
        return Ok(None);
    }
    let file: Arc<dyn ImageSource> = Arc::new(file);
    special_source(&file, read)
}

/// The same for a source. A partition may lie in a sparse image.
fn special_source(
    stored: &Arc<dyn ImageSource>,
    read: &ReadArguments,
) -> Result<Option<Arc<dyn ImageSource>>, String> {
    // Another read might succeed, and show a sparse image as something that is no image.
    let is_sparse = SparseSource::is_sparse(&**stored).map_err(|error| error.to_string())?;
    if !is_sparse && read.partition.is_none() {
        return Ok(None);
    }
    if read.offset > 0 {
        return Err("--offset cannot be used with a sparse image or with --partition".to_owned());
    }
    let whole: Arc<dyn ImageSource> = match is_sparse {
        true => {
            Arc::new(SparseSource::open(Arc::clone(stored)).map_err(|error| error.to_string())?)
        }
        false => Arc::clone(stored),
    };
    let Some(name) = &read.partition else { return Ok(Some(whole)) };
    let partition = PartitionSource::find(whole, name)
        .map_err(|error| format!("--partition={name}: {error}"))?;
    Ok(Some(Arc::new(partition)))
}

/// Whether the image has extra devices that are not appended to it.
pub(crate) fn lacks_devices(image: &Image) -> bool {
    let block = image.superblock().block_size;
    let end = |slot: &DeviceSlot| {
        slot.unified_block.checked_add(slot.blocks).and_then(|last| block.offset_of(last))
    };
    let is_behind = |slot| end(slot).is_none_or(|end| end > image.length());
    image.device_slots().iter().any(is_behind)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A sparse image whose first read fails.
    #[derive(Debug, Default)]
    struct Late(AtomicU32);

    impl ImageSource for Late {
        fn read_at(&self, _offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"));
            }
            let magic = [0x3a, 0xff, 0x26, 0xed];
            let count = buffer.len().min(magic.len());
            buffer[..count].copy_from_slice(&magic[..count]);
            Ok(count)
        }

        fn length(&self) -> u64 {
            4
        }
    }

    /// It was called no image, after another wait for the server.
    #[test]
    fn an_image_whose_first_read_fails_is_that_error() {
        let late: Arc<dyn ImageSource> = Arc::new(Late::default());
        let Err(error) = special_source(&late, &ReadArguments::default()) else {
            panic!("the error is lost")
        };
        assert_eq!(error, "no answer");
    }
}
