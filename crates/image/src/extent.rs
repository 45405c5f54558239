//! A pcluster as the maps describe it: where its bytes are, how they are coded, how far they
//! reach.

use ferrofs_ondisk::compression::AlgorithmId;

use crate::inner::AddressSpace;

/// Which bytes a cluster decodes from, and how: the same identity yields the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClusterId {
    pub(crate) place: ClusterPlace,
    /// Bytes in the image, at most 1 MiB.
    pub(crate) encoded_bytes: u32,
    pub(crate) coding: Coding,
}

/// Where a cluster lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClusterPlace {
    /// Among the data, at this byte of the unified address space.
    Data(u64),
    /// Behind an index, in this space of metadata.
    MetaBytes(AddressSpace, u64),
}

impl ClusterPlace {
    /// The byte where it starts, for messages.
    pub(crate) fn offset(self) -> u64 {
        match self {
            Self::Data(offset) | Self::MetaBytes(_, offset) => offset,
        }
    }
}

/// How a cluster is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Coding {
    /// Stored as it is. The first `wrapped_bytes` of the extent stand at the cluster's end and
    /// the others at its start: the interlaced form of an extent that starts inside a block. 0 is
    /// the shifted form (docs/format.md F40).
    Plain {
        /// Bytes at the end.
        wrapped_bytes: u32,
    },
    /// Compressed.
    Compressed(AlgorithmId),
}

/// A cluster in the role that it plays for one extent.
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
}
