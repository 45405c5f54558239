//! Finds a logical partition in a super image of Android. Such an image has tables at its start with
//! the partitions and the extents that they consist of. Tables are untrusted.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{le_u32, le_u64, read_exact};
use crate::source::{ImageSource, RemoteStats};

const GEOMETRY_MAGIC: u32 = 0x616c_4467;
const HEADER_MAGIC: u32 = 0x414c_5030;
/// Where the geometry and its copy lie, and where the first tables begin.
const GEOMETRIES_AT: [u64; 2] = [4096, 8192];
const TABLES_AT: u64 = 12288;
const GEOMETRY_BYTES: u32 = 52;
/// The header that all versions have.
const HEADER_BYTES: u32 = 128;
/// The largest tables: AOSP has 64 KiB. It also bounds the number of partitions and extents.
const METADATA_BYTES_MAX: u32 = 4 << 20;
const SECTOR_BYTES: u64 = 512;
const NAME_BYTES: usize = 36;
/// The least size of an entry of a partition and of an extent. Smaller ones would overlap, and a
/// table of any number of them would take no bytes.
const PARTITION_BYTES: u32 = 52;
const EXTENT_BYTES: u32 = 24;
/// Names that an error lists.
const NAMES_SHOWN: usize = 64;

/// A run of bytes of a partition; `None` stands for zeros.
#[derive(Clone, Copy, Debug)]
struct PartitionExtent {
    start: u64,
    end: u64,
    source: Option<u64>,
}

/// A partition of a super image, as a source.
#[derive(Debug)]
pub struct PartitionSource {
    whole: Arc<dyn ImageSource>,
    /// In ascending order, without gaps.
    extents: Vec<PartitionExtent>,
    length: u64,
}

/// Why a partition was not found.
#[derive(Debug)]
#[non_exhaustive]
pub enum PartitionError {
    /// There is no table of partitions.
    NotSuper,
    /// The source cannot be read.
    Io(io::Error),
    /// A table breaks a rule.
    Damaged(&'static str),
    /// No partition has the name. These are the names of the first 64.
    NoSuchName(Vec<String>),
}

impl fmt::Display for PartitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSuper => f.write_str("not a super image: it has no table of partitions"),
            Self::Io(error) => write!(f, "cannot read the table of partitions: {error}"),
            Self::Damaged(what) => write!(f, "the table of partitions is damaged: {what}"),
            Self::NoSuchName(names) => {
                write!(f, "no such partition in the super image; there are {}", names.join(", "))
            }
        }
    }
}

impl std::error::Error for PartitionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl PartitionSource {
    /// Finds the partition `name` of the super image `whole`.
    ///
    /// # Errors
    /// There is no valid table, or no such partition.
    pub fn find(whole: Arc<dyn ImageSource>, name: &str) -> Result<Self, PartitionError> {
        let tables = read_tables(&*whole)?;
        let entry = tables.partitions().find(|entry| partition_name(entry) == name.as_bytes());
        let Some(entry) = entry else {
            let names = tables.partitions().take(NAMES_SHOWN).map(partition_name);
            let names = names.map(|name| String::from_utf8_lossy(name).into_owned());
            return Err(PartitionError::NoSuchName(names.collect()));
        };
        let extents = tables.extents_of(entry, whole.length())?;
        let length = extents.last().map_or(0, |last| last.end);
        Ok(Self { whole, extents, length })
    }

    /// The parts of `whole` that the bytes of `range` lie in.
    fn stored(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.extents.partition_point(|extent| extent.end <= range.start);
        let (start, end) = (range.start, range.end);
        let extents = self.extents.iter().skip(first).take_while(move |extent| extent.start < end);
        extents.filter_map(move |extent| {
            let source = extent.source?;
            let moved = |byte: u64| source.saturating_add(byte.saturating_sub(extent.start));
            Some(moved(extent.start.max(start))..moved(extent.end.min(end)))
        })
    }
}

