//! Giving a program to the kernel, for every thread of the process. Called by [`super::install`].
#![allow(unsafe_code, reason = "the seccomp system call has no safe binding")]

use std::ffi::{c_long, c_uint, c_ulong, c_ushort};
use std::io;

use super::program::{BpfProgram, SockFilter};

/// The kernel's `struct sock_fprog`.
#[repr(C)]
struct SockFprog {
    length: c_ushort,
    instructions: *const SockFilter,
}

/// Installs `program` on all threads, or on none.
///
/// Kernels before 5.16 take a filtered process for one that runs foreign code, and switch the CPU's
/// speculation over stores off for it, which decoders feel; `SPEC_ALLOW` says that this is not one. The
/// flag is as old as that habit (4.17), so an older kernel is asked again without it.
///
/// # Errors
///
/// As `seccomp`; and where a thread has a filter that this one has not, with that thread's number.
pub(super) fn install(program: &BpfProgram) -> io::Result<()> {
    let fast = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    match install_with(fast, program) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            install_with(libc::SECCOMP_FILTER_FLAG_TSYNC, program)
        }
        action => action,
    }
}

fn install_with(flags: c_ulong, program: &BpfProgram) -> io::Result<()> {
    let instructions = program.instructions();
    let length = c_ushort::try_from(instructions.len()).map_err(io::Error::other)?;
    let description = SockFprog { length, instructions: instructions.as_ptr() };
    let operation: c_uint = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: seccomp(operation, flags, *const sock_fprog) with this operation reads the description
    // and `length` instructions behind it, which are borrowed over the call and laid out as the
    // kernel's sock_filter (repr(C), u16, u8, u8, u32), and writes nothing.
    let action: c_long =
        unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const description) };
    match action {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has a filter of its own"))),
    }
}
