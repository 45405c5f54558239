//! The log of a mount: standard error, syslog, a file, or nowhere. It is opened before the sandbox
//! is entered. Every thread of the mount calls it; no lock is held while a line is written, and the
//! number of lines is limited.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::anyhow;
use ferrofs_builder::output::open_log;
use ferrofs_image::Timestamp;

use crate::metadata_text;
use crate::output::{self, escape, escape_controls};

/// The socket of syslog.
const SYSLOG: &str = "/dev/log";
/// The facility "daemon" of RFC 3164.
const FACILITY: u8 = 3;

/// The severity of a message, numbered as in RFC 3164.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Error = 3,
    Warning = 4,
    Info = 6,
}

/// Where messages are to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LogTarget {
    /// Standard error in the foreground, otherwise syslog if there is one.
    Standard,
    Stderr,
    Syslog,
    File(PathBuf),
}

impl LogTarget {
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
    sink: LogSink,
    lines: Mutex<LineFilter>,
    started_at: Instant,
}

#[derive(Debug)]
enum LogSink {
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
    pub(super) fn open(target: &LogTarget, is_foreground: bool) -> anyhow::Result<Self> {
        let sink = match target {
            LogTarget::Stderr => LogSink::Stderr,
            LogTarget::Standard if is_foreground => LogSink::Stderr,
            LogTarget::Standard => syslog().map_or(LogSink::Nowhere, LogSink::Syslog),
            LogTarget::Syslog => LogSink::Syslog(
                syslog().map_err(|error| anyhow!("--log syslog: {SYSLOG}: {error}"))?,
            ),
            LogTarget::File(path) => file(path)?,
        };
        Ok(Self { sink, lines: Mutex::new(LineFilter::default()), started_at: Instant::now() })
    }

    /// The descriptor that it writes to, unless that is standard error.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.sink {
            LogSink::Nowhere | LogSink::Stderr => None,
            LogSink::Syslog(socket) => Some(socket.as_fd()),
            LogSink::File { file, .. } => Some(file.as_fd()),
        }
    }

    /// Writes a line, unless the limit of this second is reached or the line was written just before.
    pub(super) fn log(&self, severity: Severity, text: impl Display) {
        let (text, now) = (text.to_string(), self.started_at.elapsed());
        let admission = self.lines().admit(&text, now);
        if admission.suppressed > 0 {
            self.log_suppressed(admission.suppressed);
        }
        if admission.is_admitted {
            self.sink.write(severity, &text);
        }
    }

    /// Reports the messages that were left out last.
    pub(super) fn finish(&self) {
        let suppressed = self.lines().rate_limiter.suppressed();
        if suppressed > 0 {
            self.log_suppressed(suppressed);
        }
    }

    fn lines(&self) -> MutexGuard<'_, LineFilter> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_suppressed(&self, count: u64) {
        let lines = if count == 1 { "line was" } else { "lines were" };
        self.sink.write(Severity::Warning, &format!("{count} more {lines} dropped here"));
    }
}

impl Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sink {
            LogSink::Nowhere => write!(f, "nowhere: there is no {SYSLOG}"),
            LogSink::Stderr => f.write_str("standard error"),
            LogSink::Syslog(_) => write!(f, "syslog, {SYSLOG}"),
            LogSink::File { path, .. } => {
                write!(f, "appended to {}", escape(path.as_encoded_bytes()))
            }
        }
    }
}

impl LogSink {
    fn write(&self, severity: Severity, text: &str) {
        let text = escape_controls(text);
        let pid = std::process::id();
        // An error of the log must not fail a request, and there is no other place to report it.
        match self {
            Self::Nowhere => {}
            Self::Stderr => output::print_message(text),
            Self::Syslog(socket) => {
                let priority = FACILITY << 3 | severity as u8;
                socket.send(format!("<{priority}>ferrofs[{pid}]: {text}").as_bytes()).ok();
            }
            Self::File { file, .. } => {
                // In one write, so that lines of several mounts do not mix.
                let line = format!("{} ferrofs[{pid}]: {text}\n", now());
                let mut file = file;
                file.write_all(line.as_bytes()).ok();
            }
        }
    }
}

fn syslog() -> std::io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    // A full log loses lines; it does not delay a request.
    socket.set_nonblocking(true)?;
    socket.connect(SYSLOG)?;
    Ok(socket)
}

fn file(path: &Path) -> anyhow::Result<LogSink> {
    let terminal_form = || escape(path.as_os_str().as_encoded_bytes());
    let file =
        open_log(path).map_err(|error| anyhow!("--log {}: {}", terminal_form(), error.kind()))?;
    Ok(LogSink::File { file, path: path.as_os_str().to_owned() })
}

fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    metadata_text::format_exact(Timestamp { seconds, nanoseconds: since.subsec_nanos() })
}

/// How long the same line is not written again: the kernel repeats a failed read of many pages as one of a page, so that
/// a program that reads a damaged file once causes the same error twice.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// Which lines are written.
#[derive(Debug)]
struct LineFilter {
    rate_limiter: RateLimiter,
    /// The last line, and when it was written.
    last: Option<(String, Duration)>,
}

impl Default for LineFilter {
    fn default() -> Self {
        Self { rate_limiter: RateLimiter::new(), last: None }
    }
}

