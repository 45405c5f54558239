//! The three ways of the scheduling experiment: a pool bound to no CPU, per-CPU workers at normal
//! priority, and per-CPU workers as high as the system allows.

use std::sync::mpsc::sync_channel;

use anyhow::{Context, Result};
use ferrofs_workers::cpus::CpuSet;
use ferrofs_workers::percpu::{self, PerCpuPool};
use ferrofs_workers::priority::{self, PriorityLevel, PriorityRequest};
use ferrofs_workers::unbound::{self, UnboundPool};

use super::burst::Work;

/// The columns of the tables, in their order.
pub(crate) const NAMES: [&str; 3] = ["workqueue (unbound)", "per-CPU", "per-CPU raised"];

/// Running pools.
#[derive(Debug)]
pub(crate) struct Pools {
    unbound: UnboundPool,
    normal: PerCpuPool,
    raised: PerCpuPool,
}

impl Pools {
    /// Pools whose threads have all been started, on those CPUs.
    ///
    /// # Errors
    /// When a pool loses an item.
    pub(crate) fn start(cpus: &CpuSet) -> Result<Self> {
        let per_cpu = |name, wanted| {
            PerCpuPool::new(percpu::PerCpuSettings::new(name).cpus(cpus.clone()).priority(wanted))
        };
        let pools = Self {
            unbound: UnboundPool::new(unbound::UnboundSettings::new("unbound")),
            normal: per_cpu("normal", PriorityRequest::Normal),
            raised: per_cpu("raised", PriorityRequest::Raised),
        };
        pools.normal.start();
        pools.raised.start();
        pools.rung(0)?;
        Ok(pools)
    }

    /// Hands an item to the pool of that column.
    pub(crate) fn submit(&self, column: usize, work: Work) {
        match column {
            0 => drop(self.unbound.submit(work)),
            1 => drop(self.normal.submit(work)),
            _ => drop(self.raised.submit(work)),
        }
    }

    /// The same for that CPU, where the pool has one for each.
    pub(crate) fn submit_to(&self, column: usize, cpu: usize, work: Work) {
        match column {
            0 => drop(self.unbound.submit(work)),
            1 => drop(self.normal.submit_to(cpu, work)),
            _ => drop(self.raised.submit_to(cpu, work)),
        }
    }

    /// Items of the per-CPU pools that no worker of a CPU ran: what was measured of these is the
    /// fallback.
    pub(crate) fn fallbacks(&self) -> u64 {
        [&self.normal, &self.raised].into_iter().map(|pool| pool.stats().fallback).sum()
    }

    /// The priority at which that pool runs an item, as the system says.
    ///
    /// # Errors
    /// When the item is lost.
    pub(crate) fn rung(&self, column: usize) -> Result<PriorityLevel> {
        let (answer, rung) = sync_channel(1);
        let ask = move || answer.send(priority::of_current_thread()).unwrap_or_default();
        self.submit(column, Box::new(ask));
        rung.recv().context("a pool lost an item")
    }
}
