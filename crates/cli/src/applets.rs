//! The names under which the command can be linked, and their command lines. The name of the
//! program selects the command line. Called by `main`.

pub(crate) mod dump;
pub(crate) mod fsck;
pub(crate) mod mkfs;
pub(crate) mod mount;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use dump::DumpArguments;
use fsck::FsckArguments;
use mkfs::MkfsArguments;
use mount::{ErofsfuseArguments, MountErofsArguments, MountFuseArguments};

use crate::arguments::{Arguments, MountArguments, MountCaller, MountInvocation, Verb};
use crate::exit_status::{self, CommandStatus};
use crate::output;

/// The exit status of erofs-utils for wrong usage.
const EROFS_UTILS_USAGE: u8 = 1;
/// That of dump.erofs: the negative number of EINVAL in 8 bits.
const DUMP_USAGE: u8 = 234;

/// What the command line selects.
#[derive(Debug)]
pub(crate) enum Invocation {
    Verb(Verb),
    Mount(Box<MountArguments>, MountInvocation),
    Fsck(FsckArguments),
    Dump(DumpArguments),
    Mkfs(Box<MkfsArguments>),
    /// The process that connects for a mount; these are the words behind its name.
    Companion(Vec<OsString>),
}

impl Invocation {
    /// The exit status for a status of this invocation: programs of erofs-utils use 1 for wrong
    /// usage as well.
    pub(crate) fn exit_code(&self, status: CommandStatus) -> ExitCode {
        let usage = match self {
            Self::Fsck(_) | Self::Mkfs(_) => EROFS_UTILS_USAGE,
            Self::Dump(_) => DUMP_USAGE,
            Self::Mount(
                _,
                MountInvocation { by: MountCaller::Erofsfuse | MountCaller::MountErofs, .. },
            ) => EROFS_UTILS_USAGE,
            Self::Mount(..) | Self::Verb(_) | Self::Companion(_) => {
                CommandStatus::UsageError.code()
            }
        };
        ExitCode::from(match status {
            CommandStatus::UsageError => usage,
            status => status.code(),
        })
    }
}

/// Reads the command line. After wrong usage and requests for help, which it answers, it returns
/// the exit status.
///
/// For a verb that may serve a mount this is done in a thread, with which stack, heap and what the allocator keeps for it
/// can be given back: hundreds of KiB that would stay with the mount.
pub(crate) fn parse_command_line() -> Result<Invocation, ExitCode> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let may_serve = match ProgramName::of(&words, Path::is_file) {
        ProgramName::Ferrofs => words.iter().any(|word| word == "mount"),
        ProgramName::Erofsfuse
        | ProgramName::MountFuse
        | ProgramName::MountErofs
        | ProgramName::MountTypeProgram => true,
        ProgramName::Fsck | ProgramName::Dump | ProgramName::Mkfs | ProgramName::Companion => false,
    };
    if !may_serve {
        return parse_words(words);
    }
    let of_thread = words.clone();
    match std::thread::Builder::new().spawn(|| parse_words(of_thread)) {
        Ok(parsing) => parsing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(_) => parse_words(words),
    }
}

/// The same for the words of another process.
pub(crate) fn parse_words(words: Vec<OsString>) -> Result<Invocation, ExitCode> {
    match ProgramName::of(&words, Path::is_file) {
        ProgramName::Ferrofs => {
            let words = with_help_of_help(words);
            parse::<Arguments>(words).map(|typed| Invocation::Verb(typed.verb))
        }
        ProgramName::Erofsfuse => ErofsfuseArguments::try_parse_from(words)
            .map(|typed| mount(typed.into_mount()))
            .map_err(|answer| end_erofsfuse(&answer)),
        ProgramName::MountFuse => {
            parse::<MountFuseArguments>(words).map(|typed| mount(typed.into_mount()))
        }
        ProgramName::MountErofs => MountErofsArguments::read(&words)
            .map(|typed| mount(typed.into_mount()))
            .map_err(|answer| end(&answer, EROFS_UTILS_USAGE)),
        ProgramName::MountTypeProgram => mount_type_program(words),
        ProgramName::Fsck => FsckArguments::read(&words)
            .map(Invocation::Fsck)
            .map_err(|answer| end(&answer, EROFS_UTILS_USAGE)),
        ProgramName::Dump => DumpArguments::try_parse_from(words)
            .map(Invocation::Dump)
            .map_err(|answer| end(&answer, DUMP_USAGE)),
        ProgramName::Companion => Ok(Invocation::Companion(words.into_iter().skip(1).collect())),
        ProgramName::Mkfs => {
            let typed = MkfsArguments::read(words);
            typed.map(Box::new).map(Invocation::Mkfs).map_err(|answer| end_mkfs(&answer))
        }
    }
}

/// `ferrofs help --help` as `ferrofs help help`: clap takes what follows `help` for a name.
fn with_help_of_help(mut words: Vec<OsString>) -> Vec<OsString> {
    if let [_, help, option] = &mut words[..]
        && help == "help"
        && (option == "--help" || option == "-h")
    {
        option.clone_from(help);
    }
    words
}

/// Answers as erofsfuse does, which ends with 1 after help and its version, too.
fn end_erofsfuse(answer: &clap::Error) -> ExitCode {
    end(answer, EROFS_UTILS_USAGE);
    ExitCode::from(EROFS_UTILS_USAGE)
}

/// Prints what to do instead where an option of mkfs.erofs is not supported.
fn end_mkfs(answer: &clap::Error) -> ExitCode {
    match mkfs::refusal(answer) {
        Some(refusal) => {
            output::print_message(refusal);
            ExitCode::from(EROFS_UTILS_USAGE)
        }
        None => end(answer, EROFS_UTILS_USAGE),
    }
}

