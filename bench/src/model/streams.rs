//! The workqueue subject: what a stream of requests would reach with more CPUs than there are, and how many
//! cache lines move for each request.

use std::io::Write;

use anyhow::{Context, Result};
use ferrofs_model::machine::Shape;
use ferrofs_model::stream::{self, Flow, Load};

use super::arguments::{ModelArguments, ModelRow};
use super::here;
use crate::plot::Plot;
use crate::report::{Report, Series};
use crate::table::Table;

/// CPUs that share a socket if nobody says.
const SOCKET: usize = 64;

/// What is known of the cause where ours falls behind, or why nothing is known.
const FALLS: &str = "where workers outnumber what one submitter can feed, lanes sleep between their turns and each batch wakes one; nothing is said without the rows that are compared";

/// One run of the model.
#[derive(Debug, Clone, Copy)]
struct Run {
    row: ModelRow,
    cpus: usize,
    flow: Flow,
}

/// Runs every queue with every number of CPUs, and what this machine has beside it.
pub(super) fn run(
    arguments: &ModelArguments,
    is_quick: bool,
    out: &mut dyn Write,
    report: &mut Report,
) -> Result<()> {
    let mut runs = Vec::new();
    for &cpus in &arguments.cpus {
        writeln!(out, "model: the queues on {cpus} CPUs")?;
        for &row in &arguments.rows {
            let flow = simulate(arguments, is_quick, row, cpus);
            let flow = flow.with_context(|| format!("{} on {cpus} CPUs", row.text()))?;
            runs.push(Run { row, cpus, flow });
        }
    }
    tabulate(arguments, &runs, report);
    plot(arguments, &runs, report);
    judge(&runs, report)?;
    if !arguments.no_check {
        here::compare_queues(arguments, is_quick, out, report)?;
    }
    Ok(())
}

fn simulate(
    arguments: &ModelArguments,
    is_quick: bool,
    row: ModelRow,
    cpus: usize,
) -> Result<Flow> {
    let count = usize::try_from(arguments.count)? / if is_quick { 10 } else { 1 };
    let shape = Shape { cpus, cpus_a_socket: arguments.socket.unwrap_or(SOCKET) };
    let load = Load {
        slots: arguments.requests.into(),
        request: arguments.request,
        warm_up: count,
        requests: count,
    };
    stream::run(row.queue(), shape, arguments.costs.costs(), load)
}

fn find(runs: &[Run], row: ModelRow, cpus: usize) -> Option<&Flow> {
    runs.iter().find(|run| run.row == row && run.cpus == cpus).map(|run| &run.flow)
}

fn tabulate(arguments: &ModelArguments, runs: &[Run], report: &mut Report) {
    let mut add = |title: &str, cell: &dyn Fn(&Flow) -> String| {
        let names = arguments.rows.iter().map(|row| row.text());
        let header = std::iter::once("CPUs".to_owned()).chain(names);
        let mut table = Table::new(format!("Model: {title}"), header);
        for &cpus in &arguments.cpus {
            let cells = arguments
                .rows
                .iter()
                .map(|&row| find(runs, row, cpus).map_or_else(String::new, cell));
            table.add(std::iter::once(cpus.to_string()).chain(cells));
        }
        report.add_table(table);
    };
    add("thousand requests a second", &|flow| format!("{:.0}", flow.per_second() / 1e3));
    add("cache lines that move for a request", &|flow| {
        format!("{:.2}", flow.a_request(flow.counts.moves()))
    });
    add("cache lines taken from other readers for a request", &|flow| {
        format!("{:.2}", flow.a_request(flow.counts.upgrades()))
    });
    add("wake-ups by system call for a request", &|flow| {
        format!("{:.3}", flow.a_request(flow.wakes))
    });
    for run in runs {
        report.add_series(Series {
            row: run.row.text(),
            case: format!("model, {} CPUs", run.cpus),
            unit: "requests/s",
            samples: [run.flow.per_second()].into_iter().collect(),
        });
    }
}

fn plot(arguments: &ModelArguments, runs: &[Run], report: &mut Report) {
    let mut draw = |title: &str, unit: &str, value: &dyn Fn(&Flow) -> f64| {
        let mut plot = Plot::lines(title, "CPUs (model)", unit).log_x();
        for &row in &arguments.rows {
            let points = arguments.cpus.iter().filter_map(|&cpus| {
                // A number of CPUs is far below 2^52.
                #[allow(clippy::cast_precision_loss, reason = "as said")]
                find(runs, row, cpus).map(|flow| (cpus as f64, value(flow)))
            });
            plot.add_line(row.text(), points.collect());
        }
        report.add_plot(plot);
    };
    draw("Model: throughput of one submitter", "thousand requests a second", &|flow| {
        flow.per_second() / 1e3
    });
    draw("Model: cache lines that move", "lines a request", &|flow| {
        flow.a_request(flow.counts.moves())
    });
}

/// Holds our row against the marks, where it and the original were run.
fn judge(runs: &[Run], report: &mut Report) -> Result<()> {
    let ours: Vec<&Run> = runs.iter().filter(|run| run.row == ModelRow::Ours).collect();
    let best = |until: usize| {
        let rates = ours.iter().filter(|run| run.cpus <= until).map(|run| run.flow.per_second());
        rates.fold(f64::NAN, f64::max)
    };
    // The more CPUs, the more are used, until the submitter is what limits; from then on nothing may fall.
    let kept =
        ours.iter().map(|run| run.flow.per_second() / best(run.cpus)).fold(f64::NAN, f64::min);
    report.claim("002", "flat", &[kept], FALLS)?;
    let against = ours.iter().filter_map(|run| {
        let original = find(runs, ModelRow::Original, run.cpus)?;
        Some(run.flow.per_second() / original.per_second())
    });
    let least = against.fold(f64::NAN, f64::min);
    report.claim("002", "ahead", &[least], FALLS)?;
    let most = ours.iter().map(|run| run.flow.a_request(run.flow.counts.moves()));
    report.claim("002", "lines", &[most.fold(f64::NAN, f64::max)], "ours is not among the rows")
}
