//! Files in memory, whose descriptors are passed between the fetcher and its clients.

use std::fs::File;
use std::io;

use rustix::fs::MemfdFlags;
use rustix::io::Errno;

/// A new file in memory, which nobody can execute where the kernel knows how to forbid that (6.3).
///
/// # Errors
/// The system has no memory or no descriptor for it.
pub fn memory_file(name: &str) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC;
    // A system that forbids files in memory that can be executed (vm.memfd_noexec=2) has no others.
    let file = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        other => other?,
    };
    Ok(File::from(file))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_in_memory_cannot_be_executed_where_the_kernel_can_say_so() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
        let is_known = rustix::fs::memfd_create("probe", flags).is_ok();
        let mode = memory_file("test").unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o111 == 0, is_known, "{mode:o}");
    }
}
