//! The same reading from mounts of the same image in turn: ours, and the kernel's where it can be had; by one reader and
//! by several; files from end to end, and single blocks. Every time from a fresh mount, so that nothing of it is in the
//! page cache.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use ferrofs_workers::cpus::AvailableCpus;

use super::kernel_mount::KernelMount;
use super::own_mount::{DaemonMount, MountAttempt};
use super::readers::{ReadPattern, ReadSample, Readers};
use super::reading_plan::ReadingPlan;
use crate::arguments::DemoArguments;
use crate::signals::StopRequest;

/// So often everything is repeated,
const ROUNDS_MAX: u32 = 5;
/// unless it has taken so long already.
const TIME_MAX: Duration = Duration::from_secs(3);
/// Readers where there are fewer CPUs.
const READERS_MIN: usize = 4;

/// What is to be measured.
pub(super) struct MountBenchmark<'a> {
    pub(super) arguments: &'a DemoArguments,
    pub(super) image: &'a Path,
    /// Where mounts are made.
    pub(super) temp: &'a Path,
    pub(super) plan: &'a ReadingPlan,
    pub(super) stop: &'a StopRequest,
}

/// Who mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountKind {
    Own,
    Kernel,
}

/// What so many readers of somebody's mounts took.
#[derive(Clone, Debug)]
pub(super) struct BenchmarkRow {
    pub(super) mount_kind: MountKind,
    pub(super) readers: usize,
    pub(super) files: ReadSample,
    pub(super) blocks: ReadSample,
}

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct BenchmarkResult {
    pub(super) rows: Vec<BenchmarkRow>,
    pub(super) rounds: u32,
    /// What `ferrofs stats` said of the last mount that several read files from.
    pub(super) stats: String,
    /// Mounts of our own that were made and ended well.
    pub(super) own_mounts: u32,
}

/// How many readers several are.
pub(super) fn several() -> usize {
    AvailableCpus::read().parallelism().max(READERS_MIN)
}

impl MountBenchmark<'_> {
    /// Measures.
    ///
    /// # Errors
    /// A mount that worked before does not, or somebody wants an end.
    pub(super) fn run(&self, contestants: &[MountKind]) -> anyhow::Result<BenchmarkResult> {
        let rows = [1, several()].into_iter().flat_map(|readers| {
            contestants.iter().map(move |mount_kind| BenchmarkRow {
                mount_kind: *mount_kind,
                readers,
                files: ReadSample::default(),
                blocks: ReadSample::default(),
            })
        });
        let mut result = BenchmarkResult {
            rows: rows.collect(),
            rounds: 0,
            stats: String::new(),
            own_mounts: 0,
        };
        let started = Instant::now();
        while result.rounds < ROUNDS_MAX && (result.rounds == 0 || started.elapsed() < TIME_MAX) {
            // Nobody is always the first.
            for place in 0..result.rows.len() {
                let number = if result.rounds.is_multiple_of(2) {
                    place
                } else {
                    result.rows.len() - 1 - place
                };
                self.run_row(number, &mut result)?;
            }
            result.rounds += 1;
        }
        Ok(result)
    }

    fn run_row(&self, number: usize, result: &mut BenchmarkResult) -> anyhow::Result<()> {
        let BenchmarkRow { mount_kind, readers, .. } = result.rows[number];
        for subject in [ReadPattern::Files, ReadPattern::Blocks] {
            let sample = match mount_kind {
                MountKind::Own => self.read_own(subject, readers, result)?,
                MountKind::Kernel => self.read_kernel(subject, readers)?,
            };
            let row = &mut result.rows[number];
            match subject {
                ReadPattern::Files => row.files.add(sample),
                ReadPattern::Blocks => row.blocks.add(sample),
            }
        }
        Ok(())
    }

    fn read_own(
        &self,
        subject: ReadPattern,
        readers: usize,
        result: &mut BenchmarkResult,
    ) -> anyhow::Result<ReadSample> {
        let directory = self.temp.join("mnt");
        let mount = match DaemonMount::start(self.arguments, self.image, &directory)? {
            MountAttempt::Done(mount) => mount,
            MountAttempt::Unavailable(reason) => {
                bail!("it was mounted before, and now not: {reason}")
            }
        };
        let sample = self.readers(readers).read(subject, mount.directory())?;
        if subject == ReadPattern::Files && readers > 1 {
            result.stats = mount.stats()?;
        }
        mount.end()?;
        result.own_mounts += 1;
        Ok(sample)
    }

    fn read_kernel(&self, subject: ReadPattern, readers: usize) -> anyhow::Result<ReadSample> {
        let directory = self.temp.join("kernel");
        let mount = KernelMount::start(self.image, &self.arguments.read, &directory)?;
        let sample = self.readers(readers).read(subject, mount.directory())?;
        mount.end()?;
        Ok(sample)
    }

    fn readers(&self, count: usize) -> Readers<'_> {
        Readers { count, plan: self.plan, stop: self.stop }
    }
}
