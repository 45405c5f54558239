//! A set of CPUs, of any number, in the kernel's own notation "0-3,8". It owns the bits and the two
//! system calls that read and write a thread's mask. Called by everything that counts or chooses
//! CPUs.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use rustix::thread::sched_getaffinity;

use super::read_text;
use super::sys;
use crate::error::{Error, ErrorKind};

/// CPU numbers are below this; the largest kernel has 8192. It bounds a set at 8 KiB.
pub const CPUS_MAX: usize = 1 << 16;

/// A list that names every other CPU below [`CPUS_MAX`], six bytes each, is the longest that is
/// needed.
const LIST_BYTES_MAX: usize = CPUS_MAX / 2 * 6;

/// CPUs in a word.
const WORD: usize = 64;

/// A set of CPU numbers below [`CPUS_MAX`].
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct CpuSet {
    /// CPU n is bit n % 64 of word n / 64; the last word is never zero, so that equal sets are
    /// equal.
    words: Vec<u64>,
}

impl CpuSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Reads the kernel's notation: numbers and ranges with commas between them, "0-3,8". Leading
    /// and trailing white space is ignored; an empty list is the empty set.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] for anything else, a range that runs backwards, and a number
    /// that is not below [`CPUS_MAX`].
    pub fn parse(list: &str) -> Result<Self, Error> {
        let mut set = Self::new();
        let list = list.trim();
        if list.len() > LIST_BYTES_MAX {
            let error = Error::new(ErrorKind::InvalidSetting, "bytes of a list of CPUs");
            return Err(error.with_amount(list.len() as u64, LIST_BYTES_MAX as u64));
        }
        if list.is_empty() {
            return Ok(set);
        }
        for part in list.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(Error::new(ErrorKind::InvalidSetting, "range of CPUs"));
            }
            set.insert_range(first, last);
        }
        Ok(set)
    }

    /// Adds a CPU; returns whether it is new. A number that is not below [`CPUS_MAX`] is not added.
    pub fn insert(&mut self, cpu: usize) -> bool {
        if cpu >= CPUS_MAX || self.contains(cpu) {
            return false;
        }
        self.insert_range(cpu, cpu);
        true
    }

    /// Removes a CPU; returns whether it was in the set.
    pub fn remove(&mut self, cpu: usize) -> bool {
        let was_in = self.contains(cpu);
        if let Some(word) = self.words.get_mut(cpu / WORD) {
            *word &= !(1 << (cpu % WORD));
        }
        self.trim();
        was_in
    }

    /// Whether a CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / WORD).is_some_and(|word| word >> (cpu % WORD) & 1 == 1)
    }

    /// How many CPUs are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        // At most 64 a word: a u32 holds any count.
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let (&rest, later) = self.words.split_first().unwrap_or((&0, &[]));
        Numbers { later, base: 0, rest }
    }

    /// The CPUs that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combined(other, |mine, theirs| mine & theirs)
    }

    /// The CPUs that are in this set and not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.combined(other, |mine, theirs| mine & !theirs)
    }

    /// The CPUs that are in at least one of the sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let (mut all, fewer) = match self.words.len() < other.words.len() {
            true => (other.clone(), self),
            false => (self.clone(), other),
        };
        all.words.iter_mut().zip(&fewer.words).for_each(|(mine, theirs)| *mine |= theirs);
        all
    }

    /// Whether every CPU of this set is in the other.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// The CPUs on which the calling thread may run. Empty only if the system does not say.
    #[must_use]
    pub fn of_current_thread() -> Self {
        Self::of(None, Path::new("/proc/thread-self/status"))
    }

    /// The CPUs on which the process may run: the mask of its first thread, which no pool of this
    /// crate ever binds. Empty only if the system does not say.
    #[must_use]
    pub fn of_process() -> Self {
        Self::of(Some(getpid()), Path::new("/proc/self/status"))
    }

    /// Restricts the calling thread to these CPUs, and checks the resulting mask.
    ///
    /// The kernel ignores CPUs of the set that the process may not use. The resulting mask must
    /// have at least one CPU, and none outside of the set.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] for the empty set; [`ErrorKind::System`] when the kernel refuses,
    /// or when the resulting mask is not within this set.
    pub fn bind_current_thread(&self) -> Result<(), Error> {
        if self.is_empty() {
            return Err(Error::new(ErrorKind::InvalidSetting, "CPUs to bind a thread to"));
        }
        let refused = Error::new(ErrorKind::System, "binding a thread to its CPUs");
        self.set_mask().map_err(|errno| refused.with_errno(errno))?;
        let holds = Self::of_current_thread();
        if holds.is_empty() || !holds.is_subset(self) {
            return Err(refused);
        }
        Ok(())
    }

    /// Word by word: lists may hold many wide ranges. The caller checked that first <= last <
    /// CPUS_MAX.
    fn insert_range(&mut self, first: usize, last: usize) {
        if self.words.len() <= last / WORD {
            self.words.resize(last / WORD + 1, 0);
        }
        let from_first = u64::MAX << (first % WORD);
        let to_last = u64::MAX >> (WORD - 1 - last % WORD);
        for index in first / WORD..=last / WORD {
            let above = if index == first / WORD { from_first } else { u64::MAX };
            let below = if index == last / WORD { to_last } else { u64::MAX };
            if let Some(word) = self.words.get_mut(index) {
                *word |= above & below;
            }
        }
    }

    fn set_mask(&self) -> Result<(), Errno> {
        if self.words.len() * WORD > rustix::thread::CpuSet::MAX_CPU {
            return sys::set_affinity(&self.words);
        }
        let mut mask = rustix::thread::CpuSet::new();
        self.iter().for_each(|cpu| mask.set(cpu));
        rustix::thread::sched_setaffinity(None, &mask)
    }

    fn of(thread: Option<Pid>, status: &Path) -> Self {
        match sched_getaffinity(thread) {
            Ok(mask) => {
                (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| mask.is_set(cpu)).collect()
            }
            // EINVAL: the kernel's masks are wider than 1024.
            Err(_) => read_text(status).and_then(|text| allowed_of(&text)).unwrap_or_default(),
        }
    }

    fn combined(&self, other: &Self, operation: impl Fn(u64, u64) -> u64) -> Self {
        let theirs = other.words.iter().copied().chain(std::iter::repeat(0));
        let words = self.words.iter().zip(theirs);
        let mut set =
            Self { words: words.map(|(&mine, theirs)| operation(mine, theirs)).collect() };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

/// The numbers of a set. One struct whose fields always have a value: of nested iterators of the
/// standard library the optimizer reads fields of those that are not there, and valgrind reports
/// programs that use the C library for it.
#[derive(Debug)]
struct Numbers<'a> {
    /// The words after the current one.
    later: &'a [u64],
    /// The number of bit 0 of the current word.
    base: usize,
    /// The bits of the current word that are left.
    rest: u64,
}

