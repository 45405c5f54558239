//! Descriptors: which stay open, and how the others are replaced.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use ferrofs_mount::sandbox::{
    DescriptorAccess, OpenDescriptor, Sandbox, SandboxStatus, StandardStreams,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::in_a_process;

fn find<'a>(report: &'a SandboxStatus, fd: BorrowedFd<'_>) -> &'a OpenDescriptor {
    let number = fd.as_raw_fd().unsigned_abs();
    report.descriptors.iter().find(|descriptor| descriptor.number == number).unwrap()
}

fn is_null(descriptor: &OpenDescriptor) -> bool {
    descriptor.access == DescriptorAccess::Read && descriptor.target == Path::new("/dev/null")
}

#[test]
fn files_to_read_stay_and_everything_else_that_is_not_kept_goes() {
    in_a_process(|dir| {
        let path = dir.join("file");
        std::fs::write(&path, "image").unwrap();
        let mut image = File::open(&path).unwrap();
        let mut written = File::options().append(true).open(&path).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let place = rustix::fs::open(dir, OFlags::PATH, Mode::empty()).unwrap();
        let directory = File::open(dir).unwrap();
        let report = Sandbox::new().streams(StandardStreams::Errors).enter().unwrap();
        let gone = [
            written.as_fd(),
            reader.as_fd(),
            writer.as_fd(),
            socket.as_fd(),
            place.as_fd(),
            directory.as_fd(),
        ];
        for fd in gone {
            assert!(is_null(find(&report, fd)), "{report}");
        }
        assert_eq!(find(&report, image.as_fd()).target, path);
        assert_eq!(find(&report, image.as_fd()).access, DescriptorAccess::Read);
        assert!(report.replaced >= gone.len(), "{report}");
        let mut text = String::new();
        image.read_to_string(&mut text).unwrap();
        assert_eq!(text, "image");
        assert_eq!(written.write(b"x").unwrap_err().raw_os_error(), Some(9), "EBADF");
        assert_eq!(rustix::io::read(&reader, &mut [0; 8]), Ok(0));
    });
}

#[test]
fn what_is_kept_stays_open_as_it_was() {
    in_a_process(|_| {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (kept, lost) = std::os::unix::net::UnixStream::pair().unwrap();
        kept.set_nonblocking(true).unwrap();
        let sandbox = Sandbox::new().streams(StandardStreams::Errors);
        let sandbox = sandbox.keep(reader.as_fd()).keep(writer.as_fd()).keep(kept.as_fd());
        let report = sandbox.enter().unwrap();
        assert_eq!(find(&report, writer.as_fd()).access, DescriptorAccess::Write);
        assert_eq!(find(&report, kept.as_fd()).access, DescriptorAccess::ReadWrite);
        assert_eq!(rustix::io::write(&writer, b"line"), Ok(4));
        assert_eq!(rustix::io::read(&reader, &mut [0; 8]), Ok(4));
        // The descriptor was closed, not only hidden.
        assert_eq!(rustix::io::read(&kept, &mut [0; 8]), Ok(0));
        drop(lost);
    });
}

#[test]
fn only_what_is_kept_can_be_written_to() {
    in_a_process(|_| {
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let report =
            Sandbox::new().streams(StandardStreams::None).keep(writer.as_fd()).enter().unwrap();
        let writable: Vec<_> =
            report.descriptors.iter().filter(|found| found.access.is_writable()).collect();
        assert_eq!(writable, [find(&report, writer.as_fd())], "{report}");
        for number in 0..3 {
            assert!(report.descriptors.iter().any(|fd| fd.number == number && is_null(fd)));
        }
        // Printing neither fails nor panics.
        println!("lost");
        eprintln!("lost");
        assert_eq!(rustix::io::write(rustix::stdio::stdout(), b"x"), Err(Errno::BADF));
    });
}

#[test]
fn a_forgotten_owner_closes_only_its_own_number() {
    in_a_process(|_| {
        let (forgotten, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let number = forgotten.as_raw_fd();
        Sandbox::new().streams(StandardStreams::Errors).enter().unwrap();
        let before = File::open("/proc/self/status").unwrap();
        assert_ne!(before.as_raw_fd(), number, "the number was not free");
        drop(forgotten);
        let after = File::open("/proc/self/status").unwrap();
        assert_eq!(after.as_raw_fd(), number, "now it is");
    });
}
