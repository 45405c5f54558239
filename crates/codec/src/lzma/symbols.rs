//! The symbols of a stream: literals, matches and repeated matches, straight into the output.
//!
//! The output is the dictionary: a stream starts without one, so everything that a match can repeat
//! is before it in the output. One loop decodes all symbols but the last few, while the input
//! certainly holds another symbol; it checks only that, and the room in the output. For the rest,
//! `LzmaDecoder` calls for one symbol at a time, over a copy of the input's end with zeros behind
//! it, and checks afterwards whether a symbol used some of them.
#![allow(unsafe_code, reason = "reads input and writes output without a check for each bit")]

use std::marker::PhantomData;

use super::probabilities::{
    COUNT, DISTANCE_ALIGN, DISTANCE_LOW, DISTANCE_SLOT, IS_MATCH, IS_REPEAT, IS_REPEAT_0,
    IS_REPEAT_0_LONG, IS_REPEAT_1, IS_REPEAT_2, LENGTH_CHOICE, LENGTH_CHOICE_2, LENGTH_HIGH,
    LENGTH_LOW, LENGTH_MIDDLE, LITERAL, MATCH_LENGTH, POSITION_STATES, Properties, REPEAT_LENGTH,
};
use super::range_decoder::{BitTrees, RANGE_MIN, RangeDecoder};

/// The most bytes that a symbol takes in.
///
/// A bit takes in one at most, and no symbol has more bits than a match with a new distance: 2 to
/// say so, 2 + 8 for its length, 6 for the slot of the distance, up to 26 of even chance, and 4.
pub(super) const SYMBOL_INPUT_MAX: usize = 48;

/// Why decoding paused or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// The output is full, or the input may not hold another symbol.
    OutputFull,
    /// The output is full, and the last match is longer.
    Overlong,
    /// A match begins before the output or farther back than the dictionary reaches.
    Distance,
}

/// How many symbols to decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SymbolCount {
    One,
    /// As many as the input certainly holds and the output has room for.
    All,
}

/// A stream between two symbols.
pub(super) struct Symbols<'a> {
    lzma_state: LzmaState,
    /// The properties are those that all encoders use if not told otherwise.
    is_default: bool,
    borrowed: PhantomData<(&'a mut [u16; COUNT], &'a mut [u8])>,
}

impl<'a> Symbols<'a> {
    pub(super) fn new(
        properties: Properties,
        probabilities: &'a mut [u16; COUNT],
        dictionary_bytes: usize,
        code: u32,
        output: &'a mut [u8],
    ) -> Self {
        let lzma_state = LzmaState {
            range: RangeDecoder { range: u32::MAX, code, next: std::ptr::null() },
            position: 0,
            state: 0,
            distances: [0; 4],
            previous: 0,
            probabilities: probabilities.as_mut_ptr(),
            output: output.as_mut_ptr(),
            output_bytes: output.len(),
            dictionary_bytes,
            position_mask: properties.position_mask(),
            literal_context_bits: properties.literal_context_bits,
            literal_mask: properties.literal_mask(),
        };
        Self { lzma_state, is_default: properties == Properties::DEFAULT, borrowed: PhantomData }
    }

    /// How many bytes of the output are decoded.
    pub(super) fn position(&self) -> usize {
        self.lzma_state.position
    }

    /// Whether the stream can end here, with `rest` behind it: the range decoder takes in all of it
    /// and is at zero then, as encoders leave it.
    pub(super) fn can_end(&self, rest: &[u8]) -> bool {
        let RangeDecoder { range, code, .. } = self.lzma_state.range;
        match rest {
            [] => range >= RANGE_MIN && code == 0,
            [last] => range < RANGE_MIN && code << 8 | u32::from(*last) == 0,
            _ => false,
        }
    }

