//! `ferrofs cat`: writes files to standard output.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use ferrofs_image::{FileType, Image};

use crate::arguments::CatArguments;
use crate::exit_status::CommandStatus;
use crate::output::{self, CopyError, Output};
use crate::resources::Resources;
use crate::{read_stats, source};

/// Read and written at a time.
const BUFFER_BYTES: usize = 256 << 10;

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
                output::print_path_message(path.as_bytes(), refusal);
                outcome = CommandStatus::Failure;
            }
            Err(CopyError::Image(error)) => {
                output::print_path_message(path.as_bytes(), error);
                outcome = CommandStatus::Failure;
            }
            Err(CopyError::Output(error)) => return Err(error.into()),
        }
    }
    output.flush()?;
    read_stats::print_stats(resources.stats(&image, None).as_ref());
    Ok(outcome)
}

/// Writes a file, or answers why there is nothing to write.
fn write(
    image: &Image,
    path: &[u8],
    (buffer, resources): (&mut [u8], &Resources),
    output: &mut Output,
) -> Result<Option<String>, CopyError> {
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
