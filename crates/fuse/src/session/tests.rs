//! Sessions against a fake kernel at the other end of a socket, which keeps message boundaries as the device does.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at the first unexpected value"
)]

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    FileSystem, ListenerGrowth, NegotiatedSession, Session, SessionOptions, Succession,
    has_pending_sigkill, has_sigkill,
};
use crate::init::{Capabilities, InitIn, InitInMore, InitRequest, SessionError};
use crate::journal::{RequestJournal, ServerEnd};
use crate::reply::{OutHeader, Reply};
use crate::request::{GetxattrIn, InHeader, InterruptIn, Operation, Request, opcode};
use crate::request_slot::MAX_SPARE_LISTENERS;
use crate::session::SessionEvent;

/// How long to wait for an expected reply.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A gate that holds requests until it is opened.
#[derive(Debug, Default)]
struct RequestGate {
    is_open: Mutex<bool>,
    opened: Condvar,
    held: AtomicUsize,
}

impl RequestGate {
    fn pass(&self) {
        self.held.fetch_add(1, Ordering::SeqCst);
        let mut is_open = self.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.opened.wait(is_open).unwrap();
        }
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// The name of a lookup says what happens in it.
struct TestFileSystem {
    gate: Arc<RequestGate>,
}

impl FileSystem for TestFileSystem {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        match request.operation {
            Operation::Lookup { name: b"hang" } => {
                self.gate.pass();
                reply.error(Errno::NOENT);
            }
            Operation::Lookup { name: b"sleep" } => {
                std::thread::sleep(Duration::from_millis(10));
                reply.error(Errno::NOENT);
            }
            Operation::Lookup { name: b"panic" } => {
                std::panic::resume_unwind(Box::new("asked for"))
            }
            Operation::Lookup { name: b"forget" } => drop(reply),
            Operation::ListXattr { .. } => reply.bytes(b"user.a\0"),
            Operation::OpenDir => reply.opened(),
            _ => reply.error(Errno::NOENT),
        }
    }
}

fn message(opcode: u32, unique: u64, pid: u32, body: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: 0,
        opcode,
        unique,
        node: 1,
        uid: 0,
        gid: 0,
        pid,
        extension_words: 0,
        padding: 0,
    };
    [header.as_bytes(), body].concat()
}

/// The kernel's end of the device.
struct FakeKernel {
    socket: OwnedFd,
    gate: Arc<RequestGate>,
    events: Arc<Mutex<Vec<SessionEvent>>>,
    session: Option<Session>,
}

impl FakeKernel {
    fn start(time_limit: Option<Duration>) -> Self {
        Self::start_with(2, time_limit)
    }

    fn start_with(listeners: usize, time_limit: Option<Duration>) -> Self {
        Self::start_growing(listeners, time_limit, ListenerGrowth::Never)
    }

    fn start_growing(
        listeners: usize,
        time_limit: Option<Duration>,
        growth: ListenerGrowth,
    ) -> Self {
        let (mut kernel, mut negotiated) = Self::negotiate(listeners, time_limit);
        negotiated.options.growth = growth;
        let file_system = Arc::new(TestFileSystem { gate: Arc::clone(&kernel.gate) });
        let events = Arc::clone(&kernel.events);
        let on_event = move |event: &SessionEvent| events.lock().unwrap().push(event.clone());
        kernel.session = Some(negotiated.start(file_system, on_event).unwrap());
        kernel
    }

    fn negotiate(listeners: usize, time_limit: Option<Duration>) -> (Self, NegotiatedSession) {
        let (socket, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let gate = Arc::new(RequestGate::default());
        let events = Arc::new(Mutex::new(Vec::new()));
        let kernel = Self { socket, gate, events, session: None };
        let init = InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: 1 };
        let body = [init.as_bytes(), InitInMore::default().as_bytes()].concat();
        kernel.send(opcode::INIT, 2, 0, &body);
        let init_request = InitRequest::new(Capabilities::ASYNC_READ).max_read(1 << 20);
        let options = SessionOptions::new(init_request).listeners(listeners).time_limit(time_limit);
        let negotiated = NegotiatedSession::new(device, &options).unwrap();
        assert_eq!(kernel.receive(), (2, 0, 64));
        assert!(negotiated.init_parameters().granted.contains(Capabilities::ASYNC_READ));
        (kernel, negotiated)
    }

