//! The table of launches: what each way of reading ahead spends in getting frames, and whether the marks
//! hold. Called by the experiment; measures nothing.

use super::launch::{Launch, WayLaunches};
use crate::arguments::RequestArguments;
use crate::report::{Report, Series, held};
use crate::statistics::{Samples, Summary, difference_percent};
use crate::table::Table;

/// What each way is to save, in per cent, of the mean and of the median, which other load moves less: best effort alone, with the smaller window too, and
/// with the largest reserve.
const MARKS: [(&str, f64); 5] = [
    ("64k, best effort", -20.0),
    ("16k, best effort", -50.0),
    ("64k, reserve of 256", -95.0),
    ("64k, best effort, reserve of 256", -95.0),
    ("16k, best effort, reserve of 256", -95.0),
];

fn summary(way: &WayLaunches, value: impl Fn(&Launch) -> f64) -> Summary {
    way.launches.iter().map(value).collect::<Samples>().summary()
}

/// Adds the table, whether the marks held, and every launch.
pub(super) fn add(report: &mut Report, ways: &[WayLaunches], requests: RequestArguments) {
    let Some(baseline) = ways.first().map(|way| summary(way, |launch| launch.getting_ns)) else {
        return;
    };
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
    for (name, mark) in MARKS {
        if let Some(way) = ways.iter().find(|way| way.way == name) {
            let getting = summary(way, |launch| launch.getting_ns);
            let mean = difference_percent(baseline.average, getting.average);
            let median = difference_percent(baseline.median, getting.median);
            report.add_remark(format!(
                "{name}: mean {mean:+.2} %, median {median:+.2} % (mark {mark} % for both: {})",
                held(mean <= mark && median <= mark)
            ));
        }
    }
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
        format!("{:.0}", most(|launch| launch.most_held.into())),
        mean(|launch| launch.dropped),
        mean(|launch| launch.repeated),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::launch::{Launch, Way, WayLaunches};
    use super::super::requests::Mix;
    use super::{MARKS, add};
    use crate::arguments::RequestArguments;
    use crate::report::Report;

    #[test]
    fn every_mark_belongs_to_a_way() {
        for (name, _) in MARKS {
            assert!(Way::all().any(|way| way.name() == name), "{name}");
        }
    }

    #[test]
    fn a_way_is_compared_with_the_first_and_with_its_mark() {
        let way = |name: &str, getting_ns| WayLaunches {
            way: name.to_owned(),
            launches: vec![Launch { getting_ns, ..Launch::default() }],
            from_system: 3,
        };
        let ways = [way("64k", 2e6), way("64k, best effort", 1e6), way("16k, best effort", 1.5e6)];
        let requests = RequestArguments { extents: Mix::Seed, readahead: 50, used: 50 };
        let mut report = Report::new("pages", &requests).unwrap();
        add(&mut report, &ways, requests);
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains(
                "64k, best effort: mean -50.00 %, median -50.00 % (mark -20 % for both: held)"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "16k, best effort: mean -25.00 %, median -25.00 % (mark -50 % for both: NOT held)"
            ),
            "{text}"
        );
    }
}
