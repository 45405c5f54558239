//! Cuts structures out of one image and turns them into inputs.

use std::error::Error;

use ferrofs_fuzz::MapCase;
use ferrofs_image::ondisk::compression::AlgorithmId;
use ferrofs_image::ondisk::{Inode, Payload, TimeBase};
use ferrofs_image::{FileType, Image};

use crate::index::{self, Index};
use crate::shelf::Shelf;

/// Longer inputs are slow to mutate.
const SEED_MAX_BYTES: usize = 24 << 10;

/// An image whose structures are wanted.
#[derive(Debug)]
pub(crate) struct Cutter<'a> {
    name: &'a str,
    image: &'a Image,
    bytes: Vec<u8>,
    metabox: Vec<u8>,
}

impl<'a> Cutter<'a> {
    pub(crate) fn new(
        name: &'a str,
        image: &'a Image,
        bytes: Vec<u8>,
    ) -> Result<Self, Box<dyn Error>> {
        let mut metabox = Vec::new();
        if let Some(nid) = image.superblock().metabox {
            let inode = image.inode(nid)?;
            metabox = vec![0; usize::try_from(inode.size())?];
            image.read_at(&inode, 0, &mut metabox)?;
        }
        Ok(Self { name, image, bytes, metabox })
    }

    pub(crate) fn superblock(&self, shelf: &mut Shelf) {
        let sb = self.image.superblock();
        let end = if sb.extra_devices > 0 { 2048 } else { 1024 + 256 };
        let kind = format!("{:x}-{:x}", sb.compat.bits(), sb.incompat.bits());
        shelf.put("superblock", kind, self.bytes[1024..end].to_vec());
    }

    pub(crate) fn inode(
        &self,
        inode: &ferrofs_image::Inode,
        shelf: &mut Shelf,
    ) -> Result<(), Box<dyn Error>> {
        let sb = self.image.superblock();
        let nid = inode.nid();
        let offset = nid.byte_offset().ok_or("a nid")?;
        let (space, start) = if nid.is_in_metabox() {
            (&*self.metabox, offset)
        } else {
            let area = u64::try_from(sb.meta_offset().ok_or("an offset")?)?;
            (&*self.bytes, area + offset)
        };
        let at = usize::try_from(start)?;
        let base = TimeBase { epoch: sb.epoch, fixed_nsec: sb.fixed_nsec };
        let disk = Inode::parse(&space[at..], base)?;
        let size = usize::from(disk.bytes);
        let wide = if sb.incompat.bits() & 0x80 != 0 { "-48" } else { "" };
        let kind = format!("{}-{}-{size}{wide}", disk.layout.name(), disk.file_type.name());
        let head = [&sb.epoch.to_le_bytes()[..], &sb.fixed_nsec.to_le_bytes()].concat();
        shelf.put("inode", kind.replace(' ', "-"), [&head, &space[at..at + size]].concat());
        let body = &space[at + size..][..usize::try_from(disk.xattr_bytes)?];
        self.xattrs(body, shelf);
        let end = start + u64::from(disk.bytes) + u64::from(disk.xattr_bytes);
        match disk.payload {
            _ if disk.file_type == FileType::Directory => self.directory(inode, shelf)?,
            Payload::Chunks(_) => self.chunks(space, end, &disk, shelf)?,
            _ if disk.layout.is_compressed() => self.compressed(space, end, &disk, shelf)?,
            _ => {}
        }
        Ok(())
    }

    fn xattrs(&self, body: &[u8], shelf: &mut Shelf) {
        if body.is_empty() {
            return;
        }
        let entries = (body.len() - 12) / 16;
        let kind = format!("{}-shared-{}", body[4], entries.min(12));
        shelf.put("xattr", kind, body.to_vec());
        if self.name.contains("prefix") {
            shelf.put("xattr", format!("{}-{}", self.name, entries.min(6)), body.to_vec());
        }
    }

    fn directory(
        &self,
        dir: &ferrofs_image::Inode,
        shelf: &mut Shelf,
    ) -> Result<(), Box<dyn Error>> {
        let block = usize::try_from(self.image.superblock().block_size.bytes())?;
        let mut bytes = vec![0; usize::try_from(dir.size())?];
        self.image.read_at(dir, 0, &mut bytes)?;
        for block in bytes.chunks(block).filter(|block| block.len() <= 4096) {
            let count = u16::from_le_bytes([block[8], block[9]]) / 12;
            // Of each order of magnitude one, in blocks that end with the last name or are padded.
            let padded = if block.last() == Some(&0) { "padded" } else { "full" };
            shelf.put("dirent", format!("{padded}-{}", count.ilog2()), block.to_vec());
        }
        Ok(())
    }

