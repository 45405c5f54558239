//! From a byte of a file to the extent that holds it.
//!
//! A [`ExtentMap`] is made for one inode and asked for extents, in any order; asking in ascending order
//! is the cheap one. It reads metadata only, never data.

mod chunk;
mod cursor;
mod extent_table;
mod flat;
mod lcluster;

use ferrofs_ondisk::compression::{EXTENT_MAX_BYTES, PCLUSTER_MAX_BYTES};
use ferrofs_ondisk::zmap::{MAP_HEADER_BYTES, MapHeader, header_offset};
use ferrofs_ondisk::{DataLayout, Payload};

use crate::error::{Error, ErrorContext, ErrorKind, Result, address, parsed};
use crate::extent::{Cluster, Coding};
use crate::image::ImageInner;
use crate::inode::Inode;
use cursor::MetaCursor;

/// A piece of a file whose bytes are stored in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MappedExtent {
    /// Where it starts in the file.
    pub(crate) start: u64,
    /// How many bytes it has; never 0.
    pub(crate) length: u64,
    pub(crate) data: Data,
}

impl MappedExtent {
    /// Where it ends in the file.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.length)
    }

    /// Whether it holds byte `offset` of the file.
    pub(crate) fn contains(&self, offset: u64) -> bool {
        self.start <= offset && offset < self.end()
    }

    /// Whether its bytes can only be had by taking the whole cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.data, Data::Cluster(_))
    }

    /// The part from byte `at` of the file, which it holds, to `end` or its own end. Not for clusters.
    pub(crate) fn cut(&self, at: u64, end: u64) -> Result<Self> {
        let skip = at.saturating_sub(self.start);
        let moved = |offset: u64| address(offset.checked_add(skip));
        let data = match self.data {
            Data::Raw { device, offset } => Data::Raw { device, offset: moved(offset)? },
            Data::Inline { offset } => Data::Inline { offset: moved(offset)? },
            Data::Fragment { offset } => Data::Fragment { offset: moved(offset)? },
            Data::Hole | Data::Cluster(_) => self.data,
        };
        Ok(Self { start: at, length: self.end().min(end).saturating_sub(at), data })
    }
}

/// Where the bytes of an extent are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Nowhere: they are zeros.
    Hole,
    /// On a device, as they are.
    Raw {
        /// The device; 0 is the unified address space.
        device: u16,
        /// The byte of the device.
        offset: u64,
    },
    /// In the inode's own space of metadata, as they are.
    Inline {
        /// The byte of the space.
        offset: u64,
    },
    /// In a cluster.
    Cluster(Cluster),
    /// In the packed inode.
    Fragment {
        /// The byte of the packed file.
        offset: u64,
    },
}

/// The map of one inode.
#[derive(Debug)]
pub(crate) struct ExtentMap<'a> {
    inner: &'a ImageInner,
    inode: &'a Inode,
    form: MapForm,
}

#[derive(Debug)]
enum MapForm {
    FlatMap(flat::FlatMap),
    ChunkMap(chunk::ChunkMap),
    LclusterMap(Box<lcluster::LclusterMap>),
    ExtentTableMap(extent_table::ExtentTableMap),
    WholeFragment(u64),
}

impl<'a> ExtentMap<'a> {
    /// Prepares the map of `inode`.
    pub(crate) fn new(inner: &'a ImageInner, inode: &'a Inode) -> Result<Self> {
        let form = MapForm::of(inner, inode).in_inode(inode.nid()).at(inode.end())?;
        Ok(Self { inner, inode, form })
    }

    /// The extent that holds byte `offset` of the file, which lies below its size. The extent
    /// contains that byte and ends within the file.
    pub(crate) fn extent_at(&mut self, offset: u64) -> Result<MappedExtent> {
        let found = match &mut self.form {
            MapForm::FlatMap(flat) => flat.extent_at(offset),
            MapForm::ChunkMap(chunks) => chunks.extent_at(self.inner, offset),
            MapForm::LclusterMap(index) => index.extent_at(self.inner, offset),
            MapForm::ExtentTableMap(extents) => extents.extent_at(self.inner, offset),
            MapForm::WholeFragment(place) => Ok(MappedExtent {
                start: 0,
                length: self.inode.size(),
                data: Data::Fragment { offset: *place },
            }),
        };
        // Distances of an index may contradict each other. Readers go on from the end of what they
        // got, so an extent that does not hold the byte would keep them here for ever.
        let found = found.and_then(|extent| {
            let holds = extent.start <= offset && offset < extent.end();
            if holds { Ok(extent) } else { Err(ErrorKind::WrongExtent { offset }.into()) }
        });
        found.in_inode(self.inode.nid()).at(self.inode.end())
    }
}

impl ExtentMap<'_> {
    /// Checks that every entry of an index leads to the extent that holds it, so that reading
    /// from any byte on finds what reading from the first one finds.
    pub(crate) fn check(&mut self) -> Result<()> {
        let checked = match &mut self.form {
            MapForm::LclusterMap(index) => index.check(self.inner),
            MapForm::ExtentTableMap(extents) => extents.check(self.inner),
            // The others are found by computation, whichever byte is asked for.
            MapForm::FlatMap(_) | MapForm::ChunkMap(_) | MapForm::WholeFragment(_) => Ok(()),
        };
        checked.in_inode(self.inode.nid()).at(self.inode.end())
    }
}

impl MapForm {
    fn of(inner: &ImageInner, inode: &Inode) -> Result<Self> {
        match (inode.layout(), inode.disk.payload) {
            (DataLayout::Chunk, Payload::Chunks(format)) => {
                Ok(Self::ChunkMap(chunk::ChunkMap::new(inner, inode, format)?))
            }
            (DataLayout::CompressedFull | DataLayout::CompressedCompact, _) => {
                Self::compressed(inner, inode)
            }
            (layout, payload) => {
                Ok(Self::FlatMap(flat::FlatMap::new(inner, inode, layout, payload)?))
            }
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
                let index = lcluster::LclusterMap::new(inner, inode, index, header_at)?;
                Ok(Self::LclusterMap(Box::new(index)))
            }
            MapHeader::Extents(table) => Ok(Self::ExtentTableMap(
                extent_table::ExtentTableMap::new(inode, table, header_at)?,
            )),
        }
    }
}

/// Checks a cluster against the limits of the format and the declarations of the superblock.
fn checked(inner: &ImageInner, cluster: Cluster) -> Result<Cluster> {
    let (decoded, encoded) = (cluster.decoded_bytes, u64::from(cluster.id.encoded_bytes));
    let place = cluster.id.place.offset();
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
