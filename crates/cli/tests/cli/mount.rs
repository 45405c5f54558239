//! `ferrofs mount` under all of its names: the contents of mounts, and refused arguments.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use ferrofs_image::{DecodeWorkers, OpenOptions};
use ferrofs_workers::cpus::AvailableCpus;
use ferrofs_workers::percpu::PerCpuSettings;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::crafted::front_extents;
use crate::manifest::{Host, differences, images};
use crate::mounted::{Foreground, MountPoint, has_fuse, has_mount_right};
use crate::support::{Dir, TestCommand, data, ferrofs, is_root, skip};

/// The command under another name.
fn named(dir: &Dir, name: &str) -> TestCommand {
    let link = dir.join(name);
    if !link.exists() {
        symlink(env!("CARGO_BIN_EXE_ferrofs"), &link).unwrap();
    }
    TestCommand::new(Command::new(link))
}

fn mount(image: &Path, point: &MountPoint) -> TestCommand {
    ferrofs().arg("mount").arg(image).arg(point.path())
}

// A-MOUNT-SHOWS-ALL
#[test]
fn every_mounted_image_matches_its_manifest() {
    let dir = Dir::new();
    let host = Host::probe(dir.path());
    // An ordinary user sees owners that no manifest of an extraction has.
    if !has_fuse() || !has_mount_right() {
        return;
    }
    if !host.is_initial_root {
        skip("needs root with trusted attributes and device nodes");
        return;
    }
    let mut found = Vec::new();
    for image in images() {
        let point = MountPoint::new();
        let devices =
            image.devices.iter().map(|device| format!("--device={}", data(device).display()));
        mount(&data(&image.file), &point)
            .arg(format!("--offset={}", image.offset))
            .args(devices)
            .succeeds();
        let differences = differences(point.path(), &image.tree, host);
        found.extend(differences.into_iter().map(|what| format!("{}: {what}", image.name)));
        assert!(point.unmount(), "{}", image.name);
    }
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_mount_table_shows_type_source_and_options() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    mount(&data("plain.erofs"), &point).succeeds();
    let line = point.mount().unwrap();
    assert!(line.contains(" fuse.ferrofs ro,"), "{line}");
    assert!(line.contains("default_permissions") && !line.contains("allow_other"), "{line}");
    assert!(line.contains("/plain.erofs ") && line.starts_with('/'), "{line}");
    assert!(point.unmount());
    mount(&data("plain.erofs"), &point).args(["-o", r"fsname=a\,b,noexec"]).succeeds();
    let line = point.mount().unwrap();
    assert!(line.starts_with("a,b ") && line.contains("noexec"), "{line}");
}

#[test]
fn options_choose_which_attributes_are_shown() {
    if !has_fuse() {
        return;
    }
    let names = |options: &[&str]| {
        let point = MountPoint::new();
        mount(&data("plain.erofs"), &point).args(options).succeeds();
        let mut buffer = [0_u8; 256];
        let length = rustix::fs::listxattr(point.join("x"), &mut buffer).unwrap_or(0);
        assert!(point.unmount());
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    assert_eq!(names(&[]), "user.comment\0user.other\0");
    assert_eq!(names(&["-o", "nouser_xattr"]), "");
    assert_eq!(names(&["--no-xattrs"]), "");
}

#[test]
fn a_mount_has_the_metadata_of_a_kernel_mount() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    mount(&data("plain.erofs"), &point).succeeds();
    let long = rustix::fs::stat(point.join(&"n".repeat(256))).err();
    assert_eq!(long, Some(Errno::NAMETOOLONG));
    assert_eq!(rustix::fs::stat(point.join(&"n".repeat(255))).err(), Some(Errno::NOENT));
    let file = File::open(point.join("x")).unwrap();
    assert_eq!(rustix::fs::fsync(&file).err(), Some(Errno::INVAL));
    let directory = File::open(point.path()).unwrap();
    assert_eq!(rustix::fs::fsync(&directory).err(), Some(Errno::INVAL));
    let mut nothing = [0_u8; 0];
    let xattr = |name: &str| rustix::fs::fgetxattr(&file, name, &mut nothing[..]).err();
    let answers = ["user.absent", "user.", "system.absent", "odd"].map(xattr);
    let [absent, empty, unknown] = [Errno::NODATA, Errno::INVAL, Errno::OPNOTSUPP].map(Some);
    assert_eq!(answers, [absent, empty, unknown, unknown]);
    let numbers = rustix::fs::statvfs(point.path()).unwrap();
    let report = ferrofs().args(["info", "--json"]).arg(data("plain.erofs")).succeeds().json();
    let inodes = report["inodes"].as_u64();
    assert_eq!((numbers.f_files, Some(numbers.f_files - numbers.f_ffree)), (u64::MAX, inodes));
    drop((file, directory));
    assert!(point.unmount());
}

