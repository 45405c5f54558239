//! How reads of cached clusters scale over simulated CPUs, in reads a second.
#![allow(clippy::print_stdout, reason = "an example prints what it found")]

use anyhow::Result;
use ferrofs_model::cached_reads;
use ferrofs_model::machine::{Costs, Shape};

/// What a read costs beside the caches and buffers, and how long the CPUs read, in nanoseconds.
const READ: f64 = 3000.0;
const READING: f64 = 100_000.0;

fn main() -> Result<()> {
    for cpus in [1, 2, 4, 8] {
        let shape = Shape { cpus, cpus_per_socket: 64 };
        let flow = cached_reads::run("ours", shape, Costs::default(), READ, READING)?;
        println!("{cpus} CPUs: {:.0}", flow.per_second());
    }
    Ok(())
}
