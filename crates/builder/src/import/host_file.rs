//! Files of the host as the content of an image: they stay where they are and are read when the
//! image is built. [`SourceRoot`] opens files below the imported directory and nothing else;
//! [`FileFingerprint`] shows whether a file has changed since its import. Used by the importer of
//! directories.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, AtFlags, Mode, OFlags, ResolveFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;

use crate::spill::SpillStore;
use crate::spill::paged::{PagedBytes, first};
use crate::spill::paged::{RecordDecoder, RecordEncoder};
use crate::tree::{Content, ContentProvider, ContentReader, ContentSource, Timestamp};
use crate::{Error, ErrorKind, Result};

/// The most data ranges of a file; everything after the last one counts as data. The list then has
/// 16 MiB.
const RANGES_MAX: usize = 1 << 20;

/// A regular file of the host, as it was at its import. It is small, since a tree has millions of
/// them.
#[derive(Clone)]
pub(super) struct HostFile {
    root: Arc<SourceRoot>,
    name: Box<[u8]>,
    directory: u64,
    data_ranges: DataRanges,
    fingerprint: FileFingerprint,
}

/// Whether a file may have holes, judged by its number of blocks on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataRanges {
    /// It has blocks for all of its bytes.
    Dense,
    /// It has fewer blocks.
    Sparse,
}

/// The place of a file below the root of its source.
pub(super) struct HostLocation<'a> {
    /// The directory, as its place in the table of the root.
    pub(super) directory: u64,
    /// The name in that directory.
    pub(super) name: &'a [u8],
}

impl HostFile {
    pub(super) fn new(
        root: &Arc<SourceRoot>,
        place: &HostLocation<'_>,
        fingerprint: FileFingerprint,
        data_ranges: DataRanges,
    ) -> Self {
        Self {
            root: Arc::clone(root),
            name: place.name.into(),
            directory: place.directory,
            data_ranges,
            fingerprint,
        }
    }

    /// Its content, which takes little memory in a tree.
    pub(super) fn content(&self) -> Content {
        let FileFingerprint { device, inode, size, .. } = self.fingerprint;
        let fingerprint = &self.fingerprint;
        let mut encoder = RecordEncoder::default();
        encoder.number(self.directory).string(&self.name);
        encoder.number(u64::from(self.data_ranges == DataRanges::Sparse));
        // What differs from host to host has always as many bytes: they count in the memory of the build, from
        // which bytes of the image follow.
        encoder.fixed(&device.0.to_le_bytes()).fixed(&device.1.to_le_bytes());
        encoder.fixed(&inode.to_le_bytes());
        encoder.fixed(&fingerprint.mtime_seconds.to_le_bytes());
        encoder.fixed(&fingerprint.mtime_nanoseconds.to_le_bytes());
        encoder.fixed(&fingerprint.ctime_seconds.to_le_bytes());
        encoder.fixed(&fingerprint.ctime_nanoseconds.to_le_bytes());
        encoder.number(size);
        let root: Arc<dyn ContentProvider> = Arc::<SourceRoot>::clone(&self.root);
        Content::of_provider(root, &encoder.bytes, size)
    }

    fn open_unchanged(&self) -> Result<OwnedFd> {
        let relative = self.root.relative(self.directory, &self.name);
        let flags = match self.fingerprint.size {
            // Nothing is read of an empty file, so no right to read it is needed.
            0 => OFlags::PATH,
            // NONBLOCK: a FIFO that has replaced the file must not block the open.
            _ => OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY,
        };
        let fd = match self.root.open_below(&relative, flags) {
            Ok(fd) => fd,
            Err(errno) => return Err(self.located(unopened(errno))),
        };
        self.compare(&fd)?;
        Ok(fd)
    }

    fn compare(&self, fd: &OwnedFd) -> Result<()> {
        let now = FileFingerprint::of_open(fd)
            .map_err(|errno| self.located(input("cannot examine", errno)))?;
        match self.fingerprint.difference(&now) {
            None => Ok(()),
            Some(how) => Err(self.located(changed(how))),
        }
    }

