//! What each verb does, as described in its help.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::Value;

use crate::support::{Dir, data, ferrofs, is_root};

const VERBS: [&str; 9] =
    ["info", "ls", "cat", "stat", "extract", "check", "build", "mount", "demo"];

#[test]
fn the_help_of_every_verb_has_examples() {
    for verb in VERBS {
        let help = ferrofs().args([verb, "--help"]).succeeds().text();
        assert!(help.contains("Examples:") && help.contains("--offset"), "{help}");
        assert_eq!(ferrofs().args(["help", verb]).succeeds().text(), help);
    }
    ferrofs().args(["help", "no-verb"]).ends_with(2);
}

#[test]
fn help_has_a_help_of_its_own() {
    let help = ferrofs().args(["help", "help"]).succeeds().text();
    assert!(help.contains("Usage: ferrofs help"), "{help}");
    for option in ["--help", "-h"] {
        assert_eq!(ferrofs().args(["help", option]).succeeds().text(), help);
    }
    ferrofs().args(["help", "--version"]).ends_with(2);
}

#[test]
fn the_help_of_transfers_has_examples() {
    for verb in ["pull", "push"] {
        let help = ferrofs().args([verb, "--help"]).succeeds().text();
        assert!(help.contains("Examples:") && help.contains("--insecure-registry"), "{help}");
    }
    ferrofs().arg("push").arg(data("plain.erofs")).arg("oci://host/NAME").ends_with(2);
    ferrofs().args(["pull", "oci://host/name:v1"]).ends_with(2);
    ferrofs().args(["pull", "local.erofs", "file"]).ends_with(2);
}

#[test]
fn a_device_that_cannot_be_opened_is_named() {
    let dir = Dir::new();
    let device = format!("--device={}", dir.join("none.blob").display());
    for image in ["chunk-blob.erofs", "plain.erofs"] {
        let text = ferrofs().args(["info", &device]).arg(data(image)).ends_with(1).stderr;
        let part = format!("cannot open the device {}: ", dir.join("none.blob").display());
        assert!(text.contains(&part) && text.contains("--device must name"), "{text}");
    }
}

#[test]
fn verification_that_a_local_image_cannot_have_is_refused() {
    let image = data("plain.erofs");
    for verb in ["info", "check"] {
        let text = ferrofs().args([verb, "--verify=require"]).arg(&image).ends_with(2).stderr;
        assert!(text.contains("--verify=require is for remote images, but"), "{text}");
        // These promise nothing that a local image lacks.
        for option in ["--verify=try", "--offline", "--cache=/x", "--fetch-timeout=9"] {
            ferrofs().args([verb, option]).arg(&image).succeeds();
        }
    }
}

#[test]
fn wrong_usage_ends_with_2() {
    ferrofs().ends_with(2);
    ferrofs().arg("frobnicate").ends_with(2);
    ferrofs().args(["cat", "image"]).ends_with(2);
    ferrofs().arg("extract").arg(data("plain.erofs")).ends_with(2);
    ferrofs().args(["info", "--offset=x"]).arg(data("plain.erofs")).ends_with(2);
    ferrofs().args(["check", "--jobs=0"]).arg(data("plain.erofs")).ends_with(2);
}

#[test]
fn limits_that_make_no_sense_are_wrong_usage_in_every_verb() {
    let dir = Dir::new();
    let (image, target) = (data("plain.erofs"), dir.join("target"));
    let mount = |option: &str| ferrofs().args(["mount", option]).args([&image, &target]);
    for command in [
        ferrofs().args(["check", "--memory=1m"]).arg(&image),
        ferrofs().args(["cat", "--memory=1m"]).arg(&image).arg("/x"),
        ferrofs().args(["extract", "--memory=1m"]).args([&image, &target]),
        ferrofs().args(["extract", "--memory=1m", "--tar"]).args([&target, &image]),
        ferrofs().args(["build", "--memory=1m"]).args([target.as_path(), dir.path()]),
        ferrofs().args(["demo", "--memory=1m"]),
        mount("--memory=1m"),
        mount("--foreground").arg("--memory=1m"),
        mount("-omemory=1m"),
    ] {
        let ended = command.ends_with(2);
        assert!(ended.stderr.contains("--memory: "), "{}", ended.stderr);
    }
    let ended = mount("--reserved-pages=99999999").ends_with(2);
    assert!(ended.stderr.contains("--reserved-pages=99999999: "), "{}", ended.stderr);
    ferrofs().args(["check", "--cpus=4000"]).arg(&image).ends_with(2);
    assert!(!target.exists());
}

