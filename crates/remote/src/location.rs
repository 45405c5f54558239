//! Where an image is: the text that a user types for IMAGE, parsed. Opens nothing and connects to
//! nothing.
//!
//! The grammar is in docs/remote.md. A text that has no scheme of this list is a local path; a path
//! that looks like a URL can be written `./path`.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::{BlobReference, ContentDigest};

/// The longest text of a location, in bytes. Longer URLs are refused by common servers.
pub const LOCATION_MAX_BYTES: usize = 8192;

/// A place from which an image can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Location {
    /// A file or a block device of this machine.
    Local(PathBuf),
    /// Anything that needs the fetcher, or a layout directory.
    Remote(RemoteLocation),
}

/// A remote place, with the parameters behind its `#`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RemoteLocation {
    /// Which object.
    pub object: RemoteObject,
    /// Which layer of an OCI image.
    pub layer: Option<LayerSelector>,
    /// Which platform of an OCI image index, as in `linux/arm64/v8`.
    pub platform: Option<String>,
    /// The digest that the chunk index beside the object must have.
    pub index: Option<String>,
    /// A blob of the repository of an OCI image, instead of a layer.
    #[serde(default)]
    pub blob: Option<BlobReference>,
}

/// An object of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RemoteObject {
    /// `http://` or `https://`.
    Http {
        /// The whole URL, without a fragment.
        url: String,
    },
    /// `s3://BUCKET/KEY`.
    S3 {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
    },
    /// `gs://BUCKET/KEY`.
    Gcs {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
    },
    /// `az://ACCOUNT/CONTAINER/KEY`.
    Azure {
        /// The storage account.
        account: String,
        /// The container.
        container: String,
        /// The key.
        key: String,
    },
    /// `oci://REGISTRY/REPOSITORY[:TAG][@DIGEST]`.
    Oci {
        /// Host, in lower case, and, if given, port.
        registry: String,
        /// The repository.
        repository: String,
        /// The tag; `latest` if neither a tag nor a digest is given.
        tag: Option<String>,
        /// The digest of the manifest or index.
        digest: Option<String>,
    },
    /// `oci-layout:DIRECTORY[:TAG][@DIGEST]`.
    OciLayout {
        /// The directory.
        directory: PathBuf,
        /// The tag.
        tag: Option<String>,
        /// The digest of the manifest or index.
        digest: Option<String>,
    },
}

/// Which layer of an OCI image.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LayerSelector {
    /// By its number; the lowest layer is 0.
    Number(u32),
    /// By its digest.
    Digest(String),
}

/// Why a text is no location.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocationError {
    /// More than [`LOCATION_MAX_BYTES`], or a control character.
    Malformed,
    /// A scheme that is not supported. The scheme.
    UnknownScheme(String),
    /// A part is missing or has characters that it must not have. The part.
    Part(&'static str),
    /// The URL contains a user name or a password, which others could see in the list of processes.
    Credentials,
    /// A parameter that is not known, is given twice, or does not apply to this kind of location.
    /// The parameter.
    Parameter(String),
}

impl Location {
    /// Parses what a user typed. `argument` need not be UTF-8 if it is a local path.
    ///
    /// # Errors
    /// It begins with a scheme, and the rest does not obey the grammar of that scheme.
    pub fn parse(argument: &OsStr) -> Result<Self, LocationError> {
        match argument.to_str() {
            Some(text) if has_scheme(text) => text.parse().map(Self::Remote),
            _ => Ok(Self::Local(PathBuf::from(argument))),
        }
    }

    /// How what a user typed is shown in messages: without what may be a password or a signature. `None` for a
    /// local path, which is shown as it is.
    #[must_use]
    pub fn display_form(argument: &OsStr) -> Option<String> {
        match Self::parse(argument) {
            Ok(Self::Remote(location)) => Some(location.to_string()),
            Ok(Self::Local(_)) => None,
            Err(_) => Some(without_secrets(&argument.to_string_lossy())),
        }
    }
}

