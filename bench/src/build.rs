//! The build experiment: mkfs.erofs and ours make images of the same tree with the same options, in turn; ours under the
//! name mkfs.erofs, which verifies nothing, and as itself with and without verification.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::experiment::{Context, Experiment};
use crate::process;
use crate::programs::{Invocation, MKSQUASHFS, PeerArguments, Program, SQUASHFS_OPTIONS, place_of};
use crate::rounds::ratio;
use crate::statistics::{CPU, Figure, Figures, PEAK, WALL};
use crate::table::{Column, Sheet};
use crate::trees::{copy_part, read_tree};

/// A quick run uses this much of the tree.
const QUICK_BYTES: u64 = 4 << 20;
/// Fixed, so that images have the same bytes in every round.
const COMMON: [&str; 3] = ["-T1710000000", "-U", "6f726566-7266-6566-6572-726f66730000"];
const SIZE: Figure = Figure::new("size", "bytes", 0);
const MKFS: &str = "mkfs.erofs";
const AS_MKFS: &str = "ferrofs as mkfs.erofs";
const VERIFIED: &str = "ferrofs build";
const UNVERIFIED: &str = "ferrofs build --no-verify";

/// Options of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum BuildCase {
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
    /// With fragments, dedupe and inline tails
    #[value(name = "lz4hc-64k-all")]
    All,
    /// The longest comes last: it has what the others leave of their shares
    #[value(name = "lzma-64k")]
    Lzma,
}

impl BuildCase {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    const fn options(self) -> [&'static str; 2] {
        match self {
            Self::Lz4 => ["-zlz4", "-C4096"],
            Self::Lz4hcSmall => ["-zlz4hc", "-C4096"],
            Self::Lz4hc | Self::All => ["-zlz4hc", "-C65536"],
            Self::Zstd => ["-zzstd", "-C65536"],
            Self::Deflate => ["-zdeflate", "-C65536"],
            Self::Lzma => ["-zlzma", "-C65536"],
        }
    }

    /// Further options of mkfs.erofs, and of ours.
    const fn features(self) -> [&'static [&'static str]; 2] {
        match self {
            Self::All => [
                &["-Efragments,dedupe,ztailpacking"],
                &["--fragments", "--dedupe", "--inline-pclusters"],
            ],
            _ => [&[], &[]],
        }
    }
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct BuildArguments {
    /// The tree
    source: PathBuf,
    /// Options of the images
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_values_t = BuildCase::value_variants().to_vec())]
    cases: Vec<BuildCase>,
    /// Use only so much of the tree, copied beside the images; 4 MiB at most with --quick
    #[arg(long, value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    most_bytes: Option<u64>,
    /// Threads of every program; their defaults if not given
    #[arg(short, long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    jobs: Option<u16>,
    #[command(flatten)]
    peers: PeerArguments,
}

/// The programs that take part.
struct Builders {
    ours: Program,
    mkfs: Option<Program>,
    mksquashfs: Option<Program>,
    jobs: Option<u16>,
}

impl Builders {
    fn invocations(
        &self,
        case: BuildCase,
        source: &Path,
        image: &Path,
    ) -> Vec<(&'static str, Invocation)> {
        let [theirs, ours] = case.features();
        let jobs = |option: &str| self.jobs.map(|jobs| format!("{option}={jobs}"));
        let as_mkfs = |program: &Program| {
            let invocation = Invocation::new(program).called(MKFS).with(["--quiet", "--mkfs-time"]);
            let invocation =
                invocation.with(COMMON).with(case.options()).with(theirs.iter().copied());
            invocation.with(jobs("--workers")).with([image, source])
        };
        let build = |option: Option<&str>| {
            let words = ["build", "--quiet", "--progress=none", "--force"];
            let invocation = Invocation::new(&self.ours).with(words).with(option).with(COMMON);
            let invocation = invocation.with(case.options()).with(ours.iter().copied());
            invocation.with(jobs("--jobs")).with([image, source])
        };
        let mut all = Vec::new();
        all.extend(self.mkfs.as_ref().map(|program| (MKFS, as_mkfs(program))));
        all.push((AS_MKFS, as_mkfs(&self.ours)));
        all.push((VERIFIED, build(None)));
        all.push((UNVERIFIED, build(Some("--no-verify"))));
        // For scale; it has no options that would make it the same work.
        if let Some(program) = self.mksquashfs.as_ref().filter(|_| case == BuildCase::Zstd) {
            let invocation = Invocation::new(program).with([source, image]).with(SQUASHFS_OPTIONS);
            let jobs = self.jobs.map(|jobs| ["-processors".to_owned(), jobs.to_string()]);
            all.push((MKSQUASHFS, invocation.with(jobs.into_iter().flatten())));
        }
        all
    }
}