    fn located(&self, error: Error) -> Error {
        error.at(self.root.host_path(&self.root.relative(self.directory, &self.name)))
    }
}

impl ContentProvider for SourceRoot {
    fn content_source(self: Arc<Self>, key: &[u8]) -> Arc<dyn ContentSource> {
        let mut decoder = RecordDecoder::new(key);
        let (directory, name) = (decoder.number(), decoder.string().into());
        let data_ranges =
            if decoder.number() == 1 { DataRanges::Sparse } else { DataRanges::Dense };
        let fingerprint = FileFingerprint {
            device: (u32::from_le_bytes(decoder.fixed()), u32::from_le_bytes(decoder.fixed())),
            inode: u64::from_le_bytes(decoder.fixed()),
            mtime_seconds: i64::from_le_bytes(decoder.fixed()),
            mtime_nanoseconds: u32::from_le_bytes(decoder.fixed()),
            ctime_seconds: i64::from_le_bytes(decoder.fixed()),
            ctime_nanoseconds: u32::from_le_bytes(decoder.fixed()),
            size: decoder.number(),
        };
        Arc::new(HostFile { root: self, name, directory, data_ranges, fingerprint })
    }
}

impl ContentSource for HostFile {
    fn name(&self) -> String {
        let relative = self.root.relative(self.directory, &self.name);
        self.root.host_path(&relative).display().to_string()
    }

    fn open(&self) -> Result<Box<dyn ContentReader>> {
        let fd = self.open_unchanged()?;
        Ok(Box::new(HostReader { file: self.clone(), fd }))
    }

    fn data_ranges(&self) -> Result<Vec<Range<u64>>> {
        let bytes = self.fingerprint.size;
        if bytes == 0 {
            return Ok(Vec::new());
        }
        if self.data_ranges == DataRanges::Dense {
            return Ok(std::iter::once(0..bytes).collect());
        }
        let fd = self.open_unchanged()?;
        let ranges = ranges_of(&fd, bytes)
            .map_err(|errno| self.located(input("cannot look for holes", errno)))?;
        self.compare(&fd)?;
        Ok(ranges)
    }
}

/// An open file of the source.
struct HostReader {
    file: HostFile,
    fd: OwnedFd,
}

impl ContentReader for HostReader {
    fn read_exact_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut at = offset;
        let mut left = buffer;
        while !left.is_empty() {
            let taken = match rustix::io::pread(&self.fd, &mut *left, at) {
                Ok(taken) => taken,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    return Err(self.file.located(input("cannot read", errno)).at_byte(at));
                }
            };
            if taken == 0 {
                return Err(self.ended(at));
            }
            at = at.saturating_add(u64::try_from(taken).unwrap_or(u64::MAX));
            left = left.get_mut(taken..).unwrap_or_default();
        }
        Ok(())
    }

    fn check_unchanged(&mut self) -> Result<()> {
        self.file.compare(&self.fd)
    }
}

impl HostReader {
    /// The error of a file that ends at `at` or earlier, before the wanted range.
    fn ended(&self, at: u64) -> Error {
        let how = format!(
            "it ends here, but had {} bytes when it was imported",
            self.file.fingerprint.size
        );
        self.file.located(changed(how)).at_byte(at)
    }
}

/// The data ranges of a file of `bytes` bytes.
fn ranges_of(fd: impl AsFd, bytes: u64) -> rustix::io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < bytes {
        let start = match fs::seek(&fd, SeekFrom::Data(at)) {
            Ok(start) => start,
            // The rest is a hole.
            Err(Errno::NXIO) => break,
            // The file system does not report holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(errno),
        };
        let end = match fs::seek(&fd, SeekFrom::Hole(start)) {
            _ if ranges.len() >= RANGES_MAX => bytes,
            Ok(end) if end > start => end,
            Ok(_) | Err(Errno::INVAL | Errno::OPNOTSUPP) => bytes,
            // The file has become shorter; the comparison after this reports it.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        if start < bytes {
            ranges.push(start..end.min(bytes));
        }
        at = end;
    }
    Ok(ranges)
}

