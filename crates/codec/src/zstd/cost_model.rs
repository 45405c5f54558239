//! Estimates the encoded length of each part of an input by one quick pass over it.
//!
//! The pass finds repeats as a quick encoder would, and adds up costs of repeats and of the
//! literals between them. The sums are far from the lengths that an encoder achieves, but nearly
//! proportional to them: what differs from place to place, as the density of a program does,
//! changes both. So the search for an input size interpolates along these costs, and not along the
//! bytes.
#![forbid(unsafe_code)]

use crate::error::ErrorKind;

/// Two to this power positions are kept.
const TABLE_BITS: u32 = 14;
/// Costs are kept for so many steps; behind them all steps are as on average.
const STEPS: usize = 4096;
/// Steps in as much input as the output is long: a ratio of 64 is covered.
const STEPS_OF_OUTPUT: usize = 64;
/// The shortest repeat.
const REPEAT_MIN: usize = 4;
/// Costs in sixteenths of a byte, about: what makes the costs of programs and texts proportional.
const LITERAL: u32 = 12;
const REPEAT: u32 = 32;

/// What [`CostModel::new`] takes.
pub(super) const BYTES: usize = ((1 << TABLE_BITS) + STEPS) * size_of::<u32>();

/// Costs of one input, as far as they were requested.
pub(super) struct CostModel {
    /// The last position of a hash, plus one; 0 is none.
    table: Box<[u32]>,
    /// The cost of everything up to the end of each step.
    costs: Vec<u32>,
    step: usize,
    /// Where the first step ends that has no cost yet: a division for each byte would take a third of the time.
    step_end: usize,
    /// How far the pass is, and the cost up to there.
    at: usize,
    cost: u32,
}

impl CostModel {
    pub(super) fn new() -> Result<Self, ErrorKind> {
        let (mut table, mut costs) = (Vec::new(), Vec::new());
        table.try_reserve_exact(1 << TABLE_BITS).map_err(|_| ErrorKind::OutOfMemory)?;
        table.resize(1 << TABLE_BITS, 0);
        costs.try_reserve_exact(STEPS).map_err(|_| ErrorKind::OutOfMemory)?;
        Ok(Self { table: table.into_boxed_slice(), costs, step: 1, step_end: 1, at: 0, cost: 0 })
    }

    /// Begins with another input, which is given to each call from now on.
    pub(super) fn begin(&mut self, output_bytes: usize) {
        self.table.fill(0);
        self.costs.clear();
        self.step = (output_bytes / STEPS_OF_OUTPUT).max(1);
        self.step_end = self.step;
        (self.at, self.cost) = (0, 0);
    }

    /// The cost of the first `length` bytes; of more bytes it is more.
    pub(super) fn cost(&mut self, input: &[u8], length: usize) -> u64 {
        let step = length / self.step;
        while self.costs.len() <= step && self.advance(input) {}
        let within = (length % self.step) as u64;
        let before = self.cost_before(step);
        match self.costs.get(step) {
            Some(&cost) => before + (u64::from(cost) - before) * within / self.step as u64,
            // A repeat to the end costs nothing more, and an input is at most 12 MiB long.
            None => before.max(1) * length as u64 / (self.costs.len() * self.step).max(1) as u64,
        }
    }

    /// About the length that costs as much; it may be beyond the end of the input.
    pub(super) fn length(&mut self, input: &[u8], cost: u64) -> usize {
        while self.costs.last().is_none_or(|&end| u64::from(end) <= cost) && self.advance(input) {}
        let step = self.costs.partition_point(|&end| u64::from(end) <= cost);
        let before = self.cost_before(step);
        let (bytes, of_cost, start) = match self.costs.get(step) {
            Some(&end) => (self.step, u64::from(end) - before, step * self.step),
            None => ((self.costs.len() * self.step).max(1), before, step * self.step),
        };
        let more = (cost - before).saturating_mul(bytes as u64) / of_cost.max(1);
        start.saturating_add(usize::try_from(more).unwrap_or(usize::MAX))
    }

    fn cost_before(&self, step: usize) -> u64 {
        let known = step.min(self.costs.len());
        known.checked_sub(1).and_then(|last| self.costs.get(last)).map_or(0, |&cost| cost.into())
    }

    /// Looks at some more of the input; false at its end, or where no more steps are kept.
    fn advance(&mut self, input: &[u8]) -> bool {
        let Some(word) = input.get(self.at..).and_then(<[u8]>::first_chunk) else { return false };
        if self.costs.len() == STEPS {
            return false;
        }
        let hash = u32::from_le_bytes(*word).wrapping_mul(2_654_435_761) >> (32 - TABLE_BITS);
        let slot = &mut self.table[hash as usize];
        // Inputs are at most 12 MiB long.
        let before = std::mem::replace(slot, u32::try_from(self.at + 1).unwrap_or(0)) as usize;
        let repeated = match before.checked_sub(1) {
            Some(earlier) if input[earlier..].starts_with(word) => {
                REPEAT_MIN + common(&input[earlier + REPEAT_MIN..], &input[self.at + REPEAT_MIN..])
            }
            _ => 0,
        };
        self.cost += if repeated > 0 { REPEAT } else { LITERAL };
        self.at += repeated.max(1);
        while self.step_end <= self.at && self.costs.len() < STEPS {
            self.costs.push(self.cost);
            self.step_end += self.step;
        }
        true
    }
}

/// How many bytes are equal at the start of both.
fn common(one: &[u8], other: &[u8]) -> usize {
    let (words, others) = (one.as_chunks::<8>().0, other.as_chunks::<8>().0);
    let equal = words.iter().zip(others).take_while(|(one, other)| one == other).count() * 8;
    let rest = one[equal..].iter().zip(&other[equal..]);
    equal + rest.take(8).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noise with a repeat of itself behind it.
    fn half_repeated() -> Vec<u8> {
        let mut state = 1_u32;
        let step = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let mut input: Vec<u8> = (0..10_000).map(step).collect();
        input.extend_from_within(..);
        input
    }

    #[test]
    fn literals_cost_and_a_repeat_hardly_does() {
        let input = half_repeated();
        let mut cost_model = CostModel::new().unwrap();
        cost_model.begin(4096);
        let half = cost_model.cost(&input, 10_000);
        assert!(half.abs_diff(10_000 * u64::from(LITERAL)) < half / 50, "{half}");
        let whole = cost_model.cost(&input, 20_000);
        assert!(half < whole && whole < half + half / 10, "{half} {whole}");
    }

    #[test]
    fn a_length_has_the_cost_that_it_was_found_by() {
        let input = half_repeated();
        for output in [32, 4096, 1 << 20] {
            let mut cost_model = CostModel::new().unwrap();
            cost_model.begin(output);
            for length in [1, 100, 5000, 9999, 15_000, 40_000] {
                let cost = cost_model.cost(&input, length);
                let found = cost_model.length(&input, cost);
                assert!(cost_model.cost(&input, found).abs_diff(cost) <= cost / 50 + 12);
            }
        }
    }

    #[test]
    fn inputs_without_anything_to_see_have_costs() {
        let mut cost_model = CostModel::new().unwrap();
        for input in [&[][..], &[1], &vec![0; 100_000]] {
            for output in [32, 65_536] {
                cost_model.begin(output);
                let cost = cost_model.cost(input, input.len());
                assert!(cost_model.length(input, cost + 1) > 0 || input.is_empty(), "{cost}");
            }
        }
    }
}
