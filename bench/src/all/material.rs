//! What experiments are run on: the image and the tree that were named, or a copy of a part of this machine's own
//! `/usr`, LZ4 images of it with both windows, and a squashfs image for those that compare with one. Gone at the end.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ferrofs_builder::import::{DirectoryOptions, UnreadablePolicy, from_directory};
use ferrofs_builder::{Algorithms, BuildOptions, NoopObserver, build};
use ferrofs_codec::Method;
use ferrofs_workers::CancelToken;

use super::AllArguments;
use crate::interruption;
use crate::peers::make_squashfs;

/// Whose files are copied where no tree is named.
const SYSTEM_TREE: &str = "/usr";
/// The most that is copied of them.
const COPY_BYTES: u64 = 300 << 20;
const QUICK_COPY_BYTES: u64 = 48 << 20;
/// Files that are larger are not copied, so that there are many.
const FILE_BYTES_MAX: u64 = 24 << 20;
/// Directories below each other that are followed.
const DEPTH_MAX: u32 = 32;
/// Windows of the images, in bytes that a match may reach back.
const WIDE: u16 = u16::MAX;
const NARROW: u16 = (16 << 10) - 1;

/// What there is.
#[derive(Debug, Default)]
pub(super) struct Material {
    /// Holds everything that was made, until the end.
    _folder: Option<Folder>,
    /// Any image.
    image: Option<PathBuf>,
    /// One of a whole system.
    system: Option<PathBuf>,
    wide: Option<PathBuf>,
    narrow: Option<PathBuf>,
    /// Of the tree of `image`.
    squashfs: Option<PathBuf>,
    source: Option<PathBuf>,
    peers: Option<PathBuf>,
    notes: Vec<String>,
}

/// A folder that goes with everything in it.
#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            writeln!(std::io::stderr(), "{} is left: {error}", self.0.display())
                .unwrap_or_default();
        }
    }
}

impl Material {
    /// Makes what was not named.
    ///
    /// # Errors
    /// When files cannot be copied, or the images cannot be built.
    pub(super) fn make(
        arguments: &AllArguments,
        (is_quick, takes_squashfs): (bool, bool),
        say: &mut dyn Write,
    ) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("ferrofs-bench-all-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        let folder = Folder(path);
        let mut notes = Vec::new();
        let source = match &arguments.source {
            Some(source) => source.clone(),
            None => {
                let copy = folder.0.join("source");
                let most = if is_quick { QUICK_COPY_BYTES } else { COPY_BYTES };
                let copied = copy_part(Path::new(SYSTEM_TREE), &copy, most)?;
                notes.push(format!(
                    "The tree is a copy of {} files of {SYSTEM_TREE}, {} MB together.",
                    copied.files,
                    copied.bytes / 1_000_000
                ));
                copy
            }
        };
        writeln!(say, "building images of {}", source.display())?;
        let built = |name: &str, max_distance| {
            interruption::check()?;
            let path = folder.0.join(name);
            build_image(&source, &path, max_distance).map(|()| path)
        };
        let (wide, narrow) = (built("lz4-64k.erofs", WIDE)?, built("lz4-16k.erofs", NARROW)?);
        let tree =
            arguments.source.as_ref().map_or("it".to_owned(), |path| path.display().to_string());
        notes.push(format!(
            "Images of {tree} were built with LZ4 in clusters of 4 KiB, with windows of 64 KiB and of 16 KiB."
        ));
        let image = arguments.image.as_ref().unwrap_or(&wide).clone();
        let mut squashfs = None;
        if takes_squashfs && !is_quick {
            match make_squashfs(&image, arguments.peers.as_deref(), &folder.0) {
                Ok(None) => {}
                Ok(made) => {
                    squashfs = made;
                    let image = image.display();
                    notes.push(format!(
                        "A squashfs image of the tree of {image} was made for all experiments."
                    ));
                }
                Err(error) => notes.push(format!("No squashfs image was made: {error:#}.")),
            }
        }
        interruption::check()?;
        Ok(Self {
            image: Some(image),
            system: arguments.image.clone(),
            wide: Some(wide),
            narrow: Some(narrow),
            squashfs,
            source: Some(source),
            peers: arguments.peers.clone(),
            _folder: Some(folder),
            notes,
        })
    }

