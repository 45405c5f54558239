//! One image: its superblock with what belongs to it, then every inode that can be reached.

use std::collections::BTreeSet;

use ferrofs_ondisk::chunk::ChunkFormat;
use ferrofs_ondisk::compression::CompressionConfig;
use ferrofs_ondisk::dirent::{DirBlock, DirBlockWriter, NewDirent};
use ferrofs_ondisk::xattr::{
    LongPrefix, NameIndex, XattrEntry, XattrIbody, filter_of_names, write_body, write_entry,
};
use ferrofs_ondisk::{
    Compat, DataLayout, DeviceSlot, DiskInode, FileType, Incompat, InodeForm, Nid, Payload,
    Superblock, TimeBase, seal_checksum,
};

use crate::index;
use crate::stats::RewriteStats;

/// Gives the data of an inode that this crate cannot decode.
pub(crate) type DecodeFn<'a> = &'a dyn Fn(Nid, &DiskInode) -> Option<Vec<u8>>;

pub(crate) struct ImageCheck<'a> {
    name: &'a str,
    bytes: &'a [u8],
    sb: Superblock,
    decode: DecodeFn<'a>,
    /// The decoded metabox, empty if there is none or it cannot be decoded.
    metabox: Vec<u8>,
    /// The long prefixes, as base and infix.
    prefixes: Vec<(u8, Vec<u8>)>,
}

impl<'a> ImageCheck<'a> {
    pub(crate) fn new(name: &'a str, bytes: &'a [u8], decode: DecodeFn<'a>) -> Self {
        let sb = Superblock::parse(&bytes[1024..]).unwrap();
        Self { name, bytes, sb, decode, metabox: Vec::new(), prefixes: Vec::new() }
    }

    pub(crate) fn run(mut self, stats: &mut RewriteStats) {
        self.superblock(stats);
        self.records(stats);
        self.devices(stats);
        if let Some(nid) = self.sb.metabox {
            let inode = self.inode(nid);
            self.metabox = self.data(nid, &inode).unwrap_or_default();
        }
        self.prefix_table(stats);
        let mut seen = BTreeSet::new();
        let mut pending: Vec<Nid> =
            [Some(self.sb.root), self.sb.packed, self.sb.metabox].into_iter().flatten().collect();
        while let Some(nid) = pending.pop() {
            let reachable = !nid.is_in_metabox() || !self.metabox.is_empty();
            if reachable && seen.insert(nid) {
                self.one_inode(nid, stats, &mut pending);
            }
        }
    }

    fn superblock(&self, stats: &mut RewriteStats) {
        let theirs = &self.bytes[1024..][..usize::from(self.sb.bytes)];
        stats.result("superblock", self.name, theirs, self.sb.to_bytes());
        if self.sb.compat.has(Compat::SB_CHKSUM) {
            let mut sealed = self.bytes[1024..].to_vec();
            sealed[4..8].fill(0);
            seal_checksum(self.sb.block_size, &mut sealed).unwrap();
            stats.compare("checksum", self.name, &self.bytes[1028..1032], &sealed[4..8]);
        }
    }

