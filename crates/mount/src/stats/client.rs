//! Asks a mount for its numbers. Whoever answers may be another version of the program, or nobody that we know: every
//! byte of an answer is checked, and nothing is allocated by what it says. Called by the command.

use std::error::Error;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::ioctl::{IoctlBuffer, send_ioctl};
use super::mount_entry::MountEntry;
use super::record::{
    IOCTL_BYTES, REQUEST_MAGIC, RESPONSE_MAGIC, StatsHeader, StatsRequest, StatsSummary, VERSION,
    WorkerRecord,
};

/// The most workers that are asked for: twice as many as Linux has CPUs at most.
const WORKERS_MAX: usize = 16_384;

/// What a mount says of itself.
#[derive(Clone, Debug)]
pub struct MountStats {
    /// The mount, where `/proc` tells.
    pub mount: Option<MountEntry>,
    /// The version of the program that serves it.
    pub release: String,
    /// Its numbers.
    pub summary: StatsSummary,
    /// Its workers, those of the CPUs first.
    pub workers: Vec<WorkerRecord>,
}

/// Why there are no numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatsError {
    /// The directory cannot be opened.
    Open(Errno),
    /// It lies on another file system: its type, if known.
    NotFerrofs(Option<String>),
    /// The mount is there, and nobody serves it any more.
    Disconnected,
    /// The mount is for somebody else: the user, if known.
    PermissionDenied(Option<u32>),
    /// The program that serves the mount speaks another version of the record.
    OtherVersion {
        /// What it calls itself.
        release: String,
        /// The version that it speaks.
        version: u32,
    },
    /// It says that it is one of ours, and then makes no sense.
    Malformed,
    /// The question failed.
    System(Errno),
}

impl fmt::Display for StatsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(errno) | Self::System(errno) => write!(f, "{errno}"),
            Self::NotFerrofs(Some(kind)) => write!(f, "not a mount of ferrofs, but of {kind}"),
            Self::NotFerrofs(None) => f.write_str("not a mount of ferrofs"),
            Self::Disconnected => f.write_str("the mount is there, but its process has ended"),
            Self::PermissionDenied(Some(user)) => write!(f, "the mount is for user {user} only"),
            Self::PermissionDenied(None) => f.write_str("the mount is for another user"),
            Self::OtherVersion { release, version } => write!(
                f,
                "the mount is served by version {release}, whose numbers have form {version} (here: {VERSION})"
            ),
            Self::Malformed => f.write_str("the answer of the mount makes no sense"),
        }
    }
}

impl Error for StatsError {}

/// Asks the mount on which `directory` lies.
///
/// # Errors
/// See [`StatsError`].
pub fn query(directory: &Path) -> Result<MountStats, StatsError> {
    // Without opening it, so that a mount whose process has ended, or that is for others, can still be named.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mount_point = match rustix::fs::open(directory, flags, Mode::empty()) {
        Err(Errno::NOTCONN) => return Err(StatsError::Disconnected),
        other => other.map_err(StatsError::Open)?,
    };
    let mount = MountEntry::of(mount_point.as_fd());
    if let Some(other) = mount.as_ref().filter(|mount| !mount.is_fuse()) {
        return Err(StatsError::NotFerrofs(Some(other.kind.clone())));
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
            StatsError::NotFerrofs(mount.map(|mount| mount.kind.clone()))
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
            let Some(rows) = worker_rows(&header, &rows).filter(|rows| !rows.is_empty()) else {
                break;
            };
            workers.extend(rows);
        }
        workers.truncate(count);
        Ok(MountStats { mount: self.mount, release: release(&header), summary, workers })
    }

    /// A page without its header.
    fn page(&self, page: u32) -> Result<(StatsHeader, Vec<u8>), StatsError> {
        let question = StatsRequest { magic: REQUEST_MAGIC, version: VERSION, page };
        let mut bytes: IoctlBuffer = [0; IOCTL_BYTES];
        question.write_to_prefix(&mut bytes).map_err(|_| StatsError::Malformed)?;
        send_ioctl(self.directory.as_fd(), &mut bytes)
            .map_err(|errno| to_stats_error(errno, self.mount.as_ref()))?;
        let kind = self.mount.as_ref().map(|mount| mount.kind.clone());
        parse(&bytes, kind)
    }
}

/// Takes a page apart: its header, and what follows as far as the header says.
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

/// A structure from bytes that may be fewer, or more, than it has.
fn read_zero_extended<T: FromBytes + IntoBytes + KnownLayout + Immutable>(bytes: &[u8]) -> T {
    let mut whole = T::new_zeroed();
    for (to, from) in whole.as_mut_bytes().iter_mut().zip(bytes) {
        *to = *from;
    }
    whole
}

/// The workers of a page. `None` if the rows have no length.
fn worker_rows(header: &StatsHeader, bytes: &[u8]) -> Option<Vec<WorkerRecord>> {
    let length = usize::try_from(header.worker_bytes).ok().filter(|length| *length > 0)?;
    Some(bytes.chunks_exact(length).map(read_zero_extended::<WorkerRecord>).collect())
}

/// Text of the daemon: whoever prints it has to make it harmless first.
fn release(header: &StatsHeader) -> String {
    let text = header.release.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests;
