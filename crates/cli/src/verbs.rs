//! The choice of the verb. A verb that is one file lives in this folder; `build`, `mount`, `stats`,
//! `dump` and `demo` have folders of their own. Called by `main`.

mod cache;
mod cat;
mod check;
mod extract;
mod fsck;
mod info;
mod list;
mod ls;
mod metadata_files;
mod pull;
mod push;
mod staging_directory;
mod stat;
mod tar_output;

use crate::applets::Invocation;
use crate::arguments::{MountInvocation, Verb};
use crate::exit_status::CommandStatus;
use crate::signals::exit_on_signals;
use crate::{build, demo, dump, mount, remote, stats};

/// Runs the verb of the command line.
///
/// # Errors
/// As the verb.
pub(crate) fn run(invocation: &Invocation) -> anyhow::Result<CommandStatus> {
    match invocation {
        Invocation::Verb(verb) => run_verb(verb),
        Invocation::Mount(arguments, caller) => mount::run(arguments, *caller),
        Invocation::Fsck(arguments) => fsck::run(arguments, exit_on_signals()?),
        Invocation::Dump(arguments) => dump::run(arguments, &exit_on_signals()?),
        Invocation::Mkfs(arguments) => build::run_mkfs(arguments, exit_on_signals()?),
        Invocation::Companion(words) => remote::run_companion(words),
    }
}

fn run_verb(verb: &Verb) -> anyhow::Result<CommandStatus> {
    match verb {
        Verb::Info(arguments) => info::run(arguments, &exit_on_signals()?),
        Verb::Ls(arguments) => ls::run(arguments, &exit_on_signals()?),
        Verb::Cat(arguments) => cat::run(arguments, &exit_on_signals()?),
        Verb::Stat(arguments) => stat::run(arguments, &exit_on_signals()?),
        Verb::Cache(arguments) => cache::run(arguments, &exit_on_signals()?),
        Verb::List(arguments) => list::run(arguments, &exit_on_signals()?),
        Verb::Pull(arguments) => pull::run(arguments, exit_on_signals()?),
        Verb::Push(arguments) => push::run(arguments, exit_on_signals()?),
        Verb::Stats(arguments) => stats::run(arguments, &exit_on_signals()?),
        Verb::Extract(arguments) => extract::run(&(&**arguments).into(), exit_on_signals()?),
        Verb::Check(arguments) => check::run(&arguments.into(), exit_on_signals()?),
        Verb::Build(arguments) => build::run(arguments, exit_on_signals()?),
        Verb::Demo(arguments) => demo::run(arguments, exit_on_signals()?),
        // It unmounts after a signal, with handlers of its own.
        Verb::Mount(arguments) => mount::run(arguments, MountInvocation::default()),
    }
}
