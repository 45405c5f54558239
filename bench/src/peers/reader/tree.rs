//! Readers of whole trees. One process lists, and hands out batches of up to 64 files, as `find | xargs -n 64 -P JOBS cat`
//! does, but that those who read are not started anew for each batch. A batch is a packet of a pipe: whoever reads it has
//! all of it, so readers need no turn.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, ReadDir};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::fs::lgetxattr;
use rustix::pipe::{PipeFlags, pipe_with};

use super::{Reader, Seen, TREE_BLOCK, Way, bytes_of, read_front};

/// Files of a batch.
const BATCH: usize = 64;
/// A packet is at most PIPE_BUF long, which no path of Linux exceeds.
const PACKET_BYTES: usize = 4096;

/// Reads all files below the working directory by so many processes.
pub(super) fn read(jobs: u16, most_files: u64) -> Result<Seen> {
    let (packets, ours) = pipe_with(PipeFlags::DIRECT | PipeFlags::CLOEXEC).context("a pipe")?;
    let readers = (0..jobs).map(|_| start(&packets)).collect::<Result<Vec<_>>>()?;
    // Without this end, a batch that nobody can take any more is an error.
    drop(packets);
    let mut seen = Seen::default();
    let mut batch = Batch { pipe: &ours, bytes: Vec::with_capacity(PACKET_BYTES), files: 0 };
    let mut left = most_files;
    for entry in Listing::of(Path::new("."))? {
        match entry? {
            Entry::Directory | Entry::Other(_) => {}
            Entry::Refused => seen.refused += 1,
            Entry::File(path) => {
                batch.add(&path)?;
                left = left.saturating_sub(1);
                if left == 0 {
                    break;
                }
            }
        }
    }
    batch.send()?;
    drop(ours);
    for reader in readers {
        let output = reader.wait_with_output().context("waiting for a reader")?;
        ensure!(output.status.success(), "a reader of batches ended with {}", output.status);
        let theirs: Seen = serde_json::from_slice(&output.stdout).context("a reader's words")?;
        seen.add(&theirs);
    }
    Ok(seen)
}

fn start(packets: &OwnedFd) -> Result<Child> {
    let mut command: Command = Reader::new(Way::Batches).command(Path::new("."))?;
    command.stdin(packets.try_clone().context("a pipe for a reader")?).stdout(Stdio::piped());
    command.spawn().context("starting a reader of batches")
}

/// Files that are handed out together.
struct Batch<'a> {
    pipe: &'a OwnedFd,
    /// Their paths, each with a 0 behind it.
    bytes: Vec<u8>,
    files: usize,
}

impl Batch<'_> {
    fn add(&mut self, path: &Path) -> Result<()> {
        let path = bytes_of(path);
        if self.files == BATCH || self.bytes.len() + path.len() + 1 > PACKET_BYTES {
            self.send()?;
        }
        self.bytes.extend_from_slice(path);
        self.bytes.push(0);
        self.files += 1;
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        if self.files > 0 {
            ensure!(self.bytes.len() <= PACKET_BYTES, "a path is longer than {PACKET_BYTES} bytes");
            let count = rustix::io::write(self.pipe, &self.bytes).context("handing files out")?;
            ensure!(count == self.bytes.len(), "a packet was cut");
            self.bytes.clear();
            self.files = 0;
        }
        Ok(())
    }
}

/// Reads the files that come as packets on stdin.
pub(super) fn read_batches() -> Result<Seen> {
    let mut packet = [0; PACKET_BYTES];
    let mut block = vec![0; TREE_BLOCK];
    let mut seen = Seen::default();
    loop {
        let count = rustix::io::read(io::stdin(), &mut packet).context("getting files")?;
        if count == 0 {
            return Ok(seen);
        }
        let names = packet.get(..count).unwrap_or_default().split(|byte| *byte == 0);
        for name in names.filter(|name| !name.is_empty()) {
            let path = Path::new(OsStr::from_bytes(name));
            match read_front(path, u64::MAX, &mut block) {
                Ok(bytes) => {
                    seen.files += 1;
                    seen.bytes += bytes;
                }
                Err(error) if is_forbidden(&error) => seen.refused += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_forbidden(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::PermissionDenied)
}

/// How much is asked of each name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// What the listing itself tells.
    Names,
    /// Attributes, the target of a link, and whether there is an access control list.
    Attributes,
}

/// Lists everything below the working directory.
pub(super) fn list(detail: Detail) -> Result<Seen> {
    let mut seen = Seen::default();
    match detail {
        Detail::Names => {
            for entry in Listing::of(Path::new("."))? {
                match entry? {
                    Entry::Refused => seen.refused += 1,
                    Entry::Directory | Entry::File(_) | Entry::Other(_) => seen.files += 1,
                }
            }
        }
        Detail::Attributes => list_attributes(&mut seen)?,
    }
    Ok(seen)
}

/// One directory after another, each sorted and looked at as a whole before those in it.
fn list_attributes(seen: &mut Seen) -> Result<()> {
    let mut due = VecDeque::from([PathBuf::from(".")]);
    while let Some(folder) = due.pop_front() {
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                seen.refused += 1;
                continue;
            }
            entries => entries.with_context(|| folder.display().to_string())?,
        };
        let mut names =
            entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        let mut below = Vec::new();
        for path in names.iter().map(|name| folder.join(name)) {
            if look_at(&path).with_context(|| path.display().to_string())? {
                below.push(path);
            }
            seen.files += 1;
        }
        // What is in a directory comes right behind it.
        below.into_iter().rev().for_each(|path| due.push_front(path));
    }
    Ok(())
}

