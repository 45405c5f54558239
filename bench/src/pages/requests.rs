//! The requests that launching a program makes of an LZ4 decoder: which page of how long an extent, and
//! whether somebody waits for it. Owns the assumptions of the table of windows, as numbers; takes no
//! frame. `launch` plays them.

use clap::ValueEnum;
use serde::Serialize;

use crate::arguments::RequestArguments;

/// Requests of one launch.
pub(super) const REQUESTS: usize = 512;
/// Requests in flight at a time, whose frames are held together. With the seed's extents 64 frames are
/// then enough for about 95 of 100 such bursts, and 256 for all, which is how the seed sized its reserve.
pub(super) const IN_FLIGHT: usize = 16;

/// Extents as (decoded pages, how many of ten thousand).
type Extents = &'static [(u32, u32)];

/// "97 % of the compressed pages expand to less than 4 pages"; how long the others are was chosen so that
/// a window of 16 KiB needs 0.61 of the frames of one of 64 KiB. The seed measured 0.62 of the time.
const SEED: Extents = &[(1, 800), (2, 6350), (3, 2550), (8, 100), (16, 120), (24, 50), (32, 30)];

/// The pages that each of 55,396 compressed extents touches: a Debian root file system in an image of lz4hc
/// with clusters of 4 KiB, as `dump.erofs -e` lists it; above 8 pages in steps.
const DEBIAN: Extents = &[
    (2, 3798),
    (3, 4641),
    (4, 1041),
    (5, 305),
    (6, 86),
    (7, 49),
    (8, 26),
    (10, 29),
    (12, 10),
    (16, 6),
    (20, 6),
    (40, 1),
    (255, 2),
];

/// Whose extents the launches read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
pub(crate) enum Mix {
    /// As the mails of the seed describe them
    #[default]
    Seed,
    /// As a Debian root file system has them
    Debian,
}

impl Mix {
    /// As on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Seed => "seed",
            Self::Debian => "debian",
        }
    }

    const fn extents(self) -> Extents {
        match self {
            Self::Seed => SEED,
            Self::Debian => DEBIAN,
        }
    }
}

/// How far back a stream may refer, which decides how many frames one extent needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    /// `max_distance` 65535.
    Kib64,
    /// `max_distance` 16383.
    Kib16,
}

impl Window {
    /// Frames of a ring that holds everything a match can reach: distance in pages, and one.
    pub(super) const fn frames(self) -> u32 {
        match self {
            Self::Kib64 => 17,
            Self::Kib16 => 5,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kib64 => "64k",
            Self::Kib16 => "16k",
        }
    }
}

/// Why a page is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Somebody waits for it.
    Demand,
    /// It may be wanted, and later it is.
    ReadaheadUsed,
    /// It may be wanted, but never is.
    ReadaheadWasted,
}

/// One page of one extent is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// Pages of the extent before the one that is wanted: nobody supplied them, but the stream passes
    /// through them.
    pub(super) pages_before: u32,
    pub(super) purpose: Purpose,
}

impl Request {
    /// Bounce frames for it: one for each page before, and beyond a window the oldest again.
    pub(super) fn frames(self, window: Window) -> u32 {
        self.pages_before.min(window.frames())
    }
}

/// The requests of launch `number`: the same for everybody who asks.
pub(super) fn launch(shares: RequestArguments, number: u16) -> Vec<Request> {
    let mut chance = Chance(u64::from(number));
    (0..REQUESTS).map(|_| request(shares, &mut chance)).collect()
}

/// An order of so many ways for launch `number`. It is drawn anew each time: in a fixed one every way would
/// find the group as the same other way left it.
pub(super) fn order(ways: u16, number: u16) -> Vec<u16> {
    let mut chance = Chance(u64::from(number));
    let mut keyed: Vec<_> = (0..ways).map(|way| (chance.below(u32::MAX), way)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, way)| way).collect()
}

