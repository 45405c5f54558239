//! The scheduling experiment: time from submission to start, over bursts such as the launch of a program makes, on an idle
//! machine and beside load generators. As in the original mail's table, a sample is the sum over one launch. Then, if
//! requested, whether all items run while a CPU goes offline and comes back.

use std::hint::black_box;
use std::io::{Write, stderr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use ferrofs_workers::cpus::{AvailableCpus, CpuSet};
use ferrofs_workers::percpu::{self, PerCpuPool};
use ferrofs_workers::priority::{self, PriorityLevel, PriorityRequest};
use ferrofs_workers::unbound::{self, UnboundPool};
use serde::Serialize;

use crate::child::LoadGenerators;
use crate::experiment::{Context, Experiment};
use crate::report::Report;
use crate::rounds::{Candidate, Measured, RoundOptions};
use crate::statistics::{Figure, Figures, difference_percent};
use crate::table::{Column, Sheet, statistics_table};

/// The sum over a burst, and each item of it, from submission to start.
const LAUNCH: Figure = Figure::new("launch", "us", 0);
const ITEM: Figure = Figure::new("item", "us", 1);
/// Bytes that an item hashes: some 30 us of computing.
const ITEM_BYTES: usize = 32 * 1024;
/// Bytes that the reader hashes between two items.
const GAP_BYTES: usize = 16 * 1024;
/// An item that did not run for so long is lost, whatever else the machine does.
const LOST: Duration = Duration::from_secs(30);
/// How often a CPU goes offline and comes back, and how long it stays either way.
const CYCLES: u32 = 8;
const STAY: Duration = Duration::from_millis(400);
/// Items of a burst meanwhile.
const ITEMS: usize = 16;
/// Ten times as long as the switching should take. A kernel whose own threads got no time beside the items has been seen
/// not to return from a switch, so the items end then, and the CPU comes back.
const SWITCH_LIMIT: Duration = Duration::from_secs(60);
/// The columns of the tables.
const NAMES: [&str; 3] = ["workqueue (unbound)", "per-CPU", "per-CPU raised"];

#[derive(Debug, Clone, Copy, Args, Serialize)]
pub(crate) struct SchedulingArguments {
    /// Items of one launch
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    items: u16,
    /// Load generators on each CPU, at nice 0
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    load: u16,
    /// Then take this CPU offline and back, again and again, while items run (needs root; if the process is killed
    /// meanwhile, the CPU stays offline)
    #[arg(long, value_name = "CPU")]
    take_cpu: Option<usize>,
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
        context.plan(&self.rounds, 2);
        let idle = self.measure("idle machine", cpus, &pools, context)?;
        let generators = LoadGenerators::start(cpus, self.load.into())?;
        let beside = format!("beside {} load generators a CPU", self.load);
        let busy = self.measure(&beside, cpus, &pools, context)?;
        drop(generators);
        judge(&mut context.report, &idle, &busy);
        if let Some(cpu) = self.take_cpu {
            context.say(format!("CPU {cpu} goes offline and comes back"))?;
            take_cpu(cpu, &pools, &mut context.report)?;
        }
        context.report.remark(format!("items that took the fallback: {}", pools.fallbacks()));
        Ok(())
    }
}

impl SchedulingArguments {
    /// Launches on each pool in turn.
    fn measure(
        &self,
        case: &str,
        cpus: &CpuSet,
        pools: &Pools,
        context: &mut Context<'_>,
    ) -> Result<Vec<Measured>> {
        let candidates = NAMES.iter().enumerate().map(|(pool, name)| {
            // The reader's CPU rotates.
            let mut readers = cpus.iter().collect::<Vec<_>>().into_iter().cycle();
            Candidate::ours(*name, move || self.launch(pool, readers.next(), pools))
        });
        let all = context.measure(case, candidates.collect())?;
        let title = format!("Scheduling latency of a launch, {case}");
        context.report.table(statistics_table(&title, LAUNCH, &all, 2));
        let columns = vec![
            Column::new("median", ITEM),
            Column::new("p99", ITEM).percentile(990),
            Column::new("max", ITEM).maximum(),
        ];
        let items = format!("From submission to start of one item (us), {case}");
        let mut sheet = Sheet::new(items, "pool", columns).distribution(LAUNCH);
        sheet.add(case, &all);
        context.report.sheet(sheet);
        Ok(all)
    }

    /// By a thread of its own: the CPUs of a process are those of its first thread, and to bind that one would take CPUs
    /// away from the pools.
    fn launch(&self, pool: usize, cpu: Option<usize>, pools: &Pools) -> Result<Figures> {
        let read = || {
            CpuSet::from_iter(cpu).bind_current_thread().context("binding the reader")?;
            burst(self.items.into(), &|work| pools.submit(pool, None, work))
        };
        let latencies = thread::scope(|scope| {
            let reader = thread::Builder::new().name("reader".to_owned());
            let reader = reader.spawn_scoped(scope, read)?;
            reader.join().unwrap_or_else(|_| bail!("the reader panicked"))
        })?;
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let items = latencies.iter().map(|&item| (ITEM, micros(item)));
        Ok([(LAUNCH, micros(latencies.iter().sum()))].into_iter().chain(items).collect())
    }
}

