//! Which CPUs are online and on which node each lies, as /sys says. It keeps nothing. Called by
//! [`super::AvailableCpus`].

use std::path::Path;

use super::{CpuSet, NumaNode, file};

/// The CPUs that are online; None where the system does not say.
pub(super) fn online(root: &Path) -> Option<CpuSet> {
    list(&root.join("sys/devices/system/cpu/online"))
}

/// Lays `cpus` out over the nodes, so that each lies on exactly one: ascending by node, no node without
/// a CPU, ids as sparse as the system's. A CPU of which nothing is said lies on the first node.
pub(super) fn nodes(root: &Path, cpus: &CpuSet) -> Vec<NumaNode> {
    let base = root.join("sys/devices/system/node");
    let mut rest = cpus.clone();
    let mut nodes = Vec::new();
    for id in list(&base.join("has_cpu")).unwrap_or_default().iter() {
        let local = list(&base.join(format!("node{id}/cpulist"))).unwrap_or_default();
        let local = local.intersection(&rest);
        if !local.is_empty() {
            rest = rest.difference(&local);
            nodes.push(NumaNode { id, cpus: local });
        }
    }
    match nodes.first_mut() {
        Some(first) => first.cpus = first.cpus.iter().chain(rest.iter()).collect(),
        None => nodes.push(NumaNode { id: 0, cpus: rest }),
    }
    nodes
}

fn list(path: &Path) -> Option<CpuSet> {
    CpuSet::parse(&file::read_text(path)?).ok().filter(|set| !set.is_empty())
}