#[test]
fn a_directory_that_leaves_its_dot_out_is_listed_with_it() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    mount(&data("dot-omitted.erofs"), &point).succeeds();
    let directory = File::open(point.join("deep")).unwrap();
    let own = rustix::fs::fstat(&directory).unwrap().st_ino;
    let entries = rustix::fs::Dir::read_from(&directory).unwrap().map(Result::unwrap);
    let dots: Vec<u64> = entries
        .filter(|entry| entry.file_name().to_bytes() == b".")
        .map(|entry| entry.ino())
        .collect();
    assert_eq!(dots, [own]);
    drop(directory);
    assert!(point.unmount());
}

// A-MOUNT-EXACT-ERRORS
#[test]
fn what_is_missing_is_named_and_nothing_is_mounted() {
    let point = MountPoint::new();
    let dir = Dir::new();
    let text = dir.write("text", &vec![b'x'; 5000]);
    let image = data("plain.erofs");
    let refused = |command: TestCommand, code, start: &str, part: &str| {
        let message = command.ends_with(code).stderr;
        assert!(
            message.starts_with(&format!("ferrofs: {start}")) && message.contains(part),
            "{message}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
    };
    refused(mount(Path::new("no/such"), &point), 1, "no/such: No such file", "");
    refused(mount(&text, &point), 1, "", "magic number");
    refused(mount(point.path(), &point), 1, "", "is a directory");
    // docs/format.md F2: 2 bytes of root nid. What lies there is a file, or nothing.
    let nid =
        |path: &str| ferrofs().args(["stat", "--json"]).arg(&image).arg(path).succeeds().json();
    let file = nid("/x")["nid"].as_u64().and_then(|nid| u16::try_from(nid).ok()).unwrap();
    let root = |nid: u16| dir.patched("plain.erofs", 1024 + 14, &nid.to_le_bytes());
    let rootless = |nid| mount(&root(nid), &point).arg("--no-checksum");
    refused(rootless(file), 1, "", "the root: expected a directory, found a regular file");
    refused(rootless(u16::MAX), 1, "", "the root: the structure needs 2 bytes, but only 0 remain");
    let on = |directory: &Path| ferrofs().arg("mount").arg(&image).arg(directory);
    refused(on(&dir.join("none")), 1, "cannot mount on ", "there is no such directory");
    refused(on(&text), 1, "cannot mount on ", "not a directory");
    refused(
        mount(&image, &point).args(["-o", "rw"]),
        2,
        "-o rw: an EROFS image cannot be written",
        "",
    );
    let misspelled = mount(&image, &point).args(["-o", "ro,alow_other"]);
    refused(misspelled, 2, "-o alow_other: ", "did you mean allow_other?");
    refused(mount(&image, &point).arg("--log=stderr"), 2, "--log stderr needs --foreground", "");
    let log = dir.join("none/log");
    refused(mount(&image, &point).arg("--log").arg(log), 1, "--log ", "No such file");
    refused(mount(&image, &point).arg("--memory=1m"), 2, "--memory: ", "28.0 MiB");
    refused(mount(&image, &point).arg("-f").arg("--memory=1m"), 2, "--memory: ", "28.0 MiB");
    let reserve = mount(&image, &point).args(["--memory=64m", "--reserved-pages=100000"]);
    refused(reserve, 2, "--reserved-pages=100000: ", "raise --memory");
    refused(mount(&image, &point).args(["-o", "reserved_pages=x"]), 2, "-o reserved_pages=x: ", "");
    mount(&image, &point).arg("--json").ends_with(2);
    assert_eq!(point.mount(), None);
}

/// Every file below that the current user may open, by its path in the image, with the result of
/// reading it.
fn files(root: &Path) -> Vec<(String, io::Result<Vec<u8>>)> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().map(Result::unwrap) {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file()
                && let Ok(mut file) = File::open(&path)
            {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                let mut bytes = Vec::new();
                let read = file.read_to_end(&mut bytes).map(|_| bytes);
                files.push((format!("/{name}"), read));
            }
        }
    }
    files
}

