//! Reading the statistics of a running mount.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use ferrofs_mount::stats::{
    LatencyQuantiles, MountStats, OperationKind, OperationRecord, StatsError, known, query,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::mounted::{TestMount, skip};

/// The statistics once they fulfil a condition: a listener records a request after its caller has the reply.
fn stats_when(mounted: &TestMount, are_there: impl Fn(&MountStats) -> bool) -> MountStats {
    let mut asked = (0..1000).map(|_| query(mounted.path()).unwrap());
    asked.find(are_there).expect("the condition holds within 1000 queries")
}

#[test]
fn the_statistics_count_requests_and_decoding() {
    let Some(mounted) = TestMount::of("lz4.erofs") else { return };
    let before = query(mounted.path()).unwrap().summary;
    assert_eq!(before.operation(OperationKind::Read), OperationRecord::default());
    let bytes = mounted.read_all();
    // The kernel reads files to their end, and no byte twice; some bytes were stored before they were requested.
    let given = |now: &MountStats| now.summary.session.stored_bytes;
    let asked = |now: &MountStats| now.summary.operation(OperationKind::Read).bytes;
    let after = stats_when(&mounted, |now| asked(now) + given(now) >= bytes);
    let read = after.summary.operation(OperationKind::Read);
    assert!(read.bytes > 0 && read.bytes <= bytes && read.errors == 0, "{read:?} of {bytes}");
    let LatencyQuantiles { count, sum_ns, p50_ns, p99_ns, p999_ns, max_ns } = read.time;
    assert!(count > 0 && p50_ns > 0, "{read:?}");
    assert!(p50_ns <= p99_ns && p99_ns <= p999_ns && p999_ns <= max_ns && max_ns <= sum_ns);
    let listings = [OperationKind::ReadDir, OperationKind::ReadDirPlus]
        .map(|kind| after.summary.operation(kind));
    assert!(listings.iter().any(|listing| listing.time.count > 0 && listing.bytes > 0));
    let clusters = after.summary.clusters;
    assert!(clusters.decoded > 0 && clusters.time.p50_ns > 0 && clusters.bytes_served > 0);
    assert!(after.summary.top_files[0].bytes > 0);
    stats_when(&mounted, |now| now.summary.operation(OperationKind::Ioctl).time.count > 1);
}

#[test]
fn the_statistics_can_be_read_from_any_directory() {
    let Some(mounted) = TestMount::of("lz4.erofs") else { return };
    let (_, below) = mounted.walked();
    for directory in [mounted.path(), &below] {
        let stats = query(directory).unwrap();
        assert_eq!(stats.summary.pid, u64::from(std::process::id()));
        assert_eq!(stats.release, env!("CARGO_PKG_VERSION"));
        assert_eq!(stats.summary.session.listeners, 2);
        assert!(stats.summary.session.granted & stats.summary.session.requested != 0);
        let mount = stats.mount.unwrap();
        assert_eq!((mount.file_system_type.as_str(), mount.user_id), ("fuse.ferrofs", Some(0)));
        assert_eq!(
            (mount.mount_point.as_path(), mount.source),
            (mounted.path(), "image of a test".into())
        );
    }
}

#[test]
fn failed_requests_are_counted_and_the_last_event_is_kept() {
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join("shrinks.erofs");
    let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/lz4.erofs");
    fs::copy(image, &copy).unwrap();
    let Some(mounted) = TestMount::of_file(&copy) else { return };
    let before = query(mounted.path()).unwrap().summary;
    assert_eq!((before.log_events.failed, known(before.log_events.last_age_ns)), (0, None));
    let (files, _) = mounted.walked();
    File::options().write(true).open(&copy).unwrap().set_len(4096).unwrap();
    let failed = files.iter().filter(|file| fs::read(file).is_err()).count();
    assert!(failed > 0);
    let errors = |now: &MountStats| -> u64 {
        OperationKind::ALL.into_iter().map(|kind| now.summary.operation(kind).errors).sum()
    };
    let after = stats_when(&mounted, |now| errors(now) >= failed as u64).summary;
    assert!(after.log_events.failed > 0 && known(after.log_events.last_age_ns).is_some());
    let text = String::from_utf8_lossy(&after.log_events.last_text);
    assert!(text.contains(" of nid "), "{text}");
}

#[test]
fn other_ioctls_get_enotty() {
    let Some(mounted) = TestMount::of("plain.erofs") else { return };
    let directory = File::open(mounted.path()).unwrap();
    // FS_IOC_GETFLAGS, which `lsattr` sends.
    assert_eq!(rustix::fs::ioctl_getflags(&directory).err(), Some(Errno::NOTTY));
}

#[test]
fn a_mount_whose_process_has_ended_is_disconnected() {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let Ok(device) = device else { return skip("needs FUSE: /dev/fuse cannot be opened") };
    let dir = TempDir::new().unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    let made = mount("x", dir.path(), "fuse.ferrofs", MountFlags::RDONLY, Some(options.as_c_str()));
    if made.is_err() {
        return skip("needs FUSE: this user cannot mount");
    }
    drop(device);
    let asked = query(dir.path()).err();
    unmount(dir.path(), UnmountFlags::DETACH).unwrap();
    assert_eq!(asked, Some(StatsError::Disconnected));
}
