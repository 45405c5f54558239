//! Objects of object stores: S3, Google Cloud Storage, Azure. Requests are those of a web server
//! with authorization, so that repetition, checks and counters are the same for all servers.

use std::sync::Arc;

use ferrofs_remote::protocol::{FetchError, FetchErrorKind};
use reqwest::header::{HeaderMap, HeaderValue, IF_MATCH, RANGE};

use crate::http::{
    Body, ExchangeError, ObjectRange, RangeAnswer, RangeRequest, StallLimit, answered, check_answer,
};
use crate::store_access::StoreAccess;
use crate::store_refusal::StoreRefusal;
use crate::web::WebError;

/// Bytes that are read of an error document.
const ERROR_BYTES: usize = 16 << 10;

/// An object of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct StoreObject {
    /// Follows no redirect: credentials are in headers that only their store must see.
    pub(crate) client: reqwest::Client,
    pub(crate) access: Arc<StoreAccess>,
    /// Without a query.
    pub(crate) url: String,
    stall_limit: StallLimit,
}

impl StoreObject {
    /// # Errors
    /// The settings or the key cannot be used.
    pub(crate) fn new(
        client: &reqwest::Client,
        access: &Arc<StoreAccess>,
        key: &str,
        stall_limit: StallLimit,
    ) -> Result<Self, FetchError> {
        let url = access.place.url(&access.settings, key).map_err(|detail| {
            FetchError::new(FetchErrorKind::Refused, access.place.display_name(), detail)
        })?;
        Ok(Self { client: client.clone(), access: Arc::clone(access), url, stall_limit })
    }

    /// Requests a range; once more if the credentials have expired.
    pub(crate) async fn get_range(
        &self,
        wanted: &ObjectRange<'_>,
    ) -> Result<RangeAnswer, ExchangeError> {
        let last = wanted.range.end.saturating_sub(1);
        let mut headers = HeaderMap::new();
        // Numbers are characters of a header, and so is a tag that came in one.
        let mut add = |name, text: &str| {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        };
        add(RANGE, &format!("bytes={}-{last}", wanted.range.start));
        if let Some(tag) = wanted.validator.and_then(|text| text.strip_prefix("etag ")) {
            add(IF_MATCH, tag);
        }
        let mut is_first = true;
        loop {
            let authorized = self.access.authorize(&self.url, headers.clone()).await?;
            let request = RangeRequest {
                url: &authorized.url,
                display_name: wanted.display_name,
                range: wanted.range.clone(),
                authorization: None,
                past_caches: wanted.past_caches,
                stall_limit: self.stall_limit,
            };
            let builder = request.builder(&self.client).headers(authorized.headers.clone());
            let sending = async { builder.send().await.map_err(WebError::Request) };
            let response = answered(sending, wanted.display_name, self.stall_limit).await?;
            if response.status().is_success() {
                return check_answer(response, &request);
            }
            let (status, headers) = (response.status(), response.headers().clone());
            let body = Body::new(response, self.stall_limit).read_some(ERROR_BYTES).await;
            let refusal = StoreRefusal::new(status, headers, &body);
            let may_help = is_first && refusal.is_expiry();
            if may_help && self.access.renew(&authorized).await {
                is_first = false;
                continue;
            }
            return Err(refusal.error(&self.access, wanted.display_name));
        }
    }
}
