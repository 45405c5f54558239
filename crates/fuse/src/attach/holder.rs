//! The process that holds a mount while servers come and go (docs/survival.md, protocol K). It forks each server, learns of
//! its end, and forks the next one; and it unmounts for them. It has one thread, reads no byte of an image, and waits
//! without a timeout. Called by the command, through [`Attachment::hold`].
#![allow(unsafe_code, reason = "fork, and signals that are read from a descriptor")]

use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

use super::direct::UnmountHelper;
use super::forked::{self, EndedServer, PANICKED, RestartLimiter, keep_ended_children};
use super::handover::{FormerServer, HandoverSocket};
use super::sockets::{self, ControlSocket};
use super::{Attachment, DetachOutcome, Unmounting};
use crate::journal::ServerEnd;
use crate::session::fault_point;

/// The status of a holder whose server was killed by a signal while it was unmounting, or before it was ready.
const KILLED_STATUS: i32 = 1;
/// The signals that request the end of a mount, and the one that reports the end of a child.
const SIGNALS: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGCHLD];
/// Bytes of the kernel's `struct signalfd_siginfo`, which begins with the number of the signal.
const SIGNAL_INFO_BYTES: usize = 128;

/// How long the server of a new holder may take from its turn to its first request. Its image is open by then.
const TURN_LIMIT: Duration = Duration::from_secs(10);
/// How long the former holder waits for that, if the new one does not even give up.
const HANDOVER_LIMIT: Duration = Duration::from_secs(15);
/// How long the former holder takes for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

const STARTED_AGAIN: &str = "a process was started again meanwhile; try again";
/// Why a mount is not taken over whose holder was killed before it has ended its server.
const ORPHANED: &str = "the process that holds the mount was killed; the one that serves continues without it, but is \
                        not started again when it ends";

/// A server that is about to start, as it sees itself.
#[derive(Debug)]
pub struct ServerStart {
    /// Its number, from 1 on.
    pub number: u64,
    /// Whether no server of its holder was ready before.
    pub is_first: bool,
    /// How the one before it ended.
    pub predecessor: Option<ServerEnd>,
    /// The process ID of the holder.
    pub holder: i32,
    /// Where it reports that it is ready.
    pub ready: ReadyReport,
}

/// The report of a server that it serves.
#[derive(Debug)]
pub struct ReadyReport {
    socket: OwnedFd,
    /// The way to the former holder, for the first server of a mount that was taken over.
    handover: Option<OwnedFd>,
}

impl ReadyReport {
    /// KR3: a server of a mount that is being taken over is prepared, and waits until the former one has ended. Others do
    /// not wait.
    ///
    /// # Errors
    /// The holder has ended, or gives up.
    pub fn wait_for_turn(&self) -> io::Result<()> {
        if self.handover.is_none() {
            return Ok(());
        }
        forked::send(&self.socket, forked::PREPARED, "");
        let mut message = [0];
        loop {
            // The sandbox of a server allows reading only.
            match rustix::io::read(&self.socket, &mut message) {
                Err(Errno::INTR) => {}
                Ok(1) if message == [forked::TURN] => return Ok(()),
                _ => return Err(io::Error::other("the mount was not handed over")),
            }
        }
    }

    /// Reports it. Without a holder nobody needs to know.
    pub fn send(self) {
        if let Some(previous) = &self.handover {
            sockets::write(previous.as_fd(), sockets::DONE);
        }
        forked::send(&self.socket, forked::READY, "");
    }

    /// The descriptors that it needs.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.socket.as_fd()].into_iter().chain(self.handover.as_ref().map(AsFd::as_fd))
    }
}

/// What a holder holds, from the side of the command.
pub trait HeldMount {
    /// The whole life of a server, in a process of its own. Returns its exit status. The attachment unmounts through the
    /// holder.
    fn serve(&mut self, attachment: Attachment, start: ServerStart) -> i32;

    /// In the process of a server that cannot begin to serve: reports why, and returns its exit status.
    fn cannot_serve(&mut self, is_first: bool, cause: io::Error) -> i32;

    /// What a program gets that takes the mount over: the record, the journal, the channels, the files, in this order.
    fn offer(&self) -> Vec<BorrowedFd<'_>>;

    /// Called for each event.
    fn report(&self, event: &HolderEvent);
}

