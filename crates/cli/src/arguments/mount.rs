//! The command line of the verbs that mount and that look at mounts. It only describes, as its parent. Used by `mount`,
//! `stats` and `list`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{MachineArguments, ReadArguments, ReserveArguments};
use crate::amount::parse_busy_poll;
use crate::help;

/// Show latencies, memory and threads of a running mount.
#[derive(Args, Debug)]
#[command(after_help = help::STATS, override_usage = help::STATS_USAGE)]
pub(crate) struct StatsArguments {
    /// The mount point, or a directory below it
    #[arg(value_name = "DIR", required_unless_present = "all")]
    pub(crate) directory: Option<PathBuf>,

    /// Print totals of all mounts of this user; with --prometheus, the samples of each mount
    #[arg(long, conflicts_with = "directory")]
    pub(crate) all: bool,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// Print in the Prometheus text format
    #[arg(long, conflicts_with = "json")]
    pub(crate) prometheus: bool,
}

/// List the mounts of this user.
#[derive(Args, Debug)]
#[command(after_help = help::LIST)]
pub(crate) struct ListArguments {
    /// Print one line with a JSON object for each mount
    #[arg(long)]
    pub(crate) json: bool,
}

/// Mount an image with FUSE, without root and without the kernel's EROFS driver.
#[derive(Args, Clone, Debug)]
#[command(after_help = help::MOUNT, override_usage = help::MOUNT_USAGE)]
pub(crate) struct MountArguments {
    /// The image: a file, or a URL such as https://…, oci://… or s3://…
    #[arg(required_unless_present_any = ["replace", "reattach"])]
    pub(crate) image: Option<PathBuf>,

    /// The mount point
    #[arg(value_name = "DIR", required_unless_present_any = ["replace", "reattach"])]
    pub(crate) directory: Option<PathBuf>,

    /// Take over the mount at DIR, which must have been made with --keep: this version of ferrofs
    /// then serves the mount, with the same options
    #[arg(long, value_name = "DIR", exclusive = true)]
    pub(crate) replace: Option<PathBuf>,

    /// Start the server of the mount at DIR now. This is for a mount with --keep whose server has
    /// ended and could not be started again. Without --reattach, the holder (see --keep) waits
    /// before its next attempt
    #[arg(long, value_name = "DIR", exclusive = true)]
    pub(crate) reattach: Option<PathBuf>,

    /// Options in the form of mount(8); see below. A backslash makes the next character literal
    #[arg(short = 'o', value_name = "OPT[,OPT...]")]
    pub(crate) options: Vec<OsString>,

    /// Stay in the foreground and print messages on stderr
    #[arg(short, long)]
    pub(crate) foreground: bool,

    /// Allow other users to access the mount, subject to file permissions. For users other than
    /// root, this needs user_allow_other in /etc/fuse.conf
    #[arg(long)]
    pub(crate) allow_other: bool,

    /// Time after which a request that hangs fails with EIO; 0 means no limit
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_TIMEOUT_SECONDS)]
    pub(crate) timeout: u64,

    /// Maximum time for which a thread polls for the next request before it sleeps, 0 to 1000.
    /// Polling avoids wake-up latency, but costs CPU time. 0 turns off polling. CPU sharing: if
    /// there are exactly two CPUs and only one thread accesses the mount, ferrofs serves that
    /// thread on the CPU on which the thread runs. Meanwhile, a thread with nice value 19 keeps the
    /// other CPU busy. 0 also turns off CPU sharing [default: 100]
    #[arg(long, value_name = "MICROSECONDS", value_parser = parse_busy_poll)]
    pub(crate) busy_poll: Option<Duration>,

    /// Hide extended attributes
    #[arg(long)]
    pub(crate) no_xattrs: bool,

    /// Hide and ignore access control lists
    #[arg(long)]
    pub(crate) no_acl: bool,

    /// Keep the mount if its server, the process that serves it, crashes or is killed. A second
    /// process, the holder, supervises the server and starts it again. On Linux 6.9 or later, no
    /// access fails, except a request that crashes the server again after each restart
    #[arg(long)]
    pub(crate) keep: bool,

    /// Do not enter the sandbox. The server keeps all privileges, all file descriptors, and its
    /// access to all paths and system calls
    #[arg(long)]
    pub(crate) no_sandbox: bool,

    /// Serve the mount as this user, who then owns the mount. Without --allow-other, no other user
    /// has access, not even root. Only root may use this option. The image and the log are opened
    /// as root
    #[arg(long, value_name = "NAME|UID:GID", conflicts_with = "no_sandbox")]
    pub(crate) user: Option<String>,

    /// Destination of messages after the mount is ready: syslog, stderr (only with -f), or a file
    /// to append to [default: stderr with -f, otherwise syslog if /dev/log exists, otherwise none]
    #[arg(long, value_name = "FILE|syslog|stderr")]
    pub(crate) log: Option<OsString>,

    /// After mounting, print the settings of the mount: what ferrofs requested from the kernel,
    /// what the kernel granted, and the threads, memory and sandbox
    #[arg(long)]
    pub(crate) explain: bool,

    /// Print the output of --explain as one JSON object
    #[arg(long, requires = "explain")]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) machine: MachineArguments,

    #[command(flatten)]
    pub(crate) reserve: ReserveArguments,

    #[command(flatten)]
    pub(crate) read: ReadArguments,
}

impl MountArguments {
    /// Default arguments for an image and a mount point.
    pub(crate) fn new(image: PathBuf, directory: PathBuf) -> Self {
        Self {
            image: Some(image),
            directory: Some(directory),
            replace: None,
            reattach: None,
            options: Vec::new(),
            foreground: false,
            allow_other: false,
            timeout: DEFAULT_TIMEOUT_SECONDS,
            busy_poll: None,
            no_xattrs: false,
            no_acl: false,
            keep: false,
            no_sandbox: false,
            user: None,
            log: None,
            explain: false,
            json: false,
            machine: MachineArguments::default(),
            reserve: ReserveArguments::default(),
            read: ReadArguments::default(),
        }
    }
}

/// The default of `--timeout`.
const DEFAULT_TIMEOUT_SECONDS: u64 = 120;

/// How the mount command was invoked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountInvocation {
    pub(crate) by: MountCaller,
    /// Unknown words of `-o` are ignored.
    pub(crate) is_sloppy: bool,
    /// Everything is done but the mount itself.
    pub(crate) is_dry_run: bool,
}

/// The program that requested a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MountCaller {
    /// A user, with the verb `mount`.
    #[default]
    Verb,
    /// A user or script, with the command line of erofsfuse.
    Erofsfuse,
    /// A user or script, with the command line of mount.erofs; or mount(8), as below.
    MountErofs,
    /// mount(8), which passes `rw` whenever `ro` is not given.
    MountProgram,
}

/// The words of a list of `-o`, separated by commas. A backslash makes the next byte literal; empty words are ignored, as
/// mount(8) makes such lists.
pub(crate) fn option_words(list: &OsStr) -> Vec<OsString> {
    let mut words = vec![Vec::new()];
    let mut bytes = list.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b',' => words.push(Vec::new()),
            b'\\' => words.last_mut().into_iter().for_each(|word| word.extend(bytes.next())),
            byte => words.last_mut().into_iter().for_each(|word| word.push(byte)),
        }
    }
    words.into_iter().filter(|word| !word.is_empty()).map(OsString::from_vec).collect()
}
