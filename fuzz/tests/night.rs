//! `scripts/fuzz-night` in a copy of its folders, with programs in place of cargo and of a target: until when it runs, and with
//! which length.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a new folder");
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a new file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a file of ours");
}

/// Runs the script; the target says no edges, at which the night ends with "chunk did not start".
fn night(until: &str) -> Output {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder =
        std::env::temp_dir().join(format!("ferrofs-night-{}-{}", std::process::id(), until.len()));
    program(&folder.join("bin/cargo"), "exit 0");
    program(&folder.join("bin/rustc"), "echo host: here");
    program(&folder.join("fuzz/target/none/here/release/chunk"), "echo \"$@\"");
    fs::create_dir_all(folder.join("scripts")).expect("a new folder");
    fs::copy(here.join("../scripts/fuzz-night"), folder.join("scripts/fuzz-night"))
        .expect("a copy");
    fs::copy(here.join("lengths.tsv"), folder.join("fuzz/lengths.tsv")).expect("a copy");
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(folder.join("scripts/fuzz-night"))
        .args(["-u", until, "chunk"])
        .env("PATH", format!("{}:{path}", folder.join("bin").display()))
        .output()
        .expect("bash");
    fs::remove_dir_all(&folder).expect("a folder of ours");
    output
}

#[test]
fn a_time_of_day_that_is_past_is_that_of_tomorrow() {
    let output = night("1 minute ago");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("chunk did not start"), "{output:?}");
    assert!(said.contains("-max_total_time=600 -max_len=24576 "), "{said}");
}

#[test]
fn a_night_in_which_no_target_ran_is_a_failure() {
    let output = night("now + 5 seconds");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no target ran"), "{output:?}");
}
