//! The HTTP client, and redirects: which are followed, with which headers, and to which addresses. A
//! server must not lead this process to the metadata service of its machine, nor one on the internet
//! into the network of this machine, by whatever name (docs/remote.md, W1 to W4).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{AUTHORIZATION, COOKIE, LOCATION, PROXY_AUTHORIZATION};
use reqwest::{Method, Request, RequestBuilder, Response, StatusCode, Url};

/// Redirects that are followed.
const REDIRECTS_MAX: usize = 10;
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Sends requests.
#[derive(Clone, Debug)]
pub(crate) struct WebClient {
    /// For servers that the user has named. Follows no redirect.
    direct: reqwest::Client,
    /// For those to which others have redirected, by policy; made when they are needed.
    restricted: Arc<[OnceLock<reqwest::Client>; 2]>,
    /// Which servers are reached through a proxy.
    proxies: Arc<Matcher>,
}

/// Names of services that give credentials to whoever asks. A proxy would resolve them.
const METADATA_NAMES: [&str; 9] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "metadata.tencentyun.com",
    "metadata.platformequinix.com",
    "metadata.packet.net",
    "instance-data",
    "instance-data.ec2.internal",
];

/// To which addresses a redirect may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressPolicy {
    /// To no link-local address and no metadata service: for servers of the own network.
    NoMetadata,
    /// To no address of the own network: for servers on the internet.
    NoInternal,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum WebError {
    Request(reqwest::Error),
    /// A redirect that is not followed, or a server that is not asked; it would be refused again.
    Refused(String),
}

impl WebClient {
    pub(crate) fn new() -> reqwest::Result<Self> {
        let proxies = Arc::new(Matcher::from_system());
        Ok(Self { direct: client(None)?, restricted: Arc::default(), proxies })
    }

    /// All hosts are one Unix socket, and no name is looked up.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn of_socket(path: &std::path::Path) -> reqwest::Result<Self> {
        let builder = client_builder(None).unix_socket(path);
        let client = builder.tls_certs_only(std::iter::empty()).build()?;
        let restricted = [(); 2].map(|()| OnceLock::from(client.clone()));
        let proxies = Arc::new(Matcher::builder().build());
        Ok(Self { direct: client, restricted: Arc::new(restricted), proxies })
    }

    /// The client for servers that the user has named, which follows no redirect.
    pub(crate) fn direct(&self) -> &reqwest::Client {
        &self.direct
    }

    /// Whether a proxy connects to a server. Nobody here knows the addresses of that then.
    pub(crate) fn has_proxy(&self, url: &Url) -> bool {
        url.as_str().parse().is_ok_and(|uri| self.proxies.intercept(&uri).is_some())
    }

    /// The client for a server that another one has named. The name of a proxy is no business of the policy:
    /// the user has chosen the proxy.
    fn restricted(&self, policy: AddressPolicy, url: &Url) -> Result<&reqwest::Client, WebError> {
        policy.check_url(url).map_err(WebError::Refused)?;
        if self.has_proxy(url) {
            return Ok(&self.direct);
        }
        let slot = &self.restricted[policy as usize];
        if let Some(client) = slot.get() {
            return Ok(client);
        }
        let client = client(Some(policy)).map_err(WebError::Request)?;
        Ok(slot.get_or_init(|| client))
    }

    /// The client for a server on the internet that another one has named. Follows no redirect.
    pub(crate) fn internet(&self, url: &Url) -> Result<&reqwest::Client, WebError> {
        self.restricted(AddressPolicy::NoInternal, url)
    }

    /// Sends a request to a server that the user has named, and follows redirects.
    pub(crate) async fn send(&self, builder: RequestBuilder) -> Result<Response, WebError> {
        let request = builder.build().map_err(WebError::Request)?;
        self.follow(&self.direct, request, None).await
    }

    /// The same for a server on the internet that another one has named.
    pub(crate) async fn send_restricted(
        &self,
        builder: RequestBuilder,
    ) -> Result<Response, WebError> {
        let request = builder.build().map_err(WebError::Request)?;
        let policy = AddressPolicy::NoInternal;
        let client = self.restricted(policy, request.url())?;
        self.follow(client, request, Some(policy)).await
    }

    async fn follow(
        &self,
        first: &reqwest::Client,
        request: Request,
        mut policy: Option<AddressPolicy>,
    ) -> Result<Response, WebError> {
        let (mut client, mut request, mut followed) = (first, request, 0);
        loop {
            let next = request.try_clone();
            let was_secure = request.url().scheme() == "https";
            let response = client.execute(request).await.map_err(|error| {
                let error = WebError::of(error);
                if followed > 0 { error.of_redirect() } else { error }
            })?;
            let target = redirect_target(&response);
            let (Some(target), Some(mut next)) = (target, next) else { return Ok(response) };
            let keeps_method = matches!(
                response.status(),
                StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
            );
            if !keeps_method && !matches!(*next.method(), Method::GET | Method::HEAD) {
                return Ok(response);
            }
            followed += 1;
            if followed > REDIRECTS_MAX {
                return Err(WebError::Refused(format!("more than {REDIRECTS_MAX} redirects")));
            }
            if was_secure && target.scheme() != "https" {
                let text = "a redirect from https to http is refused";
                return Err(WebError::Refused(text.to_owned()));
            }
            // Once on the internet, no server leads back.
            let is_far = policy == Some(AddressPolicy::NoInternal)
                || response.remote_addr().is_some_and(|address| !is_internal(address.ip()));
            let now = if is_far { AddressPolicy::NoInternal } else { AddressPolicy::NoMetadata };
            policy = Some(now);
            client = self.restricted(now, &target).map_err(WebError::of_redirect)?;
            if target.origin() != next.url().origin() {
                for name in [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION] {
                    next.headers_mut().remove(name);
                }
            }
            *next.url_mut() = target;
            request = next;
        }
    }
}

