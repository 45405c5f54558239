//! The indexes of compressed files: which form each takes, and its bytes.

use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_ondisk::zmap::{
    ExtentPlan, HeadKind, IndexHeader, MAP_HEADER_BYTES, MapHeader, Tail, compact_bytes,
    compact_fits, full_bytes, header_offset, write_compact, write_full,
};
use ferrofs_ondisk::{BlockSize, DataLayout};

use crate::data::{Compressed, Extent};
use crate::{Error, ErrorKind, IndexForm, Result};

/// The largest lcluster that 2-byte entries describe, as a shift (docs/format.md F56).
const BITS_MAX_2B: u8 = 12;
/// The same for 4-byte entries.
const BITS_MAX_4B: u8 = 14;

/// What the indexes of an image have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexStyle {
    pub(crate) block_size: BlockSize,
    pub(crate) form: IndexForm,
    /// Named by indexes of files in which nothing could be compressed.
    pub(crate) default: AlgorithmId,
}

/// The index of one file, without its entries, which are made when they are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexPlan<'d> {
    data: &'d Compressed,
    style: IndexStyle,
    header: MapHeader,
    algorithms: [AlgorithmId; 2],
    /// The layout of the inode.
    pub(crate) layout: DataLayout,
}

impl<'d> IndexPlan<'d> {
    /// Plans the index of a file with this data.
    ///
    /// # Errors
    /// Three algorithms in one file, pclusters that are no whole blocks, and an inline pcluster that is
    /// none: only a bug of ours makes these.
    pub(crate) fn new(data: &'d Compressed, style: IndexStyle) -> Result<Self> {
        let (first, second) = algorithms(data, style.default)?;
        let algorithms = [first, second.unwrap_or(first)];
        if let (Some(fragment), true, None) = (data.fragment, data.extents.is_empty(), &data.inline)
        {
            let header = MapHeader::WholeFragment(fragment.offset);
            let layout = DataLayout::CompressedFull;
            return Ok(Self { data, style, header, algorithms, layout });
        }
        let mut index = IndexHeader::new(style.block_size.bits(), first, second);
        index.tail = tail(data)?;
        let plans = extent_plans(data, style.block_size, algorithms)?;
        let is_big = plans.iter().any(|extent| extent.blocks > 1);
        (index.has_big_pcluster_1, index.has_big_pcluster_2) = (is_big, is_big);
        let is_far = data.fragment.is_some_and(|fragment| fragment.offset > u64::from(u32::MAX));
        let is_compact = style.form == IndexForm::Compact
            && style.block_size.bits() <= BITS_MAX_4B
            && !is_far
            && compact_fits(&plans, index.tail);
        index.has_2b_packs = is_compact && style.block_size.bits() <= BITS_MAX_2B;
        let layout =
            if is_compact { DataLayout::CompressedCompact } else { DataLayout::CompressedFull };
        Ok(Self { data, style, header: MapHeader::Index(index), algorithms, layout })
    }

    /// Bytes from the end of an inode with its xattrs, `core_bytes` from its start, to the end of the
    /// index: padding, map header and entries.
    pub(crate) fn bytes(&self, core_bytes: u64, file_bytes: u64) -> Option<u64> {
        let at = header_offset(core_bytes)?;
        let entries = match &self.header {
            MapHeader::Index(index) if self.layout == DataLayout::CompressedCompact => {
                // An inode starts at a multiple of 32, and packs count modulo 32.
                compact_bytes(at, file_bytes, index)?
            }
            MapHeader::Index(index) => full_bytes(file_bytes, index)?,
            MapHeader::WholeFragment(_) | MapHeader::Extents(_) => 0,
        };
        at.checked_add(MAP_HEADER_BYTES)?.checked_add(entries)?.checked_sub(core_bytes)
    }

    /// Appends map header and entries to `inode`, which holds an inode with its xattrs from its start on.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for extents that the index cannot describe.
    pub(crate) fn write(&self, file_bytes: u64, inode: &mut Vec<u8>) -> Result<()> {
        let at = (inode.len() as u64).next_multiple_of(MAP_HEADER_BYTES);
        inode.resize(usize::try_from(at).unwrap_or(usize::MAX), 0);
        let header = self.header.to_bytes(self.layout, self.style.block_size).map_err(format)?;
        inode.extend_from_slice(&header);
        let MapHeader::Index(index) = &self.header else { return Ok(()) };
        let plans = extent_plans(self.data, self.style.block_size, self.algorithms)?;
        let entries = if self.layout == DataLayout::CompressedCompact {
            write_compact(index, at, file_bytes, &plans)
        } else {
            write_full(index, file_bytes, &plans)
        };
        inode.extend_from_slice(&entries.map_err(format)?);
        Ok(())
    }