/// Asks what `ls -l` asks; whether it is a directory.
fn look_at(path: &Path) -> Result<bool> {
    let found = fs::symlink_metadata(path)?;
    if found.is_symlink() {
        fs::read_link(path)?;
    } else {
        // That there is no list is an answer as well.
        let mut list = [0_u8; 1024];
        lgetxattr(path, "system.posix_acl_access", &mut list).unwrap_or_default();
    }
    Ok(found.is_dir())
}

/// Something below the directory.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Directory,
    File(PathBuf),
    Other(PathBuf),
    /// A directory that may not be listed.
    Refused,
}

/// Everything below a directory, in the order in which directories list it, what is in a directory right behind it. Types come from the listing where
/// it has them, so a name costs no request of its own.
struct Listing {
    levels: Vec<(ReadDir, PathBuf)>,
}

impl Listing {
    fn of(folder: &Path) -> Result<Self> {
        let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        Ok(Self { levels: vec![(entries, folder.to_path_buf())] })
    }

    fn step(&mut self, entry: &fs::DirEntry, folder: &Path) -> Result<Entry> {
        let path = folder.join(entry.file_name());
        let kind = entry.file_type().with_context(|| path.display().to_string())?;
        if kind.is_file() {
            return Ok(Entry::File(path));
        }
        if !kind.is_dir() {
            return Ok(Entry::Other(path));
        }
        match fs::read_dir(&path) {
            Ok(entries) => {
                self.levels.push((entries, path));
                Ok(Entry::Directory)
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Entry::Refused),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }
}

impl Iterator for Listing {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (entries, folder) = self.levels.last_mut()?;
            let Some(entry) = entries.next() else {
                self.levels.pop();
                continue;
            };
            let folder = folder.clone();
            return Some(entry.map_err(Into::into).and_then(|entry| self.step(&entry, &folder)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::{BATCH, Batch, Entry, Listing, look_at};

    #[test]
    fn a_listing_goes_into_directories_and_tells_kinds() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/file"), b"x").unwrap();
        symlink("nowhere", folder.path().join("link")).unwrap();
        let mut entries: Vec<_> = Listing::of(folder.path()).unwrap().map(Result::unwrap).collect();
        entries.retain(|entry| *entry != Entry::Directory);
        assert_eq!(entries.len(), 2);
        assert!(entries.contains(&Entry::File(folder.path().join("a/b/file"))));
        assert!(entries.contains(&Entry::Other(folder.path().join("link"))));
        assert!(look_at(&folder.path().join("a")).unwrap());
        assert!(!look_at(&folder.path().join("link")).unwrap());
        look_at(&folder.path().join("gone")).unwrap_err();
    }

    #[test]
    fn a_batch_is_one_packet_of_at_most_64_files() {
        let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::DIRECT).unwrap();
        let mut batch = Batch { pipe: &theirs, bytes: Vec::new(), files: 0 };
        for number in 0..=BATCH {
            batch.add(Path::new(&number.to_string())).unwrap();
        }
        batch.add(Path::new(&"x".repeat(4094))).unwrap();
        batch.send().unwrap();
        let mut packet = vec![0; 8192];
        let mut sizes = || {
            let count = rustix::io::read(&ours, &mut packet).unwrap();
            packet[..count].iter().filter(|byte| **byte == 0).count()
        };
        assert_eq!([sizes(), sizes(), sizes()], [BATCH, 1, 1]);
    }
}
