//! The program itself, with the smallest runs that it knows: that experiments end well, say what they
//! are to say, and name what they lack. No figure is judged here.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use ferrofs_workers::cpus::CpuSet;
use rustix::process::{Pid, Signal, kill_process};

const IMAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");

fn command(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrofs-bench"));
    // No figure is judged here.
    command.args(words.split_whitespace()).arg("--noisy-ok");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn bench(words: &str) -> Output {
    command(words).output().expect("the program starts")
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(words: &str) -> String {
    let output = bench(words);
    assert!(output.status.success(), "{words}: {}", complaint(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn workqueue_prints_the_lines_of_qemu_and_keeps_its_samples() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display();
    let text =
        printed(&format!("workqueue --quick -t 2 -c 1 --rows inline,per-thread --out {out}"));
    for line in [
        "Run the benchmark: threads 2 requests-per-thread: 4 memory 0.125G repeat 1.",
        "RUN 0: Request # 32768 Cost ",
        ", Compression Rate 89.043478.",
        "AVG: Time Cost ",
        "AVG Throughput: ",
        "| threads |      queue |",
    ] {
        assert!(text.contains(line), "{line} is missing in {text}");
    }
    let json = std::fs::read(folder.path().join("workqueue.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(report["claims"][0]["origin"], "002");
    assert!(folder.path().join("workqueue.svg").exists());
    assert_eq!(report["series"][6]["row"], "per-thread");
    assert_eq!(report["series"][6]["samples"].as_array().unwrap().len(), 1);
}

#[test]
fn experiments_print_what_they_are_to_print() {
    let reads = format!("reads {IMAGE} --quick --at-least 1 --readers 1,4");
    for (words, lines) in [
        ("scheduling --quick -i 2 --load 1", &["Standard deviation (us)", "per-CPU raised: "][..]),
        ("pages --quick --without-cgroup", &["at its limit: --without-cgroup"]),
        (&reads, &["| readers | MiB served |", "| 4       | "]),
        ("describe pages", &["# pages: ", "Origins: 001, 004", "-95 % or more"]),
    ] {
        let text = printed(words);
        for line in lines {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
    }
}

#[test]
fn jobs_prints_a_line_for_each_way() {
    let text = printed(&format!("jobs --quick -t 1 -c 1 --image {IMAGE}"));
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
    let text = printed("jobs --quick -c 1");
    assert!(text.contains("a job with one slow chunk: the system runs only one"), "{text}");
    assert!(text.contains("the start of a mount: no image was named"), "{text}");
}

#[test]
fn pages_measures_at_a_limit_or_names_what_it_lacks() {
    let child = command("pages --quick --rounds 1").spawn().unwrap();
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
    println!("not shown at the limit of a memory cgroup: {complaint}");
}

#[test]
fn what_an_experiment_needs_is_named_before_it_starts() {
    let reads = format!("reads {IMAGE} --at-least 1000000000000");
    for (words, wanted) in [
        ("jobs --gib 65535 -t 1", "--gib takes less"),
        (&reads, "no file of 1000000000000 bytes or more"),
        ("reads /no/such/image", "ferrofs-bench: this needs the file /no/such/image"),
        ("windows /no/such/image", "ferrofs-bench: this needs the file /no/such/image"),
    ] {
        let output = bench(words);
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(complaint(&output).contains(wanted), "{words}: {}", complaint(&output));
    }
}

#[test]
fn launches_names_a_program_that_is_missing_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&format!("launches {IMAGE} --quick --load 0"));
    let output = command.env("TMPDIR", folder.path()).output().unwrap();
    assert!(!output.status.success());
    let complaint = complaint(&output);
    let names_it = complaint.contains("/usr/bin/bash: starting it");
    let lacks = complaint.contains("needs root") || complaint.contains("/dev/fuse");
    assert!(names_it || lacks, "{complaint}");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "something is left behind");
    if lacks {
        println!("not shown: {complaint}");
    }
}

/// A folder with a tree of one text, and the words of a quick `all` on it.
fn tree(only: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let source = folder.path().join("source");
    std::fs::create_dir(&source).expect("a folder can be made");
    let text: String = (0..60_000).map(|number| format!("line {number}\n")).collect();
    std::fs::write(source.join("text"), text).expect("a file can be written");
    let (source, out) = (source.display(), folder.path().join("out"));
    let words = format!("all --quick --only {only} --source {source} --out {}", out.display());
    (folder, words)
}

#[test]
fn whoever_interrupts_all_finds_nothing_left() {
    let (folder, words) = tree("windows,pages");
    let made = folder.path().join("made");
    std::fs::create_dir(&made).unwrap();
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
    let (folder, words) = tree("windows,launches,pages");
    let said = printed(&words);
    assert!(said.contains("windows: done"), "{said}");
    assert!(said.contains("launches: left out: needs an image of a Debian system"), "{said}");
    let page = std::fs::read_to_string(folder.path().join("out/report.html")).unwrap();
    for part in ["<svg", "id=\"windows\"", "id=\"launches\"", "lz4-16k.erofs", "<td>001</td>"] {
        assert!(page.contains(part), "{part} is missing");
    }
}
