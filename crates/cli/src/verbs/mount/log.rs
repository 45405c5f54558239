//! Where a mount's messages go once it serves: standard error, the system's log, the end of a file, or nowhere. Opened
//! before privileges are given up, and never opened again. Called by every thread of the mount; none waits for another
//! here while something is written, and no more is written than somebody can read.

mod pace;

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::anyhow;
use ferrofs_image::Timestamp;

use crate::moment;
use crate::name::{escaped, harmless};
use crate::stderr;
use pace::Pace;

/// Where the system's log listens.
const SYSLOG: &str = "/dev/log";
/// The part of the system that speaks: a daemon, as RFC 3164 numbers them.
const FACILITY: u8 = 3;

/// How grave a message is, as RFC 3164 numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Error = 3,
    Warning = 4,
    Info = 6,
}

/// Where messages are to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Wherever they can be seen.
    Standard,
    Stderr,
    Syslog,
    File(PathBuf),
}

impl Target {
    pub(super) fn of(typed: Option<&OsStr>) -> Self {
        match typed {
            None => Self::Standard,
            Some(name) if name == "stderr" => Self::Stderr,
            Some(name) if name == "syslog" => Self::Syslog,
            Some(path) => Self::File(path.into()),
        }
    }
}

/// A log that is open.
#[derive(Debug)]
pub(super) struct Log {
    sink: Sink,
    pace: Mutex<Pace>,
    began: Instant,
}

#[derive(Debug)]
enum Sink {
    Nowhere,
    Stderr,
    Syslog(UnixDatagram),
    File { file: File, path: OsString },
}

impl Log {
    /// Opens it.
    ///
    /// # Errors
    /// The file cannot be written, or the system has no log.
    pub(super) fn open(target: &Target, is_foreground: bool) -> anyhow::Result<Self> {
        let sink = match target {
            Target::Stderr => Sink::Stderr,
            Target::Standard if is_foreground => Sink::Stderr,
            Target::Standard => syslog().map_or(Sink::Nowhere, Sink::Syslog),
            Target::Syslog => {
                Sink::Syslog(syslog().map_err(|error| anyhow!("--log syslog: {SYSLOG}: {error}"))?)
            }
            Target::File(path) => file(path)?,
        };
        Ok(Self { sink, pace: Mutex::new(Pace::new()), began: Instant::now() })
    }

    /// The descriptor that it writes to, unless that is standard error.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.sink {
            Sink::Nowhere | Sink::Stderr => None,
            Sink::Syslog(socket) => Some(socket.as_fd()),
            Sink::File { file, .. } => Some(file.as_fd()),
        }
    }

    /// Says something, unless too much is being said.
    pub(super) fn say(&self, severity: Severity, text: impl Display) {
        let second = self.began.elapsed().as_secs();
        let verdict = self.pace.lock().unwrap_or_else(PoisonError::into_inner).admit(second);
        if verdict.left_out > 0 {
            self.say_left_out(verdict.left_out);
        }
        if verdict.is_admitted {
            self.sink.write(severity, &text.to_string());
        }
    }

    /// Says how many messages were left out last.
    pub(super) fn finish(&self) {
        let left_out = self.pace.lock().unwrap_or_else(PoisonError::into_inner).left_out();
        if left_out > 0 {
            self.say_left_out(left_out);
        }
    }

    fn say_left_out(&self, count: u64) {
        let lines = if count == 1 { "line was" } else { "lines were" };
        self.sink.write(Severity::Warning, &format!("{count} more {lines} left out here"));
    }
}

impl Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sink {
            Sink::Nowhere => write!(f, "nowhere: there is no {SYSLOG}"),
            Sink::Stderr => f.write_str("standard error"),
            Sink::Syslog(_) => write!(f, "the system's log, {SYSLOG}"),
            Sink::File { path, .. } => write!(
                f,
                "the end of {}, a descriptor that can be written",
                escaped(path.as_encoded_bytes())
            ),
        }
    }
}

impl Sink {
    fn write(&self, severity: Severity, text: &str) {
        let text = harmless(text);
        let pid = std::process::id();
        // A log that cannot be written is nobody's fault who reads a file, and there is nobody to tell.
        match self {
            Self::Nowhere => {}
            Self::Stderr => stderr::complain(text),
            Self::Syslog(socket) => {
                let priority = FACILITY << 3 | severity as u8;
                socket.send(format!("<{priority}>ferrofs[{pid}]: {text}").as_bytes()).ok();
            }
            Self::File { file, .. } => {
                // In one piece, so that lines of several mounts do not mix.
                let line = format!("{} ferrofs[{pid}]: {text}\n", now());
                let mut file = file;
                file.write_all(line.as_bytes()).ok();
            }
        }
    }
}

fn syslog() -> std::io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    // A log that has no room loses lines; it holds up no reader.
    socket.set_nonblocking(true)?;
    socket.connect(SYSLOG)?;
    Ok(socket)
}

fn file(path: &Path) -> anyhow::Result<Sink> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    let shown = || escaped(path.as_os_str().as_encoded_bytes());
    let file = opened.map_err(|error| anyhow!("--log {}: {error}", shown()))?;
    Ok(Sink::File { file, path: path.as_os_str().to_owned() })
}

fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    moment::exact(Timestamp { seconds, nanoseconds: since.subsec_nanos() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_where_messages_go() {
        assert_eq!(Target::of(None), Target::Standard);
        assert_eq!(Target::of(Some("syslog".as_ref())), Target::Syslog);
        assert_eq!(Target::of(Some("stderr".as_ref())), Target::Stderr);
        assert_eq!(Target::of(Some("./syslog".as_ref())), Target::File("./syslog".into()));
    }

    #[test]
    fn a_file_gets_dated_lines_at_its_end_and_no_more_than_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        let log = Log::open(&Target::File(path.clone()), true).unwrap();
        for number in 0..1000 {
            log.say(Severity::Error, format_args!("message {number}\n\u{1b}[2J"));
        }
        log.finish();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "before");
        assert!(lines[1].ends_with(": message 0\\n\\x1b[2J"), "{}", lines[1]);
        assert!(lines[1].contains(" UTC ferrofs["), "{}", lines[1]);
        // Lines of two seconds at most, and of however long a slow machine takes.
        assert!(lines.len() < 500, "{} lines", lines.len());
        assert!(lines.last().unwrap().contains("more lines were left out here"));
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let error = Log::open(&Target::File("/no/such/log".into()), true).unwrap_err();
        assert!(error.to_string().starts_with("--log /no/such/log: "), "{error}");
    }
}
