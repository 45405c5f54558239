//! Memory cannot be made executable.
#![allow(unsafe_code, reason = "memory is mapped by hand")]

use std::ptr::null_mut;

use ferrofs_mount::sandbox::{Sandbox, StandardStreams};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

use crate::in_a_process;

#[test]
fn memory_can_be_had_but_not_run() {
    in_a_process(|_| {
        Sandbox::new().streams(StandardStreams::Errors).enter().unwrap();
        let length = rustix::param::page_size();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused address range.
        let page = unsafe { mmap_anonymous(null_mut(), length, both, MapFlags::PRIVATE) };
        let page = page.unwrap();
        // SAFETY: the page was mapped by the call above, and no reference to it exists.
        let executable =
            unsafe { mprotect(page, length, MprotectFlags::READ | MprotectFlags::EXEC) };
        assert_eq!(executable, Err(Errno::PERM));
        let code = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: as for the first call, the kernel chooses an unused address range.
        let mapped = unsafe { mmap_anonymous(null_mut(), length, code, MapFlags::PRIVATE) };
        assert_eq!(mapped.unwrap_err(), Errno::PERM);
    });
}
