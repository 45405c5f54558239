//! An archive from a pipe whose contents do not fit into the spool, which holds them until the
//! image is written.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::Dir;

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
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let wanted = format!("{}: cannot write to the spool: File too large", place.display());
    assert!(said.contains(&wanted), "{said}");
    assert_eq!(fs::read_dir(place).unwrap().count(), 0, "{said}");
}
