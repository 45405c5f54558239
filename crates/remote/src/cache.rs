//! The cache on disk: a directory of objects, owned by one user. Only the fetcher changes it;
//! readers get descriptors from the fetcher, or open an object by its key when there is none.
//!
//! The format is in docs/remote.md. Everything is reached through one directory descriptor, and no
//! symbolic link is followed below it.

mod listing;
mod object;
mod place;
mod record;
mod socket;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timestamps};
use sha2::{Digest as _, Sha256};

use crate::chunk_index::CHUNK_INDEX_MAX_BYTES;
use place::UnsafeDirectory;

pub use listing::{CacheEntry, DiskSpace};
pub use object::{CachedObject, ChunkRead, ObjectWriter};
pub use place::CachePlace;
pub use record::{CacheKey, ChunkLayout, ChunkRecord, OBJECT_MAX_BYTES};
pub use socket::FetcherSocket;

/// The folder of this version of the format.
const VERSION_FOLDER: &str = "v1";
/// Below it: what each location was when it was opened last.
const LOCATIONS_FOLDER: &str = "locations";
/// After so many records, those that are too many are removed: a look at all of them for each would cost more.
const LOCATIONS_SLACK: u64 = 64;
/// A chunk index is compared in pieces of so many bytes.
const COMPARED_BYTES: usize = 4096;
/// In the folder of an object: its chunk index, so that the object can be opened without a server.
const CHUNK_INDEX: &str = "chunk-index";
/// The same while it is written.
const CHUNK_INDEX_NEW: &str = "chunk-index.new";
/// The longest identity that is read back, in bytes: a URL and a validator.
const IDENTITY_MAX_BYTES: u64 = 64 << 10;

/// What makes an object the same object. Two objects with equal identities have equal bytes, as far as
/// the servers that they name are trusted.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum ObjectIdentity {
    /// The digest of all bytes of the object, as a registry gives it. Anybody may send other bytes, so
    /// it is the identity of an object only together with a chunk index ([`Indexed`](Self::Indexed)).
    Digest(String),
    /// A blob whose bytes nobody has compared with its digest: they are what its servers have sent.
    Blob {
        /// Who may have sent bytes of it: scheme and host of the registry, and of its mirrors.
        servers: Vec<String>,
        /// The digest that all bytes should have.
        digest: String,
        /// Bytes of the blob.
        length: u64,
    },
    /// A URL, the strong validator of the server, and the length.
    Validated {
        /// The URL without its fragment.
        url: String,
        /// The header and its value, as in `etag "5f-1"`.
        validator: String,
        /// Bytes of the object.
        length: u64,
    },
    /// An object whose chunks are compared with a chunk index before they are stored. It shares no
    /// chunk with the same object without one, whose chunks nobody has verified.
    Indexed {
        /// The object.
        object: Box<Self>,
        /// The digest of the chunk index.
        index: String,
    },
}

impl ObjectIdentity {
    /// The identity of this object when its chunks are verified with the chunk index of this
    /// digest; itself without one.
    #[must_use]
    pub fn with_index(self, index: Option<&str>) -> Self {
        match index {
            Some(index) => Self::Indexed { object: Box::new(self), index: index.to_owned() },
            None => self,
        }
    }

    /// The text that is hashed, and kept beside the object for `cache list`.
    fn text(&self) -> String {
        match self {
            Self::Digest(digest) => format!("digest\n{digest}\n"),
            Self::Validated { url, validator, length } => {
                format!("url\n{url}\n{validator}\n{length}\n")
            }
            Self::Blob { servers, digest, length } => {
                format!("blob\n{digest}\n{}\n{length}\n", servers.join(" "))
            }
            // Not `index`: with that, older versions stored bytes behind the image that nobody had verified.
            Self::Indexed { object, index } => format!("{}indexed\n{index}\n", object.text()),
        }
    }

    /// The name of the object in the cache.
    #[must_use]
    pub fn key(&self) -> CacheKey {
        Sha256::digest(self.text()).into()
    }

    /// The same as 64 hexadecimal digits.
    #[must_use]
    pub fn key_text(&self) -> String {
        hex(&self.key())
    }
}

/// A cache directory.
#[derive(Debug)]
pub struct CacheDirectory {
    path: PathBuf,
    objects: OwnedFd,
    /// Locations that this process has recorded.
    remembered: AtomicU64,
}

