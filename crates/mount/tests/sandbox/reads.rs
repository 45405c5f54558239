//! What code that has taken over a daemon could read: files, and other processes of the same user.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ferrofs_mount::sandbox::{PathConfinement, Sandbox, SandboxStatus, StandardStreams};
use rustix::process::{DumpableBehavior, dumpable_behavior};

use crate::{in_a_process, skip};

fn sandbox() -> Sandbox<'static> {
    Sandbox::new().streams(StandardStreams::Errors)
}

/// Whether the kernel confines paths. If not, the test is reported as skipped.
fn is_confined(entered: &SandboxStatus) -> bool {
    let is_on = matches!(entered.paths, PathConfinement::On { .. });
    if !is_on {
        skip(&entered.paths.to_string());
    }
    is_on
}

fn is_refused(path: &Path) -> bool {
    let mut byte = [0];
    match File::open(path).and_then(|mut file| file.read(&mut byte)) {
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
        Ok(_) => false,
    }
}

/// Another process of the same user; it waits for the end of its input.
fn sibling() -> Child {
    Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn files_and_the_memory_and_environment_of_others_are_out_of_reach() {
    in_a_process(|dir| {
        let secret = dir.join("key");
        std::fs::write(&secret, "secret").unwrap();
        let mut sibling = sibling();
        let pid = sibling.id();
        let of_sibling = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
        assert!(!is_refused(&secret) && !is_refused(&of_sibling("environ")));
        // The sibling ends when this pipe does.
        let entered = sandbox().keep(sibling.stdin.as_ref().unwrap().as_fd()).enter().unwrap();
        let is_confined = is_confined(&entered);
        for path in [secret, of_sibling("mem"), of_sibling("environ"), of_sibling("maps")] {
            assert!(is_refused(&path) || !is_confined, "{}", path.display());
        }
        for path in ["/etc/passwd", "/proc/self/root/etc/passwd", "/dev/null"] {
            assert!(is_refused(Path::new(path)) || !is_confined, "{path}");
        }
        let is_listed = |path: &str| std::fs::read_dir(path).is_ok();
        assert!(!is_confined || !is_listed("/") && !is_listed("/proc"));
        // It ends with its input, which this closes.
        sibling.wait().unwrap();
    });
}

#[test]
fn the_own_memory_is_hidden_from_other_processes_of_the_user() {
    in_a_process(|_| {
        // The filter would deny the query.
        let entered = sandbox().filtered(false).enter().unwrap();
        assert!(!entered.is_readable_by_user, "{entered}");
        assert_eq!(dumpable_behavior(), Ok(DumpableBehavior::NotDumpable));
    });
}

#[test]
fn an_open_image_and_the_kernels_own_files_can_be_read() {
    in_a_process(|dir| {
        let path = dir.join("image");
        std::fs::write(&path, "image").unwrap();
        let image = File::open(&path).unwrap();
        sandbox().enter().unwrap();
        assert_eq!(std::io::read_to_string(image).unwrap(), "image");
        for path in [
            "/proc/meminfo",
            "/proc/self/status",
            "/proc/thread-self/status",
            "/proc/self/mountinfo",
            "/proc/self/fdinfo/0",
            "/proc/self/cgroup",
            "/sys/devices/system/cpu/possible",
        ] {
            assert!(!std::fs::read(path).unwrap().is_empty(), "{path}");
        }
        // The watchdog of a session looks for a fatal signal of a caller.
        let caller = format!("/proc/{}/status", std::os::unix::process::parent_id());
        assert!(std::fs::read_to_string(caller).unwrap().contains("SigPnd"));
    });
}
