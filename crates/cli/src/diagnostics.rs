//! Problems: a list of bounded length for the JSON summary of a verb, a bound of what is printed,
//! and suggestions what to do about an error.

use std::borrow::Cow;
use std::fmt::Display;

use ferrofs_image::{ErrorKind, Nid};
use serde::Serialize;

use crate::amount::grouped;
use crate::output::{self, JsonBytes, escape};

/// Problems listed in a summary; further ones are counted only.
const LISTED_MAX: usize = 10_000;
/// Bytes of their paths and texts: they are in memory until the end.
const LISTED_MAX_BYTES: usize = 4 << 20;
/// No system call takes a longer path. A problem with such a path is listed by its nid alone.
const LISTED_PATH_MAX_BYTES: usize = 4096;
/// Messages that are printed; further ones are counted.
const PRINTED_MAX: u64 = 1000;
/// Bytes of these messages.
const PRINTED_MAX_BYTES: usize = 512 << 10;
/// Of a longer path, a message has the two ends.
const PRINTED_PATH_MAX_BYTES: usize = 1024;

/// A problem in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct JsonDiagnostic {
    /// The path in the image; empty for the image as a whole, and `None` if it is too long.
    path: Option<JsonBytes>,
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
    #[serde(skip)]
    bytes: usize,
}

/// Bounds the messages of a run.
#[derive(Debug, Default)]
pub(crate) struct MessageLimiter {
    printed: u64,
    bytes: usize,
    left_out: u64,
}

impl JsonDiagnostic {
    pub(crate) fn new(path: &[u8], error: &impl Display) -> Self {
        let is_short = path.len() <= LISTED_PATH_MAX_BYTES;
        let path = is_short.then(|| JsonBytes::from(path));
        Self { path, error: error.to_string(), nid: None, offset: None }
    }

    pub(crate) fn of_image(path: &[u8], error: &ferrofs_image::Error) -> Self {
        Self::new(path, error).at(error.nid(), error.offset())
    }

    pub(crate) fn at(self, nid: Option<Nid>, offset: Option<u64>) -> Self {
        Self { nid: nid.map(Nid::raw), offset, ..self }
    }
}

impl DiagnosticList {
    pub(crate) fn add(&mut self, diagnostic: JsonDiagnostic) {
        let path = diagnostic.path.as_ref().map_or(0, |path| path.0.len());
        let bytes = self.bytes + path + diagnostic.error.len();
        if self.problems.len() < LISTED_MAX && bytes <= LISTED_MAX_BYTES {
            self.bytes = bytes;
            self.problems.push(diagnostic);
        } else {
            self.problems_not_listed += 1;
        }
    }
}

impl MessageLimiter {
    /// The message about a path, if it is to be printed.
    pub(crate) fn message(&mut self, path: &[u8], text: impl Display) -> Option<String> {
        if self.printed >= PRINTED_MAX || self.bytes >= PRINTED_MAX_BYTES {
            self.left_out += 1;
            return None;
        }
        let message = format!("{}: {text}", escape(&shortened(path)));
        self.printed += 1;
        self.bytes += message.len();
        Some(message)
    }

    /// Prints how many messages were left out.
    pub(crate) fn print_rest(&self) {
        if self.left_out > 0 {
            output::print_message(format_args!("… and {} more", grouped(self.left_out)));
        }
    }
}

/// The two ends of a path that is too long for a message.
fn shortened(path: &[u8]) -> Cow<'_, [u8]> {
    if path.len() <= PRINTED_PATH_MAX_BYTES {
        return Cow::Borrowed(path);
    }
    let (start, end) = (&path[..PRINTED_PATH_MAX_BYTES / 2], &path[path.len() - 256..]);
    Cow::Owned([start, "…".as_bytes(), end].concat())
}

/// Whether an error says that there is no EROFS image.
pub(crate) fn is_about_magic(error: &ferrofs_image::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Format(
            ferrofs_ondisk::ErrorKind::BadMagic(_) | ferrofs_ondisk::ErrorKind::Truncated { .. }
        )
    )
}

/// What to do about an error of the image, after a semicolon; empty if there is nothing.
pub(crate) fn for_image_error(error: &ferrofs_image::Error) -> &'static str {
    match error.kind() {
        ErrorKind::Checksum { .. } => "; --no-checksum opens it anyway",
        ErrorKind::OpenDevice { .. } => "; --device must name the file of a device",
        ErrorKind::DeviceCount { .. } => {
            "; name each device with --device=FILE, in the order of the device table"
        }
        ErrorKind::Format(ferrofs_ondisk::ErrorKind::BadMagic(_)) => {
            "; this is not an EROFS image, or it starts at another byte (see --offset)"
        }
        ErrorKind::Format(ferrofs_ondisk::ErrorKind::UnknownIncompat(_)) => {
            "; a newer ferrofs may support them"
        }
        ErrorKind::WorkLimit { .. } => "; --max-work allows more",
        _ => "",
    }
}

/// What to do about an error of an extraction; empty if there is nothing.
pub(crate) fn for_extract_error(error: &ferrofs_extract::Error) -> &'static str {
    match error.kind() {
        ferrofs_extract::ErrorKind::NotEmpty => {
            "; use another directory, or replace its entries with --overwrite"
        }
        ferrofs_extract::ErrorKind::Leftover { .. } => "; remove it, or use another directory",
        ferrofs_extract::ErrorKind::DirectoryInTheWay => "; remove it, or use another DEST",
        ferrofs_extract::ErrorKind::NothingMatches => {
            let is_text = std::str::from_utf8(error.path()).is_ok();
            match error.path().iter().any(|byte| b"*?[{".contains(byte)) && !is_text {
                true => "; in a name that is not UTF-8, *, ?, [ and { stand for themselves",
                false => "; `ferrofs ls -R IMAGE` lists all paths",
            }
        }
        kind => for_extract_kind(kind),
    }
}

/// The same, as far as it does not depend on the path of the error.
pub(crate) fn for_extract_kind(kind: &ferrofs_extract::ErrorKind) -> &'static str {
    match kind {
        ferrofs_extract::ErrorKind::Image(error) => for_image_error(error),
        ferrofs_extract::ErrorKind::OutputLimit { .. } => "; --max-output allows more",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded_in_number_and_in_bytes() {
        let mut limiter = MessageLimiter::default();
        let short = (0..10_000).filter_map(|_| limiter.message(b"/a", "x")).count();
        assert_eq!((short, limiter.left_out), (1000, 9000));
        let mut limiter = MessageLimiter::default();
        let long = (0..10_000).filter_map(|_| limiter.message(&vec![b'\xff'; 65_536], "x"));
        assert!(long.map(|text| text.len()).sum::<usize>() < 600 << 10);
    }

    #[test]
    fn a_list_is_bounded_in_number_and_in_bytes() {
        let list = |path: &[u8]| {
            let mut list = DiagnosticList::default();
            (0..20_000).for_each(|_| list.add(JsonDiagnostic::new(path, &"x")));
            (list.problems.len(), list.problems_not_listed, list.bytes)
        };
        assert_eq!(list(b"/a"), (10_000, 10_000, 30_000));
        assert_eq!(list(&vec![b'a'; 65_536]), (10_000, 10_000, 10_000));
        let (listed, rest, bytes) = list(&vec![b'a'; 4096]);
        assert_eq!(listed as u64 + rest, 20_000);
        assert!(listed < 1100 && bytes <= LISTED_MAX_BYTES);
    }
}
