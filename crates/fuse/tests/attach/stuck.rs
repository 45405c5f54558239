//! A server that is killed and cannot end: one of its threads stores a page in the page cache, and waits for the request
//! that has locked the page. The server is this test program, which an environment variable makes serve.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ferrofs_fuse::attach::{Attachment, MountOwner};
use ferrofs_fuse::{
    Capabilities, Errno, FileSystem, InitRequest, NegotiatedSession, NodeAttributes, NodeEntry,
    Notifier, Operation, Reply, Request, SessionOptions,
};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Gid, Signal, Uid, geteuid, pidfd_send_signal};

use crate::killed::helper_of;
use crate::mounts::{alone, mount, mounts_at, options, skip};

const DIRECTORY: &str = "FERROFS_TEST_SERVES_AND_GETS_STUCK";
/// Set if the mount is that of another user, who serves it.
const USER: &str = "FERROFS_TEST_SERVES_AS_ANOTHER_USER";
/// User and group "nobody".
const NOBODY: u32 = 65_534;
const FILE: &str = "file";
const PAGE: usize = 4096;
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A file of one page, which can never be read: while a request has the page locked, a thread stores it.
#[derive(Default)]
struct OnePage {
    notifier: OnceLock<Notifier>,
}

impl FileSystem for OnePage {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let directory =
            NodeAttributes { ino: 1, mode: 0o040_555, links: 2, ..NodeAttributes::default() };
        let size = u64::try_from(PAGE).expect("it is small");
        let file =
            NodeAttributes { ino: 2, mode: 0o100_444, links: 1, size, ..NodeAttributes::default() };
        match request.operation {
            Operation::GetAttr => {
                reply.attributes(if request.node == 1 { &directory } else { &file });
            }
            Operation::Lookup { .. } => reply.entry(&NodeEntry { node: 2, attributes: file }),
            Operation::Read { .. } => {
                writeln!(std::io::stderr(), "reading").expect("the parent reads the pipe");
                let stored = self.notifier.get().expect("it is set").store(2, 0, &[0; PAGE]);
                drop((reply, stored));
            }
            _ => reply.error(Errno::NOSYS),
        }
    }
}

fn serve(directory: &Path) {
    let is_other = std::env::var_os(USER).is_some();
    let owner = is_other.then_some(MountOwner { user: NOBODY, group: NOBODY });
    let Some(mut attachment) = mount(directory, &options().owned_by(owner)) else {
        writeln!(std::io::stderr(), "no mount").expect("the parent reads the pipe");
        return;
    };
    attachment.start_unmount_helper(|_| Ok(())).expect("a process");
    attachment.wait_for_unmount_helper().expect("nothing can fail");
    if is_other {
        // The threads of the session inherit it.
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        rustix::thread::set_thread_groups(&[]).expect("root");
        rustix::thread::set_thread_res_gid(group, group, group).expect("root");
        rustix::thread::set_thread_res_uid(user, user, user).expect("root");
    }
    let device = attachment.device().try_clone().expect("a descriptor");
    let wanted = InitRequest::new(Capabilities::NO_OPEN_SUPPORT).max_read(1 << 16);
    let session = NegotiatedSession::new(device, &SessionOptions::new(wanted)).expect("a kernel");
    let file_system = Arc::new(OnePage::default());
    let session = session.start(Arc::clone(&file_system) as Arc<dyn FileSystem>, |_| ());
    let session = session.expect("threads");
    file_system.notifier.set(session.notifier()).expect("it is empty");
    writeln!(std::io::stderr(), "{}", access_to_end(&attachment)).expect("a pipe");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("an input");
}

/// Who may end the connection here.
fn access_to_end(attachment: &Attachment) -> &'static str {
    let number = attachment.device_number();
    let connection = number.split_once(':').expect("major:minor").1.to_owned();
    let control = Path::new("/sys/fs/fuse/connections").join(connection).join("abort");
    match attachment.method() {
        ferrofs_fuse::attach::MountMethod::Direct => "mounted",
        _ if control.exists() => "mounted",
        _ => "needs root, or fusectl on /sys/fs/fuse/connections",
    }
}

/// Its end, in time.
fn ends(child: &mut Child) -> bool {
    let deadline = Instant::now() + TIME_LIMIT;
    while Instant::now() < deadline {
        if child.try_wait().expect("it is ours").is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

#[test]
fn a_server_that_is_killed_while_it_waits_for_a_locked_page_ends_and_is_unmounted() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return serve(&PathBuf::from(directory));
    }
    end_when_stuck(false);
    // Who is permitted to signal the process that unmounts depends on the user.
    match geteuid().is_root() {
        true => end_when_stuck(true),
        false => skip("a server of another user needs root"),
    }
}

fn end_when_stuck(is_other: bool) {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = folder.path().canonicalize().expect("its name").join("mount");
    fs::create_dir(&path).expect("a directory");
    let name =
        "stuck::a_server_that_is_killed_while_it_waits_for_a_locked_page_ends_and_is_unmounted";
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", name, "--nocapture"]).env(DIRECTORY, &path);
    if is_other {
        command.env(USER, "1");
    }
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = command.spawn().expect("this program");
    let messages = BufReader::new(server.stderr.take().expect("its messages"));
    let mut messages = messages.lines().map_while(Result::ok);
    let wanted = ["mounted", "needs ", "no mount"];
    let first = messages.find(|line| wanted.iter().any(|wanted| line.starts_with(wanted)));
    match first.as_deref() {
        Some("mounted") => {}
        reason => {
            server.kill().expect("it is ours");
            server.wait().expect("it is ours");
            return skip(reason.unwrap_or("no server"));
        }
    }
    let mut reader = Command::new("cat");
    reader.arg(path.join(FILE)).stdout(Stdio::null()).stderr(Stdio::null());
    if is_other {
        reader.uid(NOBODY).gid(NOBODY);
    }
    let mut reader = reader.spawn().expect("cat");
    assert!(messages.any(|line| line == "reading"));
    // The thread that has said so is about to wait.
    let is_stuck = || {
        let stack = |task: &Path| fs::read_to_string(task.join("stat")).unwrap_or_default();
        let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).expect("/proc");
        tasks.flatten().any(|task| stack(&task.path()).contains(") D "))
    };
    let deadline = Instant::now() + TIME_LIMIT;
    while !is_stuck() {
        assert!(Instant::now() < deadline, "no thread waits for the page");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The same signal from somebody else means nothing.
    let helper = helper_of(server.id()).expect("it waits for its server");
    pidfd_send_signal(&helper, Signal::USR1).expect("it is there");
    std::thread::sleep(Duration::from_millis(1500));
    assert!(reader.try_wait().expect("it is ours").is_none(), "the connection has ended");
    server.kill().expect("it is ours");
    let (has_ended, has_read) = (ends(&mut server), ends(&mut reader));
    if !has_ended {
        // Else the test program would wait for it for ever. It is in use, and stays mounted.
        unmount(&path, UnmountFlags::FORCE).ok();
    }
    assert!(has_ended, "the server cannot end");
    assert!(has_read, "the reader hangs");
    let deadline = Instant::now() + TIME_LIMIT;
    while mounts_at(&path) > 0 {
        assert!(Instant::now() < deadline, "it stays mounted");
        std::thread::sleep(Duration::from_millis(1));
    }
}
