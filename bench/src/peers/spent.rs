//! What a program cost: wall time, CPU time and peak memory of one run, asked of the kernel when the program has ended.
//! Owns no program; the experiments with peers run theirs through it.
#![allow(unsafe_code, reason = "wait4 and the CPU clock of a process have no safe binding")]

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Of what a program says, so much is looked at.
const MOST_SAID_BYTES: u64 = 1 << 20;
/// Of a complaint, so many characters are passed on.
const MOST_COMPLAINT: usize = 500;

/// The costs of one run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spent {
    pub(super) wall: Duration,
    /// User and system time, that of children which the program waited for included.
    pub(super) cpu: Duration,
    /// Largest resident memory of one of its processes. What this process had when it started the program is the least
    /// that the kernel tells.
    pub(super) peak_kib: u64,
}

impl Spent {
    pub(super) fn peak_mib(&self) -> f64 {
        self.peak_kib as f64 / 1024.0
    }
}

/// Runs a program to its end; what it cost and what it said on stdout. `said` is a place for two files.
///
/// # Errors
/// When it cannot be run or does not end well; with what it said on stderr.
pub(super) fn run(command: &mut Command, said: &Path) -> Result<(Spent, String)> {
    let complaint = beside(said, ".complaint");
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null());
    command.stdout(File::create(said).with_context(|| said.display().to_string())?);
    command.stderr(File::create(&complaint).with_context(|| complaint.display().to_string())?);
    let begin = Instant::now();
    let mut child = command.spawn().with_context(|| format!("starting {name}"))?;
    let (status, mut spent) = wait(&mut child).with_context(|| format!("waiting for {name}"))?;
    spent.wall = begin.elapsed();
    let (text, complained) = (text_of(said)?, text_of(&complaint)?);
    fs::remove_file(said).and_then(|()| fs::remove_file(&complaint)).context("removing output")?;
    if !status.success() {
        bail!("{}: {status}: {}", line(command), last(&complained));
    }
    Ok((spent, text))
}

/// A place beside another one, with more at the end of its name.
pub(super) fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    name.into()
}

/// The words of a command, the program first, as a person would write them.
pub(super) fn words(command: &Command) -> Vec<String> {
    let all = [command.get_program()].into_iter().chain(command.get_args());
    all.map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The command as one line.
pub(super) fn line(command: &Command) -> String {
    words(command).join(" ")
}

/// The last part of a complaint.
pub(super) fn last(complaint: &str) -> &str {
    let complaint = complaint.trim();
    let skipped = complaint.chars().count().saturating_sub(MOST_COMPLAINT);
    complaint.char_indices().nth(skipped).map_or("", |(at, _)| complaint.get(at..).unwrap_or(""))
}

/// The first part of a file, as text.
pub(super) fn text_of(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(|| path.display().to_string())?;
    file.take(MOST_SAID_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits for the end of a child that nobody has waited for.
fn wait(child: &mut Child) -> io::Result<(ExitStatus, Spent)> {
    let pid = pid_of(child)?;
    let mut status = 0;
    // SAFETY: an rusage is numbers only, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both places are of the types that the call writes, and live until it returns.
        let ended = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
        if ended == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let cpu = duration(usage.ru_utime).saturating_add(duration(usage.ru_stime));
    let peak_kib = u64::try_from(usage.ru_maxrss).unwrap_or_default();
    Ok((ExitStatus::from_raw(status), Spent { wall: Duration::ZERO, cpu, peak_kib }))
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let micros = u64::try_from(time.tv_usec).unwrap_or_default();
    Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros))
}

fn pid_of(child: &Child) -> io::Result<libc::pid_t> {
    libc::pid_t::try_from(child.id()).map_err(io::Error::other)
}

/// User and system time of a process so far, of all its threads, to the nanosecond.
///
/// # Errors
/// When there is no such process.
pub(super) fn cpu_of(child: &Child) -> io::Result<Duration> {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: it writes a number of a clock to the place, which lives until it returns.
    let error = unsafe { libc::clock_getcpuclockid(pid_of(child)?, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: it writes a time to the place, which lives until it returns; a wrong clock is an error.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
    Ok(Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos)))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::{cpu_of, last, run};

    #[test]
    fn a_run_tells_what_it_cost_and_said() {
        let folder = tempfile::tempdir().unwrap();
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo \"$i times\"";
        let place = folder.path().join("said");
        let (spent, text) = run(Command::new("sh").args(["-c", script]), &place).unwrap();
        assert_eq!(text, "20000 times\n");
        assert!(spent.cpu > Duration::ZERO && spent.wall >= spent.cpu / 8);
        assert!(spent.peak_mib() > 0.1, "{}", spent.peak_mib());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_failure_is_told_with_its_complaint() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo too bad >&2; exit 3"]);
        let error = run(&mut command, &folder.path().join("said")).unwrap_err().to_string();
        assert!(error.ends_with("exit status: 3: too bad"), "{error}");
        assert_eq!(last(&"ä".repeat(501)).chars().count(), 500);
        assert_eq!(last(" short \n"), "short");
    }

    #[test]
    fn the_clock_of_a_child_can_be_read_while_it_lives() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let before = cpu_of(&child).unwrap();
        drop(child.stdin.take());
        assert!(before < Duration::from_secs(10));
        assert!(child.wait().unwrap().success());
    }
}
