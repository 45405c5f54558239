//! Launches: the frames that an LZ4 decoder gets for them, and how long it waits for each. Owns a pool for
//! every way of reading ahead, and what was measured with it. Called inside of the group by `limit`.

use std::time::Instant;

use anyhow::{Context, Result};
use ferrofs_workers::ErrorKind;
use ferrofs_workers::memory::{
    AllocPolicy, Budget, Frame, PagePool, PagePoolSettings, RequestFrameList,
};
use serde::{Deserialize, Serialize};

use super::requests::{IN_FLIGHT, Purpose, Request, Window};
use super::taking::write_first;

/// Frames that can be had at a time: more than a burst and what it repeats can hold.
const FRAMES: u32 = 1024;
/// Memory that the budget of a pool allows; the group is what limits here.
const BUDGET_BYTES: u64 = 1 << 30;
/// Reserves that are compared.
pub(super) const RESERVES: [u32; 3] = [0, 64, 256];

/// What readahead does when a frame is not at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readahead {
    /// It gets one from the system, as everybody does.
    MustSucceed,
    /// It gives way: the request is dropped, and made again if its page is really needed.
    BestEffort,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) window: Window,
    pub(super) readahead: Readahead,
    pub(super) reserved: u32,
}

impl Way {
    /// All that are compared. The first is what the others are compared with.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        RESERVES.into_iter().flat_map(|reserved| {
            [Window::Kib64, Window::Kib16].into_iter().flat_map(move |window| {
                [Readahead::MustSucceed, Readahead::BestEffort]
                    .into_iter()
                    .map(move |readahead| Self { window, readahead, reserved })
            })
        })
    }

    pub(super) fn name(self) -> String {
        let effort = match self.readahead {
            Readahead::MustSucceed => "",
            Readahead::BestEffort => ", best effort",
        };
        let reserve = match self.reserved {
            0 => String::new(),
            frames => format!(", reserve of {frames}"),
        };
        format!("{}{effort}{reserve}", self.window.name())
    }
}

/// What one launch cost.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// Time for getting frames, attempts that were refused and repeated requests included.
    pub(crate) getting_ns: f64,
    /// The longest that one frame took.
    pub(crate) longest_ns: f64,
    /// Frames that were got.
    pub(crate) frames: u32,
    /// Readahead that gave way.
    pub(crate) dropped: u32,
    /// Of that, what was needed and made again.
    pub(crate) repeated: u32,
    /// The frames that were held together, a number for each burst.
    pub(crate) held: Vec<u32>,
}

impl Launch {
    /// The most frames that were held together.
    pub(crate) fn most_held(&self) -> u32 {
        self.held.iter().copied().max().unwrap_or(0)
    }
}

/// The launches of one way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WayLaunches {
    pub(crate) way: String,
    pub(crate) launches: Vec<Launch>,
    /// Frames that came from the system, over all launches.
    pub(crate) from_system: u64,
}

/// A decoder's frames, got in one way.
#[derive(Debug)]
pub(super) struct Launcher {
    way: Way,
    pool: PagePool,
    from_system_before: u64,
    launches: Vec<Launch>,
}

impl Launcher {
    /// A pool whose reserve is as full as it gets.
    ///
    /// # Errors
    /// When memory for the pool or for a frame cannot be had.
    pub(super) fn new(way: Way) -> Result<Self> {
        let budget = Budget::new(BUDGET_BYTES);
        let settings = PagePoolSettings::new(FRAMES, way.reserved);
        let pool = PagePool::new(&budget, settings).context("making a page pool")?;
        let held = (0..way.reserved.max(1)).map(|_| pool.allocate(AllocPolicy::MustSucceed));
        let held: Vec<Frame> = held.collect::<Result<_, _>>().context("filling a reserve")?;
        drop(held);
        let from_system_before = pool.stats().from_system;
        Ok(Self { way, pool, from_system_before, launches: Vec::new() })
    }

    /// Plays one launch; `fill` is called between bursts, untimed, and takes what memory they left.
    ///
    /// # Errors
    /// When a frame that must be had cannot be had, or `fill` fails.
    pub(super) fn play(
        &mut self,
        requests: &[Request],
        fill: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut launch = Launch::default();
        let mut needed = Vec::new();
        for burst in requests.chunks(IN_FLIGHT) {
            needed = self.play_burst(burst, &needed, &mut launch)?;
            fill()?;
        }
        self.play_burst(&[], &needed, &mut launch)?;
        self.launches.push(launch);
        Ok(())
    }

