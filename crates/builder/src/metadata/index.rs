//! The indexes of compressed files: which form each takes, and its bytes.

use std::collections::BTreeSet;

use ferrofs_ondisk::compression::AlgorithmId;
use ferrofs_ondisk::zmap::{
    ExtentLength, ExtentRecord, ExtentSpec, ExtentTable, HeadKind, IndexHeader, MAP_HEADER_BYTES,
    MapHeader, TailPcluster, compact_bytes, compact_fits, full_bytes, header_offset, write_compact,
    write_extents, write_full,
};
use ferrofs_ondisk::{BlockSize, DataLayout, InodeForm};

use crate::compress::profiles::default_algorithm;
use crate::data_map::{CompressedData, DataExtent};
use crate::{BuildOptions, Deduplication, Error, ErrorKind, Fragments, IndexForm, Result};

/// The largest lcluster that 2-byte entries describe, as a shift (docs/format.md F56).
const BITS_MAX_2B: u8 = 12;
/// The same for 4-byte entries.
const BITS_MAX_4B: u8 = 14;

/// What the indexes of an image have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexParams {
    pub(crate) block_size: BlockSize,
    pub(crate) form: IndexForm,
    /// Encoded extents may stand in place of an index (48BIT).
    pub(crate) wide: bool,
    /// Bytes of the longest plain extent that encoded extents make of several.
    pub(crate) plain_bytes_max: u32,
    /// Named by indexes of files in which nothing could be compressed.
    pub(crate) default: AlgorithmId,
}

impl IndexParams {
    /// The parameters that `options` give.
    pub(crate) fn new(options: &BuildOptions) -> Self {
        let default = options.algorithms.as_ref().and_then(default_algorithm);
        // Linux knows a pcluster by where it starts, so that all extents there must have one length; where
        // data is shared, that is the length which every file knows: a block.
        let is_shared =
            options.fragments != Fragments::None || options.deduplication == Deduplication::On;
        let block_size = options.block_size;
        Self {
            block_size,
            form: options.index,
            wide: options.wide,
            plain_bytes_max: if is_shared { block_size.bytes() } else { options.pcluster_bytes },
            default: default.unwrap_or(AlgorithmId::Lz4),
        }
    }
}

/// The index of one file, without its entries, which are made when they are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexPlan<'d> {
    data: &'d CompressedData,
    params: IndexParams,
    header: MapHeader,
    algorithms: [AlgorithmId; 2],
    /// How many records a table of encoded extents has.
    records: u64,
    /// Some pcluster has several blocks.
    has_big_pclusters: bool,
    /// The layout of the inode.
    pub(crate) layout: DataLayout,
}

impl<'d> IndexPlan<'d> {
    /// Plans the index of a file with this data.
    ///
    /// # Errors
    /// Three algorithms in one file, pclusters that are no whole blocks, and an inline pcluster that is
    /// none: only a bug of this program makes these. An inline pcluster in a file that also has data behind 2^32
    /// blocks.
    pub(crate) fn new(data: &'d CompressedData, params: IndexParams) -> Result<Self> {
        let (first, second) = algorithms(data, params.default)?;
        let algorithms = [first, second.unwrap_or(first)];
        if let (Some(fragment), true, None) = (data.fragment, data.extents.is_empty(), &data.inline)
        {
            let header = MapHeader::WholeFragment(fragment.offset);
            let layout = DataLayout::CompressedFull;
            let (records, has_big_pclusters) = (0, false);
            return Ok(Self {
                data,
                params,
                header,
                algorithms,
                records,
                has_big_pclusters,
                layout,
            });
        }
        let mut index = IndexHeader::new(params.block_size.bits(), first, second);
        index.tail = tail(data)?;
        let plans = extent_plans(data, params.block_size, algorithms)?;
        let is_big = plans.iter().any(|extent| extent.blocks > 1);
        (index.has_big_pcluster_1, index.has_big_pcluster_2) = (is_big, is_big);
        let is_far = data.fragment.is_some_and(|fragment| fragment.offset > u64::from(u32::MAX));
        let is_compact = params.form == IndexForm::Compact
            && params.block_size.bits() <= BITS_MAX_4B
            && !is_far
            && compact_fits(&plans, index.tail);
        index.has_2b_packs = is_compact && params.block_size.bits() <= BITS_MAX_2B;
        let layout =
            if is_compact { DataLayout::CompressedCompact } else { DataLayout::CompressedFull };
        let (header, records, has_big_pclusters) = (MapHeader::Index(index), 0, is_big);
        let plan = Self { data, params, header, algorithms, records, has_big_pclusters, layout };
        plan.or_extents(&plans)
    }