    fn send(&self, opcode: u32, unique: u64, pid: u32, body: &[u8]) {
        send(&self.socket, &message(opcode, unique, pid, body), SendFlags::empty()).unwrap();
    }

    fn look_up(&self, unique: u64, pid: u32, name: &[u8]) {
        self.send(opcode::LOOKUP, unique, pid, &[name, b"\0"].concat());
    }

    fn interrupt(&self, of: u64) {
        self.send(opcode::INTERRUPT, of | 1, 0, InterruptIn { unique: of }.as_bytes());
    }

    /// The next reply: number, error, bytes after the header.
    fn receive(&self) -> (u64, i32, usize) {
        self.receive_within(ANSWER_TIMEOUT).expect("a reply comes")
    }

    fn receive_within(&self, time: Duration) -> Option<(u64, i32, usize)> {
        let time = Timespec::try_from(time).unwrap();
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut polled, Some(&time)).unwrap() == 0 {
            return None;
        }
        let mut buffer = [0; 4096];
        let length = rustix::io::read(&self.socket, &mut buffer).unwrap();
        let (header, body) = OutHeader::read_from_prefix(&buffer[..length]).unwrap();
        assert_eq!(usize::try_from(header.len).unwrap(), length);
        Some((header.unique, header.error, body.len()))
    }

    fn wait_until_held(&self, count: usize) {
        let started_at = Instant::now();
        while self.gate.held.load(Ordering::SeqCst) < count {
            assert!(started_at.elapsed() < ANSWER_TIMEOUT, "{count} requests should be held up");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_until_watchdog_sleeps(&self) {
        let (started_at, session) = (Instant::now(), self.session.as_ref().unwrap());
        while !session.state.is_watchdog_parked() {
            assert!(started_at.elapsed() < ANSWER_TIMEOUT, "the watchdog should sleep");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The reply may come before the event is reported.
    fn wait_for_event(&self, init_request: impl Fn(&SessionEvent) -> bool) {
        let started_at = Instant::now();
        while !self.events.lock().unwrap().iter().any(&init_request) {
            assert!(started_at.elapsed() < ANSWER_TIMEOUT, "{:?}", self.events.lock().unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for FakeKernel {
    fn drop(&mut self) {
        self.gate.open();
        // The device answers ENODEV when the mount is gone; a socket has an end instead.
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).unwrap();
        if let Some(session) = self.session.take() {
            session.join();
        }
    }
}

const EIO: i32 = -5;
const EINTR: i32 = -4;
const ENOENT: i32 = -2;
const EROFS: i32 = -30;
const ENOSYS: i32 = -38;

#[test]
fn requests_are_answered_by_the_file_system_or_before_it() {
    let kernel = FakeKernel::start(None);
    kernel.look_up(4, 0, b"nothing");
    assert_eq!(kernel.receive(), (4, ENOENT, 0));
    kernel.send(opcode::LISTXATTR, 6, 0, GetxattrIn { size: 100, padding: 0 }.as_bytes());
    assert_eq!(kernel.receive(), (6, 0, 7));
    kernel.send(opcode::OPENDIR, 16, 0, &[0; 8]);
    assert_eq!(kernel.receive(), (16, 0, 16));
    kernel.send(opcode::UNLINK, 8, 0, b"name\0");
    assert_eq!(kernel.receive(), (8, EROFS, 0));
    kernel.send(9_999, 10, 0, b"");
    assert_eq!(kernel.receive(), (10, ENOSYS, 0));
    kernel.send(opcode::FORGET, 12, 0, b"");
    kernel.look_up(14, 0, b"nothing");
    assert_eq!(kernel.receive(), (14, ENOENT, 0));
}

#[test]
fn a_request_that_panics_or_drops_its_reply_gets_eio() {
    let kernel = FakeKernel::start(None);
    for unique in [4, 8, 12, 16] {
        kernel.look_up(unique, 0, b"panic");
        assert_eq!(kernel.receive(), (unique, EIO, 0));
        kernel.look_up(unique + 2, 0, b"forget");
        assert_eq!(kernel.receive(), (unique + 2, EIO, 0));
    }
    kernel.wait_for_event(|event| matches!(event, SessionEvent::Panicked { node: 1 }));
}

#[test]
fn a_listener_whose_preparation_panics_serves_all_the_same() {
    struct Unprepared(TestFileSystem);
    impl FileSystem for Unprepared {
        fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
            self.0.handle(request, reply);
        }

        fn listener_started(&self) {
            std::panic::resume_unwind(Box::new("asked for"))
        }
    }
    let (mut kernel, negotiated) = FakeKernel::negotiate(2, None);
    let file_system = Unprepared(TestFileSystem { gate: Arc::clone(&kernel.gate) });
    let events = Arc::clone(&kernel.events);
    let on_event = move |event: &SessionEvent| events.lock().unwrap().push(event.clone());
    kernel.session = Some(negotiated.start(Arc::new(file_system), on_event).unwrap());
    kernel.look_up(4, 0, b"nothing");
    assert_eq!(kernel.receive(), (4, ENOENT, 0));
    kernel.wait_for_event(|event| matches!(event, SessionEvent::ListenerStartPanicked));
}

#[test]
fn a_malformed_request_fails_alone() {
    let kernel = FakeKernel::start(None);
    kernel.send(opcode::READ, 4, 0, b"short");
    assert_eq!(kernel.receive(), (4, EIO, 0));
    kernel.look_up(6, 0, b"nothing");
    assert_eq!(kernel.receive(), (6, ENOENT, 0));
}

/// Of a caller in another PID namespace it is unknown whether the signal is fatal.
#[test]
fn an_interrupted_request_that_hangs_gets_eintr() {
    let kernel = FakeKernel::start(None);
    kernel.look_up(4, 0, b"hang");
    kernel.wait_until_held(1);
    kernel.interrupt(4);
    assert_eq!(kernel.receive(), (4, EINTR, 0));
    kernel.wait_for_event(|event| matches!(event, SessionEvent::Interrupted { .. }));
    // The late reply of the file system is dropped.
    kernel.gate.open();
    kernel.look_up(6, 0, b"nothing");
    assert_eq!(kernel.receive(), (6, ENOENT, 0));
}

#[test]
fn a_signal_that_is_not_fatal_changes_nothing() {
    let kernel = FakeKernel::start(None);
    // This process, which is not being killed.
    kernel.look_up(4, std::process::id(), b"hang");
    kernel.wait_until_held(1);
    kernel.interrupt(4);
    assert_eq!(kernel.receive_within(Duration::from_secs(4)), None);
    kernel.gate.open();
    assert_eq!(kernel.receive(), (4, ENOENT, 0));
}

#[test]
fn while_all_listeners_hang_spare_ones_serve_requests_and_interrupts() {
    let kernel = FakeKernel::start(None);
    for unique in [4, 6, 8] {
        kernel.look_up(unique, 0, b"hang");
    }
    kernel.wait_until_held(3);
    kernel.look_up(10, 0, b"nothing");
    assert_eq!(kernel.receive(), (10, ENOENT, 0));
    kernel.interrupt(8);
    assert_eq!(kernel.receive(), (8, EINTR, 0));
    kernel.wait_for_event(|event| matches!(event, SessionEvent::SpareListenerStarted { .. }));
    kernel.gate.open();
    let mut rest = [kernel.receive(), kernel.receive()];
    rest.sort_unstable();
    assert_eq!(rest, [(4, ENOENT, 0), (6, ENOENT, 0)]);
}

/// Makes requests of one caller until a listener serves alone. Returns the number of the next request.
fn request_until_one_serves_alone(kernel: &FakeKernel, first: u64, caller: u32) -> u64 {
    let state = &kernel.session.as_ref().unwrap().state;
    let started_at = Instant::now();
    let mut unique = first;
    while state.cpu_sharing.server().is_none() {
        assert!(started_at.elapsed() < ANSWER_TIMEOUT, "a listener should serve alone");
        kernel.look_up(unique, caller, b"nothing");
        assert_eq!(kernel.receive(), (unique, ENOENT, 0));
        unique += 2;
    }
    unique
}

#[test]
fn a_listener_serves_one_caller_alone_on_two_cpus_until_it_hangs_or_another_one_calls() {
    let before = sched_getaffinity(None).unwrap();
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| before.is_set(*cpu)).take(2).collect();
    let mut two = CpuSet::new();
    cpus.iter().for_each(|cpu| two.set(*cpu));
    // The listeners inherit it.
    sched_setaffinity(None, &two).unwrap();
    let (mut kernel, mut negotiated) = FakeKernel::negotiate(3, None);
    negotiated.options.cpu_sharing = true;
    let file_system = Arc::new(TestFileSystem { gate: Arc::clone(&kernel.gate) });
    kernel.session = Some(negotiated.start(file_system, |_| {}).unwrap());
    let state = Arc::clone(&kernel.session.as_ref().unwrap().state);
    state.is_load_ignored.store(true, Ordering::Relaxed);
    let caller = u32::try_from(gettid().as_raw_nonzero().get()).unwrap();
    if cpus.len() == 2 {
        let mut next = request_until_one_serves_alone(&kernel, 4, caller);
        // Listeners that were in the device already may read the first ones.
        for other in 1..4 {
            kernel.look_up(next, caller + other, b"nothing");
            assert_eq!(kernel.receive(), (next, ENOENT, 0));
            next += 2;
        }
        assert_eq!(state.cpu_sharing.server(), None, "others call");
        let next = request_until_one_serves_alone(&kernel, next, caller);
        kernel.look_up(next, caller, b"hang");
        kernel.wait_until_held(1);
        assert!(state.has_idle_listener());
        kernel.look_up(next + 2, caller, b"nothing");
        assert_eq!(kernel.receive(), (next + 2, ENOENT, 0), "a parked listener replies");
        kernel.gate.open();
        assert_eq!(kernel.receive(), (next, ENOENT, 0));
        request_until_one_serves_alone(&kernel, next + 4, caller);
    } else {
        for unique in (4..4_000).step_by(2) {
            kernel.look_up(unique, caller, b"nothing");
            kernel.receive();
        }
        assert_eq!(state.cpu_sharing.server(), None);
    }
    sched_setaffinity(None, &before).unwrap();
    drop(kernel);
    assert!(state.take_spinner().is_none(), "it was joined");
}

/// Requests of a remote image may all wait for the server.
#[test]
fn busy_listeners_start_others_at_once() {
    let kernel = FakeKernel::start_growing(2, None, ListenerGrowth::AtOnce(6));
    for unique in 2..7 {
        kernel.look_up(2 * unique, 0, b"hang");
    }
    kernel.wait_until_held(5);
    kernel.look_up(40, 0, b"nothing");
    assert_eq!(kernel.receive(), (40, ENOENT, 0));
    assert!(kernel.events.lock().unwrap().is_empty(), "the watchdog started none");
    let stats = kernel.session.as_ref().unwrap().state.stats();
    assert_eq!((stats.listeners, stats.spares), (2, 4));
}

/// An image on slow storage had as many reads in flight as there are CPUs.
#[test]
fn requests_that_wait_start_listeners_up_to_the_limit() {
    let kernel = FakeKernel::start_growing(2, None, ListenerGrowth::IfSlow(5));
    for unique in 2..62 {
        kernel.look_up(2 * unique, 0, b"sleep");
    }
    for _ in 2..62 {
        kernel.receive();
    }
    let stats = kernel.session.as_ref().unwrap().state.stats();
    assert_eq!((stats.listeners, stats.spares), (2, 3));
}

#[test]
fn a_request_over_the_time_limit_fails() {
    let kernel = FakeKernel::start(Some(Duration::from_secs(1)));
    kernel.look_up(4, 0, b"hang");
    assert_eq!(kernel.receive(), (4, EIO, 0));
    kernel.wait_for_event(|event| matches!(event, SessionEvent::TimedOut { .. }));
    kernel.gate.open();
    kernel.look_up(6, 0, b"nothing");
    assert_eq!(kernel.receive(), (6, ENOENT, 0));
}

/// When all listeners hung, nobody read the device, and requests waited until the storage came back.
#[test]
fn requests_that_no_listener_is_left_for_fail_after_the_time_limit() {
    let kernel = FakeKernel::start(Some(Duration::from_secs(1)));
    let slots = 2 + MAX_SPARE_LISTENERS;
    let numbers = (2..).step_by(2).take(slots);
    for unique in numbers.clone() {
        kernel.look_up(unique, 0, b"hang");
    }
    let mut failed: Vec<u64> = Vec::new();
    for _ in 0..slots {
        let (unique, errno, _) = kernel.receive();
        assert_eq!(errno, EIO);
        failed.push(unique);
    }
    failed.sort_unstable();
    assert!(numbers.eq(failed), "each request has one reply");
    kernel.look_up(2000, 0, b"nothing");
    kernel.look_up(2002, 0, b"hang");
    assert_eq!([kernel.receive(), kernel.receive()], [(2000, EIO, 0), (2002, EIO, 0)]);
    let hangs = |event: &SessionEvent| matches!(event, SessionEvent::Refused { hanging, .. } if *hanging == slots);
    kernel.wait_for_event(hangs);
    kernel.gate.open();
    let state = Arc::clone(&kernel.session.as_ref().unwrap().state);
    while !state.has_idle_listener() {
        std::thread::sleep(Duration::from_millis(1));
    }
    kernel.look_up(2004, 0, b"nothing");
    assert_eq!(kernel.receive(), (2004, ENOENT, 0));
}

/// The same where a limit of processes allows no spare listener: such requests waited without any limit.
#[test]
fn requests_fail_after_the_time_limit_where_no_spare_listener_can_be_started() {
    let kernel = FakeKernel::start(Some(Duration::from_secs(1)));
    let state = Arc::clone(&kernel.session.as_ref().unwrap().state);
    state.refuses_spares.store(true, Ordering::Relaxed);
    for unique in [2, 4] {
        kernel.look_up(unique, 0, b"hang");
    }
    let mut failed = [kernel.receive(), kernel.receive()];
    failed.sort_unstable();
    assert_eq!(failed, [(2, EIO, 0), (4, EIO, 0)]);
    for unique in [6, 8] {
        kernel.look_up(unique, 0, b"nothing");
        assert_eq!(kernel.receive(), (unique, EIO, 0));
    }
    kernel.wait_for_event(|event| matches!(event, SessionEvent::Refused { hanging: 2, .. }));
    // As soon as there is a thread again, a spare listener reads.
    state.refuses_spares.store(false, Ordering::Relaxed);
    kernel.wait_for_event(|event| matches!(event, SessionEvent::SpareListenerStarted { .. }));
    kernel.look_up(10, 0, b"nothing");
    assert_eq!(kernel.receive(), (10, ENOENT, 0));
    kernel.gate.open();
}

/// An idle mount used to wake up twice a second.
#[test]
fn the_watchdog_of_an_idle_session_sleeps_until_there_is_a_request() {
    let kernel = FakeKernel::start(Some(Duration::from_secs(1)));
    kernel.wait_until_watchdog_sleeps();
    kernel.look_up(4, 0, b"hang");
    kernel.wait_until_held(1);
    assert!(!kernel.session.as_ref().unwrap().state.is_watchdog_parked());
    assert_eq!(kernel.receive(), (4, EIO, 0));
    kernel.gate.open();
    kernel.wait_until_watchdog_sleeps();
    kernel.look_up(6, 0, b"nothing");
    assert_eq!(kernel.receive(), (6, ENOENT, 0));
    kernel.wait_until_watchdog_sleeps();
}

/// An idle mount had a thread more.
#[test]
fn a_watchdog_is_started_by_a_request_and_ends_without_any() {
    let kernel = FakeKernel::start(Some(Duration::from_secs(1)));
    let state = Arc::clone(&kernel.session.as_ref().unwrap().state);
    assert!(!state.has_watchdog() && state.take_watchdog().is_none());
    for unique in [4, 8] {
        kernel.look_up(unique, 0, b"hang");
        assert_eq!(kernel.receive(), (unique, EIO, 0));
        assert!(state.has_watchdog());
        kernel.gate.open();
        let started_at = Instant::now();
        while state.has_watchdog() {
            assert!(started_at.elapsed() < ANSWER_TIMEOUT, "the watchdog should end");
            std::thread::sleep(Duration::from_millis(1));
        }
        *kernel.gate.is_open.lock().unwrap() = false;
    }
    assert!(state.take_watchdog().is_some());
}

#[test]
fn the_end_of_a_mount_is_reported_once_while_a_request_hangs() {
    let kernel = FakeKernel::start(None);
    kernel.look_up(4, 0, b"hang");
    kernel.wait_until_held(1);
    rustix::net::shutdown(&kernel.socket, rustix::net::Shutdown::Both).unwrap();
    kernel.wait_for_event(|event| *event == SessionEvent::Unmounted);
    let events = Arc::clone(&kernel.events);
    drop(kernel);
    assert_eq!(*events.lock().unwrap(), [SessionEvent::Unmounted]);
}

#[test]
fn an_interrupt_of_an_unknown_request_gets_eagain() {
    const EAGAIN: i32 = -11;
    let kernel = FakeKernel::start(None);
    kernel.interrupt(44);
    assert_eq!(kernel.receive(), (45, EAGAIN, 0));
}

/// As after a reply that the kernel did not take: each EAGAIN makes the kernel repeat the interrupt.
#[test]
fn a_request_whose_reply_was_lost_gets_eio_instead_of_endless_interrupts() {
    const EAGAIN: i32 = -11;
    const EIO: i32 = -5;
    let kernel = FakeKernel::start(None);
    let mut repeated = 0;
    loop {
        kernel.interrupt(44);
        match kernel.receive() {
            (45, EAGAIN, 0) => repeated += 1,
            reply => break assert_eq!(reply, (44, EIO, 0)),
        }
        // One a millisecond, after some at once.
        assert!(repeated <= 1_100, "{repeated}");
    }
    assert!(repeated > 10, "{repeated}");
}

#[test]
fn the_event_of_a_spare_listener_counts_listeners_and_not_channels() {
    // A socket cannot be cloned, so the three listeners share one channel.
    let kernel = FakeKernel::start_with(3, None);
    assert_eq!(kernel.session.as_ref().unwrap().channels(), 1);
    for unique in [4, 6, 8] {
        kernel.look_up(unique, 0, b"hang");
    }
    kernel.wait_for_event(|event| matches!(event, SessionEvent::SpareListenerStarted { .. }));
    let first = kernel.events.lock().unwrap()[0].clone();
    assert_eq!(first, SessionEvent::SpareListenerStarted { listeners: 4 });
}

/// The file system looks for the name of the file, among up to 100,000 inodes.
#[test]
fn requests_are_served_while_a_ban_is_reported() {
    let journal = Arc::new(RequestJournal::new(2).unwrap());
    let body = message(opcode::LOOKUP, 44, 0, b"name\0");
    for server in [1, 2] {
        journal.begin_reading(server);
        journal.slot(0).unwrap().bytes_mut()[..body.len()].copy_from_slice(&body);
        if server == 1 {
            assert!(journal.examine(server, ServerEnd::Crashed).newly_banned.is_empty());
        }
    }
    let (mut kernel, negotiated) = FakeKernel::negotiate(2, None);
    let predecessor = Some(ServerEnd::Crashed);
    let negotiated = negotiated.with_succession(Succession { journal, predecessor, server: 3 });
    let file_system = Arc::new(TestFileSystem { gate: Arc::clone(&kernel.gate) });
    let is_reported = Arc::new(AtomicBool::new(false));
    let reported = Arc::clone(&is_reported);
    let on_event = move |event: &SessionEvent| {
        if *event == (SessionEvent::Banned { node: 1 }) {
            std::thread::sleep(Duration::from_secs(2));
            reported.store(true, Ordering::SeqCst);
        }
    };
    kernel.session = Some(negotiated.start(file_system, on_event).unwrap());
    // The fake kernel sends nothing again.
    assert_eq!(kernel.receive(), (44, EIO, 0));
    kernel.send(opcode::LISTXATTR, 46, 0, GetxattrIn { size: 100, padding: 0 }.as_bytes());
    assert_eq!(kernel.receive(), (46, 0, 7));
    assert!(!is_reported.load(Ordering::SeqCst));
    // The end of the session waits for it.
    drop(kernel);
    assert!(is_reported.load(Ordering::SeqCst));
}

/// Interrupts wait behind the requests that no listener reads.
#[test]
fn a_caller_that_is_killed_while_all_listeners_hang_gets_a_reply() {
    let mut killed = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    // Its signals stay pending until it is waited for.
    killed.kill().unwrap();
    let kernel = FakeKernel::start(None);
    let slots = 2 + MAX_SPARE_LISTENERS;
    kernel.look_up(2, killed.id(), b"hang");
    for unique in (4..).step_by(2).take(slots - 1) {
        kernel.look_up(unique, std::process::id(), b"hang");
    }
    kernel.wait_until_held(slots);
    assert_eq!(kernel.receive(), (2, EINTR, 0));
    let caller = killed.id();
    kernel.wait_for_event(
        |event| matches!(event, SessionEvent::Interrupted { pid, .. } if *pid == caller),
    );
    assert_eq!(kernel.receive_within(Duration::from_secs(1)), None);
    killed.wait().unwrap();
}

#[test]
fn threads_that_were_started_before_one_failed_have_ended() {
    let (kernel, negotiated) = FakeKernel::negotiate(4, None);
    let file_system: Arc<dyn FileSystem> =
        Arc::new(TestFileSystem { gate: Arc::clone(&kernel.gate) });
    let mut started = 0;
    let mut spawn = |name, body| {
        if started == 3 {
            return Err(std::io::Error::from(std::io::ErrorKind::WouldBlock));
        }
        started += 1;
        super::spawn_thread(name, body)
    };
    let error =
        negotiated.start_with(Arc::clone(&file_system), Box::new(|_| {}), &mut spawn).unwrap_err();
    assert!(matches!(error, SessionError::Thread(_)), "{error}");
    // Each listener owns a reference through the state of the session until it ends.
    assert_eq!((started, Arc::strong_count(&file_system)), (3, 1));
}

#[cfg(debug_assertions)]
#[test]
fn a_range_of_servers_dies_at_a_fault_point() {
    use super::is_asked_for;
    for (server, dies) in [(1, false), (2, true), (4, true), (5, false)] {
        assert_eq!(is_asked_for("other:1,resent:2-4", "resent", server), dies, "{server}");
    }
    assert!(is_asked_for("ready:1", "ready", 1) && !is_asked_for("ready", "ready", 1));
}

#[test]
fn only_sigkill_is_fatal() {
    let status =
        |own: &str, shared: &str| format!("Name:\tcat\nSigPnd:\t{own}\nShdPnd:\t{shared}\n");
    assert_eq!(has_sigkill(&status("0000000000000000", "0000000000004000")), Some(false));
    assert_eq!(has_sigkill(&status("0000000000000100", "0000000000000000")), Some(true));
    assert_eq!(has_sigkill(&status("0000000000000000", "0000000000000102")), Some(true));
    assert_eq!(has_sigkill("Name:\tcat\n"), None);
}

#[test]
fn a_thread_of_another_namespace_is_unknown() {
    assert_eq!(has_pending_sigkill(0), None);
    assert_eq!(has_pending_sigkill(std::process::id()), Some(false));
}
