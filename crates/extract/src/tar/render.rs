//! From segments of the planner to the stream. [`Renderer`] turns a segment into bytes in memory,
//! on any thread; its result depends on the segment alone. [`TarStream`] writes the results in
//! their order on the caller's thread, and alone calls back.

use std::io::Write;
use std::ops::Range;

use ferrofs_image::{FileType, Image, Inode, InodeSet, Nid, WalkEntry, Xattr};
use ferrofs_workers::CancelToken;
use ferrofs_workers::memory::{AllocPolicy, Budget, Charge};

use super::check_cancelled;
use super::header::{self, MemberHeader, TypeFlag};
use super::layout::SparseLayout;
use super::planner::{SEGMENT_MAX_BYTES, TarFilePart, TarItem, TarSegment};
use crate::error::{Error, ErrorKind, Result, catch_panic};
use crate::event::{ExtractEvent, ExtractProgress, ExtractSummary};
use crate::limits::ExtractLimits;
use crate::metadata::permissions;
use crate::options::HolePolicy;

/// The bytes of a segment.
#[derive(Debug, Default)]
pub(super) struct RenderedSegment {
    pub(super) bytes: Vec<u8>,
    /// Events in the order of the bytes.
    pub(super) events: Vec<SegmentEvent>,
    /// Counts of the members without links.
    pub(super) counts: ExtractSummary,
    /// Entries that were written, failed or skipped.
    pub(super) entries: u64,
    /// The long file that ends here.
    pub(super) ended: Option<WalkEntry>,
    /// The charge for memory beyond the charge of every segment.
    pub(super) surplus: Option<Charge>,
    /// The segment itself, if it is rendered when everything before it is written, and the bytes of
    /// its attributes.
    pub(super) deferred: Option<(TarSegment, u64)>,
}

/// Something in a segment that the stream reports or decides.
#[derive(Debug)]
pub(super) enum SegmentEvent {
    /// A failure; the member is written all the same.
    Failed(Error),
    /// A member is left out.
    LeftOut(Nid, Error),
    /// These bytes are a hard link. The stream drops them if the inode was left out.
    Link(WalkEntry, Range<usize>),
    /// This many bytes of a long file are zeros, and the reason.
    Zeros(ErrorKind, u64),
}

/// What the headers of a member take beside the names and values of its attributes: the other fields
/// of their records.
const RECORDS_BYTES: u64 = 1 << 20;

/// Renders segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renderer<'a> {
    pub(super) image: &'a Image,
    pub(super) holes: HolePolicy,
    pub(super) budget: Option<&'a Budget>,
    pub(super) cancel: &'a CancelToken,
    pub(super) limits: &'a ExtractLimits,
}