/// What is shown of a text that is no location. It may have a password in front of its last `@`, which
/// may contain all that separates the parts of a URL, and a signature in its query.
fn without_secrets(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    match rest.rsplit_once('@') {
        Some((_, behind)) => {
            let behind = behind.split(['?', '#']).next().unwrap_or_default();
            format!("{scheme}://…@{behind}")
        }
        None => text.split(['?', '#']).next().unwrap_or_default().to_owned(),
    }
}

/// Whether a text begins like a URL: `scheme://`, or `oci-layout:`.
fn has_scheme(text: &str) -> bool {
    let is_scheme = |scheme: &str| {
        let mut letters = scheme.bytes();
        letters.next().is_some_and(|first| first.is_ascii_alphabetic())
            && letters.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    text.starts_with("oci-layout:")
        || text.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme))
}

impl FromStr for RemoteLocation {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        if text.len() > LOCATION_MAX_BYTES || text.chars().any(char::is_control) {
            return Err(LocationError::Malformed);
        }
        let (address, parameters) = match text.split_once('#') {
            Some((address, parameters)) => (address, Some(parameters)),
            None => (text, None),
        };
        let object = parse_object(address)?;
        let mut location = Self { object, layer: None, platform: None, index: None, blob: None };
        for parameter in parameters.into_iter().flat_map(|all| all.split('&')) {
            location.set_parameter(parameter)?;
        }
        Ok(location)
    }
}

fn parse_object(address: &str) -> Result<RemoteObject, LocationError> {
    if let Some(rest) = address.strip_prefix("oci-layout:") {
        let (name, digest) = split_digest(rest)?;
        let (directory, tag) = split_tag(name)?;
        let directory = PathBuf::from(non_empty(directory, "directory")?);
        return Ok(RemoteObject::OciLayout { directory, tag, digest });
    }
    let (scheme, rest) = address.split_once("://").ok_or(LocationError::Malformed)?;
    match scheme.to_ascii_lowercase().as_str() {
        "http" | "https" => parse_http(address, rest),
        "s3" => parse_bucket(rest).map(|(bucket, key)| RemoteObject::S3 { bucket, key }),
        "gs" => parse_bucket(rest).map(|(bucket, key)| RemoteObject::Gcs { bucket, key }),
        "az" => {
            let (account, rest) = rest.split_once('/').ok_or(LocationError::Part("container"))?;
            let (container, key) = parse_bucket(rest)?;
            let account = host_part(account, "account")?;
            Ok(RemoteObject::Azure { account, container, key })
        }
        "oci" => parse_reference(rest),
        other => Err(LocationError::UnknownScheme(other.to_owned())),
    }
}

fn parse_http(url: &str, rest: &str) -> Result<RemoteObject, LocationError> {
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(LocationError::Credentials);
    }
    // `user:pa/ss@host`: what is in front of the slash is no host with its port.
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let after_address = authority.rfind(']').map_or(0, |end| end + 1);
    let port = authority[after_address..].split_once(':').map_or("", |(_, port)| port);
    if !is_port(port) {
        return Err(LocationError::Part("port"));
    }
    non_empty(authority, "host")?;
    if url.contains(' ') {
        return Err(LocationError::Part("URL"));
    }
    Ok(RemoteObject::Http { url: url.to_owned() })
}

fn parse_bucket(rest: &str) -> Result<(String, String), LocationError> {
    let (bucket, key) = rest.split_once('/').ok_or(LocationError::Part("key"))?;
    let key = percent_decoded(non_empty(key, "key")?).ok_or(LocationError::Part("key"))?;
    Ok((host_part(bucket, "bucket")?, key))
}

