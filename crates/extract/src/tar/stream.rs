//! The stream itself: segments in their order, the end, and what became of it all. It alone writes to
//! the output and calls back; it is on the caller's thread, by `OrderedPipeline` through [`super::write_tar`].

use std::collections::HashSet;
use std::io::Write;

use ferrofs_image::{Nid, WalkEntry};

use super::render::{RenderedSegment, SegmentEvent};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{ExtractEvent, ExtractProgress, ExtractSummary};

/// A tar ends at a multiple of this: the record of tape drives, which programs still expect.
const RECORD_BYTES: u64 = 10_240;
/// Two blocks of zeros are the end of a tar.
const END_BYTES: u64 = 1024;
/// More than the end and its padding.
static ZEROS: [u8; 16_384] = [0; 16_384];

/// A tar on its way out.
pub(super) struct TarStream<'a> {
    out: &'a mut dyn Write,
    on_event: &'a mut dyn FnMut(ExtractEvent),
    summary: ExtractSummary,
    entries: u64,
    /// Bytes that were written.
    position: u64,
    /// Inodes that are not in the stream; other names of them would lead nowhere.
    left_out: HashSet<Nid>,
    /// Why bytes of the current long file are zeros, and how many.
    damage: Option<(ErrorKind, u64)>,
}

impl<'a> TarStream<'a> {
    pub(super) fn new(out: &'a mut dyn Write, on_event: &'a mut dyn FnMut(ExtractEvent)) -> Self {
        Self {
            out,
            on_event,
            summary: ExtractSummary::default(),
            entries: 0,
            position: 0,
            left_out: HashSet::new(),
            damage: None,
        }
    }

    /// Reports a failure.
    pub(super) fn fail(&mut self, error: Error) {
        self.summary.failures += 1;
        (self.on_event)(ExtractEvent::Failed(error));
    }

    /// Writes the next segment; gives its buffer back.
    pub(super) fn write(&mut self, segment: RenderedSegment) -> Result<Vec<u8>> {
        let RenderedSegment { bytes, events, counts, entries, ended, surplus: _until_written } =
            segment;
        let mut written = 0;
        for event in events {
            match event {
                SegmentEvent::Failed(error) => self.fail(error),
                SegmentEvent::LeftOut(nid, error) => {
                    self.left_out.insert(nid);
                    self.fail(error);
                }
                SegmentEvent::Link(node, _) if !self.left_out.contains(&node.inode.nid()) => {
                    self.summary.hard_links += 1;
                }
                SegmentEvent::Link(node, range) => {
                    self.write_bytes(&bytes[written..range.start])?;
                    written = range.end;
                    let error = Error::new(ErrorKind::FirstNameLeftOut, &node.path);
                    self.fail(error.about(&node.inode));
                }
                SegmentEvent::Zeros(kind, zeros) => match &mut self.damage {
                    Some((_, sum)) => *sum = sum.saturating_add(zeros),
                    none => *none = Some((kind, zeros)),
                },
            }
        }
        self.write_bytes(&bytes[written..])?;
        if let Some(node) = ended {
            self.end_file(&node);
        }
        self.count(&counts);
        self.entries += entries;
        let progress = ExtractProgress { entries: self.entries, bytes: self.summary.bytes };
        (self.on_event)(ExtractEvent::Progress(progress));
        Ok(bytes)
    }

    /// Writes the end of the tar.
    pub(super) fn end(mut self) -> Result<ExtractSummary> {
        let end = self.position.saturating_add(END_BYTES).next_multiple_of(RECORD_BYTES);
        let count = usize::try_from(end - self.position).unwrap_or(0);
        self.write_bytes(&ZEROS[..count.min(ZEROS.len())])?;
        self.out.flush().map_err(write_failed)?;
        Ok(self.summary)
    }

    /// A long file is complete; says once what is wrong with it.
    fn end_file(&mut self, node: &WalkEntry) {
        if let Some((source, zeros)) = self.damage.take() {
            let size = node.inode.size();
            let kind = ErrorKind::ZeroFilled { source: Box::new(source), zeros, size };
            self.fail(Error::new(kind, &node.path).about(&node.inode));
        }
    }

    fn count(&mut self, more: &ExtractSummary) {
        let sum = &mut self.summary;
        sum.files += more.files;
        sum.directories += more.directories;
        sum.symlinks += more.symlinks;
        sum.special += more.special;
        sum.skipped.special += more.skipped.special;
        sum.bytes = sum.bytes.saturating_add(more.bytes);
        sum.hole_bytes = sum.hole_bytes.saturating_add(more.hole_bytes);
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
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
        let node = WalkEntry { path: b"/long".to_vec(), inode: image.root().unwrap() };
        let (mut out, mut failures) = (Vec::new(), Vec::new());
        let mut on_event = |event| {
            if let ExtractEvent::Failed(error) = event {
                failures.push(error.to_string());
            }
        };
        let mut stream = TarStream::new(&mut out, &mut on_event);
        for (zeros, ended) in [(7, None), (5, None), (0, Some(node))] {
            let events = if zeros > 0 {
                vec![SegmentEvent::Zeros(ErrorKind::Panicked, zeros)]
            } else {
                Vec::new()
            };
            let part = RenderedSegment {
                bytes: vec![1; 512],
                events,
                ended,
                ..RenderedSegment::default()
            };
            assert_eq!(stream.write(part).unwrap().len(), 512);
        }
        assert_eq!(stream.end().unwrap().failures, 1);
        assert_eq!((out.len(), failures.len()), (10_240, 1));
        assert!(failures[0].starts_with("/long: reading it panicked; 12 of its "), "{failures:?}");
    }
}
