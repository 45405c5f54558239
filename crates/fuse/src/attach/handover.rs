//! Taking a kept mount over from its holder (docs/survival.md, protocol R): what the holder offers, and the side of the
//! program that asks. The offer is a record in a sealed memory file, and descriptors. Nothing changes for the mount before
//! [`Attachment::hold`]. Called by the command.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create, open};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::direct::DirectUnmount;
use super::forked::AtEnd;
use super::fusermount::Unmounter;
use super::mount::{MountDirectory, MountEntry, MountIdentity};
use super::sockets::{self, ConnectedHolder, HolderSearch, PeerCredentials};
use super::{Attachment, MountMethod, Unmounting};
use crate::init::InitParameters;

/// The version of the record and of the protocol. The layout of the journal counts as a part of it.
const VERSION: u64 = 1;
const MAGIC: &[u8] = b"ferrofs-keep";
/// The largest record: words of a command line.
const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Descriptors of an offer: one for each listener, for each device of an image, and a few.
const DESCRIPTORS_MAX: usize = 16_384;
/// How long a holder takes for an answer; it makes a handful of system calls.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The pause before the next holder is asked.
const ENDING_PAUSE: Duration = Duration::from_millis(5);

/// Why a mount is not taken over.
#[derive(Debug)]
#[non_exhaustive]
pub enum HandoverError {
    /// The directory cannot be opened.
    Open(Errno),
    /// It is on another file system.
    NotFerrofs,
    /// The mount belongs to this user.
    NotOwner(Option<u32>),
    /// Nobody holds the mount.
    NoHolder,
    /// No holder was found, but a socket with a name like that of a holder takes no connection.
    Busy,
    /// The holder refuses.
    Refused(String),
    /// The holder does not answer.
    NoAnswer,
    /// The mount is held by a program with another version of the record.
    OtherVersion(u64),
    /// The record or the descriptors are not what they should be.
    Malformed,
    /// The mount is not at this place in the mount namespace of this process.
    OtherNamespace,
    /// The system refuses.
    System(io::Error),
}

impl fmt::Display for HandoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(cause) => write!(f, "{cause}"),
            Self::NotFerrofs => f.write_str("not a mount of ferrofs"),
            Self::NotOwner(Some(user)) => {
                write!(f, "only user {user}, who has mounted it, and root may do this")
            }
            Self::NotOwner(None) => f.write_str("only its owner and root may do this"),
            Self::NoHolder => f.write_str(
                "no process holds the mount: it was not mounted with --keep, or its holder has ended; unmount it and \
                 mount it with --keep",
            ),
            Self::Busy => f.write_str(
                "the process that holds the mount accepts no connection, or another user has a socket with a name like its \
                 own (as root, `ss -xlp` shows both: @ferrofs/MAJOR:MINOR/NUMBER); try again when that socket is closed",
            ),
            Self::Refused(text) => f.write_str(text),
            Self::NoAnswer => f.write_str("the process that holds the mount does not answer"),
            Self::OtherVersion(version) => write!(
                f,
                "the mount is held in format {version}, and this program has format {VERSION}; unmount it and mount it \
                 with this program"
            ),
            Self::Malformed => f.write_str("malformed answer of the process that holds the mount"),
            Self::OtherNamespace => {
                f.write_str("the mount was made in another mount namespace; run the command there")
            }
            Self::System(error) if Errno::from_io_error(error) == Some(Errno::MFILE) => {
                write!(f, "{error}: raise the limit of open files (ulimit -n)")
            }
            Self::System(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for HandoverError {}

impl From<io::Error> for HandoverError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// What a holder knows about its mount, besides descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRecord {
    /// `None` for a mount by `mount(2)`.
    program: Option<PathBuf>,
    directory: PathBuf,
    identity: MountIdentity,
    auto_unmount: bool,
    /// Whether there is a descriptor for unmounting.
    has_unmount: bool,
    /// What FUSE_INIT granted.
    pub init_parameters: InitParameters,
    /// The number of channels.
    pub channels: usize,
    /// The number of files of the image.
    pub files: usize,
    /// What the command keeps there.
    pub command: Vec<u8>,
}

