//! A repository of an OCI registry: manifests, blobs, and the tokens that give access to them
//! (OCI distribution specification; the token protocol of docker). One token serves all requests
//! of a repository, and one request renews it for all that wait.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofs_remote::ContentDigest;
use ferrofs_remote::protocol::{FetchError, FetchErrorKind};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Response, StatusCode};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::credentials::{Credentials, find_credentials};
use crate::http::{
    Body, ExchangeError, RangeAnswer, RangeRequest, StallLimit, answered, get_range, protocol,
    read_range, status_error,
};
use crate::stats::Stats;
use crate::web::{WebClient, WebError, check_named, is_internal};

/// The longest manifest, index or token answer, in bytes: the limit that registries have.
pub(crate) const DOCUMENT_MAX_BYTES: usize = 4 << 20;
/// A token that does not say how long it is valid, or says less, is valid for a minute (docker's
/// rule). If it is not, the next refusal renews it; and no server makes each request fetch one.
const TOKEN_MIN: Duration = Duration::from_secs(60);
/// A token is renewed so long before it expires.
const TOKEN_MARGIN: Duration = Duration::from_secs(10);
/// The header with the digest of a manifest.
const STATED_DIGEST: &str = "docker-content-digest";
const MANIFEST_TYPES: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// A repository.
#[derive(Debug)]
pub(crate) struct Repository {
    web: WebClient,
    stats: Arc<Stats>,
    registry: String,
    name: String,
    scheme: &'static str,
    right: AccessRight,
    stall_limit: StallLimit,
    /// `oci://REGISTRY/NAME`, for messages.
    display_name: String,
    access: Mutex<Access>,
}

/// What a repository is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessRight {
    Pull,
    Push,
}

/// A repository by its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RepositoryName<'a> {
    pub(crate) registry: &'a str,
    pub(crate) name: &'a str,
    pub(crate) right: AccessRight,
    /// Its registry speaks HTTP without TLS.
    pub(crate) is_insecure: bool,
    pub(crate) stall_limit: StallLimit,
}

/// How requests are authorized.
#[derive(Debug, Default)]
struct Access {
    header: Option<HeaderValue>,
    expires: Option<Instant>,
    /// Incremented with each new header.
    generation: u64,
    challenge: Option<Challenge>,
}