#[test]
fn a_damaged_file_fails_alone_and_is_named_in_the_log() {
    if !has_fuse() {
        return;
    }
    let dir = Dir::new();
    // The middle of an image is data; `check` reports to which file it belongs.
    let middle = fs::metadata(data("zstd-16k-ztail.erofs")).unwrap().len() / 2;
    let image = dir.patched("zstd-16k-ztail.erofs", usize::try_from(middle).unwrap(), &[0x5a; 64]);
    let report = ferrofs().args(["check", "--json"]).arg(&image).ends_with(1).json();
    let damaged: Vec<&str> = report["problems"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["path"].as_str())
        .collect();
    assert!(!damaged.is_empty(), "{report}");
    let point = MountPoint::new();
    let log = dir.join("log");
    mount(&image, &point).arg("--log").arg(&log).succeeds();
    let files = files(point.path());
    let failed: Vec<&str> =
        files.iter().filter(|(_, read)| read.is_err()).map(|(name, _)| name.as_str()).collect();
    let names = files.iter().map(|(name, _)| name.as_str());
    let expected: Vec<&str> = names.filter(|name| damaged.contains(name)).collect();
    assert_eq!(failed, expected);
    assert!(files.len() > failed.len() + 10, "{} of {}", failed.len(), files.len());
    // The damage may lie in a file that only its owner may read.
    if !is_root() && failed.is_empty() {
        skip("needs root to read the damaged file");
        return;
    }
    assert_ne!(failed.len(), 0);
    let daemon = point.process(None);
    assert!(point.unmount());
    daemon.wait();
    let text = fs::read_to_string(log).unwrap();
    let line = text.lines().next().unwrap_or_default();
    assert!(line.contains(" UTC ferrofs[") && line.contains(" of nid "), "{text}");
    // The kernel repeats a read that failed.
    let messages: Vec<_> = text.lines().filter_map(|line| line.split_once("]: ")).collect();
    assert!(messages.windows(2).all(|pair| pair[0].1 != pair[1].1), "{text}");
}

