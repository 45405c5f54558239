//! Errors and notices: one line each on standard error, with the name of the program.

use std::fmt::Display;
use std::io::Write;

use crate::name::{escaped, harmless};

/// Prints a line that begins with the program's name.
pub(crate) fn complain(text: impl Display) {
    // Causes from elsewhere may repeat a name as it is.
    line(format_args!("ferrofs: {}", harmless(&text.to_string())));
}

/// Says what is wrong at a path.
pub(crate) fn complain_about(path: &[u8], text: impl Display) {
    complain(format_args!("{}: {text}", escaped(path)));
}

/// Prints a line.
pub(crate) fn line(text: impl Display) {
    // If even stderr is closed there is nobody left to tell.
    writeln!(std::io::stderr().lock(), "{text}").unwrap_or_default();
}