    /// Plays the requests of one burst, and those of the burst before that were dropped and turned out to
    /// be needed. Answers which of its own were dropped and will be needed.
    fn play_burst(
        &self,
        burst: &[Request],
        needed: &[Request],
        launch: &mut Launch,
    ) -> Result<Vec<Request>> {
        let mut held = Vec::new();
        for request in needed {
            let frames = request.frames(self.way.window);
            held.extend(self.get(frames, AllocPolicy::MustSucceed, launch)?);
            launch.repeated += 1;
        }
        let mut dropped = Vec::new();
        for request in burst {
            let policy = match (request.purpose, self.way.readahead) {
                (Purpose::Demand, _) | (_, Readahead::MustSucceed) => AllocPolicy::MustSucceed,
                _ => AllocPolicy::MayFail,
            };
            match self.get(request.frames(self.way.window), policy, launch)? {
                Some(frames) => held.push(frames),
                None => {
                    launch.dropped += 1;
                    if request.purpose == Purpose::ReadaheadUsed {
                        dropped.push(*request);
                    }
                }
            }
        }
        let together: usize = held.iter().map(|(_, frames)| frames.len()).sum();
        launch.held.push(u32::try_from(together)?);
        Ok(dropped)
    }

    /// The frames of one request, each of them written to; nothing when it gave way.
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

    /// What was measured.
    pub(super) fn into_launches(self) -> WayLaunches {
        let from_system = self.pool.stats().from_system - self.from_system_before;
        WayLaunches { way: self.way.name(), launches: self.launches, from_system }
    }
}

#[cfg(test)]
mod tests {
    use super::{Launch, Launcher, Readahead, Way};
    use crate::pages::requests::{Purpose, Request, Window};

    fn played(way: Way, requests: &[Request]) -> (Launch, u64) {
        let mut launcher = Launcher::new(way).unwrap();
        launcher.play(requests, &mut || Ok(())).unwrap();
        let measured = launcher.into_launches();
        (measured.launches.into_iter().next().unwrap(), measured.from_system)
    }

    fn request(pages_before: u32, purpose: Purpose) -> Request {
        Request { pages_before, purpose }
    }

    const BEST_EFFORT: Way =
        Way { window: Window::Kib64, readahead: Readahead::BestEffort, reserved: 0 };

    #[test]
    fn the_first_way_is_the_one_without_any_of_the_three() {
        let first = Way { readahead: Readahead::MustSucceed, ..BEST_EFFORT };
        assert_eq!(Way::all().next(), Some(first));
        assert_eq!(Way::all().count(), 12);
    }

    /// A-R6: what best effort saves is not what it only puts off.
    #[test]
    fn readahead_that_gave_way_is_made_again_only_where_it_is_needed() {
        let requests = [
            request(3, Purpose::ReadaheadUsed),
            request(2, Purpose::ReadaheadWasted),
            request(0, Purpose::ReadaheadWasted),
            request(1, Purpose::Demand),
        ];
        let (launch, from_system) = played(BEST_EFFORT, &requests);
        assert_eq!((launch.dropped, launch.repeated, launch.frames), (2, 1, 4));
        assert_eq!(from_system, 4);
    }

    #[test]
    fn readahead_that_must_succeed_drops_nothing() {
        let way = Way { readahead: Readahead::MustSucceed, ..BEST_EFFORT };
        let requests = [request(3, Purpose::ReadaheadUsed), request(40, Purpose::ReadaheadWasted)];
        let (launch, from_system) = played(way, &requests);
        assert_eq!((launch.dropped, launch.repeated, launch.frames), (0, 0, 20));
        assert_eq!((launch.most_held(), from_system), (20, 20));
        assert!(launch.getting_ns >= launch.longest_ns && launch.longest_ns > 0.0);
    }

    #[test]
    fn a_reserve_serves_best_effort_until_it_is_empty() {
        let way = Way { reserved: 64, ..BEST_EFFORT };
        let four_windows = [request(17, Purpose::ReadaheadUsed); 4];
        let (launch, from_system) = played(way, &four_windows);
        // Three times 17 are 51; the fourth is refused, gives back what it has, and comes again.
        assert_eq!((launch.dropped, launch.repeated, launch.frames), (1, 1, 68));
        assert_eq!(from_system, 0);
    }
}
