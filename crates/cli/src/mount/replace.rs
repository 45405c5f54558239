//! `mount --replace DIR` and `mount --reattach DIR`: this program takes a kept mount over from its holder, or lets the holder
//! start a server at once (docs/survival.md, protocol R). Called for the subcommand `mount`.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use ferrofs_fuse::attach::{Attachment, HandoverError, OfferedMount, Reattached, reattach};
use ferrofs_mount::sandbox::{UserIds, become_user};

use super::request::MountRequest;
use crate::applets::{self, Invocation};
use crate::arguments::{MountArguments, MountInvocation, Verb};
use crate::exit_status::CommandStatus;
use crate::output::{escape, print_message};

/// The most listeners that the check of an image, which has read untrusted bytes, or a record may report. Machines have
/// fewer CPUs.
pub(super) const LISTENERS_MAX: usize = 8192;
/// Numbers before the words of a record.
const NUMBERS: usize = 4;

/// What a holder remembers of the command that has mounted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountCommand {
    pub(super) listeners: usize,
    pub(super) listeners_max: usize,
    pub(super) reserve_share: Option<u64>,
    pub(super) mounted_at: Duration,
    /// The working directory, from which paths in the words lead.
    pub(super) directory: PathBuf,
    /// The words of the command line, with the name of the program.
    pub(super) words: Vec<OsString>,
}

impl MountCommand {
    /// The bytes of the record: numbers, and words that end with a NUL.
    pub(super) fn encode(&self) -> Vec<u8> {
        let number = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let mounted_at = u64::try_from(self.mounted_at.as_nanos()).unwrap_or(u64::MAX);
        let share = self.reserve_share.unwrap_or(u64::MAX);
        let numbers = [number(self.listeners), number(self.listeners_max), share, mounted_at];
        let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        for word in std::iter::once(self.directory.as_os_str())
            .chain(self.words.iter().map(OsString::as_os_str))
        {
            bytes.extend(word.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, words) = bytes.split_at_checked(NUMBERS * size_of::<u64>())?;
        let mut numbers = numbers
            .chunks_exact(size_of::<u64>())
            .filter_map(|word| Some(u64::from_le_bytes(*word.first_chunk()?)));
        let mut next = || numbers.next();
        let (listeners, listeners_max) =
            (usize::try_from(next()?).ok()?, usize::try_from(next()?).ok()?);
        let (share, mounted_at) = (next()?, next()?);
        let mut words = words.strip_suffix(&[0])?.split(|byte| *byte == 0);
        let directory = PathBuf::from(OsString::from_vec(words.next()?.to_vec()));
        let words: Vec<OsString> = words.map(|word| OsString::from_vec(word.to_vec())).collect();
        Some(Self {
            listeners,
            listeners_max,
            reserve_share: (share != u64::MAX).then_some(share),
            mounted_at: Duration::from_nanos(mounted_at),
            directory,
            words,
        })
    }
}

/// A mount that this program is about to hold.
pub(super) struct TakenMount {
    pub(super) offered: OfferedMount,
    pub(super) attachment: Attachment,
    pub(super) command: MountCommand,
    pub(super) typed: Box<MountArguments>,
    pub(super) request: MountRequest,
    pub(super) image: File,
    pub(super) devices: Vec<File>,
}

impl TakenMount {
    /// KR1 and KR2: asks for the mount, becomes its user, and reads its options.
    ///
    /// # Errors
    /// It is not offered, or this program does not understand it. Nothing has changed for the mount.
    pub(super) fn request(directory: &Path) -> anyhow::Result<Self> {
        let failed = |error: HandoverError| of_directory(directory, &error);
        let offered = OfferedMount::request(directory).map_err(failed)?;
        let ids = UserIds { user: offered.user, group: offered.group };
        if ids.user != rustix::process::geteuid().as_raw() {
            // Before any word of that user is believed.
            become_user(ids).context("cannot become the user of the mount")?;
        }
        Self::of(offered, directory)
    }

    /// Reads its options.
    ///
    /// # Errors
    /// This program does not understand them.
    pub(super) fn of(mut offered: OfferedMount, directory: &Path) -> anyhow::Result<Self> {
        let failed = |error: HandoverError| of_directory(directory, &error);
        let attachment = offered.attachment().map_err(failed)?;
        let command = MountCommand::decode(&offered.record.command);
        let command = command.ok_or_else(|| failed(HandoverError::Malformed))?;
        // Paths of the words are for the log and for messages; the image is open.
        std::env::set_current_dir(&command.directory).ok();
        let parsed = applets::parse_words(command.words.clone());
        let (typed, invocation) = match parsed {
            Ok(Invocation::Verb(Verb::Mount(typed))) => (typed, MountInvocation::default()),
            Ok(Invocation::Mount(typed, invocation)) => (typed, invocation),
            _ => {
                let terminal_form = escape(directory.as_os_str().as_bytes());
                return Err(anyhow!(
                    "{terminal_form}: this program does not know the options of the mount; unmount it and mount it again"
                ));
            }
        };
        let request = MountRequest::of(&typed, invocation)?;
        let mut files = std::mem::take(&mut offered.files).into_iter().map(File::from);
        let image = files.next().ok_or_else(|| failed(HandoverError::Malformed))?;
        let devices: Vec<File> = files.collect();
        if devices.len() != request.read.devices.len()
            || !(1..=LISTENERS_MAX).contains(&command.listeners)
            || !(1..=LISTENERS_MAX).contains(&command.listeners_max)
        {
            return Err(failed(HandoverError::Malformed));
        }
        Ok(Self { offered, attachment, command, typed, request, image, devices })
    }

    /// The channels, once.
    pub(super) fn take_channels(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.offered.channels)
    }
}

/// Lets the holder start a server at once.
///
/// # Errors
/// There is no holder, or it does not answer.
pub(super) fn run_reattach(directory: &Path) -> anyhow::Result<CommandStatus> {
    let answer = reattach(directory).map_err(|error| of_directory(directory, &error))?;
    let terminal_form = escape(directory.as_os_str().as_bytes());
    print_message(match answer {
        Reattached::IsServed => format!("{terminal_form} has a process that serves it"),
        Reattached::Started => format!("{terminal_form} is served again"),
    });
    Ok(CommandStatus::Success)
}

fn of_directory(directory: &Path, error: &HandoverError) -> anyhow::Error {
    anyhow!("{}: {error}", escape(directory.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_as_it_was_written() {
        for reserve_share in [None, Some(0)] {
            let command = MountCommand {
                listeners: 2,
                listeners_max: 64,
                reserve_share,
                mounted_at: Duration::from_nanos(77),
                directory: "/home".into(),
                words: vec!["ferrofs".into(), "".into(), OsString::from_vec(vec![0xff])],
            };
            let bytes = command.encode();
            assert_eq!(MountCommand::decode(&bytes), Some(command));
            assert_eq!(MountCommand::decode(&bytes[..bytes.len() - 1]), None);
            assert_eq!(MountCommand::decode(&bytes[..31]), None);
        }
    }
}