    /// Encoded extents in place of this index: where the data lies too far for any index, and where they
    /// are allowed and shorter. There is no record for an inline pcluster.
    fn or_extents(self, plans: &[ExtentSpec]) -> Result<Self> {
        let is_far = plans.iter().any(|extent| u32::try_from(extent.block).is_err());
        let is_choice = self.params.wide && self.params.form == IndexForm::Compact;
        if self.data.inline.is_some() && is_far {
            let what = "an inline pcluster with data past block 2^32: use larger blocks, or no inline pclusters";
            return Err(Error::new(ErrorKind::Unsupported(what.to_owned())));
        }
        if self.data.inline.is_some() || !(is_far || is_choice) {
            return Ok(self);
        }
        let bytes = self.data.bytes().ok_or_else(|| internal_error("a file of 2^64 bytes"))?;
        let records = self.extent_records()?;
        let has_fragment = self.data.fragment.is_some();
        let table = ExtentTable::smallest(&records, bytes, self.params.block_size, has_fragment);
        let (header, layout) = (MapHeader::Extents(table), DataLayout::CompressedFull);
        let block = self.params.block_size.bytes();
        // Of a fragment the length is none.
        let own = records.iter().take(records.len() - usize::from(has_fragment));
        let has_big_pclusters = own.map(|record| record.length.bytes()).any(|bytes| bytes > block);
        let records = records.len() as u64;
        let extents = Self { header, layout, records, has_big_pclusters, ..self };
        // How both are aligned depends on the inode: the usual one decides.
        let core = u64::from(InodeForm::Compact.bytes());
        let is_shorter = extents.bytes(core, bytes) < self.bytes(core, bytes);
        Ok(if is_far || is_shorter { extents } else { self })
    }

    fn extent_records(&self) -> Result<Vec<ExtentRecord>> {
        extent_records(self.data, self.params.plain_bytes_max)
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
            MapHeader::Extents(table) => {
                let start = table.start(at)?;
                table.record_offset(start, self.records)?.checked_sub(at + MAP_HEADER_BYTES)?
            }
            MapHeader::WholeFragment(_) => 0,
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
        let header = self.header.to_bytes(self.layout, self.params.block_size).map_err(format)?;
        inode.extend_from_slice(&header);
        let plans = || extent_plans(self.data, self.params.block_size, self.algorithms);
        let entries = match &self.header {
            MapHeader::WholeFragment(_) => return Ok(()),
            MapHeader::Extents(table) => write_extents(table, at, &self.extent_records()?),
            MapHeader::Index(index) if self.layout == DataLayout::CompressedCompact => {
                write_compact(index, at, file_bytes, &plans()?)
            }
            MapHeader::Index(index) => write_full(index, file_bytes, &plans()?),
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
        bytes.sum::<u64>() >> self.params.block_size.bits()
    }

    /// The algorithms that the index names; without entries it names none.
    pub(crate) fn named_algorithms(&self) -> BTreeSet<AlgorithmId> {
        match self.header {
            MapHeader::WholeFragment(_) => BTreeSet::new(),
            MapHeader::Index(_) => self.algorithms.into(),
            MapHeader::Extents(_) => {
                self.data.extents.iter().filter_map(|extent| extent.algorithm).collect()
            }
        }
    }

    /// Whether the index is one of encoded extents.
    pub(crate) fn has_encoded_extents(&self) -> bool {
        matches!(self.header, MapHeader::Extents(_))
    }

    /// Whether pclusters may have several blocks.
    pub(crate) fn has_big_pclusters(&self) -> bool {
        self.has_big_pclusters
    }

    /// Whether the index has heads of two kinds, one for each algorithm. Encoded extents name each their own.
    pub(crate) fn has_two_algorithms(&self) -> bool {
        let [first, second] = self.algorithms;
        first != second && matches!(self.header, MapHeader::Index(_))
    }

    /// The extents that have pclusters.
    pub(crate) fn extents(&self) -> &'d [DataExtent] {
        &self.data.extents
    }
}

/// The algorithms of a file: the first that it uses, and the other.
fn algorithms(
    data: &CompressedData,
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
            _ => return Err(internal_error("a file with three algorithms")),
        }
    }
    let [first, second] = found;
    Ok((first.unwrap_or(default), second))
}

