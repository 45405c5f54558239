//! The target of what registries, servers, other processes and a cache on disk say.
//!
//! Input: a byte that chooses a kind (modulo 7), then the bytes: a manifest or image index, a chunk index, a location, a
//! message to the fetcher, one of the fetcher, the index and the data of a cached object, or a document of a container
//! image.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ferrofs_remote::cache::{CachedObject, ChunkLayout, ChunkRead, ObjectWriter};
use ferrofs_remote::protocol::{ClientMessage, FETCH_RANGES_MAX, FetcherMessage, checked_ranges};
use ferrofs_remote::{ChunkIndex, LayerSelector, Location, RemoteLocation, RemoteObject, oci};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::de::DeserializeOwned;

use crate::input::Input;

/// Reads one document.
pub fn remote(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 7 {
        0 => manifest(bytes),
        1 => chunk_index(bytes),
        2 => location(bytes),
        3 => to_fetcher(bytes),
        4 => drop(message::<FetcherMessage>(bytes)),
        5 => cached_object(bytes),
        _ => container(bytes),
    }
}

/// Entries of a document at most.
const ENTRIES_MAX: usize = 4096;

/// A document is an error with a text, or has what was asked for.
fn container(bytes: &[u8]) {
    match oci::container_manifest(bytes) {
        Ok(manifest) => assert!(manifest.layers.len() <= ENTRIES_MAX),
        Err(error) => assert!(!error.is_empty()),
    }
    for layers in 0..3 {
        let found = oci::diff_ids(bytes, layers);
        assert!(found.is_err() || found.is_ok_and(|found| found.len() == layers));
    }
    for tag in [None, Some("tag")] {
        let found = oci::layout_manifest(bytes, tag);
        assert!(found.is_ok() || found.is_err_and(|error| !error.is_empty()));
    }
}

/// A choice is one of the document's entries; an error is a text.
fn manifest(bytes: &[u8]) {
    for platform in [None, Some("linux/arm64/v8")] {
        if let Err(error) = oci::choose_manifest("", bytes, platform) {
            assert!(!error.is_empty());
        }
    }
    if let Ok(layer) = oci::choose_layer(bytes, None) {
        let by_digest = LayerSelector::Digest(layer.digest.to_string());
        let again = oci::choose_layer(bytes, Some(&by_digest));
        // The text of a digest may have capital letters in the document.
        assert!(again.is_err() || again.is_ok_and(|again| again.digest == layer.digest));
    }
    for number in [0, 1, u32::MAX] {
        let chosen = oci::choose_layer(bytes, Some(&LayerSelector::Number(number)));
        assert!(chosen.is_err() || number < u32::MAX);
    }
}

/// What is accepted is written back byte for byte, and its chunks cover the image once.
fn chunk_index(bytes: &[u8]) {
    let index = match ChunkIndex::parse(bytes) {
        Ok(index) => index,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(index.to_bytes(), bytes);
    let mut end = 0;
    for number in 0..index.count() {
        let (range, _) = index.chunk(number).expect("a chunk");
        assert_eq!(range.start, end);
        assert!(range.start < range.end);
        assert_eq!(index.chunks_in(range.start..range.end), number..number + 1);
        end = range.end;
    }
    assert_eq!(end, index.length());
    assert!(index.chunk(index.count()).is_none());
}

/// A location that is accepted travels to the fetcher unchanged, and is shown without its query.
fn location(bytes: &[u8]) {
    use std::os::unix::ffi::OsStrExt;
    match Location::parse(std::ffi::OsStr::from_bytes(bytes)) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(Location::Remote(location)) => {
            let sent = serde_json::to_vec(&location).expect("text");
            let received: RemoteLocation = serde_json::from_slice(&sent).expect("the same");
            assert_eq!(received, location);
            let shown = location.to_string();
            // Elsewhere a `?` is a part of a name.
            if matches!(location.object, RemoteObject::Http { .. }) {
                let query = shown.split_once('?').map(|(_, query)| query);
                assert!(query.is_none_or(|query| query.starts_with('…')), "{shown}");
            }
        }
        Ok(_) => {}
    }
}

/// A message that is accepted means the same when it is sent again.
fn message<T: DeserializeOwned + serde::Serialize + PartialEq + std::fmt::Debug>(
    bytes: &[u8],
) -> Option<T> {
    let message: T = serde_json::from_slice(bytes).ok()?;
    let sent = serde_json::to_vec(&message).expect("text");
    assert_eq!(serde_json::from_slice::<T>(&sent).expect("the same"), message);
    Some(message)
}

/// Ranges that are accepted ascend, and end where the object does.
fn to_fetcher(bytes: &[u8]) {
    if let Some(ClientMessage::Fetch { chunks, .. }) = message(bytes) {
        let count = 1000;
        let Ok(ranges) = checked_ranges(&chunks, count) else { return };
        assert!(ranges.len() <= FETCH_RANGES_MAX);
        assert!(ranges.iter().all(|range| range.start < range.end && range.end <= count));
        assert!(ranges.is_sorted_by(|a, b| a.end <= b.start));
    }
}

fn memory_file(bytes: &[u8]) -> File {
    let file = File::from(memfd_create("cache", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all_at(bytes, 0).expect("memory");
    file
}

/// Records of a damaged cache serve no byte that was not stored: a chunk is served only as the writer wrote it.
fn cached_object(bytes: &[u8]) {
    const STORED_BYTES: usize = 5000;
    const LENGTH: u64 = (1 << 20) + STORED_BYTES as u64;
    let mut input = Input::new(bytes);
    let layout = ChunkLayout::new(LENGTH).expect("a length");
    let (data, records) = (memory_file(&[]), memory_file(&[]));
    let copy = |file: &File| file.try_clone().expect("a descriptor");
    let key = [7; 32];
    let writer = ObjectWriter::new(key, layout, copy(&data), copy(&records), input.u32());
    let writer = writer.expect("files in memory");
    let stored = vec![5; STORED_BYTES];
    writer.store(1, &stored).expect("memory");
    // Changes of index and data: a place and a byte each.
    while !input.is_empty() {
        let (place, byte) = (u64::from(input.u16()), input.u8());
        let file = if place & 0x8000 == 0 { &records } else { &data };
        let at = if place & 0x8000 == 0 { place } else { (1 << 20) + (place & 0x7fff) };
        file.write_all_at(&[byte], at).expect("memory");
    }
    let Ok(object) = CachedObject::new(key, layout, copy(&data), copy(&records), None) else {
        return;
    };
    for number in 0..2 {
        let range = layout.bytes_of(number);
        let mut buffer = vec![0; STORED_BYTES];
        let read = object.read(number, range.start, &mut buffer).expect("files in memory");
        assert!(read != ChunkRead::Served || (number == 1 && buffer == stored), "{number}");
    }
}
