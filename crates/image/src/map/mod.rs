//! From a byte of a file to the extent that holds it.
//!
//! A [`Map`] is made for one inode and asked for extents, in any order; asking in ascending order
//! is the cheap one. It reads metadata only, never data.

mod chunk;
mod cursor;
mod extents;
mod flat;
mod lcluster;

use ferrofs_ondisk::compression::{EXTENT_MAX_BYTES, PCLUSTER_MAX_BYTES};
use ferrofs_ondisk::zmap::{MAP_HEADER_BYTES, MapHeader, header_offset};
use ferrofs_ondisk::{DataLayout, Payload};

use crate::cluster::{Cluster, Coding};
use crate::error::{Error, ErrorKind, Place, Result, address, parsed};
use crate::image::Core;
use crate::inode::Inode;
use cursor::Cursor;

/// A piece of a file whose bytes are stored in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Where it starts in the file.
    pub(crate) start: u64,
    /// How many bytes it has; never 0.
    pub(crate) length: u64,
    pub(crate) data: Data,
}

impl Extent {
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
pub(crate) struct Map<'a> {
    core: &'a Core,
    inode: &'a Inode,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Flat(flat::Flat),
    Chunks(chunk::Chunks),
    Lclusters(Box<lcluster::Lclusters>),
    Extents(extents::Extents),
    WholeFragment(u64),
}

impl<'a> Map<'a> {
    /// Prepares the map of `inode`.
    pub(crate) fn new(core: &'a Core, inode: &'a Inode) -> Result<Self> {
        let form = Form::of(core, inode).in_inode(inode.nid()).at(inode.end())?;
        Ok(Self { core, inode, form })
    }

    /// The extent that holds byte `offset` of the file, which lies below its size. The extent
    /// contains that byte and ends within the file.
    pub(crate) fn extent_at(&mut self, offset: u64) -> Result<Extent> {
        let found = match &mut self.form {
            Form::Flat(flat) => flat.extent_at(offset),
            Form::Chunks(chunks) => chunks.extent_at(self.core, offset),
            Form::Lclusters(index) => index.extent_at(self.core, offset),
            Form::Extents(extents) => extents.extent_at(self.core, offset),
            Form::WholeFragment(place) => Ok(Extent {
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

impl Map<'_> {
    /// Checks that every entry of an index leads to the extent that holds it, so that reading
    /// from any byte on finds what reading from the first one finds.
    pub(crate) fn check(&mut self) -> Result<()> {
        let checked = match &mut self.form {
            Form::Lclusters(index) => index.check(self.core),
            Form::Extents(extents) => extents.check(self.core),
            // The others are found by computation, whichever byte is asked for.
            Form::Flat(_) | Form::Chunks(_) | Form::WholeFragment(_) => Ok(()),
        };
        checked.in_inode(self.inode.nid()).at(self.inode.end())
    }
}

impl Form {
    fn of(core: &Core, inode: &Inode) -> Result<Self> {
        match (inode.layout(), inode.disk.payload) {
            (DataLayout::Chunk, Payload::Chunks(format)) => {
                Ok(Self::Chunks(chunk::Chunks::new(core, inode, format)?))
            }
            (DataLayout::CompressedFull | DataLayout::CompressedCompact, _) => {
                Self::compressed(core, inode)
            }
            (layout, payload) => Ok(Self::Flat(flat::Flat::new(core, inode, layout, payload)?)),
        }
    }

    fn compressed(core: &Core, inode: &Inode) -> Result<Self> {
        let header_at = address(header_offset(inode.end()))?;
        let mut cursor = Cursor::new(inode);
        let bytes = cursor.bytes(core, header_at, MAP_HEADER_BYTES)?;
        let header = MapHeader::parse(bytes, inode.layout(), core.sb.block_size);
        match parsed(header, header_at)? {
            MapHeader::WholeFragment(offset) => Ok(Self::WholeFragment(offset)),
            MapHeader::Index(index) => {
                let index = lcluster::Lclusters::new(core, inode, index, header_at)?;
                Ok(Self::Lclusters(Box::new(index)))
            }
            MapHeader::Extents(table) => {
                Ok(Self::Extents(extents::Extents::new(inode, table, header_at)?))
            }
        }
    }
}

/// Checks a cluster against the limits of the format and the declarations of the superblock.
fn checked(core: &Core, cluster: Cluster) -> Result<Cluster> {
    let (decoded, encoded) = (cluster.decoded_bytes, u64::from(cluster.id.encoded_bytes));
    let place = cluster.id.place.offset();
    if decoded > EXTENT_MAX_BYTES || encoded > u64::from(PCLUSTER_MAX_BYTES) {
        return Err(Error::new(ErrorKind::ExtentTooLong { decoded, encoded }).at(place));
    }
    match cluster.id.coding {
        Coding::Plain { .. } if decoded > encoded => {
            Err(Error::new(ErrorKind::PlainTooLong { decoded, encoded }).at(place))
        }
        Coding::Compressed(algorithm) if !core.compression.has(algorithm) => {
            Err(Error::new(ErrorKind::UndeclaredAlgorithm(algorithm)).at(place))
        }
        _ => Ok(cluster),
    }
}

/// The coding of a stored extent that starts at `start` in its file.
fn plain(core: &Core, is_interlaced: bool, start: u64) -> Coding {
    let block = core.sb.block_size;
    let wrapped_bytes =
        if is_interlaced { block.bytes().saturating_sub(block.within(start)) } else { 0 };
    Coding::Plain { wrapped_bytes }
}