impl HeldRecord {
    fn encode(&self) -> Vec<u8> {
        let number = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let numbers = [
            own_version(),
            u64::from(self.program.is_some()),
            u64::from(self.auto_unmount),
            u64::from(self.has_unmount),
            number(self.channels),
            number(self.files),
        ];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(
            numbers.into_iter().chain(self.init_parameters.words()).flat_map(u64::to_le_bytes),
        );
        let program = self.program.as_deref().unwrap_or(Path::new(""));
        let (id, device) = self.identity.parts();
        let texts =
            [program.as_os_str().as_encoded_bytes(), self.directory.as_os_str().as_encoded_bytes()];
        for field in texts.into_iter().chain([id, device, self.command.as_slice()]) {
            bytes.extend(number(field.len()).to_le_bytes());
            bytes.extend(field);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, HandoverError> {
        let mut rest = bytes.strip_prefix(MAGIC).ok_or(HandoverError::Malformed)?;
        let version = take_number(&mut rest)?;
        if version != own_version() {
            return Err(HandoverError::OtherVersion(version));
        }
        let mut numbers = [0; 5 + InitParameters::WORDS];
        for number in &mut numbers {
            *number = take_number(&mut rest)?;
        }
        let [has_program, auto_unmount, has_unmount, channels, files, init_parameters @ ..] =
            numbers;
        let mut field = || take_field(&mut rest);
        let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let (program, directory) = (path(field()?), path(field()?));
        let identity = MountIdentity::from_parts(field()?, field()?);
        let command = field()?.to_vec();
        let count = |number: u64| match usize::try_from(number) {
            Ok(count) if count <= DESCRIPTORS_MAX => Ok(count),
            _ => Err(HandoverError::Malformed),
        };
        Ok(Self {
            program: (has_program != 0).then_some(program),
            directory,
            identity,
            auto_unmount: auto_unmount != 0,
            has_unmount: has_unmount != 0,
            init_parameters: InitParameters::from_words(init_parameters),
            channels: count(channels)?,
            files: count(files)?,
            command,
        })
    }

    /// This record in a file that nobody can change.
    ///
    /// # Errors
    /// The system refuses.
    pub fn to_file(&self) -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(c"ferrofs-held", flags)?;
        let bytes = self.encode();
        let mut left = bytes.as_slice();
        while !left.is_empty() {
            let written = rustix::io::write(&file, left)?;
            left = left.get(written..).unwrap_or_default();
        }
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK)?;
        Ok(file)
    }

    fn from_file(file: OwnedFd) -> Result<Self, HandoverError> {
        // Every program that asks has the same file, so another one may read it at the same time: its offset is not used.
        let file = std::fs::File::from(file);
        let length = file.metadata()?.len().min(RECORD_BYTES_MAX);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        file.read_exact_at(&mut bytes, 0)?;
        Self::decode(&bytes)
    }
}

/// The version of this program.
fn own_version() -> u64 {
    if crate::session::is_another_version() { u64::MAX } else { VERSION }
}

fn take_number(rest: &mut &[u8]) -> Result<u64, HandoverError> {
    let (word, after) = rest.split_first_chunk().ok_or(HandoverError::Malformed)?;
    *rest = after;
    Ok(u64::from_le_bytes(*word))
}

fn take_field<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], HandoverError> {
    let length = usize::try_from(take_number(rest)?).map_err(|_| HandoverError::Malformed)?;
    let (field, after) = rest.split_at_checked(length).ok_or(HandoverError::Malformed)?;
    *rest = after;
    Ok(field)
}

/// A mount that its holder offers to this process.
#[derive(Debug)]
pub struct OfferedMount {
    /// The user and group of the holder.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// What the holder knows.
    pub record: HeldRecord,
    /// The same, as a file for the next one who asks.
    pub record_file: OwnedFd,
    /// The memory of the journal.
    pub journal: OwnedFd,
    /// One for each listener.
    pub channels: Vec<OwnedFd>,
    /// The image and its devices.
    pub files: Vec<OwnedFd>,
    unmount: Option<OwnedFd>,
    /// The rest of the protocol; `None` if the service manager has kept the mount.
    pub handover: Option<HandoverSocket>,
}

/// The way to the former holder.
#[derive(Debug)]
pub struct HandoverSocket {
    pub(super) socket: OwnedFd,
    /// The number of its server.
    pub(super) number: u64,
    /// Its server; `None` if it is not known.
    pub(super) server: Option<FormerServer>,
}

impl HandoverSocket {
    /// The descriptors that it needs.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.socket.as_fd()].into_iter().chain(self.server.as_ref().map(AsFd::as_fd))
    }
}

/// The mount of a directory, and its holder.
struct HolderConnection {
    holder: ConnectedHolder,
    identity: MountIdentity,
}

