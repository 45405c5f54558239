//! Which files will be read next: those that follow, in the order in which the kernel was shown them, the ones that are
//! being read. A table of a fixed size, not one that grows with the image; what is forgotten is merely not foreseen.
//! It reads nothing itself. Asked by `read`, told by `listing` and `lookup`; what it says goes to `push`.

use std::sync::{Mutex, PoisonError};

use ferrofs_image::Nid;

/// How many files are remembered: the last ones that were shown, about.
const SLOTS: usize = 1 << 14;
/// Files that are foreseen at a time, once a reader has gone on in order for a while.
const MOST_FILES: usize = 32;
/// How far a walk goes over files that are done already.
const MOST_STEPS: usize = 96;

/// The kernel knows the inode, so that its pages can be given to it.
const KNOWN: u8 = 1;
/// The file was read.
const READ: u8 = 2;
/// The file was foreseen.
const FORESEEN: u8 = 4;

/// What is known of the order of files.
#[derive(Debug, Default)]
pub(super) struct Forecast {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Empty until a directory is listed.
    slots: Vec<Slot>,
    /// The file that was shown last.
    last: Option<Nid>,
}

/// A file, the one that was shown before it, and the one behind it.
#[derive(Clone, Copy, Debug)]
struct Slot {
    nid: Nid,
    before: Nid,
    next: Nid,
    state: u8,
    /// How many files in a row were read or foreseen up to this one.
    run: u8,
}

/// Stands for no inode: none can lie there.
const NONE: Nid = Nid::new(u64::MAX);
const EMPTY: Slot = Slot { nid: NONE, before: NONE, next: NONE, state: 0, run: 0 };

impl Forecast {
    /// Regular files are shown in this order, each with whether the kernel knows it now.
    pub(super) fn shown(&self, files: impl Iterator<Item = (Nid, bool)>) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.slots.is_empty() {
            table.slots = vec![EMPTY; SLOTS];
        }
        for (nid, is_known) in files {
            table.show(nid, is_known);
        }
    }

    /// The kernel knows this file now.
    pub(super) fn known(&self, nid: Nid) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = table.slot(nid) {
            slot.state |= KNOWN;
        }
    }

    /// A file is being read from its start; answers which ones to get ready. One in their middle is left out: when
    /// it is asked for, the reader is seen to go on, with the other half still before it.
    pub(super) fn read(&self, nid: Nid) -> Vec<Nid> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.read(nid).unwrap_or_default()
    }
}

impl Table {
    fn slot(&mut self, nid: Nid) -> Option<&mut Slot> {
        self.slots.get_mut(place(nid)).filter(|slot| slot.nid == nid)
    }

    fn show(&mut self, nid: Nid, is_known: bool) {
        let before = self.last.replace(nid).filter(|before| *before != nid).unwrap_or(NONE);
        if let Some(slot) = self.slot(before) {
            slot.next = nid;
        }
        let Some(slot) = self.slots.get_mut(place(nid)) else { return };
        if slot.nid != nid {
            *slot = Slot { nid, ..EMPTY };
        }
        slot.before = before;
        if is_known {
            slot.state |= KNOWN;
        }
    }

    fn read(&mut self, nid: Nid) -> Option<Vec<Nid>> {
        let before = self.slot(nid)?.before;
        let before = self.slot(before).filter(|slot| slot.state & (READ | FORESEEN) != 0);
        let run = before.map_or(0, |slot| slot.run.saturating_add(1));
        let slot = self.slot(nid)?;
        slot.state = slot.state & !FORESEEN | READ;
        slot.run = run;
        if run == 0 {
            return None;
        }
        let most =
            4usize.checked_shl(u32::from(run)).map_or(MOST_FILES, |most| most.min(MOST_FILES));
        let mut foreseen = self.foresee(nid, most);
        let middle = foreseen.len() / 2;
        if foreseen.len() > 1 {
            let left_out = foreseen.remove(middle);
            self.slot(left_out)?.state &= !FORESEEN;
        }
        Some(foreseen)
    }

    fn foresee(&mut self, nid: Nid, most: usize) -> Vec<Nid> {
        let mut found = Vec::new();
        let mut at = nid;
        let mut run = 0u8;
        for _ in 0..MOST_STEPS {
            let Some(slot) = self.slot(at) else { break };
            run = run.max(slot.run).saturating_add(1);
            at = slot.next;
            let Some(slot) = self.slot(at) else { break };
            if slot.state & (READ | FORESEEN) == 0 {
                if slot.state & KNOWN == 0 || found.len() >= most {
                    break;
                }
                slot.state |= FORESEEN;
                slot.run = run;
                found.push(at);
            }
        }
        found
    }
}

fn place(nid: Nid) -> usize {
    // Inodes are 32 bytes apart or 64, which spreads well without mixing; what lies far apart is mixed in.
    let raw = nid.raw();
    usize::try_from((raw ^ (raw >> 14) ^ (raw >> 28)) % 16_384).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(count: u64) -> Forecast {
        let forecast = Forecast::default();
        forecast.shown((1..=count).map(|raw| (Nid::new(raw), true)));
        forecast
    }

    fn raw(nids: &[Nid]) -> Vec<u64> {
        nids.iter().map(|nid| nid.raw()).collect()
    }

    #[test]
    fn one_file_says_nothing_and_two_in_a_row_do() {
        let forecast = shown(100);
        assert!(forecast.read(Nid::new(10)).is_empty());
        assert!(forecast.read(Nid::new(20)).is_empty());
        let foreseen = forecast.read(Nid::new(11));
        assert_eq!(raw(&foreseen), [12, 13, 14, 15, 17, 18, 19]);
    }

    /// The one that was left out is the signal to go on; nothing is foreseen twice.
    #[test]
    fn a_reader_that_goes_on_meets_files_in_time() {
        let forecast = shown(200);
        let mut ready = std::collections::BTreeSet::new();
        let mut asked = 0;
        for number in 1..=200 {
            let nid = Nid::new(number);
            if ready.contains(&nid) {
                continue;
            }
            asked += 1;
            for foreseen in forecast.read(nid) {
                assert!(ready.insert(foreseen));
            }
        }
        assert!(asked < 20, "{asked} requests for 200 files");
    }

    #[test]
    fn files_that_the_kernel_does_not_know_end_a_forecast() {
        let forecast = Forecast::default();
        forecast.shown(
            [(1, true), (2, true), (3, true), (4, false), (5, true)]
                .map(|(raw, known)| (Nid::new(raw), known))
                .into_iter(),
        );
        forecast.read(Nid::new(1));
        assert_eq!(raw(&forecast.read(Nid::new(2))), [3]);
        forecast.known(Nid::new(4));
        forecast.read(Nid::new(3));
        assert_eq!(raw(&forecast.read(Nid::new(4))), [5]);
    }

    #[test]
    fn files_that_were_never_shown_say_nothing() {
        let forecast = Forecast::default();
        assert!(forecast.read(Nid::new(1)).is_empty());
        let forecast = shown(5);
        assert!(forecast.read(Nid::new(77)).is_empty());
    }

    #[test]
    fn a_table_that_overflows_forgets_the_oldest() {
        let forecast = shown(40_000);
        forecast.read(Nid::new(1));
        assert!(forecast.read(Nid::new(2)).is_empty());
        forecast.read(Nid::new(39_000));
        assert_eq!(forecast.read(Nid::new(39_001)).len(), 7);
    }
}
