//! The table as a whole, and each of its conditions at its edges.

use std::collections::HashSet;

use super::super::program::tests::answer_of;
use super::super::program::{BpfProgram, SeccompAction};
use super::*;

const PROCESS: u32 = 4711;

fn ask(may_unmount: bool, call: c_long, arguments: [u64; 6]) -> SeccompAction {
    let program = BpfProgram::new(&rules(may_unmount, PROCESS)).unwrap();
    answer_of(&program, (call, arguments))
}

fn with(place: usize, value: c_int) -> [u64; 6] {
    let mut arguments = [u64::MAX << 32; 6];
    arguments[place] |= u64::from(value.cast_unsigned());
    arguments
}

#[test]
fn no_call_has_two_rules() {
    let rules = rules(true, PROCESS);
    let calls: HashSet<c_long> = rules.iter().map(|rule| rule.call).collect();
    assert_eq!(calls.len(), rules.len());
}

#[test]
fn files_are_opened_for_reading_only() {
    for flags in [O_RDONLY, O_RDONLY | O_CLOEXEC | O_DIRECTORY, O_PATH | O_NOFOLLOW] {
        assert_eq!(ask(false, SYS_openat, with(2, flags)), SeccompAction::Allow, "{flags:#o}");
    }
    for flags in [O_WRONLY, O_RDWR, O_ACCMODE, O_CREAT, O_TRUNC, O_TMPFILE, O_RDWR | O_CLOEXEC] {
        assert_eq!(ask(false, SYS_openat, with(2, flags)), SeccompAction::Deny, "{flags:#o}");
    }
}

#[test]
fn memory_is_data() {
    for call in [SYS_mmap, SYS_mprotect] {
        for protection in [PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE] {
            assert_eq!(ask(false, call, with(2, protection)), SeccompAction::Allow);
            assert_eq!(ask(false, call, with(2, protection | PROT_EXEC)), SeccompAction::Deny);
        }
    }
}

#[test]
fn a_clone_is_a_thread_in_the_same_namespaces() {
    let thread = CLONE_VM
        | CLONE_FS
        | CLONE_FILES
        | CLONE_SIGHAND
        | CLONE_THREAD
        | CLONE_SYSVSEM
        | CLONE_SETTLS
        | CLONE_PARENT_SETTID
        | CLONE_CHILD_CLEARTID;
    let flags = |flags: c_int| with(0, flags);
    assert_eq!(ask(false, SYS_clone, flags(thread)), SeccompAction::Allow);
    for other in [SIGCHLD, CLONE_VM | CLONE_VFORK | SIGCHLD, thread & !CLONE_THREAD] {
        assert_eq!(ask(false, SYS_clone, flags(other)), SeccompAction::Deny);
    }
    for namespace in [CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET] {
        assert_eq!(ask(false, SYS_clone, flags(thread | namespace)), SeccompAction::Deny);
    }
}

#[test]
fn a_process_signals_itself_and_nobody_else() {
    let process = |number: u32| [u64::from(number), 1, 6, 0, 0, 0];
    assert_eq!(ask(false, SYS_tgkill, process(PROCESS)), SeccompAction::Allow);
    assert_eq!(ask(false, SYS_tgkill, process(PROCESS + 1)), SeccompAction::Deny);
    assert_eq!(ask(false, SYS_kill, process(PROCESS)), SeccompAction::Deny);
}

#[test]
fn limits_are_asked_for_and_lines_sent_without_an_address() {
    for (call, place) in [(SYS_prlimit64, 2), (SYS_sendto, 4)] {
        let mut arguments = [u64::MAX; 6];
        arguments[place] = 0;
        assert_eq!(ask(false, call, arguments), SeccompAction::Allow);
        for pointer in [1, 1 << 40, 1 << 63] {
            arguments[place] = pointer;
            assert_eq!(ask(false, call, arguments), SeccompAction::Deny);
        }
    }
}

#[test]
fn threads_are_named_and_descriptors_asked_about() {
    for (call, place, good, bad) in [
        (SYS_prctl, 0, PR_SET_NAME, PR_SET_DUMPABLE),
        (SYS_prctl, 0, PR_SET_VMA, PR_SET_MM),
        (SYS_fcntl, 1, F_GETFD, F_SETFL),
        (SYS_fcntl, 1, F_DUPFD_CLOEXEC, F_SETLK),
    ] {
        assert_eq!(ask(false, call, with(place, good)), SeccompAction::Allow);
        assert_eq!(ask(false, call, with(place, bad)), SeccompAction::Deny);
    }
}

#[test]
fn unmounting_is_a_wish() {
    assert_eq!(ask(true, SYS_umount2, [0; 6]), SeccompAction::Allow);
    assert_eq!(ask(false, SYS_umount2, [0; 6]), SeccompAction::Deny);
}

#[test]
fn programs_mounts_and_users_end_it_and_hidden_arguments_are_unknown() {
    for call in [SYS_execve, SYS_execveat, SYS_ptrace, SYS_mount, SYS_setuid, SYS_setns, SYS_bpf] {
        assert_eq!(ask(true, call, [0; 6]), SeccompAction::KillProcess);
    }
    for call in [SYS_clone3, SYS_openat2] {
        assert_eq!(ask(true, call, [0; 6]), SeccompAction::NoSys);
    }
    for call in [SYS_socket, SYS_ioctl, SYS_memfd_create, SYS_io_uring_setup, SYS_unlinkat] {
        assert_eq!(ask(true, call, [0; 6]), SeccompAction::Deny);
    }
}
