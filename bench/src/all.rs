//! The `all` verb: builds what experiments are run on, runs each of them in a process of its own with the arguments of its
//! case, and writes one page on all of them: one HTML file with its plots and styles, without scripts and without anything
//! from a network, made by the template `page.html`. An experiment that fails, or lacks something, is named there.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use minijinja::Environment;
use minijinja::value::Serde;
use serde::Serialize;
use serde_json::{Value, json};

use crate::case::{Case, Values, fill};
use crate::image_info::ImageInfo;
use crate::machine::{catch_signals, check_stop};
use crate::process;
use crate::programs::{ProgramArguments, squashfs_of};
use crate::report::{CheckOutcome, Report, ThresholdCheck, plot_name};
use crate::trees::copy_part;
use crate::{EXPERIMENTS, experiment_names, missing_for};

/// No experiment starts after this: the last one takes seconds.
const START_LIMIT: Duration = Duration::from_secs(14 * 60 + 30);
/// No second run of an experiment is to end after this.
const AGAIN_LIMIT: Duration = Duration::from_secs(14 * 60);
/// The notice of an experiment that did not begin in time. It is a failure, so that the exit status tells that the report is
/// incomplete.
const TIME_OVER: &str = "failed: the time was over";
/// Its files are copied where no tree is named.
const SYSTEM_TREE: &str = "/usr";
const COPY_BYTES: u64 = 300 << 20;
const QUICK_COPY_BYTES: u64 = 48 << 20;
/// Images with their LZ4 windows.
const IMAGES: [(&str, u16); 2] = [("lz4-64k.erofs", u16::MAX), ("lz4-16k.erofs", (16 << 10) - 1)];
/// Names in the arguments of cases, and what is missing without a value.
const INPUTS: [(&str, &str); 7] = [
    ("image", "an image"),
    ("system", "an image of a Debian system (--image)"),
    ("wide", "an image with a window of 64 KiB"),
    ("narrow", "an image with a window of 16 KiB"),
    ("squashfs", "a squashfs image"),
    ("source", "a tree"),
    ("peers", "a folder of peers (--peers)"),
];

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AllArguments {
    /// Image of a Debian system with perl, git, gcc and python3. Without it, launches and page-pool are left out, and
    /// the other experiments use an image that is built from --source
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Directory to build images from [default: copies of parts of /usr, at most 300 MB]
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// Folder with the programs that ferrofs is compared with, such as erofsfuse and mkfs.erofs
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// Run only these experiments
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = experiment_names())]
    only: Vec<String>,
    /// Make fewer and smaller runs, to test that the experiments work; do not draw conclusions from their figures
    #[arg(long)]
    quick: bool,
    /// Write to this folder: report.html, and for each experiment the files that --out of that
    /// experiment writes
    #[arg(long, value_name = "DIR", default_value = "ferrofs-bench-report")]
    out: PathBuf,
}

/// Runs all experiments and writes `report.html` beside their results. Failed experiments are named on the page and make
/// an error at the end.
pub(crate) fn run(arguments: &AllArguments, out: &mut dyn Write) -> Result<()> {
    catch_signals()?;
    // Our program, which makes the images, may have to be built first, which is not part of the time.
    ProgramArguments::default().ours()?;
    let start = Instant::now();
    let (folder, is_quick) = (&arguments.out, arguments.quick);
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    writeln!(out, "building images")?;
    let only = &arguments.only;
    let is_wanted = |name: &&str| only.is_empty() || only.iter().any(|only| only == name);
    let experiments: Vec<&str> = experiment_names().into_iter().filter(is_wanted).collect();
    let made = tempfile::Builder::new().prefix("ferrofs-bench-all-").tempdir()?;
    let (values, notes) = make_inputs(arguments, &experiments, made.path())?;
    let mut run = |label: String, name, folder: &Path| -> Result<Section> {
        write!(out, "{label}: ")?;
        out.flush()?;
        let begin = Instant::now();
        let mut section = match start.elapsed() > START_LIMIT {
            true => Section::without_report(name, TIME_OVER.to_owned())?,
            false => section(name, &values, is_quick, folder)?,
        };
        section.elapsed = begin.elapsed();
        writeln!(out, "{} ({:.0} s)", section.state(), section.elapsed.as_secs_f64())?;
        Ok(section)
    };
    let mut sections = Vec::new();
    for (number, name) in experiments.iter().enumerate() {
        sections.push(run(format!("[{}/{}] {name}", number + 1, experiments.len()), name, folder)?);
    }
    // Runs that were too noisy are repeated where that fits into the time; the less noisy result counts.
    for section in &mut sections {
        if section.is_noisy() && start.elapsed() + section.elapsed < AGAIN_LIMIT {
            let again = tempfile::tempdir_in(folder).context("making a folder for a second run")?;
            let name = section.experiment;
            let second = run(format!("{name} again"), name, again.path())?;
            if second.report.is_some() && !second.is_noisy() {
                remove_results(name, folder)?;
                for entry in again.path().read_dir()? {
                    let entry = entry?;
                    fs::rename(entry.path(), folder.join(entry.file_name()))?;
                }
                *section = second;
            }
        }
    }
    let path = folder.join("report.html");
    let html = render(&sections, &notes, start.elapsed())?;
    fs::write(&path, html).with_context(|| format!("writing {}", path.display()))?;
    writeln!(out, "{} s, {}", start.elapsed().as_secs(), path.display())?;
    let failed = failed(&sections);
    ensure!(failed.is_empty(), "failed: {failed}");
    Ok(())
}