    /// Decodes symbols from `input`, of which the first `taken` bytes have been taken in.
    ///
    /// # Panics
    ///
    /// If the output is full, or fewer than [`SYMBOL_INPUT_MAX`] bytes are left of the input.
    pub(super) fn decode<T: BitTrees>(
        &mut self,
        input: &[u8],
        taken: &mut usize,
        steps: SymbolCount,
    ) -> StopReason {
        assert!(self.lzma_state.position < self.lzma_state.output_bytes, "the output is full");
        let last_start = input.len().checked_sub(SYMBOL_INPUT_MAX);
        let last_start = last_start.filter(|last_start| *taken <= *last_start);
        let last_start = last_start.expect("a symbol may need more than is left of the input");
        let bytes = input.as_ptr_range();
        let limit = match steps {
            SymbolCount::One => std::ptr::null(),
            SymbolCount::All => bytes.start.wrapping_add(last_start),
        };
        self.lzma_state.range.next = bytes.start.wrapping_add(*taken);
        // SAFETY: `new` was given probabilities and output that nobody else can use while `self`
        // lives, and nobody but `run` changes the state. The output is not full, and at `next`
        // and at every place up to `limit` there are SYMBOL_INPUT_MAX bytes.
        let stop = unsafe {
            match self.is_default {
                true => run::<T, true>(&mut self.lzma_state, limit),
                false => run::<T, false>(&mut self.lzma_state, limit),
            }
        };
        *taken = self.lzma_state.range.next.addr() - bytes.start.addr();
        stop
    }
}

/// A stream between two symbols, in a form that fits into registers.
///
/// What keeps it sound: `state` is below 12. Each of `distances` is below `position`, or it is zero
/// and no match was decoded yet; with `state` at 7 or more a match was decoded. `probabilities` are
/// `COUNT`, and with `literal_context_bits` and `literal_mask` are for lc + lp of at most 4.
/// `position_mask` is below 16. `output` has `output_bytes` bytes, of which `position` are decoded.
#[derive(Clone, Copy)]
struct LzmaState {
    range: RangeDecoder,
    position: usize,
    state: usize,
    /// The last four distances, less one, the youngest first.
    distances: [u32; 4],
    /// The last byte, but for the lowest bit.
    previous: u32,
    probabilities: *mut u16,
    output: *mut u8,
    output_bytes: usize,
    dictionary_bytes: usize,
    position_mask: usize,
    literal_context_bits: u32,
    literal_mask: usize,
}

/// Decodes a symbol, and more until the output is full or `next` is beyond `limit`.
///
/// With `DEFAULT` the properties are constants.
///
/// # Safety
///
/// What `LzmaState` says holds, its memory is nobody else's, its output is not full, and at `next`
/// and all places up to `limit` there are `SYMBOL_INPUT_MAX` bytes.
#[inline(never)]
unsafe fn run<T: BitTrees, const DEFAULT: bool>(
    lzma_state: &mut LzmaState,
    limit: *const u8,
) -> StopReason {
    let mut here = *lzma_state;
    if DEFAULT {
        here.position_mask = Properties::DEFAULT.position_mask();
        here.literal_context_bits = Properties::DEFAULT.literal_context_bits;
        here.literal_mask = Properties::DEFAULT.literal_mask();
    }
    loop {
        // SAFETY: the caller's promise at first, and what is asked below after that.
        match unsafe { here.symbol::<T>() } {
            Ok(()) => {}
            Err(StopReason::Distance) => {
                // The rest would break what `LzmaState` promises.
                lzma_state.range = here.range;
                return StopReason::Distance;
            }
            Err(stop) => {
                *lzma_state = here;
                return stop;
            }
        }
        if here.position >= here.output_bytes || here.range.next > limit {
            *lzma_state = here;
            return StopReason::OutputFull;
        }
    }
}

impl LzmaState {
    /// Decodes a symbol.
    ///
    /// # Safety
    ///
    /// What `LzmaState` says holds, its memory is nobody else's, its output is not full, and there
    /// are `SYMBOL_INPUT_MAX` bytes at `next`. After `StopReason::Distance` it does not hold any
    /// more.
    #[inline(always)]
    unsafe fn symbol<T: BitTrees>(&mut self) -> Result<(), StopReason> {
        // SAFETY: the offsets into the probabilities are their layout, with the state below 12 and
        // the position state below 16; the pieces need together what was promised here.
        unsafe {
            let position_state = self.position & self.position_mask;
            let of_state = self.probabilities.add(self.state);
            let of_both = self.probabilities.add(self.state * POSITION_STATES + position_state);
            if !self.range.bit(of_both.add(IS_MATCH)) {
                self.literal::<T>();
                return Ok(());
            }
            if !self.range.bit(of_state.add(IS_REPEAT)) {
                self.state = if self.state < 7 { 7 } else { 10 };
                let length = self.length::<T>(MATCH_LENGTH, position_state);
                let distance = self.distance::<T>(length);
                let [first, second, third, _] = self.distances;
                self.distances = [distance, first, second, third];
                return self.repeat(length);
            }
            if self.range.bit(of_state.add(IS_REPEAT_0)) {
                self.older_distance(of_state);
            } else if !self.range.bit(of_both.add(IS_REPEAT_0_LONG)) {
                self.state = if self.state < 7 { 9 } else { 11 };
                return self.repeat_byte();
            }
            self.state = if self.state < 7 { 8 } else { 11 };
            let length = self.length::<T>(REPEAT_LENGTH, position_state);
            self.repeat(length)
        }
    }