/// How a mount is held.
#[derive(Debug)]
pub struct HolderPlan {
    /// The signals of the holder.
    pub signals: HolderSignals,
    /// Where programs request the mount.
    pub control: Option<ControlSocket>,
    /// Why they do not get it.
    pub refusal: Option<String>,
    /// From whom this process takes the mount over.
    pub handover: Option<HandoverSocket>,
    /// The number of the last server of a mount that the service manager has kept.
    pub last_server: Option<u64>,
}

/// How holding ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldEnd {
    /// The mount has ended; the exit status of its last server.
    Ended(i32),
    /// Another program holds the mount.
    HandedOver,
    /// The mount was not taken over, and its former holder serves on; why, unless the server has reported it.
    NotTaken(String),
}

/// What a holder reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HolderEvent {
    /// A server is ready.
    Ready,
    /// A server has ended, and another one follows.
    ServerEnded {
        /// Its process ID.
        pid: i32,
        /// The signal that ended it, or its exit status.
        signal: Option<i32>,
        /// Its exit status, without a signal.
        status: Option<i32>,
        /// How many restarts there were, with this one.
        restarts: u64,
    },
    /// A signal asks the mount to end.
    Unmounting {
        /// Its number.
        signal: u32,
    },
    /// The mount could not be unmounted.
    NotUnmounted {
        /// Why.
        message: String,
    },
    /// It is unmounted, but still in use.
    InUse,
    /// The mount was not taken over by the program that wanted it; another server follows.
    NotTaken,
    /// Another program holds the mount from here on.
    HandedOver,
    /// No server could be forked.
    ForkFailed {
        /// Why.
        cause: Errno,
    },
}

/// The signals of a holder, blocked and readable from a descriptor.
#[derive(Debug)]
pub struct HolderSignals {
    descriptor: OwnedFd,
    previous: libc::sigset_t,
}

impl HolderSignals {
    /// Blocks them. No thread may run.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn block() -> io::Result<Self> {
        keep_ended_children();
        let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
        let mut previous = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initializes `blocked`, sigaddset changes it, and sigprocmask reads it and writes the old mask
        // to `previous`, a whole sigset_t. All pointers are to these two variables.
        let (is_blocked, number) = unsafe {
            libc::sigemptyset(blocked.as_mut_ptr());
            for signal in SIGNALS {
                libc::sigaddset(blocked.as_mut_ptr(), signal);
            }
            let masked =
                libc::sigprocmask(libc::SIG_BLOCK, blocked.as_ptr(), previous.as_mut_ptr()) == 0;
            (masked, libc::signalfd(-1, blocked.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))
        };
        if !is_blocked || number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd has just returned this descriptor, and nobody else has it; sigprocmask has written `previous`.
        Ok(unsafe {
            Self { descriptor: OwnedFd::from_raw_fd(number), previous: previous.assume_init() }
        })
    }

    /// The descriptor.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Restores the mask from before.
    fn unblock(&self) {
        // SAFETY: sigprocmask reads the set, which `block` has initialized.
        unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const self.previous, std::ptr::null_mut())
        };
    }

    /// The next signal that has arrived.
    fn next(&self) -> Option<u32> {
        let mut info = [0; SIGNAL_INFO_BYTES];
        let length = rustix::io::read(&self.descriptor, &mut info).ok()?;
        let number = info.get(..length)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*number))
    }
}

/// A server, from the side of the holder.
struct RunningServer {
    process: Pid,
    socket: OwnedFd,
    is_ready: bool,
    is_connected: bool,
}

/// The program that has connected last.
struct NewHolder {
    socket: OwnedFd,
    process: i32,
    /// The number of the server at the time of the offer.
    number: u64,
}

/// What a program that takes the mount over has requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CandidateRequest {
    Nothing,
    /// A server, without further pauses.
    Server,
    /// The mount.
    Mount,
}

/// The mount that this process is about to take over.
struct Taking {
    from: HandoverSocket,
    is_handed: bool,
    /// Whether the former holder was killed before it has handed the mount over, so that the end of its server does it.
    is_orphaned: bool,
    deadline: Option<Instant>,
    failure: String,
}

impl Taking {
    /// The end of the new server comes next, which a signal reports.
    fn has_failed(&self) -> bool {
        !self.failure.is_empty()
    }

