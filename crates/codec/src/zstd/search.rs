//! Finds how much input fills an output, from what attempts yielded.
//!
//! The attempts are few, so each is placed where the ones before point to: first by what the call
//! before yielded for its cost, as `cost_model` counts it, then along a line through what is known of
//! costs and bytes. Where several miss on one side, the curve is not like a line, and steps grow or
//! halve what is between. It ends as soon as little is left of the output.

use super::cost_model::CostModel;
use crate::encoder::EncodedSizes;

/// It ends when less than one in this many bytes of the output is left after the first attempt, after
/// the next ones, and after [`ATTEMPTS`].
const SLACK_DIVISORS: [usize; 3] = [400, 128, 64];
/// What all attempts but the first target_bytes to leave, so that most fit: one in this many bytes.
const TARGET_SLACK_DIVISOR: usize = 800;
const ATTEMPTS: usize = 6;
/// It ends after this many in any case: inputs whose prefixes do not get shorter are not worth more.
const ATTEMPTS_MAX: usize = 12;

/// What an attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptResult {
    /// As many bytes.
    Yields(usize),
    /// More bytes than were counted.
    YieldsMore,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct InputSizeSearch {
    input: usize,
    output: usize,
    /// What is attempted next; none at the end.
    next: Option<usize>,
    attempts: usize,
    /// The longest that fits.
    fits: EncodedSizes,
    /// The shortest that does not fit, and what it yielded, if that is known.
    exceeds: Option<(usize, Option<usize>)>,
    /// How many attempts before the last one, in a row, missed on the same side.
    repeated: u32,
    last_fitted: bool,
}

impl InputSizeSearch {
    /// A search that begins with `first`.
    pub(super) fn new(input: usize, output: usize, first: usize) -> Self {
        let next = Some(first.min(input));
        let fits = EncodedSizes { taken: 0, bytes: 0 };
        Self {
            input,
            output,
            next,
            attempts: 0,
            fits,
            exceeds: None,
            repeated: 0,
            last_fitted: false,
        }
    }

    /// The length to try next.
    pub(super) fn next(&self) -> Option<usize> {
        self.next
    }

    /// The longest that fits, which is nothing if nothing did.
    pub(super) fn best(&self) -> EncodedSizes {
        self.fits
    }

    /// What the attempts after the first target_bytes at, and a good first one: bytes of the output.
    pub(super) fn target_bytes(output: usize) -> usize {
        output - output / TARGET_SLACK_DIVISOR
    }

    /// Takes in what an attempt came to; `input` and `cost_model` say where the next one is placed.
    pub(super) fn record(
        &mut self,
        (length, attempted): (usize, AttemptResult),
        input: &[u8],
        cost_model: &mut CostModel,
    ) {
        let fitted = matches!(attempted, AttemptResult::Yields(bytes) if bytes <= self.output);
        let is_same = self.attempts > 0 && fitted == self.last_fitted;
        self.repeated = if is_same { self.repeated + 1 } else { 0 };
        self.last_fitted = fitted;
        self.attempts += 1;
        match attempted {
            AttemptResult::Yields(bytes) if fitted => {
                self.fits = EncodedSizes { taken: length, bytes };
            }
            AttemptResult::Yields(bytes) => self.exceeds = Some((length, Some(bytes))),
            AttemptResult::YieldsMore => self.exceeds = Some((length, None)),
        }
        self.next = if self.is_over() { None } else { self.place(input, cost_model) };
    }

    fn is_over(&self) -> bool {
        let [first, next, late] = SLACK_DIVISORS;
        let part = match self.attempts {
            ..=1 => first,
            2..ATTEMPTS => next,
            _ => late,
        };
        let is_near = self.output - self.fits.bytes <= self.output / part;
        is_near || self.fits.taken == self.input || self.attempts >= ATTEMPTS_MAX
    }

    /// The next length, strictly between what fits and what does not.
    fn place(&self, input: &[u8], cost_model: &mut CostModel) -> Option<usize> {
        let target_bytes = Self::target_bytes(self.output) as u64;
        let EncodedSizes { taken, bytes } = self.fits;
        let (bytes, cost) = (bytes as u64, cost_model.cost(input, taken));
        let along =
            |rise: u64, run: u64, wanted: u64| (wanted * run / rise.max(1)) << self.repeated;
        let place = match self.exceeds {
            None => cost + along(bytes, cost, target_bytes.saturating_sub(bytes)).max(1),
            Some((length, more)) => {
                let beyond = cost_model.cost(input, length);
                let middle = cost.midpoint(beyond);
                let run = beyond.saturating_sub(cost);
                let place = more.map(|more| more as u64).map_or(middle, |more| {
                    let line = |wanted| along(more - bytes, run, wanted);
                    if self.last_fitted {
                        cost + line(target_bytes.saturating_sub(bytes))
                    } else {
                        beyond.saturating_sub(line(more - target_bytes))
                    }
                });
                if cost < place && place < beyond { place } else { middle }
            }
        };
        let place = cost_model.length(input, place);
        let beyond = self.exceeds.map_or(self.input + 1, |(length, _)| length);
        // Where costs record nothing, what is between is halved.
        let is_between = taken < place && (place < beyond || self.exceeds.is_none());
        let place = if is_between { place } else { taken.midpoint(beyond) };
        let place = place.min(beyond - 1).max(taken + 1);
        (place < beyond).then_some(place)
    }
}