impl ImageSource for PartitionSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut at = offset;
        let mut rest = buffer;
        let mut done = 0usize;
        let first = self.extents.partition_point(|extent| extent.end <= offset);
        for extent in self.extents.iter().skip(first) {
            let left = extent.end.saturating_sub(at);
            let bytes = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
            let Some((part, later)) = rest.split_at_mut_checked(bytes) else { break };
            if part.is_empty() {
                break;
            }
            let count = match extent.source {
                Some(source) => {
                    let start = source.saturating_add(at.saturating_sub(extent.start));
                    self.whole.read_at(start, part)?
                }
                None => {
                    part.fill(0);
                    bytes
                }
            };
            done = done.saturating_add(count);
            if count < bytes {
                break;
            }
            at = extent.end;
            rest = later;
        }
        Ok(done)
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        for part in self.stored(&(offset..offset.saturating_add(bytes))) {
            self.whole.will_need(part.start, part.end.saturating_sub(part.start));
        }
    }

    fn is_remote(&self) -> bool {
        self.whole.is_remote()
    }

    fn remote_stats(&self) -> Option<RemoteStats> {
        self.whole.remote_stats()
    }

    fn make_ready(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        let parts = ranges.iter().flat_map(|range| self.stored(range)).collect::<Vec<_>>();
        self.whole.make_ready(&parts)
    }
}

/// The tables of a super image, which have the right checksum.
struct PartitionTables {
    tables: Vec<u8>,
    partitions: TableDescriptor,
    extents: TableDescriptor,
}

/// Where a table lies among all tables. All of its entries lie there.
#[derive(Clone, Copy)]
struct TableDescriptor {
    offset: usize,
    count: usize,
    entry_bytes: usize,
}

impl TableDescriptor {
    fn read(header: &[u8], at: usize, min_bytes: u32, tables: &[u8]) -> Option<Self> {
        let field = |number: usize| le_u32(header, at.saturating_add(number));
        let (offset, count, entry_bytes) = (field(0), field(4), field(8));
        let end = u64::from(count).checked_mul(u64::from(entry_bytes))?;
        let end = end.checked_add(u64::from(offset))?;
        let is_inside = entry_bytes >= min_bytes && end <= u64::try_from(tables.len()).ok()?;
        is_inside.then_some(Self {
            offset: usize::try_from(offset).ok()?,
            count: usize::try_from(count).ok()?,
            entry_bytes: usize::try_from(entry_bytes).ok()?,
        })
    }

    fn entries(self, tables: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
        let table = tables.get(self.offset..).unwrap_or_default();
        table.chunks_exact(self.entry_bytes).take(self.count)
    }
}

