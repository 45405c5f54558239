//! `extract --tar`, judged by the programs that unpack tars: what they unpack is compared with the
//! manifest. A program that is not installed is reported as skipped.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::manifest::{Host, differences, images};
use crate::support::{CommandOutput, Dir, TestCommand, data, ferrofs, is_root, skip};

/// A program with its arguments, if it is installed.
fn installed(program: &str) -> Option<Command> {
    let found = Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        skip(&format!("needs {program}"));
    }
    found.then(|| Command::new(program))
}

/// Runs a command with `input`.
fn fed(mut command: Command, input: &[u8]) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// Unpacks every image as a tar by GNU tar and compares it with the manifest.
fn unpack_all(
    host: impl Fn(&Path) -> Host,
    tar: impl Fn(&Dir, &[std::ffi::OsString]) -> CommandOutput,
) {
    let mut found = Vec::new();
    for image in images().into_iter().filter(|image| image.devices.is_empty()) {
        let Some(mut unpack) = installed("tar") else { return };
        let dir = Dir::new();
        let host = host(dir.path());
        let offset = format!("--offset={}", image.offset);
        let written = tar(&dir, &[offset.into(), dir.readable(&image.file).into()]);
        let tree = dir.join("tree");
        fs::create_dir(&tree).unwrap();
        unpack.args(["--xattrs", "--xattrs-include=*", "-xpf", "-", "-C"]).arg(&tree);
        let unpacked = fed(unpack, &written.stdout);
        // Without root it cannot create every entry, and reports that.
        assert!(unpacked.status.success() || !host.is_initial_root, "{}: {unpacked:?}", image.name);
        // No tar holds sockets.
        let is_socket = |entry: &&serde_json::Value| entry["type"] == "sock";
        let expected: Vec<_> = image.tree.iter().filter(|e| !is_socket(e)).cloned().collect();
        let differences = differences(&tree, &expected, host);
        found.extend(differences.into_iter().map(|what| format!("{}: {what}", image.name)));
    }
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}

#[test]
fn gnu_tar_unpacks_every_image_to_its_manifest() {
    unpack_all(Host::probe, |_, arguments| {
        ferrofs().args(["extract", "--tar=-"]).args(arguments).succeeds()
    });
}

#[test]
fn an_ordinary_user_writes_the_very_same_tar() {
    let dir = Dir::new();
    let image = dir.readable("compact.erofs");
    let own = ferrofs().args(["extract", "--tar=-"]).arg(data("compact.erofs")).succeeds();
    let ordinary = dir.ordinary_ferrofs().args(["extract", "--tar=-"]).arg(image).succeeds();
    assert!(own.stdout == ordinary.stdout && own.stdout.len() > 50_000);
}

#[test]
fn gnu_tar_finds_no_difference_to_an_extraction() {
    let Some(mut compare) = installed("tar") else { return };
    if !is_root() {
        skip("needs root, as tar compares owners");
        return;
    }
    let dir = Dir::new();
    let (tree, tar) = (dir.join("tree"), dir.join("demo.tar"));
    ferrofs().arg("extract").arg(data("demo.erofs")).arg(&tree).succeeds();
    ferrofs().args(["extract", "--tar"]).args([&tar, &data("demo.erofs")]).succeeds();
    let compared = compare.args(["--compare", "-f"]).arg(tar).arg("-C").arg(tree).output().unwrap();
    assert!(compared.status.success(), "{compared:?}");
}

#[test]
fn python_and_libarchive_read_the_same_files() {
    let dir = Dir::new();
    let tar = dir.join("demo.tar");
    ferrofs().args(["extract", "--tar"]).args([&tar, &data("demo.erofs")]).succeeds();
    let listed = ferrofs().args(["ls", "-R"]).arg(data("demo.erofs")).succeeds().lines().len();
    if let Some(mut python) = installed("python3") {
        let script = "import sys, tarfile\nt = tarfile.open(sys.argv[1])\n\
            print(len([(m, m.isreg() and t.extractfile(m).read()) for m in t]))";
        let counted = python.args(["-c", script]).arg(&tar).output().unwrap();
        let counted: usize = String::from_utf8(counted.stdout).unwrap().trim().parse().unwrap();
        assert!(counted >= listed && counted <= listed + 1, "{counted} of {listed}");
    }
    if let Some(mut bsdtar) = installed("bsdtar") {
        let tested = bsdtar.arg("-tf").arg(&tar).output().unwrap();
        assert!(tested.status.success(), "{tested:?}");
        let names = tested.stdout.iter().filter(|byte| **byte == b'\n').count();
        assert!(names >= listed && names <= listed + 1, "{names} of {listed}");
    }
}

