//! `ferrofs build` of container images: what the layers are together, and that nothing of an image
//! is taken that is not what its digests say.

use std::fs;
use std::path::Path;

use crate::container_image::{MERGED, TestLayer, documents, hex, tar, two_layers};
use crate::mounted::{MountPoint, has_fuse};
use crate::support::{Dir, ferrofs};

/// Writes a layout directory with an image of the tag `v1`.
fn write_layout(directory: &Path, layers: &[TestLayer]) {
    let blobs = directory.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let (config, manifest) = documents(layers);
    for layer in layers {
        fs::write(blobs.join(&layer.digest), &layer.blob).unwrap();
    }
    fs::write(blobs.join(hex(config.as_bytes())), &config).unwrap();
    let digest = hex(manifest.as_bytes());
    fs::write(blobs.join(&digest), &manifest).unwrap();
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:{digest}","size":{},"annotations":{{"org.opencontainers.image.ref.name":"v1"}}}}]}}"#,
        manifest.len()
    );
    fs::write(directory.join("index.json"), index).unwrap();
}

/// The paths of an image that is built from `source`.
fn converted(dir: &Dir, source: &str) -> String {
    let image = dir.join("out.erofs");
    ferrofs().args(["build", "-q", "-f"]).arg(&image).arg(source).succeeds();
    ferrofs().args(["check", "-q"]).arg(&image).succeeds();
    assert_eq!(ferrofs().arg("cat").arg(&image).arg("/replaced").succeeds().text(), "new");
    ferrofs().args(["ls", "-R"]).arg(&image).succeeds().text()
}

/// The message with which a source is refused; there is no image.
fn refused(dir: &Dir, source: &str) -> String {
    let image = dir.join("none.erofs");
    let text = ferrofs().args(["build", "-q"]).arg(&image).arg(source).ends_with(1).stderr;
    assert!(!image.exists(), "{text}");
    text
}

fn layout(dir: &Path) -> String {
    format!("oci-layout:{}", dir.to_str().unwrap())
}

#[test]
fn the_layers_of_a_layout_are_merged() {
    let dir = Dir::new();
    let place = dir.join("layout");
    write_layout(&place, &two_layers());
    assert_eq!(converted(&dir, &layout(&place)), MERGED);
    assert_eq!(converted(&dir, &format!("{}:v1", layout(&place))), MERGED);
    let manifest = hex(documents(&two_layers()).1.as_bytes());
    assert_eq!(converted(&dir, &format!("{}@sha256:{manifest}", layout(&place))), MERGED);
    let text = refused(&dir, &format!("{}:v2", layout(&place)));
    assert!(text.contains("no image v2; it has v1"), "{text}");
}

/// What is wrong with the lower layer, and what the message says.
type Fault = (fn(&mut TestLayer), &'static str);

#[test]
fn a_layer_that_is_not_what_the_image_says_is_refused() {
    let faults: [Fault; 13] = [
        // A time in the header of gzip, which nothing else looks at; then a byte of a file.
        (|layer| layer.blob[4] ^= 1, "digest"),
        (|layer| layer.blob[700] ^= 1, "layer 0"),
        (|layer| layer.blob.truncate(1000), "shorter"),
        (|layer| layer.blob.push(0), "longer"),
        (|layer| layer.size += 1, "shorter"),
        (|layer| layer.size -= 1, "longer"),
        (|layer| layer.size = usize::MAX, "shorter"),
        (
            |layer| layer.diff_id = hex(b"other"),
            "the uncompressed archive does not have the digest",
        ),
        (|layer| layer.diff_id.truncate(10), "configuration is malformed"),
        (|layer| layer.digest.truncate(10), "digest"),
        (|layer| layer.media_type.push_str("+encrypted"), "no tar archive"),
        (|layer| layer.media_type = "application/vnd.erofs".to_owned(), "mount, extract"),
        (
            |layer| {
                // Correct digests of a stream that has something behind its end.
                layer.blob.extend(b"behind");
                (layer.size, layer.digest) = (layer.blob.len(), hex(&layer.blob));
            },
            "layer 0",
        ),
    ];
    for (number, (fault, part)) in faults.into_iter().enumerate() {
        let dir = Dir::new();
        let place = dir.join("layout");
        let mut layers = two_layers();
        fault(&mut layers[0]);
        write_layout(&place, &layers);
        let text = refused(&dir, &layout(&place));
        assert!(text.contains(part), "{number}: {text}");
    }
}

#[test]
fn files_of_a_layout_that_are_missing_or_damaged_are_named() {
    let layers = two_layers();
    let (config, manifest) = documents(&layers);
    let blobs = [&layers[1].digest, &hex(config.as_bytes()), &hex(manifest.as_bytes())]
        .map(|digest| format!("blobs/sha256/{digest}"));
    for name in blobs.iter().map(String::as_str).chain(["index.json"]) {
        for content in [None, Some(&b""[..]), Some(b"{}"), Some(b"\xff{"), Some(&[b'['; 4000])] {
            let dir = Dir::new();
            let place = dir.join("layout");
            write_layout(&place, &layers);
            match content {
                None => fs::remove_file(place.join(name)).unwrap(),
                Some(content) => fs::write(place.join(name), content).unwrap(),
            }
            refused(&dir, &layout(&place));
        }
        // A reader would wait for a writer.
        let dir = Dir::new();
        let place = dir.join("layout");
        write_layout(&place, &layers);
        fs::remove_file(place.join(name)).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, place.join(name), fifo, mode, 0).unwrap();
        let text = refused(&dir, &layout(&place));
        assert!(text.contains("not a regular file"), "{name}: {text}");
    }
}