    /// # Safety
    ///
    /// As for `symbol`, with 8 bytes of input.
    #[inline(always)]
    unsafe fn literal<T: BitTrees>(&mut self) {
        // SAFETY: the context is below 1 << (lc + lp), so its three trees are inside the
        // probabilities. From state 7 on there was a match, so the distance is less than the
        // position. The output has room for a byte.
        unsafe {
            let context = (self.position << 8) + self.previous as usize;
            let context = (context & self.literal_mask) << self.literal_context_bits;
            let trees = self.probabilities.add(LITERAL + 3 * context);
            let literal = if self.state < 7 {
                self.state = self.state.saturating_sub(3);
                T::literal(&mut self.range, trees)
            } else {
                self.state -= if self.state < 10 { 3 } else { 6 };
                let suggested = *self.output.add(self.position - self.distances[0] as usize - 1);
                T::matched(&mut self.range, trees, suggested)
            };
            self.previous = literal.early;
            *self.output.add(self.position) = literal.symbol.to_le_bytes()[0];
            self.position += 1;
        }
    }

    /// The length of a match, from the tables at `base`.
    ///
    /// # Safety
    ///
    /// As for `symbol`, with 10 bytes of input and a position state below 16.
    #[inline(always)]
    unsafe fn length<T: BitTrees>(&mut self, base: usize, position_state: usize) -> usize {
        // SAFETY: the offsets are the layout of the lengths.
        let length = unsafe {
            let tables = self.probabilities.add(base);
            if !self.range.bit(tables.add(LENGTH_CHOICE)) {
                let tree = tables.add(LENGTH_LOW + position_state * 8);
                T::tree::<3>(&mut self.range, tree) - 8 + 2
            } else if !self.range.bit(tables.add(LENGTH_CHOICE_2)) {
                let tree = tables.add(LENGTH_MIDDLE + position_state * 8);
                T::tree::<3>(&mut self.range, tree) - 8 + 10
            } else {
                T::tree::<8>(&mut self.range, tables.add(LENGTH_HIGH)) - 256 + 18
            }
        };
        length as usize
    }

    /// A new distance, less one.
    ///
    /// # Safety
    ///
    /// As for `symbol`, with 36 bytes of input.
    #[inline(always)]
    unsafe fn distance<T: BitTrees>(&mut self, length: usize) -> u32 {
        // SAFETY: the offsets are the layout of the probabilities, where DISTANCE_LOW says how the
        // reverse trees are packed; behind both kinds of them more follows than is in them.
        unsafe {
            let class = (length - 2).min(3);
            let tree = self.probabilities.add(DISTANCE_SLOT + 64 * class);
            let slot = T::tree::<6>(&mut self.range, tree) - 64;
            if slot < 4 {
                return slot;
            }
            let bits = (slot >> 1) - 1;
            let high = 2 + (slot & 1);
            if slot < 14 {
                let distance = high << bits;
                let tree = self.probabilities.add(DISTANCE_LOW + (distance - slot) as usize);
                distance + T::reverse(&mut self.range, tree, bits)
            } else {
                let distance = T::direct_bits(&mut self.range, high, bits - 4) << 4;
                let tree = self.probabilities.add(DISTANCE_ALIGN);
                distance + T::reverse_4(&mut self.range, tree)
            }
        }
    }

