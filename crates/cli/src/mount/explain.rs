//! The output of `--explain`: what was requested from the system for a mount, and what was granted.
//! Called by the daemon once the mount serves.

use std::fmt::{self, Display, Write as _};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ferrofs_fuse::attach::Attachment;
use ferrofs_image::Image;
use ferrofs_mount::ServedMount;
use ferrofs_mount::sandbox::SandboxStatus;
use ferrofs_workers::percpu::PerCpuStats;
use serde::Serialize;

use super::log::Log;
use super::request::MountRequest;
use crate::amount::human_bytes;
use crate::output::{JsonBytes, escape, write_json};
use crate::remote::{self, OpenedLocation, RemoteMount};
use crate::resources::Resources;
use crate::stats::remote::fetcher_line;

/// What was requested, and what was granted.
#[derive(Debug, Serialize)]
pub(super) struct Explanation {
    image: JsonBytes,
    directory: JsonBytes,
    mounted_by: String,
    unmounts_if_killed: bool,
    fuse: String,
    max_read_bytes: u32,
    readahead_asked_kib: u64,
    readahead_granted_kib: Option<u64>,
    readahead_file: Option<String>,
    readahead_way_out: Option<String>,
    max_background: u16,
    capabilities_granted: Vec<&'static str>,
    capabilities_not_offered: Vec<&'static str>,
    listeners: usize,
    channels: usize,
    workers: Vec<ExplainedWorker>,
    memory_bytes: u64,
    /// Bytes that stay resident for decoding while nothing is read.
    reserved_bytes: u64,
    /// The part of it that is resident and idle now.
    reserved_idle_bytes: u64,
    time_limit_seconds: Option<u64>,
    /// 0 without busy polling.
    busy_poll_microseconds: u64,
    log: String,
    /// `null` for a local image.
    remote: Option<ExplainedRemote>,
    sandbox: Option<SandboxReport>,
}

/// A thread that decodes ahead.
#[derive(Debug, Serialize)]
struct ExplainedWorker {
    cpu: Option<usize>,
    priority: String,
}

/// A remote image.
#[derive(Debug, Serialize)]
pub(super) struct ExplainedRemote {
    opened: Vec<OpenedLocation>,
    /// The state of the process that fetches, and what opening has cost.
    fetcher: String,
}

impl ExplainedRemote {
    pub(super) fn new(remote: &RemoteMount, image: &Image) -> Self {
        let stats = image.remote_stats().unwrap_or_default();
        Self { opened: remote.opened(), fetcher: fetcher_line(&stats) }
    }
}

/// What the process may still do.
#[derive(Debug, Serialize)]
struct SandboxReport {
    no_new_privileges: bool,
    system_calls: String,
    paths: String,
    memory: &'static str,
    capabilities: Vec<&'static str>,
    descriptors: Vec<DescriptorReport>,
}

#[derive(Debug, Serialize)]
struct DescriptorReport {
    number: u32,
    access: String,
    target: JsonBytes,
}

/// The inputs of an explanation.
#[derive(Debug)]
pub(super) struct ExplanationInput<'a> {
    pub(super) request: &'a MountRequest,
    pub(super) resources: &'a Resources,
    pub(super) attachment: &'a Attachment,
    pub(super) served: &'a ServedMount,
    pub(super) readahead: &'a Readahead,
    pub(super) log: &'a Log,
    /// `None` for a local image.
    pub(super) remote: Option<ExplainedRemote>,
    /// `None` without a sandbox.
    pub(super) entered: Option<&'a SandboxStatus>,
    /// Descriptors that are closed before the first read from the mount.
    pub(super) temporary_fds: &'a [u32],
}

