//! Reading one file in all ways, and comparing them.

use ferrofs_image::{Error, FilePiece, Image, Inode};

/// How much of a file is read in pieces before the rest is left alone.
const PIECES_MAX: usize = 256;
const BYTES_MAX: u64 = 1 << 20;
/// The most that one `read_at` asks for.
const RANGE_MAX: u64 = 24 << 10;
/// No more ranges are read once so many bytes have been decoded for the image: a range of a few bytes can cost
/// megabytes.
const DECODED_MAX_BYTES: u64 = 2 << 20;

/// What a body may take for granted about an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// A verification finds nothing wrong: all ways of reading give the same bytes.
    Sound,
    /// Entries may contradict each other. Then what is found depends on where one starts, and only
    /// the bounds hold.
    Doubtful,
}

/// How far the pieces of a file went.
#[derive(Debug)]
pub(crate) enum End {
    /// To the end of the file.
    Complete,
    /// As far as a body has time for.
    Stopped,
    /// To something damaged.
    Failed,
}

/// The front of a file, as its pieces gave it.
#[derive(Debug)]
pub(crate) struct Front {
    pieces: Vec<Kept>,
    pub(crate) end: End,
}

/// A piece; holes have no bytes.
#[derive(Debug)]
struct Kept {
    start: u64,
    length: u64,
    bytes: Option<Vec<u8>>,
}

enum Stop {
    Enough,
    Damage(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Damage(error)
    }
}

impl Front {
    /// Reads the pieces of `file`: they follow each other without a gap and end where it does.
    pub(crate) fn read(image: &Image, file: &Inode) -> Self {
        let mut pieces: Vec<Kept> = Vec::new();
        let (mut at, mut kept_bytes) = (0, 0);
        let result = image.for_each_piece(file, |piece| {
            let kept = match piece {
                FilePiece::Hole { offset, length } => Kept { start: offset, length, bytes: None },
                FilePiece::Data { offset, bytes } => {
                    let length = bytes.len() as u64;
                    Kept { start: offset, length, bytes: Some(bytes.to_vec()) }
                }
            };
            assert_eq!(kept.start, at, "a piece does not start where the one before it ended");
            assert!(kept.length > 0, "a piece of nothing");
            at = at.checked_add(kept.length).expect("pieces end within 64 bits");
            assert!(at <= file.size(), "a piece ends behind the file");
            kept_bytes += kept.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
            pieces.push(kept);
            let is_enough = pieces.len() >= PIECES_MAX || kept_bytes >= BYTES_MAX;
            if is_enough { Err(Stop::Enough) } else { Ok(()) }
        });
        let end = match result {
            Ok(()) => {
                assert_eq!(at, file.size(), "the pieces end early");
                End::Complete
            }
            Err(Stop::Enough) => End::Stopped,
            Err(Stop::Damage(error)) => {
                assert!(!error.to_string().is_empty());
                assert!(error.nid().is_some(), "an error without an inode: {error:?}");
                End::Failed
            }
        };
        Self { pieces, end }
    }

    /// How many bytes the pieces have.
    fn length(&self) -> u64 {
        self.pieces.last().map_or(0, |last| last.start + last.length)
    }

    /// Reads ranges near the borders of the pieces, and some behind the last one. In a sound file
    /// what the pieces gave comes out again.
    pub(crate) fn compare(&self, image: &Image, file: &Inode, trust: Trust) {
        let reader = Reader { front: self, image, file, trust };
        reader.range(1, RANGE_MAX);
        let count = self.pieces.len();
        let chosen = (0..count).filter(|at| *at < 4 || at + 3 > count || at % 61 == 0);
        for piece in chosen.map(|at| &self.pieces[at]) {
            let end = piece.start + piece.length;
            reader.range(piece.start, piece.length);
            reader.range(piece.start + piece.length / 2, 1);
            reader.range(end - 1, 2);
            reader.range(end.saturating_sub(600), 1200);
        }
        for start in [file.size() / 2, file.size().saturating_sub(5), file.size(), u64::MAX] {
            reader.range(start, 4096);
        }
    }

    /// Compares with the pieces, as far as they go.
    fn expect(&self, start: u64, found: &[u8]) {
        let end = start + found.len() as u64;
        let overlapping = |piece: &&Kept| piece.start < end && start < piece.start + piece.length;
        for piece in self.pieces.iter().filter(overlapping) {
            let from = piece.start.max(start);
            let to = (piece.start + piece.length).min(end);
            let index = |at: u64, base: u64| usize::try_from(at - base).expect("of a slice");
            let found = &found[index(from, start)..index(to, start)];
            let is_same = match &piece.bytes {
                Some(bytes) => *found == bytes[index(from, piece.start)..index(to, piece.start)],
                None => are_all(found, 0),
            };
            assert!(is_same, "bytes {from}..{to} differ from those of the piece");
        }
    }
}

/// Reads ranges of a file whose front is known.
struct Reader<'a> {
    front: &'a Front,
    image: &'a Image,
    file: &'a Inode,
    trust: Trust,
}

impl Reader<'_> {
    /// Reads `length` bytes from `start` on.
    fn range(&self, start: u64, length: u64) {
        let (image, file) = (self.image, self.file);
        if image.stats().bytes_decoded > DECODED_MAX_BYTES {
            return;
        }
        let length = length.min(RANGE_MAX);
        let rest = file.size().saturating_sub(start).min(length);
        let is_known = start.checked_add(rest).is_some_and(|end| end <= self.front.length());
        let mut buffer = vec![0xA5; usize::try_from(length).expect("bounded above")];
        match image.read_at(file, start, &mut buffer) {
            Ok(count) => {
                assert_eq!(count as u64, rest, "{length} bytes at {start} of {}", file.size());
                assert!(are_all(&buffer[count..], 0xA5), "a byte too many");
                if self.trust == Trust::Sound {
                    self.front.expect(start, &buffer[..count]);
                }
            }
            Err(error) => {
                let context = format!("{length} bytes at {start} of {}", file.size());
                let may_fail = self.trust == Trust::Doubtful || !is_known || rest == 0;
                assert!(may_fail, "{context}: {error}, and the pieces have them");
            }
        }
    }
}

/// Whether each byte is `value`; by one comparison of the slice with itself, which is fast under a
/// sanitizer too.
fn are_all(bytes: &[u8], value: u8) -> bool {
    let Some((first, rest)) = bytes.split_first() else { return true };
    *first == value && *rest == bytes[..rest.len()]
}

/// Reads a file in pieces and in ranges.
pub(crate) fn compare(image: &Image, file: &Inode, trust: Trust) -> End {
    let front = Front::read(image, file);
    front.compare(image, file, trust);
    front.end
}
