//! Sets of CPUs against the set of the standard library, and as text.
#![allow(clippy::unwrap_used, reason = "a test ends where its world is not as it must be")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::{current, is_bound_to};
use super::*;

fn set(list: &str) -> CpuSet {
    CpuSet::parse(list).unwrap()
}

/// Runs on a thread of its own, since it changes that thread's mask.
fn aside(body: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().spawn(body).unwrap().join().unwrap();
}

fn status_list() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn the_kernels_notation_is_read_and_written() {
    for (list, written) in [
        ("", ""),
        ("\n", ""),
        ("0", "0"),
        ("0-3,8\n", "0-3,8"),
        (" 8,0-1,2 ", "0-2,8"),
        ("1-1", "1"),
        ("0,2,4", "0,2,4"),
        ("62-65,127-128", "62-65,127-128"),
        ("0-65535", "0-65535"),
        ("007", "7"),
    ] {
        assert_eq!(set(list).to_string(), written, "{list:?}");
    }
}

#[test]
fn what_is_no_list_is_an_error() {
    for list in [
        ",",
        "0,",
        ",0",
        "-",
        "-1",
        "1-",
        "1-2-3",
        "3-1",
        "a",
        "0x1",
        "+1",
        "0, 1",
        "1 2",
        "0-3:1/2",
        "65536",
        "0-65536",
        "18446744073709551616",
        "99999999999999999999999",
        "٣",
    ] {
        let error = CpuSet::parse(list).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting, "{list:?}");
    }
}

#[test]
fn a_list_of_many_wide_ranges_ends_soon() {
    let begun = Instant::now();
    let longest = vec!["0-65535"; LIST_BYTES_MAX / 8].join(",");
    assert_eq!(set(&longest).len(), CPUS_MAX);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let error = CpuSet::parse(&vec!["0"; LIST_BYTES_MAX].join(",")).unwrap_err();
    assert_eq!(error.limit(), Some(LIST_BYTES_MAX as u64));
}

#[test]
fn the_longest_list_that_is_needed_is_not_too_long() {
    let every_other: CpuSet = (0..CPUS_MAX).step_by(2).collect();
    assert_eq!(set(&every_other.to_string()), every_other);
}

#[test]
fn numbers_past_the_limit_are_left_out_and_allocate_nothing() {
    let mut cpus = CpuSet::new();
    assert!(!cpus.insert(CPUS_MAX) && !cpus.insert(usize::MAX));
    assert!(!cpus.contains(usize::MAX) && !cpus.remove(usize::MAX));
    assert_eq!(CpuSet::from_iter([3, usize::MAX]), set("3"));
    assert_eq!(cpus.words.capacity(), 0);
}

#[test]
fn the_list_in_a_status_file_is_found() {
    let status =
        "Name:\tx\nCpus_allowed:\tffffff,00000000\nCpus_allowed_list:\t32-55,2047\nMems:\t1\n";
    assert_eq!(allowed_of(status), Some(set("32-55,2047")));
    assert_eq!(allowed_of("Name:\tx\n"), None);
    assert_eq!(allowed_of("Cpus_allowed_list:\tmany\n"), None);
}

#[test]
fn the_mask_is_the_one_that_the_system_shows() {
    assert_eq!(CpuSet::of_current_thread(), set(&status_list()));
    assert!(!CpuSet::of_process().is_empty());
}

// A-W2, first part: a bound thread's Cpus_allowed_list is a single CPU, its own.
#[test]
fn a_bound_thread_is_shown_on_its_cpu_alone_and_runs_there() {
    aside(|| {
        let granted = CpuSet::of_current_thread();
        for cpu in granted.iter() {
            CpuSet::from_iter([cpu]).bind_current_thread().unwrap();
            assert_eq!(status_list(), cpu.to_string());
            assert_eq!(current(), cpu);
            for other in granted.iter().chain([1023, 1024, CPUS_MAX, usize::MAX]) {
                assert_eq!(is_bound_to(other), other == cpu);
            }
        }
        granted.bind_current_thread().unwrap();
        assert_eq!(CpuSet::of_current_thread(), granted);
        assert_eq!(is_bound_to(current()), granted.len() == 1);
    });
}