    /// What changes next.
    fn awaited(&self) -> BorrowedFd<'_> {
        match &self.from.server {
            Some(server) if self.is_orphaned => server.as_fd(),
            _ => self.from.socket.as_fd(),
        }
    }

    fn has_previous_server_ended(&self) -> bool {
        self.from.server.as_ref().is_some_and(FormerServer::has_ended)
    }
}

/// The loop of the holder.
struct MountHolder<'a> {
    attachment: &'a mut Attachment,
    signals: HolderSignals,
    control: Option<ControlSocket>,
    refusal: Option<String>,
    candidate: Option<NewHolder>,
    taking: Option<Taking>,
    /// The number of the present server, or the last one.
    number: u64,
    /// Whether the service manager has kept the mount.
    is_resumed: bool,
    was_ready: bool,
    is_handing_over: bool,
    is_unmounting: bool,
}

impl Attachment {
    /// Becomes the holder: forks servers, one after the other, until the mount ends or another program takes it over. No
    /// other thread may run in this process.
    ///
    /// # Errors
    /// The first server cannot be forked.
    pub fn hold(&mut self, plan: HolderPlan, held: &mut dyn HeldMount) -> io::Result<HoldEnd> {
        let HolderPlan { signals, control, refusal, handover, last_server } = plan;
        let before = handover.as_ref().map(|from| from.number).or(last_server);
        // This process is the only holder.
        self.is_detached &= last_server.is_none();
        let taking = |from| Taking {
            from,
            is_handed: false,
            is_orphaned: false,
            deadline: None,
            failure: String::new(),
        };
        let holder = MountHolder {
            attachment: self,
            signals,
            control,
            refusal,
            candidate: None,
            taking: handover.map(taking),
            is_resumed: last_server.is_some(),
            number: before.unwrap_or(0).saturating_add(1),
            was_ready: false,
            is_handing_over: false,
            is_unmounting: false,
        };
        holder.run(held)
    }

    /// This mount for a server, which unmounts by a message to its holder.
    fn of_server(&self, holder: Pid, socket: OwnedFd) -> io::Result<Self> {
        let lifeline = match &self.unmounting {
            Unmounting::Fusermount(Some(unmounter)) => {
                Some(unmounter.descriptor().try_clone_to_owned()?)
            }
            _ => None,
        };
        Ok(Self {
            device: self.device.try_clone()?,
            method: self.method.clone(),
            directory: self.directory.clone(),
            identity: self.identity.clone(),
            unmounting: Unmounting::Helper(UnmountHelper::of_holder(holder, socket)),
            lifeline,
            auto_unmount: self.auto_unmount,
            owner: self.owner,
            is_detached: false,
            is_of_server: true,
        })
    }
}