/// An archive as `docker save` writes it.
fn docker_archive(layers: &[TestLayer]) -> Vec<u8> {
    let (config, _) = documents(layers);
    let names: Vec<_> = layers.iter().map(|one| format!("blobs/sha256/{}", one.digest)).collect();
    let listed: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
    let config_name = format!("{}.json", hex(config.as_bytes()));
    let manifest = format!(
        r#"[{{"Config":"{config_name}","RepoTags":["app:v1"],"Layers":[{}]}}]"#,
        listed.join(",")
    );
    let text = |bytes: &[u8]| bytes.iter().all(u8::is_ascii).then(|| bytes.to_vec());
    let mut files = vec![("manifest.json", manifest.as_str()), (&config_name, &config)];
    let blobs: Vec<_> =
        layers.iter().map(|one| String::from_utf8(text(&one.blob).unwrap()).unwrap()).collect();
    files.extend(names.iter().map(String::as_str).zip(blobs.iter().map(String::as_str)));
    tar(&files)
}

#[test]
fn an_archive_of_docker_is_converted_and_checked() {
    let dir = Dir::new();
    // Uncompressed, as docker saves them.
    let mut layers = two_layers();
    let lower = [("kept", "below"), ("gone", "x"), ("dir/low", "x"), ("replaced", "old")];
    layers[0] = TestLayer::plain(tar(&lower));
    let file = dir.write("saved.tar", &docker_archive(&layers));
    let source = format!("docker-archive:{}", file.to_str().unwrap());
    assert_eq!(converted(&dir, &source), MERGED);
    assert_eq!(converted(&dir, &format!("{source}:app:v1")), MERGED);
    let text = refused(&dir, &format!("{source}:app:v2"));
    assert!(text.contains("no such image; give one of its tags: app:v1"), "{text}");
    layers[0].diff_id = hex(b"other");
    dir.write("saved.tar", &docker_archive(&layers));
    assert!(refused(&dir, &source).contains("digest"));
    dir.write("saved.tar", &tar(&[("manifest.json", "[]")]));
    refused(&dir, &source);
    dir.write("saved.tar", &tar(&[("other", "")]));
    assert!(refused(&dir, &source).contains("manifest.json"));
}

#[test]
fn a_container_image_is_the_only_source() {
    for words in [
        &["oci-layout:a", "b.tar"][..],
        &["oci-layout:a", "--exclude=x"],
        &["oci-layout:a", "--whiteouts=overlay"],
    ] {
        ferrofs().args(["build", "out.erofs"]).args(words).ends_with(2);
    }
}

/// A layout with one image, whose layers are EROFS images and chunk indexes of them.
fn write_erofs_layout(directory: &Path, layers: &[(&str, Vec<u8>)]) {
    let layers: Vec<_> = layers
        .iter()
        .map(|(media_type, blob)| TestLayer {
            media_type: (*media_type).to_owned(),
            ..TestLayer::plain(blob.clone())
        })
        .collect();
    write_layout(directory, &layers);
}

#[test]
fn every_verb_reads_an_erofs_layer_of_a_layout() {
    let dir = Dir::new();
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree/file"), "content".repeat(5000)).unwrap();
    let (image, index) = (dir.join("image"), dir.join("index"));
    ferrofs()
        .args(["build", "-q"])
        .arg(format!("--chunk-index={}", index.display()))
        .arg(&image)
        .arg(dir.join("tree"))
        .succeeds();
    let (bytes, index) = (fs::read(&image).unwrap(), fs::read(index).unwrap());
    let plain = [("application/vnd.erofs", bytes.clone())];
    let indexed = [plain[0].clone(), ("application/vnd.erofs.chunk-index.v1", index)];
    for (name, layers) in [("plain", &plain[..]), ("indexed", &indexed[..])] {
        let place = dir.join(name);
        write_erofs_layout(&place, layers);
        // A fetcher that cannot be started shows that none is needed.
        let verb = |verb: &str, words: &[&str]| {
            let command = ferrofs().env("FERROFS_FETCH", "/nowhere").env("HOME", "/nowhere");
            command.arg(verb).arg(format!("{}:v1#layer=0", layout(&place))).args(words)
        };
        for words in [&["info"][..], &["check", "-q"], &["stat", "/file"], &["ls", "-R"]] {
            verb(words[0], &words[1..]).succeeds();
        }
        assert_eq!(verb("cat", &["/file"]).succeeds().text(), "content".repeat(5000));
        let out = dir.join(format!("out-{name}"));
        verb("extract", &[out.to_str().unwrap()]).succeeds();
        assert_eq!(fs::read_to_string(out.join("file")).unwrap(), "content".repeat(5000));
        let required = verb("check", &["-q", "--verify=require"]);
        if name == "indexed" {
            required.succeeds();
        } else {
            assert!(required.ends_with(1).stderr.contains("chunk index"));
        }
    }
    // A damaged byte is noticed with a chunk index.
    let blob = dir.join("indexed/blobs/sha256").join(hex(&bytes));
    let mut damaged = bytes;
    let last = damaged.len() - 5;
    damaged[last] ^= 1;
    fs::write(blob, damaged).unwrap();
    let location = format!("{}#layer=0", layout(&dir.join("indexed")));
    let text = ferrofs().args(["check", &location]).ends_with(1).stderr;
    assert!(text.contains("does not match the chunk index"), "{text}");
    let text = ferrofs().args(["pull", &location]).arg(dir.join("x")).ends_with(2).stderr;
    assert!(text.contains("on this machine"), "{text}");
    let text = ferrofs().args(["ls", &format!("{}:v2", layout(&dir.join("plain")))]).ends_with(1);
    assert!(text.stderr.contains("no image v2"), "{}", text.stderr);
}

