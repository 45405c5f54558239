//! `ferrofs stats DIR`, and `stats --all`: queries a running mount and prints the answer in one of three formats. The
//! answer comes from the process that serves the directory, which may be any program, so its texts
//! are escaped before they are printed.

mod json;
mod prometheus;
pub(crate) mod remote;
mod text;

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ferrofs_mount::stats::{StatsError, StatsSummary, query};

use crate::arguments::StatsArguments;
use crate::exit_status::CommandStatus;
use crate::output::{self, Output};
use crate::signals::ExitOnSignals;
use crate::user_mounts::{UserMount, show_mounts};

/// Queries and prints.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn run(
    arguments: &StatsArguments,
    _signals: &ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    // Without --all there is a directory.
    let Some(directory) = arguments.directory.as_deref() else {
        return show_mounts(|mounts| {
            CommandStatus::Success.after_output(show_all(arguments, mounts))
        });
    };
    let stats = match query(directory) {
        Ok(stats) => stats,
        Err(error) => {
            let path = directory.as_os_str().as_bytes();
            let remedy = remedy(&error, directory);
            output::print_path_message(path, format_args!("{error}{remedy}"));
            return Ok(CommandStatus::Failure);
        }
    };
    let mut output = Output::new();
    let written = if arguments.json {
        output.json(&json::MountStatsJson::new(&stats, directory))
    } else if arguments.prometheus {
        output.write_all(prometheus::exposition(&stats, directory).as_bytes())
    } else {
        write!(output, "{}", text::MountStatsText::new(&stats, directory))
    };
    CommandStatus::Success.after_output(written.and_then(|()| output.flush()))
}

/// The sum of the statistics of several mounts.
#[derive(Debug, Default)]
struct MountsTotal {
    summary: StatsSummary,
    mounts: u64,
    /// Mounts that did not answer, or whose process has ended.
    without_answer: u64,
}

/// Shows the sum of all mounts of the user, or each of them.
fn show_all(arguments: &StatsArguments, mounts: &[UserMount]) -> io::Result<()> {
    let mut output = Output::new();
    if arguments.prometheus {
        let page = |mount: &UserMount| {
            Some(prometheus::exposition(mount.stats()?, &mount.entry.mount_point))
        };
        let pages: Vec<String> = mounts.iter().filter_map(page).collect();
        output.write_all(prometheus::joined(&pages).as_bytes())?;
        return output.flush();
    }
    let mut total = MountsTotal::default();
    for mount in mounts {
        match mount.stats() {
            Some(stats) => {
                total.summary.add(&stats.summary);
                total.mounts += 1;
            }
            None => total.without_answer += 1,
        }
    }
    match arguments.json {
        true => output.json(&json::TotalStatsJson::new(&total))?,
        false => write!(output, "{}", text::TotalStatsText { total: &total })?,
    }
    output.flush()
}

/// What to do about an error, after a semicolon.
fn remedy(error: &StatsError, directory: &Path) -> String {
    let directory = directory.display();
    match error {
        StatsError::Disconnected => {
            format!("; fusermount3 -u {directory} removes it, or umount {directory} as root")
        }
        StatsError::PermissionDenied(Some(user)) => format!(
            "; as root: sudo -u '#{user}' ferrofs stats {directory}, or mount it with -o allow_other"
        ),
        StatsError::PermissionDenied(None) => {
            "; query as that user, or mount it with -o allow_other".to_owned()
        }
        StatsError::OtherVersion { .. } => {
            "; query with that version, or mount the image again".to_owned()
        }
        _ => String::new(),
    }
}

/// The text of an event of the log, without the NULs behind it; not yet escaped.
fn event_text(text: &[u8]) -> String {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// A share; 0 if the whole is 0.
#[allow(clippy::cast_precision_loss, reason = "a ratio to look at")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Nanoseconds as seconds.
#[allow(clippy::cast_precision_loss, reason = "a time to look at")]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