impl MountHolder<'_> {
    fn run(mut self, held: &mut dyn HeldMount) -> io::Result<HoldEnd> {
        let mut limiter = RestartLimiter::new(Instant::now());
        let first = self.number;
        // Who ends a whole service says little about a request.
        let mut predecessor = match (&self.taking, self.is_resumed) {
            (Some(_), _) => Some(ServerEnd::Retired),
            (None, true) => Some(ServerEnd::Killed),
            (None, false) => None,
        };
        loop {
            let is_first = !self.was_ready;
            let server = match self.fork(ServerPlace { is_first, predecessor }, held) {
                Ok(server) => server,
                // What a service has kept is not given up: the cause may go away.
                Err(error) if self.number == first && !self.is_resumed => return Err(error),
                Err(error) => {
                    let cause = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
                    held.report(&HolderEvent::ForkFailed { cause });
                    let pause = limiter.pause_after(EndedServer::NeverReady, Instant::now());
                    self.pause(pause, held);
                    match self.after_pause(KILLED_STATUS, held) {
                        ControlFlow::Break(end) => return Ok(end),
                        ControlFlow::Continue(retired) => predecessor = retired.or(predecessor),
                    }
                    continue;
                }
            };
            let pid = server.process.as_raw_pid();
            let (status, is_ready) = self.wait(server, held);
            if let Some(mut taking) = self.taking.take() {
                if let Some(signal) = status.terminating_signal()
                    && !taking.has_failed()
                {
                    taking.failure = format!("the new process was ended by signal {signal}");
                }
                if is_taken_back(&taking) {
                    return Ok(HoldEnd::NotTaken(taking.failure));
                }
            }
            self.attachment.is_detached &= self.is_unmounting;
            let code = status.exit_status().unwrap_or(KILLED_STATUS);
            let is_never_ready = self.number == 1 && !is_ready && !self.is_resumed;
            if is_never_ready || self.is_unmounting || !self.attachment.is_connected() {
                // What is left to unmount is the mount of a first server that failed.
                self.attachment.detach().ok();
                return Ok(HoldEnd::Ended(code));
            }
            let signal = status.terminating_signal();
            let is_killed = signal == Some(libc::SIGKILL);
            predecessor = Some(if is_killed { ServerEnd::Killed } else { ServerEnd::Crashed });
            if !self.is_handing_over {
                let (status, restarts) = (status.exit_status(), self.number);
                held.report(&HolderEvent::ServerEnded { pid, signal, status, restarts });
                let is_failed = !is_ready && signal.is_none();
                let ended = if is_failed { EndedServer::NeverReady } else { EndedServer::Served };
                let pause = limiter.pause_after(ended, Instant::now());
                self.pause(pause, held);
            }
            match self.after_pause(code, held) {
                ControlFlow::Break(end) => return Ok(end),
                ControlFlow::Continue(retired) => predecessor = retired.or(predecessor),
            }
            self.number = self.number.saturating_add(1);
        }
    }

    /// What comes before the next server: the mount is handed over if a program has asked for it, or holding ends with the
    /// status `code`. Otherwise, how the last server ended, if a program has given the mount back.
    fn after_pause(
        &mut self,
        code: i32,
        held: &mut dyn HeldMount,
    ) -> ControlFlow<HoldEnd, Option<ServerEnd>> {
        let is_given_back = self.is_handing_over;
        if is_given_back {
            if self.hand_over(held) {
                held.report(&HolderEvent::HandedOver);
                return ControlFlow::Break(HoldEnd::HandedOver);
            }
            held.report(&HolderEvent::NotTaken);
        }
        if self.is_unmounting || !self.attachment.is_connected() {
            return ControlFlow::Break(HoldEnd::Ended(code));
        }
        self.withdraw_offer();
        ControlFlow::Continue(is_given_back.then_some(ServerEnd::Retired))
    }

    /// An offer is for one server: a program that watches that one must know before there is another one.
    fn withdraw_offer(&mut self) {
        if let Some(candidate) = self.candidate.take_if(|candidate| candidate.number > 0) {
            refuse(&candidate.socket, STARTED_AGAIN);
        }
    }

    fn fork(&mut self, place: ServerPlace, held: &mut dyn HeldMount) -> io::Result<RunningServer> {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let holder = rustix::process::getpid();
        // SAFETY: fork has no arguments. This process has one thread (the contract of `hold`), so no lock is held, and the
        // child may use everything. It never returns from `serve_and_exit`.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(socket);
                // Also without a sandbox, which closes them: a program must see it when the holder has ended.
                self.control = None;
                self.candidate = None;
                self.serve_and_exit(theirs, holder, place, held)
            }
            process => {
                let process = Pid::from_raw(process).ok_or(Errno::SRCH)?;
                Ok(RunningServer { process, socket, is_ready: false, is_connected: true })
            }
        }
    }

    /// The whole life of a server.
    fn serve_and_exit(
        &self,
        socket: OwnedFd,
        holder: Pid,
        place: ServerPlace,
        held: &mut dyn HeldMount,
    ) -> ! {
        self.signals.unblock();
        let is_first = place.is_first;
        // Unwinding would run the holder's code in this process.
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let handover = self.taking.as_ref().map(|taking| taking.from.socket.try_clone());
            let ready =
                ReadyReport { socket: socket.try_clone()?, handover: handover.transpose()? };
            let attachment = self.attachment.of_server(holder, socket)?;
            let ServerPlace { is_first, predecessor } = place;
            let (number, holder) = (self.number, holder.as_raw_pid());
            let start = ServerStart { number, is_first, predecessor, holder, ready };
            Ok::<_, io::Error>(held.serve(attachment, start))
        }));
        let code = match ended {
            Ok(Ok(code)) => code,
            Ok(Err(cause)) => catch_unwind(AssertUnwindSafe(|| held.cannot_serve(is_first, cause)))
                .unwrap_or(PANICKED),
            Err(_) => PANICKED,
        };
        // SAFETY: _exit only ends the process. exit would run handlers that belong to the holder.
        unsafe { libc::_exit(code) }
    }

    /// Waits for something to happen, but not longer than until `deadline`. What has ended is not polled: it would be ready all
    /// the time, and this loop, at a real-time priority, would keep a server that is ending off its CPU.
    fn poll(&self, server: Option<&RunningServer>, deadline: Option<Instant>) {
        let has_server = server.is_some();
        let server = server.filter(|server| server.is_connected).map(|server| &server.socket);
        let candidate = self.candidate.as_ref().map(|candidate| &candidate.socket);
        let taking = self.taking.as_ref().filter(|taking| !taking.has_failed());
        let taking = taking.map(Taking::awaited);
        let others = [server, candidate].into_iter().flatten().map(AsFd::as_fd).chain(taking);
        let control = self.control.as_ref().map(AsFd::as_fd);
        let all = [self.signals.descriptor()].into_iter().chain(others).chain(control);
        let mut polled: Vec<PollFd<'_>> =
            all.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
        if !has_server {
            // Nobody else sees the end of the mount. Requests, which nobody reads, are no reason to wake up.
            let device = self.attachment.device.as_fd();
            polled.push(PollFd::from_borrowed_fd(device, PollFlags::empty()));
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec::try_from(left).unwrap_or_default());
        poll(&mut polled, left.as_ref()).ok();
    }

    /// Waits for the end of a server, and does what it, signals and programs request. Returns whether it was ready, too.
    fn wait(&mut self, mut server: RunningServer, held: &mut dyn HeldMount) -> (WaitStatus, bool) {
        loop {
            self.poll(Some(&server), self.taking.as_ref().and_then(|taking| taking.deadline));
            if server.is_connected {
                let was_ready = server.is_ready;
                server.is_connected = self.take_messages(&mut server);
                if server.is_ready && !was_ready {
                    held.report(&HolderEvent::Ready);
                }
            }
            self.advance_taking(&server);
            while let Some(signal) = self.signals.next() {
                self.take_signal(signal, &server, held);
            }
            if self.take_requests(Some(&server), held) == CandidateRequest::Mount {
                self.is_handing_over = true;
                fault_point("asked", self.number);
                kill_process(server.process, Signal::KILL).ok();
                fault_point("killed", self.number);
            }
            if let Ok(Some((_, status))) = waitpid(Some(server.process), WaitOptions::NOHANG) {
                if server.is_connected {
                    self.take_messages(&mut server);
                }
                return (status, server.is_ready);
            }
        }
    }

    /// Waits, and keeps to signals and requests. A request for the mount or a server ends the pause, and so does the end of
    /// the mount.
    fn pause(&mut self, time: Duration, held: &mut dyn HeldMount) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.is_unmounting && self.attachment.is_connected() {
            self.poll(None, Some(until));
            while let Some(signal) = self.signals.next() {
                if i32::try_from(signal) != Ok(libc::SIGCHLD) {
                    self.unmount(signal, held);
                }
            }
            match self.take_requests(None, held) {
                CandidateRequest::Nothing => {}
                CandidateRequest::Server => return,
                CandidateRequest::Mount => {
                    self.is_handing_over = true;
                    return;
                }
            }
        }
    }

    fn take_signal(&mut self, signal: u32, server: &RunningServer, held: &mut dyn HeldMount) {
        match i32::try_from(signal) {
            Ok(libc::SIGCHLD) => {}
            // The second one ends the server as well.
            _ if self.is_unmounting => {
                kill_process(server.process, Signal::KILL).ok();
            }
            _ => match &mut self.taking {
                // The mount is another process's.
                Some(taking) => {
                    taking.failure = format!("ended by signal {signal}");
                    // Nobody looks at it any more, and a time that has passed would end every wait at once.
                    taking.deadline = None;
                    kill_process(server.process, Signal::KILL).ok();
                }
                None => self.unmount(signal, held),
            },
        }
    }

    fn unmount(&mut self, signal: u32, held: &mut dyn HeldMount) {
        held.report(&HolderEvent::Unmounting { signal });
        self.is_unmounting = true;
        match self.attachment.detach() {
            Ok(DetachOutcome::Lazily) => held.report(&HolderEvent::InUse),
            Ok(_) => {}
            Err(error) => {
                held.report(&HolderEvent::NotUnmounted { message: error.to_string() });
            }
        }
    }

    /// Answers the messages of a server. Returns whether more can come.
    fn take_messages(&mut self, server: &mut RunningServer) -> bool {
        while let Some(message) = forked::next_message(&server.socket) {
            match message {
                forked::READY => {
                    server.is_ready = true;
                    self.was_ready = true;
                    // The server has told the former holder.
                    self.commit();
                }
                forked::PREPARED => {
                    // After a signal the former holder must not end its server for this one.
                    if let Some(taking) = self.taking.as_mut().filter(|one| !one.has_failed()) {
                        fault_point("go", self.number);
                        taking.deadline = Some(Instant::now() + TURN_LIMIT);
                        sockets::send(taking.from.socket.as_fd(), sockets::GO, 0, "").ok();
                    }
                }
                forked::UNMOUNT => {
                    self.is_unmounting = true;
                    let (kind, text) = forked::outcome_message(self.attachment.detach());
                    forked::send(&server.socket, kind, &text);
                }
                forked::CANCEL => self.is_unmounting = true,
                _ => return false,
            }
        }
        true
    }

    /// KR6: the former holder has ended, or is about to.
    fn commit(&mut self) {
        if self.taking.take().is_some() {
            self.attachment.is_detached = false;
        }
    }

    /// KR5 on the side of the new holder: what the former one says, and the time limit.
    fn advance_taking(&mut self, server: &RunningServer) {
        let Some(taking) = self.taking.as_mut().filter(|taking| !taking.has_failed()) else {
            return;
        };
        if taking.is_orphaned {
            return self.advance_orphaned(server);
        }
        let message = sockets::receive_now(taking.from.socket.as_fd());
        match message {
            Some(message) if message.kind == sockets::HANDED => {
                fault_point("handed", self.number);
                taking.is_handed = true;
                forked::send(&server.socket, forked::TURN, "");
                return;
            }
            // It has ended, most likely since the new server has told it to, whose report to this process comes next.
            Some(message) if message.kind == 0 && taking.is_handed => return self.commit(),
            // It was killed, perhaps after its server: then the mount is held by this process only.
            Some(message) if message.kind == 0 && taking.from.server.is_some() => {
                taking.is_orphaned = true;
                taking.deadline.get_or_insert_with(|| Instant::now() + TURN_LIMIT);
                return self.advance_orphaned(server);
            }
            Some(message) => {
                taking.failure = match message.kind {
                    sockets::REFUSED => message.text,
                    _ => String::from("the process that holds the mount has ended"),
                };
            }
            None if taking.deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                taking.failure = String::from("the new process did not become ready in time");
            }
            None => return,
        }
        taking.deadline = None;
        kill_process(server.process, Signal::KILL).ok();
    }

    /// The same without a former holder: the end of its server makes this process the holder.
    fn advance_orphaned(&mut self, server: &RunningServer) {
        let Some(taking) = &mut self.taking else { return };
        if taking.has_previous_server_ended() {
            forked::send(&server.socket, forked::TURN, "");
            return self.commit();
        }
        if taking.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            taking.deadline = None;
            taking.failure = String::from(ORPHANED);
            kill_process(server.process, Signal::KILL).ok();
        }
    }

    /// What programs that have connected want.
    fn take_requests(
        &mut self,
        server: Option<&RunningServer>,
        held: &mut dyn HeldMount,
    ) -> CandidateRequest {
        let request = self.take_candidate_messages(server, held);
        if request != CandidateRequest::Nothing {
            return request;
        }
        let accepted = self.control.as_mut().and_then(ControlSocket::accept);
        let Some((socket, peer)) = accepted else { return CandidateRequest::Nothing };
        if self.is_handing_over {
            refuse(&socket, "another program is taking the mount over");
            return CandidateRequest::Nothing;
        }
        // KR2: nothing has changed for the mount, and the former one may have been stopped.
        let newer = NewHolder { socket, process: peer.process, number: 0 };
        if let Some(previous) = self.candidate.replace(newer) {
            refuse(
                &previous.socket,
                "another program has asked for the mount since then; try again",
            );
        }
        self.take_candidate_messages(server, held)
    }

    /// What the program that has connected last wants.
    fn take_candidate_messages(
        &mut self,
        server: Option<&RunningServer>,
        held: &mut dyn HeldMount,
    ) -> CandidateRequest {
        let Some(candidate) = &mut self.candidate else { return CandidateRequest::Nothing };
        while let Some(message) = sockets::receive_now(candidate.socket.as_fd()) {
            match (message.kind, &self.refusal) {
                // The mount has ended, and the program means another one that has its number now.
                (sockets::REATTACH | sockets::TAKE_OVER, _) if !self.attachment.is_connected() => {
                    self.candidate = None;
                    return CandidateRequest::Nothing;
                }
                (sockets::REATTACH, _) => {
                    let is_served = u64::from(server.is_some());
                    sockets::send(candidate.socket.as_fd(), sockets::ATTACHED, is_served, "").ok();
                    return CandidateRequest::Server;
                }
                (sockets::TAKE_OVER, Some(refusal)) => refuse(&candidate.socket, refusal),
                (sockets::TAKE_OVER, None) => {
                    candidate.number = self.number;
                    let socket = candidate.socket.as_fd();
                    let offer =
                        held.offer().into_iter().chain(self.attachment.unmount_descriptor());
                    let offer: Vec<BorrowedFd<'_>> = offer.collect();
                    let process = server.map(|server| server.process.as_raw_pid().to_string());
                    let process = process.unwrap_or_default();
                    let offered = sockets::send(socket, sockets::OFFER, self.number, &process)
                        .and_then(|()| sockets::send_descriptors(socket, sockets::OFFER, &offer));
                    if offered.is_err() {
                        self.candidate = None;
                        return CandidateRequest::Nothing;
                    }
                }
                (sockets::GO, None) => {
                    let is_current = candidate.number == self.number;
                    if is_current && self.was_ready && !self.is_unmounting {
                        return CandidateRequest::Mount;
                    }
                    refuse(&candidate.socket, STARTED_AGAIN);
                }
                _ => {
                    self.candidate = None;
                    return CandidateRequest::Nothing;
                }
            }
        }
        CandidateRequest::Nothing
    }

    /// KR5 on the side of the former holder: no server runs. Returns whether the other program holds the mount now.
    fn hand_over(&mut self, held: &mut dyn HeldMount) -> bool {
        self.is_handing_over = false;
        let Some(candidate) = self.candidate.take() else { return false };
        let socket = candidate.socket.as_fd();
        fault_point("retired", self.number);
        sockets::send(socket, sockets::HANDED, self.number, "").ok();
        let mut deadline = Some(Instant::now() + HANDOVER_LIMIT);
        loop {
            let message = sockets::receive_now(socket);
            match message.map(|message| message.kind) {
                Some(sockets::DONE) => {
                    fault_point("released", self.number);
                    self.attachment.is_detached = true;
                    return true;
                }
                Some(sockets::GIVE_UP) => {
                    sockets::send(socket, sockets::TAKEN_BACK, 0, "").ok();
                    return false;
                }
                // Both processes of the other program have ended: each has the socket.
                Some(_) => return false,
                None => {}
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                deadline = None;
                // Permitted without a sandbox; a program that hangs is stopped by its own time limit otherwise.
                Pid::from_raw(candidate.process)
                    .map(|process| kill_process(process, Signal::KILL).ok());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec::try_from(left).unwrap_or_default());
            let both = [socket, self.signals.descriptor()];
            let mut polled = both.map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN));
            poll(&mut polled, left.as_ref()).ok();
            while let Some(signal) = self.signals.next() {
                if i32::try_from(signal) != Ok(libc::SIGCHLD) && !self.is_unmounting {
                    self.unmount(signal, held);
                }
            }
        }
    }
}

fn refuse(socket: &OwnedFd, text: &str) {
    sockets::send(socket.as_fd(), sockets::REFUSED, 0, text).ok();
}

/// The first server of a mount that is being taken over has ended. Returns whether the former holder serves on; otherwise
/// it has ended, and this process is the holder.
fn is_taken_back(taking: &Taking) -> bool {
    if taking.is_orphaned {
        return !taking.has_previous_server_ended();
    }
    if !taking.is_handed {
        return true;
    }
    let socket = taking.from.socket.as_fd();
    sockets::send(socket, sockets::GIVE_UP, 0, "").ok();
    sockets::receive(socket, ANSWER_LIMIT).kind == sockets::TAKEN_BACK
}

/// Where a server stands in the row of those of a holder.
#[derive(Clone, Copy, Debug)]
struct ServerPlace {
    is_first: bool,
    predecessor: Option<ServerEnd>,
}
