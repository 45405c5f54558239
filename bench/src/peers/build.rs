//! The `build` experiment: mkfs.erofs and ours make images of the same tree with the same options, one after another in
//! every round; ours under the name mkfs.erofs, which verifies nothing, and as itself with and without verification.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::column::{Column, Figure, ratio};
use super::findings::{Findings, Verdict, add_bars};
use super::interleave::{Contestant, Pace, interleave};
use super::program::{Program, ProgramArguments};
use super::worded::Worded;
use super::work::Work;
use super::{part, squashfs};
use crate::deadline::TimeLimit;
use crate::plot::Plot;
use crate::report::Report;
use crate::table::Table;

/// A quick run takes so much of the tree.
const QUICK_BYTES: u64 = 4 << 20;
/// Fixed, so that images have the same bytes in every round.
const COMMON: [&str; 3] = ["-T1710000000", "-U", "6f726566-7266-6566-6572-726f66730000"];

const MKFS: &str = "mkfs.erofs";
const AS_MKFS: &str = "ferrofs as mkfs.erofs";
const VERIFIED: &str = "ferrofs build";
const UNVERIFIED: &str = "ferrofs build --no-verify";

/// Options of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Case {
    #[value(name = "lz4-4k")]
    Lz4,
    #[value(name = "lz4hc-4k")]
    Lz4hcSmall,
    #[value(name = "lz4hc-64k")]
    Lz4hc,
    #[value(name = "zstd-64k")]
    Zstd,
    #[value(name = "deflate-64k")]
    Deflate,
    #[value(name = "lzma-64k")]
    Lzma,
    /// With fragments, dedupe and inline tails
    #[value(name = "lz4hc-64k-all")]
    All,
}

impl Case {
    /// The longest at the end: it has what the others leave of their shares.
    const ALL: [Self; 7] = [
        Self::Lz4,
        Self::Lz4hcSmall,
        Self::Lz4hc,
        Self::Zstd,
        Self::Deflate,
        Self::All,
        Self::Lzma,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4-4k",
            Self::Lz4hcSmall => "lz4hc-4k",
            Self::Lz4hc => "lz4hc-64k",
            Self::Zstd => "zstd-64k",
            Self::Deflate => "deflate-64k",
            Self::Lzma => "lzma-64k",
            Self::All => "lz4hc-64k-all",
        }
    }

    const fn algorithm(self) -> &'static str {
        match self {
            Self::Lz4 => "-zlz4",
            Self::Lz4hcSmall | Self::Lz4hc | Self::All => "-zlz4hc",
            Self::Zstd => "-zzstd",
            Self::Deflate => "-zdeflate",
            Self::Lzma => "-zlzma",
        }
    }

    const fn cluster(self) -> &'static str {
        match self {
            Self::Lz4 | Self::Lz4hcSmall => "-C4096",
            _ => "-C65536",
        }
    }

    /// What mkfs.erofs is told beyond that, and what ours is told.
    const fn features(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::All => (
                &["-Efragments,dedupe,ztailpacking"],
                &["--fragments", "--dedupe", "--inline-pclusters"],
            ),
            _ => (&[], &[]),
        }
    }
}

/// What is built.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct BuildArguments {
    /// The tree
    source: PathBuf,
    /// Options of the images
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = Case::ALL)]
    cases: Vec<Case>,
    /// Take only so much of the tree, copied beside the images; 4 MiB at most with --quick
    #[arg(long, value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    most_bytes: Option<u64>,
    /// Folder for images; memory (/dev/shm) if none is named, or else the system's temporary folder
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Rounds that count, after one that does not; 2 at most with --quick
    #[arg(short = 'c', long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    #[command(flatten)]
    limit: TimeLimit,
    /// Threads of everybody; as they like if not given
    #[arg(short, long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    jobs: Option<u16>,
    #[command(flatten)]
    programs: ProgramArguments,
}

/// Who takes part.
struct Builders {
    ours: Program,
    mkfs: Option<Program>,
    mksquashfs: Option<Program>,
    jobs: Option<u16>,
}