fn failed(sections: &[Section]) -> String {
    let failed = sections.iter().filter(|section| section.notice.starts_with("failed: "));
    failed.map(|section| section.experiment).collect::<Vec<_>>().join(", ")
}

/// Runs an experiment in a process of its own; its results go to the folder and are read from there.
fn section(
    experiment: &'static str,
    values: &Values,
    is_quick: bool,
    folder: &Path,
) -> Result<Section> {
    let without = |why: String| Section::without_report(experiment, why);
    let words = match words(experiment, values, is_quick) {
        Ok(words) => words,
        Err(why) => return without(format!("left out: {why}")),
    };
    remove_results(experiment, folder)?;
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(words).arg("--noisy-ok").arg("--out").arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.output().with_context(|| format!("starting {experiment}"))?;
    // The same signal may have ended it.
    check_stop()?;
    if output.status.success() {
        let read = Section::read(experiment, folder);
        return read.or_else(|error| without(format!("failed: {error:#}")));
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().last().unwrap_or_default().trim_start_matches("ferrofs-bench: ");
    without(format!("failed: {}: {last}", output.status))
}

/// The command line of an experiment. The error is why it is left out.
fn words(experiment: &str, values: &Values, is_quick: bool) -> Result<Vec<String>> {
    let case = Case::of(experiment)?;
    let mut words = vec![experiment.to_owned()];
    for word in &case.run {
        let missing = |name: String| {
            let what = INPUTS.iter().find(|(input, _)| *input == name);
            anyhow!("needs {}", what.map_or(name.as_str(), |(_, what)| what))
        };
        words.extend(fill(word, values).map_err(missing)?);
    }
    words.extend(is_quick.then(|| "--quick".to_owned()));
    if let Some(missing) = missing_for(&words)? {
        words.extend(case.otherwise);
        ensure!(missing_for(&words)?.is_none(), "{missing}");
    }
    Ok(words)
}

/// The results of an earlier run must not be taken for those of the next.
fn remove_results(experiment: &str, folder: &Path) -> Result<()> {
    let texts = ["json", "md"].map(|kind| folder.join(format!("{experiment}.{kind}")));
    let plots = (0..).map(|index| folder.join(plot_name(experiment, index)));
    let plots = plots.take_while(|path| path.exists());
    for path in texts.into_iter().filter(|path| path.exists()).chain(plots) {
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

/// What experiments are run on, by the names of `INPUTS`, with notes: the named image and tree, or a copy of parts of /usr,
/// LZ4 images of it with both windows, and a squashfs image if one of the experiments takes it. All that is made lies in the
/// folder.
fn make_inputs(
    arguments: &AllArguments,
    experiments: &[&str],
    folder: &Path,
) -> Result<(Values, Vec<String>)> {
    let AllArguments { image, source, peers, quick: is_quick, .. } = arguments;
    let (mut notes, copy) = (Vec::new(), folder.join("source"));
    if source.is_none() {
        let most = if *is_quick { QUICK_COPY_BYTES } else { COPY_BYTES };
        let (files, bytes) = copy_part(Path::new(SYSTEM_TREE), &copy, most)?;
        let megabytes = bytes / 1_000_000;
        notes
            .push(format!("The tree is a copy of {files} files of {SYSTEM_TREE}, {megabytes} MB."));
    }
    let source = source.as_ref().unwrap_or(&copy);
    let [wide, narrow] = IMAGES.map(|(file, _)| folder.join(file));
    for (path, (_, window)) in [&wide, &narrow].into_iter().zip(IMAGES) {
        check_stop()?;
        let words = ["build", "--quiet", "--progress=none", "--no-verify", "--keep-going", "-zlz4"];
        let window = ["-C4096".to_owned(), format!("--max-distance={window}")];
        let ours = ProgramArguments::default().ours()?.with(words).with(window);
        process::run(&mut ours.with([path, source]).command())?;
    }
    check_stop()?;
    notes.push("Images of the tree: LZ4, clusters of 4 KiB, windows of 64 and 16 KiB.".to_owned());
    let of_tree = image.as_ref().unwrap_or(&wide);
    let mut squashfs = None;
    let takes_it = |(name, case): &(&str, &str)| {
        experiments.contains(name) && case.contains("--squashfs={squashfs}")
    };
    if !*is_quick && EXPERIMENTS.iter().any(takes_it) {
        let programs = ProgramArguments { ferrofs: None, peers: peers.clone() };
        match squashfs_of(&ImageInfo::read(of_tree)?, None, &programs, false, folder) {
            Ok(path) => squashfs = Some(path),
            Err(why) => notes.push(format!("No squashfs image was made: {why:#}.")),
        }
    }
    let paths: [Option<&PathBuf>; INPUTS.len()] = [
        Some(of_tree),
        image.as_ref(),
        Some(&wide),
        Some(&narrow),
        squashfs.as_ref(),
        Some(source),
        peers.as_ref(),
    ];
    let values = INPUTS.iter().zip(paths).filter_map(|((name, _), path)| {
        Some(((*name).to_owned(), vec![path?.display().to_string()]))
    });
    Ok((values.collect(), notes))
}

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
struct Section {
    experiment: &'static str,
    /// Of the case; the page shows what people read.
    case: Value,
    origins: Vec<String>,
    report: Option<Report>,
    /// SVG.
    plots: Vec<String>,
    /// Why there is no report: "failed: ..." or "left out: ...".
    notice: String,
    #[serde(skip)]
    elapsed: Duration,
}

impl Section {
    fn without_report(experiment: &'static str, notice: String) -> Result<Self> {
        let Case { title, measures, shape, why, origins, .. } = Case::of(experiment)?;
        let case = json!({ "title": title, "measures": measures, "shape": shape, "why": why });
        Ok(Self { experiment, case, origins, notice, ..Self::default() })
    }

    /// From the folder that the experiment wrote to.
    fn read(experiment: &'static str, folder: &Path) -> Result<Self> {
        let path = folder.join(format!("{experiment}.json"));
        let what = || format!("reading {}", path.display());
        let report = serde_json::from_slice(&fs::read(&path).with_context(what)?);
        let plots = (0..).map(|index| folder.join(plot_name(experiment, index)));
        let plots = plots.take_while(|path| path.exists()).map(fs::read_to_string);
        let plots = plots.collect::<Result<_, _>>().context("reading plots")?;
        let empty = Self::without_report(experiment, String::new())?;
        Ok(Self { report: Some(report.with_context(what)?), plots, ..empty })
    }

    fn state(&self) -> &str {
        match &self.report {
            Some(_) if self.is_noisy() => "done, too noisy",
            Some(_) => "done",
            None => &self.notice,
        }
    }

    fn is_noisy(&self) -> bool {
        self.report.as_ref().is_some_and(|report| !report.noise.is_empty())
    }

    /// Its claims, with what makes them doubtful; those of an experiment without a report are not measured.
    fn threshold_checks(&self) -> Vec<ThresholdCheck> {
        let Some(report) = &self.report else {
            let claim = self.case["title"].as_str().unwrap_or_default();
            let of = |origin: &String| ThresholdCheck::unmeasured(origin, claim, &self.notice);
            return self.origins.iter().map(of).collect();
        };
        let doubt = match (self.is_noisy(), report.command.iter().any(|word| word == "--quick")) {
            (true, _) => "the run was too noisy",
            (_, true) => "a quick run",
            _ => "",
        };
        let mut claims = report.claims.clone();
        for claim in claims.iter_mut().filter(|claim| claim.verdict != CheckOutcome::NotMeasured) {
            let remarks = [doubt, &claim.remark].into_iter().filter(|text| !text.is_empty());
            claim.remark = remarks.collect::<Vec<_>>().join("; ");
        }
        claims
    }
}

/// All claims by origin, with their experiments; those of experiments without an origin come last.
fn threshold_checks(sections: &[Section]) -> Vec<(ThresholdCheck, &str)> {
    let of =
        |one: &Section| one.threshold_checks().into_iter().zip(std::iter::repeat(one.experiment));
    let mut rows: Vec<(ThresholdCheck, &str)> = sections.iter().flat_map(of).collect();
    for (origin, about) in ORIGINS {
        if rows.iter().all(|(claim, _)| claim.origin != origin) {
            let remark = "no experiment of this run";
            rows.push((ThresholdCheck::unmeasured(origin, about, remark), ""));
        }
    }
    let place =
        |claim: &ThresholdCheck| ORIGINS.iter().position(|(origin, _)| claim.origin == *origin);
    rows.sort_by_key(|(claim, _)| place(claim).unwrap_or(ORIGINS.len()));
    rows
}

fn render(sections: &[Section], notes: &[String], elapsed: Duration) -> Result<String> {
    let mut environment = Environment::new();
    // The name of the template decides that text is escaped.
    environment.add_template("page.html", include_str!("page.html"))?;
    let machine = sections.iter().find_map(|section| Some(&section.report.as_ref()?.machine));
    let (minutes, seconds) = (elapsed.as_secs() / 60, elapsed.as_secs() % 60);
    let values = json!({
        "sections": sections, "machine": machine, "minutes": minutes, "seconds": seconds, "notes": notes,
        "claims": threshold_checks(sections),
    });
    Ok(environment.get_template("page.html")?.render(Serde(values))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Measured;

    /// Everything is the same file.
    fn inputs() -> Values {
        INPUTS.map(|(name, _)| (name.to_owned(), vec!["/proc/self/stat".to_owned()])).into()
    }

    #[test]
    fn the_arguments_of_every_case_are_a_command() {
        for experiment in experiment_names() {
            for is_quick in [false, true] {
                match words(experiment, &inputs(), is_quick) {
                    Ok(words) => {
                        let is_option = words.last().is_some_and(|word| word.starts_with("--"));
                        assert!(!is_quick || is_option, "{experiment}");
                    }
                    // FUSE, for one, is not everywhere.
                    Err(why) => assert!(why.to_string().starts_with("needs "), "{why:#}"),
                }
            }
        }
    }

    #[test]
    fn an_option_without_input_is_dropped_and_an_experiment_without_image_is_left_out() {
        let none = Values::new();
        assert_eq!(fill("--peers={peers}", &none), Ok(vec![]));
        assert_eq!(fill("-c", &none), Ok(vec!["-c".to_owned()]));
        assert_eq!(words("reads", &none, true).unwrap_err().to_string(), "needs an image");
        let words = words("reads", &inputs(), true).unwrap();
        assert_eq!([&words[1], &words[words.len() - 1]], ["/proc/self/stat", "--quick"]);
    }

    fn written() -> Section {
        let mut report = Report::new("jobs").unwrap();
        let spec = "title = 'A <b>table</b>'\nnames = 'way'\nplots = [['bars', 'wall']]";
        report.case.tables.insert("faults".to_owned(), toml::from_str(spec).unwrap());
        let one = Measured::new("one & two", vec![("wall", 3.0)]);
        report.add("faults", "", "", &[one]).unwrap();
        report.remark("a <script> that is none");
        report.evaluate("two-threads", "", -12.0);
        report.explain("two-threads", "memory");
        report.peer_command("mkfs", vec!["mkfs.erofs".to_owned(), "-z'lz4'".to_owned()]);
        report.finish().unwrap();
        let folder = tempfile::tempdir().unwrap();
        report.write_folder(folder.path()).unwrap();
        Section::read("jobs", folder.path()).unwrap()
    }

    fn without(name: &'static str, notice: &str) -> Section {
        Section::without_report(name, notice.to_owned()).unwrap()
    }

    #[test]
    fn an_experiment_that_did_not_begin_in_time_has_failed() {
        let sections = [without("launches", "left out: needs root"), without("decodes", TIME_OVER)];
        assert_eq!(failed(&sections), "decodes");
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
