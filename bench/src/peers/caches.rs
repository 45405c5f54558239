//! What the system remembers before a run: the image in the page cache, and nothing else where the user may have it so.

use std::fs::{self, File, OpenOptions};
use std::io::{copy, sink};
use std::path::Path;

use anyhow::{Context, Result};

const DROP: &str = "/proc/sys/vm/drop_caches";
/// Pages, and what is known of files: see drop_caches in the kernel's documentation of /proc/sys/vm.
const EVERYTHING: &str = "3";

/// How caches are treated before each run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caches {
    /// All are dropped, and the image is read into the page cache.
    Dropped,
    /// The image is read into the page cache. A mount that is made anew has nothing in any cache even so.
    Kept,
}

impl Caches {
    /// As this user may.
    pub(super) fn look() -> Self {
        let may = OpenOptions::new().write(true).open(DROP).is_ok();
        if may { Self::Dropped } else { Self::Kept }
    }

    /// For people.
    pub(super) fn sentence(self) -> &'static str {
        match self {
            Self::Dropped => {
                "caches: before each run all of the system's are dropped, the image is read into the page cache, and it is mounted anew"
            }
            Self::Kept => {
                "caches: before each run the image is read into the page cache and mounted anew; the system's other caches are kept, since only root may drop them"
            }
        }
    }

    pub(super) fn prepare(self, image: &Path) -> Result<()> {
        if self == Self::Dropped {
            rustix::fs::sync();
            fs::write(DROP, EVERYTHING).context("dropping caches")?;
        }
        read(image)
    }
}

/// Reads a file into the page cache.
pub(super) fn read(path: &Path) -> Result<()> {
    let what = || format!("reading {}", path.display());
    let mut file = File::open(path).with_context(what)?;
    copy(&mut file, &mut sink()).with_context(what)?;
    Ok(())
}
