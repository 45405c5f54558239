//! A part of an LZ4 extent, decoded through a ring of pages.
//!
//! A match reaches back at most the declared distance, so only that much decoded data must be kept.
//! Page i of the extent is in slot i mod n of the ring, where n is the number of pages that the
//! distance can touch: no match reaches a page that was replaced. A complete page is copied to the
//! output if it is part of the request. `Lz4Decoder` calls.
//!
//! Input, ring and output never overlap, as they are separate borrows. The kernel decodes in place
//! where it can, with the input at the end of the output; what that needs (one mapping for both, a
//! margin, comparisons of lengths before they are subtracted) cannot go wrong here.
//!
//! There is no unsafe code: short copies have a fixed length and may write behind the byte where
//! they end, in the page that is being filled, which has no data there yet.
#![forbid(unsafe_code)]

use super::sequences::{Sequence, Sequences};
use crate::error::{ErrorKind, filled};
use crate::stream::{DecodeMode, Lz4Part};

/// The length of the pages that [`Decoder::decode_lz4_part`] works in.
///
/// [`Decoder::decode_lz4_part`]: crate::Decoder::decode_lz4_part
pub const LZ4_WINDOW_PAGE_BYTES: usize = 4096;
/// What the largest distance needs.
const SLOTS_MAX: usize = lz4_window_pages(u16::MAX, usize::MAX);
/// Literals are copied as this many where there are no more; the most common lengths.
const LITERAL_STEP: usize = 16;
/// The same for matches.
const MATCH_STEP: usize = 32;

type Page = [u8; LZ4_WINDOW_PAGE_BYTES];

/// The pages that are needed to decode the first `decoded_bytes` bytes of an extent whose matches
/// reach back `max_distance` bytes at most, where 0 stands for 65,535.
///
/// At most 17, and 5 for distances of 12,289 to 16,384.
#[must_use]
pub const fn lz4_window_pages(max_distance: u16, decoded_bytes: usize) -> usize {
    let farthest = if max_distance == 0 { u16::MAX } else { max_distance };
    let reach = (farthest as usize).div_ceil(LZ4_WINDOW_PAGE_BYTES) + 1;
    let extent = decoded_bytes.div_ceil(LZ4_WINDOW_PAGE_BYTES);
    if extent < reach { extent } else { reach }
}

/// Decodes `stream` as far as `part` wants it, and copies the part into `output`.
pub(super) fn decode<P: AsMut<[u8]>>(
    max_distance: u16,
    stream: &[u8],
    part: Lz4Part,
    output: &mut [u8],
    pages: &mut [P],
) -> Result<(), ErrorKind> {
    let Lz4Part { padding, extent_bytes, skip_bytes, mode } = part;
    let part_end = skip_bytes.checked_add(output.len()).filter(|end| *end <= extent_bytes);
    let part_end = part_end.ok_or(ErrorKind::OutsideExtent)?;
    let wanted = match mode {
        DecodeMode::Whole => extent_bytes,
        DecodeMode::Prefix => part_end,
    };
    let end = super::end(padding, mode);
    if i32::try_from(wanted).is_err() {
        return Err(ErrorKind::TooLarge);
    }
    if wanted == 0 {
        return super::decode_block(stream, output, end);
    }
    let mut sequences = Sequences::new(stream, wanted, end, max_distance);
    let count = lz4_window_pages(max_distance, wanted);
    let mut window = Window::new(pages, count, ExtentPart { output, skip_bytes })?;
    loop {
        let sequence = sequences.next()?;
        window.push(stream, &sequence).ok_or(ErrorKind::Corrupt)?;
        if sequence.is_last {
            break;
        }
    }
    window.flush().ok_or(ErrorKind::Corrupt)?;
    filled(sequences.yielded(), wanted)
}

/// The part of the output.
struct ExtentPart<'o> {
    output: &'o mut [u8],
    /// The bytes of the extent before it.
    skip_bytes: usize,
}

impl ExtentPart<'_> {
    /// Takes what is wanted of `bytes`, which are those of the extent from `start` on.
    fn receive(&mut self, start: usize, bytes: &[u8]) {
        let end = start + bytes.len();
        let part = self.skip_bytes..self.skip_bytes + self.output.len();
        let (from, to) = (start.max(part.start), end.min(part.end));
        if from < to {
            let output = &mut self.output[from - part.start..to - part.start];
            output.copy_from_slice(&bytes[from - start..to - start]);
        }
    }
}

/// The ring: what is being filled, and as many pages before it as a match can reach.
struct Window<'p, 'o> {
    /// The page in slot 0 is the first, and `count` slots are in use.
    slots: [Option<&'p mut Page>; SLOTS_MAX],
    count: usize,
    /// The slot whose page is being filled.
    current: usize,
    /// The bytes in that page.
    used: usize,
    /// Its place in the extent.
    start: usize,
    target: ExtentPart<'o>,
}

impl<'p, 'o> Window<'p, 'o> {
    fn new<P: AsMut<[u8]>>(
        pages: &'p mut [P],
        count: usize,
        target: ExtentPart<'o>,
    ) -> Result<Self, ErrorKind> {
        let mut slots = [const { None }; SLOTS_MAX];
        let given = pages.iter_mut().map_while(|page| page.as_mut().first_chunk_mut());
        let mut found = 0;
        for (slot, page) in slots.iter_mut().take(count).zip(given) {
            *slot = Some(page);
            found += 1;
        }
        if found < count {
            return Err(ErrorKind::WindowTooSmall { pages: found, needed: count });
        }
        Ok(Self { slots, count, current: 0, used: 0, start: 0, target })
    }