#[test]
fn options_that_the_library_refuses_are_wrong_usage() {
    let dir = Dir::new();
    let (source, image) = (dir.join("source"), dir.join("image"));
    fs::create_dir(&source).unwrap();
    for options in [
        &["-zlz4", "-C5000"][..],
        &["-zlz4", "--max-extent=5000"],
        &["--chunk-size=5000"],
        &["--offset=100"],
    ] {
        let build = ferrofs().arg("build").args(options).args([&image, &source]);
        let ended = build.ends_with(2);
        assert!(ended.stderr.starts_with("ferrofs: "), "{options:?}: {}", ended.stderr);
        assert!(!image.exists(), "{options:?}");
    }
}

#[test]
fn without_an_option_the_memory_of_the_process_is_what_help_says() {
    let help = ferrofs().args(["check", "--help"]).succeeds().text();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for verb in ["build", "extract", "mount", "cat", "demo"] {
        let other = ferrofs().args([verb, "--help"]).succeeds().text();
        let other = other.split_whitespace().collect::<Vec<_>>().join(" ");
        let default = "[default: 256m, or an eighth of the system's memory if that is less]";
        assert!(help.contains(default) && other.contains(default), "{verb}: {other}");
    }
    let limit = |options: &[&str]| {
        let check = ferrofs().args(["check", "--stats", "--json"]).args(options);
        check.arg(data("plain.erofs")).succeeds().json()["stats"]["memory"]["limit_bytes"].clone()
    };
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let total: u64 = memory.split_whitespace().nth(1).unwrap().parse().unwrap();
    if total / 8 >= 256 << 10 {
        assert_eq!(limit(&[]), limit(&["--memory=256m"]));
    }
}

#[test]
fn a_missing_image_ends_with_1() {
    for verb in ["info", "check", "ls", "stat", "demo"] {
        let ended = ferrofs().args([verb, "no/such.erofs"]).ends_with(1);
        assert!(ended.stderr.starts_with("ferrofs: no/such.erofs: "), "{}", ended.stderr);
    }
}

