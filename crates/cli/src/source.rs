//! Opens the image that the arguments describe.

use std::path::Path;

use anyhow::anyhow;
use ferrofs_image::{Image, OpenOptions};

use crate::advice;
use crate::arguments::ReadArguments;
use crate::name::escaped;
use crate::stderr;

/// Opens an image.
pub(crate) fn open(path: &Path, read: &ReadArguments) -> anyhow::Result<Image> {
    if read.jobs > 1 && !read.quiet {
        stderr::complain(format_args!("this version reads with one thread, not {}", read.jobs));
    }
    let options = OpenOptions::new().offset(read.offset).ignore_checksum(read.no_checksum);
    let options = read.devices.iter().fold(options, OpenOptions::device);
    options.open(path).map_err(|error| {
        let advice = advice::for_image(&error);
        anyhow!("{}: {error}{advice}", escaped(path.as_os_str().as_encoded_bytes()))
    })
}
