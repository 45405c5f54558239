//! Documents of OCI images: which manifest of an index, which layer of a manifest, and where its
//! chunk index is. Pure functions of bytes, used by the fetcher and for layout directories.
//!
//! Sources: OCI image specification 1.1; EROFS image specification (media types, annotations);
//! containerd and nerdctl for older media types.

mod container;
mod publish;

use std::collections::HashMap;
use std::ops::Range;

use serde::Deserialize;

use crate::chunk_index::{CHUNK_INDEX_MAX_BYTES, CHUNK_INDEX_MEDIA_TYPE};
pub use crate::digest::BlobReference;
use crate::digest::ContentDigest;
use crate::location::LayerSelector;

pub use container::{ContainerManifest, container_manifest, diff_ids, layout_manifest};
pub use publish::{ImageDocuments, PublishedLayer};

/// Media types of layers that are uncompressed EROFS images.
pub const EROFS_LAYER_TYPES: [&str; 4] = [
    "application/vnd.erofs",
    "application/vnd.erofs.layer.v1",
    "application/vnd.oci.image.layer.erofs",
    "application/vnd.stacker.image.layer.erofs",
];
/// The media type of a manifest.
pub const MANIFEST_MEDIA_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of the configuration of an image.
pub const CONFIG_MEDIA_TYPE: &str = "application/vnd.oci.image.config.v1+json";
/// Most layers or manifests of one document.
const ENTRIES_MAX: usize = 4096;
const RANGE_ANNOTATION: &str = "org.erofs.chunk-index.range";
const DIGEST_ANNOTATION: &str = "org.erofs.chunk-index.digest";
const TARGET_ANNOTATION: &str = "org.erofs.chunk-index.target";
const TYPE_ANNOTATION: &str = "org.erofs.chunk-index.mediaType";

/// A layer that is an EROFS image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The digest of the whole blob.
    pub digest: ContentDigest,
    /// Bytes of the blob.
    pub length: u64,
    /// Where its chunk index is, if it has one.
    pub index: Option<IndexPlace>,
}

