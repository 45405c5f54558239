//! Mounting and unmounting by `fusermount3`: finding the program, running it, receiving the device, and turning its
//! messages into errors; and [`Unmounter`], a process that waits to unmount by it what this one has mounted. Nothing waits
//! longer than `TIME_LIMIT` or leaves a zombie. Called by `attach` where this process is not permitted to mount by itself.
#![allow(unsafe_code, reason = "fork and execve")]

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::forked::{self, AtEnd, ParentThread, Wake};
use super::mount::{AttachOptions, MountAccess, MountDirectory, MountEntry};
use super::{AttachError, errno, no_device};

/// How long it may run. It makes a handful of system calls; only a file system that hangs under the directory can
/// delay it.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// How long a killed process may take to end.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// Bytes of its messages that are kept; it writes a line or two.
const MESSAGE_BYTES: usize = 4096;

/// Its name in libfuse 3, and in libfuse 2, whose protocol is the same.
const NAMES: [&str; 2] = ["fusermount3", "fusermount"];

/// Directories to search after those of PATH.
const USUAL_PLACES: [&str; 2] = ["/usr/bin", "/bin"];

/// The program.
#[derive(Debug)]
pub(super) struct Fusermount {
    path: PathBuf,
}

impl Fusermount {
    pub(super) fn find() -> Option<Self> {
        let search_path = search_path();
        let candidates =
            NAMES.iter().flat_map(|name| search_path.iter().map(move |place| place.join(name)));
        let path = candidates
            .into_iter()
            .find(|path| path.is_file() && access(path, Access::EXEC_OK).is_ok())?;
        Some(Self { path })
    }

    pub(super) fn into_path(self) -> PathBuf {
        self.path
    }

    /// Runs it to mount, and returns the device.
    pub(super) fn mount(
        &self,
        directory: &MountDirectory,
        options: &AttachOptions,
    ) -> Result<OwnedFd, AttachError> {
        // It sends the device to a socket whose number is in the environment. The socket is its standard input, so no
        // other descriptor has to be inherited.
        let (ours, theirs) = socket_pair()?;
        let mut command = Command::new(&self.path);
        command.arg("-o").arg(option_string(options)).arg("--").arg(directory.path());
        command.env("_FUSE_COMMFD", "0").stdin(theirs).stdout(Stdio::null());
        let mut running = HelperProcess::start(command, Instant::now() + TIME_LIMIT)
            .map_err(|source| self.spawn_error(&source))?;
        let received = receive(&ours, running.deadline);
        // A device that was not taken off the socket would keep the mount alive.
        drop(ours);
        let ended = running.finish();
        match received {
            Ok(Some(device)) => return Ok(device),
            Ok(None) if ended.status.is_some_and(|status| status.code().is_some()) => {}
            // It was killed while it was mounting.
            Ok(None) | Err(_) => self.remove_stale_mount(directory, &ended),
        }
        Err(match received {
            Err(Errno::AGAIN) => {
                AttachError::FusermountHung { program: self.path.clone(), limit: TIME_LIMIT }
            }
            Err(cause) => {
                AttachError::System { what: "receive the device from fusermount3", cause }
            }
            Ok(_) => match classify_error(&self.path, directory.path(), ended) {
                AttachError::DirectoryNotPermitted { directory, message } => {
                    not_permitted(directory, message, MountEntry::all())
                }
                error => error,
            },
        })
    }

    fn spawn_error(&self, source: &std::io::Error) -> AttachError {
        let message = format!("{}: {source}", self.path.display());
        AttachError::FusermountRefused { program: self.path.clone(), message, status: None }
    }

    /// Unmounts what it may have mounted before it was killed. Such a mount is dead, as nobody has its device, and
    /// `MountDirectory::open` has checked that there was no dead mount before.
    fn remove_stale_mount(&self, directory: &MountDirectory, ended: &HelperExit) {
        // A process that cannot be killed may still have the device; a request to its mount would hang.
        if ended.is_gone && directory.has_dead_mount() {
            // The error that is being returned is the more useful one.
            drop(unmount(&self.path, directory.path()));
        }
    }
}

