//! An archive from a pipe whose contents do not fit into the spool, which holds them until the
//! image is written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Dir, ferrofs, is_root, skip};

/// More than the spool holds in memory, so that it needs a file.
const CONTENT_BYTES: u64 = 72 << 20;
/// The size limit of that file: blocks of 512 bytes, or of 1,024 for some shells.
const FILE_BLOCKS: &str = "1000";

#[test]
fn a_spool_without_room_is_named_and_nothing_stays() {
    let dir = Dir::new();
    let zeros = fs::File::create(dir.join("zeros")).unwrap();
    zeros.set_len(CONTENT_BYTES).unwrap();
    let place = dir.join("place");
    fs::create_dir(&place).unwrap();
    let mut packer = Command::new("tar");
    packer.arg("-C").arg(dir.path()).args(["-cf", "-", "zeros"]);
    // It is not read to its end.
    let mut packer = packer.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut shell = Command::new("sh");
    let limited = format!("ulimit -f {FILE_BLOCKS}; trap '' XFSZ; exec \"$@\"");
    shell.args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_ferrofs"), "build"]);
    shell
        .env_remove("TMPDIR")
        .arg(place.join("image"))
        .arg("-")
        .stdin(packer.stdout.take().unwrap());
    let output = shell.output().unwrap();
    // A writer to a pipe waits as long as the pipe has an open reading end.
    drop(shell);
    packer.wait().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    let wanted = format!("{}: cannot write to the spool: File too large", place.display());
    assert!(message.contains(&wanted), "{message}");
    assert_eq!(fs::read_dir(place).unwrap().count(), 0, "{message}");
}

/// A file system of 1 MiB.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf) -> Option<Self> {
        fs::create_dir(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(&path);
        let is_mounted = mount.output().is_ok_and(|output| output.status.success());
        is_mounted.then_some(Self(path))
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg(&self.0).status().ok();
    }
}

/// An archive of so many empty files with long names.
pub(crate) fn archive_of_names(path: &Path, count: usize) {
    let mut bytes = Vec::with_capacity(count * 512 + 1024);
    for number in 0..count {
        let mut header = [0; 512];
        header[..99].copy_from_slice(format!("{number:099}").as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].fill(b'0');
        header[136..147].fill(b'0');
        header[148..156].fill(b' ');
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend(header);
    }
    bytes.extend([0; 1024]);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_full_disk_is_named_and_nothing_stays_on_it() {
    if !is_root() {
        return skip("only root can mount a small file system");
    }
    let dir = Dir::new();
    let Some(disk) = SmallDisk::mount(dir.join("disk")) else {
        return skip("needs the right to mount a tmpfs");
    };
    let (tree, image) = (dir.join("tree"), disk.0.join("image"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), vec![7; 3 << 20]).unwrap();
    let full = "No space left on device";
    // The image.
    let stderr = ferrofs().args(["build", "-q"]).args([&image, &tree]).ends_with(1).stderr;
    assert!(stderr.contains(full) && disk.is_empty(), "{stderr}");
    // The temporary file of a tree that does not fit into memory.
    let archive = dir.join("archive");
    archive_of_names(&archive, 80_000);
    let mut build = ferrofs().args(["build", "-q", "--memory=27m"]).env("TMPDIR", &disk.0);
    build = build.args([&dir.join("other"), &archive]);
    let stderr = build.ends_with(1).stderr;
    let wanted = format!("{}: cannot write to a temporary file: {full}", disk.0.display());
    assert!(stderr.contains(&wanted) && disk.is_empty(), "{stderr}");
    assert!(!dir.join("other").exists());
    // A sidecar, whose former text stays.
    ferrofs().args(["build", "-q"]).args([&dir.join("names"), &archive]).succeeds();
    let sidecar = disk.0.join("sidecar");
    fs::write(&sidecar, "former").unwrap();
    let mut extract = ferrofs().args(["extract", "-q", "--tar=/dev/null", "--sidecar"]);
    extract = extract.args([&sidecar, &dir.join("names")]);
    let stderr = extract.ends_with(1).stderr;
    assert!(stderr.contains(full), "{stderr}");
    assert_eq!(fs::read(&sidecar).unwrap(), b"former");
}
