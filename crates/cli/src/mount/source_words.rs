//! The words of `-o` by which mount.erofs describes an image in a registry or an object store, `oci.*`
//! and `s3.*`: with them SOURCE is `NAME:TAG` or `BUCKET/KEY`, and becomes a location. Used by `request`,
//! for that name of the program only. Opens nothing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use ferrofs_remote::{Location, RemoteObject};

/// The registry of a name without one, as docker has it.
const DEFAULT_REGISTRY: &str = "docker.io";

/// What the words say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SourceWords {
    kind: Option<RemoteKind>,
    /// The word, and what comes behind `#layer=`.
    layer: Option<(&'static str, String)>,
    platform: Option<String>,
    is_insecure: bool,
    /// For the process that connects: variables of its environment.
    pub(super) variables: Vec<(&'static str, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RemoteKind {
    Registry,
    Bucket,
}

/// A source that the words make a location of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamedSource {
    pub(super) location: PathBuf,
    /// Its registry, if that speaks HTTP without TLS.
    pub(super) insecure_registry: Option<String>,
}

impl SourceWords {
    /// Takes a word; false if it is none of these.
    ///
    /// # Errors
    /// The name of the word, and why it cannot be honoured. The value may be a password.
    pub(super) fn take(&mut self, word: &OsStr) -> Result<bool, (String, &'static str)> {
        let Some(text) = word.to_str() else { return Ok(false) };
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let kind = match name.split_once('.') {
            Some(("oci", _)) => RemoteKind::Registry,
            Some(("s3", _)) => RemoteKind::Bucket,
            _ => return Ok(false),
        };
        let refused = |why| Err((name.to_owned(), why));
        if self.kind.is_some_and(|other| other != kind) {
            return refused("options of oci. cannot be used with options of s3.");
        }
        self.kind = Some(kind);
        match name {
            "oci.username" | "oci.password" => {
                return refused(
                    "every user can read the arguments of a process; log in with docker, podman or skopeo",
                );
            }
            "oci.tarindex" | "oci.zinfo" => {
                return refused(
                    "a layer that is a tar archive is not read in place; convert the image: ferrofs build",
                );
            }
            "s3.passwd_file" => {
                return refused(
                    "set the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead",
                );
            }
            "oci.insecure" => self.is_insecure = true,
            _ if value.is_empty() => {
                return refused("the value is missing, or there is no such option");
            }
            "oci.blob" | "oci.layer" if self.layer.is_some() => {
                return refused("oci.blob cannot be used with oci.layer");
            }
            "oci.blob" => {
                let digest = value.strip_prefix("sha256:").unwrap_or(value);
                self.layer = Some(("oci.blob", format!("sha256:{digest}")));
            }
            "oci.layer" => self.layer = Some(("oci.layer", value.to_owned())),
            "oci.platform" => self.platform = Some(value.to_owned()),
            "s3.region" => self.variables.push(("AWS_REGION", value.to_owned())),
            "s3.endpoint" if value.starts_with("http://") => {
                self.variables.push(("AWS_ENDPOINT_URL", value.to_owned()));
                self.variables.push(("AWS_ALLOW_HTTP", "true".to_owned()));
            }
            "s3.endpoint" => {
                let has_scheme = value.starts_with("https://");
                let scheme = if has_scheme { "" } else { "https://" };
                self.variables.push(("AWS_ENDPOINT_URL", format!("{scheme}{value}")));
            }
            "s3.urlstyle" if matches!(value, "path" | "vhost") => {
                let is_host = (value == "vhost").to_string();
                self.variables.push(("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", is_host));
            }
            "s3.sig" if value == "4" => {}
            "s3.sig" => return refused("only signatures of version 4 are supported; use s3.sig=4"),
            _ => return refused("there is no such option"),
        }
        Ok(true)
    }

    /// The location of a source; `None` without such words, or if it is a location already.
    ///
    /// # Errors
    /// A word, and why it cannot be honoured: the source is a location, which has another place for what the word says.
    pub(super) fn named(
        &self,
        source: &Path,
    ) -> Result<Option<NamedSource>, (&'static str, &'static str)> {
        let (Some(kind), Some(text)) = (self.kind, source.to_str()) else { return Ok(None) };
        match Location::parse(source.as_os_str()) {
            Ok(Location::Remote(location)) => {
                return self.refuse_beside(&location.object).map(|()| None);
            }
            // Whoever opens it says what is wrong with it.
            Err(_) => return Ok(None),
            Ok(_) => {}
        }
        Ok(Some(match kind {
            RemoteKind::Bucket => NamedSource {
                // In a key, `%` and `#` have a meaning only in a location.
                location: format!("s3://{}", text.replace('%', "%25").replace('#', "%23")).into(),
                insecure_registry: None,
            },
            RemoteKind::Registry => {
                let (first, rest) = text.split_once('/').unwrap_or(("", text));
                let is_host = first.contains(['.', ':']) || first == "localhost";
                let (registry, name) =
                    if is_host { (first, rest) } else { (DEFAULT_REGISTRY, text) };
                let layer = self.layer.as_ref().map(|(_, layer)| layer);
                let parameters: Vec<String> =
                    [("layer", layer), ("platform", self.platform.as_ref())]
                        .into_iter()
                        .filter_map(|(name, value)| Some(format!("{name}={}", value?)))
                        .collect();
                let separator = if parameters.is_empty() { "" } else { "#" };
                let parameters = parameters.join("&");
                NamedSource {
                    location: format!("oci://{registry}/{name}{separator}{parameters}").into(),
                    insecure_registry: self.is_insecure.then(|| registry.to_owned()),
                }
            }
        }))
    }

