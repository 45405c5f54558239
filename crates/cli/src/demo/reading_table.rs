//! The table of a benchmark: how long readers waited, and how much they got, from whose mount. And what the mount itself
//! says of that.

use std::io::{self, Write};

use super::benchmark::{BenchmarkResult, BenchmarkRow, MountKind};
use super::readers::ReadSample;

/// The lines of `ferrofs stats` that are shown, by how they begin: what was decoded for what was served, what is kept,
/// and what the workers are.
const SHOWN: [&str; 5] = ["bytes ", "cache ", "workers ", "  cpu ", "  unbound "];

/// Writes the rows.
pub(super) fn write(result: &BenchmarkResult, output: &mut impl Write) -> io::Result<()> {
    let columns = |last| format!("{:>9} {:>9} {last:>9}", "p50", "p99");
    writeln!(output, "  {:<17} {:<29}   random 4 KiB", "", "whole files")?;
    let (files, blocks) = (columns("MB/s"), columns("mean"));
    writeln!(output, "  {:<8} {:>8} {files}   {blocks}", "mount", "readers")?;
    for row in &result.rows {
        let BenchmarkRow { mount_kind, readers, files, blocks } = row;
        let name = match mount_kind {
            MountKind::Own => "ferrofs",
            MountKind::Kernel => "kernel",
        };
        let files = cells(files, &megabytes(files));
        let blocks = cells(blocks, &mean(blocks));
        writeln!(output, "  {name:<8} {readers:>8} {files}   {blocks}")?;
    }
    Ok(())
}

/// Writes some lines of what `ferrofs stats` said.
pub(super) fn write_stats(result: &BenchmarkResult, output: &mut impl Write) -> io::Result<()> {
    let is_shown = |line: &&str| SHOWN.iter().any(|start| line.starts_with(start));
    result.stats.lines().filter(is_shown).try_for_each(|line| writeln!(output, "    {line}"))
}

fn cells(sample: &ReadSample, last: &str) -> String {
    let mut times = sample.times.clone();
    times.sort_unstable();
    let [p50, p99] =
        [50, 99].map(|format_percent| quantile(&times, format_percent).map_or_else(dash, short));
    format!("{p50:>9} {p99:>9} {last:>9}")
}

/// Megabytes in a second.
fn megabytes(sample: &ReadSample) -> String {
    // Bytes in a microsecond are megabytes in a second.
    let tenths = u128::from(sample.bytes) * 10 / sample.wall.as_micros().max(1);
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn mean(sample: &ReadSample) -> String {
    let whole = sample.times.iter().fold(0u64, |sum, time| sum.saturating_add(*time));
    whole.checked_div(sample.times.len() as u64).map_or_else(dash, short)
}

fn dash() -> String {
    "-".to_owned()
}

/// The least time that so many of a hundred do not exceed; of sorted times.
fn quantile(times: &[u64], format_percent: usize) -> Option<u64> {
    let rank = times.len().saturating_mul(format_percent).div_ceil(100);
    times.get(rank.saturating_sub(1)).copied()
}

/// Nanoseconds in the unit that keeps them short.
fn short(nanoseconds: u64) -> String {
    let tenths = |unit: u64| format!("{}.{}", nanoseconds / unit, nanoseconds % unit * 10 / unit);
    match nanoseconds {
        0..1_000_000 => format!("{} µs", tenths(1_000)),
        1_000_000..1_000_000_000 => format!("{} ms", tenths(1_000_000)),
        _ => format!("{} s", tenths(1_000_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_that_were_measured() {
        let times: Vec<u64> = (1..=200).collect();
        assert_eq!(quantile(&times, 50), Some(100));
        assert_eq!(quantile(&times, 99), Some(198));
        assert_eq!((quantile(&[7], 50), quantile(&[7], 99)), (Some(7), Some(7)));
        assert_eq!(quantile(&[], 50), None);
    }

    #[test]
    fn times_are_short() {
        assert_eq!(short(1_540), "1.5 µs");
        assert_eq!(short(999_999), "999.9 µs");
        assert_eq!(short(20_000_000), "20.0 ms");
        assert_eq!(short(3_210_000_000), "3.2 s");
    }
}