#[test]
fn with_a_tar_every_operand_is_a_path_of_the_image() {
    let all = ["extract", "--tar", "-"];
    let image = data("demo.erofs");
    let part = ferrofs().arg("extract").arg(&image).args(["--tar", "-", "no-such"]).ends_with(1);
    assert!(part.stderr.contains("no-such"), "{}", part.stderr);
    let listed = ferrofs().arg("ls").arg(&image).succeeds().lines();
    let first = listed[0].trim_end_matches('/');
    let part = ferrofs().args(all).arg(&image).arg(first).succeeds().stdout;
    let whole = ferrofs().args(all).arg(&image).succeeds().stdout;
    assert!(part.len() > 512 && part.len() < whole.len() && part.starts_with(first.as_bytes()));
}

#[test]
fn a_tar_without_sense_is_refused_with_2() {
    let dir = Dir::new();
    let image = data("plain.erofs");
    for wrong in [
        &["--tar"][..],
        &["--tar", "x", "--overwrite"],
        &["--tar", "x", "--preserve-owner"],
        &["--no-sparse", "tree"],
    ] {
        let ended = ferrofs().arg("extract").arg(&image).args(wrong).ends_with(2);
        assert!(!ended.stderr.is_empty());
    }
    let usage = ferrofs().arg("extract").arg(&image).ends_with(2).stderr;
    assert!(usage.contains("--tar <FILE>") && usage.contains("<DEST>"), "{usage}");
    let copy = dir.readable("plain.erofs");
    let ended = ferrofs().arg("extract").arg(&copy).arg("--tar").arg(&copy).ends_with(2);
    assert!(ended.stderr.contains("would replace the image"), "{}", ended.stderr);
    assert_eq!(fs::read(copy).unwrap(), fs::read(image).unwrap());
}

#[test]
fn no_output_replaces_a_device_of_the_image() {
    let dir = Dir::new();
    let (image, blob) = (dir.readable("chunk-blob.erofs"), dir.readable("chunk-blob.blob"));
    let content = fs::read(&blob).unwrap();
    let device = format!("--device={}", blob.display());
    let linked = dir.join("linked");
    fs::hard_link(&blob, &linked).unwrap();
    for target in [&blob, &linked] {
        let outputs: [&[&str]; 2] = [&["--tar"], &["--tar", "/dev/null", "--sidecar"]];
        for output in outputs {
            let extract = ferrofs().arg("extract").arg(&device).arg(&image);
            let stderr = extract.args(output).arg(target).ends_with(2).stderr;
            let what = format!("would replace {}, a device of the image", blob.display());
            assert!(stderr.contains(&what), "{stderr}");
            assert_eq!(fs::read(target).unwrap(), content);
        }
    }
}

#[test]
fn a_tar_that_fails_leaves_the_older_one_and_nothing_else() {
    let dir = Dir::new();
    let tar = dir.write("old.tar", b"old");
    // There is not much left of it but the superblock.
    let image = dir.write("broken.erofs", &fs::read(data("plain.erofs")).unwrap()[..2048]);
    ferrofs().arg("extract").arg(image).arg("--tar").arg(&tar).ends_with(1);
    assert_eq!(fs::read(&tar).unwrap(), b"old");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    if Path::new("/dev/full").exists() {
        let full = ferrofs().args(["extract", "--tar=/dev/full"]).arg(data("plain.erofs"));
        let ended = full.ends_with(1);
        assert!(
            ended.stderr.contains("/dev/full: cannot write the archive: No space"),
            "{ended:?}"
        );
    }
}

