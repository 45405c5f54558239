//! An image as a tar: the PAX format of POSIX.1-2001, with extended attributes as GNU tar and star
//! store them, and holes as GNU tar stores them.
//!
//! The planner cuts the stream into segments, all threads render segments, and the caller's thread
//! writes them in order. So the stream does not depend on the number of threads: the same image
//! gives the same bytes. Segments in flight are bounded, and charged to a budget if there is one.

mod header;
mod layout;
mod planner;
mod render;

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use ferrofs_image::Image;
use ferrofs_workers::CancelToken;
use ferrofs_workers::jobs::{HelperBudget, OrderedPipeline};
use ferrofs_workers::memory::{AllocPolicy, Charge};

use self::planner::{SEGMENT_MAX_BYTES, TarPlanner};
use self::render::{Renderer, TarStream};
use crate::error::{Error, ErrorKind, Result, catch_panic};
use crate::event::{ExtractEvent, ExtractSummary};
use crate::limits::{ExtractLimits, MEMBER_WORK};
use crate::options::WriteTarOptions;

/// Segments in flight for each thread: one that is rendered, one that is next, and two that are
/// done and wait for an earlier one.
const SEGMENTS_A_THREAD: usize = 4;
/// Segments may take one part in this many of a budget.
const BUDGET_SHARE: u64 = 4;

/// Writes `image`, or the selected entries of it, to `out` as a tar.
///
/// Members are in the order of the walk: a directory before what is in it, names by their bytes.
/// Paths are relative; the root is `./`, and is left out unless it is selected itself. The first
/// name of an inode has the contents, further names are hard links to it. Sockets are skipped,
/// since a tar cannot hold them.
///
/// An entry that fails is passed to `on_event` and counted; the rest is written. A file that cannot
/// be read in full is left out. If it is so long that its header has been written, it is filled
/// with zeros to its size ([`ErrorKind::ZeroFilled`]).
///
/// # Errors
/// Only errors after which no tar can be written: `out` fails; the root cannot be read; the memory
/// budget has no room; or [`WriteTarOptions::cancel`] was cancelled ([`ErrorKind::Cancelled`]).
/// What has been written by then has no end marker and is no complete tar, but some programs accept
/// it: the caller should remove it. A blocked `out` delays a cancellation.
pub fn write_tar(
    image: &Image,
    out: &mut dyn Write,
    options: &WriteTarOptions,
    on_event: &mut dyn FnMut(ExtractEvent),
) -> Result<ExtractSummary> {
    let walk = catch_panic(|| Ok(image.walk(b"/")?)).map_err(|kind| Error::new(kind, b"/"))?;
    let threads = options.max_threads.unwrap_or_else(|| HelperBudget::process().total()).max(1);
    let (segments, _charge) = charge(threads, options)?;
    let limits = ExtractLimits::new(image, options.max_work, options.max_output);
    let walk = walk.work_meter(&limits.work).entry_work(MEMBER_WORK).contents_are_work();
    let mut planner = TarPlanner::new(image, walk, options, &limits.work);
    let mut stream = TarStream::new(image, out, &limits, on_event);
    if let Some(error) = image.truncation() {
        stream.fail(Error::new(error.into(), b""));
    }
    let renderer = Renderer {
        image,
        holes: options.holes,
        budget: options.budget.as_ref(),
        cancel: &options.cancel,
        limits: &limits,
    };
    let buffers = SegmentBuffers::default();
    OrderedPipeline::new().max_threads(threads).max_in_flight(segments).run(
        &mut planner,
        || (),
        |(), segment| renderer.render(segment?, buffers.take()),
        |rendered| {
            check_cancelled(&options.cancel)?;
            let checked = limits.check_decoding();
            checked.map_err(|kind| Error::new(kind, b""))?;
            let rendered = renderer.render_deferred(rendered)?;
            buffers.recycle(stream.write(rendered)?);
            Ok(())
        },
    )?;
    check_cancelled(&options.cancel)?;
    for pattern in planner.unmatched() {
        stream.fail(Error::new(ErrorKind::NothingMatches, pattern));
    }
    stream.end()
}

/// The error of a cancelled token.
fn check_cancelled(token: &CancelToken) -> Result<()> {
    if token.is_cancelled() { Err(Error::new(ErrorKind::Cancelled, b"")) } else { Ok(()) }
}

/// How many segments may be in flight, and the charge for all of them, before the first one: a
/// segment that waits for memory while later segments hold theirs would never get any.
fn charge(threads: usize, options: &WriteTarOptions) -> Result<(usize, Option<Charge>)> {
    let wanted = if threads > 1 { threads.saturating_mul(SEGMENTS_A_THREAD) } else { 1 };
    let Some(budget) = &options.budget else { return Ok((wanted, None)) };
    let share = budget.limit_bytes() / BUDGET_SHARE / SEGMENT_MAX_BYTES;
    let segments = wanted.min(usize::try_from(share).unwrap_or(usize::MAX)).max(1);
    let bytes = SEGMENT_MAX_BYTES.saturating_mul(segments as u64);
    let charge = budget.charge(bytes, AllocPolicy::MustSucceed);
    let charge = charge.map_err(|error| Error::new(ErrorKind::Memory(error), b""))?;
    Ok((segments, Some(charge)))
}

/// The free list of segment buffers: new memory of this size would be faulted in page by page.
/// There are never more buffers than segments in flight.
#[derive(Debug, Default)]
struct SegmentBuffers {
    idle: Mutex<Vec<Vec<u8>>>,
}

impl SegmentBuffers {
    fn take(&self) -> Vec<u8> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.pop().unwrap_or_default()
    }

    fn recycle(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        // Memory that a segment needed beyond its charge is returned.
        buffer.shrink_to(usize::try_from(SEGMENT_MAX_BYTES).unwrap_or(usize::MAX));
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}
