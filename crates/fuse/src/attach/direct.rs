//! The device, and the direct way to mount: `mount(2)` and `umount2(2)` by this process, or by one that was forked from it
//! while it had the privilege to unmount. Both calls get the path of an open descriptor, so that a renamed directory makes
//! no difference. The unique ID of a mount, which the kernel never gives to another one (Linux 6.8), tells whether it is
//! still there: the ID in the mount table and the number of the device are given to the next mount as soon as they are free.
//! Called by `attach`.
#![allow(
    unsafe_code,
    reason = "fork, and the system call statmount, of which rustix has no binding"
)]

use std::cell::Cell;
use std::ffi::{CString, c_long, c_uint};
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::mount::{MountFlags, UnmountFlags, unmount as umount2};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::forked::{
    self, ALREADY, AtEnd, CANCEL, COVERED, DONE, FAILED, MESSAGE_BYTES, ParentThread, READY,
    UNMOUNT, Wake, send,
};
use super::mount::{
    AttachOptions, MountAccess, MountDirectory, MountIdentity, MountOwner, MountTable, proc_path,
};
use super::{AttachError, DEVICE, errno, no_device};

/// The type of the root inode, in octal as the kernel expects it: a directory.
const ROOT_MODE: &str = "40000";

/// The first descriptor that is not a standard stream.
const FIRST_FREE: i32 = 3;

/// The result of an attempt to mount.
#[derive(Debug)]
pub(super) enum DirectMount {
    /// It is mounted.
    Mounted(OwnedFd),
    /// This process is not permitted to; fusermount3 may be.
    Refused(DirectMountRefusal),
}

/// Why this process cannot mount.
#[derive(Debug, Clone, Copy)]
pub(super) enum DirectMountRefusal {
    /// It is not permitted to open the device.
    Device(Errno),
    /// It is not permitted to call `mount(2)`.
    Mount(Errno),
}

/// Mounts.
///
/// # Errors
/// fusermount3 would fail for the same reason.
pub(super) fn mount(
    directory: &MountDirectory,
    options: &AttachOptions,
) -> Result<DirectMount, AttachError> {
    let device = match open_device()? {
        Ok(device) => device,
        Err(refusal) => return Ok(DirectMount::Refused(refusal)),
    };
    let data = data(&device, options)?;
    let file_system_type = format!("fuse.{}", options.subtype);
    let mounted = rustix::mount::mount(
        options.source.as_os_str(),
        directory.exact_path(),
        file_system_type,
        flags(options),
        data.as_c_str(),
    );
    match mounted {
        Ok(()) => Ok(DirectMount::Mounted(device)),
        // A security module returns EACCES where a capability check returns EPERM.
        Err(cause @ (Errno::PERM | Errno::ACCESS)) => {
            Ok(DirectMount::Refused(DirectMountRefusal::Mount(cause)))
        }
        Err(Errno::NODEV) => Err(no_device()),
        Err(Errno::NOSPC) => Err(AttachError::NamespaceFull),
        Err(Errno::INVAL) if is_unmapped(options.owner()) => Err(AttachError::UnmappedUser),
        Err(cause) => {
            Err(AttachError::KernelRefused { directory: directory.path().to_path_buf(), cause })
        }
    }
}

fn flags(options: &AttachOptions) -> MountFlags {
    let mut flags = MountFlags::RDONLY;
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags
}

fn data(device: &OwnedFd, options: &AttachOptions) -> Result<CString, AttachError> {
    let MountOwner { user, group } = options.owner();
    let device = device.as_raw_fd();
    let mut data = format!("fd={device},rootmode={ROOT_MODE},user_id={user},group_id={group}");
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    if options.allow == MountAccess::Everybody {
        data.push_str(",allow_other");
    }
    if let Some(max_read) = options.max_read {
        // Writing to a string cannot fail.
        write!(data, ",max_read={max_read}").unwrap_or_default();
    }
    CString::new(data)
        .map_err(|_| AttachError::System { what: "write the mount options", cause: Errno::INVAL })
}

