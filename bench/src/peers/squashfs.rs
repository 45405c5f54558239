//! The squashfs image beside an EROFS image: the one that was named, or one that is made of the same tree, zstd in blocks
//! of 128 KiB, as squashfs is mostly used. A report makes one for all of its experiments.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::images::Pictured;
use super::program::ProgramArguments;
use super::spent;

/// A quick run makes none of images beyond that: compressing would take all of its time.
const QUICK_BYTES: u64 = 64 << 20;
pub(super) const MAKER: &str = "mksquashfs";
pub(super) const OPTIONS: [&str; 7] =
    ["-comp", "zstd", "-b", "131072", "-quiet", "-no-progress", "-noappend"];

/// How to come by an image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) given: Option<&'a Path>,
    pub(super) programs: &'a ProgramArguments,
    pub(super) is_quick: bool,
}

/// A squashfs image of the tree; one that is made lies in the folder.
///
/// # Errors
/// The outer one when ours does not extract; the inner one, why there is no image.
pub(super) fn of_tree(
    wanted: Wanted<'_>,
    image: &Pictured,
    folder: &Path,
) -> Result<Result<PathBuf, String>> {
    if let Some(given) = wanted.given {
        let path = given.canonicalize().with_context(|| given.display().to_string())?;
        return Ok(Ok(path));
    }
    if wanted.is_quick && image.bytes > QUICK_BYTES {
        return Ok(Err(
            "a quick run has no time to make a squashfs image; --squashfs names one".to_owned()
        ));
    }
    let maker = match wanted.programs.peer(MAKER) {
        Ok(maker) => maker,
        Err(why) => return Ok(Err(format!("{why}; --squashfs names an image"))),
    };
    let (tree, path, said) =
        (folder.join("tree"), folder.join("tree.squashfs"), folder.join("said"));
    let mut extract = wanted.programs.ours()?.command();
    extract.args(["extract", "--quiet", "--progress=none"]).arg(&image.path).arg(&tree);
    spent::run(&mut extract, &said)?;
    let mut make = maker.command();
    make.arg(&tree).arg(&path).args(OPTIONS);
    let made = spent::run(&mut make, &said);
    super::discard::remove(&tree)?;
    if let Err(error) = made {
        return Ok(Err(format!("{error:#}")));
    }
    ensure!(fs::metadata(&path)?.len() > 0, "mksquashfs made an empty image");
    Ok(Ok(path))
}

/// One of an image's tree, in the folder, for more than one experiment; None where nobody makes one, of which the
/// experiments say why.
///
/// # Errors
/// When ours does not extract, or mksquashfs fails.
pub(crate) fn make_squashfs(
    image: &Path,
    peers: Option<&Path>,
    folder: &Path,
) -> Result<Option<PathBuf>> {
    let programs = ProgramArguments { ferrofs: None, peers: peers.map(Path::to_path_buf) };
    if programs.peer(MAKER).is_err() {
        return Ok(None);
    }
    let wanted = Wanted { given: None, programs: &programs, is_quick: false };
    let made = of_tree(wanted, &Pictured::look(image)?, folder)?;
    made.map(Some).map_err(anyhow::Error::msg)
}