/// The name of a partition, whose bytes end at a NUL.
fn partition_name(entry: &[u8]) -> &[u8] {
    let name = entry.get(..NAME_BYTES).unwrap_or(entry);
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn read_tables(whole: &dyn ImageSource) -> Result<PartitionTables, PartitionError> {
    let mut last = PartitionError::NotSuper;
    for at in GEOMETRIES_AT {
        match read_tables_of(whole, at) {
            Ok(tables) => return Ok(tables),
            Err(PartitionError::NotSuper) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn read_tables_of(whole: &dyn ImageSource, at: u64) -> Result<PartitionTables, PartitionError> {
    let damaged = PartitionError::Damaged;
    let mut geometry = read(whole, at, GEOMETRY_BYTES)?;
    if le_u32(&geometry, 0) != GEOMETRY_MAGIC {
        return Err(PartitionError::NotSuper);
    }
    if !has_checksum(&mut geometry, 8) {
        return Err(damaged("the checksum of the geometry"));
    }
    let bytes_max = le_u32(&geometry, 40);
    if bytes_max > METADATA_BYTES_MAX {
        return Err(damaged("the tables are too large"));
    }
    let mut header = read(whole, TABLES_AT, HEADER_BYTES)?;
    if le_u32(&header, 0) != HEADER_MAGIC {
        return Err(damaged("there are no tables"));
    }
    let header_bytes = le_u32(&header, 8);
    if header_bytes < HEADER_BYTES || header_bytes > bytes_max {
        return Err(damaged("the size of the header"));
    }
    header = read(whole, TABLES_AT, header_bytes)?;
    if !has_checksum(&mut header, 12) {
        return Err(damaged("the checksum of the header"));
    }
    let tables_bytes = le_u32(&header, 44);
    if tables_bytes > bytes_max {
        return Err(damaged("the tables are too large"));
    }
    let tables = read(whole, TABLES_AT.saturating_add(u64::from(header_bytes)), tables_bytes)?;
    if header.get(48..80) != Some(&*Sha256::digest(&tables)) {
        return Err(damaged("the checksum of the tables"));
    }
    let table = |at, min_bytes| TableDescriptor::read(&header, at, min_bytes, &tables);
    let partitions = table(80, PARTITION_BYTES).ok_or(damaged("the place of the partitions"))?;
    let extents = table(92, EXTENT_BYTES).ok_or(damaged("the place of the extents"))?;
    Ok(PartitionTables { tables, partitions, extents })
}

impl PartitionTables {
    fn partitions(&self) -> impl Iterator<Item = &[u8]> {
        self.partitions.entries(&self.tables)
    }

    fn extents_of(
        &self,
        entry: &[u8],
        length: u64,
    ) -> Result<Vec<PartitionExtent>, PartitionError> {
        let damaged = PartitionError::Damaged;
        let field = |at: usize| {
            let number = le_u32(entry, NAME_BYTES.saturating_add(at));
            usize::try_from(number).map_err(|_| damaged("a partition"))
        };
        let (first, count) = (field(4)?, field(8)?);
        if first.checked_add(count).is_none_or(|end| end > self.extents.count) {
            return Err(damaged("a partition has extents that are not there"));
        }
        let mut extents = Vec::new();
        let mut start = 0u64;
        for entry in self.extents.entries(&self.tables).skip(first).take(count) {
            let bytes = le_u64(entry, 0).checked_mul(SECTOR_BYTES).ok_or(damaged("an extent"))?;
            let source = match le_u32(entry, 8) {
                0 if le_u32(entry, 20) != 0 => {
                    return Err(damaged("the partition lies on another device"));
                }
                0 => Some(le_u64(entry, 12).checked_mul(SECTOR_BYTES).ok_or(damaged("an extent"))?),
                1 => None,
                _ => return Err(damaged("an extent of unknown type")),
            };
            let is_inside = source
                .is_none_or(|source| source.checked_add(bytes).is_some_and(|end| end <= length));
            let end = start
                .checked_add(bytes)
                .filter(|_| is_inside)
                .ok_or(damaged("an extent past its end"))?;
            if bytes > 0 {
                extents.push(PartitionExtent { start, end, source });
            }
            start = end;
        }
        Ok(extents)
    }
}

fn read(whole: &dyn ImageSource, at: u64, bytes: u32) -> Result<Vec<u8>, PartitionError> {
    // A short file cannot have memory allocated for tables of the greatest length.
    if at.saturating_add(u64::from(bytes)) > whole.length() {
        return Err(PartitionError::NotSuper);
    }
    let mut buffer = vec![0; usize::try_from(bytes).unwrap_or(0)];
    match read_exact(whole, at, &mut buffer) {
        Ok(()) => Ok(buffer),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(PartitionError::NotSuper),
        Err(error) => Err(PartitionError::Io(error)),
    }
}

/// Whether the 32 bytes at `at` are the SHA-256 of the whole, in which these bytes are zeros.
fn has_checksum(bytes: &mut [u8], at: usize) -> bool {
    let Some(field) = bytes.get_mut(at..at.saturating_add(32)) else { return false };
    let stored = field.to_vec();
    field.fill(0);
    stored == *Sha256::digest(&*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::android::tests::Bytes;

    /// A super image whose partition `b` is sector 41, a sector of zeros, and sector 40.
    fn super_image() -> Vec<u8> {
        super_image_with(&[0, 2, 52, 104, 3, 24])
    }

    /// The same with other places of the two tables.
    fn super_image_with(places: &[u32; 6]) -> Vec<u8> {
        let words =
            |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let mut tables = Vec::new();
        for (name, first, count) in [("a", 0u32, 0u32), ("b", 0, 3)] {
            let mut entry = name.as_bytes().to_vec();
            entry.resize(NAME_BYTES, 0);
            entry.extend(words(&[0, first, count, 0]));
            tables.extend(entry);
        }
        for (kind, sector) in [(0u32, 41u64), (1, 0), (0, 40)] {
            tables.extend(1u64.to_le_bytes());
            tables.extend(kind.to_le_bytes());
            tables.extend(sector.to_le_bytes());
            tables.extend(0u32.to_le_bytes());
        }
        let mut header = words(&[HEADER_MAGIC, 10, 128]);
        header.extend([0; 32]);
        header.extend(words(&[u32::try_from(tables.len()).unwrap()]));
        header.extend(Sha256::digest(&tables));
        header.extend(words(places));
        header.extend([0; 24]);
        let sum = Sha256::digest(&header);
        header[12..44].copy_from_slice(&sum);
        let mut geometry = words(&[GEOMETRY_MAGIC, 52]);
        geometry.extend([0; 32]);
        geometry.extend(words(&[65536, 1, 4096]));
        let sum = Sha256::digest(&geometry);
        geometry[8..40].copy_from_slice(&sum);
        let mut image = vec![0; 42 * 512];
        image[4096..4096 + 52].copy_from_slice(&geometry);
        image[12288..12288 + 128].copy_from_slice(&header);
        image[12416..12416 + tables.len()].copy_from_slice(&tables);
        image[40 * 512..41 * 512].fill(b'x');
        image[41 * 512..].fill(b'y');
        image
    }

    fn find(image: Vec<u8>, name: &str) -> Result<PartitionSource, PartitionError> {
        PartitionSource::find(Arc::new(Bytes(image)), name)
    }

    #[test]
    fn a_partition_reads_as_its_extents() {
        let source = find(super_image(), "b").unwrap();
        assert_eq!(source.length(), 1536);
        let mut buffer = vec![1; 2000];
        assert_eq!(source.read_at(500, &mut buffer).unwrap(), 1036);
        let expected = [vec![b'y'; 12], vec![0; 512], vec![b'x'; 512]].concat();
        assert_eq!(buffer[..1036], expected);
        assert_eq!(source.read_at(1536, &mut buffer).unwrap(), 0);
    }

    #[test]
    fn other_names_and_damaged_tables_are_refused() {
        let error = find(super_image(), "c").unwrap_err().to_string();
        assert!(error.ends_with("there are a, b"), "{error}");
        for at in [4096 + 40, 12288 + 44, 12288 + 80, 12416 + 40, 12416 + 104] {
            let mut image = super_image();
            image[at] ^= 1;
            assert!(matches!(find(image, "b").unwrap_err(), PartitionError::Damaged(_)), "{at}");
        }
        let short = super_image()[..41 * 512].to_vec();
        assert!(matches!(find(short, "b").unwrap_err(), PartitionError::Damaged(_)));
        assert!(matches!(find(vec![0; 50_000], "b").unwrap_err(), PartitionError::NotSuper));
        assert!(matches!(find(vec![0; 50], "b").unwrap_err(), PartitionError::NotSuper));
    }
    /// Entries of no bytes: four thousand million of them took no room in the tables, and each
    /// took a string.
    #[test]
    fn entries_that_take_no_bytes_are_refused() {
        for places in [[0, u32::MAX, 0, 104, 3, 24], [0, 2, 52, 104, u32::MAX, 0]] {
            let error = find(super_image_with(&places), "b").unwrap_err();
            assert!(matches!(error, PartitionError::Damaged(_)), "{places:?}");
        }
    }

    #[test]
    fn what_a_partition_needs_is_made_ready_where_it_lies() {
        let source = find(super_image(), "b").unwrap();
        let parts = source.stored(&(500..1100)).collect::<Vec<_>>();
        assert_eq!(parts, [41 * 512 + 500..42 * 512, 40 * 512..40 * 512 + 76]);
        assert_eq!(source.stored(&(1536..9999)).count(), 0);
    }
}
