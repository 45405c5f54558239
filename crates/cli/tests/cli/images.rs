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

#[test]
fn every_image_unpacks_to_its_manifest() {
    let mut found = Vec::new();
    for image in images() {
        let dir = Dir::new();
        let host = Host::probe(dir.path());
        let unpacked = dir.join("tree");
        ferrofs().arg("extract").args(arguments(&image)).arg(&unpacked).succeeds();
        let differences = differences(&unpacked, &image.tree, host);
        found.extend(differences.into_iter().map(|what| format!("{}: {what}", image.name)));
    }
    assert_nothing(&found);
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