#[test]
fn a_thread_cannot_be_bound_to_cpus_that_are_not_there() {
    aside(|| {
        let before = CpuSet::of_current_thread();
        for absent in ["1000-1023", "1024", "65535"] {
            if set(absent).intersection(&before).is_empty() {
                let error = set(absent).bind_current_thread().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::System);
                assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()), "{absent}");
            }
        }
        let error = CpuSet::new().bind_current_thread().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
        assert_eq!(CpuSet::of_current_thread(), before, "a refusal changes nothing");
    });
}

#[test]
fn cpus_that_are_not_there_do_not_hinder_those_that_are() {
    aside(|| {
        let first = CpuSet::of_current_thread().iter().next().unwrap();
        // The narrow and the wide way to the kernel.
        for absent in [1000, 5000] {
            CpuSet::from_iter([first, absent]).bind_current_thread().unwrap();
            assert!(is_bound_to(first));
        }
    });
}

fn numbers() -> impl Strategy<Value = BTreeSet<usize>> {
    let near = proptest::collection::btree_set(0_usize..200, 0..60);
    let far = proptest::collection::btree_set(0..CPUS_MAX, 0..20);
    (near, far).prop_map(|(near, far)| near.into_iter().chain(far).collect())
}

fn of(numbers: &BTreeSet<usize>) -> CpuSet {
    numbers.iter().copied().collect()
}

proptest! {
    #[test]
    fn writing_and_reading_give_the_same_set(numbers in numbers()) {
        let cpus = of(&numbers);
        prop_assert_eq!(CpuSet::parse(&cpus.to_string()), Ok(cpus.clone()));
        prop_assert!(cpus.iter().eq(numbers.iter().copied()));
        prop_assert_eq!(cpus.len(), numbers.len());
        prop_assert_eq!(cpus.is_empty(), numbers.is_empty());
    }

    #[test]
    fn ranges_hold_what_lies_between_their_ends(first in 0..CPUS_MAX, length in 0_usize..300) {
        let last = (first + length).min(CPUS_MAX - 1);
        let cpus = set(&format!("{first}-{last}"));
        prop_assert!(cpus.iter().eq(first..=last));
    }

    #[test]
    fn sets_agree_with_their_simple_twin(
        mine in numbers(),
        theirs in numbers(),
        steps in proptest::collection::vec((any::<bool>(), 0_usize..200), 0..40),
    ) {
        let both = mine.intersection(&theirs).copied().collect();
        prop_assert_eq!(of(&mine).intersection(&of(&theirs)), of(&both));
        let rest = mine.difference(&theirs).copied().collect();
        prop_assert_eq!(of(&mine).difference(&of(&theirs)), of(&rest));
        prop_assert_eq!(of(&mine).is_subset(&of(&theirs)), mine.is_subset(&theirs));
        let (mut cpus, mut twin) = (of(&mine), mine);
        for (adds, cpu) in steps {
            if adds {
                prop_assert_eq!(cpus.insert(cpu), twin.insert(cpu));
            } else {
                prop_assert_eq!(cpus.remove(cpu), twin.remove(&cpu));
            }
            prop_assert_eq!(cpus.contains(cpu), twin.contains(&cpu));
        }
        prop_assert_eq!(cpus, of(&twin));
    }

    #[test]
    fn no_text_makes_the_parser_panic(list in "[0-9,\\- ]{0,30}|\\PC{0,30}") {
        if let Ok(cpus) = CpuSet::parse(&list) {
            prop_assert_eq!(set(&cpus.to_string()), cpus);
        }
    }
}