impl CacheDirectory {
    /// Opens the cache at `path`; creates it, and the folders above it, if they are missing.
    ///
    /// # Errors
    /// It cannot be created or opened. It belongs to another user, or other users have access to it
    /// (`PermissionDenied`). It is a symbolic link.
    pub fn open(path: &Path) -> io::Result<Self> {
        // A file system that is read-only refuses to create what is there.
        match Self::open_existing(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(path)?,
            other => return other,
        }
        Self::open_existing(path)
    }

    /// Makes the folders that are missing.
    fn create(path: &Path) -> io::Result<()> {
        let create = |name: &Path, result: rustix::io::Result<()>| match result {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(errno) => Err(with_path(name, &errno.into())),
        };
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| with_path(parent, &error))?;
        }
        let private = Mode::RWXU;
        create(path, rustix::fs::mkdir(path, private))?;
        let folder = open_folder(rustix::fs::CWD, path).map_err(|errno| not_opened(path, errno))?;
        check_owner(path, &folder)?;
        let below = path.join(VERSION_FOLDER);
        create(&below, rustix::fs::mkdirat(&folder, VERSION_FOLDER, private))
    }

    /// Opens the cache at `path` if it is there, and creates nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open); `NotFound`.
    pub fn open_existing(path: &Path) -> io::Result<Self> {
        let folder = open_folder(rustix::fs::CWD, path).map_err(|errno| not_opened(path, errno))?;
        check_owner(path, &folder)?;
        let below = path.join(VERSION_FOLDER);
        let objects = open_folder(&folder, Path::new(VERSION_FOLDER));
        let objects = objects.map_err(|errno| not_opened(&below, errno))?;
        check_owner(&below, &objects)?;
        Ok(Self { path: path.to_owned(), objects, remembered: AtomicU64::new(0) })
    }

    /// Where the cache is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens an object for its only writer, and creates it if it is missing.
    ///
    /// # Errors
    /// Its folder or a file cannot be created, opened or written.
    pub fn writer(
        &self,
        identity: &ObjectIdentity,
        layout: ChunkLayout,
        first_generation: u32,
    ) -> io::Result<ObjectWriter> {
        let key = identity.key();
        let name = hex(&key);
        match rustix::fs::mkdirat(&self.objects, &name, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(with_path(&self.path.join(&name), &errno.into())),
        }
        let folder = self.folder(&name)?;
        let flags = OFlags::RDWR | OFlags::CREATE;
        let named = open_in(&folder, "identity", flags)?;
        named.set_len(0)?;
        std::os::unix::fs::FileExt::write_all_at(&named, identity.text().as_bytes(), 0)?;
        let [data, records] = ["data", "index"].map(|file| open_in(&folder, file, flags));
        ObjectWriter::new(key, layout, data?, records?, first_generation)
    }

    /// Records what a location was when it was opened, so that it can be opened without a server.
    /// `location` is the whole text, with its query. Of all records, the 1024 newest are kept, and at most 64
    /// others.
    ///
    /// # Errors
    /// The record cannot be written; the older one stays.
    pub fn remember(&self, location: &str, record: &[u8]) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.objects, LOCATIONS_FOLDER, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let folder = self.folder(LOCATIONS_FOLDER)?;
        let name = hex(&Sha256::digest(location).into());
        let temporary = format!("{name}.new");
        let file = open_in(&folder, &temporary, OFlags::WRONLY | OFlags::CREATE)?;
        file.set_len(0)?;
        std::os::unix::fs::FileExt::write_all_at(&file, record, 0)?;
        rustix::fs::renameat(&folder, &temporary, &folder, &name)?;
        // Relaxed: it only counts.
        let before = self.remembered.fetch_add(1, Ordering::Relaxed);
        if before % LOCATIONS_SLACK == LOCATIONS_SLACK - 1 {
            self.trim_locations()?;
        }
        Ok(())
    }

    /// The record of a location, at most 64 KiB of it.
    ///
    /// # Errors
    /// `NotFound` if there is none; otherwise it cannot be read.
    pub fn recall(&self, location: &str) -> io::Result<Vec<u8>> {
        let folder = self.folder(LOCATIONS_FOLDER)?;
        let name = hex(&Sha256::digest(location).into());
        let file = open_in(&folder, &name, OFlags::RDONLY)?;
        let mut record = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(&file, IDENTITY_MAX_BYTES), &mut record)?;
        Ok(record)
    }

    /// Keeps the chunk index of an object. It counts as a part of the object.
    ///
    /// # Errors
    /// The object is not there, or its folder cannot be written; an older chunk index stays.
    pub fn keep_chunk_index(&self, key: &CacheKey, bytes: &[u8]) -> io::Result<()> {
        let folder = self.folder(&hex(key))?;
        let file = open_in(&folder, CHUNK_INDEX_NEW, OFlags::WRONLY | OFlags::CREATE)?;
        file.set_len(0)?;
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0)?;
        Ok(rustix::fs::renameat(&folder, CHUNK_INDEX_NEW, &folder, CHUNK_INDEX)?)
    }

    /// Whether the chunk index that is kept of an object has these bytes.
    #[must_use]
    pub fn has_chunk_index(&self, key: &CacheKey, bytes: &[u8]) -> bool {
        self.chunk_index_file(key).is_ok_and(|file| {
            let has_length = file.metadata().is_ok_and(|found| found.len() == bytes.len() as u64);
            let mut rest = io::BufReader::new(file);
            let mut piece = [0; COMPARED_BYTES];
            has_length
                && bytes.chunks(COMPARED_BYTES).all(|wanted| {
                    let found = piece.get_mut(..wanted.len()).unwrap_or_default();
                    io::Read::read_exact(&mut rest, found).is_ok() && found == wanted
                })
        })
    }

    /// The chunk index that is kept of an object. Whoever uses it compares it with its digest.
    ///
    /// # Errors
    /// `NotFound` if there is none; otherwise it cannot be read.
    pub fn chunk_index(&self, key: &CacheKey) -> io::Result<Vec<u8>> {
        let file = self.chunk_index_file(key)?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, CHUNK_INDEX_MAX_BYTES as u64), &mut bytes)?;
        Ok(bytes)
    }

    fn chunk_index_file(&self, key: &CacheKey) -> io::Result<File> {
        open_in(&self.folder(&hex(key))?, CHUNK_INDEX, OFlags::RDONLY)
    }

    /// The files of an object, for a reader, and records the time of this use.
    ///
    /// # Errors
    /// `NotFound` if the cache does not have it; otherwise it cannot be opened.
    pub fn reader_files(&self, key: &CacheKey) -> io::Result<(File, File)> {
        let folder = self.folder(&hex(key))?;
        // A cache that cannot be written can be read; then eviction cannot run either.
        set_used(&folder).ok();
        Ok((open_in(&folder, "data", OFlags::RDONLY)?, open_in(&folder, "index", OFlags::RDONLY)?))
    }

    fn folder(&self, name: &str) -> io::Result<OwnedFd> {
        let path = || self.path.join(VERSION_FOLDER).join(name);
        open_folder(&self.objects, Path::new(name))
            .map_err(|errno| with_path(&path(), &errno.into()))
    }
}

