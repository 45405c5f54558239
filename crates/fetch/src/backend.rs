//! The servers that an object can come from, behind one request: a range.

use std::sync::Arc;

use crate::http::{ExchangeError, ObjectRange, RangeAnswer, RangeRequest, StallLimit, get_range};
use crate::mirrors::MirroredRepository;
use crate::store::StoreObject;
use crate::web::WebClient;

/// Where the bytes of an object come from.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    /// A web server.
    Http { web: WebClient, url: String, stall_limit: StallLimit },
    /// A blob of a registry.
    Registry { repository: Arc<MirroredRepository>, digest: String },
    /// An object store.
    Store(StoreObject),
}

impl Backend {
    /// Requests a range of the object.
    pub(crate) async fn get_range(
        &self,
        wanted: &ObjectRange<'_>,
    ) -> Result<RangeAnswer, ExchangeError> {
        let &ObjectRange { range, past_caches, display_name, .. } = wanted;
        match self {
            Self::Http { web, url, stall_limit } => {
                let request = RangeRequest {
                    url,
                    display_name,
                    range: range.clone(),
                    authorization: None,
                    past_caches,
                    stall_limit: *stall_limit,
                };
                get_range(web, &request).await
            }
            Self::Registry { repository, digest } => {
                let answer = repository.get_blob(digest, range, past_caches).await?;
                // The digest names the bytes; redirects lead to servers with tags of their own.
                Ok(RangeAnswer { validator: None, ..answer })
            }
            Self::Store(object) => object.get_range(wanted).await,
        }
    }

    /// An answer was wrong or incomplete: asks the server itself from now on. False if that was asked.
    pub(crate) fn rest_mirrors(&self) -> bool {
        match self {
            Self::Registry { repository, .. } => repository.rest_mirrors(),
            _ => false,
        }
    }
}
