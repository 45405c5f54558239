//! `ferrofs cat`: writes files to standard output.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use ferrofs_image::{FileType, Image};

use crate::arguments::CatArguments;
use crate::exit_status::CommandStatus;
use crate::output::Output;
use crate::resources::Resources;
use crate::source;
use crate::stats;
use crate::stderr;

/// Read and written at a time.
const BUFFER_BYTES: usize = 256 << 10;

/// Why a file was not written.
#[derive(Debug)]
pub(super) enum ReadError {
    Image(ferrofs_image::Error),
    Output(io::Error),
}

impl From<ferrofs_image::Error> for ReadError {
    fn from(error: ferrofs_image::Error) -> Self {
        Self::Image(error)
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Writes each file; one that is missing or bad does not keep the others back.
pub(crate) fn run(arguments: &CatArguments) -> anyhow::Result<CommandStatus> {
    let resources = Resources::of(&arguments.work)?;
    let image = source::open_for_work(&arguments.image, &arguments.read, &resources)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut output = Output::new();
    let mut outcome = CommandStatus::Success;
    for path in &arguments.paths {
        match write(&image, path.as_bytes(), (&mut buffer, &resources), &mut output) {
            Ok(None) => {}
            Ok(Some(refusal)) => {
                stderr::print_path_message(path.as_bytes(), refusal);
                outcome = CommandStatus::Failure;
            }
            Err(ReadError::Image(error)) => {
                stderr::print_path_message(path.as_bytes(), error);
                outcome = CommandStatus::Failure;
            }
            Err(ReadError::Output(error)) => return Err(error.into()),
        }
    }
    output.flush()?;
    stats::print_stats(resources.stats(&image, None).as_ref());
    Ok(outcome)
}

/// Writes a file, or answers why there is nothing to write.
fn write(
    image: &Image,
    path: &[u8],
    (buffer, resources): (&mut [u8], &Resources),
    output: &mut Output,
) -> Result<Option<String>, ReadError> {
    let Some(inode) = image.resolve(path)? else {
        return Ok(Some("no such path in the image".to_owned()));
    };
    if inode.file_type() != FileType::Regular {
        return Ok(Some(format!("is a {}, not a regular file", inode.file_type().name())));
    }
    // With readahead the workers of other CPUs decode what comes next.
    let file = (resources.threads > 1).then(|| image.open_file(&inode)).transpose()?;
    let mut at = 0;
    loop {
        let count = match &file {
            Some(file) => file.read_at(at, buffer)?,
            None => image.read_at(&inode, at, buffer)?,
        };
        if count == 0 {
            return Ok(None);
        }
        output.write_all(&buffer[..count])?;
        at += count as u64;
    }
}
