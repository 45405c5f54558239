//! From a byte of a file to the extent that holds it.
//!
//! An [`ExtentMap`] belongs to one inode. It finds extents in any order; ascending order is the
//! cheap one. It reads metadata only, never data. Users see it as [`FileExtents`].

mod extent_table;
mod lcluster;

use ferrofs_ondisk::chunk::ChunkFormat;
use ferrofs_ondisk::compression::{EXTENT_MAX_BYTES, PCLUSTER_MAX_BYTES};
use ferrofs_ondisk::zmap::{MAP_HEADER_BYTES, MapHeader, header_offset};
use ferrofs_ondisk::{DataLayout, Payload};

use crate::error::{Error, ErrorContext, ErrorKind, Result, address, parsed};
use crate::extent::{
    Address, AddressSpace, Cluster, Coding, DataLocation, FileExtent, MappedExtent,
};
use crate::inner::{ImageInner, MetaBytes};
use crate::inode::Inode;
use extent_table::ExtentTableMap;
use lcluster::LclusterMap;

/// The map of one inode.
#[derive(Debug)]
pub(crate) struct ExtentMap<'a> {
    inner: &'a ImageInner,
    inode: &'a Inode,
    kind: MapKind,
    density: ExtentDensity,
}

/// Extents are counted in ranges of so many bytes: a page of most machines.
const DENSITY_BYTES: u64 = 4096;
/// Extents that may begin in such a range: twice as many as it has blocks of the smallest size. An index has
/// one for each block at most. The format does not bound tables of extents; 88 images with tables or indexes that
/// `mkfs.erofs` 1.9.4 and our builder made of short repeats, in blocks of 512 bytes and more, stayed within it.
const DENSITY_MAX: u32 = 16;

/// Counts the extents that begin in each [`DENSITY_BYTES`] of a file, in the order of the file.
///
/// A table of extents could have one for each byte, and each could need a cluster of a mebibyte.
#[derive(Debug, Default)]
pub(super) struct ExtentDensity {
    window: u64,
    last_start: Option<u64>,
    count: u32,
}

impl ExtentDensity {
    /// Counts the extent that begins at `start`, unless it is the one before it.
    ///
    /// # Errors
    /// [`ErrorKind::ExtentDensity`].
    pub(super) fn add(&mut self, start: u64) -> Result<()> {
        if self.last_start == Some(start) {
            return Ok(());
        }
        let window = start / DENSITY_BYTES;
        if self.window != window {
            (self.window, self.count) = (window, 0);
        }
        self.last_start = Some(start);
        self.count = self.count.saturating_add(1);
        match self.count > DENSITY_MAX {
            true => {
                let offset = window.saturating_mul(DENSITY_BYTES);
                let (bytes, limit) = (DENSITY_BYTES, DENSITY_MAX);
                Err(ErrorKind::ExtentDensity { offset, bytes, limit }.into())
            }
            false => Ok(()),
        }
    }
}

#[derive(Debug)]
enum MapKind {
    Flat(FlatMap),
    Chunks(ChunkMap),
    Lclusters(Box<LclusterMap>),
    ExtentTable(ExtentTableMap),
    WholeFragment(u64),
}

impl<'a> ExtentMap<'a> {
    /// Prepares the map of `inode`.
    pub(crate) fn new(inner: &'a ImageInner, inode: &'a Inode) -> Result<Self> {
        let kind = MapKind::of(inner, inode).in_inode(inode.nid()).at(inode.end())?;
        Ok(Self { inner, inode, kind, density: ExtentDensity::default() })
    }

