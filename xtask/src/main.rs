//! Chores of the workspace: picks the chore that the command line names and turns its outcome
//! into an exit status. It owns no check; each chore is a module. Called by people and `.ci/run`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a chore's whole result is the lines it prints"
)]

// What the command's arguments are: its own files, without the command.
#[path = "command/amount.rs"]
#[allow(dead_code, reason = "only reading amounts matters here")]
mod amount;
#[path = "command/arguments.rs"]
#[allow(dead_code, reason = "only their description matters here")]
mod arguments;
#[path = "command/applets/dump.rs"]
#[allow(dead_code, reason = "only their description matters here")]
mod dump;
#[path = "command/applets/fsck.rs"]
#[allow(dead_code, reason = "only their description matters here")]
mod fsck;
#[path = "command/help.rs"]
#[allow(dead_code, reason = "the manual has no first lines")]
mod help;
#[path = "command/applets/mkfs.rs"]
#[allow(dead_code, reason = "only their description matters here")]
mod mkfs;
#[path = "command/applets/mount.rs"]
#[allow(dead_code, reason = "only their description matters here")]
mod mount;

mod api;
mod links;
mod pages;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
usage: cargo run -p xtask -- CHORE

chores:
  tidy             check the rules that the compiler and clippy cannot see
  api [--check]    write the public items of each library into docs/api, or compare them
  links DIR        check the links of the book that was built there
  man DIR          write the manual pages of the command into DIR
  completions DIR  write its completions for bash, fish and zsh into DIR
  help             print this text

exit status: 0 all is well, 1 a rule is broken, 2 the command line is wrong";

fn main() -> ExitCode {
    if let Some(status) = api::run_as_rustdoc() {
        return status;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    match Chore::parse(&words) {
        Ok(Chore::Tidy) => tidy::run(),
        Ok(Chore::Api(mode)) => api::run(mode),
        Ok(Chore::Links(dir)) => links::run(&dir),
        Ok(Chore::Man(dir)) => pages::outcome(pages::write_manual(&dir)),
        Ok(Chore::Completions(dir)) => pages::outcome(pages::write_completions(&dir)),
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
    Api(api::Mode),
    Links(PathBuf),
    Man(PathBuf),
    Completions(PathBuf),
    Help,
}

impl Chore {
    fn parse(words: &[String]) -> Result<Self, String> {
        match words {
            [] => Err("no chore given".to_owned()),
            [only] => match only.as_str() {
                "tidy" => Ok(Self::Tidy),
                "api" => Ok(Self::Api(api::Mode::Write)),
                "help" | "--help" | "-h" => Ok(Self::Help),
                "links" | "man" | "completions" => Err(format!("{only} needs a directory")),
                other => Err(format!("unknown chore {other}")),
            },
            [chore, option] if chore == "api" && option == "--check" => {
                Ok(Self::Api(api::Mode::Check))
            }
            [chore, dir] if chore == "links" => Ok(Self::Links(dir.into())),
            [chore, dir] if chore == "man" => Ok(Self::Man(dir.into())),
            [chore, dir] if chore == "completions" => Ok(Self::Completions(dir.into())),
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
        assert_eq!(parse(&["api"]), Ok(Chore::Api(super::api::Mode::Write)));
        assert_eq!(parse(&["api", "--check"]), Ok(Chore::Api(super::api::Mode::Check)));
        assert_eq!(parse(&["links", "book"]), Ok(Chore::Links("book".into())));
        assert_eq!(parse(&["man", "out"]), Ok(Chore::Man("out".into())));
        assert_eq!(parse(&["completions", "out"]), Ok(Chore::Completions("out".into())));
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        assert_eq!(parse(&["polish"]), Err("unknown chore polish".to_owned()));
        assert_eq!(parse(&["tidy", "now"]), Err("unexpected word now".to_owned()));
        assert_eq!(parse(&["man"]), Err("man needs a directory".to_owned()));
        assert_eq!(parse(&[]), Err("no chore given".to_owned()));
    }
}
