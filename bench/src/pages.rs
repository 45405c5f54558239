//! The pages experiment: the cost of a frame from the reserve, alone and in a memory cgroup at its limit, beside a frame
//! from the system; and the time that launches of programs spend in getting bounce frames there, with readahead that may be
//! dropped, a smaller window, and reserves. Owns the assumptions about launches, as numbers.

use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;
use fastrand::Rng;
use ferrofs_workers::ErrorKind;
use ferrofs_workers::memory::{
    AllocPolicy, Budget, FRAME_BYTES, Frame, Mapping, PagePool, PagePoolSettings, PageSize,
    RequestFrameList,
};

use crate::cgroup::FullGroup;
use crate::experiment::{Candidate, Context, Experiment, RoundOptions, Schedule, up_to};
use crate::machine::{Requirement, Usage};
use crate::report::Report;
use crate::statistics::{Figures, Measured};

/// Pairs of one timed loop.
const PAIRS: u32 = 1_000_000;
const QUICK_PAIRS: u32 = 100_000;
const WARM_UP_PAIRS: u32 = 1000;
const LOOPS: u16 = 10;
/// Frames of the pool that gives one at a time.
const FRAMES_OF_POOL: u32 = 64;
/// The mail calls it sufficient for 95 % of scenarios, in frames.
const SUFFICIENT: u32 = 64;

/// Of the thresholds of what is measured in the group, where that is left out.
const WITHOUT_CGROUP: &str = "--without-cgroup leaves out the memory cgroup, which only root can make, in a hierarchy with \
    the memory controller";
/// Of all that is measured in the group.
const CASE: &str = "at the limit of a memory cgroup";
/// What the group may use.
const LIMIT_BYTES: u64 = 64 << 20;
/// Of that, dirty anonymous memory, which cannot be taken away without swap.
const ANONYMOUS_BYTES: usize = 24 << 20;
/// Written after every burst of a launch: 16 KiB for each request go to the page cache.
const LAUNCH_BYTES: u64 = 256 << 10;
/// Frames of a burst: the largest reserve of the mail's table.
const BURST_FRAMES: u32 = 256;
const RESERVES: [u32; 3] = [0, 64, 256];
/// More than a burst and what it repeats can hold.
const POOL_FRAMES: u32 = 1024;
/// The group is what limits, not the budget of a pool.
const BUDGET_BYTES: u64 = 1 << 30;
/// Requests of one launch.
const REQUESTS: usize = 512;
/// Requests in flight, whose frames are held together. With the extents of the mail 64 frames are then enough for about 95
/// of 100 such bursts, and 256 for all, which is how the mail sized its reserve.
const IN_FLIGHT: usize = 16;
/// Requests of a hundred that are readahead, and readahead of a hundred that is used later.
const READAHEAD_PERCENT: u32 = 50;
const USED_PERCENT: u32 = 50;
/// Extents as (decoded pages, how many of ten thousand): "97 % of the compressed pages expand to less than 4 pages"; how long
/// the others are was chosen so that a window of 16 KiB needs 0.61 of the frames of one of 64 KiB. The mail measured 0.62 of
/// the time.
const EXTENTS: [(u32, u32); 7] =
    [(1, 800), (2, 6350), (3, 2550), (8, 100), (16, 120), (24, 50), (32, 30)];

/// Of one launch: getting frames, refused attempts and repeated requests included.
const GETTING: &str = "getting frames";
/// Frames that were held together, in each burst.
const HELD: &str = "held";

#[derive(Debug, Clone, Args)]
pub(crate) struct PagesArguments {
    /// How many bursts of 256 frames each source gets, and how long the memory cgroup has
    #[command(flatten)]
    rounds: RoundOptions,
    /// Number of simulated program launches for each way of getting pages; with --quick, at most
    /// the number of rounds
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = up_to(10_000))]
    launches: u16,
    /// Leave out the part that needs a memory cgroup
    #[arg(long)]
    without_cgroup: bool,
}

