//! Writes the page: the machine, the claims, and a chapter for each experiment. Everything that was found is escaped,
//! except the plots, which are this program's own.

use std::fmt::Write;
use std::time::Duration;

use super::escape::{Escaped, Prose};
use super::found::{Found, FoundClaim};
use super::{Chapter, Outcome};
use crate::claim::Held;
use crate::machine::Machine;
use crate::report::{LeftOut, PeerCommand};
use crate::table::Table;

const STYLE: &str = include_str!("style.css");
/// The seeds, by what they are about.
const SEEDS: [(&str, &str); 5] = [
    ("000", "workers bound to CPUs"),
    ("001", "reserve of pages"),
    ("002", "work queue with state of its own for each thread"),
    ("003", "jobs of several threads"),
    ("004", "best effort for readahead"),
];

/// The whole page. `notes` say what the experiments were run on.
pub(crate) fn render(chapters: &[Chapter], notes: &[String], took: Duration) -> String {
    let mut page = Page(String::new());
    page.put("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.put("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.put("<title>ferrofs, measured here</title>\n<style>\n");
    page.put(STYLE);
    page.put("</style>\n</head>\n<body>\n<header>\n<h1>ferrofs, measured here</h1>\n");
    let machine = chapters.iter().find_map(|chapter| match &chapter.outcome {
        Outcome::Done(found) => Some(&found.machine),
        _ => None,
    });
    if let Some(machine) = machine {
        page.machine(machine, took);
    }
    notes.iter().for_each(|note| page.element("p", note));
    page.put("</header>\n");
    page.navigation(chapters);
    page.claims(chapters);
    chapters.iter().for_each(|chapter| page.chapter(chapter));
    page.put("</body>\n</html>\n");
    page.0
}

/// A page that grows.
struct Page(String);

impl Page {
    fn put(&mut self, markup: &str) {
        self.0.push_str(markup);
    }

    /// Markup with text in it.
    fn write(&mut self, markup: std::fmt::Arguments<'_>) {
        // A string takes everything.
        self.0.write_fmt(markup).unwrap_or_default();
    }

    fn element(&mut self, tag: &str, text: &str) {
        self.write(format_args!("<{tag}>{}</{tag}>\n", Prose(text)));
    }

    fn definition(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.write(format_args!("<dt>{name}</dt><dd>{}</dd>\n", Prose(text)));
        }
    }

    fn machine(&mut self, machine: &Machine, took: Duration) {
        self.put("<dl>\n");
        for (name, text) in machine.facts() {
            self.definition(name, &text);
        }
        let (minutes, seconds) = (took.as_secs() / 60, took.as_secs() % 60);
        self.definition("All of this took", &format!("{minutes} min {seconds} s"));
        self.put("</dl>\n");
    }

    fn navigation(&mut self, chapters: &[Chapter]) {
        self.put("<nav><ul>\n<li><a href=\"#claims\">claims</a></li>\n");
        for Chapter { experiment, .. } in chapters {
            self.write(format_args!("<li><a href=\"#{experiment}\">{experiment}</a></li>\n"));
        }
        self.put("</ul></nav>\n");
    }

    /// The claims of all, seed by seed, and those of no seed behind them.
    fn claims(&mut self, chapters: &[Chapter]) {
        self.put("<section id=\"claims\">\n<h2>Claims</h2>\n<div class=\"scroll\"><table class=\"claims\">\n");
        self.put(
            "<tr><th>seed</th><th>claim</th><th>here</th><th>verdict</th><th>remark</th></tr>\n",
        );
        for (seed, about) in SEEDS {
            let before = self.0.len();
            for chapter in chapters {
                self.claims_of(chapter, |claimed| claimed == seed);
            }
            if self.0.len() == before {
                let none = format!("{about}: no experiment that was run is about it");
                self.write(format_args!(
                    "<tr><td>{seed}</td><td>{}</td><td></td><td></td><td></td></tr>\n",
                    Escaped(&none)
                ));
            }
        }
        for chapter in chapters {
            self.claims_of(chapter, |claimed| SEEDS.iter().all(|(seed, _)| *seed != claimed));
        }
        self.put("</table></div>\n</section>\n");
    }

    fn claims_of(&mut self, chapter: &Chapter, is_meant: impl Fn(&str) -> bool) {
        let unknown = |why: &str| Held::NotMeasured(why.to_owned());
        match &chapter.outcome {
            Outcome::Done(found) => {
                for claim in found.claims.iter().filter(|claim| is_meant(&claim.seed)) {
                    self.claim(chapter.experiment, claim, found.doubt());
                }
            }
            Outcome::Failed(why) | Outcome::LeftOut(why) => {
                for seed in chapter.case.seeds.iter().filter(|seed| is_meant(seed)) {
                    let claim = FoundClaim {
                        seed: seed.clone(),
                        claim: chapter.case.title.clone(),
                        ours: String::new(),
                        held: unknown(why),
                        why_not: None,
                    };
                    self.claim(chapter.experiment, &claim, "");
                }
            }
        }
    }

    fn claim(&mut self, experiment: &str, claim: &FoundClaim, doubt: &str) {
        let (class, word, why) = match &claim.held {
            Held::Held => ("held", "held", None),
            Held::NotHeld => ("missed", "not held", claim.why_not.as_ref()),
            Held::NotMeasured(why) => ("open", "not measured", Some(why)),
        };
        let remarks = [doubt, why.map_or("", String::as_str)];
        let remarks = remarks.into_iter().filter(|remark| !remark.is_empty());
        let why = remarks.collect::<Vec<_>>().join("; ");
        self.write(format_args!(
            "<tr><td>{}</td><td>{} (<a href=\"#{experiment}\">{experiment}</a>)</td><td class=\"figure\">{}</td>\
             <td class=\"verdict {class}\">{word}</td><td>{}</td></tr>\n",
            Escaped(&claim.seed),
            Escaped(&claim.claim),
            Escaped(&claim.ours),
            Prose(&why),
        ));
    }

    fn chapter(&mut self, chapter: &Chapter) {
        let (name, case) = (chapter.experiment, &chapter.case);
        self.write(format_args!("<section id=\"{name}\">\n<h2>{}</h2>\n", Escaped(&case.title)));
        self.put("<dl class=\"about\">\n");
        self.definition("Measured", &case.measures);
        self.definition("Expected", &case.shape);
        self.definition("Why", &case.why);
        self.put("</dl>\n");
        match &chapter.outcome {
            Outcome::Done(found) => self.found(found),
            Outcome::Failed(why) => self.notice(&format!("This experiment failed: {why}")),
            Outcome::LeftOut(why) => self.notice(&format!("This experiment was left out: {why}")),
        }
        self.put("</section>\n");
    }

    fn notice(&mut self, text: &str) {
        self.write(format_args!("<p class=\"notice\">{}</p>\n", Prose(text)));
    }

    fn found(&mut self, found: &Found) {
        found.noise.iter().for_each(|noise| self.notice(&noise.to_string()));
        for LeftOut { what, why } in &found.left_out {
            self.notice(&format!("Left out: {what}: {why}"));
        }
        for plot in &found.plots {
            self.write(format_args!("<figure>\n{plot}\n</figure>\n"));
        }
        found.tables.iter().for_each(|table| self.table(table));
        if !found.remarks.is_empty() {
            self.put("<ul class=\"remarks\">\n");
            found.remarks.iter().for_each(|remark| self.element("li", remark));
            self.put("</ul>\n");
        }
        self.commands(found);
    }

    fn table(&mut self, table: &Table) {
        self.element("h3", table.title());
        self.put("<div class=\"scroll\"><table>\n<tr>");
        table.header().iter().for_each(|cell| self.element("th", cell));
        self.put("</tr>\n");
        for row in table.rows() {
            self.put("<tr>");
            row.iter().for_each(|cell| self.element("td", cell));
            self.put("</tr>\n");
        }
        self.put("</table></div>\n");
    }

    fn commands(&mut self, found: &Found) {
        let (before, after) = (&found.machine.load_average, &found.load_average_after);
        self.put("<details><summary>Commands and load</summary>\n");
        self.command("this experiment", &found.command);
        for PeerCommand { name, words } in &found.peer_commands {
            self.command(name, words);
        }
        self.element("p", &format!(
            "Load average before: {before}; afterwards: {after}. The host took {:.1} % of the CPUs' time.",
            found.stolen_percent
        ));
        self.put("</details>\n");
    }

    fn command(&mut self, name: &str, words: &[String]) {
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let words = words.join(" ");
        self.write(format_args!(
            "<div>{}<code class=\"command\">{}</code></div>\n",
            Escaped(name),
            Escaped(&words)
        ));
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:+@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{quoted, render};
    use crate::case::Case;
    use crate::page::{Chapter, Found, Outcome};
    use crate::plot::Plot;
    use crate::report::Report;
    use crate::table::Table;

    fn found() -> Found {
        let mut report = Report::new("jobs", &()).unwrap();
        let mut table = Table::new("A <b>table</b>", ["way", "ms"]);
        table.add(["one & two", "3"]);
        report.add_table(table);
        report.add_remark("a <script> that is none");
        report.claim("003", "two-threads", &[-12.0], "memory").unwrap();
        report.add_plot(Plot::lines("a plot", "x", "y"));
        report.add_peer_command("mkfs", vec!["mkfs.erofs".to_owned(), "-z lz4".to_owned()]);
        let folder = tempfile::tempdir().unwrap();
        report.write_folder(folder.path()).unwrap();
        Found::read("jobs", folder.path()).unwrap()
    }

    #[test]
    fn what_takes_weight_from_a_claim_stands_beside_it() {
        let doubted = |mut found: Found, doubt: &str| {
            if doubt == "a quick run" {
                found.command.push("--quick".to_owned());
            } else {
                found.noise.push(serde_json::from_str(NOISE).unwrap());
            }
            let case = Case::of("jobs").unwrap();
            let outcome = Outcome::Done(Box::new(found));
            let chapter = Chapter { experiment: "jobs", case, outcome };
            let page = render(&[chapter], &[], Duration::ZERO);
            assert!(page.contains(&format!("not held</td><td>{doubt}; memory</td>")), "{page}");
        };
        doubted(found(), "a quick run");
        doubted(found(), "the run was too noisy");
    }

    const NOISE: &str = r#"{"what": "ours", "spread": 0.8, "most": 0.2}"#;

    #[test]
    fn a_claim_without_a_figure_is_not_measured() {
        let count = |values: &[f64]| {
            let mut report = Report::new("jobs", &()).unwrap();
            report.claim("003", "two-threads", &[-12.0], "memory").unwrap();
            report.claim("003", "two-threads", values, "one CPU").unwrap();
            let folder = tempfile::tempdir().unwrap();
            report.write_folder(folder.path()).unwrap();
            let found = Found::read("jobs", folder.path()).unwrap();
            Outcome::Done(Box::new(found)).measured_claims()
        };
        assert_eq!((count(&[]), count(&[-50.0])), (1, 2));
        assert_eq!(Outcome::Failed("no".to_owned()).measured_claims(), 0);
    }

    fn page() -> String {
        let chapter = |experiment, outcome| Chapter {
            experiment,
            case: Case::of(experiment).unwrap(),
            outcome,
        };
        let chapters = [
            chapter("jobs", Outcome::Done(Box::new(found()))),
            chapter("launches", Outcome::LeftOut("needs root".to_owned())),
            chapter("workqueue", Outcome::Failed("exit status: 1: no memory".to_owned())),
        ];
        render(&chapters, &["A note.".to_owned()], Duration::from_secs(61))
    }

    #[test]
    fn every_seed_has_its_verdict_or_why_it_has_none() {
        let page = page();
        for text in [
            "<td class=\"figure\">-12.0 %</td><td class=\"verdict missed\">not held</td><td>memory</td>",
            "<td class=\"verdict open\">not measured</td><td>needs root</td>",
            "<td class=\"verdict open\">not measured</td><td>exit status: 1: no memory</td>",
            "reserve of pages: no experiment that was run is about it",
            "This experiment was left out: needs root",
            "<dt>All of this took</dt><dd>1 min 1 s</dd>",
            "<p>A note.</p>",
            "mkfs.erofs &#39;-z lz4&#39;",
        ] {
            assert!(page.contains(text), "{text} is missing in {page}");
        }
    }

    #[test]
    fn what_was_found_is_text_and_the_page_asks_nobody_for_anything() {
        let page = page();
        assert!(page.contains("A &lt;b&gt;table&lt;/b&gt;") && page.contains("one &amp; two"));
        assert!(page.contains("a &lt;script&gt; that is none") && !page.contains("<script"));
        assert_eq!(page.matches("<svg").count(), 1);
        let without_namespace = page.replace("http://www.w3.org/2000/svg", "");
        for asks in ["http:", "https:", "url(", "@import", "src=", "<link"] {
            assert!(!without_namespace.contains(asks), "{asks}");
        }
    }

    #[test]
    fn words_are_quoted_as_for_a_shell() {
        assert_eq!(quoted("-zlz4hc,9"), "-zlz4hc,9");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
