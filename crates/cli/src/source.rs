//! Opens the image that the arguments describe.

use std::path::Path;

use anyhow::anyhow;
use ferrofs_image::{Image, OpenOptions};
use ferrofs_ondisk::DeviceSlot;

use crate::amount::counted;
use crate::arguments::ReadArguments;
use crate::diagnostics;
use crate::output::{self, escape};
use crate::resources::Resources;

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
/// must be a directory: otherwise every access to the mount would fail.
pub(crate) fn open_for_mount(
    path: &Path,
    read: &ReadArguments,
    resources: &Resources,
) -> anyhow::Result<Image> {
    let options = OpenOptions::new().memory(&resources.memory).workers(&resources.workers);
    // The kernel keeps what it reads in its page cache.
    let image = open_with(path, read, options.caller_caches(true))?;
    let root = image.root().and_then(|root| image.read_dir(&root).map(drop));
    root.map_err(|error| {
        anyhow!("{}: the root: {error}", escape(path.as_os_str().as_encoded_bytes()))
    })?;
    Ok(image)
}

fn open_with(path: &Path, read: &ReadArguments, options: OpenOptions) -> anyhow::Result<Image> {
    let options = options.offset(read.offset).ignore_checksum(read.no_checksum);
    let options = read.devices.iter().fold(options, OpenOptions::device);
    let image = options.open(path).map_err(|error| {
        let suggestion = diagnostics::for_image_error(&error);
        anyhow!("{}: {error}{suggestion}", escape(path.as_os_str().as_encoded_bytes()))
    })?;
    if read.devices.is_empty() && lacks_devices(&image) && !read.quiet {
        output::print_message(format_args!(
            "{} in the device table, but none was given with --device=FILE",
            counted(image.device_slots().len() as u64, "device is", "devices are")
        ));
    }
    Ok(image)
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
