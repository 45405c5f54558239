//! The life of a mount, from the image to the end, in the order in which nothing is left behind if a step fails: what can
//! be wrong with the image is found before anything is mounted, and the mount is answered for before anybody is told that
//! it is ready. Called by the verb, in the process that serves.

use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, anyhow};
use ferrofs_mount::fuse::Event;
use ferrofs_mount::fuse::attach::{Attachment, Detached, Way, attach};
use ferrofs_mount::sandbox::{Entered, Sandbox, Streams};
use ferrofs_mount::{Notice, Ready, Served, Settings};

use super::background::{self, Asker};
use super::explain::{Explanation, Parts};
use super::log::{Log, Severity};
use super::readahead::Readahead;
use super::request::Request;
use super::signals::{Armed, Bell, Happened, Signals};
use crate::arguments::{Caller, MountArguments};
use crate::name::escaped;
use crate::outcome::Outcome;
use crate::resources::Resources;
use crate::{source, stderr};

/// What a mount is besides what serves it.
struct Daemon<'a> {
    typed: &'a MountArguments,
    request: &'a Request,
    resources: Resources,
    log: Arc<Log>,
    attachment: Attachment,
    readahead: Readahead,
    /// Standard output, if something is still to be printed.
    output: Option<File>,
}

/// Mounts and serves until the mount ends. `asker` is told when it is ready, and left in place if it never was.
///
/// # Errors
/// The mount did not come about, or did not end well; nothing is left mounted unless the text says so.
pub(super) fn run(
    typed: &MountArguments,
    request: &Request,
    asker: &mut Option<Asker>,
) -> anyhow::Result<Outcome> {
    let resources = Resources::with_reserve(&request.machine, &request.reserve)?;
    let image = source::open_for_mount(&request.image, &request.read, &resources)?;
    if typed.called.is_rehearsal {
        return Ok(Outcome::Good);
    }
    let is_foreground = asker.is_none();
    let log = Arc::new(Log::open(&request.log_target(), is_foreground)?);
    let output = typed.explain.then(output).transpose()?;
    let armed = Armed::new(is_foreground)?;
    let attachment =
        attach(&request.directory, &request.attach).map_err(|error| anyhow!("{error}"))?;
    let greeted = greet_on(&attachment, request, &resources)?;
    let asked = greeted.terms().max_readahead.1;
    let readahead = Readahead::raise(attachment.directory(), asked);
    if let Some(asker) = asker.as_ref() {
        rustix::process::chdir("/").context("/")?;
        asker.outlive()?;
    }
    let mut daemon = Daemon { typed, request, resources, log, attachment, readahead, output };
    let entered = daemon.shut_in(&greeted, &armed, asker.as_ref())?;
    let (mut signals, bell) = armed.listen()?;
    let log = Arc::clone(&daemon.log);
    let gone = bell.clone();
    let served = greeted.serve(image, move |notice| match notice {
        Notice::Session(Event::Gone) => gone.ring_early(),
        _ => log.say(severity(notice), notice),
    });
    let served = served.map_err(|error| anyhow!("{error}"))?;
    daemon.explain(&served, entered.as_ref(), asker.as_ref())?;
    let end = wait_elsewhere(served, bell)?;
    daemon.tell_ready(asker.take())?;
    if daemon.wait(&mut signals) == Happened::Overdue {
        // To let go of the image would mean to wait for those who read it.
        let mut daemon = ManuallyDrop::new(daemon);
        return Ok(daemon.leave());
    }
    // It has rung.
    end.join().ok();
    daemon.end()
}

/// A thread that waits for the end of the session, and tells the one who waits for signals.
fn wait_elsewhere(served: Served, bell: Bell) -> anyhow::Result<JoinHandle<()>> {
    let waiting = std::thread::Builder::new().name("mount-end".to_owned()).spawn(move || {
        served.join();
        bell.ring();
    });
    waiting.context("a thread cannot be started")
}

/// Standard output as a descriptor that outlives the stream.
fn output() -> anyhow::Result<File> {
    let output = std::io::stdout().as_fd().try_clone_to_owned().context("standard output")?;
    Ok(File::from(output))
}

fn greet_on(
    attachment: &Attachment,
    request: &Request,
    resources: &Resources,
) -> anyhow::Result<Ready> {
    let settings = Settings {
        listeners: resources.listeners(),
        reserve_share: resources.memory.reserve_share(),
        ..request.settings
    };
    let device: OwnedFd = attachment.device().try_clone().context("/dev/fuse")?;
    Ready::new(device, &settings).map_err(|error| anyhow!("{error}"))
}

fn severity(notice: &Notice<'_>) -> Severity {
    match notice {
        Notice::Failed { .. } => Severity::Error,
        _ => Severity::Warning,
    }
}

