//! The scheduling experiment: from submission to start, over bursts such as the launch of a program
//! makes, on an idle machine and beside hogs. As in the seed's table, a sample is the sum over one
//! launch.

mod burst;
mod hotplug;
mod pools;

use std::io::Write;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ferrofs_workers::cpus::{AvailableCpus, CpuSet};

use crate::arguments::SchedulingArguments;
use crate::hogs::Hogs;
use crate::plot::Plot;
use crate::report::{Report, Series};
use crate::statistics::{Samples, Summary, difference_percent};
use crate::table::Table;
use pools::{NAMES, Pools};

/// Launches of a quick run.
const QUICK_ITERATIONS: u16 = 10;
/// Bursts before the first that counts.
const WARM_UP: u16 = 2;
/// What one pool showed under one condition.
#[derive(Debug, Default)]
struct Column {
    /// Sums over a burst.
    launches: Samples,
    /// Single items.
    items: Samples,
}

/// Runs the experiment.
///
/// # Errors
/// When a hog cannot be started, a CPU cannot be had, or an item is lost.
pub(crate) fn run(
    arguments: &SchedulingArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let mut report = Report::new("scheduling", arguments)?;
    let granted = AvailableCpus::read();
    let cpus = granted.cpus();
    let pools = Pools::start(cpus)?;
    for (column, name) in NAMES.iter().enumerate() {
        report.add_remark(format!("{name}: {}", pools.rung(column)?));
    }
    let most = if is_quick { QUICK_ITERATIONS } else { u16::MAX };
    let settings = SchedulingArguments { iterations: arguments.iterations.min(most), ..*arguments };
    writeln!(out, "idle machine, {} launches for each pool", settings.iterations)?;
    let idle = measure(&settings, cpus, &pools)?;
    add(&mut report, "idle machine", &idle);
    let hogs = Hogs::start(cpus, settings.hogs.into())?;
    writeln!(out, "beside {} hogs a CPU, {} launches", settings.hogs, settings.iterations)?;
    let busy = measure(&settings, cpus, &pools)?;
    drop(hogs);
    add(&mut report, &format!("beside {} hogs a CPU", settings.hogs), &busy);
    judge(&mut report, &idle, &busy)?;
    if let Some(cpu) = arguments.take_cpu {
        writeln!(out, "CPU {cpu} goes and comes")?;
        hotplug::run(cpu, &pools, &mut report)?;
    }
    report.add_remark(format!("items that took the fallback: {}", pools.fallbacks()));
    Ok(report)
}

/// Launches on each pool in turn, by a thread of its own: the CPUs of a process are those of its first
/// thread, and to bind that one would take CPUs away from the pools.
fn measure(
    settings: &SchedulingArguments,
    cpus: &CpuSet,
    pools: &Pools,
) -> Result<[Column; NAMES.len()]> {
    thread::scope(|scope| {
        let reader = thread::Builder::new().name("reader".to_owned());
        let reader = reader.spawn_scoped(scope, || read(settings, cpus, pools))?;
        reader.join().unwrap_or_else(|_| bail!("the reader panicked"))
    })
}