fn tail(data: &CompressedData) -> Result<TailPcluster> {
    match (&data.inline, data.fragment) {
        (None, None) => Ok(TailPcluster::Ordinary),
        (Some(inline), None) => u16::try_from(inline.pcluster.len())
            .map(TailPcluster::Inline)
            .map_err(|_| internal_error("an inline pcluster of 64 KiB")),
        // The high half stands in a full index.
        (None, Some(fragment)) => {
            Ok(TailPcluster::Fragment(u32::try_from(fragment.offset & 0xffff_ffff).unwrap_or(0)))
        }
        (Some(_), Some(_)) => Err(internal_error("an inline pcluster and a fragment in one file")),
    }
}

fn extent_plans(
    data: &CompressedData,
    block_size: BlockSize,
    algorithms: [AlgorithmId; 2],
) -> Result<Vec<ExtentSpec>> {
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
            return Err(internal_error("a pcluster of no whole blocks"));
        }
        plans.push(ExtentSpec {
            bytes: extent.bytes,
            kind: kind(extent.algorithm),
            block: extent.address >> block_size.bits(),
            blocks: extent.pcluster_bytes >> block_size.bits(),
            partial: extent.partial,
        });
    }
    if let Some(inline) = &data.inline {
        let kind = kind(inline.algorithm);
        plans.push(ExtentSpec { bytes: inline.bytes, kind, block: 0, blocks: 1, partial: false });
    }
    if let Some(fragment) = data.fragment {
        let (kind, block) = (HeadKind::First, fragment.offset >> 32);
        plans.push(ExtentSpec { bytes: fragment.bytes, kind, block, blocks: 0, partial: false });
    }
    Ok(plans)
}

fn internal_error(what: &'static str) -> Error {
    Error::new(ErrorKind::Internal(what))
}

fn format(error: ferrofs_ondisk::Error) -> Error {
    Error::new(ErrorKind::Format(error))
}

/// The records of a file whose data lies like this. Plain extents side by side become one, as long as it
/// has no more than `plain_bytes_max`: readers fetch an extent as a whole.
///
/// # Errors
/// [`ErrorKind::Format`] for a pcluster of more than 1 MiB.
pub(crate) fn extent_records(
    data: &CompressedData,
    plain_bytes_max: u32,
) -> Result<Vec<ExtentRecord>> {
    let mut records = Vec::with_capacity(data.extents.len() + 1);
    let (mut logical, mut rest) = (0, &data.extents[..]);
    while let Some((first, behind)) = rest.split_first() {
        let joined = behind.iter().scan(*first, |whole, next| {
            *whole = join(whole, next).filter(|whole| whole.pcluster_bytes <= plain_bytes_max)?;
            Some(*whole)
        });
        let (count, whole) = joined.fold((0, *first), |(count, _), whole| (count + 1, whole));
        let length = ExtentLength::new(whole.pcluster_bytes, whole.algorithm, whole.partial);
        let length = length.map_err(|error| Error::new(ErrorKind::Format(error)))?;
        records.push(ExtentRecord { length, physical: whole.address, logical });
        logical += whole.bytes;
        rest = behind.get(count..).unwrap_or_default();
    }
    records.extend(data.fragment.map(|fragment| ExtentRecord::fragment(fragment.offset, logical)));
    Ok(records)
}

