//! The life of a mount, from opening the image to the end. The order of the steps leaves nothing
//! behind if a step fails: the image is checked before anything is mounted, and requests are served
//! before the starter gets the message that the mount is ready. Called by the verb, in the process
//! that serves.

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use ferrofs_fuse::attach::{AttachError, Attachment, DetachOutcome, ServerStart, attach};
use ferrofs_fuse::{ListenerGrowth, SessionEvent, fault_point};
use ferrofs_image::Image;
use ferrofs_mount::sandbox::{
    FilterState, PathConfinement, Sandbox, SandboxRole, SandboxStatus, StandardStreams,
    is_single_threaded,
};
use ferrofs_mount::{MountLogEvent, NegotiatedMount, ServedMount, ServingProcess};
use ferrofs_workers::memory::{trim_heap, trim_stack};
use ferrofs_workers::priority::{InheritedPriority, PriorityRequest};

use super::daemonize::{self, ReadyNotifier};
use super::explain::{ExplainedRemote, Explanation, ExplanationInput, Readahead};
use super::log::{Log, Severity};
use super::request::MountRequest;
use super::service::Service;
use crate::arguments::{MountArguments, MountCaller};
use crate::exit_status::CommandStatus;
use crate::output::{self, escape};
use crate::remote::RemoteMount;
use crate::resources::Resources;
use crate::signals::{MountEvent, MountEvents, SessionWaker, SignalHandlers};
use crate::source;

/// The state of a mount, besides the session that serves it.
pub(super) struct MountServer<'a> {
    pub(super) typed: &'a MountArguments,
    pub(super) request: &'a MountRequest,
    pub(super) resources: Resources,
    pub(super) log: Arc<Log>,
    pub(super) attachment: Attachment,
    pub(super) readahead: Readahead,
    /// The way to the fetcher of a remote image.
    pub(super) remote: Option<RemoteMount>,
    /// Standard output, if something is still to be printed.
    pub(super) output: Option<File>,
    pub(super) is_foreground: bool,
    /// When the image was mounted, by `CLOCK_BOOTTIME`.
    pub(super) mounted_at: Duration,
    /// How a holder started this process; `None` without a holder.
    pub(super) start: Option<ServerStart>,
    /// The service manager, without a holder.
    pub(super) service: Option<Service>,
    /// The priority of a holder.
    pub(super) priority: Option<InheritedPriority>,
}

/// Mounts and serves until the mount ends. `notifier` is taken when the mount is ready, and stays
/// if it never was.
///
/// # Errors
/// The image could not be mounted, or the mount ended with an error. Nothing stays mounted, unless
/// the error text names the mount.
pub(super) fn run(
    typed: &MountArguments,
    request: &MountRequest,
    notifier: &mut Option<ReadyNotifier>,
) -> anyhow::Result<CommandStatus> {
    let resources = Resources::of_mount(&request.machine, &request.reserve)?;
    let (image, remote) = source::open_for_mount(&request.image, &request.read, &resources)?;
    if request.invocation.is_dry_run {
        return Ok(CommandStatus::Success);
    }
    let is_foreground = notifier.is_none();
    let log = Arc::new(Log::open(&request.log_target(), is_foreground)?);
    let output = typed.explain.then(output).transpose()?;
    let service = if is_foreground { Service::of_this_process()? } else { None };
    let handlers = SignalHandlers::new(is_foreground)?;
    let mut attachment =
        attach(&request.directory, &request.attach).map_err(|error| anyhow!("{error}"))?;
    release_start_memory();
    start_unmount_helper(&mut attachment, typed)?;
    let ready = negotiate(&attachment, request, &resources, remote.is_some())?;
    let requested = ready.init_parameters().requested_readahead;
    let readahead = Readahead::raise(&attachment, requested);
    if let Some(notifier) = notifier.as_ref() {
        rustix::process::chdir("/").context("cannot change the directory to /")?;
        notifier.outlive()?;
    }
    let server = MountServer {
        typed,
        request,
        resources,
        log,
        attachment,
        readahead,
        remote,
        output,
        is_foreground,
        mounted_at: now(),
        start: None,
        service,
        priority: None,
    };
    serve(server, ready, image, handlers, notifier)
}

