//! Manual pages and completions of the command, made from the description of its arguments. What
//! users read is thereby what the parser does.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Command, CommandFactory};
use clap_complete::aot::{Shell, generate_to};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::arguments::Arguments;
use crate::dump::DumpArguments;
use crate::fsck::FsckArguments;
use crate::mkfs::MkfsArguments;
use crate::mount::{ErofsfuseArguments, MountErofsArguments, MountFuseArguments};

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// A page of the manual.
struct Page {
    command: Command,
    section: &'static str,
}

/// The command and its other names.
fn commands() -> Vec<Page> {
    let page = |command, section| Page { command, section };
    vec![
        // The help of a verb is its page.
        page(Arguments::command().disable_help_subcommand(true), "1"),
        page(ErofsfuseArguments::command(), "1"),
        // Helpers of mount(8).
        page(MountFuseArguments::command(), "8"),
        page(MountErofsArguments::command(), "8"),
        page(FsckArguments::command(), "1"),
        page(DumpArguments::command(), "1"),
        page(MkfsArguments::command(), "1"),
    ]
}

/// Writes a page for the command, each verb, and each other name of the command.
pub(crate) fn write_manual(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let date = date();
    for Page { mut command, section } in commands() {
        command.build();
        let verbs: Vec<Command> = command.get_subcommands().cloned().collect();
        for command in std::iter::once(command).chain(verbs) {
            let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
            let page = rendered(&Page { command, section }, &name, &date)?;
            fs::write(dir.join(format!("{name}.{section}")), page)?;
        }
    }
    Ok(())
}

/// A page: what clap_mangen makes of the arguments, and the rest of the help in sections.
fn rendered(page: &Page, name: &str, date: &str) -> io::Result<Vec<u8>> {
    let version = concat!("ferrofs ", env!("CARGO_PKG_VERSION"));
    let help = page.command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let man = Man::new(page.command.clone()).section(page.section).date(date).source(version);
    let man = man.title(name.to_owned()).manual("ferrofs manual");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    synopsis(&page.command).to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if page.command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let mut roff = Roff::new();
    for section in sections(&help) {
        roff.control("SH", [section.heading]);
        for paragraph in section.paragraphs {
            roff.control("PP", []);
            // Examples and tables keep their lines.
            let is_list = paragraph.lines().any(|line| line.starts_with("  "));
            if is_list {
                roff.control("nf", []);
            }
            for line in paragraph.lines() {
                roff.text([roman(line)]);
            }
            if is_list {
                roff.control("fi", []);
            }
        }
    }
    roff.to_writer(&mut text)?;
    Ok(text)
}

/// The usage as the help has it: clap_mangen drops the names of values and the "..." of arguments that can be repeated.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:");
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    for (number, line) in usage.lines().enumerate() {
        if number > 0 {
            roff.control("br", []);
        }
        // The words of the command come before its arguments.
        let line = line.trim();
        let (words, arguments) = line.split_at(line.find(['[', '<']).unwrap_or(line.len()));
        roff.text([bold(words.trim_end()), roman(" "), roman(arguments)]);
    }
    roff
}

/// A part of the help after the options.
struct HelpSection<'a> {
    heading: &'static str,
    paragraphs: Vec<&'a str>,
}

/// Splits the help at the paragraphs with the exit status and the examples.
fn sections(help: &str) -> Vec<HelpSection<'_>> {
    let mut sections: Vec<HelpSection<'_>> = Vec::new();
    for paragraph in help.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let (heading, text) = match paragraph {
            _ if paragraph.starts_with("Exit status: ") => {
                ("EXIT STATUS", paragraph.trim_start_matches("Exit status: "))
            }
            _ if paragraph.starts_with("Examples:\n") => {
                ("EXAMPLES", paragraph.trim_start_matches("Examples:\n"))
            }
            _ => ("NOTES", paragraph),
        };
        match sections.last_mut().filter(|last| last.heading == heading) {
            Some(last) => last.paragraphs.push(text),
            None => sections.push(HelpSection { heading, paragraphs: vec![text] }),
        }
    }
    sections
}

/// The date of the pages: that of `SOURCE_DATE_EPOCH`, else today.
fn date() -> String {
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    date_of(epoch.unwrap_or(now) / (24 * 60 * 60))
}

/// The date of a day since 1970, as YYYY-MM-DD.
fn date_of(days: u64) -> String {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while let Some(days) = months.get(month).filter(|days| left >= **days) {
        left -= days;
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, left + 1)
}

