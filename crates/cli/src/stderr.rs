//! Errors and notices: one line each on standard error, with the name of the program.

use std::fmt::Display;
use std::io::Write;

use crate::escape::{escape, escape_controls};

/// Prints a line that begins with the program's name.
pub(crate) fn print_message(text: impl Display) {
    // Causes from elsewhere may repeat a name as it is.
    line(format_args!("ferrofs: {}", escape_controls(&text.to_string())));
}

/// Says what is wrong at a path.
pub(crate) fn print_path_message(path: &[u8], text: impl Display) {
    print_message(format_args!("{}: {text}", escape(path)));
}

/// Prints a line.
pub(crate) fn line(text: impl Display) {
    // If even stderr is closed there is nobody left to tell.
    writeln!(std::io::stderr().lock(), "{text}").unwrap_or_default();
}
