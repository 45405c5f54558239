//! What is in a cache: its objects with their space and last use, and how one of them is removed.
//! Anybody may list; only the fetcher removes.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use rustix::fs::{AtFlags, OFlags};

use super::object::{CachedObject, ObjectWriter};
use super::record::{CacheKey, ForeignIndex, HEADER_BYTES, parse_header};
use super::{
    CHUNK_INDEX, CHUNK_INDEX_NEW, CacheDirectory, IDENTITY_MAX_BYTES, LOCATIONS_FOLDER, hex,
    open_in, set_used, unhex, with_path,
};

/// The files of an object, in the order in which they are removed: data without records is absent.
const FILES: [&str; 5] = ["index", "data", CHUNK_INDEX_NEW, CHUNK_INDEX, "identity"];
/// Locations that are remembered for `--offline`. A record takes a block of the file system.
const LOCATIONS_MAX: usize = 1024;

/// An object in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// Its key.
    pub key: CacheKey,
    /// Bytes of the object.
    pub length: u64,
    /// Bytes that its files take on the disk.
    pub used_bytes: u64,
    /// When it was used last.
    pub last_used: SystemTime,
    /// The first line that names it: a URL without its query, or a digest. Empty if it was being
    /// removed when the fetcher was killed.
    pub name: String,
}

impl CacheEntry {
    /// The key as 64 hexadecimal digits.
    #[must_use]
    pub fn key_text(&self) -> String {
        hex(&self.key)
    }
}

/// The file system of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// All bytes.
    pub total: u64,
    /// Bytes that an ordinary user can still write.
    pub available: u64,
}