/// The error of a file that cannot be opened any more.
fn unopened(errno: Errno) -> Error {
    match errno {
        Errno::NOENT => changed("it was deleted".to_owned()),
        Errno::LOOP => changed("it, or a directory above it, is a symlink now".to_owned()),
        Errno::NOTDIR => changed("a directory above it is no longer a directory".to_owned()),
        Errno::NXIO => changed("it is no longer a regular file".to_owned()),
        _ => input("cannot open", errno),
    }
}

pub(super) fn changed(how: String) -> Error {
    Error::new(ErrorKind::SourceChanged { how })
}

pub(super) fn input(operation: &'static str, errno: Errno) -> Error {
    Error::new(ErrorKind::Input { operation, source: errno.into() })
}

/// Identity, size and times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileFingerprint {
    /// Major and minor number of the device.
    pub(crate) device: (u32, u32),
    /// Inode number.
    pub(crate) inode: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    mtime_seconds: i64,
    ctime_seconds: i64,
    mtime_nanoseconds: u32,
    ctime_nanoseconds: u32,
}

impl FileFingerprint {
    pub(crate) fn of(status: &Statx) -> Self {
        Self {
            device: (status.stx_dev_major, status.stx_dev_minor),
            inode: status.stx_ino,
            size: status.stx_size,
            mtime_seconds: status.stx_mtime.tv_sec,
            ctime_seconds: status.stx_ctime.tv_sec,
            mtime_nanoseconds: status.stx_mtime.tv_nsec,
            ctime_nanoseconds: status.stx_ctime.tv_nsec,
        }
    }

    pub(super) fn of_open(fd: impl AsFd) -> rustix::io::Result<Self> {
        let status = fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        Ok(Self::of(&status))
    }

    /// The first difference, as text: identity, size, modification time, change time.
    pub(super) fn difference(&self, now: &Self) -> Option<String> {
        if (self.device, self.inode) != (now.device, now.inode) {
            return Some(format!(
                "it was replaced: it was inode {} of device {}:{} and is now inode {} of {}:{}",
                self.inode, self.device.0, self.device.1, now.inode, now.device.0, now.device.1
            ));
        }
        if self.size != now.size {
            return Some(format!("its size was {} bytes and is now {}", self.size, now.size));
        }
        let mtime = |fingerprint: &Self| Timestamp {
            seconds: fingerprint.mtime_seconds,
            nanoseconds: fingerprint.mtime_nanoseconds,
        };
        if mtime(self) != mtime(now) {
            return Some(moved("modification time", mtime(self), mtime(now)));
        }
        let ctime = |fingerprint: &Self| Timestamp {
            seconds: fingerprint.ctime_seconds,
            nanoseconds: fingerprint.ctime_nanoseconds,
        };
        (ctime(self) != ctime(now)).then(|| moved("change time", ctime(self), ctime(now)))
    }
}

fn moved(what: &str, before: Timestamp, now: Timestamp) -> String {
    let text = |time: Timestamp| format!("{}.{:09}", time.seconds, time.nanoseconds);
    format!("its {what} was {} and is now {}", text(before), text(now))
}

/// The longest path that is passed to one system call. Linux allows 4,095 bytes; a longer path is
/// cut.
const PATH_MAX_BYTES: usize = 4_000;

/// The root of a source, open as long as files below it may be read.
pub(crate) struct SourceRoot {
    path: PathBuf,
    fd: OwnedFd,
    resolution: PathResolution,
    directories: OnceLock<DirectoryTable>,
}

/// The table of directories: of each the place of its parent in the table, and its name. The root is at
/// place 0, and has no name.
///
/// A file refers to its directory by its place and keeps no path, so a deep tree needs no more memory
/// than a flat one.
#[derive(Debug)]
pub(crate) struct DirectoryTable {
    entries: PagedBytes,
}

