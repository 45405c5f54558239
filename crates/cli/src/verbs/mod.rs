//! One module for each verb, and the choice between them.

mod build;
mod cat;
mod check;
mod demo;
mod dump;
mod extract;
mod extract_tar;
mod found_inode;
mod fsck;
mod info;
mod ls;
mod mount;
mod mount_stats;
mod stat;

use crate::arguments::Verb;
use crate::names::Call;
use crate::outcome::Outcome;

/// Does what was asked for.
pub(crate) fn run(call: &Call) -> anyhow::Result<Outcome> {
    match call {
        Call::Verb(verb) => run_verb(verb),
        Call::Fsck(arguments) => fsck::run(arguments),
        Call::Dump(arguments) => dump::run(arguments),
        Call::Mkfs(arguments) => build::run_mkfs(arguments),
    }
}

fn run_verb(verb: &Verb) -> anyhow::Result<Outcome> {
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
        Verb::Stats(arguments) => mount_stats::run(arguments),
        Verb::Demo(arguments) => demo::run(arguments),
    }
}
