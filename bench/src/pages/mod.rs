//! The pages experiment: what a frame costs from the reserve, alone and in a memory cgroup at its
//! limit, beside what it costs from the system; and what launches of programs spend in getting bounce
//! frames there, with readahead that gives way, a smaller window, and reserves.

pub(crate) mod group;
mod launch;
mod launches_table;
pub(crate) mod limit;
mod requests;
mod taking;

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result};
use ferrofs_workers::memory::{AllocPolicy, Budget, PagePool, PagePoolSettings};

use crate::arguments::PagesArguments;
use crate::plot::Plot;
use crate::report::{Report, Series};
use crate::statistics::{Samples, difference_percent};
use crate::table::Table;
use crate::usage::Usage;
pub(crate) use group::has_memory_cgroup;
use limit::{Counts, Outcome};
pub(crate) use limit::{LimitArguments, measure};
pub(crate) use requests::Mix;

/// Pairs of one timed loop.
const PAIRS: u32 = 1_000_000;
const QUICK_PAIRS: u32 = 100_000;
/// Pairs before the first that counts.
const WARM_UP_PAIRS: u32 = 1000;
/// Timed loops.
const LOOPS: u16 = 10;
/// Bursts of a quick run.
const QUICK_ROUNDS: u16 = 5;
/// Frames of the pool that hands out one at a time.
const FRAMES: u32 = 64;
/// The seeds' claims that are judged by launches, as `launches_table` does.
const CLAIMED: [(&str, &str); 6] = [
    ("001", "reserve"),
    ("001", "demand"),
    ("001", "window"),
    ("004", "window"),
    ("004", "best-effort"),
    ("004", "together"),
];

/// Runs the experiment.
///
/// # Errors
/// When there is no memory cgroup, or a frame cannot be had.
pub(crate) fn run(
    arguments: &PagesArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let mut report = Report::new("pages", arguments)?;
    writeln!(out, "taking and giving back one frame, {LOOPS} loops")?;
    measure_pairs(if is_quick { QUICK_PAIRS } else { PAIRS }, &mut report)?;
    if arguments.without_cgroup {
        report.left_out("the memory cgroup at its limit", "left out at the caller's wish");
        for (seed, mark) in CLAIMED {
            report.claim(seed, mark, &[], "needs root and a memory cgroup; left out")?;
        }
        return Ok(report);
    }
    let most = if is_quick { QUICK_ROUNDS } else { u16::MAX };
    let counts =
        Counts { rounds: arguments.rounds.min(most), launches: arguments.launches.min(most) };
    let folder = arguments.folder.clone().unwrap_or_else(std::env::temp_dir);
    writeln!(
        out,
        "in a memory cgroup at its limit, {} bursts for each source and {} launches in each way",
        counts.rounds, counts.launches
    )?;
    let outcome = limit::run(&folder, counts, arguments.requests, arguments.limit)?;
    add_outcome(&mut report, &outcome)?;
    let ways = &outcome.measured.ways;
    launches_table::add(&mut report, ways, arguments.requests)?;
    let (played, asked) = (ways.first().map_or(0, |way| way.launches.len()), counts.launches);
    if played < usize::from(asked) {
        report.add_remark(format!("{played} of {asked} launches in each way: the time was over"));
    }
    Ok(report)
}

/// Nanoseconds for taking a frame and giving it back.
fn time_pairs(pool: &PagePool, pairs: u32) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..pairs {
        let frame = pool.allocate(AllocPolicy::MustSucceed).context("taking a frame")?;
        drop(std::hint::black_box(frame));
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(pairs))
}

/// One frame at a time from a reserve that has it: nobody else is there.
fn measure_pairs(pairs: u32, report: &mut Report) -> Result<()> {
    let budget = Budget::new(u64::from(FRAMES) << 20);
    let pool =
        PagePool::new(&budget, PagePoolSettings::new(FRAMES, FRAMES)).context("a page pool")?;
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
        [
            "pairs",
            "ns, median",
            "ns, least",
            "ns, most",
            "page faults",
            "sleeps",
            "from the system",
        ],
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
    report.add_table(table);
    let pair = summary.median;
    report.add_remark(format!("a pair: {pair:.1} ns {}", report.mark("pair")?.verdict(&[pair])));
    report.add_series(Series {
        row: "pair".to_owned(),
        case: "uncontended".to_owned(),
        unit: "ns",
        samples: loops,
    });
    Ok(())
}

fn add_outcome(report: &mut Report, outcome: &Outcome) -> Result<()> {
    let mut plot = Plot::cdf("Getting a frame at the limit of a memory cgroup", "us").log_x();
    let mut table = Table::new(
        "Getting a frame at the limit of a memory cgroup (us)",
        ["source", "frames", "mean", "diff", "max", "diff", "median", "p99"],
    );
    let baseline = outcome.measured.taken.first().map(|taken| taken.samples.summary());
    let difference = |before: Option<f64>, after: f64| {
        before.map_or(f64::NAN, |before| difference_percent(before, after))
    };
    for taken in &outcome.measured.taken {
        let summary = taken.samples.summary();
        let mean = difference(baseline.map(|b| b.average), summary.average);
        let most = difference(baseline.map(|b| b.maximum), summary.maximum);
        let micros = |nanos: f64| format!("{:.3}", nanos / 1e3);
        table.add([
            taken.source.clone(),
            summary.count.to_string(),
            micros(summary.average),
            format!("{mean:+.2} %"),
            micros(summary.maximum),
            format!("{most:+.2} %"),
            micros(summary.median),
            micros(taken.samples.percentile(990)),
        ]);
        let in_micros: Samples = taken.samples.values().map(|nanos| nanos / 1e3).collect();
        plot.add_samples(taken.source.clone(), &in_micros);
        report.add_series(Series {
            row: taken.source.clone(),
            case: "at the limit of a memory cgroup".to_owned(),
            unit: "ns",
            samples: taken.samples.clone(),
        });
        if taken.source == "reserve of 256" {
            report.add_remark(format!(
                "a reserve of 256 against page faults: mean {mean:+.2} %, max {most:+.2} % {}",
                report.mark("frame")?.verdict(&[mean, most])
            ));
        }
    }
    report.add_table(table);
    report.add_remark(format!(
        "the group used {} of {} KiB at the end and met its limit {} times",
        outcome.usage_bytes / 1024,
        outcome.limit_bytes / 1024,
        outcome.limit_hits
    ));
    report.add_plot(plot);
    Ok(())
}