/// What the reader does; the CPU on which it is goes round.
fn read(
    settings: &SchedulingArguments,
    cpus: &CpuSet,
    pools: &Pools,
) -> Result<[Column; NAMES.len()]> {
    let mut columns: [Column; NAMES.len()] = Default::default();
    for iteration in 0..settings.iterations + WARM_UP {
        let cpu = cpus.iter().nth(usize::from(iteration) % cpus.len()).context("no CPU")?;
        CpuSet::from_iter([cpu]).bind_current_thread().context("binding the reader")?;
        for (number, column) in columns.iter_mut().enumerate() {
            let burst = burst::run(settings.items.into(), &|work| pools.submit(number, work))?;
            if iteration >= WARM_UP {
                column.launches.push(micros(burst.iter().sum()));
                burst.iter().for_each(|&item| column.items.push(micros(item)));
            }
        }
    }
    Ok(columns)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn add(report: &mut Report, case: &str, columns: &[Column; NAMES.len()]) {
    report
        .add_table(launch_table(case, &columns.each_ref().map(|column| column.launches.summary())));
    report.add_table(item_table(case, columns));
    let title = format!("Scheduling latency of a launch, {case}");
    let mut plot = Plot::cdf(title, "us, all items of a launch together").log_x();
    for (name, column) in NAMES.iter().zip(columns) {
        plot.add_samples(*name, &column.launches);
    }
    report.add_plot(plot);
    for (name, column) in NAMES.iter().zip(columns) {
        for (kind, samples) in [("launch", &column.launches), ("item", &column.items)] {
            report.add_series(Series {
                row: (*name).to_owned(),
                case: format!("{case}, {kind}"),
                unit: "us",
                samples: samples.clone(),
            });
        }
    }
}

/// The seed's table.
fn launch_table(case: &str, columns: &[Summary; NAMES.len()]) -> Table {
    let title = format!("Scheduling latency of a launch, {case}");
    let header = [&[""], NAMES.as_slice(), &["diff"]].concat();
    let mut table = Table::new(title, header);
    let [unbound, normal, raised] = columns.each_ref().map(Summary::lines);
    for ((name, unbound), ((_, normal), (_, raised))) in
        unbound.into_iter().zip(normal.into_iter().zip(raised))
    {
        let difference = difference_percent(unbound, raised);
        table.add([
            name.to_owned(),
            format!("{unbound:.0}"),
            format!("{normal:.0}"),
            format!("{raised:.0}"),
            format!("{difference:+.2} %"),
        ]);
    }
    table
}

fn item_table(case: &str, columns: &[Column; NAMES.len()]) -> Table {
    let title = format!("From submission to start of one item (us), {case}");
    let mut table = Table::new(title, ["pool", "median", "p99", "max"]);
    for (name, column) in NAMES.iter().zip(columns) {
        let at = |thousandths| format!("{:.1}", column.items.percentile(thousandths));
        table.add([(*name).to_owned(), at(500), at(990), at(1000)]);
    }
    table
}

/// Says which marks were met.
fn judge(
    report: &mut Report,
    idle: &[Column; NAMES.len()],
    busy: &[Column; NAMES.len()],
) -> Result<()> {
    let [unbound, _, raised] = busy.each_ref().map(|column| column.launches.summary());
    let average = difference_percent(unbound.average, raised.average);
    let deviation = difference_percent(unbound.deviation, raised.deviation);
    let [_, _, idle_raised] = idle.each_ref().map(|column| column.items.percentile(990));
    let (average_mark, deviation_mark) = (report.mark("average")?, report.mark("deviation")?);
    report.add_remark(format!(
        "beside hogs, from unbound to raised: average {average:+.2} % {}, standard deviation {deviation:+.2} % {}",
        average_mark.verdict(&[average]),
        deviation_mark.verdict(&[deviation])
    ));
    let idle_mark = report.mark("idle")?;
    report.add_remark(format!(
        "idle, raised: 99 of 100 items start within {idle_raised:.1} us {}",
        idle_mark.verdict(&[idle_raised])
    ));
    let why = "see above which priority the workers reached";
    report.claim("000", "average", &[average], why)?;
    report.claim("000", "deviation", &[deviation], why)
}

#[cfg(test)]
mod tests {
    use super::launch_table;
    use crate::statistics::Samples;

    #[test]
    fn the_table_has_the_shape_of_the_seed() {
        let of = |values: [f64; 2]| Samples::from_iter(values).summary();
        let table = launch_table("idle", &[of([90.0, 110.0]), of([40.0, 60.0]), of([9.0, 11.0])]);
        let text = table.to_string();
        assert!(text.contains("| Average (us)            |                 100 |      50 |"));
        assert!(text.contains("-90.00 %"));
        assert!(text.contains("Standard deviation (us)"));
    }
}
