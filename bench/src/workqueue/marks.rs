//! Whether our queue reached its marks beside the others: a sentence each. Only marks whose rows were run are judged;
//! the seed's claims say so where they were not.

use anyhow::Result;

use crate::case::Mark;
use crate::report::Report;
use crate::rows::RowName;

/// The seed's rows and the peers that do the same: a stream from one submitter.
const OTHERS: [RowName; 6] = [
    RowName::Original,
    RowName::Batching,
    RowName::PerThread,
    RowName::RoundRobin,
    RowName::Rayon,
    RowName::Crossbeam,
];

/// How fast one row was with one number of workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rate {
    pub(super) name: RowName,
    pub(super) threads: u16,
    pub(super) pages_per_second: f64,
}

/// What a case allows.
#[derive(Debug)]
struct Marks {
    flat: Mark,
    inline_share: Mark,
    inline_micros: Mark,
}

/// Adds the sentences and the claims.
///
/// # Errors
/// When the case lacks a mark.
pub(super) fn judge(rates: &[Rate], report: &mut Report) -> Result<()> {
    let marks = Marks {
        flat: report.mark("flat")?,
        inline_share: report.mark("inline-share")?,
        inline_micros: report.mark("inline-micros")?,
    };
    for sentence in sentences(rates, &marks) {
        report.add_remark(sentence);
    }
    claim(rates, report)
}

/// The seed's claims: flat, and ahead of the original.
fn claim(rates: &[Rate], report: &mut Report) -> Result<()> {
    let ours: Vec<&Rate> = rates.iter().filter(|rate| rate.name == RowName::Ours).collect();
    let best = ours.iter().map(|rate| rate.pages_per_second).fold(f64::NAN, f64::max);
    let (share, at) = least(ours.iter().map(|own| (own.pages_per_second / best, own.threads)));
    let share = if ours.len() > 1 { share } else { f64::NAN };
    let why = if share.is_nan() {
        "ours was not run with several numbers of workers".to_owned()
    } else {
        format!("least with {at} workers")
    };
    report.claim("002", "flat", &[share], &why)?;
    let (ratio, at) = least(ours.iter().filter_map(|own| {
        let original = find(rates, RowName::Original, own.threads)?;
        Some((own.pages_per_second / original.pages_per_second, own.threads))
    }));
    let why = if ratio.is_nan() {
        "ours or the original was not run".to_owned()
    } else {
        format!("least with {at} workers")
    };
    report.claim("002", "ahead", &[ratio], &why)
}

/// The least of some figures, with its number of workers; NaN of none.
fn least(figures: impl Iterator<Item = (f64, u16)>) -> (f64, u16) {
    figures.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::NAN, 0))
}

fn sentences(rates: &[Rate], marks: &Marks) -> Vec<String> {
    let ours: Vec<&Rate> = rates.iter().filter(|rate| rate.name == RowName::Ours).collect();
    let best = ours.iter().map(|rate| rate.pages_per_second).fold(f64::NAN, f64::max);
    let mut sentences = Vec::new();
    for &own in &ours {
        let at = |name| find(rates, name, own.threads);
        if let (1, Some(inline)) = (own.threads, at(RowName::Inline)) {
            sentences.push(against_inline(own, inline, marks));
        }
        if ours.len() > 1 {
            let share = own.pages_per_second / best;
            sentences.push(format!(
                "ours with {} workers: {share:.2} of its best {}",
                own.threads,
                marks.flat.verdict(&[share])
            ));
        }
        let others = OTHERS.into_iter().filter_map(at);
        let fastest = others.max_by(|a, b| a.pages_per_second.total_cmp(&b.pages_per_second));
        sentences.extend(fastest.map(|other| against(own, other)));
    }
    sentences
}

fn find(rates: &[Rate], name: RowName, threads: u16) -> Option<&Rate> {
    rates.iter().find(|rate| rate.name == name && rate.threads == threads)
}

fn against_inline(own: &Rate, inline: &Rate, marks: &Marks) -> String {
    let (own, inline) = (1e6 / own.pages_per_second, 1e6 / inline.pages_per_second);
    let most = inline * marks.inline_share.value + marks.inline_micros.value;
    let held = if own <= most { "held" } else { "NOT held" };
    format!("ours with 1 worker: {own:.2} us an item, inline {inline:.2} (mark {most:.2}: {held})")
}

fn against(own: &Rate, other: &Rate) -> String {
    let ratio = own.pages_per_second / other.pages_per_second;
    format!(
        "ours with {} workers: {ratio:.2} times the fastest other stream, {}",
        own.threads,
        other.name.text(),
    )
}

#[cfg(test)]
mod tests {
    use super::{Rate, judge};
    use crate::report::Report;
    use crate::rows::RowName;

    fn rate(name: RowName, threads: u16, pages_per_second: f64) -> Rate {
        Rate { name, threads, pages_per_second }
    }

    fn said(rates: &[Rate]) -> String {
        let mut report = Report::new("workqueue", &()).unwrap();
        judge(rates, &mut report).unwrap();
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn each_mark_has_its_sentence() {
        let said = said(&[
            rate(RowName::Inline, 1, 200_000.0),
            rate(RowName::Ours, 1, 200_000.0),
            rate(RowName::Rayon, 1, 100_000.0),
            rate(RowName::Ours, 2, 100_000.0),
            rate(RowName::Original, 2, 200_000.0),
        ]);
        for line in [
            "ours with 1 worker: 5.00 us an item, inline 5.00 (mark 6.25: held)",
            "ours with 1 workers: 1.00 of its best (mark 0.9 of its best: held)",
            "ours with 1 workers: 2.00 times the fastest other stream, rayon",
            "ours with 2 workers: 0.50 of its best (mark 0.9 of its best: NOT held)",
            "ours with 2 workers: 0.50 times the fastest other stream, original",
            "0.50 of its best here, NOT held (least with 2 workers)",
            "0.50 times the original here, NOT held (least with 2 workers)",
        ] {
            assert!(said.contains(line), "{line} is missing in {said}");
        }
    }

    #[test]
    fn without_our_row_nothing_is_judged() {
        let said = said(&[rate(RowName::Rayon, 1, 1.0)]);
        assert_eq!(said.matches("not measured: ours").count(), 2, "{said}");
        assert!(!said.contains("(mark"), "{said}");
    }
}
