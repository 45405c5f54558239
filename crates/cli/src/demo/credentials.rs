//! Who runs the demonstration: root or not, and which users and groups have a number where it runs.

use std::fs;

use rustix::process::geteuid;

/// How many numbers there are for users; the last one means nobody in system calls.
const NUMBERS: u64 = u32::MAX as u64;
/// What stands for a user without a number, unless the system has another.
const OVERFLOW: u32 = 65_534;

/// Who runs the demonstration.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    pub(super) uid: u32,
    pub(super) users: IdMap,
    pub(super) groups: IdMap,
}

/// Which numbers of a user namespace mean somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IdMap {
    /// First number and how many.
    ranges: Vec<(u64, u64)>,
    overflow: u32,
}

impl Credentials {
    pub(super) fn current() -> Self {
        Self { uid: geteuid().as_raw(), users: IdMap::read("uid"), groups: IdMap::read("gid") }
    }

    /// Root of the whole system, and not of a user namespace of its own.
    pub(super) fn is_initial_root(&self) -> bool {
        self.uid == 0 && self.maps_all_ids()
    }

    pub(super) fn maps_all_ids(&self) -> bool {
        self.users.maps_all() && self.groups.maps_all()
    }
}

impl IdMap {
    /// Of `uid` or `gid`; all of them where `/proc` does not tell.
    fn read(kind: &str) -> Self {
        let map = fs::read_to_string(format!("/proc/self/{kind}_map")).unwrap_or_default();
        let overflow = fs::read_to_string(format!("/proc/sys/kernel/overflow{kind}"));
        let overflow = overflow.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW);
        Self::of(&map, overflow)
    }

    fn of(map: &str, overflow: u32) -> Self {
        let range = |line: &str| {
            let mut numbers = line.split_whitespace().map(str::parse);
            match (numbers.next(), numbers.next(), numbers.next()) {
                (Some(Ok(first)), Some(Ok::<u64, _>(_)), Some(Ok(count))) => Some((first, count)),
                _ => None,
            }
        };
        let mut ranges: Vec<(u64, u64)> = map.lines().filter_map(range).collect();
        if ranges.is_empty() {
            ranges.push((0, NUMBERS));
        }
        Self { ranges, overflow }
    }

    fn maps_all(&self) -> bool {
        self.ranges.iter().map(|(_, count)| count).sum::<u64>() >= NUMBERS
    }

    /// What the system shows for an owner that a file system gives as `number`.
    pub(super) fn shown(&self, number: u32) -> u32 {
        let is_in = |&(first, count): &(u64, u64)| {
            u64::from(number).checked_sub(first).is_some_and(|distance| distance < count)
        };
        if self.ranges.iter().any(is_in) { number } else { self.overflow }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_number_is_shown_as_nobody() {
        let all = IdMap::of("         0          0 4294967295\n", 65_534);
        assert!(all.maps_all());
        assert_eq!((all.shown(0), all.shown(4_294_967_294)), (0, 4_294_967_294));
        assert_eq!(all.shown(u32::MAX), 65_534);
        let two = IdMap::of("0 1000 1\n1000 100000 5\n", 99);
        assert!(!two.maps_all());
        assert_eq!([0, 1, 1000, 1004, 1005].map(|id| two.shown(id)), [0, 99, 1000, 1004, 99]);
        assert!(IdMap::of("", 99).maps_all() && IdMap::of("nonsense", 99).maps_all());
    }
}
