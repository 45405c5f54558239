//! Cuts structures out of one image and turns them into inputs.

use std::error::Error;

use ferrofs_fuzz::MapCase;
use ferrofs_image::{FileType, Image};
use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_ondisk::{DiskInode, Payload, TimeBase};

use crate::index::{self, Index};
use crate::seed_set::SeedSet;

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

    pub(crate) fn superblock(&self, seed_set: &mut SeedSet) {
        let sb = self.image.superblock();
        let end = if sb.extra_devices > 0 { 2048 } else { 1024 + 256 };
        let kind = format!("{:x}-{:x}", sb.compat.bits(), sb.incompat.bits());
        seed_set.put("superblock", kind, self.bytes[1024..end].to_vec());
    }

    pub(crate) fn inode(
        &self,
        inode: &ferrofs_image::Inode,
        seed_set: &mut SeedSet,
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
        let disk = DiskInode::parse(&space[at..], base)?;
        let size = usize::from(disk.bytes);
        let wide = if sb.incompat.bits() & 0x80 != 0 { "-48" } else { "" };
        let kind = format!("{}-{}-{size}{wide}", disk.layout.name(), disk.file_type.name());
        let head = [&sb.epoch.to_le_bytes()[..], &sb.fixed_nsec.to_le_bytes()].concat();
        seed_set.put("inode", kind.replace(' ', "-"), [&head, &space[at..at + size]].concat());
        let body = &space[at + size..][..usize::try_from(disk.xattr_bytes)?];
        self.xattrs(body, seed_set);
        let end = start + u64::from(disk.bytes) + u64::from(disk.xattr_bytes);
        match disk.payload {
            _ if disk.file_type == FileType::Directory => self.directory(inode, seed_set)?,
            Payload::Chunks(_) => self.chunks(space, end, &disk, seed_set)?,
            _ if disk.layout.is_compressed() => self.compressed(space, end, &disk, seed_set)?,
            _ => {}
        }
        Ok(())
    }

    fn xattrs(&self, body: &[u8], seed_set: &mut SeedSet) {
        if body.is_empty() {
            return;
        }
        let entries = (body.len() - 12) / 16;
        let kind = format!("{}-shared-{}", body[4], entries.min(12));
        seed_set.put("xattr", kind, body.to_vec());
        if self.name.contains("prefix") {
            seed_set.put("xattr", format!("{}-{}", self.name, entries.min(6)), body.to_vec());
        }
    }

    fn directory(
        &self,
        dir: &ferrofs_image::Inode,
        seed_set: &mut SeedSet,
    ) -> Result<(), Box<dyn Error>> {
        let block = usize::try_from(self.image.superblock().block_size.bytes())?;
        let mut bytes = vec![0; usize::try_from(dir.size())?];
        self.image.read_at(dir, 0, &mut bytes)?;
        for block in bytes.chunks(block).filter(|block| block.len() <= 4096) {
            let count = u16::from_le_bytes([block[8], block[9]]) / 12;
            // Of each order of magnitude one, in blocks that end with the last name or are padded.
            let padded = if block.last() == Some(&0) { "padded" } else { "full" };
            seed_set.put("dirent", format!("{padded}-{}", count.ilog2()), block.to_vec());
        }
        Ok(())
    }

    fn chunks(
        &self,
        space: &[u8],
        end: u64,
        inode: &DiskInode,
        seed_set: &mut SeedSet,
    ) -> Result<(), Box<dyn Error>> {
        let size = self.image.superblock().block_size;
        let at = usize::try_from(end - 4)?;
        let union_at = at - usize::try_from(inode.xattr_bytes)? + 4 - usize::from(inode.bytes) + 16;
        let union = u32::from_le_bytes(space[union_at..union_at + 4].try_into()?);
        let width = if union & 0x20 != 0 { 8 } else { 4 };
        let chunk = u64::from(size.bytes()) << (union & 31);
        let count = usize::try_from(inode.size.div_ceil(chunk))?;
        let start = usize::try_from(end)?.next_multiple_of(width);
        let mut region = space[start..start + count * width].to_vec();
        // The real data may be far away or in another file: the chunks share the first blocks.
        let mut end = 0;
        for (number, entry) in region.chunks_mut(width).enumerate() {
            let low = &mut entry[width - 4..];
            if low != [0xFF; 4] {
                let block = u32::try_from(number % 4)?;
                low.copy_from_slice(&block.to_le_bytes());
                end = end.max(usize::try_from(chunk)? + (usize::try_from(block)? << size.bits()));
            }
        }
        if region.len() + end > SEED_MAX_BYTES {
            return Ok(());
        }
        let on_device = self.image.superblock().extra_devices > 0;
        let data = self.bytes.iter().copied().cycle().skip(4096).take(end).collect();
        let mut case = self.case(inode, region, data);
        case.union = union;
        if on_device {
            case.switches |= MapCase::DEVICE;
        }
        let holes = if inode.size > count as u64 * 4096 { "sparse" } else { "dense" };
        let kind = format!("{union:02x}-{holes}{}", if on_device { "-device" } else { "" });
        seed_set.put("chunk", kind, case.encode());
        Ok(())
    }

    fn compressed(
        &self,
        space: &[u8],
        end: u64,
        inode: &DiskInode,
        seed_set: &mut SeedSet,
    ) -> Result<(), Box<dyn Error>> {
        let size = self.image.superblock().block_size;
        let index = index::read(space, end, inode, size).ok_or("an index")?;
        self.clusters(&index, seed_set)?;
        let range = usize::try_from(index.range.start)?..usize::try_from(index.range.end)?;
        let mut region = space.get(range).ok_or("an index")?.to_vec();
        let first = index.extents.iter().map(|extent| extent.physical >> size.bits()).min();
        let last = index.extents.iter().map(|extent| extent.physical + extent.encoded_bytes).max();
        let (first, last) = (first.unwrap_or(0), last.unwrap_or(0));
        let data_start = usize::try_from(first << size.bits())?;
        let data_end = usize::try_from(last)?.min(self.bytes.len());
        let data = self.bytes.get(data_start..data_end).unwrap_or_default();
        let mut data = data.to_vec();
        // The packed inode of the case is the data: fragments are made to lie at its start.
        let fragment_bytes = usize::try_from(index.fragment_bytes)?;
        if fragment_bytes > 0 {
            let is_wide = index.kind == "whole-fragment" || index.form == "zmap_extents";
            let field = region.iter_mut().skip(index.fragment_field);
            // The top bit of a wide one is what makes it the offset of a whole file.
            field.take(if is_wide { 7 } else { 4 }).for_each(|byte| *byte = 0);
            let missing = fragment_bytes.saturating_sub(data.len());
            data.extend(self.bytes.iter().cycle().skip(4096).take(missing));
        }
        if region.len() + data.len() > SEED_MAX_BYTES {
            return Ok(());
        }
        let mut case = self.case(inode, region, data);
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
        seed_set.put(index.form, kind, case.encode());
        Ok(())
    }

    fn case(&self, inode: &DiskInode, region: Vec<u8>, data: Vec<u8>) -> MapCase {
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

    fn clusters(&self, index: &Index, seed_set: &mut SeedSet) -> Result<(), Box<dyn Error>> {
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
            if algorithm == AlgorithmId::Lz4 {
                seed_set.put("lz4_window", kind.clone(), window_part(&input));
            }
            seed_set.put(target, kind, input);
        }
        Ok(())
    }
}

/// The input of a decoder as that of a part: the second half of the extent.
fn window_part(input: &[u8]) -> Vec<u8> {
    let (head, stream) = input.split_at(4);
    let extent_bytes = u32::from_le_bytes([head[1], head[2], head[3], 0]);
    let half = (extent_bytes / 2).to_le_bytes();
    [head, &half[..3], &half[..3], stream].concat()
}
