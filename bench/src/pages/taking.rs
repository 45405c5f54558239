//! Ways to get frames, and how long each frame takes. Called inside of the group by `limit`.

use std::time::Instant;

use anyhow::{Context, Result};
use ferrofs_workers::memory::{
    AllocPolicy, Budget, FRAME_BYTES, Mapping, PagePool, PagePoolSettings, PageSize,
};

use crate::statistics::Samples;

/// Memory that the budget of a pool allows; the group is what limits here.
const BUDGET_BYTES: u64 = 1 << 30;

/// A way to get frames.
#[derive(Debug)]
pub(crate) enum Source {
    /// A page fault each, on fresh memory: what any program pays.
    Fault,
    /// A page pool with that many frames in reserve.
    Pool { pool: PagePool, reserved: u32 },
}

impl Source {
    /// A pool for `frames` at a time. It has had them once, so that its reserve is as full as it gets.
    ///
    /// # Errors
    /// When memory for the pool or for a frame cannot be had.
    pub(crate) fn pool(frames: u32, reserved: u32) -> Result<Self> {
        let budget = Budget::new(BUDGET_BYTES);
        let settings = PagePoolSettings::new(frames, reserved);
        let pool = PagePool::new(&budget, settings).context("making a page pool")?;
        let source = Self::Pool { pool, reserved };
        source.take(frames)?;
        Ok(source)
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Fault => "system (page faults)".to_owned(),
            Self::Pool { reserved: 0, .. } => "pool without reserve".to_owned(),
            Self::Pool { reserved, .. } => format!("reserve of {reserved}"),
        }
    }

    /// Gets so many frames, writes to each, and gives all of them back; the nanoseconds that each took
    /// to get, one look at the clock included.
    ///
    /// # Errors
    /// When a frame cannot be had.
    pub(crate) fn take(&self, frames: u32) -> Result<Samples> {
        match self {
            Self::Fault => fault(frames),
            Self::Pool { pool, .. } => take_from(pool, frames),
        }
    }
}

fn fault(frames: u32) -> Result<Samples> {
    let bytes = usize::try_from(frames)? * FRAME_BYTES;
    let mut mapping = Mapping::anonymous(bytes, PageSize::Small).context("mapping memory")?;
    let mut samples = Vec::with_capacity(usize::try_from(frames)?);
    let mut before = Instant::now();
    for frame in mapping.bytes_mut().chunks_mut(FRAME_BYTES) {
        write_first(frame);
        before = note(before, &mut samples);
    }
    Ok(samples.into_iter().collect())
}

fn take_from(pool: &PagePool, frames: u32) -> Result<Samples> {
    let mut samples = Vec::with_capacity(usize::try_from(frames)?);
    let mut held = Vec::with_capacity(usize::try_from(frames)?);
    let mut before = Instant::now();
    for _ in 0..frames {
        let mut frame = pool.allocate(AllocPolicy::MustSucceed).context("taking a frame")?;
        write_first(&mut frame);
        held.push(frame);
        before = note(before, &mut samples);
    }
    Ok(samples.into_iter().collect())
}

/// Writes to a frame, as whoever gets one does.
pub(super) fn write_first(frame: &mut [u8]) {
    if let Some(first) = frame.first_mut() {
        *first = 1;
        std::hint::black_box(first);
    }
}

/// Notes the time since `before`, and gives the moment up to which it goes.
fn note(before: Instant, samples: &mut Vec<f64>) -> Instant {
    let now = Instant::now();
    samples.push((now - before).as_secs_f64() * 1e9);
    now
}

#[cfg(test)]
mod tests {
    use super::Source;

    #[test]
    fn every_source_gives_as_many_frames_as_asked() {
        for source in [Source::Fault, Source::pool(32, 0).unwrap(), Source::pool(32, 8).unwrap()] {
            for _ in 0..2 {
                assert_eq!(source.take(32).unwrap().summary().count, 32, "{}", source.name());
            }
        }
    }
}
