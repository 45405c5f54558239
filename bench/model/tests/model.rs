//! The simulated machine: its directory of cache lines against traces that were worked out by hand, and queues and jobs over
//! its CPUs.
#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use ferrofs_model::cached_reads::{self, PARTS};
use ferrofs_model::faults::{self, CHUNK_BYTES, KERNEL, Kernel};
use ferrofs_model::machine::Access::{Load as Read, Store, Update};
use ferrofs_model::machine::CoherenceEvent::{Cold, Fetch, Hit, Invalidation, Transfer};
use ferrofs_model::machine::Distance::{Far, Near};
use ferrofs_model::machine::{
    self, Access, CPUS_MAX, CoherenceEvent, Costs, Counts, Directory, Shape, picoseconds,
};
use ferrofs_model::stream::{self, Flow, Load, QUEUES};

/// CPUs 0 and 1 in one socket, 2 and 3 in the other.
const TWO_SOCKETS: Shape = Shape { cpus: 4, cpus_per_socket: 2 };

fn costs() -> Costs {
    Costs { hit: 1.0, near: 10.0, far: 100.0, occupancy: 3.0, locked: 5.0, ..Costs::default() }
}

#[test]
fn every_transition_is_the_one_worked_out_by_hand() {
    let mut directory = Directory::new(TWO_SOCKETS, costs());
    let trace: [(usize, Access, CoherenceEvent); 14] = [
        (0, Read, Cold),                // Exclusive 0
        (0, Store, Hit),                // Modified 0
        (1, Read, Fetch(Near)),         // Shared 0 1
        (0, Read, Hit),                 // Shared 0 1
        (0, Store, Invalidation(Near)), // Modified 0
        (2, Read, Fetch(Far)),          // Shared 0 2
        (3, Read, Fetch(Near)),         // Shared 0 2 3: from 2, which is nearer than 0
        (3, Update, Invalidation(Far)), // Modified 3
        (2, Update, Transfer(Near)),    // Modified 2
        (0, Store, Transfer(Far)),      // Modified 0
        (0, Update, Hit),               // Modified 0
        (1, Read, Fetch(Near)),         // Shared 0 1
        (2, Store, Transfer(Far)),      // Modified 2
        (2, Read, Hit),                 // Modified 2
    ];
    for (index, (cpu, access, expected)) in trace.into_iter().enumerate() {
        let (event, _) = directory.access(cpu, 7, access, 0);
        assert_eq!(event, expected, "step {index}: {access:?} by CPU {cpu}");
    }
    assert_eq!(directory.counts, Counts { moves: 7, upgrades: 2 });
}

#[test]
fn lines_have_nothing_to_do_with_each_other() {
    let mut directory = Directory::new(TWO_SOCKETS, costs());
    let trace =
        [(0, 0, Store, Cold), (0, 1, Store, Cold), (1, 0, Read, Fetch(Near)), (0, 1, Store, Hit)];
    for (cpu, line, access, expected) in trace {
        assert_eq!(directory.access(cpu, line, access, 0).0, expected);
    }
}

#[test]
fn an_access_takes_what_its_distance_and_its_turn_cost() {
    // Which CPU does what to a line, when, and when it has done so, in nanoseconds.
    let check = |name: &str, cpus_per_socket, trace: &[(usize, Access, f64, f64)]| {
        let mut directory = Directory::new(Shape { cpus: 8, cpus_per_socket }, costs());
        for &(cpu, access, begin, end) in trace {
            let found = directory.access(cpu, 0, access, picoseconds(begin)).1;
            assert_eq!(found, picoseconds(end), "{name}: {access:?} by CPU {cpu}");
        }
    };
    let distances =
        [(0, Store, 0.0, 1.0), (0, Update, 1.0, 1.0 + 1.0 + 5.0), (1, Read, 1e3, 1011.0)];
    check("a distance and a locked instruction", 2, &distances);
    check("another socket", 2, &[(1, Store, 0.0, 1.0), (2, Store, 2e3, 2101.0)]);
    // At the same moment: 1 has it after 10, 2 after another 100, 3 after another 10.
    let writers = [
        (0, Store, 0.0, 1.0),
        (1, Store, 0.0, 11.0),
        (2, Store, 0.0, 111.0),
        (3, Store, 0.0, 121.0),
    ];
    check("one writer after the other", 2, &writers);
    // The first takes it from its owner: 10. The others follow 3 apart.
    let readers =
        [(0, Store, 0.0, 1.0), (1, Read, 0.0, 11.0), (2, Read, 0.0, 21.0), (3, Read, 0.0, 24.0)];
    check(
        "readers wait for each other but briefly",
        8,
        &[&readers[..], &[(4, Read, 0.0, 27.0)]].concat(),
    );
}