impl WebError {
    /// An address that was refused is deep in the error of the client.
    pub(crate) fn of(error: reqwest::Error) -> Self {
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            if let Some(refused) = inner.downcast_ref::<RefusedAddress>() {
                return Self::Refused(refused.to_string());
            }
            cause = inner.source();
        }
        Self::Request(error)
    }

    /// The same for a server to which another one has redirected.
    fn of_redirect(self) -> Self {
        match self {
            Self::Refused(why) => Self::Refused(format!("a redirect to {why}")),
            Self::Request(error) => Self::Request(error),
        }
    }
}

/// Whether a server that another one has named is refused as one of the own network, as far as its URL tells.
pub(crate) fn check_named(url: &Url) -> Result<(), String> {
    AddressPolicy::NoInternal.check_url(url)
}

/// Where a redirect leads; `None` if the answer is none that is followed.
fn redirect_target(response: &Response) -> Option<Url> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let target = response.headers().get(LOCATION)?.to_str().ok()?;
    let target = response.url().join(target).ok()?;
    (matches!(target.scheme(), "http" | "https") && target.has_host()).then_some(target)
}

/// A client. On a system without CA certificates it trusts no server with TLS; the cache and plain
/// HTTP work.
fn client(policy: Option<AddressPolicy>) -> reqwest::Result<reqwest::Client> {
    let builder = || client_builder(policy);
    builder().build().or_else(|_| builder().tls_certs_only(std::iter::empty()).build())
}

fn client_builder(policy: Option<AddressPolicy>) -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder()
        .user_agent(concat!("ferrofs/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT);
    match policy {
        Some(policy) => builder.no_proxy().dns_resolver(Arc::new(policy)),
        None => builder,
    }
}

/// The addresses that are used are those that were checked.
impl Resolve for AddressPolicy {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = *self;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let addresses: Vec<SocketAddr> = found.collect();
            policy.check(name.as_str(), addresses.iter().map(SocketAddr::ip))?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// A server has named another one with an address that it must not lead to.
#[derive(Debug, PartialEq, Eq)]
struct RefusedAddress {
    host: String,
    address: IpAddr,
}

impl fmt::Display for RefusedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, address } = self;
        let kind = match is_metadata(*address) {
            true => "a link-local or metadata address",
            false => "an address of the local network",
        };
        write!(f, "{kind} is refused: {host}")?;
        if host.trim_matches(['[', ']']) != address.to_string() {
            write!(f, " is {address}")?;
        }
        Ok(())
    }
}

impl std::error::Error for RefusedAddress {}

impl AddressPolicy {
    fn check(
        self,
        host: &str,
        mut addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<(), RefusedAddress> {
        let is_refused = match self {
            Self::NoMetadata => is_metadata,
            Self::NoInternal => is_internal,
        };
        match addresses.find(|address| is_refused(*address)) {
            Some(address) => Err(RefusedAddress { host: host.to_owned(), address }),
            None => Ok(()),
        }
    }

    /// What can be said without resolving a name: an address instead of one, and names that are known.
    fn check_url(self, url: &Url) -> Result<(), String> {
        let host = url.host_str().unwrap_or_default();
        if let Ok(address) = host.trim_matches(['[', ']']).parse() {
            return self.check(host, std::iter::once(address)).map_err(|error| error.to_string());
        }
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        if METADATA_NAMES.contains(&&*name) {
            return Err(format!("a metadata service is refused: {host}"));
        }
        let is_local = name == "localhost" || name.ends_with(".localhost");
        if self == Self::NoInternal && is_local {
            return Err(format!("an address of the local network is refused: {host}"));
        }
        Ok(())
    }
}

/// The IPv4 address in an address of IPv6: mapped, or behind a translator (RFC 6052). For the prefix of translators of
/// the own network (RFC 8215), it can lie in four places.
fn embedded(address: Ipv6Addr) -> Vec<IpAddr> {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return vec![mapped.into()];
    }
    let octets = address.octets();
    let at = |places: [usize; 4]| IpAddr::from(places.map(|place| octets[place]));
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => vec![at([12, 13, 14, 15])],
        [0x64, 0xff9b, 1, ..] => {
            let places = [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], [12, 13, 14, 15]];
            // No host has an address that begins with 0: there is a part of a shorter prefix.
            places.into_iter().filter(|places| octets[places[0]] != 0).map(at).collect()
        }
        _ => Vec::new(),
    }
}