    /// Endpoints and regions of object stores count for locations, too.
    fn refuse_beside(&self, object: &RemoteObject) -> Result<(), (&'static str, &'static str)> {
        let has_registry = matches!(object, RemoteObject::Oci { .. });
        let has_layers = has_registry || matches!(object, RemoteObject::OciLayout { .. });
        let words = [
            (
                self.layer.as_ref().map(|(word, _)| *word),
                has_layers,
                "SOURCE is a location; write #layer=N or #layer=sha256:... behind it",
            ),
            (
                self.platform.as_ref().map(|_| "oci.platform"),
                has_layers,
                "SOURCE is a location; write #platform=OS/ARCH behind it",
            ),
            (
                self.is_insecure.then_some("oci.insecure"),
                has_registry,
                "SOURCE is a location; use insecure_registry=HOST instead",
            ),
        ];
        let mut refused = words.into_iter().filter_map(|(word, applies, why)| {
            let why = if applies {
                why
            } else {
                "SOURCE is a location that has no such part; leave it out"
            };
            Some((word?, why))
        });
        refused.next().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Result<SourceWords, (String, &'static str)> {
        let mut words = SourceWords::default();
        list.iter().try_for_each(|word| words.take(word.as_ref()).map(|taken| assert!(taken)))?;
        Ok(words)
    }

    fn location(list: &[&str], source: &str) -> String {
        let named = words(list).unwrap().named(Path::new(source)).unwrap().unwrap();
        named.location.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_name_of_docker_becomes_a_location() {
        let digest = "13b7e9";
        assert_eq!(
            location(&["oci.layer=0"], "ubuntu:20.04"),
            "oci://docker.io/ubuntu:20.04#layer=0"
        );
        assert_eq!(
            location(&["oci.platform=linux/arm64", "oci.blob=13b7e9"], "quay.io/a/b:1"),
            format!("oci://quay.io/a/b:1#layer=sha256:{digest}&platform=linux/arm64")
        );
        assert_eq!(location(&["oci.insecure"], "localhost:5000/a"), "oci://localhost:5000/a");
        let named = words(&["oci.insecure"]).unwrap().named(Path::new("localhost:5000/a"));
        let named = named.unwrap().unwrap();
        assert_eq!(named.insecure_registry.as_deref(), Some("localhost:5000"));
        assert_eq!(SourceWords::default().named(Path::new("a")), Ok(None));
    }

    /// They were ignored: another layer was mounted than was asked for.
    #[test]
    fn words_that_a_location_has_no_place_for_are_refused() {
        let leave = "leave it out";
        for (word, registry, layout) in [
            ("oci.layer=0", "#layer=", "#layer="),
            ("oci.blob=13b7e9", "#layer=", "#layer="),
            ("oci.platform=linux/arm64", "#platform=", "#platform="),
            ("oci.insecure", "insecure_registry=", leave),
        ] {
            for (location, suggestion) in [
                ("oci://host/a", registry),
                ("oci-layout:a", layout),
                ("https://host/a", leave),
                ("s3://bucket/a", leave),
            ] {
                let refused = words(&[word]).unwrap().named(Path::new(location)).unwrap_err();
                assert_eq!(refused.0, word.split('=').next().unwrap());
                assert!(refused.1.contains(suggestion), "{location}: {refused:?}");
            }
            assert_eq!(words(&[word]).unwrap().named(Path::new("oci://host")), Ok(None));
        }
        let region = words(&["s3.region=x"]).unwrap();
        assert_eq!(region.named(Path::new("s3://bucket/a")), Ok(None));
    }

    #[test]
    fn a_bucket_and_a_key_become_a_location() {
        let list = ["s3.endpoint=127.0.0.1:9", "s3.region=x", "s3.urlstyle=path", "s3.sig=4"];
        assert_eq!(location(&list, "bucket/a#b%c"), "s3://bucket/a%23b%25c");
        let variables = words(&list).unwrap().variables;
        assert!(variables.contains(&("AWS_ENDPOINT_URL", "https://127.0.0.1:9".to_owned())));
        assert!(variables.contains(&("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "false".to_owned())));
        let variables = words(&["s3.endpoint=http://h"]).unwrap().variables;
        assert!(variables.contains(&("AWS_ALLOW_HTTP", "true".to_owned())));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_without_its_value() {
        for word in [
            "oci.username=s3cret",
            "oci.password=s3cret",
            "oci.tarindex=s3cret",
            "oci.zinfo=s3cret",
            "oci.s3cret",
            "oci.layer=",
            "s3.passwd_file=s3cret",
            "s3.sig=2",
            "s3.urlstyle=s3cret",
        ] {
            let (name, why) = words(&[word]).unwrap_err();
            assert_eq!(word.split('=').next(), Some(&*name));
            assert!(!why.contains("s3cret"), "{why}");
        }
        words(&["oci.layer=0", "oci.blob=1"]).unwrap_err();
        words(&["oci.layer=0", "s3.region=1"]).unwrap_err();
        assert_eq!(SourceWords::default().take("ro".as_ref()), Ok(false));
    }
}