/// Records that an object is used now.
fn set_used(folder: &OwnedFd) -> rustix::io::Result<()> {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    rustix::fs::utimensat(folder, "identity", &times, AtFlags::SYMLINK_NOFOLLOW)
}

/// Opens a regular file of an object.
fn open_in(folder: &OwnedFd, name: &str, flags: OFlags) -> io::Result<File> {
    // NONBLOCK: a FIFO in its place must not stop the open.
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
    let status = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{name} is not a file")));
    }
    Ok(File::from(file))
}

fn open_folder(above: impl AsFd, name: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    rustix::fs::openat(above, name, flags, Mode::empty())
}

/// What prevents a cache at `path`. A symbolic link is refused.
fn not_opened(path: &Path, errno: rustix::io::Errno) -> io::Error {
    match errno {
        rustix::io::Errno::LOOP => {
            let refusal = UnsafeDirectory(format!("{}: is a symbolic link", path.display()));
            io::Error::new(io::ErrorKind::NotADirectory, refusal)
        }
        errno => with_path(path, &errno.into()),
    }
}

/// Refuses a directory that another user owns or can enter: that user could change what is cached.
fn check_owner(path: &Path, folder: impl AsFd) -> io::Result<()> {
    let status = rustix::fs::fstat(folder)?;
    let user = rustix::process::geteuid().as_raw();
    let diagnostic = if status.st_uid != user {
        format!("belongs to user {}, not to user {user}", status.st_uid)
    } else if status.st_mode & 0o077 != 0 {
        format!("has mode {:04o}; a cache needs 0700", status.st_mode & 0o7777)
    } else {
        return Ok(());
    };
    let refusal = UnsafeDirectory(format!("{}: {diagnostic}", path.display()));
    Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal))
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn hex(key: &CacheKey) -> String {
    crate::digest::ContentDigest::from_bytes(*key).hex()
}

