//! Where the bytes of a file are. This is the only model of it: extent maps return a
//! [`MappedExtent`], reads follow its [`DataLocation`], and users see it as a [`FileExtent`].

use std::ops::Range;

use ferrofs_ondisk::Nid;
use ferrofs_ondisk::compression::AlgorithmId;

use crate::error::{Result, address};

/// The most that one read of the source brings for a batch, in bytes.
const RUN_MAX_BYTES: u64 = 1 << 20;

/// Bits of [`Address::number`] below the space.
const SPACE_LOG: u32 = 60;
/// Bits of [`Address::number`] below the device: 16 TiB.
const DEVICE_LOG: u32 = 44;

/// A space of bytes that holds metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AddressSpace {
    /// The image.
    Image,
    /// The decoded metabox file.
    Metabox,
}

impl AddressSpace {
    /// The space that holds the inode with this number.
    pub(crate) fn of(nid: Nid) -> Self {
        if nid.is_in_metabox() { Self::Metabox } else { Self::Image }
    }
}

/// Where stored bytes start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    /// Among the data of a device; device 0 is the unified address space.
    Data { device: u16, offset: u64 },
    /// Among the metadata, which is read through a cache.
    Metadata { space: AddressSpace, offset: u64 },
}

impl Address {
    /// A byte of the unified address space.
    pub(crate) fn unified(offset: u64) -> Self {
        Self::Data { device: 0, offset }
    }

    /// The byte in its device or space, for messages, too.
    pub(crate) fn offset(self) -> u64 {
        match self {
            Self::Data { offset, .. } | Self::Metadata { offset, .. } => offset,
        }
    }

    /// A number for the byte: the same for the same byte of the image, and nearly always another one
    /// for another. For counting what is read twice.
    pub(crate) fn number(self) -> u64 {
        let space = |number: u64, offset: u64| (number << SPACE_LOG).wrapping_add(offset);
        match self {
            Self::Metadata { space: AddressSpace::Image, offset }
            | Self::Data { device: 0, offset } => offset,
            Self::Metadata { space: AddressSpace::Metabox, offset } => space(1, offset),
            Self::Data { device, offset } => {
                space(2, offset).wrapping_add(u64::from(device) << DEVICE_LOG)
            }
        }
    }

    /// The address `bytes` bytes further on.
    pub(crate) fn advance(self, bytes: u64) -> Result<Self> {
        let offset = address(self.offset().checked_add(bytes))?;
        Ok(match self {
            Self::Data { device, .. } => Self::Data { device, offset },
            Self::Metadata { space, .. } => Self::Metadata { space, offset },
        })
    }
}

/// Which bytes a cluster decodes from, and how. The same id yields the same bytes, so it is the key
/// of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClusterId {
    pub(crate) address: Address,
    /// Bytes in the image, at most 1 MiB.
    pub(crate) encoded_bytes: u32,
    pub(crate) coding: Coding,
}

/// How a cluster is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Coding {
    /// Stored uncompressed. The first `wrapped_bytes` of the extent stand at the end of the cluster
    /// and the others at its start: the interlaced form of an extent that starts inside a block. 0
    /// is the shifted form (docs/format.md F40).
    Plain {
        /// Bytes at the end.
        wrapped_bytes: u32,
    },
    /// Compressed.
    Compressed(AlgorithmId),
}

/// A pcluster as one extent uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    pub(crate) id: ClusterId,
    /// Bytes of the extent, at most 12 MiB.
    pub(crate) decoded_bytes: u64,
    /// The cluster holds more than the extent uses.
    pub(crate) is_partial: bool,
}

impl Cluster {
    /// Whether decoding it is more than copying.
    pub(crate) fn is_compressed(&self) -> bool {
        matches!(self.id.coding, Coding::Compressed(_))
    }

    /// Whether it lies among the data, and not behind an index among the metadata.
    pub(crate) fn is_data(&self) -> bool {
        matches!(self.id.address, Address::Data { .. })
    }

    /// Bytes of the extent, as the length of a buffer.
    pub(crate) fn decoded_length(&self) -> usize {
        usize::try_from(self.decoded_bytes).unwrap_or(usize::MAX)
    }

    /// Bytes in the image, as the length of a buffer.
    pub(crate) fn encoded_length(&self) -> usize {
        usize::try_from(self.id.encoded_bytes).unwrap_or(usize::MAX)
    }

    /// Its bytes in the unified address space, if it lies among the data.
    pub(crate) fn data_range(&self) -> Option<Range<u64>> {
        match self.id.address {
            Address::Data { offset, .. } => {
                Some(offset..offset.saturating_add(u64::from(self.id.encoded_bytes)))
            }
            Address::Metadata { .. } => None,
        }
    }
}

/// For each cluster the length of the contiguous run of clusters that starts with it, in bytes; 0
/// if it does not lie among the data, or is longer than one read of the source.
pub(crate) fn run_lengths(clusters: &[Cluster]) -> Vec<usize> {
    let mut run_lengths = Vec::with_capacity(clusters.len());
    // Where the run of the cluster before ends: that of the next one ends no earlier.
    let (mut next, mut end) = (0, 0);
    for (number, cluster) in clusters.iter().enumerate() {
        let is_short = u64::from(cluster.id.encoded_bytes) <= RUN_MAX_BYTES;
        let Some(own) = cluster.data_range().filter(|_| is_short) else {
            run_lengths.push(0);
            continue;
        };
        if next <= number {
            (next, end) = (number.saturating_add(1), own.end);
        }
        while let Some(more) = clusters.get(next).and_then(Cluster::data_range)
            && more.start == end
            && more.end.saturating_sub(own.start) <= RUN_MAX_BYTES
        {
            (next, end) = (next.saturating_add(1), more.end);
        }
        run_lengths.push(usize::try_from(end.saturating_sub(own.start)).unwrap_or(0));
    }
    run_lengths
}

