//! What is to be mounted, where and how: the arguments of the verb and the words of `-o`. Nothing
//! is opened here. The daemon makes the request again from the same arguments.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use ferrofs_fuse::attach::{AttachOptions, MountAccess, MountOwner, OptionMatch, RejectedOption};
use ferrofs_mount::MountSettings;
use ferrofs_mount::sandbox::UserIds;

use super::log::LogTarget;
use super::remount;
use super::serving_user;
use super::source_words::SourceWords;
use crate::amount::{parse_busy_poll, parse_bytes, parse_cache_size, parse_cpus, parse_jobs};
use crate::arguments::{
    MachineArguments, MountArguments, MountCaller, MountInvocation, ReadArguments,
    ReserveArguments, VerifyChoice, option_words,
};
use crate::exit_status::usage_error;
use crate::output::escape;
use crate::remote as remote_image;
use crate::resources::thread_priority;

/// All option names, for suggestions.
const OPTION_NAMES: [&str; 59] = [
    "ro",
    "rw",
    "allow_other",
    "auto_unmount",
    "noauto_unmount",
    "keep",
    "default_permissions",
    "exec",
    "noexec",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "fsname",
    "subtype",
    "max_read",
    "offset",
    "image_offset",
    "device",
    "no_checksum",
    "partition",
    "loop",
    "cache",
    "cache_size",
    "offline",
    "verify",
    "fetch_timeout",
    "insecure_registry",
    "memory",
    "reserved_pages",
    "prefault",
    "jobs",
    "cpus",
    "nice",
    "timeout",
    "busy_poll",
    "log",
    "user_xattr",
    "nouser_xattr",
    "acl",
    "noacl",
    "atime",
    "noatime",
    "relatime",
    "strictatime",
    "diratime",
    "nodiratime",
    "nofail",
    "_netdev",
    "user",
    "users",
    "noauto",
    "auto",
    "nouser",
    "kernel_cache",
    "async_read",
    "clone_fd",
    "max_threads",
    "nonempty",
];

/// The largest edit distance of a suggestion.
const EDIT_DISTANCE_MAX: usize = 2;

/// Options that request what is so anyway: those of libfuse, and `loop`, as an image is read from its
/// file.
const ALWAYS_ON: [&[u8]; 5] = [b"kernel_cache", b"async_read", b"clone_fd", b"big_writes", b"loop"];

/// Options that say how the driver of Linux caches and reads, which change no byte. mount.erofs
/// accepts them, since it takes the place of a program that passes them on.
const DRIVER_OPTIONS: [&[u8]; 6] = [
    b"cache_strategy=disabled",
    b"cache_strategy=readahead",
    b"cache_strategy=readaround",
    b"dax",
    b"dax=always",
    b"dax=never",
];

/// Why a word of `-o` is refused.
#[derive(Debug)]
pub(super) enum MountOptionError {
    /// There is no such option.
    Unknown { word: OsString, similar: Vec<&'static str> },
    /// It cannot be honoured.
    Impossible { word: OsString, why: &'static str },
    /// Its value is not what it should be.
    Value { word: OsString, why: String },
    /// The library refuses it.
    Mount(RejectedOption),
}

impl fmt::Display for MountOptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terminal_form = |word: &OsStr| escape(word.as_bytes());
        match self {
            Self::Unknown { word, similar } => {
                write!(f, "-o {}: there is no such option", terminal_form(word))?;
                match similar.as_slice() {
                    [] => f.write_str("; `ferrofs mount --help` lists them"),
                    similar => write!(f, "; did you mean {}?", similar.join(" or ")),
                }
            }
            Self::Impossible { word, why } => write!(f, "-o {}: {why}", terminal_form(word)),
            Self::Value { word, why } => write!(f, "-o {}: {why}", terminal_form(word)),
            Self::Mount(rejected) => write!(f, "{rejected}"),
        }
    }
}

impl From<RejectedOption> for MountOptionError {
    fn from(rejected: RejectedOption) -> Self {
        Self::Mount(rejected)
    }
}

/// Takes all words of a list.
pub(super) fn parse_list(
    request: &mut MountRequest,
    list: &OsStr,
    invocation: MountInvocation,
) -> Result<(), MountOptionError> {
    for word in option_words(list) {
        let is_own = request.remount.is_some() && remount::is_own_word(&word);
        if !is_own {
            take(request, &word, invocation)?;
        }
        request.remount.iter_mut().for_each(|words| words.push(word.clone()));
    }
    Ok(())
}

