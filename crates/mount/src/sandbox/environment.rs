//! Environment variables that a mount must not keep: credentials which it has passed on. They would
//! stay in the memory that decodes hostile images, and in `/proc/PID/environ`.
#![allow(unsafe_code, reason = "std can remove a variable, but leaves its value in memory")]

use std::ffi::CString;
use std::io;
use std::time::{Duration, Instant};

/// How long the kernel may take for the end of a thread, and how often it is looked at.
const ENDING_LIMIT: Duration = Duration::from_secs(1);
const ENDING_PAUSE: Duration = Duration::from_millis(1);

/// Overwrites the values of these variables where the system has put them; they are empty afterwards.
///
/// # Errors
/// One of them is set, and this process has several threads, or `/proc/self/task` cannot be read.
pub fn clear_environment(names: &[&str]) -> io::Result<()> {
    let is_set = |name: &&&str| std::env::var_os(name).is_some();
    let names: Vec<CString> = names
        .iter()
        .filter(is_set)
        .map(|name| CString::new(*name).map_err(io::Error::other))
        .collect::<io::Result<_>>()?;
    if !names.is_empty() && !has_one_thread()? {
        return Err(io::Error::other("other threads may read the environment"));
    }
    for name in names {
        // SAFETY: `name` is a string with a NUL. The result is null or points to the value in the environment of this
        // process, which has a NUL and which nobody else reads or changes meanwhile, as there is one thread, this one,
        // which starts none here. Writing as many zeros as it has bytes stays inside of it. It is writable memory: the
        // initial stack, or that of `setenv`.
        unsafe {
            let value = libc::getenv(name.as_ptr());
            if !value.is_null() {
                value.write_bytes(0, libc::strlen(value));
            }
        }
    }
    Ok(())
}

/// Whether this process has one thread. One that was joined is listed until the kernel is done with it.
fn has_one_thread() -> io::Result<bool> {
    let until = Instant::now() + ENDING_LIMIT;
    loop {
        let has_one = std::fs::read_dir("/proc/self/task")?.count() == 1;
        if has_one || Instant::now() >= until {
            return Ok(has_one);
        }
        std::thread::sleep(ENDING_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_left_as_it_is() {
        let before = std::env::var_os("PATH").unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || ended.recv().ok());
            let error = clear_environment(&["PATH"]).unwrap_err();
            assert_eq!(error.to_string(), "other threads may read the environment");
            drop(end);
        });
        assert_eq!(std::env::var_os("PATH"), Some(before));
        clear_environment(&["FERROFS_NO_SUCH_VARIABLE"]).unwrap();
    }
}
