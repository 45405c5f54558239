//! The module `credentials` of the fuzz targets: every registry has the same login, and no file is read
//! and no program started for it.

use reqwest::header::HeaderValue;

use super::fuzzing::PASSWORD;

/// A login.
pub(crate) struct Credentials;

impl Credentials {
    #[expect(clippy::unused_self, reason = "as in the module that it replaces")]
    pub(crate) fn basic_header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&format!("Basic {PASSWORD}")).ok()
    }
}

pub(crate) async fn find_credentials(
    _registry: &str,
    _repository: &str,
) -> Result<Option<Credentials>, String> {
    Ok(Some(Credentials))
}
