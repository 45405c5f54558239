//! A directory for a test, the binary to run in it, and copies of images with bytes changed.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// User and group "nobody" of every system; as root, tests become them.
const NOBODY: u32 = 65_534;

/// From here on, `signals` end the programs that tests start, even if the parent process ignores
/// these signals, as a shell does for background jobs: children inherit ignored signals, but no
/// handlers. The handler ends the process, as the signal does by default.
pub(crate) fn reset_signals(signals: &[Signal]) {
    for signal in signals {
        let (number, always) = (signal.as_raw(), Arc::new(AtomicBool::new(true)));
        signal_hook::flag::register_conditional_shutdown(number, 128 + number, always).unwrap();
    }
}

/// A folder of its own for each test.
pub(crate) struct Dir {
    folder: TempDir,
}

impl Dir {
    pub(crate) fn new() -> Self {
        Self { folder: TempDir::new().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file and gives its path.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// A copy of a test image with other bytes at `offset`.
    pub(crate) fn patched(&self, image: &str, offset: usize, bytes: &[u8]) -> PathBuf {
        let mut copy = fs::read(data(image)).unwrap();
        copy[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.write("patched.erofs", &copy)
    }

    /// The command, run in this folder by an ordinary user.
    pub(crate) fn ordinary_ferrofs(&self) -> TestCommand {
        self.ordinary("ferrofs")
    }

    /// The same under one of its names.
    pub(crate) fn ordinary(&self, name: &str) -> TestCommand {
        if !is_root() {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ferrofs"));
            command.arg0(name);
            return TestCommand { command };
        }
        let program = self.join("ferrofs");
        // Another process writes the copy: were it open here, tests that start programs meanwhile
        // would inherit it, and a program that is open for writing cannot be run.
        // Once: nor can one that runs be written.
        if !program.exists() {
            let copy = Command::new("cp").arg(env!("CARGO_BIN_EXE_ferrofs")).arg(&program).status();
            assert!(copy.unwrap().success());
        }
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        chown(self.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        let mut command = Command::new(program);
        command.arg0(name).uid(NOBODY).gid(NOBODY).current_dir(self.path());
        TestCommand { command }
    }

    /// A copy of a test image that an ordinary user can read.
    pub(crate) fn readable(&self, image: &str) -> PathBuf {
        self.write(image, &fs::read(data(image)).unwrap())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // Unpacked directories that their owner may not change would stay behind.
        let mut directories = vec![self.path().to_owned()];
        while let Some(directory) = directories.pop() {
            if fs::set_permissions(&directory, Permissions::from_mode(0o755)).is_err() {
                continue;
            }
            let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
            directories.extend(
                entries
                    .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                    .map(|entry| entry.path()),
            );
        }
    }
}

/// Reports that a test is skipped: in its output, and in the file that `FERROFS_SKIPPED` names.
pub(crate) fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("unknown test"));
    eprint!("{line}");
    if let Some(path) = std::env::var_os("FERROFS_SKIPPED") {
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        file.unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// Whether programs can be traced; if not, that is reported.
pub(crate) fn has_strace() -> bool {
    let dir = Dir::new();
    let traced =
        Command::new("strace").args(["-f", "-qq", "-o"]).arg(dir.join("log")).arg("true").output();
    let is_had = traced.is_ok_and(|output| output.status.success());
    if !is_had {
        skip("needs strace and the right to trace");
    }
    is_had
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A file of tests/data.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// Where `needle` is in a test image; it must be there once.
pub(crate) fn find(image: &str, needle: &[u8]) -> usize {
    let bytes = fs::read(data(image)).unwrap();
    let mut found = bytes.windows(needle.len()).enumerate().filter(|(_, part)| *part == needle);
    let (at, _) = found.next().expect("the bytes to patch are in the image");
    assert!(found.next().is_none(), "the bytes to patch are there once");
    at
}

/// The command.
pub(crate) fn ferrofs() -> TestCommand {
    TestCommand { command: Command::new(env!("CARGO_BIN_EXE_ferrofs")) }
}

/// The command under another name.
pub(crate) fn named(name: &str) -> TestCommand {
    let mut command = ferrofs();
    command.command.arg0(name);
    command
}

/// The command with its arguments.
pub(crate) struct TestCommand {
    command: Command,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl TestCommand {
    pub(crate) fn new(command: Command) -> Self {
        Self { command }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn current_dir(mut self, path: &Path) -> Self {
        self.command.current_dir(path);
        self
    }

    /// Runs it under another name.
    pub(crate) fn arg0(mut self, name: &str) -> Self {
        self.command.arg0(name);
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    pub(crate) fn run(mut self) -> CommandOutput {
        let output = self.command.stdin(Stdio::null()).output().unwrap();
        let ended = CommandOutput {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        };
        assert!(!ended.stderr.contains("panicked"), "{ended:?}");
        ended
    }

    /// Runs it, expects exit status 0, and returns its output.
    #[track_caller]
    pub(crate) fn succeeds(self) -> CommandOutput {
        self.ends_with(0)
    }

    /// Runs it and expects an exit status.
    #[track_caller]
    pub(crate) fn ends_with(self, code: i32) -> CommandOutput {
        let ended = self.run();
        assert_eq!(ended.code, Some(code), "{}\n{}", ended.text(), ended.stderr);
        ended
    }

    /// Runs it with an output that nobody reads, and asserts its exit status.
    #[track_caller]
    pub(crate) fn unread_ends_with(mut self, code: i32) {
        let (output, reader) = UnixStream::pair().unwrap();
        drop(reader);
        self.command.stdin(Stdio::null()).stdout(OwnedFd::from(output)).stderr(Stdio::piped());
        let output = self.command.spawn().unwrap().wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert_eq!(output.status.code(), Some(code), "{stderr}");
    }

    /// Runs it with an output that is full, asserts its exit status, and returns its standard error.
    #[track_caller]
    pub(crate) fn full_ends_with(mut self, code: i32) -> String {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        self.command.stdin(Stdio::null()).stdout(full).stderr(Stdio::piped());
        let output = self.command.spawn().unwrap().wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        stderr
    }

    /// Starts it with its output in a pipe.
    pub(crate) fn spawn(mut self) -> std::process::Child {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl CommandOutput {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.text().lines().map(str::to_owned).collect()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap()
    }
}
