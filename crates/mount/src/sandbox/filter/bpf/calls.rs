//! The table of system calls: what serving an image needs, each group with its reason; what is answered
//! as if the kernel did not have it; what ends the process. docs/trust.md shows the same to readers.
//! It makes no call; read by [`super::install`].

use std::ffi::{c_int, c_long};

use libc::*;

use super::program::{ArgumentCondition, SeccompAction, SyscallRule};

/// Allowed with any arguments, frequent ones first.
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

/// Answers to the FUSE device, lines of the log: only through descriptors that are open already.
const WRITE: &[c_long] = &[SYS_write, SYS_writev];

/// Allocators, the arena, its return under pressure. `mmap` and `mprotect` are conditional.
const MEMORY: &[c_long] =
    &[SYS_brk, SYS_munmap, SYS_mremap, SYS_madvise, SYS_mincore, SYS_getrandom];

/// Locks, sleepers, requests.
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

/// Threads that begin, end, and ask for a CPU or a priority. `clone` is conditional.
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

/// Handlers, and waiting for signals. Sending is conditional.
const SIGNALS: &[c_long] = &[
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_sigaltstack,
    SYS_signalfd4,
];

/// Clocks, identities, figures of this process, and whether a file is there.
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

const EXIT: &[c_long] = &[SYS_exit, SYS_exit_group];

/// What other architectures do by newer calls.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[c_long] =
    &[SYS_poll, SYS_epoll_wait, SYS_access, SYS_readlink, SYS_stat, SYS_lstat, SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[c_long] = &[];

/// Starting programs, other processes, mounts, users, namespaces, the kernel's code, and files by
/// handle.
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

/// Calls whose arguments lie in memory, where a filter cannot see them; C libraries have others for
/// kernels without these.
const NO_SYS: &[c_long] = &[SYS_clone3, SYS_openat2];

/// The rules, of a process with this number.
pub(super) fn rules(may_unmount: bool, process: u32) -> Vec<SyscallRule> {
    let every = |calls: &[c_long], action| -> Vec<SyscallRule> {
        calls.iter().map(|&call| SyscallRule { call, action, conditions: Vec::new() }).collect()
    };
    let mut rules = every(&ALLOWED.concat(), SeccompAction::Allow);
    rules.extend(conditional(process));
    if may_unmount {
        rules.extend(every(&[SYS_umount2], SeccompAction::Allow));
    }
    rules.extend(every(NO_SYS, SeccompAction::NoSys));
    rules.extend(every(KILLED, SeccompAction::KillProcess));
    rules
}

/// Calls that are allowed with certain arguments.
fn conditional(process: u32) -> Vec<SyscallRule> {
    let allow = |call, conditions| SyscallRule { call, action: SeccompAction::Allow, conditions };
    // O_DIRECTORY is a part of O_TMPFILE, and wanted.
    let writing = O_ACCMODE | O_CREAT | O_TRUNC | (O_TMPFILE & !O_DIRECTORY);
    let names = [PR_SET_NAME, PR_GET_NAME, PR_SET_VMA];
    let commands = [F_GETFD, F_GETFL, F_SETFD, F_DUPFD_CLOEXEC];
    vec![
        allow(SYS_openat, vec![has_none_of(2, writing)]),
        #[cfg(target_arch = "x86_64")]
        allow(SYS_open, vec![has_none_of(1, writing)]),
        allow(SYS_mmap, vec![has_none_of(2, PROT_EXEC)]),
        allow(SYS_mprotect, vec![has_none_of(2, PROT_EXEC)]),
        allow(SYS_clone, vec![is_a_thread()]),
        allow(SYS_prctl, names.map(|name| is(0, name.cast_unsigned())).to_vec()),
        allow(SYS_fcntl, commands.map(|command| is(1, command.cast_unsigned())).to_vec()),
        // To oneself only: abort() does it.
        allow(SYS_tgkill, vec![is(0, process)]),
        // Asking for a limit, without setting it.
        allow(SYS_prlimit64, vec![is_null(2)]),
        // To where the socket is connected: the log.
        allow(SYS_sendto, vec![is_null(4)]),
    ]
}

/// An int without these bits.
fn has_none_of(argument: u8, bits: c_int) -> ArgumentCondition {
    ArgumentCondition { argument, mask: u64::from(bits.cast_unsigned()), value: 0 }
}

/// An int, of which the kernel ignores the upper half of the register.
fn is(argument: u8, value: u32) -> ArgumentCondition {
    ArgumentCondition { argument, mask: u64::from(u32::MAX), value: u64::from(value) }
}

fn is_null(argument: u8) -> ArgumentCondition {
    ArgumentCondition { argument, mask: u64::MAX, value: 0 }
}

/// A thread of this process, in its namespaces.
fn is_a_thread() -> ArgumentCondition {
    let namespaces = CLONE_NEWNS
        | CLONE_NEWCGROUP
        | CLONE_NEWUTS
        | CLONE_NEWIPC
        | CLONE_NEWUSER
        | CLONE_NEWPID
        | CLONE_NEWNET;
    let mask = u64::from((CLONE_THREAD | namespaces).cast_unsigned());
    ArgumentCondition { argument: 0, mask, value: u64::from(CLONE_THREAD.cast_unsigned()) }
}

#[cfg(test)]
mod tests;
