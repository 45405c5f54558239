//! Sparse files: which parts of them an archive holds. GNU tar has four ways to say it: in the header ("old"),
//! in repeated records (0.0), in one record (0.1), and before the data (1.0).

use super::pax::number;

/// One part of a file, and where its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SparseExtent {
    /// The first byte, in the file.
    pub(super) start: u64,
    /// How many; not 0.
    pub(super) bytes: u64,
    /// The first byte, from where the archive's bytes are read.
    pub(super) place: u64,
}

/// The parts of a file, as they are being read.
#[derive(Clone, Debug, Default)]
pub(super) struct SparseMap {
    /// By position; places count from the first stored byte.
    segments: Vec<SparseExtent>,
    /// How many bytes are stored so far.
    stored: u64,
    /// Where the last part ended.
    end: u64,
}

impl SparseMap {
    /// Adds a part of `bytes` bytes from `start` on.
    pub(super) fn push(&mut self, start: u64, bytes: u64) -> Result<(), String> {
        let wrong =
            |what: &str| format!("its map has a part of {bytes} bytes at {start}, which {what}");
        let end = start.checked_add(bytes).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or_else(|| wrong("ends beyond any file"))?;
        if start < self.end {
            return Err(wrong("begins before the last one ends"));
        }
        self.end = end;
        if bytes == 0 {
            return Ok(());
        }
        match self.segments.last_mut() {
            Some(last) if last.start + last.bytes == start => last.bytes += bytes,
            _ => {
                self.segments.try_reserve(1).map_err(|_| "its map does not fit into memory")?;
                self.segments.push(SparseExtent { start, bytes, place: self.stored });
            }
        }
        // Parts do not overlap and end within 63 bits, and so does their sum.
        self.stored += bytes;
        Ok(())
    }

    /// The parts of a file of `bytes` bytes, of which `stored` are in the archive.
    pub(super) fn finish(self, bytes: u64, stored: u64) -> Result<Vec<SparseExtent>, String> {
        if self.end > bytes {
            return Err(format!("its map ends at byte {}, and the file at {bytes}", self.end));
        }
        if self.stored != stored {
            return Err(format!(
                "its map has {} bytes of data, and the archive {stored}",
                self.stored
            ));
        }
        Ok(self.segments)
    }
}

/// What records say about a sparse file.
#[derive(Clone, Debug, Default)]
pub(super) struct SparseRecords {
    /// The name of the file; the header has another one, for tars that know nothing of this.
    pub(super) name: Option<Vec<u8>>,
    major: Option<u64>,
    minor: Option<u64>,
    bytes: Option<u64>,
    parts: Option<u64>,
    /// The offset of a part whose length comes next.
    offset: Option<u64>,
    map: Option<SparseMap>,
}

/// Where the map of a sparse file is.
#[derive(Clone, Debug)]
pub(super) enum SparseForm {
    /// Here.
    InRecords { bytes: u64, map: SparseMap },
    /// Before the data.
    BeforeData { bytes: u64 },
}

impl SparseRecords {
    /// Takes the record `GNU.sparse.KEY`.
    pub(super) fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match key {
            b"major" => self.major = Some(number(value)?),
            b"minor" => self.minor = Some(number(value)?),
            b"name" if value.contains(&0) => return Err("holds a byte 0".to_owned()),
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.bytes = Some(number(value)?),
            b"numblocks" => self.parts = Some(number(value)?),
            b"offset" => self.offset = Some(number(value)?),
            b"numbytes" => {
                let offset = self.offset.take().ok_or("comes without an offset")?;
                self.map.get_or_insert_default().push(offset, number(value)?)?;
            }
            b"map" => self.map = Some(list(value)?),
            _ => return Err("is not known".to_owned()),
        }
        Ok(())
    }

    /// Where the map is, if the file is sparse at all.
    pub(super) fn form(&mut self) -> Result<Option<SparseForm>, String> {
        let map = self.map.take();
        match (self.major.unwrap_or(0), self.minor, self.bytes) {
            (0, None | Some(0 | 1), None) if map.is_none() && self.parts.is_none() => Ok(None),
            (0, None | Some(0 | 1), Some(bytes)) => {
                let map = map.unwrap_or_default();
                Ok(Some(SparseForm::InRecords { bytes: in_range(bytes)?, map }))
            }
            (1, None | Some(0), Some(bytes)) => {
                Ok(Some(SparseForm::BeforeData { bytes: in_range(bytes)? }))
            }
            (0 | 1, _, None) => Err("it is sparse, and its size is missing".to_owned()),
            (major, minor, _) => Err(format!(
                "it is sparse in the format {major}.{}, which is not known",
                minor.unwrap_or(0)
            )),
        }
    }
}

fn in_range(bytes: u64) -> Result<u64, String> {
    match i64::try_from(bytes) {
        Ok(_) => Ok(bytes),
        Err(_) => Err(format!("its size of {bytes} bytes is more than a file can have")),
    }
}

/// `OFFSET,LENGTH,OFFSET,LENGTH…`
fn list(value: &[u8]) -> Result<SparseMap, String> {
    let mut map = SparseMap::default();
    let mut fields = value.split(|byte| *byte == b',');
    while let Some(offset) = fields.next() {
        if value.is_empty() {
            break;
        }
        let length = fields.next().ok_or("its last part has no length")?;
        map.push(number(offset)?, number(length)?)?;
    }
    Ok(map)
}