    /// The extent that holds byte `offset` of the file, which must be below its size. The extent
    /// ends within the file.
    pub(crate) fn extent_at(&mut self, offset: u64) -> Result<MappedExtent> {
        let found = match &mut self.kind {
            MapKind::Flat(flat) => flat.extent_at(offset),
            MapKind::Chunks(chunks) => chunks.extent_at(self.inner, offset),
            MapKind::Lclusters(index) => index.extent_at(self.inner, offset),
            MapKind::ExtentTable(extents) => extents.extent_at(self.inner, offset),
            MapKind::WholeFragment(place) => Ok(MappedExtent {
                start: 0,
                length: self.inode.size(),
                location: DataLocation::Fragment { offset: *place },
            }),
        };
        // Distances of an index may contradict each other. Readers continue at the end of the
        // extent that they got, so an extent that does not hold the byte would keep them here for
        // ever.
        let found = found.and_then(|extent| {
            if extent.contains(offset) {
                self.density.add(extent.start).map(|()| extent)
            } else {
                Err(ErrorKind::WrongExtent { offset }.into())
            }
        });
        found.in_inode(self.inode.nid()).at(self.inode.end())
    }

    /// How many steps searches in the index have taken since the last call, or since the map was prepared.
    pub(crate) fn take_search_steps(&mut self) -> u64 {
        match &mut self.kind {
            MapKind::Lclusters(index) => index.take_steps(),
            // Others are computed or found by a binary search, or keep what they have counted.
            _ => 0,
        }
    }

    /// How many entries the index has. For a table whose header counts its records, an image can say any number.
    pub(crate) fn index_entries(&self) -> u64 {
        match &self.kind {
            MapKind::Lclusters(index) => index.entries(),
            MapKind::ExtentTable(extents) => extents.entries(),
            MapKind::Flat(_) | MapKind::Chunks(_) | MapKind::WholeFragment(_) => 0,
        }
    }

    /// The end of the lcluster that holds byte `offset`, where an entry stands for an lcluster; else that of the file.
    pub(crate) fn lcluster_end(&self, offset: u64) -> u64 {
        let bytes = match &self.kind {
            MapKind::Lclusters(index) => Some(index.lcluster_bytes()),
            MapKind::ExtentTable(extents) => extents.lcluster_bytes(),
            MapKind::Flat(_) | MapKind::Chunks(_) | MapKind::WholeFragment(_) => None,
        };
        let end = bytes.and_then(|bytes| offset.checked_add(1)?.checked_next_multiple_of(bytes));
        end.map_or(self.inode.size(), |end| end.min(self.inode.size()))
    }

    /// Checks that every entry of an index leads to the extent that holds it, so that reading
    /// from any byte on finds what reading from the first one finds.
    pub(crate) fn check(&mut self) -> Result<()> {
        let checked = match &mut self.kind {
            MapKind::Lclusters(index) => index.check(self.inner),
            MapKind::ExtentTable(extents) => extents.check(self.inner),
            // The others are computed, for any byte.
            MapKind::Flat(_) | MapKind::Chunks(_) | MapKind::WholeFragment(_) => Ok(()),
        };
        checked.in_inode(self.inode.nid()).at(self.inode.end())
    }
}

impl MapKind {
    fn of(inner: &ImageInner, inode: &Inode) -> Result<Self> {
        match (inode.layout(), inode.disk.payload) {
            (DataLayout::Chunk, Payload::Chunks(format)) => {
                Ok(Self::Chunks(ChunkMap::new(inner, inode, format)?))
            }
            (DataLayout::CompressedFull | DataLayout::CompressedCompact, _) => {
                Self::compressed(inner, inode)
            }
            (layout, payload) => Ok(Self::Flat(FlatMap::new(inner, inode, layout, payload)?)),
        }
    }

    fn compressed(inner: &ImageInner, inode: &Inode) -> Result<Self> {
        let header_at = address(header_offset(inode.end()))?;
        let mut cursor = MetaCursor::new(inode);
        let bytes = cursor.bytes(inner, header_at, MAP_HEADER_BYTES)?;
        let header = MapHeader::parse(bytes, inode.layout(), inner.sb.block_size);
        match parsed(header, header_at)? {
            MapHeader::WholeFragment(offset) => Ok(Self::WholeFragment(offset)),
            MapHeader::Index(index) => {
                let index = LclusterMap::new(inner, inode, index, header_at)?;
                Ok(Self::Lclusters(Box::new(index)))
            }
            MapHeader::Extents(table) => {
                Ok(Self::ExtentTable(ExtentTableMap::new(inode, table, header_at)?))
            }
        }
    }
}