/// Where the chunk index of a layer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexPlace {
    /// At the end of the blob of the layer.
    Embedded {
        /// The bytes of the blob.
        range: Range<u64>,
        /// The digest of the index.
        digest: ContentDigest,
    },
    /// In a blob of its own, the next layer of the manifest.
    Layer {
        /// The digest of that blob.
        digest: ContentDigest,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestDocument {
    media_type: Option<String>,
    config: Option<Descriptor>,
    manifests: Option<Vec<Descriptor>>,
    layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: HashMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
    variant: Option<String>,
}

/// Chooses a manifest of an image index: that of `platform`, or of this machine. `None` if the
/// document is a manifest itself. `media_type` is what the registry said, which may be empty.
///
/// # Errors
/// A text: the document is malformed, or no manifest or several are for the platform.
pub fn choose_manifest(
    media_type: &str,
    bytes: &[u8],
    platform: Option<&str>,
) -> Result<Option<ContentDigest>, String> {
    let document = parse(bytes)?;
    let stated = document.media_type.as_deref().filter(|stated| !stated.is_empty());
    let is_index = stated.unwrap_or(media_type).contains(".index.")
        || stated.unwrap_or(media_type).contains("manifest.list")
        || document.layers.is_none();
    let Some(manifests) = document.manifests.filter(|_| is_index) else { return Ok(None) };
    let wanted = platform.map_or_else(host_platform, ToOwned::to_owned);
    let mut fitting = manifests.iter().filter(|one| one.is_for(&wanted));
    let chosen = match (fitting.next(), fitting.next()) {
        (Some(one), None) => one,
        // Several for one platform: those for hosts that know EROFS come first in an index.
        (Some(one), Some(_)) => one,
        (None, _) if manifests.len() == 1 && platform.is_none() => &manifests[0],
        (None, _) => {
            let known: Vec<_> = manifests.iter().filter_map(Descriptor::platform_text).collect();
            return Err(format!(
                "the image has no manifest for {wanted}; it has {}",
                if known.is_empty() { "no platforms".to_owned() } else { known.join(", ") }
            ));
        }
    };
    chosen.parsed_digest().map(Some)
}

/// Chooses a layer of a manifest.
///
/// # Errors
/// A text: the document is malformed, has no EROFS layer, has several and `selector` is `None`, or
/// the layer that was selected is not an EROFS image.
pub fn choose_layer(manifest: &[u8], selector: Option<&LayerSelector>) -> Result<Layer, String> {
    let layers = parse(manifest)?.layers.ok_or("the manifest has no layers")?;
    let number = match selector {
        Some(LayerSelector::Number(number)) => *number as usize,
        Some(LayerSelector::Digest(digest)) => layers
            .iter()
            .position(|layer| layer.digest == *digest)
            .ok_or_else(|| format!("the image has no layer {digest}"))?,
        None => only_erofs_layer(&layers)?,
    };
    let layer = layers
        .get(number)
        .ok_or_else(|| format!("the image has {} layers, and no layer {number}", layers.len()))?;
    if !layer.is_erofs() {
        return Err(format!(
            "layer {number} has the type {}, which is no EROFS image",
            layer.media_type
        ));
    }
    let index = match layer.embedded_index()? {
        Some(place) => Some(place),
        None => layers.get(number + 1).map_or(Ok(None), |next| next.index_of(layer))?,
    };
    Ok(Layer { digest: layer.parsed_digest()?, length: layer.size, index })
}

fn only_erofs_layer(layers: &[Descriptor]) -> Result<usize, String> {
    let mut found = layers.iter().enumerate().filter(|(_, layer)| layer.is_erofs());
    match (found.next(), found.next()) {
        (Some((number, _)), None) => Ok(number),
        (Some(_), Some(_)) => {
            let numbers = (0..layers.len()).filter(|number| layers[*number].is_erofs());
            let numbers: Vec<_> = numbers.map(|number| number.to_string()).collect();
            Err(format!(
                "the image has several EROFS layers ({}); choose one with #layer=N",
                numbers.join(", ")
            ))
        }
        (None, _) => {
            let types: Vec<_> = layers.iter().map(|layer| layer.media_type.as_str()).collect();
            Err(format!(
                "the image has no EROFS layer; its layers have the types {}. \"ferrofs build\" \
                 converts ordinary images",
                types.join(", ")
            ))
        }
    }
}

fn parse(bytes: &[u8]) -> Result<ManifestDocument, String> {
    let document: ManifestDocument = serde_json::from_slice(bytes)
        .map_err(|error| format!("the manifest is malformed: {error}"))?;
    let entries = document.layers.as_ref().or(document.manifests.as_ref()).map_or(0, Vec::len);
    if entries > ENTRIES_MAX {
        return Err(format!("the manifest has {entries} entries; at most {ENTRIES_MAX} are read"));
    }
    Ok(document)
}

/// The platform of this machine in the words of OCI, which are those of Go.
fn host_platform() -> String {
    let is_little = cfg!(target_endian = "little");
    format!("linux/{}", architecture_of(std::env::consts::ARCH, is_little))
}

/// What Go calls an architecture of Rust.
fn architecture_of(name: &str, is_little: bool) -> &str {
    match name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "loongarch64" => "loong64",
        "powerpc64" if is_little => "ppc64le",
        "powerpc64" => "ppc64",
        other => other,
    }
}

/// The variant of an architecture that is meant without one, as containerd has it.
fn usual_variant(architecture: &str) -> &'static str {
    match architecture {
        "amd64" => "v1",
        "arm" => "v7",
        "arm64" => "v8",
        _ => "",
    }
}

impl Descriptor {
    fn parsed_digest(&self) -> Result<ContentDigest, String> {
        self.digest.parse().map_err(|error| format!("the digest {:?}: {error}", self.digest))
    }

    fn is_erofs(&self) -> bool {
        EROFS_LAYER_TYPES.contains(&self.media_type.as_str())
    }

    fn platform_text(&self) -> Option<String> {
        let platform = self.platform.as_ref()?;
        let variant = platform.variant.as_ref().map(|variant| format!("/{variant}"));
        Some(format!("{}/{}{}", platform.os, platform.architecture, variant.unwrap_or_default()))
    }

    /// Whether it is for a platform; one without a variant means all of them.
    fn is_for(&self, wanted: &str) -> bool {
        let Some(own) = &self.platform else { return false };
        let mut words = wanted.splitn(3, '/');
        if words.next() != Some(&*own.os) || words.next() != Some(&*own.architecture) {
            return false;
        }
        let variant = own.variant.as_deref().filter(|variant| !variant.is_empty());
        let variant = variant.unwrap_or_else(|| usual_variant(&own.architecture));
        words.next().is_none_or(|wanted| wanted == variant)
    }