impl Builders {
    fn contestants(&self, case: Case, source: &Path, image: &Path) -> Vec<Contestant<Worded>> {
        let what = [case.algorithm(), case.cluster()];
        let (theirs, ours) = case.features();
        let as_mkfs = |program: &Program| {
            let worded = Worded::new(program, source, ["--quiet", "--mkfs-time"]).called(MKFS);
            let worded = worded.and(COMMON).and(what).and(theirs.iter().copied());
            worded.and(self.jobs.map(|jobs| format!("--workers={jobs}"))).and([image, source])
        };
        let build = |more: Option<&'static str>| {
            let words = ["build", "--quiet", "--progress=none", "--force"];
            let worded = Worded::new(&self.ours, source, words).and(more);
            let worded = worded.and(COMMON).and(what).and(ours.iter().copied());
            worded.and(self.jobs.map(|jobs| format!("--jobs={jobs}"))).and([image, source])
        };
        let mut all = Vec::new();
        all.extend(self.mkfs.as_ref().map(|program| as_mkfs(program).contestant(MKFS)));
        all.push(as_mkfs(&self.ours).contestant(AS_MKFS));
        all.push(build(None).contestant(VERIFIED));
        all.push(build(Some("--no-verify")).contestant(UNVERIFIED));
        // For scale; it has no options that would make it the same work.
        if let Some(program) = self.mksquashfs.as_ref().filter(|_| case == Case::Zstd) {
            let worded = Worded::new(program, source, [source, image]).and(squashfs::OPTIONS);
            let jobs = self.jobs.map(|jobs| ["-processors".to_owned(), jobs.to_string()]);
            all.push(worded.and(jobs.into_iter().flatten()).contestant(squashfs::MAKER));
        }
        all
    }
}

/// Runs the experiment.
///
/// # Errors
/// When ours does not build, or there is no place.
pub(crate) fn run(
    arguments: &BuildArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let ours = arguments.programs.ours()?;
    let work = Work::make_in_memory(arguments.to.as_deref())?;
    let (mkfs, mksquashfs) =
        (arguments.programs.peer(MKFS), arguments.programs.peer(squashfs::MAKER));
    let known = [Ok(&ours), mkfs.as_ref(), mksquashfs.as_ref()].into_iter().flatten();
    let known: Vec<Program> = known.cloned().collect();
    let mut findings = Findings::new("build", arguments, &known)?;
    let mkfs = findings.present(MKFS, mkfs);
    let mksquashfs = findings.present(squashfs::MAKER, mksquashfs);
    let builders = Builders { ours, mkfs, mksquashfs, jobs: arguments.jobs };
    let pace = Pace::new(arguments.rounds, 1, is_quick).within(arguments.limit);
    let source = source_of(arguments, is_quick, &work, &mut findings)?;
    findings.report.add_remark(pace.sentence());
    findings.report.add_remark(format!(
        "images go to {}; caches: the tree is read into the page cache before each run, and it is synced after",
        work.place()
    ));
    let mut sheet = Sheet::new(&findings)?;
    let (image, said) = (work.path("image"), work.path("said"));
    for (done, case) in arguments.cases.iter().enumerate() {
        let name = case.name();
        let part = pace.part(arguments.cases.len() - done);
        if !findings.has_time(pace, name) {
            continue;
        }
        writeln!(out, "{name}")?;
        let contestants = builders.contestants(*case, &source, &image);
        for one in &contestants {
            findings.report.add_peer_command(&one.name, one.what.line());
        }
        let contest = interleave(&contestants, part, |worded| {
            part::read(&worded.source)?;
            let built = worded.run(&said).and_then(|mut sample| {
                let bytes = fs::metadata(&image).context("the image that was built")?.len();
                sample.insert(Figure::Bytes, bytes as f64);
                Ok(sample)
            });
            if image.exists() {
                fs::remove_file(&image).context("removing an image")?;
            }
            rustix::fs::sync();
            built
        })?;
        findings.keep(name, &contest);
        sheet.add(*case, &contest.columns);
    }
    Ok(sheet.finish(findings))
}

/// The tree, or a part of it.
fn source_of(
    arguments: &BuildArguments,
    is_quick: bool,
    work: &Work,
    findings: &mut Findings,
) -> Result<PathBuf> {
    let whole = arguments.source.canonicalize();
    let whole = whole.with_context(|| arguments.source.display().to_string())?;
    let quick = is_quick.then_some(QUICK_BYTES);
    let most = [arguments.most_bytes, quick].into_iter().flatten().min();
    let source = match most {
        None => whole,
        Some(most) => {
            let copied = work.path("part");
            part::copy(&whole, &copied, most)?;
            findings.report.add_remark("a part of the tree only, copied beside the images");
            copied
        }
    };
    let (bytes, entries) = part::read(&source)?;
    let megabytes = bytes as f64 / 1e6;
    findings.report.add_remark(format!("{megabytes:.1} MB in {entries} entries"));
    Ok(source)
}

/// The table, the plots and the marks.
struct Sheet {
    table: Table,
    times: Plot,
    sizes: Plot,
    wall_lz4: Verdict,
    wall: Verdict,
    wall_all: Verdict,
    cpu: Verdict,
    peak: Verdict,
    size: Verdict,
    size_dedupe: Verdict,
    verify: Verdict,
}

