//! `ferrofs mount`: reads the options, forks a background process, and serves the mount there. The
//! library serves; this folder owns the processes, the log and the signals.

mod daemon;
mod daemonize;
mod explain;
mod keep;
mod log;
mod remount;
mod replace;
mod request;
mod service;
mod serving_user;
mod source_words;

use std::os::unix::ffi::OsStrExt;

pub(crate) use daemonize::close_streams;
use daemonize::{ForkedProcess, ReadyNotifier};
use request::MountRequest;

use crate::arguments::{MountArguments, MountCaller, MountInvocation};
use crate::exit_status::CommandStatus;
use crate::output;

/// Mounts.
///
/// # Errors
/// The arguments make no sense, or the mount could not be made or did not end well.
pub(crate) fn run(
    typed: &MountArguments,
    invocation: MountInvocation,
) -> anyhow::Result<CommandStatus> {
    if let Some(directory) = &typed.reattach {
        return replace::run_reattach(directory);
    }
    // The daemon has one from when it is forked.
    let mut notifier: Option<ReadyNotifier> = None;
    if let Some(directory) = &typed.replace {
        return match daemonize::start()? {
            ForkedProcess::Done(status) => Ok(status),
            ForkedProcess::Daemon(notifier) => Ok(keep::replace(directory, notifier)),
        };
    }
    let ended = MountRequest::of(typed, invocation).and_then(|request| {
        if let Some(words) = &request.remount {
            let file_system_type = format!("fuse.{}", request.attach.subtype);
            return remount::run(&request.directory, &file_system_type, words);
        }
        // By its first line, scripts recognize erofsfuse.
        if invocation.by == MountCaller::Erofsfuse {
            output::print_unread(crate::help::EROFSFUSE_BANNER)?;
        }
        for (word, why) in request.ineffective.iter().filter(|_| !request.read.quiet) {
            let word = output::escape(word.as_bytes());
            output::print_message(format_args!("warning: -o {word} has no effect: {why}"));
        }
        if !typed.foreground && !invocation.is_dry_run {
            match daemonize::start()? {
                ForkedProcess::Done(status) => return Ok(status),
                ForkedProcess::Daemon(of_daemon) => notifier = Some(of_daemon),
            }
        }
        match request.keep {
            true => keep::run(typed, &request, &mut notifier),
            false => daemon::run(typed, &request, &mut notifier),
        }
    });
    match (ended, notifier) {
        // The process that started the daemon prints the error: standard error of the daemon may be
        // closed by now.
        (Err(error), Some(notifier)) => {
            let status = CommandStatus::of_error(&error);
            notifier.failed(status, &format!("{error:#}"));
            Ok(status)
        }
        (ended, _) => ended,
    }
}