/// Writes completion files of the command and of its other names for each shell, under the names
/// that the shell looks for.
pub(crate) fn write_completions(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for Page { mut command, .. } in commands() {
        let name = command.get_name().to_owned();
        for shell in SHELLS {
            generate_to(shell, &mut command, &name, dir)?;
        }
    }
    Ok(())
}

/// The exit status of a chore that writes files.
pub(crate) fn outcome(written: io::Result<()>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: cannot write: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_its_page_and_its_examples() {
        let dir = tempfile::tempdir().unwrap();
        write_manual(dir.path()).unwrap();
        for verb in Arguments::command().get_subcommands() {
            let page = dir.path().join(format!("ferrofs-{}.1", verb.get_name()));
            let text = fs::read_to_string(&page).unwrap();
            assert!(text.contains(".SH EXAMPLES"), "{page:?}");
            assert!(!text.contains("EXTRA"), "{page:?}");
        }
        for name in [
            "ferrofs.1",
            "erofsfuse.1",
            "mount.fuse.ferrofs.8",
            "mount.erofs.8",
            "fsck.erofs.1",
            "dump.erofs.1",
            "mkfs.erofs.1",
        ] {
            let text = fs::read_to_string(dir.path().join(name)).unwrap();
            let (name, section) = name.rsplit_once('.').unwrap();
            let heading = format!(".TH {name} {section} {} \"ferrofs ", date());
            assert!(text.contains(&heading), "{heading} in {text}");
            assert!(text.contains(".SH EXAMPLES"), "{name}");
            assert!(
                text.contains("EROFS") && !text.contains(env!("CARGO_PKG_DESCRIPTION")),
                "{name}"
            );
        }
        let mount = fs::read_to_string(dir.path().join("ferrofs-mount.1")).unwrap();
        assert!(mount.contains(".TH ferrofs\\-mount 1 ") || mount.contains(".TH ferrofs-mount 1 "));
    }

    #[test]
    fn the_synopsis_is_the_usage_with_all_names_of_values() {
        for page in commands() {
            let mut command = page.command;
            command.build();
            let verbs: Vec<Command> = command.get_subcommands().cloned().collect();
            for mut command in std::iter::once(command).chain(verbs) {
                let usage = command.render_usage().to_string();
                let mut text = Vec::new();
                synopsis(&command).to_writer(&mut text).unwrap();
                let text = String::from_utf8(text).unwrap();
                let plain = text
                    .replace(r"\fB", "")
                    .replace(r"\fR", "")
                    .replace("\\-", "-")
                    .replace("\n.br", "");
                for line in usage.trim_start_matches("Usage:").lines() {
                    assert!(plain.contains(line.trim()), "{line} in {text}");
                }
            }
        }
        let mut command = Arguments::command();
        command.build();
        let build = command.find_subcommand("build").unwrap();
        let mut text = Vec::new();
        synopsis(build).to_writer(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(r"\fBferrofs build\fR [OPTIONS] <IMAGE> <SOURCE>..."), "{text}");
    }

    #[test]
    fn exit_status_and_examples_have_sections_of_their_own() {
        let found = sections("One.\n\nTwo.\n\nExit status: 0 or 1.\n\nExamples:\n  a\n  b");
        let found: Vec<_> =
            found.iter().map(|part| (part.heading, part.paragraphs.len())).collect();
        assert_eq!(found, [("NOTES", 2), ("EXIT STATUS", 1), ("EXAMPLES", 1)]);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, date) in [(0, "1970-01-01"), (11_016, "2000-02-29"), (20_782, "2026-11-25")] {
            assert_eq!(date_of(days), date);
        }
    }

    #[test]
    fn completions_know_the_verbs_and_all_names() {
        let dir = tempfile::tempdir().unwrap();
        write_completions(dir.path()).unwrap();
        for file in ["ferrofs.bash", "ferrofs.fish", "_ferrofs"] {
            let text = fs::read_to_string(dir.path().join(file)).unwrap();
            assert!(text.contains("extract") && text.contains("no-checksum"), "{file}");
        }
        for (name, option) in [
            ("mkfs.erofs", "xattr-inode-digest"),
            ("fsck.erofs", "no-sbcrc"),
            ("dump.erofs", "blkid-udev"),
            ("erofsfuse", "dbglevel"),
        ] {
            for file in [format!("{name}.bash"), format!("{name}.fish"), format!("_{name}")] {
                let text = fs::read_to_string(dir.path().join(&file)).unwrap();
                assert!(text.contains(option), "{file}");
            }
        }
    }
}
