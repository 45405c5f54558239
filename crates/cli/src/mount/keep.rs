//! `--keep`: a mount that survives the process that serves it (docs/survival.md). This process checks the image in a child,
//! mounts, and becomes the holder, which forks one server after the other. Called by the verb.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ferrofs_fuse::attach::{
    Attachment, HolderEvent, HolderSignals, MountMethod, ServerStart, attach, run_in_child,
};
use ferrofs_fuse::{ListenerGrowth, RequestJournal, Succession, fault_point};
use ferrofs_mount::sandbox::{Sandbox, SandboxRole, SandboxStatus, StandardStreams};
use ferrofs_mount::{MountSettings, NegotiatedMount};

use super::daemon::{self, MountServer};
use super::daemonize::{self, ReadyNotifier};
use super::explain::Readahead;
use super::log::{Log, Severity};
use super::request::MountRequest;
use crate::arguments::{MachineArguments, MountArguments, ReserveArguments};
use crate::exit_status::{CommandStatus, usage_error};
use crate::output::escape;
use crate::remote::{self, RemoteImage};
use crate::resources::Resources;
use crate::signals::{Signal, SignalHandlers};
use crate::source;

/// The name of the process.
const NAME: &std::ffi::CStr = c"ferrofs-holder";
/// The name of servers, which they have from the program otherwise.
const SERVER_NAME: &std::ffi::CStr = c"ferrofs";

/// The files of an image, which servers open again by their descriptors: names may be gone by then.
struct HeldFiles {
    image: File,
    devices: Vec<File>,
}

impl HeldFiles {
    fn open(request: &MountRequest) -> anyhow::Result<Self> {
        let open = |path: &Path| {
            let shown = || escape(path.as_os_str().as_encoded_bytes());
            File::open(path).map_err(|error| anyhow!("{}: {error}", shown()))
        };
        let devices = request.read.devices.iter().map(|path| open(path));
        Ok(Self { image: open(&request.image)?, devices: devices.collect::<Result<_, _>>()? })
    }

    /// The same request with paths that lead to the descriptors.
    fn request(&self, request: &MountRequest) -> MountRequest {
        let mut held = request.clone();
        held.image = path_of(&self.image);
        held.read.devices = self.devices.iter().map(path_of).collect();
        // A missing device is reported by the check.
        held.read.quiet = true;
        held
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(&self.image).chain(&self.devices).map(AsFd::as_fd)
    }
}

fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The most listeners that the check of an image may tell: it has read untrusted bytes. Machines have fewer CPUs.
const CHECKED_LISTENERS_MAX: usize = 8192;

/// What the check of an image tells.
struct CheckedImage {
    settings: MountSettings,
}

/// What all servers start from.
struct Kept<'a> {
    typed: &'a MountArguments,
    request: MountRequest,
    log: Arc<Log>,
    readahead: Readahead,
    journal: Arc<RequestJournal>,
    /// Each server takes its copy of these; this process keeps them.
    ready: Option<NegotiatedMount>,
    notifier: Option<ReadyNotifier>,
    output: Option<File>,
    is_foreground: bool,
    mounted_at: Duration,
}

/// Mounts and holds the mount until it ends.
///
/// # Errors
/// The image could not be mounted.
pub(super) fn run(
    typed: &MountArguments,
    request: &MountRequest,
    notifier: &mut Option<ReadyNotifier>,
) -> anyhow::Result<CommandStatus> {
    refuse(request)?;
    let files = HeldFiles::open(request)?;
    let held = files.request(request);
    let checked = check(request, &files)?;
    if request.invocation.is_dry_run {
        return Ok(CommandStatus::Success);
    }
    let is_foreground = notifier.is_none();
    let log = Arc::new(Log::open(&request.log_target(), is_foreground)?);
    let output = typed.explain.then(daemon::output).transpose()?;
    let signals = HolderSignals::block().context("cannot block signals")?;
    let mut attachment =
        attach(&request.directory, &request.attach).map_err(|error| anyhow!("{error}"))?;
    let device: OwnedFd = attachment.device().try_clone().context("/dev/fuse")?;
    let ready = NegotiatedMount::new(device, &checked.settings);
    let ready = ready.map_err(|error| anyhow!("{error}"))?;
    let readahead = Readahead::raise(&attachment, ready.init_parameters().requested_readahead);
    if let Some(notifier) = notifier.as_ref() {
        rustix::process::chdir("/").context("cannot change the directory to /")?;
        notifier.outlive()?;
    }
    let journal = RequestJournal::new(ready.listeners()).context("no memory for the journal")?;
    let mut kept = Kept {
        typed,
        request: held,
        log: Arc::clone(&log),
        readahead,
        journal: Arc::new(journal),
        ready: Some(ready),
        notifier: notifier.take(),
        output,
        is_foreground,
        mounted_at: daemon::now(),
    };
    kept.enter_sandbox(&attachment, &files, &signals)?;
    // Before threads; a name is only for people.
    rustix::thread::set_name(NAME).ok();
    let serve = &mut |attachment, start: ServerStart| kept.serve(attachment, start);
    let code = attachment.hold(signals, serve, &|event| log_event(&log, event));
    let code = code.context("cannot start the process that serves")?;
    Ok(if code == 0 { CommandStatus::Success } else { CommandStatus::Failure })
}

