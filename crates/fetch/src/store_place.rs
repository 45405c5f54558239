//! Where an object of an object store is: its URL, and what the settings say about the endpoint.
//! Opens no connection.

use ferrofs_remote::{RemoteObject, StoreSettings};

/// The region of buckets unless a setting names one, as in the SDKs.
const DEFAULT_REGION: &str = "us-east-1";

/// A bucket or container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StorePlace {
    S3 { bucket: String },
    Gcs { bucket: String },
    Azure { account: String, container: String },
}

impl StorePlace {
    /// The bucket and the key of an object; `None` if it is no object of an object store.
    pub(crate) fn of(object: &RemoteObject) -> Option<(Self, &str)> {
        match object {
            RemoteObject::S3 { bucket, key } => Some((Self::S3 { bucket: bucket.clone() }, key)),
            RemoteObject::Gcs { bucket, key } => Some((Self::Gcs { bucket: bucket.clone() }, key)),
            RemoteObject::Azure { account, container, key } => {
                let (account, container) = (account.clone(), container.clone());
                Some((Self::Azure { account, container }, key))
            }
            _ => None,
        }
    }

    /// As a location without its key, for messages.
    pub(crate) fn display_name(&self) -> String {
        match self {
            Self::S3 { bucket } => format!("s3://{bucket}"),
            Self::Gcs { bucket } => format!("gs://{bucket}"),
            Self::Azure { account, container } => format!("az://{account}/{container}"),
        }
    }

    /// What the store calls a place for objects.
    pub(crate) fn noun(&self) -> &'static str {
        if matches!(self, Self::Azure { .. }) { "container" } else { "bucket" }
    }

    /// The beginning of the names of its variables.
    pub(crate) fn prefix(&self) -> &'static str {
        match self {
            Self::S3 { .. } => "AWS",
            Self::Gcs { .. } => "GOOGLE",
            Self::Azure { .. } => "AZURE",
        }
    }

    /// The URL of an object, without a query.
    ///
    /// # Errors
    /// A text that says which setting cannot be used, or what is wrong with the key.
    pub(crate) fn url(&self, settings: &StoreSettings, key: &str) -> Result<String, String> {
        if key.split('/').any(|segment| segment == "." || segment == "..") {
            return Err("a key with a segment . or .. has no URL".to_owned());
        }
        let base = self.base_url(settings);
        let has_tls = match base.split_once("://") {
            Some(("https", _)) => true,
            Some(("http", _)) => false,
            _ => return Err(format!("the endpoint {base} is not a URL")),
        };
        if base.contains(['@', '?', '#']) || base.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return Err("the endpoint must be a URL without a login and a query".to_owned());
        }
        if !has_tls && !self.allows_http(settings) {
            let prefix = self.prefix();
            return Err(format!(
                "the endpoint {base} does not use TLS; {prefix}_ALLOW_HTTP=true allows that"
            ));
        }
        Ok(format!("{base}/{}", percent_encoded(key)))
    }

    fn base_url(&self, settings: &StoreSettings) -> String {
        let trimmed = |text: &str| text.trim_end_matches('/').to_owned();
        match self {
            Self::S3 { bucket } => {
                let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
                    .into_iter()
                    .find_map(|name| settings.get(name))
                    .map(trimmed);
                let is_virtual = is_on(settings, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST");
                match (endpoint, is_virtual, region(settings)) {
                    (Some(endpoint), true, _) => endpoint,
                    (Some(endpoint), false, _) => format!("{endpoint}/{bucket}"),
                    (None, true, region) => format!("https://{bucket}.s3.{region}.amazonaws.com"),
                    (None, false, region) => format!("https://s3.{region}.amazonaws.com/{bucket}"),
                }
            }
            Self::Gcs { bucket } => {
                let emulator = settings.get("STORAGE_EMULATOR_HOST").map(|host| {
                    if host.contains("://") { host.to_owned() } else { format!("http://{host}") }
                });
                let set = settings.get("GOOGLE_BASE_URL").map(str::to_owned).or(emulator);
                let endpoint = set.unwrap_or_else(|| "https://storage.googleapis.com".to_owned());
                format!("{}/{bucket}", trimmed(&endpoint))
            }
            Self::Azure { account, container } => {
                let set = settings.get("AZURE_STORAGE_ENDPOINT").map(trimmed);
                let endpoint =
                    set.unwrap_or_else(|| format!("https://{account}.blob.core.windows.net"));
                format!("{endpoint}/{container}")
            }
        }
    }

    /// An emulator is on this machine or in its network.
    fn allows_http(&self, settings: &StoreSettings) -> bool {
        is_on(settings, &format!("{}_ALLOW_HTTP", self.prefix())) || self.is_emulated(settings)
    }

    /// Whether requests go to an emulator, which wants no credentials.
    pub(crate) fn is_emulated(&self, settings: &StoreSettings) -> bool {
        matches!(self, Self::Gcs { .. })
            && settings.get("GOOGLE_BASE_URL").is_none()
            && settings.get("STORAGE_EMULATOR_HOST").is_some()
    }
}

