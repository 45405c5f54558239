//! The settings of object stores as a process has them in its environment: endpoints, regions and
//! credentials. They are read by the process that connects to the fetcher, are sent once over the
//! connection, and are used by the fetcher only.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::child::absolute;

/// Most bytes of all names and values, so that they fit into a message with escapes.
const SETTINGS_MAX_BYTES: usize = 24 << 10;

/// The variables that count. No other is sent.
const NAMES: [&str; 39] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_ALLOW_HTTP",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_DEFAULT_REGION",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_IMDSV1_FALLBACK",
    "AWS_METADATA_ENDPOINT",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_REQUEST_PAYER",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SKIP_SIGNATURE",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_ALLOW_HTTP",
    "AZURE_AUTHORITY_HOST",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_SKIP_SIGNATURE",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_TENANT_ID",
    "GOOGLE_ALLOW_HTTP",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_BASE_URL",
    "GOOGLE_SKIP_SIGNATURE",
    "STORAGE_EMULATOR_HOST",
];

/// Those that name a file. The fetcher has another working directory.
const FILE_NAMES: [&str; 4] = [
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

/// Variables of metadata services that the library of the fetcher reads of its own environment.
pub(crate) const METADATA_NAMES: [&str; 5] = [
    "GCE_METADATA_HOST",
    "GCE_METADATA_IP",
    "GCE_METADATA_ROOT",
    "IDENTITY_ENDPOINT",
    "IDENTITY_HEADER",
];

/// Settings of object stores by the names of their variables. `Debug` shows the names only.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoreSettings(BTreeMap<String, String>);

impl StoreSettings {
    /// The names of all variables that count.
    #[must_use]
    pub fn names() -> &'static [&'static str] {
        &NAMES
    }

    /// Those of the environment of this process. What is not UTF-8 or beyond 24 KiB is left out.
    #[must_use]
    pub fn from_environment() -> Self {
        let set = NAMES.iter().filter_map(|name| Some((*name, std::env::var(name).ok()?)));
        set.map(|(name, value)| (name, in_any_directory(name, value))).collect()
    }

    /// The value of a variable; `None` if it is absent or empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether none is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The variables whose names begin so, in their order.
    pub fn starting_with<'s>(&'s self, prefix: &str) -> impl Iterator<Item = (&'s str, &'s str)> {
        let all = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty())
    }
}

/// The value of a variable that means the same in every working directory.
fn in_any_directory(name: &str, value: String) -> String {
    if value.is_empty() || !FILE_NAMES.contains(&name) {
        return value;
    }
    absolute(value.as_ref()).into_string().unwrap_or(value)
}

/// Takes the variables that count. Others, and those that do not fit into a message, are left out.
impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for StoreSettings {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(all: I) -> Self {
        let mut rest = SETTINGS_MAX_BYTES;
        let mut settings = BTreeMap::new();
        for (name, value) in all {
            let (name, value) = (name.into(), value.into());
            let bytes = name.len() + value.len();
            if NAMES.contains(&name.as_str()) && bytes <= rest {
                rest -= bytes;
                settings.insert(name, value);
            }
        }
        Self(settings)
    }
}

impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreSettings")?;
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ClientMessage, ClientRole};

    #[test]
    fn values_are_not_shown() {
        let settings = StoreSettings::from_iter([("AWS_SECRET_ACCESS_KEY", "hidden")]);
        assert_eq!(format!("{settings:?}"), "StoreSettings{\"AWS_SECRET_ACCESS_KEY\"}");
        let message = ClientMessage::Settings { settings, role: ClientRole::Full };
        assert!(!format!("{message:?}").contains("hidden"));
    }

    #[test]
    fn files_are_found_from_every_directory() {
        let here = std::env::current_dir().unwrap();
        let value = |name, value: &str| in_any_directory(name, value.to_owned());
        let wanted = here.join("key.json").into_os_string().into_string().unwrap();
        assert_eq!(value("GOOGLE_APPLICATION_CREDENTIALS", "key.json"), wanted);
        assert_eq!(value("GOOGLE_APPLICATION_CREDENTIALS", "/key.json"), "/key.json");
        assert_eq!(value("AWS_WEB_IDENTITY_TOKEN_FILE", ""), "");
        assert_eq!(value("AWS_REGION", "eu"), "eu");
        assert!(FILE_NAMES.iter().all(|name| NAMES.contains(name)));
    }

    #[test]
    fn only_known_variables_that_fit_are_sent() {
        let long = "x".repeat(SETTINGS_MAX_BYTES);
        let settings = StoreSettings::from_iter([
            ("PATH", "/bin"),
            ("AWS_SESSION_TOKEN", &long),
            ("AWS_REGION", "eu-west-1"),
            ("AWS_PROFILE", ""),
        ]);
        assert_eq!(
            settings.starting_with("AWS_").collect::<Vec<_>>(),
            [("AWS_REGION", "eu-west-1")]
        );
        assert_eq!((settings.get("PATH"), settings.get("AWS_PROFILE")), (None, None));
        assert!(NAMES.is_sorted());
    }
}
