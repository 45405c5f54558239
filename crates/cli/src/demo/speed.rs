//! Measures how fast the files of a mount are read, by one or several threads.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, anyhow};
use ferrofs_image::{FileType, Image, WalkEvent};
use ferrofs_workers::counters::{Histogram, HistogramSnapshot};

use super::entry::below;
use crate::progress::WorkAmount;
use crate::signals::StopRequest;

/// Of a larger image, every n-th file is read, so that there are about this many files and bytes.
const FILES_MAX: u64 = 20_000;
const BYTES_MAX: u64 = 256 << 20;
/// Files are read in pieces of this size, as `cat` does.
const READ_BYTES: usize = 128 << 10;

/// The paths of regular files to read from an image that holds `total`.
///
/// # Errors
/// The image cannot be walked.
pub(super) fn choose_files(
    image: &Image,
    total: WorkAmount,
    stop: &StopRequest,
) -> anyhow::Result<Vec<Vec<u8>>> {
    let stride = (total.entries / FILES_MAX).max(total.bytes / BYTES_MAX).saturating_add(1);
    let regular = image.walk(b"/")?.filter_map(|event| match event {
        WalkEvent::Leaf(node) if node.inode.file_type() == FileType::Regular => Some(node.path),
        _ => None,
    });
    let chosen = regular.step_by(usize::try_from(stride).unwrap_or(usize::MAX));
    Ok(chosen.take_while(|_| !stop.is_requested()).collect())
}

/// Reads all files below `root` that the user may read, with `readers` threads: the time of each file, and MB/s.
///
/// # Errors
/// A file cannot be read, or a signal arrived.
pub(super) fn measure_reads(
    root: &Path,
    files: &[Vec<u8>],
    readers: usize,
    stop: &StopRequest,
) -> anyhow::Result<(HistogramSnapshot, f64)> {
    let (next, times) = (AtomicUsize::new(0), Histogram::new());
    let read_files = || -> io::Result<u64> {
        let (mut buffer, mut bytes) = (vec![0; READ_BYTES], 0);
        // Pairs with nothing: the files do not change.
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            stop.check_io()?;
            let started = Instant::now();
            match read_file(&below(root, path), &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                count => {
                    bytes += count?;
                    times.record(started.elapsed());
                }
            }
        }
        Ok(bytes)
    };
    let started = Instant::now();
    let bytes = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 1..readers {
            let named = std::thread::Builder::new().name(format!("reader-{number}"));
            threads.push(named.spawn_scoped(scope, read_files).context("cannot start a thread")?);
        }
        let mut bytes = read_files()?;
        for thread in threads {
            bytes += thread.join().map_err(|_| anyhow!("a reader panicked"))??;
        }
        anyhow::Ok(bytes)
    });
    stop.check()?;
    #[allow(clippy::cast_precision_loss, reason = "a speed to look at")]
    let megabytes = bytes? as f64 / 1e6;
    Ok((times.snapshot(), megabytes / started.elapsed().as_secs_f64().max(1e-9)))
}

fn read_file(path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let (mut file, mut bytes) = (File::open(path)?, 0);
    loop {
        match file.read(buffer)? {
            0 => return Ok(bytes),
            count => bytes += count as u64,
        }
    }
}