impl Experiment for PagesArguments {
    fn requirements(&self) -> Vec<Requirement> {
        let needs = [Requirement::Root, Requirement::Cgroup("memory".to_owned())];
        if self.without_cgroup { Vec::new() } else { needs.into() }
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        context.say(format!("allocating and freeing one frame, {LOOPS} loops"))?;
        let pairs = if context.is_quick { QUICK_PAIRS } else { PAIRS };
        let reserve = measure_pairs(pairs)?;
        context.report.add("pair", "", "", std::slice::from_ref(&reserve))?;
        context.report.evaluate("pair", "", reserve.median("pair"));
        if self.without_cgroup {
            context.report.leave_out("the memory cgroup at its limit", "--without-cgroup");
            for threshold in
                context.report.case.thresholds.clone().keys().filter(|name| *name != "pair")
            {
                context.report.explain(threshold, WITHOUT_CGROUP);
            }
            return Ok(());
        }
        // A third of the time is for bursts.
        context.plan(self.rounds, 3);
        let schedule = context.schedule;
        let Schedule { rounds, least_rounds, .. } = schedule;
        let launches = self.launches.min(if context.is_quick { rounds } else { u16::MAX });
        context.say(format!(
            "in a memory cgroup, {rounds} bursts for each source and {launches} launches of each variant"
        ))?;
        let group = FullGroup::enter(LIMIT_BYTES, ANONYMOUS_BYTES)?;
        group.fill()?;
        let sources = measure_sources(&group, context)?;
        let may_play = |number| number < least_rounds || !schedule.left().is_zero();
        let variants = play_all(&group, (0..launches).take_while(|number| may_play(*number)))?;
        // The pools are gone; the group must be at its limit when it is looked at.
        group.refill()?;
        let [usage, limit_hits] = group.end()?;
        for (table, all) in [("sources", &sources), ("launches", &variants)] {
            context.report.add(table, "", CASE, all)?;
            context.report.evaluate_all(CASE, &[table], all);
        }
        let [usage, limit] = [usage, LIMIT_BYTES].map(|bytes| bytes / 1024);
        context.report.remark(format!(
            "the group used {usage} of {limit} KiB at the end and reached its limit {limit_hits} times"
        ));
        context.report.remark(
            "launches: frames, dropped and repeated are means of a launch; the times include refused attempts and repeated requests",
        );
        if let Some(first) = variants.first() {
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
        ("pairs", f64::from(pairs) * f64::from(LOOPS)),
        ("page faults", cost.minor_faults as f64),
        ("sleeps", cost.voluntary_switches as f64),
        ("pairs from the system", pool.stats().from_system.saturating_sub(1) as f64),
    ];
    figures.extend(loops.into_iter().map(|nanoseconds| ("pair", nanoseconds)));
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
    report.evaluate("demand", "", some);
}

#[derive(Debug, Default)]
struct Launch {
    /// Of all frames, refused attempts and repeated requests included, and of one frame.
    getting_ns: f64,
    longest_ns: f64,
    frames: u32,
    /// Readahead that was dropped, and how much of it was needed and repeated.
    dropped: u32,
    repeated: u32,
    /// Frames that were held together, in each burst.
    held: Vec<u32>,
}

/// Bursts from each source, in turn.
fn measure_sources(group: &FullGroup, context: &mut Context<'_>) -> Result<Vec<Measured>> {
    let pools = RESERVES.map(|reserved| Ok(Some(filled_pool(BURST_FRAMES, reserved)?)));
    let pools = [Ok(None)].into_iter().chain(pools).collect::<Result<Vec<_>>>()?;
    let names = ["system (page faults)", "pool without reserve", "reserve of 64", "reserve of 256"];
    let candidates = names.iter().zip(&pools).map(|(name, pool)| {
        Candidate::ours(*name, || {
            group.refill()?;
            take_burst(pool.as_ref(), BURST_FRAMES)
        })
    });
    context.measure(CASE, candidates.collect())
}

fn play_all(group: &FullGroup, launches: impl Iterator<Item = u16>) -> Result<Vec<Measured>> {
    let players = Player::all()?;
    let new = |player: &Player| Measured::new(&player.name, Figures::new());
    let mut variants: Vec<Measured> = players.iter().map(new).collect();
    for number in launches {
        let requests = requests_of(number);
        // In a fixed order every variant would find the group as the same other variant left it.
        let mut order: Vec<usize> = (0..players.len()).collect();
        Rng::with_seed(number.into()).shuffle(&mut order);
        for variant in order {
            group.refill()?;
            let launch = players[variant].play(&requests, &|| group.write(LAUNCH_BYTES))?;
            variants[variant].add(launch);
        }
    }
    Ok(variants)
}

/// Gets frames, from a pool or by a page fault each on fresh memory, as any program does; writes to each, and returns all.
fn take_burst(pool: Option<&PagePool>, frames: u32) -> Result<Figures> {
    let count = usize::try_from(frames)?;
    let length = if pool.is_some() { 0 } else { count * FRAME_BYTES };
    let mut mapping =
        Mapping::anonymous(length.max(FRAME_BYTES), PageSize::Small).context("mapping memory")?;
    let mut fresh = mapping.bytes_mut().chunks_mut(FRAME_BYTES);
    let (mut figures, mut held) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let mut before = Instant::now();
    for _ in 0..frames {
        if let Some(pool) = pool {
            let mut frame =
                pool.allocate(AllocPolicy::MustSucceed).context("allocating a frame")?;
            write_first(&mut frame);
            held.push(frame);
        } else if let Some(frame) = fresh.next() {
            write_first(frame);
        }
        let now = Instant::now();
        figures.push(("frame", (now - before).as_secs_f64() * 1e6));
        before = now;
    }
    Ok(figures)
}

/// A pool that has had as many frames as it reserves once, so that its reserve is as full as it gets.
fn filled_pool(frames: u32, reserved: u32) -> Result<PagePool> {
    let settings = PagePoolSettings::new(frames, reserved);
    let pool = PagePool::new(&Budget::new(BUDGET_BYTES), settings).context("a page pool")?;
    let fill = (0..reserved.max(1)).map(|_| pool.allocate(AllocPolicy::MustSucceed));
    drop(fill.collect::<Result<Vec<Frame>, _>>().context("filling a reserve")?);
    Ok(pool)
}

fn write_first(frame: &mut [u8]) {
    if let Some(first) = frame.first_mut() {
        *first = 1;
        std::hint::black_box(first);
    }
}

/// Frames that an extent needs at most: the distance that a stream may refer back, in pages, and one. `max_distance` 65535
/// and 16383.
const WINDOWS: [(&str, u32); 2] = [("64k", 17), ("16k", 5)];

/// A way to play launches.
#[derive(Debug)]
struct Player {
    name: String,
    window: u32,
    /// Readahead for which no frame is at hand is dropped, and repeated if its page is needed. Else it gets a frame from the
    /// system, as everybody does.
    is_best_effort: bool,
    pool: PagePool,
}

impl Player {
    /// The first is the baseline.
    fn all() -> Result<Vec<Self>> {
        let of = |reserved| WINDOWS.into_iter().map(move |window| (reserved, window));
        let of = RESERVES.into_iter().flat_map(of);
        of.flat_map(|(reserved, window)| {
            [false, true].map(|is_best_effort| Self::new(window, is_best_effort, reserved))
        })
        .collect()
    }

