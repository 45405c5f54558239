//! What kind of source the options of `ferrofs build` are for, and what the sources are.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ferrofs_builder::import::erofs_image_name;

use super::request::SourceKind;
use crate::arguments::{BuildArguments, WhiteoutChoice};
use crate::container::is_container;
use crate::output::escape;
use crate::source::foreign;

/// The kind of source that the options need: some are only for one kind.
pub(super) fn kind(typed: &BuildArguments) -> Result<SourceKind, String> {
    let content = &typed.content;
    let for_directories = for_directories(typed);
    if typed.sources.iter().any(|source| is_container(source)) {
        if typed.sources.len() > 1 {
            return Err("a container image must be the only SOURCE".to_owned());
        }
        if content.whiteouts == WhiteoutChoice::Overlay {
            let why =
                "--whiteouts=overlay is for archives; leave it out: container layers are merged";
            return Err(why.to_owned());
        }
        return match for_directories {
            Some(option) => Err(format!("{option} is for a directory, not for a container image")),
            None => Ok(SourceKind::Container),
        };
    }
    let is_tar = typed.sources.len() > 1
        || typed.sources.iter().any(|source| source == Path::new("-"))
        || content.whiteouts != WhiteoutChoice::Keep;
    match (for_directories, is_tar) {
        (Some(option), true) => Err(format!("{option} is for a directory, not for archives")),
        (Some(_), false) => Ok(SourceKind::Directory),
        (None, true) => Ok(SourceKind::Tar),
        (None, false) => Ok(SourceKind::AsFound),
    }
}

/// The option, if one was given, that only a directory has a use for.
fn for_directories(typed: &BuildArguments) -> Option<&'static str> {
    let content = &typed.content;
    let options = [
        (!content.exclude.is_empty(), "--exclude"),
        (!content.exclude_regex.is_empty(), "--exclude-regex"),
        (content.separate_hard_links, "--separate-hard-links"),
        (typed.keep_going, "--keep-going"),
    ];
    options.iter().find(|(is_given, _)| *is_given).map(|(_, option)| *option)
}

/// The option, if one was given, that only archives have a use for.
fn for_archives(typed: &BuildArguments) -> Option<&'static str> {
    let content = &typed.content;
    match content.whiteouts {
        WhiteoutChoice::Keep => content.max_input.map(|_| "--max-input"),
        WhiteoutChoice::Overlay => Some("--whiteouts=overlay"),
        WhiteoutChoice::Apply => Some("--whiteouts=apply"),
    }
}

/// Refuses a source of another kind than an option is for, with the name of the option. A source that cannot be
/// examined is left to who opens it.
///
/// # Errors
/// The option or the source is wrong, in words.
pub(super) fn check(typed: &BuildArguments) -> Result<(), String> {
    let is_path = |source: &&PathBuf| *source != Path::new("-") && !is_container(source);
    for source in typed.sources.iter().filter(is_path) {
        let Ok(found) = fs::metadata(source) else { continue };
        let name = escape(source.as_os_str().as_bytes());
        if found.is_dir() && typed.sources.len() > 1 {
            return Err(format!(
                "{name}: a directory, but several sources must be archives of layers: give the directory alone"
            ));
        }
        match (found.is_dir(), for_archives(typed), for_directories(typed)) {
            (true, Some(option), _) => {
                return Err(format!(
                    "{name}: a directory, but {option} is for archives: leave it out"
                ));
            }
            (false, _, Some(option)) => {
                return Err(format!(
                    "{name}: not a directory, but {option} is for a directory: leave it out"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Names what a file is that is no archive, by its first bytes.
pub(super) fn foreign_name(start: &[u8]) -> Option<&'static str> {
    // The remedy is for commands that want an image.
    erofs_image_name(start).or_else(|| foreign::identify_bytes(start).map(|kind| kind.name))
}

#[cfg(test)]
mod tests {
    use ferrofs_ondisk::SUPERBLOCK_MAGIC;

    use super::*;

    #[test]
    fn images_are_named_without_advice_for_other_commands() {
        let mut start = vec![0; 70 << 10];
        assert_eq!(foreign_name(&start), None);
        start[4096..4100].copy_from_slice(&[0x67, 0x44, 0x6c, 0x61]);
        assert_eq!(foreign_name(&start), Some("a super image of Android"));
        start[1080..1082].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(foreign_name(&start), Some("an ext2, ext3 or ext4 file system"));
        start[1024..1028].copy_from_slice(&SUPERBLOCK_MAGIC.to_le_bytes());
        assert_eq!(foreign_name(&start), Some("an EROFS image"));
    }
}
