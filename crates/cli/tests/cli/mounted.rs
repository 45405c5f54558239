//! A directory that an image can be mounted on, for one test: it is unmounted in any case. And
//! queries about processes that the test did not start itself.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::support::{Dir, is_root, skip};

/// The limit of every wait; a correct program needs a thousandth of it.
const LIMIT: Duration = Duration::from_secs(20);
/// The process that unmounts what root has mounted.
pub(crate) const UNMOUNT_HELPER: &str = "ferrofs-unmount";
/// The right to mount, as `/proc` numbers it.
const SYS_ADMIN: u64 = 1 << 21;

/// Whether a mount can be made here. If not, the test is reported as skipped.
pub(crate) fn has_fuse() -> bool {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let has_helper =
        ["/usr/bin", "/bin"].iter().any(|dir| Path::new(dir).join("fusermount3").exists());
    let is_had = device.is_ok() && (may_mount() || has_helper);
    if !is_had {
        skip("needs FUSE: /dev/fuse cannot be opened, or neither root nor fusermount3 can mount");
    }
    is_had
}

/// Whether this process may mount without a helper. If not, the test is reported as skipped.
pub(crate) fn has_mount_right() -> bool {
    let may = may_mount();
    if !may {
        skip("needs the right to mount");
    }
    may
}

/// Whether mounting takes no helper.
pub(crate) fn may_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    is_root() && u64::from_str_radix(mask.trim(), 16).unwrap() & SYS_ADMIN != 0
}

/// A directory to mount on.
pub(crate) struct MountPoint {
    path: PathBuf,
    _dir: Dir,
}

impl MountPoint {
    pub(crate) fn new() -> Self {
        let dir = Dir::new();
        let path = fs::canonicalize(dir.path()).unwrap().join("mnt");
        fs::create_dir(&path).unwrap();
        Self { path, _dir: dir }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Its line in the list of mounts; none if nothing is mounted here.
    pub(crate) fn mount(&self) -> Option<String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let place = format!(" {} ", self.path.display());
        mounts.lines().rfind(|line| line.contains(&place)).map(str::to_owned)
    }

    /// Waits until something is mounted here.
    #[track_caller]
    pub(crate) fn wait_for_mount(&self) {
        let deadline = Instant::now() + LIMIT;
        while self.mount().is_none() {
            assert!(Instant::now() < deadline, "nothing gets mounted");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until nothing is mounted here any more.
    #[track_caller]
    pub(crate) fn wait_for_unmount(&self) {
        let deadline = Instant::now() + LIMIT;
        while self.mount().is_some() {
            assert!(Instant::now() < deadline, "it stays mounted");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Unmounts as a user does; returns whether that succeeded.
    pub(crate) fn unmount(&self) -> bool {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.run(&["umount"], &["fusermount3", "-u"]) {
                Ok(()) => return true,
                // Programs that other tests start have copies of our files until their exec.
                Err(message) if message.contains("busy") && Instant::now() < deadline => {}
                Err(message) => {
                    eprintln!("{message}");
                    return false;
                }
            }
        }
    }

    fn run(&self, by_root: &[&str], by_others: &[&str]) -> Result<(), String> {
        let words = if may_mount() { by_root } else { by_others };
        let output = Command::new(words[0]).args(&words[1..]).arg(&self.path).output().unwrap();
        let message = || String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success().then_some(()).ok_or_else(message)
    }

    /// The one process, besides `but`, that has this directory in its command line.
    pub(crate) fn process(&self, but: Option<u32>) -> Process {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(pid) = self.processes().into_iter().find(|pid| Some(*pid) != but) {
                return Process::new(pid);
            }
            assert!(Instant::now() < deadline, "no process for {}", self.path.display());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether a process has this directory in its command line.
    pub(crate) fn has_process(&self) -> bool {
        !self.processes().is_empty()
    }

    fn processes(&self) -> Vec<u32> {
        let name = self.path.as_os_str().as_encoded_bytes();
        let names_it = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            // The process that waits to unmount has a name of its own.
            let name_of = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name_of.trim_end() != UNMOUNT_HELPER
                && words.windows(name.len()).any(|part| part == name)
        };
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.filter(names_it).collect()
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        let run = || self.run(&["umount", "-l"], &["fusermount3", "-u", "-z"]);
        while self.mount().is_some() && run().is_ok() {}
    }
}

/// A process that is not our child, which may end and be waited for.
pub(crate) struct Process {
    pid: Pid,
    handle: std::os::fd::OwnedFd,
}

impl Process {
    fn new(pid: u32) -> Self {
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        Self { pid, handle: pidfd_open(pid, PidfdFlags::empty()).unwrap() }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Its child, which is waited for.
    #[track_caller]
    pub(crate) fn child(&self) -> Pid {
        let deadline = Instant::now() + LIMIT;
        let parent = format!("\nPPid:\t{}\n", self.pid());
        loop {
            let entries = fs::read_dir("/proc").unwrap().flatten();
            let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let is_its = |pid: &i32| {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                // The process that waits to unmount is a child, too.
                status.contains(&parent)
                    && !status.contains("\nState:\tZ")
                    && !status.starts_with(&format!("Name:\t{UNMOUNT_HELPER}\n"))
            };
            if let Some(pid) = numbers.into_iter().find(is_its).and_then(Pid::from_raw) {
                return pid;
            }
            assert!(Instant::now() < deadline, "it has no child");
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn wait(&self) {
        let mut polled = [PollFd::new(&self.handle, PollFlags::IN)];
        let limit = Timespec::try_from(LIMIT).unwrap();
        assert_eq!(poll(&mut polled, Some(&limit)).unwrap(), 1, "it does not end");
    }
}

/// A mount in the foreground, and its output.
pub(crate) struct Foreground {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Foreground {
    /// Waits until it prints that it is ready.
    #[track_caller]
    pub(crate) fn ready(mut child: Child) -> Self {
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut this = Self { child, lines };
        let line = this.line().expect("it prints that it is ready");
        assert!(line.starts_with("ferrofs: mounted on /"), "{line}");
        this
    }

    /// The next line of its output; `None` once it has ended.
    pub(crate) fn line(&mut self) -> Option<String> {
        self.lines.next().transpose().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends a signal until it ends.
    #[track_caller]
    pub(crate) fn ends_by(&mut self, signal: Signal) -> ExitStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "{signal:?} does not end it");
            self.signal(signal);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}
