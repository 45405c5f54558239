//! Rounds in which contestants take turns, so that whatever changes on the machine meanwhile meets all of them. Whoever is
//! first in a round is last in the next one. Knows nothing of what is measured.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::column::{Column, Sample};
use crate::deadline::TimeLimit;
use crate::interruption;

/// For how long a quick experiment begins something new. What is under way then comes to its end, within a minute in all.
const QUICK: Duration = Duration::from_secs(30);

/// How often is measured, and until when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    rounds: u16,
    warm_ups: u16,
    end: Option<Instant>,
}

impl Pace {
    /// So many rounds after those that do not count; when quick, at most two rounds and all of them count, in a limited
    /// time from now on.
    pub(super) fn new(rounds: u16, warm_ups: u16, is_quick: bool) -> Self {
        if is_quick {
            let end = Instant::now().checked_add(QUICK);
            return Self { rounds: rounds.min(2), warm_ups: 0, end };
        }
        Self { rounds, warm_ups, end: None }
    }

    /// Ends so long from now on, unless it ends earlier anyway.
    pub(super) fn within(self, limit: TimeLimit) -> Self {
        let end = limit.deadline().instant();
        Self { end: [self.end, end].into_iter().flatten().min(), ..self }
    }

    /// Its equal part for the first of so many cases that are left: what that does not take, the others have.
    pub(super) fn part(self, cases: usize) -> Self {
        let now = Instant::now();
        let cases = u32::try_from(cases).unwrap_or(u32::MAX).max(1);
        let end = self.end.map(|end| now + end.saturating_duration_since(now) / cases);
        Self { end, ..self }
    }

    /// For people.
    pub(super) fn sentence(self) -> String {
        let Self { rounds, warm_ups, end } = self;
        let limit = if end.is_some() { ", fewer where time runs out" } else { "" };
        format!("rounds: {rounds} after {warm_ups} that did not count, in turn{limit}")
    }

    /// Whether something that takes so long may still begin.
    pub(super) fn has_time_for(self, time: Duration) -> bool {
        let then = Instant::now().checked_add(time);
        self.end.is_none_or(|end| then.is_some_and(|then| then <= end))
    }
}

/// One that takes part.
#[derive(Debug)]
pub(super) struct Contestant<T> {
    pub(super) name: String,
    /// Ours must not fail; a peer that does is left out.
    pub(super) is_ours: bool,
    pub(super) what: T,
}

/// What a contest led to.
#[derive(Debug, Default)]
pub(super) struct Contest {
    /// Of those that did not fail, in their order.
    pub(super) columns: Vec<Column>,
    /// Who failed, and how.
    pub(super) failed: Vec<(String, String)>,
}

/// Has everybody measured in every round.
///
/// # Errors
/// When one of ours fails.
pub(super) fn interleave<T>(
    contestants: &[Contestant<T>],
    pace: Pace,
    mut measure: impl FnMut(&T) -> Result<Sample>,
) -> Result<Contest> {
    let mut columns: Vec<_> =
        contestants.iter().map(|one| (one, Column::new(&one.name), None)).collect();
    let mut longest = Duration::ZERO;
    for round in 0..pace.warm_ups.saturating_add(pace.rounds) {
        // The first round that counts is always made, so that there is a figure.
        if round > pace.warm_ups && !pace.has_time_for(longest) {
            break;
        }
        let begin = Instant::now();
        let first = usize::from(round) % columns.len().max(1);
        let (late, early) = columns.split_at_mut(first);
        for (one, column, failure) in early.iter_mut().chain(late) {
            if failure.is_some() {
                continue;
            }
            let measured = measure(&one.what);
            // Whoever failed now may have been ended by the same signal.
            interruption::check()?;
            match measured {
                Ok(sample) if round >= pace.warm_ups => column.push(&sample),
                Ok(_) => {}
                Err(error) if one.is_ours => return Err(error).context(one.name.clone()),
                Err(error) => *failure = Some(format!("{error:#}")),
            }
        }
        longest = longest.max(begin.elapsed());
    }
    let mut contest = Contest::default();
    for (one, column, failure) in columns {
        match failure {
            Some(error) => contest.failed.push((one.name.clone(), error)),
            None => contest.columns.push(column),
        }
    }
    Ok(contest)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use anyhow::{Result, bail};

    use super::{Contestant, Pace, TimeLimit, interleave};
    use crate::peers::column::{Figure, Sample};

    fn contestants(names: [&'static str; 3]) -> Vec<Contestant<&'static str>> {
        let one = |name: &'static str| Contestant {
            name: name.to_owned(),
            is_ours: name == "ours",
            what: name,
        };
        names.into_iter().map(one).collect()
    }

    fn wall(value: f64) -> Result<Sample> {
        Ok(Sample::from([(Figure::Wall, value)]))
    }

    #[test]
    fn whoever_is_first_changes_and_warm_ups_do_not_count() {
        let mut turns = String::new();
        let pace = Pace::new(2, 1, false);
        let contest = interleave(&contestants(["a", "b", "ours"]), pace, |name| {
            turns.push_str(&name[..1]);
            wall(turns.len() as f64)
        });
        assert_eq!(turns, "aboboaoab");
        let columns = contest.unwrap().columns;
        let samples: Vec<f64> = columns[0].figures[&Figure::Wall].values().collect();
        assert_eq!(samples, [6.0, 8.0]);
    }

    #[test]
    fn a_peer_that_fails_is_left_out_and_not_asked_again() {
        let mut asked = 0;
        let contest =
            interleave(&contestants(["a", "b", "ours"]), Pace::new(3, 0, false), |name| {
                asked += u32::from(*name == "b");
                match *name {
                    "b" => bail!("refused"),
                    _ => wall(1.0),
                }
            });
        let contest = contest.unwrap();
        assert_eq!((contest.columns.len(), asked), (2, 1));
        assert_eq!(contest.failed, [("b".to_owned(), "refused".to_owned())]);
    }

    #[test]
    fn a_case_takes_its_part_of_the_time_and_is_measured_once_at_least() {
        let whole = Pace::new(1000, 0, false);
        assert!(whole.part(7).has_time_for(Duration::from_secs(86_400)));
        let limited = whole.within(TimeLimit::of_seconds(100));
        for (cases, fits, not) in [(0, 99, 101), (1, 99, 101), (4, 24, 26), (100, 0, 2)] {
            let part = limited.part(cases);
            assert!(part.has_time_for(Duration::from_secs(fits)), "{cases}");
            assert!(!part.has_time_for(Duration::from_secs(not)), "{cases}");
        }
        let quick = Pace::new(1, 0, true).within(TimeLimit::of_seconds(86_400));
        assert!(!quick.has_time_for(Duration::from_secs(60)));
        let over = Pace { end: Some(Instant::now()), ..whole };
        let contest = interleave(&contestants(["a", "b", "ours"]), over, |_| wall(1.0)).unwrap();
        let samples = contest.columns.iter().map(|one| one.figures[&Figure::Wall].values().count());
        assert_eq!(samples.collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn ours_must_not_fail() {
        let pace = Pace::new(1, 0, true);
        let contest = interleave(&contestants(["a", "b", "ours"]), pace, |name| match *name {
            "ours" => bail!("broken"),
            _ => wall(1.0),
        });
        assert_eq!(format!("{:#}", contest.unwrap_err()), "ours: broken");
        assert!(pace.has_time_for(Duration::from_secs(1)));
        assert!(!pace.has_time_for(Duration::from_secs(3600)));
        assert!(pace.sentence().starts_with("rounds: 1 after 0"), "{}", pace.sentence());
    }
}
