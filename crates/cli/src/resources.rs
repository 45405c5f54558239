//! How much of the machine a verb may use: CPUs, threads, priority, memory. These limits hold for
//! the whole process, so they are set before the image is opened.

use anyhow::{Context, anyhow};
use ferrofs_image::{DecodeWorkers, MemoryPool};
use ferrofs_workers::cpus::{AvailableCpus, CpuSet};
use ferrofs_workers::memory::set_mmap_threshold;
use ferrofs_workers::percpu::PerCpuSettings;
use ferrofs_workers::priority::PriorityRequest;

use crate::amount::human_bytes;
use crate::arguments::{MachineArguments, ReserveArguments, WorkArguments};
use crate::exit_status::usage_error;

/// Memory of the process besides its budget, in bytes: code, stacks, the state of a walk, and what
/// the system rounds up.
const PROCESS_BYTES: u64 = 6 << 20;
/// Memory of a thread besides the budget, in bytes: stack, allocator, and its write buffer.
const THREAD_BYTES: u64 = 1 << 20;
/// What a mount has beside that, in bytes: more code, and the threads that watch, release and prefetch.
const MOUNT_BYTES: u64 = 512 << 10;
/// Memory of a thread that reads requests, besides the budget, in bytes. Stack and allocator have about 48 KiB of it
/// resident.
const LISTENER_BYTES: u64 = 64 << 10;
/// Cache for clusters that several files share, for each thread, in bytes, when every file is read
/// once.
const SHARED_BYTES: u64 = 4 << 20;

/// Threads of a mount that read requests at most: enough for as many reads in flight at a server.
const LISTENERS_MAX: usize = 32;
/// The memory for which one of them is started.
const LISTENER_SHARE_BYTES: u64 = 4 << 20;

/// What a verb may use.
#[derive(Clone, Debug)]
pub(crate) struct Resources {
    /// Threads, including the first one.
    pub(crate) threads: usize,
    pub(crate) memory: MemoryPool,
    pub(crate) workers: DecodeWorkers,
    /// Whether `--stats` is given.
    pub(crate) stats: bool,
}

impl Resources {
    /// Resources within the limits of the arguments.
    ///
    /// # Errors
    /// A limit is out of range, or the system refuses it.
    pub(crate) fn of(work: &WorkArguments) -> anyhow::Result<Self> {
        Ok(Self { stats: work.stats, ..Self::of_machine(&work.machine)? })
    }

    /// The same for verbs without `--stats`.
    ///
    /// # Errors
    /// As [`Resources::of`].
    pub(crate) fn of_machine(work: &MachineArguments) -> anyhow::Result<Self> {
        Self::with_overhead(work, &ReserveArguments::default(), ProcessOverhead::OfVerb)
    }

    /// The same for a mount, with a reserve of memory, which is faulted in with `--prefault`.
    ///
    /// # Errors
    /// As [`Resources::of`].
    pub(crate) fn of_mount(
        work: &MachineArguments,
        reserve: &ReserveArguments,
    ) -> anyhow::Result<Self> {
        Self::with_overhead(work, reserve, ProcessOverhead::OfMount)
    }

    fn with_overhead(
        work: &MachineArguments,
        reserve: &ReserveArguments,
        overhead: ProcessOverhead,
    ) -> anyhow::Result<Self> {
        // Before there are threads. Else a decoder that is freed stays resident in the heap of the thread that made it,
        // while the budget counts it as returned.
        set_mmap_threshold();
        if let Some(cpus) = &work.cpus {
            let bound = CpuSet::parse(cpus).and_then(|cpus| cpus.bind_current_thread());
            bound.map_err(|error| usage_error(format_args!("--cpus={cpus}: {error}")))?;
        }
        if let Some(nice) = work.nice {
            rustix::process::setpriority_process(None, nice)
                .map_err(|errno| anyhow!("--nice={nice}: {errno}"))?;
        }
        let available = AvailableCpus::read();
        let parallelism = available.parallelism();
        // More threads than CPUs would only take memory.
        let wanted = work.jobs.unwrap_or(parallelism).min(parallelism);
        let bytes = work.memory.unwrap_or_else(|| default_bytes(overhead));
        let (threads, limit) = split_memory(bytes, wanted, overhead)?;
        let memory = memory(limit, listeners(threads), reserve)?;
        if reserve.prefault {
            memory.prefault(threads).context("--prefault")?;
        }
        let priority = thread_priority(work);
        let workers = match threads {
            1 => DecodeWorkers::none(),
            _ => DecodeWorkers::with_max_threads(
                threads,
                PerCpuSettings::new("erofs_worker").priority(priority).available(available),
            ),
        };
        Ok(Self { threads, memory, workers, stats: false })
    }