impl CacheDirectory {
    /// All objects, in no order. Folders that are no objects are left out.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> io::Result<Vec<CacheEntry>> {
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.objects)? {
            let entry = entry?;
            let key = entry.file_name().to_str().ok().and_then(unhex);
            if let Some(key) = key
                && let Ok(entry) = self.entry(&key)
            {
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// One object. Files may be missing: the fetcher was killed while it made or removed the object.
    ///
    /// # Errors
    /// `NotFound` if the cache does not have it; otherwise it cannot be read.
    pub fn entry(&self, key: &CacheKey) -> io::Result<CacheEntry> {
        let folder = self.folder(&hex(key))?;
        let mut entry = CacheEntry {
            key: *key,
            length: 0,
            used_bytes: 0,
            last_used: SystemTime::UNIX_EPOCH,
            name: String::new(),
        };
        for name in FILES {
            let Ok(file) = open_in(&folder, name, OFlags::RDONLY) else { continue };
            let status = rustix::fs::fstat(&file)?;
            let [length, blocks] =
                [status.st_size, status.st_blocks].map(|value| u64::try_from(value).unwrap_or(0));
            entry.used_bytes = entry.used_bytes.saturating_add(blocks.saturating_mul(512));
            match name {
                "data" => entry.length = length,
                "identity" => {
                    entry.last_used = file.metadata()?.modified()?;
                    entry.name = display_name(&file)?;
                }
                _ => {}
            }
        }
        Ok(entry)
    }

    /// Opens an object that is in the cache, whatever its identity is.
    ///
    /// # Errors
    /// `NotFound` if the cache does not have it; `InvalidData` if its index is damaged.
    pub fn open_object(&self, key: &CacheKey) -> io::Result<CachedObject> {
        let folder = self.folder(&hex(key))?;
        let records = open_in(&folder, "index", OFlags::RDONLY)?;
        let layout = read_header(&records, key)?;
        CachedObject::new(*key, layout, open_in(&folder, "data", OFlags::RDONLY)?, records, None)
    }

    /// The same for its only writer.
    ///
    /// # Errors
    /// The same.
    pub fn open_writer(&self, key: &CacheKey, first_generation: u32) -> io::Result<ObjectWriter> {
        let folder = self.folder(&hex(key))?;
        let records = open_in(&folder, "index", OFlags::RDWR)?;
        let layout = read_header(&records, key)?;
        let data = open_in(&folder, "data", OFlags::RDWR)?;
        ObjectWriter::new(*key, layout, data, records, first_generation)
    }

    /// Records that an object is used now.
    ///
    /// # Errors
    /// It is not there, or the cache is read-only.
    pub fn touch(&self, key: &CacheKey) -> io::Result<()> {
        Ok(set_used(&self.folder(&hex(key))?)?)
    }

    /// Removes an object that has no writer (E3). Readers that have it open find its chunks
    /// absent, and its space is free at once.
    ///
    /// # Errors
    /// Something of it cannot be removed.
    pub fn remove(&self, key: &CacheKey) -> io::Result<()> {
        let name = hex(key);
        let folder = self.folder(&name)?;
        // Without records, all chunks are absent. Then the space.
        for (file, length) in [("index", HEADER_BYTES as u64), ("data", 0)] {
            match open_in(&folder, file, OFlags::WRONLY) {
                Ok(file) => file.set_len(length)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // What lies there instead of a file goes with its name.
                Err(_) => {}
            }
        }
        // Then the names.
        for file in FILES {
            unlink(&folder, file)?;
        }
        Ok(rustix::fs::unlinkat(&self.objects, &name, AtFlags::REMOVEDIR)?)
    }

    /// Forgets the oldest locations beyond the number that is kept.
    ///
    /// # Errors
    /// The folder cannot be read, or a record not be removed.
    pub fn trim_locations(&self) -> io::Result<()> {
        let folder = match self.folder(LOCATIONS_FOLDER) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            folder => folder?,
        };
        let mut records = Vec::new();
        for entry in rustix::fs::Dir::read_from(&folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Ok(status) = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if !name.starts_with('.') {
                records.push(((status.st_mtime, status.st_mtime_nsec), name.to_owned()));
            }
        }
        records.sort_unstable();
        let surplus = records.len().saturating_sub(LOCATIONS_MAX);
        records.iter().take(surplus).try_for_each(|(_, name)| unlink(&folder, name))
    }

    /// The space of the file system.
    ///
    /// # Errors
    /// As `fstatvfs`.
    pub fn disk_space(&self) -> io::Result<DiskSpace> {
        let status = rustix::fs::fstatvfs(&self.objects)
            .map_err(|errno| with_path(self.path(), &errno.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(status.f_frsize);
        Ok(DiskSpace { total: bytes(status.f_blocks), available: bytes(status.f_bavail) })
    }
}

fn read_header(records: &std::fs::File, key: &CacheKey) -> io::Result<super::record::ChunkLayout> {
    let mut bytes = [0; HEADER_BYTES];
    let foreign = || io::Error::new(io::ErrorKind::InvalidData, ForeignIndex);
    match records.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(foreign()),
        other => other?,
    }
    let (found, layout) = parse_header(&bytes).ok_or_else(foreign)?;
    if found == *key { Ok(layout) } else { Err(foreign()) }
}

fn display_name(identity: &std::fs::File) -> io::Result<String> {
    let mut text = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(identity, IDENTITY_MAX_BYTES), &mut text)?;
    let text = String::from_utf8_lossy(&text);
    let name = text.lines().nth(1).unwrap_or_default();
    Ok(name.split_once('?').map_or(name, |(path, _)| path).to_owned())
}

