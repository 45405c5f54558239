//! What our queue is to reach beside the others, and whether it did: one sentence a mark. Only marks
//! whose rows were run are judged.

use crate::report::{Report, held};
use crate::rows::RowName;

/// What the queue may cost beside the work itself with one worker: a share, and us an item.
const INLINE_SHARE: f64 = 1.05;
const INLINE_MICROS: f64 = 1.0;
/// The least that is left of our best with any other number of workers.
const COLLAPSE_MARK: f64 = 0.9;
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

/// Adds the sentences.
pub(super) fn judge(rates: &[Rate], report: &mut Report) {
    for sentence in sentences(rates) {
        report.add_remark(sentence);
    }
}

fn sentences(rates: &[Rate]) -> Vec<String> {
    let ours: Vec<&Rate> = rates.iter().filter(|rate| rate.name == RowName::Ours).collect();
    let best = ours.iter().map(|rate| rate.pages_per_second).fold(f64::NAN, f64::max);
    let mut sentences = Vec::new();
    for &own in &ours {
        let at = |name| find(rates, name, own.threads);
        if let (1, Some(inline)) = (own.threads, at(RowName::Inline)) {
            sentences.push(against_inline(own, inline));
        }
        if ours.len() > 1 {
            let share = own.pages_per_second / best;
            sentences.push(format!(
                "ours with {} workers: {share:.2} of its best (mark {COLLAPSE_MARK}: {})",
                own.threads,
                held(share >= COLLAPSE_MARK)
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

fn against_inline(own: &Rate, inline: &Rate) -> String {
    let (own, inline) = (1e6 / own.pages_per_second, 1e6 / inline.pages_per_second);
    let most = inline * INLINE_SHARE + INLINE_MICROS;
    format!(
        "ours with 1 worker: {own:.2} us an item, inline {inline:.2} (mark {most:.2}: {})",
        held(own <= most)
    )
}

fn against(own: &Rate, other: &Rate) -> String {
    let ratio = own.pages_per_second / other.pages_per_second;
    format!(
        "ours with {} workers: {ratio:.2} times the fastest other stream, {} (mark 1: {})",
        own.threads,
        other.name.text(),
        held(ratio >= 1.0)
    )
}

#[cfg(test)]
mod tests {
    use super::{Rate, sentences};
    use crate::rows::RowName;

    fn rate(name: RowName, threads: u16, pages_per_second: f64) -> Rate {
        Rate { name, threads, pages_per_second }
    }

    #[test]
    fn each_mark_has_its_sentence() {
        let said = sentences(&[
            rate(RowName::Inline, 1, 200_000.0),
            rate(RowName::Ours, 1, 200_000.0),
            rate(RowName::Rayon, 1, 100_000.0),
            rate(RowName::Ours, 2, 100_000.0),
            rate(RowName::Original, 2, 200_000.0),
        ]);
        assert_eq!(
            said,
            [
                "ours with 1 worker: 5.00 us an item, inline 5.00 (mark 6.25: held)",
                "ours with 1 workers: 1.00 of its best (mark 0.9: held)",
                "ours with 1 workers: 2.00 times the fastest other stream, rayon (mark 1: held)",
                "ours with 2 workers: 0.50 of its best (mark 0.9: NOT held)",
                "ours with 2 workers: 0.50 times the fastest other stream, original (mark 1: NOT held)",
            ]
        );
    }

    #[test]
    fn without_our_row_nothing_is_judged() {
        assert!(sentences(&[rate(RowName::Rayon, 1, 1.0)]).is_empty());
    }
}
