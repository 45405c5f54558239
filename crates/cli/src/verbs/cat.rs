//! `ferrofs cat`: writes files to standard output.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use ferrofs_image::{FileType, Image, Piece};

use crate::arguments::CatArguments;
use crate::outcome::Outcome;
use crate::output::Output;
use crate::source;
use crate::stderr;

/// Holes are written in pieces of this size.
const ZEROS: [u8; 4096] = [0; 4096];

/// Why a file was not written.
#[derive(Debug)]
enum Failure {
    Image(ferrofs_image::Error),
    Output(io::Error),
}

impl From<ferrofs_image::Error> for Failure {
    fn from(error: ferrofs_image::Error) -> Self {
        Self::Image(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Writes each file; one that is missing or bad does not keep the others back.
pub(crate) fn run(arguments: &CatArguments) -> anyhow::Result<Outcome> {
    let image = source::open(&arguments.image, &arguments.read)?;
    let mut output = Output::new();
    let mut outcome = Outcome::Good;
    for path in &arguments.paths {
        match write(&image, path.as_bytes(), &mut output) {
            Ok(None) => {}
            Ok(Some(refusal)) => {
                stderr::complain_about(path.as_bytes(), refusal);
                outcome = Outcome::Bad;
            }
            Err(Failure::Image(error)) => {
                stderr::complain_about(path.as_bytes(), error);
                outcome = Outcome::Bad;
            }
            Err(Failure::Output(error)) => return Err(error.into()),
        }
    }
    output.flush()?;
    Ok(outcome)
}

/// Writes a file, or answers why there is nothing to write.
fn write(image: &Image, path: &[u8], output: &mut Output) -> Result<Option<String>, Failure> {
    let Some(inode) = image.resolve(path)? else {
        return Ok(Some("no such path in the image".to_owned()));
    };
    if inode.file_type() != FileType::Regular {
        return Ok(Some(format!("is a {}, not a regular file", inode.file_type().name())));
    }
    image.for_each_piece::<Failure>(&inode, |piece| {
        match piece {
            Piece::Data { bytes, .. } => output.write_all(bytes)?,
            Piece::Hole { length, .. } => write_zeros(output, length)?,
        }
        Ok(())
    })?;
    Ok(None)
}

fn write_zeros(output: &mut Output, mut length: u64) -> io::Result<()> {
    while length > 0 {
        let count = usize::try_from(length).unwrap_or(usize::MAX).min(ZEROS.len());
        output.write_all(&ZEROS[..count])?;
        length -= count as u64;
    }
    Ok(())
}
