//! The start of a mount that faults its reserve in before it is ready, as `ferrofs mount --memory 8g --prefault` does:
//! how much of it that takes by one thread, and by as many as the system runs at once.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ferrofs_image::{MemoryPool, SyncDecompress};

use super::{Plan, SPARE_KIB, available_kib, warm_up};
use crate::deadline::Deadline;
use crate::launches::Directory;
use crate::launches::daemon::{Daemon, Threads, Wish, listeners};
use crate::need::{Need, missing};
use crate::plot::Plot;
use crate::report::{Report, Series};
use crate::statistics::{Samples, difference_percent};
use crate::steal::Undisturbed;
use crate::table::Table;

/// Memory of the mount; what it keeps for decoding is an eighth of it, as by the command.
const MEMORY_BYTES: u64 = 8 << 30;
const RESERVE_SHARE: u64 = 8;
const PAGE_BYTES: u64 = 4096;
/// What it is called in the report.
const WHAT: &str = "the start of a mount";

/// Milliseconds of starts whose memory was faulted in by so many threads, or not at all.
struct Line {
    threads: Option<usize>,
    ready: Samples,
    faulting: Samples,
}

impl Line {
    fn name(&self) -> String {
        match self.threads {
            None => "nothing faulted in".to_owned(),
            Some(1) => "by 1 thread".to_owned(),
            Some(count) => format!("by {count} threads"),
        }
    }

    /// Milliseconds until a mount is ready, and how many of them went into faulting memory in.
    fn start(&self, image: &Path, directory: &Path) -> Result<(f64, f64)> {
        warm_up(usize::try_from(MEMORY_BYTES / RESERVE_SHARE)?)?;
        let begin = Instant::now();
        let pages = u32::try_from(MEMORY_BYTES / RESERVE_SHARE / PAGE_BYTES)?;
        let memory = MemoryPool::with_reserve(MEMORY_BYTES, pages, listeners())
            .context("memory of a mount")?;
        let before = Instant::now();
        if let Some(threads) = self.threads {
            let got = memory.prefault(threads).context("faulting memory in")?;
            ensure!(got > 0, "no memory was faulted in");
        }
        let faulting = before.elapsed();
        let wish =
            Wish { threads: Threads::Raised, mode: SyncDecompress::Auto, readahead_kib: None };
        let daemon = Daemon::start(image, directory, wish, &memory)?;
        let ready = begin.elapsed();
        daemon.end()?;
        Ok((ready.as_secs_f64() * 1e3, faulting.as_secs_f64() * 1e3))
    }
}

/// Runs them where there is an image, and adds what was found.
///
/// # Errors
/// When the image cannot be mounted.
pub(super) fn add(
    plan: &Plan,
    image: Option<&Path>,
    deadline: Deadline,
    report: &mut Report,
) -> Result<()> {
    let needed = (MEMORY_BYTES / RESERVE_SHARE / 1024).saturating_add(SPARE_KIB);
    let missing = missing(&[Need::Root, Need::Fuse]);
    let Some(image) = image else {
        report.left_out(WHAT, "no image was named: --image");
        return Ok(());
    };
    if let Some(why) = missing {
        report.left_out(WHAT, why);
        return Ok(());
    }
    if available_kib() < needed {
        report.left_out(WHAT, format!("it takes {needed} KiB of memory"));
        return Ok(());
    }
    let directory = Directory::make()?;
    let line = |threads| Line { threads, ready: Samples::default(), faulting: Samples::default() };
    let mut lines: Vec<Line> = [None, Some(1), Some(plan.threads_max)].map(line).into();
    lines.dedup_by_key(|line| line.threads);
    let mut undisturbed = Undisturbed::default();
    // One round that warms up and does not count.
    for line in &lines {
        line.start(image, &directory.0)?;
    }
    let turns = (0..plan.repeat).flat_map(|_| 0..lines.len());
    let found = undisturbed.in_turn(turns, deadline, |turn| {
        lines.get(turn).context("a turn of no line")?.start(image, &directory.0)
    })?;
    for (turn, (ready, faulting)) in found {
        if let Some(line) = lines.get_mut(turn) {
            line.ready.push(ready);
            line.faulting.push(faulting);
        }
    }
    tell(&lines, report)?;
    report.add_remark(format!("starts of a mount: {undisturbed}"));
    Ok(())
}

fn tell(lines: &[Line], report: &mut Report) -> Result<()> {
    let gib = MEMORY_BYTES >> 30;
    let title = format!("A mount with {gib} GiB of memory: until it is ready, median");
    let mut plot = Plot::bars(title.clone(), "ms, median, and least to most");
    let mut table =
        Table::new(title, ["an eighth of it is faulted in", "ready, ms", "faulting, ms", "diff"]);
    let alone = lines.iter().find(|line| line.threads == Some(1));
    let alone = alone.map_or(f64::NAN, |line| line.ready.median());
    for line in lines {
        let (ready, faulting) = (line.ready.summary(), line.faulting.median());
        table.add([
            line.name(),
            format!("{:.1}", ready.median),
            format!("{faulting:.1}"),
            format!("{:+.1} %", difference_percent(alone, ready.median)),
        ]);
        plot.add_bar("ready", line.name(), ready.median, ready.minimum, ready.maximum);
        for (case, samples) in [("ready", &line.ready), ("faulting in", &line.faulting)] {
            let (row, samples) = (line.name(), samples.clone());
            report.add_series(Series { row, case: case.to_owned(), unit: "ms", samples });
        }
    }
    report.add_table(table);
    report.add_plot(plot);
    let most = lines.iter().max_by_key(|line| line.threads);
    let most = most.map_or(f64::NAN, |line| line.ready.median());
    report.add_remark(format!(
        "more than one thread change the start of a mount by {:+.1} %",
        difference_percent(alone, most)
    ));
    Ok(())
}