    fn new((name, window): (&str, u32), is_best_effort: bool, reserved: u32) -> Result<Self> {
        let effort = if is_best_effort { ", best effort" } else { "" };
        let name = match reserved {
            0 => format!("{name}{effort}"),
            frames => format!("{name}{effort}, reserve of {frames}"),
        };
        Ok(Self { name, window, is_best_effort, pool: filled_pool(POOL_FRAMES, reserved)? })
    }

    /// Plays one launch; `fill` is called between bursts, untimed, and takes the memory that they left.
    fn play(&self, requests: &[PageRequest], fill: &dyn Fn() -> Result<()>) -> Result<Figures> {
        let before = self.pool.stats().from_system;
        let (mut launch, mut needed) = (Launch::default(), Vec::new());
        for burst in requests.chunks(IN_FLIGHT) {
            needed = self.play_burst(burst, &needed, &mut launch)?;
            fill()?;
        }
        self.play_burst(&[], &needed, &mut launch)?;
        let mut figures = vec![
            (GETTING, launch.getting_ns / 1e6),
            ("longest frame", launch.longest_ns / 1e3),
            ("from the system", (self.pool.stats().from_system - before) as f64),
            ("frames", launch.frames.into()),
            ("dropped", launch.dropped.into()),
            ("repeated", launch.repeated.into()),
        ];
        figures.extend(launch.held.into_iter().map(|frames| (HELD, frames.into())));
        Ok(figures)
    }

