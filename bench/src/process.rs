//! Programs that are measured from outside: wall time, CPU time and peak memory of one run, read from the kernel when it has
//! ended, and the CPU time of one that runs.
#![allow(unsafe_code, reason = "the CPU clock of a process has no safe binding")]

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use wait4::Wait4;

/// The part of an output that is kept, and the characters of an error that are shown.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
const ERROR_CHARS_MAX: usize = 500;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) wall: Duration,
    /// User and system time, with that of children which the program waited for.
    pub(crate) cpu: Duration,
    /// The largest resident set of one of its processes; at least what this process had when it started the program.
    pub(crate) peak_kib: u64,
}

/// Runs a program to its end: its cost and its stdout.
pub(crate) fn run(command: &mut Command) -> Result<(Cost, String)> {
    let name = command.get_program().to_string_lossy().into_owned();
    let [output, error] = [tempfile::NamedTempFile::new()?, tempfile::NamedTempFile::new()?];
    command.stdin(Stdio::null()).stdout(output.reopen()?).stderr(error.reopen()?);
    let begin = Instant::now();
    let child = command.spawn().with_context(|| format!("starting {name}"))?;
    let ended = child.wait4().with_context(|| format!("waiting for {name}"))?;
    let (status, wall, used) = (ended.status, begin.elapsed(), ended.rusage);
    if !status.success() {
        let text = text_of(error.path())?;
        bail!("{}: {status}: {}", words(command).join(" "), end_of(&text));
    }
    let cost = Cost { wall, cpu: used.utime + used.stime, peak_kib: used.maxrss / 1024 };
    Ok((cost, text_of(output.path())?))
}

pub(crate) fn words(command: &Command) -> Vec<String> {
    let all = [command.get_program()].into_iter().chain(command.get_args());
    all.map(|word| word.to_string_lossy().into_owned()).collect()
}

pub(crate) fn end_of(text: &str) -> &str {
    let text = text.trim();
    let skipped = text.chars().count().saturating_sub(ERROR_CHARS_MAX);
    text.char_indices().nth(skipped).map_or("", |(at, _)| text.get(at..).unwrap_or(""))
}

/// The first part of a file, as text.
pub(crate) fn text_of(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(|| path.display().to_string())?;
    file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// User and system time of a process so far, of all its threads, to the nanosecond.
pub(crate) fn cpu_of(child: &Child) -> io::Result<Duration> {
    let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: it writes the number of a clock to the place, which lives until it returns.
    let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: it writes a time to the place, which lives until it returns; a wrong clock is an error.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Ok(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_costs_and_an_output_and_a_failure_is_reported_with_it() {
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo \"$i times\"";
        let (cost, text) = run(Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!(text, "20000 times\n");
        assert!(cost.cpu > Duration::ZERO && cost.wall >= cost.cpu / 8 && cost.peak_kib > 100);
        let mut command = Command::new("sh");
        let error = run(command.args(["-c", "echo too bad >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().ends_with("exit status: 3: too bad"), "{error}");
        assert_eq!(end_of(&"ä".repeat(501)).chars().count(), 500);
        assert_eq!(end_of(" short \n"), "short");
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
