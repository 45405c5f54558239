//! System calls that the filter denies, and those that end the process.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;

use ferrofs_mount::sandbox::{FilterState, Sandbox, SandboxRole, SandboxStep, StandardStreams};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Resource, getpid, getrlimit, setrlimit};

use crate::{in_a_process, outcome_in_a_process};

/// `SIGSYS`, which ends a process at a forbidden call.
const BAD_CALL: i32 = 31;

fn enter() {
    let entered = Sandbox::new().streams(StandardStreams::Errors).enter().unwrap();
    assert!(matches!(entered.filter, FilterState::On { .. }), "{entered}");
}

#[test]
fn nothing_can_be_opened_for_writing() {
    in_a_process(|dir| {
        let file = dir.join("file");
        std::fs::write(&file, "kept").unwrap();
        let kept = File::open(&file).unwrap();
        let directory = File::open(dir).unwrap();
        let sandbox = Sandbox::new().streams(StandardStreams::Errors).keep(directory.as_fd());
        sandbox.enter().unwrap();
        let refused = |options: &mut OpenOptions, path: &Path| {
            assert_eq!(options.open(path).unwrap_err().kind(), ErrorKind::PermissionDenied);
        };
        refused(OpenOptions::new().write(true), &file);
        refused(OpenOptions::new().append(true), &file);
        refused(OpenOptions::new().read(true).write(true), &file);
        refused(OpenOptions::new().write(true), Path::new("/dev/null"));
        let flags = [OFlags::CREATE, OFlags::TRUNC, OFlags::TMPFILE, OFlags::RWMODE];
        for flags in flags {
            let opened = rustix::fs::open(&file, flags | OFlags::RDONLY, Mode::RUSR);
            assert_eq!(opened.unwrap_err(), Errno::PERM, "{flags:?}");
        }
        assert_eq!(std::io::read_to_string(kept).unwrap(), "kept");
        // The file and two dots.
        assert_eq!(rustix::fs::Dir::new(directory).unwrap().count(), 3);
    });
}

#[test]
fn nothing_can_be_changed_by_name() {
    in_a_process(|dir| {
        let (file, new) = (dir.join("file"), dir.join("new"));
        std::fs::write(&file, "kept").unwrap();
        enter();
        let answers = [
            std::fs::remove_file(&file),
            std::fs::rename(&file, &new),
            std::fs::hard_link(&file, &new),
            std::os::unix::fs::symlink(&file, &new),
            std::fs::create_dir(&new),
            std::fs::set_permissions(&file, std::fs::metadata(&file).unwrap().permissions()),
        ];
        for (number, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::PermissionDenied, "number {number}");
        }
    });
}

#[test]
fn starting_a_program_fails_before_it_starts() {
    in_a_process(|_| {
        enter();
        let error = Command::new("/bin/true").status().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    });
}

#[test]
fn becoming_another_program_ends_the_process() {
    let outcome = outcome_in_a_process(|_| {
        enter();
        let error = Command::new("/bin/true").exec();
        panic!("still here: {error}");
    });
    assert!(outcome.is_none_or(|outcome| outcome.status.signal() == Some(BAD_CALL)));
}

#[test]
fn another_root_ends_the_process() {
    let outcome = outcome_in_a_process(|_| {
        enter();
        panic!("still here: {:?}", rustix::process::chroot("/"));
    });
    assert!(outcome.is_none_or(|outcome| outcome.status.signal() == Some(BAD_CALL)));
}

#[test]
fn no_socket_can_be_made_and_a_connected_one_reaches_only_its_peer() {
    in_a_process(|dir| {
        let elsewhere = dir.join("socket");
        let other = UnixDatagram::bind(&elsewhere).unwrap();
        let (log, reader) = UnixDatagram::pair().unwrap();
        let kept = [log.as_fd(), reader.as_fd(), other.as_fd()];
        let sandbox = Sandbox::new().streams(StandardStreams::Errors);
        kept.into_iter().fold(sandbox, Sandbox::keep).enter().unwrap();
        let made = UnixDatagram::unbound().unwrap_err();
        assert_eq!(made.kind(), ErrorKind::PermissionDenied);
        assert_eq!(log.send(b"line").unwrap(), 4);
        let sent = log.send_to(b"line", &elsewhere).unwrap_err();
        assert_eq!(sent.kind(), ErrorKind::PermissionDenied);
        let mut line = [0; 8];
        assert_eq!(rustix::io::read(&reader, &mut line).unwrap(), 4);
    });
}

#[test]
fn signals_memory_files_limits_and_pipes_are_refused() {
    in_a_process(|_| {
        enter();
        assert_eq!(rustix::process::test_kill_process(getpid()), Err(Errno::PERM));
        assert_eq!(rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap_err(), Errno::PERM);
        let limit = getrlimit(Resource::Core);
        assert_eq!(setrlimit(Resource::Core, limit), Err(Errno::PERM));
        assert_eq!(rustix::pipe::pipe().unwrap_err(), Errno::PERM);
        assert_eq!(rustix::thread::set_no_new_privs(true), Err(Errno::PERM));
    });
}

/// The kernel checks the flags before the privileges, so the error shows whether the call has reached it.
fn unmount_wrongly() -> Errno {
    let flags = UnmountFlags::from_bits_retain(1 << 30);
    rustix::mount::unmount("/nowhere", flags).unwrap_err()
}

#[test]
fn a_server_cannot_unmount() {
    in_a_process(|_| {
        enter();
        assert_eq!(unmount_wrongly(), Errno::PERM);
    });
}

#[test]
fn the_process_that_unmounts_reaches_the_kernel() {
    in_a_process(|_| {
        Sandbox::new()
            .streams(StandardStreams::Errors)
            .role(SandboxRole::Unmounter)
            .enter()
            .unwrap();
        assert_eq!(unmount_wrongly(), Errno::INVAL);
    });
}

#[test]
fn entering_twice_is_an_error_at_the_first_step() {
    in_a_process(|_| {
        enter();
        let error = Sandbox::new().streams(StandardStreams::Errors).enter().unwrap_err();
        assert_eq!(error.step, SandboxStep::NoNewPrivileges);
        assert_eq!(error.source.kind(), ErrorKind::PermissionDenied);
        assert_eq!(error.to_string(), "cannot set \"no new privileges\"");
    });
}

#[test]
fn without_a_filter_calls_are_not_refused() {
    in_a_process(|dir| {
        let sandbox = Sandbox::new().streams(StandardStreams::Errors).filtered(false);
        assert_eq!(sandbox.enter().unwrap().filter, FilterState::Off);
        File::create(dir.join("file")).unwrap().write_all(b"x").unwrap();
        UnixDatagram::unbound().unwrap();
    });
}