impl HolderConnection {
    fn open(
        directory: &Path,
        except: &[Vec<u8>],
        deadline: Instant,
    ) -> Result<Self, HandoverError> {
        // O_PATH sends no request to the mount, which may have no server.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(directory, flags, Mode::empty()).map_err(HandoverError::Open)?;
        let entry = MountEntry::of(root.as_fd()).filter(MountEntry::is_fuse);
        let entry = entry.ok_or(HandoverError::NotFerrofs)?;
        let own = rustix::process::geteuid().as_raw();
        if own != 0 && entry.user_id != Some(own) {
            return Err(HandoverError::NotOwner(entry.user_id));
        }
        let identity =
            MountIdentity::of_file(root.as_fd()).map_err(|_| HandoverError::NotFerrofs)?;
        let owner = entry.user_id.unwrap_or(own);
        match sockets::connect_to(&identity.device(), owner, except, deadline)? {
            HolderSearch::Found(holder) => Ok(Self { holder, identity }),
            HolderSearch::Busy => Err(HandoverError::Busy),
            HolderSearch::Absent => Err(HandoverError::NoHolder),
        }
    }

    /// Opens it and asks. A holder that has just handed the mount over, or whose mount has ended, ends the connection without
    /// an answer; another one has the mount, or will have it soon. One whose queue is full will take connections soon.
    fn open_and_request(
        directory: &Path,
        kind: u8,
    ) -> Result<(Self, sockets::ControlMessage), HandoverError> {
        let deadline = Instant::now() + ANSWER_LIMIT;
        let is_over = || Instant::now() >= deadline;
        let mut silent = Vec::new();
        loop {
            match Self::open(directory, &silent, deadline) {
                // The next holder is not there yet. Or one that was asked can answer now.
                Err(HandoverError::NoHolder) if !silent.is_empty() && !is_over() => silent.clear(),
                Err(HandoverError::Busy) if !is_over() => silent.clear(),
                Err(error) => return Err(error),
                Ok(connection) => match connection.exchange(kind) {
                    Err(HandoverError::NoAnswer) if !is_over() => {
                        silent.push(connection.holder.name);
                    }
                    answer => return answer.map(|answer| (connection, answer)),
                },
            }
            std::thread::sleep(ENDING_PAUSE);
        }
    }

    fn exchange(&self, kind: u8) -> Result<sockets::ControlMessage, HandoverError> {
        let socket = self.holder.socket.as_fd();
        sockets::send(socket, kind, 0, "").map_err(|_| HandoverError::NoAnswer)?;
        let answer = sockets::receive(socket, ANSWER_LIMIT);
        match answer.kind {
            0 => Err(HandoverError::NoAnswer),
            sockets::REFUSED => Err(HandoverError::Refused(answer.text)),
            _ => Ok(answer),
        }
    }
}

/// Whether a mount had a server when its holder was asked to start one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reattached {
    /// It has one.
    IsServed,
    /// It gets one now.
    Started,
}

/// Lets the holder of the mount of `directory` start a server at once if it has none.
///
/// # Errors
/// [`HandoverError`].
pub fn reattach(directory: &Path) -> Result<Reattached, HandoverError> {
    let (_, answer) = HolderConnection::open_and_request(directory, sockets::REATTACH)?;
    match (answer.kind, answer.number) {
        (sockets::ATTACHED, 0) => Ok(Reattached::Started),
        (sockets::ATTACHED, _) => Ok(Reattached::IsServed),
        _ => Err(HandoverError::Malformed),
    }
}

impl OfferedMount {
    /// KR1 and KR2: asks the holder of the mount of `directory` for it.
    ///
    /// # Errors
    /// [`HandoverError`]. Nothing has changed for the mount.
    pub fn request(directory: &Path) -> Result<Self, HandoverError> {
        let (HolderConnection { holder, identity }, answer) =
            HolderConnection::open_and_request(directory, sockets::TAKE_OVER)?;
        let number = answer.number;
        let server = FormerServer::open(&answer.text, holder.peer.process);
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        loop {
            let message = sockets::receive(holder.socket.as_fd(), ANSWER_LIMIT);
            if message.is_cut {
                return Err(HandoverError::System(Errno::MFILE.into()));
            }
            if message.kind != sockets::OFFER || message.descriptors.is_empty() {
                return Err(HandoverError::Malformed);
            }
            descriptors.extend(message.descriptors);
            if message.number == 0 {
                break;
            }
            if descriptors.len() > DESCRIPTORS_MAX {
                return Err(HandoverError::Malformed);
            }
        }
        let PeerCredentials { user, group, .. } = holder.peer;
        let handover = HandoverSocket { socket: holder.socket, number, server };
        let offered = Self::of_descriptors(descriptors, user, group, Some(handover))?;
        match offered.record.identity == identity {
            true => Ok(offered),
            false => Err(HandoverError::OtherNamespace),
        }
    }

