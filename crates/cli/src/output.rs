//! Standard output: buffered, with names fit for a terminal if it is one.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use serde::Serialize;

use crate::escape::escape;

/// Standard output.
#[derive(Debug)]
pub(crate) struct Output {
    writer: BufWriter<StdoutLock<'static>>,
    is_terminal: bool,
}

impl Output {
    pub(crate) fn new() -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Self { writer: BufWriter::with_capacity(1 << 16, stdout.lock()), is_terminal }
    }

    /// A name as it should be written: a terminal gets no byte that could fool it, a program gets
    /// the very bytes.
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
        serde_json::to_writer(&mut self.writer, value)?;
        self.writer.write_all(b"\n")
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

/// Whether the reader of our output went away.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}
