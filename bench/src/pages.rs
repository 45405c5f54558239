//! The pages experiment: the cost of a frame from the reserve, alone and in a memory cgroup at its limit, beside a frame
//! from the system; and the time that launches of programs spend in getting bounce frames there, with readahead that may be
//! dropped, a smaller window, and reserves.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use ferrofs_workers::memory::{AllocPolicy, Budget, PagePool, PagePoolSettings};

use crate::cgroup::Group;
use crate::child::{Role, run_in};
use crate::experiment::{Context, Experiment};
use crate::frames::{FramesResult, FramesTask, GETTING, HELD, LIMIT_BYTES};
use crate::machine::{Requirement, Usage};
use crate::report::Report;
use crate::statistics::{Figure, Measured};

/// Pairs of one timed loop.
const PAIRS: u32 = 1_000_000;
const QUICK_PAIRS: u32 = 100_000;
const WARM_UP_PAIRS: u32 = 1000;
const LOOPS: u16 = 10;
const QUICK_ROUNDS: u16 = 5;
/// Frames of the pool that gives one at a time.
const FRAMES_OF_POOL: u32 = 64;
/// The mail calls it sufficient for 95 % of scenarios, in frames.
const SUFFICIENT: u32 = 64;
const PAIR: Figure = Figure::new("pair", "ns", 1);
const COUNT: Figure = Figure::new("pairs", "", 0);
const FAULTS: Figure = Figure::new("page faults", "", 0);
const SLEEPS: Figure = Figure::new("sleeps", "", 0);
const FROM_SYSTEM: Figure = Figure::new("from the system", "", 0);

#[derive(Debug, Clone, Args)]
pub(crate) struct PagesArguments {
    /// Bursts of 256 frames for each source; 5 at most with --quick
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: u16,
    /// Launches for each kind of readahead; 5 at most with --quick
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    launches: u16,
    /// Leave out the part that needs a memory cgroup
    #[arg(long)]
    without_cgroup: bool,
    /// Start nothing new in the memory cgroup after this many seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: Option<u32>,
}

impl Experiment for PagesArguments {
    fn requirements(&self) -> Vec<Requirement<'_>> {
        let needs = [Requirement::Root, Requirement::Cgroup("memory")];
        if self.without_cgroup { Vec::new() } else { needs.into() }
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        context.say(format!("allocating and freeing one frame, {LOOPS} loops"))?;
        let pairs = if context.is_quick { QUICK_PAIRS } else { PAIRS };
        let reserve = measure_pairs(pairs)?;
        let mut sheet = context.sheet("pair", "");
        sheet.add("", std::slice::from_ref(&reserve));
        context.report.sheet(sheet);
        context.report.judge("pair", "", reserve.median(PAIR));
        if self.without_cgroup {
            context.report.leave_out("the memory cgroup at its limit", "--without-cgroup");
            return Ok(());
        }
        let quick = if context.is_quick { QUICK_ROUNDS } else { u16::MAX };
        let (rounds, launches) = (self.rounds.min(quick), self.launches.min(quick));
        context.say(format!(
            "in a memory cgroup at its limit, {rounds} bursts for each source and {launches} launches of each variant"
        ))?;
        let limit = self.seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let task = FramesTask { rounds, launches, limit };
        let group = Group::of_memory(LIMIT_BYTES)?;
        let (found, charged): (FramesResult, _) = run_in(&group, Role::Frames, &task)?;
        let case = "at the limit of a memory cgroup";
        for (table, all) in [("sources", &found.sources), ("launches", &found.variants)] {
            let mut sheet = context.sheet(table, "");
            sheet.add(case, all);
            context.report.sheet(sheet);
            context.report.judge_all(case, &[table], all);
        }
        let [usage, limit] = [charged.usage_bytes, charged.limit_bytes].map(|bytes| bytes / 1024);
        context.report.remark(format!(
            "the group used {usage} of {limit} KiB at the end and reached its limit {} times",
            charged.limit_hits
        ));
        context.report.remark(
            "launches: frames, dropped and repeated are means of a launch; the times include refused attempts and repeated requests",
        );
        if let Some(first) = found.variants.first() {
            add_demand(&mut context.report, first);
            let played = first.samples(GETTING).0.len();
            if played < usize::from(launches) {
                let text = format!("{played} of {launches} launches: the time was over");
                context.report.remark(text);
            }
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
fn measure_pairs(pairs: u32) -> Result<Measured> {
    let budget = Budget::new(u64::from(FRAMES_OF_POOL) << 20);
    let settings = PagePoolSettings::new(FRAMES_OF_POOL, FRAMES_OF_POOL);
    let pool = PagePool::new(&budget, settings).context("a page pool")?;
    // The first frame comes from the system and stays; looking takes memory, too.
    time_pairs(&pool, WARM_UP_PAIRS)?;
    Usage::now();
    let before = Usage::now();
    let loops = (0..LOOPS).map(|_| time_pairs(&pool, pairs)).collect::<Result<Vec<f64>>>()?;
    let cost = Usage::now().since(before);
    let mut figures = vec![
        (COUNT, f64::from(pairs) * f64::from(LOOPS)),
        (FAULTS, cost.minor_faults as f64),
        (SLEEPS, cost.voluntary_switches as f64),
        (FROM_SYSTEM, pool.stats().from_system.saturating_sub(1) as f64),
    ];
    figures.extend(loops.into_iter().map(|nanoseconds| (PAIR, nanoseconds)));
    Ok(Measured::new("uncontended", figures))
}

/// The share of the bursts, where nothing limits them, that a number of frames would have covered.
fn add_demand(report: &mut Report, first: &Measured) {
    let held = first.samples(HELD);
    let [some, all] = [SUFFICIENT, 256].map(|frames| {
        let within = held.0.iter().filter(|value| **value <= f64::from(frames)).count();
        within as f64 / held.0.len() as f64 * 100.0
    });
    report.remark(format!(
        "of the bursts of the first variant {SUFFICIENT} frames cover {some:.1} %, 256 cover {all:.1} %; the most was {:.0}",
        held.percentile(1000)
    ));
    report.judge("demand", "", some);
}

#[cfg(test)]
mod tests {
    use super::add_demand;
    use crate::frames::{GETTING, HELD};
    use crate::report::Report;
    use crate::statistics::Measured;

    #[test]
    fn a_variant_is_compared_with_the_first_and_with_its_threshold() {
        let variant = |name: &str, millis| {
            let held = [10.0, 64.0, 65.0, 9.0].map(|frames| (HELD, frames));
            Measured::new(name, [(GETTING, millis)].into_iter().chain(held).collect())
        };
        let names = [("64k", 2.0), ("64k, best effort", 1.0), ("16k, best effort", 1.5)];
        let variants = names.map(|(name, millis)| variant(name, millis));
        let mut report = Report::new("pages").unwrap();
        report.judge_all("", &["launches"], &variants);
        add_demand(&mut report, &variants[0]);
        report.finish().unwrap();
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "004: readahead that gives way changes the time for frames by -20 % or more: -50.0 % here, met",
            "64 frames cover 75.0 %, 256 cover 100.0 %; the most was 65",
            "004: both together change it by -50 % or more: -25.0 % here, NOT met",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
    }
}
