//! Getting page frames in a memory cgroup at its limit: the process that does so fills its group with dirty anonymous memory
//! and dirty page cache, and then gets frames, from each source and for launches of programs in each variant in turn, while
//! every page more needs another to go. Owns the assumptions about launches, as numbers.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferrofs_workers::ErrorKind;
use ferrofs_workers::memory::{
    AllocPolicy, Budget, FRAME_BYTES, Frame, Mapping, PagePool, PagePoolSettings, PageSize,
    RequestFrameList,
};
use serde::{Deserialize, Serialize};

use crate::rounds::Deadline;
use crate::statistics::{Figure, Figures, Measured};

/// What the group may use.
pub(crate) const LIMIT_BYTES: u64 = 64 << 20;
/// Of that, dirty anonymous memory, which cannot be taken away without swap.
const ANONYMOUS_BYTES: usize = 24 << 20;
/// The file whose pages fill the rest.
pub(crate) const FILE_BYTES: u64 = 128 << 20;
/// Written to the file before every burst, so that the group is full again.
pub(crate) const REFILL_BYTES: u64 = 4 << 20;
/// Written after every burst of a launch: 16 KiB for each request go to the page cache.
const LAUNCH_BYTES: u64 = 256 << 10;
const WRITE_BYTES: u64 = 256 << 10;
/// Frames of a burst: the largest reserve of the mail's table.
const BURST_FRAMES: u32 = 256;
const RESERVES: [u32; 3] = [0, 64, 256];
/// Bursts and launches, however long they take.
const LEAST_ROUNDS: u16 = 5;
/// Share of the time for bursts.
const BURSTS_SHARE: f64 = 0.3;
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

/// Getting a frame, one look at the clock included.
pub(crate) const FRAME: Figure = Figure::new("frame", "us", 3);
/// Of one launch: getting frames, refused attempts and repeated requests included.
pub(crate) const GETTING: Figure = Figure::new("getting frames", "ms", 3);
/// The longest time for one frame.
const LONGEST: Figure = Figure::new("longest frame", "us", 1);
const FRAMES: Figure = Figure::new("frames", "", 1);
const FROM_SYSTEM: Figure = Figure::new("from the system", "frames", 1);
/// Readahead that was dropped, and how much of it was needed and repeated.
const DROPPED: Figure = Figure::new("dropped", "requests", 1);
const REPEATED: Figure = Figure::new("repeated", "requests", 1);
/// Frames that were held together, in each burst.
pub(crate) const HELD: Figure = Figure::new("held", "frames", 0);

/// The settings of the process in the group: bursts for each source, launches in each variant, and the time for all.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FramesTask {
    pub(crate) rounds: u16,
    pub(crate) launches: u16,
    pub(crate) limit: Option<Duration>,
}

/// One launch.
#[derive(Debug, Default)]
struct Launch {
    getting_ns: f64,
    longest_ns: f64,
    frames: u32,
    dropped: u32,
    repeated: u32,
    held: Vec<u32>,
}

impl Launch {
    fn figures(&self, from_system: u64) -> Figures {
        let counts = [(FRAMES, self.frames), (DROPPED, self.dropped), (REPEATED, self.repeated)];
        let held = self.held.iter().map(|&frames| (HELD, frames));
        let counts = counts.into_iter().chain(held).map(|(figure, count)| (figure, count.into()));
        let times = [(GETTING, self.getting_ns / 1e6), (LONGEST, self.longest_ns / 1e3)];
        let from_system = [(FROM_SYSTEM, from_system as f64)];
        times.into_iter().chain(from_system).chain(counts).collect()
    }
}

/// The sources of frames, and the variants of launches.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FramesResult {
    pub(crate) sources: Vec<Measured>,
    pub(crate) variants: Vec<Measured>,
}

/// What fills a group until it has been looked at: anonymous memory that nobody can take away, and page cache.
pub(crate) type GroupMemory = (Vec<u8>, DirtyPages);

