//! Reads the statistics of a mount. Its server may be another version of the program, or any other FUSE daemon: every byte
//! of a response is checked, and no allocation depends on a number in it. Called by the command.

use std::error::Error;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use ferrofs_fuse::attach::MountEntry;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::ioctl::{IoctlBuffer, send_ioctl};
use super::record::{
    IOCTL_BYTES, REQUEST_MAGIC, RESPONSE_MAGIC, StatsHeader, StatsRequest, StatsSummary, VERSION,
    WorkerRecord,
};

/// The largest number of workers that are requested: twice the largest number of CPUs of Linux.
const WORKERS_MAX: usize = 16_384;

/// The statistics of a mount.
#[derive(Clone, Debug)]
pub struct MountStats {
    /// The mount, if `/proc` shows it.
    pub mount: Option<MountEntry>,
    /// The version of the program that serves the mount. Not trusted: escape it before printing.
    pub release: String,
    /// Everything except the single workers.
    pub summary: StatsSummary,
    /// The workers, those of the CPUs first.
    pub workers: Vec<WorkerRecord>,
}

/// Why there are no statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatsError {
    /// The directory cannot be opened.
    Open(Errno),
    /// It is on another file system: its type, if known.
    NotFerrofs(Option<String>),
    /// The process that served the mount has ended.
    Disconnected,
    /// The mount belongs to another user, if known which.
    PermissionDenied(Option<u32>),
    /// The program that serves the mount has another version of the record.
    OtherVersion {
        /// Its version.
        release: String,
        /// The version of its record.
        version: u32,
    },
    /// The response is malformed.
    Malformed,
    /// The ioctl failed.
    System(Errno),
}

impl fmt::Display for StatsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(errno) | Self::System(errno) => write!(f, "{errno}"),
            Self::NotFerrofs(Some(kind)) => write!(f, "not a mount of ferrofs but of {kind}"),
            Self::NotFerrofs(None) => f.write_str("not a mount of ferrofs"),
            Self::Disconnected => f.write_str("the process that served the mount has ended"),
            Self::PermissionDenied(Some(user)) => {
                write!(f, "only user {user} has access to the mount")
            }
            Self::PermissionDenied(None) => {
                f.write_str("only another user has access to the mount")
            }
            Self::OtherVersion { release, version } => write!(
                f,
                "the mount is served by version {release}, whose statistics have format {version} (expected: {VERSION})"
            ),
            Self::Malformed => f.write_str("malformed response from the mount"),
        }
    }
}

impl Error for StatsError {}

/// Reads the statistics of the mount of `directory`.
///
/// # Errors
/// See [`StatsError`].
pub fn query(directory: &Path) -> Result<MountStats, StatsError> {
    // O_PATH does not open the directory in the file system, so that a mount whose process has ended, or that belongs to
    // another user, can still be identified.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mount_point = match rustix::fs::open(directory, flags, Mode::empty()) {
        Err(Errno::NOTCONN) => return Err(StatsError::Disconnected),
        other => other.map_err(StatsError::Open)?,
    };
    let mount = MountEntry::of(mount_point.as_fd());
    if let Some(other) = mount.as_ref().filter(|mount| !mount.is_fuse()) {
        return Err(StatsError::NotFerrofs(Some(other.file_system_type.clone())));
    }
    StatsClient { directory: open_directory(&mount_point, mount.as_ref())?, mount }.query()
}

fn open_directory(
    mount_point: &OwnedFd,
    mount: Option<&MountEntry>,
) -> Result<OwnedFd, StatsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(mount_point, c".", flags, Mode::empty())
        .map_err(|errno| to_stats_error(errno, mount))
}

fn to_stats_error(errno: Errno, mount: Option<&MountEntry>) -> StatsError {
    match errno {
        Errno::NOTCONN | Errno::CONNABORTED => StatsError::Disconnected,
        Errno::ACCESS | Errno::PERM => {
            StatsError::PermissionDenied(mount.and_then(|mount| mount.user_id))
        }
        Errno::NOTTY | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL => {
            StatsError::NotFerrofs(mount.map(|mount| mount.file_system_type.clone()))
        }
        errno => StatsError::System(errno),
    }
}

struct StatsClient {
    directory: OwnedFd,
    mount: Option<MountEntry>,
}

