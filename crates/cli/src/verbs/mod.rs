//! One module for each verb, and the choice between them.

mod cat;
mod check;
mod demo;
mod extract;
mod extract_tar;
mod info;
mod ls;
mod mount;
mod mount_stats;
mod stat;

use crate::arguments::Verb;
use crate::outcome::Outcome;

/// Does what was asked for.
pub(crate) fn run(verb: &Verb) -> anyhow::Result<Outcome> {
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
        Verb::Mount(arguments) => mount::run(arguments),
        Verb::Stats(arguments) => mount_stats::run(arguments),
        Verb::Demo(arguments) => demo::run(arguments),
    }
}