/// Whether the user or the group is not mapped in the user namespace of this process.
fn is_unmapped(owner: MountOwner) -> bool {
    let is_missing = |map: &str, id: u32| {
        std::fs::read_to_string(map).is_ok_and(|text| {
            !text.lines().any(|line| {
                let mut numbers =
                    line.split_whitespace().map(|number| number.parse::<u32>().unwrap_or(0));
                let (first, length) = (numbers.next().unwrap_or(0), numbers.nth(1).unwrap_or(0));
                id.checked_sub(first).is_some_and(|offset| offset < length)
            })
        })
    };
    is_missing("/proc/self/uid_map", owner.user) || is_missing("/proc/self/gid_map", owner.group)
}

/// A mount that this process made, and the directory that it covers. The descriptor of the directory does not keep the
/// mount busy, and leads to it without a path that somebody could change.
#[derive(Debug)]
pub(super) struct DirectUnmount {
    directory: MountDirectory,
    identity: MountIdentity,
    /// Without it, a mount that got the IDs of ours after its end cannot be told from ours.
    unique_id: Option<UniqueMountId>,
}

/// The result of [`DirectUnmount::run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectUnmounted {
    /// It was mounted.
    Done,
    /// It was not mounted any more.
    Already,
}

impl DirectUnmount {
    /// For the mount that was just made on `directory`.
    pub(super) fn new(directory: MountDirectory, identity: MountIdentity) -> Self {
        let root = identity.open_topmost(directory.path()).ok();
        let unique_id = root.and_then(|root| UniqueMountId::of(root.as_fd()));
        Self { directory, identity, unique_id }
    }

    /// The descriptor that it needs.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.directory.handle()
    }

    /// Unmounts, even if the file system is in use.
    ///
    /// # Errors
    /// Something else is mounted on top; or the kernel refuses.
    pub(super) fn run(&self) -> Result<DirectUnmounted, AttachError> {
        self.unmount(UnmountFlags::DETACH)
    }

    /// Ends the connection to the server: every request that has no reply fails. Unmounts only if nothing uses the file
    /// system then.
    ///
    /// # Errors
    /// As [`DirectUnmount::run`]; also if the file system is in use.
    pub(super) fn abort(&self) -> Result<DirectUnmounted, AttachError> {
        self.unmount(UnmountFlags::FORCE)
    }

    fn unmount(&self, flags: UnmountFlags) -> Result<DirectUnmounted, AttachError> {
        let place = self.directory.place()?;
        let table = MountTable::read()?;
        let is_ours = self.unique_id.is_none_or(UniqueMountId::exists);
        let mount_point = table.mount_point_of(&self.identity).filter(|_| is_ours);
        let Some(mount_point) = mount_point else { return Ok(DirectUnmounted::Already) };
        let unmounted = if !table.is_at(&self.identity, &place) {
            // Root has moved it. Its ID shows that what is open is ours.
            let root = self.identity.open_topmost(&mount_point)?;
            umount2(proc_path(&root), flags)
        } else if table.is_covered(&self.identity, &place) {
            return Err(AttachError::Covered { directory: mount_point });
        } else {
            // The kernel goes on from the directory to the topmost mount on it.
            umount2(self.directory.exact_path(), flags)
        };
        match unmounted {
            Ok(()) => Ok(DirectUnmounted::Done),
            Err(cause) => Err(AttachError::StillMounted {
                directory: mount_point,
                message: cause.to_string(),
            }),
        }
    }
}

/// Unmounts what is topmost on `directory`.
pub(super) fn unmount_topmost(directory: &MountDirectory) -> Result<(), Errno> {
    umount2(directory.exact_path(), UnmountFlags::DETACH)
}

/// Opens the device. After a refusal fusermount3 may still succeed, after an error it cannot.
fn open_device() -> Result<Result<OwnedFd, DirectMountRefusal>, AttachError> {
    match open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => Ok(Ok(device)),
        Err(cause @ (Errno::ACCESS | Errno::PERM)) => Ok(Err(DirectMountRefusal::Device(cause))),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Err(no_device()),
        Err(cause) => Err(AttachError::System { what: "open /dev/fuse", cause }),
    }
}