impl Daemon<'_> {
    /// Gives up what serving does not need.
    fn shut_in(
        &self,
        greeted: &Ready,
        armed: &Armed,
        asker: Option<&Asker>,
    ) -> anyhow::Result<Option<Entered>> {
        if self.typed.no_sandbox {
            if asker.is_some() {
                background::close_streams()?;
            }
            return Ok(None);
        }
        let streams = if asker.is_some() { Streams::None } else { Streams::Errors };
        let is_direct = matches!(self.attachment.way(), Way::Direct);
        let kept = self.attachment.descriptors().chain(greeted.descriptors());
        let kept = kept.chain(armed.descriptors()).chain(self.log.descriptor());
        let kept = kept.chain(asker.map(Asker::descriptor));
        let kept = kept.chain(self.output.as_ref().map(AsFd::as_fd));
        let sandbox = Sandbox::new().streams(streams).may_unmount(is_direct);
        let sandbox = kept.fold(sandbox.may_raise_priority(true), Sandbox::keep);
        let entered = sandbox.enter().context("the sandbox (--no-sandbox serves without it)")?;
        Ok(Some(entered))
    }

    /// Prints what was asked for and granted, if that was wanted.
    fn explain(
        &mut self,
        served: &Served,
        entered: Option<&Entered>,
        asker: Option<&Asker>,
    ) -> anyhow::Result<()> {
        let Some(mut output) = self.output.take() else { return Ok(()) };
        let passing = asker.map(|asker| asker.descriptor().as_raw_fd());
        let passing: Vec<u32> = passing
            .into_iter()
            .chain([output.as_raw_fd()])
            .filter_map(|number| u32::try_from(number).ok())
            .collect();
        let explanation = Explanation::new(&Parts {
            request: self.request,
            resources: &self.resources,
            attachment: &self.attachment,
            served,
            readahead: &self.readahead,
            log: &self.log,
            entered,
            passing: &passing,
        });
        explanation.write(&mut output, self.typed.json).context("standard output")?;
        output.flush().context("standard output")
    }

    fn tell_ready(&self, asker: Option<Asker>) -> anyhow::Result<()> {
        match asker {
            Some(asker) => asker.ready(),
            None => {
                if self.is_talkative() {
                    stderr::complain(format_args!("mounted on {}", self.shown()));
                }
                Ok(())
            }
        }
    }

    /// Answers what the end was.
    fn wait(&mut self, signals: &mut Signals) -> Happened {
        let mut is_told = false;
        loop {
            let signal = match signals.wait() {
                Happened::Signal(signal) => signal,
                end => return end,
            };
            // Further ones that came while it was unmounted mean the same.
            if std::mem::replace(&mut is_told, true) {
                continue;
            }
            if self.is_talkative() {
                self.log.say(Severity::Info, format_args!("{signal}: unmounting {}", self.shown()));
            }
            match self.attachment.detach() {
                Ok(Detached::Lazily) => self.log.say(
                    Severity::Warning,
                    format_args!(
                        "{} is still in use: it is served until its last user is done, or to a second signal",
                        self.shown()
                    ),
                ),
                Ok(_) => {}
                Err(error) => self.log.say(
                    Severity::Error,
                    format_args!("{error}; a second signal ends the process nevertheless"),
                ),
            }
            signals.next_one_ends_at_once();
        }
    }

    /// The mount is gone, and some of its requests will not end: the process goes without them.
    fn leave(&mut self) -> Outcome {
        let shown = self.shown();
        let line = format_args!(
            "{shown}: unmounted; requests still hang, most likely at the image's file"
        );
        self.log.say(Severity::Warning, line);
        self.log.finish();
        Outcome::Good
    }

    /// The session has ended: because the mount has, or because nobody can serve it any more.
    fn end(&mut self) -> anyhow::Result<Outcome> {
        let detached = self.attachment.detach();
        let outcome = match detached {
            Ok(Detached::Already) => Outcome::Good,
            Ok(Detached::Clean | Detached::Lazily) => {
                let shown = self.shown();
                self.log.say(Severity::Error, format_args!("{shown}: /dev/fuse failed; unmounted"));
                Outcome::Bad
            }
            Err(error) => {
                self.log.say(Severity::Error, error);
                Outcome::Bad
            }
        };
        self.log.finish();
        Ok(outcome)
    }

    fn shown(&self) -> String {
        escaped(self.attachment.directory().as_os_str().as_encoded_bytes())
    }

    /// Whether things that are as they should be are worth a line. Callers of erofsfuse expect silence.
    fn is_talkative(&self) -> bool {
        !self.request.read.quiet && self.typed.called.by != Caller::Erofsfuse
    }
}
