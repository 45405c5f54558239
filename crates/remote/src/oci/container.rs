//! Documents of ordinary container images, whose layers are tar archives: which manifest of a
//! layout, which layers, and the digests that they have when they are unpacked.

use serde::Deserialize;

use super::{Descriptor, ENTRIES_MAX, parse};
use crate::digest::{BlobReference, ContentDigest};

/// Media types of layers that are tar archives, whatever compresses them: of OCI and of docker.
const TAR_LAYER_TYPES: [&str; 4] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
];
/// What may follow these names.
const COMPRESSIONS: [&str; 5] = ["", "+gzip", "+zstd", ".gzip", ".zstd"];
/// The annotation of a manifest in a layout that is its tag.
const TAG_ANNOTATION: &str = "org.opencontainers.image.ref.name";

/// What is needed to unpack a container image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerManifest {
    /// The configuration, which has the digests of the unpacked layers.
    pub config: BlobReference,
    /// The layers, the lowest first.
    pub layers: Vec<BlobReference>,
}

#[derive(Deserialize)]
struct Config {
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<ContentDigest>,
}

/// Reads the manifest of a container image.
///
/// # Errors
/// A text: the document is malformed, or a layer is no tar archive.
pub fn container_manifest(manifest: &[u8]) -> Result<ContainerManifest, String> {
    let document = parse(manifest)?;
    let layers = document.layers.ok_or("the manifest has no layers")?;
    if let Some((number, layer)) = layers.iter().enumerate().find(|(_, layer)| !layer.is_tar()) {
        let remedy =
            if layer.is_erofs() { "; mount, extract or pull the image instead" } else { "" };
        let media_type = &layer.media_type;
        return Err(format!(
            "layer {number} has the type {media_type}, which is no tar archive{remedy}"
        ));
    }
    let config = document.config.ok_or("the manifest has no configuration")?;
    let layers = layers.iter().map(Descriptor::reference).collect::<Result<_, _>>()?;
    Ok(ContainerManifest { config: config.reference()?, layers })
}

/// The digests of the layers after decompression, from the configuration of an image with so many
/// layers.
///
/// # Errors
/// A text: the document is malformed, or has another number of layers.
pub fn diff_ids(config: &[u8], layers: usize) -> Result<Vec<ContentDigest>, String> {
    let config: Config = serde_json::from_slice(config)
        .map_err(|error| format!("the configuration is malformed: {error}"))?;
    let ids = config.rootfs.diff_ids;
    if ids.len() != layers {
        let count = ids.len();
        return Err(format!("the configuration has {count} layers, and the manifest {layers}"));
    }
    Ok(ids)
}

/// Chooses a manifest, or an image index, of the `index.json` of a layout directory: that with the
/// tag, or the only one.
///
/// # Errors
/// A text: the document is malformed, there is no such tag, or a tag is needed.
pub fn layout_manifest(index: &[u8], tag: Option<&str>) -> Result<BlobReference, String> {
    let manifests = parse(index)?.manifests.ok_or("index.json lists no manifests")?;
    let tag_of = |one: &Descriptor| one.annotations.get(TAG_ANNOTATION).cloned();
    let known = || {
        let tags: Vec<_> = manifests.iter().take(ENTRIES_MAX).filter_map(tag_of).collect();
        if tags.is_empty() { "no tags".to_owned() } else { tags.join(", ") }
    };
    let mut fitting = manifests.iter().filter(|one| tag.is_none() || tag_of(one).as_deref() == tag);
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => one.reference(),
        (Some(_), Some(_)) => Err(format!("the layout has several images; it has {}", known())),
        (None, _) => {
            Err(format!("the layout has no image {}; it has {}", tag.unwrap_or_default(), known()))
        }
    }
}

impl Descriptor {
    fn reference(&self) -> Result<BlobReference, String> {
        Ok(BlobReference { digest: self.parsed_digest()?, length: self.size })
    }

    fn is_tar(&self) -> bool {
        TAR_LAYER_TYPES.iter().any(|name| {
            let rest = self.media_type.strip_prefix(name);
            rest.is_some_and(|rest| COMPRESSIONS.contains(&rest))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: u8) -> ContentDigest {
        ContentDigest::of(&[number])
    }

    fn descriptor(media_type: &str, number: u8, tag: &str) -> String {
        let digest = digest(number);
        format!(
            r#"{{"mediaType":"{media_type}","digest":"{digest}","size":9,"annotations":{{"{TAG_ANNOTATION}":"{tag}"}}}}"#
        )
    }

    fn manifest(types: &[&str]) -> Vec<u8> {
        let layers: Vec<_> = types.iter().map(|one| descriptor(one, 1, "")).collect();
        let config = descriptor("application/x", 2, "");
        format!(r#"{{"config":{config},"layers":[{}]}}"#, layers.join(",")).into_bytes()
    }

    #[test]
    fn layers_are_tar_archives() {
        for name in TAR_LAYER_TYPES {
            let types = COMPRESSIONS.map(|compression| format!("{name}{compression}"));
            let found = container_manifest(&manifest(&types.each_ref().map(String::as_str)));
            let found = found.unwrap();
            assert_eq!(found.layers, [BlobReference { digest: digest(1), length: 9 }; 5]);
            assert_eq!(found.config, BlobReference { digest: digest(2), length: 9 });
        }
        for bad in ["application/vnd.oci.image.layer.v1.tar+encrypted", "text/plain", ""] {
            let error = container_manifest(&manifest(&[TAR_LAYER_TYPES[0], bad])).unwrap_err();
            assert!(error.contains("layer 1"), "{error}");
        }
        let error = container_manifest(&manifest(&["application/vnd.erofs"])).unwrap_err();
        assert!(error.contains("mount"), "{error}");
        for bad in [&b"{}"[..], b"[", br#"{"layers":[]}"#] {
            container_manifest(bad).unwrap_err();
        }
    }

    #[test]
    fn each_layer_has_a_digest_in_the_configuration() {
        let config = format!(r#"{{"rootfs":{{"type":"layers","diff_ids":["{}"]}}}}"#, digest(3));
        assert_eq!(diff_ids(config.as_bytes(), 1), Ok(vec![digest(3)]));
        diff_ids(config.as_bytes(), 2).unwrap_err();
        for bad in ["", "{}", r#"{"rootfs":{"diff_ids":["sha256:00"]}}"#] {
            diff_ids(bad.as_bytes(), 1).unwrap_err();
        }
    }

    #[test]
    fn the_image_of_a_tag_is_chosen() {
        let (one, two) = (descriptor("", 1, "v1"), descriptor("", 2, "v2"));
        let index = format!(r#"{{"manifests":[{one},{two}]}}"#);
        let chosen = |tag| layout_manifest(index.as_bytes(), tag).map(|found| found.digest);
        assert_eq!(chosen(Some("v2")), Ok(digest(2)));
        assert!(chosen(Some("v3")).unwrap_err().contains("v1, v2"));
        assert!(chosen(None).unwrap_err().contains("several"));
        let single = format!(r#"{{"manifests":[{one}]}}"#);
        assert_eq!(layout_manifest(single.as_bytes(), None).unwrap().digest, digest(1));
        layout_manifest(b"{}", None).unwrap_err();
    }
}
