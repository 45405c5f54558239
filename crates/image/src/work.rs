//! How much work an image may cause again and again.
//!
//! Reading every structure once takes time in proportion to the image. But directories can share
//! one block of entries, inodes one attribute, and extents one cluster, so that a few mebibytes lead
//! to years of work. A [`WorkMeter`] counts what an operation does beyond the first time, and stops
//! it at a limit. It reads no clock: the same image ends in the same place on every machine.
//! `walk`, `verify` and the callers that extract add to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// Counts repeated work in bytes that a fast codec decodes in the same time: a unit is about a
/// nanosecond. Clones count together.
///
/// ```
/// use ferrofs_image::{ErrorKind, WorkMeter};
///
/// let meter = WorkMeter::new(1000);
/// meter.add(900, "attributes")?;
/// let error = meter.add(200, "attributes").unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::WorkLimit { limit: 1000, .. }));
/// # Ok::<(), ferrofs_image::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WorkMeter {
    counter: Arc<WorkCounter>,
}

#[derive(Debug)]
struct WorkCounter {
    spent: AtomicU64,
    limit: u64,
}

impl WorkMeter {
    /// Repeated work for every image, however short: a quarter of a second.
    const MIN_BYTES: u64 = 256 << 20;
    /// Repeated work for each byte of the image: half a second for a mebibyte. Sound images repeat
    /// next to nothing: docs/trust.md has the figures.
    const PER_BYTE: u64 = 512;

    /// A meter that stops at `limit` bytes of repeated work.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self { counter: Arc::new(WorkCounter { spent: AtomicU64::new(0), limit }) }
    }

    /// The limit for an image of so many bytes, devices included.
    #[must_use]
    pub fn default_limit(image_bytes: u64) -> u64 {
        image_bytes.saturating_mul(Self::PER_BYTE).saturating_add(Self::MIN_BYTES)
    }

    /// The limit, in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.counter.limit
    }

    /// The repeated work so far, in bytes.
    #[must_use]
    pub fn spent(&self) -> u64 {
        // Relaxed, here and below: no data is published with the number.
        self.counter.spent.load(Ordering::Relaxed)
    }

    /// Adds repeated work. `what` names it in the error.
    ///
    /// # Errors
    /// [`ErrorKind::WorkLimit`]: all of it together is more than the limit.
    pub fn add(&self, bytes: u64, what: &'static str) -> Result<()> {
        let before = self.counter.spent.fetch_add(bytes, Ordering::Relaxed);
        let limit = self.limit();
        if before.saturating_add(bytes) <= limit {
            return Ok(());
        }
        // The sum must not overflow while other threads go on adding.
        self.counter.spent.store(limit.saturating_add(1), Ordering::Relaxed);
        Err(Error::new(ErrorKind::WorkLimit { what, limit }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_and_the_sum_never_wraps_around() {
        let meter = WorkMeter::new(10);
        meter.add(10, "x").unwrap();
        for _ in 0..4 {
            let error = meter.clone().add(u64::MAX / 2, "entries").unwrap_err();
            assert!(error.to_string().starts_with("entries"), "{error}");
        }
        assert_eq!(meter.spent(), 11);
    }

    #[test]
    fn the_default_grows_with_the_image() {
        assert_eq!(WorkMeter::default_limit(0), WorkMeter::MIN_BYTES);
        let step = WorkMeter::default_limit(2 << 20) - WorkMeter::default_limit(1 << 20);
        assert_eq!(step, 512 << 20);
        assert_eq!(WorkMeter::default_limit(u64::MAX), u64::MAX);
    }
}