/// The region with which requests to S3 are signed.
pub(crate) fn region(settings: &StoreSettings) -> &str {
    let set = settings.get("AWS_REGION").or_else(|| settings.get("AWS_DEFAULT_REGION"));
    set.unwrap_or(DEFAULT_REGION)
}

/// Whether a variable says yes, in the words that `object_store` takes.
pub(crate) fn is_on(settings: &StoreSettings, name: &str) -> bool {
    settings.get(name).is_some_and(is_yes)
}

/// Whether a value says yes.
pub(crate) fn is_yes(value: &str) -> bool {
    ["1", "true", "on", "yes", "y"].contains(&value.to_ascii_lowercase().as_str())
}

/// Encodes all but unreserved characters and slashes, as signatures need it.
fn percent_encoded(key: &str) -> String {
    let mut encoded = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use ferrofs_remote::RemoteLocation;

    use super::*;

    fn url(location: &str, settings: &[(&str, &str)]) -> Result<String, String> {
        let location: RemoteLocation = location.parse().unwrap();
        let (place, key) = StorePlace::of(&location.object).unwrap();
        place.url(&settings.iter().copied().collect(), key)
    }

    #[test]
    fn each_store_has_its_urls() {
        for (location, settings, wanted) in [
            ("s3://b/dir/k", &[][..], "https://s3.us-east-1.amazonaws.com/b/dir/k"),
            ("s3://b/k", &[("AWS_REGION", "eu-west-1")], "https://s3.eu-west-1.amazonaws.com/b/k"),
            (
                "s3://b/k",
                &[("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")],
                "https://b.s3.us-east-1.amazonaws.com/k",
            ),
            ("s3://b/k", &[("AWS_ENDPOINT_URL", "https://h:9000/")], "https://h:9000/b/k"),
            ("gs://b/a%20b%2B%C3%A9", &[], "https://storage.googleapis.com/b/a%20b%2B%C3%A9"),
            ("gs://b/k", &[("STORAGE_EMULATOR_HOST", "localhost:1")], "http://localhost:1/b/k"),
            ("az://a/c/k", &[], "https://a.blob.core.windows.net/c/k"),
            ("az://a/c/k", &[("AZURE_STORAGE_ENDPOINT", "https://h/a")], "https://h/a/c/k"),
        ] {
            assert_eq!(url(location, settings).as_deref(), Ok(wanted), "{location}");
        }
    }

    #[test]
    fn endpoints_without_tls_and_keys_without_a_url_are_refused() {
        let plain = ("AWS_ENDPOINT_URL", "http://h:1");
        assert!(url("s3://b/k", &[plain]).unwrap_err().contains("AWS_ALLOW_HTTP=true"));
        url("s3://b/k", &[plain, ("AWS_ALLOW_HTTP", "TRUE")]).unwrap();
        for endpoint in ["https://user:secret@h", "h", "https://h?x", "https://h\n"] {
            let error = url("s3://b/k", &[("AWS_ENDPOINT_URL", endpoint)]).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
        for key in ["a/../b", "./a", "a/%2e%2e"] {
            assert!(url(&format!("s3://b/{key}"), &[]).unwrap_err().contains("segment"));
        }
    }
}
