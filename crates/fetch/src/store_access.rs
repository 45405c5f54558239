//! Access to an object store: the credentials that the settings of a client name, and the headers
//! that authorize a request. `object_store` finds and renews credentials, and signs; the requests
//! for objects are ours. One request renews credentials for all that wait.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofs_remote::StoreSettings;
use ferrofs_remote::protocol::{FetchError, FetchErrorKind};
use object_store::RetryConfig;
use object_store::aws::{AmazonS3Builder, AwsAuthorizer, AwsCredentialProvider};
use object_store::azure::{
    AzureAuthorizer, AzureConfigKey, AzureCredentialProvider, MicrosoftAzureBuilder,
};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use tokio::sync::Mutex;

use crate::credential_http::CredentialHttp;
use crate::http::ExchangeError;
use crate::store_place::{StorePlace, is_on, region};

/// Repetitions of a request for credentials.
const CREDENTIAL_RETRIES: usize = 3;
const CREDENTIAL_TIMEOUT: Duration = Duration::from_secs(20);
/// Credentials that a store refuses are requested anew at most so often.
const RENEWAL_PAUSE: Duration = Duration::from_secs(10);

/// The access of one client to one bucket.
pub(crate) struct StoreAccess {
    pub(crate) place: StorePlace,
    pub(crate) settings: StoreSettings,
    http: CredentialHttp,
    state: Mutex<AccessState>,
}

#[derive(Default)]
struct AccessState {
    provider: Option<Provider>,
    /// Incremented when the provider is replaced.
    generation: u64,
    renewed: Option<Instant>,
    /// There were credentials once: they exist, and a failure to renew them may pass.
    has_worked: bool,
}

#[derive(Clone)]
enum Provider {
    Anonymous,
    Aws(AwsCredentialProvider),
    Gcp(GcpCredentialProvider),
    Azure(AzureCredentialProvider),
}

/// Where credentials come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CredentialSource {
    Anonymous,
    /// They are the value of this variable.
    Fixed(&'static str),
    /// They are requested with what this variable names, and can be newer the next time.
    Renewable(&'static str),
    Machine,
}

/// An authorized request.
#[derive(Debug)]
pub(crate) struct Authorized {
    /// With the query of an access signature, if that is the credential.
    pub(crate) url: String,
    pub(crate) headers: HeaderMap,
    generation: u64,
}

impl fmt::Debug for StoreAccess {
    /// Without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreAccess").field("place", &self.place).finish_non_exhaustive()
    }
}

impl StoreAccess {
    pub(crate) fn new(place: StorePlace, settings: StoreSettings, http: CredentialHttp) -> Self {
        Self { place, settings, http, state: Mutex::default() }
    }

    /// Adds to `headers` what authorizes a request for `url`.
    pub(crate) async fn authorize(
        &self,
        url: &str,
        headers: HeaderMap,
    ) -> Result<Authorized, ExchangeError> {
        let (provider, generation, has_worked) = self.provider().await?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.parse().map_err(|_| self.denied("the key has no URL"))?;
        *request.headers_mut() = headers;
        if let Err(error) = self.sign(&provider, &mut request).await {
            return Err(self.unavailable(&error, has_worked));
        }
        self.state.lock().await.has_worked = true;
        let mut headers = std::mem::take(request.headers_mut());
        headers.values_mut().for_each(|value| value.set_sensitive(true));
        Ok(Authorized { url: request.uri().to_string(), headers, generation })
    }

    /// Forgets the credentials of a refused request, so that the next one gets new ones; `false` if
    /// there can be none. Those that come while others have done so use what these got.
    pub(crate) async fn renew(&self, refused: &Authorized) -> bool {
        let mut state = self.state.lock().await;
        if state.generation != refused.generation {
            return true;
        }
        let is_soon = state.renewed.is_some_and(|time| time.elapsed() < RENEWAL_PAUSE);
        if is_soon || self.is_fixed() {
            return false;
        }
        state.provider = None;
        state.generation += 1;
        state.renewed = Some(Instant::now());
        true
    }

