//! The pages experiment: the cost of a frame from the reserve, alone and in a memory cgroup at its limit, beside a frame
//! from the system; and the time that launches of programs spend in getting bounce frames there, with readahead that may be
//! dropped, a smaller window, and reserves.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;
use ferrofs_workers::memory::{AllocPolicy, Budget, PagePool, PagePoolSettings};
use serde::Serialize;

use crate::cgroup::{Charged, Group};
use crate::child::{Role, command, run_in};
use crate::experiment::{Context, Experiment};
use crate::frames::{
    DROPPED, FRAME, FRAMES, FROM_SYSTEM, FramesResult, FramesTask, GETTING, HELD, LIMIT_BYTES,
    LONGEST, REPEATED, RequestArguments,
};
use crate::machine::Requirement;
use crate::plot::Plot;
use crate::procfs::Usage;
use crate::report::Report;
use crate::rounds::{Measured, TimeLimit, find};
use crate::statistics::{Samples, difference_percent};
use crate::table::{Column, Sheet, Table};

/// Pairs of one timed loop.
const PAIRS: u32 = 1_000_000;
const QUICK_PAIRS: u32 = 100_000;
const WARM_UP_PAIRS: u32 = 1000;
const LOOPS: u16 = 10;
const QUICK_ROUNDS: u16 = 5;
/// Frames of the pool that gives one at a time.
const FRAMES_OF_POOL: u32 = 64;
/// The thresholds of launches by variant: the smaller window, best effort, both, and the largest reserve.
const JUDGED: [(&str, &str); 4] = [
    ("16k", "window"),
    ("64k, best effort", "best-effort"),
    ("16k, best effort", "together"),
    ("64k, reserve of 256", "reserve"),
];
/// The mail calls it sufficient for 95 % of scenarios, in frames.
const SUFFICIENT: u32 = 64;

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct PagesArguments {
    /// Bursts of 256 frames for each source; 5 at most with --quick
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: u16,
    /// Folder on a disk for a file of 128 MiB, whose pages fill the group; the system's temporary folder if none is named
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Launches for each kind of readahead; 5 at most with --quick
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    launches: u16,
    #[command(flatten)]
    requests: RequestArguments,
    /// Leave out the part that needs a memory cgroup
    #[arg(long)]
    without_cgroup: bool,
    #[command(flatten)]
    limit: TimeLimit,
}

impl Experiment for PagesArguments {
    fn requirements(&self) -> Vec<Requirement> {
        let needs = [Requirement::Root, Requirement::Cgroup("memory")];
        if self.without_cgroup { Vec::new() } else { needs.into() }
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        context.say(format!("allocating and freeing one frame, {LOOPS} loops"))?;
        let pairs = if context.is_quick { QUICK_PAIRS } else { PAIRS };
        measure_pairs(pairs, &mut context.report)?;
        if self.without_cgroup {
            context.report.leave_out("the memory cgroup at its limit", "--without-cgroup");
            for threshold in JUDGED.iter().map(|(_, name)| *name).chain(["demand", "frame"]) {
                context.report.explain(threshold, "needs root and a memory cgroup; left out");
            }
            return Ok(());
        }
        let [rounds, launches] =
            [self.rounds, self.launches].map(|rounds| context.rounds(rounds, QUICK_ROUNDS));
        context.say(format!(
            "in a memory cgroup at its limit, {rounds} bursts for each source and {launches} launches of each variant"
        ))?;
        let (folder, requests, seconds) = (self.folder.clone(), self.requests, self.limit.seconds);
        let task = FramesTask { folder, rounds, launches, requests, seconds };
        let group = Group::of_memory(LIMIT_BYTES)?;
        let (found, charged): (FramesResult, _) = run_in(&group, command(Role::Frames, &task)?)?;
        add_sources(&mut context.report, &found.sources, charged);
        add_launches(&mut context.report, &found.variants, requests);
        let played = found.variants.first().map_or(0, |variant| variant.samples(GETTING).len());
        if played < usize::from(launches) {
            context.report.remark(format!("{played} of {launches} launches: the time was over"));
        }
        Ok(())
    }
}