/// The directories to search for `fusermount3`: those of PATH, without relative ones, and the usual ones.
pub(super) fn search_path() -> Vec<PathBuf> {
    let mut search_path: Vec<PathBuf> = Vec::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    for place in std::env::split_paths(&path).chain(USUAL_PLACES.map(PathBuf::from)) {
        if place.is_absolute() && !search_path.contains(&place) {
            search_path.push(place);
        }
    }
    search_path
}

/// Runs `fusermount3` to unmount lazily. Returns its messages.
pub(super) fn unmount(program: &Path, directory: &Path) -> String {
    let mut command = Command::new(program);
    command.arg("-u").arg("-z").arg("--").arg(directory).stdin(Stdio::null()).stdout(Stdio::null());
    match HelperProcess::start(command, Instant::now() + TIME_LIMIT) {
        Ok(mut running) => running.finish().message,
        Err(source) => format!("{}: {source}", program.display()),
    }
}

/// The options in its syntax: separated by commas; in the source, backslashes escape commas and backslashes.
fn option_string(options: &AttachOptions) -> OsString {
    let mut option_string = String::from("ro");
    for (off, on, is_on) in [
        ("nosuid", "suid", options.suid),
        ("nodev", "dev", options.dev),
        ("noexec", "exec", options.exec),
    ] {
        option_string.push(',');
        option_string.push_str(if is_on { on } else { off });
    }
    if options.default_permissions {
        option_string.push_str(",default_permissions");
    }
    if options.allow == MountAccess::Everybody {
        option_string.push_str(",allow_other");
    }
    if let Some(max_read) = options.max_read {
        option_string.push_str(",max_read=");
        option_string.push_str(&max_read.to_string());
    }
    option_string.push_str(",subtype=");
    option_string.push_str(&options.subtype);
    option_string.push_str(",fsname=");
    let mut option_string = option_string.into_bytes();
    for byte in options.source.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            option_string.push(b'\\');
        }
        option_string.push(*byte);
    }
    OsString::from_vec(option_string)
}

/// Turns its messages into an error with a remedy.
fn classify_error(program: &Path, directory: &Path, ended: HelperExit) -> AttachError {
    let HelperExit { message, status, is_gone: _ } = ended;
    let has = |text: &str| message.contains(text);
    let directory = directory.to_path_buf();
    if has("user_allow_other") {
        AttachError::AllowOtherForbidden { message }
    } else if has("too many FUSE filesystems") {
        AttachError::MountLimit { message }
    } else if has("device not found") {
        no_device()
    } else if has("failed to open /dev/fuse: Permission denied") {
        AttachError::DeviceNotPermitted { cause: Errno::ACCESS }
    } else if has("failed to open /dev/fuse: Operation not permitted") {
        AttachError::DeviceNotPermitted { cause: Errno::PERM }
    } else if has("Transport endpoint is not connected") {
        AttachError::Stale { directory }
    } else if has("has no write access")
        || has("not owned by user")
        || has("is forbidden")
        || has("failed to chdir to mountpoint")
        || has("failed to access mountpoint")
    {
        AttachError::DirectoryNotPermitted { directory, message }
    } else if has("Operation not permitted") {
        AttachError::NotPrivileged { program: program.to_path_buf(), message }
    } else {
        AttachError::FusermountRefused { program: program.to_path_buf(), message, status }
    }
}

/// The root of an image belongs to whom the image says, and nobody can write it. So fusermount3 refuses a second mount as
/// it refuses a directory of another user. `mounts` is the mount table.
fn not_permitted(directory: PathBuf, message: String, mounts: Vec<MountEntry>) -> AttachError {
    let topmost = mounts.into_iter().rev().find(|mount| mount.mount_point == directory);
    match topmost.filter(MountEntry::is_fuse) {
        Some(mount) => AttachError::AlreadyMounted { directory, source: mount.source },
        None => AttachError::DirectoryNotPermitted { directory, message },
    }
}