/// `REGISTRY/REPOSITORY[:TAG][@DIGEST]`, by the grammar of the OCI distribution specification.
fn parse_reference(rest: &str) -> Result<RemoteObject, LocationError> {
    let (registry, path) = rest.split_once('/').ok_or(LocationError::Part("repository"))?;
    let (name, digest) = split_digest(path)?;
    let (repository, mut tag) = split_tag(name)?;
    let is_component = |component: &str| {
        let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        is_end(component.bytes().next())
            && is_end(component.bytes().last())
            && component.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte)
            })
    };
    if repository.len() > 255 || !repository.split('/').all(is_component) {
        return Err(LocationError::Part("repository"));
    }
    if tag.is_none() && digest.is_none() {
        tag = Some("latest".to_owned());
    }
    // Whatever its case, it is the same host: for logins, tokens, mirrors and the records of the cache.
    let registry = host_part(registry, "registry")?.to_ascii_lowercase();
    Ok(RemoteObject::Oci { registry, repository: repository.to_owned(), tag, digest })
}

fn split_digest(text: &str) -> Result<(&str, Option<String>), LocationError> {
    match text.split_once('@') {
        None => Ok((text, None)),
        Some((name, digest)) => match digest.parse::<ContentDigest>() {
            Ok(digest) => Ok((name, Some(digest.to_string()))),
            Err(_) => Err(LocationError::Part("digest")),
        },
    }
}

fn split_tag(name: &str) -> Result<(&str, Option<String>), LocationError> {
    // A colon before the last slash belongs to a port or a directory.
    let after_slash = name.rfind('/').map_or(0, |slash| slash + 1);
    let Some(colon) = name[after_slash..].find(':').map(|at| after_slash + at) else {
        return Ok((name, None));
    };
    let tag = &name[colon + 1..];
    let is_start = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_tag = (1..=128).contains(&tag.len())
        && tag.bytes().next().is_some_and(is_start)
        && tag.bytes().all(|byte| is_start(byte) || b".-".contains(&byte));
    if !is_tag {
        return Err(LocationError::Part("tag"));
    }
    Ok((&name[..colon], Some(tag.to_owned())))
}

fn non_empty<'a>(text: &'a str, part: &'static str) -> Result<&'a str, LocationError> {
    if text.is_empty() { Err(LocationError::Part(part)) } else { Ok(text) }
}

/// A host, bucket or account: no empty text and no character with a meaning in a URL.
fn host_part(text: &str, part: &'static str) -> Result<String, LocationError> {
    if text.contains('@') {
        return Err(LocationError::Credentials);
    }
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:[]".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_good) {
        return Err(LocationError::Part(part));
    }
    Ok(text.to_owned())
}

/// Undoes percent encoding; `None` if it is malformed or the result is not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
        bytes.push(u8::try_from(high << 4 | low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

impl RemoteLocation {
    fn set_parameter(&mut self, parameter: &str) -> Result<(), LocationError> {
        let refused = || LocationError::Parameter(parameter.to_owned());
        let (name, value) = parameter.split_once('=').ok_or_else(refused)?;
        let digest = || value.parse::<ContentDigest>().map(|digest| digest.to_string());
        let is_oci = self.is_oci();
        match name {
            "layer" if is_oci && self.layer.is_none() => {
                let layer = match value.parse() {
                    Ok(number) => LayerSelector::Number(number),
                    Err(_) => LayerSelector::Digest(digest().map_err(|_| refused())?),
                };
                self.layer = Some(layer);
            }
            "platform" if is_oci && self.platform.is_none() && is_platform(value) => {
                self.platform = Some(value.to_owned());
            }
            "index" if !is_oci && self.index.is_none() => {
                self.index = Some(digest().map_err(|_| refused())?);
            }
            _ => return Err(refused()),
        }
        Ok(())
    }

    /// A blob of the same repository.
    #[must_use]
    pub fn blob(&self, blob: BlobReference) -> Self {
        Self { blob: Some(blob), layer: None, platform: None, ..self.clone() }
    }

    /// Whether it is read from files of this machine, without a fetcher.
    #[must_use]
    pub fn is_layout(&self) -> bool {
        matches!(self.object, RemoteObject::OciLayout { .. })
    }

    /// Whether it names an OCI image, which has layers.
    #[must_use]
    pub fn is_oci(&self) -> bool {
        matches!(self.object, RemoteObject::Oci { .. } | RemoteObject::OciLayout { .. })
    }
}

/// `OS/ARCHITECTURE[/VARIANT]`.
fn is_platform(value: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty()
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    (2..=3).contains(&value.split('/').count()) && value.split('/').all(is_word)
}

impl fmt::Display for RemoteLocation {
    /// The location for messages: a query, which may contain a signature, is replaced by `?…`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version =
            |f: &mut fmt::Formatter<'_>, tag: &Option<String>, digest: &Option<String>| {
                tag.iter().try_for_each(|tag| write!(f, ":{tag}"))?;
                digest.iter().try_for_each(|digest| write!(f, "@{digest}"))
            };
        match &self.object {
            RemoteObject::Http { url } => match url.split_once('?') {
                Some((path, _)) => write!(f, "{path}?…"),
                None => f.write_str(url),
            },
            RemoteObject::S3 { bucket, key } => write!(f, "s3://{bucket}/{key}"),
            RemoteObject::Gcs { bucket, key } => write!(f, "gs://{bucket}/{key}"),
            RemoteObject::Azure { account, container, key } => {
                write!(f, "az://{account}/{container}/{key}")
            }
            RemoteObject::Oci { registry, repository, tag, digest } => {
                write!(f, "oci://{registry}/{repository}")?;
                version(f, tag, digest)
            }
            RemoteObject::OciLayout { directory, tag, digest } => {
                write!(f, "oci-layout:{}", directory.display())?;
                version(f, tag, digest)
            }
        }
    }
}

