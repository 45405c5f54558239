//! Whether a thread is being killed. Signals that somebody handles are no reason to fail a read: programs do not expect
//! that of files. Called by `watchdog`.

/// `SIGKILL` in a mask of signals; the kernel adds it to whatever else is about to end a process.
const KILL: u64 = 1 << 8;

/// Whether a signal that ends the thread is pending. `None` if that cannot be known: it lives in another PID
/// namespace, or `/proc` does not show it.
pub(crate) fn has_pending_sigkill(thread: u32) -> Option<bool> {
    if thread == 0 {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    has_sigkill(&status)
}

fn has_sigkill(status: &str) -> Option<bool> {
    let masks = ["SigPnd:", "ShdPnd:"].map(|field| mask(status, field));
    let [own, shared] = masks;
    Some((own? | shared?) & KILL != 0)
}

fn mask(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::{has_pending_sigkill, has_sigkill};

    #[test]
    fn only_a_deadly_signal_counts() {
        let status =
            |own: &str, shared: &str| format!("Name:\tcat\nSigPnd:\t{own}\nShdPnd:\t{shared}\n");
        assert_eq!(has_sigkill(&status("0000000000000000", "0000000000004000")), Some(false));
        assert_eq!(has_sigkill(&status("0000000000000100", "0000000000000000")), Some(true));
        assert_eq!(has_sigkill(&status("0000000000000000", "0000000000000102")), Some(true));
        assert_eq!(has_sigkill("Name:\tcat\n"), None);
    }

    #[test]
    fn threads_out_of_sight_are_not_judged() {
        assert_eq!(has_pending_sigkill(0), None);
        assert_eq!(has_pending_sigkill(std::process::id()), Some(false));
    }
}
