//! Every image of tests/data, unpacked and compared with its manifest in every field; checked; and
//! listed.

use serde_json::Value;

use crate::manifest::{Host, TestImage, differences, images};
use crate::support::{Dir, data, ferrofs};

fn arguments(image: &TestImage) -> Vec<std::ffi::OsString> {
    let mut arguments = vec![format!("--offset={}", image.offset).into()];
    for device in &image.devices {
        arguments.extend(["--device".into(), data(device).into_os_string()]);
    }
    arguments.push(data(&image.file).into_os_string());
    arguments
}

fn assert_nothing(found: &[String]) {
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}

/// Unpacks the images whose names `select` takes; gives their number and all differences.
fn unpack(select: impl Fn(&str) -> bool) -> (usize, Vec<String>) {
    let mut found = Vec::new();
    let mut unpacked_images = 0;
    for image in images().into_iter().filter(|image| select(&image.name)) {
        unpacked_images += 1;
        let dir = Dir::new();
        let host = Host::probe(dir.path());
        let unpacked = dir.join("tree");
        ferrofs().arg("extract").args(arguments(&image)).arg(&unpacked).succeeds();
        let differences = differences(&unpacked, &image.tree, host);
        found.extend(differences.into_iter().map(|what| format!("{}: {what}", image.name)));
    }
    (unpacked_images, found)
}

#[test]
fn every_image_unpacks_to_its_manifest() {
    assert_nothing(&unpack(|_| true).1);
}

/// Other extractors give files with inline tails the bytes of other files, and report success.
#[test]
fn files_whose_inodes_lie_in_a_metabox_get_their_own_bytes() {
    let (images, found) = unpack(|name| name.starts_with("metabox"));
    assert!(images >= 3, "{images} images have a metabox");
    assert_nothing(&found);
}

/// Other extractors end the list at an xattr without a value, and change the owner after they set
/// capabilities, which removes them.
#[test]
fn xattrs_without_a_value_and_capabilities_survive() {
    let is_wanted = |name: &str, value: &Value| {
        name == "security.capability" || value.as_str().is_some_and(str::is_empty)
    };
    let has_them = |image: &TestImage| {
        let xattrs = image.tree.iter().filter_map(|entry| entry["xattrs"].as_object());
        xattrs.flatten().filter(|(name, value)| is_wanted(name, value)).count()
    };
    let chosen = images().into_iter().max_by_key(has_them).unwrap();
    assert!(has_them(&chosen) >= 2, "some image has both");
    assert_nothing(&unpack(|name| name == chosen.name).1);
}

#[test]
fn an_ordinary_user_gets_everything_but_what_needs_root() {
    let mut found = Vec::new();
    for image in images().into_iter().filter(|image| image.devices.is_empty()) {
        let dir = Dir::new();
        let host = Host::probe(dir.path()).for_ordinary_user();
        let copy = dir.readable(&image.file);
        let unpacked = dir.join("tree");
        let ended = dir
            .ordinary_ferrofs()
            .arg("extract")
            .arg(format!("--offset={}", image.offset))
            .args([&copy, &unpacked])
            .succeeds();
        assert!(ended.stderr.lines().count() <= 6, "said more than once: {}", ended.stderr);
        let differences = differences(&unpacked, &image.tree, host);
        found.extend(differences.into_iter().map(|what| format!("{}: {what}", image.name)));
    }
    assert_nothing(&found);
}

#[test]
fn every_image_is_sound() {
    for image in images() {
        let ended = ferrofs().arg("check").args(arguments(&image)).succeeds();
        assert!(ended.text().ends_with(": sound\n"), "{}: {}", image.name, ended.text());
    }
}

#[test]
fn listing_names_every_path_of_an_image() {
    for image in images() {
        let ended = ferrofs().args(["ls", "-R", "--json"]).args(arguments(&image)).succeeds();
        let lines = ended.lines();
        assert_eq!(lines.len(), image.tree.len(), "{}", image.name);
        for line in lines {
            let entry: Value = serde_json::from_str(&line).unwrap();
            assert!(entry["path"].is_string() || entry["path"]["hex"].is_string(), "{line}");
        }
    }
}
