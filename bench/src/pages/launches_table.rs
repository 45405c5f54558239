//! The table of launches: what each way of reading ahead spends in getting frames, and whether the marks
//! hold. Called by the experiment; measures nothing.

use anyhow::Result;

use super::launch::{Launch, WayLaunches};
use crate::arguments::RequestArguments;
use crate::plot::Plot;
use crate::report::{Report, Series};
use crate::statistics::{Samples, Summary, difference_percent};
use crate::table::Table;

/// The ways that the marks are for, by name, with the seeds that claim so: the smaller window alone, best effort
/// alone, both, and the largest reserve.
const MARKED: [(&str, &str, &[&str]); 4] = [
    ("16k", "window", &["001", "004"]),
    ("64k, best effort", "best-effort", &["004"]),
    ("16k, best effort", "together", &["004"]),
    ("64k, reserve of 256", "reserve", &["001"]),
];
/// What the mail calls sufficient for 95 % of scenarios, in frames.
const SUFFICIENT: u32 = 64;

fn summary(way: &WayLaunches, value: impl Fn(&Launch) -> f64) -> Summary {
    way.launches.iter().map(value).collect::<Samples>().summary()
}

/// Adds the table, whether the marks held, and every launch.
///
/// # Errors
/// When the case lacks a mark.
pub(super) fn add(
    report: &mut Report,
    ways: &[WayLaunches],
    requests: RequestArguments,
) -> Result<()> {
    let Some(first) = ways.first() else { return Ok(()) };
    let baseline = summary(first, |launch| launch.getting_ns);
    let mut table = Table::new(
        format!(
            "Launches of programs at the limit of a memory cgroup: getting bounce frames \
             (extents: {}; readahead {} %, of that used {} %)",
            requests.extents.name(),
            requests.readahead,
            requests.used
        ),
        [
            "way",
            "mean ms",
            "diff",
            "median ms",
            "diff",
            "max ms",
            "diff",
            "longest frame us",
            "frames",
            "from system",
            "most held",
            "dropped",
            "made again",
        ],
    );
    for way in ways {
        table.add(row(way, &baseline));
        report.add_series(Series {
            row: way.way.clone(),
            case: "getting frames in a launch at the limit".to_owned(),
            unit: "ns",
            samples: way.launches.iter().map(|launch| launch.getting_ns).collect(),
        });
    }
    report.add_table(table);
    report.add_remark(
        "launches: frames, dropped and made again are means of a launch; the times hold refused attempts \
         and what was made again",
    );
    report.add_plot(bars(ways));
    report.add_plot(plot(ways));
    add_demand(report, first)?;
    for (name, mark, seeds) in MARKED {
        let Some(way) = ways.iter().find(|way| way.way == name) else { continue };
        let getting = summary(way, |launch| launch.getting_ns);
        let mean = difference_percent(baseline.average, getting.average);
        let median = difference_percent(baseline.median, getting.median);
        let verdict = report.mark(mark)?.verdict(&[mean, median]);
        report.add_remark(format!("{name}: mean {mean:+.2} %, median {median:+.2} % {verdict}"));
        for seed in seeds {
            report.claim(seed, mark, &[mean], &format!("by the median {median:+.1} %"))?;
        }
    }
    Ok(())
}

/// What a launch spent in each way.
fn bars(ways: &[WayLaunches]) -> Plot {
    let title = "Getting bounce frames in a launch, at the limit of a memory cgroup";
    let mut plot = Plot::bars(title, "ms, mean, and least to most").log_y();
    for way in ways {
        let millis = summary(way, |launch| launch.getting_ns / 1e6);
        plot.add_bar(way.way.clone(), "", millis.average, millis.minimum, millis.maximum);
    }
    plot
}