/// The extents of a file in order, without gaps, up to its end. Neighbours may be stored in the
/// same way. The iterator ends after an error.
#[derive(Debug)]
pub struct FileExtents<'a> {
    map: ExtentMap<'a>,
    inode: &'a Inode,
    at: u64,
    end: u64,
    is_first: bool,
}

impl<'a> FileExtents<'a> {
    /// The extents of `inode` from byte `offset` on. The first one is cut to start there.
    pub(crate) fn new(inner: &'a ImageInner, inode: &'a Inode, offset: u64) -> Result<Self> {
        let map = ExtentMap::new(inner, inode)?;
        Ok(Self { map, inode, at: offset, end: inode.size(), is_first: true })
    }

    fn step(&mut self) -> Result<FileExtent> {
        let extent = self.map.extent_at(self.at)?;
        // Only the first offset may lie inside an extent. A damaged index may lead back into an
        // extent that was returned already.
        if extent.start != self.at && !self.is_first {
            let error = Error::new(ErrorKind::WrongExtent { offset: self.at });
            return Err(error.in_inode(self.inode.nid()).at(self.inode.end()));
        }
        // Greater than `self.at`, as the map has checked that the extent holds that byte.
        let end = extent.end().min(self.end);
        Ok(FileExtent::new(&extent, self.at, end))
    }
}

impl Iterator for FileExtents<'_> {
    type Item = Result<FileExtent>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let found = self.step();
        self.at = found.as_ref().map_or(self.end, |range| range.end);
        self.is_first = false;
        Some(found)
    }
}

/// A flat file: whole blocks in a row, and maybe a tail behind the inode (docs/format.md F10, F14).
#[derive(Debug)]
struct FlatMap {
    size: u64,
    /// Where the tail starts in the file; the size of the file if it has no tail.
    tail_start: u64,
    blocks: DataLocation,
    tail: DataLocation,
}

impl FlatMap {
    fn new(
        inner: &ImageInner,
        inode: &Inode,
        layout: DataLayout,
        payload: Payload,
    ) -> Result<Self> {
        let block_size = inner.sb.block_size;
        let size = inode.size();
        let is_inline = layout == DataLayout::FlatInline;
        let tail_start = if is_inline { block_size.floor(size.saturating_sub(1)) } else { size };
        let tail =
            DataLocation::Stored(Address::Metadata { space: inode.space(), offset: inode.end() });
        let tail_bytes = size.saturating_sub(tail_start);
        let remaining =
            u64::from(block_size.bytes()).saturating_sub(u64::from(block_size.within(inode.end())));
        if tail_bytes > remaining {
            return Err(Error::new(ErrorKind::InlineData).at(inode.end()));
        }
        let blocks = match payload {
            Payload::StartBlock(Some(block)) => {
                let offset = address(block_size.offset_of(block))?;
                DataLocation::Stored(Address::unified(offset))
            }
            // With a tail the null address means that there are no blocks.
            _ if is_inline && tail_start > 0 => return Err(ErrorKind::AddressOverflow.into()),
            _ => DataLocation::Hole,
        };
        Ok(Self { size, tail_start, blocks, tail })
    }

    fn extent_at(&self, offset: u64) -> Result<MappedExtent> {
        let (start, end, location) = if offset < self.tail_start {
            (0, self.tail_start, self.blocks)
        } else {
            (self.tail_start, self.size, self.tail)
        };
        Ok(MappedExtent { start, length: end.saturating_sub(start), location })
    }
}

/// A chunk-based file: one extent a chunk (docs/format.md F8, F43, F53).
#[derive(Debug)]
struct ChunkMap {
    cursor: MetaCursor,
    size: u64,
    format: ChunkFormat,
    chunk_bytes: u64,
    /// Where the array of chunk entries starts.
    array: u64,
}

impl ChunkMap {
    fn new(inner: &ImageInner, inode: &Inode, format: ChunkFormat) -> Result<Self> {
        let unit = u64::from(format.entry_bytes());
        let array = address(inode.end().checked_next_multiple_of(unit))?;
        Ok(Self {
            cursor: MetaCursor::new(inode),
            size: inode.size(),
            format,
            chunk_bytes: format.chunk_bytes(inner.sb.block_size),
            array,
        })
    }

