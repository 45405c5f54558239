//! How a file is stored, range by range: data or hole, and what can only be had as a whole. It reads
//! metadata, never data, and one extent a step. Called by who must know before reading: a writer of
//! sparse archives, a cut into pieces of work, `lseek`.

use ferrofs_ondisk::compression::AlgorithmId;

use crate::error::{Error, ErrorKind, Result};
use crate::extent::Coding;
use crate::image::ImageInner;
use crate::inode::Inode;
use crate::map::{Data, ExtentMap, MappedExtent};

/// A range of a file that is stored in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Its first byte in the file.
    pub start: u64,
    /// The byte behind its last one; always greater than `start`.
    pub end: u64,
    /// How it is stored.
    pub storage: ExtentStorage,
    /// Where the extent lies that the range belongs to: from the extent's first byte on, also where the
    /// range begins further on. `None` for a hole.
    pub place: Option<ExtentLocation>,
}

/// Where an extent lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentLocation {
    /// The device: 0 is the image with its unified address space.
    pub device: u16,
    /// Its first byte: of the device; for [`ExtentStorage::Fragment`] of the packed file; for what lies in the
    /// metabox, of the metabox file.
    pub offset: u64,
    /// How many bytes it takes there.
    pub bytes: u64,
    /// How it is compressed, if it is.
    pub algorithm: Option<AlgorithmId>,
}

impl ExtentLocation {
    fn of(extent: &MappedExtent) -> Option<Self> {
        let as_it_is =
            |device, offset| Some(Self { device, offset, bytes: extent.length, algorithm: None });
        match extent.data {
            Data::Hole => None,
            Data::Raw { device, offset } => as_it_is(device, offset),
            Data::Inline { offset } | Data::Fragment { offset } => as_it_is(0, offset),
            Data::Cluster(cluster) => Some(Self {
                device: 0,
                offset: cluster.id.place.offset(),
                bytes: cluster.id.encoded_bytes.into(),
                algorithm: match cluster.id.coding {
                    Coding::Plain { .. } => None,
                    Coding::Compressed(algorithm) => Some(algorithm),
                },
            }),
        }
    }
}

/// How a range of a file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentStorage {
    /// Not at all: its bytes are zeros.
    Hole,
    /// As it is: any part of it can be read for itself.
    Plain,
    /// In one cluster, which must be decoded whole or up to the byte that is wanted.
    Cluster,
    /// In the packed file, together with other files. What the packed file has as a hole counts as
    /// data here.
    Fragment,
}

/// The ranges of a file in order, without gaps, up to its end. Neighbours may be stored in the same
/// way. After an error there are no more.
#[derive(Debug)]
pub struct FileExtents<'a> {
    map: ExtentMap<'a>,
    inode: &'a Inode,
    at: u64,
    end: u64,
    is_first: bool,
}

impl<'a> FileExtents<'a> {
    /// The ranges of `inode` from byte `offset` on; the first one begins there.
    pub(crate) fn new(inner: &'a ImageInner, inode: &'a Inode, offset: u64) -> Result<Self> {
        let map = ExtentMap::new(inner, inode)?;
        Ok(Self { map, inode, at: offset, end: inode.size(), is_first: true })
    }

    fn step(&mut self) -> Result<FileExtent> {
        let extent = self.map.extent_at(self.at)?;
        // The first offset may lie anywhere in an extent; a damaged index may lead into the middle of
        // what has been handed out later on, too.
        if extent.start != self.at && !self.is_first {
            let error = Error::new(ErrorKind::WrongExtent { offset: self.at });
            return Err(error.in_inode(self.inode.nid()).at(self.inode.end()));
        }
        let storage = match extent.data {
            Data::Hole => ExtentStorage::Hole,
            Data::Raw { .. } | Data::Inline { .. } => ExtentStorage::Plain,
            Data::Cluster(_) => ExtentStorage::Cluster,
            Data::Fragment { .. } => ExtentStorage::Fragment,
        };
        // The map has checked that the extent holds the byte, so this is ahead of it.
        let end = extent.end().min(self.end);
        Ok(FileExtent { start: self.at, end, storage, place: ExtentLocation::of(&extent) })
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
