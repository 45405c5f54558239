//! Runs a credential helper of docker (`docker-credential-NAME get`), for a limited time: it may wait for
//! a keyring that nobody unlocks. It gets the name of a host, and no part of a login is in its errors.

use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};
use serde::Deserialize;

/// How long a helper may take: half of what a client waits by default, so that it hears why.
pub(crate) const HELPER_LIMIT: Duration = Duration::from_secs(30);
/// The longest answer, in bytes.
const ANSWER_MAX_BYTES: usize = 1 << 20;
/// How often is looked whether a helper has ended that has said everything.
const END_PAUSE: Duration = Duration::from_millis(2);

/// The answer of a helper.
#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct HelperLogin {
    pub(crate) username: String,
    pub(crate) secret: String,
}

impl fmt::Debug for HelperLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HelperLogin(…)")
    }
}

/// Why a helper gave no login. It names the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HelperError {
    /// It cannot be started, or not be spoken to.
    Unusable { program: String, diagnostic: String },
    /// It did not answer in time, and was killed.
    TimedOut { program: String, limit: Duration },
    /// It answered with something else.
    Malformed { program: String },
}

impl fmt::Display for HelperError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable { program, diagnostic } => {
                write!(f, "the credential helper {program} cannot be used: {diagnostic}")
            }
            Self::TimedOut { program, limit } => write!(
                f,
                "the credential helper {program} did not answer within {} s and was ended; it may wait \
                 for a keyring to be unlocked",
                limit.as_secs()
            ),
            Self::Malformed { program } => {
                write!(f, "the answer of the credential helper {program} is malformed")
            }
        }
    }
}

/// The login that the helper `name` has for a host; `None` if it has none.
///
/// # Errors
/// The helper cannot be started, hangs for [`HELPER_LIMIT`], or sends something else.
pub(crate) fn ask_helper(name: &str, host: &str) -> Result<Option<HelperLogin>, HelperError> {
    let mut command = Command::new(format!("docker-credential-{name}"));
    command.arg("get").stderr(Stdio::null());
    run_helper(&mut command, host, HELPER_LIMIT)
}

fn run_helper(
    command: &mut Command,
    host: &str,
    limit: Duration,
) -> Result<Option<HelperLogin>, HelperError> {
    let deadline = Instant::now() + limit;
    let program = command.get_program().to_string_lossy().into_owned();
    let unusable = |error: std::io::Error| HelperError::Unusable {
        program: program.clone(),
        diagnostic: error.to_string(),
    };
    // A group of its own, so that it ends with the programs that it starts.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    let mut helper = CredentialHelperProcess(command.spawn().map_err(unusable)?);
    if let Some(mut input) = helper.0.stdin.take() {
        // The name of a host fits into the pipe. A helper that reads nothing says so by its answer.
        input.write_all(host.as_bytes()).ok();
    }
    let answer = helper.answer(deadline).and_then(|answer| {
        let status = helper.status(deadline)?;
        Ok(answer.zip(status))
    });
    match answer.map_err(unusable)? {
        None => Err(HelperError::TimedOut { program, limit }),
        // Helpers fail for a host that they do not know.
        Some((_, status)) if !status.success() => Ok(None),
        Some((answer, _)) => match serde_json::from_slice(&answer) {
            Ok(login) => Ok(Some(login)),
            Err(_) => Err(HelperError::Malformed { program }),
        },
    }
}

/// A helper that is killed, with its group, unless it has ended.
struct CredentialHelperProcess(Child);

impl CredentialHelperProcess {
    /// What it writes; `None` if that has no end in time.
    fn answer(&mut self, deadline: Instant) -> std::io::Result<Option<Vec<u8>>> {
        let Some(mut output) = self.0.stdout.take() else { return Ok(Some(Vec::new())) };
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        while answer.len() <= ANSWER_MAX_BYTES {
            let rest = deadline.saturating_duration_since(Instant::now());
            let rest = Timespec::try_from(rest).map_err(std::io::Error::other)?;
            let mut waiting = [PollFd::new(&output, PollFlags::IN)];
            match rustix::event::poll(&mut waiting, Some(&rest)) {
                Ok(0) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled?,
            };
            match output.read(&mut piece)? {
                0 => break,
                count => answer.extend_from_slice(piece.get(..count).unwrap_or_default()),
            }
        }
        Ok(Some(answer))
    }

    /// How it has ended; `None` if it has not in time.
    fn status(&mut self, deadline: Instant) -> std::io::Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(END_PAUSE);
        }
    }
}

impl Drop for CredentialHelperProcess {
    fn drop(&mut self) {
        // Its number stands for it until it is waited for.
        if matches!(self.0.try_wait(), Ok(None)) {
            rustix::process::kill_process_group(Pid::from_child(&self.0), Signal::KILL).ok();
            self.0.wait().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const LONG: Duration = Duration::from_secs(60);

    /// It stayed for ever, and the fetcher with it.
    #[test]
    fn a_helper_that_hangs_is_killed_with_what_it_has_started() {
        for script in ["sleep 1000 & wait", "exec >&-; sleep 1000 & wait", "exec sleep 1000"] {
            let (mut open, end) = std::io::pipe().unwrap();
            let mut command = shell(script);
            command.stderr(end);
            let error = run_helper(&mut command, "host", Duration::from_millis(100)).unwrap_err();
            assert!(matches!(error, HelperError::TimedOut { .. }), "{error}");
            assert!(error.to_string().contains("helper sh did not answer"), "{error}");
            drop(command);
            // At its end nobody has the other end any more.
            assert_eq!(open.read(&mut [0]).unwrap(), 0);
        }
    }

    #[test]
    fn answers_are_logins_or_none() {
        let run_helper = |script: &str| run_helper(&mut shell(script), "host:5000", LONG);
        let script =
            r#"read host; printf '{"ServerURL":"x","Username":"me","Secret":"%s"}' "$host""#;
        let login = HelperLogin { username: "me".to_owned(), secret: "host:5000".to_owned() };
        assert_eq!(run_helper(script), Ok(Some(login)));
        assert_eq!(run_helper("echo credentials not found in native keychain; exit 1"), Ok(None));
        assert_eq!(run_helper("exit 3"), Ok(None));
        let malformed = HelperError::Malformed { program: "sh".to_owned() };
        assert_eq!(run_helper("echo"), Err(malformed));
        let error = ask_helper("none-has-this-name", "host").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("helper docker-credential-none-has-this-name cannot be used"),
            "{text}"
        );
    }
}