    /// KF4: a mount whose descriptors the service manager has kept. `None` if it is not mounted any more.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub fn kept(descriptors: Vec<OwnedFd>) -> Result<Option<Self>, HandoverError> {
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        let kept = Self::of_descriptors(descriptors, user, group, None)?;
        Ok(Some(kept).filter(|kept| kept.channels.iter().all(super::direct::is_connected)))
    }

    fn of_descriptors(
        descriptors: Vec<OwnedFd>,
        user: u32,
        group: u32,
        handover: Option<HandoverSocket>,
    ) -> Result<Self, HandoverError> {
        let mut descriptors = descriptors.into_iter();
        let record_file = descriptors.next().ok_or(HandoverError::Malformed)?;
        let record = HeldRecord::from_file(record_file.try_clone()?)?;
        let journal = descriptors.next().ok_or(HandoverError::Malformed)?;
        let channels: Vec<OwnedFd> = descriptors.by_ref().take(record.channels).collect();
        let files: Vec<OwnedFd> = descriptors.by_ref().take(record.files).collect();
        let unmount = descriptors.by_ref().take(usize::from(record.has_unmount)).next();
        // A service that was killed while it renewed it (KF5).
        let is_renewed = handover.is_none() && record.program.is_some();
        let is_whole = channels.len() == record.channels
            && !channels.is_empty()
            && !files.is_empty()
            && files.len() == record.files
            && (unmount.is_some() == record.has_unmount || is_renewed)
            && descriptors.next().is_none();
        if !is_whole {
            return Err(HandoverError::Malformed);
        }
        Ok(Self { user, group, record, record_file, journal, channels, files, unmount, handover })
    }

    /// How many descriptors a whole mount of this kind has. One is missing if a service was killed while it renewed it (KF5).
    #[must_use]
    pub fn whole_count(&self) -> usize {
        let HeldRecord { channels, files, has_unmount, .. } = &self.record;
        // With the record and the journal.
        channels.saturating_add(*files).saturating_add(2 + usize::from(*has_unmount))
    }

    /// The mount, as its next holder has it. It is not unmounted when the value is dropped before it was
    /// [held](Attachment::hold).
    ///
    /// # Errors
    /// The system refuses.
    pub fn attachment(&mut self) -> Result<Attachment, HandoverError> {
        let record = &self.record;
        let device = self.channels.first().ok_or(HandoverError::Malformed)?.try_clone()?;
        let (method, unmounting) = match (&record.program, self.unmount.take()) {
            (None, Some(handle)) => {
                let directory = MountDirectory::held(handle, record.directory.clone());
                let unmount = DirectUnmount::new(directory, record.identity.clone());
                (MountMethod::Direct, Unmounting::Direct(unmount))
            }
            (None, None) => return Err(HandoverError::Malformed),
            (Some(program), socket) => {
                let unmounter = match (socket, &self.handover) {
                    // The one on its other end was a process of the service, and has most likely ended with it. The new
                    // one must not unmount before KF5: after an error the manager keeps the mount.
                    (previous, None) if record.has_unmount => {
                        let device = record.identity.device();
                        Unmounter::start(program, &record.directory, &device, AtEnd::Leave)
                            .ok()
                            .map(|unmounter| unmounter.in_place_of(previous))
                    }
                    (socket, _) => socket.map(Unmounter::of_socket),
                };
                (MountMethod::Fusermount(program.clone()), Unmounting::Fusermount(unmounter))
            }
        };
        Ok(Attachment {
            device,
            method,
            directory: record.directory.clone(),
            identity: record.identity.clone(),
            unmounting,
            lifeline: None,
            auto_unmount: record.auto_unmount,
            owner: None,
            // Until it is held.
            is_detached: true,
            is_of_server: false,
        })
    }
}

impl Attachment {
    /// What the holder of this mount offers to a successor.
    #[must_use]
    pub fn record(
        &self,
        init_parameters: &InitParameters,
        counts: HeldCounts,
        command: Vec<u8>,
    ) -> HeldRecord {
        let program = match &self.method {
            MountMethod::Direct => None,
            MountMethod::Fusermount(program) => Some(program.clone()),
        };
        HeldRecord {
            program,
            directory: self.directory.clone(),
            identity: self.identity.clone(),
            auto_unmount: self.auto_unmount,
            has_unmount: self.unmount_descriptor().is_some(),
            init_parameters: *init_parameters,
            channels: counts.channels,
            files: counts.files,
            command,
        }
    }