/// What cannot be kept.
fn refuse(request: &MountRequest) -> anyhow::Result<()> {
    if RemoteImage::of(&request.image, &request.read.devices)?.is_some() {
        return Err(usage_error(format_args!(
            "--keep: {} is not a file; a mount of a URL cannot be kept; leave out --keep",
            remote::shown(&request.image)
        )));
    }
    if request.user.is_some() {
        return Err(usage_error(
            "--keep cannot be used with --user: the process that holds the mount has no right to become \
             another user; start the command as that user",
        ));
    }
    Ok(())
}

/// K1: opens the image in a process of its own.
fn check(request: &MountRequest, files: &HeldFiles) -> anyhow::Result<CheckedImage> {
    let mut held = files.request(request);
    held.read.quiet = request.read.quiet;
    let checked = run_in_child(|| {
        fault_point("check", 1);
        match open_and_describe(&held) {
            Ok(numbers) => numbers.into_bytes(),
            Err(error) => {
                let status = CommandStatus::of_error(&error).code();
                format!("!{status} {error:#}").into_bytes()
            }
        }
    });
    let answer = checked.context("cannot start the process that checks the image")?;
    let answer = answer.map_err(|how| anyhow!("the process that checks the image ended {how}"))?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let Some(failure) = answer.strip_prefix('!') else {
        let mut numbers = answer.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next().and_then(Result::ok);
        let mut count = || {
            let number = next().and_then(|number| usize::try_from(number).ok()).unwrap_or(1);
            number.clamp(1, CHECKED_LISTENERS_MAX)
        };
        let (listeners, listeners_max) = (count(), count());
        let reserve_share = next();
        let settings = request
            .settings
            .listeners(listeners)
            .growth(ListenerGrowth::IfSlow(listeners_max))
            .reserve_share(reserve_share);
        return Ok(CheckedImage { settings });
    };
    // The paths of the message are those that the user knows.
    let (status, mut text) = failure
        .split_once(' ')
        .map(|(status, text)| (status.to_owned(), text.to_owned()))
        .unwrap_or_default();
    let known = std::iter::once(&request.image).chain(&request.read.devices);
    for (held, known) in held_paths(files).zip(known) {
        text = text.replace(&held, &escape(known.as_os_str().as_encoded_bytes()));
    }
    Err(match status == CommandStatus::UsageError.code().to_string() {
        true => usage_error(text),
        false => anyhow!(text),
    })
}

fn held_paths(files: &HeldFiles) -> impl Iterator<Item = String> {
    std::iter::once(&files.image)
        .chain(&files.devices)
        .map(|file| path_of(file).to_string_lossy().into_owned())
}

/// Opens the image, and tells the number of listeners, the most there may be, and the share of the memory reserve.
fn open_and_describe(held: &MountRequest) -> anyhow::Result<String> {
    let resources = resources(&held.machine, &held.reserve)?;
    source::open_for_mount(&held.image, &held.read, &resources)?;
    let share = resources.memory.reserve_share().map_or(String::new(), |share| share.to_string());
    Ok(format!("{} {} {share}", resources.listeners(), resources.listeners_max()))
}

fn resources(machine: &MachineArguments, reserve: &ReserveArguments) -> anyhow::Result<Resources> {
    Resources::with_reserve(machine, reserve)
}

