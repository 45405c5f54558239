//! `ferrofs stats DIR`: queries a running mount and prints the answer in one of three formats. The
//! answer comes from the process that serves the directory, which may be any program, so its texts
//! are escaped before they are printed.

mod json;
mod prometheus;
pub(crate) mod remote;
mod text;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ferrofs_mount::stats::{StatsError, query};

use crate::arguments::StatsArguments;
use crate::exit_status::CommandStatus;
use crate::output::{self, Output};
use crate::signals::ExitOnSignals;

/// Queries and prints.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn run(
    arguments: &StatsArguments,
    _signals: &ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let stats = match query(&arguments.directory) {
        Ok(stats) => stats,
        Err(error) => {
            let directory = arguments.directory.as_os_str().as_bytes();
            let remedy = remedy(&error, &arguments.directory);
            output::print_path_message(directory, format_args!("{error}{remedy}"));
            return Ok(CommandStatus::Failure);
        }
    };
    let mut output = Output::new();
    if arguments.json {
        output.json(&json::MountStatsJson::new(&stats, &arguments.directory))?;
    } else if arguments.prometheus {
        output.write_all(prometheus::exposition(&stats, &arguments.directory).as_bytes())?;
    } else {
        write!(output, "{}", text::MountStatsText::new(&stats, &arguments.directory))?;
    }
    output.flush()?;
    Ok(CommandStatus::Success)
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

/// The text of a notice, without the NULs behind it; not yet escaped.
fn notice(text: &[u8]) -> String {
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