const LOAD: Load = Load { slots: 4, request: 3400.0, warm_up: 200, requests: 200 };

fn flow(queue: &'static str, cpus: usize) -> Flow {
    flow_of(queue, Shape { cpus, cpus_per_socket: 16 }, LOAD)
}

fn flow_of(queue: &'static str, shape: Shape, load: Load) -> Flow {
    stream::run(queue, shape, Costs::default(), load).unwrap()
}

/// Of queues and of readers.
fn each_run(mut check: impl FnMut(&str, &dyn Fn(usize) -> Flow)) {
    QUEUES.into_iter().for_each(|queue| check(queue, &|cpus| flow(queue, cpus)));
    PARTS.into_iter().for_each(|part| check(part, &|cpus| reads(part, cpus)));
}

#[test]
fn two_runs_are_equal() {
    each_run(|name, run| {
        for cpus in [1, 7, 40] {
            // Something else in the heap, so that nothing lies where it lay.
            let first = run(cpus);
            let _between: Vec<Vec<u8>> = (0..100).map(|bytes| vec![0; bytes * 7 + 8]).collect();
            assert_eq!(first, run(cpus), "{name}, {cpus} CPUs");
        }
    });
}

#[test]
fn one_cpu_moves_no_line() {
    each_run(|name, run| assert_eq!(run(1).counts, Counts::default(), "{name}"));
}

/// Linux's fair class gives two threads of one CPU as much of it: a submitter that looks for a free slot looks for as
/// long as its worker has worked and looked for requests.
#[test]
fn on_one_cpu_two_threads_that_look_share_it_evenly() {
    let load = Load { warm_up: 500, requests: 2000, ..LOAD };
    let flow = flow_of("original", Shape { cpus: 1, cpus_per_socket: 1 }, load);
    let worker = load.request + 1000.0 * Costs::default().pause;
    let turns = 1e9 / flow.per_second() / worker;
    assert!((1.9..2.6).contains(&turns), "a request takes {turns} times what its worker does");
}

/// With every worker queue in turn each worker sleeps between its turns, and to wake it costs the submitter half of its time:
/// 2.0 instead of 7.4 million requests a second.
#[test]
fn more_workers_than_one_submitter_can_feed_cost_it_nothing() {
    let load = Load { warm_up: 3000, requests: 1000, ..LOAD };
    let flow = |cpus| flow_of("ours", Shape { cpus, cpus_per_socket: 32 }, load);
    let (fed, unfed) = (flow(32), flow(128));
    assert!(unfed.per_second() > 0.95 * fed.per_second(), "{fed:?}, {unfed:?}");
    assert!(unfed.per_request(unfed.wakes) < 0.01, "{unfed:?}");
}

#[test]
fn no_queue_is_faster_than_its_cpus_allow() {
    for queue in QUEUES {
        for cpus in [1, 2, 4, 40] {
            let workers = if queue == "ours" { cpus } else { (cpus - 1).max(1) };
            let most = workers as f64 * 1e9 / LOAD.request;
            let flow = flow(queue, cpus);
            assert!(flow.per_second() <= most * 1.02, "{queue}, {cpus} CPUs: {flow:?}");
            assert!(flow.per_second() > 10_000.0, "{queue}, {cpus} CPUs: {flow:?}");
        }
    }
}

