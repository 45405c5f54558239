//! The program itself, with the smallest runs that it knows: that experiments end well, say what they
//! are to say, and name what they lack. No figure is judged here.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ferrofs_workers::cpus::CpuSet;
use rustix::process::{Pid, Signal, kill_process};

fn command(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrofs-bench"));
    // No figure is judged here.
    command
        .args(words.split_whitespace())
        .arg("--noisy-ok")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn start(words: &str) -> Child {
    command(words).spawn().expect("the program starts")
}

fn bench(words: &str) -> Output {
    start(words).wait_with_output().expect("the program ends")
}

fn printed(words: &str) -> String {
    let output = bench(words);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {complaint}");
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
fn scheduling_prints_the_table_of_the_mail_twice() {
    let text = printed("scheduling --quick -i 2 --load 1");
    assert_eq!(text.matches("Standard deviation (us)").count(), 2, "{text}");
    assert!(text.contains("per-CPU raised: "), "{text}");
}

#[test]
fn jobs_prints_a_line_for_each_way() {
    let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");
    let text = printed(&format!("jobs --quick -t 1 -c 1 --image {image}"));
    for way in [" one call |", " 1 thread |", "on each node", "slow chunk in the middle |"] {
        // A quick run starts nothing more after half a minute.
        let is_late = text.contains("there was no time left for it");
        assert!(text.contains(way) || is_late, "{way} is missing in {text}");
    }
    let starts = ["| nothing faulted in ", "| by 1 thread "];
    let is_left_out = text.contains("the start of a mount: needs ")
        || text.contains("the start of a mount: it takes ")
        || text.contains("the start of a mount: there was no time left for it");
    assert!(is_left_out || starts.iter().all(|way| text.contains(way)), "{text}");
    let text = printed("jobs --quick -t 1 -c 1");
    assert!(text.contains("the start of a mount: no image was named"), "{text}");
}

#[test]
fn jobs_does_what_it_can_on_one_cpu() {
    // Programs that this thread starts get its CPUs.
    let first = CpuSet::of_current_thread().iter().next().unwrap();
    CpuSet::parse(&first.to_string()).unwrap().bind_current_thread().unwrap();
    let text = printed("jobs --quick -c 1");
    assert!(text.contains("a job with one slow chunk: the system runs only one"), "{text}");
}

#[test]
fn pages_measures_at_a_limit_or_names_what_it_lacks() {
    let text = printed("pages --quick --without-cgroup");
    assert!(text.contains("at its limit: --without-cgroup"), "{text}");
    let child = start("pages --quick --rounds 1");
    let group = format!("ferrofs-bench-{}", child.id());
    let output = child.wait_with_output().unwrap();
    for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"] {
        assert!(!Path::new(root).join(&group).exists(), "{group} is left behind in {root}");
    }
    if output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("| reserve of 256 "), "{text}");
        return;
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let names_it = complaint.contains("cgroup") || complaint.contains("needs root");
    assert!(names_it, "{complaint}");
    println!("not shown at the limit of a memory cgroup: {complaint}");
}

#[test]
fn too_much_memory_is_refused_before_it_is_touched() {
    let output = bench("jobs --gib 65535 -t 1");
    assert!(!output.status.success());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("--gib takes less"), "{complaint}");
}

#[test]
fn reads_says_what_every_number_of_readers_was_served() {
    let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");
    let text = printed(&format!("reads {image} --quick --at-least 1 --readers 1,4"));
    assert!(text.contains("| readers | MiB served |"), "{text}");
    assert!(text.contains("| 4       | "), "{text}");
}

#[test]
fn reads_names_an_image_without_such_files() {
    let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");
    let output = bench(&format!("reads {image} --at-least 1000000000000"));
    assert!(!output.status.success());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("no file of 1000000000000 bytes or more"), "{complaint}");
}

#[test]
fn launches_names_a_program_that_is_missing_and_leaves_nothing_behind() {
    let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/lz4.erofs");
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&format!("launches {image} --quick --load 0"));
    let output = command.env("TMPDIR", folder.path()).output().unwrap();
    assert!(!output.status.success());
    let complaint = String::from_utf8_lossy(&output.stderr);
    let names_it = complaint.contains("/usr/bin/bash: starting it");
    let lacks = complaint.contains("needs root") || complaint.contains("/dev/fuse");
    assert!(names_it || lacks, "{complaint}");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "something is left behind");
    if lacks {
        println!("not shown: {complaint}");
    }
}

/// A tree of one text.
fn make_tree(source: &Path) {
    std::fs::create_dir(source).expect("a folder can be made");
    let text: String = (0..60_000).map(|number| format!("line {number}\n")).collect();
    std::fs::write(source.join("text"), text).expect("a file can be written");
}

#[test]
fn whoever_interrupts_all_finds_nothing_left() {
    let folder = tempfile::tempdir().unwrap();
    let [source, out, made] = ["source", "out", "made"].map(|name| folder.path().join(name));
    make_tree(&source);
    std::fs::create_dir(&made).unwrap();
    let (source, out) = (source.display(), out.display());
    let words = format!("all --quick --only windows,pages --source {source} --out {out}");
    let mut child = command(&words).env("TMPDIR", &made).spawn().unwrap();
    let is_there = || made.read_dir().unwrap().next().is_some();
    while !is_there() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it made anything");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("ferrofs-bench: interrupted"), "{complaint}");
    assert!(!is_there(), "{} is not empty", made.display());
}

#[test]
fn all_writes_one_page_on_everything_and_says_what_was_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    make_tree(&source);
    let (source, out) = (source.display(), out.display());
    let words = format!("all --quick --only windows,launches,pages --source {source} --out {out}");
    let said = printed(&words);
    assert!(said.contains("windows: done"), "{said}");
    assert!(said.contains("launches: left out: needs an image of a Debian system"), "{said}");
    let page = std::fs::read_to_string(folder.path().join("out/report.html")).unwrap();
    for part in ["<svg", "id=\"windows\"", "id=\"launches\"", "lz4-16k.erofs", "<td>001</td>"] {
        assert!(page.contains(part), "{part} is missing");
    }
}

#[test]
fn what_an_experiment_needs_is_named_before_it_starts() {
    for words in ["reads /no/such/image", "windows /no/such/image"] {
        let output = bench(words);
        assert_eq!(output.status.code(), Some(1));
        let complaint = String::from_utf8_lossy(&output.stderr);
        let wanted = "ferrofs-bench: this needs the file /no/such/image";
        assert!(complaint.contains(wanted), "{complaint}");
    }
}

#[test]
fn describe_tells_what_is_measured_and_the_thresholds() {
    let text = printed("describe pages");
    assert!(text.starts_with("# pages: ") && text.contains("Origins: 001, 004"), "{text}");
    assert!(text.contains("-95 % or more"), "{text}");
}
