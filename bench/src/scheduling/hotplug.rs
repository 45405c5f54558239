//! A CPU that is taken away and given back while items run on it: whether all of them ran. Owns the switch, which is
//! back where it was when this ends, unless the process is killed.

use std::fs;
use std::io::{Write, stderr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::burst;
use super::pools::{NAMES, Pools};
use crate::report::Report;

/// How often the CPU goes and comes.
const CYCLES: u32 = 8;
/// How long it stays either way: longer than submitters take to look again.
const STAY: Duration = Duration::from_millis(400);
/// Items of a burst.
const ITEMS: usize = 16;
/// When the switch is given up: ten times as long as it should take. A kernel whose own threads get no time beside
/// the items has been seen not to come back from a switch, so the items end then, and the CPU is given back.
const LIMIT: Duration = Duration::from_secs(60);

/// The switch of a CPU; on drop the CPU is there again.
#[derive(Debug)]
struct Switch(PathBuf);

impl Switch {
    fn of(cpu: usize) -> Result<Self> {
        let path = PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/online"));
        let says = fs::read_to_string(&path)
            .with_context(|| format!("{}: CPU {cpu} cannot be taken away here", path.display()))?;
        ensure!(says.trim() == "1", "CPU {cpu} is not there to be taken away");
        Ok(Self(path))
    }

    fn set(&self, is_on: bool) -> Result<()> {
        let word = if is_on { "1" } else { "0" };
        fs::write(&self.0, word).with_context(|| format!("writing {word} to {}", self.0.display()))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Err(error) = self.set(true) {
            // If even stderr is closed there is nobody left to tell.
            writeln!(stderr(), "ferrofs-bench: {error:#}").unwrap_or_default();
        }
    }
}

/// Runs bursts on every pool until the CPU has gone and come often enough, and says what became of them.
///
/// # Errors
/// When the CPU cannot be taken away, or an item is lost.
pub(super) fn run(cpu: usize, pools: &Pools, report: &mut Report) -> Result<()> {
    let switch = Switch::of(cpu)?;
    let burst = |column| burst::run(ITEMS, &|work| pools.submit_to(column, cpu, work));
    let items = beside(LIMIT, &|ends| turn(&switch, ends), &burst);
    let items = items.with_context(|| format!("while CPU {cpu} went and came"))?;
    for (name, items) in NAMES.iter().zip(items) {
        report.add_remark(format!(
            "CPU {cpu} taken away and given back {CYCLES} times: {name}: all of {items} items ran, nothing lost"
        ));
    }
    Ok(())
}

/// Runs bursts on each pool in turn while `turn` runs on a thread of its own; says how many items ran on each. `turn`
/// is told when it is to end: once an item is lost, or `limit` has passed.
fn beside(
    limit: Duration,
    turn: &(dyn Fn(&AtomicBool) -> Result<()> + Sync),
    burst: &dyn Fn(usize) -> Result<Vec<Duration>>,
) -> Result<[usize; NAMES.len()]> {
    // Relaxed, both: they say when to end, and nothing else.
    let (is_over, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    let begun = Instant::now();
    let (found, turned) = thread::scope(|scope| {
        let turn = scope.spawn(|| {
            let turned = turn(&ends);
            is_over.store(true, Ordering::Relaxed);
            turned
        });
        let mut items = [0_usize; NAMES.len()];
        let found = (|| {
            while !is_over.load(Ordering::Relaxed) {
                for (column, items) in items.iter_mut().enumerate() {
                    *items += burst(column)?.len();
                }
                ensure!(begun.elapsed() < limit, "the system did not switch it within {limit:?}");
            }
            Ok(items)
        })();
        ends.store(true, Ordering::Relaxed);
        (found, turn.join())
    });
    let Ok(turned) = turned else { bail!("the thread that switches panicked") };
    // What came first: a switch that is told to end has not failed.
    let items = found?;
    turned.map(|()| items)
}

fn turn(switch: &Switch, ends: &AtomicBool) -> Result<()> {
    for _ in 0..CYCLES {
        for is_on in [false, true] {
            switch.set(is_on)?;
            thread::sleep(STAY);
            if ends.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{sleep, yield_now};
    use std::time::Duration;

    use anyhow::{Result, bail};

    use super::{Switch, beside};

    const SECOND: Duration = Duration::from_secs(1);

    /// Turns until it is told to end.
    fn endless(ends: &AtomicBool) -> Result<()> {
        while !ends.load(Ordering::Relaxed) {
            yield_now();
        }
        Ok(())
    }

    #[test]
    fn items_are_counted_until_the_switch_is_done() {
        let turn = |_: &AtomicBool| {
            sleep(SECOND / 20);
            Ok(())
        };
        let items = beside(SECOND * 100, &turn, &|column| Ok(vec![SECOND; column + 1])).unwrap();
        assert!(items[0] > 0);
        assert_eq!(items, [items[0], items[0] * 2, items[0] * 3]);
    }

    #[test]
    fn a_switch_that_does_not_come_back_in_time_is_an_error_and_ends() {
        let error = beside(SECOND / 20, &endless, &|_| Ok(vec![SECOND])).unwrap_err();
        assert!(format!("{error:#}").contains("did not switch it within"), "{error:#}");
    }

    #[test]
    fn a_lost_item_ends_the_switching() {
        let burst = |column| if column == 2 { bail!("lost") } else { Ok(vec![SECOND]) };
        let error = beside(SECOND * 100, &endless, &burst).unwrap_err();
        assert_eq!(format!("{error:#}"), "lost");
    }

    #[test]
    fn a_switch_that_fails_is_an_error() {
        let turn = |_: &AtomicBool| bail!("no such switch");
        let error = beside(SECOND * 100, &turn, &|_| Ok(vec![SECOND])).unwrap_err();
        assert_eq!(format!("{error:#}"), "no such switch");
    }

    #[test]
    fn a_cpu_that_is_not_there_cannot_be_taken_away() {
        let error = Switch::of(1 << 20).unwrap_err();
        assert!(format!("{error:#}").contains("cannot be taken away here"), "{error:#}");
    }
}
