//! Finds a logical partition in a super image of Android. Such an image has tables at its start with
//! the partitions and the extents that they consist of. Used by `source`.

use std::fmt;
use std::io;
use std::sync::Arc;

use ferrofs_image::ImageSource;
use sha2::{Digest, Sha256};

const GEOMETRY_MAGIC: u32 = 0x616c_4467;
const HEADER_MAGIC: u32 = 0x414c_5030;
/// Where the geometry and its copy lie, and where the first tables begin.
const GEOMETRIES_AT: [u64; 2] = [4096, 8192];
const TABLES_AT: u64 = 12288;
const GEOMETRY_BYTES: usize = 52;
/// The header that all versions have.
const HEADER_BYTES: usize = 128;
/// The largest tables: AOSP has 64 KiB.
const METADATA_BYTES_MAX: u32 = 4 << 20;
const SECTOR_BYTES: u64 = 512;
const NAME_BYTES: usize = 36;

/// A run of bytes of a partition; `None` stands for zeros.
#[derive(Clone, Copy, Debug)]
struct PartitionExtent {
    start: u64,
    end: u64,
    source: Option<u64>,
}

/// A partition.
#[derive(Debug)]
pub(super) struct PartitionSource {
    whole: Arc<dyn ImageSource>,
    extents: Vec<PartitionExtent>,
    length: u64,
}

/// Why a partition was not found.
#[derive(Debug)]
pub(super) enum PartitionError {
    /// There is no such table.
    NotSuper,
    Io(io::Error),
    Damaged(&'static str),
    /// The names that there are.
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

impl PartitionSource {
    /// Finds the partition `name`.
    ///
    /// # Errors
    /// There is no valid table, or no such partition.
    pub(super) fn find(whole: Arc<dyn ImageSource>, name: &str) -> Result<Self, PartitionError> {
        let tables = read_tables(&*whole)?;
        let names = tables.names();
        let number = names.iter().position(|known| known == name);
        let number = number.ok_or(PartitionError::NoSuchName(names))?;
        let extents = tables.extents_of(number, whole.length())?;
        let length = extents.last().map_or(0, |last| last.end);
        Ok(Self { whole, extents, length })
    }
}

impl ImageSource for PartitionSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        let first = self.extents.partition_point(|extent| extent.end <= offset);
        for extent in self.extents.iter().skip(first) {
            let at = offset + done as u64;
            let room = buffer.get_mut(done..).unwrap_or_default();
            let bytes =
                usize::try_from(extent.end - at).map_or(room.len(), |left| left.min(room.len()));
            let part = room.get_mut(..bytes).unwrap_or_default();
            if part.is_empty() {
                break;
            }
            let count = match extent.source {
                Some(source) => self.whole.read_at(source + (at - extent.start), part)?,
                None => {
                    part.fill(0);
                    part.len()
                }
            };
            done += count;
            if count < bytes {
                break;
            }
        }
        Ok(done)
    }

    fn length(&self) -> u64 {
        self.length
    }
}

/// The tables of a super image, which have the right checksum.
struct PartitionTables {
    tables: Vec<u8>,
    partitions: TableDescriptor,
    extents: TableDescriptor,
}

/// Where a table lies among all tables.
#[derive(Clone, Copy)]
struct TableDescriptor {
    offset: u32,
    count: u32,
    entry_bytes: u32,
}

impl TableDescriptor {
    fn read(header: &[u8], at: usize) -> Self {
        Self {
            offset: word(header, at),
            count: word(header, at + 4),
            entry_bytes: word(header, at + 8),
        }
    }

