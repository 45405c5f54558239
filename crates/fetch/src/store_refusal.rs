//! What an object store means by refusing a request: from the status and the code in the answer to
//! an error that says what to do.

use ferrofs_remote::protocol::{FetchError, FetchErrorKind};
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use std::time::Duration;

use crate::http::{ExchangeError, status_error};
use crate::store_access::StoreAccess;
use crate::store_place::{StorePlace, region};

/// The longest code that is shown, in bytes.
const CODE_MAX_BYTES: usize = 64;

/// A refusal.
#[derive(Debug)]
pub(crate) struct StoreRefusal {
    status: StatusCode,
    headers: HeaderMap,
    /// As in `NoSuchKey`; empty if the store gave none.
    code: String,
}

impl StoreRefusal {
    /// Reads an answer that is no success. `body` is its beginning.
    pub(crate) fn new(status: StatusCode, headers: HeaderMap, body: &[u8]) -> Self {
        let code = headers.get("x-ms-error-code").and_then(|value| value.to_str().ok());
        let body = String::from_utf8_lossy(body);
        let of_body = || body.split_once("<Code>")?.1.split_once("</Code>").map(|(code, _)| code);
        let code = code.or_else(of_body).unwrap_or_default();
        let is_code =
            code.len() <= CODE_MAX_BYTES && code.bytes().all(|b| b.is_ascii_alphanumeric());
        let code = if is_code { code.to_owned() } else { String::new() };
        Self { status, headers, code }
    }

    /// Whether newer credentials may help.
    pub(crate) fn is_expiry(&self) -> bool {
        const CODES: [&str; 5] = [
            "ExpiredToken",
            "ExpiredTokenException",
            "TokenRefreshRequired",
            "InvalidToken",
            "InvalidAuthenticationInfo",
        ];
        CODES.contains(&&*self.code) || self.status == StatusCode::UNAUTHORIZED
    }

    /// The error. `display_name` is the location.
    pub(crate) fn error(&self, access: &StoreAccess, display_name: &str) -> ExchangeError {
        let plain = status_error(display_name, self.status, &self.headers);
        if self.code == "RequestTimeout" {
            return ExchangeError { retry: Some(Duration::ZERO), ..plain };
        }
        if plain.retry.is_some() {
            return plain;
        }
        let (kind, detail) = match self.meaning(access) {
            Some(meaning) => meaning,
            None => (plain.error.kind, format!("the store answered {}", self.status)),
        };
        let code = if self.code.is_empty() { String::new() } else { format!(" ({})", self.code) };
        ExchangeError::permanent(FetchError::new(kind, display_name, format!("{detail}{code}")))
    }

    fn meaning(&self, access: &StoreAccess) -> Option<(FetchErrorKind, String)> {
        use FetchErrorKind::{Changed, Denied, NotFound};
        let (place, source) = (&access.place, access.source());
        let noun = place.noun();
        if let Some(answer) = self.other_region(access) {
            return Some((Denied, answer));
        }
        Some(match (&*self.code, self.status.as_u16()) {
            ("NoSuchBucket" | "ContainerNotFound", _) => {
                let remedy = match place {
                    StorePlace::S3 { .. } => "; check its name, AWS_REGION and AWS_ENDPOINT_URL",
                    StorePlace::Gcs { .. } => "; check its name",
                    StorePlace::Azure { .. } => "; check the names of account and container",
                };
                (NotFound, format!("there is no such {noun}{remedy}"))
            }
            (_, 404) => (NotFound, format!("the {noun} has no such key")),
            (_, 412) => (Changed, "the object has changed on the server".to_owned()),
            _ if self.is_expiry() => {
                let detail = format!(
                    "the credentials ({source}) have expired or are refused; {}, and open the image \
                     again, which renews the credentials of its mounts, too",
                    access.remedy()
                );
                (Denied, detail)
            }
            ("RequestTimeTooSkewed", _) => {
                (Denied, "signatures are refused: set the clock of this machine".to_owned())
            }
            ("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "AuthenticationFailed", _) => {
                (Denied, format!("the credentials ({source}) are wrong; {}", access.remedy()))
            }
            (_, 403) => {
                let right = match place {
                    StorePlace::S3 { .. } => {
                        "s3:GetObject, and s3:ListBucket to see that a key is absent"
                    }
                    StorePlace::Gcs { .. } => "storage.objects.get",
                    StorePlace::Azure { .. } => "Storage Blob Data Reader",
                };
                (
                    Denied,
                    format!("access is denied to the credentials ({source}), which need {right}"),
                )
            }
            _ => return None,
        })
    }

    fn other_region(&self, access: &StoreAccess) -> Option<String> {
        if !matches!(access.place, StorePlace::S3 { .. }) {
            return None;
        }
        let there = self.headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
        let here = region(&access.settings);
        let is_region = |name: &&str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        match there.filter(is_region) {
            Some(there) if there != here => Some(format!(
                "the bucket is in the region {there}, not {here}; set AWS_REGION={there}"
            )),
            _ if self.status.is_redirection() => {
                Some(format!("the bucket is not in the region {here}; set AWS_REGION"))
            }
            _ => None,
        }
    }
}