fn take(
    request: &mut MountRequest,
    word: &OsStr,
    invocation: MountInvocation,
) -> Result<(), MountOptionError> {
    let bytes = word.as_bytes();
    if invocation.by == MountCaller::MountErofs {
        let taken = request.source_words.take(word);
        let refused =
            |(name, why)| MountOptionError::Impossible { word: OsString::from(name), why };
        if taken.map_err(refused)? {
            return Ok(());
        }
    }
    if takes_word_of_original(request, word, invocation.by)? {
        return Ok(());
    }
    let parsed = match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => parse_value(request, word, &bytes[..at], OsStr::from_bytes(&bytes[at + 1..]))?,
        None => parse_flag(request, word, invocation)?,
    };
    if parsed == OptionMatch::Accepted
        || request.attach.parse_option(word)? == OptionMatch::Accepted
        || invocation.is_sloppy
    {
        return Ok(());
    }
    Err(MountOptionError::Unknown { word: word.to_owned(), similar: similar(bytes) })
}

/// Takes a word that only the programs of erofs-utils know, which pass it to libfuse or to the driver of Linux.
fn takes_word_of_original(
    request: &mut MountRequest,
    word: &OsStr,
    by: MountCaller,
) -> Result<bool, MountOptionError> {
    let bytes = word.as_bytes();
    let (is_fuse, is_mount) = (by == MountCaller::Erofsfuse, by == MountCaller::MountErofs);
    let why = match bytes {
        b"sync" | b"dirsync" if is_fuse || is_mount => "the mount is read-only",
        b"io_uring" if is_fuse => "requests come through /dev/fuse",
        word if is_mount && DRIVER_OPTIONS.contains(&word) => "it is for the driver of Linux",
        // The command line has taken it.
        b"debug" if is_fuse => return Ok(true),
        b"symfollow" if is_fuse => return Ok(true),
        b"quiet" if is_mount => return Ok(true),
        b"max_threads=0" if is_fuse => {
            request.machine.jobs = None;
            return Ok(true);
        }
        _ if is_fuse && bytes.starts_with(b"max_idle_threads=") => {
            let value = word.to_str().and_then(|word| word.split_once('=')?.1.parse::<u32>().ok());
            if value.is_none() {
                let (word, why) = (word.to_owned(), "not a number of threads".to_owned());
                return Err(MountOptionError::Value { word, why });
            }
            "the number of threads does not depend on how many are idle"
        }
        b"nosymfollow" if is_fuse => {
            let why = "ferrofs cannot stop the kernel from following symlinks; leave it out";
            return Err(MountOptionError::Impossible { word: word.to_owned(), why });
        }
        _ => return Ok(false),
    };
    request.ineffective.push((word.to_owned(), why));
    Ok(true)
}

fn parse_flag(
    request: &mut MountRequest,
    word: &OsStr,
    invocation: MountInvocation,
) -> Result<OptionMatch, MountOptionError> {
    match word.as_bytes() {
        b"rw" if invocation.by == MountCaller::Verb => {
            let why = "an EROFS image cannot be written; leave it out";
            return Err(MountOptionError::Impossible { word: word.to_owned(), why });
        }
        b"keep" => request.keep = true,
        b"noauto_unmount" => request.attach.auto_unmount = false,
        b"no_checksum" => request.read.no_checksum = true,
        b"offline" => request.read.remote.offline = true,
        b"prefault" => request.reserve.prefault = true,
        b"user_xattr" => request.settings.has_user_xattrs = true,
        b"nouser_xattr" => request.settings.has_user_xattrs = false,
        b"acl" => request.settings.has_acls = true,
        b"noacl" => request.settings.has_acls = false,
        name if ALWAYS_ON.contains(&name) => {}
        _ => return Ok(OptionMatch::Unrecognized),
    }
    Ok(OptionMatch::Accepted)
}

