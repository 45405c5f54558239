//! Records of a real image: what a question gets, and what it does not.

use ferrofs_fuse::Capabilities;
use ferrofs_image::Nid;

use super::*;
use crate::stats::record;

const INIT_PARAMETERS: InitParameters = InitParameters {
    protocol: (7, 45),
    offered: Capabilities::ASYNC_READ,
    requested: Capabilities::ASYNC_READ.union(Capabilities::MAX_PAGES),
    granted: Capabilities::ASYNC_READ,
    max_read: 131_072,
    offered_readahead: 131_072,
    requested_readahead: 1 << 23,
    max_background: 16,
};

fn image() -> Image {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/lz4.erofs");
    Image::open(path).unwrap()
}

fn query(question: &[u8], image: &Image) -> Result<Vec<u8>, Errno> {
    let nodes = NodeMap::new(Nid::new(36), false);
    let settings = MountSettings::default();
    let metrics = MountMetrics::new(2);
    let collector = StatsCollector {
        image,
        nodes: &nodes,
        settings: &settings,
        metrics: &metrics,
        init_parameters: INIT_PARAMETERS,
        session: None,
    };
    respond(question, &collector)
}

fn question(version: u32, page: u32) -> StatsRequest {
    StatsRequest { magic: REQUEST_MAGIC, version, page }
}

#[test]
fn page_0_has_everything_but_the_workers() {
    let page = query(question(VERSION, 0).as_bytes(), &image()).unwrap();
    let (header, body) = StatsHeader::read_from_prefix(&page).unwrap();
    assert_eq!((header.magic, header.version), (RESPONSE_MAGIC, VERSION));
    assert_eq!(usize::try_from(header.bytes), Ok(page.len()));
    assert!(header.release.starts_with(env!("CARGO_PKG_VERSION").as_bytes()));
    let summary = StatsSummary::read_from_bytes(body).unwrap();
    assert_eq!(summary.pid, u64::from(std::process::id()));
    assert!(summary.memory.limit > 0 && summary.memory.used <= summary.memory.peak);
    assert!(record::known(summary.memory.resident).is_some_and(|bytes| bytes > 1 << 16));
    assert_eq!(summary.session.time_limit_ms, 120_000);
    assert_eq!((summary.session.granted, summary.session.max_readahead), (1, 131_072));
    assert_eq!(summary.log_events, record::LogEventRecord::default());
}

#[test]
fn decoding_is_measured() {
    let image = image();
    image.measure_decoding();
    let inode = image.resolve(b"/").unwrap().unwrap();
    assert!(inode.size() > 0);
    for visit in image.walk(b"/").unwrap() {
        if let ferrofs_image::WalkEvent::Leaf(node) = visit
            && node.inode.compressed_blocks().is_some()
        {
            image.for_each_piece(&node.inode, |_| Ok::<_, ferrofs_image::Error>(())).unwrap();
        }
    }
    let page = query(question(VERSION, 0).as_bytes(), &image).unwrap();
    let (_, body) = StatsHeader::read_from_prefix(&page).unwrap();
    let clusters = StatsSummary::read_from_bytes(body).unwrap().clusters;
    assert!(clusters.decoded > 0);
    assert_eq!(clusters.time.count, clusters.decoded);
    assert!(clusters.time.p50_ns > 0 && clusters.time.p50_ns <= clusters.time.max_ns);
}

#[test]
fn who_speaks_another_version_gets_a_header_that_says_so() {
    let page = query(question(VERSION + 1, 0).as_bytes(), &image()).unwrap();
    assert_eq!(page.len(), size_of::<StatsHeader>());
}

#[test]
fn pages_behind_the_last_one_are_empty() {
    for page in [1, 2, u32::MAX] {
        let page = query(question(VERSION, page).as_bytes(), &image()).unwrap();
        let (header, body) = StatsHeader::read_from_prefix(&page).unwrap();
        assert!(body.len() % size_of::<WorkerRecord>() == 0);
        assert!(body.len() <= size_of::<WorkerRecord>() * header.workers as usize);
    }
}

#[test]
fn what_is_no_question_is_refused() {
    let whole = question(VERSION, 0);
    for cut in 0..size_of::<StatsRequest>() {
        assert_eq!(query(&whole.as_bytes()[..cut], &image()), Err(Errno::INVAL));
    }
    let other = StatsRequest { magic: RESPONSE_MAGIC, ..whole };
    assert_eq!(query(other.as_bytes(), &image()), Err(Errno::INVAL));
}
