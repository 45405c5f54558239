//! Clusters of one errand are judged one by one: what happens to one of them never reaches another.

use ferrofs_ondisk::FileType;
use ferrofs_workers::claims::{Claim, Urgency};
use ferrofs_workers::memory::{Pressure, PressureSettings};
use ferrofs_workers::percpu::Settings;
use ferrofs_workers::priority::Wanted;

use super::{DecodeWorkers, Errand, Mine};
use crate::cluster::Cluster;
use crate::image::{Core, Image};
use crate::inode::Inode;
use crate::memory::Memory;
use crate::open::OpenOptions;
use crate::plan::{Origin, ReadPlan};
use crate::walk::Visit;

/// An image with several clusters a file, and memory of which best effort gets nothing.
fn image() -> (Image, Pressure, tempfile::TempDir) {
    let memory = Memory::new(Memory::MIN_BYTES).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memory");
    std::fs::write(&file, "some avg10=99.00 avg60=99.00 avg300=99.00 total=1\n").unwrap();
    let mut settings = PressureSettings::default();
    settings.cgroup_of_process = dir.path().join("none");
    settings.system_pressure = file;
    let pressure = Pressure::new(memory.budget(), settings);
    assert!(pressure.look());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/lz4.erofs");
    let workers = DecodeWorkers::new(Settings::new("chain").priority(Wanted::Normal));
    let options = OpenOptions::new().memory(&memory).workers(&workers);
    (options.open(path).unwrap(), pressure, dir)
}

/// A file with its clusters, each with the byte of the file where it starts.
fn file(image: &Image) -> (Inode, Vec<(Cluster, u64)>) {
    let files = image.walk(b"/").unwrap().filter_map(|visit| match visit {
        Visit::Leaf(node) if node.inode.file_type() == FileType::Regular => Some(node.inode),
        _ => None,
    });
    let planned = files.map(|inode| {
        let bytes = usize::try_from(inode.size()).unwrap();
        let plan = ReadPlan::build(image.core(), &inode, 0, bytes).unwrap();
        let clusters = plan.parts.iter().filter_map(|part| match part.origin {
            Origin::Cluster { cluster, skip: 0, .. } => Some((cluster, part.target.start as u64)),
            _ => None,
        });
        (inode, clusters.collect::<Vec<_>>())
    });
    planned.max_by_key(|(_, clusters)| clusters.len()).unwrap()
}

fn mine(core: &Core, cluster: &Cluster, urgency: Urgency) -> Mine {
    let bytes = usize::try_from(cluster.decoded_bytes).unwrap();
    match core.engine.clusters.claim(cluster.id, bytes, urgency) {
        Claim::Mine(mine) => mine,
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
// memory; the one in the same errand that somebody waits for is decoded, before, between or behind them.
#[test]
fn a_cluster_that_got_no_memory_fails_no_other_of_its_errand() {
    for demanded in 0..3 {
        let (image, _pressure, _dir) = image();
        let core = image.core();
        let (inode, clusters) = file(&image);
        assert!(clusters.len() >= 3);
        let mut errand = Errand::new(&core.engine, None, false);
        let mut waiter = None;
        for (number, (cluster, _)) in clusters[..3].iter().enumerate() {
            let is_demanded = number == demanded;
            let urgency = if is_demanded { Urgency::Demand } else { Urgency::Prefetch };
            let waiting = errand.add(*cluster, mine(core, cluster, urgency), None);
            waiter = if is_demanded { Some(waiting) } else { waiter };
        }
        errand.send(0);
        let decoded = waiter.unwrap().wait().expect("what somebody waits for is decoded");
        assert!(*decoded == *expected(&inode, clusters[demanded]));
        while core.engine.clusters.counts().prefetch_dropped < 2 {
            std::thread::yield_now();
        }
        let counts = core.engine.clusters.counts();
        assert_eq!((counts.gone, counts.computed), (2, 1), "{counts:?}");
        // Nothing is remembered: they are there when somebody wants them.
        for (cluster, start) in &clusters[..3] {
            let expected = expected(&inode, (*cluster, *start));
            let mut bytes = vec![0u8; expected.len()];
            assert_eq!(image.read_at(&inode, *start, &mut bytes).unwrap(), bytes.len());
            assert!(bytes == expected);
        }
    }
}