fn judge(report: &mut Report, idle: &[Measured], busy: &[Measured]) {
    if let [unbound, .., raised] = busy {
        let [unbound, raised] = [unbound, raised].map(|pool| pool.samples(LAUNCH).summary());
        let average = difference_percent(unbound.average, raised.average);
        let deviation = difference_percent(unbound.deviation, raised.deviation);
        for (threshold, figure) in [("average", average), ("deviation", deviation)] {
            report.judge(threshold, "", figure);
            report.explain(threshold, "see above which priority the workers reached");
        }
    }
    report.judge("idle", "", idle.last().map(|raised| raised.samples(ITEM).percentile(990)));
}

type Work = Box<dyn FnOnce() + Send>;

/// Where an item writes when it started.
#[derive(Debug, Default)]
struct StartTime {
    started: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl StartTime {
    fn set(&self, started: Instant) {
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
        self.changed.notify_one();
    }

    fn take(&self) -> Result<Instant> {
        let started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(started, LOST, |started| started.is_none());
        let (mut started, _) = waited.unwrap_or_else(PoisonError::into_inner);
        started.take().with_context(|| format!("an item is lost: it did not run for {LOST:?}"))
    }
}

/// Computes for about a nanosecond a byte.
fn compute(bytes: &[u8]) {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    black_box(hash);
}

/// A burst of decode-like work: a reader submits an item, waits for it, computes a little, and submits the next. The time
/// from submission to start of each.
fn burst(items: usize, submit: &dyn Fn(Work)) -> Result<Vec<Duration>> {
    let input: Arc<[u8]> = vec![0x5a; ITEM_BYTES].into();
    let start = Arc::new(StartTime::default());
    let mut latencies = Vec::with_capacity(items);
    for _ in 0..items {
        let (own_input, own_start) = (Arc::clone(&input), Arc::clone(&start));
        let submitted = Instant::now();
        submit(Box::new(move || {
            let started = Instant::now();
            compute(&own_input);
            own_start.set(started);
        }));
        latencies.push(start.take()?.saturating_duration_since(submitted));
        compute(input.get(..GAP_BYTES).unwrap_or_default());
    }
    Ok(latencies)
}

/// A pool bound to no CPU, per-CPU workers at normal priority, and per-CPU workers as high as the system allows.
#[derive(Debug)]
struct Pools {
    unbound: UnboundPool,
    normal: PerCpuPool,
    raised: PerCpuPool,
}

impl Pools {
    /// All threads have started when this returns.
    fn start(cpus: &CpuSet) -> Result<Self> {
        let per_cpu = |name, priority| {
            PerCpuPool::new(percpu::PerCpuSettings::new(name).cpus(cpus.clone()).priority(priority))
        };
        let pools = Self {
            unbound: UnboundPool::new(unbound::UnboundSettings::new("unbound")),
            normal: per_cpu("normal", PriorityRequest::Normal),
            raised: per_cpu("raised", PriorityRequest::Raised),
        };
        pools.normal.start();
        pools.raised.start();
        pools.priority_level(0)?;
        Ok(pools)
    }

    /// To the worker of that CPU, where the pool has one for each.
    fn submit(&self, pool: usize, cpu: Option<usize>, work: Work) {
        match (pool, cpu) {
            (0, _) => drop(self.unbound.submit(work)),
            (1, None) => drop(self.normal.submit(work)),
            (1, Some(cpu)) => drop(self.normal.submit_to(cpu, work)),
            (_, None) => drop(self.raised.submit(work)),
            (_, Some(cpu)) => drop(self.raised.submit_to(cpu, work)),
        }
    }

    /// Items of the per-CPU pools that no worker of a CPU ran: their samples are of the fallback.
    fn fallbacks(&self) -> u64 {
        [&self.normal, &self.raised].into_iter().map(|pool| pool.stats().fallback).sum()
    }

    /// The priority at which that pool runs an item, by the system's account.
    fn priority_level(&self, pool: usize) -> Result<PriorityLevel> {
        let (sender, level) = sync_channel(1);
        let look = move || sender.send(priority::of_current_thread()).unwrap_or_default();
        self.submit(pool, None, Box::new(look));
        level.recv().context("a pool lost an item")
    }
}

/// The switch of a CPU; on drop the CPU is online again, unless the process is killed.
#[derive(Debug)]
struct CpuSwitch(PathBuf);

impl CpuSwitch {
    fn of(cpu: usize) -> Result<Self> {
        let path = PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/online"));
        let says = fs::read_to_string(&path).with_context(|| {
            format!("{}: CPU {cpu} cannot be taken offline here", path.display())
        })?;
        ensure!(says.trim() == "1", "CPU {cpu} is not online");
        Ok(Self(path))
    }