    /// Threads of a mount that read requests of the kernel.
    pub(crate) fn listeners(&self) -> usize {
        listeners(self.threads)
    }

    /// Threads of a mount that read requests at most, if the storage of the image is slow. Each reads up
    /// to a mebibyte at a time; if there are more than their memory has room for, they wait.
    pub(crate) fn listeners_max(&self) -> usize {
        affordable_listeners(self.memory.budget().limit_bytes()).max(self.listeners())
    }

    /// Memory of all threads besides the budget, in bytes.
    pub(crate) fn threads_bytes(&self) -> u64 {
        THREAD_BYTES.saturating_mul(u64::try_from(self.threads).unwrap_or(u64::MAX))
    }

    /// Memory of a build beside its first thread, in bytes. Bytes of the image follow from it, so it does not depend on
    /// the number of threads: the build pays the further ones from what its tables leave.
    pub(crate) fn build_bytes(&self) -> u64 {
        let with_threads = self.memory.budget().limit_bytes().saturating_add(self.threads_bytes());
        with_threads.saturating_sub(THREAD_BYTES)
    }

    /// Cache for clusters that several files share, in bytes, when every file is read once.
    pub(crate) fn shared_bytes(&self) -> u64 {
        let threads = u64::try_from(self.threads).unwrap_or(1);
        let most = self.memory.budget().limit_bytes() / 4;
        SHARED_BYTES.saturating_mul(threads.saturating_add(1)).min(most)
    }
}

/// The priority of the workers that decode ahead, and of the listeners and prefetch threads of a mount. A process with a
/// positive nice value, from `--nice` or from whoever started it, is to give way to others, so none of these is raised.
pub(crate) fn thread_priority(work: &MachineArguments) -> PriorityRequest {
    let of_process = || rustix::process::getpriority_process(None).ok();
    match work.nice.or_else(of_process) {
        Some(nice) if nice > 0 => PriorityRequest::Normal,
        _ => PriorityRequest::Raised,
    }
}

/// What a process takes besides its budget and [`THREAD_BYTES`] for each of its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessOverhead {
    /// A verb that ends when it has done its work.
    OfVerb,
    /// A mount, which has listeners, too.
    OfMount,
}

impl ProcessOverhead {
    /// Its bytes in a process that may use `bytes`.
    fn bytes(self, bytes: u64) -> u64 {
        match self {
            Self::OfVerb => PROCESS_BYTES,
            Self::OfMount => {
                let listeners = u64::try_from(affordable_listeners(bytes)).unwrap_or(u64::MAX);
                PROCESS_BYTES + MOUNT_BYTES + LISTENER_BYTES.saturating_mul(listeners)
            }
        }
    }

    /// The least memory of a process that reads images, in bytes: a whole number of MiB.
    const fn min_bytes(self) -> u64 {
        let of_mount = match self {
            Self::OfVerb => 0,
            Self::OfMount => 1 << 20,
        };
        PROCESS_BYTES + THREAD_BYTES + MemoryPool::MIN_BYTES + of_mount
    }
}

/// Threads that read requests of the kernel at most with so much memory.
fn affordable_listeners(bytes: u64) -> usize {
    let affordable = usize::try_from(bytes / LISTENER_SHARE_BYTES).unwrap_or(usize::MAX);
    affordable.min(LISTENERS_MAX)
}

/// The memory of the whole process without `--memory`; where an eighth of the system's is too
/// little, what an image needs.
fn default_bytes(overhead: ProcessOverhead) -> u64 {
    MemoryPool::default_limit_bytes().max(overhead.min_bytes())
}