impl Sheet {
    fn new(findings: &Findings) -> Result<Self> {
        let header = [
            "case",
            "program",
            "wall, s",
            "CPU, s",
            "peak, MiB",
            "image, MB",
            "wall / mkfs.erofs",
            "CPU",
            "peak",
            "size",
        ];
        Ok(Self {
            table: Table::new("Builds", header),
            times: Plot::bars("build", "seconds (wall)"),
            sizes: Plot::bars("size of images", "bytes"),
            wall_lz4: findings.verdict("wall-lz4")?,
            wall: findings.verdict("wall")?,
            wall_all: findings.verdict("wall-all")?,
            cpu: findings.verdict("cpu")?,
            peak: findings.verdict("peak")?,
            size: findings.verdict("size")?,
            size_dedupe: findings.verdict("size-dedupe")?,
            verify: findings.verdict("verify")?,
        })
    }

    fn add(&mut self, case: Case, columns: &[Column]) {
        let name = case.name();
        for column in columns {
            let against = |figure| {
                let ratio = ratio(columns, figure, &column.name, MKFS);
                let ratio = ratio.filter(|_| column.name != MKFS);
                ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}"))
            };
            let size = column.median(Figure::Bytes).unwrap_or(f64::NAN) / 1e6;
            self.table.add([
                name.to_owned(),
                column.name.clone(),
                column.spread(Figure::Wall),
                column.middle(Figure::Cpu),
                column.middle(Figure::Peak),
                format!("{size:.1}"),
                against(Figure::Wall),
                against(Figure::Cpu),
                against(Figure::Peak),
                against(Figure::Bytes),
            ]);
        }
        add_bars(&mut self.times, name, columns, Figure::Wall);
        add_bars(&mut self.sizes, name, columns, Figure::Bytes);
        let of = |figure| ratio(columns, figure, AS_MKFS, MKFS);
        let (wall, size) = match case {
            Case::Lz4 => (&mut self.wall_lz4, &mut self.size),
            Case::All => (&mut self.wall_all, &mut self.size_dedupe),
            _ => (&mut self.wall, &mut self.size),
        };
        wall.add(name, of(Figure::Wall));
        size.add(name, of(Figure::Bytes));
        self.cpu.add(name, of(Figure::Cpu));
        self.peak.add(name, of(Figure::Peak));
        self.verify.add(name, ratio(columns, Figure::Wall, VERIFIED, UNVERIFIED));
    }

    fn finish(self, mut findings: Findings) -> Report {
        findings.report.add_table(self.table);
        findings.report.add_plot(self.times);
        findings.report.add_plot(self.sizes);
        let walls = [self.wall_lz4, self.wall, self.wall_all];
        findings.judge(walls);
        findings.judge([self.cpu, self.peak, self.size, self.size_dedupe, self.verify]);
        findings.report
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::ValueEnum;

    use super::{Builders, Case, squashfs};
    use crate::peers::program::Program;

    fn program(name: &'static str) -> Program {
        Program { name, path: Path::new("/bin").join(name), version: String::new() }
    }

    #[test]
    fn a_case_is_called_by_its_name() {
        for case in Case::ALL {
            assert_eq!(case.to_possible_value().unwrap().get_name(), case.name());
        }
    }

    #[test]
    fn everybody_gets_the_same_options() {
        let builders = Builders {
            ours: program("ferrofs"),
            mkfs: Some(program("mkfs.erofs")),
            mksquashfs: Some(program("mksquashfs")),
            jobs: Some(2),
        };
        let lines = |case| -> Vec<String> {
            let all = builders.contestants(case, Path::new("/tree"), Path::new("/image"));
            all.into_iter().map(|one| one.what.line().join(" ")).collect()
        };
        let all = lines(Case::All);
        assert_eq!(all.len(), 4);
        assert!(
            all[0].ends_with(
                "-zlz4hc -C65536 -Efragments,dedupe,ztailpacking --workers=2 /image /tree"
            )
        );
        let behind = |line: &str| line.split_once(") ").unwrap().1.to_owned();
        assert_eq!(behind(&all[0]), behind(&all[1]));
        assert!(all[3].contains("--no-verify") && all[3].contains("--inline-pclusters --jobs=2"));
        let zstd = lines(Case::Zstd);
        assert!(zstd[4].starts_with("/bin/mksquashfs /tree /image -comp zstd"), "{}", zstd[4]);
        assert!(zstd[4].contains(squashfs::MAKER) && zstd[4].ends_with("-processors 2"));
    }
}