impl Experiment for BuildArguments {
    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let programs = &self.peers.programs;
        let ours = programs.ours()?;
        let folder = self.peers.folder_in_memory()?;
        context.plan(&self.peers.rounds, self.cases.len());
        context.report.remark(ours.to_string());
        let [mkfs, mksquashfs] =
            [MKFS, MKSQUASHFS].map(|name| programs.find(name, &mut context.report));
        let builders = Builders { ours, mkfs, mksquashfs, jobs: self.jobs };
        let source = self.tree(folder.path(), context)?;
        context.report.remark(format!(
            "images go to {}; caches: the tree is read into the page cache before each run, and it is synced after",
            place_of(folder.path())
        ));
        let mut columns = vec![
            Column::new("wall, s", WALL).spread(),
            Column::new("CPU, s", CPU),
            Column::new("peak, MiB", PEAK),
            Column::new("image, bytes", SIZE),
        ];
        for (title, figure) in
            [("wall / mkfs.erofs", WALL), ("CPU", CPU), ("peak", PEAK), ("size", SIZE)]
        {
            columns.push(Column::new(title, figure).ratio_to(MKFS));
        }
        let mut sheet = Sheet::new("Builds", "case | program", columns).bars(WALL).steady(WALL);
        let image = folder.path().join("image");
        for case in &self.cases {
            let name = case.name();
            let candidates = builders.invocations(*case, &source, &image).into_iter();
            let candidates = candidates.map(|(name, invocation)| {
                context.report.peer_command(name, invocation.line());
                let (source, image) = (&source, &image);
                let program = invocation.program.clone();
                program.candidate(name, move || build_once(&invocation, source, image))
            });
            let candidates = candidates.collect();
            let all = context.measure(&name, candidates)?;
            sheet.add(&name, &all);
            let [wall, size] = match case {
                BuildCase::Lz4 => ["wall-lz4", "size"],
                BuildCase::All => ["wall-all", "size-dedupe"],
                _ => ["wall", "size"],
            };
            for (threshold, figure) in [(wall, WALL), (size, SIZE), ("cpu", CPU), ("peak", PEAK)] {
                context.report.judge(threshold, &name, ratio(&all, figure, AS_MKFS, MKFS));
            }
            context.report.judge("verify", &name, ratio(&all, WALL, VERIFIED, UNVERIFIED));
        }
        context.report.sheet(sheet);
        Ok(())
    }
}

/// One build of an image, which is removed.
fn build_once(invocation: &Invocation, source: &Path, image: &Path) -> Result<Figures> {
    read_tree(source)?;
    let built = process::run(&mut invocation.command(), None).and_then(|(cost, _)| {
        let bytes = fs::metadata(image).context("the image that was built")?.len();
        let mut figures = cost.figures();
        figures.push((SIZE, bytes as f64));
        Ok(figures)
    });
    if image.exists() {
        fs::remove_file(image).context("removing an image")?;
    }
    rustix::fs::sync();
    built
}

impl BuildArguments {
    /// The tree, or a part of it.
    fn tree(&self, folder: &Path, context: &mut Context<'_>) -> Result<PathBuf> {
        let whole = self.source.canonicalize();
        let mut source = whole.with_context(|| self.source.display().to_string())?;
        let quick = context.is_quick.then_some(QUICK_BYTES);
        if let Some(most) = [self.most_bytes, quick].into_iter().flatten().min() {
            let part = folder.join("part");
            copy_part(&source, &part, most)?;
            context.report.remark("a part of the tree only, copied beside the images");
            source = part;
        }
        let (bytes, entries) = read_tree(&source)?;
        context.report.remark(format!("{:.1} MB in {entries} entries", bytes as f64 / 1e6));
        Ok(source)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{BuildCase, Builders};
    use crate::programs::Program;

    #[test]
    fn every_program_gets_the_same_options() {
        let program = |name: &'static str| {
            let path = Path::new("/bin").join(name);
            Program { name, path, version: String::new() }
        };
        let builders = Builders {
            ours: program("ferrofs"),
            mkfs: Some(program("mkfs.erofs")),
            mksquashfs: Some(program("mksquashfs")),
            jobs: Some(2),
        };
        let lines = |case| -> Vec<String> {
            let all = builders.invocations(case, Path::new("/tree"), Path::new("/image"));
            all.into_iter().map(|(_, one)| one.line().join(" ")).collect()
        };
        let all = lines(BuildCase::All);
        assert_eq!(all.len(), 4);
        let options = "-zlz4hc -C65536 -Efragments,dedupe,ztailpacking --workers=2 /image /tree";
        assert!(all[0].ends_with(options), "{}", all[0]);
        let behind = |line: &str| line.split_once(") ").unwrap().1.to_owned();
        assert_eq!(behind(&all[0]), behind(&all[1]));
        assert!(all[3].contains("--no-verify") && all[3].contains("--inline-pclusters --jobs=2"));
        let zstd = lines(BuildCase::Zstd);
        assert!(zstd[4].starts_with("/bin/mksquashfs /tree /image -comp zstd"), "{}", zstd[4]);
        assert!(zstd[4].ends_with("-processors 2"));
    }
}