    /// Makes one of the distances before the last the last.
    ///
    /// # Safety
    ///
    /// As for `symbol`, with 2 bytes of input.
    #[inline(always)]
    unsafe fn older_distance(&mut self, of_state: *mut u16) {
        let [first, second, third, fourth] = self.distances;
        // SAFETY: the offsets are the layout of the probabilities.
        unsafe {
            self.distances = if !self.range.bit(of_state.add(IS_REPEAT_1)) {
                [second, first, third, fourth]
            } else if !self.range.bit(of_state.add(IS_REPEAT_2)) {
                [third, first, second, fourth]
            } else {
                [fourth, first, second, third]
            };
        }
    }

    /// A match of one byte at the last distance.
    ///
    /// # Safety
    ///
    /// As for `symbol`.
    #[inline(always)]
    unsafe fn repeat_byte(&mut self) -> Result<(), StopReason> {
        let distance = self.distances[0] as usize;
        if distance >= self.position {
            return Err(StopReason::Distance);
        }
        // SAFETY: the distance was compared, and the output has room for a byte.
        unsafe {
            let byte = *self.output.add(self.position - distance - 1);
            *self.output.add(self.position) = byte;
            self.previous = u32::from(byte);
        }
        self.position += 1;
        Ok(())
    }

    /// A match of `length` bytes at the last distance.
    ///
    /// # Safety
    ///
    /// As for `symbol`; `length` is not zero.
    #[inline(always)]
    unsafe fn repeat(&mut self, length: usize) -> Result<(), StopReason> {
        let distance = self.distances[0] as usize;
        if distance >= self.position || distance >= self.dictionary_bytes {
            return Err(StopReason::Distance);
        }
        let room = self.output_bytes - self.position;
        // SAFETY: the distance was compared with the position; what is written is compared with the
        // room.
        unsafe {
            let target = self.output.add(self.position);
            if room >= length + COPY_SLACK {
                copy_match(target, distance + 1, length);
            } else {
                copy_match_exact(target, distance + 1, length.min(room));
                if length > room {
                    self.position = self.output_bytes;
                    return Err(StopReason::Overlong);
                }
            }
            self.position += length;
            // Where it was repeated from, as that was mostly written long ago.
            self.previous = u32::from(*self.output.add(self.position - distance - 2));
        }
        Ok(())
    }
}

/// How far behind the end of a match [`copy_match`] may write.
const COPY_SLACK: usize = 32;

/// Repeats the `length` bytes that begin `distance` bytes before `target`.
///
/// # Safety
///
/// The `distance` bytes before `target` and the `length + COPY_SLACK` bytes from it on are one
/// piece of writable memory, and `distance` is not zero.
#[inline(always)]
unsafe fn copy_match(target: *mut u8, distance: usize, length: usize) {
    // SAFETY: a loop that stops at `end` writes up to 31 bytes behind it, and reads a multiple of
    // `distance` before what it writes. The loop between them writes its last step at 9 bytes
    // behind `target` at most (for a distance of 3), and leaves `to` at 21 at most.
    unsafe {
        let mut source = target.sub(distance).cast_const();
        let mut to = target;
        let end = target.add(length);
        if distance >= 32 {
            loop {
                copy_step::<32>(source, to);
                source = source.add(32);
                to = to.add(32);
                if to >= end {
                    return;
                }
            }
        }
        // The pattern is written once more, twice more and so on until a step fits in.
        let mut period = distance;
        while period < 16 {
            copy_step::<16>(source, to);
            to = to.add(period);
            period *= 2;
        }
        while to < end {
            copy_step::<16>(source, to);
            source = source.add(16);
            to = to.add(16);
        }
    }
}

/// Reads a step, then writes it: a step that overlaps its source copies old bytes.
///
/// # Safety
///
/// `BYTES` bytes can be read at `source` and written at `target`.
#[inline(always)]
unsafe fn copy_step<const BYTES: usize>(source: *const u8, target: *mut u8) {
    // SAFETY: the caller promises both; arrays of bytes have alignment 1.
    unsafe { *target.cast::<[u8; BYTES]>() = *source.cast::<[u8; BYTES]>() };
}

/// As [`copy_match`], but writes nothing behind the match.
///
/// # Safety
///
/// As for [`copy_match`], without the slack.
#[cold]
unsafe fn copy_match_exact(target: *mut u8, distance: usize, length: usize) {
    // SAFETY: the bytes read begin `distance` bytes before `target` and end before those written.
    unsafe {
        let source = target.sub(distance).cast_const();
        for at in 0..length {
            *target.add(at) = *source.add(at);
        }
    }
}
