//! Random reads as fio's psync engine makes them: pread of 4 KiB, every block of each job's own part once, with the kernel
//! told not to read ahead. Every latency is kept.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};

use super::Seen;
use crate::statistics::Samples;

pub(in crate::peers) const BLOCK_BYTES: usize = 4096;
/// The order is the same in every run.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Of all reads together, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(in crate::peers) struct Latencies {
    pub(in crate::peers) mean: f64,
    pub(in crate::peers) p50: f64,
    pub(in crate::peers) p99: f64,
    pub(in crate::peers) p999: f64,
}

/// Reads the front of the file by so many threads.
pub(super) fn read(path: &Path, jobs: u16, most_bytes: u64) -> Result<Seen> {
    let length = File::open(path).and_then(|file| file.metadata());
    let length = length.with_context(|| path.display().to_string())?.len();
    let blocks = length.min(most_bytes) / BLOCK_BYTES as u64 / u64::from(jobs);
    ensure!(blocks > 0, "{} is shorter than {jobs} blocks of {BLOCK_BYTES} bytes", path.display());
    let parts = thread::scope(|scope| {
        let jobs: Vec<_> = (0..u64::from(jobs))
            .map(|job| scope.spawn(move || read_part(path, job * blocks, blocks)))
            .collect();
        let parts = jobs.into_iter();
        let parts = parts.map(|job| job.join().map_err(|_| anyhow!("a reader panicked"))?);
        parts.collect::<Result<Vec<_>>>()
    })?;
    let all: Samples = parts.into_iter().flatten().collect();
    let summary = all.summary();
    let latencies = Latencies {
        mean: summary.average,
        p50: summary.median,
        p99: all.percentile(990),
        p999: all.percentile(999),
    };
    let bytes = (summary.count * BLOCK_BYTES) as u64;
    Ok(Seen { files: 1, bytes, refused: 0, latencies: Some(latencies) })
}

/// Latencies of the reads of a part, in the order they came.
fn read_part(path: &Path, first: u64, blocks: u64) -> Result<Vec<f64>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    fadvise(&file, 0, None, Advice::Random).context("telling that reads are random")?;
    let mut block = [0; BLOCK_BYTES];
    let mut latencies = Vec::with_capacity(usize::try_from(blocks)?);
    for index in shuffled(blocks, SEED ^ first) {
        let offset = (first + index) * BLOCK_BYTES as u64;
        let begin = Instant::now();
        file.read_exact_at(&mut block, offset)
            .with_context(|| format!("{} at {offset}", path.display()))?;
        latencies.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(latencies)
}

/// The numbers below `count`, each once (Fisher and Yates), by xorshift64.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut state = seed.max(1);
    let mut order: Vec<u64> = (0..count).collect();
    for last in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, usize::try_from(state % (last as u64 + 1)).unwrap_or_default());
    }
    order
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, read, shuffled};

    #[test]
    fn every_block_comes_once_and_not_in_order() {
        let mut order = shuffled(1000, 7);
        assert_eq!(order, shuffled(1000, 7));
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
        assert_eq!(shuffled(1, 0), [0]);
    }

    #[test]
    fn jobs_share_the_front_of_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(10 * BLOCK_BYTES as u64 + 1).unwrap();
        let seen = read(file.path(), 2, 9 * BLOCK_BYTES as u64).unwrap();
        assert_eq!(seen.bytes, 8 * BLOCK_BYTES as u64);
        let latencies = seen.latencies.unwrap();
        assert!(latencies.p50 > 0.0 && latencies.p50 <= latencies.p99);
        assert!(latencies.p99 <= latencies.p999 && latencies.mean > 0.0);
        read(file.path(), 11, u64::MAX).unwrap_err();
    }
}