/// At least two: with one, a request that waits for the image would block all others.
fn listeners(threads: usize) -> usize {
    threads.max(2)
}

/// Splits `bytes`, the memory of the whole process, into a number of threads and the budget; if it
/// is scarce, there are fewer threads.
fn split_memory(
    bytes: u64,
    wanted: usize,
    overhead: ProcessOverhead,
) -> anyhow::Result<(usize, u64)> {
    let min = overhead.min_bytes();
    if bytes < min {
        let what = match overhead {
            ProcessOverhead::OfVerb => "this subcommand",
            ProcessOverhead::OfMount => "a mount",
        };
        let min = human_bytes(min);
        return Err(usage_error(format_args!("--memory: {what} needs at least {min}")));
    }
    let left = bytes.saturating_sub(overhead.bytes(bytes));
    let spare = left.saturating_sub(MemoryPool::MIN_BYTES);
    let affordable = usize::try_from(spare / THREAD_BYTES).unwrap_or(usize::MAX).max(1);
    let threads = wanted.min(affordable);
    Ok((threads, left.saturating_sub(THREAD_BYTES.saturating_mul(threads as u64))))
}

/// Memory with the requested reserve; `--prefault` without a number of pages reserves an
/// eighth.
fn memory(limit: u64, readers: usize, reserve: &ReserveArguments) -> anyhow::Result<MemoryPool> {
    let pages = match reserve.reserved_pages {
        None if !reserve.prefault => return Ok(MemoryPool::new(limit)?),
        None => u32::try_from(limit / 8 / 4096).unwrap_or(u32::MAX),
        Some(pages) => pages,
    };
    let most = limit / 2 / 4096;
    if u64::from(pages) > most {
        return Err(usage_error(format_args!(
            "--reserved-pages={pages}: at most half of the memory can be reserved, which is {most} pages; \
             raise --memory"
        )));
    }
    Ok(MemoryPool::with_reserve(limit, pages, readers)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scarce_memory_takes_threads_and_never_the_room_for_an_image() {
        let split =
            |mebibytes: u64, wanted| split_memory(mebibytes << 20, wanted, ProcessOverhead::OfVerb);
        split(26, 1).unwrap_err();
        assert_eq!(split(27, 16).unwrap(), (1, 20 << 20));
        assert_eq!(split(32, 16).unwrap(), (6, 20 << 20));
        assert_eq!(split(32, 2).unwrap(), (2, 24 << 20));
        assert_eq!(split(1 << 10, 16).unwrap().0, 16);
    }

    #[test]
    fn a_mount_has_room_for_all_threads_that_it_may_start() {
        let split = |bytes, wanted| split_memory(bytes, wanted, ProcessOverhead::OfMount);
        let min = ProcessOverhead::OfMount.min_bytes();
        let error = split(min - 1, 1).unwrap_err();
        assert!(error.to_string().contains("a mount needs at least 28.0 MiB"), "{error}");
        for mebibytes in 28..=512 {
            let bytes = mebibytes << 20;
            for wanted in [1, 2, 16] {
                let (threads, limit) = split(bytes, wanted).unwrap();
                let listeners = affordable_listeners(limit) as u64;
                let all = LISTENER_BYTES * listeners + THREAD_BYTES * threads as u64;
                assert!(limit >= MemoryPool::MIN_BYTES && threads >= 1);
                assert!(limit + PROCESS_BYTES + MOUNT_BYTES + all <= bytes, "{mebibytes} {wanted}");
            }
        }
    }

    #[test]
    fn a_nice_process_has_no_raised_threads_whoever_made_it_nice() {
        // Of a thread that ends: a process may not take a nice value back.
        let named = std::thread::Builder::new().name("nice".to_owned());
        let requested = named.spawn(|| {
            rustix::process::setpriority_process(None, 19).unwrap();
            let of = |nice| thread_priority(&MachineArguments { nice, ..Default::default() });
            (of(None), of(Some(-1)), of(Some(0)), of(Some(1)))
        });
        let requested = requested.unwrap().join().unwrap();
        let (raised, normal) = (PriorityRequest::Raised, PriorityRequest::Normal);
        assert_eq!(requested, (normal, raised, raised, normal));
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
