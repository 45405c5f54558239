//! The experiments with peers, with the smallest runs that they know: without peers, on small images, as whoever runs the
//! tests. No figure is judged here. What a user may not do (mount, above all) is to be named.
#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

const IMAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");

/// Our own program, which lies beside the one that is tested; built now if nobody has.
fn ferrofs() -> &'static Path {
    static FERROFS: OnceLock<PathBuf> = OnceLock::new();
    FERROFS.get_or_init(|| {
        let path = Path::new(env!("CARGO_BIN_EXE_ferrofs-bench")).with_file_name("ferrofs");
        if !path.exists() {
            // Where these tests were built: they may have been given a folder of their own.
            let target = path.parent().and_then(Path::parent).expect("TARGET/PROFILE/ferrofs");
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--offline", "--package", "ferrofs", "--target-dir"]).arg(target);
            build.args((!cfg!(debug_assertions)).then_some("--release"));
            assert!(build.status().expect("cargo starts").success(), "ferrofs is not built");
        }
        assert!(path.exists(), "{} is not there", path.display());
        path
    })
}

/// A run, with its folders.
struct Run {
    folder: tempfile::TempDir,
    output: Output,
}

impl Run {
    /// Without a single peer.
    fn alone(words: &str) -> Self {
        Self::with_peers(words, &[])
    }

