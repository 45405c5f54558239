//! From a segment of the planner to the bytes of the stream. It reads the image and writes to memory
//! only; it runs on any thread and knows of no other segment, so that what it makes depends on the
//! segment alone. `stream` puts the pieces together.

use std::ops::Range;

use ferrofs_image::{FileType, Image, Inode, Nid, WalkEntry, Xattr};
use ferrofs_workers::CancelToken;
use ferrofs_workers::memory::{AllocPolicy, Budget, Charge};

use super::catch_panic::catch_panic;
use super::check_cancelled;
use super::header::{self, MemberHeader, TypeFlag};
use super::layout::SparseLayout;
use super::segment::{SEGMENT_MAX_BYTES, TarFilePart, TarItem, TarSegment};
use crate::error::{Error, ErrorKind, Result};
use crate::event::ExtractSummary;
use crate::metadata::permissions;
use crate::options::HolePolicy;

/// A segment as bytes.
#[derive(Debug, Default)]
pub(super) struct RenderedSegment {
    pub(super) bytes: Vec<u8>,
    /// What happened, in the order of the bytes.
    pub(super) events: Vec<SegmentEvent>,
    /// What the bytes hold, but for links.
    pub(super) counts: ExtractSummary,
    /// Entries that are dealt with: written, failed or skipped.
    pub(super) entries: u64,
    /// The long file that ends here.
    pub(super) ended: Option<WalkEntry>,
    /// For what is beyond the charge of every segment.
    pub(super) surplus: Option<Charge>,
}

/// Something that the stream has to know about a segment.
#[derive(Debug)]
pub(super) enum SegmentEvent {
    /// Something failed; the member is there.
    Failed(Error),
    /// A member is not there.
    LeftOut(Nid, Error),
    /// These bytes are another name of an inode: to be dropped if that was left out.
    Link(WalkEntry, Range<usize>),
    /// So many bytes of a long file are zeros.
    Zeros(ErrorKind, u64),
}

/// Renders segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renderer<'a> {
    pub(super) image: &'a Image,
    pub(super) holes: HolePolicy,
    pub(super) budget: Option<&'a Budget>,
    pub(super) cancel: &'a CancelToken,
}

impl Renderer<'_> {
    /// Renders a segment into `buffer`, which is empty.
    ///
    /// # Errors
    /// No memory, or a cancelled token: the stream cannot go on.
    pub(super) fn render(self, segment: TarSegment, buffer: Vec<u8>) -> Result<RenderedSegment> {
        let mut rendered = RenderedSegment { bytes: buffer, ..RenderedSegment::default() };
        match segment {
            TarSegment::Members(items) => {
                for item in items {
                    check_cancelled(self.cancel)?;
                    self.item(item, &mut rendered)?;
                    rendered.charge_surplus(self.budget)?;
                }
            }
            TarSegment::Part(part) => self.part(&part, &mut rendered)?,
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
                FileType::Symlink => self.symlink(&node, rendered),
                kind => {
                    let is_directory = kind == FileType::Directory;
                    rendered.counts.directories += u64::from(is_directory);
                    rendered.counts.special += u64::from(!is_directory);
                    self.headers(&node, member(&node), rendered);
                }
            },
        }
        Ok(())
    }

    fn symlink(self, node: &WalkEntry, rendered: &mut RenderedSegment) {
        match catch_panic(|| Ok(self.image.read_link(&node.inode)?)) {
            Ok(target) => {
                rendered.counts.symlinks += 1;
                self.headers(node, MemberHeader { target: &target, ..member(node) }, rendered);
            }
            Err(kind) => rendered.leave_out(node, kind),
        }
    }

    /// A file that is whole here.
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

    /// Headers, contents and padding, or nothing of them.
    fn whole(
        self,
        node: &WalkEntry,
        layout: &SparseLayout,
        ranges: &[Range<u64>],
        rendered: &mut RenderedSegment,
    ) -> Result<()> {
        let (start, events) = (rendered.bytes.len(), rendered.events.len());
        self.file_headers(node, layout, rendered);
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

    /// A part of a long file. Once its headers are out, what cannot be read is zeros: nobody can take
    /// back what is written, and its size is promised.
    fn part(self, part: &TarFilePart, rendered: &mut RenderedSegment) -> Result<()> {
        let (node, layout) = (&part.file.node, &part.file.layout);
        rendered.entries = u64::from(part.is_last);
        if part.is_first && part.is_last {
            return self.whole(node, layout, &part.ranges, rendered);
        }
        if part.is_first {
            self.file_headers(node, layout, rendered);
            rendered.count_file(layout);
        }
        for range in &part.ranges {
            check_cancelled(self.cancel)?;
            if let Err(kind) = self.read(&node.inode, range, rendered)? {
                rendered.events.push(SegmentEvent::Zeros(kind, range.end - range.start));
            }
        }
        if part.is_last {
            // Parts begin at any byte, so only the size of all of them tells.
            let over = layout.stored_bytes() % header::BLOCK_BYTES as u64;
            let over = usize::try_from(over).unwrap_or(0);
            let padding = over.next_multiple_of(header::BLOCK_BYTES) - over;
            rendered.bytes.resize(rendered.bytes.len() + padding, 0);
            rendered.ended = Some(node.clone());
        }
        Ok(())
    }

    /// The headers of a regular file, and its map if it has one.
    fn file_headers(self, node: &WalkEntry, layout: &SparseLayout, rendered: &mut RenderedSegment) {
        let mut member = MemberHeader { bytes: layout.stored_bytes(), ..member(node) };
        if !layout.is_sparse() {
            return self.headers(node, member, rendered);
        }
        let map = layout.map();
        member.bytes = member.bytes.saturating_add(map.len() as u64);
        member.sparse_size = Some(node.inode.size());
        self.headers(node, member, rendered);
        rendered.bytes.extend_from_slice(&map);
    }

    /// Headers with all attributes; a member whose attributes cannot be read has none.
    fn headers(self, node: &WalkEntry, member: MemberHeader<'_>, rendered: &mut RenderedSegment) {
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
        rendered.write_header(node, &member, &xattrs);
    }

    /// Appends a range of a file, or as many zeros and why.
    fn read(
        self,
        inode: &Inode,
        range: &Range<u64>,
        rendered: &mut RenderedSegment,
    ) -> Result<Result<(), ErrorKind>> {
        let bytes = &mut rendered.bytes;
        let start = bytes.len();
        // A segment's ranges are bounded by its size.
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
    /// Charges what no plan can know: attributes are read here, and a few bytes of a hostile image are
    /// many of them.
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

/// What the inode says; path, target, attributes and contents are to be filled in.
fn member(node: &WalkEntry) -> MemberHeader<'static> {
    let inode = &node.inode;
    let mtime = inode.mtime();
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
        mtime: (mtime.seconds, mtime.nanoseconds),
        device: inode.device().unwrap_or((0, 0)),
        xattrs: &[],
        sparse_size: None,
    }
}

#[cold]
fn out_of_memory() -> Error {
    let source = std::io::ErrorKind::OutOfMemory.into();
    Error::new(ErrorKind::Output { operation: "cannot collect the tar", source }, b"")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
}
