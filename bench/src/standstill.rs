//! Whether the CPUs themselves stood still. A host that takes a CPU away mostly says so (see [`crate::steal`]); some stop
//! a whole machine for milliseconds and say nothing, and then a raised thread has waited for a CPU that ran nobody.
//!
//! A thread on each CPU sleeps to a point of time, again and again, and asks how late the timer woke it: how late it
//! runs, less how long it was ready before. Somebody else on the CPU, or a kernel that is not preempted, makes it wait,
//! but not wake late: what is counted here no thread can cause, and none can avoid.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ferrofs_workers::cpus::CpuSet;
use ferrofs_workers::priority::{self, Wanted};
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// From one point of time to the next.
const STEP: Duration = Duration::from_micros(500);
/// A timer that is later than this was late because its CPU stood still: on a busy CPU it is otherwise some 5 us late,
/// and deep sleep costs less than 200 us.
const LATE: Duration = Duration::from_micros(300);

/// A running watch over some CPUs.
#[derive(Debug)]
pub(crate) struct Watch {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Duration>>>,
}

impl Watch {
    /// Watches these CPUs; each of them is watched when this returns.
    ///
    /// # Errors
    /// When a thread cannot be started or bound, or the kernel does not count how long threads are ready.
    pub(crate) fn start(cpus: &CpuSet) -> Result<Self> {
        let mut watch = Self { is_over: Arc::default(), threads: Vec::new() };
        let (ready, all_ready) = sync_channel(cpus.len());
        for cpu in cpus.iter() {
            let (is_over, ready) = (Arc::clone(&watch.is_over), ready.clone());
            let run = move || {
                let mut timer = Timer::on(cpu)?;
                // Whoever started this waits for it.
                ready.send(()).context("nobody waits")?;
                drop(ready);
                let mut stood = Duration::ZERO;
                while !is_over.load(Ordering::Relaxed) {
                    let late = timer.lateness()?;
                    if late > LATE {
                        stood += late;
                    }
                }
                Ok(stood)
            };
            let thread = Builder::new().name(format!("watch-{cpu}")).spawn(run);
            watch.threads.push(thread.context("starting a watch")?);
        }
        drop(ready);
        // One that failed hangs up, and says why in the end.
        if all_ready.iter().take(cpus.len()).count() < cpus.len() {
            watch.end()?;
            return Err(anyhow!("a watch over the CPUs {cpus} ended"));
        }
        Ok(watch)
    }

    /// Ends the watch: how long that CPU stood still that did for longest.
    ///
    /// # Errors
    /// What a thread failed with.
    pub(crate) fn end(mut self) -> Result<Duration> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut longest = Duration::ZERO;
        for thread in self.threads.drain(..) {
            let stood = thread.join().map_err(|_| anyhow!("a watch over a CPU panicked"))??;
            longest = longest.max(stood);
        }
        Ok(longest)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Of a measurement that failed: the threads see it within a step.
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// The timer of one CPU, seen by a thread that is bound to it.
#[derive(Debug)]
struct Timer {
    schedstat: File,
    /// What the thread had waited for its turn when it last looked.
    waited: Duration,
    next: Timespec,
}

impl Timer {
    /// Binds this thread there, and raises it: while it waits for its turn it sees nothing.
    fn on(cpu: usize) -> Result<Self> {
        CpuSet::from_iter([cpu]).bind_current_thread().context("binding a watch")?;
        priority::apply(Wanted::Raised);
        let path = "/proc/thread-self/schedstat";
        let schedstat = File::open(path).context(path)?;
        let waited = run_delay(&schedstat)?;
        Ok(Self { schedstat, waited, next: clock_gettime(ClockId::Monotonic) })
    }

    /// Sleeps for a step; how late the timer was then.
    fn lateness(&mut self) -> Result<Duration> {
        self.next += Timespec::try_from(STEP)?;
        clock_nanosleep_absolute(ClockId::Monotonic, &self.next)?;
        let now = clock_gettime(ClockId::Monotonic);
        let waited = run_delay(&self.schedstat)?;
        let late = Duration::try_from(now - self.next).unwrap_or_default();
        let ready = waited.saturating_sub(self.waited);
        (self.waited, self.next) = (waited, now);
        Ok(late.saturating_sub(ready))
    }
}

/// How long this thread has been ready and not run since it began: the second number.
fn run_delay(schedstat: &File) -> Result<Duration> {
    let mut bytes = [0; 96];
    let length = schedstat.read_at(&mut bytes, 0).context("reading schedstat of a thread")?;
    let line = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default());
    let waited = line.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    waited.map(Duration::from_nanos).with_context(|| format!("schedstat of a thread: {line}"))
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use ferrofs_workers::cpus::{CpuSet, Granted};

    use super::{Timer, Watch};

    #[test]
    fn waiting_for_somebody_else_is_no_standstill() {
        // Two threads that keep one CPU from the third, if it may not be raised.
        let granted = Granted::read();
        let cpu = granted.cpus().iter().next().unwrap();
        let until = Instant::now() + Duration::from_millis(400);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    CpuSet::from_iter([cpu]).bind_current_thread().unwrap();
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                });
            }
            let found = scope.spawn(|| {
                let mut timer = Timer::on(cpu).unwrap();
                let mut late = Vec::new();
                while Instant::now() < until {
                    late.push(timer.lateness().unwrap());
                }
                late
            });
            let mut late = found.join().unwrap();
            late.sort();
            assert!(late.len() > 5, "{late:?}");
            // A host may take the CPU now and then; it does not half of the time.
            assert!(late[late.len() / 2] < Duration::from_millis(1), "{late:?}");
        });
    }

    #[test]
    fn a_watch_looks_until_it_is_ended() {
        let begin = Instant::now();
        let watch = Watch::start(Granted::read().cpus()).unwrap();
        sleep(Duration::from_millis(20));
        let stood = watch.end().unwrap();
        assert!(stood < begin.elapsed(), "{stood:?}");
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error() {
        let error = Watch::start(&CpuSet::from_iter([1023])).unwrap_err();
        assert!(format!("{error:#}").contains("binding a watch"), "{error:#}");
    }
}