    /// Plays a burst, and the dropped requests of the burst before that turned out to be needed. Answers which of its own were
    /// dropped and will be needed.
    fn play_burst(
        &self,
        burst: &[PageRequest],
        needed: &[PageRequest],
        launch: &mut Launch,
    ) -> Result<Vec<PageRequest>> {
        let (mut held, mut dropped) = (Vec::new(), Vec::new());
        let window = self.window;
        for (pages, _) in needed {
            held.extend(self.get(*pages.min(&window), AllocPolicy::MustSucceed, launch)?);
            launch.repeated += 1;
        }
        for &(pages, purpose) in burst {
            let may_fail = self.is_best_effort && purpose != Purpose::Demand;
            let policy = if may_fail { AllocPolicy::MayFail } else { AllocPolicy::MustSucceed };
            match self.get(pages.min(window), policy, launch)? {
                Some(frames) => held.push(frames),
                None => {
                    launch.dropped += 1;
                    dropped.extend((purpose == Purpose::ReadaheadUsed).then_some((pages, purpose)));
                }
            }
        }
        let together: usize = held.iter().map(|(_, frames)| frames.len()).sum();
        launch.held.push(u32::try_from(together)?);
        Ok(dropped)
    }

    /// The frames of one request, each of them written to; none when it was dropped.
    fn get(
        &self,
        frames: u32,
        policy: AllocPolicy,
        launch: &mut Launch,
    ) -> Result<Option<(RequestFrameList, Vec<Frame>)>> {
        let mut list = self.pool.request_list();
        let mut got = Vec::with_capacity(usize::try_from(frames)?);
        for _ in 0..frames {
            let before = Instant::now();
            let taken = list.allocate(policy).map(|mut frame| {
                write_first(&mut frame);
                frame
            });
            let nanos = before.elapsed().as_secs_f64() * 1e9;
            launch.getting_ns += nanos;
            launch.longest_ns = launch.longest_ns.max(nanos);
            let may_fail = policy == AllocPolicy::MayFail;
            match taken {
                Ok(frame) => got.push(frame),
                Err(error) if may_fail && error.kind() == ErrorKind::NotNow => return Ok(None),
                Err(error) => return Err(error).context("getting a bounce frame"),
            }
        }
        launch.frames += frames;
        Ok(Some((list, got)))
    }
}

/// Why a page is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Somebody waits for it.
    Demand,
    ReadaheadUsed,
    ReadaheadWasted,
}

/// One page of one extent is wanted: the pages of the extent before it, which nobody supplied, but the stream passes through
/// them, and why. It needs a bounce frame for each page before, and beyond a window the oldest again.
type PageRequest = (u32, Purpose);