/// The role of the process in the group.
pub(crate) fn measure(task: &FramesTask) -> Result<(FramesResult, GroupMemory)> {
    let anonymous = vec![1_u8; ANONYMOUS_BYTES];
    let mut dirty = DirtyPages::create()?;
    dirty.write(FILE_BYTES)?;
    let deadline = Deadline::after(task.limit);
    let bursts = deadline.share(BURSTS_SHARE);
    let pools = RESERVES.map(|reserved| Ok(Some(filled_pool(BURST_FRAMES, reserved)?)));
    let pools = [Ok(None)].into_iter().chain(pools).collect::<Result<Vec<_>>>()?;
    let new = |name: String| Measured::new(name, Figures::new());
    let names = ["system (page faults)", "pool without reserve", "reserve of 64", "reserve of 256"];
    let mut sources = names.map(|name| new(name.to_owned()));
    for round in 0..task.rounds {
        if round >= LEAST_ROUNDS && bursts.is_over() {
            break;
        }
        for (pool, measured) in pools.iter().zip(&mut sources) {
            dirty.write(REFILL_BYTES)?;
            measured.add(take_burst(pool.as_ref(), BURST_FRAMES)?);
        }
    }
    let players = Variant::all().map(Player::new).collect::<Result<Vec<_>>>()?;
    let mut variants: Vec<_> = players.iter().map(|player| new(player.variant.name())).collect();
    for number in 0..task.launches {
        if number >= LEAST_ROUNDS && deadline.is_over() {
            break;
        }
        let requests = requests_of(number);
        for variant in shuffled(players.len(), number) {
            dirty.write(REFILL_BYTES)?;
            let launch = players[variant].play(&requests, &mut || dirty.write(LAUNCH_BYTES))?;
            variants[variant].add(launch);
        }
    }
    drop((players, pools));
    // The pools are gone; the group must be at its limit when it is looked at.
    dirty.write(REFILL_BYTES)?;
    Ok((FramesResult { sources: sources.into(), variants }, (anonymous, dirty)))
}

/// Page cache of a group: a file without a name, in the folder for temporary files, that is written over and over.
#[derive(Debug)]
pub(crate) struct DirtyPages {
    file: File,
    offset: u64,
    block: Box<[u8]>,
}

impl DirtyPages {
    pub(crate) fn create() -> Result<Self> {
        let file = tempfile::tempfile().context("a temporary file")?;
        let block = vec![0xa5; usize::try_from(WRITE_BYTES)?].into_boxed_slice();
        Ok(Self { file, offset: 0, block })
    }

