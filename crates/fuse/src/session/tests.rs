//! Sessions against a kernel that is played by the test, over a socket that keeps messages apart as the device does.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something is not as it should be"
)]

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use zerocopy::{FromBytes, IntoBytes};

use super::{FileSystem, NegotiatedSession, Session, SessionOptions};
use crate::capability::Capabilities;
use crate::event::SessionEvent;
use crate::negotiate::InitRequest;
use crate::operation::{Operation, Request};
use crate::reply::Reply;
use crate::wire::{GetxattrIn, InHeader, InitIn, InitInMore, InterruptIn, OutHeader, opcode};

/// How long an answer may take that comes at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A gate that requests can be held up at.
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

/// Looking a name up does what the name says.
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
            Operation::Lookup { name: b"panic" } => {
                std::panic::resume_unwind(Box::new("asked for"))
            }
            Operation::Lookup { name: b"forget" } => drop(reply),
            Operation::ListXattr { .. } => reply.bytes(b"user.a\0"),
            _ => reply.error(Errno::NOENT),
        }
    }
}

/// The kernel's end.
struct FakeKernel {
    socket: OwnedFd,
    gate: Arc<RequestGate>,
    events: Arc<Mutex<Vec<SessionEvent>>>,
    session: Option<Session>,
}

impl FakeKernel {
    fn start(time_limit: Option<Duration>) -> Self {
        let (socket, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let gate = Arc::new(RequestGate::default());
        let events = Arc::new(Mutex::new(Vec::new()));
        let mut kernel = Self { socket, gate, events, session: None };
        let init = InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: 1 };
        let body = [init.as_bytes(), InitInMore::default().as_bytes()].concat();
        kernel.send(opcode::INIT, 2, 0, &body);
        let init_request = InitRequest {
            capabilities: Capabilities::ASYNC_READ,
            max_read: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 16,
        };
        let options = SessionOptions { listeners: 2, init_request, time_limit };
        let negotiated = NegotiatedSession::new(device, &options).unwrap();
        assert_eq!(kernel.receive(), (2, 0, 64));
        assert!(negotiated.init_parameters().granted.contains(Capabilities::ASYNC_READ));
        let file_system = Arc::new(TestFileSystem { gate: Arc::clone(&kernel.gate) });
        let events = Arc::clone(&kernel.events);
        let on_event = move |event: &SessionEvent| events.lock().unwrap().push(event.clone());
        kernel.session = Some(negotiated.start(file_system, on_event).unwrap());
        kernel
    }

    fn send(&self, opcode: u32, unique: u64, pid: u32, body: &[u8]) {
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
        send(&self.socket, &[header.as_bytes(), body].concat(), SendFlags::empty()).unwrap();
    }

    fn look_up(&self, unique: u64, pid: u32, name: &[u8]) {
        self.send(opcode::LOOKUP, unique, pid, &[name, b"\0"].concat());
    }

    fn interrupt(&self, of: u64) {
        self.send(opcode::INTERRUPT, of | 1, 0, InterruptIn { unique: of }.as_bytes());
    }

    /// The next message: number, error, bytes behind the header.
    fn receive(&self) -> (u64, i32, usize) {
        self.receive_within(ANSWER_TIMEOUT).expect("an answer comes")
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
        let began = Instant::now();
        while self.gate.held.load(Ordering::SeqCst) < count {
            assert!(began.elapsed() < ANSWER_TIMEOUT, "{count} requests should be held up");
            std::thread::yield_now();
        }
    }

    /// An answer may come before the line in the log.
    fn wait_for_event(&self, init_request: impl Fn(&SessionEvent) -> bool) {
        let began = Instant::now();
        while !self.events.lock().unwrap().iter().any(&init_request) {
            assert!(began.elapsed() < ANSWER_TIMEOUT, "{:?}", self.events.lock().unwrap());
            std::thread::yield_now();
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
fn requests_are_answered_by_the_file_system_or_before_it_sees_them() {
    let kernel = FakeKernel::start(None);
    kernel.look_up(4, 0, b"nothing");
    assert_eq!(kernel.receive(), (4, ENOENT, 0));
    kernel.send(opcode::LISTXATTR, 6, 0, GetxattrIn { size: 100, padding: 0 }.as_bytes());
    assert_eq!(kernel.receive(), (6, 0, 7));
    kernel.send(opcode::UNLINK, 8, 0, b"name\0");
    assert_eq!(kernel.receive(), (8, EROFS, 0));
    kernel.send(9_999, 10, 0, b"");
    assert_eq!(kernel.receive(), (10, ENOSYS, 0));
    kernel.send(opcode::FORGET, 12, 0, b"");
    kernel.look_up(14, 0, b"nothing");
    assert_eq!(kernel.receive(), (14, ENOENT, 0));
}

#[test]
fn what_panics_or_is_forgotten_gets_an_answer_and_the_session_goes_on() {
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
fn a_malformed_request_fails_alone() {
    let kernel = FakeKernel::start(None);
    kernel.send(opcode::READ, 4, 0, b"short");
    assert_eq!(kernel.receive(), (4, EIO, 0));
    kernel.look_up(6, 0, b"nothing");
    assert_eq!(kernel.receive(), (6, ENOENT, 0));
}

/// Whoever asks from another PID namespace cannot be looked at, and is let go when the kernel says that a signal came.
#[test]
fn whoever_is_interrupted_while_a_request_hangs_is_let_go() {
    let kernel = FakeKernel::start(None);
    kernel.look_up(4, 0, b"hang");
    kernel.wait_until_held(1);
    kernel.interrupt(4);
    assert_eq!(kernel.receive(), (4, EINTR, 0));
    kernel.wait_for_event(|event| matches!(event, SessionEvent::Interrupted { .. }));
    // What the file system says at last is said to nobody.
    kernel.gate.open();
    kernel.look_up(6, 0, b"nothing");
    assert_eq!(kernel.receive(), (6, ENOENT, 0));
}

#[test]
fn a_signal_that_does_not_kill_changes_nothing() {
    let kernel = FakeKernel::start(None);
    // This very process, which nobody kills.
    kernel.look_up(4, std::process::id(), b"hang");
    kernel.wait_until_held(1);
    kernel.interrupt(4);
    assert_eq!(kernel.receive_within(Duration::from_secs(4)), None);
    kernel.gate.open();
    assert_eq!(kernel.receive(), (4, ENOENT, 0));
}

#[test]
fn while_every_listener_hangs_others_are_served_and_interrupts_are_heard() {
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

#[test]
fn the_end_of_a_mount_is_told_once_and_does_not_wait_for_what_hangs() {
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
fn an_interrupt_of_a_request_that_is_not_there_is_to_be_asked_again() {
    const EAGAIN: i32 = -11;
    let kernel = FakeKernel::start(None);
    kernel.interrupt(44);
    assert_eq!(kernel.receive(), (45, EAGAIN, 0));
}
