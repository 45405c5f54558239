//! Which files will be read next: those that follow, in the order in which the kernel was shown them, the ones that are
//! being read. A table of a fixed size, not one that grows with the image; what is forgotten is merely not predicted.
//! It reads nothing itself. Asked by `read`, told by `listing` and `lookup`; what it says goes to `push`.

use std::sync::{Mutex, PoisonError};

use ferrofs_image::Nid;

/// How many files are remembered: those that were shown last.
const FILES: usize = 1 << 14;
/// Files that are predicted at a time, once a reader has gone on in order for a while.
const MAX_PREDICTED: usize = 32;
/// How far a predictor looks over files that are done already.
const MAX_STEPS: usize = 96;

/// The kernel knows the inode, so that its pages can be given to it.
const KNOWN: u8 = 1;
/// The file was read.
const READ: u8 = 2;
/// The file was predicted.
const PREDICTED: u8 = 4;
const DONE: u8 = READ | PREDICTED;

/// What is known of the order of files.
#[derive(Debug, Default)]
pub(super) struct ReadPredictor {
    table: Mutex<PredictorTable>,
}

/// The files in the order in which they were shown; the oldest make room. Both parts are empty until a directory is
/// listed.
#[derive(Debug, Default)]
struct PredictorTable {
    ring: Vec<ListedFile>,
    /// How many were shown in all; the last one is at this place of the ring, less one.
    shown: usize,
    /// Where in the ring a file may be: a few places for each of the numbers that fall together.
    index: Vec<[u16; WAYS]>,
}

const WAYS: usize = 4;

/// A file that was shown.
#[derive(Clone, Copy, Debug)]
struct ListedFile {
    nid: Nid,
    state: u8,
    /// How many files in a row were read or predicted up to this one.
    run: u8,
}

/// Stands for no inode: none can lie there.
const NO_FILE: Nid = Nid::new(u64::MAX);

impl ReadPredictor {
    /// Regular files are shown in this order, each with whether the kernel knows it now.
    pub(super) fn record_listing(&self, files: &[(Nid, bool)]) {
        if files.is_empty() {
            return;
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.ring.is_empty() {
            table.ring = vec![ListedFile { nid: NO_FILE, state: 0, run: 0 }; FILES];
            table.index = vec![[0; WAYS]; FILES / WAYS];
        }
        for (nid, is_known) in files {
            table.insert(*nid, *is_known);
        }
    }

    /// The kernel knows this file now.
    pub(super) fn mark_known(&self, nid: Nid) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = table.place(nid)
            && let Some(listed) = table.ring.get_mut(place)
        {
            listed.state |= KNOWN;
        }
    }

    /// A file is being read from its start; answers which ones to get ready. One in their middle is left out: when
    /// it is asked for, the reader is seen to go on, with the other half still before it.
    pub(super) fn on_read(&self, nid: Nid) -> Vec<Nid> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.on_read(nid).unwrap_or_default()
    }
}

impl PredictorTable {
    fn insert(&mut self, nid: Nid, is_known: bool) {
        let place = self.shown % FILES;
        self.shown = self.shown.wrapping_add(1);
        let state = if is_known { KNOWN } else { 0 };
        let Some(listed) = self.ring.get_mut(place) else { return };
        *listed = ListedFile { nid, state, run: 0 };
        if let Some(ways) = self.index.get_mut(bucket(nid)) {
            ways.rotate_right(1);
            ways[0] = u16::try_from(place).unwrap_or(0);
        }
    }

    /// Where a file is in the ring; the latest place, if it was shown more than once.
    fn place(&self, nid: Nid) -> Option<usize> {
        let is_here = |place: &usize| self.ring.get(*place).is_some_and(|listed| listed.nid == nid);
        self.index.get(bucket(nid))?.iter().map(|place| usize::from(*place)).find(is_here)
    }

    fn on_read(&mut self, nid: Nid) -> Option<Vec<Nid>> {
        let place = self.place(nid)?;
        let before = place.checked_add(FILES)?.checked_sub(1)? % FILES;
        let before = self.ring.get(before).filter(|listed| listed.state & DONE != 0);
        let run = before.map_or(0, |listed| listed.run.saturating_add(1));
        let listed = self.ring.get_mut(place)?;
        let was_read = listed.state & READ != 0;
        listed.state |= READ;
        listed.run = run;
        // The kernel has let go of what it had, most likely of what follows, too.
        if was_read {
            self.clear_done(place);
        }
        if run == 0 {
            return None;
        }
        let most = 4usize
            .checked_shl(u32::from(run))
            .map_or(MAX_PREDICTED, |most| most.min(MAX_PREDICTED));
        let mut predicted = self.predict(place, run, most);
        if predicted.len() > 1 {
            let left_out = predicted.remove(predicted.len() / 2);
            self.ring.get_mut(left_out)?.state &= !PREDICTED;
        }
        let nid_at = |place: usize| self.ring.get(place).map(|listed| listed.nid);
        Some(predicted.into_iter().filter_map(nid_at).collect())
    }