    /// What lies inline behind the index.
    pub(crate) fn inline(&self) -> &'d [u8] {
        self.data.inline.as_ref().map_or(&[], |inline| &inline.pcluster)
    }

    /// Blocks of all pclusters that the file uses.
    pub(crate) fn blocks(&self) -> u64 {
        let bytes = self.data.extents.iter().map(|extent| u64::from(extent.pcluster_bytes));
        bytes.sum::<u64>() >> self.style.block_size.bits()
    }

    /// The algorithms that the index names; without entries it names none.
    pub(crate) fn named_algorithms(&self) -> &[AlgorithmId] {
        match self.header {
            MapHeader::WholeFragment(_) => &[],
            _ => &self.algorithms,
        }
    }

    /// Whether pclusters may have several blocks.
    pub(crate) fn has_big_pclusters(&self) -> bool {
        matches!(self.header, MapHeader::Index(index) if index.has_big_pcluster_1)
    }

    /// Whether the file has two algorithms.
    pub(crate) fn has_two_algorithms(&self) -> bool {
        let [first, second] = self.algorithms;
        first != second
    }

    /// Whether the end of the file, or all of it, lies in the packed inode.
    pub(crate) fn has_fragment(&self) -> bool {
        self.data.fragment.is_some()
    }

    /// The extents that have pclusters.
    pub(crate) fn extents(&self) -> &'d [Extent] {
        &self.data.extents
    }
}

/// The algorithms of a file: the first that it uses, and the other.
fn algorithms(
    data: &Compressed,
    default: AlgorithmId,
) -> Result<(AlgorithmId, Option<AlgorithmId>)> {
    let of_extents = data.extents.iter().filter_map(|extent| extent.algorithm);
    let of_tail = data.inline.iter().filter_map(|inline| inline.algorithm);
    let mut found = [None, None];
    for algorithm in of_extents.chain(of_tail) {
        match &mut found {
            [Some(first), _] if *first == algorithm => {}
            [first @ None, _] => *first = Some(algorithm),
            [_, Some(second)] if *second == algorithm => {}
            [_, second @ None] => *second = Some(algorithm),
            _ => return Err(defect("a file with three algorithms")),
        }
    }
    let [first, second] = found;
    Ok((first.unwrap_or(default), second))
}

fn tail(data: &Compressed) -> Result<Tail> {
    match (&data.inline, data.fragment) {
        (None, None) => Ok(Tail::Ordinary),
        (Some(inline), None) => u16::try_from(inline.pcluster.len())
            .map(Tail::Inline)
            .map_err(|_| defect("an inline pcluster of 64 KiB")),
        // The high half stands in a full index.
        (None, Some(fragment)) => {
            Ok(Tail::Fragment(u32::try_from(fragment.offset & 0xffff_ffff).unwrap_or(0)))
        }
        (Some(_), Some(_)) => Err(defect("an inline pcluster and a fragment in one file")),
    }
}

fn extent_plans(
    data: &Compressed,
    block_size: BlockSize,
    algorithms: [AlgorithmId; 2],
) -> Result<Vec<ExtentPlan>> {
    let [first, _] = algorithms;
    let kind = |algorithm: Option<AlgorithmId>| match algorithm {
        None => HeadKind::Plain,
        Some(algorithm) if algorithm == first => HeadKind::First,
        Some(_) => HeadKind::Second,
    };
    let mut plans = Vec::with_capacity(data.extents.len() + 1);
    for extent in &data.extents {
        let is_whole = block_size.within(extent.address) == 0
            && block_size.within(u64::from(extent.pcluster_bytes)) == 0;
        if !is_whole {
            return Err(defect("a pcluster of no whole blocks"));
        }
        plans.push(ExtentPlan {
            bytes: extent.bytes,
            kind: kind(extent.algorithm),
            block: extent.address >> block_size.bits(),
            blocks: extent.pcluster_bytes >> block_size.bits(),
            partial: extent.partial,
        });
    }
    if let Some(inline) = &data.inline {
        let kind = kind(inline.algorithm);
        plans.push(ExtentPlan { bytes: inline.bytes, kind, block: 0, blocks: 1, partial: false });
    }
    if let Some(fragment) = data.fragment {
        let (kind, block) = (HeadKind::First, fragment.offset >> 32);
        plans.push(ExtentPlan { bytes: fragment.bytes, kind, block, blocks: 0, partial: false });
    }
    Ok(plans)
}