/// Receives one descriptor; `None` if the other side is closed.
fn receive(socket: &UnixStream, deadline: Instant) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        let left = time_left(deadline).ok_or(Errno::AGAIN)?;
        socket.set_read_timeout(Some(left)).map_err(|source| errno(&source))?;
        let mut byte = [0];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        match recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(cause) => return Err(cause),
            Ok(_) => {
                return Ok(control.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut received) => received.next(),
                    _ => None,
                }));
            }
        }
    }
}

/// A pair of connected sockets, closed on exec.
fn socket_pair() -> Result<(UnixStream, OwnedFd), AttachError> {
    let (ours, theirs) = UnixStream::pair().map_err(|source| AttachError::System {
        what: "create a socket pair",
        cause: errno(&source),
    })?;
    Ok((ours, theirs.into()))
}

fn time_left(deadline: Instant) -> Option<Duration> {
    deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

/// A running program, and the socket of its messages.
#[derive(Debug)]
struct HelperProcess {
    child: Child,
    messages: UnixStream,
    deadline: Instant,
}

/// How a program ended.
#[derive(Debug)]
struct HelperExit {
    /// Its messages, as one line.
    message: String,
    /// `None` if it had to be killed, or was reaped by somebody else.
    status: Option<ExitStatus>,
    /// Whether it has closed its files.
    is_gone: bool,
}

impl HelperProcess {
    fn start(mut command: Command, deadline: Instant) -> std::io::Result<Self> {
        let (messages, theirs) = UnixStream::pair()?;
        let child = command.stderr(OwnedFd::from(theirs)).spawn()?;
        // The command holds the other ends of the sockets. Without it their closing can be seen.
        drop(command);
        Ok(Self { child, messages, deadline })
    }

    /// Waits for its end, kills it after the deadline, and reaps it.
    fn finish(&mut self) -> HelperExit {
        let mut message = Vec::new();
        if read_to_end(&self.messages, &mut message, self.deadline) {
            let status = self.child.wait().ok();
            return HelperExit { message: one_line(&message), status, is_gone: true };
        }
        // Permitted, although it runs as root: its real user is ours.
        let is_gone = self.child.kill().is_ok()
            && read_to_end(&self.messages, &mut message, Instant::now() + KILL_LIMIT);
        if is_gone {
            // A process that has closed its files is about to end, so this wait is short.
            drop(self.child.wait());
        }
        HelperExit { message: one_line(&message), status: None, is_gone }
    }
}

/// Reads until the other side closes (`true`) or until the deadline (`false`), and keeps at most `MESSAGE_BYTES`. It
/// only polls and reads, which the sandbox allows.
fn read_to_end(socket: &UnixStream, kept: &mut Vec<u8>, deadline: Instant) -> bool {
    let mut piece = [0; 512];
    while let Some(left) = time_left(deadline) {
        let left = Timespec::try_from(left).ok();
        let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
        match poll(&mut polled, left.as_ref()) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return false,
        }
        match rustix::io::read(socket, &mut piece) {
            Ok(0) | Err(Errno::CONNRESET) => return true,
            Ok(length) => {
                let count = MESSAGE_BYTES.saturating_sub(kept.len()).min(length);
                kept.extend_from_slice(piece.get(..count).unwrap_or_default());
            }
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    false
}

/// Messages as one line without control characters.
fn one_line(message: &[u8]) -> String {
    let text = OsStr::from_bytes(message).to_string_lossy();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines
        .join("; ")
        .chars()
        .map(|character| if character.is_control() { '?' } else { character })
        .collect()
}

/// Messages to the process that unmounts. If it is [armed](AtEnd::Unmount), it unmounts also if the socket is closed, since
/// this process is dead then.
const UNMOUNT: &[u8] = b"\n";
/// From here on it is armed.
const ARM: &[u8] = b"arm\n";
/// It exits: the directory belongs to somebody else by now.
const CANCEL: &[u8] = b"cancel\n";
/// From here on it watches the thread that started it, which lives as long as the session.
const WATCH: &[u8] = b"watch\n";

/// A process that waits to unmount for us. It is started while privileges can still be gained, and executes
/// `fusermount3 -u` once we request it or are dead. It never mounts. An attachment owns it.
///
/// `fusermount3` can wait by itself (`auto_unmount`). But before version 3.15 it leaves mounts without `allow_other` in
/// place, since it has no access to them; in every version it requires that the device be closed first; and it does
/// not report the outcome. So a process is forked that waits for a message or for the end of its socket. It blocks all
/// signals, since one that ends a process group may be what ends us.
///
/// Once it is started, only reading, writing and waiting are needed, so a sandbox has to allow nothing for it.
#[derive(Debug)]
pub(super) struct Unmounter {
    /// `None` if another process has started it.
    child: Option<Pid>,
    socket: UnixStream,
    /// The socket of the one that this one replaces, until it is resolved.
    previous: Option<OwnedFd>,
}

impl Unmounter {
    /// `device` is the device number of the mount, `major:minor`; `at_end` says what it does when this process ends without
    /// a message.
    pub(super) fn start(
        fusermount: &Path,
        directory: &Path,
        device: &str,
        at_end: AtEnd,
    ) -> Result<Self, AttachError> {
        let what = "start the process that unmounts";
        let system = |cause| AttachError::System { what, cause };
        let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(|_| system(Errno::INVAL));
        let program = text(fusermount.as_os_str())?;
        let words =
            [&program, c"-u", c"-z", c"--", &text(directory.as_os_str())?].map(CStr::to_owned);
        let connection = device.split_once(':').map_or(device, |(_, minor)| minor);
        let abort_file = Path::new(CONNECTIONS).join(connection).join("abort");
        let (socket, theirs) = socket_pair()?;
        // SAFETY: fork has no arguments. In the child only this thread exists, so a lock that another thread had stays
        // locked: `wait_and_unmount` takes none of this project, and the C library keeps its allocator usable. The child
        // never returns from it.
        match unsafe { libc::fork() } {
            -1 => Err(system(errno(&std::io::Error::last_os_error()))),
            0 => wait_and_unmount(&theirs, &program, &words, &abort_file, at_end),
            number => Ok(Self { child: Pid::from_raw(number), socket, previous: None }),
        }
    }

    /// The one that waits on the other end of this socket.
    pub(super) fn of_socket(socket: OwnedFd) -> Self {
        Self { child: None, socket: UnixStream::from(socket), previous: None }
    }

    /// The same in place of the one that waits on the other end of this socket.
    pub(super) fn in_place_of(self, previous: Option<OwnedFd>) -> Self {
        Self { previous, ..self }
    }

    /// KF5: the one that it replaces ends without unmounting. It is alive if a server of the former holder is, and would
    /// unmount when that ends.
    pub(super) fn retire_previous(&mut self) {
        if let Some(previous) = self.previous.take() {
            Self::of_socket(previous).cancel();
        }
    }

    /// KF5: it unmounts when nobody has its descriptor any more, if that is what is to happen at the end.
    pub(super) fn resolve_previous(&self, at_end: AtEnd) {
        if at_end == AtEnd::Unmount {
            // If it has ended, nobody unmounts at the end, as after its end later on.
            rustix::io::write(&self.socket, ARM).ok();
        }
    }

    /// The socket that it waits on.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Lets it notice that this process was killed and cannot end. The thread that started it lives as long as the mount.
    pub(super) fn observe_parent(&self) {
        // If it has ended, there is nothing to lose.
        rustix::io::write(&self.socket, WATCH).ok();
    }

    /// Lets it unmount now. Returns the messages of `fusermount3`: none if it succeeded.
    pub(super) fn unmount(mut self) -> String {
        let mut message = Vec::new();
        let is_sent = rustix::io::write(&self.socket, UNMOUNT).is_ok();
        if is_sent && read_to_end(&self.socket, &mut message, Instant::now() + TIME_LIMIT) {
            // It has closed its files, so it is about to end. If we forked after its start it is not our child.
            self.reap();
        }
        one_line(&message)
    }

    /// Lets it exit without unmounting, since the directory belongs to somebody else by now.
    pub(super) fn cancel(mut self) {
        // If the write fails, it finds no mount of ours, and nobody reads its message.
        let is_sent = rustix::io::write(&self.socket, CANCEL).is_ok();
        if is_sent && read_to_end(&self.socket, &mut Vec::new(), Instant::now() + TIME_LIMIT) {
            self.reap();
        }
    }

    fn reap(&mut self) {
        if let Some(child) = self.child.take() {
            let wait = || waitpid(Some(child), WaitOptions::empty());
            while wait().err() == Some(Errno::INTR) {}
        }
    }
}

/// Where fusectl is mounted; a connection can be ended there by the user who mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// The whole life of the process that waits.
fn wait_and_unmount(
    socket: &OwnedFd,
    program: &CStr,
    words: &[CString],
    abort_file: &Path,
    at_end: AtEnd,
) -> ! {
    // Unwinding would run the server's code in this process.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        // Without descriptors to close, it would keep the device open; then it must not wait.
        forked::prepare(&[socket.as_fd()])?;
        if !wait_for_order(socket, abort_file, at_end) {
            return Ok(());
        }
        rustix::stdio::dup2_stdin(socket)?;
        rustix::stdio::dup2_stdout(socket)?;
        rustix::stdio::dup2_stderr(socket)?;
        let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
        pointers.push(std::ptr::null());
        let environment = [std::ptr::null()];
        // SAFETY: the program and the words are C strings, and the two lists end with a null pointer; all of them live
        // until the call returns, which it does only after an error.
        unsafe { libc::execve(program.as_ptr(), pointers.as_ptr(), environment.as_ptr()) };
        let cause = std::io::Error::last_os_error();
        rustix::io::write(socket, cause.to_string().as_bytes())?;
        Err(cause)
    }));
    // SAFETY: _exit only ends the process. exit would run handlers that belong to the server.
    unsafe { libc::_exit(i32::from(!matches!(ended, Ok(Ok(()))))) }
}