    /// What names the credentials, for messages.
    pub(crate) fn source(&self) -> &'static str {
        match self.credential_source() {
            CredentialSource::Anonymous => "none, as the settings say",
            CredentialSource::Fixed(name) | CredentialSource::Renewable(name) => name,
            CredentialSource::Machine => "those of the machine",
        }
    }

    /// Which credentials `object_store` takes with these settings: it has the same order, and asks the
    /// machine if variables that belong together are not complete.
    fn credential_source(&self) -> CredentialSource {
        use CredentialSource::{Anonymous, Fixed, Machine, Renewable};
        let has = |name: &str| self.settings.get(name).is_some();
        let has_all = |names: &[&str]| names.iter().all(|name| has(name));
        match &self.place {
            _ if self.is_anonymous() => Anonymous,
            StorePlace::S3 { .. } => {
                if has("AWS_ACCESS_KEY_ID") || has("AWS_SECRET_ACCESS_KEY") {
                    Fixed("AWS_ACCESS_KEY_ID")
                } else if has_all(&["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"]) {
                    Renewable("AWS_WEB_IDENTITY_TOKEN_FILE")
                } else if has("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
                    || has_all(&[
                        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                    ])
                {
                    Renewable("those of the container")
                } else {
                    Machine
                }
            }
            StorePlace::Gcs { .. } if has("GOOGLE_APPLICATION_CREDENTIALS") => {
                Renewable("GOOGLE_APPLICATION_CREDENTIALS")
            }
            StorePlace::Gcs { .. } => Machine,
            StorePlace::Azure { .. } => {
                let has_client = has_all(&["AZURE_CLIENT_ID", "AZURE_TENANT_ID"]);
                if has("AZURE_STORAGE_TOKEN") {
                    Fixed("AZURE_STORAGE_TOKEN")
                } else if has("AZURE_STORAGE_KEY") {
                    Fixed("AZURE_STORAGE_KEY")
                } else if has_client
                    && (has("AZURE_FEDERATED_TOKEN_FILE") || has("AZURE_CLIENT_SECRET"))
                {
                    Renewable("AZURE_CLIENT_ID")
                } else if has("AZURE_STORAGE_SAS_TOKEN") {
                    Fixed("AZURE_STORAGE_SAS_TOKEN")
                } else {
                    Machine
                }
            }
        }
    }

    /// A variable that names credentials, and one that it needs and that is not set. Otherwise others
    /// would be used in their place, without a word.
    fn incomplete(&self) -> Option<(&'static str, &'static str)> {
        if matches!(self.credential_source(), CredentialSource::Anonymous) {
            return None;
        }
        let needs: &[(&str, &[&str])] = match &self.place {
            StorePlace::S3 { .. } => &[
                ("AWS_ACCESS_KEY_ID", &["AWS_SECRET_ACCESS_KEY"]),
                ("AWS_SECRET_ACCESS_KEY", &["AWS_ACCESS_KEY_ID"]),
                ("AWS_WEB_IDENTITY_TOKEN_FILE", &["AWS_ROLE_ARN"]),
                ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", &[]),
                ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"]),
            ],
            StorePlace::Gcs { .. } => &[],
            StorePlace::Azure { .. } => &[
                ("AZURE_STORAGE_TOKEN", &[]),
                ("AZURE_STORAGE_KEY", &[]),
                ("AZURE_FEDERATED_TOKEN_FILE", &["AZURE_CLIENT_ID", "AZURE_TENANT_ID"]),
                ("AZURE_CLIENT_SECRET", &["AZURE_CLIENT_ID", "AZURE_TENANT_ID"]),
            ],
        };
        // The first one that is set is the one that counts.
        let is_set = |name: &str| self.settings.get(name).is_some();
        let (name, others) = needs.iter().find(|(name, _)| is_set(name))?;
        others.iter().find(|other| !is_set(other)).map(|other| (*name, *other))
    }

    /// What to set if there are no credentials, or wrong ones.
    pub(crate) fn remedy(&self) -> &'static str {
        match &self.place {
            StorePlace::S3 { .. } if self.settings.get("AWS_PROFILE").is_some() => {
                "AWS profiles are not read; `eval \"$(aws configure export-credentials --format env)\"` \
                 sets AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
            }
            StorePlace::S3 { .. } => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a \
                 public bucket"
            }
            StorePlace::Gcs { .. } => {
                "set GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public \
                 bucket"
            }
            StorePlace::Azure { .. } => {
                "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or AZURE_SKIP_SIGNATURE=true \
                 for a public container"
            }
        }
    }

    fn is_anonymous(&self) -> bool {
        is_on(&self.settings, &format!("{}_SKIP_SIGNATURE", self.place.prefix()))
            || self.place.is_emulated(&self.settings)
    }

    /// The credentials are in the settings themselves, so that there are no newer ones.
    fn is_fixed(&self) -> bool {
        use CredentialSource::{Anonymous, Fixed};
        matches!(self.credential_source(), Anonymous | Fixed(_))
    }

    async fn provider(&self) -> Result<(Provider, u64, bool), ExchangeError> {
        let mut state = self.state.lock().await;
        let provider = match &state.provider {
            Some(provider) => provider.clone(),
            None => {
                self.check_settings().map_err(|detail| self.denied(&detail))?;
                let made = self.make_provider();
                let provider = made.map_err(|error| self.unavailable(&error.to_string(), false))?;
                state.provider.insert(provider).clone()
            }
        };
        Ok((provider, state.generation, state.has_worked))
    }

    /// Headers are made of these without another check, and files are opened by the fetcher, which
    /// has another working directory than the client.
    fn check_settings(&self) -> Result<(), String> {
        let prefix = self.place.prefix();
        for (name, value) in self.settings.starting_with(prefix) {
            if !value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
                return Err(format!("{name} contains an invalid character"));
            }
            let is_path = name.ends_with("_FILE") || name == "GOOGLE_APPLICATION_CREDENTIALS";
            if is_path && !value.starts_with('/') {
                return Err(format!("{name} must be an absolute path"));
            }
        }
        if let Some((name, missing)) = self.incomplete() {
            return Err(format!("{name} is set, and {missing}, which belongs to it, is not"));
        }
        let is_without_metadata = is_on(&self.settings, "AWS_EC2_METADATA_DISABLED");
        let is_machine = matches!(self.credential_source(), CredentialSource::Machine);
        if matches!(self.place, StorePlace::S3 { .. }) && is_machine && is_without_metadata {
            return Err(format!("no credentials were found; {}", self.remedy()));
        }
        Ok(())
    }

    fn make_provider(&self) -> object_store::Result<Provider> {
        if self.is_anonymous() {
            return Ok(Provider::Anonymous);
        }
        let retry = RetryConfig {
            max_retries: CREDENTIAL_RETRIES,
            retry_timeout: CREDENTIAL_TIMEOUT,
            ..RetryConfig::default()
        };
        let http = self.http.clone();
        let settings = self.settings.starting_with(self.place.prefix());
        let settings = settings.map(|(name, value)| (name.to_ascii_lowercase(), value));
        Ok(match &self.place {
            StorePlace::S3 { bucket } => {
                let mut builder = AmazonS3Builder::new().with_bucket_name(bucket);
                for (name, value) in settings {
                    if let Ok(key) = name.parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                let store = builder.with_retry(retry).with_http_connector(http).build()?;
                Provider::Aws(Arc::clone(store.credentials()))
            }
            StorePlace::Gcs { bucket } => {
                let mut builder = GoogleCloudStorageBuilder::new().with_bucket_name(bucket);
                for (name, value) in settings {
                    if let Ok(key) = name.parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                let store = builder.with_retry(retry).with_http_connector(http).build()?;
                Provider::Gcp(Arc::clone(store.credentials()))
            }
            StorePlace::Azure { account, container } => {
                let mut builder = MicrosoftAzureBuilder::new();
                for (name, value) in settings {
                    // The name that Azure's own command has.
                    let key = if name == "azure_storage_key" {
                        Ok(AzureConfigKey::AccessKey)
                    } else {
                        name.parse()
                    };
                    if let Ok(key) = key {
                        builder = builder.with_config(key, value);
                    }
                }
                let builder = builder.with_account(account).with_container_name(container);
                let store = builder.with_retry(retry).with_http_connector(http).build()?;
                Provider::Azure(Arc::clone(store.credentials()))
            }
        })
    }

    async fn sign(&self, provider: &Provider, request: &mut HttpRequest) -> Result<(), String> {
        let text = |error: object_store::Error| error.to_string();
        match provider {
            Provider::Anonymous => Ok(()),
            Provider::Aws(provider) => {
                let credential = provider.get_credential().await.map_err(text)?;
                let parts = [Some(&credential.key_id), credential.token.as_ref()];
                if !parts
                    .into_iter()
                    .flatten()
                    .all(|part| part.bytes().all(|b| b.is_ascii_graphic()))
                {
                    return Err("they have characters that are not valid in a header".to_owned());
                }
                AwsAuthorizer::new(&credential, "s3", region(&self.settings))
                    .with_request_payer(is_on(&self.settings, "AWS_REQUEST_PAYER"))
                    .try_authorize(request, None)
                    .map_err(text)
            }
            Provider::Gcp(provider) => {
                let credential = provider.get_credential().await.map_err(text)?;
                if !credential.bearer.is_empty() {
                    let value = HeaderValue::from_str(&format!("Bearer {}", credential.bearer));
                    let value =
                        value.map_err(|_| "the token is not valid in a header".to_owned())?;
                    request.headers_mut().insert(AUTHORIZATION, value);
                }
                Ok(())
            }
            Provider::Azure(provider) => {
                let StorePlace::Azure { account, .. } = &self.place else { return Ok(()) };
                let credential = provider.get_credential().await.map_err(text)?;
                AzureAuthorizer::new(&credential, account).try_authorize(request).map_err(text)
            }
        }
    }

    fn denied(&self, detail: &str) -> ExchangeError {
        let kind = FetchErrorKind::Denied;
        ExchangeError::permanent(FetchError::new(kind, self.place.display_name(), detail))
    }

    fn unavailable(&self, error: &str, has_worked: bool) -> ExchangeError {
        let what = if has_worked { "cannot be renewed" } else { "were not found" };
        let source = self.source();
        // Texts of servers end somewhere.
        let error: String = error.chars().take(300).collect();
        let remedy = self.remedy();
        let detail = format!("the credentials ({source}) {what}; {remedy} ({error})");
        let kind = FetchErrorKind::Denied;
        let error = FetchError::new(kind, self.place.display_name(), detail);
        if has_worked { ExchangeError::transient(error) } else { ExchangeError::permanent(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::StallLimit;
    use crate::stats::Stats;

    fn access(azure: bool, settings: &[(&str, &str)]) -> StoreAccess {
        // Another test may have done so.
        rustls::crypto::ring::default_provider().install_default().ok();
        let stall_limit = StallLimit::new(Duration::from_secs(1));
        let http =
            CredentialHttp::new(&reqwest::Client::new(), &Arc::new(Stats::default()), stall_limit);
        let place = match azure {
            true => StorePlace::Azure { account: "a".to_owned(), container: "c".to_owned() },
            false => StorePlace::S3 { bucket: "b".to_owned() },
        };
        StoreAccess::new(place, settings.iter().copied().collect(), http)
    }

    /// Those of the machine were used, also if they were forbidden.
    #[test]
    fn credentials_that_are_not_complete_are_refused() {
        let (id, secret) = (("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s"));
        let identity = ("AWS_WEB_IDENTITY_TOKEN_FILE", "/t");
        let container = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://h/c");
        let (client, tenant) = (("AZURE_CLIENT_ID", "c"), ("AZURE_TENANT_ID", "t"));
        let (password, federated) =
            (("AZURE_CLIENT_SECRET", "s"), ("AZURE_FEDERATED_TOKEN_FILE", "/f"));
        let sas = ("AZURE_STORAGE_SAS_TOKEN", "sig=x");
        for (azure, settings, missing) in [
            (false, &[id][..], "AWS_SECRET_ACCESS_KEY"),
            (false, &[secret, identity], "AWS_ACCESS_KEY_ID"),
            (false, &[identity], "AWS_ROLE_ARN"),
            (false, &[container], "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
            (true, &[password], "AZURE_CLIENT_ID"),
            (true, &[client, password, sas], "AZURE_TENANT_ID"),
            (true, &[tenant, federated], "AZURE_CLIENT_ID"),
        ] {
            let error = access(azure, settings).check_settings().unwrap_err();
            assert!(error.contains(settings[0].0) || azure, "{error}");
            assert!(error.contains(&format!("{missing}, which belongs to it, is not")), "{error}");
        }
        for (azure, settings, source) in [
            (false, &[id, secret, identity][..], "AWS_ACCESS_KEY_ID"),
            (false, &[identity, ("AWS_ROLE_ARN", "r"), container], "AWS_WEB_IDENTITY_TOKEN_FILE"),
            (
                false,
                &[container, ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/t")],
                "those of the container",
            ),
            (
                false,
                &[container, ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/c")],
                "those of the container",
            ),
            (false, &[("AWS_ROLE_ARN", "r")], "those of the machine"),
            (false, &[identity, ("AWS_SKIP_SIGNATURE", "1")], "none, as the settings say"),
            (true, &[client, tenant, password, sas], "AZURE_CLIENT_ID"),
            (true, &[client, sas], "AZURE_STORAGE_SAS_TOKEN"),
            // Of the machine, with one of several identities.
            (true, &[client], "those of the machine"),
            (true, &[("AZURE_STORAGE_KEY", "k"), password], "AZURE_STORAGE_KEY"),
        ] {
            let access = access(azure, settings);
            assert_eq!(access.check_settings(), Ok(()), "{source}");
            assert_eq!(access.source(), source);
        }
        let forbidden = access(false, &[("AWS_EC2_METADATA_DISABLED", "true")]);
        forbidden.check_settings().unwrap_err();
    }

    #[test]
    fn only_credentials_that_are_settings_have_no_newer_ones() {
        let client =
            [("AZURE_CLIENT_ID", "c"), ("AZURE_TENANT_ID", "t"), ("AZURE_CLIENT_SECRET", "s")];
        let sas = ("AZURE_STORAGE_SAS_TOKEN", "sig=x");
        assert!(access(true, &[sas]).is_fixed());
        assert!(!access(true, &[&client[..], &[sas]].concat()).is_fixed());
        assert!(!access(false, &[("AWS_ROLE_ARN", "r")]).is_fixed());
    }
}
