//! Cuts files into tasks and bundles tasks into items of work. The cuts lie at fixed offsets of the
//! files, so that what comes out never depends on who works on what; it reads nothing but where holes
//! are.

use std::collections::VecDeque;

use crate::dedupe::Piece;
use crate::tree::Content;
use crate::{Error, ErrorKind, FragmentSharing, Result};

/// A file is cut at multiples of this: long enough that what the cut costs (half a block, and the
/// history of the encoder) is nothing, short enough for many workers and a bounded memory.
pub(crate) const SEGMENT_BYTES: u64 = 8 << 20;
/// Small tasks are bundled up to so many bytes, so that handing over costs nothing beside the work.
const ITEM_BYTES: u64 = 1 << 20;
/// A bundle of tiny files has an end, too.
const ITEM_TASKS: usize = 256;

/// What deduplication found.
pub(crate) trait Pieces {
    /// The pieces of a file, by its place in the data order.
    fn pieces(&self, file: usize) -> &[Piece];
}

/// What hands out items of work, in the order in which they are to be committed.
pub(crate) trait Items {
    /// Puts the next item of work into `tasks`, which is empty. Returns the bytes of it that are to be
    /// read; `None` when there is no further one.
    ///
    /// # Errors
    /// Whatever the making of tasks meets.
    fn next_item(&mut self, tasks: &mut Vec<Task>) -> Result<Option<u64>>;
}

/// How files are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Compressed, or flat where that gains nothing.
    Compressed,
    /// As they are; files of nothing but holes have no data at all if the flag says so.
    Flat {
        /// Whether the format has such files (48BIT).
        holes: bool,
    },
    /// In chunks of so many bytes: a power of two.
    Chunks(usize),
    /// As a whole in the packed inode.
    Packed,
}

/// How one file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// As the options say, and where it is compressed, by the recipe with this number.
    Recipe(usize),
    /// It is not compressed.
    AsIs,
}

impl Default for Choice {
    fn default() -> Self {
        Self::Recipe(0)
    }
}

/// Files that are to be stored, in data order, and what is known of them.
#[derive(Clone, Copy)]
pub(crate) struct Files<'f> {
    /// Their contents.
    pub(crate) contents: &'f [Content],
    /// By file; none stands for the default for all.
    pub(crate) choices: &'f [Choice],
    /// What deduplication found.
    pub(crate) pieces: Option<&'f dyn Pieces>,
}

/// A range of one file and what is to be done with it.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// The file's place in the data order.
    pub(crate) file: usize,
    /// Its content.
    pub(crate) content: Content,
    /// Where the range starts.
    pub(crate) start: u64,
    /// How long it is.
    pub(crate) bytes: u64,
    /// The number of the recipe by which it is encoded.
    pub(crate) recipe: usize,
    /// What is to be done.
    pub(crate) duty: Duty,
}

/// What is to be done with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Read and encode it.
    Encode(Freedom),
    /// Read it: whole blocks go to the image as they are.
    Lay,
    /// Nothing: it is a hole, of a chunk-based file or of everything.
    Skip,
    /// Read it, find zeros, hash the rest chunk by chunk.
    Chunk(usize),
    /// Read and hash it, all of the file.
    Hash,
    /// Nothing: all of the file goes to the packed inode, and no other file has this size.
    Pack,
    /// Nothing: an earlier place has it.
    Copy {
        /// The file that has it.
        of: usize,
        /// Where in it.
        offset: u64,
    },
}

/// What the encoding of a range may end in: for one that is not cut yet, in nothing of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Freedom {
    /// Inline behind the inode, or in the packed inode.
    pub(crate) may_end_apart: bool,
    /// Flat, where nothing is gained.
    pub(crate) may_be_flat: bool,
}

impl Task {
    /// Where the range ends.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }

    /// Whether it is the last of its file.
    pub(crate) fn closes(&self) -> bool {
        self.end() == self.content.bytes()
    }

    /// How many of its bytes lie before the next cut.
    fn first_segment(&self) -> u64 {
        self.bytes.min(SEGMENT_BYTES - self.start % SEGMENT_BYTES)
    }

    /// Whether somebody must read for it.
    pub(crate) fn is_read(&self) -> bool {
        !matches!(self.duty, Duty::Skip | Duty::Pack | Duty::Copy { .. })
    }
}

