//! The `ferrofs` command: reads the arguments, runs one verb, and turns its outcome into an exit
//! status. The libraries below do the work; only this crate prints, and only this file exits.

mod advice;
mod amount;
mod arguments;
mod help;
mod inode_text;
mod moment;
mod name;
mod names;
mod outcome;
mod output;
mod problem;
mod progress;
mod resources;
mod source;
mod stats;
mod stderr;
mod stored_size;
mod tar_file;
mod verbs;

use std::process::ExitCode;

use outcome::Outcome;

fn main() -> ExitCode {
    let call = match names::call() {
        Ok(call) => call,
        Err(code) => return code,
    };
    match verbs::run(&call) {
        Ok(outcome) => outcome.into(),
        // Whoever read our output has seen enough of it.
        Err(error) if output::is_broken_pipe(&error) => Outcome::Good.into(),
        Err(error) => {
            stderr::complain(format_args!("{error:#}"));
            Outcome::Bad.into()
        }
    }
}