fn unhex(text: &str) -> Option<CacheKey> {
    let digest: crate::digest::ContentDigest = format!("sha256:{text}").parse().ok()?;
    Some(*digest.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn identity(url: &str) -> ObjectIdentity {
        ObjectIdentity::Validated {
            url: url.to_owned(),
            validator: "etag \"1\"".to_owned(),
            length: 9,
        }
    }

    fn cache() -> (tempfile::TempDir, CacheDirectory) {
        let above = tempfile::tempdir().unwrap();
        let cache = CacheDirectory::open(&above.path().join("a/cache")).unwrap();
        (above, cache)
    }

    #[test]
    fn a_location_is_remembered_until_the_next_record() {
        let (_above, cache) = cache();
        assert_eq!(cache.recall("u").unwrap_err().kind(), io::ErrorKind::NotFound);
        cache.remember("u", b"a longer record").unwrap();
        cache.remember("u", b"short").unwrap();
        assert_eq!(cache.recall("u").unwrap(), b"short");
        assert!(cache.list().unwrap().is_empty());
    }

    #[test]
    fn a_chunk_index_is_a_part_of_its_object() {
        let (_above, cache) = cache();
        let key = identity("u").key();
        let bytes = vec![7; 3 * COMPARED_BYTES + 1];
        cache.keep_chunk_index(&key, &bytes).unwrap_err();
        drop(cache.writer(&identity("u"), ChunkLayout::new(9).unwrap(), 1).unwrap());
        let used = |cache: &CacheDirectory| cache.list().unwrap()[0].used_bytes;
        let before = used(&cache);
        assert!(!cache.has_chunk_index(&key, &bytes));
        cache.keep_chunk_index(&key, b"another").unwrap();
        cache.keep_chunk_index(&key, &bytes).unwrap();
        assert!(cache.has_chunk_index(&key, &bytes) && used(&cache) > before);
        assert!(!cache.has_chunk_index(&key, &bytes[1..]));
        let mut other = bytes.clone();
        *other.last_mut().unwrap() = 8;
        assert!(!cache.has_chunk_index(&key, &other));
        assert_eq!(cache.chunk_index(&key).unwrap(), bytes);
        cache.remove(&key).unwrap();
        assert_eq!(cache.chunk_index(&key).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn each_part_of_an_identity_counts() {
        let one = identity("https://h/x");
        let ObjectIdentity::Validated { url, validator, .. } = one.clone() else { unreachable!() };
        let longer = ObjectIdentity::Validated { url, validator, length: 10 };
        let digest = ObjectIdentity::Digest("sha256:00".to_owned());
        let indexed = one.clone().with_index(Some("sha256:00"));
        assert_eq!(one.clone().with_index(None), one);
        let other = identity("https://h/y");
        let blob = |server: &str, digest: &str, length| ObjectIdentity::Blob {
            servers: vec![server.to_owned()],
            digest: digest.to_owned(),
            length,
        };
        let blobs = [
            blob("https://h", "sha256:00", 9),
            blob("http://h", "sha256:00", 9),
            blob("https://h", "sha256:01", 9),
            blob("https://h", "sha256:00", 10),
        ];
        let all = [&one, &longer, &other, &digest, &indexed].into_iter().chain(&blobs);
        let keys: Vec<_> = all.map(ObjectIdentity::key).collect();
        for (number, key) in keys.iter().enumerate() {
            assert!(!keys[number + 1..].contains(key));
        }
        assert_eq!(unhex(&hex(&keys[0])), Some(keys[0]));
    }

    #[test]
    fn a_cache_that_others_can_enter_is_refused() {
        let (above, cache) = cache();
        drop(cache);
        let path = above.path().join("a/cache");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o750)).unwrap();
        let error = CacheDirectory::open(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("0750"), "{error}");
    }

    #[test]
    fn links_and_fifos_in_the_cache_are_not_followed() {
        let (above, cache) = cache();
        let path = above.path().join("link");
        symlink(cache.path(), &path).unwrap();
        CacheDirectory::open(&path).unwrap_err();
        let layout = ChunkLayout::new(9).unwrap();
        drop(cache.writer(&identity("u"), layout, 1).unwrap());
        let key = identity("u").key();
        let folder = cache.path().join("v1").join(hex(&key));
        std::fs::remove_file(folder.join("data")).unwrap();
        symlink("/etc/passwd", folder.join("data")).unwrap();
        cache.reader_files(&key).unwrap_err();
        cache.writer(&identity("u"), layout, 1).unwrap_err();
        let listed = cache.list().unwrap();
        assert_eq!((listed.len(), listed[0].length), (1, 0), "it can be removed");
        cache.remove(&key).unwrap();
        assert!(cache.list().unwrap().is_empty());
        assert!(Path::new("/etc/passwd").exists());
    }
}