#[test]
fn lines_that_all_write_move_more_with_more_cpus_and_own_lines_do_not() {
    let moves = |queue, cpus| {
        let flow = flow(queue, cpus);
        flow.per_request(flow.counts.moves)
    };
    assert!(moves("original", 40) > 3.0 * moves("original", 4));
    for queue in ["per-thread", "ours-waiting", "ours"] {
        assert!(moves(queue, 40) < 1.5 * moves(queue, 4), "{queue}");
    }
}

#[test]
fn an_impossible_machine_is_refused() {
    for cpus in [0, CPUS_MAX + 1] {
        let shape = Shape { cpus, cpus_per_socket: 1 };
        machine::run(shape, Costs::default(), || ()).unwrap_err();
    }
    let none = Load { requests: 0, ..LOAD };
    let shape = Shape { cpus: 2, cpus_per_socket: 2 };
    stream::run("ours", shape, Costs::default(), none).unwrap_err();
}

#[test]
fn a_panic_on_a_simulated_cpu_ends_the_run_and_the_next_one_begins_anew() {
    let shape = Shape { cpus: 2, cpus_per_socket: 2 };
    let fallen = std::panic::catch_unwind(|| {
        machine::run(shape, Costs::default(), || panic!("a simulated thread"))
    });
    fallen.unwrap_err();
    assert_eq!(machine::run(shape, Costs::default(), || 7).unwrap(), 7);
}

fn fault(kernel: Kernel, chunks: u64, threads: usize) -> faults::Faulting {
    let shape = Shape { cpus: 32, cpus_per_socket: 16 };
    faults::run(shape, Costs::default(), kernel, chunks * CHUNK_BYTES, threads).unwrap()
}

#[test]
fn faults_on_one_thread_take_what_they_cost() {
    let pages = (4 * CHUNK_BYTES / faults::PAGE_BYTES) as f64;
    let expected = pages * (KERNEL.page + KERNEL.hold / f64::from(KERNEL.batch));
    let one = fault(KERNEL, 4, 1);
    assert_eq!((one.threads, one.moves), (1, 0));
    assert!((one.nanoseconds / expected - 1.0).abs() < 0.01, "{one:?}");
}

#[test]
fn threads_share_the_chunks_until_a_lock_or_the_memory_is_full() {
    let free = Kernel { hold: 0.0, bandwidth: 1e6, ..KERNEL };
    let speed_up =
        |kernel, threads| fault(kernel, 32, 1).nanoseconds / fault(kernel, 32, threads).nanoseconds;
    assert!((speed_up(free, 2) - 2.0).abs() < 0.05);
    assert!(speed_up(free, 16) > 14.0);
    // A lock that is held for as long as the work takes lets two threads a socket work.
    let locked = Kernel { hold: free.page * f64::from(free.batch), ..free };
    assert!((speed_up(locked, 16) - 2.0).abs() < 0.3, "{}", speed_up(locked, 16));
    // Memory that takes what four threads write.
    let narrow = Kernel { bandwidth: 4.0 * faults::PAGE_BYTES as f64 / free.page, ..free };
    assert!((speed_up(narrow, 16) - 4.0).abs() < 0.3, "{}", speed_up(narrow, 16));
}

fn reads(part: &'static str, cpus: usize) -> Flow {
    let shape = Shape { cpus, cpus_per_socket: 64 };
    cached_reads::run(part, shape, Costs::default(), 3000.0, 200_000.0).unwrap()
}

/// The cache has a shard for each CPU, buffers and statistics have one for each thread.
#[test]
fn reads_on_64_cpus_have_at_least_0_8_of_one_cpu_each() {
    let scaling =
        PARTS.map(|part| reads(part, 64).per_second() / 64.0 / reads(part, 1).per_second());
    assert!(scaling.iter().all(|one| (0.8..1.01).contains(one)), "{scaling:?}");
    let [_, buffers, statistics, _] = scaling;
    assert!(buffers > 0.99 && statistics > 0.99, "{scaling:?}");
}
