//! What was told to the log, counted by kind, with the last of it. Filled by `meters`.

use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use ferrofs_fuse::Event;

use super::record::{self, NOTICE_BYTES};
use crate::notice::Notice;

/// Notices so far.
#[derive(Debug, Default)]
pub(super) struct Notices(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Without the age.
    counts: record::Notices,
    last: Option<Instant>,
}

impl Notices {
    pub(super) fn add(&self, notice: &Notice<'_>) {
        let mut text = Text { bytes: [0; NOTICE_BYTES], length: 0 };
        // It fails where the text is cut.
        write!(text, "{notice}").unwrap_or_default();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = place(&mut state.counts, notice);
        *count = count.saturating_add(1);
        state.counts.last_text = text.bytes;
        state.last = Some(Instant::now());
    }

    pub(super) fn read(&self) -> record::Notices {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |last: Instant| u64::try_from(last.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let last_age_ns = state.last.map_or(record::UNKNOWN, age);
        record::Notices { last_age_ns, ..state.counts }
    }
}

fn place<'a>(counts: &'a mut record::Notices, notice: &Notice<'_>) -> &'a mut u64 {
    match notice {
        Notice::Failed { .. } => &mut counts.failed,
        Notice::Session(event) => match event {
            Event::TimedOut { .. } => &mut counts.timed_out,
            Event::LetGo { .. } => &mut counts.let_go,
            Event::SpareListener { .. } => &mut counts.spares,
            Event::Panicked { .. } => &mut counts.panicked,
            Event::Malformed => &mut counts.malformed,
            Event::DeviceFailed { .. } => &mut counts.device_failed,
            _ => &mut counts.other,
        },
    }
}

/// The front of a text, cut between two characters.
struct Text {
    bytes: [u8; NOTICE_BYTES],
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let end = self.length.saturating_add(character.len_utf8());
            let room = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
            character.encode_utf8(room);
            self.length = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn notices_are_counted_by_kind_and_the_last_one_is_kept() {
        let notices = Notices::default();
        assert_eq!(notices.read(), record::Notices::default());
        notices.add(&Notice::Session(&Event::Malformed));
        let slow = Event::TimedOut { pid: 7, after: Duration::from_secs(1) };
        notices.add(&Notice::Session(&slow));
        let read = notices.read();
        assert_eq!((read.malformed, read.timed_out, read.failed), (1, 1, 0));
        assert!(read.last_text.starts_with(b"a request of thread 7 was given up"));
        assert!(record::known(read.last_age_ns).is_some());
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let mut text = Text { bytes: [0; NOTICE_BYTES], length: 0 };
        assert!(write!(text, "x{}", "\u{e9}".repeat(NOTICE_BYTES)).is_err());
        assert_eq!(text.length, NOTICE_BYTES - 1);
        assert!(std::str::from_utf8(&text.bytes[..text.length]).is_ok());
    }
}