/// Serves a mount until it ends. `notifier` is taken when the mount is ready.
///
/// # Errors
/// The mount could not be served, or ended with an error.
pub(super) fn serve(
    mut server: MountServer<'_>,
    ready: NegotiatedMount,
    image: Image,
    handlers: SignalHandlers,
    notifier: &mut Option<ReadyNotifier>,
) -> anyhow::Result<CommandStatus> {
    // Listeners keep what they inherit; the sandbox may take the right to raise it.
    let is_raised = server.request.settings.priority == PriorityRequest::Raised;
    let of_parent = server.priority.take();
    let inherited = of_parent.or_else(|| is_raised.then(InheritedPriority::raise).flatten());
    let entered = server.enter_sandbox(&ready, &handlers, notifier.as_ref())?;
    server.remote.as_ref().map(RemoteMount::start).transpose()?;
    let (mut signals, waker) = handlers.listen()?;
    let remote = server.remote.as_ref().filter(|_| server.typed.explain);
    let remote = remote.map(|remote| ExplainedRemote::new(remote, &image));
    let log = Arc::clone(&server.log);
    let unmounted = waker.clone();
    let ready = ready.with_process(server.process(entered.as_ref()));
    if let Some(start) = &server.start {
        fault_point("prepared", start.number);
        start.ready.wait_for_turn()?;
        fault_point("turn", start.number);
    }
    let shared = image.clone();
    let served = ready.serve(image, move |event| match event {
        MountLogEvent::Session(SessionEvent::Unmounted) => unmounted.wake_unmounted(),
        _ => {
            log.log(severity(event), event);
            if let MountLogEvent::Session(SessionEvent::DeviceFailed { .. }) = event {
                unmounted.wake_failed();
            }
        }
    });
    if let Some(inherited) = inherited
        && entered.is_some()
    {
        inherited.keep_for_later_threads();
    }
    // Threads that the image starts from here on inherit the ordinary priority.
    shared.allow_threads();
    drop(shared);
    let served = served.map_err(|error| anyhow!("{error}"))?;
    let confined = server.attachment.wait_for_unmount_helper();
    confined.map_err(|error| helper_error(&error))?;
    server.explain(&served, entered.as_ref(), notifier.as_ref(), remote)?;
    // A mount that was taken over is wanted whoever has asked for that.
    let is_new = server.start.as_ref().is_none_or(|start| start.predecessor.is_none());
    if let Some(start) = server.start.take() {
        fault_point("ready", start.number);
        let number = start.number;
        start.ready.send();
        fault_point("reported", number);
    }
    if let Err(error) = server.notify_ready(notifier.take())
        && is_new
    {
        // The holder would start another server, as after a crash.
        server.attachment.detach().ok();
        return Err(error);
    }
    release_start_memory();
    let mut end = SessionEnd::Running { served, waker };
    if server.wait(&mut signals, &mut end) == MountEvent::Overdue {
        // Closing the image would wait for the requests that hang.
        let mut server = ManuallyDrop::new(server);
        return Ok(server.exit_with_pending());
    }
    end.join();
    server.end()
}

/// How far a session is.
enum SessionEnd {
    /// No listener is known to have ended.
    Running { served: ServedMount, waker: SessionWaker },
    /// A thread waits for the last one, and sends an event then.
    Ending(JoinHandle<()>),
    /// All have ended.
    Ended,
}

impl SessionEnd {
    /// Starts the thread that waits, unless it was started before. Without a thread this one waits.
    fn begin(&mut self) {
        let before = std::mem::replace(self, Self::Ended);
        let Self::Running { served, waker } = before else {
            *self = before;
            return;
        };
        let (sender, served_there) = mpsc::channel::<ServedMount>();
        let waiting = std::thread::Builder::new().name("mount-end".to_owned()).spawn({
            let waker = waker.clone();
            move || {
                if let Ok(served) = served_there.recv() {
                    served.join();
                }
                waker.wake_ended();
            }
        });
        match waiting {
            Ok(thread) => {
                sender.send(served).ok();
                *self = Self::Ending(thread);
            }
            Err(_) => {
                served.join();
                waker.wake_ended();
            }
        }
    }

    fn join(self) {
        match self {
            Self::Running { served, .. } => served.join(),
            // It has sent its event.
            Self::Ending(thread) => drop(thread.join()),
            Self::Ended => {}
        }
    }
}

/// Gives memory back that only the start has used: most of all, options are parsed in hundreds of KiB.
pub(super) fn release_start_memory() {
    trim_heap();
    trim_stack();
}

/// Standard output as a descriptor that outlives the stream.
pub(super) fn output() -> anyhow::Result<File> {
    let output = io::stdout().as_fd().try_clone_to_owned().context("standard output")?;
    Ok(File::from(output))
}

