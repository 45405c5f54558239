//! The `mount` experiment: trees, a large file and listings, read through fresh mounts of everybody, in turn.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::bed::{Bed, Wish, find};
use super::column::{Column, Figure, ratio};
use super::findings::{Findings, Verdict, add_bars};
use super::images::Pictured;
use super::interleave::Pace;
use super::mounted::System;
use super::program::ProgramArguments;
use super::reader::{Reader, Way};
use super::squashfs::{Wanted, of_tree};
use super::work::Work;
use crate::deadline::TimeLimit;
use crate::plot::Plot;
use crate::report::Report;
use crate::table::Table;

/// A quick run reads so many files of a tree, and so much of a large file.
const QUICK_FILES: u64 = 1000;
const QUICK_BYTES: u64 = 32 << 20;

/// What is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    /// All files in the order of the listing
    Tree,
    /// The largest file, front to back
    Large,
    /// All names
    Find,
    /// All names with attributes
    List,
}

impl What {
    /// Trees, which take longest, at the end: they have what the others leave of their shares.
    const ALL: [Self; 4] = [Self::Large, Self::Find, Self::List, Self::Tree];
}

/// What is mounted, and read.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct MountArguments {
    /// EROFS images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// Who mounts
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = System::ALL)]
    systems: Vec<System>,
    /// What is read
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = What::ALL)]
    what: Vec<What>,
    /// Processes that read a tree, one run for each number
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    readers: Vec<u16>,
    /// Rounds, each on mounts made anew; 1 with --quick
    #[arg(short = 'c', long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    #[command(flatten)]
    limit: TimeLimit,
    /// A squashfs image of the same tree; made of the first image if none is named
    #[arg(long, value_name = "FILE")]
    squashfs: Option<PathBuf>,
    /// Folder for mount points and a squashfs image; the system's temporary folder if none is named
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    #[command(flatten)]
    programs: ProgramArguments,
}

/// A run: what is read, under which title, by how many, and what it looks like in a shell.
struct Run {
    what: What,
    readers: u16,
}

impl Run {
    fn all(arguments: &MountArguments) -> Vec<Self> {
        let counts = |what: &What| match what {
            What::Tree => arguments.readers.clone(),
            What::Large | What::Find | What::List => vec![1],
        };
        let runs = arguments
            .what
            .iter()
            .flat_map(|what| counts(what).into_iter().map(|readers| Self { what: *what, readers }));
        runs.collect()
    }

    fn title(&self) -> String {
        match self.what {
            What::Tree if self.readers == 1 => "tree, 1 reader".to_owned(),
            What::Tree => format!("tree, {} readers", self.readers),
            What::Large => "largest file".to_owned(),
            What::Find => "find".to_owned(),
            What::List => "ls -lR".to_owned(),
        }
    }

    /// The reader for an image; None if the image has nothing to read so.
    fn reader(&self, image: &Pictured, is_quick: bool) -> Option<Reader> {
        let way = match self.what {
            What::Tree => Way::Tree,
            What::Large => Way::Large,
            What::Find => Way::Find,
            What::List => Way::List,
        };
        let mut reader = Reader { jobs: self.readers, ..Reader::new(way) };
        if self.what == What::Large {
            reader.file = Some(image.largest.as_ref()?.0.clone());
        }
        if is_quick {
            (reader.files, reader.bytes) = (QUICK_FILES, QUICK_BYTES);
        }
        Some(reader)
    }
}

/// Runs the experiment.
///
/// # Errors
/// When ours cannot mount or read.
pub(crate) fn run(
    arguments: &MountArguments,
    is_quick: bool,
    out: &mut dyn Write,
) -> Result<Report> {
    let images = Pictured::look_at_all(&arguments.images)?;
    let wish = Wish { systems: &arguments.systems, programs: &arguments.programs };
    let found = find(wish)?;
    let mut findings = Findings::new("mount", arguments, &found.programs())?;
    // Five ways, six systems: a second round of them would not fit into a quick run.
    let rounds = if is_quick { 1 } else { arguments.rounds };
    let pace = Pace::new(rounds, 0, is_quick).within(arguments.limit);
    let work = Work::make(arguments.work.as_deref())?;
    let mut squashfs = None;
    let first = images.first().context("no image")?;
    if found.mounters.iter().any(|mounter| mounter.system.takes_squashfs()) {
        let (given, programs) = (arguments.squashfs.as_deref(), &arguments.programs);
        let found = of_tree(Wanted { given, programs, is_quick }, first, work.folder())?;
        squashfs = findings.present("squashfuse_ll, kernel-squashfs", found);
    }
    let bed = Bed::new(&mut findings, found, squashfs, (work, first))?;
    findings.report.add_remark(pace.sentence());
    if is_quick {
        findings.report.add_remark(format!(
            "quick: the first {QUICK_FILES} files of a tree, the first {QUICK_BYTES} bytes of a file"
        ));
    }
    let mut verdicts = Verdicts::new(&findings)?;
    let runs = Run::all(arguments);
    let mut left = runs.len() * images.len();
    for run in runs {
        let mut sheet = Sheet::new(&run.title());
        for image in &images {
            let case = format!("{}, {}", run.title(), image.name);
            let part = pace.part(left);
            left -= 1;
            let Some(reader) = run.reader(image, is_quick) else { continue };
            if !findings.has_time(pace, &case) {
                continue;
            }
            writeln!(out, "{case}")?;
            let contest = bed.contest(image, &reader, part)?;
            findings.keep(&case, &contest);
            verdicts.add(run.what, image, &case, &contest.columns);
            sheet.add(&image.name, &contest.columns);
        }
        sheet.finish(&mut findings);
    }
    verdicts.judge(&mut findings);
    Ok(findings.report)
}