    /// Makes this many more bytes of the file dirty.
    pub(crate) fn write(&mut self, bytes: u64) -> Result<()> {
        let end = self.offset + bytes;
        while self.offset < end {
            self.file.seek(SeekFrom::Start(self.offset % FILE_BYTES))?;
            self.file.write_all(&self.block).context("writing beside the frames")?;
            self.offset += WRITE_BYTES;
        }
        Ok(())
    }
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
        figures.push((FRAME, (now - before).as_secs_f64() * 1e6));
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

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Variant {
    window: (&'static str, u32),
    /// Readahead for which no frame is at hand is dropped, and repeated if its page is needed. Else it gets a frame from the
    /// system, as everybody does.
    is_best_effort: bool,
    reserved: u32,
}

impl Variant {
    /// The first is the baseline.
    fn all() -> impl Iterator<Item = Self> {
        let of = |reserved| WINDOWS.into_iter().map(move |window| (reserved, window));
        let of = RESERVES.into_iter().flat_map(of);
        of.flat_map(|(reserved, window)| {
            [false, true].map(|is_best_effort| Self { window, is_best_effort, reserved })
        })
    }

    fn name(self) -> String {
        let (window, effort) =
            (self.window.0, if self.is_best_effort { ", best effort" } else { "" });
        match self.reserved {
            0 => format!("{window}{effort}"),
            frames => format!("{window}{effort}, reserve of {frames}"),
        }
    }
}

/// The frames of an LZ4 decoder in one variant.
#[derive(Debug)]
struct Player {
    variant: Variant,
    pool: PagePool,
}

impl Player {
    fn new(variant: Variant) -> Result<Self> {
        Ok(Self { variant, pool: filled_pool(POOL_FRAMES, variant.reserved)? })
    }

    /// Plays one launch; `fill` is called between bursts, untimed, and takes the memory that they left.
    fn play(
        &self,
        requests: &[PageRequest],
        fill: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Figures> {
        let before = self.pool.stats().from_system;
        let (mut launch, mut needed) = (Launch::default(), Vec::new());
        for burst in requests.chunks(IN_FLIGHT) {
            needed = self.play_burst(burst, &needed, &mut launch)?;
            fill()?;
        }
        self.play_burst(&[], &needed, &mut launch)?;
        Ok(launch.figures(self.pool.stats().from_system - before))
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
        let (_, window) = self.variant.window;
        for request in needed {
            held.extend(self.get(request.frames(window), AllocPolicy::MustSucceed, launch)?);
            launch.repeated += 1;
        }
        for request in burst {
            let may_fail = self.variant.is_best_effort && request.purpose != Purpose::Demand;
            let policy = if may_fail { AllocPolicy::MayFail } else { AllocPolicy::MustSucceed };
            match self.get(request.frames(window), policy, launch)? {
                Some(frames) => held.push(frames),
                None => {
                    launch.dropped += 1;
                    dropped.extend((request.purpose == Purpose::ReadaheadUsed).then_some(*request));
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

/// One page of one extent is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PageRequest {
    /// Pages of the extent before the wanted one: nobody supplied them, but the stream passes through them.
    pages_before: u32,
    purpose: Purpose,
}

impl PageRequest {
    /// Bounce frames: one for each page before, and beyond a window the oldest again.
    fn frames(self, window: u32) -> u32 {
        self.pages_before.min(window)
    }
}

/// The requests of launch `number`, the same each time. Pages are drawn evenly, so that long extents are hit more often.
fn requests_of(number: u16) -> Vec<PageRequest> {
    let mut random = SplitMix(u64::from(number));
    let pages = EXTENTS.iter().map(|(pages, weight)| pages * weight).sum();
    let request = |_| {
        let mut left = random.below(pages);
        let hit = EXTENTS.iter().find(|(length, weight)| {
            let is_hit = left < length * weight;
            left -= if is_hit { 0 } else { length * weight };
            is_hit
        });
        let pages_before = hit.map_or(0, |(length, _)| left % length);
        let purpose = match random.below(100) < READAHEAD_PERCENT {
            false => Purpose::Demand,
            true if random.below(100) < USED_PERCENT => Purpose::ReadaheadUsed,
            true => Purpose::ReadaheadWasted,
        };
        PageRequest { pages_before, purpose }
    };
    (0..REQUESTS).map(request).collect()
}

/// The order of the variants in launch `number`. It is drawn anew each time: in a fixed one every variant would find the
/// group as the same other variant left it.
fn shuffled(variants: usize, number: u16) -> Vec<usize> {
    let mut random = SplitMix(u64::from(number));
    let mut keyed: Vec<_> =
        (0..variants).map(|variant| (random.below(u32::MAX), variant)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, variant)| variant).collect()
}

/// Repeatable random numbers: splitmix64.
#[derive(Debug)]
struct SplitMix(u64);

impl SplitMix {
    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        u32::try_from(mixed % u64::from(bound)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::statistics::Statistic;

    const BEST_EFFORT: Variant = Variant { window: WINDOWS[0], is_best_effort: true, reserved: 0 };

    #[test]
    fn readahead_is_dropped_where_it_may_be_and_repeated_only_where_it_is_needed() {
        use Purpose::{Demand, ReadaheadUsed as Used, ReadaheadWasted as Wasted};
        let must_succeed = Variant { is_best_effort: false, ..BEST_EFFORT };
        let reserve = Variant { reserved: 64, ..BEST_EFFORT };
        assert_eq!((Variant::all().next(), Variant::all().count()), (Some(must_succeed), 12));
        for (variant, requests, expected) in [
            (
                BEST_EFFORT,
                &[(3, Used), (2, Wasted), (0, Wasted), (1, Demand)][..],
                [2.0, 1.0, 4.0, 4.0, 3.0],
            ),
            (must_succeed, &[(3, Used), (40, Wasted)], [0.0, 0.0, 20.0, 20.0, 20.0]),
            // A reserve serves until it is empty: three times 17 are 51; the fourth is refused, returns what it has, and
            // comes again.
            (reserve, &[(17, Used); 4], [1.0, 1.0, 68.0, 0.0, 51.0]),
        ] {
            let request = |&(pages_before, purpose)| PageRequest { pages_before, purpose };
            let requests: Vec<_> = requests.iter().map(request).collect();
            let played = Player::new(variant).unwrap().play(&requests, &mut || Ok(())).unwrap();
            let played = Measured::new("", played);
            let most = |figure| played.samples(figure).number(Statistic::Most);
            let found = [DROPPED, REPEATED, FRAMES, FROM_SYSTEM, HELD].map(most);
            assert_eq!(found, expected, "{}", variant.name());
            assert!(most(GETTING) * 1e3 >= most(LONGEST) && most(LONGEST) > 0.0);
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
            requests.iter().map(|request| request.frames(window)).sum()
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
    fn every_variant_has_its_turn_and_follows_one_and_another() {
        let orders: Vec<_> = (0..50).map(|number| shuffled(12, number)).collect();
        for order in &orders {
            let sorted: std::collections::BTreeSet<_> = order.iter().copied().collect();
            assert!(sorted.into_iter().eq(0..12));
        }
        let before_zero =
            |order: &Vec<usize>| order.windows(2).find(|pair| pair[1] == 0).map(|pair| pair[0]);
        assert!(orders.iter().map(before_zero).collect::<HashSet<_>>().len() > 6);
    }
}
