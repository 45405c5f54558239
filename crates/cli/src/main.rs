//! The `ferrofs` command: reads the arguments, runs one verb, and turns its result into an exit
//! status. The libraries below do the work; only this crate prints, and only this file exits.

mod amount;
mod applets;
mod arguments;
mod build;
mod container;
mod demo;
mod diagnostics;
mod dump;
mod exit_status;
mod help;
mod metadata_text;
mod mount;
mod output;
mod progress;
mod read_stats;
mod remote;
mod resources;
mod signals;
mod source;
mod stats;
mod text_file;
mod user_mounts;
mod verbs;

use std::process::ExitCode;

fn main() -> ExitCode {
    signals::survive_file_size_limit();
    let invocation = match applets::parse_command_line() {
        Ok(invocation) => invocation,
        Err(code) => return code,
    };
    let status = exit_status::conclude(verbs::run(&invocation));
    invocation.exit_code(status)
}