/// The table and the plot of a run.
struct Sheet {
    table: Table,
    plot: Plot,
    has_rows: bool,
}

impl Sheet {
    fn new(title: &str) -> Self {
        let header = [
            "image",
            "system",
            "wall",
            "reader CPU",
            "daemon CPU",
            "daemon peak, MiB",
            "ferrofs / it",
        ];
        Self {
            table: Table::new(format!("{title}, seconds"), header),
            plot: Plot::bars(title, "seconds (wall)"),
            has_rows: false,
        }
    }

    fn add(&mut self, image: &str, columns: &[Column]) {
        for column in columns {
            let ratio = ratio(columns, Figure::Wall, System::Ferrofs.name(), &column.name);
            let ratio = ratio.filter(|_| column.name != System::Ferrofs.name());
            self.table.add([
                image.to_owned(),
                column.name.clone(),
                column.spread(Figure::Wall),
                column.middle(Figure::Cpu),
                column.middle(Figure::DaemonCpu),
                column.middle(Figure::Peak),
                ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            ]);
            self.has_rows = true;
        }
        add_bars(&mut self.plot, image, columns, Figure::Wall);
    }

    fn finish(self, findings: &mut Findings) {
        if self.has_rows {
            findings.report.add_table(self.table);
            findings.report.add_plot(self.plot);
        }
    }
}

/// Everything that ours is held against.
struct Verdicts {
    tree_erofsfuse: Verdict,
    /// Of the kernel's EROFS, by codec.
    tree_kernel: Vec<(&'static str, Verdict)>,
    large_kernel: Verdict,
    large_kernel_lz4_4k: Verdict,
    names_kernel: Verdict,
    names_erofsfuse: Verdict,
}

impl Verdicts {
    fn new(findings: &Findings) -> Result<Self> {
        let by_codec = ["lz4", "zstd", "deflate", "lzma"].into_iter();
        let by_codec = by_codec
            .map(|codec| Ok((codec, findings.verdict(&format!("tree-kernel-{codec}"))?)))
            .collect::<Result<_>>()?;
        Ok(Self {
            tree_erofsfuse: findings.verdict("tree-erofsfuse")?,
            tree_kernel: by_codec,
            large_kernel: findings.verdict("large-kernel")?,
            large_kernel_lz4_4k: findings.verdict("large-kernel-lz4-4k")?,
            names_kernel: findings.verdict("names-kernel")?,
            names_erofsfuse: findings.verdict("names-erofsfuse")?,
        })
    }

    fn add(&mut self, what: What, image: &Pictured, case: &str, columns: &[Column]) {
        let of = |peer: System| ratio(columns, Figure::Wall, System::Ferrofs.name(), peer.name());
        let (kernel, erofsfuse) = (of(System::Kernel), of(System::Erofsfuse));
        match what {
            What::Tree => {
                self.tree_erofsfuse.add(case, erofsfuse);
                let mut judges = self.tree_kernel.iter_mut();
                if let Some((_, judge)) = judges.find(|(codec, _)| *codec == image.codec()) {
                    judge.add(case, kernel);
                }
            }
            What::Large if image.is_lz4_4k() => self.large_kernel_lz4_4k.add(case, kernel),
            What::Large => self.large_kernel.add(case, kernel),
            What::Find | What::List => {
                self.names_kernel.add(case, kernel);
                self.names_erofsfuse.add(case, erofsfuse);
            }
        }
    }

    fn judge(self, findings: &mut Findings) {
        findings.judge([self.tree_erofsfuse]);
        findings.judge(self.tree_kernel.into_iter().map(|(_, verdict)| verdict));
        findings.judge([self.large_kernel, self.large_kernel_lz4_4k]);
        findings.judge([self.names_kernel, self.names_erofsfuse]);
    }
}