    /// The process that was started to unmount by `fusermount3`.
    pub(super) fn unmounter(&mut self) -> Option<&mut Unmounter> {
        match &mut self.unmounting {
            Unmounting::Fusermount(unmounter) => unmounter.as_mut(),
            Unmounting::Direct(_) | Unmounting::Helper(_) => None,
        }
    }

    /// What the process that unmounts has to do if this one ends without a message to it.
    pub(super) fn at_end(&self) -> AtEnd {
        if self.auto_unmount { AtEnd::Unmount } else { AtEnd::Leave }
    }

    /// What unmounting needs.
    pub(super) fn unmount_descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.unmounting {
            Unmounting::Direct(unmount) => Some(unmount.descriptor()),
            Unmounting::Helper(_) => None,
            Unmounting::Fusermount(unmounter) => unmounter.as_ref().map(Unmounter::descriptor),
        }
    }
}

/// How many descriptors a holder has of the kinds whose number varies.
#[derive(Clone, Copy, Debug)]
pub struct HeldCounts {
    /// The number of channels.
    pub channels: usize,
    /// The number of files of the image.
    pub files: usize,
}

/// A process that serves for another holder, as the process sees it that takes the mount over: if that holder is killed in
/// between, this process holds the mount as soon as the server has ended (docs/survival.md, KR5).
#[derive(Debug)]
pub(super) struct FormerServer {
    process: OwnedFd,
}

impl FormerServer {
    /// The process with the number in `text`, if it is a child of `holder`. `None` for a holder that tells no number, and
    /// for one in another PID namespace.
    pub(super) fn open(text: &str, holder: i32) -> Option<Self> {
        let number = i32::try_from(text.parse::<u32>().ok()?).ok()?;
        let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
        let server = Self { process };
        // In this order: as long as that process has not ended, no other one has its number.
        (holder > 0 && parent_of(number) == Some(holder) && !server.has_ended()).then_some(server)
    }

    /// Whether it has ended, with its threads and descriptors.
    pub(super) fn has_ended(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for FormerServer {
    /// It becomes readable when the process ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

fn parent_of(process: i32) -> Option<i32> {
    let line = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in parentheses, may have any byte.
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(line.get(end..)?).ok()?;
    fields.split(' ').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> HeldRecord {
        HeldRecord {
            program: Some("/usr/bin/fusermount3".into()),
            directory: "/mnt".into(),
            identity: MountIdentity::from_parts(b"87", b"0:41"),
            auto_unmount: true,
            has_unmount: false,
            init_parameters: InitParameters::from_words(std::array::from_fn(|word| {
                word as u64 + 1
            })),
            channels: 3,
            files: 1,
            command: b"mount\0--keep".to_vec(),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = record();
        let file = record.to_file().expect("memory");
        assert_eq!(rustix::io::write(&file, b"x"), Err(Errno::PERM));
        assert_eq!(HeldRecord::from_file(file).expect("a record"), record);
    }

    #[test]
    fn a_record_is_read_whatever_the_offset_of_its_file_is_and_leaves_it() {
        let record = record();
        let mut shared = std::fs::File::from(record.to_file().expect("memory"));
        io::Seek::seek(&mut shared, io::SeekFrom::Start(5)).expect("an offset");
        let same = OwnedFd::from(shared.try_clone().expect("a descriptor"));
        assert_eq!(HeldRecord::from_file(same).expect("a record"), record);
        assert_eq!(io::Seek::stream_position(&mut shared).expect("an offset"), 5);
    }

    #[test]
    fn another_version_and_cut_records_are_refused() {
        let bytes = record().encode();
        for length in 0..bytes.len() {
            let refused = HeldRecord::decode(&bytes[..length]);
            assert!(matches!(refused, Err(HandoverError::Malformed)), "{length}");
        }
        let mut other = bytes;
        other[MAGIC.len()] = 9;
        assert!(matches!(HeldRecord::decode(&other), Err(HandoverError::OtherVersion(9))));
    }

    #[test]
    fn the_end_of_a_child_of_the_holder_is_seen() {
        let own = rustix::process::getpid().as_raw_pid();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let number = child.id().to_string();
        let server = FormerServer::open(&number, own).unwrap();
        assert!(!server.has_ended());
        for (text, holder) in [("", own), ("0", own), ("-1", own), (&number, 0), (&number, 1)] {
            assert!(FormerServer::open(text, holder).is_none(), "{text} {holder}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(server.has_ended());
        assert!(FormerServer::open(&number, own).is_none());
    }
}