impl Renderer<'_> {
    /// Renders a segment into `buffer`, which is empty.
    ///
    /// # Errors
    /// No memory, or a cancelled token: the stream cannot go on.
    pub(super) fn render(self, segment: TarSegment, buffer: Vec<u8>) -> Result<RenderedSegment> {
        let rendered = RenderedSegment { bytes: buffer, ..RenderedSegment::default() };
        match segment.large_xattrs_bytes() {
            Some(bytes) => Ok(RenderedSegment { deferred: Some((segment, bytes)), ..rendered }),
            None => self.render_into(rendered, segment),
        }
    }

    /// Renders a segment with many attributes, if that has not been done, after its memory is charged.
    /// Called when all segments before it are written. So no segment waits for memory that a later
    /// one holds, and there is one such segment in memory at a time.
    ///
    /// # Errors
    /// As [`Renderer::render`].
    pub(super) fn render_deferred(self, mut rendered: RenderedSegment) -> Result<RenderedSegment> {
        let Some((segment, bytes)) = rendered.deferred.take() else { return Ok(rendered) };
        let written_bytes = bytes + RECORDS_BYTES;
        if let Some(budget) = self.budget {
            let charge = budget.charge(bytes + written_bytes, AllocPolicy::MustSucceed);
            let error = |source| Error::new(ErrorKind::Memory(source), segment.path());
            rendered.surplus = Some(charge.map_err(error)?);
        }
        let capacity = usize::try_from(written_bytes).unwrap_or(usize::MAX);
        rendered.bytes.try_reserve_exact(capacity).map_err(|_| out_of_memory())?;
        self.render_into(rendered, segment)
    }

    fn render_into(
        self,
        mut rendered: RenderedSegment,
        segment: TarSegment,
    ) -> Result<RenderedSegment> {
        match segment {
            TarSegment::Members(items) => {
                for item in items {
                    check_cancelled(self.cancel)?;
                    self.item(item, &mut rendered)?;
                    rendered.charge_surplus(self.budget)?;
                }
            }
            TarSegment::Part(part) => self.part(&part, &mut rendered)?,
            TarSegment::Large(node, _) => {
                self.item(TarItem::Entry(node), &mut rendered)?;
                rendered.charge_surplus(self.budget)?;
            }
        }
        Ok(rendered)
    }

    fn item(self, item: TarItem, rendered: &mut RenderedSegment) -> Result<()> {
        rendered.entries += 1;
        match item {
            TarItem::Failed(error) => {
                rendered.entries -= 1;
                rendered.events.push(SegmentEvent::Failed(error));
            }
            TarItem::LeftOut(node, kind) => rendered.leave_out(&node, kind),
            TarItem::Entry(node) | TarItem::Link(node, _)
                if node.inode.file_type() == FileType::Socket =>
            {
                rendered.counts.skipped.special += 1;
            }
            TarItem::Link(node, first) => {
                let start = rendered.bytes.len();
                let member = MemberHeader {
                    kind: TypeFlag::Link,
                    target: relative(&first),
                    ..member(&node)
                };
                rendered.write_header(&node, &member, &[]);
                rendered.events.push(SegmentEvent::Link(node, start..rendered.bytes.len()));
            }
            TarItem::Entry(node) => match node.inode.file_type() {
                FileType::Regular => self.file(&node, rendered)?,
                FileType::Symlink => self.symlink(&node, rendered)?,
                kind => {
                    let is_directory = kind == FileType::Directory;
                    rendered.counts.directories += u64::from(is_directory);
                    rendered.counts.special += u64::from(!is_directory);
                    self.headers(&node, member(&node), rendered)?;
                }
            },
        }
        Ok(())
    }

    fn symlink(self, node: &WalkEntry, rendered: &mut RenderedSegment) -> Result<()> {
        match catch_panic(|| Ok(self.image.read_link(&node.inode)?)) {
            Ok(target) => {
                rendered.counts.symlinks += 1;
                self.headers(node, MemberHeader { target: &target, ..member(node) }, rendered)?;
            }
            Err(kind) => rendered.leave_out(node, kind),
        }
        Ok(())
    }

    /// A whole file.
    fn file(self, node: &WalkEntry, rendered: &mut RenderedSegment) -> Result<()> {
        let layout = match catch_panic(|| {
            SparseLayout::of(self.image, &node.inode, self.holes, self.cancel)
        }) {
            Ok(layout) => layout,
            Err(kind) => {
                rendered.leave_out(node, kind);
                return Ok(());
            }
        };
        self.whole(node, &layout, layout.ranges(), rendered)
    }

    /// Headers, contents and padding, or nothing if a read fails.
    fn whole(
        self,
        node: &WalkEntry,
        layout: &SparseLayout,
        ranges: &[Range<u64>],
        rendered: &mut RenderedSegment,
    ) -> Result<()> {
        let (start, events) = (rendered.bytes.len(), rendered.events.len());
        self.file_headers(node, layout, rendered)?;
        for range in ranges {
            if let Err(kind) = self.read(&node.inode, range, rendered)? {
                rendered.bytes.truncate(start);
                rendered.events.truncate(events);
                rendered.leave_out(node, kind);
                return Ok(());
            }
        }
        header::pad(&mut rendered.bytes);
        rendered.count_file(layout);
        Ok(())
    }

    /// A part of a long file. Bytes that cannot be read become zeros: the header with the size may
    /// have been written.
    fn part(self, part: &TarFilePart, rendered: &mut RenderedSegment) -> Result<()> {
        let (node, layout) = (&part.file.node, &part.file.layout);
        rendered.entries = u64::from(part.is_last);
        if part.is_first && part.is_last {
            return self.whole(node, layout, &part.ranges, rendered);
        }
        if part.is_first {
            self.file_headers(node, layout, rendered)?;
            rendered.count_file(layout);
        }
        for range in &part.ranges {
            check_cancelled(self.cancel)?;
            if let Err(kind) = self.read(&node.inode, range, rendered)? {
                rendered.events.push(SegmentEvent::Zeros(kind, range.end - range.start));
            }
        }
        if part.is_last {
            // Parts begin at any byte, so the padding follows from the size of the file.
            let over = layout.stored_bytes() % header::BLOCK_BYTES as u64;
            let over = usize::try_from(over).unwrap_or(0);
            let padding = over.next_multiple_of(header::BLOCK_BYTES) - over;
            rendered.bytes.resize(rendered.bytes.len() + padding, 0);
            rendered.ended = Some(node.clone());
        }
        Ok(())
    }

    /// The headers of a regular file, and its map if it is sparse.
    fn file_headers(
        self,
        node: &WalkEntry,
        layout: &SparseLayout,
        rendered: &mut RenderedSegment,
    ) -> Result<()> {
        let mut member = MemberHeader { bytes: layout.stored_bytes(), ..member(node) };
        if !layout.is_sparse() {
            return self.headers(node, member, rendered);
        }
        let map = layout.map();
        member.bytes = member.bytes.saturating_add(map.len() as u64);
        member.sparse_size = Some(node.inode.size());
        self.headers(node, member, rendered)?;
        rendered.bytes.extend_from_slice(&map);
        Ok(())
    }

    /// Headers with all extended attributes, or with none if they cannot be read.
    ///
    /// # Errors
    /// The attributes are too much work.
    fn headers(
        self,
        node: &WalkEntry,
        member: MemberHeader<'_>,
        rendered: &mut RenderedSegment,
    ) -> Result<()> {
        let inode = &node.inode;
        let xattrs = if inode.has_xattrs() {
            catch_panic(|| Ok(self.image.xattrs(inode)?)).unwrap_or_else(|kind| {
                let error = Error::new(kind, &node.path).about(inode);
                rendered.events.push(SegmentEvent::Failed(error));
                Vec::new()
            })
        } else {
            Vec::new()
        };
        let added = self.limits.add_xattrs(&xattrs);
        added.map_err(|kind| Error::new(kind, &node.path).about(inode))?;
        rendered.write_header(node, &member, &xattrs);
        Ok(())
    }

    /// Appends a range of a file. If it cannot be read, appends zeros and returns the reason.
    fn read(
        self,
        inode: &Inode,
        range: &Range<u64>,
        rendered: &mut RenderedSegment,
    ) -> Result<Result<(), ErrorKind>> {
        let bytes = &mut rendered.bytes;
        let start = bytes.len();
        // The size of a segment bounds its ranges.
        let count = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        bytes.try_reserve(count).map_err(|_| out_of_memory())?;
        bytes.resize(start + count, 0);
        let target = &mut bytes[start..];
        let read = catch_panic(|| Ok(self.image.read_at(inode, range.start, target)?));
        let failure = match read {
            Ok(read) if read == count => return Ok(Ok(())),
            Ok(read) => {
                ErrorKind::Short { delivered: range.start + read as u64, size: inode.size() }
            }
            Err(kind) => kind,
        };
        bytes[start..].fill(0);
        Ok(Err(failure))
    }
}

