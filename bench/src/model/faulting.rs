//! The jobs subject: what faulting memory in would take with more CPUs than there are, where a zone's lock and
//! the memory of a socket are shared.

use std::io::Write;

use anyhow::{Context, Result};
use ferrofs_model::faults::{self, Faulting};
use ferrofs_model::machine::Shape;

use super::arguments::ModelArguments;
use super::here;
use crate::plot::Plot;
use crate::report::{Report, Series};
use crate::statistics::difference_percent;
use crate::table::Table;

/// CPUs that share a socket if nobody says: half of the 96 of the seed's machine.
const SOCKET: usize = 48;
/// A quick run takes so little of the memory.
const QUICK_PART: u64 = 8;

/// Runs every number of threads, and what this machine has beside it.
pub(super) fn run(
    arguments: &ModelArguments,
    is_quick: bool,
    out: &mut dyn Write,
    report: &mut Report,
) -> Result<()> {
    let bytes = (u64::from(arguments.gib) << 30) / if is_quick { QUICK_PART } else { 1 };
    let mut runs = Vec::new();
    for &threads in &arguments.threads {
        writeln!(out, "model: faulting {} GiB in on {threads} threads", bytes >> 30)?;
        let shape = Shape { cpus: threads, cpus_a_socket: arguments.socket.unwrap_or(SOCKET) };
        let costs = arguments.costs.costs();
        let faulting = faults::run(shape, costs, arguments.kernel(), bytes, threads);
        runs.push((threads, faulting.with_context(|| format!("{threads} threads"))?));
    }
    tell(bytes, &runs, report);
    let alone = runs.iter().find(|(threads, _)| *threads == 1);
    let saved = alone.and_then(|(_, alone)| {
        let differences = runs.iter().filter(|(threads, _)| *threads > 1);
        let of =
            |(_, run): &(usize, Faulting)| difference_percent(alone.nanoseconds, run.nanoseconds);
        differences.map(of).reduce(f64::min)
    });
    let figure = saved.unwrap_or(f64::NAN);
    report.claim(
        "003",
        "saved",
        &[figure],
        "one thread and more are needed, and memory and locks as stated bound what is saved",
    )?;
    if !arguments.no_check {
        here::compare_jobs(arguments, is_quick, out, report)?;
    }
    Ok(())
}

fn tell(bytes: u64, runs: &[(usize, Faulting)], report: &mut Report) {
    let title = format!("Model: faulting {} GiB in", bytes >> 30);
    let header = ["threads", "took part", "pieces", "ms", "diff", "lines that moved"];
    let mut table = Table::new(&title, header);
    let alone = runs.iter().find(|(threads, _)| *threads == 1).map(|(_, run)| run.nanoseconds);
    let mut points = Vec::new();
    for (threads, run) in runs {
        let difference = alone.map_or_else(String::new, |alone| {
            format!("{:+.1} %", difference_percent(alone, run.nanoseconds))
        });
        table.add([
            threads.to_string(),
            run.threads.to_string(),
            run.pieces.to_string(),
            format!("{:.1}", run.nanoseconds / 1e6),
            difference,
            run.moves.to_string(),
        ]);
        // A number of threads is far below 2^52.
        #[allow(clippy::cast_precision_loss, reason = "as said")]
        points.push((*threads as f64, run.nanoseconds / 1e6));
        report.add_series(Series {
            row: "jobs".to_owned(),
            case: format!("model, {threads} threads"),
            unit: "ms",
            samples: [run.nanoseconds / 1e6].into_iter().collect(),
        });
    }
    report.add_table(table);
    let mut plot = Plot::lines(title, "threads (model)", "ms").log_x().log_y();
    plot.add_line("ours", points);
    report.add_plot(plot);
}