impl Kept<'_> {
    /// K3: from here on, this process only holds the mount, and starts servers.
    fn enter_sandbox(
        &self,
        attachment: &Attachment,
        files: &HeldFiles,
        signals: &HolderSignals,
    ) -> anyhow::Result<Option<SandboxStatus>> {
        if self.typed.no_sandbox {
            if !self.is_foreground {
                daemonize::close_streams()?;
            }
            return Ok(None);
        }
        let is_direct = *attachment.method() == MountMethod::Direct;
        let role = if is_direct { SandboxRole::UnmountingHolder } else { SandboxRole::Holder };
        let streams =
            if self.is_foreground { StandardStreams::Errors } else { StandardStreams::None };
        let kept =
            attachment.descriptors().chain(self.ready.iter().flat_map(|ready| ready.descriptors()));
        let kept = kept.chain([signals.descriptor()]).chain(self.log.descriptor());
        let kept = kept.chain(self.notifier.as_ref().map(ReadyNotifier::descriptor));
        let kept = kept.chain(self.output.as_ref().map(AsFd::as_fd));
        let sandbox = Sandbox::new().role(role).streams(streams).may_raise_priority(true);
        let sandbox = kept.fold(sandbox, Sandbox::keep);
        let sandbox = files.descriptors().fold(sandbox, Sandbox::reopen);
        let entered = sandbox.enter().context("the sandbox (--no-sandbox mounts without it)")?;
        Ok(Some(entered))
    }

    /// The whole life of a server, in its own process. Returns its exit status.
    fn serve(&mut self, attachment: Attachment, start: ServerStart) -> i32 {
        rustix::thread::set_name(SERVER_NAME).ok();
        fault_point("start", start.number);
        // What the first server prints and reports, later ones do not.
        let is_first = start.number == 1;
        let mut notifier = self.notifier.take().filter(|_| is_first);
        let output = self.output.take().filter(|_| is_first);
        let served = self.run_server(attachment, start, &mut notifier, output);
        match (served, notifier) {
            (Ok(status), _) => status.code().into(),
            (Err(error), Some(notifier)) => {
                let status = CommandStatus::of_error(&error);
                notifier.failed(status, &format!("{error:#}"));
                status.code().into()
            }
            (Err(error), None) => {
                self.log.log(Severity::Error, format_args!("{error:#}"));
                self.log.finish();
                CommandStatus::Failure.code().into()
            }
        }
    }

    fn run_server(
        &mut self,
        attachment: Attachment,
        start: ServerStart,
        notifier: &mut Option<ReadyNotifier>,
        output: Option<File>,
    ) -> anyhow::Result<CommandStatus> {
        let resources = resources(&self.request.machine, &self.request.reserve)?;
        let (image, remote) =
            source::open_for_mount(&self.request.image, &self.request.read, &resources)?;
        fault_point("opened", start.number);
        let handlers = SignalHandlers::new(self.is_foreground)?;
        let ready = self.ready.take().context("the mount is served already")?;
        let succession = Succession {
            journal: Arc::clone(&self.journal),
            predecessor: start.predecessor,
            server: start.number,
        };
        let server = MountServer {
            typed: self.typed,
            request: &self.request,
            resources,
            log: Arc::clone(&self.log),
            attachment,
            readahead: self.readahead.clone(),
            remote,
            output,
            is_foreground: self.is_foreground,
            mounted_at: self.mounted_at,
            start: Some(start),
        };
        daemon::serve(server, ready.with_succession(succession), image, handlers, notifier)
    }
}

fn log_event(log: &Log, event: &HolderEvent) {
    match event {
        HolderEvent::ServerEnded { pid, signal, status, restarts } => {
            let how = match (signal, status) {
                (Some(signal), _) => format!("was ended by signal {signal}"),
                (None, status) => format!("ended with exit status {}", status.unwrap_or(0)),
            };
            let line = format_args!("process {pid} {how}; another one serves on (restart {restarts})");
            log.log(Severity::Warning, line);
        }
        HolderEvent::Unmounting { signal } => {
            let signal = Signal(usize::try_from(*signal).unwrap_or(0));
            log.log(Severity::Info, format_args!("{signal}: unmounting"));
        }
        HolderEvent::InUse => log.log(
            Severity::Warning,
            "the mount is still in use; the process ends when it is no longer used, or at a second signal",
        ),
        HolderEvent::NotUnmounted { message } => {
            log.log(
                Severity::Error,
                format_args!("{message}; send a second signal to end the process"),
            );
        }
        HolderEvent::ForkFailed { cause } => {
            log.log(Severity::Error, format_args!("cannot start a process that serves: {cause}"));
        }
        _ => {}
    }
}