/// How files are stored that are to be compressed, and those that are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Styles {
    pub(crate) usual: Style,
    pub(crate) as_is: Style,
}

/// Cuts files, one after another.
pub(crate) struct Cutter<'f> {
    files: Files<'f>,
    styles: Styles,
    /// By file: the end of what others copy from it into their middle.
    copied_until: Vec<u64>,
    /// Sizes of files that come more than once.
    twin_sizes: Vec<u64>,
    next: usize,
    ready: VecDeque<Task>,
}

impl<'f> Cutter<'f> {
    /// Will cut these files in order.
    pub(crate) fn new(files: Files<'f>, styles: Styles, sharing: FragmentSharing) -> Result<Self> {
        let copied_until = match files.pieces {
            Some(pieces) => copied_until(files.contents, pieces)?,
            None => Vec::new(),
        };
        let compares = styles.usual == Style::Packed && sharing != FragmentSharing::Off;
        let twin_sizes = if compares { twin_sizes(files.contents) } else { Vec::new() };
        let ready = VecDeque::new();
        Ok(Self { files, styles, copied_until, twin_sizes, next: 0, ready })
    }

    fn cut_next_file(&mut self) -> Result<()> {
        let file = self.next;
        self.next += 1;
        let Some(content) = self.files.contents.get(file) else { return Ok(()) };
        let bytes = content.bytes();
        let (style, recipe) = match self.files.choices.get(file).copied().unwrap_or_default() {
            Choice::Recipe(recipe) => (self.styles.usual, recipe),
            Choice::AsIs => (self.styles.as_is, 0),
        };
        let mut add = |start, bytes, duty| {
            let content = content.clone();
            self.ready.push_back(Task { file, content, start, bytes, recipe, duty });
        };
        match style {
            _ if bytes == 0 => add(0, 0, Duty::Lay),
            Style::Packed if self.twin_sizes.binary_search(&bytes).is_ok() => {
                add(0, bytes, Duty::Hash);
            }
            Style::Packed => add(0, bytes, Duty::Pack),
            Style::Flat { holes: true } if content.store().data_ranges()?.is_empty() => {
                add(0, bytes, Duty::Skip);
            }
            Style::Flat { .. } => add(0, bytes, Duty::Lay),
            Style::Chunks(chunk) => self.cut_chunks(file, content, chunk)?,
            Style::Compressed => self.cut_pieces(file, content, recipe),
        }
        Ok(())
    }

    /// The first segment of the first range, and what its encoding may end in. A range is cut only now: a
    /// source may say that it has 2^63 bytes, and hold none.
    fn cut_range(&mut self) -> Option<Task> {
        let range = self.ready.front_mut()?;
        let is_cut = matches!(range.duty, Duty::Encode(_) | Duty::Lay | Duty::Chunk(_));
        let first = range.first_segment();
        let mut task = if is_cut && first < range.bytes {
            let task = Task { bytes: first, ..range.clone() };
            range.start += first;
            range.bytes -= first;
            task
        } else {
            self.ready.pop_front()?
        };
        if let Duty::Encode(freedom) = &mut task.duty {
            let copied_until = self.copied_until.get(task.file).copied().unwrap_or(0);
            freedom.may_end_apart = copied_until <= task.start;
            let is_whole = task.start == 0 && task.bytes == task.content.bytes();
            freedom.may_be_flat = is_whole && copied_until == 0;
        }
        Some(task)
    }

    fn cut_pieces(&mut self, file: usize, content: &Content, recipe: usize) {
        let whole = [Piece::Own { bytes: content.bytes() }];
        let pieces = self.files.pieces.map_or(&whole[..], |pieces| pieces.pieces(file));
        let mut start = 0;
        for &piece in pieces {
            let (bytes, duty) = match piece {
                Piece::Own { bytes } => (bytes, Duty::Encode(Freedom::default())),
                Piece::Copy { of, offset, bytes } => (bytes, Duty::Copy { of, offset }),
            };
            let content = content.clone();
            self.ready.push_back(Task { file, content, start, bytes, recipe, duty });
            start += bytes;
        }
    }

