//! The target of statistics: a page that a mount has answered, which may be any program.
//!
//! Input: a byte of switches (1: the page has our magic and version, 2: and a length that is right), then the page.

use ferrofs_mount::fuzzing::parse_page;

const MAGIC: [u8; 8] = *b"ferrofs!";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 40;
const PAGE_BYTES: usize = 4096;

/// Reads a page.
pub fn stats(bytes: &[u8]) {
    let Some((switches, page)) = bytes.split_first() else { return };
    let mut page = page[..page.len().min(PAGE_BYTES)].to_vec();
    if switches & 1 != 0 && page.len() >= HEADER_BYTES {
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        if switches & 2 != 0 {
            let length = u32::try_from(page.len()).expect("a page");
            page[12..16].copy_from_slice(&length.to_ne_bytes());
        }
    }
    match parse_page(&page) {
        Ok((summary, workers, release)) => {
            assert!(page.starts_with(&MAGIC) && release.len() <= 3 * 16);
            let worker_bytes = u32::from_ne_bytes(page[20..24].try_into().expect("a header"));
            let room = (page.len() - HEADER_BYTES) as u64;
            assert!(workers.len() as u64 * u64::from(worker_bytes) <= room);
            let shown = page.get(HEADER_BYTES..HEADER_BYTES + 8);
            let length = u32::from_ne_bytes(page[12..16].try_into().expect("a header"));
            if let Some(first) = shown.filter(|_| length as usize >= HEADER_BYTES + 8) {
                assert_eq!(summary.pid, u64::from_ne_bytes(first.try_into().expect("eight bytes")));
            }
            assert!(
                workers
                    .iter()
                    .all(|worker| worker.priority_name().is_none_or(|name| !name.is_empty()))
            );
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
