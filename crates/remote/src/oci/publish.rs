//! The documents of an image that is published: its configuration and its manifest (OCI image
//! specification 1.1; EROFS image specification, sections 2.3 and 5).

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::{
    CONFIG_MEDIA_TYPE, DIGEST_ANNOTATION, EROFS_LAYER_TYPES, MANIFEST_MEDIA_TYPE, RANGE_ANNOTATION,
    TYPE_ANNOTATION, host_platform,
};
use crate::chunk_index::CHUNK_INDEX_MEDIA_TYPE;
use crate::digest::ContentDigest;

/// What a configuration keeps when its layers are replaced by an image.
const KEPT_MEMBERS: [&str; 7] =
    ["architecture", "author", "config", "created", "os", "os.version", "variant"];

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
        Self::of(layer, platform, Map::new())
    }

    /// The same with what `config`, the configuration of another image, says about the container that
    /// is made of it: entry point, environment, labels, user, and so on, and its author, time and platform.
    /// Its layers and their history are left out.
    ///
    /// # Errors
    /// A text: it is no such document.
    pub fn with_config(
        layer: &PublishedLayer,
        platform: Option<&str>,
        config: &[u8],
    ) -> Result<Self, String> {
        let config: Value = serde_json::from_slice(config)
            .map_err(|error| format!("the configuration is malformed: {error}"))?;
        let Value::Object(mut members) = config else {
            return Err("the configuration is not a JSON object".to_owned());
        };
        if members.get("config").is_some_and(|config| !config.is_object() && !config.is_null()) {
            return Err("the member \"config\" of the configuration is not an object".to_owned());
        }
        let looks_like_one = ["config", "rootfs", "architecture"];
        if !looks_like_one.iter().any(|name| members.contains_key(*name)) {
            let why = "not the configuration of a container image: it has none of the members";
            return Err(format!("{why} {}", looks_like_one.join(", ")));
        }
        members.retain(|name, value| KEPT_MEMBERS.contains(&name.as_str()) && !value.is_null());
        Ok(Self::of(layer, platform, members))
    }

    /// With these members, unless they are about the layer, or `platform` names another one.
    fn of(layer: &PublishedLayer, platform: Option<&str>, mut members: Map<String, Value>) -> Self {
        let has_platform = ["os", "architecture"].iter().all(|name| members.contains_key(*name));
        if platform.is_some() || !has_platform {
            let platform = platform.map_or_else(host_platform, ToOwned::to_owned);
            let mut parts = platform.split('/');
            for name in ["os", "architecture"] {
                members.insert(name.to_owned(), parts.next().unwrap_or_default().into());
            }
            members.remove("os.version");
            members.remove("variant");
            members.extend(parts.next().map(|variant| ("variant".to_owned(), variant.into())));
        }
        members.entry("config").or_insert_with(|| json!({}));
        members.insert("os.features".to_owned(), json!(["erofs"]));
        let rootfs = json!({ "type": "layers", "diff_ids": [layer.digest] });
        members.insert("rootfs".to_owned(), rootfs);
        let config = Value::Object(members).to_string();
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
        let index = Some(IndexPlace::Embedded { range: 900..1000, digest: index_digest });
        assert_eq!(choose_layer(manifest, None), Ok(Layer { digest, length: 1000, index }));
        let config: Value = serde_json::from_str(&documents.config).unwrap();
        assert_eq!((&config["os"], &config["variant"]), (&json!("linux"), &json!("v8")));
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest]));
        assert_eq!(config["os.features"], json!(["erofs"]));
        assert_eq!(ImageDocuments::new(&published, Some("linux/arm64/v8")), documents);
    }

    #[test]
    fn a_configuration_is_kept_without_its_layers() {
        let (digest, index_digest) = (ContentDigest::of(b"blob"), ContentDigest::of(b"index"));
        let published = PublishedLayer { digest, length: 1000, index: 900..1000, index_digest };
        let source = br#"{"architecture":"arm64","os":"linux","variant":"v8","author":"me","extra":1,
            "created":"2026-11-26T00:00:00Z","history":[{}],"rootfs":{"type":"layers","diff_ids":["sha256:00"]},
            "config":{"Entrypoint":["/bin/app"],"Env":["A=b"],"Labels":{"x":"y"},"User":"7:8"}}"#;
        let made = |platform| {
            let documents = ImageDocuments::with_config(&published, platform, source).unwrap();
            let manifest: Value = serde_json::from_str(&documents.manifest).unwrap();
            let digest = ContentDigest::of(documents.config.as_bytes()).to_string();
            assert_eq!(manifest["config"]["digest"], digest);
            serde_json::from_str::<Value>(&documents.config).unwrap()
        };
        let config = made(None);
        assert_eq!(config["config"]["Entrypoint"], json!(["/bin/app"]));
        assert_eq!(config["config"]["Labels"], json!({"x": "y"}));
        assert_eq!((&config["variant"], &config["author"]), (&json!("v8"), &json!("me")));
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest]));
        assert_eq!((config.get("history"), config.get("extra")), (None, None));
        let other = made(Some("linux/amd64"));
        assert_eq!((&other["architecture"], other.get("variant")), (&json!("amd64"), None));
        for bad in [&b"{"[..], b"[]", b"{}", br#"{"config":7}"#, br#"{"layers":[]}"#] {
            ImageDocuments::with_config(&published, None, bad).unwrap_err();
        }
    }
}
