//! One module for each verb, and the choice between them.

mod cat;
mod check;
pub(crate) mod extract;
mod extract_tar;
mod fsck;
pub(crate) mod info;
mod ls;
mod stat;
mod tar_output;

use crate::applets::Invocation;
use crate::arguments::Verb;
use crate::exit_status::CommandStatus;
use crate::{build, demo, dump, mount, stats};

/// Does what was asked for.
pub(crate) fn run(call: &Invocation) -> anyhow::Result<CommandStatus> {
    match call {
        Invocation::Verb(verb) => run_verb(verb),
        Invocation::Fsck(arguments) => fsck::run(arguments),
        Invocation::Dump(arguments) => dump::run(arguments),
        Invocation::Mkfs(arguments) => build::run_mkfs(arguments),
    }
}

fn run_verb(verb: &Verb) -> anyhow::Result<CommandStatus> {
    match verb {
        Verb::Info(arguments) => info::run(arguments),
        Verb::Ls(arguments) => ls::run(arguments),
        Verb::Cat(arguments) => cat::run(arguments),
        Verb::Stat(arguments) => stat::run(arguments),
        Verb::Extract(arguments) => match &arguments.tar {
            Some(path) => extract_tar::run(arguments, path),
            None => extract::run(arguments),
        },
        Verb::Check(arguments) => check::run(arguments),
        Verb::Build(arguments) => build::run(arguments),
        Verb::Mount(arguments) => mount::run(arguments),
        Verb::Stats(arguments) => stats::run(arguments),
        Verb::Demo(arguments) => demo::run(arguments),
    }
}
