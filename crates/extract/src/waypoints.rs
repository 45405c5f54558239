//! Ways up a tree that is deeper than the number of directories that may be open: some of the closed
//! levels keep a descriptor. Called by `directory_stack` and `deferred_modes`, which know the levels.

use std::os::fd::{BorrowedFd, OwnedFd};

/// How many levels keep a file descriptor. Real trees are rarely deeper, and the usual limit of a
/// process is 1,024 descriptors.
pub(crate) const OPEN_LEVELS_MAX: usize = 64;

/// Some of the closed levels, evenly spaced, with a descriptor each: without them the way up from
/// level n would open n² / 128 directories.
#[derive(Debug)]
pub(crate) struct Waypoints {
    levels: Vec<(usize, OwnedFd)>,
    spacing: usize,
}

impl Waypoints {
    pub(crate) fn new() -> Self {
        Self { levels: Vec::new(), spacing: OPEN_LEVELS_MAX }
    }

    /// A level is being closed.
    pub(crate) fn add(&mut self, index: usize, directory: BorrowedFd<'_>) {
        let is_next = self.levels.last().is_none_or(|(last, _)| *last < index);
        if !is_next || !index.is_multiple_of(self.spacing) {
            return;
        }
        // Without a free descriptor the way up is longer.
        let Ok(fd) = directory.try_clone_to_owned() else { return };
        self.levels.push((index, fd));
        if self.levels.len() > OPEN_LEVELS_MAX {
            self.spacing *= 2;
            let spacing = self.spacing;
            self.levels.retain(|(index, _)| index.is_multiple_of(spacing));
        }
    }

    /// The deepest one among the first `count` levels.
    pub(crate) fn above(&self, count: usize) -> Option<(usize, &OwnedFd)> {
        let mut deepest_first = self.levels.iter().rev();
        let found = deepest_first.find(|(index, _)| *index < count);
        found.map(|(index, fd)| (*index, fd))
    }

    /// Only the first `count` levels are left.
    pub(crate) fn truncate(&mut self, count: usize) {
        while self.levels.last().is_some_and(|(index, _)| *index >= count) {
            self.levels.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn waypoints_are_few_and_never_far() {
        const DEPTH: usize = 10_000;
        let folder = TempDir::new().unwrap();
        let fd = fs::File::open(folder.path()).unwrap();
        let mut waypoints = Waypoints::new();
        for index in 0..DEPTH {
            waypoints.add(index, fd.as_fd());
            assert!(waypoints.levels.len() <= OPEN_LEVELS_MAX);
        }
        // A level that was opened again and closed again.
        waypoints.add(0, fd.as_fd());
        let spacing = DEPTH.div_ceil(OPEN_LEVELS_MAX).next_power_of_two();
        for count in (1..=DEPTH).rev() {
            waypoints.truncate(count);
            let (index, _) = waypoints.above(count).unwrap();
            assert!(index < count && count - index <= spacing, "{count}: {index}");
        }
        assert!(waypoints.above(0).is_none());
    }
}
