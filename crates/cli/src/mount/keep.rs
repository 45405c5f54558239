//! `--keep`: a mount that survives the process that serves it (docs/survival.md). This process checks the image in a child,
//! mounts, or takes a mount over, and becomes the holder, which forks one server after the other. Called for the subcommand `mount`.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ferrofs_fuse::attach::{
    Attachment, ControlSocket, HandoverSocket, HeldCounts, HeldMount, HoldEnd, HolderEvent,
    HolderPlan, HolderSignals, MountMethod, ServerStart, attach, run_in_child,
};
use ferrofs_fuse::{Capabilities, ListenerGrowth, RequestJournal, Succession, fault_point};
use ferrofs_image::FileSource;
use ferrofs_mount::sandbox::{Sandbox, SandboxRole, SandboxStatus, StandardStreams};
use ferrofs_mount::{MountSettings, NegotiatedMount};
use ferrofs_workers::priority::{InheritedPriority, PriorityRequest};

use super::daemon::{self, MountServer};
use super::daemonize::{self, ReadyNotifier};
use super::explain::Readahead;
use super::log::{Log, Severity};
use super::replace::{LISTENERS_MAX, MountCommand, TakenMount};
use super::request::MountRequest;
use super::service::Service;
use crate::arguments::{MachineArguments, MountArguments, ReserveArguments};
use crate::exit_status::{CommandStatus, usage_error};
use crate::output::escape;
use crate::remote::{self, RemoteImage};
use crate::resources::Resources;
use crate::signals::{Signal, SignalHandlers};
use crate::source::{self, OpenedFiles};

/// The name of the process.
const NAME: &std::ffi::CStr = c"ferrofs-holder";
/// The name of servers, which they have from the program otherwise.
const SERVER_NAME: &std::ffi::CStr = c"ferrofs";

/// The files of an image, which servers read by these descriptors: names, and permissions to open the files again, may be gone
/// by then. A holder of root has no capability to open files of other users.
struct HeldFiles {
    image: File,
    devices: Vec<File>,
}

impl HeldFiles {
    fn open(request: &MountRequest) -> anyhow::Result<Self> {
        let open = |path: &Path| {
            let terminal_form = || escape(path.as_os_str().as_encoded_bytes());
            FileSource::open_file(path).map_err(|error| anyhow!("{}: {error}", terminal_form()))
        };
        let devices = request.read.devices.iter().map(|path| open(path));
        Ok(Self { image: open(&request.image)?, devices: devices.collect::<Result<_, _>>()? })
    }

    /// The same request with paths of the descriptors, for messages.
    fn request(&self, request: &MountRequest) -> MountRequest {
        let mut held = request.clone();
        held.image = path_of(&self.image);
        held.read.devices = self.devices.iter().map(path_of).collect();
        // A missing device is reported by the check.
        held.read.quiet = true;
        held
    }

    fn opened(&self) -> OpenedFiles<'_> {
        OpenedFiles { image: &self.image, devices: &self.devices }
    }

    fn count(&self) -> usize {
        self.devices.len().saturating_add(1)
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(&self.image).chain(&self.devices).map(AsFd::as_fd)
    }
}

/// Before the number of a descriptor.
const DESCRIPTOR_PATH: &str = "/proc/self/fd/";

fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("{DESCRIPTOR_PATH}{}", file.as_raw_fd()))
}

/// A message with the `names` of the files at their descriptors, whose paths it has.
fn with_names(message: &str, names: &[(RawFd, String)]) -> String {
    let mut parts = message.split(DESCRIPTOR_PATH);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // All digits belong to the number: 30 is not 3.
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(end);
        let number = number.parse::<RawFd>().ok();
        match names.iter().find(|(descriptor, _)| Some(*descriptor) == number) {
            Some((_, name)) => text.extend([name.as_str(), rest]),
            None => text.extend([DESCRIPTOR_PATH, part]),
        }
    }
    text
}

/// What the check of an image tells.
#[derive(Clone, Copy)]
struct CheckedImage {
    listeners: usize,
    listeners_max: usize,
    reserve_share: Option<u64>,
}

