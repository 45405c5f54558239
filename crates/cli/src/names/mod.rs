//! The names that the command answers to. It knows which command line belongs to which name and makes a verb of it;
//! it does nothing itself. Called by `main`.

pub(crate) mod erofsfuse;
pub(crate) mod mount_fuse;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::{CommandFactory, Parser};

use crate::arguments::{Arguments, Called, Caller, Verb};
use erofsfuse::ErofsfuseArguments;
use mount_fuse::MountFuseArguments;

/// The verb that the process was started for. Wrong usage and requests for help end the process here, as in every
/// program with clap.
pub(crate) fn verb() -> Verb {
    let words: Vec<OsString> = std::env::args_os().collect();
    match Name::of(&words, Path::is_file) {
        Name::Ferrofs => Arguments::parse_from(words).verb,
        Name::Erofsfuse => ErofsfuseArguments::parse_from(words).into(),
        Name::MountFuse => MountFuseArguments::parse_from(words).into(),
        Name::TypeOfMountFuse => of_type(words),
    }
}

/// Which command line it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// Verbs.
    Ferrofs,
    /// That of erofs-utils.
    Erofsfuse,
    /// That of a helper of mount(8), for a type of its own.
    MountFuse,
    /// `ferrofs IMAGE DIR -o …`: as mount.fuse(8) calls the program that a type names.
    TypeOfMountFuse,
}

impl Name {
    fn of(words: &[OsString], is_file: impl Fn(&Path) -> bool) -> Self {
        let called = words.first().and_then(|word| Path::new(word).file_name());
        match called.and_then(OsStr::to_str) {
            Some("erofsfuse") => return Self::Erofsfuse,
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
        if is_image { Self::TypeOfMountFuse } else { Self::Ferrofs }
    }
}

fn of_type(mut words: Vec<OsString>) -> Verb {
    words.insert(1, "mount".into());
    let mut verb = Arguments::parse_from(words).verb;
    if let Verb::Mount(mount) = &mut verb {
        mount.called = Called { by: Caller::MountProgram, ..Called::default() };
    }
    verb
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(words: &[&str]) -> Name {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        Name::of(&words, |path| path == Path::new("there"))
    }

    #[test]
    fn the_first_word_tells_programs_apart() {
        assert_eq!(name(&["ferrofs", "ls", "there"]), Name::Ferrofs);
        assert_eq!(name(&["/usr/bin/erofsfuse", "there", "dir"]), Name::Erofsfuse);
        assert_eq!(name(&["/sbin/mount.fuse.ferrofs", "there", "dir"]), Name::MountFuse);
        assert_eq!(name(&[]), Name::Ferrofs);
    }

    #[test]
    fn an_image_in_the_place_of_a_verb_is_mounted() {
        assert_eq!(name(&["ferrofs", "there", "dir"]), Name::TypeOfMountFuse);
        assert_eq!(name(&["ferrofs", "gone", "dir", "-o", "ro"]), Name::TypeOfMountFuse);
        assert_eq!(name(&["ferrofs", "gone", "dir"]), Name::Ferrofs);
        assert_eq!(name(&["ferrofs", "there"]), Name::Ferrofs);
        assert_eq!(name(&["ferrofs", "--help", "there"]), Name::Ferrofs);
        assert_eq!(name(&["ferrofs", "check", "there", "-o", "ro"]), Name::Ferrofs);
    }

    #[test]
    fn each_command_line_is_described_soundly() {
        ErofsfuseArguments::command().debug_assert();
        MountFuseArguments::command().debug_assert();
    }
}