    /// An index without a digest is none: whoever sends the blob could have written it.
    fn embedded_index(&self) -> Result<Option<IndexPlace>, String> {
        let is_known = self
            .annotations
            .get(TYPE_ANNOTATION)
            .is_none_or(|media_type| media_type == CHUNK_INDEX_MEDIA_TYPE);
        let Some(text) = self.annotations.get(RANGE_ANNOTATION).filter(|_| is_known) else {
            return Ok(None);
        };
        let malformed = || format!("the annotation {RANGE_ANNOTATION}={text:?} is malformed");
        // OFFSET, or OFFSET:END.
        let (start, end) =
            text.split_once(':').map_or((text.as_str(), None), |(start, end)| (start, Some(end)));
        let start: u64 = start.parse().map_err(|_| malformed())?;
        let end = end.map_or(Ok(self.size), |end| end.parse().map_err(|_| malformed()))?;
        let limit = CHUNK_INDEX_MAX_BYTES as u64;
        if start >= end || end > self.size || end - start > limit {
            return Err(malformed());
        }
        let Some(digest) = self.annotations.get(DIGEST_ANNOTATION) else { return Ok(None) };
        let digest =
            digest.parse().map_err(|error| format!("{DIGEST_ANNOTATION}={digest:?}: {error}"))?;
        Ok(Some(IndexPlace::Embedded { range: start..end, digest }))
    }

