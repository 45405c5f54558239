//! What a daemon needs works in the sandbox: threads, decoding, memory, priority, panics, reading /proc and /sys.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;

use ferrofs_image::{
    DecodeWorkers, FileType, Image, MemoryPool, OpenOptions, SyncDecompress, VerifyOptions,
    WalkEvent,
};
use ferrofs_mount::sandbox::{CapabilitySet, FilterState, Sandbox, StandardStreams};
use ferrofs_workers::cpus::AvailableCpus;
use ferrofs_workers::memory::available_memory_bytes;
use ferrofs_workers::percpu::PerCpuSettings;
use ferrofs_workers::priority::{self, PriorityRequest};

use rustix::thread::capabilities;

use crate::{in_a_process, outcome_in_a_process, skip};

fn enter() {
    Sandbox::new().streams(StandardStreams::Errors).enter().unwrap();
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// Reads every regular file, each inode once, and returns the number of bytes.
fn read_all(image: &Image) -> u64 {
    let mut bytes = 0;
    let mut seen = HashSet::new();
    let mut buffer = vec![0; 100_000];
    for visit in image.walk(b"/").unwrap() {
        let WalkEvent::Leaf(node) = visit else { continue };
        if node.inode.file_type() != FileType::Regular || !seen.insert(node.inode.nid()) {
            continue;
        }
        let file = image.open_file(&node.inode).unwrap();
        let mut offset = 0;
        loop {
            let count = file.read_at(offset, &mut buffer).unwrap();
            if count == 0 {
                break;
            }
            offset += count as u64;
        }
        bytes += offset;
    }
    bytes
}

#[test]
fn threads_that_start_in_the_sandbox_decode_every_codec() {
    in_a_process(|_| {
        let memory = MemoryPool::new(24 << 20).unwrap();
        let workers =
            DecodeWorkers::new(PerCpuSettings::new("sandboxed").priority(PriorityRequest::Raised));
        let options = OpenOptions::new().memory(&memory).workers(&workers);
        let options = options.sync_decompress(SyncDecompress::ForceOff);
        let names = ["lz4hc-64k", "libdeflate-16k-ztail", "lzma-64k-all", "zstd-64k-fragments"];
        let images: Vec<Image> = names
            .iter()
            .map(|name| options.clone().open(data(&format!("{name}.erofs"))).unwrap())
            .collect();
        assert!(workers.stats().workers.is_empty(), "they start when they are needed");
        enter();
        for (name, image) in names.iter().zip(&images) {
            let summary = image.verify(&VerifyOptions::new(), &mut |_| ()).unwrap();
            assert_eq!(summary.problems, 0, "{name}");
            let counts: Vec<u64> = thread::scope(|scope| {
                let readers: Vec<_> = (0..6).map(|_| scope.spawn(|| read_all(image))).collect();
                readers.into_iter().map(|reader| reader.join().unwrap()).collect()
            });
            assert!(counts.iter().all(|&count| count == summary.bytes && count > 0), "{counts:?}");
        }
        let items = workers.stats().workers.iter().map(|worker| worker.items).sum::<u64>();
        assert!(items > 0, "the workers did nothing");
    });
}

#[test]
fn what_the_system_grants_and_lacks_is_seen_as_before() {
    in_a_process(|_| {
        let (cpus, memory) = (AvailableCpus::read(), available_memory_bytes());
        enter();
        assert_eq!(AvailableCpus::read().cpus(), cpus.cpus());
        assert_eq!(available_memory_bytes(), memory);
        for path in ["/sys/devices/system/cpu/possible", "/proc/self/cgroup", "/proc/meminfo"] {
            assert!(!std::fs::read(path).unwrap().is_empty(), "{path}");
        }
    });
}

fn level_of_a_new_thread() -> priority::PriorityLevel {
    thread::scope(|scope| scope.spawn(|| priority::apply(PriorityRequest::Raised)).join().unwrap())
}

#[test]
fn a_new_thread_reaches_the_same_priority_where_that_was_asked_for() {
    in_a_process(|_| {
        let before = level_of_a_new_thread();
        let may = capabilities(None).unwrap().effective;
        if may.contains(CapabilitySet::SYS_NICE) && !may.contains(CapabilitySet::SYS_RESOURCE) {
            return skip("needs CAP_SYS_RESOURCE: limits replace CAP_SYS_NICE in the sandbox");
        }
        let sandbox = Sandbox::new().streams(StandardStreams::Errors).may_raise_priority(true);
        sandbox.enter().unwrap();
        assert_eq!(level_of_a_new_thread(), before);
    });
}

#[test]
fn a_panic_with_its_backtrace_stays_in_its_thread() {
    let outcome = outcome_in_a_process(|_| {
        enter();
        let outcome = thread::scope(|scope| scope.spawn(|| panic!("one thread ends")).join());
        assert!(outcome.is_err());
        eprintln!("the others live");
    });
    let Some(outcome) = outcome else { return };
    let text = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{text}");
    for words in ["one thread ends", "a_panic_with_its_backtrace", "the others live"] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    assert!(text.contains("working.rs:"), "no line numbers in {text}");
}

#[test]
fn an_abort_ends_as_an_abort() {
    let outcome = outcome_in_a_process(|_| {
        enter();
        std::process::abort();
    });
    let aborted = rustix::process::Signal::ABORT.as_raw();
    assert!(outcome.is_none_or(|outcome| outcome.status.signal() == Some(aborted)));
}

#[test]
fn the_filter_reaches_threads_that_ran_before() {
    in_a_process(|_| {
        let (entered, tried) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            let earlier = scope.spawn(|| {
                entered.wait();
                let answer = std::os::unix::net::UnixDatagram::unbound().map(drop);
                tried.wait();
                let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
                (answer, status)
            });
            // Errors are checked after the barriers, so that the other thread does not wait forever.
            let report = Sandbox::new().streams(StandardStreams::Errors).enter();
            entered.wait();
            tried.wait();
            let report = report.unwrap();
            assert!(report.no_new_privileges, "{report}");
            assert!(matches!(report.filter, FilterState::On { calls } if calls > 50), "{report}");
            let (answer, status) = earlier.join().unwrap();
            assert_eq!(answer.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
            assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");
            assert!(status.contains("Seccomp:\t2\n"), "{status}");
        });
    });
}