/// How that was distributed.
fn plot(ways: &[WayLaunches]) -> Plot {
    let mut plot = Plot::cdf("The same, launch by launch", "ms of a launch").log_x();
    // Ten lines can be told apart; a reserve with best effort looks as one without.
    for way in ways.iter().filter(|way| !way.way.contains("best effort, reserve")) {
        let millis = way.launches.iter().map(|launch| launch.getting_ns / 1e6);
        plot.add_samples(way.way.clone(), &millis.collect());
    }
    plot
}

/// How much of what was held together, where nothing limits it, so many frames would have covered.
fn add_demand(report: &mut Report, first: &WayLaunches) -> Result<()> {
    let held: Samples = first
        .launches
        .iter()
        .flat_map(|launch| &launch.held)
        .map(|&frames| f64::from(frames))
        .collect();
    let covered = |frames: u32| {
        let within = held.values().filter(|&value| value <= f64::from(frames)).count();
        within as f64 / held.values().count() as f64 * 100.0
    };
    let [some, all] = [SUFFICIENT, 256].map(covered);
    report.add_remark(format!(
        "of the bursts of the first way {SUFFICIENT} frames cover {some:.1} %, 256 cover {all:.1} %; the most was {:.0}",
        held.summary().maximum
    ));
    let mut plot = Plot::cdf("Bounce frames that are wanted at a time", "frames");
    plot.add_samples(first.way.clone(), &held);
    report.add_plot(plot);
    report.claim("001", "demand", &[some], "nothing was launched")
}

fn row(way: &WayLaunches, baseline: &Summary) -> [String; 13] {
    let getting = summary(way, |launch| launch.getting_ns);
    let millis = |nanos: f64| format!("{:.3}", nanos / 1e6);
    let percent = |before, after| format!("{:+.2} %", difference_percent(before, after));
    let mean = |value: fn(&Launch) -> u32| {
        format!("{:.1}", summary(way, |launch| value(launch).into()).average)
    };
    let most = |value: fn(&Launch) -> f64| summary(way, value).maximum;
    let per_launch = way.from_system as f64 / way.launches.len() as f64;
    [
        way.way.clone(),
        millis(getting.average),
        percent(baseline.average, getting.average),
        millis(getting.median),
        percent(baseline.median, getting.median),
        millis(getting.maximum),
        percent(baseline.maximum, getting.maximum),
        format!("{:.1}", most(|launch| launch.longest_ns) / 1e3),
        mean(|launch| launch.frames),
        format!("{per_launch:.1}"),
        format!("{:.0}", most(|launch| launch.most_held().into())),
        mean(|launch| launch.dropped),
        mean(|launch| launch.repeated),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::launch::{Launch, Way, WayLaunches};
    use super::super::requests::Mix;
    use super::{MARKED, add};
    use crate::arguments::RequestArguments;
    use crate::report::Report;

    #[test]
    fn every_mark_belongs_to_a_way() {
        for (name, _, _) in MARKED {
            assert!(Way::all().any(|way| way.name() == name), "{name}");
        }
    }

    #[test]
    fn a_way_is_compared_with_the_first_and_with_its_mark() {
        let way = |name: &str, getting_ns| WayLaunches {
            way: name.to_owned(),
            launches: vec![Launch { getting_ns, held: vec![10, 64, 65, 9], ..Launch::default() }],
            from_system: 3,
        };
        let ways = [way("64k", 2e6), way("64k, best effort", 1e6), way("16k, best effort", 1.5e6)];
        let requests = RequestArguments { extents: Mix::Seed, readahead: 50, used: 50 };
        let mut report = Report::new("pages", &requests).unwrap();
        add(&mut report, &ways, requests).unwrap();
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "64k, best effort: mean -50.00 %, median -50.00 % (mark -20 % for both: held)",
            "16k, best effort: mean -25.00 %, median -25.00 % (mark -50 % for both: NOT held)",
            "64 frames cover 75.0 %, 256 cover 100.0 %; the most was 65",
            "004: both together change it by -50 % or more: -25.0 % here, NOT held (by the median -25.0 %)",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
    }
}