    /// Everything is the same file.
    #[cfg(test)]
    pub(super) fn of_paths(path: &str) -> Self {
        let path = || Some(PathBuf::from(path));
        Self {
            image: path(),
            system: path(),
            wide: path(),
            narrow: path(),
            squashfs: path(),
            source: path(),
            peers: path(),
            ..Self::default()
        }
    }

    /// Names in the words of cases, what they stand for, and what is missing if they stand for nothing.
    pub(super) fn names(&self) -> [(&'static str, Option<&Path>, &'static str); 7] {
        [
            ("{image}", self.image.as_deref(), "an image"),
            ("{system}", self.system.as_deref(), "an image of a Debian system (--image)"),
            ("{wide}", self.wide.as_deref(), "an image with a window of 64 KiB"),
            ("{narrow}", self.narrow.as_deref(), "an image with a window of 16 KiB"),
            ("{squashfs}", self.squashfs.as_deref(), "a squashfs image"),
            ("{source}", self.source.as_deref(), "a tree"),
            ("{peers}", self.peers.as_deref(), "a folder of peers (--peers)"),
        ]
    }

    /// What was made, in sentences.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// An image with such a window.
fn build_image(source: &Path, path: &Path, max_distance: u16) -> Result<()> {
    let what = || format!("building an image of {}", source.display());
    let import = DirectoryOptions { unreadable: UnreadablePolicy::LeaveOut, ..Default::default() };
    let tree =
        from_directory(source, &import, &NoopObserver, &CancelToken::new()).with_context(what)?;
    let algorithms = Algorithms { default: 0, methods: vec![Method::Lz4 { max_distance }] };
    let options = BuildOptions::default().algorithms(Some(algorithms));
    build(&tree, &options, path, &NoopObserver, &CancelToken::new()).with_context(what)?;
    Ok(())
}

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Copied {
    files: u64,
    bytes: u64,
}

/// Copies regular files and directories until there are so many bytes. Each entry of a directory may take an equal
/// part of what is left, so that all of them are there; what cannot be read is not.
fn copy_part(from: &Path, to: &Path, most: u64) -> Result<Copied> {
    let mut copied = Copied::default();
    copy_directory((from, to), most, 0, &mut copied)?;
    ensure!(copied.files > 0, "there is nothing to be read in {}", from.display());
    Ok(copied)
}

fn copy_directory(
    (from, to): (&Path, &Path),
    most: u64,
    depth: u32,
    copied: &mut Copied,
) -> Result<()> {
    let Ok(listed) = fs::read_dir(from) else { return Ok(()) };
    fs::create_dir(to).with_context(|| format!("making {}", to.display()))?;
    let mut entries: Vec<_> = listed.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    let end = copied.bytes + most;
    let mut left = u64::try_from(entries.len())?;
    for entry in entries {
        let share = end.saturating_sub(copied.bytes) / left.max(1);
        left = left.saturating_sub(1);
        let Ok(metadata) = entry.metadata() else { continue };
        let paths = (entry.path(), to.join(entry.file_name()));
        if metadata.is_dir() && depth < DEPTH_MAX && share > 0 {
            copy_directory((&paths.0, &paths.1), share, depth + 1, copied)?;
        } else if metadata.is_file()
            && metadata.len() <= FILE_BYTES_MAX.min(end.saturating_sub(copied.bytes))
        {
            copy_file(&paths.0, &paths.1, copied)?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path, copied: &mut Copied) -> Result<()> {
    match fs::copy(from, to) {
        Ok(bytes) => {
            copied.files += 1;
            copied.bytes += bytes;
            Ok(())
        }
        // Its owner's alone, or gone since.
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound) => {
            Ok(())
        }
        Err(error) => Err(error).with_context(|| format!("copying {}", from.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Copied, copy_part};

    #[test]
    fn every_directory_gets_its_part_of_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        for directory in ["a", "b"] {
            fs::create_dir_all(from.join(directory)).unwrap();
            for name in ["1", "2", "3"] {
                fs::write(from.join(directory).join(name), [7; 100]).unwrap();
            }
        }
        let to = folder.path().join("to");
        assert_eq!(copy_part(&from, &to, 450).unwrap(), Copied { files: 4, bytes: 400 });
        for path in ["a/1", "a/2", "b/1", "b/2"] {
            assert_eq!(fs::read(to.join(path)).unwrap(), [7; 100], "{path}");
        }
        copy_part(&folder.path().join("nothing"), &folder.path().join("other"), 1).unwrap_err();
    }
}
