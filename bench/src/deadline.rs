//! Until when an experiment begins something new, so that all of them have their time in a report also where the machine
//! is slow or its host takes much of it. What is under way comes to its end, and of everything there is a figure.

use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

/// The option.
#[derive(Debug, Clone, Copy, Default, Args, Serialize)]
pub(crate) struct TimeLimit {
    /// Begin nothing new after so many seconds, of which every part gets its share; some is measured of everything
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: Option<u32>,
}

impl TimeLimit {
    #[cfg(test)]
    pub(crate) const fn of_seconds(seconds: u32) -> Self {
        Self { seconds: Some(seconds) }
    }

    /// From now on.
    pub(crate) fn deadline(self) -> Deadline {
        let seconds = self.seconds.map(|seconds| Duration::from_secs(seconds.into()));
        Deadline(seconds.and_then(|seconds| Instant::now().checked_add(seconds)))
    }

    /// The option as words, for a process that does the measuring.
    pub(crate) fn word(self) -> Option<String> {
        self.seconds.map(|seconds| format!("--seconds={seconds}"))
    }
}

/// A moment, or never.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const fn instant(self) -> Option<Instant> {
        self.0
    }

    /// Whether it has come.
    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }

    /// When this share, of 1, of what is left until then will have gone by.
    pub(crate) fn share(self, share: f64) -> Self {
        let now = Instant::now();
        Self(self.0.map(|end| now + end.saturating_duration_since(now).mul_f64(share)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Deadline, TimeLimit};

    #[test]
    fn a_share_is_of_what_is_left() {
        let whole = TimeLimit::of_seconds(100).deadline();
        let half = whole.share(0.5).instant().unwrap();
        let left = half.saturating_duration_since(Instant::now());
        assert!(left > Duration::from_secs(49) && left <= Duration::from_secs(50), "{left:?}");
        assert!(!whole.is_over() && whole.share(0.0).is_over());
        let over = Deadline(Some(Instant::now()));
        assert!(over.is_over() && over.share(1.0).is_over());
    }

    #[test]
    fn without_the_option_it_never_comes() {
        let never = TimeLimit::default();
        assert!(!never.deadline().is_over() && !never.deadline().share(0.0).is_over());
        assert_eq!(never.word(), None);
        assert_eq!(TimeLimit::of_seconds(7).word().unwrap(), "--seconds=7");
    }
}
