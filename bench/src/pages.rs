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
    FramesResult, FramesTask, LIMIT_BYTES, Launch, RequestArguments, SourceSamples, VariantLaunches,
};
use crate::machine::Requirement;
use crate::plot::Plot;
use crate::procfs::Usage;
use crate::report::{Report, Table};
use crate::rounds::TimeLimit;
use crate::statistics::{Samples, Summary, difference_percent};

/// Pairs of one timed loop.
const PAIRS: u32 = 1_000_000;
const QUICK_PAIRS: u32 = 100_000;
const WARM_UP_PAIRS: u32 = 1000;
const LOOPS: u16 = 10;
const QUICK_ROUNDS: u16 = 5;
/// Frames of the pool that gives one at a time.
const FRAMES: u32 = 64;
/// The thresholds of launches by variant, with the mails that claim them: the smaller window, best effort, both, and the
/// largest reserve.
const JUDGED: [(&str, &str, &[&str]); 4] = [
    ("16k", "window", &["001", "004"]),
    ("64k, best effort", "best-effort", &["004"]),
    ("16k, best effort", "together", &["004"]),
    ("64k, reserve of 256", "reserve", &["001"]),
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
            let why = "needs root and a memory cgroup; left out";
            context.report.claim("001", "demand", &[], why)?;
            for (_, threshold, origins) in JUDGED {
                for origin in origins {
                    context.report.claim(origin, threshold, &[], why)?;
                }
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
        add_sources(&mut context.report, &found.sources, charged)?;
        add_launches(&mut context.report, &found.variants, requests)?;
        let played = found.variants.first().map_or(0, |variant| variant.launches.len());
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
    let budget = Budget::new(u64::from(FRAMES) << 20);
    let pool = PagePool::new(&budget, PagePoolSettings::new(FRAMES, FRAMES));
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
    report.judged_remark(
        &format!("a pair: {:.1} ns", summary.median),
        "pair",
        &[summary.median],
    )?;
    report.series("pair", "uncontended", "ns", &loops);
    Ok(())
}

fn add_sources(report: &mut Report, sources: &[SourceSamples], charged: Charged) -> Result<()> {
    let title = "Getting a frame at the limit of a memory cgroup";
    let mut plot = Plot::cdf(title, "us").log_x();
    let header = "source | frames | mean | diff | max | diff | median | p99";
    let mut table = Table::new(format!("{title} (us)"), header);
    let Some(baseline) = sources.first().map(|first| first.samples.scaled(1e-3).summary()) else {
        return Ok(());
    };
    for SourceSamples { source, samples } in sources {
        let micros = samples.scaled(1e-3);
        let summary = micros.summary();
        let mean = difference_percent(baseline.average, summary.average);
        let most = difference_percent(baseline.maximum, summary.maximum);
        table.add([
            source.clone(),
            summary.count.to_string(),
            format!("{:.3}", summary.average),
            format!("{mean:+.2} %"),
            format!("{:.3}", summary.maximum),
            format!("{most:+.2} %"),
            format!("{:.3}", summary.median),
            format!("{:.3}", micros.percentile(990)),
        ]);
        plot.samples(source, &micros);
        report.series(source, "at the limit of a memory cgroup", "ns", samples);
        if source == "reserve of 256" {
            let text = "a reserve of 256 against page faults";
            let text = format!("{text}: mean {mean:+.2} %, max {most:+.2} %");
            report.judged_remark(&text, "frame", &[mean, most])?;
        }
    }
    report.table(table);
    let [usage, limit] = [charged.usage_bytes, charged.limit_bytes].map(|bytes| bytes / 1024);
    report.remark(format!(
        "the group used {usage} of {limit} KiB at the end and reached its limit {} times",
        charged.limit_hits
    ));
    report.plot(plot);
    Ok(())
}

fn samples_of(variant: &VariantLaunches, value: impl Fn(&Launch) -> f64) -> Samples {
    variant.launches.iter().map(value).collect()
}

fn millis_of(variant: &VariantLaunches) -> Samples {
    samples_of(variant, |launch| launch.getting_ns / 1e6)
}

/// The table, plots, remarks and claims of launches.
fn add_launches(
    report: &mut Report,
    variants: &[VariantLaunches],
    requests: RequestArguments,
) -> Result<()> {
    let Some(first) = variants.first() else { return Ok(()) };
    let baseline = millis_of(first).summary();
    let RequestArguments { extents, readahead, used } = requests;
    let title = "Launches of programs at the limit of a memory cgroup: getting bounce frames";
    let title = format!(
        "{title} (extents: {}; readahead {readahead} %, of that used {used} %)",
        extents.name()
    );
    let mut table = Table::new(
        title,
        "variant | mean ms | diff | median ms | diff | max ms | diff | longest frame us | frames | from system | most held | dropped | repeated",
    );
    let title = "Getting bounce frames in a launch, at the limit of a memory cgroup";
    let mut bars = Plot::bars(title, "ms, mean, and least to most").log_y();
    let mut plot = Plot::cdf("The same, launch by launch", "ms of a launch").log_x();
    for variant in variants {
        let (name, millis) = (&variant.variant, millis_of(variant));
        table.add(row(variant, &baseline));
        let case = "getting frames in a launch at the limit";
        report.series(name, case, "ns", &samples_of(variant, |launch| launch.getting_ns));
        let summary = millis.summary();
        bars.bar(name, "", [summary.average, summary.minimum, summary.maximum]);
        // Ten lines can be told apart; a reserve with best effort looks as one without.
        if !name.contains("best effort, reserve") {
            plot.samples(name, &millis);
        }
    }
    report.table(table);
    report.remark(
        "launches: frames, dropped and repeated are means of a launch; the times include refused attempts and repeated requests",
    );
    report.plot(bars);
    report.plot(plot);
    add_demand(report, first)?;
    for (name, threshold, origins) in JUDGED {
        let Some(variant) = variants.iter().find(|variant| variant.variant == name) else {
            continue;
        };
        let getting = millis_of(variant).summary();
        let mean = difference_percent(baseline.average, getting.average);
        let median = difference_percent(baseline.median, getting.median);
        let text = format!("{name}: mean {mean:+.2} %, median {median:+.2} %");
        report.judged_remark(&text, threshold, &[mean, median])?;
        for origin in origins {
            let why = format!("by the median {median:+.1} %");
            report.claim(origin, threshold, &[mean], &why)?;
        }
    }
    Ok(())
}

/// The share of the bursts, where nothing limits them, that a number of frames would have covered.
fn add_demand(report: &mut Report, first: &VariantLaunches) -> Result<()> {
    let held = first.launches.iter().flat_map(|launch| &launch.held);
    let held: Samples = held.map(|&frames| f64::from(frames)).collect();
    let [some, all] = [SUFFICIENT, 256].map(|frames| {
        let within = held.values().filter(|&value| value <= f64::from(frames)).count();
        within as f64 / held.len() as f64 * 100.0
    });
    report.remark(format!(
        "of the bursts of the first variant {SUFFICIENT} frames cover {some:.1} %, 256 cover {all:.1} %; the most was {:.0}",
        held.summary().maximum
    ));
    let mut plot = Plot::cdf("Bounce frames that are wanted at a time", "frames");
    plot.samples(&first.variant, &held);
    report.plot(plot);
    report.claim("001", "demand", &[some], "nothing was launched")
}

fn row(variant: &VariantLaunches, baseline: &Summary) -> [String; 13] {
    let getting = millis_of(variant).summary();
    let diff = |before, after| format!("{:+.2} %", difference_percent(before, after));
    let summary = |value: fn(&Launch) -> f64| samples_of(variant, value).summary();
    let mean = |value| format!("{:.1}", summary(value).average);
    let most_held = summary(|launch| launch.held.iter().copied().max().unwrap_or(0).into());
    [
        variant.variant.clone(),
        format!("{:.3}", getting.average),
        diff(baseline.average, getting.average),
        format!("{:.3}", getting.median),
        diff(baseline.median, getting.median),
        format!("{:.3}", getting.maximum),
        diff(baseline.maximum, getting.maximum),
        format!("{:.1}", summary(|launch| launch.longest_ns).maximum / 1e3),
        mean(|launch| launch.frames.into()),
        format!("{:.1}", variant.from_system as f64 / variant.launches.len() as f64),
        format!("{:.0}", most_held.maximum),
        mean(|launch| launch.dropped.into()),
        mean(|launch| launch.repeated.into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::{JUDGED, add_launches};
    use crate::frames::{ExtentMix, Launch, RequestArguments, Variant, VariantLaunches};
    use crate::report::Report;

    #[test]
    fn every_threshold_belongs_to_a_variant() {
        for (name, _, _) in JUDGED {
            assert!(Variant::all().any(|variant| variant.name() == name), "{name}");
        }
    }

    #[test]
    fn a_variant_is_compared_with_the_first_and_with_its_threshold() {
        let variant = |name: &str, getting_ns| VariantLaunches {
            variant: name.to_owned(),
            launches: vec![Launch { getting_ns, held: vec![10, 64, 65, 9], ..Launch::default() }],
            from_system: 3,
        };
        let variants = [
            variant("64k", 2e6),
            variant("64k, best effort", 1e6),
            variant("16k, best effort", 1.5e6),
        ];
        let requests = RequestArguments { extents: ExtentMix::Mail, readahead: 50, used: 50 };
        let mut report = Report::new("pages", &requests).unwrap();
        add_launches(&mut report, &variants, requests).unwrap();
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "64k, best effort: mean -50.00 %, median -50.00 % (threshold -20 % for both: met)",
            "16k, best effort: mean -25.00 %, median -25.00 % (threshold -50 % for both: NOT met)",
            "64 frames cover 75.0 %, 256 cover 100.0 %; the most was 65",
            "004: both together change it by -50 % or more: -25.0 % here, NOT met (by the median -25.0 %)",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
    }
}
