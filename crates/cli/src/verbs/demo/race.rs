//! The same reading from mounts of the same image in turn: ours, and the kernel's where it can be had; by one reader and
//! by several; files from end to end, and single blocks. Every time from a fresh mount, so that nothing of it is in the
//! page cache.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use ferrofs_image::workers::cpus::Granted;

use super::interruption::Interruption;
use super::kernel_mount::KernelMount;
use super::own_mount::{Mounting, OwnMount};
use super::readers::{Readers, Sample, Subject};
use super::reading_plan::ReadingPlan;
use crate::arguments::DemoArguments;

/// So often everything is repeated,
const ROUNDS_MAX: u32 = 5;
/// unless it has taken so long already.
const TIME_MAX: Duration = Duration::from_secs(3);
/// Readers where there are fewer CPUs.
const READERS_MIN: usize = 4;

/// What is to be measured.
pub(super) struct Race<'a> {
    pub(super) arguments: &'a DemoArguments,
    pub(super) image: &'a Path,
    /// Where mounts are made.
    pub(super) scratch: &'a Path,
    pub(super) plan: &'a ReadingPlan,
    pub(super) interruption: &'a Interruption,
}

/// Who mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contestant {
    Own,
    Kernel,
}

/// What so many readers of somebody's mounts took.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) contestant: Contestant,
    pub(super) readers: usize,
    pub(super) files: Sample,
    pub(super) blocks: Sample,
}

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct RaceResult {
    pub(super) rows: Vec<Row>,
    pub(super) rounds: u32,
    /// What `ferrofs stats` said of the last mount that several read files from.
    pub(super) stats: String,
    /// Mounts of our own that were made and ended well.
    pub(super) own_mounts: u32,
}

/// How many readers several are.
pub(super) fn several() -> usize {
    Granted::read().parallelism().max(READERS_MIN)
}

impl Race<'_> {
    /// Measures.
    ///
    /// # Errors
    /// A mount that worked before does not, or somebody wants an end.
    pub(super) fn run(&self, contestants: &[Contestant]) -> anyhow::Result<RaceResult> {
        let rows = [1, several()].into_iter().flat_map(|readers| {
            contestants.iter().map(move |contestant| Row {
                contestant: *contestant,
                readers,
                files: Sample::default(),
                blocks: Sample::default(),
            })
        });
        let mut result =
            RaceResult { rows: rows.collect(), rounds: 0, stats: String::new(), own_mounts: 0 };
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

    fn run_row(&self, number: usize, result: &mut RaceResult) -> anyhow::Result<()> {
        let Row { contestant, readers, .. } = result.rows[number];
        for subject in [Subject::Files, Subject::Blocks] {
            let sample = match contestant {
                Contestant::Own => self.read_own(subject, readers, result)?,
                Contestant::Kernel => self.read_kernel(subject, readers)?,
            };
            let row = &mut result.rows[number];
            match subject {
                Subject::Files => row.files.add(sample),
                Subject::Blocks => row.blocks.add(sample),
            }
        }
        Ok(())
    }

    fn read_own(
        &self,
        subject: Subject,
        readers: usize,
        result: &mut RaceResult,
    ) -> anyhow::Result<Sample> {
        let directory = self.scratch.join("mnt");
        let mount = match OwnMount::start(self.arguments, self.image, &directory)? {
            Mounting::Done(mount) => mount,
            Mounting::NotToBeHad(reason) => bail!("it was mounted before, and now not: {reason}"),
        };
        let sample = self.readers(readers).read(subject, mount.directory())?;
        if subject == Subject::Files && readers > 1 {
            result.stats = mount.stats()?;
        }
        mount.end()?;
        result.own_mounts += 1;
        Ok(sample)
    }

    fn read_kernel(&self, subject: Subject, readers: usize) -> anyhow::Result<Sample> {
        let directory = self.scratch.join("kernel");
        let mount = KernelMount::start(self.image, &self.arguments.read, &directory)?;
        let sample = self.readers(readers).read(subject, mount.directory())?;
        mount.end()?;
        Ok(sample)
    }

    fn readers(&self, count: usize) -> Readers<'_> {
        Readers { count, plan: self.plan, interruption: self.interruption }
    }
}
