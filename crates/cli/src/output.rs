//! Standard output and standard error, and how names are written there: unchanged for programs,
//! escaped for terminals.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Display, Write as _};
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

pub(crate) use ferrofs_builder::import::android_text::hex;
pub(crate) use ferrofs_builder::import::sidecar::JsonBytes;
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// Standard output.
#[derive(Debug)]
pub(crate) struct Output {
    writer: BufWriter<Stdout>,
    is_terminal: bool,
}

/// Standard output without a buffer of its own; its errors are [`OutputClosed`] and [`StdoutError`].
#[derive(Debug)]
struct Stdout(StdoutLock<'static>);

/// The reader of standard output has closed the pipe. This is not the `BrokenPipe` of another pipe or
/// of a connection, whose end is a failure.
#[derive(Debug)]
pub(crate) struct OutputClosed;

impl OutputClosed {
    /// Whether an error comes from standard output that nobody reads.
    pub(crate) fn caused(error: &anyhow::Error) -> bool {
        error
            .chain()
            .filter_map(|cause| cause.downcast_ref::<io::Error>())
            .any(|error| error.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<OutputClosed>))
    }

    /// `written` without this error: for lines of a verb that produces something else, which it must not leave undone
    /// because nobody reads them.
    ///
    /// # Errors
    /// All others of `written`.
    pub(crate) fn ignored_in(written: io::Result<()>) -> anyhow::Result<()> {
        match written.map_err(anyhow::Error::from) {
            Err(error) if !Self::caused(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Display for OutputClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing reads the standard output")
    }
}

impl Error for OutputClosed {}

impl From<OutputClosed> for io::Error {
    fn from(closed: OutputClosed) -> Self {
        Self::new(io::ErrorKind::BrokenPipe, closed)
    }
}

/// Why standard output cannot be written, with its name: the error alone does not say where there is no space.
#[derive(Debug)]
struct StdoutError(io::Error);

impl Display for StdoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "standard output: {}", self.0)
    }
}

impl Error for StdoutError {}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(of_stdout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(of_stdout)
    }
}

/// The same error as one of standard output.
pub(crate) fn of_stdout(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => OutputClosed.into(),
        kind => io::Error::new(kind, StdoutError(error)),
    }
}

impl Output {
    pub(crate) fn new() -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Self { writer: BufWriter::with_capacity(1 << 16, Stdout(stdout.lock())), is_terminal }
    }

    /// A name for the output: escaped if it is a terminal, otherwise unchanged.
    pub(crate) fn terminal_form<'n>(&self, name: &'n [u8]) -> Cow<'n, [u8]> {
        if self.is_terminal { Cow::Owned(escape(name).into_bytes()) } else { Cow::Borrowed(name) }
    }

    /// Writes a name.
    pub(crate) fn name(&mut self, name: &[u8]) -> io::Result<()> {
        let terminal_form = self.terminal_form(name);
        self.writer.write_all(&terminal_form)
    }

    /// Writes a value as one line of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        write_json(&mut self.writer, value)?;
        self.writer.write_all(b"\n")
    }
}

/// Writes a value as JSON that a terminal can show: names in it are hostile.
pub(crate) fn write_json(to: impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(to, TerminalFormatter);
    Ok(value.serialize(&mut serializer)?)
}

/// The same as a text.
pub(crate) fn json_text(value: &impl Serialize) -> io::Result<String> {
    let mut bytes = Vec::new();
    write_json(&mut bytes, value)?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// JSON without blanks, like that of `serde_json`, which escapes only the controls below the blank.
struct TerminalFormatter;

impl Formatter for TerminalFormatter {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, found)) = rest.char_indices().find(|(_, c)| fools_terminal(*c)) {
            let (plain, from) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            for unit in found.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = from.split_at(found.len_utf8()).1;
        }
        writer.write_all(rest.as_bytes())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Why a file was not written.
#[derive(Debug)]
pub(crate) enum CopyError {
    Image(ferrofs_image::Error),
    Output(io::Error),
}