impl LineFilter {
    /// Whether a line may be written now, so long after the start of the log. Nothing reports that a line is the same as
    /// the last one.
    fn admit(&mut self, text: &str, now: Duration) -> Admission {
        let is_repeated = self.last.as_ref().is_some_and(|(last, written)| {
            last == text && now.saturating_sub(*written) < REPEAT_AFTER
        });
        if is_repeated {
            return Admission { is_admitted: false, suppressed: 0 };
        }
        let admission = self.rate_limiter.admit(now.as_secs());
        if admission.is_admitted {
            self.last = Some((text.to_owned(), now));
        }
        admission
    }
}

/// Lines a second; what matters is in the first ones.
const LINES_PER_SECOND: u32 = 10;

/// The number of lines in the current second.
#[derive(Debug)]
pub(super) struct RateLimiter {
    second: u64,
    logged: u32,
    suppressed: u64,
}

/// Whether a message is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admission {
    pub(super) is_admitted: bool,
    /// Messages left out since the last one that was admitted.
    pub(super) suppressed: u64,
}

impl RateLimiter {
    pub(super) fn new() -> Self {
        Self { second: 0, logged: 0, suppressed: 0 }
    }

    /// Whether a message may be written in this second. Seconds never decrease.
    pub(super) fn admit(&mut self, second: u64) -> Admission {
        if second != self.second {
            self.second = second;
            self.logged = 0;
        }
        if self.logged == LINES_PER_SECOND {
            self.suppressed = self.suppressed.saturating_add(1);
            return Admission { is_admitted: false, suppressed: 0 };
        }
        self.logged += 1;
        Admission { is_admitted: true, suppressed: self.suppressed() }
    }

    /// Messages left out and not reported yet.
    pub(super) fn suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_where_messages_go() {
        assert_eq!(LogTarget::of(None), LogTarget::Standard);
        assert_eq!(LogTarget::of(Some("syslog".as_ref())), LogTarget::Syslog);
        assert_eq!(LogTarget::of(Some("stderr".as_ref())), LogTarget::Stderr);
        assert_eq!(LogTarget::of(Some("./syslog".as_ref())), LogTarget::File("./syslog".into()));
    }

    #[test]
    fn a_file_gets_dated_lines_at_its_end_and_no_more_than_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "before\n").unwrap();
        let log = Log::open(&LogTarget::File(path.clone()), true).unwrap();
        for number in 0..1000 {
            log.log(Severity::Error, format_args!("message {number}\n\u{1b}[2J"));
        }
        log.finish();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "before");
        assert!(lines[1].ends_with(": message 0\\n\\x1b[2J"), "{}", lines[1]);
        assert!(lines[1].contains(" UTC ferrofs["), "{}", lines[1]);
        // Lines of two seconds at most, and of however long a slow machine takes.
        assert!(lines.len() < 500, "{} lines", lines.len());
        assert!(lines.last().unwrap().contains("more lines were dropped here"));
    }

    #[test]
    fn a_link_and_a_fifo_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let [link, fifo, other] = ["link", "fifo", "other"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink(&other, &link).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
        for (path, part) in [(link, "is a symlink"), (fifo, "a FIFO")] {
            let error = Log::open(&LogTarget::File(path), true).unwrap_err().to_string();
            assert!(error.starts_with("--log /") && error.contains(part), "{error}");
        }
        assert!(!other.exists());
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let error = Log::open(&LogTarget::File("/no/such/log".into()), true).unwrap_err();
        assert!(error.to_string().starts_with("--log /no/such/log: "), "{error}");
    }
}

#[cfg(test)]
mod rate_limiter_tests {
    use super::*;

    #[test]
    fn each_second_has_its_lines_and_tells_of_those_before() {
        let mut rate_limiter = RateLimiter::new();
        for _ in 0..LINES_PER_SECOND {
            assert_eq!(rate_limiter.admit(7), Admission { is_admitted: true, suppressed: 0 });
        }
        for _ in 0..3 {
            assert_eq!(rate_limiter.admit(7), Admission { is_admitted: false, suppressed: 0 });
        }
        assert_eq!(rate_limiter.admit(8), Admission { is_admitted: true, suppressed: 3 });
        assert_eq!(rate_limiter.admit(8), Admission { is_admitted: true, suppressed: 0 });
        assert_eq!(rate_limiter.suppressed(), 0);
    }

    #[test]
    fn the_same_line_is_written_once_a_second() {
        let mut lines = LineFilter::default();
        let mut admitted = |text, ms| lines.admit(text, Duration::from_millis(ms)).is_admitted;
        assert!(admitted("a", 0) && !admitted("a", 1) && !admitted("a", 999));
        assert!(admitted("a", 1000) && admitted("b", 1001) && admitted("a", 1002));
        assert!(!admitted("a", 2001) && admitted("a", 2002));
    }

    #[test]
    fn what_was_left_out_last_can_be_asked_for() {
        let mut rate_limiter = RateLimiter::new();
        let admitted = (0..15).filter(|_| rate_limiter.admit(0).is_admitted).count();
        assert_eq!(admitted, 10);
        assert_eq!((rate_limiter.suppressed(), rate_limiter.suppressed()), (5, 0));
    }
}