impl RenderedSegment {
    /// Charges the bytes beyond the charge of the segment: the planner does not know the size of
    /// attributes, and a few bytes of a hostile image can be many attributes.
    fn charge_surplus(&mut self, budget: Option<&Budget>) -> Result<()> {
        let charged = self.surplus.as_ref().map_or(0, Charge::bytes);
        let more = (self.bytes.len() as u64).saturating_sub(SEGMENT_MAX_BYTES + charged);
        let (Some(budget), 1..) = (budget, more) else { return Ok(()) };
        let policy = AllocPolicy::MustSucceed;
        let grown = match &mut self.surplus {
            Some(surplus) => surplus.grow(more, policy),
            none => budget.charge(more, policy).map(|surplus| *none = Some(surplus)),
        };
        grown.map_err(|error| Error::new(ErrorKind::Memory(error), b""))
    }

    fn leave_out(&mut self, node: &WalkEntry, kind: ErrorKind) {
        let error = Error::new(kind, &node.path).about(&node.inode);
        self.events.push(SegmentEvent::LeftOut(node.inode.nid(), error));
    }

    fn count_file(&mut self, layout: &SparseLayout) {
        let (size, stored) = (layout.size(), layout.stored_bytes());
        self.counts.files += 1;
        self.counts.bytes = self.counts.bytes.saturating_add(size);
        self.counts.hole_bytes = self.counts.hole_bytes.saturating_add(size - stored);
    }

