//! Problems: a list of bounded length for the JSON summary of a verb, and suggestions what to do
//! about an error.

use ferrofs_image::{ErrorKind, Nid};
use serde::Serialize;

use crate::output::JsonBytes;

/// Problems listed in a summary; further ones are counted and printed only.
const LISTED_MAX: usize = 10_000;

/// A problem in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct JsonDiagnostic {
    /// The path in the image; empty for the image as a whole.
    path: JsonBytes,
    error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    nid: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
}

/// The problems of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct DiagnosticList {
    problems: Vec<JsonDiagnostic>,
    problems_not_listed: u64,
}

impl JsonDiagnostic {
    pub(crate) fn new(path: &[u8], error: &impl std::fmt::Display) -> Self {
        Self { path: JsonBytes::from(path), error: error.to_string(), nid: None, offset: None }
    }

    pub(crate) fn of_image(path: &[u8], error: &ferrofs_image::Error) -> Self {
        Self::new(path, error).at(error.nid(), error.offset())
    }

    pub(crate) fn at(self, nid: Option<Nid>, offset: Option<u64>) -> Self {
        Self { nid: nid.map(Nid::raw), offset, ..self }
    }
}

impl DiagnosticList {
    pub(crate) fn add(&mut self, problem: JsonDiagnostic) {
        if self.problems.len() < LISTED_MAX {
            self.problems.push(problem);
        } else {
            self.problems_not_listed += 1;
        }
    }
}

/// What to do about an error of the image, after a semicolon; empty if there is nothing.
pub(crate) fn for_image_error(error: &ferrofs_image::Error) -> &'static str {
    match error.kind() {
        ErrorKind::Checksum { .. } => "; --no-checksum opens it anyway",
        ErrorKind::DeviceCount { .. } => {
            "; name each device with --device=FILE, in the order of the device table"
        }
        ErrorKind::Format(ferrofs_ondisk::ErrorKind::BadMagic(_)) => {
            "; this is not an EROFS image, or it starts at another byte (see --offset)"
        }
        ErrorKind::Format(ferrofs_ondisk::ErrorKind::UnknownIncompat(_)) => {
            "; a newer ferrofs may support them"
        }
        _ => "",
    }
}

/// What to do about an error of an extraction; empty if there is nothing.
pub(crate) fn for_extract_error(error: &ferrofs_extract::Error) -> &'static str {
    match error.kind() {
        ferrofs_extract::ErrorKind::Image(error) => for_image_error(error),
        ferrofs_extract::ErrorKind::NotEmpty => {
            "; use another directory, or replace its entries with --overwrite"
        }
        ferrofs_extract::ErrorKind::DirectoryInTheWay => "; remove it, or use another DEST",
        ferrofs_extract::ErrorKind::NothingMatches => "; `ferrofs ls -R IMAGE` lists all paths",
        _ => "",
    }
}
