//! The scheduling experiment: time from submission to start, over bursts such as the launch of a program makes, on an idle
//! machine and beside load generators. As in the original mail's table, a sample is the sum over one launch.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ferrofs_workers::cpus::{AvailableCpus, CpuSet};
use ferrofs_workers::percpu::{self, PerCpuPool};
use ferrofs_workers::priority::{self, PriorityLevel, PriorityRequest};
use ferrofs_workers::unbound::{self, UnboundPool};

use crate::child::start_load;
use crate::experiment::{Candidate, Context, Experiment, RoundOptions, up_to};
use crate::statistics::{Figures, only};

/// Items of one launch.
const ITEMS: usize = 16;
/// Bytes that an item hashes: some 30 us of computing.
const ITEM_BYTES: usize = 32 * 1024;
/// Bytes that the reader hashes between two items.
const GAP_BYTES: usize = 16 * 1024;
/// An item that did not run for so long is lost, whatever else the machine does.
const LOST: Duration = Duration::from_secs(30);
/// The columns of the tables.
const NAMES: [&str; 3] = ["workqueue (unbound)", "per-CPU", "per-CPU raised"];

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct SchedulingArguments {
    /// Load generators on each CPU, at nice 0
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = up_to(64))]
    load: u16,
    #[command(flatten)]
    rounds: RoundOptions,
}

impl Experiment for SchedulingArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let available = AvailableCpus::read();
        let cpus = available.cpus();
        let pools = Pools::start(cpus)?;
        for (pool, name) in NAMES.iter().enumerate() {
            context.report.remark(format!("{name}: {}", pools.priority_level(pool)?));
        }
        context.plan(self.rounds, 2);
        measure("idle machine", "idle", cpus, &pools, context)?;
        let generators = start_load(cpus, self.load.into())?;
        let beside = format!("beside {} load generators a CPU", self.load);
        measure(&beside, "load", cpus, &pools, context)?;
        drop(generators);
        // Their samples are those of the fallback: no worker of a CPU ran them.
        let fallbacks: u64 = pools.per_cpu.iter().map(|pool| pool.stats().fallback).sum();
        context.report.remark(format!("items that took the fallback: {fallbacks}"));
        Ok(())
    }
}

/// Launches on each pool in turn; thresholds know the case by a shorter name.
fn measure(
    case: &str,
    name: &str,
    cpus: &CpuSet,
    pools: &Pools,
    context: &mut Context<'_>,
) -> Result<()> {
    let candidates = NAMES.iter().enumerate().map(|(pool, name)| {
        // The reader's CPU rotates.
        let mut readers = cpus.iter().collect::<Vec<_>>().into_iter().cycle();
        Candidate::ours(*name, move || launch(pool, readers.next(), pools))
    });
    let all = context.measure(case, candidates.collect())?;
    for (table, figure) in [("launches", "launch"), ("items", "item")] {
        context.report.add(table, case, case, &only(&all, figure))?;
    }
    context.report.evaluate_all(case, &[name], &all);
    Ok(())
}

/// By a thread of its own: the CPUs of a process are those of its first thread, and to bind that one would take CPUs
/// away from the pools.
fn launch(pool: usize, cpu: Option<usize>, pools: &Pools) -> Result<Figures> {
    let read = || {
        CpuSet::from_iter(cpu).bind_current_thread().context("binding the reader")?;
        burst(&|work| pools.submit(pool, work))
    };
    let reader = thread::scope(|scope| scope.spawn(read).join());
    let latencies = reader.unwrap_or_else(|_| bail!("the reader panicked"))?;
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let items = latencies.iter().map(|&item| ("item", micros(item)));
    Ok([("launch", micros(latencies.iter().sum()))].into_iter().chain(items).collect())
}

type Work = Box<dyn FnOnce() + Send>;

/// Computes for about a nanosecond a byte.
fn compute(bytes: &[u8]) {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    black_box(hash);
}

/// A burst of decode-like work: a reader submits an item, waits for it, computes a little, and submits the next. The time
/// from submission to start of each.
fn burst(submit: &dyn Fn(Work)) -> Result<Vec<Duration>> {
    let input: Arc<[u8]> = vec![0x5a; ITEM_BYTES].into();
    let (sender, starts) = sync_channel(1);
    let mut latencies = Vec::with_capacity(ITEMS);
    for _ in 0..ITEMS {
        let (own_input, own_sender) = (Arc::clone(&input), sender.clone());
        let submitted = Instant::now();
        submit(Box::new(move || {
            let started = Instant::now();
            compute(&own_input);
            // A reader that has gone asks for nothing.
            own_sender.send(started).unwrap_or_default();
        }));
        let started = starts.recv_timeout(LOST);
        let started = started.with_context(|| format!("an item did not run for {LOST:?}"))?;
        latencies.push(started.saturating_duration_since(submitted));
        compute(input.get(..GAP_BYTES).unwrap_or_default());
    }
    Ok(latencies)
}

/// A pool bound to no CPU, and per-CPU workers: at normal priority, and as high as the system allows.
#[derive(Debug)]
struct Pools {
    unbound: UnboundPool,
    per_cpu: [PerCpuPool; 2],
}

impl Pools {
    /// All threads have started when this returns.
    fn start(cpus: &CpuSet) -> Result<Self> {
        let unbound = UnboundPool::new(unbound::UnboundSettings::new("unbound"));
        let priorities = [("normal", PriorityRequest::Normal), ("raised", PriorityRequest::Raised)];
        let per_cpu = priorities.map(|(name, priority)| {
            PerCpuPool::new(percpu::PerCpuSettings::new(name).cpus(cpus.clone()).priority(priority))
        });
        per_cpu.iter().for_each(PerCpuPool::start);
        let pools = Self { unbound, per_cpu };
        pools.priority_level(0)?;
        Ok(pools)
    }

    /// In the order of `NAMES`.
    fn submit(&self, pool: usize, work: Work) {
        match pool.checked_sub(1) {
            None => drop(self.unbound.submit(work)),
            Some(pool) => drop(self.per_cpu[pool].submit(work)),
        }
    }

    /// The priority at which that pool runs an item, by the system's account.
    fn priority_level(&self, pool: usize) -> Result<PriorityLevel> {
        let (sender, level) = sync_channel(1);
        let report = move || sender.send(priority::of_current_thread()).unwrap_or_default();
        self.submit(pool, Box::new(report));
        level.recv().context("a pool lost an item")
    }
}

#[cfg(test)]
mod tests {
    use super::{ITEMS, Work, burst};

    #[test]
    fn every_item_of_a_burst_is_measured() {
        assert_eq!(burst(&|work: Work| work()).unwrap().len(), ITEMS);
    }
}
