//! What a seed says and what was found here: one sentence each, at the end of a report and at the top of the page.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether a claim held on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::enum_variant_names, reason = "they are read alone, as the verdict that they are")]
pub(crate) enum Held {
    Held,
    NotHeld,
    /// With the reason.
    NotMeasured(String),
}

impl Held {
    /// By whether a mark was met.
    pub(crate) fn by(is_held: bool) -> Self {
        if is_held { Self::Held } else { Self::NotHeld }
    }
}

/// A claim of a seed, and ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Claim {
    /// The seed's number, such as "000".
    pub(crate) seed: &'static str,
    /// What it says, with the mark that was set by it, such as "the average is 80 % lower".
    pub(crate) claim: String,
    /// The figure that stands against it, such as "-84.1 %".
    pub(crate) ours: String,
    pub(crate) held: Held,
    /// What is known of the cause where it did not hold.
    pub(crate) why_not: Option<String>,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ", self.seed, self.claim)?;
        match &self.held {
            Held::Held => write!(f, "{} here, held", self.ours)?,
            Held::NotHeld => write!(f, "{} here, NOT held", self.ours)?,
            Held::NotMeasured(reason) => write!(f, "not measured: {reason}")?,
        }
        self.why_not.iter().try_for_each(|why| write!(f, " ({why})"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Claim, Held};

    #[test]
    fn a_claim_is_a_sentence() {
        let claim = Claim {
            seed: "003",
            claim: "2 threads take 45 % less time".to_owned(),
            ours: "-12.0 %".to_owned(),
            held: Held::by(false),
            why_not: Some("memory is no faster by two".to_owned()),
        };
        let sentence = "003: 2 threads take 45 % less time: -12.0 % here, NOT held (memory is no faster by two)";
        assert_eq!(claim.to_string(), sentence);
        let claim = Claim { held: Held::NotMeasured("one CPU".to_owned()), why_not: None, ..claim };
        assert_eq!(claim.to_string(), "003: 2 threads take 45 % less time: not measured: one CPU");
    }
}