impl CheckedImage {
    fn settings(self, request: &MountRequest) -> MountSettings {
        let growth = ListenerGrowth::IfSlow(self.listeners_max);
        let settings = request.settings.listeners(self.listeners).growth(growth);
        settings.reserve_share(self.reserve_share).max_read(request.attach.max_read)
    }
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
    /// The service manager, for the main process of a service.
    service: Option<Service>,
    output: Option<File>,
    is_foreground: bool,
    /// Whether this process has a priority for its servers.
    is_raised: bool,
    mounted_at: Duration,
    files: HeldFiles,
    /// What a program gets that takes the mount over.
    record: OwnedFd,
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
    let is_foreground = notifier.is_none();
    let mut service = match is_foreground && !request.invocation.is_dry_run {
        true => Service::of_this_process()?,
        false => None,
    };
    if let Some(kept) = service.as_mut().map(Service::take_mount).transpose()?.flatten() {
        // The next start of this program would understand it no better.
        let taken = TakenMount::of(kept, &request.directory).map_err(|error| {
            usage_error(format_args!("the mount that the service manager keeps: {error:#}"))
        })?;
        return status_of(&hold_taken(taken, &mut None, service)?);
    }
    let files = HeldFiles::open(request)?;
    let held = files.request(request);
    let checked = check(request, &files)?;
    if request.invocation.is_dry_run {
        return Ok(CommandStatus::Success);
    }
    let log = Arc::new(Log::open(&request.log_target(), is_foreground)?);
    let output = typed.explain.then(daemon::output).transpose()?;
    let signals = HolderSignals::block().context("cannot block signals")?;
    let mut attachment =
        attach(&request.directory, &request.attach).map_err(|error| anyhow!("{error}"))?;
    let device: OwnedFd = attachment.device().try_clone().context("/dev/fuse")?;
    let mounted_at = daemon::now();
    let ready = NegotiatedMount::new(device, &checked.settings(request));
    let ready = ready.map_err(|error| anyhow!("{error}"))?;
    let readahead = Readahead::raise(&attachment, ready.init_parameters().requested_readahead);
    let control = listen(&attachment)?;
    let command = command(&checked, mounted_at)?;
    let counts = HeldCounts { channels: ready.descriptors().count(), files: files.count() };
    let record = attachment.record(ready.init_parameters(), counts, command.encode());
    let record = record.to_file().context("no memory for the record of the mount")?;
    outlive(notifier.as_ref())?;
    let journal = RequestJournal::new(ready.listeners()).context("no memory for the journal")?;
    let mut kept = Kept {
        typed,
        request: held,
        log,
        readahead,
        journal: Arc::new(journal),
        ready: Some(ready),
        notifier: notifier.take(),
        service,
        output,
        is_foreground,
        is_raised: false,
        mounted_at,
        files,
        record,
    };
    let refusal = kept.refusal();
    let plan =
        HolderPlan { signals, control: Some(control), refusal, handover: None, last_server: None };
    let ended = kept.hold(&mut attachment, plan);
    // It stays if no server was started.
    *notifier = kept.notifier.take();
    status_of(&ended?)
}

fn status_of(ended: &HoldEnd) -> anyhow::Result<CommandStatus> {
    Ok(match ended {
        HoldEnd::Ended(0) | HoldEnd::HandedOver => CommandStatus::Success,
        HoldEnd::Ended(_) | HoldEnd::NotTaken(_) => CommandStatus::Failure,
    })
}

/// Where another program asks for the mount (KR1).
fn listen(attachment: &Attachment) -> anyhow::Result<ControlSocket> {
    ControlSocket::listen(&attachment.device_number())
        .context("cannot create the socket of the holder")
}

/// A holder in the background occupies no directory, and goes on when whoever started it ends.
fn outlive(notifier: Option<&ReadyNotifier>) -> anyhow::Result<()> {
    let Some(notifier) = notifier else { return Ok(()) };
    rustix::process::chdir("/").context("cannot change the directory to /")?;
    notifier.outlive()
}

/// Why a mount in the foreground is not handed over.
const FOREGROUND: &str = "the mount was made with --foreground, so the program that started it waits for the process \
                          that holds it; end that process, and start the new program in its place";

const SERVICE: &str = "the mount belongs to a service; to let its manager start the program that is now installed: \
                       systemctl kill --signal=KILL UNIT";

