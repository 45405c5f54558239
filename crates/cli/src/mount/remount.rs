//! `-o remount`: mount(8) and `systemctl reload` of a mount unit call the helper for it. A running
//! mount cannot change, so this only compares: it succeeds if every option that the mount table
//! shows is in effect already. Options that only the daemon knows, such as `memory=`, are not
//! compared. Called by the verb.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, anyhow};
use ferrofs_fuse::attach::MountEntry;
use rustix::fs::{Mode, OFlags, open};

use crate::exit_status::CommandStatus;
use crate::output::escape;

/// The word that asks for it.
const REMOUNT: &[u8] = b"remount";
/// Options that the kernel shows, and mount(8) passes back to the helper.
const OF_KERNEL: [&[u8]; 2] = [b"user_id=", b"group_id="];
/// Flags in pairs: in the table the first is shown or missing, and the second is its opposite.
const FLAGS: [(&str, &str); 4] =
    [("ro", "rw"), ("nosuid", "suid"), ("nodev", "dev"), ("noexec", "exec")];
/// Words that are shown exactly like this.
const SHOWN: [&str; 2] = ["allow_other", "default_permissions"];

/// Whether these words request a remount.
pub(super) fn is_asked_for(words: &[OsString]) -> bool {
    words.iter().any(|word| word.as_bytes() == REMOUNT)
}

/// Whether a word has a meaning here only.
pub(super) fn is_own_word(word: &OsStr) -> bool {
    let word = word.as_bytes();
    word == REMOUNT || OF_KERNEL.iter().any(|name| word.starts_with(name))
}

/// Checks that a remount with these words changes nothing.
///
/// # Errors
/// Nothing of ours is mounted there, or a word is not in effect.
pub(super) fn run(
    directory: &Path,
    file_system_type: &str,
    words: &[OsString],
) -> anyhow::Result<CommandStatus> {
    let terminal_form = escape(directory.as_os_str().as_encoded_bytes());
    // O_PATH sends no request to the file system.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(directory, flags, Mode::empty()).with_context(|| terminal_form.clone())?;
    let entry = MountEntry::of(root.as_fd());
    let entry = entry
        .filter(|entry| entry.file_system_type == file_system_type && is_root_of(directory, entry));
    let entry = entry.ok_or_else(|| {
        anyhow!(
            "cannot remount {terminal_form}: no file system of type {file_system_type} is mounted there"
        )
    })?;
    let word = words.iter().find(|word| !is_in_effect(word, &entry.options));
    match word.map(OsString::as_os_str).or_else(|| left_out(words, &entry.options)) {
        None => Ok(CommandStatus::Success),
        Some(word) => Err(anyhow!(
            "cannot remount {terminal_form} with {}: a running mount cannot change; unmount it and mount it again",
            escape(word.as_bytes())
        )),
    }
}

/// A flag that mount(8) asks for by leaving out its opposite, which is in effect: it does so in the
/// whole list of a mount, which it takes from the mount table.
fn left_out(words: &[OsString], options: &[String]) -> Option<&'static OsStr> {
    let is_whole = words.iter().any(|word| word.as_bytes().starts_with(OF_KERNEL[0]));
    let mut flags = FLAGS.iter().filter(|_| is_whole);
    let asked = flags.find(|(off, _)| {
        let is_passed = words.iter().any(|word| word == off);
        *off != "ro" && !is_passed && options.iter().any(|option| option == off)
    });
    asked.map(|(_, on)| OsStr::new(on))
}

fn is_root_of(directory: &Path, entry: &MountEntry) -> bool {
    std::path::absolute(directory).is_ok_and(|path| path == entry.mount_point)
        || std::fs::canonicalize(directory).is_ok_and(|path| path == entry.mount_point)
}

/// Whether the table shows that a word is in effect, or does not show such words at all.
fn is_in_effect(word: &OsStr, options: &[String]) -> bool {
    // The table has only text in these places.
    let Some(word) = word.to_str() else { return true };
    let has = |name: &str| options.iter().any(|option| option == name);
    // mount(8) passes `rw` unless `ro` is given, and an image is read-only anyway.
    if word == "rw" {
        return true;
    }
    if let Some((off, _)) = FLAGS.iter().find(|(off, on)| word == *off || word == *on) {
        return has(off) == (word == *off);
    }
    let is_shown = SHOWN.contains(&word)
        || word.starts_with("max_read=")
        || OF_KERNEL.iter().any(|name| word.as_bytes().starts_with(name));
    !is_shown || has(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_table_shows_is_compared_and_the_rest_is_not() {
        let options = "ro nosuid nodev relatime ro user_id=7 group_id=8 default_permissions";
        let options: Vec<String> = options.split(' ').map(str::to_owned).collect();
        let holds = |word: &str| is_in_effect(word.as_ref(), &options);
        for word in [
            "remount",
            "ro",
            "rw",
            "nosuid",
            "nodev",
            "exec",
            "user_id=7",
            "default_permissions",
            "memory=64m",
            "relatime",
            "nofail",
        ] {
            assert!(holds(word), "{word}");
        }
        for word in ["suid", "dev", "noexec", "allow_other", "user_id=0", "max_read=4096"] {
            assert!(!holds(word), "{word}");
        }
    }
}