/// `fd00:ec2::254` of Amazon, `fd20:ce::254` of Google, and `fd00:c1::a9fe:a9fe` of Oracle.
const METADATA_ADDRESSES: [[u16; 8]; 3] = [
    [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254],
    [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254],
    [0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe],
];

/// Whether a service of the cloud may answer there that gives credentials to whoever asks: all of
/// link-local, and the addresses of Amazon, Google and Oracle (IPv6), Alibaba and Azure.
fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            v4.is_link_local() || matches!(v4.octets(), [100, 100, 100, 200] | [168, 63, 129, 16])
        }
        IpAddr::V6(v6) => {
            v6.is_unicast_link_local()
                || METADATA_ADDRESSES.contains(&v6.segments())
                || embedded(v6).into_iter().any(is_metadata)
        }
    }
}

/// Whether an address belongs to this machine or its network (RFC 6890).
pub(crate) fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            is_metadata(address)
                || v4.is_private()
                || v4.is_loopback()
                || v4.is_unspecified()
                || v4.is_broadcast()
                || v4.is_multicast()
                // Shared address space of providers, 100.64.0.0/10.
                || v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
                || v6.is_multicast()
                || embedded(v6).into_iter().any(is_internal)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_own_network_are_known() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "169.254.169.254",
            "192.168.0.1",
            "100.64.0.1",
            "168.63.129.16",
            "::1",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::10.0.0.1",
            "64:ff9b:1:a9fe:a9:fe00::",
            "0.0.0.0",
        ] {
            assert!(is_internal(text.parse().unwrap()), "{text}");
        }
        for text in [
            "1.1.1.1",
            "100.63.0.1",
            "2606:4700::1111",
            "64:ff9b::1.1.1.1",
            "64:ff9b:1::1.1.1.1",
            "64:ff9b:1:808:8:800::",
        ] {
            assert!(!is_internal(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_server_of_the_own_network_leads_anywhere_but_to_metadata() {
        let check = |policy: AddressPolicy, addresses: &[&str]| {
            let addresses = addresses.iter().map(|text| text.parse().unwrap());
            policy.check("name.example", addresses).map_err(|error| error.to_string())
        };
        let metadata = [
            "169.254.169.254",
            "fe80::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "100.100.100.200",
            // 169.254.169.254 behind a prefix of 48, 56, 64 and 96 bits.
            "64:ff9b:1:a9fe:a9:fe00::",
            "64:ff9b:1:a9:fe:a9fe::",
            "64:ff9b:1:5:a9:fea9:fe00:0",
            "64:ff9b:1:5::169.254.169.254",
        ];
        for address in metadata {
            for policy in [AddressPolicy::NoMetadata, AddressPolicy::NoInternal] {
                let text = check(policy, &["1.1.1.1", address]).unwrap_err();
                assert!(text.contains("link-local") && text.contains("name.example"), "{text}");
            }
        }
        for address in ["10.0.0.1", "127.0.0.1", "::1", "192.168.1.1"] {
            check(AddressPolicy::NoMetadata, &[address]).unwrap();
            let text = check(AddressPolicy::NoInternal, &[address]).unwrap_err();
            assert!(text.contains("local network"), "{text}");
        }
        check(AddressPolicy::NoInternal, &["1.1.1.1", "2606:4700::1111"]).unwrap();
    }

    #[test]
    fn a_name_of_the_own_network_is_refused_when_it_is_resolved() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let resolve = |policy: AddressPolicy| {
            runtime.block_on(policy.resolve("localhost".parse().unwrap())).map(Iterator::count)
        };
        assert!(resolve(AddressPolicy::NoMetadata).unwrap() > 0);
        let error = resolve(AddressPolicy::NoInternal).unwrap_err();
        assert!(error.is::<RefusedAddress>(), "{error}");
    }

    #[test]
    fn names_of_metadata_services_are_known() {
        let check = |policy: AddressPolicy, host: &str| {
            policy.check_url(&Url::parse(&format!("http://{host}/x")).unwrap())
        };
        for host in ["metadata.google.internal", "METADATA.google.internal.", "instance-data"] {
            for policy in [AddressPolicy::NoMetadata, AddressPolicy::NoInternal] {
                assert!(check(policy, host).unwrap_err().contains("metadata service"), "{host}");
            }
        }
        for host in ["localhost", "a.LOCALHOST", "10.0.0.1", "[::1]"] {
            check(AddressPolicy::NoMetadata, host).unwrap();
            assert!(check(AddressPolicy::NoInternal, host).unwrap_err().contains("local network"));
        }
        check(AddressPolicy::NoInternal, "metadata.google.internal.example.org").unwrap();
    }

    #[test]
    fn a_server_that_another_one_named_is_not_asked_in_the_own_network() {
        // Another test may have done so.
        rustls::crypto::ring::default_provider().install_default().ok();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let web = WebClient::new().unwrap();
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            let builder = web.direct().get(format!("http://{host}:9/"));
            let result = runtime.block_on(web.send_restricted(builder));
            assert!(matches!(result, Err(WebError::Refused(_))), "{host}: {result:?}");
        }
    }
}
