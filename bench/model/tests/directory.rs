//! The directory of lines, against traces that were worked out by hand.

use ferrofs_model::machine::Access::{Load, Store, Update};
use ferrofs_model::machine::CoherenceEvent::{Cold, Fetch, Hit, Invalidation, Transfer};
use ferrofs_model::machine::Distance::{Far, Near};
use ferrofs_model::machine::{
    Access, CoherenceEvent, Costs, Counts, Directory, Shape, picoseconds,
};

/// CPUs 0 and 1 in one socket, 2 and 3 in the other.
const TWO_SOCKETS: Shape = Shape { cpus: 4, cpus_a_socket: 2 };

fn costs() -> Costs {
    Costs { hit: 1.0, near: 10.0, far: 100.0, occupancy: 3.0, locked: 5.0, ..Costs::default() }
}

fn directory() -> Directory {
    Directory::new(TWO_SOCKETS, costs())
}

#[test]
fn every_transition_is_the_one_worked_out_by_hand() {
    let mut directory = directory();
    let trace: [(usize, Access, CoherenceEvent); 14] = [
        (0, Load, Cold),                // Exclusive 0
        (0, Store, Hit),                // Modified 0
        (1, Load, Fetch(Near)),         // Shared 0 1
        (0, Load, Hit),                 // Shared 0 1
        (0, Store, Invalidation(Near)), // Modified 0
        (2, Load, Fetch(Far)),          // Shared 0 2
        (3, Load, Fetch(Near)),         // Shared 0 2 3: from 2, which is nearer than 0
        (3, Update, Invalidation(Far)), // Modified 3
        (2, Update, Transfer(Near)),    // Modified 2
        (0, Store, Transfer(Far)),      // Modified 0
        (0, Update, Hit),               // Modified 0
        (1, Load, Fetch(Near)),         // Shared 0 1
        (2, Store, Transfer(Far)),      // Modified 2
        (2, Load, Hit),                 // Modified 2
    ];
    for (index, (cpu, access, expected)) in trace.into_iter().enumerate() {
        let (event, _) = directory.access(cpu, 7, access, 0);
        assert_eq!(event, expected, "step {index}: {access:?} by CPU {cpu}");
    }
    let expected =
        Counts { hits: 4, cold: 1, fetches: [3, 1], invalidations: [1, 1], transfers: [1, 2] };
    assert_eq!(directory.counts(), expected);
    assert_eq!((expected.moves(), expected.upgrades()), (7, 2));
}

#[test]
fn lines_have_nothing_to_do_with_each_other() {
    let mut directory = directory();
    for line in 0..3 {
        assert_eq!(directory.access(0, line, Store, 0).0, Cold);
    }
    assert_eq!(directory.access(1, 0, Load, 0).0, Fetch(Near));
    assert_eq!(directory.access(0, 1, Store, 0).0, Hit);
}

#[test]
fn an_access_takes_what_its_distance_costs() {
    let mut directory = directory();
    let mut end = |cpu, access, at: f64| directory.access(cpu, 0, access, picoseconds(at)).1;
    assert_eq!(end(0, Store, 0.0), picoseconds(1.0));
    assert_eq!(end(0, Update, 1.0), picoseconds(1.0 + 1.0 + 5.0));
    assert_eq!(end(1, Load, 1000.0), picoseconds(1000.0 + 10.0 + 1.0));
    assert_eq!(end(2, Store, 2000.0), picoseconds(2000.0 + 100.0 + 1.0));
}

#[test]
fn a_line_goes_to_one_cpu_after_the_other() {
    let mut directory = directory();
    let mut end = |cpu, access| directory.access(cpu, 0, access, 0).1;
    end(0, Store);
    // At the same moment: 1 has it after 10, 2 after another 100, 3 after another 10.
    assert_eq!(end(1, Store), picoseconds(10.0 + 1.0));
    assert_eq!(end(2, Store), picoseconds(110.0 + 1.0));
    assert_eq!(end(3, Store), picoseconds(120.0 + 1.0));
}

#[test]
fn readers_of_a_shared_line_wait_for_each_other_but_briefly() {
    let mut directory = Directory::new(Shape { cpus: 8, cpus_a_socket: 8 }, costs());
    let mut end = |cpu, access| directory.access(cpu, 0, access, 0).1;
    end(0, Store);
    // The first takes it from its owner: 10. The others follow 3 apart.
    let ends = [1, 2, 3, 4].map(|cpu| end(cpu, Load));
    assert_eq!(ends, [11.0, 21.0, 24.0, 27.0].map(picoseconds));
}

#[test]
fn two_writers_in_turn_cost_a_transfer_each_time() {
    const TURNS: u64 = 1000;
    let mut directory = directory();
    directory.access(0, 0, Store, 0);
    for turn in 0..TURNS {
        directory.access(usize::from(turn % 2 == 0), 0, Update, 0);
    }
    assert_eq!(directory.counts().transfers, [TURNS, 0]);
    assert_eq!(directory.counts().moves(), TURNS);
}