/// Moves the device off descriptors 0 to 2, where a message printed by accident would reach the kernel as a reply. They
/// are free only in a process that was started with its standard streams closed.
pub(super) fn above_standard_streams(device: OwnedFd) -> Result<OwnedFd, AttachError> {
    if device.as_raw_fd() >= FIRST_FREE {
        return Ok(device);
    }
    fcntl_dupfd_cloexec(&device, FIRST_FREE).map_err(|cause| AttachError::System {
        what: "move the device to another descriptor",
        cause,
    })
}

/// Whether the kernel still has the file system of the device. `poll` reports an error once it has not, and before
/// anything is mounted.
pub(super) fn is_connected(device: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::empty())];
    loop {
        match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Err(Errno::INTR) => {}
            Ok(0) => return true,
            Ok(_) => return !polled.iter().any(|device| device.revents().contains(PollFlags::ERR)),
            // The kernel is out of memory. Assuming that it has costs a look into the mount table.
            Err(_) => return true,
        }
    }
}

/// `STATX_MNT_ID_UNIQUE`.
const STATX_UNIQUE: u32 = 0x4000;
/// The number of `statmount` on every architecture that has it.
const STATMOUNT: c_long = 457;
/// The kernel's `struct statmount` with some space for later fields, in words.
const STATMOUNT_WORDS: usize = 128;

/// The unique ID of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UniqueMountId(u64);

/// The kernel's `struct mnt_id_req` in its first version.
#[repr(C)]
struct MountIdRequest {
    size: u32,
    spare: u32,
    id: u64,
    fields: u64,
}

impl UniqueMountId {
    /// That of the mount of an open file. `None` on older kernels. It sends no request to the file system.
    fn of(file: BorrowedFd<'_>) -> Option<Self> {
        let wanted = StatxFlags::from_bits_retain(STATX_UNIQUE);
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(file, c"", flags, wanted).ok()?;
        (found.stx_mask & STATX_UNIQUE != 0).then_some(Self(found.stx_mnt_id))
    }

    /// Whether the mount is still in this mount namespace; `true` also if the kernel does not say.
    fn exists(self) -> bool {
        let request = MountIdRequest {
            size: u32::try_from(size_of::<MountIdRequest>()).unwrap_or(0),
            spare: 0,
            id: self.0,
            fields: 0,
        };
        let mut answer = [0_u64; STATMOUNT_WORDS];
        let flags: c_uint = 0;
        // SAFETY: statmount(request, buffer, bytes, flags) reads the `size` bytes of the request and writes at most `bytes`
        // bytes to the buffer. Both live until the call returns, and the kernel keeps no pointer. An older kernel has no
        // such call and returns ENOSYS.
        let result = unsafe {
            libc::syscall(
                STATMOUNT,
                &raw const request,
                answer.as_mut_ptr(),
                size_of_val(&answer),
                flags,
            )
        };
        let cause = || io::Error::last_os_error().raw_os_error();
        result == 0 || cause() != Some(Errno::NOENT.raw_os_error())
    }
}

/// How long the server waits for a message. The helper makes a handful of system calls.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// A process that waits to unmount a mount which this process made by `mount(2)`, from the side of the server. It is forked
/// while this process has the privilege to unmount, so that the server can drop it. It owns the descriptor of the covered
/// directory, one end of a socket, and a descriptor for the signal that its parent has ended; nothing else: no device, no
/// image, no standard stream.
///
/// The protocol is one message in each direction, over a socket that keeps messages apart:
///
/// 1. The helper closes all other descriptors, confines itself, and sends [`READY`]; or [`FAILED`] with a text, and goes on
///    without being confined. The server reads that before it reports that the mount is ready, and ends after a failure.
/// 2. The server sends [`UNMOUNT`]. The helper unmounts and sends [`DONE`] or [`ALREADY`] and exits; or it sends
///    [`COVERED`], or [`FAILED`] with a text, and waits for the next message.
/// 3. The server sends [`CANCEL`]: the mount is gone. The helper exits.
/// 4. The socket is closed: the server has ended in some way. The helper unmounts, if it was started for that
///    ([`AtEnd::Unmount`]) and the mount is still there, and exits.
/// 5. The thread that started the helper has ended, but the socket stays open: the server cannot end (see `forked`).
///    The helper ends the connection, so that all requests fail; then the server ends, and 4 follows.
///
/// It blocks all signals: one that ends a process group, or a service, may be what ends the server.
#[derive(Debug)]
pub(super) struct UnmountHelper {
    process: Pid,
    socket: OwnedFd,
    /// `None` before its first message was read.
    is_confined: Cell<Option<bool>>,
}

