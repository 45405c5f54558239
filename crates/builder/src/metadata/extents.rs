//! The records of a file with encoded extents: one for each extent, or for several plain ones that follow
//! each other.

use ferrofs_ondisk::zmap::{ExtentLength, ExtentRecord};

use crate::data::{CompressedData, DataExtent};
use crate::{Error, ErrorKind, Result};

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
    use ferrofs_ondisk::compression::AlgorithmId;

    use super::*;
    use crate::data::PackedFragment;

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