    /// With scripts in place of peers.
    fn with_peers(words: &str, peers: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("peers");
        fs::create_dir(&place).unwrap();
        for (name, script) in peers {
            let path = place.join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferrofs-bench"));
        command.args(words.split_whitespace()).args(["--quick", "--noisy-ok", "--ferrofs"]);
        command.arg(ferrofs()).arg("--peers").arg(&place);
        command.arg("--out").arg(folder.path().join("out")).env("TMPDIR", folder.path());
        let output = command.output().expect("the program starts");
        let run = Self { folder, output };
        run.has_left_nothing();
        run
    }

    fn has_left_nothing(&self) {
        let names = self.folder.path().read_dir().unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        let mut left = names.iter().filter_map(|name| name.to_str());
        assert!(left.all(|name| ["peers", "out"].contains(&name)), "{names:?} are left");
    }

    fn complaint(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    fn text(&self) -> String {
        assert!(self.output.status.success(), "{}", self.complaint());
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    fn json(&self, experiment: &str) -> Value {
        self.text();
        let path = self.folder.path().join("out").join(experiment).with_extension("json");
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    /// What it lacked to mount; it must have named that.
    fn lack(&self) -> Option<String> {
        let complaint = self.complaint();
        if self.output.status.success() {
            return None;
        }
        let lacks = ["needs /dev/fuse", "needs fusermount3", "did not mount"];
        assert!(lacks.iter().any(|lack| complaint.contains(lack)), "{complaint}");
        Some(complaint)
    }
}

fn samples<'a>(report: &'a Value, row: &str, case: &str) -> &'a Vec<Value> {
    let series = report["series"].as_array().unwrap();
    let found = series.iter().find(|one| one["row"] == row && one["case"] == case);
    found.unwrap_or_else(|| panic!("no {row}, {case}"))["samples"].as_array().unwrap()
}

fn left_out(report: &Value) -> Vec<&str> {
    let all = report["left_out"].as_array().unwrap();
    all.iter().map(|one| one["what"].as_str().unwrap()).collect()
}

#[test]
fn check_runs_alone_and_names_the_peer_that_is_missing() {
    let run = Run::alone(&format!("check {IMAGE} --jobs 2"));
    let report = run.json("check");
    assert_eq!(left_out(&report), ["fsck.erofs"]);
    for row in ["ferrofs --jobs 1", "ferrofs"] {
        for case in ["lz4, wall", "lz4, CPU", "lz4, peak"] {
            let samples = samples(&report, row, case);
            assert!(samples.iter().all(|sample| sample.as_f64().unwrap() > 0.0), "{row}, {case}");
            assert_eq!(samples.len(), 2);
        }
    }
    assert!(run.text().contains("\nferrofs: ferrofs "), "{}", run.text());
    assert!(run.text().contains("not measured: nothing to compare"));
}

#[test]
fn extract_sets_ours_against_peers_and_keeps_their_words() {
    let fsck =
        "case $1 in --version) echo fsck.erofs 1.0;; --extract=*) mkdir ${1#--extract=};; esac";
    let run = Run::with_peers(&format!("extract {IMAGE} --jobs 2"), &[("fsck.erofs", fsck)]);
    let report = run.json("extract");
    assert_eq!(left_out(&report), ["unsquashfs"]);
    assert_eq!(samples(&report, "fsck.erofs", "lz4, wall").len(), 2);
    assert!(run.text().contains("\nfsck.erofs: fsck.erofs 1.0, "), "{}", run.text());
    let words = &report["peer_commands"][0]["words"];
    assert!(words[1].as_str().unwrap().starts_with("--extract="), "{words}");
    assert!(run.text().contains("| wall / fsck.erofs |"));
}

#[test]
fn a_peer_that_fails_is_named_with_what_it_said() {
    let run =
        Run::with_peers(&format!("check {IMAGE}"), &[("fsck.erofs", "echo broken >&2; exit 1")]);
    let text = run.text();
    assert!(text.contains("left out: fsck.erofs in lz4: "), "{text}");
    assert!(text.contains("exit status: 1: broken"), "{text}");
}

#[test]
fn build_measures_every_case_of_a_small_tree() {
    let tree = tempfile::tempdir().unwrap();
    for number in 0..20 {
        let line = format!("line {number} of a file that compresses well\n");
        fs::write(tree.path().join(number.to_string()), line.repeat(2000)).unwrap();
    }
    let run = Run::alone(&format!("build {}", tree.path().display()));
    let report = run.json("build");
    assert_eq!(left_out(&report), ["mkfs.erofs", "mksquashfs"]);
    for case in
        ["lz4-4k", "lz4hc-4k", "lz4hc-64k", "zstd-64k", "deflate-64k", "lzma-64k", "lz4hc-64k-all"]
    {
        let sizes = samples(&report, "ferrofs build", &format!("{case}, size"));
        assert!(sizes.iter().all(|size| *size == sizes[0]), "{case} has other bytes each time");
        assert_eq!(*samples(&report, "ferrofs as mkfs.erofs", &format!("{case}, size")), *sizes);
    }
}

#[test]
fn mounts_are_read_in_every_way_or_what_is_lacking_is_named() {
    for (experiment, words, rows, cases) in [
        (
            "mount",
            "--systems ferrofs,squashfuse_ll --readers 1,2",
            &["ferrofs"][..],
            &["tree, 1 reader", "tree, 2 readers", "largest file", "find", "ls -lR"][..],
        ),
        (
            "random",
            "--systems ferrofs --jobs 1,2 --bytes 8192",
            &["ferrofs"],
            &["random, 1 job", "random, 2 jobs"],
        ),
        ("mount-memory", "--readers 4", &["right after the mount", "after the whole tree"], &[""]),
    ] {
        let run = Run::alone(&format!("{experiment} {IMAGE} {words}"));
        if let Some(lack) = run.lack() {
            println!("not shown: {lack}");
            return;
        }
        let report = run.json(experiment);
        for (row, case) in rows.iter().flat_map(|row| cases.iter().map(move |case| (row, case))) {
            let of = |figure: &str| {
                let case = format!("{case}, lz4, {figure}");
                samples(&report, row, case.trim_start_matches(", "))[0].as_f64().unwrap()
            };
            match experiment {
                "mount" => assert!(of("daemon CPU") >= 0.0, "{case}"),
                "random" => assert!(of("mean") > 0.0 && of("p50") <= of("p99"), "{case}"),
                _ => assert!(of("share of a CPU while idle") >= 0.0, "{row}"),
            }
        }
        let missing = if experiment == "mount" { &["squashfuse_ll"][..] } else { &[] };
        assert_eq!(
            (left_out(&report), &report["peer_commands"][0]["words"][1]),
            (missing.into(), &"mount".into())
        );
    }
}

#[test]
fn runs_under_a_limit_are_measured_or_what_is_lacking_is_named() {
    for (experiment, words, row, case) in [
        ("memory", "", "ferrofs extract --memory=32M", "lz4, of limit"),
        ("memory", "", "ferrofs check --memory=32M", "lz4, of limit"),
        ("quota", "-c 1", "--jobs 1", "check lz4, bound to 1 CPU, threads"),
        ("decodes", "--at-least 1 --readers 1,4", "ferrofs", "lz4, decodes a cluster"),
    ] {
        let run = Run::alone(&format!("{experiment} {IMAGE} {words}"));
        if run.complaint().contains("needs root") {
            println!("not shown: {}", run.complaint());
            continue;
        }
        let report = run.json(experiment);
        assert!(samples(&report, row, case)[0].as_f64().unwrap() > 0.0, "{row}");
        assert!(experiment != "decodes" || left_out(&report)[0] == "fsck.erofs on lz4");
    }
}

#[test]
fn a_wrong_place_of_our_program_is_named_before_anything_is_done() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrofs-bench"));
    let output = command.args(["check", IMAGE, "--ferrofs", "/no/such/ferrofs"]).output().unwrap();
    assert!(!output.status.success());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("--ferrofs /no/such/ferrofs: no program is there"), "{complaint}");
}
