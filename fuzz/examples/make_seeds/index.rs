//! The index of a compressed file of a sound image, read from front to back: where its extents are.

use ferrofs_image::DataLayout;
use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_ondisk::zmap::{
    CompactIndex, ExtentRecord, ExtentTable, FullIndex, HeadKind, IndexHeader, Lcluster, MapHeader,
    Pack, TailPcluster, header_offset,
};
use ferrofs_ondisk::{BlockSize, DiskInode};

/// An extent that has a pcluster of its own among the data.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) decoded_bytes: u64,
    pub(crate) physical: u64,
    pub(crate) encoded_bytes: u64,
    pub(crate) algorithm: Option<AlgorithmId>,
    pub(crate) is_partial: bool,
}

/// What is known of an index.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) form: &'static str,
    /// Where the map header starts, and where the index ends, in the space of the inode.
    pub(crate) range: std::ops::Range<u64>,
    pub(crate) extents: Vec<Extent>,
    /// The bytes of the file that lie in the packed inode.
    pub(crate) fragment_bytes: u64,
    /// Where the offset of the fragment stands, counted from the map header.
    pub(crate) fragment_field: usize,
    /// Advise bits and algorithms: what makes one index another kind than the next.
    pub(crate) kind: String,
}

impl Index {
    fn new(form: &'static str, range: std::ops::Range<u64>, kind: String) -> Self {
        Self { form, range, extents: Vec::new(), fragment_bytes: 0, fragment_field: 0, kind }
    }

    /// Adds an extent; the one before it ends where it starts.
    fn push(&mut self, extent: Extent) {
        if let Some(last) = self.extents.last_mut() {
            last.decoded_bytes = extent.start.saturating_sub(last.start);
        }
        self.extents.push(extent);
    }
}

/// Reads the index of `inode`, whose space is `space` and which ends at `end`; none if it has none.
pub(crate) fn read(space: &[u8], end: u64, inode: &DiskInode, size: BlockSize) -> Option<Index> {
    let at = header_offset(end)?;
    let raw = bytes(space, at, 8)?;
    let kind = format!("{:02x}{:02x}{:02x}", raw[4], raw[6], raw[7]);
    let place = Place { space, at, inode, size };
    match MapHeader::parse(raw, inode.layout, size).ok()? {
        MapHeader::WholeFragment(_) => {
            let index = Index::new(place.form(), at..at + 8, "whole-fragment".to_owned());
            Some(Index { fragment_bytes: inode.size, ..index })
        }
        MapHeader::Index(header) => place.lclusters(&header, kind),
        MapHeader::Extents(table) => place.extents(&table, kind),
    }
}

fn bytes(space: &[u8], at: u64, count: usize) -> Option<&[u8]> {
    let at = usize::try_from(at).ok()?;
    space.get(at..at.checked_add(count)?)
}

/// Where an index is.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    space: &'a [u8],
    /// The map header.
    at: u64,
    inode: &'a DiskInode,
    size: BlockSize,
}

/// Answers the entry of an lcluster and where the entry, or its pack, ends.
type Entries<'a> = Box<dyn Fn(u64) -> Option<(Lcluster, u64)> + 'a>;

impl<'a> Place<'a> {
    fn form(&self) -> &'static str {
        let is_full = self.inode.layout == DataLayout::CompressedFull;
        if is_full { "zmap_full" } else { "zmap_compact" }
    }

    fn entries(&self, header: &'a IndexHeader) -> Option<Entries<'a>> {
        let space = self.space;
        if self.inode.layout == DataLayout::CompressedFull {
            let index = FullIndex::new(self.at)?;
            return Some(Box::new(move |lcn| {
                let at = index.entry_offset(lcn)?;
                Some((FullIndex::entry(bytes(space, at, 8)?, header).ok()?, at + 8))
            }));
        }
        let index = CompactIndex::new(self.at, self.size.count(self.inode.size), header).ok()??;
        Some(Box::new(move |lcn| {
            let span = index.span(lcn)?;
            let pack = bytes(space, span.offset, usize::from(span.bytes))?;
            Some((Pack::new(pack, header).ok()?.entry(span.slot).ok()?, span.end()?))
        }))
    }

    fn lclusters(&self, header: &'a IndexHeader, kind: String) -> Option<Index> {
        let entry = self.entries(header)?;
        let mut index = Index::new(self.form(), self.at..self.at, kind);
        for lcn in 0..self.inode.size.div_ceil(header.lcluster_bytes()) {
            let (lcluster, end) = entry(lcn)?;
            index.range.end = index.range.end.max(end);
            match lcluster {
                Lcluster::Head(head) => {
                    let start = lcn * header.lcluster_bytes() + u64::from(head.offset);
                    let algorithm = match head.kind {
                        HeadKind::Plain => None,
                        kind => header.algorithm(kind).ok()?,
                    };
                    index.push(Extent {
                        start,
                        decoded_bytes: self.inode.size.saturating_sub(start),
                        physical: self.size.offset_of(head.block)?,
                        encoded_bytes: u64::from(self.size.bytes()),
                        algorithm,
                        is_partial: head.is_partial,
                    });
                }
                Lcluster::NonHead { blocks: Some(blocks), .. } => {
                    let encoded_bytes = self.size.offset_of(u64::from(blocks))?;
                    index.extents.last_mut()?.encoded_bytes = encoded_bytes;
                }
                Lcluster::NonHead { .. } => {}
            }
        }
        // The last extent of these lies elsewhere.
        match header.tail {
            TailPcluster::Ordinary => {}
            TailPcluster::Fragment(_) => index.fragment_bytes = index.extents.pop()?.decoded_bytes,
            TailPcluster::Inline(count) => {
                index.extents.pop();
                index.range.end += u64::from(count);
            }
        }
        Some(index)
    }

    fn extents(&self, table: &ExtentTable, kind: String) -> Option<Index> {
        let start = table.start(self.at)?;
        let count = table.count(self.inode.size);
        let end = table.record_offset(start, count)?;
        let mut index = Index::new("zmap_extents", self.at..end, kind);
        let mut physical = u64::from_le_bytes(bytes(self.space, start, 8)?.try_into().ok()?);
        for number in 0..count {
            let at = table.record_offset(start, number)?;
            let width = usize::try_from(table.record_bytes()).ok()?;
            let record = ExtentRecord::parse(bytes(self.space, at, width)?, table).ok()?;
            let start = table.lcluster_bytes().map_or(record.logical, |bytes| number * bytes);
            let encoded_bytes = u64::from(record.length.bytes());
            index.push(Extent {
                start,
                decoded_bytes: self.inode.size.saturating_sub(start),
                physical: if table.has_physical_starts() { record.physical } else { physical },
                encoded_bytes,
                algorithm: record.length.algorithm().ok().flatten(),
                is_partial: record.length.is_partial(),
            });
            physical += encoded_bytes;
        }
        if table.has_fragment {
            index.fragment_bytes = index.extents.pop()?.decoded_bytes;
            let field = table.record_offset(start, count - 1)? - self.at;
            index.fragment_field = usize::try_from(field).ok()?;
        }
        index.extents.retain(|extent| extent.encoded_bytes > 0);
        Some(index)
    }
}