/// The place of a parent and the length of the name.
const DIRECTORY_HEAD_BYTES: usize = 8 + 2;

impl DirectoryTable {
    /// A table of nothing but the root.
    pub(crate) fn new(store: &SpillStore) -> Self {
        let mut table = Self { entries: PagedBytes::new(store) };
        table.add(0, b"");
        table
    }

    /// Adds the directory `name` of the one at place `parent`, and returns its place.
    pub(crate) fn add(&mut self, parent: u64, name: &[u8]) -> u64 {
        // A name has 255 bytes at most.
        let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
        let place = self.entries.append(&parent.to_le_bytes());
        self.entries.append(&length.to_le_bytes());
        self.entries.append(name);
        place
    }

    /// The place of the parent, and the name.
    fn get(&self, place: u64) -> (u64, Vec<u8>) {
        let mut head = [0; DIRECTORY_HEAD_BYTES];
        self.entries.read(place, &mut head);
        let length = u16::from_le_bytes(first(&head[8..])).into();
        let name = self.entries.read_vec(place + DIRECTORY_HEAD_BYTES as u64, length);
        (u64::from_le_bytes(first(&head)), name)
    }
}

/// How a path is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathResolution {
    /// By the kernel, in one call (`openat2`, Linux 5.6).
    Kernel,
    /// Here, one component after the other.
    Parts,
}

