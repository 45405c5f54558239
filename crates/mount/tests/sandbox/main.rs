//! What a process can and cannot do in the sandbox. Each test runs its body in a process of its own,
//! which is this binary again, since nobody gets out of a sandbox.

#[cfg(test)]
mod descriptors;
#[cfg(test)]
mod executable;
#[cfg(test)]
mod privileges;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod working;

use std::path::Path;
use std::process::{Command, Output};

/// Names, to the child, a folder that its parent made and removes: the child cannot.
const FOLDER: &str = "FERROFS_SANDBOX_FOLDER";

/// Runs `body` in a process of its own, and checks that it came to its end there. It gets an empty folder.
#[cfg(test)]
fn in_a_process(body: impl FnOnce(&Path)) {
    if let Some(output) = outcome_in_a_process(body) {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{text}", output.status);
    }
}

/// Runs `body` in a process of its own, which is how it sees `None`; its parent gets the outcome.
#[cfg(test)]
fn outcome_in_a_process(body: impl FnOnce(&Path)) -> Option<Output> {
    if let Some(folder) = std::env::var_os(FOLDER) {
        body(Path::new(&folder));
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    // A test's thread has the test's name, so the child runs this very test.
    let thread = std::thread::current();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", thread.name().unwrap(), "--nocapture", "--test-threads=1"]);
    child.env(FOLDER, folder.path()).env("RUST_BACKTRACE", "1");
    Some(child.output().unwrap())
}
