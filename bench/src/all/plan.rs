//! How an experiment is called among all: its case says with which words, and where images and folders stand in them.
//! Needs are looked at before anything starts.

use anyhow::{Context, Result};
use clap::Parser;

use super::material::Material;
use crate::arguments::Arguments;
use crate::case::Case;
use crate::need;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// As little as possible.
    Quick,
    /// What the case says.
    Usual,
    /// What the case says for where there is time, beginning nothing new after so many seconds.
    AtLength(u64),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// To start it with these words.
    Run(Vec<String>),
    /// Not to, and why.
    LeaveOut(String),
}

/// What to do about an experiment with what there is.
///
/// # Errors
/// When the words of its case are no command.
pub(super) fn step(experiment: &str, material: &Material, extent: Extent) -> Result<Step> {
    let case = Case::of(experiment)?;
    let mut words = vec![experiment.to_owned()];
    let of_case = if let Extent::AtLength(_) = extent { &case.at_length } else { &case.run };
    for word in of_case {
        match filled(word, material) {
            Filled::Word(word) => words.push(word),
            Filled::Dropped => {}
            Filled::Missing(why) => return Ok(Step::LeaveOut(why)),
        }
    }
    match extent {
        Extent::Quick if !words.iter().any(|word| word == "--quick") => {
            words.push("--quick".to_owned());
        }
        Extent::AtLength(seconds) => words.push(format!("--seconds={seconds}")),
        Extent::Quick | Extent::Usual => {}
    }
    let Some(missing) = missing(&words)? else { return Ok(Step::Run(words)) };
    words.extend(case.otherwise);
    Ok(if self::missing(&words)?.is_none() { Step::Run(words) } else { Step::LeaveOut(missing) })
}

/// What such a command needs and has not.
fn missing(words: &[String]) -> Result<Option<String>> {
    let program = ["ferrofs-bench".to_owned()];
    let parsed = Arguments::try_parse_from(program.iter().chain(words));
    let parsed = parsed.with_context(|| format!("the words {}", words.join(" ")))?;
    Ok(need::missing(&parsed.experiment.needs()))
}

/// A word of a case.
enum Filled {
    Word(String),
    /// An option that has nothing to name.
    Dropped,
    /// Without what it names there is no experiment.
    Missing(String),
}

/// Puts what is there in the place of a name in braces.
fn filled(word: &str, material: &Material) -> Filled {
    for (name, path, what) in material.names() {
        if !word.contains(name) {
            continue;
        }
        return match path {
            Some(path) => Filled::Word(word.replace(name, &path.display().to_string())),
            None if word.starts_with("--") => Filled::Dropped,
            None => Filled::Missing(format!("needs {what}")),
        };
    }
    Filled::Word(word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Extent, Filled, Step, filled, step};
    use crate::all::material::Material;
    use crate::case::Case;

    fn material() -> Material {
        Material::of_paths("/proc/self/stat")
    }

    #[test]
    fn the_words_of_every_case_are_a_command() {
        for experiment in Case::experiments() {
            for extent in [Extent::Quick, Extent::Usual] {
                step(experiment, &material(), extent).unwrap();
            }
        }
    }

    #[test]
    fn what_is_quick_in_its_case_can_be_run_at_length() {
        for experiment in Case::experiments() {
            let case = Case::of(experiment).unwrap();
            let is_quick = case.run.iter().any(|word| word == "--quick");
            assert_eq!(is_quick, !case.at_length.is_empty(), "{experiment}");
            if is_quick {
                let words = match step(experiment, &material(), Extent::AtLength(7)).unwrap() {
                    Step::Run(words) => words,
                    // FUSE, for one, is not everywhere.
                    Step::LeaveOut(_) => continue,
                };
                assert_eq!(words.last().unwrap(), "--seconds=7");
                assert!(!words.iter().any(|word| word == "--quick"), "{experiment}");
            }
        }
    }

    #[test]
    fn an_option_without_its_folder_is_dropped_and_an_experiment_without_its_image_is_left_out() {
        let nothing = Material::default();
        assert!(matches!(filled("--peers={peers}", &nothing), Filled::Dropped));
        assert!(matches!(filled("-c", &nothing), Filled::Word(word) if word == "-c"));
        let Step::LeaveOut(why) = step("reads", &nothing, Extent::Quick).unwrap() else {
            panic!("reads without an image");
        };
        assert_eq!(why, "needs an image");
        let Step::Run(words) = step("reads", &material(), Extent::Quick).unwrap() else {
            panic!("reads with an image is left out");
        };
        assert_eq!(words.get(..2).unwrap(), ["reads", "/proc/self/stat"]);
        assert_eq!(words.last().unwrap(), "--quick");
    }
}
