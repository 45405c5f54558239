//! What an engine counts while it reads. Numbers only: nothing is decided by them.
//!
//! Each slot counts for itself and adds its sum up when it is given back, under the lock that it takes
//! anyway: shared counters would cost more than decoding a small cluster does.

/// What was read and decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecodeCounters {
    /// Runs of a decoder that ended well.
    pub(crate) decoded: u64,
    /// What they yielded.
    pub(crate) decoded_bytes: u64,
    /// Those of them that decoded through a window of frames.
    pub(crate) windowed: u64,
    /// Those of them that ran on a worker.
    pub(crate) on_workers: u64,
    /// Pieces of clusters that readers got.
    pub(crate) served: u64,
    /// Bytes that readers got, of clusters and of all else that is stored.
    pub(crate) served_bytes: u64,
}

impl DecodeCounters {
    /// Adds what another one counted.
    pub(crate) fn merge(&mut self, other: &Self) {
        let pairs = [
            (&mut self.decoded, other.decoded),
            (&mut self.decoded_bytes, other.decoded_bytes),
            (&mut self.windowed, other.windowed),
            (&mut self.on_workers, other.on_workers),
            (&mut self.served, other.served),
            (&mut self.served_bytes, other.served_bytes),
        ];
        for (sum, more) in pairs {
            *sum = sum.wrapping_add(more);
        }
    }

    /// A decoder yielded so many bytes.
    pub(crate) fn decoded(&mut self, bytes: usize) {
        self.decoded = self.decoded.wrapping_add(1);
        self.decoded_bytes = self.decoded_bytes.wrapping_add(wide(bytes));
    }

    /// A reader got so many bytes of a cluster.
    pub(crate) fn served(&mut self, bytes: usize) {
        self.served = self.served.wrapping_add(1);
        self.served_raw(bytes);
    }

    /// A reader got so many bytes that are stored as they are.
    pub(crate) fn served_raw(&mut self, bytes: usize) {
        self.served_bytes = self.served_bytes.wrapping_add(wide(bytes));
    }
}

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
