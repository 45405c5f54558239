//! The page on all experiments: one HTML file with its plots and styles, without scripts and without anything from a
//! network. Made by the template `page.html` from what the experiments wrote.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use minijinja::Environment;
use minijinja::value::Serde;
use serde::Serialize;
use serde_json::{Value, json};

use crate::case::Case;
use crate::report::{Claim, Report, Verdict, plot_name};

/// The mails that results are compared with, by subject.
const ORIGINS: [(&str, &str); 5] = [
    ("000", "workers bound to CPUs"),
    ("001", "reserve of pages"),
    ("002", "work queue with per-thread state"),
    ("003", "multithreaded jobs"),
    ("004", "best effort for readahead"),
];

/// An experiment and what it wrote.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Section {
    pub(crate) experiment: &'static str,
    /// Of the case; the page shows what people read.
    case: Value,
    origins: Vec<String>,
    pub(crate) report: Option<Report>,
    /// SVG.
    plots: Vec<String>,
    /// Why there is no report: "failed: ..." or "left out: ...".
    pub(crate) notice: String,
}

impl Section {
    pub(crate) fn without_report(experiment: &'static str, notice: String) -> Result<Self> {
        let Case { title, measures, shape, why, origins, .. } = Case::of(experiment)?;
        let case = json!({ "title": title, "measures": measures, "shape": shape, "why": why });
        Ok(Self { experiment, case, origins, notice, ..Self::default() })
    }

    /// From the folder that the experiment wrote to.
    pub(crate) fn read(experiment: &'static str, folder: &Path) -> Result<Self> {
        let path = folder.join(format!("{experiment}.json"));
        let what = || format!("reading {}", path.display());
        let report = serde_json::from_slice(&fs::read(&path).with_context(what)?);
        let plots = (0..).map(|index| folder.join(plot_name(experiment, index)));
        let plots = plots.take_while(|path| path.exists()).map(fs::read_to_string);
        let plots = plots.collect::<Result<_, _>>().context("reading plots")?;
        let empty = Self::without_report(experiment, String::new())?;
        Ok(Self { report: Some(report.with_context(what)?), plots, ..empty })
    }

    pub(crate) fn is_noisy(&self) -> bool {
        self.report.as_ref().is_some_and(Report::is_too_noisy)
    }

    /// Its claims, with what makes them doubtful; those of an experiment without a report are not measured.
    fn claims(&self) -> Vec<Claim> {
        let Some(report) = &self.report else {
            let claim = self.case["title"].as_str().unwrap_or_default();
            let of = |origin: &String| Claim::unmeasured(origin, claim, &self.notice);
            return self.origins.iter().map(of).collect();
        };
        let doubt = match (self.is_noisy(), report.command.iter().any(|word| word == "--quick")) {
            (true, _) => "the run was too noisy",
            (_, true) => "a quick run",
            _ => "",
        };
        let mut claims = report.claims.clone();
        for claim in claims.iter_mut().filter(|claim| claim.verdict != Verdict::NotMeasured) {
            let remarks = [doubt, &claim.remark].into_iter().filter(|text| !text.is_empty());
            claim.remark = remarks.collect::<Vec<_>>().join("; ");
        }
        claims
    }
}

/// All claims by origin, with their experiments; those of experiments without an origin come last.
fn claims(sections: &[Section]) -> Vec<(Claim, &str)> {
    let of = |one: &Section| one.claims().into_iter().zip(std::iter::repeat(one.experiment));
    let mut rows: Vec<(Claim, &str)> = sections.iter().flat_map(of).collect();
    for (origin, about) in ORIGINS {
        if rows.iter().all(|(claim, _)| claim.origin != origin) {
            let remark = "no experiment of this run";
            rows.push((Claim::unmeasured(origin, about, remark), ""));
        }
    }
    let place = |claim: &Claim| ORIGINS.iter().position(|(origin, _)| claim.origin == *origin);
    rows.sort_by_key(|(claim, _)| place(claim).unwrap_or(ORIGINS.len()));
    rows
}

/// The whole page. `notes` describe the inputs.
pub(crate) fn render(sections: &[Section], notes: &[String], took: Duration) -> Result<String> {
    let mut environment = Environment::new();
    // The name of the template decides that text is escaped.
    environment.add_template("page.html", include_str!("page.html"))?;
    let machine = sections.iter().find_map(|section| Some(&section.report.as_ref()?.machine));
    let (minutes, seconds) = (took.as_secs() / 60, took.as_secs() % 60);
    let values = json!({
        "sections": sections, "machine": machine, "minutes": minutes, "seconds": seconds, "notes": notes,
        "claims": claims(sections),
    });
    Ok(environment.get_template("page.html")?.render(Serde(values))?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Section, render};
    use crate::report::Report;
    use crate::statistics::Measured;

    fn written() -> Section {
        let mut report = Report::new("jobs").unwrap();
        let spec = "title = 'A <b>table</b>'\nnames = 'way'\nplots = [['bars', 'wall']]";
        report.case.tables.insert("faults".to_owned(), toml::from_str(spec).unwrap());
        let one = Measured::new("one & two", vec![("wall", 3.0)]);
        report.add("faults", "", "", &[one]).unwrap();
        report.remark("a <script> that is none");
        report.judge("two-threads", "", -12.0);
        report.explain("two-threads", "memory");
        report.peer_command("mkfs", vec!["mkfs.erofs".to_owned(), "-z'lz4'".to_owned()]);
        report.finish().unwrap();
        let folder = tempfile::tempdir().unwrap();
        report.write_folder(folder.path()).unwrap();
        Section::read("jobs", folder.path()).unwrap()
    }

    #[test]
    fn a_doubt_stands_beside_its_claim() {
        for doubt in ["a quick run", "the run was too noisy"] {
            let mut section = written();
            let report = section.report.as_mut().unwrap();
            match doubt {
                "a quick run" => report.command.push("--quick".to_owned()),
                _ => report.noise.push("noise".to_owned()),
            }
            let page = render(&[section], &[], Duration::ZERO).unwrap();
            assert!(page.contains(&format!("not met</td><td>{doubt}; memory</td>")), "{page}");
        }
    }

    #[test]
    fn every_origin_has_its_verdict_or_why_it_has_none_and_text_is_escaped() {
        let without =
            |name, notice: &str| Section::without_report(name, notice.to_owned()).unwrap();
        let failed = without("workqueue", "failed: no memory");
        let sections = [written(), without("launches", "left out: needs root"), failed];
        let page = render(&sections, &["A note.".to_owned()], Duration::from_secs(61)).unwrap();
        for text in [
            "<td>-12.0 %</td><td class=\"not-met\">not met</td><td>memory</td>",
            "<td class=\"not-measured\">not measured</td><td>left out: needs root</td>",
            "<td class=\"not-measured\">not measured</td><td>failed: no memory</td>",
            "<td class=\"not-measured\">not measured</td><td>no experiment of this run</td>",
            "This experiment was not measured: left out: needs root",
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