/// Where the bytes of an extent are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataLocation {
    /// Not stored: they are zeros.
    Hole,
    /// Uncompressed, from this address on.
    Stored(Address),
    /// In a cluster, from the first byte that it decodes to.
    Cluster(Cluster),
    /// In the packed file, from this byte on. Reading resolves it to one of the others.
    Fragment { offset: u64 },
}

impl DataLocation {
    /// Where the bytes from `skip` on are. A cluster stays as it is, as it is decoded from its
    /// start.
    pub(crate) fn advance(self, skip: u64) -> Result<Self> {
        Ok(match self {
            Self::Hole | Self::Cluster(_) => self,
            Self::Stored(at) => Self::Stored(at.advance(skip)?),
            Self::Fragment { offset } => {
                Self::Fragment { offset: address(offset.checked_add(skip))? }
            }
        })
    }
}

/// A part of a file whose bytes are stored in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MappedExtent {
    /// Where it starts in the file.
    pub(crate) start: u64,
    /// How many bytes it has; never 0.
    pub(crate) length: u64,
    pub(crate) location: DataLocation,
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

    /// Whether it can only be decoded as a whole.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.location, DataLocation::Cluster(_))
    }

    /// The part from byte `at` of the file, which it holds, to `end` or its own end. Not for
    /// clusters.
    pub(crate) fn cut(&self, at: u64, end: u64) -> Result<Self> {
        let location = self.location.advance(at.saturating_sub(self.start))?;
        Ok(Self { start: at, length: self.end().min(end).saturating_sub(at), location })
    }
}

/// A range of a file that is stored in one way, as
/// [`Image::file_extents`](crate::Image::file_extents) reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Its first byte in the file.
    pub start: u64,
    /// The byte behind its last one; always greater than `start`.
    pub end: u64,
    /// How it is stored.
    pub storage: ExtentStorage,
    /// Where the extent lies that the range is a part of, from the first byte of the extent on,
    /// even if the range starts later. `None` for a hole.
    pub location: Option<ExtentLocation>,
}

impl FileExtent {
    /// The range of `extent` from byte `start` to byte `end` of the file.
    pub(crate) fn new(extent: &MappedExtent, start: u64, end: u64) -> Self {
        let stored = |at: Address, bytes, algorithm| {
            let device = match at {
                Address::Data { device, .. } => device,
                Address::Metadata { .. } => 0,
            };
            Some(ExtentLocation { device, offset: at.offset(), bytes, algorithm })
        };
        let (storage, location) = match extent.location {
            DataLocation::Hole => (ExtentStorage::Hole, None),
            DataLocation::Stored(at) => (ExtentStorage::Plain, stored(at, extent.length, None)),
            DataLocation::Cluster(Cluster { id, .. }) => {
                let algorithm = match id.coding {
                    Coding::Plain { .. } => None,
                    Coding::Compressed(algorithm) => Some(algorithm),
                };
                (ExtentStorage::Cluster, stored(id.address, id.encoded_bytes.into(), algorithm))
            }
            DataLocation::Fragment { offset } => {
                (ExtentStorage::Fragment, stored(Address::unified(offset), extent.length, None))
            }
        };
        Self { start, end, storage, location }
    }
}

/// Where an extent lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentLocation {
    /// The device: 0 is the image with its unified address space.
    pub device: u16,
    /// Its first byte: of the device; of the packed file for [`ExtentStorage::Fragment`]; of the
    /// metabox file for what lies in the metabox.
    pub offset: u64,
    /// How many bytes it takes there.
    pub bytes: u64,
    /// How it is compressed, if it is.
    pub algorithm: Option<AlgorithmId>,
}

/// How a range of a file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentStorage {
    /// Not stored: its bytes are zeros.
    Hole,
    /// Uncompressed: any part of it can be read alone.
    Plain,
    /// In a cluster, which must be decoded as a whole, or up to the byte that is needed.
    Cluster,
    /// In the packed file, together with other files. A hole of the packed file counts as data
    /// here.
    Fragment,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(address: Address, encoded_bytes: u32) -> Cluster {
        let coding = Coding::Compressed(AlgorithmId::Lz4);
        let id = ClusterId { address, encoded_bytes, coding };
        Cluster { id, decoded_bytes: 10, is_partial: false }
    }

    #[test]
    fn a_run_ends_at_a_gap_at_metadata_and_at_a_mebibyte() {
        let data = |offset, bytes| cluster(Address::unified(offset), bytes);
        let apart = [data(0, 10), data(10, 5), data(16, 4), data(20, 6)];
        assert_eq!(run_lengths(&apart), [15, 5, 10, 6]);
        let backwards = [data(10, 5), data(5, 5), data(10, 5), data(10, 5)];
        assert_eq!(run_lengths(&backwards), [5, 10, 5, 5]);
        let meta = cluster(Address::Metadata { space: AddressSpace::Image, offset: 10 }, 5);
        assert_eq!(run_lengths(&[data(0, 10), meta, data(10, 5)]), [10, 0, 5]);
        let half = 1 << 19;
        let long = [data(0, half), data(half.into(), half), data(1 << 20, half)];
        assert_eq!(run_lengths(&long), [1 << 20, 1 << 20, 1 << 19]);
        assert_eq!(run_lengths(&[data(0, (1 << 20) + 1), data((1 << 20) + 1, 1)]), [0, 1]);
        assert_eq!(run_lengths(&[]), [0; 0]);
    }
}
