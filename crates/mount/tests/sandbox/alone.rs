//! The sandbox as a daemon enters it: before it has started a thread. A program of its own without a harness, since the
//! harness starts threads.
#![allow(clippy::print_stdout, reason = "it is its own harness, so that it has one thread")]
#![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

use std::os::fd::AsFd;

use ferrofs_mount::sandbox::{CapabilitySet, FilterState, Sandbox, StandardStreams};

fn main() {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    assert_eq!(threads, 1);
    // The sandbox replaces standard output; a second descriptor of it stays.
    let output = rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 3).unwrap();
    let sandbox = Sandbox::new().streams(StandardStreams::Errors).keep(output.as_fd());
    let entered = sandbox.enter().unwrap();
    assert!(entered.no_new_privileges, "{entered}");
    assert_eq!(entered.earlier_threads, 0);
    assert_eq!(entered.capabilities, CapabilitySet::empty(), "{entered}");
    assert!(matches!(entered.filter, FilterState::On { .. }), "{entered}");
    let text = entered.to_string();
    for words in ["new privileges  none\n", "system calls    filtered, ", "capabilities    none\n"]
    {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    let line = format!("\ntest in the sandbox, alone ... ok\n\n{text}\n");
    assert_eq!(rustix::io::write(&output, line.as_bytes()), Ok(line.len()));
}
