//! An image in an archive of `docker save` or `podman save`: a tar archive with `manifest.json`, a
//! configuration, and a tar archive for each layer. The importer of the library reads it, as it
//! would any archive.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ferrofs_builder::import::{TarImportOptions, TarSource, WhiteoutPolicy, from_tar};
use ferrofs_builder::tree::{Content, ContentReader, NodeId, NodeKind, Tree};
use ferrofs_builder::{CancelToken, NoopObserver};
use ferrofs_remote::ContentDigest;
use ferrofs_remote::oci::diff_ids;
use serde::Deserialize;

use super::{BlobReader, ContainerImage, DOCUMENT_MAX_BYTES, LAYERS_MAX};

/// Symlinks that are followed in a row: older archives have one for a layer that they repeat.
const LINKS_MAX: u32 = 4;

/// An entry of `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Opens the image of `FILE`, or that of a tag, `FILE:NAME:TAG`.
pub(super) fn open(
    text: &str,
    options: &TarImportOptions,
    cancel: &CancelToken,
) -> Result<ContainerImage, String> {
    let (file, tag) = split(text);
    let mut outer = TarImportOptions::default().input(options.input).spool(options.spool.clone());
    outer = outer.whiteouts(WhiteoutPolicy::Keep).store(options.store.clone());
    outer.window_bytes_max = options.window_bytes_max;
    let source = TarSource::Path(PathBuf::from(file));
    let archive =
        from_tar(source, &outer, &NoopObserver, cancel).map_err(|error| error.to_string())?;
    let manifest = read_file(&archive, "manifest.json")?;
    let images: Vec<SavedImage> = serde_json::from_slice(&manifest)
        .map_err(|error| format!("manifest.json is malformed: {error}"))?;
    let saved = choose(&images, tag)?;
    let config = read_file(&archive, &saved.config)?;
    if let Some(digest) = digest_of_name(&saved.config)
        && ContentDigest::of(&config) != digest
    {
        return Err("the configuration does not have the digest in its name".to_owned());
    }
    if saved.layers.len() > LAYERS_MAX {
        return Err(format!("the image has more than {LAYERS_MAX} layers"));
    }
    let mut image = ContainerImage::default();
    for (path, diff_id) in saved.layers.iter().zip(diff_ids(&config, saved.layers.len())?) {
        let content = find_file(&archive, path)?;
        let reader = ContentStream::open(&content).map_err(|error| format!("{path}: {error}"))?;
        let reader = BlobReader::new(Box::new(reader), content.bytes(), digest_of_name(path));
        image.add(reader, diff_id);
    }
    image.config = config;
    Ok(image)
}

/// The archive, and the tag of an image in it.
pub(super) fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once(':') {
        Some((file, tag)) if !Path::new(text).exists() => (file, Some(tag)),
        _ => (text, None),
    }
}

fn choose<'a>(images: &'a [SavedImage], tag: Option<&str>) -> Result<&'a SavedImage, String> {
    let tags = |image: &'a SavedImage| image.repo_tags.iter().flatten();
    let mut fitting =
        images.iter().filter(|image| tag.is_none_or(|wanted| tags(image).any(|tag| tag == wanted)));
    match (fitting.next(), fitting.next()) {
        (Some(image), None) => Ok(image),
        (found, _) => {
            let known: Vec<_> = images.iter().flat_map(tags).map(String::as_str).collect();
            let what = if found.is_some() { "several images" } else { "no such image" };
            Err(format!("the archive has {what}; give one of its tags: {}", known.join(", ")))
        }
    }
}

/// Newer archives name blobs by their digests: `blobs/sha256/HEX`, or `HEX.json`.
fn digest_of_name(path: &str) -> Option<ContentDigest> {
    let name = path.strip_prefix("blobs/sha256/").or_else(|| path.strip_suffix(".json"));
    format!("sha256:{}", name?).parse().ok()
}

fn read_file(archive: &Tree, path: &str) -> Result<Vec<u8>, String> {
    let content = find_file(archive, path)?;
    if content.bytes() > DOCUMENT_MAX_BYTES {
        return Err(format!("{path}: a document of {} bytes is too long", content.bytes()));
    }
    let mut bytes = Vec::new();
    let read = ContentStream::open(&content).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(|error| format!("{path}: {error}"))?;
    Ok(bytes)
}

/// The file with a path.
fn find_file(archive: &Tree, path: &str) -> Result<Content, String> {
    let absent = || format!("the archive has no file {path:?}");
    let mut parts: Vec<Vec<u8>> = path.split('/').map(|part| part.as_bytes().to_vec()).collect();
    for _ in 0..LINKS_MAX {
        let id = find(archive, &parts).ok_or_else(absent)?;
        match archive.node(id).kind {
            NodeKind::File(_) => return archive.content(id).ok_or_else(absent),
            NodeKind::Symlink(target) => {
                parts.pop();
                for part in target.split(|byte| *byte == b'/') {
                    match part {
                        b".." => drop(parts.pop()),
                        b"." | b"" => {}
                        part => parts.push(part.to_vec()),
                    }
                }
            }
            _ => return Err(absent()),
        }
    }
    Err(absent())
}

fn find(archive: &Tree, parts: &[Vec<u8>]) -> Option<NodeId> {
    parts.iter().try_fold(Tree::ROOT, |parent, part| archive.child(parent, part))
}

/// A file of the archive from its first byte to its last.
struct ContentStream {
    reader: Box<dyn ContentReader>,
    offset: u64,
    length: u64,
}

impl ContentStream {
    fn open(content: &Content) -> io::Result<Self> {
        let reader = content.source().open().map_err(io::Error::other)?;
        Ok(Self { reader, offset: 0, length: content.bytes() })
    }
}

impl Read for ContentStream {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.length - self.offset).unwrap_or(usize::MAX);
        let count = output.len().min(left);
        let output = &mut output[..count];
        self.reader.read_exact_at(self.offset, output).map_err(io::Error::other)?;
        self.offset += count as u64;
        Ok(count)
    }
}
