//! One thread and no queue: what the work costs by itself.

use std::sync::Arc;

use anyhow::Result;

use super::{Row, Tally};
use crate::deflater::Deflater;
use crate::page_store::PageStore;

/// The row.
#[derive(Debug)]
pub(crate) struct Inline {
    pages: Arc<PageStore>,
    deflater: Deflater,
}

impl Inline {
    pub(crate) fn new(pages: &Arc<PageStore>) -> Result<Self> {
        Ok(Self { pages: Arc::clone(pages), deflater: Deflater::new()? })
    }
}

impl Row for Inline {
    fn pass(&mut self) -> Result<Tally> {
        let mut tally = Tally::default();
        for (number, page) in self.pages.all().iter().enumerate() {
            self.pages.mark(number);
            tally.add(self.deflater.compress(page)?);
        }
        Ok(tally)
    }
}
