//! The index of a compressed file, decoded into the extents that its builder had, and written from
//! them.

use ferrofs_ondisk::zmap::{
    CompactIndex, ExtentRecord, ExtentSpec, ExtentTable, FullIndex, Head, IndexHeader, Lcluster,
    MAP_HEADER_BYTES, MapHeader, Pack, TailPcluster, compact_bytes, compact_fits, full_bytes,
    header_offset, write_compact, write_extents, write_full,
};
use ferrofs_ondisk::{BlockSize, DataLayout, DiskInode};

use crate::stats::RewriteStats;

/// Compares the map header and the index of `inode`, which ends with its xattrs at byte `end`.
pub(crate) fn check(
    area: &[u8],
    end: usize,
    inode: &DiskInode,
    block_size: BlockSize,
    (place, stats): (&str, &mut RewriteStats),
) {
    let at = header_offset(end as u64).unwrap();
    let theirs = &area[at as usize..][..MAP_HEADER_BYTES as usize];
    let header = MapHeader::parse(theirs, inode.layout, block_size).unwrap();
    stats.result("map header", place, theirs, header.to_bytes(inode.layout, block_size));
    match header {
        MapHeader::WholeFragment(_) => {}
        MapHeader::Index(index) if inode.layout == DataLayout::CompressedFull => {
            full(area, at, inode, &index, (place, stats));
        }
        MapHeader::Index(index) => compact(area, at, inode, &index, (place, stats)),
        MapHeader::Extents(table) => extents(area, at, (inode, block_size), &table, (place, stats)),
    }
}

fn full(
    area: &[u8],
    at: u64,
    inode: &DiskInode,
    header: &IndexHeader,
    (place, stats): (&str, &mut RewriteStats),
) {
    let index = FullIndex::new(at).unwrap();
    let count = inode.size.div_ceil(header.lcluster_bytes());
    let entries: Vec<Lcluster> = (0..count)
        .map(|lcn| {
            let entry = index.entry_offset(lcn).unwrap() as usize;
            FullIndex::entry(&area[entry..], header).unwrap()
        })
        .collect();
    let plan = planned(&entries, header, inode.size);
    let bytes = full_bytes(inode.size, header).unwrap() as usize;
    let theirs = &area[(at + MAP_HEADER_BYTES) as usize..][..bytes];
    stats.result("full index", place, theirs, write_full(header, inode.size, &plan));
}

fn compact(
    area: &[u8],
    at: u64,
    inode: &DiskInode,
    header: &IndexHeader,
    (place, stats): (&str, &mut RewriteStats),
) {
    let count = inode.size.div_ceil(header.lcluster_bytes());
    let index = CompactIndex::new(at, count, header).unwrap().unwrap();
    let entries: Vec<Lcluster> = (0..count)
        .map(|lcn| {
            let span = index.span(lcn).unwrap();
            let pack = &area[span.offset as usize..span.end().unwrap() as usize];
            Pack::new(pack, header).unwrap().entry(span.slot).unwrap()
        })
        .collect();
    let plan = planned(&entries, header, inode.size);
    assert!(compact_fits(&plan, header.tail), "{place}");
    let bytes = compact_bytes(at, inode.size, header).unwrap() as usize;
    let theirs = &area[(at + MAP_HEADER_BYTES) as usize..][..bytes];
    stats.result("compact index", place, theirs, write_compact(header, at, inode.size, &plan));
}

/// The extents that these entries describe.
fn planned(entries: &[Lcluster], header: &IndexHeader, size: u64) -> Vec<ExtentSpec> {
    let bytes = header.lcluster_bytes();
    let heads: Vec<(u64, Head, u32)> = (0u64..)
        .zip(entries)
        .filter_map(|(lcn, entry)| match entry {
            Lcluster::Head(head) => {
                let blocks = match entries.get(lcn as usize + 1) {
                    Some(Lcluster::NonHead { blocks: Some(blocks), .. }) => u32::from(*blocks),
                    _ => 1,
                };
                Some((lcn * bytes + u64::from(head.offset), *head, blocks))
            }
            Lcluster::NonHead { .. } => None,
        })
        .filter(|(start, ..)| *start < size)
        .collect();
    (0..heads.len())
        .map(|number| {
            let (start, head, blocks) = heads[number];
            let next = heads.get(number + 1).map_or(size, |(next, ..)| *next);
            let is_fragment = next == size && matches!(header.tail, TailPcluster::Fragment(_));
            let is_hole = is_fragment || head.is_hole;
            ExtentSpec {
                bytes: next - start,
                kind: head.kind,
                block: head.block,
                blocks: if is_hole { 0 } else { blocks },
                partial: head.is_partial,
            }
        })
        .collect()
}

fn extents(
    area: &[u8],
    at: u64,
    (inode, block_size): (&DiskInode, BlockSize),
    table: &ExtentTable,
    (place, stats): (&str, &mut RewriteStats),
) {
    let start = table.start(at).unwrap();
    let count = table.count(inode.size);
    let mut physical = u64::from_le_bytes(area[start as usize..][..8].try_into().unwrap());
    let mut records = Vec::new();
    for number in 0..count {
        let record_at = table.record_offset(start, number).unwrap() as usize;
        let mut record = ExtentRecord::parse(&area[record_at..], table).unwrap();
        if let Some(bytes) = table.lcluster_bytes() {
            record.logical = number * bytes;
        }
        if !table.has_physical_starts() {
            let is_fragment = table.has_fragment && number + 1 == count;
            record.physical = if is_fragment { 0 } else { physical };
            physical += u64::from(record.length.bytes());
        }
        records.push(record);
    }
    let mut smallest = ExtentTable::smallest(&records, inode.size, block_size, table.has_fragment);
    smallest.is_interlaced = table.is_interlaced;
    let chosen = |table: &ExtentTable| format!("{table:?}").into_bytes();
    stats.compare("extent records", place, &chosen(table), &chosen(&smallest));
    let end = table.record_offset(start, count).unwrap() as usize;
    // The gap in front of the table can hold anything (F35).
    let theirs = &area[start as usize..end];
    let ours = write_extents(table, at, &records);
    let gap = (start - at - MAP_HEADER_BYTES) as usize;
    stats.result("extent table", place, theirs, ours.map(|ours| ours[gap..].to_vec()));
}
