//! The page on all experiments: one HTML file with its plots and styles, without scripts and without anything from a
//! network. Made by the template `page.html` from what the experiments wrote.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use minijinja::Environment;
use minijinja::value::Serde;
use serde_json::{Value, json};

use crate::case::Case;
use crate::report::{Report, Verdict, plot_name};

/// The mails that results are compared with, by subject.
const ORIGINS: [(&str, &str); 5] = [
    ("000", "workers bound to CPUs"),
    ("001", "reserve of pages"),
    ("002", "work queue with per-thread state"),
    ("003", "multithreaded jobs"),
    ("004", "best effort for readahead"),
];

/// What an experiment wrote.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) report: Report,
    /// SVG.
    pub(crate) plots: Vec<String>,
}

impl Written {
    pub(crate) fn read(experiment: &str, folder: &Path) -> Result<Self> {
        let path = folder.join(format!("{experiment}.json"));
        let what = || format!("reading {}", path.display());
        let json = fs::read(&path).with_context(what)?;
        let report = serde_json::from_slice(&json).with_context(what)?;
        let plots = (0..).map(|index| folder.join(plot_name(experiment, index)));
        let plots = plots.take_while(|path| path.exists()).map(fs::read_to_string);
        Ok(Self { report, plots: plots.collect::<Result<_, _>>().context("reading plots")? })
    }

    /// What weakens its claims.
    fn doubt(&self) -> &'static str {
        if self.report.is_too_noisy() {
            "the run was too noisy"
        } else if self.report.command.iter().any(|word| word == "--quick") {
            "a quick run"
        } else {
            ""
        }
    }
}

#[derive(Debug)]
pub(crate) enum ExperimentOutcome {
    Done(Box<Written>),
    Failed(String),
    LeftOut(String),
}

impl ExperimentOutcome {
    /// For a line of progress.
    pub(crate) fn word(&self) -> String {
        match self {
            Self::Done(written) if written.report.is_too_noisy() => "done, too noisy".to_owned(),
            Self::Done(_) => "done".to_owned(),
            Self::Failed(why) => format!("failed: {why}"),
            Self::LeftOut(why) => format!("left out: {why}"),
        }
    }
}

/// An experiment and its outcome.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) experiment: &'static str,
    pub(crate) case: Case,
    pub(crate) outcome: ExperimentOutcome,
}

impl Section {
    fn written(&self) -> Option<&Written> {
        if let ExperimentOutcome::Done(written) = &self.outcome { Some(written) } else { None }
    }

    /// The rows of its claims; those of an experiment without a report are not measured.
    fn claims(&self) -> Vec<Value> {
        let row = |origin: &str,
                   claim: &str,
                   figure: &str,
                   verdict: [&str; 2],
                   remarks: [&str; 2]| {
            let remarks: Vec<_> = remarks.into_iter().filter(|text| !text.is_empty()).collect();
            let [class, verdict] = verdict;
            json!({
                "origin": origin, "claim": claim, "figure": figure, "class": class, "verdict": verdict,
                "remark": remarks.join("; "), "experiment": self.experiment,
            })
        };
        let not_measured = ["not-measured", "not measured"];
        match &self.outcome {
            ExperimentOutcome::Done(written) => {
                let claims = written.report.claims.iter().map(|of| {
                    let (verdict, why) = match &of.verdict {
                        Verdict::Met => (["met", "met"], ""),
                        Verdict::NotMet => {
                            (["not-met", "not met"], of.why_not.as_deref().unwrap_or(""))
                        }
                        Verdict::NotMeasured(why) => (not_measured, why.as_str()),
                    };
                    row(&of.origin, &of.claim, &of.figure, verdict, [written.doubt(), why])
                });
                claims.collect()
            }
            ExperimentOutcome::Failed(why) | ExperimentOutcome::LeftOut(why) => {
                let origins = self.case.origins.iter();
                origins.map(|of| row(of, &self.case.title, "", not_measured, ["", why])).collect()
            }
        }
    }
}

/// All claims by origin; those of experiments without an origin come last.
fn claims(sections: &[Section]) -> Vec<Value> {
    let mut rows: Vec<Value> = sections.iter().flat_map(Section::claims).collect();
    for (origin, about) in ORIGINS {
        if rows.iter().all(|row| row["origin"] != origin) {
            rows.push(
                json!({ "origin": origin, "claim": format!("{about}: no experiment of this run") }),
            );
        }
    }
    let place = |row: &Value| ORIGINS.iter().position(|(origin, _)| row["origin"] == *origin);
    rows.sort_by_key(|row| place(row).unwrap_or(ORIGINS.len()));
    rows
}