    fn set(&self, is_on: bool) -> Result<()> {
        let word = if is_on { "1" } else { "0" };
        fs::write(&self.0, word).with_context(|| format!("writing {word} to {}", self.0.display()))
    }

    /// Offline and back until done or told to end.
    fn cycle(&self, ends: &AtomicBool) -> Result<()> {
        for is_on in [false, true].into_iter().cycle().take(2 * CYCLES as usize) {
            self.set(is_on)?;
            thread::sleep(STAY);
            if ends.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for CpuSwitch {
    fn drop(&mut self) {
        if let Err(error) = self.set(true) {
            // If even stderr is closed nobody can be told.
            writeln!(stderr(), "ferrofs-bench: {error:#}").unwrap_or_default();
        }
    }
}

/// Runs bursts on every pool while a CPU goes offline and comes back.
fn take_cpu(cpu: usize, pools: &Pools, report: &mut Report) -> Result<()> {
    let switch = CpuSwitch::of(cpu)?;
    let burst = |pool| burst(ITEMS, &|work| pools.submit(pool, Some(cpu), work));
    let items = run_beside(SWITCH_LIMIT, &|ends| switch.cycle(ends), &burst);
    let items = items.with_context(|| format!("while CPU {cpu} went offline and came back"))?;
    for (name, items) in NAMES.iter().zip(items) {
        report.remark(format!(
            "CPU {cpu} offline and back {CYCLES} times: {name}: all of {items} items ran, none lost"
        ));
    }
    Ok(())
}

/// Runs bursts on each pool in turn while `cycle` runs on its own thread; the number of items on each. `cycle` is told to
/// end once an item is lost, or `limit` has passed.
fn run_beside(
    limit: Duration,
    cycle: &(dyn Fn(&AtomicBool) -> Result<()> + Sync),
    burst: &dyn Fn(usize) -> Result<Vec<Duration>>,
) -> Result<[usize; NAMES.len()]> {
    // Relaxed, both: they say when to end, and nothing else.
    let (is_over, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    let begin = Instant::now();
    let (found, cycled) = thread::scope(|scope| {
        let cycle = scope.spawn(|| {
            let cycled = cycle(&ends);
            is_over.store(true, Ordering::Relaxed);
            cycled
        });
        let mut items = [0_usize; NAMES.len()];
        let found = (|| {
            while !is_over.load(Ordering::Relaxed) {
                for (pool, items) in items.iter_mut().enumerate() {
                    *items += burst(pool)?.len();
                }
                ensure!(begin.elapsed() < limit, "the system did not switch it within {limit:?}");
            }
            Ok(items)
        })();
        ends.store(true, Ordering::Relaxed);
        (found, cycle.join())
    });
    let Ok(cycled) = cycled else { bail!("the thread that switches panicked") };
    // What came first: a switch that is told to end has not failed.
    let items = found?;
    cycled.map(|()| items)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{sleep, yield_now};
    use std::time::Duration;

    use anyhow::{Result, bail};

    use super::{CpuSwitch, Work, burst, run_beside};

    const SECOND: Duration = Duration::from_secs(1);

    fn endless(ends: &AtomicBool) -> Result<()> {
        while !ends.load(Ordering::Relaxed) {
            yield_now();
        }
        Ok(())
    }

    #[test]
    fn every_item_of_a_burst_is_measured() {
        assert_eq!(burst(16, &|work: Work| work()).unwrap().len(), 16);
    }

    #[test]
    fn items_are_counted_until_the_switch_is_done() {
        let cycle = |_: &AtomicBool| {
            sleep(SECOND / 20);
            Ok(())
        };
        let items = run_beside(SECOND * 100, &cycle, &|pool| Ok(vec![SECOND; pool + 1])).unwrap();
        assert!(items[0] > 0);
        assert_eq!(items, [items[0], items[0] * 2, items[0] * 3]);
    }

    #[test]
    fn a_switch_that_hangs_a_lost_item_and_a_failed_switch_are_errors() {
        let error = run_beside(SECOND / 20, &endless, &|_| Ok(vec![SECOND])).unwrap_err();
        assert!(format!("{error:#}").contains("did not switch it within"), "{error:#}");
        let lost = |pool| if pool == 2 { bail!("lost") } else { Ok(vec![SECOND]) };
        let error = run_beside(SECOND * 100, &endless, &lost).unwrap_err();
        assert_eq!(format!("{error:#}"), "lost");
        let failing = |_: &AtomicBool| bail!("no such switch");
        let error = run_beside(SECOND * 100, &failing, &|_| Ok(vec![SECOND])).unwrap_err();
        assert_eq!(format!("{error:#}"), "no such switch");
        let error = CpuSwitch::of(1 << 20).unwrap_err();
        assert!(format!("{error:#}").contains("cannot be taken offline here"), "{error:#}");
    }
}
