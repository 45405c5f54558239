//! `ferrofs cat`: writes files to standard output. A signal ends it at once, as it leaves nothing
//! behind.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use ferrofs_image::{FileType, Image};

use crate::arguments::CatArguments;
use crate::exit_status::CommandStatus;
use crate::output::{self, CopyError, Output};
use crate::resources::Resources;
use crate::signals::ExitOnSignals;
use crate::{read_stats, source};

/// Read and written at a time.
const BUFFER_BYTES: usize = 256 << 10;

/// Writes each file. After one that is missing or damaged, it goes on with the next.
pub(crate) fn run(
    arguments: &CatArguments,
    _signals: &ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let resources = Resources::of(&arguments.work)?;
    let image = source::open_for_work(&arguments.image, &arguments.read, &resources)?;
    let buffer = vec![0; BUFFER_BYTES];
    let mut copier = Copier { image: &image, has_readahead: resources.threads > 1, buffer };
    let mut failures = 0;
    let written = copier.copy_all(&arguments.paths, &mut failures);
    let status = CommandStatus::from_failures(failures).after_output(written)?;
    read_stats::print_stats(read_stats::collect(&resources, &image, None).as_ref());
    Ok(status)
}

/// Copies files of an image.
struct Copier<'a> {
    image: &'a Image,
    /// Whether workers decode ahead.
    has_readahead: bool,
    buffer: Vec<u8>,
}

impl Copier<'_> {
    /// Copies all files to standard output, and counts those that cannot be copied.
    ///
    /// # Errors
    /// Standard output cannot be written.
    fn copy_all(&mut self, paths: &[OsString], failures: &mut u64) -> anyhow::Result<()> {
        let mut output = Output::new();
        for path in paths.iter().map(|path| path.as_bytes()) {
            match self.copy(path, &mut output) {
                Ok(None) => continue,
                Ok(Some(refusal)) => output::print_path_message(path, refusal),
                Err(CopyError::Image(error)) => output::print_path_message(path, error),
                Err(CopyError::Output(error)) => return Err(error.into()),
            }
            *failures += 1;
        }
        Ok(output.flush()?)
    }

    /// Copies a file to `output`; the text is the reason if there is nothing to copy.
    fn copy(&mut self, path: &[u8], output: &mut Output) -> Result<Option<String>, CopyError> {
        let Some(inode) = self.image.resolve(path)? else {
            return Ok(Some("no such path in the image".to_owned()));
        };
        if inode.file_type() != FileType::Regular {
            return Ok(Some(format!("is a {}, not a regular file", inode.file_type().name())));
        }
        let file = self.has_readahead.then(|| self.image.open_file(&inode)).transpose()?;
        let mut at = 0;
        loop {
            let count = match &file {
                Some(file) => file.read_at(at, &mut self.buffer)?,
                None => self.image.read_at(&inode, at, &mut self.buffer)?,
            };
            if count == 0 {
                return Ok(None);
            }
            output.write_all(&self.buffer[..count])?;
            at += count as u64;
        }
    }
}