fn parse_value(
    request: &mut MountRequest,
    word: &OsStr,
    name: &[u8],
    value: &OsStr,
) -> Result<OptionMatch, MountOptionError> {
    let refused = |why: String| MountOptionError::Value { word: word.to_owned(), why };
    let text = || value.to_str().ok_or_else(|| refused("the value is not UTF-8".to_owned()));
    match name {
        b"uid" | b"gid" | b"umask" => {
            let why = "owners and modes are those of the image, and the kernel checks permissions with them";
            return Err(MountOptionError::Impossible { word: word.to_owned(), why });
        }
        // mount(8) takes `offset` as a request for a loop device.
        b"offset" | b"fsoffset" | b"image_offset" => {
            request.read.offset = parse_bytes(text()?).map_err(refused)?;
        }
        b"device" if value.is_empty() => {
            return Err(refused("the file name is missing".to_owned()));
        }
        b"device" => request.read.devices.push(PathBuf::from(value)),
        b"partition" if value.is_empty() => {
            return Err(refused("the name of the partition is missing".to_owned()));
        }
        b"partition" => request.read.partition = Some(text()?.to_owned()),
        b"cache" | b"cache_size" | b"verify" | b"fetch_timeout" | b"insecure_registry"
            if value.is_empty() =>
        {
            return Err(refused("the value is missing".to_owned()));
        }
        b"cache_size" => {
            request.read.remote.connection.cache_size =
                Some(parse_cache_size(text()?).map_err(refused)?);
        }
        b"cache" => request.read.remote.connection.cache = Some(PathBuf::from(value)),
        b"verify" => {
            let choice = VerifyChoice::from_str(text()?, false);
            let choice = choice.map_err(|_| refused("not require, try or off".to_owned()))?;
            request.read.remote.verify = Some(choice);
        }
        b"fetch_timeout" => {
            let seconds = text()?.parse().ok().filter(|seconds| (1..=86_400).contains(seconds));
            let seconds = seconds
                .ok_or_else(|| refused("not a number of seconds from 1 to 86400".to_owned()))?;
            request.read.remote.connection.fetch_timeout = Some(seconds);
        }
        b"insecure_registry" => {
            request.read.remote.connection.insecure_registries.push(text()?.to_owned());
        }
        b"memory" => request.machine.memory = Some(parse_bytes(text()?).map_err(refused)?),
        b"reserved_pages" => {
            let pages = text()?.parse().map_err(|_| refused("not a number of pages".to_owned()))?;
            request.reserve.reserved_pages = Some(pages);
        }
        b"jobs" | b"max_threads" => {
            request.machine.jobs = Some(parse_jobs(text()?).map_err(refused)?);
        }
        // A list needs a backslash before each comma, as commas separate the words.
        b"cpus" => request.machine.cpus = Some(parse_cpus(text()?).map_err(refused)?),
        b"nice" => {
            let nice = text()?.parse().ok().filter(|nice| (-20..=19).contains(nice));
            let nice = nice.ok_or_else(|| refused("not a number from -20 to 19".to_owned()))?;
            request.machine.nice = Some(nice);
        }
        b"timeout" => {
            let seconds = text()?.parse();
            let seconds = seconds.map_err(|_| refused("not a number of seconds".to_owned()))?;
            request.settings.time_limit = time_limit(seconds);
        }
        b"busy_poll" => {
            request.settings.busy_poll = parse_busy_poll(text()?).map_err(refused)?;
        }
        b"log" if value.is_empty() => return Err(refused("the file name is missing".to_owned())),
        b"log" => request.log = Some(value.into()),
        _ => return Ok(OptionMatch::Unrecognized),
    }
    Ok(OptionMatch::Accepted)
}

/// What a number of seconds means: 0 waits for ever.
pub(super) fn time_limit(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// The option names with the smallest edit distance.
fn similar(word: &[u8]) -> Vec<&'static str> {
    let name = word.split(|byte| *byte == b'=').next().unwrap_or_default();
    let spelled: Vec<_> =
        OPTION_NAMES.iter().map(|known| (edit_distance(name, known.as_bytes()), *known)).collect();
    // In a short word, few letters remain if two are wrong.
    let max = EDIT_DISTANCE_MAX.min(name.len() / 2);
    let min = spelled.iter().map(|(wrong, _)| *wrong).min().unwrap_or(0);
    let is_near = |wrong: usize| wrong == min && wrong <= max;
    spelled.into_iter().filter(|(wrong, _)| is_near(*wrong)).map(|(_, known)| known).collect()
}