    fn extent_at(&mut self, inner: &ImageInner, offset: u64) -> Result<MappedExtent> {
        let number = address(offset.checked_div(self.chunk_bytes))?;
        let entry_bytes = u64::from(self.format.entry_bytes());
        let entry_at = address(
            number.checked_mul(entry_bytes).and_then(|before| self.array.checked_add(before)),
        )?;
        let entry = self.cursor.bytes(inner, entry_at, entry_bytes)?;
        let location = match parsed(self.format.entry(entry), entry_at)? {
            None => DataLocation::Hole,
            Some(place) => {
                let offset = address(inner.sb.block_size.offset_of(place.block)).at(entry_at)?;
                DataLocation::Stored(Address::Data { device: place.device, offset })
            }
        };
        let start = address(number.checked_mul(self.chunk_bytes))?;
        Ok(MappedExtent {
            start,
            length: self.chunk_bytes.min(self.size.saturating_sub(start)),
            location,
        })
    }
}

/// Checks a cluster against the limits of the format and the declarations of the superblock.
fn checked(inner: &ImageInner, cluster: Cluster) -> Result<Cluster> {
    let (decoded, encoded) = (cluster.decoded_bytes, u64::from(cluster.id.encoded_bytes));
    let place = cluster.id.address.offset();
    if decoded > EXTENT_MAX_BYTES || encoded > u64::from(PCLUSTER_MAX_BYTES) {
        return Err(Error::new(ErrorKind::ExtentTooLong { decoded, encoded }).at(place));
    }
    match cluster.id.coding {
        Coding::Plain { .. } if decoded > encoded => {
            Err(Error::new(ErrorKind::PlainTooLong { decoded, encoded }).at(place))
        }
        Coding::Compressed(algorithm) if !inner.compression.has(algorithm) => {
            Err(Error::new(ErrorKind::UndeclaredAlgorithm(algorithm)).at(place))
        }
        _ => Ok(cluster),
    }
}

/// The coding of a stored extent that starts at `start` in its file.
fn plain(inner: &ImageInner, is_interlaced: bool, start: u64) -> Coding {
    let block = inner.sb.block_size;
    let wrapped_bytes =
        if is_interlaced { block.bytes().saturating_sub(block.within(start)) } else { 0 };
    Coding::Plain { wrapped_bytes }
}

/// Bytes that are fetched at once. Entries are aligned to their size, which divides it.
const SPAN_BYTES: u64 = 4096;

/// Reads small structures of one inode that lie close to each other, without a look-up in the
/// metadata cache for each.
#[derive(Debug)]
pub(super) struct MetaCursor {
    space: AddressSpace,
    start: u64,
    span: Option<MetaBytes>,
}

impl MetaCursor {
    pub(super) fn new(inode: &Inode) -> Self {
        Self { space: inode.space(), start: 0, span: None }
    }

    /// The space that it reads.
    pub(super) fn space(&self) -> AddressSpace {
        self.space
    }

    /// The `bytes` bytes at `offset`, at most [`SPAN_BYTES`].
    pub(super) fn bytes(&mut self, inner: &ImageInner, offset: u64, bytes: u64) -> Result<&[u8]> {
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
        if self.within(offset, wanted).is_none() {
            self.start = offset & !SPAN_BYTES.wrapping_sub(1);
            let span = usize::try_from(SPAN_BYTES).unwrap_or(usize::MAX);
            self.span = Some(inner.metadata_up_to(self.space, self.start, span)?);
        }
        if self.within(offset, wanted).is_none() {
            // Past the end of the space, or across two spans.
            self.start = offset;
            self.span = Some(inner.metadata(self.space, offset, wanted)?);
        }
        Ok(self.within(offset, wanted).unwrap_or_default())
    }

    fn within(&self, offset: u64, bytes: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.span.as_deref()?.get(start..start.checked_add(bytes)?)
    }
}
