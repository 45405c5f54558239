//! What a simulated machine looks like and what each step on it costs, in nanoseconds. Every number is
//! a choice that a reader can check or replace; the defaults name their sources.

use serde::Serialize;

/// Simulated time: picoseconds since the start, so that sums are exact.
pub type Picoseconds = u64;

/// Nanoseconds as simulated time. What is no positive number is none.
#[must_use]
pub fn picoseconds(nanoseconds: f64) -> Picoseconds {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast of a float saturates, and costs are far below 2^64 ps"
    )]
    let rounded = (nanoseconds.max(0.0) * 1e3).round() as Picoseconds;
    rounded
}

/// The costs of a machine, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Costs {
    /// An access to a line that this CPU may use as it is, with the instructions around it.
    /// 5 cycles at 3.5 GHz: Intel's optimization manual, latency of the L1 of Ice Lake.
    pub hit: f64,
    /// A line, or the right to write it, that comes from another CPU of the socket. The median of an
    /// Ice Lake Xeon 8375C: github.com/nviennot/core-to-core-latency, which lists 23 and 107 for the
    /// two distances within an EPYC 7R13.
    pub near: f64,
    /// The same from another socket: 108 there, 197 for two EPYC 7R13.
    pub far: f64,
    /// How long a line that many only read keeps the next reader waiting. An assumption: shared
    /// lines are served by the last-level cache, one after the other.
    pub occupancy: f64,
    /// What a locked instruction or a full fence costs beyond the access: 18 to 20 cycles, uops.info.
    pub locked: f64,
    /// The hint in a loop that waits: 140 cycles since Skylake, Intel's optimization manual.
    pub pause: f64,
    /// A look at the clock. An assumption: 20 to 25 is what x86-64 takes with the vDSO.
    pub clock: f64,
    /// The sleeper's way into the kernel. An assumption about a system call and a switch, as are the
    /// next four.
    pub sleep: f64,
    /// What a wake-up costs who wakes.
    pub wake: f64,
    /// From the wake-up until the sleeper runs.
    pub latency: f64,
    /// From one thread to another one on the same CPU.
    pub switch: f64,
    /// Starting a thread.
    pub start: f64,
    /// How long a thread runs while another one waits for its CPU: Linux's base slice, 2.8 ms.
    pub slice: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            hit: 1.4,
            near: 51.0,
            far: 108.0,
            occupancy: 10.0,
            locked: 5.5,
            pause: 40.0,
            clock: 22.0,
            sleep: 1_000.0,
            wake: 1_500.0,
            latency: 4_000.0,
            switch: 1_500.0,
            start: 15_000.0,
            slice: 2_800_000.0,
        }
    }
}

/// How many CPUs there are and which are neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Simulated CPUs, at least 1.
    pub cpus: usize,
    /// Of these, so many share a socket, in the order of their numbers.
    pub cpus_a_socket: usize,
}

impl Shape {
    /// The socket of a CPU.
    #[must_use]
    pub fn socket(&self, cpu: usize) -> usize {
        cpu / self.cpus_a_socket.max(1)
    }
}

/// The same costs as simulated time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prices {
    pub(crate) hit: Picoseconds,
    pub(crate) near: Picoseconds,
    pub(crate) far: Picoseconds,
    pub(crate) occupancy: Picoseconds,
    pub(crate) locked: Picoseconds,
    pub(crate) pause: Picoseconds,
    pub(crate) clock: Picoseconds,
    pub(crate) sleep: Picoseconds,
    pub(crate) wake: Picoseconds,
    pub(crate) latency: Picoseconds,
    pub(crate) switch: Picoseconds,
    pub(crate) start: Picoseconds,
    pub(crate) slice: Picoseconds,
}

impl From<Costs> for Prices {
    fn from(costs: Costs) -> Self {
        Self {
            hit: picoseconds(costs.hit),
            near: picoseconds(costs.near),
            far: picoseconds(costs.far),
            occupancy: picoseconds(costs.occupancy),
            locked: picoseconds(costs.locked),
            pause: picoseconds(costs.pause),
            clock: picoseconds(costs.clock),
            sleep: picoseconds(costs.sleep),
            wake: picoseconds(costs.wake),
            latency: picoseconds(costs.latency),
            switch: picoseconds(costs.switch),
            start: picoseconds(costs.start),
            slice: picoseconds(costs.slice),
        }
    }
}