    /// The bytes of an entry.
    fn entry(self, tables: &[u8], number: u32) -> Option<&[u8]> {
        let number = Some(number).filter(|number| *number < self.count)?;
        let start = u64::from(self.offset) + u64::from(number) * u64::from(self.entry_bytes);
        let start = usize::try_from(start).ok()?;
        tables.get(start..start.checked_add(usize::try_from(self.entry_bytes).ok()?)?)
    }
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
    let mut geometry = read(whole, at, GEOMETRY_BYTES)?;
    if word(&geometry, 0) != GEOMETRY_MAGIC {
        return Err(PartitionError::NotSuper);
    }
    if !has_checksum(&mut geometry, 8) {
        return Err(PartitionError::Damaged("the checksum of the geometry"));
    }
    let bytes_max = word(&geometry, 40);
    if bytes_max > METADATA_BYTES_MAX {
        return Err(PartitionError::Damaged("the tables are too large"));
    }
    let mut header = read(whole, TABLES_AT, HEADER_BYTES)?;
    if word(&header, 0) != HEADER_MAGIC {
        return Err(PartitionError::Damaged("there are no tables"));
    }
    let header_bytes = word(&header, 8);
    if (header_bytes as usize) < HEADER_BYTES || header_bytes > bytes_max {
        return Err(PartitionError::Damaged("the size of the header"));
    }
    header = read(whole, TABLES_AT, header_bytes as usize)?;
    if !has_checksum(&mut header, 12) {
        return Err(PartitionError::Damaged("the checksum of the header"));
    }
    let tables_bytes = word(&header, 44);
    if tables_bytes > bytes_max {
        return Err(PartitionError::Damaged("the tables are too large"));
    }
    let tables = read(whole, TABLES_AT + u64::from(header_bytes), tables_bytes as usize)?;
    if header.get(48..80) != Some(&*Sha256::digest(&tables)) {
        return Err(PartitionError::Damaged("the checksum of the tables"));
    }
    let partitions = TableDescriptor::read(&header, 80);
    let extents = TableDescriptor::read(&header, 92);
    Ok(PartitionTables { tables, partitions, extents })
}

impl PartitionTables {
    fn names(&self) -> Vec<String> {
        let entries = (0..self.partitions.count)
            .map_while(|number| self.partitions.entry(&self.tables, number));
        entries
            .map(|entry| {
                let name = entry.get(..NAME_BYTES).unwrap_or(entry);
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                String::from_utf8_lossy(name).into_owned()
            })
            .collect()
    }

    fn extents_of(
        &self,
        number: usize,
        length: u64,
    ) -> Result<Vec<PartitionExtent>, PartitionError> {
        let damaged = PartitionError::Damaged;
        let number = u32::try_from(number).map_err(|_| damaged("a partition"))?;
        let entry = self.partitions.entry(&self.tables, number).ok_or(damaged("a partition"))?;
        let (first, count) = (word(entry, NAME_BYTES + 4), word(entry, NAME_BYTES + 8));
        let mut extents = Vec::new();
        let mut start = 0u64;
        for number in 0..count {
            let number = first.checked_add(number).ok_or(damaged("an extent"))?;
            let entry = self.extents.entry(&self.tables, number).ok_or(damaged("an extent"))?;
            let bytes = long(entry, 0).checked_mul(SECTOR_BYTES).ok_or(damaged("an extent"))?;
            let source = match word(entry, 8) {
                0 if word(entry, 20) != 0 => {
                    return Err(damaged("the partition lies on another device"));
                }
                0 => Some(long(entry, 12).checked_mul(SECTOR_BYTES).ok_or(damaged("an extent"))?),
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

fn read(whole: &dyn ImageSource, at: u64, bytes: usize) -> Result<Vec<u8>, PartitionError> {
    let mut buffer = vec![0; bytes];
    let mut done = 0;
    while done < bytes {
        let room = buffer.get_mut(done..).unwrap_or_default();
        match whole.read_at(at + done as u64, room).map_err(PartitionError::Io)? {
            0 => return Err(PartitionError::NotSuper),
            count => done += count,
        }
    }
    Ok(buffer)
}

/// Whether the 32 bytes at `at` are the SHA-256 of the whole, in which these bytes are zeros.
fn has_checksum(bytes: &mut [u8], at: usize) -> bool {
    let Some(field) = bytes.get_mut(at..at + 32) else { return false };
    let stored = field.to_vec();
    field.fill(0);
    stored == *Sha256::digest(&*bytes)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Bytes(Vec<u8>);

    impl ImageSource for Bytes {
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            let start = usize::try_from(offset).unwrap().min(self.0.len());
            let count = buffer.len().min(self.0.len() - start);
            buffer[..count].copy_from_slice(&self.0[start..start + count]);
            Ok(count)
        }

        fn length(&self) -> u64 {
            self.0.len() as u64
        }
    }

    /// A super image whose partition `b` is sector 41, a sector of zeros, and sector 40.
    fn super_image() -> Vec<u8> {
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
        header.extend(words(&[0, 2, 52, 104, 3, 24, 0, 0, 0, 0, 0, 0]));
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
}