/// Starts the process that unmounts in place of this one, which gives up the privilege to. It is
/// started while the process is small.
fn start_unmount_helper(attachment: &mut Attachment, typed: &MountArguments) -> anyhow::Result<()> {
    let is_sandboxed = !typed.no_sandbox;
    let started = attachment.start_unmount_helper(|kept| {
        let sandbox = Sandbox::new().role(SandboxRole::Unmounter);
        let sandbox = kept.iter().copied().fold(sandbox, Sandbox::keep);
        if is_sandboxed {
            sandbox.enter().map_err(io::Error::other)?;
        }
        Ok(())
    });
    started.map_err(|error| helper_error(&error))
}

fn helper_error(error: &AttachError) -> anyhow::Error {
    anyhow!("{error} (--no-sandbox mounts without the sandbox)")
}

fn negotiate(
    attachment: &Attachment,
    request: &MountRequest,
    resources: &Resources,
    is_remote: bool,
) -> anyhow::Result<NegotiatedMount> {
    let growth = match is_remote {
        true => ListenerGrowth::AtOnce(resources.listeners_max()),
        false => ListenerGrowth::IfSlow(resources.listeners_max()),
    };
    let settings = request
        .settings
        .listeners(resources.listeners())
        .growth(growth)
        .reserve_share(resources.memory.reserve_share())
        .max_read(request.attach.max_read);
    let device: OwnedFd = attachment.device().try_clone().context("/dev/fuse")?;
    NegotiatedMount::new(device, &settings).map_err(|error| anyhow!("{error}"))
}

/// The time since the system was started, which all its processes share.
pub(super) fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(now).unwrap_or_default()
}

fn severity(event: &MountLogEvent<'_>) -> Severity {
    match event {
        MountLogEvent::Failed { .. } => Severity::Error,
        _ => Severity::Warning,
    }
}