/// The command line of this process, for one that takes the mount over.
fn command(checked: &CheckedImage, mounted_at: Duration) -> anyhow::Result<MountCommand> {
    let CheckedImage { listeners, listeners_max, reserve_share } = *checked;
    let directory = std::env::current_dir().context("cannot find the working directory")?;
    let words = std::env::args_os().collect();
    Ok(MountCommand { listeners, listeners_max, reserve_share, mounted_at, directory, words })
}

/// KR1 to KR6 on the side of the new program: takes the mount of `directory` over and holds it until it ends.
pub(super) fn replace(directory: &Path, notifier: ReadyNotifier) -> CommandStatus {
    let mut notifier = Some(notifier);
    let ended = take_over(directory, &mut notifier);
    let ended = match (ended, &notifier) {
        (Ok(HoldEnd::NotTaken(why)), Some(_)) if !why.is_empty() => Err(anyhow!(
            "{}: {why}; the former process still serves the mount",
            directory.display()
        )),
        (ended, _) => ended,
    };
    match (ended, notifier) {
        (Ok(HoldEnd::Ended(0) | HoldEnd::HandedOver), _) => CommandStatus::Success,
        (Ok(_), _) => CommandStatus::Failure,
        (Err(error), notifier) => {
            let status = CommandStatus::of_error(&error);
            if let Some(notifier) = notifier {
                notifier.failed(status, &format!("{error:#}"));
            }
            status
        }
    }
}

/// The notifier stays if the mount was not taken over.
fn take_over(directory: &Path, notifier: &mut Option<ReadyNotifier>) -> anyhow::Result<HoldEnd> {
    let taken = TakenMount::request(directory)?;
    if !taken.offered.record.init_parameters.granted.contains(Capabilities::HAS_RESEND) {
        return Err(anyhow!(
            "{}: this kernel cannot send requests again (Linux 6.9 can), so calls would fail; unmount it and mount it \
             with this program",
            directory.display()
        ));
    }
    hold_taken(taken, notifier, None)
}

/// Holds a mount that another holder has made, which has ended if there is a `service`.
fn hold_taken(
    mut taken: TakenMount,
    notifier: &mut Option<ReadyNotifier>,
    service: Option<Service>,
) -> anyhow::Result<HoldEnd> {
    let channels = taken.take_channels();
    let TakenMount { offered, mut attachment, command, typed, request, image, devices } = taken;
    let files = HeldFiles { image, devices };
    let held = files.request(&request);
    // What a service holds was checked when it was mounted; a server that cannot open it is tried again.
    let is_foreground = service.is_some();
    if !is_foreground {
        check(&request, &files)?;
    }
    let log = Arc::new(Log::open(&request.log_target(), is_foreground)?);
    let signals = HolderSignals::block().context("cannot block signals")?;
    let MountCommand { listeners, listeners_max, reserve_share, mounted_at, .. } = command;
    let checked = CheckedImage { listeners, listeners_max, reserve_share };
    let init_parameters = offered.record.init_parameters;
    let ready = NegotiatedMount::resumed(channels, init_parameters, &checked.settings(&request));
    let ready = ready.map_err(|error| anyhow!("{error}"))?;
    let journal = RequestJournal::of_file(offered.journal, ready.listeners());
    let journal = journal.context("the journal of the mount")?;
    let readahead = Readahead::raise(&attachment, init_parameters.requested_readahead);
    let control = listen(&attachment)?;
    outlive(notifier.as_ref())?;
    let last_server = service.as_ref().map(|_| journal.last_server());
    let mut kept = Kept {
        typed: &typed,
        request: held,
        log,
        readahead,
        journal: Arc::new(journal),
        ready: Some(ready),
        notifier: notifier.take(),
        service,
        output: None,
        is_foreground,
        is_raised: false,
        mounted_at,
        files,
        record: offered.record_file,
    };
    let refusal = kept.refusal();
    let handover = offered.handover;
    let plan = HolderPlan { signals, control: Some(control), refusal, handover, last_server };
    let ended = kept.hold(&mut attachment, plan);
    *notifier = kept.notifier.take();
    ended
}