impl UnmountHelper {
    /// Starts it, for a server of `user` if that is another one than the present. [`UnmountHelper::wait_until_confined`] must
    /// follow before any other message.
    ///
    /// # Errors
    /// The system cannot start it.
    pub(super) fn start(
        unmount: &DirectUnmount,
        at_end: AtEnd,
        user: Option<u32>,
        confine: impl FnOnce(&[BorrowedFd<'_>]) -> io::Result<()>,
    ) -> Result<Self, AttachError> {
        let failed = |cause| AttachError::System { what: "start the process that unmounts", cause };
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(failed)?;
        // SAFETY: fork has no arguments. In the child only this thread exists, so a lock that another thread had stays
        // locked: `run` takes none of this project, the C library keeps its allocator usable, and `confine` is bound by
        // the contract of `Attachment::start_unmount_helper`. The child never returns from `run_and_exit`.
        match unsafe { libc::fork() } {
            -1 => Err(failed(errno(&io::Error::last_os_error()))),
            0 => {
                // Even if the helper cannot close what it has inherited, it sees the end of the server.
                drop(ours);
                run_and_exit(&theirs, unmount, at_end, user, confine)
            }
            number => {
                drop(theirs);
                // fork returns no other negative number, and no process has the number 0.
                let process = Pid::from_raw(number).ok_or_else(|| failed(Errno::SRCH))?;
                Ok(Self { process, socket: ours, is_confined: Cell::new(None) })
            }
        }
    }

    /// A holder, which unmounts for a server by the same messages.
    pub(super) fn of_holder(process: Pid, socket: OwnedFd) -> Self {
        Self { process, socket, is_confined: Cell::new(Some(true)) }
    }

    /// Reads its first message.
    ///
    /// # Errors
    /// `confine` failed, or it has ended.
    pub(super) fn wait_until_confined(&self) -> Result<(), AttachError> {
        if self.is_confined.get() == Some(true) {
            return Ok(());
        }
        let failed = |message| AttachError::UnmountHelper { message };
        let message = self.receive().map_err(|cause| failed(cause.to_string()))?;
        let is_confined = message.first() == Some(&READY);
        self.is_confined.set(Some(is_confined));
        match message.split_first() {
            Some((&READY, _)) => Ok(()),
            Some((_, text)) => Err(failed(String::from_utf8_lossy(text).into_owned())),
            None => Err(failed("it has ended".to_owned())),
        }
    }

    /// The socket to it.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Lets it unmount.
    ///
    /// # Errors
    /// As [`DirectUnmount::run`]; or it has ended, because somebody killed it.
    pub(super) fn unmount(&self, mount_point: &Path) -> Result<DirectUnmounted, AttachError> {
        let directory = || mount_point.to_path_buf();
        let still_mounted = |message| AttachError::StillMounted { directory: directory(), message };
        let ended = |_| still_mounted("the process that unmounts has ended".to_owned());
        if self.is_confined.get().is_none() {
            // It unmounts in either case.
            self.wait_until_confined().ok();
        }
        rustix::io::write(&self.socket, &[UNMOUNT]).map_err(ended)?;
        let message = self.receive().map_err(ended)?;
        match message.split_first() {
            Some((&DONE, _)) => {
                self.reap();
                Ok(DirectUnmounted::Done)
            }
            Some((&ALREADY, _)) => {
                self.reap();
                Ok(DirectUnmounted::Already)
            }
            Some((&COVERED, _)) => Err(AttachError::Covered { directory: directory() }),
            Some((_, text)) => Err(still_mounted(String::from_utf8_lossy(text).into_owned())),
            None => Err(ended(Errno::PIPE)),
        }
    }

    /// Lets it exit without unmounting, since the mount is gone. It may have ended already.
    pub(super) fn cancel(&self) {
        if rustix::io::write(&self.socket, &[CANCEL]).is_ok() {
            self.reap();
        }
    }

    /// Waits for its end, which is near. A holder, and a helper that was started before a fork, are not our children.
    fn reap(&self) {
        let wait = || waitpid(Some(self.process), WaitOptions::empty());
        while wait().err() == Some(Errno::INTR) {}
    }

    /// The next message; empty if it has ended.
    fn receive(&self) -> Result<Vec<u8>, Errno> {
        let deadline = Instant::now() + TIME_LIMIT;
        let mut message = [0; MESSAGE_BYTES];
        loop {
            let left = deadline.checked_duration_since(Instant::now()).ok_or(Errno::TIMEDOUT)?;
            let left = Timespec::try_from(left).ok();
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut polled, left.as_ref()) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(cause) => return Err(cause),
            }
            match rustix::io::read(&self.socket, &mut message) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(Vec::new()),
                Err(cause) => return Err(cause),
                Ok(length) => return Ok(message.get(..length).unwrap_or_default().to_vec()),
            }
        }
    }
}

