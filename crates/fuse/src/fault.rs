//! Fault points: places in the take-over of a mount at which a test lets the process die (docs/survival.md). A build
//! without debug assertions has none. The variable `FERROFS_FAULT` is a list of `POINT:FIRST-LAST`: servers with these
//! numbers, counted from 1, are killed at the point.

/// Kills this process if the test asks for it. `server` is the number of the server.
#[inline]
pub fn fault_point(point: &str, server: u64) {
    #[cfg(debug_assertions)]
    if is_asked_for(&std::env::var("FERROFS_FAULT").unwrap_or_default(), point, server) {
        let own = rustix::process::getpid();
        // The filter of the sandbox may forbid it; then the process aborts.
        rustix::process::kill_process(own, rustix::process::Signal::KILL).ok();
        std::process::abort();
    }
    #[cfg(not(debug_assertions))]
    let (_point, _server) = (point, server);
}

/// Whether tests ask that the kernel's offer to resend requests is ignored (`FERROFS_NO_RESEND`).
#[must_use]
pub(crate) fn is_resend_masked() -> bool {
    cfg!(debug_assertions) && std::env::var_os("FERROFS_NO_RESEND").is_some()
}

/// Whether a holder says that it has another version (`FERROFS_OTHER_VERSION`).
#[must_use]
pub(crate) fn is_another_version() -> bool {
    cfg!(debug_assertions) && std::env::var_os("FERROFS_OTHER_VERSION").is_some()
}

#[cfg(debug_assertions)]
fn is_asked_for(list: &str, point: &str, server: u64) -> bool {
    list.split(',').filter_map(|word| word.split_once(':')).any(|(name, range)| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u64>().ok();
        let is_in =
            number(first).zip(number(last)).map(|(first, last)| (first..=last).contains(&server));
        name == point && is_in == Some(true)
    })
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use super::is_asked_for;

    #[test]
    fn a_range_of_servers_dies_at_a_point() {
        for (server, dies) in [(1, false), (2, true), (4, true), (5, false)] {
            assert_eq!(is_asked_for("other:1,resent:2-4", "resent", server), dies, "{server}");
        }
        assert!(is_asked_for("ready:1", "ready", 1) && !is_asked_for("ready", "ready", 1));
    }
}