    /// Appends the headers of a member, whose path is that of `node`.
    fn write_header(&mut self, node: &WalkEntry, member: &MemberHeader<'_>, xattrs: &[Xattr]) {
        let mut path = match node.path.as_slice() {
            b"/" => b".".to_vec(),
            path => relative(path).to_vec(),
        };
        if member.kind == TypeFlag::Directory {
            path.push(b'/');
        }
        header::write(&mut self.bytes, &MemberHeader { path: &path, xattrs, ..*member });
    }
}

fn relative(path: &[u8]) -> &[u8] {
    path.strip_prefix(b"/").unwrap_or(path)
}

/// The header of an inode, without path, target, attributes and contents.
fn member(node: &WalkEntry) -> MemberHeader<'static> {
    let inode = &node.inode;
    MemberHeader {
        path: b"",
        kind: match inode.file_type() {
            FileType::Directory => TypeFlag::Directory,
            FileType::Symlink => TypeFlag::Symlink,
            FileType::CharDevice => TypeFlag::CharDevice,
            FileType::BlockDevice => TypeFlag::BlockDevice,
            FileType::Fifo => TypeFlag::Fifo,
            FileType::Regular | FileType::Socket => TypeFlag::File,
        },
        target: b"",
        mode: permissions(inode),
        uid: inode.uid(),
        gid: inode.gid(),
        bytes: 0,
        mtime: inode.mtime(),
        device: inode.device().unwrap_or((0, 0)),
        xattrs: &[],
        sparse_size: None,
    }
}

#[cold]
fn out_of_memory() -> Error {
    let source = std::io::ErrorKind::OutOfMemory.into();
    Error::new(ErrorKind::Output { operation: "cannot collect the archive", source }, b"")
}

/// The size of a tar is a multiple of this, the record of tape drives, which programs still expect.
const RECORD_BYTES: u64 = 10_240;
/// Two blocks of zeros end a tar.
const END_BYTES: u64 = 1024;
/// Longer than the end and its padding.
static ZEROS: [u8; 16_384] = [0; 16_384];

/// A tar that is being written.
pub(super) struct TarStream<'a> {
    out: &'a mut dyn Write,
    limits: &'a ExtractLimits,
    on_event: &'a mut dyn FnMut(ExtractEvent),
    summary: ExtractSummary,
    entries: u64,
    /// Bytes that were written.
    position: u64,
    /// Inodes that were left out; hard links to them are left out, too.
    left_out: InodeSet,
    /// Why bytes of the current long file are zeros, and their number.
    damage: Option<(ErrorKind, u64)>,
}

