//! The table at the end of a demonstration: what was measured.

use std::io::{self, Write};
use std::time::Duration;

use super::{ComparisonResult, Extracted};
use crate::amount::{counted, grouped, human_bytes};

/// What was measured.
pub(super) struct Table<'a> {
    pub(super) name: String,
    pub(super) image_bytes: u64,
    pub(super) extracted: &'a Extracted,
    pub(super) compared: ComparisonResult,
    pub(super) compare_time: Duration,
}

impl Table<'_> {
    pub(super) fn write(&self, output: &mut impl Write) -> io::Result<()> {
        let summary = &self.extracted.summary;
        let mut row = |key: &str, value: String| writeln!(output, "  {key:<14}{value}");
        row("image", format!("{} ({})", self.name, human_bytes(self.image_bytes)))?;
        row("entries", grouped(summary.entries()))?;
        let share = percent(self.image_bytes, summary.bytes);
        row("contents", format!("{} (the image is {share} of it)", human_bytes(summary.bytes)))?;
        row("unpacked in", timed(self.extracted.time, summary.bytes))?;
        row("compared in", timed(self.compare_time, self.compared.done.bytes))?;
        if let Some(peak) = self.extracted.peak_bytes {
            row("peak memory", format!("{} while unpacking", human_bytes(peak)))?;
        }
        row("failures", grouped(summary.failures))?;
        let checked = counted(self.compared.done.entries, "entry", "entries");
        let differences = counted(self.compared.differences, "difference", "differences");
        row("result", format!("{differences} in {checked}"))
    }
}

fn percent(part: u64, whole: u64) -> String {
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
