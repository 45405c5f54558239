//! The sets of images with manifests: the one in `tests/data`, and a larger one if it is found.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};

use ferrofs_image::{Image, OpenOptions};
use serde::Deserialize;

/// Reports that the present test, or a part of it, is skipped: on standard error, and in the file that `FERROFS_SKIPPED` names.
pub(crate) fn skip(reason: impl Display) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {reason}\n", thread.name().unwrap_or("unknown test"));
    eprint!("{line}");
    if let Some(path) = std::env::var_os("FERROFS_SKIPPED") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
}

/// A folder of images.
pub(crate) struct ImageSet {
    pub(crate) dir: PathBuf,
    pub(crate) manifest: ImageManifest,
}

#[derive(Deserialize)]
pub(crate) struct ImageManifest {
    pub(crate) trees: BTreeMap<String, Vec<ExpectedEntry>>,
    pub(crate) images: Vec<ListedImage>,
}

#[derive(Deserialize)]
pub(crate) struct ListedImage {
    pub(crate) name: String,
    pub(crate) file: String,
    #[serde(default)]
    pub(crate) tree: Option<String>,
    #[serde(default)]
    pub(crate) devices: Vec<String>,
    #[serde(default, alias = "image_offset")]
    pub(crate) offset: u64,
}

/// A path and what it leads to; `same_as` makes it another name of an entry before it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ExpectedEntry {
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) same_as: Option<String>,
    #[serde(default, rename = "type")]
    pub(crate) kind: String,
    pub(crate) size: Option<u64>,
    pub sha256: Option<String>,
    #[serde(default)]
    pub(crate) mode: String,
    #[serde(default)]
    pub(crate) uid: u32,
    #[serde(default)]
    pub(crate) gid: u32,
    #[serde(default)]
    pub(crate) mtime: i64,
    #[serde(default)]
    pub(crate) mtime_nsec: u32,
    #[serde(default)]
    pub(crate) nlink: u32,
    pub(crate) rdev: Option<(u32, u32)>,
    #[serde(default)]
    pub(crate) xattrs: BTreeMap<String, String>,
    pub(crate) target: Option<String>,
    pub(crate) hardlink_group: Option<String>,
}

impl ImageSet {
    /// The images in the source tree.
    pub(crate) fn corpus() -> Self {
        let dir = workspace().join("tests/data");
        Self::load(&dir, "manifest.json").expect("tests/data has a manifest")
    }

    /// A larger set, from `FERROFS_GOLDEN` or beside the checkout; `None` if there is none.
    pub(crate) fn golden() -> Option<Self> {
        Self::load(&beside("FERROFS_GOLDEN", "golden"), "MANIFEST.json")
    }

    fn load(dir: &Path, file: &str) -> Option<Self> {
        let text = std::fs::read(dir.join(file)).ok()?;
        let manifest = serde_json::from_slice(&text).expect("the manifest is sound");
        Some(Self { dir: dir.to_owned(), manifest })
    }

    /// Both sets, the second only if it is there.
    pub(crate) fn all() -> Vec<Self> {
        let golden = Self::golden();
        if golden.is_none() {
            skip("no larger golden set (FERROFS_GOLDEN)");
        }
        std::iter::once(Self::corpus()).chain(golden).collect()
    }

    pub(crate) fn options(&self, listed: &ListedImage) -> OpenOptions {
        let options = OpenOptions::new().offset(listed.offset);
        listed.devices.iter().fold(options, |options, file| options.device(self.dir.join(file)))
    }

    pub(crate) fn open(&self, listed: &ListedImage) -> Image {
        let path = self.dir.join(&listed.file);
        self.options(listed).open(path).unwrap_or_else(|error| panic!("{}: {error}", listed.name))
    }

    /// The entries of an image by path.
    pub(crate) fn tree(&self, listed: &ListedImage) -> Option<BTreeMap<Vec<u8>, ExpectedEntry>> {
        let entries = self.manifest.trees.get(listed.tree.as_ref()?)?;
        let by_group: BTreeMap<&str, &ExpectedEntry> = entries
            .iter()
            .filter_map(|entry| Some((entry.hardlink_group.as_deref()?, entry)))
            .collect();
        let resolve = |entry: &ExpectedEntry| match &entry.same_as {
            Some(first) => (*by_group.get(&**first).expect("the group is listed")).clone(),
            None => entry.clone(),
        };
        Some(entries.iter().map(|entry| (decoded(&entry.path), resolve(entry))).collect())
    }
}

/// A folder that an environment variable names, or that lies beside the checkout.
pub(crate) fn beside(variable: &str, name: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(path) => path.into(),
        None => workspace().join("../shared").join(name),
    }
}

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Names that are not UTF-8 are in hexadecimal.
pub(crate) fn decoded(text: &str) -> Vec<u8> {
    match text.strip_prefix("hex:") {
        Some(digits) => unhex(digits),
        None => text.as_bytes().to_vec(),
    }
}

pub(crate) fn unhex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
