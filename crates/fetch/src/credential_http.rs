//! The HTTP client of `object_store` for credentials: requests to token servers and to the metadata
//! service of the machine, over the client of this process. Objects are not requested by it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::client::{
    ClientConfigKey, ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind,
    HttpRequest, HttpResponse, HttpService,
};

use crate::http::{Body, StallLimit, describe};
use crate::stats::Stats;
use crate::store_place::is_yes;

/// The longest answer of a token server, in bytes.
const ANSWER_MAX_BYTES: usize = 1 << 20;
/// How long a token server may take. The metadata service of a machine that has none answers never.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends requests for credentials.
#[derive(Clone, Debug)]
pub(crate) struct CredentialHttp {
    /// Follows no redirect.
    pub(crate) client: reqwest::Client,
    pub(crate) stats: Arc<Stats>,
    allows_http: bool,
    stall_limit: StallLimit,
}

impl CredentialHttp {
    pub(crate) fn new(
        client: &reqwest::Client,
        stats: &Arc<Stats>,
        stall_limit: StallLimit,
    ) -> Self {
        Self { client: client.clone(), stats: Arc::clone(stats), allows_http: false, stall_limit }
    }

    fn with_options(&self, options: &ClientOptions) -> Self {
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let allows_http = allows_http.as_deref().is_some_and(is_yes);
        Self { allows_http, ..self.clone() }
    }

    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let failed = |kind, text: String| HttpError::new_boxed(kind, text.into());
        let (head, body) = request.into_parts();
        if head.uri.scheme_str() != Some("https") && !self.allows_http {
            let text = "a server for credentials must use TLS";
            return Err(failed(HttpErrorKind::Unknown, text.to_owned()));
        }
        let mut builder = self.client.request(head.method, head.uri.to_string());
        builder = builder.headers(head.headers);
        if let Some(bytes) = body.as_bytes().filter(|bytes| !bytes.is_empty()) {
            builder = builder.body(bytes.to_vec());
        }
        Stats::add(&self.stats.token_requests, 1);
        let response = builder.send().await;
        let mut response =
            response.map_err(|error| failed(HttpErrorKind::Connect, describe(error)))?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let body = Body::new(response, self.stall_limit);
        let body = body.read_to_end("the server for credentials", ANSWER_MAX_BYTES).await;
        let body =
            body.map_err(|error| failed(HttpErrorKind::Interrupted, error.error.to_string()))?;
        let mut answer = HttpResponse::new(body.into());
        (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
        Ok(answer)
    }
}

impl HttpConnector for CredentialHttp {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.with_options(options)))
    }
}

#[async_trait]
impl HttpService for CredentialHttp {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        match tokio::time::timeout(ANSWER_TIMEOUT, self.exchange(request)).await {
            Ok(result) => result,
            Err(_) => {
                let text = "the server for credentials did not answer";
                Err(HttpError::new_boxed(HttpErrorKind::Timeout, text.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `AZURE_ALLOW_HTTP=1` counted for objects only.
    #[test]
    fn servers_for_credentials_have_the_words_of_stores() {
        // Another test may have done so.
        rustls::crypto::ring::default_provider().install_default().ok();
        let stall_limit = StallLimit::new(Duration::from_secs(1));
        let http = CredentialHttp::new(&reqwest::Client::new(), &Arc::default(), stall_limit);
        for (word, wanted) in [("1", true), ("TRUE", true), ("yes", true), ("0", false)] {
            let options = ClientOptions::new().with_config(ClientConfigKey::AllowHttp, word);
            assert_eq!(http.with_options(&options).allows_http, wanted, "{word}");
        }
        assert!(!http.with_options(&ClientOptions::new().with_allow_http(false)).allows_http);
    }
}
