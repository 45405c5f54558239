//! What a process does not get that outlives the one which starts it: descriptors, which keep locks, pipes and mounts of others
//! busy, and paths that depend on a working directory. Used for the fetcher and for the companion.
#![allow(
    unsafe_code,
    reason = "descriptors of unknown owners are marked in a process that was forked"
)]

use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::io::FdFlags;

/// Where the kernel lists the descriptors of a process.
const DESCRIPTORS: &str = "/proc/self/fd";
/// The first descriptor that is no standard stream.
const FIRST_FREE: RawFd = 3;
/// Where programs are looked up.
const SEARCH_PATH: &str = "PATH";
/// Variables with a path that the fetcher uses.
const PATH_VARIABLES: [&str; 5] = [
    "REGISTRY_AUTH_FILE",
    "DOCKER_CONFIG",
    "SSL_CERT_FILE",
    "CONTAINERS_REGISTRIES_CONF",
    "CONTAINERS_REGISTRIES_CONF_DIR",
];
/// The same with several paths.
const LIST_VARIABLES: [&str; 2] = [SEARCH_PATH, "SSL_CERT_DIR"];

/// Prepares `command`: the process that it starts gets its standard streams and no other descriptor, and variables that mean
/// the same in every directory.
pub(crate) fn detach(command: &mut Command) {
    for name in PATH_VARIABLES {
        if let Some(path) = std::env::var_os(name).filter(|path| !path.is_empty()) {
            command.env(name, absolute(&path));
        }
    }
    for name in LIST_VARIABLES {
        if let Some(list) = std::env::var_os(name).and_then(|list| absolute_list(name, &list)) {
            command.env(name, list);
        }
    }
    let inherited = inherited();
    let close_on_exec = move || {
        for number in &inherited {
            // SAFETY: the number is used for this call only, which closes nothing and changes no file. Another thread may have
            // closed the descriptor before this process was forked; then the call fails.
            let descriptor = unsafe { BorrowedFd::borrow_raw(*number) };
            rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC).ok();
        }
        Ok(())
    };
    // SAFETY: between fork and exec, the closure does nothing but these system calls: it allocates nothing and takes no lock.
    unsafe { command.pre_exec(close_on_exec) };
}

/// A path that means the same in every working directory.
pub(crate) fn absolute(path: &OsStr) -> OsString {
    // Without a working directory, a relative path means nothing in any case.
    std::path::absolute(Path::new(path)).map_or_else(|_| path.to_owned(), Into::into)
}

/// `None` if a working directory has a name that a list cannot have.
fn absolute_list(name: &str, list: &OsStr) -> Option<OsString> {
    let absolute_entry = |path: std::path::PathBuf| match path.as_os_str() {
        // An empty entry is the working directory where programs are looked up (POSIX), and nothing elsewhere: a
        // working directory must not become one of trusted CAs.
        entry if entry.is_empty() => (name == SEARCH_PATH).then(|| absolute(OsStr::new("."))),
        entry => Some(absolute(entry)),
    };
    std::env::join_paths(std::env::split_paths(list).filter_map(absolute_entry)).ok()
}

/// The descriptors of this process but the standard streams. Without `/proc`, there is no fetcher either.
fn inherited() -> Vec<RawFd> {
    let entries = std::fs::read_dir(DESCRIPTORS).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|number| *number >= FIRST_FREE).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::process::Stdio;

    use super::*;

    /// Programs that wait for the end of a pipe or for a lock waited for the fetcher.
    #[test]
    fn a_process_gets_no_descriptor_but_its_streams() {
        let file = std::fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&file, FdFlags::empty()).unwrap();
        let number = file.as_raw_fd();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("test ! -e /proc/self/fd/{number}; echo $?")]);
        let has_it = |command: &mut Command| {
            let output = command.stdin(Stdio::null()).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim() == "1"
        };
        assert!(has_it(&mut command));
        detach(&mut command);
        assert!(!has_it(&mut command));
    }

    #[test]
    fn paths_of_variables_do_not_depend_on_a_working_directory() {
        let here = std::env::current_dir().unwrap();
        let text = |path: &str| here.join(path).to_str().unwrap().to_owned();
        assert_eq!(absolute(OsStr::new("a/b")), OsString::from(text("a/b")));
        assert_eq!(absolute(OsStr::new("/a")), "/a");
        let wanted = format!("/bin:{}:{}", text("tools"), here.display());
        assert_eq!(absolute_list("PATH", OsStr::new("/bin:tools:")), Some(wanted.into()));
    }

    /// Certificates of the working directory were trusted.
    #[test]
    fn an_empty_entry_of_a_list_of_certificates_is_no_directory() {
        let certificates = |list: &str| absolute_list("SSL_CERT_DIR", OsStr::new(list));
        assert_eq!(certificates(":/certs::/more:"), Some("/certs:/more".into()));
        assert_eq!(certificates(""), Some("".into()));
        assert_eq!(certificates(":"), Some("".into()));
    }
}