impl fmt::Display for LocationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => write!(
                f,
                "a location has at most {LOCATION_MAX_BYTES} bytes and no control characters"
            ),
            Self::UnknownScheme(scheme) => write!(
                f,
                "the scheme {scheme}:// is not supported; use http, https, s3, gs, az, oci or \
                 oci-layout, or ./ before the path of a local file"
            ),
            Self::Part(part) => write!(f, "the {part} of the location is missing or malformed"),
            Self::Credentials => f.write_str(
                "a location must not contain a user name or a password; use the logins \
                 of docker, podman or skopeo, or the variables of the object store",
            ),
            Self::Parameter(parameter) => write!(
                f,
                "the parameter {parameter:?} is unknown, repeated, malformed, or does not apply \
                 here; known are layer=, platform= (OCI images) and index= (other objects)"
            ),
        }
    }
}

impl std::error::Error for LocationError {}

#[cfg(test)]
mod tests {

    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn display_form(text: &str) -> String {
        text.parse::<RemoteLocation>().unwrap().to_string()
    }

    fn refused(text: &str) -> LocationError {
        text.parse::<RemoteLocation>().unwrap_err()
    }

    #[test]
    fn each_scheme_is_shown_as_it_was_typed() {
        for text in [
            "http://host/a.erofs",
            "https://host:8443/dir/a.erofs",
            "https://[::1]:8443/dir/a.erofs",
            "https://[::1]/dir/a.erofs",
            "s3://bucket/dir/key.erofs",
            "gs://bucket/key",
            "az://account/container/dir/key",
            "oci://ghcr.io/owner/name:v1",
            "oci://localhost:5000/name:v1",
            &format!("oci://host/name@{DIGEST}"),
            &format!("oci://host/name:v1@{DIGEST}"),
            "oci-layout:/srv/images:v1",
            "oci-layout:images",
        ] {
            assert_eq!(display_form(text), text);
        }
        assert_eq!(display_form("oci://host/name"), "oci://host/name:latest");
        assert_eq!(display_form("s3://bucket/a%20b%23c"), "s3://bucket/a b#c");
    }

    #[test]
    fn the_host_of_a_registry_has_no_case_and_its_tags_have_one() {
        let parse = |text: &str| text.parse::<RemoteLocation>().unwrap();
        let location = parse("oci://LocalHost:5000/a/b:V1");
        assert_eq!(location, parse("oci://localhost:5000/a/b:V1"));
        assert_eq!(location.to_string(), "oci://localhost:5000/a/b:V1");
        assert_ne!(location, parse("oci://localhost:5000/a/b:v1"));
        // A repository has no capital letters (OCI distribution specification).
        assert_eq!(refused("oci://localhost:5000/A/b"), LocationError::Part("repository"));
    }

