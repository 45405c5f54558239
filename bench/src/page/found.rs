//! What an experiment left in the folder: its JSON, without the samples, and its plots.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::claim::Held;
use crate::machine::Machine;
use crate::report::{LeftOut, Noise, PeerCommand, plot_name};
use crate::table::Table;

/// The part of a report that the page shows.
#[derive(Debug, Deserialize)]
pub(crate) struct Found {
    pub(super) command: Vec<String>,
    pub(super) machine: Machine,
    pub(super) load_average_after: String,
    #[serde(default)]
    pub(super) stolen_percent: f64,
    pub(super) tables: Vec<Table>,
    pub(super) remarks: Vec<String>,
    pub(super) claims: Vec<FoundClaim>,
    pub(super) noise: Vec<Noise>,
    pub(super) left_out: Vec<LeftOut>,
    pub(super) peer_commands: Vec<PeerCommand>,
    /// Each an SVG.
    #[serde(skip)]
    pub(super) plots: Vec<String>,
}

/// A claim as it was kept.
#[derive(Debug, Deserialize)]
pub(super) struct FoundClaim {
    pub(super) seed: String,
    pub(super) claim: String,
    pub(super) ours: String,
    pub(super) held: Held,
    pub(super) why_not: Option<String>,
}

impl Found {
    /// Reads it.
    ///
    /// # Errors
    /// When the JSON is missing or another's, or a plot cannot be read.
    pub(crate) fn read(experiment: &str, folder: &Path) -> Result<Self> {
        let path = folder.join(format!("{experiment}.json"));
        let json = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let found: Self =
            serde_json::from_slice(&json).with_context(|| format!("reading {}", path.display()))?;
        let paths = (0..).map(|index| folder.join(plot_name(experiment, index)));
        let plots = paths.take_while(|path| path.exists()).map(|path| {
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        });
        Ok(Self { plots: plots.collect::<Result<_>>()?, ..found })
    }

    /// What takes weight from its claims.
    pub(super) fn doubt(&self) -> &'static str {
        if self.is_too_noisy() {
            "the run was too noisy"
        } else if self.command.iter().any(|word| word == "--quick") {
            "a quick run"
        } else {
            ""
        }
    }

    /// Whether its repetitions were too far apart.
    pub(crate) fn is_too_noisy(&self) -> bool {
        !self.noise.is_empty()
    }
}
