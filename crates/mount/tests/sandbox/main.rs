//! What a process can and cannot do in the sandbox. Each test runs its body in a child process, which is this program
//! again, since a process cannot leave the sandbox.

#[cfg(test)]
mod descriptors;
#[cfg(test)]
mod executable;
#[cfg(test)]
mod privileges;
#[cfg(test)]
mod reads;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod working;

use std::path::Path;
use std::process::{Command, Output};

/// Tells the child the path of a folder that its parent creates and removes, since the child cannot.
const FOLDER: &str = "FERROFS_SANDBOX_FOLDER";

/// Runs `body` in a child process with an empty folder, and checks that it succeeds.
#[cfg(test)]
fn in_a_process(body: impl FnOnce(&Path)) {
    if let Some(output) = outcome_in_a_process(body) {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{text}", output.status);
    }
}

/// Runs `body` in a child process with an empty folder. The parent gets its output, the child `None`.
#[cfg(test)]
fn outcome_in_a_process(body: impl FnOnce(&Path)) -> Option<Output> {
    if let Some(folder) = std::env::var_os(FOLDER) {
        body(Path::new(&folder));
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    // The harness names the thread of a test after the test, so the child runs the same test.
    let thread = std::thread::current();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", thread.name().unwrap(), "--nocapture", "--test-threads=1"]);
    child.env(FOLDER, folder.path()).env("RUST_BACKTRACE", "1");
    Some(child.output().unwrap())
}

/// Reports that the present test is skipped: on standard error, and in the file that `FERROFS_SKIPPED` names.
#[cfg(test)]
fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("a test"));
    eprint!("{line}");
    if let Some(path) = std::env::var_os("FERROFS_SKIPPED") {
        let list = std::fs::OpenOptions::new().create(true).append(true).open(path);
        std::io::Write::write_all(&mut list.unwrap(), line.as_bytes()).unwrap();
    }
}
