//! Getting page frames in a memory cgroup at its limit: the process that does so fills its group with dirty anonymous memory
//! and dirty page cache, and then gets frames, from each source and for launches of programs in each variant in turn, while
//! every page more needs another to go. Owns the assumptions about launches, as numbers.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use ferrofs_workers::ErrorKind;
use ferrofs_workers::memory::{
    AllocPolicy, Budget, FRAME_BYTES, Frame, Mapping, PagePool, PagePoolSettings, PageSize,
    RequestFrameList,
};
use serde::{Deserialize, Serialize};

use crate::rounds::{Measured, TimeLimit};
use crate::statistics::{Figure, Figures};

/// What the group may use.
pub(crate) const LIMIT_BYTES: u64 = 64 << 20;
/// Of that, dirty anonymous memory, which cannot be taken away without swap.
const ANONYMOUS_BYTES: usize = 24 << 20;
/// The file whose pages fill the rest.
const FILE_BYTES: u64 = 128 << 20;
/// Written to the file before every burst, so that the group is full again.
const REFILL_BYTES: u64 = 4 << 20;
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

/// Getting a frame, one look at the clock included.
pub(crate) const FRAME: Figure = Figure::new("frame", "us", 3);
/// Of one launch: getting frames, refused attempts and repeated requests included.
pub(crate) const GETTING: Figure = Figure::new("getting frames", "ms", 3);
/// The longest time for one frame.
pub(crate) const LONGEST: Figure = Figure::new("longest frame", "us", 1);
pub(crate) const FRAMES: Figure = Figure::new("frames", "", 1);
pub(crate) const FROM_SYSTEM: Figure = Figure::new("from the system", "frames", 1);
/// Readahead that was dropped, and how much of it was needed and repeated.
pub(crate) const DROPPED: Figure = Figure::new("dropped", "requests", 1);
pub(crate) const REPEATED: Figure = Figure::new("repeated", "requests", 1);
/// Frames that were held together, in each burst.
pub(crate) const HELD: Figure = Figure::new("held", "frames", 0);

/// Extents as (decoded pages, how many of ten thousand).
type Extents = &'static [(u32, u32)];

/// "97 % of the compressed pages expand to less than 4 pages"; how long the others are was chosen so that a window of 16 KiB
/// needs 0.61 of the frames of one of 64 KiB. The mail measured 0.62 of the time.
const OF_MAIL: Extents = &[(1, 800), (2, 6350), (3, 2550), (8, 100), (16, 120), (24, 50), (32, 30)];
/// The pages that each of 55,396 compressed extents touches: a Debian root file system in an image of lz4hc with clusters
/// of 4 KiB, as `dump.erofs -e` lists it; above 8 pages in steps.
#[rustfmt::skip]
const OF_DEBIAN: Extents = &[
    (2, 3798), (3, 4641), (4, 1041), (5, 305), (6, 86), (7, 49), (8, 26), (10, 29), (12, 10), (16, 6), (20, 6), (40, 1),
    (255, 2),
];

/// The extents that launches read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
pub(crate) enum ExtentMix {
    /// As the original mails describe them
    #[default]
    Mail,
    /// As a Debian root file system has them
    Debian,
}

impl ExtentMix {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Mail => "mail",
            Self::Debian => "debian",
        }
    }

    const fn extents(self) -> Extents {
        match self {
            Self::Mail => OF_MAIL,
            Self::Debian => OF_DEBIAN,
        }
    }
}

/// What launches read.
#[derive(Debug, Clone, Copy, Args, Serialize, Deserialize)]
pub(crate) struct RequestArguments {
    /// The extents that launches read
    #[arg(long, value_enum, default_value_t)]
    pub(crate) extents: ExtentMix,
    /// Requests of a hundred that are readahead
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) readahead: u8,
    /// Readahead of a hundred that is used later
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) used: u8,
}

/// The settings of the process in the group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FramesTask {
    /// A folder on a disk.
    pub(crate) folder: Option<PathBuf>,
    /// Bursts for each source.
    pub(crate) rounds: u16,
    /// Launches in each variant.
    pub(crate) launches: u16,
    pub(crate) requests: RequestArguments,
    pub(crate) seconds: Option<u32>,
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
    let mut dirty = DirtyPages::create(task.folder.as_deref())?;
    dirty.write(FILE_BYTES)?;
    let deadline = TimeLimit { seconds: task.seconds }.deadline();
    let bursts = deadline.share(BURSTS_SHARE);
    let mut sources = vec![Source::faults()];
    for reserved in RESERVES {
        sources.push(Source::pool(BURST_FRAMES, reserved)?);
    }
    let new = |name| Measured::new(name, Figures::new());
    let mut of_sources: Vec<_> = sources.iter().map(|source| new(source.name.clone())).collect();
    for round in 0..task.rounds {
        if round >= LEAST_ROUNDS && bursts.is_over() {
            break;
        }
        for (source, measured) in sources.iter().zip(&mut of_sources) {
            dirty.write(REFILL_BYTES)?;
            measured.add(source.take(BURST_FRAMES)?);
        }
    }
    let players = Variant::all().map(Player::new).collect::<Result<Vec<_>>>()?;
    let mut variants: Vec<_> = players.iter().map(|player| new(player.variant.name())).collect();
    for number in 0..task.launches {
        if number >= LEAST_ROUNDS && deadline.is_over() {
            break;
        }
        let requests = requests_of(task.requests, number);
        for variant in shuffled(players.len(), number) {
            dirty.write(REFILL_BYTES)?;
            let launch = players[variant].play(&requests, &mut || dirty.write(LAUNCH_BYTES))?;
            variants[variant].add(launch);
        }
    }
    drop((players, sources));
    // The pools are gone; the group must be at its limit when it is looked at.
    dirty.write(REFILL_BYTES)?;
    Ok((FramesResult { sources: of_sources, variants }, (anonymous, dirty)))
}