fn unlink(folder: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ChunkLayout, ChunkRead, ObjectIdentity};
    use super::*;

    fn identity(text: &str) -> ObjectIdentity {
        ObjectIdentity::Validated {
            url: text.to_owned(),
            validator: "etag \"1\"".to_owned(),
            length: 9,
        }
    }

    fn cache() -> (tempfile::TempDir, CacheDirectory) {
        let above = tempfile::tempdir().unwrap();
        let cache = CacheDirectory::open(&above.path().join("cache")).unwrap();
        (above, cache)
    }

    fn store(cache: &CacheDirectory, url: &str) -> CacheKey {
        let identity = identity(url);
        let layout = ChunkLayout::new(9).unwrap();
        cache.writer(&identity, layout, 1).unwrap().store(0, b"123456789").unwrap();
        identity.key()
    }

    #[test]
    fn an_object_is_listed_with_its_space_and_removed() {
        let (_above, cache) = cache();
        let key = store(&cache, "https://h/x?secret");
        let listed = cache.list().unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].name, "https://h/x");
        assert_eq!((listed[0].length, listed[0].used_bytes > 0), (9, true));
        assert_eq!(listed[0].key, key);
        assert_eq!(cache.entry(&key).unwrap(), listed[0]);
        let object = cache.open_object(&key).unwrap();
        let mut bytes = [0; 9];
        assert_eq!(object.read(0, 0, &mut bytes).unwrap(), ChunkRead::Served);
        assert_eq!(&bytes, b"123456789");
        cache.remove(&key).unwrap();
        assert!(cache.list().unwrap().is_empty());
        assert_eq!(cache.entry(&key).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(cache.open_object(&key).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(object.read(0, 0, &mut bytes).unwrap(), ChunkRead::Absent, "no space is held");
    }

    /// Killed after each step of a removal: the object is absent or whole, and can be removed.
    #[test]
    fn a_removal_that_was_interrupted_leaves_nothing_that_is_served() {
        for step in 0..FILES.len() + 2 {
            let (above, cache) = cache();
            let key = store(&cache, "https://h/x");
            cache.keep_chunk_index(&key, b"digests").unwrap();
            let folder = above.path().join("cache/v1").join(hex(&key));
            let shorten = |name: &str, length| {
                let file = std::fs::File::options().write(true).open(folder.join(name));
                file.unwrap().set_len(length).unwrap();
            };
            shorten("index", 64);
            if step > 0 {
                shorten("data", 0);
            }
            for name in FILES.iter().take(step.max(1) - 1) {
                // Only while it is written there is a second chunk index.
                let removed = std::fs::remove_file(folder.join(name));
                assert!(removed.is_ok() || *name == CHUNK_INDEX_NEW, "{name}");
            }
            let listed = cache.list().unwrap();
            assert_eq!(listed.len(), 1, "step {step}");
            if let Ok(object) = cache.open_object(&key) {
                assert_eq!(object.read(0, 0, &mut [0; 9]).unwrap(), ChunkRead::Absent);
            }
            if step % 2 == 0 {
                store(&cache, "https://h/x");
                let object = cache.open_object(&key).unwrap();
                assert_eq!(object.read(0, 0, &mut [0; 9]).unwrap(), ChunkRead::Served);
            }
            cache.remove(&key).unwrap();
            assert!(cache.list().unwrap().is_empty());
        }
    }

    #[test]
    fn a_damaged_index_opens_no_object() {
        let (above, cache) = cache();
        let key = store(&cache, "https://h/x");
        let path = above.path().join("cache/v1").join(hex(&key)).join("index");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(cache.open_object(&key).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(cache.open_writer(&key, 1).unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::write(&path, b"").unwrap();
        assert_eq!(cache.open_object(&key).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn remembered_locations_are_bounded() {
        let (above, cache) = cache();
        cache.trim_locations().unwrap();
        let left = || std::fs::read_dir(above.path().join("cache/v1/locations")).unwrap().count();
        // No fetcher starts meanwhile, which trims, too.
        for number in 0..LOCATIONS_MAX + 200 {
            cache.remember(&number.to_string(), b"record").unwrap();
            assert!(left() < LOCATIONS_MAX + 64, "{number}");
        }
        cache.recall(&(LOCATIONS_MAX + 199).to_string()).unwrap();
        cache.trim_locations().unwrap();
        assert_eq!(left(), LOCATIONS_MAX);
        assert!(cache.disk_space().unwrap().total > 0);
    }
}