impl Explanation {
    pub(super) fn new(parts: ExplanationInput<'_>) -> Self {
        let ExplanationInput { request, resources, attachment, served, readahead, .. } = parts;
        let init_parameters = served.init_parameters();
        // Workers start with the first read that needs them; only then their priority is known.
        resources.workers.pool().start();
        let granted: Vec<_> = init_parameters.granted.names().collect();
        let missing =
            init_parameters.requested.names().filter(|name| !granted.contains(name)).collect();
        let (major, minor) = init_parameters.protocol;
        Self {
            image: redacted_image(&request.image),
            directory: JsonBytes::from(attachment.directory().as_os_str().as_encoded_bytes()),
            mounted_by: attachment.method().to_string(),
            unmounts_if_killed: attachment.unmounts_if_killed(),
            fuse: format!("{major}.{minor}"),
            max_read_bytes: init_parameters.max_read,
            readahead_asked_kib: readahead.asked_kib,
            readahead_granted_kib: readahead.granted_kib,
            readahead_file: readahead.place.as_ref().map(|path| path.display().to_string()),
            readahead_way_out: readahead.way_out(),
            max_background: init_parameters.max_background,
            capabilities_granted: granted,
            capabilities_not_offered: missing,
            listeners: served.session().listeners(),
            channels: served.session().channels(),
            workers: workers(&resources.workers.stats()),
            memory_bytes: resources.memory.budget().limit_bytes(),
            reserved_bytes: resources.memory.reserved_bytes(),
            reserved_idle_bytes: resources.memory.idle_bytes(),
            time_limit_seconds: request.settings.time_limit.map(|limit| limit.as_secs()),
            busy_poll_microseconds: u64::try_from(request.settings.busy_poll.as_micros())
                .unwrap_or(u64::MAX),
            log: parts.log.to_string(),
            remote: parts.remote,
            sandbox: parts.entered.map(|entered| SandboxReport::new(entered, parts.temporary_fds)),
        }
    }

    /// Writes it as text or as JSON.
    pub(super) fn write(&self, mut to: impl Write, is_json: bool) -> io::Result<()> {
        if is_json {
            write_json(&mut to, self)?;
            return to.write_all(b"\n");
        }
        to.write_all(self.to_string().as_bytes())
    }
}

/// The path of the image, or its location without a query, which may contain a signature.
fn redacted_image(image: &Path) -> JsonBytes {
    if remote::is_remote(image) {
        return JsonBytes::from(remote::terminal_form(image).as_bytes());
    }
    JsonBytes::from(image.as_os_str().as_encoded_bytes())
}

fn workers(snapshot: &PerCpuStats) -> Vec<ExplainedWorker> {
    let threads = snapshot.workers.iter().filter(|worker| worker.thread_id.is_some());
    threads
        .map(|worker| ExplainedWorker {
            cpu: worker.cpu,
            priority: worker
                .priority_level
                .map_or_else(|| "unknown".to_owned(), |priority_level| priority_level.to_string()),
        })
        .collect()
}

impl SandboxReport {
    fn new(entered: &SandboxStatus, temporary_fds: &[u32]) -> Self {
        let keeps = |number: u32| !temporary_fds.contains(&number);
        let descriptors = entered.descriptors.iter().filter(|one| keeps(one.number));
        Self {
            no_new_privileges: entered.no_new_privileges,
            system_calls: entered.filter.to_string(),
            paths: entered.paths.to_string(),
            memory: entered.memory(),
            capabilities: entered.capabilities.iter_names().map(|(name, _)| name).collect(),
            descriptors: descriptors
                .map(|one| DescriptorReport {
                    number: one.number,
                    access: one.access.to_string(),
                    target: JsonBytes::from(one.target.as_os_str().as_encoded_bytes()),
                })
                .collect(),
        }
    }
}

impl Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, "image", escape(&self.image.0))?;
        let killed = if self.unmounts_if_killed {
            "removed when the process is killed"
        } else {
            "stays if the process is killed"
        };
        let (directory, by) = (escape(&self.directory.0), &self.mounted_by);
        line(f, "directory", format_args!("{directory}, mounted by {by}; {killed}"))?;
        line(f, "FUSE", &self.fuse)?;
        line(f, "reads", format_args!("{} at most", human_bytes(self.max_read_bytes.into())))?;
        self.readahead(f)?;
        line(f, "background", format_args!("{} requests", self.max_background))?;
        line(f, "granted", listed(&self.capabilities_granted))?;
        line(f, "not offered", listed(&self.capabilities_not_offered))?;
        let (listeners, channels) = (self.listeners, self.channels);
        line(f, "listeners", format_args!("{listeners}, with {channels} channels"))?;
        line(f, "workers", self.workers())?;
        line(f, "memory", human_bytes(self.memory_bytes))?;
        if self.reserved_bytes > 0 {
            let ready = human_bytes(self.reserved_idle_bytes);
            let reserved = human_bytes(self.reserved_bytes);
            line(f, "reserve", format_args!("{reserved}, {ready} of it resident"))?;
        }
        match self.time_limit_seconds {
            Some(seconds) => line(f, "time limit", format_args!("{seconds} s a request"))?,
            None => line(f, "time limit", "none")?,
        }
        match self.busy_poll_microseconds {
            0 => line(f, "busy poll", "none")?,
            micros => line(f, "busy poll", format_args!("{micros} us at most"))?,
        }
        line(f, "log", &self.log)?;
        for one in self.remote.iter().flat_map(|remote| &remote.opened) {
            let bytes = human_bytes(one.bytes);
            line(f, "remote", format_args!("{}, {bytes}", escape(one.location.as_bytes())))?;
            line(f, "verified", one.verification)?;
            if let Some(host) = &one.served_by {
                line(f, "named by", escape(host.as_bytes()))?;
            }
        }
        if let Some(remote) = &self.remote {
            line(f, "fetcher", &remote.fetcher)?;
        }
        self.sandbox(f)
    }
}