/// Page cache of a group: a file without a name that is written over and over.
#[derive(Debug)]
pub(crate) struct DirtyPages {
    file: File,
    offset: u64,
    block: Box<[u8]>,
}

impl DirtyPages {
    pub(crate) fn create(folder: Option<&Path>) -> Result<Self> {
        let folder = folder.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let what = || format!("a file in {}", folder.display());
        let file = tempfile::tempfile_in(&folder).with_context(what)?;
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

/// A way to get frames: from a pool, or by a page fault each on fresh memory, as any program does.
#[derive(Debug)]
struct Source {
    name: String,
    pool: Option<PagePool>,
}

impl Source {
    fn faults() -> Self {
        Self { name: "system (page faults)".to_owned(), pool: None }
    }

    /// A pool for `frames` at a time.
    fn pool(frames: u32, reserved: u32) -> Result<Self> {
        let name = match reserved {
            0 => "pool without reserve".to_owned(),
            reserved => format!("reserve of {reserved}"),
        };
        Ok(Self { name, pool: Some(filled_pool(frames, reserved, frames)?) })
    }

    /// Gets frames, writes to each, and returns all of them.
    fn take(&self, frames: u32) -> Result<Figures> {
        let count = usize::try_from(frames)?;
        let length = if self.pool.is_some() { 0 } else { count * FRAME_BYTES };
        let mut mapping = Mapping::anonymous(length.max(FRAME_BYTES), PageSize::Small)
            .context("mapping memory")?;
        let mut fresh = mapping.bytes_mut().chunks_mut(FRAME_BYTES);
        let (mut figures, mut held) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut before = Instant::now();
        for _ in 0..frames {
            if let Some(pool) = &self.pool {
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
}

/// A pool that has had so many frames once, so that its reserve is as full as it gets.
fn filled_pool(frames: u32, reserved: u32, taken: u32) -> Result<PagePool> {
    let settings = PagePoolSettings::new(frames, reserved);
    let pool = PagePool::new(&Budget::new(BUDGET_BYTES), settings).context("a page pool")?;
    let fill = (0..taken).map(|_| pool.allocate(AllocPolicy::MustSucceed));
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
pub(crate) struct Variant {
    window: (&'static str, u32),
    /// Readahead for which no frame is at hand is dropped, and repeated if its page is needed. Else it gets a frame from the
    /// system, as everybody does.
    is_best_effort: bool,
    reserved: u32,
}

impl Variant {
    /// The first is the baseline.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let of = |reserved| WINDOWS.into_iter().map(move |window| (reserved, window));
        let of = RESERVES.into_iter().flat_map(of);
        of.flat_map(|(reserved, window)| {
            [false, true].map(|is_best_effort| Self { window, is_best_effort, reserved })
        })
    }

    pub(crate) fn name(self) -> String {
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
        let pool = filled_pool(POOL_FRAMES, variant.reserved, variant.reserved.max(1))?;
        Ok(Self { variant, pool })
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
            match taken {
                Ok(frame) => got.push(frame),
                Err(error)
                    if policy == AllocPolicy::MayFail && error.kind() == ErrorKind::NotNow =>
                {
                    return Ok(None);
                }
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
fn requests_of(shares: RequestArguments, number: u16) -> Vec<PageRequest> {
    let mut random = SplitMix(u64::from(number));
    let extents = shares.extents.extents();
    let pages = extents.iter().map(|(pages, weight)| pages * weight).sum();
    let request = |_| {
        let mut left = random.below(pages);
        let hit = extents.iter().find(|(length, weight)| {
            let is_hit = left < length * weight;
            left -= if is_hit { 0 } else { length * weight };
            is_hit
        });
        let pages_before = hit.map_or(0, |(length, _)| left % length);
        let purpose = match random.below(100) < shares.readahead.into() {
            false => Purpose::Demand,
            true if random.below(100) < shares.used.into() => Purpose::ReadaheadUsed,
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

    const SHARES: RequestArguments =
        RequestArguments { extents: ExtentMix::Mail, readahead: 50, used: 50 };
    const BEST_EFFORT: Variant = Variant { window: WINDOWS[0], is_best_effort: true, reserved: 0 };

    /// The sums of the figures of one launch.
    fn played<const N: usize>(
        variant: Variant,
        requests: &[(u32, Purpose)],
        figures: [Figure; N],
    ) -> [f64; N] {
        let request = |&(pages_before, purpose)| PageRequest { pages_before, purpose };
        let requests: Vec<_> = requests.iter().map(request).collect();
        let figures_of = Player::new(variant).unwrap().play(&requests, &mut || Ok(())).unwrap();
        let launch = Measured::new("", figures_of);
        figures.map(|figure| launch.samples(figure).summary().maximum)
    }

    #[test]
    fn the_first_variant_is_the_baseline() {
        let first = Variant { is_best_effort: false, ..BEST_EFFORT };
        assert_eq!((Variant::all().next(), Variant::all().count()), (Some(first), 12));
    }

    #[test]
    fn readahead_is_dropped_where_it_may_be_and_repeated_only_where_it_is_needed() {
        use Purpose::{Demand, ReadaheadUsed as Used, ReadaheadWasted as Wasted};
        let must_succeed = Variant { is_best_effort: false, ..BEST_EFFORT };
        let reserve = Variant { reserved: 64, ..BEST_EFFORT };
        let figures = [DROPPED, REPEATED, FRAMES, FROM_SYSTEM];
        for (variant, requests, expected) in [
            (
                BEST_EFFORT,
                &[(3, Used), (2, Wasted), (0, Wasted), (1, Demand)][..],
                [2.0, 1.0, 4.0, 4.0],
            ),
            (must_succeed, &[(3, Used), (40, Wasted)], [0.0, 0.0, 20.0, 20.0]),
            // A reserve serves until it is empty: three times 17 are 51; the fourth is refused, returns what it has, and
            // comes again.
            (reserve, &[(17, Used); 4], [1.0, 1.0, 68.0, 0.0]),
        ] {
            assert_eq!(played(variant, requests, figures), expected, "{}", variant.name());
        }
        let [held, getting_ms, longest_us] =
            played(must_succeed, &[(3, Used), (40, Wasted)], [HELD, GETTING, LONGEST]);
        assert!(held == 20.0 && getting_ms * 1e3 >= longest_us && longest_us > 0.0);
    }

    #[test]
    fn every_source_gives_as_many_frames_as_requested() {
        for source in [Source::faults(), Source::pool(32, 0).unwrap(), Source::pool(32, 8).unwrap()]
        {
            for _ in 0..2 {
                assert_eq!(source.take(32).unwrap().len(), 32, "{}", source.name);
            }
        }
    }

    #[test]
    fn the_extents_are_those_of_the_comments() {
        for mix in [ExtentMix::Mail, ExtentMix::Debian] {
            assert_eq!(mix.extents().iter().map(|(_, weight)| weight).sum::<u32>(), 10_000);
        }
        let short = ExtentMix::Mail.extents().iter().filter(|(pages, _)| *pages < 4);
        assert_eq!(short.map(|(_, weight)| weight).sum::<u32>(), 9700);
        let saved = |extents| {
            let of = |window| {
                let launches =
                    (0..100).flat_map(|at| requests_of(RequestArguments { extents, ..SHARES }, at));
                f64::from(launches.map(|request| request.frames(window)).sum::<u32>())
            };
            of(5) / of(17)
        };
        assert!((0.59..0.63).contains(&saved(ExtentMix::Mail)));
        assert!((0.78..0.86).contains(&saved(ExtentMix::Debian)));
    }

    #[test]
    fn a_request_never_needs_more_than_its_window() {
        let frames =
            |pages_before| PageRequest { pages_before, purpose: Purpose::Demand }.frames(17);
        assert_eq!([500, 17, 3, 0].map(frames), [17, 17, 3, 0]);
    }

    #[test]
    fn sixty_four_frames_are_enough_for_nineteen_bursts_of_twenty() {
        let launches: Vec<_> = (0..100).map(|number| requests_of(SHARES, number)).collect();
        let bursts = launches.iter().flat_map(|requests| requests.chunks(IN_FLIGHT));
        let frames =
            |burst: &[PageRequest]| -> u32 { burst.iter().map(|request| request.frames(17)).sum() };
        let mut held: Vec<u32> = bursts.map(frames).collect();
        held.sort_unstable();
        assert!((50..=80).contains(&held[held.len() * 95 / 100]));
        assert!(*held.last().unwrap() <= 256);
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

    #[test]
    fn a_launch_is_the_same_each_time_and_has_the_requested_shares() {
        assert_eq!(requests_of(SHARES, 7), requests_of(SHARES, 7));
        assert_ne!(requests_of(SHARES, 7), requests_of(SHARES, 8));
        let all_are = |readahead, used, purpose| {
            let requests = requests_of(RequestArguments { readahead, used, ..SHARES }, 1);
            requests.iter().all(|request| request.purpose == purpose)
        };
        assert!(all_are(0, 50, Purpose::Demand) && all_are(100, 100, Purpose::ReadaheadUsed));
    }
}
