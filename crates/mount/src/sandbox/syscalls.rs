//! The table of system calls: what serving an image needs, with the reason for each group; what fails as if the kernel did
//! not have it; what ends the process. docs/trust.md shows the same table. Used by [`super::Sandbox::enter`].

use std::ffi::{c_int, c_long};

use libc::*;

use super::SandboxRole;
use super::seccomp::{ArgumentCondition, SeccompAction, SyscallRule};

/// Allowed with any arguments, the most frequent ones first.
const ALLOWED: &[&[c_long]] = &[READ, WRITE, WAIT, MEMORY, THREADS, SIGNALS, QUERIES, LEGACY, EXIT];

/// The image, requests from the FUSE device, files of `/proc` and `/sys`. `openat` is conditional.
const READ: &[c_long] = &[
    SYS_read,
    SYS_readv,
    SYS_pread64,
    SYS_preadv,
    SYS_preadv2,
    SYS_lseek,
    SYS_fadvise64,
    SYS_close,
    SYS_getdents64,
    SYS_readlinkat,
    SYS_newfstatat,
    SYS_fstat,
    SYS_statx,
    SYS_getcwd,
];

/// Replies to the FUSE device and lines of the log, through descriptors that are open already.
const WRITE: &[c_long] = &[SYS_write, SYS_writev];

/// Allocators, and the arena of the buffers. `mmap` and `mprotect` are conditional.
const MEMORY: &[c_long] =
    &[SYS_brk, SYS_munmap, SYS_mremap, SYS_madvise, SYS_mincore, SYS_getrandom];

/// Locks, sleeping threads, requests.
const WAIT: &[c_long] = &[
    SYS_futex,
    SYS_ppoll,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_eventfd2,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_restart_syscall,
    SYS_wait4,
    SYS_waitid,
];

/// The start and the end of threads, their CPU and their priority. `clone` is conditional.
const THREADS: &[c_long] = &[
    SYS_set_robust_list,
    SYS_rseq,
    SYS_membarrier,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_setaffinity,
    SYS_sched_getscheduler,
    SYS_sched_setscheduler,
    SYS_sched_getparam,
    SYS_getpriority,
    SYS_setpriority,
    SYS_getcpu,
];

/// Handlers, and waiting for signals. Sending signals is conditional.
const SIGNALS: &[c_long] = &[
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_sigaltstack,
    SYS_signalfd4,
];

/// Clocks, identities, statistics of this process, and whether a file exists.
const QUERIES: &[c_long] = &[
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_times,
    SYS_getrusage,
    SYS_sysinfo,
    SYS_uname,
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_faccessat,
    SYS_faccessat2,
];

/// Messages of the process that fetches a remote image, with descriptors beside them, and the end of a connection. Sending
/// is `sendto` without an address.
const RECEIVE: &[c_long] = &[SYS_recvmsg, SYS_shutdown];

const EXIT: &[c_long] = &[SYS_exit, SYS_exit_group];