/// The whole page. `notes` describe the inputs.
pub(crate) fn render(sections: &[Section], notes: &[String], took: Duration) -> Result<String> {
    let shown = sections.iter().map(|section| {
        let notice = match &section.outcome {
            ExperimentOutcome::Done(_) => String::new(),
            other => format!("This experiment {}", other.word().replace("left", "was left")),
        };
        let (case, written) = (&section.case, section.written());
        json!({
            "experiment": section.experiment, "title": case.title, "measures": case.measures,
            "shape": case.shape, "why": case.why, "notice": notice,
            "report": written.map(|written| &written.report), "plots": written.map(|written| &written.plots),
        })
    });
    let shown: Vec<_> = shown.collect();
    let machine =
        sections.iter().find_map(Section::written).map(|of| of.report.machine.to_string());
    let mut environment = Environment::new();
    // The name of the template decides that text is escaped.
    environment.add_template("page.html", include_str!("page.html"))?;
    let context = json!({
        "sections": shown, "machine": machine, "minutes": took.as_secs() / 60,
        "seconds": took.as_secs() % 60, "notes": notes, "claims": claims(sections),
    });
    Ok(environment.get_template("page.html")?.render(Serde(context))?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ExperimentOutcome, Section, Written, render};
    use crate::case::Case;
    use crate::plot::Plot;
    use crate::report::Report;
    use crate::table::Table;

    fn written() -> Written {
        let mut report = Report::new("jobs", &()).unwrap();
        let mut table = Table::new("A <b>table</b>", "way | ms");
        table.add(["one & two", "3"]);
        report.table(table);
        report.remark("a <script> that is none");
        report.judge("two-threads", "", -12.0);
        report.explain("two-threads", "memory");
        report.plot(Plot::lines("a plot", "x", "y"));
        report.peer_command("mkfs", vec!["mkfs.erofs".to_owned(), "-z'lz4'".to_owned()]);
        report.finish().unwrap();
        let folder = tempfile::tempdir().unwrap();
        report.write_folder(folder.path()).unwrap();
        Written::read("jobs", folder.path()).unwrap()
    }

    fn section(experiment: &'static str, outcome: ExperimentOutcome) -> Section {
        Section { experiment, case: Case::of(experiment).unwrap(), outcome }
    }

    #[test]
    fn a_doubt_stands_beside_its_claim() {
        for doubt in ["a quick run", "the run was too noisy"] {
            let mut written = written();
            match doubt {
                "a quick run" => written.report.command.push("--quick".to_owned()),
                _ => written.report.noise.push("noise".to_owned()),
            }
            let section = section("jobs", ExperimentOutcome::Done(Box::new(written)));
            let page = render(&[section], &[], Duration::ZERO).unwrap();
            assert!(page.contains(&format!("not met</td><td>{doubt}; memory</td>")), "{page}");
        }
    }

    #[test]
    fn every_origin_has_its_verdict_or_why_it_has_none_and_text_is_escaped() {
        let sections = [
            section("jobs", ExperimentOutcome::Done(Box::new(written()))),
            section("launches", ExperimentOutcome::LeftOut("needs root".to_owned())),
            section("workqueue", ExperimentOutcome::Failed("exit status: 1: no memory".to_owned())),
        ];
        let page = render(&sections, &["A note.".to_owned()], Duration::from_secs(61)).unwrap();
        for text in [
            "<td>-12.0 %</td><td class=\"not-met\">not met</td><td>memory</td>",
            "<td class=\"not-measured\">not measured</td><td>needs root</td>",
            "<td class=\"not-measured\">not measured</td><td>exit status: 1: no memory</td>",
            "reserve of pages: no experiment of this run",
            "This experiment was left out: needs root",
            "All experiments took 1 min 1 s.",
            "<p>A note.</p>",
            "mkfs.erofs -z&#x27;lz4&#x27;",
            "A &lt;b&gt;table&lt;",
            "one &amp; two",
            "a &lt;script&gt; that is none",
        ] {
            assert!(page.contains(text), "{text} is missing in {page}");
        }
        assert!(!page.contains("<script") && page.matches("<svg").count() == 1);
        let without_namespace = page.replace("http://www.w3.org/2000/svg", "");
        for asks in ["http:", "https:", "url(", "@import", "src=", "<link"] {
            assert!(!without_namespace.contains(asks), "{asks}");
        }
    }
}
