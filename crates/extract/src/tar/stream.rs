//! The stream itself: segments in their order, the end, and what became of it all. It alone writes to
//! the output and calls back; it is on the caller's thread, by `Ordered` through [`super::write_tar`].

use std::collections::HashSet;
use std::io::Write;

use ferrofs_image::{Nid, Node};

use super::render::{Fact, Rendered};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Progress, Summary};

/// A tar ends at a multiple of this: the record of tape drives, which programs still expect.
const RECORD_BYTES: u64 = 10_240;
/// Two blocks of zeros are the end of a tar.
const END_BYTES: u64 = 1024;
/// More than the end and its padding.
static ZEROS: [u8; 16_384] = [0; 16_384];

/// A tar on its way out.
pub(super) struct Stream<'a> {
    out: &'a mut dyn Write,
    on_event: &'a mut dyn FnMut(Event),
    summary: Summary,
    entries: u64,
    /// Bytes that were written.
    position: u64,
    /// Inodes that are not in the stream; other names of them would lead nowhere.
    left_out: HashSet<Nid>,
    /// Why bytes of the current long file are zeros, and how many.
    damage: Option<(ErrorKind, u64)>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(out: &'a mut dyn Write, on_event: &'a mut dyn FnMut(Event)) -> Self {
        Self {
            out,
            on_event,
            summary: Summary::default(),
            entries: 0,
            position: 0,
            left_out: HashSet::new(),
            damage: None,
        }
    }

    /// Reports a failure.
    pub(super) fn fail(&mut self, error: Error) {
        self.summary.failures += 1;
        (self.on_event)(Event::Failed(error));
    }

    /// Writes the next segment; gives its buffer back.
    pub(super) fn write(&mut self, segment: Rendered) -> Result<Vec<u8>> {
        let Rendered { bytes, facts, counts, entries, ended, surplus: _until_written } = segment;
        let mut written = 0;
        for fact in facts {
            match fact {
                Fact::Failed(error) => self.fail(error),
                Fact::LeftOut(nid, error) => {
                    self.left_out.insert(nid);
                    self.fail(error);
                }
                Fact::Link(node, _) if !self.left_out.contains(&node.inode.nid()) => {
                    self.summary.hard_links += 1;
                }
                Fact::Link(node, range) => {
                    self.put(&bytes[written..range.start])?;
                    written = range.end;
                    let error = Error::new(ErrorKind::FirstNameLeftOut, &node.path);
                    self.fail(error.about(&node.inode));
                }
                Fact::Zeros(kind, zeros) => match &mut self.damage {
                    Some((_, sum)) => *sum = sum.saturating_add(zeros),
                    none => *none = Some((kind, zeros)),
                },
            }
        }
        self.put(&bytes[written..])?;
        if let Some(node) = ended {
            self.end_file(&node);
        }
        self.count(&counts);
        self.entries += entries;
        let progress = Progress { entries: self.entries, bytes: self.summary.bytes };
        (self.on_event)(Event::Progress(progress));
        Ok(bytes)
    }

    /// Writes the end of the tar.
    pub(super) fn end(mut self) -> Result<Summary> {
        let end = self.position.saturating_add(END_BYTES).next_multiple_of(RECORD_BYTES);
        let count = usize::try_from(end - self.position).unwrap_or(0);
        self.put(&ZEROS[..count.min(ZEROS.len())])?;
        self.out.flush().map_err(write_failed)?;
        Ok(self.summary)
    }

    /// A long file is complete; says once what is wrong with it.
    fn end_file(&mut self, node: &Node) {
        if let Some((source, zeros)) = self.damage.take() {
            let size = node.inode.size();
            let kind = ErrorKind::ZeroFilled { source: Box::new(source), zeros, size };
            self.fail(Error::new(kind, &node.path).about(&node.inode));
        }
    }

    fn count(&mut self, more: &Summary) {
        let sum = &mut self.summary;
        sum.files += more.files;
        sum.directories += more.directories;
        sum.symlinks += more.symlinks;
        sum.special += more.special;
        sum.withheld.special += more.withheld.special;
        sum.bytes = sum.bytes.saturating_add(more.bytes);
        sum.hole_bytes = sum.hole_bytes.saturating_add(more.hole_bytes);
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(write_failed)?;
        self.position = self.position.saturating_add(bytes.len() as u64);
        Ok(())
    }
}

fn write_failed(source: std::io::Error) -> Error {
    Error::new(ErrorKind::Output { operation: "cannot write the tar", source }, b"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_with_bad_parts_is_reported_once_with_all_its_zeros() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
        let image = ferrofs_image::Image::open(folder.join("plain.erofs")).unwrap();
        let node = Node { path: b"/long".to_vec(), inode: image.root().unwrap() };
        let (mut out, mut failures) = (Vec::new(), Vec::new());
        let mut on_event = |event| {
            if let Event::Failed(error) = event {
                failures.push(error.to_string());
            }
        };
        let mut stream = Stream::new(&mut out, &mut on_event);
        for (zeros, ended) in [(7, None), (5, None), (0, Some(node))] {
            let facts =
                if zeros > 0 { vec![Fact::Zeros(ErrorKind::Panicked, zeros)] } else { Vec::new() };
            let part = Rendered { bytes: vec![1; 512], facts, ended, ..Rendered::default() };
            assert_eq!(stream.write(part).unwrap().len(), 512);
        }
        assert_eq!(stream.end().unwrap().failures, 1);
        assert_eq!((out.len(), failures.len()), (10_240, 1));
        assert!(failures[0].starts_with("/long: reading it panicked; 12 of its "), "{failures:?}");
    }
}