impl<'a> TarStream<'a> {
    pub(super) fn new(
        image: &Image,
        out: &'a mut dyn Write,
        limits: &'a ExtractLimits,
        on_event: &'a mut dyn FnMut(ExtractEvent),
    ) -> Self {
        Self {
            out,
            limits,
            on_event,
            summary: ExtractSummary::default(),
            entries: 0,
            position: 0,
            left_out: InodeSet::new(image.memory().budget()),
            damage: None,
        }
    }

    /// Reports a failure.
    pub(super) fn fail(&mut self, error: Error) {
        self.summary.failures += 1;
        (self.on_event)(ExtractEvent::Failed(error));
    }

    /// Reports a failure, or returns it if nothing further can be written.
    fn fail_or_stop(&mut self, error: Error) -> Result<()> {
        if error.kind().stops_everything() {
            return Err(error);
        }
        self.fail(error);
        Ok(())
    }

    /// Writes the next segment and returns its buffer.
    pub(super) fn write(&mut self, segment: RenderedSegment) -> Result<Vec<u8>> {
        let RenderedSegment { bytes, events, counts, entries, ended, surplus, deferred: _ } =
            segment;
        let mut written = 0;
        for event in events {
            match event {
                SegmentEvent::Failed(error) => self.fail_or_stop(error)?,
                SegmentEvent::LeftOut(nid, error) => {
                    // It is in the set before it is a failure: a link to it must not be written.
                    let added = self.left_out.insert(nid);
                    self.fail(error);
                    added.map_err(|error| Error::new(error.into(), b""))?;
                }
                SegmentEvent::Link(node, _) if !self.left_out.contains(node.inode.nid()) => {
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
        drop(surplus);
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

    /// Reports, once, the failures of a long file that is complete.
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
        let added = self.limits.add_output(bytes.len() as u64);
        added.map_err(|kind| Error::new(kind, b""))?;
        self.out.write_all(bytes).map_err(write_failed)?;
        self.position = self.position.saturating_add(bytes.len() as u64);
        Ok(())
    }
}

fn write_failed(source: std::io::Error) -> Error {
    Error::new(ErrorKind::Output { operation: "cannot write the archive", source }, b"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_a_segment_has_beyond_its_charge_is_charged() {
        let limits = [(1 << 20, true), ((1 << 20) - 1, false)];
        for (limit, fits) in limits {
            let budget = Budget::with_stall(limit, Duration::from_millis(10));
            let bytes = vec![0; usize::try_from(SEGMENT_MAX_BYTES).unwrap()];
            let mut rendered = RenderedSegment { bytes, ..RenderedSegment::default() };
            rendered.charge_surplus(Some(&budget)).unwrap();
            assert_eq!(budget.used_bytes(), 0);
            rendered.bytes.resize(3 << 20, 0);
            assert_eq!(rendered.charge_surplus(Some(&budget)).is_ok(), fits);
            assert_eq!(budget.used_bytes(), if fits { limit } else { 0 });
        }
    }

    #[test]
    fn a_long_file_with_bad_parts_is_reported_once_with_all_its_zeros() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
        let image = Image::open(folder.join("plain.erofs")).unwrap();
        let node = WalkEntry { path: b"/long".to_vec(), inode: image.root().unwrap() };
        let (mut out, mut failures) = (Vec::new(), Vec::new());
        let mut on_event = |event| {
            if let ExtractEvent::Failed(error) = event {
                failures.push(error.to_string());
            }
        };
        let limits = ExtractLimits::new(&image, None, None);
        let mut stream = TarStream::new(&image, &mut out, &limits, &mut on_event);
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
        assert!(
            failures[0].starts_with("/long: the code that extracted it panicked; 12 of its "),
            "{failures:?}"
        );
    }
}