/// A read of 128 KiB would fetch 512 MiB of an image of less than two.
#[test]
fn a_read_of_clusters_that_overlap_fails_and_is_named_in_the_log() {
    if !has_fuse() {
        return;
    }
    let dir = Dir::new();
    let image = dir.write("overlap.erofs", &front_extents(512, 256, 1 << 20));
    let (point, log) = (MountPoint::new(), dir.join("log"));
    mount(&image, &point).arg("--log").arg(&log).succeeds();
    let error = fs::read(point.join("f")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    let daemon = point.process(None);
    assert!(point.unmount());
    daemon.wait();
    let text = fs::read_to_string(log).unwrap();
    assert!(text.contains("compressed clusters that overlap: more than the limit"), "{text}");
}

#[test]
fn what_was_granted_is_explained() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    let image = data("lz4.erofs");
    let output = mount(&image, &point).args(["--explain", "--json", "--memory=64m", "--timeout=7"]);
    let output = output.succeeds().json();
    assert_eq!(output["directory"], point.path().to_str().unwrap());
    assert_eq!(output["time_limit_seconds"], 7);
    assert!(output["memory_bytes"].as_u64().unwrap() < 64 << 20, "{output}");
    assert!(output["listeners"].as_u64().unwrap() >= 2, "{output}");
    assert!(output["max_read_bytes"].as_u64().unwrap() >= 128 << 10, "{output}");
    let granted = output["capabilities_granted"].as_array().unwrap();
    assert!(granted.iter().any(|name| name == "parallel-dirops"), "{output}");
    let lacks = output["readahead_granted_kib"].as_u64() < output["readahead_asked_kib"].as_u64();
    assert_eq!(lacks, output["readahead_way_out"].is_string(), "{output}");
    assert_eq!(output["sandbox"]["no_new_privileges"], true);
    let descriptors = output["sandbox"]["descriptors"].as_array().unwrap();
    let writable =
        descriptors.iter().filter(|one| one["access"].as_str().unwrap().contains("write"));
    for descriptor in writable {
        let target = descriptor["target"].as_str().unwrap();
        assert!(target == "/dev/fuse" || target.starts_with("socket:"), "{target}");
    }
    assert!(point.unmount());
    let text = mount(&image, &point).args(["--explain", "--no-sandbox"]).succeeds().text();
    for part in
        ["image:  ", "readahead:  ", "KiB requested", "workers:  ", "sandbox:          none"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

// Privileges belong to threads: a worker that opening the image started would keep those from before the sandbox.
#[test]
fn no_image_has_a_thread_started_before_the_sandbox() {
    const DIRECTORIES: u32 = 12_000;
    // The image reads metadata in windows of 16 KiB.
    const WINDOW_NIDS: u64 = 512;
    if !has_fuse() {
        return;
    }
    let dir = Dir::new();
    for number in 0..DIRECTORIES {
        // Times that are not compressed too well: clusters are to be neither short nor long.
        let path = dir.join("tree").join(number.to_string());
        fs::create_dir_all(&path).unwrap();
        let time = Duration::from_nanos(u64::from(number.wrapping_mul(2_654_435_761)) << 24);
        File::open(&path).unwrap().set_modified(UNIX_EPOCH + time).unwrap();
    }
    let image = dir.join("image.erofs");
    let build = ferrofs().args(["build", "-z", "zstd", "--metabox", "131072"]);
    build.arg(&image).arg(dir.join("tree")).succeeds();
    let mut bytes = fs::read(&image).unwrap();
    let set = |bytes: &mut [u8], at: usize, value: &[u8]| {
        bytes[1024 + at..][..value.len()].copy_from_slice(value);
    };
    // Without a checksum; with the 48BIT feature, whose root may lie in the metabox.
    set(&mut bytes, 8, &[0]);
    set(&mut bytes, 14, &[0, 0]);
    set(&mut bytes, 80, &[0x83, 1]);
    let mut started = 0;
    let built = OpenOptions::new().open(&image).unwrap();
    let entries = built.read_dir(&built.root().unwrap()).unwrap().map(Result::unwrap);
    let mut nids: Vec<u64> = entries.map(|entry| entry.nid.raw()).collect();
    nids.sort_unstable();
    nids.dedup_by_key(|nid| *nid / WINDOW_NIDS);
    // A root in each window of metadata. Some windows need two clusters.
    for nid in nids.into_iter().filter(|nid| *nid >> 63 == 1) {
        set(&mut bytes, 112, &nid.to_le_bytes());
        fs::write(&image, &bytes).unwrap();
        let workers = DecodeWorkers::new(PerCpuSettings::new("control"));
        let opened = OpenOptions::new().workers(&workers).open(&image).unwrap();
        opened.read_dir(&opened.root().unwrap()).unwrap();
        started += workers.stats().workers.iter().filter(|one| one.thread_id.is_some()).count();
        let point = MountPoint::new();
        mount(&image, &point).succeeds();
        assert!(point.unmount());
    }
    assert!(started > 0 || AvailableCpus::read().parallelism() == 1);
}

#[test]
fn a_reserve_is_resident_before_the_mount_is_ready() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    let output = mount(&data("lz4.erofs"), &point).args(["--explain", "--json"]);
    let output = output.args(["-o", "reserved_pages=512,prefault"]).succeeds().json();
    let bytes = |name: &str| output[name].as_u64();
    assert_eq!(
        (bytes("reserved_bytes"), bytes("reserved_idle_bytes")),
        (Some(2 << 20), Some(2 << 20))
    );
    // The reads of all listeners fit into half of it, and none is smaller than 64 KiB.
    let share = (1 << 20) / output["listeners"].as_u64().unwrap();
    let largest = 1 << share.clamp(64 << 10, 1 << 20).ilog2();
    assert_eq!(output["max_read_bytes"].as_u64(), Some(largest), "{output}");
    assert!(point.unmount());
}

// A-MOUNT-ERF-NAME
#[test]
fn under_the_name_of_erofsfuse_it_takes_that_command_line() {
    if !has_fuse() {
        return;
    }
    let dir = Dir::new();
    let point = MountPoint::new();
    let image = data("offset-64k.erofs");
    let ended = named(&dir, "erofsfuse")
        .args(["-oro,nosuid", "--offset=65536"])
        .arg(&image)
        .arg(point.path())
        .args(["--dbglevel", "2", "-o", "kernel_cache"])
        .succeeds();
    // The version of the program that it stands for.
    let version = "erofsfuse 1.9.4";
    assert_eq!(ended.lines(), [version]);
    assert_eq!(ended.stderr, "");
    let text = ferrofs().args(["cat", "--offset=64k"]).arg(&image).arg("/a.txt").succeeds();
    assert_eq!(fs::read(point.join("a.txt")).unwrap(), text.stdout);
    let line = point.mount().unwrap();
    assert!(line.starts_with("erofsfuse ") && line.contains(" fuse.erofsfuse ro,"), "{line}");
    assert!(point.unmount());
    // As the program that it stands for, it ends with 1 whenever it mounts nothing.
    assert_eq!(named(&dir, "erofsfuse").arg("--help").ends_with(1).lines()[0], version);
    let own = concat!("ferrofs ", env!("CARGO_PKG_VERSION"));
    assert_eq!(named(&dir, "erofsfuse").arg("-V").ends_with(1).lines(), [version, own]);
    named(&dir, "erofsfuse").arg("--frobnicate").arg(&image).arg(point.path()).ends_with(1);
}

#[test]
fn erofsfuse_in_the_foreground_is_quiet() {
    if !has_fuse() {
        return;
    }
    let dir = Dir::new();
    let point = MountPoint::new();
    let child =
        named(&dir, "erofsfuse").arg("-f").arg(data("plain.erofs")).arg(point.path()).spawn();
    // It does not print when it is ready, so reading a file has to wait for it.
    let daemon = point.process(None);
    point.wait_for_mount();
    assert!(point.join("sub").is_dir());
    daemon.signal(Signal::TERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    assert_eq!(point.mount(), None);
}

#[test]
fn mount_of_the_system_calls_it_as_a_helper() {
    if !has_fuse() {
        return;
    }
    let dir = Dir::new();
    let point = MountPoint::new();
    let image = data("plain.erofs");
    let helper = || named(&dir, "mount.fuse.ferrofs").arg(&image).arg(point.path());
    helper().args(["-o", "rw,nofail,noatime,x-a.b=c"]).succeeds();
    assert!(point.join("sub").is_dir());
    assert!(point.unmount());
    helper().args(["-f", "-o", "rw"]).succeeds();
    assert_eq!(point.mount(), None);
    helper().args(["-o", "frobnicate"]).ends_with(2);
    helper().args(["-s", "-o", "frobnicate"]).succeeds();
    assert!(point.unmount());
    // As mount.fuse(8) calls the program that a type names.
    ferrofs().arg(&image).arg(point.path()).args(["-o", "rw,nodev"]).succeeds();
    assert!(point.join("sub").is_dir());
}

#[test]
fn mount_erofs_mounts_with_fuse() {
    if !has_fuse() {
        return;
    }
    let dir = Dir::new();
    let point = MountPoint::new();
    let image = data("plain.erofs");
    let program = || named(&dir, "mount.erofs");
    let mount = || program().args(["-t", "erofs.fuse"]).arg(&image).arg(point.path());
    mount().args(["-o", "rw,loop"]).succeeds();
    let line = point.mount().unwrap();
    assert!(line.contains(" fuse.ferrofs ro,"), "{line}");
    assert!(point.unmount());
    for word in ["cache_strategy=readahead", "dax", "dax=never"] {
        for (level, is_warned) in [("2", true), ("0", false)] {
            let made = mount().args(["-d", level, "-o", word]).succeeds();
            let warning = format!("warning: -o {word} has no effect");
            assert_eq!(made.stderr.contains(&warning), is_warned, "{}", made.stderr);
            assert!(point.unmount());
        }
    }
    let refused = program().args(["-t", "erofs.nbd"]).arg(&image).arg(point.path()).ends_with(1);
    assert!(refused.stderr.contains("use -t erofs.fuse"), "{}", refused.stderr);
    let refused = program().arg("-u").arg(point.path()).ends_with(1);
    assert!(refused.stderr.contains("umount MOUNTPOINT"), "{}", refused.stderr);
    assert!(program().arg("-V").succeeds().stdout.starts_with(b"mount.erofs (erofs-utils) 1.9"));
}

#[test]
fn mount_of_the_system_finds_it_by_the_type() {
    // util-linux runs /sbin/mount.fuse for this type. It accepts paths of programs as well.
    let helper = Path::new("/sbin/mount.fuse3");
    if !has_fuse() || !has_mount_right() {
        return;
    }
    if !helper.exists() {
        skip("needs /sbin/mount.fuse3");
        return;
    }
    let dir = Dir::new();
    named(&dir, "ferrofs");
    let point = MountPoint::new();
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    let source = format!("ferrofs#{}", data("plain.erofs").display());
    let status = Command::new(helper)
        .env("PATH", path)
        .arg(source)
        .arg(point.path())
        .args(["-o", "rw,nofail,noexec"])
        .status();
    assert!(status.unwrap().success());
    let line = point.mount().unwrap();
    assert!(line.contains(" fuse.ferrofs ro,") && line.contains("noexec"), "{line}");
}

#[test]
fn in_the_foreground_the_mount_point_is_printed_unless_quiet() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    let mounted = Foreground::ready(mount(&data("plain.erofs"), &point).arg("-f").spawn());
    assert!(point.join("sub").is_dir());
    assert!(point.unmount());
    assert_eq!(mounted.wait().code(), Some(0));
}

#[test]
fn an_image_without_attributes_answers_as_the_kernels_driver_does() {
    if !has_fuse() {
        return;
    }
    let point = MountPoint::new();
    mount(&data("xattr-none.erofs"), &point).succeeds();
    let files = files(point.path());
    assert!(!files.is_empty());
    // ENOSYS for one request would change the error of all later ones.
    for _ in 0..50 {
        for (path, _) in &files {
            let path = point.join(path.trim_start_matches('/'));
            let mut value = [0_u8; 8];
            let answer = |name: &str| rustix::fs::getxattr(&path, name, &mut value).err();
            let answers = ["user.absent", "security.absent", "user.", "odd"].map(answer);
            let [absent, empty, unknown] =
                [Errno::NODATA, Errno::INVAL, Errno::OPNOTSUPP].map(Some);
            assert_eq!(answers, [absent, absent, empty, unknown], "{}", path.display());
            let mut names = [0_u8; 8];
            assert_eq!(rustix::fs::listxattr(&path, &mut names), Ok(0));
        }
    }
    assert!(point.unmount());
}

#[test]
fn a_remount_that_changes_nothing_succeeds_and_another_one_is_refused() {
    if !has_fuse() {
        return;
    }
    let dir = Dir::new();
    let point = MountPoint::new();
    let image = data("plain.erofs");
    let helper = |words: &str| {
        let command = named(&dir, "mount.fuse.ferrofs").arg(&image).arg(point.path());
        command.args(["-o", words])
    };
    let message = helper("remount,ro").ends_with(1).stderr;
    assert!(message.contains("no file system of type fuse.ferrofs is mounted there"), "{message}");
    helper("ro,noexec").succeeds();
    let user = point.mount().unwrap().split("user_id=").nth(1).unwrap().to_owned();
    let user = user.split(',').next().unwrap().to_owned();
    // As mount(8) passes them.
    helper("remount,ro").succeeds();
    helper(&format!("ro,nosuid,nodev,noexec,remount,user_id={user},default_permissions"))
        .succeeds();
    helper("remount,image_offset=0,memory=64m,nofail").succeeds();
    for word in ["exec", "allow_other", "max_read=4096"] {
        let message = helper(&format!("remount,{word}")).ends_with(1).stderr;
        assert!(
            message.contains(&format!(" with {word}: a running mount cannot change")),
            "{message}"
        );
    }
    // mount(8) asks for suid by leaving nosuid out of the whole list.
    let message = helper(&format!("ro,nodev,noexec,remount,user_id={user}")).ends_with(1).stderr;
    assert!(message.contains(" with suid: a running mount cannot change"), "{message}");
    helper("remount,frobnicate").ends_with(2);
    assert!(point.join("sub").is_dir());
    assert!(point.unmount());
}

#[test]
fn a_second_mount_of_an_ordinary_user_names_the_first_one() {
    if !has_fuse() {
        return;
    }
    let dir = Dir::new();
    let image = dir.readable("plain.erofs");
    let point = dir.join("mnt");
    fs::create_dir(&point).unwrap();
    let mount = || dir.ordinary_ferrofs().arg("mount").args([&image, &point]);
    if is_root() {
        std::os::unix::fs::chown(&point, Some(65_534), None).unwrap();
    }
    let first = mount().run();
    if first.code != Some(0) {
        skip(&format!("needs FUSE for ordinary users: {}", first.stderr));
        return;
    }
    let second = mount().ends_with(1);
    let ended = Command::new("umount").arg(&point).status().is_ok_and(|status| status.success())
        || Command::new("fusermount3").arg("-u").arg(&point).status().unwrap().success();
    assert!(ended);
    let (image, point) = (fs::canonicalize(image).unwrap(), fs::canonicalize(point).unwrap());
    assert!(
        second.stderr.contains(&format!("{image:?} is mounted there already")),
        "{}",
        second.stderr
    );
    assert!(second.stderr.contains(&format!("`fusermount3 -u {point:?}`")), "{}", second.stderr);
}