impl fmt::Debug for SourceRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceRoot").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SourceRoot {
    /// # Errors
    /// The directory cannot be opened.
    pub(crate) fn open(path: &Path) -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::open(path, flags, Mode::empty())?;
        let probe = OFlags::PATH | OFlags::DIRECTORY;
        // A seccomp filter may return any error instead of ENOSYS.
        let resolution = match open_by_kernel(fd.as_fd(), b".", probe) {
            Ok(_) => PathResolution::Kernel,
            Err(_) => PathResolution::Parts,
        };
        Ok(Self { path: path.to_path_buf(), fd, resolution, directories: OnceLock::new() })
    }

    #[cfg(test)]
    pub(super) fn with_resolution(mut self, resolution: PathResolution) -> Self {
        self.resolution = resolution;
        self
    }

    /// Sets the table of directories, which must be complete before a file is opened.
    pub(crate) fn set_directories(&self, directories: DirectoryTable) {
        let was_unset = self.directories.set(directories).is_ok();
        assert!(was_unset, "a source is imported once");
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The host path of `relative`, for messages.
    pub(crate) fn host_path(&self, relative: &[u8]) -> PathBuf {
        if relative.is_empty() {
            return self.path.clone();
        }
        self.path.join(OsStr::from_bytes(relative))
    }

    /// The path, relative to the root, of `name` in the directory at place `directory`.
    pub(super) fn relative(&self, directory: u64, name: &[u8]) -> Vec<u8> {
        let mut parts = vec![name.to_vec()];
        let mut place = directory;
        // Each place is smaller than the last, so the loop ends.
        while place != 0
            && let Some(table) = self.directories.get()
        {
            let (parent, name) = table.get(place);
            parts.push(name);
            place = parent.min(place - 1);
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// Opens `relative`, a path without `.` and `..`, below the root, without following symlinks.
    /// An empty path is the root.
    ///
    /// # Errors
    /// A system call fails: with `ELOOP` or `ENOTDIR` if a component is a symlink.
    pub(crate) fn open_below(&self, relative: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let mut held: Option<OwnedFd> = None;
        let mut rest = if relative.is_empty() { b"." } else { relative };
        let passing = OFlags::PATH | OFlags::DIRECTORY;
        loop {
            let at = held.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
            let piece = match self.resolution {
                PathResolution::Kernel => PATH_MAX_BYTES,
                PathResolution::Parts => 0,
            };
            let Some((head, tail)) = split(rest, piece) else {
                return self.open_piece(at, rest, flags);
            };
            held = Some(self.open_piece(at, head, passing)?);
            rest = tail;
        }
    }

    fn open_piece(
        &self,
        at: BorrowedFd<'_>,
        path: &[u8],
        flags: OFlags,
    ) -> rustix::io::Result<OwnedFd> {
        match self.resolution {
            PathResolution::Kernel => open_by_kernel(at, path, flags),
            PathResolution::Parts => {
                let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                fs::openat(at, path, flags, Mode::empty())
            }
        }
    }
}

fn open_by_kernel(at: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        match fs::openat2(at, path, flags, Mode::empty(), within) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Splits off the first components of `path`: as many as fit into `bytes_max`, at least one, never
/// the last. `None` if the whole path fits.
fn split(path: &[u8], bytes_max: usize) -> Option<(&[u8], &[u8])> {
    if path.len() <= bytes_max {
        return None;
    }
    let is_slash = |byte: &u8| *byte == b'/';
    let fitting = path.get(..=bytes_max).and_then(|start| start.iter().rposition(is_slash));
    let at = fitting.or_else(|| path.iter().position(is_slash))?;
    Some((path.get(..at)?, path.get(at.checked_add(1)?..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spill::SpillOptions;
    use crate::tree::{Node, NodeKind, Tree};
    use rustix::fs::AtFlags;
    use std::fs::{self, File};
    use std::os::unix::fs::{FileExt, symlink};
    use std::path::PathBuf;
    use tempfile::TempDir;

    const TEXT: &[u8] = b"the quick brown fox";

    /// A source with one file, `one/two/file`.
    struct HostFixture {
        folder: TempDir,
        root: Arc<SourceRoot>,
        directory: u64,
    }

    impl HostFixture {
        fn new(resolution: PathResolution, content: &[u8]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("source/one/two")).unwrap();
            let source = folder.path().join("source");
            fs::write(source.join("one/two/file"), content).unwrap();
            let root = SourceRoot::open(&source).unwrap().with_resolution(resolution);
            let mut table = DirectoryTable::new(&SpillStore::new(SpillOptions::default()));
            let one = table.add(0, b"one");
            let directory = table.add(one, b"two");
            root.set_directories(table);
            Self { folder, root: Arc::new(root), directory }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("source/one/two/file")
        }

        fn file(&self) -> HostFile {
            let status = rustix::fs::stat(self.path()).unwrap();
            let fingerprint = FileFingerprint::of_open(File::open(self.path()).unwrap()).unwrap();
            let data_ranges = match status.st_blocks.cast_unsigned() * 512 < fingerprint.size {
                true => DataRanges::Sparse,
                false => DataRanges::Dense,
            };
            HostFile::new(
                &self.root,
                &HostLocation { directory: self.directory, name: b"file" },
                fingerprint,
                data_ranges,
            )
        }
    }

    fn both(check: impl Fn(HostFixture)) {
        for resolution in [PathResolution::Kernel, PathResolution::Parts] {
            check(HostFixture::new(resolution, TEXT));
        }
    }

    fn how(error: &Error) -> &str {
        match error.kind() {
            ErrorKind::SourceChanged { how } => how,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_file_is_read_where_asked_and_named_by_its_path() {
        both(|fixture| {
            let file = fixture.file();
            assert_eq!(file.name(), fixture.path().display().to_string());
            let mut reader = file.open().unwrap();
            let mut buffer = [0; 5];
            reader.read_exact_at(4, &mut buffer).unwrap();
            assert_eq!(&buffer, b"quick");
            reader.read_exact_at(TEXT.len() as u64, &mut []).unwrap();
            reader.check_unchanged().unwrap();
        });
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_told_with_the_byte() {
        both(|fixture| {
            let mut reader = fixture.file().open().unwrap();
            File::options().write(true).open(fixture.path()).unwrap().set_len(7).unwrap();
            let error = reader.read_exact_at(4, &mut [0; 10]).unwrap_err();
            assert_eq!(how(&error), "it ends here, but had 19 bytes when it was imported");
            assert_eq!((error.path(), error.offset()), (fixture.path().as_path(), Some(7)));
            let error = reader.check_unchanged().unwrap_err();
            assert_eq!(how(&error), "its size was 19 bytes and is now 7");
        });
    }

    #[test]
    fn a_changed_file_is_detected_by_its_time() {
        both(|fixture| {
            let file = fixture.file();
            let mut reader = file.open().unwrap();
            File::options()
                .write(true)
                .open(fixture.path())
                .unwrap()
                .write_all_at(b"X", 0)
                .unwrap();
            let times = rustix::fs::Timestamps {
                last_access: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
                last_modification: rustix::fs::Timespec { tv_sec: 2, tv_nsec: 5 },
            };
            rustix::fs::utimensat(rustix::fs::CWD, fixture.path(), &times, AtFlags::empty())
                .unwrap();
            for error in [reader.check_unchanged().unwrap_err(), file.open().map(drop).unwrap_err()]
            {
                assert!(how(&error).starts_with("its modification time was "), "{error}");
                assert!(how(&error).ends_with(" and is now 2.000000005"), "{error}");
            }
        });
    }

    #[test]
    fn a_file_whose_time_was_set_back_is_told_by_its_change_time() {
        both(|fixture| {
            let file = fixture.file();
            let before = fs::metadata(fixture.path()).unwrap().modified().unwrap();
            let writable = File::options().write(true).open(fixture.path()).unwrap();
            // The clock of the file system has ticks: write until one has passed.
            let reader = loop {
                writable.write_all_at(b"X", 0).unwrap();
                writable.set_modified(before).unwrap();
                if let Err(error) = file.open() {
                    break error;
                }
            };
            assert!(how(&reader).starts_with("its change time was "), "{reader}");
        });
    }

    #[test]
    fn a_replaced_file_is_detected() {
        both(|fixture| {
            let file = fixture.file();
            fs::write(fixture.folder.path().join("other"), TEXT).unwrap();
            fs::rename(fixture.folder.path().join("other"), fixture.path()).unwrap();
            let error = file.open().map(drop).unwrap_err();
            assert!(how(&error).starts_with("it was replaced: "), "{error}");
        });
    }

    #[test]
    fn a_deleted_file_is_detected() {
        both(|fixture| {
            let file = fixture.file();
            fs::remove_file(fixture.path()).unwrap();
            let error = file.open().map(drop).unwrap_err();
            assert_eq!(how(&error), "it was deleted");
            assert_eq!(error.path(), fixture.path());
        });
    }

    #[test]
    fn a_symlink_in_place_of_the_file_is_not_followed() {
        both(|fixture| {
            let file = fixture.file();
            fs::rename(fixture.path(), fixture.folder.path().join("moved")).unwrap();
            symlink(fixture.folder.path().join("moved"), fixture.path()).unwrap();
            let error = file.open().map(drop).unwrap_err();
            assert_eq!(how(&error), "it, or a directory above it, is a symlink now");
        });
    }

    #[test]
    fn a_symlink_in_place_of_a_directory_is_not_followed() {
        both(|fixture| {
            let file = fixture.file();
            let one = fixture.folder.path().join("source/one");
            fs::rename(&one, fixture.folder.path().join("moved")).unwrap();
            symlink("../moved", &one).unwrap();
            let error = file.open().map(drop).unwrap_err();
            assert!(how(&error).contains("a directory above it"), "{error}");
        });
    }

    #[test]
    fn a_fifo_in_place_of_the_file_holds_up_nobody() {
        both(|fixture| {
            let file = fixture.file();
            fs::remove_file(fixture.path()).unwrap();
            let mode = Mode::from_raw_mode(0o600);
            let fifo = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, fixture.path(), fifo, mode, 0).unwrap();
            let error = file.open().map(drop).unwrap_err();
            // The FIFO may have got the number of the file, or one of its own.
            let expected = ["took its place", "it was replaced", "size"];
            assert!(expected.iter().any(|part| how(&error).contains(part)), "{error}");
        });
    }

    #[test]
    fn holes_are_told_where_the_file_system_tells_them() {
        let fixture = HostFixture::new(PathResolution::Kernel, b"");
        assert!(fixture.file().data_ranges().unwrap().is_empty());
        let sparse = File::options().write(true).open(fixture.path()).unwrap();
        sparse.set_len(8 << 20).unwrap();
        sparse.write_all_at(TEXT, 4 << 20).unwrap();
        let file = fixture.file();
        let ranges = file.data_ranges().unwrap();
        // Every byte that is no zero lies in a range, and ranges ascend and stay within the file.
        assert!(
            ranges
                .iter()
                .any(|range| range.start <= 4 << 20 && range.end >= (4 << 20) + TEXT.len() as u64)
        );
        assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        assert!(ranges.iter().all(|range| range.start < range.end && range.end <= 8 << 20));
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        if file.data_ranges == DataRanges::Dense || bytes == 8 << 20 {
            let folder = fixture.folder.path().display();
            crate::import::tests::skip(&format!("{folder} reports no holes"));
            return;
        }
        assert!(bytes <= 1 << 20, "{ranges:?}");
        sparse.set_len(9 << 20).unwrap();
        let error = file.data_ranges().unwrap_err();
        assert_eq!(how(&error), "its size was 8388608 bytes and is now 9437184");
    }

    #[test]
    fn a_file_of_nothing_but_a_hole_has_no_ranges() {
        let fixture = HostFixture::new(PathResolution::Kernel, b"");
        File::options().write(true).open(fixture.path()).unwrap().set_len(1 << 40).unwrap();
        let ranges = fixture.file().data_ranges().unwrap();
        assert!(ranges.is_empty() || ranges == std::iter::once(0..1 << 40).collect::<Vec<_>>());
    }

    #[test]
    fn a_dense_file_is_one_range() {
        both(|fixture| {
            let mut file = fixture.file();
            file.data_ranges = DataRanges::Dense;
            let all: Vec<_> = std::iter::once(0..TEXT.len() as u64).collect();
            assert_eq!(file.data_ranges().unwrap(), all);
            file.data_ranges = DataRanges::Sparse;
            assert_eq!(file.data_ranges().unwrap(), all);
        });
    }

    /// A build charges its memory with these bytes, and what is left decides what is shared.
    #[test]
    fn inode_numbers_and_times_do_not_change_how_much_is_kept_of_a_file() {
        let fixture = HostFixture::new(PathResolution::Kernel, TEXT);
        let kept = |number: u64, seconds: i64, nanoseconds: u32| {
            let mut file = fixture.file();
            file.fingerprint = FileFingerprint {
                device: (nanoseconds, nanoseconds),
                inode: number,
                mtime_seconds: seconds,
                ctime_seconds: seconds,
                mtime_nanoseconds: nanoseconds,
                ctime_nanoseconds: nanoseconds,
                ..file.fingerprint
            };
            let content = file.content();
            let error = content.source().open().err().unwrap();
            assert!(how(&error).starts_with(&format!("it was replaced: it was inode {number} ")));
            let mut tree = Tree::new(crate::test_source::metadata());
            let kind = NodeKind::File(content);
            tree.add(Node { metadata: crate::test_source::metadata(), kind }).unwrap();
            tree.store_bytes()
        };
        let first = kept(0, 0, 0);
        assert_eq!(kept(u64::MAX, i64::MIN, u32::MAX), first);
        assert_eq!(kept(1 << 40, i64::MAX, 999_999_999), first);
    }

    #[test]
    fn what_is_kept_of_a_file_is_small() {
        // A million of them are kept at once. A tree stores the name, and at most this beside it.
        let fixture = HostFixture::new(PathResolution::Kernel, TEXT);
        let mut tree = Tree::new(crate::test_source::metadata());
        let before = tree.store_bytes();
        let kind = NodeKind::File(fixture.file().content());
        tree.add(Node { metadata: crate::test_source::metadata(), kind }).unwrap();
        let bytes = tree.store_bytes() - before;
        assert!(bytes <= 160 + 60, "{bytes}");
    }
}
