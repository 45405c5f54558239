//! The documents of an image that is published: its configuration and its manifest (OCI image
//! specification 1.1; EROFS image specification, sections 2.3 and 5).

use std::ops::Range;

use serde_json::json;

use super::{
    CONFIG_MEDIA_TYPE, DIGEST_ANNOTATION, EROFS_LAYER_TYPES, MANIFEST_MEDIA_TYPE, RANGE_ANNOTATION,
    TYPE_ANNOTATION, host_platform,
};
use crate::chunk_index::CHUNK_INDEX_MEDIA_TYPE;
use crate::digest::ContentDigest;

/// An EROFS image that is to be the only layer of a container image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedLayer {
    /// The digest of the whole blob.
    pub digest: ContentDigest,
    /// Bytes of the blob.
    pub length: u64,
    /// Where its chunk index is: at its end.
    pub index: Range<u64>,
    /// The digest of the chunk index.
    pub index_digest: ContentDigest,
}

/// The configuration and the manifest of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageDocuments {
    /// The configuration, a blob.
    pub config: String,
    /// The manifest, which names configuration and layer.
    pub manifest: String,
}

impl ImageDocuments {
    /// For an image with one layer, for `platform` as in `linux/arm64/v8`, or for this machine. The
    /// same layer always gets the same documents.
    #[must_use]
    pub fn new(layer: &PublishedLayer, platform: Option<&str>) -> Self {
        let platform = platform.map_or_else(host_platform, ToOwned::to_owned);
        let mut parts = platform.split('/');
        let os = parts.next().unwrap_or_default();
        let architecture = parts.next().unwrap_or_default();
        let mut config = json!({
            "architecture": architecture,
            "config": {},
            "os": os,
            "os.features": ["erofs"],
            "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
        });
        if let (Some(variant), Some(members)) = (parts.next(), config.as_object_mut()) {
            members.insert("variant".to_owned(), variant.into());
        }
        let config = config.to_string();
        let Range { start, end } = layer.index;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_MEDIA_TYPE,
            "config": {
                "mediaType": CONFIG_MEDIA_TYPE,
                "digest": ContentDigest::of(config.as_bytes()),
                "size": config.len(),
            },
            "layers": [{
                "mediaType": EROFS_LAYER_TYPES[0],
                "digest": layer.digest,
                "size": layer.length,
                "annotations": {
                    RANGE_ANNOTATION: format!("{start}:{end}"),
                    DIGEST_ANNOTATION: layer.index_digest,
                    TYPE_ANNOTATION: CHUNK_INDEX_MEDIA_TYPE,
                },
            }],
        });
        Self { config, manifest: manifest.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{IndexPlace, Layer, choose_layer, choose_manifest};
    use super::*;

    #[test]
    fn the_manifest_is_read_back() {
        let (digest, index_digest) = (ContentDigest::of(b"blob"), ContentDigest::of(b"index"));
        let published = PublishedLayer { digest, length: 1000, index: 900..1000, index_digest };
        let documents = ImageDocuments::new(&published, Some("linux/arm64/v8"));
        let manifest = documents.manifest.as_bytes();
        assert_eq!(choose_manifest("", manifest, None), Ok(None));
        let index = Some(IndexPlace::Embedded { range: 900..1000, digest: Some(index_digest) });
        assert_eq!(choose_layer(manifest, None), Ok(Layer { digest, length: 1000, index }));
        let config: serde_json::Value = serde_json::from_str(&documents.config).unwrap();
        assert_eq!((&config["os"], &config["variant"]), (&json!("linux"), &json!("v8")));
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest]));
        assert_eq!(config["os.features"], json!(["erofs"]));
        assert_eq!(ImageDocuments::new(&published, Some("linux/arm64/v8")), documents);
    }
}
