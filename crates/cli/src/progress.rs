//! Shows the progress of long work on standard error, and an estimate of the remaining time.
//!
//! Work is measured in bytes of file contents, plus a fixed number of bytes for each entry.

use std::fmt::Display;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle as BarStyle};
use serde::Serialize;

use crate::amount::{counted, human_bytes};
use crate::arguments::ProgressStyle;
use crate::output;

/// The weight of an entry, in bytes: creating one takes about as long as writing this many.
const ENTRY_BYTES: u64 = 8192;
const REDRAW: Duration = Duration::from_millis(100);
const JSON_LINE: Duration = Duration::from_millis(200);
const TEXT_LINE: Duration = Duration::from_secs(1);

/// An amount of work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkAmount {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

impl WorkAmount {
    fn units(self) -> u64 {
        self.bytes.saturating_add(self.entries.saturating_mul(ENTRY_BYTES))
    }
}

impl From<ferrofs_extract::ExtractProgress> for WorkAmount {
    fn from(progress: ferrofs_extract::ExtractProgress) -> Self {
        Self { entries: progress.entries, bytes: progress.bytes }
    }
}

/// Shows the progress of one piece of work.
#[derive(Debug)]
pub(crate) struct ProgressDisplay {
    form: ProgressSink,
    verb: &'static str,
    total: WorkAmount,
    started: Instant,
    next: Instant,
}

#[derive(Debug)]
enum ProgressSink {
    Nothing,
    Bar(ProgressBar),
    Text,
    Json,
}

#[derive(Serialize)]
struct ProgressLine {
    verb: &'static str,
    done: u64,
    total: u64,
    unit: &'static str,
    entries: u64,
    bytes: u64,
    eta_s: Option<u64>,
}

impl ProgressDisplay {
    /// Starts; `total` is called only if progress is shown.
    pub(crate) fn new(
        style: ProgressStyle,
        verb: &'static str,
        total: impl FnOnce() -> WorkAmount,
    ) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let form = match style {
            ProgressStyle::Json => ProgressSink::Json,
            ProgressStyle::Auto | ProgressStyle::Bar if is_terminal => ProgressSink::Bar(bar(verb)),
            ProgressStyle::Bar => ProgressSink::Text,
            ProgressStyle::Auto | ProgressStyle::None => ProgressSink::Nothing,
        };
        let total =
            if matches!(form, ProgressSink::Nothing) { WorkAmount::default() } else { total() };
        if let ProgressSink::Bar(bar) = &form {
            bar.set_length(total.units());
        }
        let now = Instant::now();
        Self { form, verb, total, started: now, next: now }
    }

    /// Reports the amount that is done.
    pub(crate) fn update(&mut self, done: WorkAmount) {
        let pause = match self.form {
            ProgressSink::Nothing => return,
            ProgressSink::Bar(_) => REDRAW,
            ProgressSink::Json => JSON_LINE,
            ProgressSink::Text => TEXT_LINE,
        };
        let now = Instant::now();
        if now >= self.next {
            self.next = now + pause;
            self.show(done);
        }
    }

    /// Prints a message without disturbing a bar.
    pub(crate) fn print_message(&self, text: impl Display) {
        match &self.form {
            ProgressSink::Bar(bar) => bar.suspend(|| output::print_message(text)),
            _ => output::print_message(text),
        }
    }

    /// Prints a message about a path without disturbing a bar.
    pub(crate) fn print_path_message(&self, path: &[u8], text: impl Display) {
        match &self.form {
            ProgressSink::Bar(bar) => bar.suspend(|| output::print_path_message(path, text)),
            _ => output::print_path_message(path, text),
        }
    }

    /// Ends the display.
    pub(crate) fn finish(&self, done: WorkAmount) {
        match &self.form {
            ProgressSink::Bar(bar) => bar.finish_and_clear(),
            ProgressSink::Json => self.show(WorkAmount { ..done }),
            _ => {}
        }
    }

    fn show(&self, done: WorkAmount) {
        let bytes = human_bytes(done.bytes);
        let amount = match self.total.entries.max(done.entries) {
            // A transfer has none.
            0 => bytes,
            _ => format!("{}, {bytes}", counted(done.entries, "entry", "entries")),
        };
        match &self.form {
            ProgressSink::Nothing => {}
            ProgressSink::Bar(bar) => {
                bar.set_message(amount);
                bar.set_position(done.units().min(self.total.units()));
            }
            ProgressSink::Text => output::print_line(format_args!(
                "{} {}%, {amount}{}",
                self.verb,
                self.percent(done),
                self.eta(done).map(|eta| format!(", {eta} s left")).unwrap_or_default()
            )),
            ProgressSink::Json => self.show_json(done),
        }
    }

    fn show_json(&self, done: WorkAmount) {
        let total = self.total.units().max(done.units());
        let line = ProgressLine {
            verb: self.verb,
            done: done.units(),
            total,
            unit: "work",
            entries: done.entries,
            bytes: done.bytes,
            eta_s: self.eta(done),
        };
        // A structure of numbers and plain strings always has a JSON form.
        output::print_line(output::json_text(&line).unwrap_or_default());
    }

    fn percent(&self, done: WorkAmount) -> u64 {
        let (done, total) = (u128::from(done.units()), u128::from(self.total.units().max(1)));
        u64::try_from((done * 100 / total).min(100)).unwrap_or(100)
    }

    /// The remaining seconds at the same pace.
    fn eta(&self, done: WorkAmount) -> Option<u64> {
        let left = self.total.units().saturating_sub(done.units());
        let milliseconds = self.started.elapsed().as_millis();
        let eta = (milliseconds * u128::from(left)).checked_div(u128::from(done.units()))?;
        u64::try_from(eta.div_ceil(1000)).ok()
    }
}

fn bar(verb: &'static str) -> ProgressBar {
    let template = "{prefix} [{bar:30}] {percent:>3}% {msg}, {eta} left";
    // The template is a constant and valid.
    let style = BarStyle::with_template(template).unwrap_or_else(|_| BarStyle::default_bar());
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        .with_style(style.progress_chars("=> "))
        .with_prefix(verb)
}