/// Nanoseconds for allocating a frame and freeing it.
fn time_pairs(pool: &PagePool, pairs: u32) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..pairs {
        let frame = pool.allocate(AllocPolicy::MustSucceed).context("allocating a frame")?;
        drop(std::hint::black_box(frame));
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(pairs))
}

/// One frame at a time from a reserve that has it, without contention.
fn measure_pairs(pairs: u32, report: &mut Report) -> Result<()> {
    let budget = Budget::new(u64::from(FRAMES_OF_POOL) << 20);
    let settings = PagePoolSettings::new(FRAMES_OF_POOL, FRAMES_OF_POOL);
    let pool = PagePool::new(&budget, settings);
    let pool = pool.context("a page pool")?;
    // The first frame comes from the system and stays; looking takes memory, too.
    time_pairs(&pool, WARM_UP_PAIRS)?;
    Usage::now();
    let before = Usage::now();
    let mut loops = Samples::default();
    for _ in 0..LOOPS {
        loops.push(time_pairs(&pool, pairs)?);
    }
    let cost = Usage::now().since(before);
    let summary = loops.summary();
    let mut table = Table::new(
        "One frame from the reserve and back, uncontended",
        "pairs | ns, median | ns, least | ns, most | page faults | sleeps | from the system",
    );
    table.add([
        (u64::from(pairs) * u64::from(LOOPS)).to_string(),
        format!("{:.1}", summary.median),
        format!("{:.1}", summary.minimum),
        format!("{:.1}", summary.maximum),
        cost.minor_faults.to_string(),
        cost.voluntary_switches.to_string(),
        pool.stats().from_system.saturating_sub(1).to_string(),
    ]);
    report.table(table);
    report.judge("pair", "", summary.median);
    report.series("pair", "uncontended", "ns", &loops);
    Ok(())
}

/// By how many per cent a number of the samples of a candidate differs from that of the first.
fn change(all: &[Measured], name: &str, number: impl Fn(&Measured) -> f64) -> f64 {
    let of = |one: Option<&Measured>| one.map_or(f64::NAN, &number);
    difference_percent(of(all.first()), of(find(all, name)))
}

fn mean(one: &Measured) -> f64 {
    one.samples(GETTING).summary().average
}

fn add_sources(report: &mut Report, sources: &[Measured], charged: Charged) {
    let first = sources.first().map_or("", |first| first.name.as_str());
    let column = |title| Column::new(title, FRAME);
    let columns = vec![
        column("mean").mean(),
        column("diff").mean().difference_to(first),
        column("max").maximum(),
        column("diff").maximum().difference_to(first),
        column("median"),
        column("p99").percentile(990),
    ];
    let title = "Getting a frame at the limit of a memory cgroup (us)";
    let mut sheet = Sheet::new(title, "source", columns).distribution(FRAME);
    sheet.add("at the limit of a memory cgroup", sources);
    report.sheet(sheet);
    let reserve = "reserve of 256";
    let summary = |one: &Measured| one.samples(FRAME).summary();
    report.judge("frame", "mean", change(sources, reserve, |one| summary(one).average));
    report.judge("frame", "max", change(sources, reserve, |one| summary(one).maximum));
    let [usage, limit] = [charged.usage_bytes, charged.limit_bytes].map(|bytes| bytes / 1024);
    report.remark(format!(
        "the group used {usage} of {limit} KiB at the end and reached its limit {} times",
        charged.limit_hits
    ));
}

