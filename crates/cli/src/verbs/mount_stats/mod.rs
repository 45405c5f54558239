//! `ferrofs stats DIR`: what a running mount does. It asks the mount itself and shows the answer in one of three forms.
//! The answer comes from whoever serves the directory, so its texts are made harmless before they are shown.

mod json;
mod prometheus;
mod text;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ferrofs_mount::stats::{AskError, ask};

use crate::arguments::StatsArguments;
use crate::outcome::Outcome;
use crate::output::Output;
use crate::stderr;

/// Asks and shows.
pub(crate) fn run(arguments: &StatsArguments) -> anyhow::Result<Outcome> {
    let stats = match ask(&arguments.directory) {
        Ok(stats) => stats,
        Err(error) => {
            let directory = arguments.directory.as_os_str().as_bytes();
            let way_out = way_out(&error, &arguments.directory);
            stderr::complain_about(directory, format_args!("{error}{way_out}"));
            return Ok(Outcome::Bad);
        }
    };
    let mut output = Output::new();
    if arguments.json {
        output.json(&json::Report::new(&stats, &arguments.directory))?;
    } else if arguments.prometheus {
        output.write_all(prometheus::exposition(&stats, &arguments.directory).as_bytes())?;
    } else {
        write!(output, "{}", text::Report::new(&stats, &arguments.directory))?;
    }
    output.flush()?;
    Ok(Outcome::Good)
}

/// What to do about it, beginning with a semicolon.
fn way_out(error: &AskError, directory: &Path) -> String {
    let directory = directory.display();
    match error {
        AskError::Dead => {
            format!("; fusermount3 -u {directory} clears it, or umount {directory} as root")
        }
        AskError::Denied(Some(user)) => format!(
            "; as root: sudo -u '#{user}' ferrofs stats {directory}, or mount it with -o allow_other"
        ),
        AskError::Denied(None) => "; ask as that user, or mount it with -o allow_other".to_owned(),
        AskError::OtherVersion { .. } => "; ask with that version, or mount it anew".to_owned(),
        _ => String::new(),
    }
}
