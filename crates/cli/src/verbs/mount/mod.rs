//! `ferrofs mount`: brings image, directory and options together, goes to the background, and serves. The mount itself
//! is the library's.

mod background;
mod daemon;
mod explain;
mod log;
mod options;
mod readahead;
mod request;
mod signals;

use std::io::Write;

use crate::arguments::{Caller, MountArguments};
use crate::outcome::Outcome;
use crate::output::Output;
use crate::stderr;
use background::Asker;
use request::Request;

pub(in crate::verbs) use signals::{ENDING, Signal, ignored};

/// Mounts.
pub(crate) fn run(typed: &MountArguments) -> anyhow::Result<Outcome> {
    let mut asker = Asker::of_this_process()?;
    let request = match Request::of(typed) {
        Ok(request) => request,
        Err(error) => {
            let text = format!("{error:#}");
            match asker {
                Some(asker) => asker.failed(Outcome::Misused, &text),
                None => stderr::complain(text),
            }
            return Ok(Outcome::Misused);
        }
    };
    if asker.is_none() {
        introduce(typed)?;
        if !typed.foreground && !typed.called.is_rehearsal {
            return background::start();
        }
    }
    match daemon::run(typed, &request, &mut asker) {
        // Standard error may be gone by now, and whoever asked prints it.
        Err(error) if asker.is_some() => {
            if let Some(asker) = asker {
                asker.failed(Outcome::Bad, &format!("{error:#}"));
            }
            Ok(Outcome::Bad)
        }
        ended => ended,
    }
}

/// Scripts know erofsfuse by its first line.
fn introduce(typed: &MountArguments) -> anyhow::Result<()> {
    if typed.called.by == Caller::Erofsfuse {
        let mut output = Output::new();
        writeln!(output, "erofsfuse {}", env!("CARGO_PKG_VERSION"))?;
        output.flush()?;
    }
    Ok(())
}