/// The edit distance of two words (Levenshtein).
fn edit_distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, left) in one.iter().enumerate() {
        let mut diagonal = at;
        let mut before = at + 1;
        for (right, above) in other.iter().zip(row.iter_mut().skip(1)) {
            let replaced = diagonal + usize::from(left != right);
            diagonal = *above;
            before = replaced.min(before + 1).min(*above + 1);
            *above = before;
        }
        if let Some(first) = row.first_mut() {
            *first = at + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

/// The part of the mount type after `fuse.`.
const SUBTYPE: &str = "ferrofs";
/// The same, and the source, under the name of the original.
const EROFSFUSE: &str = "erofsfuse";

/// What is to be mounted, where and how.
#[derive(Clone, Debug)]
pub(super) struct MountRequest {
    pub(super) image: PathBuf,
    pub(super) directory: PathBuf,
    pub(super) attach: AttachOptions,
    pub(super) read: ReadArguments,
    pub(super) machine: MachineArguments,
    pub(super) reserve: ReserveArguments,
    pub(super) settings: MountSettings,
    pub(super) log: Option<OsString>,
    /// The words of `-o`, if they request a remount.
    pub(super) remount: Option<Vec<OsString>>,
    /// Whether the mount survives the process that serves it.
    pub(super) keep: bool,
    /// The user who serves; `None` is the one who mounts.
    pub(super) user: Option<UserIds>,
    pub(super) invocation: MountInvocation,
    /// Words of `-o` that are accepted and change nothing, and why.
    pub(super) ineffective: Vec<(OsString, &'static str)>,
    source_words: SourceWords,
}

impl MountRequest {
    /// Brings all arguments together.
    ///
    /// # Errors
    /// An option is wrong; the text names it.
    pub(super) fn of(typed: &MountArguments, invocation: MountInvocation) -> anyhow::Result<Self> {
        let image = typed.image.clone().unwrap_or_default();
        let mut attach = match invocation.by {
            // As the original shows it, whatever the image is.
            MountCaller::Erofsfuse => AttachOptions::new(EROFSFUSE, EROFSFUSE),
            _ => AttachOptions::new(source(&image)?, SUBTYPE),
        };
        let remounts = typed.options.iter().any(|list| remount::is_asked_for(&option_words(list)));
        if typed.allow_other {
            attach.allow = MountAccess::Everybody;
        }
        let mut request = Self {
            image,
            directory: typed.directory.clone().unwrap_or_default(),
            attach,
            read: typed.read.clone(),
            machine: typed.machine.clone(),
            reserve: typed.reserve.clone(),
            settings: MountSettings::default()
                .time_limit(time_limit(typed.timeout))
                .xattrs(!typed.no_xattrs)
                .acls(!typed.no_acl),
            log: typed.log.clone(),
            remount: remounts.then(Vec::new),
            keep: typed.keep,
            user: typed.user.as_deref().map(serving_user).transpose()?,
            invocation,
            ineffective: Vec::new(),
            source_words: SourceWords::default(),
        };
        if let Some(longest) = typed.busy_poll {
            request.settings.busy_poll = longest;
        }
        let owner = request.user.map(|ids| MountOwner { user: ids.user, group: ids.group });
        request.attach = request.attach.owned_by(owner);
        for list in &typed.options {
            if let Err(refused) = parse_list(&mut request, list, invocation) {
                return Err(usage_error(refused));
            }
        }
        request.settings.priority = thread_priority(&request.machine);
        request.name_source()?;
        if request.log_target() == LogTarget::Stderr && !typed.foreground {
            return Err(usage_error("--log stderr needs --foreground"));
        }
        Ok(request)
    }

    /// Makes a location of the source that words of mount.erofs describe.
    fn name_source(&mut self) -> anyhow::Result<()> {
        let named = self.source_words.named(&self.image);
        let named = named.map_err(|(word, why)| usage_error(format_args!("-o {word}: {why}")))?;
        if let Some(named) = named {
            let is_default = self.attach.source == source(&self.image)?.into_os_string();
            self.image = named.location;
            if is_default {
                self.attach.source = source(&self.image)?.into_os_string();
            }
            let connection = &mut self.read.remote.connection;
            connection.insecure_registries.extend(named.insecure_registry);
        }
        self.read.remote.store_variables.append(&mut self.source_words.variables);
        Ok(())
    }

    /// Where messages are to go.
    pub(super) fn log_target(&self) -> LogTarget {
        LogTarget::of(self.log.as_deref())
    }
}

/// The user as whom root serves.
fn serving_user(word: &str) -> anyhow::Result<UserIds> {
    if !rustix::process::geteuid().is_root() {
        return Err(usage_error("--user: only root can serve as another user; leave it out"));
    }
    serving_user::parse(word).map_err(|why| usage_error(format!("--user: {why}")))
}

/// An absolute path or a location, for `/proc/mounts`.
fn source(path: &Path) -> anyhow::Result<PathBuf> {
    if remote_image::is_remote(path) {
        return Ok(PathBuf::from(remote_image::terminal_form(path)));
    }
    std::path::absolute(path).with_context(|| "cannot find the path of IMAGE".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::arguments::MountArguments;

    const BY_USER: MountInvocation =
        MountInvocation { by: MountCaller::Verb, is_sloppy: false, is_dry_run: false };
    const BY_MOUNT: MountInvocation = MountInvocation { by: MountCaller::MountProgram, ..BY_USER };

    fn parsed(
        list: impl AsRef<OsStr>,
        invocation: MountInvocation,
    ) -> Result<MountRequest, String> {
        let mut request =
            MountRequest::of(&MountArguments::new("image".into(), "dir".into()), invocation)
                .unwrap();
        match parse_list(&mut request, list.as_ref(), invocation) {
            Ok(()) => Ok(request),
            Err(refused) => Err(refused.to_string()),
        }
    }

    #[test]
    fn each_word_changes_what_it_names() {
        let request = parsed(
            "ro,offset=64k,device=a,device=b,memory=64m,jobs=2,nice=-5,timeout=0,busy_poll=20,log=x,noacl,nouser_xattr,\
             no_checksum,noauto_unmount,fsname=n,max_read=65536,noexec,allow_other",
            BY_USER,
        );
        let request = request.unwrap();
        assert_eq!((request.read.offset, request.read.no_checksum), (65536, true));
        assert_eq!(request.read.devices, [PathBuf::from("a"), PathBuf::from("b")]);
        let machine = &request.machine;
        assert_eq!(
            (machine.memory, machine.jobs, machine.nice),
            (Some(64 << 20), Some(2), Some(-5))
        );
        assert_eq!(request.settings.time_limit, None);
        assert_eq!(request.settings.busy_poll, Duration::from_micros(20));
        assert!(!request.settings.has_acls && !request.settings.has_user_xattrs);
        assert_eq!(request.log.as_deref(), Some("x".as_ref()));
        assert!(!request.attach.auto_unmount && !request.attach.exec);
        assert_eq!((request.attach.source, request.attach.max_read), ("n".into(), Some(65536)));
    }

    #[test]
    fn a_partition_of_a_super_image_can_be_mounted() {
        let request = parsed("ro,partition=system_a,loop", BY_USER).unwrap();
        assert_eq!(request.read.partition.as_deref(), Some("system_a"));
        assert!(parsed("partition=", BY_USER).unwrap_err().contains("is missing"));
    }

    #[test]
    fn the_last_of_several_values_counts() {
        let request = parsed("timeout=3,offset=1,timeout=5,offset=2,noacl,acl", BY_USER).unwrap();
        assert_eq!(request.settings.time_limit, Some(Duration::from_secs(5)));
        assert_eq!((request.read.offset, request.settings.has_acls), (2, true));
        let request = parsed("offset=1,image_offset=4k", BY_USER).unwrap();
        assert_eq!(request.read.offset, 4096);
        assert_eq!(
            request.settings.busy_poll,
            Duration::from_micros(100),
            "the default of the help"
        );
    }

    #[test]
    fn words_of_fstab_and_of_libfuse_that_are_so_anyway_pass() {
        for word in [
            "nofail",
            "_netdev",
            "user",
            "users",
            "noauto",
            "x-systemd.automount",
            "x-y=1",
            "noatime",
            "atime",
            "defaults",
            "kernel_cache",
            "clone_fd",
            "async_read",
            "nonempty",
            "default_permissions",
        ] {
            parsed(word, BY_USER).unwrap();
        }
        assert_eq!(parsed("max_threads=3", BY_USER).unwrap().machine.jobs, Some(3));
    }

    #[test]
    fn words_that_libfuse_takes_are_those_of_erofsfuse() {
        let by_original = MountInvocation { by: MountCaller::Erofsfuse, ..BY_USER };
        for (word, warnings) in [
            ("sync", 1),
            ("dirsync", 1),
            ("io_uring", 1),
            ("max_idle_threads=3", 1),
            ("max_threads=0", 0),
            ("debug", 0),
            ("symfollow", 0),
        ] {
            let request = parsed(word, by_original).unwrap();
            assert_eq!(request.ineffective.len(), warnings, "{word}");
            parsed(word, BY_USER).unwrap_err();
        }
        for word in ["allow_root", "nosymfollow", "max_idle_threads=x"] {
            assert!(parsed(word, by_original).unwrap_err().contains(word), "{word}");
        }
        let by_original = MountInvocation { by: MountCaller::MountErofs, ..BY_USER };
        let request = parsed("sync,dirsync,quiet,dax", by_original).unwrap();
        assert_eq!(request.ineffective.len(), 3);
    }

    #[test]
    fn writing_is_refused_unless_mount_says_so_by_itself() {
        assert!(
            parsed("rw", BY_USER)
                .unwrap_err()
                .starts_with("-o rw: an EROFS image cannot be written")
        );
        parsed("rw,dev,suid", BY_MOUNT).unwrap();
        parsed("rw", MountInvocation { by: MountCaller::Erofsfuse, ..BY_USER }).unwrap();
    }

    #[test]
    fn an_unknown_word_is_an_error_that_names_near_ones() {
        let refused = parsed("ro,alow_other", BY_USER).unwrap_err();
        assert_eq!(refused, "-o alow_other: there is no such option; did you mean allow_other?");
        assert!(parsed("offsett=3", BY_USER).unwrap_err().contains("did you mean offset?"));
        assert!(parsed("frobnicate", BY_USER).unwrap_err().contains("lists them"));
        assert!(parsed("ro=1", BY_USER).is_err() && parsed("offset", BY_USER).is_err());
        parsed("frobnicate,frob=0", MountInvocation { is_sloppy: true, ..BY_USER }).unwrap();
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        for word in [
            "offset=x",
            "memory=",
            "jobs=0",
            "cpus=a",
            "nice=20",
            "timeout=-1",
            "busy_poll=1001",
            "device=",
            "log=",
            "max_read=x",
            "allow_root",
            "subtype=a/b",
            "uid=0",
            "cache_size=31m",
            "cache_size=",
        ] {
            let refused = parsed(word, BY_USER).unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn backslashes_keep_commas_together() {
        let split = |list: &str| option_words(list.as_ref());
        assert_eq!(split(r"fsname=a\,b,ro"), ["fsname=a,b", "ro"]);
        assert_eq!(split(r"a\\,b"), [r"a\", "b"]);
        assert_eq!(split(",a,,"), ["a"]);
        assert_eq!(split(r"a\"), ["a"]);
        assert_eq!(parsed(r"fsname=a\,b,cpus=0\,1", BY_USER).unwrap().attach.source, "a,b");
        let bytes = OsString::from_vec(b"device=\xff\xfe".to_vec());
        assert_eq!(
            parsed(bytes, BY_USER).unwrap().read.devices[0].as_os_str().as_bytes(),
            b"\xff\xfe"
        );
    }

    #[test]
    fn every_word_that_is_suggested_is_understood() {
        for word in OPTION_NAMES {
            let values = ["", "=1", "=a", "=0-1", "=try", "=1g"];
            let values = values.map(|value| format!("{word}{value}"));
            assert!(values.iter().any(|word| parsed(word, BY_MOUNT).is_ok()), "{word}");
        }
    }

    #[test]
    fn distances_count_letters() {
        for (one, other, wrong) in [
            ("", "", 0),
            ("", "ab", 2),
            ("ab", "", 2),
            ("abc", "abc", 0),
            ("abc", "axc", 1),
            ("abc", "bc", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(edit_distance(one.as_bytes(), other.as_bytes()), wrong, "{one} {other}");
        }
    }
}
