//! Clusters of one batch are judged one by one: what happens to one of them never reaches another.

use ferrofs_ondisk::FileType;
use ferrofs_workers::memory::{Pressure, PressureSettings};
use ferrofs_workers::percpu::PerCpuSettings;
use ferrofs_workers::priority::PriorityRequest;
use ferrofs_workers::single_flight::{Lookup, Urgency};

use super::{ClusterPermit, DecodeBatch, DecodeWorkers};
use crate::extent::Cluster;
use crate::image::{Image, ImageInner};
use crate::inode::Inode;
use crate::memory::MemoryPool;
use crate::open::OpenOptions;
use crate::plan::{Origin, ReadPlan};
use crate::walk::WalkEvent;

/// An image with several clusters a file, and memory of which best effort gets nothing.
fn image() -> (Image, Pressure, tempfile::TempDir) {
    let memory = MemoryPool::new(MemoryPool::MIN_BYTES).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memory");
    std::fs::write(&file, "some avg10=99.00 avg60=99.00 avg300=99.00 total=1\n").unwrap();
    let mut settings = PressureSettings::default();
    settings.cgroup_of_process = dir.path().join("none");
    settings.system_pressure = file;
    let pressure = Pressure::new(memory.budget(), settings);
    assert!(pressure.look());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/lz4.erofs");
    let workers =
        DecodeWorkers::new(PerCpuSettings::new("chain").priority(PriorityRequest::Normal));
    let options = OpenOptions::new().memory(&memory).workers(&workers);
    (options.open(path).unwrap(), pressure, dir)
}

/// A file with its clusters, each with the byte of the file where it starts.
fn file(image: &Image) -> (Inode, Vec<(Cluster, u64)>) {
    let files = image.walk(b"/").unwrap().filter_map(|visit| match visit {
        WalkEvent::Leaf(node) if node.inode.file_type() == FileType::Regular => Some(node.inode),
        _ => None,
    });
    let planned = files.map(|inode| {
        let bytes = usize::try_from(inode.size()).unwrap();
        let plan = ReadPlan::build(image.inner(), &inode, 0, bytes).unwrap();
        let clusters = plan.parts.iter().filter_map(|part| match part.origin {
            Origin::Cluster { cluster, skip: 0, .. } => Some((cluster, part.target.start as u64)),
            _ => None,
        });
        (inode, clusters.collect::<Vec<_>>())
    });
    planned.max_by_key(|(_, clusters)| clusters.len()).unwrap()
}

fn permit(inner: &ImageInner, cluster: &Cluster, urgency: Urgency) -> ClusterPermit {
    let bytes = usize::try_from(cluster.decoded_bytes).unwrap();
    match inner.engine.clusters.lookup(cluster.id, bytes, urgency) {
        Lookup::Miss(permit) => permit,
        other => panic!("{other:?}"),
    }
}

/// The bytes of a cluster, by an image for which memory is not short.
fn expected(inode: &Inode, (cluster, start): (Cluster, u64)) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/lz4.erofs");
    let mut bytes = vec![0u8; usize::try_from(cluster.decoded_bytes).unwrap()];
    let image = Image::open(path).unwrap();
    let count = image.read_at(inode, start, &mut bytes).unwrap();
    assert_eq!(count, bytes.len());
    bytes
}

// A-R2, and catalogue 2 and 16: the regression of Linux 6.12. The clusters that nobody waits for get no
// memory; the one in the same batch that somebody waits for is decoded, before, between or behind them.
#[test]
fn a_cluster_that_got_no_memory_fails_no_other_of_its_batch() {
    for demanded in 0..3 {
        let (image, _pressure, _dir) = image();
        let inner = image.inner();
        let (inode, clusters) = file(&image);
        assert!(clusters.len() >= 3);
        let mut batch = DecodeBatch::new(&inner.engine, None, false);
        let mut waiter = None;
        for (number, (cluster, _)) in clusters[..3].iter().enumerate() {
            let is_demanded = number == demanded;
            let urgency = if is_demanded { Urgency::Demand } else { Urgency::Prefetch };
            let waiting = batch.add(*cluster, permit(inner, cluster, urgency), None);
            waiter = if is_demanded { Some(waiting) } else { waiter };
        }
        batch.dispatch(0);
        let decoded = waiter.unwrap().wait().expect("what somebody waits for is decoded");
        assert!(*decoded == *expected(&inode, clusters[demanded]));
        while inner.engine.clusters.stats().prefetch_dropped < 2 {
            std::thread::yield_now();
        }
        let counts = inner.engine.clusters.stats();
        assert_eq!((counts.abandoned, counts.computed), (2, 1), "{counts:?}");
        // Nothing is remembered: they are there when somebody wants them.
        for (cluster, start) in &clusters[..3] {
            let expected = expected(&inode, (*cluster, *start));
            let mut bytes = vec![0u8; expected.len()];
            assert_eq!(image.read_at(&inode, *start, &mut bytes).unwrap(), bytes.len());
            assert!(bytes == expected);
        }
    }
}