    fn chunks(
        &self,
        space: &[u8],
        end: u64,
        inode: &Inode,
        shelf: &mut Shelf,
    ) -> Result<(), Box<dyn Error>> {
        let size = self.image.superblock().block_size;
        let at = usize::try_from(end - 4)?;
        let union_at = at - usize::try_from(inode.xattr_bytes)? + 4 - usize::from(inode.bytes) + 16;
        let union = u32::from_le_bytes(space[union_at..union_at + 4].try_into()?);
        let width = if union & 0x20 != 0 { 8 } else { 4 };
        let chunk = u64::from(size.bytes()) << (union & 31);
        let count = usize::try_from(inode.size.div_ceil(chunk))?;
        let start = usize::try_from(end)?.next_multiple_of(width);
        let region = space[start..start + count * width].to_vec();
        let block = |entry: &[u8]| {
            let low = &entry[width - 4..];
            let block = u32::from_le_bytes([low[0], low[1], low[2], low[3]]);
            (block != u32::MAX).then_some(block)
        };
        let first = region.chunks(width).filter_map(block).min().unwrap_or(0);
        let on_device = self.image.superblock().extra_devices > 0;
        let data_start = usize::try_from(first)? << size.bits();
        // The blob of an image with devices is another file; any bytes will do.
        let data = if on_device {
            self.bytes.iter().copied().take(4096).collect()
        } else {
            let data = self.bytes.get(data_start..).unwrap_or_default();
            data[..data.len().min(8192)].to_vec()
        };
        let mut case = self.case(inode, region, data);
        case.union = union;
        if on_device {
            case.switches |= MapCase::DEVICE;
        } else {
            case.data_block = u16::try_from(first)?;
        }
        let holes = if inode.size > count as u64 * 4096 { "sparse" } else { "dense" };
        let kind = format!("{union:02x}-{holes}{}", if on_device { "-device" } else { "" });
        shelf.put("chunk", kind, case.encode());
        Ok(())
    }

    fn compressed(
        &self,
        space: &[u8],
        end: u64,
        inode: &Inode,
        shelf: &mut Shelf,
    ) -> Result<(), Box<dyn Error>> {
        let size = self.image.superblock().block_size;
        let index = index::read(space, end, inode, size).ok_or("an index")?;
        self.clusters(&index, shelf)?;
        let range = usize::try_from(index.range.start)?..usize::try_from(index.range.end)?;
        let region = space.get(range).ok_or("an index")?.to_vec();
        let first = index.extents.iter().map(|extent| extent.physical >> size.bits()).min();
        let last = index.extents.iter().map(|extent| extent.physical + extent.encoded_bytes).max();
        let (first, last) = (first.unwrap_or(0), last.unwrap_or(0));
        let data_start = usize::try_from(first << size.bits())?;
        let data = self.bytes.get(data_start..usize::try_from(last)?).unwrap_or_default();
        if region.len() + data.len() > SEED_MAX_BYTES {
            return Ok(());
        }
        let mut case = self.case(inode, region, data.to_vec());
        case.data_block = u16::try_from(first)?;
        // A map header at the same distance from a boundary of 32 bytes as the real one has.
        let wanted = index.range.start % 32;
        let fits = |count: &u8| {
            let xattrs = if *count == 0 { 0 } else { 12 + 4 * (u64::from(*count) - 1) };
            (u64::from(inode.bytes) + xattrs).next_multiple_of(8) % 32 == wanted
        };
        case.xattr_count = (0..16).filter(|count| *count != 1).find(fits).ok_or("an alignment")?;
        let few = if index.extents.len() < 2 { "one" } else { "more" };
        let kind = format!("{}-{}-{few}", index.kind, size.bits());
        shelf.put(index.form, kind, case.encode());
        Ok(())
    }

    fn case(&self, inode: &Inode, region: Vec<u8>, data: Vec<u8>) -> MapCase {
        let sb = self.image.superblock();
        let mut case = MapCase {
            block_bits: sb.block_size.bits() - 9,
            switches: MapCase::ALL_ALGORITHMS | MapCase::PACKED,
            size: inode.size,
            region,
            data,
            ..MapCase::default()
        };
        if inode.bytes == 64 {
            case.switches |= MapCase::EXTENDED;
        }
        if sb.has_left_padding() {
            case.switches |= MapCase::ZERO_PADDING;
        }
        case
    }

    fn clusters(&self, index: &Index, shelf: &mut Shelf) -> Result<(), Box<dyn Error>> {
        for extent in &index.extents {
            let Some(algorithm) = extent.algorithm else { continue };
            let target = match algorithm {
                AlgorithmId::Lz4 => "lz4",
                AlgorithmId::Lzma => "lzma",
                AlgorithmId::Deflate => "deflate",
                AlgorithmId::Zstd => "zstd",
            };
            let start = usize::try_from(extent.physical)?;
            let end = start + usize::try_from(extent.encoded_bytes)?;
            // What the last extent of a file with a tail says of its blocks is not looked at.
            let Some(cluster) = self.bytes.get(start..end) else { continue };
            let zeros = cluster.iter().take_while(|byte| **byte == 0).count();
            let has_padding = self.image.superblock().has_left_padding();
            // A few of the zeros are enough.
            let cluster = if has_padding { &cluster[zeros.saturating_sub(2)..] } else { cluster };
            if extent.decoded_bytes > 65_536 || cluster.len() > 8192 {
                continue;
            }
            // The window that fits any of them; and the side of the padding.
            let switches = 7 << 1 | u8::from(!has_padding);
            let [low, middle, high, _] = u32::try_from(extent.decoded_bytes)?.to_le_bytes();
            let input = [&[switches, low, middle, high][..], cluster].concat();
            let form = if index.form == "zmap_full" { "full" } else { "" };
            let whole = if extent.is_partial { "partial" } else { "whole" };
            let length = extent.decoded_bytes.ilog2();
            let kind = format!("{form}{whole}-{length}-{}", cluster.len().max(1).ilog2());
            shelf.put(target, kind, input);
        }
        Ok(())
    }
}
