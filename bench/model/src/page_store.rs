//! The pages that are submitted, and the work of a request, by the names that they have in the bench. Of each page one cache
//! line matters: the submitter writes it and a worker reads it; the other lines are part of what a request costs. It also
//! tells when the measured part of a pass begins and ends.

use std::ops::Range;
use std::sync::OnceLock;

use anyhow::Result;

use crate::machine::{self, Access, Moment, Picoseconds};

/// One page: its number and what compressing it costs.
#[derive(Debug)]
pub(crate) struct Page(u64, Picoseconds);

/// A run of pages.
#[derive(Debug)]
pub(crate) struct PageStore {
    pages: Box<[Page]>,
    part: Range<usize>,
    /// When the part began and when it ended.
    ends: [OnceLock<Moment>; 2],
}

impl PageStore {
    /// So many pages, each of which costs as much; `part` is looked at.
    pub(crate) fn new(count: usize, cost: Picoseconds, part: Range<usize>) -> Self {
        let pages = (0..count as u64).map(|number| Page(number, cost)).collect();
        Self { pages, part, ends: Default::default() }
    }

    pub(crate) fn count(&self) -> usize {
        self.pages.len()
    }

    pub(crate) fn page(&self, number: usize) -> Option<&Page> {
        self.pages.get(number)
    }

    /// By the submitter, before it submits the page.
    pub(crate) fn touch(&self, number: usize) {
        machine::access_line(number as u64, Access::Store);
        for (first, moment) in [self.part.start, self.part.end].into_iter().zip(&self.ends) {
            if number == first {
                moment.set(machine::moment()).ok();
            }
        }
    }

    /// The two ends of the part, when the pass has been through it.
    pub(crate) fn part(&self) -> Option<(Moment, Moment)> {
        let [begin, end] = self.ends.each_ref().map(|end| end.get().copied());
        begin.zip(end)
    }
}

/// Bytes that the bench's deflater makes of a page.
const COMPRESSED_BYTES: u64 = 46;

/// Something that takes as long as compressing a page.
#[derive(Debug)]
pub(crate) struct Deflater(());

#[allow(clippy::unnecessary_wraps, clippy::unused_self, reason = "the bench's can fail")]
impl Deflater {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(()))
    }

    /// The page's line comes to this CPU.
    pub(crate) fn compress(&mut self, page: &Page) -> Result<u64> {
        machine::access_line(page.0, Access::Load);
        machine::work(page.1);
        Ok(COMPRESSED_BYTES)
    }
}