    #[test]
    fn a_text_without_a_scheme_is_a_path() {
        for text in ["image.erofs", "/a:b/c", "./https://x", "C:image", "://x", "1a://x", ""] {
            let location = Location::parse(OsStr::new(text)).unwrap();
            assert_eq!(location, Location::Local(PathBuf::from(text)), "{text}");
        }
        assert_eq!(
            Location::parse(OsStr::new("ftp://host/x")),
            Err(LocationError::UnknownScheme("ftp".to_owned()))
        );
    }

    #[test]
    fn parameters_apply_to_their_kind_of_location() {
        let parse = |text: &str| text.parse::<RemoteLocation>().unwrap();
        let location = parse("oci://host/name:v1#layer=2&platform=linux/arm64/v8");
        assert_eq!(location.layer, Some(LayerSelector::Number(2)));
        assert_eq!(location.platform.as_deref(), Some("linux/arm64/v8"));
        let location = parse(&format!("oci://host/name#layer={DIGEST}"));
        assert_eq!(location.layer, Some(LayerSelector::Digest(DIGEST.to_owned())));
        assert_eq!(parse(&format!("https://h/x#index={DIGEST}")).index.as_deref(), Some(DIGEST));
        for text in [
            "https://h/x#layer=1",
            "https://h/x#index=sha256:00",
            "https://h/x#other=1",
            "https://h/x#",
            "oci://h/x#layer=1&layer=1",
            "oci://h/x#layer=-1",
            "oci://h/x#platform=linux",
            "oci://h/x#platform=linux//v8",
        ] {
            assert!(matches!(refused(text), LocationError::Parameter(_)), "{text}");
        }
        assert!(matches!(
            refused(&format!("oci://h/x#index={DIGEST}")),
            LocationError::Parameter(_)
        ));
    }

    #[test]
    fn malformed_parts_are_named() {
        for (text, part) in [
            ("https:///x", "host"),
            ("https://user:pa/ss@host/x", "port"),
            ("https://[::1]:x/x", "port"),
            ("https://h/a b", "URL"),
            ("s3://bucket", "key"),
            ("s3://bucket/", "key"),
            ("s3://bucket/%4", "key"),
            ("s3://bucket/%zz", "key"),
            ("s3://bucket/%ff", "key"),
            ("s3:///key", "bucket"),
            ("az://account", "container"),
            ("az://account/container", "key"),
            ("oci://host", "repository"),
            ("oci://host/", "repository"),
            ("oci://host/Name", "repository"),
            ("oci://host/a//b", "repository"),
            ("oci://host/name:", "tag"),
            ("oci://host/name:-x", "tag"),
            ("oci://host/name@sha256:1", "digest"),
            ("oci:///name", "registry"),
            ("oci-layout:", "directory"),
        ] {
            assert_eq!(refused(text), LocationError::Part(part), "{text}");
        }
        assert_eq!(refused("https://h/\n"), LocationError::Malformed);
        assert_eq!(refused(&format!("https://h/{}", "x".repeat(9000))), LocationError::Malformed);
    }

    #[test]
    fn credentials_are_neither_accepted_nor_shown() {
        for text in ["https://user:secret@host/x", "oci://user@host/x", "s3://a:b@bucket/key"] {
            assert_eq!(refused(text), LocationError::Credentials, "{text}");
        }
        assert_eq!(display_form("https://host/x?X-Signature=secret"), "https://host/x?…");
        assert_eq!(display_form("https://host/x@v1"), "https://host/x@v1");
        let shown = |text: &str| Location::display_form(text.as_ref());
        assert_eq!(shown("https://host/x?s=secret").as_deref(), Some("https://host/x?…"));
        assert_eq!(shown("https://a:secret@host/x?s=secret").as_deref(), Some("https://…@host/x"));
        assert_eq!(shown("a@b?c"), None);
    }
}
