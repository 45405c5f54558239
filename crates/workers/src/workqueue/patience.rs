//! How often a worker looks for work before it sleeps. Looking is worth its time while the submitter
//! runs on another CPU; where the two share one, it keeps away the thread that would bring the work.
//! No count of CPUs says which it is, so the worker goes by how its last looks ended.

/// Looks that are always left, as a part of the most.
const FLOOR_DIVISOR: u32 = 64;

/// How many looks are left, and how many there were last time.
#[derive(Debug)]
pub(super) struct Patience {
    most: u32,
    budget: u32,
    looks: u32,
}

impl Patience {
    /// `most` looks to begin with; none means to sleep at once, always.
    pub(super) const fn new(most: u32) -> Self {
        Self { most, budget: most, looks: 0 }
    }

    /// There was work. Found while looking, it doubles what the next wait may take.
    pub(super) fn found(&mut self) {
        if self.looks > 0 {
            self.budget = self.budget.saturating_mul(2).min(self.most);
            self.looks = 0;
        }
    }

    /// There was none; false when it is time to sleep, and then the next wait is half as long.
    pub(super) fn look_again(&mut self) -> bool {
        if self.looks < self.budget {
            self.looks += 1;
            return true;
        }
        self.budget = (self.budget / 2).max(self.most / FLOOR_DIVISOR);
        self.looks = 0;
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Patience;

    fn looks_until_sleep(patience: &mut Patience) -> u32 {
        let mut looks = 0;
        while patience.look_again() {
            looks += 1;
        }
        looks
    }

    #[test]
    fn looking_in_vain_halves_the_next_wait_down_to_a_floor() {
        let mut patience = Patience::new(640);
        let waits: Vec<u32> = (0..8).map(|_| looks_until_sleep(&mut patience)).collect();
        assert_eq!(waits, [640, 320, 160, 80, 40, 20, 10, 10]);
    }

    #[test]
    fn work_found_while_looking_doubles_it_up_to_the_most() {
        let mut patience = Patience::new(640);
        for _ in 0..8 {
            looks_until_sleep(&mut patience);
        }
        for expected in [20, 40, 80, 160, 320, 640, 640] {
            assert!(patience.look_again());
            patience.found();
            assert_eq!(patience.budget, expected);
        }
    }

    #[test]
    fn work_that_was_there_at_once_says_nothing() {
        let mut patience = Patience::new(640);
        looks_until_sleep(&mut patience);
        patience.found();
        assert_eq!(looks_until_sleep(&mut patience), 320);
    }

    #[test]
    fn no_looks_mean_no_looks() {
        let mut patience = Patience::new(0);
        assert!(!patience.look_again());
        patience.found();
        assert!(!patience.look_again());
    }
}
