//! Recognises sequential readers of a remote object, and says what to prefetch for them. The window
//! is twice as long as what was read, so that a short read costs little and a long one keeps the
//! connections busy; a quarter of it is requested at a time, so that the rest is always in flight.

use std::ops::Range;

/// Readers that are followed at the same time.
const STREAMS: usize = 16;
/// The first window, in bytes: two chunks.
const WINDOW_MIN_BYTES: u64 = 2 << 20;
/// The longest window, in bytes: at 1 Gbit/s and 50 ms it covers five round trips.
const WINDOW_MAX_BYTES: u64 = 32 << 20;
/// A reader is sequential after so many bytes; reads of metadata and of small files never are.
const RUN_BYTES: u64 = 1 << 20;
/// A mount reads one file with several threads, and the kernel asks for several mebibytes ahead: reads
/// of a sequential reader come out of order by so many bytes.
const DISORDER_BYTES: u64 = 4 << 20;
/// Windows end at a multiple of the usual chunk, in bytes.
const STEP_BYTES: u64 = 1 << 20;

/// The sequential readers of one object.
#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    streams: [Stream; STREAMS],
    clock: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The byte behind the last one that was read; 0 for an unused entry.
    next: u64,
    /// Bytes that were read since it began, less those that were skipped. So reads here and there are
    /// never sequential.
    run_bytes: u64,
    /// Of the bytes that were skipped, those that were subtracted and did not come later.
    skipped_bytes: u64,
    /// The byte behind the last one that was prefetched.
    prefetched: u64,
    last_used: u64,
}

impl StreamTable {
    /// Records a read. Returns the bytes to prefetch now, if any.
    pub(crate) fn record(&mut self, range: &Range<u64>) -> Option<Range<u64>> {
        self.clock += 1;
        let clock = self.clock;
        let follows = |stream: &&mut Stream| {
            stream.next > 0
                && range.start <= stream.next.saturating_add(DISORDER_BYTES)
                && range.start.saturating_add(DISORDER_BYTES) >= stream.next
        };
        if let Some(stream) = self.streams.iter_mut().find(follows) {
            stream.last_used = clock;
            return stream.advance(range);
        }
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.last_used)?;
        let run_bytes = range.end.saturating_sub(range.start);
        *oldest = Stream { next: range.end, last_used: clock, run_bytes, ..Stream::default() };
        None
    }
}

impl Stream {
    fn advance(&mut self, range: &Range<u64>) -> Option<Range<u64>> {
        let late = range.end.min(self.next).saturating_sub(range.start).min(self.skipped_bytes);
        self.skipped_bytes -= late;
        self.run_bytes = self.run_bytes.saturating_add(late);
        if range.end <= self.next {
            return None;
        }
        let skipped = range.start.saturating_sub(self.next).min(self.run_bytes);
        self.skipped_bytes = self.skipped_bytes.saturating_add(skipped);
        let read = range.end.saturating_sub(range.start.max(self.next));
        self.run_bytes = (self.run_bytes - skipped).saturating_add(read);
        self.next = range.end;
        if self.run_bytes < RUN_BYTES {
            return None;
        }
        let window = self.run_bytes.saturating_mul(2).clamp(WINDOW_MIN_BYTES, WINDOW_MAX_BYTES);
        if self.next.saturating_add(window / 4 * 3) < self.prefetched {
            return None;
        }
        let start = self.prefetched.max(self.next);
        let end = self.next.saturating_add(window) / STEP_BYTES * STEP_BYTES;
        self.prefetched = start.max(end);
        (start < end).then_some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_a_sequential_reader_grow_and_do_not_overlap() {
        let mut table = StreamTable::default();
        let mut windows = Vec::new();
        for block in 0..4096u64 {
            windows.extend(table.record(&(block << 16..(block + 1) << 16)));
        }
        assert!(windows.is_sorted_by(|one, next| one.end <= next.start));
        let longest = windows.iter().map(|window| window.end - window.start).max();
        assert_eq!(longest, Some(WINDOW_MAX_BYTES / 4));
        assert!(windows.len() < 48, "{}", windows.len());
        let covered: u64 = windows.iter().map(|window| window.end - window.start).sum();
        assert!(covered > 250 << 20);
    }

    #[test]
    fn what_is_prefetched_is_at_most_twice_what_was_read_and_32_mib() {
        let mut table = StreamTable::default();
        let mut prefetched = 0;
        for block in 0..4096u64 {
            let read = (block + 1) << 16;
            if let Some(window) = table.record(&(block << 16..read)) {
                prefetched = window.end;
            }
            let ahead = prefetched.saturating_sub(read);
            assert!(ahead <= (2 * read).clamp(WINDOW_MIN_BYTES, WINDOW_MAX_BYTES) + STEP_BYTES);
            // From the first MiB on, something is always in flight.
            assert!(read < 17 << 16 || ahead >= (read / 2).min(24 << 20), "{read} {ahead}");
        }
    }

    #[test]
    fn random_reads_prefetch_nothing() {
        // Of a long object, and of one that is as long as the reads may be out of order.
        for shift in [8, 36, 42] {
            let mut table = StreamTable::default();
            for step in 0..10_000u64 {
                let at = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift;
                assert_eq!(table.record(&(at..at + 4096)), None, "{shift}");
            }
        }
    }

    #[test]
    fn threads_that_read_one_file_are_one_reader() {
        let mut table = StreamTable::default();
        let mut covered = 0;
        // Mebibytes in the order 3, 1, 0, 2, then the next four.
        for number in 0..256u64 {
            let at = (number / 4 * 4 + [3, 1, 0, 2][usize::try_from(number % 4).unwrap()]) << 20;
            let window = table.record(&(at..at + (1 << 20)));
            covered += window.map_or(0, |window| window.end - window.start);
        }
        assert!(covered > 240 << 20, "{covered}");
    }

    #[test]
    fn readers_that_alternate_are_followed_each() {
        let mut table = StreamTable::default();
        let mut windows = [0; 8];
        for block in 0..256u64 {
            for (reader, count) in windows.iter_mut().enumerate() {
                let start = ((reader as u64) << 40) + (block << 16);
                *count += u32::from(table.record(&(start..start + (1 << 16))).is_some());
            }
        }
        assert!(windows.iter().all(|count| *count > 2), "{windows:?}");
    }
}