impl StatsClient {
    fn query(self) -> Result<MountStats, StatsError> {
        let (header, first) = self.page(0)?;
        let summary = read_zero_extended::<StatsSummary>(&first);
        let count = usize::try_from(header.workers).unwrap_or(usize::MAX).min(WORKERS_MAX);
        let mut workers = Vec::new();
        let mut page = 0;
        while workers.len() < count {
            page = u32::saturating_add(page, 1);
            let (header, rows) = self.page(page)?;
            let Some(rows) = worker_records(&header, &rows).filter(|rows| !rows.is_empty()) else {
                break;
            };
            workers.extend(rows);
        }
        workers.truncate(count);
        Ok(MountStats { mount: self.mount, release: release(&header), summary, workers })
    }

    /// A page without its header.
    fn page(&self, page: u32) -> Result<(StatsHeader, Vec<u8>), StatsError> {
        let request = StatsRequest { magic: REQUEST_MAGIC, version: VERSION, page };
        let mut bytes: IoctlBuffer = [0; IOCTL_BYTES];
        request.write_to_prefix(&mut bytes).map_err(|_| StatsError::Malformed)?;
        send_ioctl(self.directory.as_fd(), &mut bytes)
            .map_err(|errno| to_stats_error(errno, self.mount.as_ref()))?;
        let kind = self.mount.as_ref().map(|mount| mount.file_system_type.clone());
        parse(&bytes, kind)
    }
}

/// Splits a page into its header and the body, whose length is in the header.
fn parse(bytes: &[u8], kind: Option<String>) -> Result<(StatsHeader, Vec<u8>), StatsError> {
    let (header, body) = StatsHeader::read_from_prefix(bytes).map_err(|_| StatsError::Malformed)?;
    if header.magic != RESPONSE_MAGIC {
        return Err(StatsError::NotFerrofs(kind));
    }
    if header.version != VERSION {
        return Err(StatsError::OtherVersion {
            release: release(&header),
            version: header.version,
        });
    }
    let length = usize::try_from(header.bytes).unwrap_or(usize::MAX);
    let body = length.checked_sub(size_of::<StatsHeader>()).and_then(|length| body.get(..length));
    Ok((header, body.ok_or(StatsError::Malformed)?.to_vec()))
}

/// The summary and the workers of a page, for the fuzz targets.
///
/// # Errors
/// As [`query`], as far as a page can be the cause.
#[cfg(feature = "fuzzing")]
pub fn parse_page(bytes: &[u8]) -> Result<(StatsSummary, Vec<WorkerRecord>, String), StatsError> {
    let (header, body) = parse(bytes, None)?;
    let workers = worker_records(&header, &body).unwrap_or_default();
    Ok((read_zero_extended(&body), workers, release(&header)))
}

/// Reads a structure. Missing bytes are zeros, further ones are ignored.
fn read_zero_extended<T: FromBytes + IntoBytes + KnownLayout + Immutable>(bytes: &[u8]) -> T {
    let mut whole = T::new_zeroed();
    for (to, from) in whole.as_mut_bytes().iter_mut().zip(bytes) {
        *to = *from;
    }
    whole
}

/// The workers of a page. `None` if their records have no length.
fn worker_records(header: &StatsHeader, bytes: &[u8]) -> Option<Vec<WorkerRecord>> {
    let length = usize::try_from(header.worker_bytes).ok().filter(|length| *length > 0)?;
    Some(bytes.chunks_exact(length).map(read_zero_extended::<WorkerRecord>).collect())
}