    /// This layer as the chunk index of the one before it.
    fn index_of(&self, layer: &Self) -> Result<Option<IndexPlace>, String> {
        if self.media_type != CHUNK_INDEX_MEDIA_TYPE {
            return Ok(None);
        }
        match self.annotations.get(TARGET_ANNOTATION) {
            Some(target) if *target != layer.digest => Err(format!(
                "the chunk index behind layer {} says that it belongs to {target}",
                layer.digest
            )),
            _ => Ok(Some(IndexPlace::Layer { digest: self.parsed_digest()? })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: u8) -> ContentDigest {
        ContentDigest::of(&[number])
    }

    fn layer(media_type: &str, number: u8, annotations: &str) -> String {
        format!(
            r#"{{"mediaType":"{media_type}","digest":"{}","size":1000,"annotations":{{{annotations}}}}}"#,
            digest(number)
        )
    }

    fn manifest(layers: &[String]) -> Vec<u8> {
        format!(r#"{{"schemaVersion":2,"layers":[{}]}}"#, layers.join(",")).into_bytes()
    }

    const EROFS: &str = "application/vnd.erofs";
    const TAR: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

    #[test]
    fn every_name_of_an_erofs_layer_is_known() {
        for media_type in EROFS_LAYER_TYPES {
            let found = choose_layer(&manifest(&[layer(media_type, 1, "")]), None).unwrap();
            assert_eq!(found, Layer { digest: digest(1), length: 1000, index: None });
        }
        let error = choose_layer(&manifest(&[layer(TAR, 1, "")]), None).unwrap_err();
        assert!(error.contains(TAR), "{error}");
    }

    #[test]
    fn one_of_several_layers_must_be_chosen() {
        let bytes = manifest(&[layer(EROFS, 1, ""), layer(TAR, 2, ""), layer(EROFS, 3, "")]);
        assert!(choose_layer(&bytes, None).unwrap_err().contains("(0, 2)"));
        let chosen = |selector| choose_layer(&bytes, Some(&selector)).map(|layer| layer.digest);
        assert_eq!(chosen(LayerSelector::Number(2)), Ok(digest(3)));
        assert_eq!(chosen(LayerSelector::Digest(digest(1).to_string())), Ok(digest(1)));
        assert!(chosen(LayerSelector::Number(1)).unwrap_err().contains("no EROFS image"));
        assert!(chosen(LayerSelector::Number(3)).unwrap_err().contains("3 layers"));
        chosen(LayerSelector::Digest(digest(9).to_string())).unwrap_err();
    }

    #[test]
    fn a_chunk_index_is_found_at_the_end_or_beside() {
        let index = |annotations: &str| {
            choose_layer(&manifest(&[layer(EROFS, 1, annotations)]), None).map(|layer| layer.index)
        };
        let proof = format!(r#""{DIGEST_ANNOTATION}":"{}""#, digest(8));
        let with = |range: &str| index(&format!(r#""{RANGE_ANNOTATION}":"{range}",{proof}"#));
        let embedded = |range| Ok(Some(IndexPlace::Embedded { range, digest: digest(8) }));
        assert_eq!(with("900"), embedded(900..1000));
        assert_eq!(with("900:950"), embedded(900..950));
        for bad in ["", "x", "900-950", "950:900", "900:1001", "1000", "18446744073709551616"] {
            assert!(with(bad).is_err(), "{bad}");
        }
        let range = format!(r#""{RANGE_ANNOTATION}":"900""#);
        let other = format!(r#"{range},{proof},"{TYPE_ANNOTATION}":"application/x""#);
        assert_eq!(index(&other), Ok(None));
        assert_eq!(index(&range), Ok(None), "nothing proves it");
        index(&format!(r#"{range},"{DIGEST_ANNOTATION}":"x""#)).unwrap_err();
        let beside = |target| {
            let annotation = format!(r#""{TARGET_ANNOTATION}":"{}""#, digest(target));
            let index = layer(CHUNK_INDEX_MEDIA_TYPE, 7, &annotation);
            choose_layer(&manifest(&[layer(EROFS, 1, ""), index]), None).map(|layer| layer.index)
        };
        assert_eq!(beside(1), Ok(Some(IndexPlace::Layer { digest: digest(7) })));
        beside(2).unwrap_err();
    }

    #[test]
    fn the_manifest_of_a_platform_is_chosen() {
        let one = |number, platform: &str| {
            format!(r#"{{"digest":"{}","size":5,"platform":{{{platform}}}}}"#, digest(number))
        };
        let bytes = format!(
            r#"{{"manifests":[{},{},{}]}}"#,
            one(1, r#""os":"linux","architecture":"arm64","variant":"v8""#),
            one(2, r#""os":"linux","architecture":"riscv64""#),
            one(3, r#""os":"windows","architecture":"amd64""#)
        );
        let chosen = |platform| choose_manifest("", bytes.as_bytes(), Some(platform));
        assert_eq!(chosen("linux/arm64"), Ok(Some(digest(1))));
        assert_eq!(chosen("linux/arm64/v8"), Ok(Some(digest(1))));
        assert_eq!(chosen("linux/riscv64"), Ok(Some(digest(2))));
        assert!(chosen("linux/arm").unwrap_err().contains("linux/riscv64"));
        assert_eq!(choose_manifest("", &manifest(&[]), None), Ok(None));
        let single = format!(r#"{{"manifests":[{{"digest":"{}","size":5}}]}}"#, digest(4));
        assert_eq!(choose_manifest("", single.as_bytes(), None), Ok(Some(digest(4))));
    }

    /// `linux/arm64/v8` is what docker prints for `linux/arm64`.
    #[test]
    fn the_usual_variant_is_meant_without_one() {
        let chosen = |own: &str, wanted| {
            let digest = digest(1);
            let bytes = format!(
                r#"{{"manifests":[{{"digest":"{digest}","size":5,"platform":{{"os":"linux",{own}}}}}]}}"#
            );
            choose_manifest("", bytes.as_bytes(), Some(wanted)).is_ok()
        };
        let (arm, arm64) = (r#""architecture":"arm""#, r#""architecture":"arm64""#);
        assert!(chosen(arm64, "linux/arm64/v8") && chosen(arm, "linux/arm/v7"));
        assert!(!chosen(arm64, "linux/arm64/v9") && !chosen(arm, "linux/arm/v6"));
        let with = |architecture, variant| format!(r#"{architecture},"variant":"{variant}""#);
        assert!(chosen(&with(arm64, ""), "linux/arm64/v8"));
        assert!(chosen(&with(arm, "v6"), "linux/arm/v6") && chosen(&with(arm, "v6"), "linux/arm"));
        assert!(!chosen(&with(arm, "v6"), "linux/arm/v7"));
    }

    #[test]
    fn architectures_have_the_names_of_go() {
        for (name, is_little, wanted) in [
            ("x86_64", true, "amd64"),
            ("loongarch64", true, "loong64"),
            ("powerpc64", true, "ppc64le"),
            ("powerpc64", false, "ppc64"),
            ("riscv64", true, "riscv64"),
        ] {
            assert_eq!(architecture_of(name, is_little), wanted);
        }
    }

    #[test]
    fn malformed_documents_are_refused() {
        for bad in [&b""[..], b"[]", b"{\"layers\":3}", b"{\"layers\":[{}]}", b"\xff"] {
            choose_layer(bad, None).unwrap_err();
            choose_manifest("", bad, None).unwrap_err();
        }
        choose_layer(b"{}", None).unwrap_err();
        let many = vec![layer(EROFS, 1, ""); ENTRIES_MAX + 1];
        choose_layer(&manifest(&many), Some(&LayerSelector::Number(0))).unwrap_err();
    }
}