/// The whole life of the helper.
fn run_and_exit(
    socket: &OwnedFd,
    unmount: &DirectUnmount,
    at_end: AtEnd,
    user: Option<u32>,
    confine: impl FnOnce(&[BorrowedFd<'_>]) -> io::Result<()>,
) -> ! {
    // Unwinding would run the server's code in this process.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let kept = [socket.as_fd(), unmount.descriptor()];
        let parent = forked::prepare(&kept)
            .and_then(|()| user.map_or(Ok(()), forked::accept_signals_of))
            .and_then(|()| ParentThread::observe())
            .and_then(|parent| {
                let [socket, directory] = kept;
                confine(&[socket, directory, parent.descriptor()])?;
                Ok(parent)
            });
        match &parent {
            Ok(_) => send(socket, READY, ""),
            Err(error) => send(socket, FAILED, &error.to_string()),
        }
        serve(socket, parent.ok().as_ref(), unmount, at_end);
    }));
    // SAFETY: _exit only ends the process. exit would run handlers that belong to the server.
    unsafe { libc::_exit(i32::from(ended.is_err())) }
}

/// Answers messages until the mount or the server is gone.
fn serve(
    socket: &OwnedFd,
    mut parent: Option<&ParentThread>,
    unmount: &DirectUnmount,
    at_end: AtEnd,
) {
    let mut message = [0; MESSAGE_BYTES];
    loop {
        let wake = parent.map(|parent| parent.wait(socket.as_fd()));
        if wake == Some(Ok(Wake::Stuck)) {
            // It is in use, so it is still there afterwards. Nobody is left to whom an error could be reported.
            unmount.abort().ok();
            parent = None;
        }
        let length = match rustix::io::read(socket, &mut message) {
            Err(Errno::INTR) => continue,
            read => read.unwrap_or(0),
        };
        match (length, message.first()) {
            (1.., Some(&UNMOUNT)) => match unmount.run() {
                Ok(DirectUnmounted::Done) => return send(socket, DONE, ""),
                Ok(DirectUnmounted::Already) => return send(socket, ALREADY, ""),
                Err(AttachError::Covered { .. }) => send(socket, COVERED, ""),
                Err(AttachError::StillMounted { message, .. }) => send(socket, FAILED, &message),
                Err(error) => send(socket, FAILED, &error.to_string()),
            },
            (0, _) if at_end == AtEnd::Unmount => {
                // Nobody is left to whom an error could be reported.
                unmount.run().ok();
                return;
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::UniqueMountId;

    #[test]
    fn a_mount_that_is_there_exists_and_one_that_never_was_does_not() {
        let root = std::fs::File::open("/").expect("a directory");
        // Older kernels have no such IDs.
        let Some(id) = UniqueMountId::of(root.as_fd()) else { return };
        assert!(id.exists());
        assert!(!UniqueMountId(u64::MAX >> 1).exists());
    }
}
