//! The time that compact inodes share.

use ferrofs_ondisk::{TimeBase, Timestamp};

use crate::SuperblockTime;
use crate::spill::SpillStore;
use crate::spill::paged::Sorter;

/// The times of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SuperblockTimes {
    /// What compact inodes have for their time.
    pub(crate) base: TimeBase,
    /// The time of the image, in seconds after the epoch; the largest number stands for anything later.
    pub(crate) build_time: u32,
}

impl SuperblockTimes {
    /// The times for an image whose inodes have these.
    ///
    /// With a fixed time the epoch is that time. Otherwise the newest time is the image's, and the epoch
    /// is what most inodes have, so that most inodes can be compact; of equally frequent times it is the
    /// older. In a `wide` image compact inodes have seconds of their own after the epoch, and share the
    /// nanoseconds only: those that most inodes have, and the epoch is the oldest time with these.
    pub(crate) fn choose(
        wanted: SuperblockTime,
        wide: bool,
        times: impl Iterator<Item = Timestamp>,
        store: &SpillStore,
    ) -> Self {
        let mut sorter = Sorter::new(store);
        let mut newest = None;
        for time in times {
            newest = newest.max(Some(time.seconds));
            // Readers differ in what they make of an epoch before 1970.
            if let Ok(seconds) = u64::try_from(time.seconds) {
                // With the nanoseconds first where the most frequent ones are looked for.
                sorter.push(match wide {
                    true => (u64::from(time.nanoseconds), seconds),
                    false => (seconds, u64::from(time.nanoseconds)),
                });
            }
        }
        let newest = newest.unwrap_or(0).max(0);
        let (image, fixed) = match wanted {
            SuperblockTime::Fixed(seconds) => {
                let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
                (seconds, Some(seconds))
            }
            SuperblockTime::Newest => (newest, None),
        };
        let sorted = sorter.finish();
        let base = if wide { oldest(sorted, image) } else { most_frequent(sorted, image, fixed) };
        let build_time = u32::try_from(image.saturating_sub(base.epoch)).unwrap_or(u32::MAX);
        Self { base, build_time }
    }
}

/// The time that most inodes have, of those in the second `fixed` if there is one; else that of the image. Of equally
/// frequent ones it is the first.
fn most_frequent(
    times: impl Iterator<Item = (u64, u64)>,
    image: i64,
    fixed: Option<i64>,
) -> TimeBase {
    let is_wanted = |seconds: u64| fixed.is_none_or(|fixed| seconds == fixed.cast_unsigned());
    let times = times.filter(|(seconds, _)| is_wanted(*seconds));
    let most = most_frequent_run(times.map(|time| (time, ())));
    let (epoch, fixed_nsec) = most.map_or((image, 0), |((seconds, nanoseconds), ())| {
        (seconds.cast_signed(), u32::try_from(nanoseconds).unwrap_or(0))
    });
    TimeBase { epoch, fixed_nsec }
}

/// The nanoseconds that most inodes have, and the oldest second with these, or that of the image before it. `times` have
/// the nanoseconds first.
fn oldest(times: impl Iterator<Item = (u64, u64)>, image: i64) -> TimeBase {
    // Seconds ascend, so that the first one of a run is the oldest.
    let (fixed_nsec, epoch) =
        most_frequent_run(times).map_or((0, image), |(nanoseconds, first)| {
            (u32::try_from(nanoseconds).unwrap_or(0), first.cast_signed().min(image))
        });
    TimeBase { epoch, fixed_nsec }
}

/// The most frequent key of a sorted sequence, the first of equally frequent ones, with its first value.
fn most_frequent_run<K: PartialEq, V>(sorted: impl Iterator<Item = (K, V)>) -> Option<(K, V)> {
    let mut most: Option<(K, V, u64)> = None;
    let mut run: Option<(K, V, u64)> = None;
    let mut end_run = |run: Option<(K, V, u64)>| {
        if let Some(run) = run
            && most.as_ref().is_none_or(|most| run.2 > most.2)
        {
            most = Some(run);
        }
    };
    for (key, value) in sorted {
        match &mut run {
            Some((current, _, count)) if *current == key => *count += 1,
            _ => end_run(run.replace((key, value, 1))),
        }
    }
    end_run(run);
    most.map(|(key, value, _)| (key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(wanted: SuperblockTime, times: &[(i64, u32)]) -> (i64, u32, u32) {
        choose_for(wanted, false, times)
    }

    fn choose_for(wanted: SuperblockTime, wide: bool, times: &[(i64, u32)]) -> (i64, u32, u32) {
        let store = SpillStore::new(crate::SpillOptions::default());
        let times = times.iter();
        let times = times.map(|&(seconds, nanoseconds)| Timestamp { seconds, nanoseconds });
        let chosen = SuperblockTimes::choose(wanted, wide, times, &store);
        (chosen.base.epoch, chosen.base.fixed_nsec, chosen.build_time)
    }

    #[test]
    fn a_fixed_time_is_the_epoch() {
        assert_eq!(choose(SuperblockTime::Fixed(7), &[(1, 0), (1, 0)]), (7, 0, 0));
        assert_eq!(choose(SuperblockTime::Fixed(7), &[(7, 5), (7, 5), (7, 9), (8, 1)]), (7, 5, 0));
    }

    #[test]
    fn the_newest_time_is_the_images_and_the_commonest_its_inodes() {
        let times = [(30, 1), (10, 2), (10, 2), (20, 0)];
        assert_eq!(choose(SuperblockTime::Newest, &times), (10, 2, 20));
    }

    #[test]
    fn of_equally_frequent_times_the_older_counts() {
        assert_eq!(choose(SuperblockTime::Newest, &[(9, 0), (3, 5), (3, 4)]), (3, 4, 6));
    }

    #[test]
    fn one_file_from_the_far_future_does_not_move_the_epoch() {
        let times = [(1 << 33, 0), (1, 0), (1, 0)];
        assert_eq!(choose(SuperblockTime::Newest, &times), (1, 0, u32::MAX));
    }

    #[test]
    fn a_time_before_1970_is_no_epoch() {
        assert_eq!(choose(SuperblockTime::Newest, &[(-5, 0), (-5, 0), (1, 0)]), (1, 0, 0));
        assert_eq!(choose(SuperblockTime::Newest, &[(-5, 0)]), (0, 0, 0));
    }

    #[test]
    fn in_a_wide_image_the_commonest_nanoseconds_and_their_oldest_second_count() {
        let times = [(50, 7), (40, 7), (30, 7), (5, 0), (5, 0), (-9, 7), (60, 1)];
        assert_eq!(choose_for(SuperblockTime::Newest, true, &times), (30, 7, 30));
        assert_eq!(choose_for(SuperblockTime::Fixed(99), true, &times), (30, 7, 69));
        assert_eq!(choose_for(SuperblockTime::Fixed(3), true, &times), (3, 7, 0));
        assert_eq!(choose_for(SuperblockTime::Newest, true, &[(4, 9), (3, 2)]), (3, 2, 1));
        assert_eq!(choose_for(SuperblockTime::Newest, true, &[(-4, 9)]), (0, 0, 0));
    }
}