impl Explanation {
    fn readahead(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requested = self.readahead_asked_kib;
        match (self.readahead_granted_kib, &self.readahead_file) {
            (Some(granted), Some(file)) => {
                line(
                    f,
                    "readahead",
                    format_args!("{requested} KiB requested, {granted} KiB granted ({file})"),
                )?;
            }
            _ => line(
                f,
                "readahead",
                format_args!("{requested} KiB requested; the value in effect is unknown"),
            )?,
        }
        match &self.readahead_way_out {
            Some(command) => line(f, "", format_args!("to raise it: {command}")),
            None => Ok(()),
        }
    }

    fn workers(&self) -> String {
        let mut text = String::new();
        for worker in &self.workers {
            let separator = if text.is_empty() { "" } else { ", " };
            let cpu = worker.cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string());
            // Writing to a String cannot fail.
            write!(text, "{separator}CPU {cpu}: {}", worker.priority).unwrap_or_default();
        }
        if text.is_empty() { "none; listeners decode".to_owned() } else { text }
    }

    fn sandbox(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(sandbox) = &self.sandbox else {
            return line(f, "sandbox", "none (--no-sandbox)");
        };
        let gain = if sandbox.no_new_privileges { "none" } else { "possible" };
        line(f, "new privileges", gain)?;
        line(f, "system calls", &sandbox.system_calls)?;
        line(f, "paths", &sandbox.paths)?;
        line(f, "memory", sandbox.memory)?;
        line(f, "capabilities", listed(&sandbox.capabilities))?;
        line(f, "descriptors", format_args!("{} open", sandbox.descriptors.len()))?;
        for DescriptorReport { number, access, target } in &sandbox.descriptors {
            writeln!(f, "{number:>16}  {access:<11}  {}", escape(&target.0))?;
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, value: impl Display) -> fmt::Result {
    let name = if name.is_empty() { String::new() } else { format!("{name}:") };
    writeln!(f, "{name:<16}  {value}")
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}

/// The readahead of the mount, as requested and as granted.
#[derive(Clone, Debug)]
pub(super) struct Readahead {
    pub(super) asked_kib: u64,
    /// `None` if it cannot be read.
    pub(super) granted_kib: Option<u64>,
    /// The file with the number.
    pub(super) place: Option<PathBuf>,
}

impl Readahead {
    /// Sets the readahead of the mount, if that is permitted. The file is that of the mount's own
    /// device number, so no path of the mount is resolved, and no request is made to it.
    pub(super) fn raise(attachment: &Attachment, asked_bytes: u32) -> Self {
        let asked_kib = u64::from(asked_bytes) / 1024;
        let number = attachment.device_number();
        let place = PathBuf::from(format!("/sys/class/bdi/{number}/read_ahead_kb"));
        let granted = || std::fs::read_to_string(&place).ok()?.trim().parse().ok();
        let mut granted_kib: Option<u64> = granted();
        if granted_kib.is_some_and(|kib| kib < asked_kib) {
            // Only root may write it; `granted_kib` shows the result.
            std::fs::write(&place, asked_kib.to_string()).ok();
            granted_kib = granted();
        }
        Self { asked_kib, granted_kib, place: Some(place) }
    }

    /// The command that raises it to what was requested, if it is lower.
    pub(super) fn way_out(&self) -> Option<String> {
        let place = self.place.as_deref()?;
        let lacks = self.granted_kib.is_some_and(|kib| kib < self.asked_kib);
        lacks.then(|| format!("echo {} | sudo tee {}", self.asked_kib, place.display()))
    }
}

impl Display for Readahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB requested, ", self.asked_kib)?;
        match self.granted_kib {
            Some(kib) => write!(f, "{kib} KiB granted"),
            None => write!(f, "the granted size is unknown"),
        }
    }
}
