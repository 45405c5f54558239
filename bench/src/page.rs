//! The page on all experiments: one file with its plots and styles in it, for light and dark screens, without scripts
//! and without anything from a network. Made from what the experiments left in their folder.

mod escape;
mod found;
mod render;

pub(crate) use found::Found;
pub(crate) use render::render;

use crate::case::Case;
use crate::claim::Held;
use found::FoundClaim;

/// What became of an experiment.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(Box<Found>),
    Failed(String),
    LeftOut(String),
}

impl Outcome {
    /// For a line of progress.
    pub(crate) fn word(&self) -> String {
        match self {
            Self::Done(found) if found.is_too_noisy() => "done, too noisy".to_owned(),
            Self::Done(_) => "done".to_owned(),
            Self::Failed(why) => format!("failed: {why}"),
            Self::LeftOut(why) => format!("left out: {why}"),
        }
    }

    /// How many claims have a figure, whether they held or not.
    pub(crate) fn measured_claims(&self) -> usize {
        let Self::Done(found) = self else { return 0 };
        let is_measured = |claim: &&FoundClaim| !matches!(claim.held, Held::NotMeasured(_));
        found.claims.iter().filter(is_measured).count()
    }
}

/// An experiment and what became of it.
#[derive(Debug)]
pub(crate) struct Chapter {
    pub(crate) experiment: &'static str,
    pub(crate) case: Case,
    pub(crate) outcome: Outcome,
}
