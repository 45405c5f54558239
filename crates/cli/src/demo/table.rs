//! The table of an extraction: what was measured, and what comparing found.

use std::io::{self, Write};
use std::time::Duration;

use super::{ComparisonResult, TimedExtract};
use crate::amount::{counted, grouped, human_bytes};

/// What was measured.
pub(super) struct ExtractTable<'a> {
    pub(super) name: &'a str,
    pub(super) image_bytes: u64,
    pub(super) extracted: &'a TimedExtract,
    pub(super) compared: ComparisonResult,
    pub(super) compare_time: Duration,
}

impl ExtractTable<'_> {
    pub(super) fn write(&self, output: &mut impl Write) -> io::Result<()> {
        let summary = &self.extracted.summary;
        let image = format!("{} ({})", self.name, human_bytes(self.image_bytes));
        row(output, "image", &image)?;
        row(output, "entries", &grouped(summary.entries()))?;
        let share = format_percent(self.image_bytes, summary.bytes);
        let contents = format!("{} (the image is {share} of it)", human_bytes(summary.bytes));
        row(output, "contents", &contents)?;
        row(output, "unpacked in", &timed(self.extracted.time, summary.bytes))?;
        if let Some(peak) = self.extracted.peak_bytes {
            row(output, "peak memory", &format!("{} while unpacking", human_bytes(peak)))?;
        }
        row(output, "failures", &grouped(summary.failures))?;
        write_compared(self.compared, self.compare_time, output)
    }
}

/// Writes what a comparison took and found.
pub(super) fn write_compared(
    compared: ComparisonResult,
    time: Duration,
    output: &mut impl Write,
) -> io::Result<()> {
    row(output, "compared in", &timed(time, compared.done.bytes))?;
    let checked = counted(compared.done.entries, "entry", "entries");
    let differences = counted(compared.differences, "difference", "differences");
    row(output, "result", &format!("{differences} in {checked}"))
}

fn row(output: &mut impl Write, key: &str, value: &str) -> io::Result<()> {
    writeln!(output, "  {key:<14}{value}")
}

fn format_percent(part: u64, whole: u64) -> String {
    match (u128::from(part) * 100).checked_div(u128::from(whole)) {
        Some(share) => format!("{share} %"),
        None => "-".to_owned(),
    }
}

fn timed(time: Duration, bytes: u64) -> String {
    let microseconds = time.as_micros().max(1);
    // Bytes in a microsecond are megabytes in a second.
    let tenths = u128::from(bytes) * 10 / microseconds;
    format!("{:.3} s, {}.{} MB/s", time.as_secs_f64(), tenths / 10, tenths % 10)
}
