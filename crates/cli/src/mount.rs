//! `ferrofs mount`: brings image, directory and options together, goes to the background, and serves. The mount itself
//! is the library's.

mod daemon;
mod daemonize;
mod explain;
mod log;
mod request;

use std::io::Write;

use daemonize::ReadyNotifier;
use request::MountRequest;

use crate::arguments::{MountArguments, MountCaller};
use crate::exit_status::CommandStatus;
use crate::output::{self, Output};

/// Mounts.
pub(crate) fn run(typed: &MountArguments) -> anyhow::Result<CommandStatus> {
    let mut notifier = ReadyNotifier::of_this_process()?;
    let request = match MountRequest::of(typed) {
        Ok(request) => request,
        Err(error) => {
            let text = format!("{error:#}");
            match notifier {
                Some(notifier) => notifier.failed(CommandStatus::UsageError, &text),
                None => output::print_message(text),
            }
            return Ok(CommandStatus::UsageError);
        }
    };
    if notifier.is_none() {
        print_banner(typed)?;
        if !typed.foreground && !typed.invocation.is_dry_run {
            return daemonize::start();
        }
    }
    match daemon::run(typed, &request, &mut notifier) {
        // Standard error may be gone by now, and whoever asked prints it.
        Err(error) if notifier.is_some() => {
            if let Some(notifier) = notifier {
                notifier.failed(CommandStatus::Failure, &format!("{error:#}"));
            }
            Ok(CommandStatus::Failure)
        }
        ended => ended,
    }
}

/// Scripts know erofsfuse by its first line.
fn print_banner(typed: &MountArguments) -> anyhow::Result<()> {
    if typed.invocation.by == MountCaller::Erofsfuse {
        let mut output = Output::new();
        writeln!(output, "erofsfuse {}", env!("CARGO_PKG_VERSION"))?;
        output.flush()?;
    }
    Ok(())
}
