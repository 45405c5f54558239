//! A set of CPUs, of any number, in the kernel's own notation "0-3,8". It owns the bits and the two
//! system calls that read and write a thread's mask. Called wherever CPUs are counted or chosen.

use std::fmt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use rustix::thread::sched_getaffinity;

use super::file;
use crate::error::{Error, ErrorKind};
use crate::sys;

/// CPU numbers are below this; the largest kernel has 8192. It bounds a set at 8 KiB.
pub const CPUS_MAX: usize = 1 << 16;

/// A list that names every other CPU below [`CPUS_MAX`], six bytes each, is the longest that is needed.
const LIST_BYTES_MAX: usize = CPUS_MAX / 2 * 6;

/// CPUs in a word.
const WORD: usize = 64;

/// A set of CPU numbers below [`CPUS_MAX`].
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct CpuSet {
    /// CPU n is bit n % 64 of word n / 64; the last word is never zero, so that equal sets are equal.
    words: Vec<u64>,
}

impl CpuSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Reads the kernel's notation: numbers and ranges with commas between them, "0-3,8". Space
    /// around the list is passed over; an empty list is the empty set.
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

    /// Adds a CPU; says whether it is new. A number that is not below [`CPUS_MAX`] is not added.
    pub fn insert(&mut self, cpu: usize) -> bool {
        if cpu >= CPUS_MAX || self.contains(cpu) {
            return false;
        }
        self.insert_range(cpu, cpu);
        true
    }

    /// Takes a CPU out; says whether it was in.
    pub fn remove(&mut self, cpu: usize) -> bool {
        let was_in = self.contains(cpu);
        if let Some(word) = self.words.get_mut(cpu / WORD) {
            *word &= !(1 << (cpu % WORD));
        }
        self.trim();
        was_in
    }

    /// Whether a CPU is in.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / WORD).is_some_and(|word| word >> (cpu % WORD) & 1 == 1)
    }

    /// How many CPUs are in.
    #[must_use]
    pub fn len(&self) -> usize {
        // At most 64 a word: a u32 holds any count.
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether none is in.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            // Each step takes the lowest bit away; it ends when none is left.
            std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)))
                .take_while(|&rest| rest != 0)
                .map(move |rest| index * WORD + rest.trailing_zeros() as usize)
        })
    }

    /// The CPUs that are in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.combined(other, |mine, theirs| mine & theirs)
    }

    /// The CPUs that are in this set and not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.combined(other, |mine, theirs| mine & !theirs)
    }

    /// Whether every CPU of this set is in the other.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// The CPUs on which the calling thread may run. Empty only where the system says nothing.
    #[must_use]
    pub fn of_current_thread() -> Self {
        Self::of(None, Path::new("/proc/thread-self/status"))
    }

    /// The CPUs on which the process may run: the mask of its first thread, which no pool of this
    /// crate ever binds. Empty only where the system says nothing.
    #[must_use]
    pub fn of_process() -> Self {
        Self::of(Some(getpid()), Path::new("/proc/self/status"))
    }

    /// Restricts the calling thread to these CPUs, and asks the system whether that holds.
    ///
    /// The kernel leaves out those CPUs of the set that the process may not use; what is left must be
    /// at least one, and nothing outside of the set.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] for the empty set; [`ErrorKind::System`] when the kernel refuses,
    /// or when the mask that holds afterwards is not of this set.
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

    /// Word by word: lists may hold many wide ranges. The caller checked that first <= last < CPUS_MAX.
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
            Err(_) => {
                file::read_text(status).and_then(|text| allowed_of(&text)).unwrap_or_default()
            }
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

#[cfg(all(test, not(loom)))]
mod tests;