/// What a registry asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// The answer of a token server.
#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl Repository {
    pub(crate) fn new(web: &WebClient, stats: &Arc<Stats>, named: RepositoryName<'_>) -> Self {
        let RepositoryName { registry, name, right, is_insecure, stall_limit } = named;
        let (host, path) = resolve_docker_hub(registry, name);
        Self {
            web: web.clone(),
            stats: Arc::clone(stats),
            registry: host.to_owned(),
            name: path,
            scheme: if is_insecure { "http" } else { "https" },
            right,
            stall_limit,
            display_name: format!("oci://{registry}/{name}"),
            access: Mutex::default(),
        }
    }

    /// Fetches a manifest or an index by tag or digest. Returns its media type and its bytes; they
    /// have the digest that was asked for, or for a tag the one that the registry states.
    pub(crate) async fn get_manifest(
        &self,
        reference: &str,
    ) -> Result<(String, Vec<u8>), ExchangeError> {
        let url = self.url("manifests", reference);
        let response = self
            .authorized(|authorization| {
                let builder = self.web.direct().get(&url).header(ACCEPT, MANIFEST_TYPES);
                match authorization {
                    Some(value) => builder.header(AUTHORIZATION, value),
                    None => builder,
                }
            })
            .await?;
        if !response.status().is_success() {
            return Err(status_error(&self.display_name, response.status(), response.headers()));
        }
        let media_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().split(';').next().unwrap_or_default();
        let media_type = media_type.trim().to_owned();
        let stated = response.headers().get(STATED_DIGEST).and_then(|value| value.to_str().ok());
        // Digests of other kinds than SHA-256 are not compared.
        let wanted = reference.parse().ok().or_else(|| stated?.trim().parse().ok());
        let body = Body::new(response, self.stall_limit);
        let bytes = body.read_to_end(&self.display_name, DOCUMENT_MAX_BYTES).await?;
        if let Some(digest) = wanted {
            self.check_digest(&bytes, &digest)?;
        }
        Ok((media_type, bytes))
    }

    /// Fetches a whole blob of at most `limit` bytes, which must have its digest.
    pub(crate) async fn get_small_blob(
        &self,
        digest: &ContentDigest,
        limit: usize,
    ) -> Result<Vec<u8>, ExchangeError> {
        let (name, display_name) = (&digest.to_string(), &self.display_name);
        let get = |range: Range<u64>| async move {
            self.get_blob(name, &range, false).await?.at_most(limit, display_name)
        };
        let bytes = read_range(&(0..limit as u64), display_name, get).await?;
        self.check_digest(&bytes, digest)?;
        Ok(bytes)
    }

    fn check_digest(&self, bytes: &[u8], digest: &ContentDigest) -> Result<(), ExchangeError> {
        let found = ContentDigest::of(bytes);
        if found == *digest {
            return Ok(());
        }
        let detail = format!("the registry sent bytes with the digest {found} for {digest}");
        Err(ExchangeError::permanent(FetchError::new(
            FetchErrorKind::Damaged,
            &self.display_name,
            detail,
        )))
    }

    /// Requests a range of a blob.
    pub(crate) async fn get_blob(
        &self,
        digest: &str,
        range: &Range<u64>,
        past_caches: bool,
    ) -> Result<RangeAnswer, ExchangeError> {
        let url = self.url("blobs", digest);
        let (mut header, mut generation) = self.header().await?;
        for attempt in 0..2 {
            let request = RangeRequest {
                url: &url,
                display_name: &self.display_name,
                range: range.clone(),
                authorization: header,
                past_caches,
                stall_limit: self.stall_limit,
            };
            match get_range(&self.web, &request).await {
                Err(error) if attempt == 0 && error.error.kind == FetchErrorKind::Denied => {
                    // The token has expired early, or this is the first request: find out why.
                    let sending = self.web.send(self.web.direct().head(&url));
                    let probe = answered(sending, &self.display_name, self.stall_limit).await?;
                    self.renew(generation, &probe).await?;
                    (header, generation) = self.header().await?;
                }
                other => return other,
            }
        }
        let detail = "the registry gave a token, but refuses access; check the rights of the login";
        Err(ExchangeError::permanent(FetchError::new(
            FetchErrorKind::Denied,
            &self.display_name,
            detail,
        )))
    }

    /// Sends a request with the current authorization, and once more with a new one if the registry
    /// asks for it.
    pub(crate) async fn authorized(
        &self,
        build: impl Fn(Option<HeaderValue>) -> reqwest::RequestBuilder,
    ) -> Result<Response, ExchangeError> {
        let (header, generation) = self.header().await?;
        Stats::add(&self.stats.requests, 1);
        let response =
            answered(self.web.send(build(header)), &self.display_name, self.stall_limit).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        self.renew(generation, &response).await?;
        let (header, _) = self.header().await?;
        Stats::add(&self.stats.requests, 1);
        answered(self.web.send(build(header)), &self.display_name, self.stall_limit).await
    }

    /// The header to send, renewed if it is about to expire.
    pub(crate) async fn header(&self) -> Result<(Option<HeaderValue>, u64), ExchangeError> {
        let mut access = self.access.lock().await;
        let is_old = access.expires.is_some_and(|expires| expires <= Instant::now() + TOKEN_MARGIN);
        if is_old && let Some(challenge) = access.challenge.clone() {
            self.request_token(&mut access, &challenge).await?;
        }
        Ok((access.header.clone(), access.generation))
    }

    /// Gets access after a refusal. Whoever comes while another request does so waits for it.
    pub(crate) async fn renew(
        &self,
        generation: u64,
        refusal: &Response,
    ) -> Result<(), ExchangeError> {
        // A server to which the registry has redirected names no token server: it would get the login.
        if !self.is_own(refusal.url()) {
            let server = refusal.url().origin().ascii_serialization();
            let detail = format!(
                "the registry leads to {server}, which refuses access; only the registry itself gets a login"
            );
            let error = FetchError::new(FetchErrorKind::Denied, &self.display_name, detail);
            return Err(ExchangeError::permanent(error));
        }
        let mut access = self.access.lock().await;
        if access.generation != generation {
            return Ok(());
        }
        let challenge = refusal
            .headers()
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| parse_challenge(value.to_str().ok()?))
            .next()
            .ok_or_else(|| {
                let detail = "the registry refuses access and does not say what it needs";
                ExchangeError::permanent(FetchError::new(
                    FetchErrorKind::Denied,
                    &self.display_name,
                    detail,
                ))
            })?;
        self.request_token(&mut access, &challenge).await?;
        access.challenge = Some(challenge);
        Ok(())
    }

    async fn request_token(
        &self,
        access: &mut Access,
        challenge: &Challenge,
    ) -> Result<(), ExchangeError> {
        let denied = |detail: String| {
            ExchangeError::permanent(FetchError::new(
                FetchErrorKind::Denied,
                &self.display_name,
                detail,
            ))
        };
        let credentials = find_credentials(&self.registry, &self.name).await.map_err(denied)?;
        let header = match challenge {
            Challenge::Basic => {
                let credentials = credentials.ok_or_else(|| {
                    denied(format!(
                        "the registry needs a login; log in with docker, podman or skopeo to {}",
                        self.registry
                    ))
                })?;
                access.expires = None;
                credentials.basic_header()
            }
            Challenge::Bearer { realm, service, scope } => {
                let (token, expires) =
                    self.token(realm, service.as_deref(), scope.as_deref(), credentials).await?;
                access.expires = Some(expires);
                HeaderValue::from_str(&format!("Bearer {token}")).ok()
            }
        };
        let mut header =
            header.ok_or_else(|| denied("the token is not valid in a header".to_owned()))?;
        header.set_sensitive(true);
        access.header = Some(header);
        access.generation += 1;
        Ok(())
    }

    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
        credentials: Option<Credentials>,
    ) -> Result<(String, Instant), ExchangeError> {
        let url = self.checked_realm(realm).await?;
        // The challenge to a request that reads asks for less than an upload needs.
        let (actions, scope) = match self.right {
            AccessRight::Pull => ("pull", scope),
            AccessRight::Push => ("pull,push", None),
        };
        let default_scope = format!("repository:{}:{actions}", self.name);
        let mut url = url;
        {
            let mut query = url.query_pairs_mut();
            query.append_pair("scope", scope.unwrap_or(&default_scope));
            if let Some(service) = service {
                query.append_pair("service", service);
            }
        }
        let is_own_host = self.is_own_host(&url);
        let mut builder = self.web.direct().get(url);
        if let Some(header) = credentials.and_then(|credentials| credentials.basic_header()) {
            builder = builder.header(AUTHORIZATION, header);
        }
        Stats::add(&self.stats.token_requests, 1);
        let response = match is_own_host {
            true => answered(self.web.send(builder), &self.display_name, self.stall_limit).await?,
            // The address that was checked is the one that is asked.
            false => {
                answered(self.web.send_restricted(builder), &self.display_name, self.stall_limit)
                    .await?
            }
        };
        if !response.status().is_success() {
            return Err(status_error(&self.display_name, response.status(), response.headers()));
        }
        let body = Body::new(response, self.stall_limit);
        let bytes = body.read_to_end(&self.display_name, DOCUMENT_MAX_BYTES).await?;
        let malformed = || {
            ExchangeError::permanent(protocol(&self.display_name, "the token server sent no token"))
        };
        let answer: TokenAnswer = serde_json::from_slice(&bytes).map_err(|_| malformed())?;
        let valid = answer.expires_in.map_or(TOKEN_MIN, Duration::from_secs).max(TOKEN_MIN);
        let token = answer.token.or(answer.access_token).ok_or_else(malformed)?;
        Ok((token, Instant::now() + valid.min(Duration::from_secs(86_400))))
    }

    async fn checked_realm(&self, realm: &str) -> Result<reqwest::Url, ExchangeError> {
        match reqwest::Url::parse(realm) {
            Ok(url) => {
                self.check_host(&url, "token server").await.map_err(ExchangeError::permanent)?;
                Ok(url)
            }
            Err(_) => {
                let detail = format!("the token server {realm:?} has no valid URL");
                let error = FetchError::new(FetchErrorKind::Denied, &self.display_name, detail);
                Err(ExchangeError::permanent(error))
            }
        }
    }

    /// A registry must not make this machine send requests into its own network: a server that it
    /// names is on the registry's own host, or has a public address. It has TLS, unless it is on the host
    /// of a registry that has none itself: a login never goes to a server with less than the registry has.
    pub(crate) async fn check_host(
        &self,
        url: &reqwest::Url,
        what: &str,
    ) -> Result<(), FetchError> {
        let refused =
            |detail: String| FetchError::new(FetchErrorKind::Denied, &self.display_name, detail);
        let host = url.host_str().unwrap_or_default().to_owned();
        let is_own_host = self.is_own_host(url);
        if url.scheme() != "https" && !(is_own_host && url.scheme() == self.scheme) {
            return Err(refused(format!("the {what} {host} does not use TLS")));
        }
        if is_own_host {
            return Ok(());
        }
        if self.web.has_proxy(url) {
            return check_named(url).map_err(|detail| refused(format!("the {what}: {detail}")));
        }
        let port = url.port_or_known_default().unwrap_or(443);
        let addresses = tokio::net::lookup_host((host.trim_matches(['[', ']']), port)).await;
        let mut addresses =
            addresses.map_err(|error| refused(format!("the {what} {host}: {error}")))?;
        if let Some(address) = addresses.find(|address| is_internal(address.ip())) {
            let address = address.ip();
            return Err(refused(format!("the {what} {host} has the private address {address}")));
        }
        Ok(())
    }

    fn is_own_host(&self, url: &reqwest::Url) -> bool {
        self.own_url().is_some_and(|own| own.has_host() && own.host_str() == url.host_str())
    }

    /// Whether a URL leads to the registry itself, which alone gets credentials.
    pub(crate) fn is_own(&self, url: &reqwest::Url) -> bool {
        self.own_url().is_some_and(|own| own.origin() == url.origin())
    }

    /// As a URL, in which a host and an address have one form.
    fn own_url(&self) -> Option<reqwest::Url> {
        reqwest::Url::parse(&format!("{}://{}", self.scheme, self.registry)).ok()
    }

    /// Follows no redirect.
    pub(crate) fn client(&self) -> &reqwest::Client {
        self.web.direct()
    }

    /// The same for a URL that the registry has named: the address that [`check_host`](Self::check_host) has accepted is not
    /// the one that is asked if the name has another one by then.
    pub(crate) fn client_for(&self, url: &reqwest::Url) -> Result<&reqwest::Client, WebError> {
        if self.is_own_host(url) { Ok(self.web.direct()) } else { self.web.internet(url) }
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn url(&self, kind: &str, reference: &str) -> String {
        format!("{}://{}/v2/{}/{kind}/{reference}", self.scheme, self.registry, self.name)
    }

    /// Scheme and host, in one form.
    pub(crate) fn server(&self) -> String {
        format!("{}://{}", self.scheme, self.registry.to_ascii_lowercase())
    }

    /// With its port, if it has one.
    pub(crate) fn host(&self) -> &str {
        &self.registry
    }
}