#[test]
fn info_shows_what_an_image_is() {
    let text = ferrofs().arg("info").arg(data("demo.erofs")).succeeds().text();
    for part in [
        "block size:       4096",
        "label:            ferrofs-demo",
        "uuid:             12b8c075-d915-5e57-8730-a4a4b2ca06f2",
        "checksum:         ok",
        "fragments",
        "lz4 (window 65535)",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn info_gives_programs_the_same() {
    let report = ferrofs().args(["info", "--json"]).arg(data("demo.erofs")).succeeds().json();
    assert_eq!(report["label"], "ferrofs-demo");
    assert_eq!(report["block_size"], 4096);
    assert_eq!(report["compression"]["lz4_max_distance"], 65535);
    assert!(report["packed_nid"].is_u64() && report["metabox_nid"].is_null());
    assert_eq!(report["checksum"], "ok");
}

#[test]
fn ls_lists_names_in_the_order_of_the_image() {
    let lines = ferrofs().arg("ls").arg(data("plain.erofs")).arg("/sub").succeeds().lines();
    assert_eq!(lines, ["c.txt", "disk", "empty", "fifo", "more", "same-as-b.txt", "zero"]);
}

#[test]
fn ls_has_long_lines_and_whole_trees() {
    let text = ferrofs().args(["ls", "-lR"]).arg(data("plain.erofs")).succeeds().text();
    let line = |name: &str| text.lines().find(|line| line.ends_with(name)).unwrap().to_owned();
    assert!(line(" /suid").starts_with("-rwsr-xr-x   1 "), "{text}");
    assert!(line(" /link -> sub/c.txt").starts_with("lrwxrwxrwx "), "{text}");
    assert!(line(" /sub/zero").contains(" 1, 5 "), "{text}");
    assert!(line(" /b.txt").contains("  1000 "), "{text}");
    let itself = ferrofs().args(["ls", "-d"]).arg(data("plain.erofs")).arg("/sub").succeeds();
    assert_eq!(itself.text(), "/sub\n");
}

#[test]
fn ls_goes_on_after_a_path_that_is_missing() {
    let ended = ferrofs().arg("ls").arg(data("plain.erofs")).args(["/none", "/x"]).ends_with(1);
    assert_eq!(ended.text(), "/x\n");
    assert_eq!(ended.stderr, "ferrofs: /none: no such path in the image\n");
}

#[test]
fn names_reach_programs_byte_for_byte() {
    let ended = ferrofs().arg("ls").arg(data("inline.erofs")).arg("/names").succeeds();
    let name = b"\n\x80\xff not utf-8\n";
    assert!(ended.stdout.windows(name.len()).any(|part| part == name));
    let json = ferrofs().args(["ls", "--json"]).arg(data("inline.erofs")).arg("/names").succeeds();
    assert!(json.text().contains("{\"path\":{\"hex\":\"2f6e616d65732f80ff"));
}

#[test]
fn cat_writes_files_one_after_the_other() {
    let ended = ferrofs().arg("cat").arg(data("plain.erofs")).args(["/x", "linked", "hole"]);
    let ended = ended.succeeds();
    assert_eq!(ended.stdout.len(), 1 + 3000 + 9000);
}

#[test]
fn cat_refuses_what_is_no_file_and_goes_on() {
    let ended = ferrofs().arg("cat").arg(data("plain.erofs")).args(["/sub", "/none", "/x"]);
    let ended = ended.ends_with(1);
    assert_eq!(ended.stdout.len(), 1);
    assert_eq!(
        ended.stderr,
        "ferrofs: /sub: is a directory, not a regular file\n\
         ferrofs: /none: no such path in the image\n"
    );
}

#[test]
fn stat_shows_an_inode() {
    let text = ferrofs().arg("stat").arg(data("plain.erofs")).arg("/x").succeeds().text();
    for part in ["type: regular file", "layout: flat-plain", "xattr: user.comment=a comment"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let lines =
        ferrofs().args(["stat", "--json"]).arg(data("plain.erofs")).args(["/x", "/sub/disk"]);
    let lines = lines.succeeds().lines();
    let reports: Vec<Value> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports[0]["xattrs"][0]["name"], "user.comment");
    assert_eq!(reports[1]["type"], "block device");
}

#[test]
fn extract_takes_subtrees_and_patterns() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    let ended = ferrofs().args(["extract", "-q"]).arg(data("plain.erofs")).arg(&tree);
    ended.args(["sub/more", "/a.txt", "sub/*.txt"]).succeeds();
    assert!(tree.join("sub/more/f7").exists());
    assert!(tree.join("a.txt").exists() && tree.join("sub/c.txt").exists());
    for left_out in ["b.txt", "sub/fifo", "sub/empty", "link"] {
        assert!(tree.join(left_out).symlink_metadata().is_err(), "{left_out}");
    }
}

#[test]
fn what_ls_prints_can_be_extracted_whatever_the_names_are() {
    let dir = Dir::new();
    let (tree, image, out) = (dir.join("tree"), dir.join("image"), dir.join("out"));
    fs::create_dir_all(tree.join("usr/bin")).unwrap();
    let names = ["[", "{a", "a]", "a\\", "*", "x[", "{a,b}", "[!a]", "plain", "two words"];
    for name in names {
        fs::write(tree.join("usr/bin").join(name), name).unwrap();
    }
    ferrofs().args(["build", "-q"]).args([&image, &tree]).succeeds();
    for name in names {
        let path = format!("usr/bin/{name}");
        ferrofs().args(["extract", "-q", "--overwrite"]).args([&image, &out]).arg(path).succeeds();
        assert_eq!(fs::read_to_string(out.join("usr/bin").join(name)).unwrap(), name);
    }
    let all = ferrofs().args(["ls", "-R"]).arg(&image).succeeds().lines();
    let ended = ferrofs().args(["extract", "-q", "--overwrite"]).args([&image, &out]).args(all);
    ended.succeeds();
    let ended = ferrofs().args(["extract", "-q", "--overwrite"]).args([&image, &out]);
    let ended = ended.args(["usr/bin/[[", "usr/bin/plain"]).ends_with(1);
    assert!(ended.stderr.contains("usr/bin/[[: nothing in the image matches"), "{}", ended.stderr);
    let not_text = std::os::unix::ffi::OsStrExt::from_bytes(b"usr/bin/caf\xe9*");
    let ended = ferrofs().args(["extract", "-q", "--overwrite"]).args([&image, &out]);
    let ended = ended.args([std::ffi::OsStr::new("usr/bin/plain"), not_text]).ends_with(1);
    assert!(ended.stderr.contains("stand for themselves"), "{}", ended.stderr);
}

#[test]
fn directories_on_the_way_to_nothing_are_not_made() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    let ended = ferrofs().args(["extract", "-q"]).arg(data("plain.erofs")).arg(&tree);
    ended.arg("**/a.txt").succeeds();
    assert!(tree.join("a.txt").exists() && !tree.join("sub").exists());
}