/// What cannot be kept.
fn refuse(request: &MountRequest) -> anyhow::Result<()> {
    if RemoteImage::of(&request.image, &request.read.devices)?.is_some() {
        let mut places = std::iter::once(&request.image).chain(&request.read.devices);
        let place = places.find(|place| remote::is_remote(place)).unwrap_or(&request.image);
        return Err(usage_error(format_args!(
            "--keep: {} is not a file; a mount of a URL cannot be kept; leave out --keep",
            remote::terminal_form(place)
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

/// KM1: opens the image in a process of its own.
fn check(request: &MountRequest, files: &HeldFiles) -> anyhow::Result<CheckedImage> {
    let mut held = files.request(request);
    held.read.quiet = request.read.quiet;
    let checked = run_in_child(|| {
        fault_point("check", 1);
        match open_and_describe(&held, files) {
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
            number.clamp(1, LISTENERS_MAX)
        };
        let (listeners, listeners_max) = (count(), count());
        let reserve_share = next();
        return Ok(CheckedImage { listeners, listeners_max, reserve_share });
    };
    // The paths of the message are those that the user knows.
    let (status, text) = failure.split_once(' ').unwrap_or_default();
    let known = std::iter::once(&request.image).chain(&request.read.devices);
    let terminal_form = known.map(|path| escape(path.as_os_str().as_encoded_bytes()));
    let held = files.descriptors().map(|descriptor| descriptor.as_raw_fd());
    let text = with_names(text, &held.zip(terminal_form).collect::<Vec<_>>());
    Err(match status == CommandStatus::UsageError.code().to_string() {
        true => usage_error(text),
        false => anyhow!(text),
    })
}

/// Opens the image, and tells the number of listeners, the most there may be, and the share of the memory reserve.
fn open_and_describe(held: &MountRequest, files: &HeldFiles) -> anyhow::Result<String> {
    let resources = resources(&held.machine, &held.reserve)?;
    source::open_opened_for_mount(&held.image, files.opened(), &held.read, &resources)?;
    let share = resources.memory.reserve_share().map_or(String::new(), |share| share.to_string());
    Ok(format!("{} {} {share}", resources.listeners(), resources.listeners_max()))
}

fn resources(machine: &MachineArguments, reserve: &ReserveArguments) -> anyhow::Result<Resources> {
    Resources::of_mount(machine, reserve)
}

impl Kept<'_> {
    /// KM3 and KM4: from here on, this process only holds the mount.
    fn hold(&mut self, attachment: &mut Attachment, plan: HolderPlan) -> anyhow::Result<HoldEnd> {
        if let Some(mut service) = self.service.take() {
            match plan.last_server {
                None => {
                    fault_point("mounted", 1);
                    service.keep(&self.offer(), attachment)?;
                }
                Some(_) => service.renew(attachment)?,
            }
            self.service = Some(service);
        }
        // Servers inherit it: no process may raise it in the sandbox where the limits cannot be raised, as in a container.
        let is_wanted = self.request.settings.priority == PriorityRequest::Raised;
        let raised = is_wanted.then(InheritedPriority::raise).flatten();
        self.is_raised = raised.is_some();
        fault_point("kept", plan.last_server.map_or(1, |number| number.saturating_add(1)));
        self.enter_sandbox(attachment, &plan)?;
        daemon::release_start_memory();
        // Before threads; a name is only for people.
        rustix::thread::set_name(NAME).ok();
        let ended = attachment.hold(plan, self).context("cannot start the process that serves");
        if let Some(service) = &self.service {
            service.forget();
        }
        ended
    }

    /// Why the mount is not handed over to other programs.
    fn refusal(&self) -> Option<String> {
        let of_service = || self.service.as_ref().is_some_and(Service::keeps);
        self.is_foreground.then(|| if of_service() { SERVICE } else { FOREGROUND }.to_owned())
    }

    fn enter_sandbox(
        &self,
        attachment: &Attachment,
        plan: &HolderPlan,
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
        let kept = kept.chain([plan.signals.descriptor()]).chain(self.log.descriptor());
        let kept = kept.chain(self.notifier.as_ref().map(ReadyNotifier::descriptor));
        let kept = kept.chain(self.output.as_ref().map(AsFd::as_fd));
        let kept = kept.chain(self.service.as_ref().map(Service::descriptor));
        let kept = kept.chain(plan.control.iter().flat_map(ControlSocket::descriptors));
        let kept = kept.chain(plan.handover.iter().flat_map(HandoverSocket::descriptors));
        let kept = kept.chain([self.record.as_fd(), self.journal.descriptor()]);
        let sandbox = Sandbox::new().role(role).streams(streams).may_raise_priority(true);
        let sandbox = kept.fold(sandbox, Sandbox::keep);
        let sandbox = self.files.descriptors().fold(sandbox, Sandbox::keep);
        let entered =
            sandbox.enter().context("cannot enter the sandbox (--no-sandbox mounts without it)")?;
        Ok(Some(entered))
    }

    fn run_server(
        &mut self,
        attachment: Attachment,
        start: ServerStart,
        notifier: &mut Option<ReadyNotifier>,
        output: Option<File>,
    ) -> anyhow::Result<CommandStatus> {
        let resources = resources(&self.request.machine, &self.request.reserve)?;
        let MountRequest { image, read, .. } = &self.request;
        let image = source::open_opened_for_mount(image, self.files.opened(), read, &resources)?;
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
            remote: None,
            output,
            is_foreground: self.is_foreground,
            mounted_at: self.mounted_at,
            start: Some(start),
            service: None,
            priority: self.is_raised.then(InheritedPriority::of_parent),
        };
        daemon::serve(server, ready.with_succession(succession), image, handlers, notifier)
    }
}

impl Kept<'_> {
    /// The exit status of a server; an error is reported to who waits for the mount, or else in the log.
    fn exit_code(
        &self,
        served: anyhow::Result<CommandStatus>,
        notifier: Option<ReadyNotifier>,
    ) -> i32 {
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
}

impl HeldMount for Kept<'_> {
    fn serve(&mut self, attachment: Attachment, start: ServerStart) -> i32 {
        rustix::thread::set_name(SERVER_NAME).ok();
        fault_point("start", start.number);
        // What the first server prints and reports, later ones do not. But it may have died before it has told the command.
        let is_first = start.is_first;
        let mut notifier = self.notifier.take().filter(|one| is_first || one.is_awaited());
        let output = self.output.take().filter(|_| is_first);
        let served = self.run_server(attachment, start, &mut notifier, output);
        // A later one that fails is followed by another one, which the command waits for.
        self.exit_code(served, notifier.filter(|_| is_first))
    }

    fn cannot_serve(&mut self, is_first: bool, cause: std::io::Error) -> i32 {
        let notifier = self.notifier.take().filter(|_| is_first);
        let error = anyhow::Error::new(cause).context("cannot start the process that serves");
        self.exit_code(Err(error), notifier)
    }

    fn offer(&self) -> Vec<BorrowedFd<'_>> {
        let own = [self.record.as_fd(), self.journal.descriptor()].into_iter();
        let channels = self.ready.iter().flat_map(|ready| ready.descriptors());
        own.chain(channels).chain(self.files.descriptors()).collect()
    }

    fn report(&self, event: &HolderEvent) {
        match (event, &self.service) {
            (HolderEvent::Ready, Some(service)) => service.ready(),
            // KF6: the next process of the service must not serve what is no longer mounted.
            (HolderEvent::InUse, Some(service)) => service.forget(),
            _ => {}
        }
        log_event(&self.log, event);
    }
}

fn log_event(log: &Log, event: &HolderEvent) {
    match event {
        HolderEvent::ServerEnded { pid, signal, status, restarts } => {
            let how = match (signal, status) {
                (Some(signal), _) => format!("was ended by signal {signal}"),
                (None, status) => format!("ended with exit status {}", status.unwrap_or(0)),
            };
            let line = format_args!("process {pid} {how}; another one serves the mount (restart {restarts})");
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
        HolderEvent::HandedOver => log.log(Severity::Info, "another program holds the mount now"),
        HolderEvent::NotTaken => log.log(
            Severity::Warning,
            "the program that requested the mount has ended; this one keeps it",
        ),
        HolderEvent::ForkFailed { cause } => {
            log.log(Severity::Error, format_args!("cannot start a process that serves: {cause}"));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_in_a_message_become_the_names_of_the_files() {
        let names = [(3, "/a".to_owned()), (30, "/proc/self/fd/3".to_owned())];
        let text = "/proc/self/fd/30: wrong; /proc/self/fd/3 and /proc/self/fd/31, /proc/self/fd/x";
        let named = "/proc/self/fd/3: wrong; /a and /proc/self/fd/31, /proc/self/fd/x";
        assert_eq!(with_names(text, &names), named);
    }
}