impl MountServer<'_> {
    /// Enters the sandbox, which keeps only what serving needs.
    fn enter_sandbox(
        &self,
        ready: &NegotiatedMount,
        handlers: &SignalHandlers,
        notifier: Option<&ReadyNotifier>,
    ) -> anyhow::Result<Option<SandboxStatus>> {
        if self.typed.no_sandbox {
            if !self.is_foreground {
                daemonize::close_streams()?;
            }
            return Ok(None);
        }
        let streams =
            if self.is_foreground { StandardStreams::Errors } else { StandardStreams::None };
        let connection = self.remote.as_ref().and_then(RemoteMount::connection);
        let kept = self.attachment.descriptors().chain(ready.descriptors());
        let kept = kept.chain(handlers.descriptors()).chain(self.log.descriptor());
        let kept = kept.chain(notifier.map(ReadyNotifier::descriptor));
        let kept = kept.chain(self.output.as_ref().map(AsFd::as_fd));
        let kept = kept.chain(self.service.as_ref().map(Service::descriptor));
        let companion = self.remote.as_ref().map(|remote| remote.companion().as_fd());
        let kept = kept.chain(connection.as_deref().map(AsFd::as_fd)).chain(companion);
        let kept = kept.chain(self.start.iter().flat_map(|start| start.ready.descriptors()));
        let sandbox = Sandbox::new().streams(streams).user(self.request.user);
        let sandbox = sandbox.may_receive_descriptors(self.remote.is_some());
        let sandbox = kept.fold(sandbox.may_raise_priority(true), Sandbox::keep);
        let entered = is_single_threaded().context("counting threads").and_then(|is_alone| {
            ensure!(is_alone, "a thread runs already and would keep its privileges");
            Ok(sandbox.enter()?)
        });
        let entered =
            entered.context("cannot enter the sandbox (--no-sandbox mounts without it)")?;
        if let PathConfinement::Unavailable { reason } = &entered.paths {
            self.log
                .log(Severity::Info, format_args!("the sandbox does not confine paths: {reason}"));
        }
        Ok(Some(entered))
    }

    /// What the statistics report about this process.
    fn process(&self, entered: Option<&SandboxStatus>) -> ServingProcess {
        let start = self.start.as_ref();
        let calls = |entered: &SandboxStatus| match entered.filter {
            FilterState::On { calls } => u64::try_from(calls).ok(),
            FilterState::Off | FilterState::Unavailable { .. } => None,
        };
        let version = |entered: &SandboxStatus| match entered.paths {
            PathConfinement::On { version, .. } => Some(version),
            PathConfinement::Off | PathConfinement::Unavailable { .. } => None,
        };
        ServingProcess {
            restarts: start.map_or(0, |start| start.number.saturating_sub(1)),
            holder: start.and_then(|start| u32::try_from(start.holder).ok()),
            filter_calls: entered.and_then(calls),
            landlock: entered.and_then(version),
            mounted_at: Some(self.mounted_at),
        }
    }

    /// Prints the output of `--explain`, if it was given.
    fn explain(
        &mut self,
        served: &ServedMount,
        entered: Option<&SandboxStatus>,
        notifier: Option<&ReadyNotifier>,
        remote: Option<ExplainedRemote>,
    ) -> anyhow::Result<()> {
        let Some(mut output) = self.output.take() else { return Ok(()) };
        let temporary_fds = notifier.map(|notifier| notifier.descriptor().as_raw_fd());
        let temporary_fds: Vec<u32> = temporary_fds
            .into_iter()
            .chain([output.as_raw_fd()])
            .filter_map(|number| u32::try_from(number).ok())
            .collect();
        let explanation = Explanation::new(ExplanationInput {
            request: self.request,
            resources: &self.resources,
            attachment: &self.attachment,
            served,
            readahead: &self.readahead,
            log: &self.log,
            remote,
            entered,
            temporary_fds: &temporary_fds,
        });
        explanation.write(&mut output, self.typed.json).context("standard output")?;
        output.flush().context("standard output")
    }

    fn notify_ready(&self, notifier: Option<ReadyNotifier>) -> anyhow::Result<()> {
        match notifier {
            Some(notifier) => notifier.ready(),
            None => {
                if let Some(service) = &self.service {
                    service.ready();
                }
                if self.is_verbose() {
                    output::print_message(format_args!("mounted on {}", self.terminal_form()));
                }
                Ok(())
            }
        }
    }

    /// Returns how the mount ended.
    fn wait(&mut self, signals: &mut MountEvents, end: &mut SessionEnd) -> MountEvent {
        let mut is_unmounting = false;
        loop {
            let signal = match signals.wait() {
                MountEvent::Signal(signal) => signal,
                MountEvent::Ending => {
                    end.begin();
                    continue;
                }
                ended => return ended,
            };
            // Further signals during unmounting change nothing.
            if std::mem::replace(&mut is_unmounting, true) {
                continue;
            }
            if self.is_verbose() {
                self.log.log(
                    Severity::Info,
                    format_args!("{signal}: unmounting {}", self.terminal_form()),
                );
            }
            match self.attachment.detach() {
                Ok(DetachOutcome::Lazily) => self.log.log(
                    Severity::Warning,
                    format_args!(
                        "{} is still in use; the process ends when it is no longer used, or at a second signal",
                        self.terminal_form()
                    ),
                ),
                Ok(_) => {}
                Err(error) => self.log.log(
                    Severity::Error,
                    format_args!("{error}; send a second signal to end the process"),
                ),
            }
            signals.exit_on_next_signal();
        }
    }

    /// The mount is gone, and some requests do not end: the process exits without them.
    fn exit_with_pending(&mut self) -> CommandStatus {
        let terminal_form = self.terminal_form();
        let line = format_args!(
            "{terminal_form}: unmounted; some requests still hang, probably in reads of the image file"
        );
        self.log.log(Severity::Warning, line);
        self.log.finish();
        // The process that unmounts must not look for the mount when this one has ended.
        self.attachment.detach().ok();
        CommandStatus::Success
    }

    /// The session has ended: the mount is gone, or it cannot be served any more.
    fn end(&mut self) -> anyhow::Result<CommandStatus> {
        let detached = self.attachment.detach();
        let status = match detached {
            Ok(DetachOutcome::Already) => CommandStatus::Success,
            Ok(DetachOutcome::Clean | DetachOutcome::Lazily) => {
                let terminal_form = self.terminal_form();
                self.log.log(
                    Severity::Error,
                    format_args!("{terminal_form}: /dev/fuse failed; unmounted"),
                );
                CommandStatus::Failure
            }
            Err(error) => {
                self.log.log(Severity::Error, error);
                CommandStatus::Failure
            }
        };
        self.log.finish();
        Ok(status)
    }

    fn terminal_form(&self) -> String {
        escape(self.attachment.directory().as_os_str().as_encoded_bytes())
    }

    /// Whether success is reported. Callers of erofsfuse expect no output.
    fn is_verbose(&self) -> bool {
        !self.request.read.quiet && self.request.invocation.by != MountCaller::Erofsfuse
    }
}
