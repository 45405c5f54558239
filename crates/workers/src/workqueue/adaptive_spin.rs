//! How often a worker spins for work before it sleeps. Looking is worth its time while the submitter
//! runs on another CPU; where the two share one, it keeps away the thread that would bring the work.
//! No count of CPUs says which it is, so the worker goes by how its last spins ended.

/// Looks that are always left, as a part of the most.
const FLOOR_DIVISOR: u32 = 64;

/// How many spins are left, and how many there were last time.
#[derive(Debug)]
pub(super) struct AdaptiveSpin {
    most: u32,
    budget: u32,
    spins: u32,
}

impl AdaptiveSpin {
    /// `most` spins to begin with; none means to sleep at once, always.
    pub(super) const fn new(most: u32) -> Self {
        Self { most, budget: most, spins: 0 }
    }

    /// There was work. Found while looking, it doubles what the next wait may take.
    pub(super) fn work_found(&mut self) {
        if self.spins > 0 {
            self.budget = self.budget.saturating_mul(2).min(self.most);
            self.spins = 0;
        }
    }

    /// There was none; false when it is time to sleep, and then the next wait is half as long.
    pub(super) fn keep_spinning(&mut self) -> bool {
        if self.spins < self.budget {
            self.spins += 1;
            return true;
        }
        self.budget = (self.budget / 2).max(self.most / FLOOR_DIVISOR);
        self.spins = 0;
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::AdaptiveSpin;

    fn looks_until_sleep(spin: &mut AdaptiveSpin) -> u32 {
        let mut spins = 0;
        while spin.keep_spinning() {
            spins += 1;
        }
        spins
    }

    #[test]
    fn looking_in_vain_halves_the_next_wait_down_to_a_floor() {
        let mut spin = AdaptiveSpin::new(640);
        let waits: Vec<u32> = (0..8).map(|_| looks_until_sleep(&mut spin)).collect();
        assert_eq!(waits, [640, 320, 160, 80, 40, 20, 10, 10]);
    }

    #[test]
    fn work_found_while_looking_doubles_it_up_to_the_most() {
        let mut spin = AdaptiveSpin::new(640);
        for _ in 0..8 {
            looks_until_sleep(&mut spin);
        }
        for expected in [20, 40, 80, 160, 320, 640, 640] {
            assert!(spin.keep_spinning());
            spin.work_found();
            assert_eq!(spin.budget, expected);
        }
    }

    #[test]
    fn work_that_was_there_at_once_says_nothing() {
        let mut spin = AdaptiveSpin::new(640);
        looks_until_sleep(&mut spin);
        spin.work_found();
        assert_eq!(looks_until_sleep(&mut spin), 320);
    }

    #[test]
    fn no_looks_mean_no_looks() {
        let mut spin = AdaptiveSpin::new(0);
        assert!(!spin.keep_spinning());
        spin.work_found();
        assert!(!spin.keep_spinning());
    }
}
