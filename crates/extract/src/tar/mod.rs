//! A tree as a tar: the PAX form of POSIX.1-2001, with attributes as GNU tar and star keep them, and
//! holes as GNU tar does. It owns the order of the stream and writes to whatever it is given.
//!
//! The plan cuts the stream into segments, all threads render them, and they are written in order, so
//! the stream does not depend on the number of threads: the same image gives the same bytes. What is
//! on its way is bounded, and charged to a budget if there is one.

mod guard;
mod header;
mod layout;
mod options;
mod pax;
mod plan;
mod render;
mod segment;
mod stream;

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use ferrofs_image::Image;
use ferrofs_workers::jobs::{Helpers, Ordered};
use ferrofs_workers::memory::{Charge, Policy};

pub use options::{Holes, TarOptions};

use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Summary};
use plan::Plan;
use render::Renderer;
use segment::SEGMENT_MAX_BYTES;
use stream::Stream;

/// Segments on their way for each thread: one that is worked on, one that is next, and two that are
/// done while an earlier one still takes its time.
const SEGMENTS_A_THREAD: usize = 4;
/// The part of a budget that segments may take.
const BUDGET_SHARE: u64 = 4;

/// Writes `image`, or what is selected of it, to `out` as a tar.
///
/// Members are in the order of the walk: a directory before what is in it, names by their bytes. Paths
/// are relative; the root is `./`, and is left out unless it is selected itself. The first name of an
/// inode has its contents, further ones are hard links to it. Sockets are withheld: a tar cannot hold
/// them.
///
/// Whatever fails is passed to `on_event` and counted; the rest is written. A file that cannot be read
/// in full is left out, or, if it is so long that its header is out already, filled with zeros to its
/// size ([`ErrorKind::ZeroFilled`]).
///
/// # Errors
/// Only what makes all further work pointless: `out` fails, whatever with; the root cannot be read; or
/// there is no memory. What has been written by then has no end marker and is no complete tar, but
/// some programs do not mind: it should be removed.
pub fn write_tar(
    image: &Image,
    out: &mut dyn Write,
    options: &TarOptions,
    on_event: &mut dyn FnMut(Event),
) -> Result<Summary> {
    let walk = guard::guarded(|| Ok(image.walk(b"/")?)).map_err(|kind| Error::new(kind, b"/"))?;
    let threads = options.max_threads.unwrap_or_else(|| Helpers::process().total()).max(1);
    let (segments, _charge) = charge(threads, options)?;
    let mut plan = Plan::new(image, walk, options);
    let mut stream = Stream::new(out, on_event);
    if let Some(error) = image.truncation() {
        stream.fail(Error::new(error.into(), b""));
    }
    let renderer = Renderer { image, holes: options.holes, budget: options.budget.as_ref() };
    let buffers = Buffers::default();
    Ordered::new().max_threads(threads).look_ahead(segments).run(
        &mut plan,
        || (),
        |(), segment| renderer.render(segment?, buffers.take()),
        |rendered| {
            buffers.give_back(stream.write(rendered)?);
            Ok(())
        },
    )?;
    for pattern in plan.unmatched() {
        stream.fail(Error::new(ErrorKind::NothingMatches, pattern));
    }
    stream.end()
}

/// How many segments may be on their way, and the bytes that are charged for them: all at once, before
/// the first one. A segment that waited for memory while later ones hold theirs would wait for good.
fn charge(threads: usize, options: &TarOptions) -> Result<(usize, Option<Charge>)> {
    let wanted = if threads > 1 { threads.saturating_mul(SEGMENTS_A_THREAD) } else { 1 };
    let Some(budget) = &options.budget else { return Ok((wanted, None)) };
    let share = budget.limit_bytes() / BUDGET_SHARE / SEGMENT_MAX_BYTES;
    let segments = wanted.min(usize::try_from(share).unwrap_or(usize::MAX)).max(1);
    let bytes = SEGMENT_MAX_BYTES.saturating_mul(segments as u64);
    let charge = budget.charge(bytes, Policy::MustSucceed);
    let charge = charge.map_err(|error| Error::new(ErrorKind::Memory(error), b""))?;
    Ok((segments, Some(charge)))
}

/// Buffers of segments that were written, for those to come: new memory of this size comes from the
/// system page by page. There are never more than segments on their way.
#[derive(Debug, Default)]
struct Buffers {
    idle: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    fn take(&self) -> Vec<u8> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.pop().unwrap_or_default()
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        // What a single segment needed beyond its charge does not stay.
        buffer.shrink_to(usize::try_from(SEGMENT_MAX_BYTES).unwrap_or(usize::MAX));
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}