#[test]
fn a_path_that_matches_nothing_is_named() {
    let dir = Dir::new();
    let ended = ferrofs().args(["extract", "-q"]).arg(data("plain.erofs")).arg(dir.join("tree"));
    let ended = ended.args(["/x", "/none*"]).ends_with(1);
    assert!(ended.stderr.starts_with("ferrofs: /none*: nothing in the image matches"));
    assert!(dir.join("tree/x").exists());
}

#[test]
fn a_destination_with_entries_is_refused_without_overwrite() {
    let dir = Dir::new();
    let tree = dir.join("tree");
    let extract = || ferrofs().args(["extract", "-q"]).arg(data("plain.erofs")).arg(&tree);
    extract().succeeds();
    let ended = extract().ends_with(1);
    assert!(ended.stderr.contains("not empty") && ended.stderr.contains("--overwrite"));
    fs::write(tree.join("a.txt"), "changed").unwrap();
    fs::write(tree.join("mine"), "stays").unwrap();
    extract().arg("--overwrite").succeeds();
    assert_eq!(fs::metadata(tree.join("a.txt")).unwrap().len(), 3000);
    assert!(tree.join("mine").exists());
}

#[test]
fn extract_reports_to_programs() {
    let dir = Dir::new();
    let ended = ferrofs().args(["extract", "--json", "--progress=json"]);
    let ended = ended.arg(data("demo.erofs")).arg(dir.join("tree")).succeeds();
    let report = ended.json();
    assert_eq!(report["entries"], 236);
    assert_eq!(report["bytes"], 3_934_454);
    assert_eq!(report["failures"], 0);
    let lines: Vec<Value> = ended
        .stderr
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let last = lines.last().unwrap();
    assert_eq!((&last["done"], &last["eta_s"]), (&last["total"], &0.into()));
}

#[test]
fn quiet_verbs_print_nothing() {
    let dir = Dir::new();
    for arguments in [vec!["check"], vec!["extract"]] {
        let is_extract = arguments == ["extract"];
        let command = ferrofs().args(arguments).args(["-q", "--jobs=4"]).arg(data("lz4.erofs"));
        let command = if is_extract { command.arg(dir.join("tree")) } else { command };
        let ended = command.succeeds();
        assert_eq!((ended.text(), ended.stderr), (String::new(), String::new()));
    }
}

#[test]
fn any_number_of_threads_finds_the_same() {
    for jobs in ["--jobs=1", "--jobs=3"] {
        let check = ferrofs()
            .args(["check", "--json", jobs])
            .arg(data("lz4hc-dedupe-fragments-ztail.erofs"));
        let report = check.succeeds().json();
        assert_eq!((&report["sound"], &report["problem_count"]), (&true.into(), &0.into()));
    }
}

#[test]
fn memory_is_given_as_one_number_with_a_least() {
    let check = |memory: &str| {
        let memory = format!("--memory={memory}");
        ferrofs()
            .args(["check", "--json", "--stats", &memory])
            .arg(data("lz4hc-dedupe-fragments-ztail.erofs"))
    };
    let ended = check("16m").ends_with(2);
    assert!(ended.stderr.contains("needs at least 27.0 MiB"), "{}", ended.stderr);
    let stats = check("32m").succeeds().json()["stats"].clone();
    let bytes = |name: &str| stats["memory"][name].as_u64().unwrap();
    assert!(bytes("peak_bytes") <= bytes("limit_bytes"));
    // In a debug build the program itself is several times as large.
    if !cfg!(debug_assertions) {
        assert!(bytes("process_peak_bytes") <= 32 << 20);
    }
}

