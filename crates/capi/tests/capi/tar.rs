//! An image that a C program copies into a tar archive with libarchive is the tree that this project
//! writes into one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Command;

use ferrofs_extract::{WriteTarOptions, write_tar};
use ferrofs_image::Image;

use crate::support::{Installation, Language, data, here, skip, succeed};

/// The entry of an archive for a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TarEntry {
    kind: u8,
    mode: u32,
    owner: (u64, u64),
    /// As text, without zeros at the end of the fraction.
    mtime: String,
    device: (u32, u32),
    link: Vec<u8>,
    xattrs: BTreeMap<String, Vec<u8>>,
    content: Vec<u8>,
}

/// The entries of an archive by their names. A hard link is replaced by what it leads to, as the writers may choose
/// different first names.
fn tar_entries(path: &Path) -> BTreeMap<Vec<u8>, TarEntry> {
    let mut archive = tar::Archive::new(File::open(path).unwrap());
    let (mut found, mut links) = (BTreeMap::new(), Vec::new());
    let mut records = BTreeMap::new();
    // Raw, since the library does not read binary values of extended headers.
    for entry in archive.entries().unwrap().raw(true) {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let header = entry.header();
        let kind = header.entry_type();
        if kind == tar::EntryType::XHeader {
            records = extended_header(&content);
            continue;
        }
        let records = std::mem::take(&mut records);
        let bytes =
            |key: &str, short: &[u8]| records.get(key).cloned().unwrap_or_else(|| short.to_vec());
        let name = clean(&bytes("path", &header.path_bytes()));
        let link = bytes("linkpath", &header.link_name_bytes().unwrap_or_default());
        if kind.is_hard_link() {
            links.push((name, clean(&link)));
            continue;
        }
        let text = |key: &str, short: u64| {
            String::from_utf8(bytes(key, short.to_string().as_bytes())).unwrap()
        };
        let device = kind.is_block_special() || kind.is_character_special();
        let number = |value: std::io::Result<Option<u32>>| {
            if device { value.unwrap().unwrap_or(0) } else { 0 }
        };
        let xattrs = records.iter().filter_map(|(key, value)| {
            Some((percent_decoded(key.strip_prefix("SCHILY.xattr.")?), value.clone()))
        });
        let mtime = text("mtime", header.mtime().unwrap());
        let mtime = match mtime.split_once('.') {
            // libarchive writes fractions before 1970 as if they were after their second.
            Some(_) if mtime.starts_with('-') => "before 1970".to_owned(),
            Some((seconds, fraction)) => {
                format!("{seconds}.{}", fraction.trim_end_matches('0'))
            }
            None => format!("{mtime}."),
        };
        let entry = TarEntry {
            kind: kind.as_byte(),
            mode: header.mode().unwrap() & 0o7777,
            owner: (
                text("uid", header.uid().unwrap()).parse().unwrap(),
                text("gid", header.gid().unwrap()).parse().unwrap(),
            ),
            mtime,
            device: (number(header.device_major()), number(header.device_minor())),
            link,
            xattrs: xattrs.collect(),
            content,
        };
        found.insert(name, entry);
    }
    for (name, target) in links {
        let first: &TarEntry = &found[&target];
        found.insert(name, first.clone());
    }
    found
}

/// The records of an extended header: `LENGTH KEY=VALUE` and a line feed, where the length counts
/// all of it.
fn extended_header(mut bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut records = BTreeMap::new();
    while let Some(space) = bytes.iter().position(|byte| *byte == b' ') {
        let length: usize = std::str::from_utf8(&bytes[..space]).unwrap().parse().unwrap();
        let record = &bytes[space + 1..length - 1];
        let equals = record.iter().position(|byte| *byte == b'=').unwrap();
        let key = String::from_utf8(record[..equals].to_vec()).unwrap();
        records.insert(key, record[equals + 1..].to_vec());
        bytes = &bytes[length..];
    }
    records
}

/// libarchive writes bytes past ASCII in names of attributes as `%C3`.
fn percent_decoded(key: &str) -> String {
    let mut parts = key.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (number, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(number, 16).unwrap());
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).unwrap()
}

fn clean(name: &[u8]) -> Vec<u8> {
    let name = name.strip_prefix(b".").unwrap_or(name);
    let name = name.strip_suffix(b"/").unwrap_or(name);
    name.strip_prefix(b"/").unwrap_or(name).to_vec()
}

#[test]
fn a_copy_by_libarchive_has_the_same_tree() {
    let has_libarchive = ["/usr/include", "/usr/local/include"]
        .iter()
        .any(|folder| Path::new(folder).join("archive.h").exists());
    if !has_libarchive {
        return skip("libarchive is not installed (libarchive-dev)");
    }
    let installation = Installation::new();
    let source = here("examples/totar.c");
    let program = installation.compile(&source, Language::C, &["-larchive"]);
    for image in ["demo.erofs", "lz4hc-64k-ztail.erofs", "xattr-prefix.erofs", "lzma.erofs"] {
        let (theirs, ours) = (installation.path("theirs.tar"), installation.path("ours.tar"));
        succeed(Command::new(&program).arg(data(image)).arg(&theirs));
        let mut output = File::create(&ours).unwrap();
        let options = WriteTarOptions::new().holes(ferrofs_extract::HolePolicy::Zeros);
        let opened = Image::open(data(image)).unwrap();
        let summary = write_tar(&opened, &mut output, &options, &mut |_| {}).unwrap();
        assert_eq!(summary.failures, 0);
        let (theirs, ours) = (tar_entries(&theirs), tar_entries(&ours));
        assert!(theirs.len() > 3, "{image}");
        let names = |found: &BTreeMap<Vec<u8>, TarEntry>| {
            found.keys().map(|name| name.escape_ascii().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(&theirs), names(&ours), "{image}");
        for (name, entry) in &theirs {
            let names = |entry: &TarEntry| entry.xattrs.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(entry), names(&ours[name]), "{image}: {}", name.escape_ascii());
            assert!(*entry == ours[name], "{image}: {}", name.escape_ascii());
        }
        fs::remove_file(installation.path("theirs.tar")).unwrap();
    }
}