/// Both plain extents as one, if the second goes on where the first ends, in the file and in the image.
fn join(first: &DataExtent, second: &DataExtent) -> Option<DataExtent> {
    let is_full = first.bytes == u64::from(first.pcluster_bytes);
    let follows = first.address.checked_add(first.bytes) == Some(second.address);
    let is_plain = first.algorithm.is_none() && second.algorithm.is_none();
    let pcluster_bytes = first.pcluster_bytes.checked_add(second.pcluster_bytes)?;
    let whole = DataExtent { bytes: first.bytes + second.bytes, pcluster_bytes, ..*first };
    (is_full && follows && is_plain && !first.partial && !second.partial).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_map::{InlineExtent, PackedFragment};
    use ferrofs_ondisk::zmap::RecordFormat;

    fn params(bits: u8) -> IndexParams {
        let block_size = BlockSize::from_bits(bits).unwrap();
        IndexParams {
            block_size,
            form: IndexForm::Compact,
            wide: false,
            plain_bytes_max: 1 << 20,
            default: AlgorithmId::Lz4,
        }
    }

    fn extent(address: u64, blocks: u32) -> DataExtent {
        DataExtent {
            bytes: 20000,
            algorithm: Some(AlgorithmId::Zstd),
            address,
            pcluster_bytes: blocks << 12,
            partial: false,
        }
    }

    fn file(extents: Vec<DataExtent>) -> CompressedData {
        CompressedData { extents, inline: None, fragment: None }
    }

    fn layout(data: &CompressedData) -> DataLayout {
        IndexPlan::new(data, params(12)).unwrap().layout
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
            let extents = [extent(4096, 2), extent(12288, 1)];
            let mut data =
                file(extents.map(|extent| DataExtent { bytes: 80_000, ..extent }).into());
            let mut bytes = 160_000;
            if tail == 1 {
                data.fragment = Some(PackedFragment { bytes: 300, offset: 7 });
                bytes += 300;
            }
            if tail == 2 {
                let algorithm = None;
                data.inline = Some(InlineExtent { bytes: 99, algorithm, pcluster: [1; 99].into() });
                bytes += 99;
            }
            for (form, wide) in
                [(IndexForm::Compact, false), (IndexForm::Full, false), (IndexForm::Compact, true)]
            {
                let plan = IndexPlan::new(&data, IndexParams { form, wide, ..params(12) }).unwrap();
                assert_eq!(plan.has_encoded_extents(), wide && tail != 2);
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
        let fragment = Some(PackedFragment { bytes: 300, offset: 5 << 32 });
        let data = CompressedData { fragment, ..CompressedData::default() };
        let plan = IndexPlan::new(&data, params(12)).unwrap();
        assert_eq!(plan.bytes(44, 300), Some(12));
        assert_eq!((plan.blocks(), plan.named_algorithms().len()), (0, 0));
    }

    #[test]
    fn a_far_fragment_needs_a_full_index() {
        let mut data = file(vec![extent(4096, 1)]);
        data.fragment = Some(PackedFragment { bytes: 300, offset: 1 << 32 });
        assert_eq!(layout(&data), DataLayout::CompressedFull);
        data.fragment = Some(PackedFragment { bytes: 300, offset: (1 << 32) - 1 });
        assert_eq!(layout(&data), DataLayout::CompressedCompact);
    }

    #[test]
    fn two_algorithms_fit_one_file_and_three_do_not() {
        let mut other = extent(8192, 1);
        other.algorithm = Some(AlgorithmId::Lz4);
        let mut third = extent(12288, 1);
        third.algorithm = Some(AlgorithmId::Lzma);
        let data = file(vec![extent(4096, 1), other, third]);
        IndexPlan::new(&data, params(12)).unwrap_err();
        let data = file(vec![extent(4096, 1), other]);
        assert!(IndexPlan::new(&data, params(12)).unwrap().has_two_algorithms());
    }

    /// A plan for a wide image, and whether it has encoded extents.
    fn wide(data: &CompressedData) -> (IndexPlan<'_>, bool) {
        let plan = IndexPlan::new(data, IndexParams { wide: true, ..params(12) }).unwrap();
        (plan, plan.has_encoded_extents())
    }

    #[test]
    fn encoded_extents_stand_where_they_are_shorter_than_an_index() {
        // 16 bytes an extent against 2 a block, of which an extent of 9,000 bytes begins in 2 or 3.
        let short = |count: u64| {
            let extents = (1..=count).map(|at| DataExtent { bytes: 9000, ..extent(at << 12, 1) });
            file(extents.collect())
        };
        let long = (1..=99).map(|at| DataExtent { bytes: 90_000, ..extent(at << 16, 16) });
        let (long, short) = (file(long.collect()), short(99));
        assert!(wide(&long).1 && !wide(&short).1);
        let plain = |at: u64| DataExtent { bytes: 4096, algorithm: None, ..extent(at << 12, 1) };
        let plain = file((1..99).map(plain).collect());
        assert!(wide(&plain).1 && wide(&plain).0.has_big_pclusters());
        assert!(!IndexPlan::new(&plain, params(12)).unwrap().has_big_pclusters());
        assert!(!IndexPlan::new(&long, params(12)).unwrap().has_encoded_extents());
        let forced = IndexParams { wide: true, form: IndexForm::Full, ..params(12) };
        assert!(!IndexPlan::new(&long, forced).unwrap().has_encoded_extents());
        let inline = Some(InlineExtent { bytes: 9, algorithm: None, pcluster: [1; 9].into() });
        assert!(!wide(&CompressedData { inline, ..long }).1);
    }

    #[test]
    fn what_lies_far_has_encoded_extents_in_any_image() {
        let near = file(vec![extent(u64::from(u32::MAX) << 12, 1)]);
        assert!(!IndexPlan::new(&near, params(12)).unwrap().has_encoded_extents());
        let far = file(vec![extent(1 << 44, 1)]);
        let plan = IndexPlan::new(&far, params(12)).unwrap();
        assert!(plan.has_encoded_extents() && !plan.has_two_algorithms());
        assert_eq!(plan.named_algorithms(), BTreeSet::from([AlgorithmId::Zstd]));
        let inline = Some(InlineExtent { bytes: 9, algorithm: None, pcluster: [1; 9].into() });
        let both = CompressedData { inline, ..far };
        let error = IndexPlan::new(&both, params(12)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
    }

    #[test]
    fn a_file_of_more_than_4_gib_has_records_of_32_bytes() {
        let bytes = 9_000_001;
        let count = (1u64 << 32) / bytes + 2;
        let extents = (1..=count).map(|at| DataExtent { bytes, ..extent(at << 20, 256) });
        let data = file(extents.collect());
        let (plan, _) = wide(&data);
        let mut written = vec![0; 64];
        plan.write(count * bytes, &mut written).unwrap();
        let MapHeader::Extents(table) = plan.header else { panic!("{:?}", plan.header) };
        assert_eq!(table.records, RecordFormat::Bytes32 { count });
        let start = table.start(64).unwrap();
        for (number, extent) in (0..).zip(&data.extents) {
            let at = usize::try_from(table.record_offset(start, number).unwrap()).unwrap();
            let record = ExtentRecord::parse(&written[at..], &table).unwrap();
            assert_eq!((record.logical, record.physical), (number * bytes, extent.address));
        }
    }

    #[test]
    fn large_blocks_have_full_indexes() {
        let mut big = extent(1 << 15, 0);
        big.pcluster_bytes = 1 << 15;
        let data = file(vec![big]);
        assert_eq!(IndexPlan::new(&data, params(15)).unwrap().layout, DataLayout::CompressedFull);
    }
}

#[cfg(test)]
mod extents_tests {
    use ferrofs_ondisk::compression::AlgorithmId;

    use super::*;
    use crate::data_map::PackedFragment;

    fn extent(bytes: u64, algorithm: Option<AlgorithmId>, block: u64) -> DataExtent {
        let address = block << 12;
        DataExtent { bytes, algorithm, address, pcluster_bytes: 4096, partial: false }
    }

    fn records(extents: Vec<DataExtent>, plain_bytes_max: u32) -> Vec<(u64, u64, u32)> {
        let fragment = Some(PackedFragment { bytes: 5, offset: 7 });
        let data = CompressedData { extents, inline: None, fragment };
        let records = extent_records(&data, plain_bytes_max).unwrap();
        let (last, records) = records.split_last().unwrap();
        let end = data.extents.iter().map(|extent| extent.bytes).sum();
        assert_eq!(*last, ExtentRecord::fragment(7, end));
        records.iter().map(|r| (r.logical, r.physical >> 12, r.length.bytes())).collect()
    }

    #[test]
    fn plain_extents_side_by_side_are_one_up_to_a_limit() {
        let zstd = Some(AlgorithmId::Zstd);
        let plain: Vec<_> = (1..=5).map(|block| extent(4096, None, block)).collect();
        let mut extents = plain.clone();
        extents.push(extent(9000, zstd, 6));
        extents.extend([extent(4096, None, 7), extent(4096, None, 9), extent(99, None, 10)]);
        let wanted = [
            (0, 1, 8192),
            (8192, 3, 8192),
            (16384, 5, 4096),
            (20480, 6, 4096),
            (29480, 7, 4096),
            (33576, 9, 8192),
        ];
        assert_eq!(records(extents.clone(), 8192), wanted);
        assert_eq!(records(extents, 4096).len(), 9);
    }

    #[test]
    fn what_is_not_full_or_not_plain_is_not_joined() {
        let lz4 = Some(AlgorithmId::Lz4);
        assert_eq!(records(vec![extent(100, None, 1), extent(4096, None, 2)], 1 << 20).len(), 2);
        assert_eq!(records(vec![extent(4096, lz4, 1), extent(4096, lz4, 2)], 1 << 20).len(), 2);
        assert_eq!(records(Vec::new(), 1 << 20).len(), 0);
    }

    #[test]
    fn a_part_of_a_pcluster_says_so() {
        let partial = DataExtent { partial: true, ..extent(50, Some(AlgorithmId::Lz4), 1) };
        let data = CompressedData { extents: vec![partial], ..CompressedData::default() };
        let [record] = extent_records(&data, 4096).unwrap()[..] else { panic!("one record") };
        assert!(record.length.is_partial());
    }
}
