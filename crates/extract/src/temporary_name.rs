//! Temporary names: those that entries have until they are whole, in directories where others could
//! find them. They are hidden and say who made them; what a process that was killed has left is
//! found by them. No image can name them beforehand.

use std::hash::BuildHasher;
use std::hash::RandomState;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::{self, Errno};

const PREFIX: &[u8] = b".ferrofs-";
const SUFFIX: &[u8] = b".part";

/// How many names are tried. Only names that somebody made on purpose are taken.
const NAMES_TRIED: u64 = 1000;

/// Calls `make` with temporary names until one is free.
///
/// # Errors
/// Those of `make`; [`Errno::BUSY`] if all names are taken.
pub(crate) fn with_temporary_name<T>(
    make: impl Fn(&[u8]) -> io::Result<T>,
) -> io::Result<(T, Box<[u8]>)> {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let process = *PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    for _ in 0..NAMES_TRIED {
        // Relaxed: only the numbers have to differ.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let middle = format!("{process:016x}.{number}");
        let name = [PREFIX, middle.as_bytes(), SUFFIX].concat();
        match make(&name) {
            Err(Errno::EXIST) => {}
            Ok(made) => return Ok((made, name.into())),
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::BUSY)
}

/// Whether a name looks like one of these.
pub(crate) fn is_temporary(name: &[u8]) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn names_that_are_taken_are_passed_over_and_no_name_comes_twice() {
        let tried = RefCell::new(Vec::new());
        let make = |name: &[u8]| {
            tried.borrow_mut().push(name.to_vec());
            if tried.borrow().len() < 4 { Err(Errno::EXIST) } else { Ok(()) }
        };
        let ((), name) = with_temporary_name(make).unwrap();
        let mut tried = tried.into_inner();
        assert_eq!(tried.last().unwrap(), &name.to_vec());
        assert!(tried.iter().all(|name| is_temporary(name)));
        tried.sort();
        tried.dedup();
        assert_eq!(tried.len(), 4);
    }

    #[test]
    fn a_directory_full_of_such_names_is_an_error() {
        let taken = |_: &[u8]| Err::<(), _>(Errno::EXIST);
        assert_eq!(with_temporary_name(taken).unwrap_err(), Errno::BUSY);
        let full = |_: &[u8]| Err::<(), _>(Errno::NOSPC);
        assert_eq!(with_temporary_name(full).unwrap_err(), Errno::NOSPC);
    }
}
