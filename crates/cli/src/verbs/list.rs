//! `ferrofs list`: the mounts of this user, each with what the process that serves it tells.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use ferrofs_mount::stats::{StatsSummary, known};
use serde::Serialize;

use crate::amount::{human_bytes, long_time};
use crate::arguments::ListArguments;
use crate::exit_status::CommandStatus;
use crate::output::{JsonBytes, Output};
use crate::signals::ExitOnSignals;
use crate::user_mounts::{UserMount, show_mounts};

/// The age of a mount, which several processes may have served.
fn age(summary: &StatsSummary) -> Duration {
    Duration::from_nanos(summary.process.mount_age_ns.max(summary.uptime_ns))
}

#[derive(Debug, Serialize)]
struct JsonMount {
    image: JsonBytes,
    mount: JsonBytes,
    /// `served`, `kept`, `dead`, `no answer` or `unknown`.
    state: &'static str,
    pid: Option<u64>,
    holder: Option<u64>,
    resident_bytes: Option<u64>,
    age_s: Option<f64>,
    restarts: Option<u64>,
    release: Option<String>,
}

impl JsonMount {
    fn of(mount: &UserMount) -> Self {
        let stats = mount.stats();
        let summary = stats.map(|stats| &stats.summary);
        Self {
            image: mount.entry.source.as_bytes().into(),
            mount: mount.entry.mount_point.as_os_str().as_bytes().into(),
            state: mount.state(),
            pid: summary.map(|summary| summary.pid),
            holder: summary.map(|summary| summary.process.holder).filter(|holder| *holder > 0),
            resident_bytes: summary.and_then(|summary| known(summary.memory.resident)),
            age_s: summary.map(|summary| age(summary).as_secs_f64()),
            restarts: summary.map(|summary| summary.process.restarts),
            release: stats.map(|stats| stats.release.clone()),
        }
    }
}

/// Lists them.
///
/// # Errors
/// Standard output cannot be written, or no thread can be started.
pub(crate) fn run(
    arguments: &ListArguments,
    _signals: &ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    show_mounts(|mounts| CommandStatus::Success.after_output(print(arguments, mounts)))
}

fn print(arguments: &ListArguments, mounts: &[UserMount]) -> io::Result<()> {
    let mut output = Output::new();
    if arguments.json {
        mounts.iter().try_for_each(|mount| output.json(&JsonMount::of(mount)))?;
    } else {
        if !mounts.is_empty() {
            writeln!(
                output,
                "{:<9} {:>9} {:>9} {:>8}  DIR: IMAGE",
                "STATE", "MEMORY", "AGE", "RESTARTS"
            )?;
        }
        for mount in mounts {
            line(&mut output, mount)?;
        }
    }
    output.flush()
}

fn line(output: &mut Output, mount: &UserMount) -> io::Result<()> {
    let summary = mount.stats().map(|stats| &stats.summary);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let memory = summary.and_then(|summary| known(summary.memory.resident)).map(human_bytes);
    let age = summary.map(|summary| long_time(age(summary)));
    let restarts = summary.map(|summary| summary.process.restarts.to_string());
    let (memory, age, restarts) = (or_none(memory), or_none(age), or_none(restarts));
    write!(output, "{:<9} {memory:>9} {age:>9} {restarts:>8}  ", mount.state())?;
    output.name(mount.entry.mount_point.as_os_str().as_bytes())?;
    write!(output, ": ")?;
    output.name(mount.entry.source.as_bytes())?;
    writeln!(output)
}
