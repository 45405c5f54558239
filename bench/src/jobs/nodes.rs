//! Faulting memory in on each node of memory by itself, by the CPUs of that node: what is touched first there is placed
//! there. On a machine with one node it is that one.

use anyhow::{Context, Result};
use ferrofs_workers::cpus::{AvailableCpus, CpuSet, NumaNode};
use ferrofs_workers::memory::PageSize;

use super::{LEAST_ROUNDS, Plan, Way, time};
use crate::deadline::Deadline;
use crate::report::{Report, Series};
use crate::statistics::{Samples, difference_percent};
use crate::table::Table;

/// Milliseconds by one thread, and by one for each CPU of the node.
struct Found {
    node: NumaNode,
    alone: Samples,
    together: Samples,
}

/// Runs them and adds what was found.
///
/// # Errors
/// When memory cannot be had, or the CPUs of a node are taken away.
pub(super) fn add(plan: &Plan, deadline: Deadline, report: &mut Report) -> Result<()> {
    let home = CpuSet::of_current_thread();
    let granted = AvailableCpus::read();
    let (nodes, mut left) = (granted.nodes(), granted.nodes().len());
    let measured: Result<Vec<Found>> = nodes
        .iter()
        .map(|node| {
            let share = deadline.share(1.0 / left as f64);
            left -= 1;
            measure(plan, node, share)
        })
        .collect();
    home.bind_current_thread().context("giving the CPUs back")?;
    let title = format!("Faulting in {} MiB on each node, 4 KiB pages, median", plan.bytes >> 20);
    let header = ["node", "CPUs", "1 thread, ms", "one a CPU, ms", "diff"];
    let mut table = Table::new(title, header);
    for Found { node, alone, together } in measured? {
        let (one, all) = (alone.median(), together.median());
        table.add([
            node.id.to_string(),
            node.cpus.len().to_string(),
            format!("{one:.1}"),
            format!("{all:.1}"),
            format!("{:+.1} %", difference_percent(one, all)),
        ]);
        for (row, samples) in [("1 thread", alone), ("one thread a CPU", together)] {
            let case = format!("node {}", node.id);
            report.add_series(Series { row: row.to_owned(), case, unit: "ms", samples });
        }
    }
    report.add_table(table);
    Ok(())
}

fn measure(plan: &Plan, node: &NumaNode, deadline: Deadline) -> Result<Found> {
    node.cpus.bind_current_thread().with_context(|| format!("going to node {}", node.id))?;
    let (mut alone, mut together) = (Samples::default(), Samples::default());
    for round in 0..=plan.repeat {
        if round > LEAST_ROUNDS && deadline.is_over() {
            break;
        }
        for (samples, threads) in [(&mut alone, 1), (&mut together, node.cpus.len())] {
            let (milliseconds, _) = time(Way::Threads(threads), PageSize::Small, plan.bytes)?;
            if round > 0 {
                samples.push(milliseconds);
            }
        }
    }
    Ok(Found { node: node.clone(), alone, together })
}