    /// Holes are skipped in whole chunks; a small file is not worth asking where it has any.
    fn cut_chunks(&mut self, file: usize, content: &Content, chunk: usize) -> Result<()> {
        let bytes = content.bytes();
        let everything = std::iter::once(0..bytes).collect();
        let ranges = if bytes > ITEM_BYTES { content.store().data_ranges()? } else { everything };
        let ready = &mut self.ready;
        let mut add = |start: u64, end: u64, duty| {
            if end > start {
                let bytes = end - start;
                let content = content.clone();
                ready.push_back(Task { file, content, start, bytes, recipe: 0, duty });
            }
        };
        let (of_chunk, chunk) = (Duty::Chunk(chunk), chunk as u64);
        let mut at = 0;
        for range in ranges {
            let start = (range.start & !(chunk - 1)).clamp(at, bytes);
            let end =
                range.end.checked_next_multiple_of(chunk).unwrap_or(bytes).clamp(start, bytes);
            add(at, start, Duty::Skip);
            add(start, end, of_chunk);
            at = end;
        }
        add(at, bytes, Duty::Skip);
        Ok(())
    }
}

impl Items for Cutter<'_> {
    fn next_item(&mut self, tasks: &mut Vec<Task>) -> Result<Option<u64>> {
        let mut bytes = 0_u64;
        while tasks.len() < ITEM_TASKS {
            while self.ready.is_empty() && self.next < self.files.contents.len() {
                self.cut_next_file()?;
            }
            let Some(range) = self.ready.front() else { break };
            let more = match range.duty {
                Duty::Hash => range.bytes.min(SEGMENT_BYTES),
                _ if range.is_read() => range.first_segment(),
                _ => 0,
            };
            if bytes > 0 && bytes + more > ITEM_BYTES {
                break;
            }
            bytes += more;
            tasks.extend(self.cut_range());
        }
        Ok(if tasks.is_empty() { None } else { Some(bytes) })
    }
}

/// By file: the end of what is copied from it to a place where the end of a file cannot be. Checks, too,
/// that the pieces of each file cover it.
fn copied_until(files: &[Content], pieces: &dyn Pieces) -> Result<Vec<u64>> {
    let mut until = vec![0_u64; files.len()];
    for (file, content) in files.iter().enumerate() {
        let mut at = 0_u64;
        for &piece in pieces.pieces(file) {
            let (Piece::Own { bytes } | Piece::Copy { bytes, .. }) = piece;
            let end = at.checked_add(bytes).filter(|end| bytes > 0 && *end <= content.bytes());
            at = end.ok_or_else(|| uncovered(content))?;
            let Piece::Copy { of, offset, bytes } = piece else { continue };
            if of > file || at == content.bytes() {
                continue;
            }
            if let Some(until) = until.get_mut(of) {
                *until = (*until).max(offset.saturating_add(bytes));
            }
        }
        if at != content.bytes() {
            return Err(uncovered(content));
        }
    }
    Ok(until)
}

fn uncovered(content: &Content) -> Error {
    let kind = ErrorKind::Defect("the pieces of a file do not add up to it");
    Error::new(kind).at(content.store().name())
}

fn twin_sizes(files: &[Content]) -> Vec<u64> {
    let mut sizes: Vec<u64> = files.iter().map(Content::bytes).collect();
    sizes.sort_unstable();
    let twins = sizes.windows(2).filter_map(|pair| match pair {
        [one, other] if one == other => Some(*one),
        _ => None,
    });
    let mut twins: Vec<u64> = twins.collect();
    twins.dedup();
    twins
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::memory_store::shrunk_content;

    #[test]
    fn a_source_that_claims_everything_is_cut_no_faster_than_it_is_worked_on() {
        let bytes = u64::MAX >> 1;
        let huge = [shrunk_content("huge", &[], bytes)];
        let files = Files { contents: &huge, choices: &[], pieces: None };
        for usual in [Style::Compressed, Style::Flat { holes: false }] {
            let styles = Styles { usual, as_is: usual };
            let mut cutter = Cutter::new(files, styles, FragmentSharing::Off).unwrap();
            for number in 0..3 {
                let mut tasks = Vec::new();
                assert_eq!(cutter.next_item(&mut tasks).unwrap(), Some(SEGMENT_BYTES));
                let [task] = &tasks[..] else { panic!("{tasks:?}") };
                assert_eq!((task.start, task.bytes), (number * SEGMENT_BYTES, SEGMENT_BYTES));
            }
            assert_eq!(cutter.ready.len(), 1);
        }
    }
}