impl From<ferrofs_image::Error> for CopyError {
    fn from(error: ferrofs_image::Error) -> Self {
        Self::Image(error)
    }
}

impl From<io::Error> for CopyError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// A name with escapes for characters that are not printable, and for bytes that are not UTF-8.
pub(crate) fn escape(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            push_escaped(&mut text, character);
        }
        for byte in chunk.invalid() {
            push_byte(&mut text, *byte);
        }
    }
    text
}

/// A message with escapes for control characters.
pub(crate) fn escape_controls(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for character in message.chars() {
        push_escaped_control(&mut text, character);
    }
    text
}

fn push_escaped(text: &mut String, character: char) {
    match character {
        '\\' => text.push_str("\\\\"),
        c => push_escaped_control(text, c),
    }
}

fn push_escaped_control(text: &mut String, character: char) {
    match character {
        '\n' => text.push_str("\\n"),
        '\t' => text.push_str("\\t"),
        '\r' => text.push_str("\\r"),
        c if fools_terminal(c) => {
            let mut buffer = [0; 4];
            for byte in c.encode_utf8(&mut buffer).bytes() {
                push_byte(text, byte);
            }
        }
        c => text.push(c),
    }
}

/// Whether a character is a control, or changes the direction or the look of what follows.
fn fools_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

fn push_byte(text: &mut String, byte: u8) {
    // Writing to a String cannot fail.
    write!(text, "\\x{byte:02x}").unwrap_or_default();
}

/// Prints a line of a program that does its work though nobody reads it.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn print_unread(line: &str) -> anyhow::Result<()> {
    OutputClosed::ignored_in(write_line(line))
}

/// Prints a line.
///
/// # Errors
/// Standard output cannot be written, or nobody reads it.
pub(crate) fn write_line(line: &str) -> io::Result<()> {
    let mut output = Output::new();
    writeln!(output, "{line}")?;
    output.flush()
}

/// Prints a line that begins with the program's name.
pub(crate) fn print_message(text: impl Display) {
    // Messages of the system and of libraries may contain names without escapes.
    print_line(format_args!("ferrofs: {}", escape_controls(&text.to_string())));
}

/// Prints a message about a path.
pub(crate) fn print_path_message(path: &[u8], text: impl Display) {
    print_message(format_args!("{}: {text}", escape(path)));
}

/// Prints a line.
pub(crate) fn print_line(text: impl Display) {
    // If standard error is closed, the message is lost.
    writeln!(io::stderr().lock(), "{text}").unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_fool_a_terminal_is_escaped() {
        assert_eq!(escape("caf\u{e9} \u{1b}[1m\n".as_bytes()), "caf\u{e9} \\x1b[1m\\n");
        assert_eq!(escape(b"a\\b\xff"), "a\\\\b\\xff");
        assert_eq!(escape("\u{202e}".as_bytes()), "\\xe2\\x80\\xae");
    }

    #[test]
    fn json_has_escapes_for_what_could_fool_a_terminal() {
        let name = "a\u{9b}31m\u{7f}b\u{202e}\u{e9}\u{2066}\n\u{1b}\u{1f600}";
        let text = json_text(&JsonBytes::from(name.as_bytes())).unwrap();
        assert_eq!(text, "\"a\\u009b31m\\u007fb\\u202e\u{e9}\\u2066\\n\\u001b\u{1f600}\"");
        let read: JsonBytes = serde_json::from_str(&text).unwrap();
        assert_eq!(read.0, name.as_bytes());
    }

    #[test]
    fn json_names_are_text_or_hexadecimal() {
        let json = |name: &[u8]| serde_json::to_string(&JsonBytes::from(name)).unwrap();
        assert_eq!(json("\u{e9}\"".as_bytes()), "\"\u{e9}\\\"\"");
        assert_eq!(json(b"\xe9"), "{\"hex\":\"e9\"}");
        for name in ["\u{e9}\"".as_bytes(), b"\xe9"] {
            let read: JsonBytes = serde_json::from_str(&json(name)).unwrap();
            assert_eq!(read.0, name);
        }
    }
}
