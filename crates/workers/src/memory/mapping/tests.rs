//! What the system does with mappings, asked from the system itself.
#![allow(
    clippy::unwrap_used,
    clippy::assertions_on_result_states,
    reason = "a test may fail where it stands"
)]

use std::os::unix::fs::FileExt as _;

use super::*;

impl Mapping {
    /// Which pages are resident, as /proc/self/pagemap says: exact, and of this mapping alone.
    pub(in crate::memory) fn resident_pages(&self) -> usize {
        const PRESENT: u64 = 1 << 63;
        let page = rustix::param::page_size();
        let first = self.start.as_ptr() as usize / page;
        let mut entries = vec![0_u8; self.length / page * 8];
        let file = std::fs::File::open("/proc/self/pagemap").unwrap();
        file.read_exact_at(&mut entries, first as u64 * 8).unwrap();
        let is_present =
            |entry: &&[u8]| u64::from_ne_bytes((*entry).try_into().unwrap()) & PRESENT != 0;
        entries.chunks(8).filter(is_present).count()
    }
}

const PAGE: usize = 4096;

#[test]
fn a_new_mapping_is_zero_and_not_resident() {
    let mapping = Mapping::anonymous(64 * PAGE, PageSize::Small).unwrap();
    assert_eq!(mapping.resident_pages(), 0);
    assert!(mapping.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn a_length_is_rounded_up_to_whole_pages() {
    let unit = rustix::param::page_size();
    assert_eq!(Mapping::anonymous(1, PageSize::Small).unwrap().length(), unit);
    assert_eq!(Mapping::anonymous(unit + 1, PageSize::Small).unwrap().length(), 2 * unit);
}

#[test]
fn lengths_that_no_mapping_has_are_errors_and_nothing_else() {
    for length in [0, usize::MAX, usize::MAX - PAGE, isize::MAX as usize] {
        for pages in [PageSize::Small, PageSize::Huge] {
            let error = Mapping::anonymous(length, pages).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::InvalidSetting | ErrorKind::OutOfMemory),
                "{length}: {error}"
            );
        }
    }
    let error = Mapping::anonymous(1 << 60, PageSize::Small).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "more than the address space");
    assert!(error.raw_os_error().is_some());
}

#[test]
fn populating_makes_everything_resident_and_changes_nothing() {
    let mut mapping = Mapping::anonymous(100 * PAGE, PageSize::Small).unwrap();
    mapping.bytes_mut()[7 * PAGE + 1] = 9;
    mapping.populate().unwrap();
    assert_eq!(mapping.resident_pages() * rustix::param::page_size(), mapping.length());
    assert_eq!(mapping.bytes()[7 * PAGE + 1], 9);
}

#[test]
fn touching_is_as_good_as_the_call() {
    let mut mapping = Mapping::anonymous(100 * PAGE, PageSize::Small).unwrap();
    mapping.bytes_mut()[7 * PAGE] = 9;
    touch(mapping.bytes_mut());
    assert_eq!(mapping.resident_pages() * rustix::param::page_size(), mapping.length());
    let expected = |place: usize| if place == 7 * PAGE { 9 } else { 0 };
    assert!(mapping.bytes().iter().enumerate().all(|(place, byte)| *byte == expected(place)));
}

#[test]
fn while_threads_are_being_started_small_parts_are_touched() {
    let length = CALL_BYTES + TOUCH_BYTES / 2;
    for helpers in [0, 1] {
        let mapping = Mapping::anonymous(length, PageSize::Small).unwrap();
        let pending_starts = PendingStarts::default();
        pending_starts.add(helpers);
        let mut parts = Vec::new();
        while let Some(&offset) = parts.last().or(Some(&0)).filter(|offset| **offset < length) {
            // SAFETY: this test holds the mapping and no slice of it.
            let part = unsafe { mapping.populate_part(offset..length, &pending_starts) };
            parts.push(offset + part.unwrap().0);
        }
        let step = if helpers == 0 { CALL_BYTES } else { TOUCH_BYTES };
        assert_eq!(parts.len(), length.div_ceil(step));
        assert_eq!(mapping.resident_pages() * rustix::param::page_size(), length);
    }
}

#[test]
fn faulting_in_by_several_threads_changes_nothing() {
    let mut mapping = Mapping::anonymous(4 * CALL_BYTES, PageSize::Small).unwrap();
    mapping.bytes_mut().fill(7);
    assert_eq!(mapping.prefault(4).unwrap().populated, PopulateMethod::Madvise);
    assert!(mapping.bytes().iter().all(|byte| *byte == 7));
}

