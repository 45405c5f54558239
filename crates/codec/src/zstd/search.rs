//! Finds how much input fills an output, from what attempts yielded.
//!
//! The attempts are few, so each is placed where the ones before point to: first by the ratio of the
//! call before, then along a line through what is known. Where several miss on one side, the curve is
//! not like a line, and steps grow or halve what is between. It ends as soon as little is left of the
//! output.

use crate::encoder::Filled;
use crate::guess::Guess;

/// It ends when less than one in this many bytes of the output is left.
const LEFT: usize = 400;
/// What all attempts but the first aim to leave, so that most fit: one in this many bytes.
const AIM: usize = 800;
/// It ends after this many attempts if less than one in so many bytes is left then.
const MUCH_LEFT: usize = 64;
const ATTEMPTS: usize = 6;
/// And after this many in any case: inputs whose prefixes do not get shorter are not worth more.
const ATTEMPTS_MAX: usize = 12;

/// What an attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tried {
    /// As many bytes.
    Yields(usize),
    /// More bytes than were counted.
    YieldsMore,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    input: usize,
    output: usize,
    /// What is tried next; none at the end.
    next: Option<usize>,
    attempts: usize,
    /// The longest that fits.
    fits: Filled,
    /// The shortest that does not fit, and what it yielded, if that is known.
    exceeds: Option<(usize, Option<usize>)>,
    /// How many attempts before the last one, in a row, missed on the same side.
    repeated: u32,
    last_fitted: bool,
}

impl Search {
    pub(super) fn new(input: usize, output: usize, guess: Guess) -> Self {
        let next = Some(guess.input_for(output - output / AIM).min(input));
        let fits = Filled { taken: 0, bytes: 0 };
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
    pub(super) fn best(&self) -> Filled {
        self.fits
    }

    pub(super) fn tell(&mut self, length: usize, tried: Tried) {
        let fitted = matches!(tried, Tried::Yields(bytes) if bytes <= self.output);
        let is_same = self.attempts > 0 && fitted == self.last_fitted;
        self.repeated = if is_same { self.repeated + 1 } else { 0 };
        self.last_fitted = fitted;
        self.attempts += 1;
        match tried {
            Tried::Yields(bytes) if fitted => {
                self.fits = Filled { taken: length, bytes };
            }
            Tried::Yields(bytes) => self.exceeds = Some((length, Some(bytes))),
            Tried::YieldsMore => self.exceeds = Some((length, None)),
        }
        self.next = if self.is_over() { None } else { self.place() };
    }

    fn is_over(&self) -> bool {
        let left = self.output - self.fits.bytes;
        let is_near = left <= self.output / LEFT;
        let is_enough = self.attempts >= ATTEMPTS && left <= self.output / MUCH_LEFT;
        is_near || is_enough || self.fits.taken == self.input || self.attempts >= ATTEMPTS_MAX
    }

    /// The next length, strictly between what fits and what does not.
    fn place(&self) -> Option<usize> {
        let aim = self.output - self.output / AIM;
        let Filled { taken, bytes } = self.fits;
        let along = |rise: usize, run: usize, wanted: usize| wanted * run / rise.max(1);
        let place = match self.exceeds {
            None => {
                taken + (along(bytes, taken, aim.saturating_sub(bytes)).max(1) << self.repeated)
            }
            Some((length, None)) => taken + (length - taken) / 2,
            Some((length, Some(more))) => {
                let line = |wanted| along(more - bytes, length - taken, wanted) << self.repeated;
                let place = if self.last_fitted {
                    taken + line(aim.saturating_sub(bytes))
                } else {
                    length.saturating_sub(line(more - aim))
                };
                let is_between = taken < place && place < length;
                if is_between { place } else { taken + (length - taken) / 2 }
            }
        };
        let beyond = self.exceeds.map_or(self.input + 1, |(length, _)| length);
        let place = place.min(beyond - 1).max(taken + 1);
        (place < beyond).then_some(place)
    }
}
