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

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct SchedulingArguments {
    /// Number of load generators on each CPU, with nice value 0
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = up_to(64))]
    load: u16,
    #[command(flatten)]
    rounds: RoundOptions,
}

impl Experiment for SchedulingArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let available = AvailableCpus::read();
        let cpus = available.cpus();
        let unbound = UnboundPool::new(unbound::UnboundSettings::new("unbound"));
        let priorities = [("normal", PriorityRequest::Normal), ("raised", PriorityRequest::Raised)];
        let per_cpu = priorities.map(|(name, priority)| {
            let settings = percpu::PerCpuSettings::new(name).cpus(cpus.clone());
            PerCpuPool::new(settings.priority(priority))
        });
        per_cpu.iter().for_each(PerCpuPool::start);
        let pools: [(&str, Submit<'_>); 3] = [
            ("workqueue (unbound)", &|work| _ = unbound.submit(work)),
            ("per-CPU", &|work| _ = per_cpu[0].submit(work)),
            ("per-CPU raised", &|work| _ = per_cpu[1].submit(work)),
        ];
        // All threads have started after this.
        for (name, submit) in pools {
            context.report.remark(format!("{name}: {}", priority_level(submit)?));
        }
        context.plan(self.rounds, 2);
        let beside = format!("beside {} load generators a CPU", self.load);
        // Thresholds know the cases by shorter names.
        for (case, name, load) in [("idle machine", "idle", 0), (&beside, "load", self.load)] {
            let _generators = start_load(cpus, load.into())?;
            let candidates = pools.into_iter().map(|(name, submit)| {
                // The reader's CPU rotates.
                let mut readers = cpus.iter().collect::<Vec<_>>().into_iter().cycle();
                Candidate::ours(name, move || launch(submit, readers.next()))
            });
            let all = context.measure(case, candidates.collect())?;
            for (table, figure) in [("launches", "launch"), ("items", "item")] {
                context.report.add(table, case, case, &only(&all, figure))?;
            }
            context.report.evaluate_all(case, &[name], &all);
        }
        // Their samples are those of the fallback: no worker of a CPU ran them.
        let fallbacks: u64 = per_cpu.iter().map(|pool| pool.stats().fallback).sum();
        context.report.remark(format!("items that took the fallback: {fallbacks}"));
        Ok(())
    }
}

/// By a thread of its own: the CPUs of a process are those of its first thread, and to bind that one would take CPUs
/// away from the pools.
fn launch(submit: Submit<'_>, cpu: Option<usize>) -> Result<Figures> {
    let read = || {
        CpuSet::from_iter(cpu).bind_current_thread().context("binding the reader")?;
        burst(submit)
    };
    let reader = thread::scope(|scope| scope.spawn(read).join());
    let latencies = reader.unwrap_or_else(|_| bail!("the reader panicked"))?;
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let items = latencies.iter().map(|&item| ("item", micros(item)));
    Ok([("launch", micros(latencies.iter().sum()))].into_iter().chain(items).collect())
}

type Work = Box<dyn FnOnce() + Send>;
/// Hands work to a pool.
type Submit<'a> = &'a (dyn Fn(Work) + Sync);

/// Computes for about a nanosecond a byte.
fn compute(bytes: &[u8]) {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    black_box(hash);
}

/// A burst of decode-like work: a reader submits an item, waits for it, computes a little, and submits the next. The time
/// from submission to start of each.
fn burst(submit: Submit<'_>) -> Result<Vec<Duration>> {
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

/// The priority at which a pool runs an item, by the system's account.
fn priority_level(submit: Submit<'_>) -> Result<PriorityLevel> {
    let (sender, level) = sync_channel(1);
    submit(Box::new(move || sender.send(priority::of_current_thread()).unwrap_or_default()));
    level.recv().context("a pool lost an item")
}

#[cfg(test)]
mod tests {
    use super::{ITEMS, Work, burst};

    #[test]
    fn every_item_of_a_burst_is_measured() {
        assert_eq!(burst(&|work: Work| work()).unwrap().len(), ITEMS);
    }
}