#[test]
fn stats_prints_the_statistics_of_the_run() {
    let dir = Dir::new();
    let extract = ferrofs().args(["extract", "--stats", "--jobs=2", "-q"]).arg(data("lz4.erofs"));
    let ended = extract.arg(dir.join("tree")).succeeds();
    for line in ["threads ", "clusters ", "bytes ", "cache ", "memory ", "queue ", "workers "] {
        let is_there = ended.stderr.lines().any(|one| one.starts_with(line));
        assert!(is_there, "{line}: {}", ended.stderr);
    }
    let extract = ferrofs().args(["extract", "--stats", "--json"]).arg(data("lz4.erofs"));
    let report = extract.arg(dir.join("again")).succeeds().json();
    assert!(report["stats"]["clusters"]["decoded"].as_u64().unwrap() > 0);
    assert!(report["stats"]["queue"]["submitted"].as_u64().unwrap() > 0);
    let check = ferrofs().args(["check", "--json"]).arg(data("lz4.erofs")).succeeds().json();
    assert!(check.get("stats").is_none());
}

#[test]
fn cpus_and_priority_are_refused_where_they_make_no_sense() {
    for wrong in ["--cpus=x", "--cpus=", "--nice=40", "--jobs=0", "--memory=much"] {
        ferrofs().args(["check", wrong]).arg(data("lz4.erofs")).ends_with(2);
    }
    // The lowest priority is permitted whatever the priority of the tests is.
    let check = ferrofs().args(["check", "--nice=19", "-q"]).arg(data("lz4.erofs"));
    assert_eq!(check.succeeds().stderr, "");
    let ended = ferrofs().args(["check", "--cpus=8000"]).arg(data("lz4.erofs")).ends_with(2);
    assert!(ended.stderr.contains("--cpus=8000"), "{}", ended.stderr);
}

#[test]
fn a_file_is_written_out_whole_by_one_thread_and_by_several() {
    let list = ferrofs()
        .args(["ls", "-R", "--json"])
        .arg(data("lz4hc-dedupe-fragments-ztail.erofs"))
        .succeeds()
        .text();
    let entries = list.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let is_file = |entry: &Value| entry["type"] == "regular file";
    let paths: Vec<_> =
        entries.filter(is_file).filter_map(|e| Some(e["path"].as_str()?.to_owned())).collect();
    assert!(paths.len() > 3);
    let cat = |jobs: &str| {
        ferrofs()
            .args(["cat", jobs])
            .arg(data("lz4hc-dedupe-fragments-ztail.erofs"))
            .args(&paths)
            .succeeds()
            .stdout
    };
    assert!(cat("--jobs=1") == cat("--jobs=2"));
}

#[test]
fn progress_can_be_lines_of_text() {
    let ended = ferrofs().args(["check", "--progress=bar"]).arg(data("demo.erofs")).succeeds();
    assert!(ended.stderr.starts_with("check "), "{}", ended.stderr);
}

#[test]
fn check_reports_to_programs() {
    let report = ferrofs().args(["check", "--json"]).arg(data("lz4.erofs")).succeeds().json();
    assert_eq!((&report["sound"], &report["problem_count"]), (&true.into(), &0.into()));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = ferrofs().arg("cat").arg(data("lz4.erofs")).args(["/zeros/end"; 40]).spawn();
    let mut head = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut head).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn an_image_inside_a_file_and_an_image_of_several_files_are_read() {
    ferrofs().arg("info").arg(data("offset-64k.erofs")).ends_with(1);
    ferrofs().args(["info", "--offset=64k"]).arg(data("offset-64k.erofs")).succeeds();
    let ended = ferrofs().arg("check").arg(data("chunk-blob.erofs")).ends_with(1);
    assert!(ended.stderr.contains("--device=FILE"), "{}", ended.stderr);
    let blob = data("chunk-blob.blob");
    ferrofs().arg("check").arg("--device").arg(blob).arg(data("chunk-blob.erofs")).succeeds();
}