/// Calls of x86-64 for which other architectures have newer ones.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[c_long] =
    &[SYS_poll, SYS_epoll_wait, SYS_access, SYS_readlink, SYS_stat, SYS_lstat, SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[c_long] = &[];

/// Executing programs, access to other processes, mounts, users, namespaces, code of the kernel, and files by handle.
const KILLED: &[c_long] = &[
    SYS_execve,
    SYS_execveat,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_mount,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_setfsuid,
    SYS_setfsgid,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_bpf,
    SYS_reboot,
    SYS_open_by_handle_at,
];

/// Calls whose arguments are in memory, where a filter cannot read them. C libraries fall back to others on kernels
/// without these.
const NO_SYS: &[c_long] = &[SYS_clone3, SYS_openat2];

/// `statmount` has this number on every architecture; `libc` has no name for it yet.
const SYS_STATMOUNT: c_long = 457;

/// What the process that unmounts needs: commands, the mount table, unmounting, its own end.
const UNMOUNTER: &[c_long] = &[
    #[cfg(target_arch = "x86_64")]
    SYS_poll,
    SYS_ppoll,
    SYS_clock_gettime,
    SYS_read,
    SYS_write,
    SYS_close,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_lseek,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_umount2,
    SYS_STATMOUNT,
    SYS_brk,
    SYS_munmap,
    SYS_mremap,
    SYS_futex,
    SYS_getpid,
    SYS_gettid,
    SYS_restart_syscall,
    SYS_exit,
    SYS_exit_group,
];

/// What a holder needs besides the calls of a server: those by which a server enters its own sandbox, forking and waiting,
/// and reading signals and messages; and answering programs that take the mount over. A server cannot make them once it serves.
const HOLDER: &[c_long] = &[
    #[cfg(target_arch = "x86_64")]
    SYS_dup2,
    SYS_dup3,
    SYS_capget,
    SYS_capset,
    SYS_prctl,
    SYS_seccomp,
    SYS_landlock_create_ruleset,
    SYS_landlock_add_rule,
    SYS_landlock_restrict_self,
    SYS_fcntl,
    SYS_prlimit64,
    SYS_socketpair,
    SYS_recvfrom,
    SYS_accept4,
    SYS_getsockopt,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_kill,
    SYS_tgkill,
];

/// What an unmounting holder needs besides.
const HOLDER_UNMOUNTS: &[c_long] = &[SYS_umount2, SYS_STATMOUNT];

/// The rules for the process with this ID; `may_receive` for a server of a remote image.
pub(super) fn rules(role: SandboxRole, process: u32, may_receive: bool) -> Vec<SyscallRule> {
    let mut rules = match role {
        SandboxRole::Server => every(&ALLOWED.concat(), SeccompAction::Allow),
        SandboxRole::Unmounter => every(UNMOUNTER, SeccompAction::Allow),
        SandboxRole::Holder => every(&[&ALLOWED.concat(), HOLDER].concat(), SeccompAction::Allow),
        SandboxRole::UnmountingHolder => {
            let calls = [&ALLOWED.concat(), HOLDER, HOLDER_UNMOUNTS].concat();
            every(&calls, SeccompAction::Allow)
        }
    };
    rules.extend(memory_and_files());
    match role {
        SandboxRole::Server => rules.extend(conditional(process)),
        SandboxRole::Holder | SandboxRole::UnmountingHolder => rules.extend([
            allow(SYS_clone, vec![is_in_the_same_namespaces()]),
            allow(SYS_sendto, vec![is_null(4)]),
        ]),
        SandboxRole::Unmounter => {}
    }
    if may_receive {
        rules.extend(every(RECEIVE, SeccompAction::Allow));
    }
    rules.extend(every(NO_SYS, SeccompAction::NoSys));
    rules.extend(every(KILLED, SeccompAction::KillProcess));
    rules
}

fn every(calls: &[c_long], action: SeccompAction) -> Vec<SyscallRule> {
    calls.iter().map(|&call| SyscallRule { call, action, conditions: Vec::new() }).collect()
}

fn allow(call: c_long, conditions: Vec<ArgumentCondition>) -> SyscallRule {
    SyscallRule { call, action: SeccompAction::Allow, conditions }
}

/// Files for reading, and memory that is not executable.
fn memory_and_files() -> Vec<SyscallRule> {
    // O_TMPFILE includes O_DIRECTORY, which is allowed.
    let writing = O_ACCMODE | O_CREAT | O_TRUNC | (O_TMPFILE & !O_DIRECTORY);
    vec![
        allow(SYS_openat, vec![has_none_of(2, writing)]),
        #[cfg(target_arch = "x86_64")]
        allow(SYS_open, vec![has_none_of(1, writing)]),
        allow(SYS_mmap, vec![has_none_of(2, PROT_EXEC)]),
        allow(SYS_mprotect, vec![has_none_of(2, PROT_EXEC)]),
    ]
}

/// Calls that are allowed with certain arguments only.
fn conditional(process: u32) -> Vec<SyscallRule> {
    let names = [PR_SET_NAME, PR_GET_NAME, PR_SET_VMA];
    // A lock is that of a server on the journal of its mount.
    let commands = [F_GETFD, F_GETFL, F_SETFD, F_DUPFD_CLOEXEC, F_SETLKW];
    vec![
        allow(SYS_clone, vec![is_a_thread()]),
        allow(SYS_prctl, names.map(|name| is(0, name.cast_unsigned())).to_vec()),
        allow(SYS_fcntl, commands.map(|command| is(1, command.cast_unsigned())).to_vec()),
        // To this process only: abort() does it.
        allow(SYS_tgkill, vec![is(0, process)]),
        // Reading a limit, without setting it.
        allow(SYS_prlimit64, vec![is_null(2)]),
        // To the peer of a connected socket: the log.
        allow(SYS_sendto, vec![is_null(4)]),
    ]
}

/// An int argument without these bits.
fn has_none_of(argument: u8, bits: c_int) -> ArgumentCondition {
    ArgumentCondition { argument, mask: u64::from(bits.cast_unsigned()), value: 0 }
}

/// An int argument with this value; the kernel ignores the upper half of its register.
fn is(argument: u8, value: u32) -> ArgumentCondition {
    ArgumentCondition { argument, mask: u64::from(u32::MAX), value: u64::from(value) }
}

fn is_null(argument: u8) -> ArgumentCondition {
    ArgumentCondition { argument, mask: u64::MAX, value: 0 }
}

/// A thread of this process, in its namespaces.
fn is_a_thread() -> ArgumentCondition {
    let mask = u64::from((CLONE_THREAD | NAMESPACES).cast_unsigned());
    ArgumentCondition { argument: 0, mask, value: u64::from(CLONE_THREAD.cast_unsigned()) }
}

/// A thread or a process, in the namespaces of this one.
fn is_in_the_same_namespaces() -> ArgumentCondition {
    has_none_of(0, NAMESPACES)
}

/// The flags of `clone` for new namespaces.
const NAMESPACES: c_int = CLONE_NEWNS
    | CLONE_NEWCGROUP
    | CLONE_NEWUTS
    | CLONE_NEWIPC
    | CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNET;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::seccomp::tests::action_of;
    use super::super::seccomp::{BpfProgram, SeccompAction};
    use super::*;

    const PROCESS: u32 = 4711;
    const ROLES: [SandboxRole; 4] = [
        SandboxRole::Server,
        SandboxRole::Holder,
        SandboxRole::UnmountingHolder,
        SandboxRole::Unmounter,
    ];

    fn action_for(role: SandboxRole, call: c_long, arguments: [u64; 6]) -> SeccompAction {
        let program = BpfProgram::new(&rules(role, PROCESS, false)).unwrap();
        action_of(&program, (call, arguments))
    }

    fn with(place: usize, value: c_int) -> [u64; 6] {
        let mut arguments = [u64::MAX << 32; 6];
        arguments[place] |= u64::from(value.cast_unsigned());
        arguments
    }

    #[test]
    fn no_call_has_two_rules() {
        for role in ROLES {
            let rules = rules(role, PROCESS, role == SandboxRole::Server);
            let calls: HashSet<c_long> = rules.iter().map(|rule| rule.call).collect();
            assert_eq!(calls.len(), rules.len());
        }
    }

    #[test]
    fn files_are_opened_for_reading_only() {
        for flags in [O_RDONLY, O_RDONLY | O_CLOEXEC | O_DIRECTORY, O_PATH | O_NOFOLLOW] {
            assert_eq!(
                action_for(SandboxRole::Server, SYS_openat, with(2, flags)),
                SeccompAction::Allow,
                "{flags:#o}"
            );
        }
        for flags in [O_WRONLY, O_RDWR, O_ACCMODE, O_CREAT, O_TRUNC, O_TMPFILE, O_RDWR | O_CLOEXEC]
        {
            assert_eq!(
                action_for(SandboxRole::Server, SYS_openat, with(2, flags)),
                SeccompAction::Deny,
                "{flags:#o}"
            );
        }
    }

    #[test]
    fn memory_is_not_executable() {
        for call in [SYS_mmap, SYS_mprotect] {
            for protection in [PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE] {
                assert_eq!(
                    action_for(SandboxRole::Server, call, with(2, protection)),
                    SeccompAction::Allow
                );
                assert_eq!(
                    action_for(SandboxRole::Server, call, with(2, protection | PROT_EXEC)),
                    SeccompAction::Deny
                );
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
        assert_eq!(action_for(SandboxRole::Server, SYS_clone, flags(thread)), SeccompAction::Allow);
        for other in [SIGCHLD, CLONE_VM | CLONE_VFORK | SIGCHLD, thread & !CLONE_THREAD] {
            assert_eq!(
                action_for(SandboxRole::Server, SYS_clone, flags(other)),
                SeccompAction::Deny
            );
        }
        for namespace in [CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET] {
            assert_eq!(
                action_for(SandboxRole::Server, SYS_clone, flags(thread | namespace)),
                SeccompAction::Deny
            );
        }
    }

    #[test]
    fn a_process_signals_only_itself() {
        let process = |number: u32| [u64::from(number), 1, 6, 0, 0, 0];
        assert_eq!(
            action_for(SandboxRole::Server, SYS_tgkill, process(PROCESS)),
            SeccompAction::Allow
        );
        assert_eq!(
            action_for(SandboxRole::Server, SYS_tgkill, process(PROCESS + 1)),
            SeccompAction::Deny
        );
        assert_eq!(
            action_for(SandboxRole::Server, SYS_kill, process(PROCESS)),
            SeccompAction::Deny
        );
    }

    #[test]
    fn limits_are_only_read_and_messages_have_no_address() {
        for (call, place) in [(SYS_prlimit64, 2), (SYS_sendto, 4)] {
            let mut arguments = [u64::MAX; 6];
            arguments[place] = 0;
            assert_eq!(action_for(SandboxRole::Server, call, arguments), SeccompAction::Allow);
            for pointer in [1, 1 << 40, 1 << 63] {
                arguments[place] = pointer;
                assert_eq!(action_for(SandboxRole::Server, call, arguments), SeccompAction::Deny);
            }
        }
    }

    #[test]
    fn prctl_and_fcntl_are_allowed_by_command() {
        for (call, place, good, bad) in [
            (SYS_prctl, 0, PR_SET_NAME, PR_SET_DUMPABLE),
            (SYS_prctl, 0, PR_SET_VMA, PR_SET_MM),
            (SYS_fcntl, 1, F_GETFD, F_SETFL),
            (SYS_fcntl, 1, F_DUPFD_CLOEXEC, F_SETOWN),
            (SYS_fcntl, 1, F_SETLKW, F_SETLEASE),
        ] {
            assert_eq!(
                action_for(SandboxRole::Server, call, with(place, good)),
                SeccompAction::Allow
            );
            assert_eq!(
                action_for(SandboxRole::Server, call, with(place, bad)),
                SeccompAction::Deny
            );
        }
    }

    #[test]
    fn only_a_server_of_a_remote_image_receives_descriptors() {
        let program = BpfProgram::new(&rules(SandboxRole::Server, PROCESS, true)).unwrap();
        for call in [SYS_recvmsg, SYS_shutdown] {
            assert_eq!(action_of(&program, (call, [0; 6])), SeccompAction::Allow);
            assert_eq!(action_for(SandboxRole::Server, call, [0; 6]), SeccompAction::Deny);
        }
        for call in [SYS_socket, SYS_connect, SYS_sendmsg, SYS_recvfrom, SYS_accept4] {
            assert_eq!(action_of(&program, (call, [0; 6])), SeccompAction::Deny);
        }
    }

    #[test]
    fn only_those_unmount_that_are_there_for_it() {
        for role in [SandboxRole::Unmounter, SandboxRole::UnmountingHolder] {
            assert_eq!(action_for(role, SYS_umount2, [0; 6]), SeccompAction::Allow);
        }
        for role in [SandboxRole::Server, SandboxRole::Holder] {
            assert_eq!(action_for(role, SYS_umount2, [0; 6]), SeccompAction::Deny);
        }
    }

    #[test]
    fn a_holder_forks_in_its_namespaces_and_writes_no_file() {
        for role in [SandboxRole::Holder, SandboxRole::UnmountingHolder] {
            for (flags, action) in [
                (SIGCHLD | CLONE_CHILD_CLEARTID, SeccompAction::Allow),
                (SIGCHLD | CLONE_NEWUSER, SeccompAction::Deny),
                (SIGCHLD | CLONE_NEWNS, SeccompAction::Deny),
            ] {
                assert_eq!(action_for(role, SYS_clone, with(0, flags)), action, "{flags:#x}");
            }
            assert_eq!(action_for(role, SYS_openat, with(2, O_RDWR)), SeccompAction::Deny);
            assert_eq!(action_for(role, SYS_mmap, with(2, PROT_EXEC)), SeccompAction::Deny);
        }
    }

    #[test]
    fn dangerous_calls_end_the_process_and_hidden_arguments_get_enosys() {
        for role in ROLES {
            for call in
                [SYS_execve, SYS_execveat, SYS_ptrace, SYS_mount, SYS_setuid, SYS_setns, SYS_bpf]
            {
                assert_eq!(action_for(role, call, [0; 6]), SeccompAction::KillProcess);
            }
            for call in [SYS_clone3, SYS_openat2] {
                assert_eq!(action_for(role, call, [0; 6]), SeccompAction::NoSys);
            }
            for call in [SYS_socket, SYS_ioctl, SYS_memfd_create, SYS_io_uring_setup, SYS_unlinkat]
            {
                assert_eq!(action_for(role, call, [0; 6]), SeccompAction::Deny);
            }
        }
    }

    #[test]
    fn the_unmounter_starts_no_thread_and_sends_no_signal() {
        for call in [SYS_clone, SYS_tgkill, SYS_kill, SYS_prctl, SYS_sendto, SYS_setpriority] {
            assert_eq!(action_for(SandboxRole::Unmounter, call, [0; 6]), SeccompAction::Deny);
        }
        assert_eq!(
            action_for(SandboxRole::Unmounter, SYS_openat, with(2, O_RDWR)),
            SeccompAction::Deny
        );
    }
}