/// Reads a command line of the verbs or of a mount; wrong usage ends with 2.
fn parse<A: Parser>(words: Vec<OsString>) -> Result<A, ExitCode> {
    A::try_parse_from(words).map_err(|answer| end(&answer, CommandStatus::UsageError.code()))
}

/// Answers a request for help, or reports wrong usage, which has the exit status `usage`.
fn end(answer: &clap::Error, usage: u8) -> ExitCode {
    let printed = answer.print().and_then(|()| io::stdout().flush()).map_err(output::of_stdout);
    if answer.use_stderr() {
        // If standard error is closed, there is only the status.
        return ExitCode::from(usage);
    }
    let status = CommandStatus::Success.after_output(printed);
    ExitCode::from(exit_status::conclude(status).code())
}

/// Which command line it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramName {
    /// Verbs.
    Ferrofs,
    /// That of erofs-utils.
    Erofsfuse,
    /// That of a helper of mount(8) for the type `fuse.ferrofs`.
    MountFuse,
    /// That of erofs-utils for mounting.
    MountErofs,
    /// That of erofs-utils for checking and unpacking.
    Fsck,
    /// That of erofs-utils for looking at the layout.
    Dump,
    /// That of erofs-utils for building.
    Mkfs,
    /// A mount of a remote image has started it: [`crate::remote::COMPANION_NAME`].
    Companion,
    /// `ferrofs IMAGE DIR -o …`: as mount.fuse(8) calls the program that a type names.
    MountTypeProgram,
}

impl ProgramName {
    fn of(words: &[OsString], is_file: impl Fn(&Path) -> bool) -> Self {
        let called = words.first().and_then(|word| Path::new(word).file_name());
        match called.and_then(OsStr::to_str) {
            Some("erofsfuse") => return Self::Erofsfuse,
            Some("fsck.erofs") => return Self::Fsck,
            Some("dump.erofs") => return Self::Dump,
            Some("mkfs.erofs") => return Self::Mkfs,
            Some(crate::remote::COMPANION_NAME) => return Self::Companion,
            Some("mount.erofs") => return Self::MountErofs,
            Some("mount.fuse.ferrofs" | "mount.ferrofs") => return Self::MountFuse,
            _ => {}
        }
        let [_, image, _, ..] = words else { return Self::Ferrofs };
        let is_verb = || {
            Arguments::command().get_subcommands().any(|verb| verb.get_name() == image.as_os_str())
        };
        let has_options = || words.iter().any(|word| word == "-o");
        let is_image = !image.as_encoded_bytes().starts_with(b"-")
            && !is_verb()
            && (is_file(Path::new(image)) || has_options());
        if is_image { Self::MountTypeProgram } else { Self::Ferrofs }
    }
}

fn mount((arguments, invocation): (MountArguments, MountInvocation)) -> Invocation {
    Invocation::Mount(Box::new(arguments), invocation)
}

/// The command line of a mount that mount.fuse(8) has put together.
fn mount_type_program(mut words: Vec<OsString>) -> Result<Invocation, ExitCode> {
    words.insert(1, "mount".into());
    match parse::<Arguments>(words)?.verb {
        Verb::Mount(arguments) => {
            let by = MountCaller::MountProgram;
            Ok(Invocation::Mount(arguments, MountInvocation { by, ..MountInvocation::default() }))
        }
        verb => Ok(Invocation::Verb(verb)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(words: &[&str]) -> ProgramName {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        ProgramName::of(&words, |path| path == Path::new("there"))
    }

    #[test]
    fn the_first_word_tells_programs_apart() {
        assert_eq!(name(&["ferrofs", "ls", "there"]), ProgramName::Ferrofs);
        assert_eq!(name(&["/usr/bin/erofsfuse", "there", "dir"]), ProgramName::Erofsfuse);
        assert_eq!(name(&["/sbin/mount.fuse.ferrofs", "there", "dir"]), ProgramName::MountFuse);
        assert_eq!(name(&["/sbin/mount.erofs", "there", "dir"]), ProgramName::MountErofs);
        assert_eq!(name(&["/usr/sbin/fsck.erofs", "there"]), ProgramName::Fsck);
        assert_eq!(name(&["dump.erofs", "there"]), ProgramName::Dump);
        assert_eq!(name(&["./mkfs.erofs", "there", "dir"]), ProgramName::Mkfs);
        assert_eq!(name(&[]), ProgramName::Ferrofs);
    }

    #[test]
    fn an_image_in_the_place_of_a_verb_is_mounted() {
        assert_eq!(name(&["ferrofs", "there", "dir"]), ProgramName::MountTypeProgram);
        assert_eq!(name(&["ferrofs", "gone", "dir", "-o", "ro"]), ProgramName::MountTypeProgram);
        assert_eq!(name(&["ferrofs", "gone", "dir"]), ProgramName::Ferrofs);
        assert_eq!(name(&["ferrofs", "there"]), ProgramName::Ferrofs);
        assert_eq!(name(&["ferrofs", "--help", "there"]), ProgramName::Ferrofs);
        assert_eq!(name(&["ferrofs", "check", "there", "-o", "ro"]), ProgramName::Ferrofs);
    }

    #[test]
    fn each_command_line_is_described_soundly() {
        ErofsfuseArguments::command().debug_assert();
        MountFuseArguments::command().debug_assert();
        MountErofsArguments::command().debug_assert();
        FsckArguments::command().debug_assert();
        DumpArguments::command().debug_assert();
        MkfsArguments::command().debug_assert();
    }
}