#[test]
fn a_discarded_range_is_gone_and_its_neighbours_are_not() {
    let page = rustix::param::page_size();
    let mut mapping = Mapping::anonymous(8 * page, PageSize::Small).unwrap();
    mapping.bytes_mut().fill(5);
    // SAFETY: this test holds the mapping and no slice of it.
    unsafe { mapping.discard_range(2 * page, 3 * page, LockState::NotRequested) }.unwrap();
    assert_eq!(mapping.resident_pages(), 5);
    let expected = |place: usize| if (2..5).contains(&(place / page)) { 0 } else { 5 };
    assert!(mapping.bytes().iter().enumerate().all(|(place, byte)| *byte == expected(place)));
}

#[test]
fn a_locked_mapping_can_be_discarded_too() {
    let page = rustix::param::page_size();
    let mut mapping = Mapping::anonymous(4 * page, PageSize::Small).unwrap();
    let locked = mapping.lock();
    mapping.bytes_mut().fill(5);
    // SAFETY: this test holds the mapping and no slice of it.
    let discarded = unsafe { mapping.discard_range(0, 4 * page, locked) };
    println!("{locked:?}, {discarded:?}");
    if discarded.is_ok() {
        assert_eq!(mapping.resident_pages(), 0);
    } else {
        assert_eq!(locked, LockState::Yes, "only kernels before 5.18 refuse, and only when locked");
    }
}

#[test]
fn growing_keeps_the_bytes_and_shrinking_cuts_the_end_off() {
    let page = rustix::param::page_size();
    let mut mapping = Mapping::anonymous(2 * page, PageSize::Small).unwrap();
    mapping.bytes_mut().fill(3);
    mapping.resize(64 * page).unwrap();
    assert_eq!(mapping.length(), 64 * page);
    assert!(mapping.bytes()[..2 * page].iter().all(|byte| *byte == 3));
    assert!(mapping.bytes()[2 * page..].iter().all(|byte| *byte == 0));
    mapping.resize(page).unwrap();
    assert_eq!(mapping.bytes(), vec![3; page]);
}

#[test]
fn huge_pages_are_aligned_and_whole() {
    let mut mapping = Mapping::anonymous(3 * HUGE_PAGE_BYTES - 1, PageSize::Huge).unwrap();
    assert_eq!(mapping.length(), 3 * HUGE_PAGE_BYTES);
    assert_eq!(mapping.start.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
    mapping.populate().unwrap();
    mapping.bytes_mut().fill(1);
}

#[test]
fn both_parts_of_a_split_mapping_end_move_and_grow_alone() {
    let page = rustix::param::page_size();
    for the_first_ends in [true, false] {
        let mut second = Mapping::anonymous(8 * page, PageSize::Small).unwrap();
        second.bytes_mut().fill(1);
        let mut first = second.split(3 * page).unwrap();
        assert_eq!((first.length(), second.length()), (3 * page, 5 * page));
        assert_eq!(first.bytes().as_ptr_range().end, second.bytes().as_ptr());
        second.bytes_mut().fill(2);
        first.resize(64 * page).unwrap();
        assert!(first.bytes()[..3 * page].iter().all(|byte| *byte == 1));
        assert!(first.bytes()[3 * page..].iter().all(|byte| *byte == 0));
        first.bytes_mut().fill(3);
        let (goes, mut stays) = if the_first_ends { (first, second) } else { (second, first) };
        let expected = if the_first_ends { 2 } else { 3 };
        drop(goes);
        assert!(stays.bytes().iter().all(|byte| *byte == expected));
        stays.resize(page).unwrap();
        stays.resize(100 * page).unwrap();
        assert_eq!(stays.bytes()[..page], vec![expected; page]);
    }
}

#[test]
fn a_split_that_leaves_nothing_or_half_a_page_is_none() {
    let page = rustix::param::page_size();
    let mut small = Mapping::anonymous(4 * page, PageSize::Small).unwrap();
    for length in [0, 1, page - 1, page + 1, 4 * page, 5 * page, usize::MAX] {
        assert!(small.split(length).is_none(), "{length}");
        assert_eq!(small.length(), 4 * page);
    }
    let mut huge = Mapping::anonymous(2 * HUGE_PAGE_BYTES, PageSize::Huge).unwrap();
    assert!(huge.split(page).is_none(), "it would not be aligned any more");
    let first = huge.split(HUGE_PAGE_BYTES).unwrap();
    assert_eq!((first.pages(), first.length()), (PageSize::Huge, huge.length()));
}
