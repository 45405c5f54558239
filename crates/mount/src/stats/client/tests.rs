//! Answers as they come from us, from other versions, and from those who mean harm.

use std::fs;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::stats::record::UNKNOWN;

fn header(bytes: usize) -> StatsHeader {
    let mut release = [0; 16];
    release[..5].copy_from_slice(b"9.8.7");
    StatsHeader {
        magic: RESPONSE_MAGIC,
        version: VERSION,
        bytes: u32::try_from(size_of::<StatsHeader>() + bytes).unwrap(),
        workers: 2,
        worker_bytes: u32::try_from(size_of::<WorkerRecord>()).unwrap(),
        release,
    }
}

fn page(header: &StatsHeader, body: &[u8]) -> Vec<u8> {
    let mut page = [header.as_bytes(), body].concat();
    page.resize(IOCTL_BYTES, 0);
    page
}

#[test]
fn a_record_comes_back_as_it_went() {
    let mut summary = StatsSummary { pid: 77, uptime_ns: 5, ..StatsSummary::default() };
    summary.operations[4].time.p99_ns = 123;
    summary.top_files[15].nid = 9;
    summary.log_events.last_text[199] = b'x';
    let header = header(size_of::<StatsSummary>());
    let (read, body) = parse(&page(&header, summary.as_bytes()), None).unwrap();
    assert_eq!(read, header);
    assert_eq!(release(&read), "9.8.7");
    assert_eq!(read_zero_extended::<StatsSummary>(&body), summary);
}

#[test]
fn a_shorter_record_has_zeros_for_what_it_lacks() {
    let row = WorkerRecord { cpu: 3, items: 4, rebound: 5, ..WorkerRecord::default() };
    let short = &row.as_bytes()[..5 * 8];
    assert_eq!(read_zero_extended::<WorkerRecord>(short), WorkerRecord { rebound: 0, ..row });
}

#[test]
fn longer_rows_of_workers_are_read_as_far_as_they_are_known() {
    let row = WorkerRecord { cpu: 3, items: 4, ..WorkerRecord::default() };
    let mut long = header(0);
    long.worker_bytes += 8;
    let bytes = [row.as_bytes(), &[7; 8], row.as_bytes(), &[7; 8], &[1, 2]].concat();
    assert_eq!(worker_rows(&long, &bytes), Some(vec![row, row]));
    long.worker_bytes = 0;
    assert_eq!(worker_rows(&long, &bytes), None);
}

#[test]
fn another_version_is_named() {
    let other = StatsHeader { version: VERSION + 1, ..header(0) };
    let refused = parse(&page(&other, &[]), None).err().unwrap();
    let named = StatsError::OtherVersion { release: "9.8.7".to_owned(), version: VERSION + 1 };
    assert_eq!(refused, named);
    assert!(refused.to_string().contains("9.8.7"));
}

#[test]
fn a_question_that_came_back_unanswered_is_no_answer() {
    let question = StatsRequest { magic: REQUEST_MAGIC, version: VERSION, page: 0 };
    let mut bytes = [0; IOCTL_BYTES];
    question.write_to_prefix(&mut bytes).unwrap();
    let refused = parse(&bytes, Some("fuse.other".to_owned())).err();
    assert_eq!(refused, Some(StatsError::NotFerrofs(Some("fuse.other".to_owned()))));
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    for bytes in [0, 39, 4097, u32::MAX] {
        let odd = StatsHeader { bytes, ..header(0) };
        assert_eq!(parse(&page(&odd, &[]), None).err(), Some(StatsError::Malformed), "{bytes}");
    }
}

#[test]
fn unknown_numbers_are_no_numbers() {
    assert_eq!(crate::stats::known(UNKNOWN), None);
    assert_eq!(crate::stats::known(0), Some(0));
}

#[test]
fn directories_of_other_file_systems_are_named_by_their_type() {
    let dir = TempDir::new().unwrap();
    match query(dir.path()) {
        Err(StatsError::NotFerrofs(Some(kind))) => assert!(!kind.is_empty()),
        other => panic!("{other:?}"),
    }
    let refused = query(Path::new("/proc")).err();
    assert_eq!(refused, Some(StatsError::NotFerrofs(Some("proc".to_owned()))));
    assert_eq!(refused.unwrap().to_string(), "not a mount of ferrofs, but of proc");
}

#[test]
fn files_and_names_that_are_not_there_cannot_be_asked() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("file"), b"x").unwrap();
    assert_eq!(query(&dir.path().join("file")).err(), Some(StatsError::Open(Errno::NOTDIR)));
    assert_eq!(query(&dir.path().join("none")).err(), Some(StatsError::Open(Errno::NOENT)));
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), seems_ours: bool) {
        if seems_ours && bytes.len() >= 12 {
            bytes[..8].copy_from_slice(&RESPONSE_MAGIC);
            bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        }
        if let Ok((header, body)) = parse(&bytes, None) {
            let rows = worker_rows(&header, &body).unwrap_or_default();
            prop_assert!(rows.len() <= bytes.len());
            let _summary: StatsSummary = read_zero_extended(&body);
        }
    }
}