/// The program's version. Not trusted: escape it before printing.
fn release(header: &StatsHeader) -> String {
    let text = header.release.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::stats::record::UNKNOWN;

    fn header(bytes: usize) -> StatsHeader {
        let mut release = [0; 16];
        release[..5].copy_from_slice(b"9.8.7");
        StatsHeader {
            magic: RESPONSE_MAGIC,
            version: VERSION,
            bytes: u32::try_from(size_of::<StatsHeader>() + bytes).unwrap(),
            workers: 2,
            worker_bytes: u32::try_from(size_of::<WorkerRecord>()).unwrap(),
            release,
        }
    }

    fn page(header: &StatsHeader, body: &[u8]) -> Vec<u8> {
        let mut page = [header.as_bytes(), body].concat();
        page.resize(IOCTL_BYTES, 0);
        page
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut summary = StatsSummary { pid: 77, uptime_ns: 5, ..StatsSummary::default() };
        summary.operations[4].time.p99_ns = 123;
        summary.top_files[15].nid = 9;
        summary.log_events.last_text[199] = b'x';
        let header = header(size_of::<StatsSummary>());
        let (read, body) = parse(&page(&header, summary.as_bytes()), None).unwrap();
        assert_eq!(read, header);
        assert_eq!(release(&read), "9.8.7");
        assert_eq!(read_zero_extended::<StatsSummary>(&body), summary);
    }

    #[test]
    fn a_shorter_record_is_extended_with_zeros() {
        let row = WorkerRecord { cpu: 3, items: 4, rebound: 5, ..WorkerRecord::default() };
        let short = &row.as_bytes()[..5 * 8];
        assert_eq!(read_zero_extended::<WorkerRecord>(short), WorkerRecord { rebound: 0, ..row });
    }

    #[test]
    fn longer_worker_records_are_truncated() {
        let row = WorkerRecord { cpu: 3, items: 4, ..WorkerRecord::default() };
        let mut long = header(0);
        long.worker_bytes += 8;
        let bytes = [row.as_bytes(), &[7; 8], row.as_bytes(), &[7; 8], &[1, 2]].concat();
        assert_eq!(worker_records(&long, &bytes), Some(vec![row, row]));
        long.worker_bytes = 0;
        assert_eq!(worker_records(&long, &bytes), None);
    }

    #[test]
    fn another_version_is_named() {
        let other = StatsHeader { version: VERSION + 1, ..header(0) };
        let refused = parse(&page(&other, &[]), None).err().unwrap();
        let named = StatsError::OtherVersion { release: "9.8.7".to_owned(), version: VERSION + 1 };
        assert_eq!(refused, named);
        assert!(refused.to_string().contains("9.8.7"));
    }

    #[test]
    fn a_request_that_comes_back_is_not_a_response() {
        let request = StatsRequest { magic: REQUEST_MAGIC, version: VERSION, page: 0 };
        let mut bytes = [0; IOCTL_BYTES];
        request.write_to_prefix(&mut bytes).unwrap();
        let refused = parse(&bytes, Some("fuse.other".to_owned())).err();
        assert_eq!(refused, Some(StatsError::NotFerrofs(Some("fuse.other".to_owned()))));
    }

    #[test]
    fn impossible_lengths_are_rejected() {
        for bytes in [0, 39, 4097, u32::MAX] {
            let odd = StatsHeader { bytes, ..header(0) };
            assert_eq!(parse(&page(&odd, &[]), None).err(), Some(StatsError::Malformed), "{bytes}");
        }
    }

    #[test]
    fn unknown_values_are_none() {
        assert_eq!(crate::stats::known(UNKNOWN), None);
        assert_eq!(crate::stats::known(0), Some(0));
    }

    #[test]
    fn directories_of_other_file_systems_are_named_by_their_type() {
        let dir = TempDir::new().unwrap();
        match query(dir.path()) {
            Err(StatsError::NotFerrofs(Some(kind))) => assert!(!kind.is_empty()),
            other => panic!("{other:?}"),
        }
        let refused = query(Path::new("/proc")).err();
        assert_eq!(refused, Some(StatsError::NotFerrofs(Some("proc".to_owned()))));
        assert_eq!(refused.unwrap().to_string(), "not a mount of ferrofs but of proc");
    }

    #[test]
    fn files_and_missing_directories_are_rejected() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("file"), b"x").unwrap();
        assert_eq!(query(&dir.path().join("file")).err(), Some(StatsError::Open(Errno::NOTDIR)));
        assert_eq!(query(&dir.path().join("none")).err(), Some(StatsError::Open(Errno::NOENT)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_response_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), seems_ours: bool) {
            if seems_ours && bytes.len() >= 12 {
                bytes[..8].copy_from_slice(&RESPONSE_MAGIC);
                bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
            }
            if let Ok((header, body)) = parse(&bytes, None) {
                let rows = worker_records(&header, &body).unwrap_or_default();
                prop_assert!(rows.len() <= bytes.len());
                let _summary: StatsSummary = read_zero_extended(&body);
            }
        }
    }
}