    /// Appends what `sequence` yields.
    #[inline(always)]
    fn push(&mut self, stream: &[u8], sequence: &Sequence) -> Option<()> {
        let Sequence { from, literals, distance, matched, .. } = *sequence;
        if literals <= LITERAL_STEP && self.literals_in_a_step(stream, from).is_some() {
            self.used += literals;
        } else {
            self.push_literals(stream.get(from..from + literals)?)?;
        }
        if matched <= MATCH_STEP && self.match_in_a_step(distance).is_some() {
            self.used += matched;
            Some(())
        } else {
            self.push_match(distance, matched)
        }
    }

    /// Copies a step of the input to where the literals go, if neither page nor input ends there.
    #[inline(always)]
    fn literals_in_a_step(&mut self, stream: &[u8], from: usize) -> Option<()> {
        let source = stream.get(from..)?.first_chunk::<LITERAL_STEP>()?;
        let page = self.slots.get_mut(self.current)?.as_deref_mut()?;
        *page.get_mut(self.used..)?.first_chunk_mut()? = *source;
        Some(())
    }

    /// Copies a step from `distance` back, if neither page ends there and the match does not
    /// overlap itself.
    #[inline(always)]
    fn match_in_a_step(&mut self, distance: usize) -> Option<()> {
        if distance < MATCH_STEP || self.used + MATCH_STEP > LZ4_WINDOW_PAGE_BYTES {
            return None;
        }
        let (slot, at) = self.source(distance);
        let page = self.slots.get(slot)?.as_deref()?;
        let step = *page.get(at..)?.first_chunk::<MATCH_STEP>()?;
        let page = self.slots.get_mut(self.current)?.as_deref_mut()?;
        *page.get_mut(self.used..)?.first_chunk_mut()? = step;
        Some(())
    }

    /// Where a match of this distance starts: the slot, and the byte of its page.
    ///
    /// Without a branch between this page and those before it, which could not be foretold.
    #[inline(always)]
    fn source(&self, distance: usize) -> (usize, usize) {
        let back = (distance + LZ4_WINDOW_PAGE_BYTES - 1 - self.used) / LZ4_WINDOW_PAGE_BYTES;
        let at = self.used + back * LZ4_WINDOW_PAGE_BYTES - distance;
        let slot = self.current.wrapping_sub(back);
        (if back > self.current { slot.wrapping_add(self.count) } else { slot }, at)
    }

    /// Copies literals of any length.
    #[inline(never)]
    fn push_literals(&mut self, literals: &[u8]) -> Option<()> {
        let mut rest = literals;
        while !rest.is_empty() {
            let (page, used) = self.writable_page()?;
            let (now, later) = rest.split_at(rest.len().min(page.len() - used));
            page[used..used + now.len()].copy_from_slice(now);
            self.used += now.len();
            rest = later;
        }
        Some(())
    }

    /// Copies a match of any length from anywhere in the window.
    #[inline(never)]
    fn push_match(&mut self, distance: usize, matched: usize) -> Option<()> {
        let mut left = matched;
        while left > 0 {
            let (page, used) = self.writable_page()?;
            let mut run = left.min(page.len() - used);
            if distance <= used {
                repeat(page, used, distance, run);
            } else {
                let (slot, at) = self.source(distance);
                run = run.min(LZ4_WINDOW_PAGE_BYTES - at);
                let [source, target] = self.slots.get_disjoint_mut([slot, self.current]).ok()?;
                let (source, target) = (source.as_deref()?, target.as_deref_mut()?);
                target[used..used + run].copy_from_slice(&source[at..at + run]);
            }
            self.used += run;
            left -= run;
        }
        Some(())
    }

    /// The page that takes the next byte, and where: the current one unless it is full.
    fn writable_page(&mut self) -> Option<(&mut Page, usize)> {
        if self.used == LZ4_WINDOW_PAGE_BYTES {
            self.flush()?;
            self.current = (self.current + 1) % self.count;
            (self.start, self.used) = (self.start + LZ4_WINDOW_PAGE_BYTES, 0);
        }
        Some((self.slots.get_mut(self.current)?.as_deref_mut()?, self.used))
    }

    /// Copies out what is wanted of the current page.
    fn flush(&mut self) -> Option<()> {
        let page = self.slots.get(self.current)?.as_deref()?;
        self.target.receive(self.start, page.get(..self.used)?);
        Some(())
    }
}

/// Fills `count` bytes at `at` with the `distance` bytes before them, again and again.
fn repeat(page: &mut Page, at: usize, distance: usize, count: usize) {
    match distance {
        0 => page[at..at + count].fill(0),
        1 => {
            let byte = page[at - 1];
            page[at..at + count].fill(byte);
        }
        _ => {
            let start = at - distance;
            let (mut have, all) = (distance, distance + count);
            while have < all {
                let step = have.min(all - have);
                page.copy_within(start..start + step, start + have);
                have += step;
            }
        }
    }
}
