//! A wish to end, by SIGINT or SIGTERM: nothing new begins then, and what is under way comes apart in order, so
//! that neither mounts nor folders stay. From a terminal the signal reaches the programs that are measured as well, and ends
//! them; sent to this process alone, it waits for the one that runs.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// One flag for the process, as signals are its own.
static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Takes signals from now on.
///
/// # Errors
/// When the system does not allow it.
pub(crate) fn watch() -> Result<()> {
    let asked = ASKED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(asked)).context("taking signals")?;
    }
    Ok(())
}

/// An error as soon as somebody asked to end.
pub(crate) fn check() -> Result<()> {
    if ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed)) {
        bail!("interrupted");
    }
    Ok(())
}
