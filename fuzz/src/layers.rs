//! The target of layers: archives over each other with whiteouts, merged by the importer and by a few lines here.
//!
//! Input: steps of three bytes each: what to do, and a path of at most three names from six.

use std::collections::BTreeMap;

use ferrofs_builder::import::{TarImportOptions, TarSource, WhiteoutPolicy, from_tar_layers};
use ferrofs_builder::{CancelToken, NoopObserver};
use ferrofs_image::FileType;

use crate::input::Input;
use crate::listing;

const STEPS_MAX: usize = 64;
const LAYERS_MAX: usize = 6;
const NAMES: [&str; 6] = ["a", "b", "c", "a.", "aa", "wh"];
const BLOCK_BYTES: usize = 512;

/// What a layer or a tree has under a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Directory,
    File(u8),
    Symlink(u8),
}

/// A layer: what it brings, what it hides of the layers below.
#[derive(Debug, Default)]
struct Layer {
    items: BTreeMap<String, Item>,
    whiteouts: Vec<String>,
    opaque: Vec<String>,
}

type Model = BTreeMap<String, Item>;

/// Merges layers in two ways.
pub fn layers(bytes: &[u8]) {
    let layers = decode(bytes);
    let sources = layers
        .iter()
        .map(|layer| TarSource::Bytes { name: "layer.tar".into(), bytes: layer.archive().into() });
    let options = TarImportOptions::default().whiteouts(WhiteoutPolicy::Apply);
    let tree = from_tar_layers(sources.collect(), &options, &NoopObserver, &CancelToken::new());
    let tree = tree.expect("layers that are sound");
    let mut model = Model::new();
    layers.iter().for_each(|layer| layer.lay_over(&mut model));
    let found: Vec<_> = listing::of_tree(&tree)
        .into_iter()
        .filter(|(path, _)| !path.is_empty())
        .map(|(path, entry)| {
            (String::from_utf8(path).expect("names from here"), entry.kind, entry.size)
        })
        .collect();
    let wanted: Vec<_> = model
        .into_iter()
        .map(|(path, item)| match item {
            Item::Directory => (path, FileType::Directory, 0),
            Item::File(bytes) => (path, FileType::Regular, u64::from(bytes)),
            Item::Symlink(bytes) => (path, FileType::Symlink, 1 + u64::from(bytes) % 99),
        })
        .collect();
    assert_eq!(found, wanted, "{layers:?}");
}

fn decode(bytes: &[u8]) -> Vec<Layer> {
    let mut input = Input::new(bytes);
    let mut layers = vec![Layer::default()];
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let [what, names, more] = input.array();
        if what & 7 == 7 && layers.len() < LAYERS_MAX {
            layers.push(Layer::default());
        }
        let Some(layer) = layers.last_mut() else { break };
        layer.step(what, &path(names, more), more);
    }
    layers
}

fn path(names: u8, more: u8) -> String {
    let count = 1 + usize::from(more & 3) % 3;
    let numbers = [names, names / 6, names / 36];
    let names = numbers.iter().map(|number| NAMES[usize::from(*number) % NAMES.len()]);
    names.take(count).collect::<Vec<_>>().join("/")
}

/// The directory that a path lies in; empty for the root.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| directory.is_empty() || rest.starts_with('/'))
}

impl Layer {
    /// Adds something, unless the layer has the path already, or a file on the way to it.
    fn step(&mut self, what: u8, path: &str, more: u8) {
        if !self.has_way(parent(path)) {
            return;
        }
        match what & 7 {
            0..=2 => self.bring(path, Item::File(more)),
            3 => self.bring(path, Item::Directory),
            4 => self.bring(path, Item::Symlink(more)),
            5 if !self.whiteouts.iter().any(|hidden| hidden == path) => {
                self.open_way(parent(path));
                self.whiteouts.push(path.to_owned());
            }
            6 if self.has_way(path) && !self.opaque.iter().any(|hidden| hidden == path) => {
                self.open_way(path);
                self.opaque.push(path.to_owned());
            }
            _ => {}
        }
    }

    fn bring(&mut self, path: &str, item: Item) {
        self.open_way(parent(path));
        self.items.entry(path.to_owned()).or_insert(item);
    }

    /// Whether every part of a path is a directory of the layer, or can become one.
    fn has_way(&self, path: &str) -> bool {
        let is_free = |path: &str| matches!(self.items.get(path), None | Some(Item::Directory));
        path.is_empty() || (is_free(path) && self.has_way(parent(path)))
    }

    fn open_way(&mut self, path: &str) {
        if !path.is_empty() {
            self.open_way(parent(path));
            self.items.entry(path.to_owned()).or_insert(Item::Directory);
        }
    }

    /// Hides what is below, then adds what it brings.
    fn lay_over(&self, model: &mut Model) {
        model.retain(|path, _| {
            let is_gone = |hidden: &String| path == hidden || is_below(path, hidden);
            let is_hidden = |directory: &String| is_below(path, directory);
            !self.whiteouts.iter().any(is_gone) && !self.opaque.iter().any(is_hidden)
        });
        for (path, item) in &self.items {
            if *item != Item::Directory {
                model.retain(|other, _| !is_below(other, path));
            }
            model.insert(path.clone(), *item);
        }
    }

    fn archive(&self) -> Vec<u8> {
        let mut archive = Vec::new();
        // In the order of paths, so that directories come before what is in them.
        for (path, item) in &self.items {
            match item {
                Item::Directory => put(&mut archive, b'5', path, 0, 0),
                Item::File(bytes) => put(&mut archive, b'0', path, *bytes, 0),
                Item::Symlink(bytes) => {
                    put(&mut archive, b'2', path, 0, 1 + usize::from(*bytes) % 99);
                }
            }
        }
        for path in &self.whiteouts {
            let name = path.rsplit('/').next().unwrap_or_default();
            put(&mut archive, b'0', &join(parent(path), &format!(".wh.{name}")), 0, 0);
        }
        for path in &self.opaque {
            put(&mut archive, b'0', &join(path, ".wh..wh..opq"), 0, 0);
        }
        archive.resize(archive.len() + 2 * BLOCK_BYTES, 0);
        archive
    }
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// Appends an entry with so many bytes of contents, or with a target of so many bytes.
fn put(archive: &mut Vec<u8>, kind: u8, path: &str, bytes: u8, target_bytes: usize) {
    let mut block = [0; BLOCK_BYTES];
    let size = format!("{bytes:011o}\0");
    let target = "t".repeat(target_bytes);
    let fields: [(usize, &[u8]); 8] = [
        (0, path.as_bytes()),
        (100, b"0000755\0"),
        (108, b"0000000\0"),
        (116, b"0000000\0"),
        (124, size.as_bytes()),
        (136, b"14000000000\0"),
        (157, target.as_bytes()),
        (257, b"ustar\x0000"),
    ];
    for (at, bytes) in fields {
        block[at..at + bytes.len()].copy_from_slice(bytes);
    }
    block[156] = kind;
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend_from_slice(&block);
    archive.resize(archive.len() + usize::from(bytes), bytes);
    archive.resize(archive.len().next_multiple_of(BLOCK_BYTES), 0);
}
