//! The mounts of this user, and what the processes that serve them report. A mount that does not answer delays nobody
//! for long, and silences nobody. Used by `list` and `stats --all`.
//!
//! The kernel ends no thread that waits for the answer to a request which a FUSE server has read, so the process of that
//! thread cannot end before the server goes on. Therefore the mounts are queried in a process of its own, which is left
//! behind if need be.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ferrofs_fuse::attach::{ChildProcess, fork_process};
use ferrofs_mount::stats::{MountEntry, MountStats, StatsError, query};
use rustix::process::Signal;

use crate::exit_status::{self, CommandStatus};
use crate::mount::close_streams;

/// How long each mount has for its answer: one whose process is stopped never answers.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// Mounts that are queried at a time: threads are cheap, but not free.
const MAX_CONCURRENT_QUERIES: usize = 64;

/// A mount of this user.
#[derive(Debug)]
pub(crate) struct UserMount {
    pub(crate) entry: MountEntry,
    /// `None` if it did not answer in time, or is covered by another mount.
    pub(crate) answer: Option<Result<MountStats, StatsError>>,
}

/// Lets `show` print the mounts of this user, with their statistics. Both happens in another process, if one can be
/// started, and in that process this function returns, too.
///
/// # Errors
/// Those of `show`; no thread can be started; the other process was killed.
pub(crate) fn show_mounts(
    show: impl FnOnce(&[UserMount]) -> anyhow::Result<CommandStatus>,
) -> anyhow::Result<CommandStatus> {
    let show = || show(&mounts_of_user()?);
    let (ours, theirs) = UnixStream::pair().context("cannot create a socket pair")?;
    match fork_process() {
        Err(_) => show(),
        Ok(Some(child)) => {
            drop(theirs);
            wait_for(ours, child)
        }
        Ok(None) => {
            drop(ours);
            Ok(be_left_behind(theirs, show))
        }
    }
}

/// The status of a process, as soon as it has sent it.
fn wait_for(mut socket: UnixStream, child: ChildProcess) -> anyhow::Result<CommandStatus> {
    let mut code = [0];
    match socket.read_exact(&mut code) {
        Ok(()) => Ok(CommandStatus::Number(code[0])),
        Err(_) => {
            let end =
                child.wait().context("cannot wait for the process that queries the mounts")?;
            bail!("the process that queries the mounts ended: {end}")
        }
    }
}

/// Shows the mounts, and sends the status when nothing is held any more that others may wait for.
fn be_left_behind(
    mut socket: UnixStream,
    show: impl FnOnce() -> anyhow::Result<CommandStatus>,
) -> CommandStatus {
    // If the starter is ended, nobody wants to see the mounts.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).ok();
    let status = exit_status::conclude(show());
    // Where this fails, the streams are open until the end of this process.
    close_streams().ok();
    std::env::set_current_dir("/").ok();
    // The starter may have been killed.
    socket.write_all(&[status.code()]).ok();
    status
}

fn mounts_of_user() -> anyhow::Result<Vec<UserMount>> {
    let user = rustix::process::geteuid().as_raw();
    let is_ours = |entry: &MountEntry| {
        let name = entry.file_system_type.as_str();
        matches!(name, "fuse.ferrofs" | "fuse.erofsfuse") && entry.user_id == Some(user)
    };
    let entries: Vec<MountEntry> = MountEntry::all().into_iter().filter(is_ours).collect();
    let directories = entries.iter().map(|entry| entry.mount_point.clone()).collect();
    let answers = query_all(directories, |directory| query(directory))?;
    let mut mounts = Vec::new();
    for (entry, answer) in entries.into_iter().zip(answers) {
        // A directory below another mount leads there, and a program that is no ferrofs may have our name.
        let kind = Some(&entry.file_system_type);
        let (is_covered, is_foreign) = match &answer {
            Some(Ok(stats)) => (stats.mount.as_ref() != Some(&entry), false),
            Some(Err(StatsError::NotFerrofs(other))) => {
                (other.as_ref() != kind, other.as_ref() == kind)
            }
            _ => (false, false),
        };
        if !is_foreign {
            let answer = answer.filter(|_| !is_covered);
            mounts.push(UserMount { entry, answer });
        }
    }
    Ok(mounts)
}

/// The answers of `query` about all of them, in their order; `None` for those that take longer than [`TIME_LIMIT`].
///
/// Each has the time from its query on, so those that never answer take none from the others. They delay them by
/// one limit for each [`MAX_CONCURRENT_QUERIES`] of them.
fn query_all<Q: Send + Sync + 'static, A: Send + 'static>(
    queries: Vec<Q>,
    query: fn(&Q) -> A,
) -> anyhow::Result<Vec<Option<A>>> {
    let queries = Arc::new(queries);
    let (sender, receiver) = channel();
    let mut answers: Vec<Option<A>> = queries.iter().map(|_| None).collect();
    let mut not_queried = 0..queries.len();
    // In the order of their deadlines.
    let mut waiting: VecDeque<(usize, Instant)> = VecDeque::new();
    loop {
        while waiting.len() < MAX_CONCURRENT_QUERIES
            && let Some(index) = not_queried.next()
        {
            let (queries, sender) = (Arc::clone(&queries), sender.clone());
            start_query(move || queries.get(index).map(query), index, sender)?;
            waiting.push_back((index, Instant::now() + TIME_LIMIT));
        }
        let Some((_, deadline)) = waiting.front() else { return Ok(answers) };
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((index, answer)) => {
                answers[index] = answer;
                waiting.retain(|(other, _)| *other != index);
            }
            // It may still answer while others are waited for.
            Err(_) => {
                waiting.pop_front();
            }
        }
    }
}

/// Asks in a thread, which waits with the mount and ends with this process.
fn start_query<A: Send + 'static>(
    query: impl FnOnce() -> A + Send + 'static,
    index: usize,
    answers: Sender<(usize, A)>,
) -> anyhow::Result<()> {
    let asking = move || {
        // Nobody receives it after the time limit.
        answers.send((index, query())).ok();
    };
    std::thread::Builder::new().spawn(asking).context("cannot start a thread")?;
    Ok(())
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

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard};

    use super::*;

    static HUNG: Mutex<()> = Mutex::new(());

    fn query(number: &usize) -> usize {
        if number.is_multiple_of(100) {
            drop(HUNG.lock());
        }
        *number
    }

    #[test]
    fn whatever_hangs_silences_nothing_else() {
        let _hangs: MutexGuard<'_, ()> = HUNG.lock().unwrap();
        let started = Instant::now();
        // The first of each hundred hangs.
        let answers = query_all((0..500).collect(), query).unwrap();
        for (number, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer, (number % 100 > 0).then_some(number));
        }
        // They hang at the same time. On a busy machine, threads start late.
        assert!(started.elapsed() < 3 * TIME_LIMIT);
    }

    #[test]
    fn more_than_can_be_asked_at_a_time_may_hang() {
        let _hangs: MutexGuard<'_, ()> = HUNG.lock().unwrap();
        let queries: Vec<usize> = (0..MAX_CONCURRENT_QUERIES).map(|_| 0).chain(1..10).collect();
        let answers = query_all(queries, query).unwrap();
        let answered: Vec<usize> = answers.into_iter().flatten().collect();
        assert!(answered.into_iter().eq(1..10));
    }
}