    fn clear_done(&mut self, place: usize) {
        for step in 1..=MAX_STEPS {
            if let Some(listed) = self.ring.get_mut(place.saturating_add(step) % FILES) {
                listed.state &= !DONE;
            }
        }
    }

    /// Places of files to get ready.
    fn predict(&mut self, place: usize, mut run: u8, most: usize) -> Vec<usize> {
        let mut found = Vec::new();
        for step in 1..=MAX_STEPS {
            let at = place.saturating_add(step) % FILES;
            // What lies behind the last one was shown long ago.
            let is_end = at == self.shown % FILES;
            let Some(listed) = self.ring.get_mut(at).filter(|_| !is_end) else { break };
            run = run.max(listed.run).saturating_add(1);
            if listed.state & DONE == 0 {
                if listed.state & KNOWN == 0 || found.len() >= most {
                    break;
                }
                listed.state |= PREDICTED;
                listed.run = run;
                found.push(at);
            }
        }
        found
    }
}

/// Where the index looks for a file.
fn bucket(nid: Nid) -> usize {
    // Fibonacci hashing: the upper bits of the product.
    let mixed = nid.raw().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52;
    usize::try_from(mixed).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(count: u64) -> ReadPredictor {
        let predictor = ReadPredictor::default();
        let files: Vec<_> = (1..=count).map(|raw| (Nid::new(raw), true)).collect();
        predictor.record_listing(&files);
        predictor
    }

    fn raw(nids: &[Nid]) -> Vec<u64> {
        nids.iter().map(|nid| nid.raw()).collect()
    }

    #[test]
    fn one_file_says_nothing_and_two_in_a_row_do() {
        let predictor = shown(100);
        assert!(predictor.on_read(Nid::new(10)).is_empty());
        assert!(predictor.on_read(Nid::new(20)).is_empty());
        let predicted = predictor.on_read(Nid::new(11));
        assert_eq!(raw(&predicted), [12, 13, 14, 15, 17, 18, 19]);
    }

    /// The one that was left out is the signal to go on; nothing is predicted twice.
    #[test]
    fn a_reader_that_goes_on_meets_files_in_time() {
        let predictor = shown(200);
        let mut ready = std::collections::BTreeSet::new();
        let mut asked = 0;
        for number in 1..=200 {
            let nid = Nid::new(number);
            if ready.contains(&nid) {
                continue;
            }
            asked += 1;
            for predicted in predictor.on_read(nid) {
                assert!(ready.insert(predicted));
            }
        }
        assert!(asked < 20, "{asked} requests for 200 files");
    }

    #[test]
    fn files_that_the_kernel_does_not_know_end_a_prediction() {
        let predictor = ReadPredictor::default();
        let files = [(1, true), (2, true), (3, true), (4, false), (5, true)];
        predictor.record_listing(&files.map(|(raw, known)| (Nid::new(raw), known)));
        predictor.on_read(Nid::new(1));
        assert_eq!(raw(&predictor.on_read(Nid::new(2))), [3]);
        predictor.mark_known(Nid::new(4));
        predictor.on_read(Nid::new(3));
        assert_eq!(raw(&predictor.on_read(Nid::new(4))), [5]);
    }

    #[test]
    fn files_that_were_never_shown_say_nothing() {
        let predictor = ReadPredictor::default();
        assert!(predictor.on_read(Nid::new(1)).is_empty());
        let predictor = shown(5);
        assert!(predictor.on_read(Nid::new(77)).is_empty());
    }

    #[test]
    fn what_is_read_again_is_predicted_again() {
        let predictor = shown(100);
        for number in 1..=60 {
            predictor.on_read(Nid::new(number));
        }
        assert!(raw(&predictor.on_read(Nid::new(10))).contains(&11));
    }

    #[test]
    fn a_table_that_overflows_forgets_the_oldest() {
        let predictor = shown(40_000);
        predictor.on_read(Nid::new(1));
        assert!(predictor.on_read(Nid::new(2)).is_empty());
        predictor.on_read(Nid::new(39_000));
        assert_eq!(predictor.on_read(Nid::new(39_001)).len(), 7);
    }
}