/// A page drawn from all pages alike, so that long extents are hit more often.
fn request(shares: RequestArguments, chance: &mut Chance) -> Request {
    let extents = shares.extents.extents();
    let pages = extents.iter().map(|(pages, weight)| pages * weight).sum();
    let mut left = chance.below(pages);
    let mut pages_before = 0;
    for (length, weight) in extents {
        if left < length * weight {
            pages_before = left % length;
            break;
        }
        left -= length * weight;
    }
    let purpose = match chance.below(100) < shares.readahead.into() {
        false => Purpose::Demand,
        true if chance.below(100) < shares.used.into() => Purpose::ReadaheadUsed,
        true => Purpose::ReadaheadWasted,
    };
    Request { pages_before, purpose }
}

/// Chance that repeats itself: splitmix64.
#[derive(Debug)]
struct Chance(u64);

impl Chance {
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
    use super::{IN_FLIGHT, Mix, Purpose, Request, Window, launch, order};
    use crate::arguments::RequestArguments;

    const SHARES: RequestArguments =
        RequestArguments { extents: Mix::Seed, readahead: 50, used: 50 };

    fn frames(mix: Mix, window: Window) -> u32 {
        let launches =
            (0..100).flat_map(|number| launch(RequestArguments { extents: mix, ..SHARES }, number));
        launches.map(|request| request.frames(window)).sum()
    }

    #[test]
    fn the_shares_add_up_to_ten_thousand() {
        for mix in [Mix::Seed, Mix::Debian] {
            assert_eq!(mix.extents().iter().map(|(_, weight)| weight).sum::<u32>(), 10_000);
        }
    }

    #[test]
    fn ninety_seven_of_a_hundred_extents_of_the_seed_have_less_than_four_pages() {
        let short = Mix::Seed.extents().iter().filter(|(pages, _)| *pages < 4);
        assert_eq!(short.map(|(_, weight)| weight).sum::<u32>(), 9700);
    }

    #[test]
    fn the_smaller_window_saves_what_the_comment_says() {
        let saved =
            |mix| f64::from(frames(mix, Window::Kib16)) / f64::from(frames(mix, Window::Kib64));
        assert!((0.59..0.63).contains(&saved(Mix::Seed)), "{}", saved(Mix::Seed));
        assert!((0.78..0.86).contains(&saved(Mix::Debian)), "{}", saved(Mix::Debian));
    }

    /// A-P8, A-P5: at most 17 frames or 5.
    #[test]
    fn a_request_never_needs_more_than_its_window() {
        let far = Request { pages_before: 500, purpose: Purpose::Demand };
        assert_eq!((far.frames(Window::Kib64), far.frames(Window::Kib16)), (17, 5));
        let first = Request { pages_before: 0, purpose: Purpose::Demand };
        assert_eq!(first.frames(Window::Kib64), 0);
    }

    #[test]
    fn sixty_four_frames_are_enough_for_nineteen_bursts_of_twenty() {
        let launches: Vec<_> = (0..100).map(|number| launch(SHARES, number)).collect();
        let bursts = launches.iter().flat_map(|requests| requests.chunks(IN_FLIGHT));
        let mut held: Vec<u32> = bursts
            .map(|burst| burst.iter().map(|request| request.frames(Window::Kib64)).sum())
            .collect();
        held.sort_unstable();
        assert!((50..=80).contains(&held[held.len() * 95 / 100]));
        assert!(*held.last().unwrap() <= 256);
    }

    #[test]
    fn every_way_has_its_turn_and_follows_one_and_another() {
        let first: Vec<_> = (0..50).map(|number| order(12, number)).collect();
        for order in &first {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..12).collect::<Vec<_>>());
        }
        let before_zero =
            |order: &Vec<u16>| order.windows(2).find(|pair| pair[1] == 0).map(|pair| pair[0]);
        let before: std::collections::HashSet<_> = first.iter().map(before_zero).collect();
        assert!(before.len() > 6, "{before:?}");
    }

    #[test]
    fn a_launch_is_the_same_each_time_and_has_the_shares_asked_for() {
        assert_eq!(launch(SHARES, 7), launch(SHARES, 7));
        assert_ne!(launch(SHARES, 7), launch(SHARES, 8));
        let none = RequestArguments { readahead: 0, ..SHARES };
        assert!(launch(none, 1).iter().all(|request| request.purpose == Purpose::Demand));
        let all = RequestArguments { readahead: 100, used: 100, ..SHARES };
        assert!(launch(all, 1).iter().all(|request| request.purpose == Purpose::ReadaheadUsed));
    }
}