/// `Bearer realm="…",service="…",scope="…"` or `Basic realm="…"` (RFC 9110, 11.6.1).
fn parse_challenge(value: &str) -> Option<Challenge> {
    let (scheme, parameters) = value.trim().split_once(' ').unwrap_or((value.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut scope) = (None, None, None);
    let mut rest = parameters.trim();
    while let Some((name, after)) = rest.split_once('=') {
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').map_or((after, ""), |(value, rest)| (value, rest)),
        };
        match name.trim().trim_start_matches(',').trim().to_ascii_lowercase().as_str() {
            "realm" => realm = Some(value.to_owned()),
            "service" => service = Some(value.to_owned()),
            "scope" => scope = Some(value.to_owned()),
            _ => {}
        }
        rest = after.trim_start_matches([',', ' ']);
    }
    Some(Challenge::Bearer { realm: realm?, service, scope })
}

/// The host and the path of a repository. Docker Hub is called `docker.io`, its registry has another
/// host, and names of its own images leave out `library/`, as docker and podman understand them.
fn resolve_docker_hub<'a>(registry: &'a str, name: &str) -> (&'a str, String) {
    match registry {
        "docker.io" | "index.docker.io" => {
            let prefix = if name.contains('/') { "" } else { "library/" };
            ("registry-1.docker.io", format!("{prefix}{name}"))
        }
        other => (other, name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_in_any_order() {
        let wanted = Challenge::Bearer {
            realm: "https://auth/token".to_owned(),
            service: Some("registry".to_owned()),
            scope: Some("repository:a/b:pull,push".to_owned()),
        };
        for text in [
            "Bearer realm=\"https://auth/token\",service=\"registry\",scope=\"repository:a/b:pull,push\"",
            "bearer scope=\"repository:a/b:pull,push\", service=registry, realm=\"https://auth/token\"",
        ] {
            assert_eq!(parse_challenge(text), Some(wanted.clone()), "{text}");
        }
        assert_eq!(parse_challenge("Basic realm=\"x\""), Some(Challenge::Basic));
        for text in ["Bearer", "Bearer service=\"x\"", "Bearer realm=\"x", "Digest realm=\"x\"", ""]
        {
            assert_eq!(parse_challenge(text), None, "{text}");
        }
    }

    /// The login was sent in clear text.
    #[test]
    fn a_registry_with_tls_names_no_server_without_it() {
        // Another test may have done so.
        rustls::crypto::ring::default_provider().install_default().ok();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (web, stats) = (WebClient::new().unwrap(), Arc::default());
        let is_accepted = |is_insecure, url: &str| {
            let repository = Repository::new(
                &web,
                &stats,
                RepositoryName {
                    registry: "localhost:5000",
                    name: "image",
                    right: AccessRight::Pull,
                    is_insecure,
                    stall_limit: StallLimit::new(Duration::from_secs(1)),
                },
            );
            let url = reqwest::Url::parse(url).unwrap();
            runtime.block_on(repository.check_host(&url, "token server")).is_ok()
        };
        for port in ["", ":5000", ":5001"] {
            let (plain, tls) =
                (format!("http://localhost{port}/token"), format!("https://localhost{port}/token"));
            assert!(is_accepted(false, &tls) && is_accepted(true, &tls), "{tls}");
            assert!(is_accepted(true, &plain), "{plain}");
            assert!(!is_accepted(false, &plain), "{plain}");
        }
        assert!(!is_accepted(true, "http://127.0.0.1:5000/token"));
        assert!(!is_accepted(true, "ftp://localhost:5000/token"));
    }

    /// An upload went to whatever address the name had by then.
    #[test]
    fn servers_that_a_registry_names_are_on_the_internet() {
        rustls::crypto::ring::default_provider().install_default().ok();
        let named = RepositoryName {
            registry: "10.0.0.1:5000",
            name: "image",
            right: AccessRight::Push,
            is_insecure: true,
            stall_limit: StallLimit::new(Duration::from_secs(5)),
        };
        let repository = Repository::new(&WebClient::new().unwrap(), &Arc::default(), named);
        let client = |url: &str| repository.client_for(&reqwest::Url::parse(url).unwrap());
        assert!(std::ptr::eq(client("http://10.0.0.1:5001/x").unwrap(), repository.client()));
        let error = client("https://10.0.0.2/x").unwrap_err();
        let WebError::Refused(why) = error else { panic!("{error:?}") };
        assert_eq!(why, "an address of the local network is refused: 10.0.0.2");
        let url = "https://storage.example/x";
        // The user has chosen a proxy.
        let has_proxy = repository.web.has_proxy(&reqwest::Url::parse(url).unwrap());
        assert_eq!(std::ptr::eq(client(url).unwrap(), repository.client()), has_proxy);
    }

    #[test]
    fn docker_hub_has_a_host_and_short_names() {
        let hub = |name: &str| ("registry-1.docker.io", name.to_owned());
        assert_eq!(resolve_docker_hub("docker.io", "debian"), hub("library/debian"));
        assert_eq!(resolve_docker_hub("index.docker.io", "me/app"), hub("me/app"));
        assert_eq!(resolve_docker_hub("ghcr.io", "app"), ("ghcr.io", "app".to_owned()));
    }
}