/// The table, plots, remarks and thresholds of launches.
fn add_launches(report: &mut Report, variants: &[Measured], requests: RequestArguments) {
    let first = variants.first().map_or("", |first| first.name.as_str());
    let getting = |title| Column::new(title, GETTING);
    let columns = vec![
        getting("mean ms").mean(),
        getting("diff").mean().difference_to(first),
        getting("median ms"),
        getting("diff").difference_to(first),
        getting("max ms").maximum(),
        getting("diff").maximum().difference_to(first),
        Column::new("longest frame us", LONGEST).maximum(),
        Column::new("frames", FRAMES).mean(),
        Column::new("from system", FROM_SYSTEM).mean(),
        Column::new("most held", HELD).maximum(),
        Column::new("dropped", DROPPED).mean(),
        Column::new("repeated", REPEATED).mean(),
    ];
    let RequestArguments { extents, readahead, used } = requests;
    let title = "Launches of programs at the limit of a memory cgroup: getting bounce frames";
    let extents = extents.name();
    let title =
        format!("{title} (extents: {extents}; readahead {readahead} %, of that used {used} %)");
    let mut sheet = Sheet::new(title, "variant", columns);
    sheet.add("at the limit of a memory cgroup", variants);
    report.sheet(sheet);
    let title = "Getting bounce frames in a launch, at the limit of a memory cgroup";
    let mut bars = Plot::bars(title, "ms, mean, and least to most").log_y();
    let mut plot = Plot::cdf("The same, launch by launch", "ms of a launch").log_x();
    for variant in variants {
        let millis = variant.samples(GETTING);
        let summary = millis.summary();
        bars.bar(&variant.name, "", [summary.average, summary.minimum, summary.maximum]);
        // Ten lines can be told apart; a reserve with best effort looks as one without.
        if !variant.name.contains("best effort, reserve") {
            plot.samples(&variant.name, &millis);
        }
    }
    report.remark(
        "launches: frames, dropped and repeated are means of a launch; the times include refused attempts and repeated requests",
    );
    report.plot(bars);
    report.plot(plot);
    variants.iter().take(1).for_each(|first| add_demand(report, first));
    for (name, threshold) in JUDGED {
        let mean = change(variants, name, mean);
        if !mean.is_nan() {
            let median = change(variants, name, |one| one.median(GETTING));
            report.remark(format!("{name}: mean {mean:+.2} %, median {median:+.2} %"));
            report.judge(threshold, name, mean);
            report.explain(threshold, format!("by the median {median:+.1} %"));
        }
    }
}

/// The share of the bursts, where nothing limits them, that a number of frames would have covered.
fn add_demand(report: &mut Report, first: &Measured) {
    let held = first.samples(HELD);
    let [some, all] = [SUFFICIENT, 256].map(|frames| {
        let within = held.values().filter(|&value| value <= f64::from(frames)).count();
        within as f64 / held.len() as f64 * 100.0
    });
    report.remark(format!(
        "of the bursts of the first variant {SUFFICIENT} frames cover {some:.1} %, 256 cover {all:.1} %; the most was {:.0}",
        held.summary().maximum
    ));
    let mut plot = Plot::cdf("Bounce frames that are wanted at a time", "frames");
    plot.samples(&first.name, &held);
    report.plot(plot);
    report.judge("demand", "", some);
}

#[cfg(test)]
mod tests {
    use super::{JUDGED, add_launches};
    use crate::frames::{ExtentMix, GETTING, HELD, RequestArguments, Variant};
    use crate::report::Report;
    use crate::rounds::Measured;

    #[test]
    fn every_threshold_belongs_to_a_variant() {
        for (name, _) in JUDGED {
            assert!(Variant::all().any(|variant| variant.name() == name), "{name}");
        }
    }

    #[test]
    fn a_variant_is_compared_with_the_first_and_with_its_threshold() {
        let variant = |name: &str, millis| {
            let held = [10.0, 64.0, 65.0, 9.0].map(|frames| (HELD, frames));
            Measured::new(name, [(GETTING, millis)].into_iter().chain(held).collect())
        };
        let variants = [
            variant("64k", 2.0),
            variant("64k, best effort", 1.0),
            variant("16k, best effort", 1.5),
        ];
        let requests = RequestArguments { extents: ExtentMix::Mail, readahead: 50, used: 50 };
        let mut report = Report::new("pages", &requests).unwrap();
        add_launches(&mut report, &variants, requests);
        report.finish().unwrap();
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "64k, best effort: mean -50.00 %, median -50.00 %",
            "004: readahead that gives way changes the time for frames by -20 % or more: -50.0 % here, met",
            "64 frames cover 75.0 %, 256 cover 100.0 %; the most was 65",
            "004: both together change it by -50 % or more: -25.0 % here, NOT met (by the median -25.0 %)",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
    }
}