impl Iterator for Numbers<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while self.rest == 0 {
            let (&next, later) = self.later.split_first()?;
            *self = Self { later, base: self.base + WORD, rest: next };
        }
        let cpu = self.base + self.rest.trailing_zeros() as usize;
        self.rest &= self.rest - 1;
        Some(cpu)
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Self::new();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut cpus = self.iter().peekable();
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

/// The list in the text of a `status` file.
fn allowed_of(status: &str) -> Option<CpuSet> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    CpuSet::parse(list).ok()
}

fn number(digits: &str) -> Result<usize, Error> {
    let invalid = Error::new(ErrorKind::InvalidSetting, "list of CPUs");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid);
    }
    let number = digits.parse::<u64>().unwrap_or(u64::MAX);
    match usize::try_from(number) {
        Ok(number) if number < CPUS_MAX => Ok(number),
        _ => Err(invalid.with_amount(number, CPUS_MAX as u64 - 1)),
    }
}

/// Sets of CPUs against the set of the standard library, and as text.
#[cfg(all(test, not(loom)))]
mod tests {
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
    fn on_new_thread(body: impl FnOnce() + Send + 'static) {
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

    // A bound thread's Cpus_allowed_list is a single CPU, its own.
    #[test]
    fn a_bound_thread_is_shown_on_its_cpu_alone_and_runs_there() {
        on_new_thread(|| {
            let allowed = CpuSet::of_current_thread();
            for cpu in allowed.iter() {
                CpuSet::from_iter([cpu]).bind_current_thread().unwrap();
                assert_eq!(status_list(), cpu.to_string());
                assert_eq!(current(), cpu);
                for other in allowed.iter().chain([1023, 1024, CPUS_MAX, usize::MAX]) {
                    assert_eq!(is_bound_to(other), other == cpu);
                }
            }
            allowed.bind_current_thread().unwrap();
            assert_eq!(CpuSet::of_current_thread(), allowed);
            assert_eq!(is_bound_to(current()), allowed.len() == 1);
        });
    }

    #[test]
    fn a_thread_cannot_be_bound_to_cpus_that_are_not_there() {
        on_new_thread(|| {
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
        on_new_thread(|| {
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
}