fn defect(what: &'static str) -> Error {
    Error::new(ErrorKind::Defect(what))
}

fn format(error: ferrofs_ondisk::Error) -> Error {
    Error::new(ErrorKind::Format(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Fragment, InlineExtent};

    fn style(bits: u8) -> IndexStyle {
        let block_size = BlockSize::from_bits(bits).unwrap();
        IndexStyle { block_size, form: IndexForm::Compact, default: AlgorithmId::Lz4 }
    }

    fn extent(address: u64, blocks: u32) -> Extent {
        Extent {
            bytes: 20000,
            algorithm: Some(AlgorithmId::Zstd),
            address,
            pcluster_bytes: blocks << 12,
            partial: false,
        }
    }

    fn file(extents: Vec<Extent>) -> Compressed {
        Compressed { extents, inline: None, fragment: None }
    }

    fn layout(data: &Compressed) -> DataLayout {
        IndexPlan::new(data, style(12)).unwrap().layout
    }

    #[test]
    fn extents_in_a_row_have_a_compact_index() {
        assert_eq!(
            layout(&file(vec![extent(4096, 2), extent(12288, 1)])),
            DataLayout::CompressedCompact
        );
        assert_eq!(
            layout(&file(vec![extent(4096, 2), extent(16384, 1)])),
            DataLayout::CompressedFull
        );
        let mut partial = extent(4096, 1);
        partial.partial = true;
        assert_eq!(layout(&file(vec![partial])), DataLayout::CompressedFull);
    }

    #[test]
    fn the_planned_size_is_the_size_that_is_written() {
        for (core, tail) in [(32u64, 0u64), (64, 1), (44, 2), (80, 0), (100, 1)] {
            let mut data = file(vec![extent(4096, 2), extent(12288, 1)]);
            let mut bytes = 40000;
            if tail == 1 {
                data.fragment = Some(Fragment { bytes: 300, offset: 7 });
                bytes += 300;
            }
            if tail == 2 {
                let algorithm = None;
                data.inline = Some(InlineExtent { bytes: 99, algorithm, pcluster: [1; 99].into() });
                bytes += 99;
            }
            for form in [IndexForm::Compact, IndexForm::Full] {
                let plan = IndexPlan::new(&data, IndexStyle { form, ..style(12) }).unwrap();
                let mut inode = vec![0; usize::try_from(core).unwrap()];
                plan.write(bytes, &mut inode).unwrap();
                assert_eq!(
                    Some(inode.len() as u64 - core),
                    plan.bytes(core, bytes),
                    "{core} {form:?}"
                );
            }
        }
    }

    #[test]
    fn a_file_in_the_packed_inode_has_nothing_but_a_header() {
        let fragment = Some(Fragment { bytes: 300, offset: 5 << 32 });
        let data = Compressed { fragment, ..Compressed::default() };
        let plan = IndexPlan::new(&data, style(12)).unwrap();
        assert_eq!(plan.bytes(44, 300), Some(12));
        assert_eq!((plan.blocks(), plan.named_algorithms().len()), (0, 0));
    }

    #[test]
    fn a_far_fragment_needs_a_full_index() {
        let mut data = file(vec![extent(4096, 1)]);
        data.fragment = Some(Fragment { bytes: 300, offset: 1 << 32 });
        assert_eq!(layout(&data), DataLayout::CompressedFull);
        data.fragment = Some(Fragment { bytes: 300, offset: (1 << 32) - 1 });
        assert_eq!(layout(&data), DataLayout::CompressedCompact);
    }

    #[test]
    fn two_algorithms_fit_one_file_and_three_do_not() {
        let mut other = extent(8192, 1);
        other.algorithm = Some(AlgorithmId::Lz4);
        let mut third = extent(12288, 1);
        third.algorithm = Some(AlgorithmId::Lzma);
        let data = file(vec![extent(4096, 1), other, third]);
        IndexPlan::new(&data, style(12)).unwrap_err();
        let data = file(vec![extent(4096, 1), other]);
        assert!(IndexPlan::new(&data, style(12)).unwrap().has_two_algorithms());
    }

    #[test]
    fn large_blocks_have_full_indexes() {
        let mut big = extent(1 << 15, 0);
        big.pcluster_bytes = 1 << 15;
        let data = file(vec![big]);
        assert_eq!(IndexPlan::new(&data, style(15)).unwrap().layout, DataLayout::CompressedFull);
    }
}