/// Waits for a message, or for the end of the server; whether it is to unmount.
fn wait_for_order(socket: &OwnedFd, abort_file: &Path, mut at_end: AtEnd) -> bool {
    // A thread that ends before the server watches is none of ours.
    let mut parent = ParentThread::observe().ok();
    let mut is_observed = false;
    let mut lines = Vec::new();
    loop {
        let observed = parent.as_ref().filter(|_| is_observed);
        if observed.map(|parent| parent.wait(socket.as_fd())) == Some(Ok(Wake::Stuck)) {
            parent = None;
            // Without this file nobody but root can end the connection, and nobody waits for the server: the
            // directory is free at least.
            if std::fs::write(abort_file, b"1").is_err() && at_end == AtEnd::Unmount {
                return true;
            }
        }
        let mut read = [0; CANCEL.len()];
        match rustix::io::read(socket, &mut read) {
            Err(Errno::INTR) => continue,
            Ok(length @ 1..) => lines.extend(read.iter().take(length)),
            Ok(0) | Err(_) => return at_end == AtEnd::Unmount,
        }
        while let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = lines.drain(..=end).collect();
            match line.as_slice() {
                UNMOUNT => return true,
                ARM => at_end = AtEnd::Unmount,
                WATCH => is_observed = true,
                _ => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_for(message: &str) -> String {
        let ended = HelperExit { message: message.to_owned(), status: None, is_gone: true };
        let error = classify_error(Path::new("/bin/fusermount3"), Path::new("/mnt"), ended);
        let variant = format!("{error:?}");
        variant.chars().take_while(|character| character.is_alphanumeric()).collect()
    }

    #[test]
    fn messages_become_errors_with_a_remedy() {
        // As libfuse 2.9 to 3.18 write them.
        let option_string = [
            (
                "option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf",
                "AllowOtherForbidden",
            ),
            (
                "too many FUSE filesystems mounted; mount_max=N can be set in /etc/fuse.conf",
                "MountLimit",
            ),
            ("failed to open /dev/fuse: Permission denied", "DeviceNotPermitted"),
            ("failed to open /dev/fuse: Operation not permitted", "DeviceNotPermitted"),
            ("fuse device not found, try 'modprobe fuse' first", "NoDevice"),
            ("user has no write access to mountpoint /mnt", "DirectoryNotPermitted"),
            ("mountpoint /mnt not owned by user", "DirectoryNotPermitted"),
            ("mounting over filesystem type 0x009fa0 is forbidden", "DirectoryNotPermitted"),
            ("failed to access mountpoint /mnt: Transport endpoint is not connected", "Stale"),
            ("failed to access mountpoint /mnt: Permission denied", "DirectoryNotPermitted"),
            ("mount failed: Operation not permitted", "NotPrivileged"),
            ("unknown option 'x'", "FusermountRefused"),
            ("", "FusermountRefused"),
        ];
        for (message, variant) in option_string {
            assert_eq!(error_for(message), variant, "{message}");
        }
    }

    #[test]
    fn a_fuse_mount_on_the_directory_is_named() {
        let mount = |place: &str, kind: &str, source: &str| MountEntry {
            mount_point: place.into(),
            file_system_type: kind.to_owned(),
            source: source.into(),
            user_id: None,
            options: Vec::new(),
        };
        let error_at = |place: &str, mounts: &[MountEntry]| {
            not_permitted(place.into(), "no write access".to_owned(), mounts.to_vec()).to_string()
        };
        let mounts = [
            mount("/a", "fuse.ferrofs", "/old"),
            mount("/a", "fuse.ferrofs", "/images/app"),
            mount("/b", "fuse.ferrofs", "/covered"),
            mount("/b", "tmpfs", "tmpfs"),
        ];
        assert_eq!(
            error_at("/a", &mounts),
            "cannot mount on \"/a\": \"/images/app\" is mounted there already: `fusermount3 -u \"/a\"` unmounts it"
        );
        for elsewhere in ["/a/sub", "/", "/b"] {
            let error = error_at(elsewhere, &mounts);
            assert!(error.contains("a directory that you own (no write access)"), "{error}");
        }
    }

    #[test]
    fn commas_and_backslashes_of_a_name_are_escaped() {
        let mut options =
            AttachOptions::new(OsString::from_vec(b"a,b\\c\xFF\n d".to_vec()), "ferrofs");
        options.max_read = Some(131_072);
        let expected: &[u8] =
            b"ro,nosuid,nodev,exec,default_permissions,max_read=131072,subtype=ferrofs,fsname=a\\,b\\\\c\xFF\n d";
        assert_eq!(option_string(&options).as_bytes(), expected);
    }

    #[test]
    fn messages_become_one_line_without_control_characters() {
        assert_eq!(one_line(b"fusermount3: a\x1b[1m\n\n b\n"), "fusermount3: a?[1m; b");
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_reaped() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo stuck >&2; exec sleep 1000"]).stdin(Stdio::null());
        let mut running =
            HelperProcess::start(command, Instant::now() + Duration::from_millis(300))
                .expect("a shell");
        let ended = running.finish();
        assert_eq!(ended.message, "stuck");
        assert_eq!(ended.status, None);
        assert!(running.child.try_wait().expect("a child").is_some(), "it must be reaped");
    }

    #[test]
    fn a_closed_socket_is_not_a_timeout() {
        let (ours, theirs) = socket_pair().expect("sockets");
        let silence = receive(&ours, Instant::now() + Duration::from_millis(20));
        assert_eq!(silence.expect_err("nobody wrote"), Errno::AGAIN);
        drop(theirs);
        assert!(receive(&ours, Instant::now() + TIME_LIMIT).expect("a closed socket").is_none());
    }
}
