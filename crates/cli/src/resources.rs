//! How much of the machine a verb may use: CPUs, threads, priority, memory. What is set here holds for
//! the whole process, so it is set before the image is opened.

use anyhow::{Context, anyhow, bail};
use ferrofs_image::{DecodeWorkers, Image, MemoryPool};
use ferrofs_workers::cpus::{AvailableCpus, CpuSet};
use ferrofs_workers::percpu::PerCpuSettings;
use ferrofs_workers::priority::PriorityRequest;
use ferrofs_workers::workqueue::WorkQueueStats as Queue;

use crate::amount::human_bytes;
use crate::arguments::{MachineArguments, ReserveArguments, WorkArguments};
use crate::read_stats::StatsReport;

/// What the process takes beside its budget, in bytes: code, stacks, what the walk remembers, and what
/// the system counts in larger steps than we do.
const PROCESS_BYTES: u64 = 6 << 20;
/// What each thread takes beside the budget, in bytes: stack, allocator, and what it writes at a time.
const THREAD_BYTES: u64 = 1 << 20;
/// Clusters that several files share are kept in so many bytes when every file is read once, a thread.
const SHARED_BYTES: u64 = 4 << 20;

/// What a verb may use.
#[derive(Clone, Debug)]
pub(crate) struct Resources {
    /// Threads, the first one among them.
    pub(crate) threads: usize,
    pub(crate) memory: MemoryPool,
    pub(crate) workers: DecodeWorkers,
    /// Whether `--stats` asked for the numbers.
    pub(crate) stats: bool,
}

impl Resources {
    /// Takes what the arguments allow.
    pub(crate) fn of(work: &WorkArguments) -> anyhow::Result<Self> {
        Ok(Self { stats: work.stats, ..Self::of_machine(&work.machine)? })
    }

    /// Takes what the arguments allow, for work that never ends with a summary.
    pub(crate) fn of_machine(work: &MachineArguments) -> anyhow::Result<Self> {
        Self::with_reserve(work, &ReserveArguments::default())
    }

    /// The same with memory set aside, and faulted in if that is wanted.
    pub(crate) fn with_reserve(
        work: &MachineArguments,
        reserve: &ReserveArguments,
    ) -> anyhow::Result<Self> {
        if let Some(cpus) = &work.cpus {
            let bound = CpuSet::parse(cpus).and_then(|cpus| cpus.bind_current_thread());
            bound.with_context(|| format!("--cpus={cpus}"))?;
        }
        if let Some(nice) = work.nice {
            rustix::process::setpriority_process(None, nice)
                .map_err(|errno| anyhow!("--nice={nice}: {errno}"))?;
        }
        let granted = AvailableCpus::read().parallelism();
        // More threads than CPUs would only take memory.
        let wanted = work.jobs.unwrap_or(granted).min(granted);
        let (threads, limit) = match work.memory {
            None => (wanted, MemoryPool::default_limit_bytes()),
            Some(bytes) => split_memory(bytes, wanted)?,
        };
        let memory = memory(limit, listeners(threads), reserve)?;
        if reserve.prefault {
            memory.prefault(threads).context("--prefault")?;
        }
        // Who asks to be nice does not want the workers that decode ahead to be raised.
        let is_nice = work.nice.is_some_and(|nice| nice > 0);
        let priority = if is_nice { PriorityRequest::Normal } else { PriorityRequest::Raised };
        let workers = match threads {
            1 => DecodeWorkers::none(),
            _ => DecodeWorkers::with_max_threads(
                threads,
                PerCpuSettings::new("erofs_worker").priority(priority),
            ),
        };
        Ok(Self { threads, memory, workers, stats: false })
    }

    /// Threads of a mount that listen to the kernel.
    pub(crate) fn listeners(&self) -> usize {
        listeners(self.threads)
    }

    /// Bytes for clusters that several files share, where every file is read once.
    pub(crate) fn shared_bytes(&self) -> u64 {
        let threads = u64::try_from(self.threads).unwrap_or(1);
        let most = self.memory.budget().limit_bytes() / 4;
        SHARED_BYTES.saturating_mul(threads.saturating_add(1)).min(most)
    }
}

impl Resources {
    /// The numbers of a run, if they were asked for.
    pub(crate) fn stats(&self, image: &Image, queue: Option<&Queue>) -> Option<StatsReport> {
        self.stats.then(|| StatsReport::new(self, &image.stats(), queue))
    }
}

/// Two at least: with one a request that waits for the image would hold up all others.
fn listeners(threads: usize) -> usize {
    threads.max(2)
}

/// Threads and bytes of the budget for a process of `bytes` bytes in all: rather fewer threads than more memory.
fn split_memory(bytes: u64, wanted: usize) -> anyhow::Result<(usize, u64)> {
    let least = PROCESS_BYTES + THREAD_BYTES + MemoryPool::MIN_BYTES;
    let spare = bytes.checked_sub(least).ok_or_else(|| {
        anyhow!("--memory: {} is the least that every image can be read in", human_bytes(least))
    })?;
    let affordable = usize::try_from(spare / THREAD_BYTES).unwrap_or(usize::MAX).saturating_add(1);
    let threads = wanted.min(affordable);
    let others = PROCESS_BYTES + THREAD_BYTES * threads as u64;
    Ok((threads, bytes - others))
}

/// Memory with the reserve that is wanted; to fault one in that nobody measured out takes an eighth.
fn memory(limit: u64, readers: usize, reserve: &ReserveArguments) -> anyhow::Result<MemoryPool> {
    let pages = match reserve.reserved_pages {
        None if !reserve.prefault => return Ok(MemoryPool::new(limit)?),
        None => u32::try_from(limit / 8 / 4096).unwrap_or(u32::MAX),
        Some(pages) => pages,
    };
    let most = limit / 2 / 4096;
    if u64::from(pages) > most {
        bail!(
            "--reserved-pages={pages}: no more than half of the memory can be set aside, which is {most} pages; \
             give more with --memory"
        );
    }
    Ok(MemoryPool::with_reserve(limit, pages, readers)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scarce_memory_takes_threads_and_never_the_room_for_an_image() {
        split_memory(26 << 20, 1).unwrap_err();
        assert_eq!(split_memory(27 << 20, 16).unwrap(), (1, 20 << 20));
        assert_eq!(split_memory(32 << 20, 16).unwrap(), (6, 20 << 20));
        assert_eq!(split_memory(32 << 20, 2).unwrap(), (2, 24 << 20));
        assert_eq!(split_memory(1 << 30, 16).unwrap().0, 16);
    }

    #[test]
    fn a_reserve_is_what_was_asked_for_and_no_more_than_half() {
        let wanted = |reserved_pages, prefault| {
            let memory = memory(64 << 20, 2, &ReserveArguments { reserved_pages, prefault })?;
            Ok::<_, anyhow::Error>((memory.reserved_bytes(), memory.prefault(2)?))
        };
        assert_eq!(wanted(None, false).unwrap(), (0, 0));
        assert_eq!(wanted(None, true).unwrap(), (8 << 20, 8 << 20));
        assert_eq!(wanted(Some(0), true).unwrap(), (0, 0));
        assert_eq!(wanted(Some(256), false).unwrap(), (1 << 20, 1 << 20));
        let error = wanted(Some(8193), false).unwrap_err();
        assert!(error.to_string().contains("8192 pages"), "{error}");
    }
}