    fn records(&self, stats: &mut RewriteStats) {
        if !self.sb.incompat.has(Incompat::COMPR_CFGS) {
            return;
        }
        let start = 1024 + usize::from(self.sb.bytes);
        let (mut at, mut blocks) = (start, 0);
        let mut compression = CompressionConfig::default();
        for algorithm in self.sb.recorded_algorithms().unwrap() {
            let length = usize::from(self.u16_at(at));
            if algorithm.number() == 0 {
                blocks = self.u16_at(at + 4);
            }
            compression.add_record(algorithm, &self.bytes[at + 2..][..length]).unwrap();
            at = (at + 2 + length).next_multiple_of(4);
        }
        assert_eq!(compression.algorithm_bits(), self.sb.algorithms_or_distance);
        let mut theirs = self.bytes[start..at].to_vec();
        if compression.deflate_window_bits == Some(15) {
            // One builder records 0 and means 15 (F6).
            let deflate = theirs.windows(4).position(|window| window == [6, 0, 0, 0]);
            if let Some(deflate) = deflate {
                theirs[deflate + 2] = 15;
            }
        }
        stats.result("config records", self.name, &theirs, compression.records(blocks));
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes[at..at + 2].try_into().unwrap())
    }

    fn devices(&self, stats: &mut RewriteStats) {
        let wide = self.sb.incompat.has(Incompat::BIT48);
        for number in 0..usize::from(self.sb.extra_devices) {
            let at = (usize::from(self.sb.device_table_slot) + number) * 128;
            let theirs = &self.bytes[at..at + 128];
            let slot = DeviceSlot::parse(theirs, wide).unwrap();
            stats.result("device slot", self.name, theirs, slot.to_bytes(wide));
        }
    }

    fn prefix_table(&mut self, stats: &mut RewriteStats) {
        let is_plain = self.sb.compat.has(Compat::PLAIN_XATTR_PFX);
        let area = match (self.sb.metabox, self.sb.packed) {
            (Some(_), _) if !is_plain => self.metabox.clone(),
            (None, Some(packed)) if !is_plain => {
                self.data(packed, &self.inode(packed)).unwrap_or_default()
            }
            _ => self.bytes.to_vec(),
        };
        let mut at = self.sb.xattr_prefix_start as usize * 4;
        for _ in 0..self.sb.xattr_prefix_count {
            let Some(length) = area.get(at..at + 2) else { return };
            let length = usize::from(u16::from_le_bytes(length.try_into().unwrap()));
            let end = (at + 2 + length).next_multiple_of(4);
            let prefix = LongPrefix::parse(&area[at + 2..][..length]).unwrap();
            stats.result("long prefix", self.name, &area[at..end], prefix.to_bytes());
            self.prefixes.push((prefix.base, prefix.infix.to_vec()));
            at = end;
        }
    }

    fn base(&self) -> TimeBase {
        TimeBase { epoch: self.sb.epoch, fixed_nsec: self.sb.fixed_nsec }
    }

    /// The area that holds an inode, and where in it the inode starts.
    fn place(&self, nid: Nid) -> (&[u8], usize) {
        let offset = nid.byte_offset().unwrap() as usize;
        if nid.is_in_metabox() {
            return (&self.metabox, offset);
        }
        let meta = self.sb.meta_offset().unwrap() as usize;
        (self.bytes, meta + offset)
    }

    fn inode(&self, nid: Nid) -> DiskInode {
        let (area, at) = self.place(nid);
        DiskInode::parse(&area[at..], self.base()).unwrap()
    }

    /// The data of an inode: flat as it is there, anything else from the decoder.
    fn data(&self, nid: Nid, inode: &DiskInode) -> Option<Vec<u8>> {
        let size = inode.size as usize;
        let (area, at) = self.place(nid);
        let end = at + usize::from(inode.bytes) + inode.xattr_bytes as usize;
        let block = self.sb.block_size.bytes() as usize;
        let start = match inode.payload {
            Payload::StartBlock(start) => start.unwrap_or(0) as usize * block,
            _ => return (self.decode)(nid, inode),
        };
        let inline = if inode.layout == DataLayout::FlatInline { size % block } else { 0 };
        let mut data = self.bytes.get(start..start + size - inline)?.to_vec();
        data.extend_from_slice(&area[end..end + inline]);
        Some(data)
    }

    fn one_inode(&self, nid: Nid, stats: &mut RewriteStats, pending: &mut Vec<Nid>) {
        let (area, at) = self.place(nid);
        let inode = self.inode(nid);
        let place = format!("{} nid {nid} at {at}", self.name);
        let size = usize::from(inode.bytes);
        let (kind, form) = match size {
            32 => ("compact inode", InodeForm::Compact),
            _ => ("extended inode", InodeForm::Extended),
        };
        let mut theirs = area[at..at + size].to_vec();
        if size == 64 && inode.layout == DataLayout::FlatInline && theirs[6..8] == [0xff; 2] {
            // Two ways to say that there is no block before the tail (F61).
            assert_eq!(inode.payload, Payload::StartBlock(None));
            theirs[6..8].fill(0);
        }
        stats.result(kind, &place, &theirs, inode.to_bytes(self.base(), form));
        assert!(size == 64 || inode.fits_compact(self.base(), true), "{place}");
        let end = at + size + inode.xattr_bytes as usize;
        if inode.xattr_bytes != 0 {
            self.xattrs(&area[at + size..end], &place, stats);
        }
        match inode.payload {
            Payload::Chunks(format) => {
                self.chunks(format, &inode, (area, end), (&place, stats));
            }
            Payload::CompressedBlocks(_) => {
                index::check(area, end, &inode, self.sb.block_size, (&place, stats));
            }
            _ => {}
        }
        if inode.file_type == FileType::Directory
            && let Some(data) = self.data(nid, &inode)
        {
            self.directory(&data, &place, stats, pending);
        }
    }

    fn xattrs(&self, theirs: &[u8], place: &str, stats: &mut RewriteStats) {
        let body = XattrIbody::parse(theirs).unwrap();
        let entries: Vec<XattrEntry<'_>> =
            body.inline_entries().map(|entry| entry.unwrap()).collect();
        let ids: Vec<u32> = body.shared_ids().collect();
        stats.result("xattr body", place, theirs, write_body(body.name_filter, &ids, &entries));
        let mut names: Vec<(u8, Vec<u8>)> = entries
            .iter()
            .filter(|entry| !entry.is_padding())
            .map(|entry| self.hashed_name(entry))
            .collect();
        for id in ids {
            let at = self.sb.block_size.offset_of(u64::from(self.sb.xattr_block)).unwrap() as usize;
            let entry_at = at + 4 * id as usize;
            let entry = XattrEntry::parse(&self.bytes[entry_at..]).unwrap();
            let theirs = &self.bytes[entry_at..][..entry.padded_bytes()];
            let index = entry.index.to_raw().unwrap();
            stats.result(
                "shared xattr",
                place,
                theirs,
                write_entry(index, entry.suffix, entry.value),
            );
            names.push(self.hashed_name(&entry));
        }
        if self.sb.compat.has(Compat::XATTR_FILTER)
            && names.iter().all(|(base, _)| *base != u8::MAX)
        {
            let filter = filter_of_names(names.iter().map(|(base, name)| (*base, name.as_slice())));
            let theirs = body.name_filter.to_le_bytes();
            stats.compare("xattr filter", place, &theirs, &filter.to_le_bytes());
        }
    }

    /// The predefined prefix and what follows it.
    fn hashed_name(&self, entry: &XattrEntry<'_>) -> (u8, Vec<u8>) {
        match entry.index {
            NameIndex::Short(base) => (base, entry.suffix.to_vec()),
            NameIndex::Long(number) => match self.prefixes.get(usize::from(number)) {
                Some((base, infix)) => (*base, [infix.as_slice(), entry.suffix].concat()),
                None => (u8::MAX, Vec::new()),
            },
        }
    }

    fn chunks(
        &self,
        format: ChunkFormat,
        inode: &DiskInode,
        (area, end): (&[u8], usize),
        (place, stats): (&str, &mut RewriteStats),
    ) {
        let unit = usize::from(format.entry_bytes());
        let start = end.next_multiple_of(unit);
        let count = inode.size.div_ceil(format.chunk_bytes(self.sb.block_size)) as usize;
        let theirs = &area[start..][..count * unit];
        let mut ours = Vec::new();
        for entry in theirs.chunks(unit) {
            format.push_entry(format.entry(entry).unwrap(), &mut ours).unwrap();
        }
        stats.compare("chunk table", place, theirs, &ours);
    }

    fn directory(
        &self,
        data: &[u8],
        place: &str,
        stats: &mut RewriteStats,
        pending: &mut Vec<Nid>,
    ) {
        let block_bytes = self.sb.block_size.bytes() as usize;
        let writer = DirBlockWriter::new(self.sb.block_size);
        let mut all = Vec::new();
        let mut counts = Vec::new();
        for block in data.chunks(block_bytes) {
            let first = all.len();
            for entry in DirBlock::parse(block).unwrap().entries() {
                let entry = entry.unwrap();
                let file_type = FileType::from_dirent(entry.type_number).unwrap().unwrap();
                all.push(NewDirent { name: entry.name, nid: entry.nid, file_type });
                pending.push(entry.nid);
            }
            let mut ours = vec![0xee; block.len()];
            match writer.write_block(&all[first..], &mut ours) {
                Ok(_) => stats.compare("directory block", place, block, &ours),
                Err(error) => stats.refuse("directory block", place, &error),
            }
            counts.push(all.len() - first);
        }
        let split = writer.split(&all).unwrap();
        let text = |counts: &[usize], bytes: u64| format!("{counts:?} {bytes}");
        let theirs = text(&counts, data.len() as u64);
        let ours = text(&split.counts, split.bytes);
        stats.compare("directory split", place, theirs.as_bytes(), ours.as_bytes());
    }
}
