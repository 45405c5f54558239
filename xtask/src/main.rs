//! Chores of the workspace: picks the chore that the command line names and turns its outcome
//! into an exit status. It owns no check; each chore is a module. Called by people and `.ci/run`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a chore's whole result is the lines it prints"
)]

mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
usage: cargo run -p xtask -- CHORE

chores:
  tidy   check the rules that the compiler and clippy cannot see
  help   print this text

exit status: 0 all is well, 1 a rule is broken, 2 the command line is wrong";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match Chore::parse(&words) {
        Ok(Chore::Tidy) => tidy::run(),
        Ok(Chore::Help) => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        Err(complaint) => {
            eprintln!("xtask: {complaint}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Chore {
    Tidy,
    Help,
}

impl Chore {
    fn parse(words: &[String]) -> Result<Self, String> {
        match words {
            [] => Err("no chore given".to_owned()),
            [only] => match only.as_str() {
                "tidy" => Ok(Self::Tidy),
                "help" | "--help" | "-h" => Ok(Self::Help),
                other => Err(format!("unknown chore {other}")),
            },
            [_, extra, ..] => Err(format!("unexpected word {extra}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Chore;

    fn parse(words: &[&str]) -> Result<Chore, String> {
        let owned: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Chore::parse(&owned)
    }

    #[test]
    fn known_chores_are_recognised() {
        assert_eq!(parse(&["tidy"]), Ok(Chore::Tidy));
        assert_eq!(parse(&["help"]), Ok(Chore::Help));
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        assert_eq!(parse(&["polish"]), Err("unknown chore polish".to_owned()));
        assert_eq!(parse(&["tidy", "now"]), Err("unexpected word now".to_owned()));
        assert_eq!(parse(&[]), Err("no chore given".to_owned()));
    }
}
