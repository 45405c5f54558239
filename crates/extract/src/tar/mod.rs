//! A tree as a tar: the PAX form of POSIX.1-2001, with attributes as GNU tar and star keep them, and
//! holes as GNU tar does. It owns the order of the stream and writes to whatever it is given.
//!
//! The planner cuts the stream into segments, all threads render them, and they are written in order, so
//! the stream does not depend on the number of threads: the same image gives the same bytes. What is
//! on its way is bounded, and charged to a budget if there is one.

mod catch_panic;
mod header;
mod layout;
mod pax;
mod planner;
mod render;
mod segment;
mod stream;

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use ferrofs_image::Image;
use ferrofs_workers::CancelToken;
use ferrofs_workers::jobs::{HelperBudget, OrderedPipeline};
use ferrofs_workers::memory::{AllocPolicy, Charge};

use crate::error::{Error, ErrorKind, Result};
use crate::event::{ExtractEvent, ExtractSummary};
use crate::options::WriteTarOptions;
use planner::TarPlanner;
use render::Renderer;
use segment::SEGMENT_MAX_BYTES;
use stream::TarStream;

/// Segments on their way for each thread: one that is worked on, one that is next, and two that are
/// done while an earlier one still takes its time.
const SEGMENTS_A_THREAD: usize = 4;
/// The part of a budget that segments may take.
const BUDGET_SHARE: u64 = 4;

/// Writes `image`, or what is selected of it, to `out` as a tar.
///
/// Members are in the order of the walk: a directory before what is in it, names by their bytes. Paths
/// are relative; the root is `./`, and is left out unless it is selected itself. The first name of an
/// inode has its contents, further ones are hard links to it. Sockets are skipped: a tar cannot hold
/// them.
///
/// Whatever fails is passed to `on_event` and counted; the rest is written. A file that cannot be read
/// in full is left out, or, if it is so long that its header is out already, filled with zeros to its
/// size ([`ErrorKind::ZeroFilled`]).
///
/// # Errors
/// Only what makes all further work pointless: `out` fails, whatever with; the root cannot be read;
/// the memory budget has no room; or [`WriteTarOptions::cancel`] was cancelled
/// ([`ErrorKind::Cancelled`]). What has been written by then has no end marker and is no complete tar,
/// but some programs accept it: the caller should remove it. A blocked `out` delays a cancellation.
pub fn write_tar(
    image: &Image,
    out: &mut dyn Write,
    options: &WriteTarOptions,
    on_event: &mut dyn FnMut(ExtractEvent),
) -> Result<ExtractSummary> {
    let walk = catch_panic::catch_panic(|| Ok(image.walk(b"/")?))
        .map_err(|kind| Error::new(kind, b"/"))?;
    let threads = options.max_threads.unwrap_or_else(|| HelperBudget::process().total()).max(1);
    let (segments, _charge) = charge(threads, options)?;
    let mut planner = TarPlanner::new(image, walk, options);
    let mut stream = TarStream::new(out, on_event);
    if let Some(error) = image.truncation() {
        stream.fail(Error::new(error.into(), b""));
    }
    let renderer = Renderer {
        image,
        holes: options.holes,
        budget: options.budget.as_ref(),
        cancel: &options.cancel,
    };
    let buffers = SegmentBuffers::default();
    OrderedPipeline::new().max_threads(threads).max_in_flight(segments).run(
        &mut planner,
        || (),
        |(), segment| renderer.render(segment?, buffers.take()),
        |rendered| {
            check_cancelled(&options.cancel)?;
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

/// How many segments may be on their way, and the bytes that are charged for them: all at once, before
/// the first one. A segment that waited for memory while later ones hold theirs would wait for good.
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

/// Buffers of segments that were written, for those to come: new memory of this size comes from the
/// system page by page. There are never more than segments on their way.
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
        // What a single segment needed beyond its charge does not stay.
        buffer.shrink_to(usize::try_from(SEGMENT_MAX_BYTES).unwrap_or(usize::MAX));
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}