#[test]
fn a_reader_that_goes_away_is_no_success() {
    let mut child =
        ferrofs().args(["extract", "--tar=-", "--no-sparse"]).arg(data("demo.erofs")).spawn();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8(ended.stderr).unwrap().contains("Broken pipe"));
}

#[test]
fn the_summary_goes_where_the_tar_does_not() {
    let dir = Dir::new();
    let tar = dir.join("x.tar");
    let image = data("plain.erofs");
    let ended = ferrofs().args(["extract", "--json", "--tar"]).args([&tar, &image]).succeeds();
    let (in_file, length) = (ended.json(), fs::metadata(&tar).unwrap().len());
    let ended = ferrofs().args(["extract", "--json", "--tar=-"]).arg(&image).succeeds();
    assert_eq!(ended.stdout.len() as u64, length);
    let last = ended.stderr.lines().last().unwrap();
    let on_stderr: serde_json::Value = serde_json::from_str(last).unwrap();
    for field in ["entries", "files", "bytes", "hard_links", "failures"] {
        assert_eq!(in_file[field], on_stderr[field], "{field}");
    }
    assert!(in_file["entries"].as_u64().unwrap() > 20);
}

#[test]
fn a_file_that_cannot_be_read_is_named_and_left_out() {
    let dir = Dir::new();
    let sound = ferrofs().args(["extract", "--tar=-"]).arg(data("lz4.erofs")).succeeds().stdout;
    let bytes = fs::read(data("lz4.erofs")).unwrap();
    // Data lies behind the metadata; what is cut off cannot be read.
    let truncated = dir.write("cut.erofs", &bytes[..bytes.len() * 3 / 4]);
    let ended = ferrofs().args(["extract", "--tar=-"]).arg(truncated).ends_with(1);
    assert!(ended.stdout.len() < sound.len() && ended.stdout.len().is_multiple_of(10_240));
    assert!(ended.stderr.lines().count() >= 2, "{}", ended.stderr);
}

/// A file as a block device.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn attach(file: &Path) -> Option<Self> {
        let attached = Command::new("losetup").args(["-f", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(attached.stdout).unwrap();
        attached.status.success().then(|| Self(name.trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        Command::new("losetup").arg("-d").arg(&self.0).status().unwrap();
    }
}

/// The archive would have been written over the image.
#[test]
fn the_image_is_refused_as_standard_output_and_as_a_block_device_under_each_of_its_names() {
    let dir = Dir::new();
    let image = dir.readable("plain.erofs");
    let bytes = fs::read(&image).unwrap();
    let mut shell = Command::new("sh");
    let line = "exec \"$0\" extract \"$1\" --tar=- >>\"$1\"";
    shell.args(["-c", line, env!("CARGO_BIN_EXE_ferrofs")]).arg(&image);
    let refused = "the tar archive would replace the image";
    let ended = TestCommand::new(shell).ends_with(2);
    assert!(ended.stderr.contains(refused), "{}", ended.stderr);
    assert_eq!(fs::read(&image).unwrap(), bytes);
    let blob = dir.readable("chunk-blob.blob");
    let (Some(device), Some(blob)) = (LoopDevice::attach(&image), LoopDevice::attach(&blob)) else {
        return skip("it needs loop devices");
    };
    let (other, mode) = (dir.join("other"), Mode::RUSR | Mode::WUSR);
    let number = fs::metadata(&device.0).unwrap().rdev();
    mknodat(CWD, &other, FileType::BlockDevice, mode, number).unwrap();
    let extract = |image: &Path, output: &Path| {
        ferrofs().arg("extract").arg(image).arg(format!("--tar={}", output.display()))
    };
    let given = format!("--device={}", blob.0.display());
    for (refused, command) in [
        ("the image", extract(&device.0, &device.0)),
        ("the image", extract(&device.0, &other)),
        ("a device of the image", extract(&data("chunk-blob.erofs"), &blob.0).arg(given)),
    ] {
        let stderr = command.ends_with(2).stderr;
        assert!(stderr.contains("the tar archive would replace"), "{stderr}");
        assert!(stderr.contains(refused), "{stderr}");
    }
    drop(device);
    assert_eq!(fs::read(&image).unwrap(), bytes);
}