/// The requests of launch `number`, the same each time. Pages are drawn evenly, so that long extents are hit more often.
fn requests_of(number: u16) -> Vec<PageRequest> {
    let mut random = Rng::with_seed(number.into());
    let pages: u32 = EXTENTS.iter().map(|(pages, weight)| pages * weight).sum();
    let request = |_| {
        let mut left = random.u32(..pages);
        let hit = EXTENTS.iter().find(|(length, weight)| {
            let is_hit = left < length * weight;
            left -= if is_hit { 0 } else { length * weight };
            is_hit
        });
        let pages_before = hit.map_or(0, |(length, _)| left % length);
        let purpose = match random.u32(..100) < READAHEAD_PERCENT {
            false => Purpose::Demand,
            true if random.u32(..100) < USED_PERCENT => Purpose::ReadaheadUsed,
            true => Purpose::ReadaheadWasted,
        };
        (pages_before, purpose)
    };
    (0..REQUESTS).map(request).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Statistic;

    #[test]
    fn readahead_is_dropped_where_it_may_be_and_repeated_only_where_it_is_needed() {
        use Purpose::{Demand, ReadaheadUsed as Used, ReadaheadWasted as Wasted};
        let mixed = [(3, Used), (2, Wasted), (0, Wasted), (1, Demand)];
        let all = Player::all().unwrap();
        assert_eq!((all[0].name.as_str(), all.len()), ("64k", 12));
        for (is_best_effort, reserved, requests, expected) in [
            (false, 0, &[(3, Used), (40, Wasted)][..], [0.0, 0.0, 20.0, 20.0, 20.0]),
            (true, 0, &mixed, [2.0, 1.0, 4.0, 4.0, 3.0]),
            // A reserve serves until it is empty: three times 17 are 51; the fourth is refused, returns what it has, and
            // comes again.
            (true, 64, &[(17, Used); 4], [1.0, 1.0, 68.0, 0.0, 51.0]),
        ] {
            let player = Player::new(WINDOWS[0], is_best_effort, reserved).unwrap();
            let played = player.play(requests, &|| Ok(())).unwrap();
            let played = Measured::new("", played);
            let most = |figure| played.samples(figure).number(Statistic::Most);
            let found = ["dropped", "repeated", "frames", "from the system", HELD].map(most);
            assert_eq!(found, expected, "{}", player.name);
            assert!(most(GETTING) * 1e3 >= most("longest frame") && most("longest frame") > 0.0);
        }
    }

    #[test]
    fn every_source_gives_as_many_frames_as_requested() {
        for pool in [None, Some(filled_pool(32, 0).unwrap()), Some(filled_pool(32, 8).unwrap())] {
            assert_eq!(take_burst(pool.as_ref(), 32).unwrap().len(), 32);
            assert_eq!(take_burst(pool.as_ref(), 32).unwrap().len(), 32);
        }
    }

    #[test]
    fn launches_are_those_of_the_mail() {
        let weights = |of: &dyn Fn(u32) -> bool| -> u32 {
            EXTENTS.iter().filter(|(pages, _)| of(*pages)).map(|(_, weight)| weight).sum()
        };
        assert_eq!((weights(&|_| true), weights(&|pages| pages < 4)), (10_000, 9700));
        assert_eq!(requests_of(7), requests_of(7));
        assert_ne!(requests_of(7), requests_of(8));
        let launches: Vec<_> = (0..100).map(requests_of).collect();
        let frames = |requests: &[PageRequest], window| -> u32 {
            requests.iter().map(|&(pages, _)| pages.min(window)).sum()
        };
        let all = launches.concat();
        let saved = f64::from(frames(&all, 5)) / f64::from(frames(&all, 17));
        assert!((0.59..0.63).contains(&saved));
        // 64 frames are enough for 19 bursts of 20.
        let bursts = launches.iter().flat_map(|requests| requests.chunks(IN_FLIGHT));
        let mut held: Vec<u32> = bursts.map(|burst| frames(burst, 17)).collect();
        held.sort_unstable();
        assert!((50..=80).contains(&held[held.len() * 95 / 100]) && *held.last().unwrap() <= 256);
    }

    #[test]
    fn a_variant_is_compared_with_the_first_and_with_its_threshold() {
        let variant = |name: &str, millis| {
            let held = [10.0, 64.0, 65.0, 9.0].map(|frames| (HELD, frames));
            Measured::new(name, [(GETTING, millis)].into_iter().chain(held).collect())
        };
        let names = [("64k", 2.0), ("64k, best effort", 1.0), ("16k, best effort", 1.5)];
        let variants = names.map(|(name, millis)| variant(name, millis));
        let mut report = Report::new("pages").unwrap();
        report.evaluate_all("", &["launches"], &variants);
        add_demand(&mut report, &variants[0]);
        report.finish().unwrap();
        let text = report.to_string();
        for line in [
            "004: readahead that gives way changes the time for frames by -20 % or more: -50.0 % here, met",
            "64 frames cover 75.0 %, 256 cover 100.0 %; the most was 65",
            "004: both together change it by -50 % or more: -25.0 % here, NOT met",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
    }
}
