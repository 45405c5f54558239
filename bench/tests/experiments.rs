//! The program itself, with the smallest runs that it knows: that experiments end well, say what they are to say, and name
//! what they lack. Those with peers run without peers, or with scripts in their place, on small images, as whoever runs the
//! tests. No figure is judged here. What a user may not do (mount, above all) is to be named.
#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use ferrofs_workers::cpus::CpuSet;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// For tests that drop the system's caches, and tests that need pages to stay in them.
static CACHES: Mutex<()> = Mutex::new(());

const IMAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");

fn command(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrofs-bench"));
    command.args(words.split_whitespace());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Reports that a test shows nothing here: in its output, and in the file that `FERROFS_SKIPPED` names.
#[allow(clippy::print_stderr, reason = "whoever reads the output of a test is to know")]
fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let line = format!("{test}: {}", reason.lines().collect::<Vec<_>>().join(" "));
    eprintln!("skipped: {line}");
    if let Some(path) = std::env::var_os("FERROFS_SKIPPED") {
        let mut file = fs::File::options().append(true).create(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", complaint(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn printed(words: &str) -> String {
    text(&command(words).output().unwrap())
}

/// A run, with its folders.
struct Run {
    folder: tempfile::TempDir,
    output: Output,
}

impl Run {
    /// With these scripts in place of peers, and no other peers.
    fn new(words: &str, peers: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("peers");
        fs::create_dir(&place).unwrap();
        for (name, script) in peers {
            let path = place.join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = command(words);
        command.args(["--quick", "--noisy-ok", "--peers"]).arg(&place);
        command.arg("--out").arg(folder.path().join("out")).env("TMPDIR", folder.path());
        let output = command.output().expect("the program starts");
        let names = folder.path().read_dir().unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        let mut left = names.iter().filter_map(|name| name.to_str());
        assert!(left.all(|name| ["peers", "out"].contains(&name)), "{names:?} are left");
        Self { folder, output }
    }

    fn json(&self, experiment: &str) -> Value {
        text(&self.output);
        let path = self.folder.path().join("out").join(experiment).with_extension("json");
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
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
fn experiments_print_what_they_are_to_print_and_keep_their_samples() {
    let folder = tempfile::tempdir().unwrap();
    let workqueue = "workqueue --quick --noisy-ok -t 2 -c 1 --rows inline,per-thread";
    let workqueue = format!("{workqueue} --out {}", folder.path().display());
    let lines_of_qemu = [
        "Run the benchmark: threads 2 requests-per-thread: 4 memory 0.125G repeat 1.",
        "RUN 0: Request # 32768 Cost ",
        ", Compression Rate 89.043478.",
        "AVG: Time Cost ",
        "AVG Throughput: ",
        "| threads |      queue |",
    ];
    let reads = format!("reads {IMAGE} --quick --noisy-ok --at-least 1 --readers 1,4");
    for (words, lines) in [
        (&*workqueue, &lines_of_qemu[..]),
        (
            "scheduling --quick --noisy-ok -i 2 --load 1",
            &["Standard deviation (us)", "per-CPU raised: "],
        ),
        ("pages --quick --noisy-ok --without-cgroup", &["at its limit: --without-cgroup"]),
        (&reads, &["| readers | MiB served |", "| 4       | "]),
        ("describe pages", &["# pages: ", "Origins: 001, 004", "-95 % or more"]),
    ] {
        let text = printed(words);
        for line in lines {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
    }
    let json = fs::read(folder.path().join("workqueue.json")).unwrap();
    let report: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(report["claims"][0]["origin"], "002");
    assert!(folder.path().join("workqueue.svg").exists());
    assert_eq!(report["series"][6]["row"], "per-thread");
    assert_eq!(report["series"][6]["samples"].as_array().unwrap().len(), 1);
}

#[test]
fn options_without_a_meaning_are_refused() {
    let words = format!("quota --jobs 1 {IMAGE}");
    let output = command(&words).output().unwrap();
    assert!(!output.status.success(), "{words}");
    let part = "this experiment sets --jobs itself";
    assert!(complaint(&output).contains(part), "{}", complaint(&output));
}

#[test]
fn output_that_nobody_reads_is_no_failure() {
    for words in ["describe", "pages --quick --noisy-ok --without-cgroup"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(words).stdout(writer).output().unwrap();
        assert!(output.status.success(), "{}", complaint(&output));
        assert_eq!(complaint(&output), "");
    }
}

#[test]
fn jobs_prints_a_line_for_each_way() {
    let text = printed(&format!("jobs --quick --noisy-ok -t 1 -c 1 --image {IMAGE}"));
    for way in [" one call |", " 1 thread |", "on each node", "slow chunk in the middle |"] {
        // A quick run starts nothing more after half a minute.
        let is_late = text.contains("there was no time left for it");
        assert!(text.contains(way) || is_late, "{way} is missing in {text}");
    }
    let starts = ["| nothing faulted in ", "| by 1 thread "];
    let is_left_out = ["needs ", "it takes ", "there was no time left for it"];
    let is_left_out =
        is_left_out.iter().any(|why| text.contains(&format!("the start of a mount: {why}")));
    assert!(is_left_out || starts.iter().all(|way| text.contains(way)), "{text}");
}

#[test]
fn jobs_does_what_it_can_on_one_cpu() {
    // Programs that this thread starts get its CPUs.
    let first = CpuSet::of_current_thread().iter().next().unwrap();
    CpuSet::from_iter([first]).bind_current_thread().unwrap();
    let text = printed("jobs --quick --noisy-ok -c 1");
    assert!(text.contains("a job with one slow chunk: the system runs only one"), "{text}");
    assert!(text.contains("the start of a mount: no image was named"), "{text}");
}

#[test]
fn pages_measures_at_a_limit_or_names_what_it_lacks() {
    let _caches = CACHES.lock();
    let child = command("pages --quick --noisy-ok --rounds 1").spawn().unwrap();
    let group = format!("ferrofs-bench-{}", child.id());
    let output = child.wait_with_output().unwrap();
    for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"] {
        assert!(!Path::new(root).join(&group).exists(), "{group} is left behind in {root}");
    }
    let (text, complaint) = (String::from_utf8_lossy(&output.stdout), complaint(&output));
    if output.status.success() {
        assert!(text.contains("| reserve of 256 "), "{text}");
        return;
    }
    let names_it = complaint.contains("cgroup") || complaint.contains("needs root");
    assert!(names_it, "{complaint}");
    skip(&format!("at the limit of a memory cgroup: {complaint}"));
}

#[test]
fn what_an_experiment_needs_is_named_before_it_starts() {
    let reads = format!("reads {IMAGE} --at-least 1000000000000");
    let check = format!("check {IMAGE} --ferrofs /no/such/ferrofs");
    for (words, wanted) in [
        ("jobs --gib 65535 -t 1", "--gib takes less"),
        (&reads, "no file of 1000000000000 bytes or more"),
        ("reads /no/such/image", "ferrofs-bench: this needs the file /no/such/image"),
        ("windows /no/such/image", "ferrofs-bench: this needs the file /no/such/image"),
        (&check, "--ferrofs /no/such/ferrofs: no program is there"),
    ] {
        let output = command(words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(complaint(&output).contains(wanted), "{words}: {}", complaint(&output));
    }
}

#[test]
fn launches_names_a_program_that_is_missing_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&format!("launches {IMAGE} --quick --noisy-ok --load 0"));
    let output = command.env("TMPDIR", folder.path()).output().unwrap();
    assert!(!output.status.success());
    let complaint = complaint(&output);
    let names_it = complaint.contains("/usr/bin/bash: starting it");
    let lacks = complaint.contains("needs root") || complaint.contains("/dev/fuse");
    assert!(names_it || lacks, "{complaint}");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "something is left behind");
    if lacks {
        skip(&complaint);
    }
}

/// A folder with a tree of one text, and the words of a quick `all` on it.
fn tree(only: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    let text: String = (0..60_000).map(|number| format!("line {number}\n")).collect();
    fs::write(source.join("text"), text).unwrap();
    let (source, out) = (source.display(), folder.path().join("out"));
    let words = format!("all --quick --only {only} --source {source} --out {}", out.display());
    (folder, words)
}

#[test]
fn whoever_interrupts_all_finds_nothing_left() {
    let (folder, words) = tree("windows,pages");
    let made = folder.path().join("made");
    fs::create_dir(&made).unwrap();
    let mut child = command(&words).env("TMPDIR", &made).spawn().unwrap();
    let is_there = || made.read_dir().unwrap().next().is_some();
    while !is_there() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it made anything");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = complaint(&output);
    assert!(complaint.contains("ferrofs-bench: interrupted"), "{complaint}");
    assert!(!is_there(), "{} is not empty", made.display());
}

#[test]
fn all_writes_one_page_on_everything_and_says_what_was_left_out() {
    let _caches = CACHES.lock();
    let (folder, words) = tree("windows,launches,pages");
    let output = printed(&words);
    assert!(output.contains("windows: done"), "{output}");
    assert!(output.contains("launches: left out: needs an image of a Debian system"), "{output}");
    let page = fs::read_to_string(folder.path().join("out/report.html")).unwrap();
    for part in ["<svg", "id=\"windows\"", "id=\"launches\"", "lz4-16k.erofs", "<td>001</td>"] {
        assert!(page.contains(part), "{part} is missing");
    }
}

#[test]
fn check_runs_alone_and_names_the_peer_that_is_missing() {
    let run = Run::new(&format!("check {IMAGE} --jobs 2"), &[]);
    let report = run.json("check");
    assert_eq!(left_out(&report), ["fsck.erofs"]);
    for row in ["ferrofs --jobs 1", "ferrofs"] {
        for case in ["lz4, wall", "lz4, CPU", "lz4, peak"] {
            let samples = samples(&report, row, case);
            assert!(samples.iter().all(|sample| sample.as_f64().unwrap() > 0.0), "{row}, {case}");
            assert_eq!(samples.len(), 2);
        }
    }
    assert!(text(&run.output).contains("\nferrofs: ferrofs "), "{}", text(&run.output));
    assert!(text(&run.output).contains("not measured: nothing to compare"));
}

#[test]
fn extract_sets_ours_against_peers_and_keeps_their_words() {
    let fsck =
        "case $1 in --version) echo fsck.erofs 1.0;; --extract=*) mkdir ${1#--extract=};; esac";
    let run = Run::new(&format!("extract {IMAGE} --jobs 2"), &[("fsck.erofs", fsck)]);
    let report = run.json("extract");
    assert_eq!(left_out(&report), ["unsquashfs"]);
    assert_eq!(samples(&report, "fsck.erofs", "lz4, wall").len(), 2);
    assert!(text(&run.output).contains("\nfsck.erofs: fsck.erofs 1.0, "), "{}", text(&run.output));
    let words = &report["peer_commands"][0]["words"];
    assert!(words[1].as_str().unwrap().starts_with("--extract="), "{words}");
    assert!(text(&run.output).contains("| wall / fsck.erofs |"));
}

#[test]
fn a_peer_that_fails_is_named_with_what_it_said() {
    let run = Run::new(&format!("check {IMAGE}"), &[("fsck.erofs", "echo broken >&2; exit 1")]);
    let text = text(&run.output);
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
    let words = format!("build {}", tree.path().display());
    let report = Run::new(&words, &[]).json("build");
    assert_eq!(left_out(&report), ["mkfs.erofs", "mksquashfs"]);
    for case in
        ["lz4-4k", "lz4hc-4k", "lz4hc-64k", "zstd-64k", "deflate-64k", "lzma-64k", "lz4hc-64k-all"]
    {
        let sizes = samples(&report, "ferrofs build", &format!("{case}, size"));
        assert!(sizes.iter().all(|size| *size == sizes[0]), "{case} has other bytes each time");
        assert_eq!(*samples(&report, "ferrofs as mkfs.erofs", &format!("{case}, size")), *sizes);
    }
    let few = Run::new(&format!("{words} --only lz4-4k,zstd-64k"), &[]).json("build");
    for one in few["series"].as_array().unwrap() {
        let (case, _) = one["case"].as_str().unwrap().split_once(", ").unwrap();
        assert!(["lz4-4k", "zstd-64k"].contains(&case), "{case}");
    }
}

#[test]
fn mounts_are_read_in_every_way_or_what_is_lacking_is_named() {
    let _caches = CACHES.lock();
    let ways = "tree, 1 reader|tree, 2 readers|largest file|small files|find|du|ls -lR";
    let orders = "dense, 1 job|dense, 2 jobs|sparse, 1 job|sparse, 2 jobs";
    let random = "--systems ferrofs --jobs 1,2 --bytes 8192 --sparse 2";
    for (experiment, words, rows, cases) in [
        ("mount", "--systems ferrofs,squashfuse_ll --readers 1,2", "ferrofs", ways),
        ("random", random, "ferrofs", orders),
        ("slow", "--systems ferrofs --delay 5", "ferrofs", "16 readers, 5 ms"),
        ("start", "--systems ferrofs", "ferrofs", ""),
        ("mount-memory", "--readers 4", "right after the mount|after the whole tree", ""),
    ] {
        let run = Run::new(&format!("{experiment} {IMAGE} {words}"), &[]);
        if !run.output.status.success() {
            let complaint = complaint(&run.output);
            let lacks = ["needs /dev/fuse", "needs fusermount3", "did not mount"];
            assert!(lacks.iter().any(|lack| complaint.contains(lack)), "{complaint}");
            return skip(&complaint);
        }
        let report = run.json(experiment);
        let rows = rows.split('|').flat_map(|row| cases.split('|').map(move |case| (row, case)));
        for (row, case) in rows {
            // The image has no large file.
            let image = if experiment == "slow" { "large-file" } else { "lz4" };
            let of = |figure: &str| {
                let case = format!("{case}, {image}, {figure}");
                samples(&report, row, case.trim_start_matches(", "))[0].as_f64().unwrap()
            };
            match experiment {
                "mount" => assert!(of("daemon CPU") >= 0.0, "{case}"),
                "random" => assert!(of("mean") > 0.0 && of("p50") <= of("p99"), "{case}"),
                "slow" => assert!(of("MiB/s") > 0.0),
                "start" => assert!(of("wall") > 0.0),
                _ => assert!(of("share of a CPU while idle") >= 0.0, "{row}"),
            }
        }
        let missing: &[&str] = match experiment {
            "mount" => &["squashfuse_ll", "20 imports of python3", "git status"],
            _ => &[],
        };
        // git may be there.
        let left_out = left_out(&report);
        assert!(missing.starts_with(&left_out) && missing.len() <= left_out.len() + 1);
        assert_eq!(report["peer_commands"][0]["words"][1], "mount");
    }
}

#[test]
fn runs_under_a_limit_are_measured_or_what_is_lacking_is_named() {
    for (experiment, words, row, case) in [
        ("memory", "", "ferrofs extract --memory=32M", "lz4, of limit"),
        ("memory", "", "ferrofs check --memory=32M", "lz4, of limit"),
        ("quota", "-c 1", "--jobs 1", "check lz4, bound to 1 CPU, threads"),
        ("decodes", "--at-least 1 --readers 1,4 -c 2", "ferrofs", "lz4, decodes a cluster"),
    ] {
        let run = Run::new(&format!("{experiment} {IMAGE} {words}"), &[]);
        let complaint = complaint(&run.output);
        if complaint.contains("needs root") {
            skip(&complaint);
            continue;
        }
        let report = run.json(experiment);
        assert!(samples(&report, row, case)[0].as_f64().unwrap() > 0.0, "{row}");
        if experiment == "decodes" {
            assert_eq!(left_out(&report)[0], "fsck.erofs on lz4");
            assert_eq!(samples(&report, row, case).len(), 2, "-c has no effect");
        }
    }
}
