//! The mounts of this user, and what the processes that serve them tell. A mount that does not answer delays nobody for
//! long. Used by `list` and `stats --all`.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use ferrofs_mount::stats::{MountEntry, MountStats, StatsError, query};

/// How long all mounts together have for their answers: a mount whose process is stopped never answers.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// Mounts that are asked at a time: threads are cheap, but not free.
const ASKED_AT_A_TIME: usize = 64;

/// A mount of this user.
#[derive(Debug)]
pub(crate) struct UserMount {
    pub(crate) entry: MountEntry,
    /// `None` if it did not answer in time.
    pub(crate) answer: Option<Result<MountStats, StatsError>>,
}

/// The mounts of this user, with their statistics.
///
/// # Errors
/// No thread can be started.
pub(crate) fn mounts_of_user() -> anyhow::Result<Vec<UserMount>> {
    let user = rustix::process::geteuid().as_raw();
    let is_ours = |entry: &MountEntry| {
        let name = entry.file_system_type.as_str();
        matches!(name, "fuse.ferrofs" | "fuse.erofsfuse") && entry.user_id == Some(user)
    };
    let entries: Vec<MountEntry> = MountEntry::all().into_iter().filter(is_ours).collect();
    let deadline = Instant::now() + TIME_LIMIT;
    let mut mounts = Vec::new();
    for some in entries.chunks(ASKED_AT_A_TIME) {
        let asked = some.iter().map(start_query).collect::<anyhow::Result<Vec<_>>>()?;
        for (entry, answers) in some.iter().zip(asked) {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = answers.recv_timeout(left).ok();
            // A directory below another mount leads there, and a program that is no ferrofs may have our name.
            let other = |stats: &MountStats| stats.mount.as_ref() != Some(entry);
            let is_other = matches!(&answer, Some(Ok(stats)) if other(stats));
            let is_foreign = matches!(&answer, Some(Err(StatsError::NotFerrofs(_))));
            if !is_foreign {
                let answer = answer.filter(|_| !is_other);
                mounts.push(UserMount { entry: entry.clone(), answer });
            }
        }
    }
    Ok(mounts)
}

/// Asks in a thread, which waits with the mount and ends with this process.
fn start_query(entry: &MountEntry) -> anyhow::Result<Receiver<Result<MountStats, StatsError>>> {
    let (sender, receiver) = channel();
    let directory = entry.mount_point.clone();
    let asking = move || {
        // Nobody receives it after the time limit.
        sender.send(query(&directory)).ok();
    };
    std::thread::Builder::new().spawn(asking).context("cannot start a thread")?;
    Ok(receiver)
}

impl UserMount {
    /// Its statistics, if it answered with them.
    pub(crate) fn stats(&self) -> Option<&MountStats> {
        self.answer.as_ref()?.as_ref().ok()
    }

    /// What can be said about the process that serves it, in a word or two.
    pub(crate) fn state(&self) -> &'static str {
        match &self.answer {
            None => "no answer",
            Some(Err(StatsError::Disconnected)) => "dead",
            Some(Err(_)) => "unknown",
            Some(Ok(stats)) if stats.summary.process.holder > 0 => "kept",
            Some(Ok(_)) => "served",
        }
    }
}
