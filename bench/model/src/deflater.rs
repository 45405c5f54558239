//! The work of a request, by the name that it has in the bench: a stated time. Called by the
//! baselines and by our row.

use anyhow::Result;

use crate::machine;
use crate::page_store::Page;

/// Bytes that the bench's deflater makes of a page.
const COMPRESSED_BYTES: u64 = 46;

/// Something that takes as long as compressing a page.
#[derive(Debug)]
pub(crate) struct Deflater(());

impl Deflater {
    #[allow(clippy::unnecessary_wraps, reason = "the bench's can fail")]
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(()))
    }

    #[allow(clippy::unnecessary_wraps, clippy::unused_self, reason = "as above")]
    pub(crate) fn compress(&mut self, page: &Page) -> Result<u64> {
        page.fetch();
        machine::work(page.cost());
        Ok(COMPRESSED_BYTES)
    }
}
