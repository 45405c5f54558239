//! The `ferrofs` command: reads the arguments, runs one verb, and turns its result into an exit
//! status. The libraries below do the work; only this crate prints, and only this file exits.

mod amount;
mod applets;
mod arguments;
mod build;
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
mod resources;
mod signals;
mod source;
mod stats;
mod verbs;

use std::process::ExitCode;

use exit_status::CommandStatus;

fn main() -> ExitCode {
    let call = match applets::parse_command_line() {
        Ok(call) => call,
        Err(code) => return code,
    };
    match verbs::run(&call) {
        Ok(exit_status) => exit_status.into(),
        // Whoever read our output has seen enough of it.
        Err(error) if output::is_broken_pipe(&error) => CommandStatus::Success.into(),
        Err(error) => {
            output::print_message(format_args!("{error:#}"));
            CommandStatus::Failure.into()
        }
    }
}