#[test]
fn devices_in_a_layout_are_read_by_every_verb_and_by_a_mount() {
    let dir = Dir::new();
    let data =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name);
    let (image, blob) = (data("chunk-blob.erofs"), data("chunk-blob.blob"));
    let place = dir.join("layout");
    let layers = [&image, &blob].map(|path| ("application/vnd.erofs", fs::read(path).unwrap()));
    write_erofs_layout(&place, &layers);
    let local = dir.join("local");
    ferrofs().arg("extract").arg(&image).arg(&local).arg("--device").arg(&blob).succeeds();
    let files = files_below(&local);
    assert!(files.len() > 5);
    let in_layout = [0, 1].map(|layer| format!("{}:v1#layer={layer}", layout(&place)));
    for image in [image.to_str().unwrap(), &in_layout[0]] {
        let verb = |verb: &str, words: &[&str]| {
            ferrofs().arg(verb).arg(image).args(words).args(["--device", &in_layout[1]])
        };
        for words in [&["info"][..], &["check", "-q"], &["stat", "/"], &["ls", "-R"]] {
            verb(words[0], &words[1..]).succeeds();
        }
        let out = dir.join("out");
        verb("extract", &[out.to_str().unwrap()]).succeeds();
        assert!(files_below(&out) == files);
        fs::remove_dir_all(out).unwrap();
        let (name, content) = files.iter().find(|(_, content)| !content.is_empty()).unwrap();
        let read = verb("cat", &[&format!("/{name}")]).succeeds();
        assert!(read.stdout == *content, "{name}");
        if !has_fuse() {
            continue;
        }
        let words = [
            vec!["--device".to_owned(), in_layout[1].clone()],
            vec!["-o".to_owned(), format!("device={}", in_layout[1])],
        ];
        for words in words {
            let point = MountPoint::new();
            ferrofs().arg("mount").arg(image).arg(point.path()).args(words).succeeds();
            assert!(files_below(point.path()) == files);
        }
        let point = MountPoint::new();
        let text = verb("mount", &[point.path().to_str().unwrap(), "--keep"]).ends_with(2).stderr;
        assert!(text.contains("oci-layout:") && text.contains("is not a file"), "{text}");
    }
}

/// The regular files below a directory, with their contents, in the order of their names.
fn files_below(root: &Path) -> Vec<(String, Vec<u8>)> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let (path, kind) = entry.map(|one| (one.path(), one.file_type().unwrap())).unwrap();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.push((name, fs::read(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn the_configuration_is_written_beside_the_image() {
    let dir = Dir::new();
    let place = dir.join("layout");
    write_layout(&place, &two_layers());
    let (image, config) = (dir.join("out.erofs"), dir.join("config.json"));
    let build = |source: &str, force: bool| {
        let command = ferrofs().args(["build", "-q"]).args(force.then_some("-f"));
        command.arg(&image).arg(source).arg("--container-config").arg(&config)
    };
    build(&layout(&place), false).succeeds();
    assert_eq!(fs::read_to_string(&config).unwrap(), documents(&two_layers()).0);
    fs::remove_file(&image).unwrap();
    let text = build(&layout(&place), false).ends_with(1).stderr;
    assert!(text.contains("config.json"), "{text}");
    build(&layout(&place), true).succeeds();
    // It never takes the place of the image.
    let same = ferrofs().args(["build", "-q", "-f", "--container-config"]).arg(&image);
    let text = same.arg(&image).arg(layout(&place)).ends_with(2).stderr;
    assert!(text.contains("cannot be the same file"), "{text}");
    ferrofs().args(["check", "-q"]).arg(&image).succeeds();
    let text = build(place.to_str().unwrap(), true).ends_with(2).stderr;
    assert!(text.contains("not a container image"), "{text}");
}
