//! A source that hangs: the image lies in a file system of this test, which stops answering.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use ferrofs_fuse::attach::{AttachOptions, Attachment, attach};
use ferrofs_fuse::{
    Capabilities, Errno, FileSystem, InitRequest, NegotiatedSession, NodeAttributes, NodeEntry,
    Operation, Reply, Request, Session, SessionOptions,
};
use rustix::process::Signal;

use crate::mounted::{MountPoint, has_fuse};
use crate::support::{TestCommand, data, ferrofs};

/// How long a reader may take to reach what hangs, or to die.
const LIMIT: Duration = Duration::from_secs(20);
const IMAGE: u64 = 2;

/// A directory with one file, whose reads hang while the gate is shut.
struct Source {
    bytes: Vec<u8>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Default)]
struct State {
    is_shut: bool,
    held: usize,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        self.state.lock().unwrap().is_shut = is_shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.held += 1;
        drop(self.opened.wait_while(state, |state| state.is_shut).unwrap());
    }

    fn wait_until_held(&self, more_than: usize) {
        let started_at = Instant::now();
        while self.state.lock().unwrap().held <= more_than {
            assert!(started_at.elapsed() < LIMIT, "no request reaches the source");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Source {
    fn attributes(&self, node: u64) -> NodeAttributes {
        let (mode, size) = if node == IMAGE {
            (0o100_444, u64::try_from(self.bytes.len()).unwrap())
        } else {
            (0o040_555, 0)
        };
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        NodeAttributes { ino: node, size, mode, links: 1, uid, gid, ..NodeAttributes::default() }
    }
}

impl FileSystem for Source {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        match request.operation {
            Operation::Lookup { name: b"image" } => {
                reply.entry(&NodeEntry { node: IMAGE, attributes: self.attributes(IMAGE) });
            }
            Operation::GetAttr => reply.attributes(&self.attributes(request.node)),
            Operation::Read { offset, size } => {
                self.gate.pass();
                let begin = usize::try_from(offset).unwrap().min(self.bytes.len());
                let end = self.bytes.len().min(begin + usize::try_from(size).unwrap());
                reply.bytes(&self.bytes[begin..end]);
            }
            _ => reply.error(Errno::NOSYS),
        }
    }
}

/// The mounted file system. Dropping it releases all threads that wait.
struct Mounted {
    gate: Arc<Gate>,
    attachment: Attachment,
    session: Option<Session>,
    point: MountPoint,
}

impl Mounted {
    fn new(image: &str) -> Self {
        let (point, gate) = (MountPoint::new(), Arc::new(Gate::default()));
        let source = Source { bytes: fs::read(data(image)).unwrap(), gate: Arc::clone(&gate) };
        let attachment = attach(point.path(), &AttachOptions::new("test", "test")).unwrap();
        // Only requested pages are read: no readahead.
        let init_request = InitRequest::new(Capabilities::NO_OPEN_SUPPORT)
            .max_read(4096)
            .max_readahead(0)
            .max_background(64);
        // More than the daemon can occupy.
        let options = SessionOptions::new(init_request).listeners(32);
        let negotiated =
            NegotiatedSession::new(attachment.device().try_clone().unwrap(), &options).unwrap();
        let session = negotiated.start(Arc::new(source), |_| {}).unwrap();
        Self { gate, attachment, session: Some(session), point }
    }

    fn mount(&self, point: &MountPoint) -> TestCommand {
        ferrofs().arg("mount").arg(self.point.join("image")).arg(point.path())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.gate.set(false);
        if self.attachment.detach().is_ok()
            && let Some(session) = self.session.take()
        {
            session.join();
        }
    }
}

/// Reads every file, one after the other.
fn reader(point: &MountPoint) -> Child {
    let mut grep = Command::new("grep");
    grep.args(["-r", "-c", "x"]).arg(point.path());
    grep.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn wait(child: &mut Child) {
    let started_at = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(started_at.elapsed() < LIMIT, "it does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

// A-MOUNT-HUNG-SOURCE
#[test]
fn a_hung_source_holds_up_neither_the_death_of_a_reader_nor_the_end_of_a_mount() {
    if !has_fuse() {
        return;
    }
    for signal in [None, Some(Signal::TERM)] {
        let (source, point) = (Mounted::new("plain.erofs"), MountPoint::new());
        source.mount(&point).succeeds();
        let daemon = point.process(None);
        source.gate.set(true);
        let held = source.gate.state.lock().unwrap().held;
        let mut reader = reader(&point);
        source.gate.wait_until_held(held);
        assert!(reader.try_wait().unwrap().is_none());
        reader.kill().unwrap();
        wait(&mut reader);
        match signal {
            Some(signal) => daemon.signal(signal),
            None => assert!(point.unmount()),
        }
        daemon.wait();
        assert_eq!(point.mount(), None);
    }
}

// A-KEEP-STALL
#[test]
fn a_server_is_replaced_while_the_image_file_stalls() {
    if !has_fuse() {
        return;
    }
    let (source, point) = (Mounted::new("plain.erofs"), MountPoint::new());
    source.mount(&point).arg("--keep").succeeds();
    let holder = point.process(None);
    source.gate.set(true);
    let held = source.gate.state.lock().unwrap().held;
    let mut reader = reader(&point);
    source.gate.wait_until_held(held);
    let server = holder.child();
    rustix::process::kill_process(server, Signal::KILL).unwrap();
    // The read of the killed server is held until its process is gone; the next one may wait for the source, too.
    source.gate.set(false);
    wait(&mut reader);
    // 0: found, 1: not found, 2: an error.
    assert_ne!(reader.wait().unwrap().code(), Some(2));
    assert_ne!(holder.child(), server);
    assert!(point.unmount());
    holder.wait();
}
