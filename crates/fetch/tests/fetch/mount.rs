//! Mounts of remote images, by the command, compared with the image as a local file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::command::{Verb, data, ferrofs, skip};
use crate::registry::Registry;
use crate::server::Server;
use crate::store_server::Store;
use crate::world::World;

/// A mount in a folder of its own; dropping it unmounts.
pub(crate) struct Mount {
    directory: tempfile::TempDir,
}

/// Mounts `image`, with these arguments beside it. `None` where nobody can mount; the test is
/// reported as skipped.
pub(crate) fn mount(world: &World, image: &str, arguments: &[&str]) -> Option<Mount> {
    mount_with_output(world, image, arguments).map(|mounted| mounted.0)
}

/// The same, with what the command printed.
pub(crate) fn mount_with_output(
    world: &World,
    image: &str,
    arguments: &[&str],
) -> Option<(Mount, String)> {
    let program = ferrofs()?;
    let has_fuse = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !has_fuse || !(is_root || Path::new("/usr/bin/fusermount3").exists()) {
        skip("needs FUSE, and root or fusermount3");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let output = run_mount(&program, world, image, directory.path(), arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("Operation not permitted") {
        skip("needs the right to mount");
        return None;
    }
    assert!(output.status.success(), "{errors}");
    Some((Mount { directory }, String::from_utf8(output.stdout).unwrap()))
}

fn run_mount(
    program: &Path,
    world: &World,
    image: &str,
    directory: &Path,
    arguments: &[&str],
) -> Output {
    let mut command = Command::new(program);
    command.arg("mount").arg(image).arg(directory).arg("--cache").arg(world.cache());
    command.args(arguments).env("FERROFS_FETCH", env!("CARGO_BIN_EXE_ferrofs-fetch"));
    command.envs(world.settings.starting_with("")).envs(world.environment.iter().cloned());
    command.output().unwrap()
}

impl Mount {
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The names of all files, and their content.
    pub(crate) fn tree(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        read_tree(self.path(), Path::new(""), &mut found);
        found
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = |program: &str, words: &[&str]| {
            let status = Command::new(program).args(words).arg(self.path()).output();
            status.is_ok_and(|output| output.status.success())
        };
        // A process that another test has just started has a file of this one open until it executes.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !(unmounted("umount", &[]) || unmounted("fusermount3", &["-u"])) {
            assert!(Instant::now() < deadline, "the mount stays busy");
            std::thread::sleep(Duration::from_millis(20));
        }
        // The daemon ends by itself.
        while fs::metadata(self.path()).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn read_tree(root: &Path, below: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    let mut names: Vec<_> =
        fs::read_dir(root.join(below)).unwrap().map(|entry| entry.unwrap()).collect();
    names.sort_by_key(fs::DirEntry::file_name);
    for entry in names {
        let path = below.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            read_tree(root, &path, found);
        } else if kind.is_file() {
            let bytes = fs::read(root.join(&path)).unwrap();
            found.push((path, bytes));
        }
    }
}

/// A local mount of the same image has the same files.
pub(crate) fn local_tree(world: &World, name: &str) -> Option<Vec<(PathBuf, Vec<u8>)>> {
    let path = data(name);
    Some(mount(world, path.to_str().unwrap(), &[])?.tree())
}

#[test]
fn a_mount_of_a_url_has_the_files_of_the_image() {
    let world = World::new();
    for name in ["lz4.erofs", "compact.erofs", "demo.erofs"] {
        let server = Server::start(fs::read(data(name)).unwrap());
        let url = format!("{}?signature=secret", server.url());
        let Some(mounted) = mount(&world, &url, &[]) else { return };
        assert!(mounted.tree() == local_tree(&world, name).unwrap(), "{name}");
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(table.contains(&server.url()) && !table.contains("secret"), "{table}");
    }
}

#[test]
fn options_of_fstab_choose_cache_and_mode() {
    let world = World::new();
    let server = Server::start(fs::read(data("lz4.erofs")).unwrap());
    let tree = mount(&world, &server.url(), &[]).map(|mounted| mounted.tree());
    let Some(tree) = tree else { return };
    let requests = server.requests();
    let mounted = mount(&world, &server.url(), &["-o", "offline,ro"]).unwrap();
    assert!(mounted.tree() == tree);
    assert_eq!(server.requests(), requests, "offline");
    let error = |words: &str| {
        let program = ferrofs().unwrap();
        let words = ["-o", words];
        let output = run_mount(&program, &world, &server.url(), mounted.path(), &words);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error("verify=maybe").contains("require, try or off"));
    assert!(error("fetch_timeout=0").contains("number of seconds"));
    assert!(error("offlin").contains("did you mean offline?"));
}

#[test]
fn a_mount_of_a_layer_of_a_registry() {
    let world = World::new();
    let registry = Registry::start(fs::read(data("lz4.erofs")).unwrap());
    let insecure = format!("insecure_registry={}", registry.host());
    let words = ["-o", insecure.as_str()];
    let Some(mounted) = mount(&world, &registry.location(), &words) else { return };
    assert!(mounted.tree() == local_tree(&world, "lz4.erofs").unwrap());
    assert_eq!(registry.tokens(), 1);
}

/// An image and its device as layers of one image of a registry.
#[test]
fn devices_of_a_registry_are_read_by_every_verb_and_by_a_mount() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let verb = Verb { program: &program, world: &world };
    let [image, blob] = ["chunk-blob.erofs", "chunk-blob.blob"].map(data);
    let layers = [&image, &blob].map(|path| ("application/vnd.erofs", fs::read(path).unwrap()));
    let registry = Registry::with_layers(layers.to_vec());
    let insecure = format!("--insecure-registry={}", registry.host());
    let [first, second] = [0, 1].map(|layer| format!("{}#layer={layer}", registry.location()));
    let (image, blob) = (image.to_str().unwrap(), blob.to_str().unwrap());
    let tar = |image: &str, device: &str| {
        verb.good(&["extract", image, "--tar", "-", "--device", device, &insecure])
    };
    let wanted = tar(image, blob);
    let local = mount(&world, image, &["--device", blob]).map(|mounted| mounted.tree());
    for (image, device) in [(image, &*second), (&first, blob), (&first, &second)] {
        for words in [["info", "-q"], ["check", "-q"], ["ls", "-R"], ["stat", "/"]] {
            let (name, word) = (words[0], words[1]);
            let words =
                if name == "stat" { vec![name, image, word] } else { vec![name, word, image] };
            verb.good(&[&words[..], &["--device", device, &insecure]].concat());
        }
        assert!(tar(image, device) == wanted, "{image} {device}");
        for words in [["--device", device], ["-o", &format!("device={device}")]] {
            let Some(local) = &local else { return };
            let mounted = mount(&world, image, &[&words[..], &[&insecure]].concat()).unwrap();
            assert!(mounted.tree() == *local, "{image} {device}");
        }
    }
}

/// The words of mount.erofs, of erofs-utils, for an image of a registry and an object of S3.
#[test]
fn mount_erofs_takes_the_words_of_that_program() {
    let Some(program) = ferrofs() else { return };
    let world = World::new();
    let local = local_tree(&world, "lz4.erofs");
    let Some(local) = local else { return };
    let image = fs::read(data("lz4.erofs")).unwrap();
    let registry = Registry::start(image.clone());
    let store = Store::start();
    store.put("/public/dir/a%25b", image, "\"one\"");
    let helper = world.directory.path().join("mount.erofs");
    std::os::unix::fs::symlink(&program, &helper).unwrap();
    let run = |source: &str, words: &str| {
        let directory = tempfile::tempdir().unwrap();
        let cache = format!("{words},cache={}", world.cache().display());
        let mut command = Command::new(&helper);
        command.args(["-t", "erofs.fuse", "-o", &cache, source]).arg(directory.path());
        command.env("FERROFS_FETCH", env!("CARGO_BIN_EXE_ferrofs-fetch"));
        command.env("AWS_SKIP_SIGNATURE", "true");
        (command.output().unwrap(), directory)
    };
    let s3 = format!("s3.endpoint={},s3.region=here,s3.urlstyle=path,s3.sig=4", store.url());
    for (source, words) in [
        (registry.location().replace("oci://", ""), "oci.insecure,oci.layer=0,ro"),
        ("public/dir/a%b".to_owned(), &s3),
    ] {
        let (output, directory) = run(&source, words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(Mount { directory }.tree() == local, "{source}");
    }
    let (output, _) = run("host/name:v1", "oci.username=me,oci.password=hidden");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    assert!(errors.contains("oci.username: every user can read") && !errors.contains("hidden"));
}
