//! A CPU that is taken away and given back while items run on it: whether all of them ran. Owns the switch, which is
//! back where it was when this ends, unless the process is killed.

use std::fs;
use std::io::{Write, stderr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

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
    let is_over = AtomicBool::new(false);
    let (items, switched) = thread::scope(|scope| {
        let turn = scope.spawn(|| {
            let turned = turn(&switch);
            // Relaxed: it says when to end, and nothing else.
            is_over.store(true, Ordering::Relaxed);
            turned
        });
        let mut items = [0_usize; NAMES.len()];
        let found = (|| {
            while !is_over.load(Ordering::Relaxed) {
                for (column, items) in items.iter_mut().enumerate() {
                    *items += burst::run(ITEMS, &|work| pools.submit_to(column, cpu, work))?.len();
                }
            }
            Ok::<_, anyhow::Error>(())
        })();
        (found.map(|()| items), turn.join())
    });
    let Ok(switched) = switched else { bail!("the thread that switches CPU {cpu} panicked") };
    switched?;
    let items = items.with_context(|| format!("while CPU {cpu} went and came"))?;
    for (name, items) in NAMES.iter().zip(items) {
        report.add_remark(format!(
            "CPU {cpu} taken away and given back {CYCLES} times: {name}: all of {items} items ran, nothing lost"
        ));
    }
    Ok(())
}

fn turn(switch: &Switch) -> Result<()> {
    for _ in 0..CYCLES {
        switch.set(false)?;
        thread::sleep(STAY);
        switch.set(true)?;
        thread::sleep(STAY);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Switch;

    #[test]
    fn a_cpu_that_is_not_there_cannot_be_taken_away() {
        let error = Switch::of(1 << 20).unwrap_err();
        assert!(format!("{error:#}").contains("cannot be taken away here"), "{error:#}");
    }
}