#[test]
fn extract_leaves_out_what_it_is_told_to() {
    let dir = Dir::new();
    let (tree, image, out) = (dir.join("tree"), dir.join("image"), dir.join("out"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("tool"), "runs as its owner").unwrap();
    fs::set_permissions(tree.join("tool"), fs::Permissions::from_mode(0o4755)).unwrap();
    ferrofs().args(["build", "-q"]).arg(&image).arg(&tree).succeeds();
    let extract = |options: &[&str]| {
        let ended = ferrofs().args(["extract", "--json"]).args(options).arg(&image).arg(&out);
        let skipped = ended.succeeds().json()["skipped_metadata"].clone();
        let mode = fs::metadata(out.join("tool")).unwrap().permissions().mode() & 0o7777;
        fs::remove_dir_all(&out).unwrap();
        (mode, skipped["set_id_bits"].as_u64(), skipped["capabilities"].as_u64())
    };
    assert_eq!(extract(&[]), (0o4755, Some(0), Some(0)));
    assert_eq!(extract(&["--no-set-id"]), (0o755, Some(0), Some(0)));
    let of_root = (0o755, Some(1), Some(0));
    let expected = if is_root() { of_root } else { (0o4755, Some(0), Some(0)) };
    assert_eq!(extract(&["--no-preserve-owner"]), expected);

    let options = ["extract", "-q", "--no-devices", "--no-xattrs"];
    ferrofs().args(options).arg(data("plain.erofs")).arg(&out).succeeds();
    assert_eq!(rustix::fs::listxattr(out.join("x"), &mut [0; 256]).unwrap(), 0);
    assert!(out.join("sub/fifo").exists());
    assert!(!out.join("sub/zero").exists() && !out.join("sub/disk").exists());
    ferrofs().args(["extract", "--no-devices", "--tar=-"]).arg(data("plain.erofs")).ends_with(2);
}

/// Archives can have such symlinks, but Linux cannot set the mode of one.
#[test]
fn a_symlink_with_a_set_id_bit_is_extracted() {
    let dir = Dir::new();
    let (tree, image, out) = (dir.join("tree"), dir.join("image"), dir.join("out"));
    fs::create_dir(&tree).unwrap();
    let (uid, gid) = (fs::metadata(&tree).unwrap().uid(), fs::metadata(&tree).unwrap().gid());
    let owner = format!(r#""uid":{uid},"gid":{gid},"mtime":0,"nanoseconds":0,"xattrs":[]"#);
    let lines = format!(
        "{{\"path\":\"/\",\"type\":\"d\",\"mode\":\"0755\",{owner}}}\n\
         {{\"path\":\"/link\",\"type\":\"l\",\"mode\":\"4755\",{owner},\"target\":\"to\"}}\n"
    );
    let sidecar = dir.write("sidecar", lines.as_bytes());
    ferrofs().args(["build", "-q", "--sidecar"]).arg(sidecar).arg(&image).arg(&tree).succeeds();
    ferrofs().args(["extract", "-q"]).arg(&image).arg(&out).succeeds();
    assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("to"));
}

#[test]
fn an_output_that_nobody_reads_hides_no_failure() {
    let dir = Dir::new();
    let plain = data("plain.erofs");
    let middle = fs::metadata(data("zstd-16k-ztail.erofs")).unwrap().len() / 2;
    let middle = usize::try_from(middle).unwrap();
    let damaged = dir.patched("zstd-16k-ztail.erofs", middle, &[0x5a; 64]);
    for options in [&[][..], &["--json"]] {
        let run = |verb: &str, image| ferrofs().arg(verb).args(options).arg(image);
        run("check", &damaged).unread_ends_with(1);
        run("check", &plain).unread_ends_with(0);
        let out = dir.join("out").join(options.len().to_string());
        fs::create_dir_all(&out).unwrap();
        run("extract", &damaged).arg(out.join("damaged")).unread_ends_with(1);
        run("extract", &plain).arg(out.join("sound")).unread_ends_with(0);
        for verb in ["ls", "stat"] {
            run(verb, &plain).args(["/no", "/"]).unread_ends_with(1);
            run(verb, &plain).arg("/").unread_ends_with(0);
        }
    }
    let cat = |paths: &[&str]| ferrofs().arg("cat").arg(&plain).args(paths);
    cat(&["/no", "/a.txt"]).unread_ends_with(1);
    cat(&["/a.txt", "/no"]).unread_ends_with(1);
    cat(&["/a.txt"]).unread_ends_with(0);
}
