//! From a location to an object: which server, which identity, how long, how it is verified. The
//! first bytes come with the answer and are kept.

use std::sync::Arc;

use ferrofs_remote::cache::{CacheDirectory, CachedObject, ChunkLayout, ObjectIdentity};
use ferrofs_remote::protocol::{
    FetchError, FetchErrorKind, RemoteOptions, Verification, VerifyMode,
};
use ferrofs_remote::{
    CHUNK_INDEX_MAX_BYTES, ChunkIndex, ContentDigest, RemoteLocation, RemoteObject,
};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::http::{ExchangeError, Patience, RangeAnswer, RangeRequest, get_range};
use crate::lock::locked;
use crate::object::ResolvedObject;
use crate::registry::{AccessRight, Repository, RepositoryName};
use crate::retry::repeat;
use crate::stats::Stats;
use ferrofs_remote::oci::{BlobReference, IndexPlace, Layer, choose_layer, choose_manifest};

/// Bytes that are requested together with the length of an object: its first chunk. If the cache has
/// that, one byte is requested, since a request must have one.
const FIRST_BYTES: u64 = 1 << 20;

/// Repositories whose tokens are kept.
const REPOSITORIES_MAX: usize = 64;

/// What a location was when it was opened last.
#[derive(Serialize, Deserialize)]
struct LocationRecord {
    identity: ObjectIdentity,
    length: u64,
    validator: Option<String>,
}

/// An object and the answer that brought its length, whose body is still to come.
pub(crate) struct Resolution {
    pub(crate) object: ResolvedObject,
    pub(crate) answer: Option<RangeAnswer>,
}

/// Finds objects.
#[derive(Debug)]
pub(crate) struct Resolver {
    pub(crate) client: reqwest::Client,
    pub(crate) cache: Option<Arc<CacheDirectory>>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) timeout: std::time::Duration,
    /// The repositories that were used last, so that all requests of one share a token.
    pub(crate) repositories: std::sync::Mutex<Vec<(String, Arc<Repository>)>>,
}

impl Resolver {
    pub(crate) async fn resolve(
        &self,
        location: &RemoteLocation,
        options: &RemoteOptions,
    ) -> Result<Resolution, FetchError> {
        if let (RemoteObject::Oci { registry, repository, .. }, Some(blob)) =
            (&location.object, location.blob)
        {
            let repository = self.repository(registry, repository, options, AccessRight::Pull);
            return Ok(Resolution { object: blob_object(repository, blob), answer: None });
        }
        let resolution = match &location.object {
            RemoteObject::Http { url } if options.offline => self.recall_http(location, url)?,
            RemoteObject::Http { url } => self.resolve_http(location, url).await?,
            RemoteObject::Oci { .. } if options.offline => {
                let detail =
                    "opening an image of a registry asks the registry, which --offline forbids";
                return Err(error(FetchErrorKind::Offline, location, detail));
            }
            RemoteObject::Oci { registry, repository, tag, digest } => {
                let repository = self.repository(registry, repository, options, AccessRight::Pull);
                let reference = digest.as_ref().or(tag.as_ref()).map_or("latest", String::as_str);
                self.resolve_oci(location, options, repository, reference).await?
            }
            _ => {
                let detail = "this kind of location is not supported by this fetcher";
                return Err(error(FetchErrorKind::Refused, location, detail));
            }
        };
        let verification = resolution.object.verification;
        if options.verify == VerifyMode::Require && verification != Verification::ChunkIndex {
            let detail = "--verify=require needs a chunk index, and there is none for it";
            return Err(error(FetchErrorKind::Refused, location, detail));
        }
        Ok(resolution)
    }

    async fn resolve_http(
        &self,
        location: &RemoteLocation,
        url: &str,
    ) -> Result<Resolution, FetchError> {
        let shown = location.to_string();
        let index = match &location.index {
            Some(digest) => Some(self.index_beside(location, url, digest).await?),
            None => None,
        };
        let bytes = if self.has_first_chunk(location) { 1 } else { FIRST_BYTES };
        let answer = repeat(self.timeout, &self.stats, || self.get(url, &shown, bytes)).await?;
        let identity = http_identity(url, &answer).with_index(location.index.as_deref());
        self.remember(location, &identity, &answer);
        let verification =
            if index.is_some() { Verification::ChunkIndex } else { Verification::None };
        let object = ResolvedObject {
            shown,
            backend: self.http_backend(url),
            identity,
            length: answer.length,
            validator: answer.validator.clone(),
            verification,
            digest: None,
            index,
            has_ranges: answer.range.end <= bytes,
        };
        Ok(Resolution { object, answer: Some(answer) })
    }

    fn http_backend(&self, url: &str) -> Backend {
        let patience = Patience::new(self.timeout);
        Backend::Http { client: self.client.clone(), url: url.to_owned(), patience }
    }

    /// Without a server: as it was when it was opened last.
    fn recall_http(&self, location: &RemoteLocation, url: &str) -> Result<Resolution, FetchError> {
        let record = self.recall(location)?;
        let object = ResolvedObject {
            shown: location.to_string(),
            backend: self.http_backend(url),
            identity: record.identity,
            length: record.length,
            validator: record.validator,
            verification: Verification::None,
            digest: None,
            index: None,
            has_ranges: true,
        };
        Ok(Resolution { object, answer: None })
    }

    /// The chunk index of an object of a web server, at its URL with `.chunk-index`.
    async fn index_beside(
        &self,
        location: &RemoteLocation,
        url: &str,
        digest: &str,
    ) -> Result<(Arc<ChunkIndex>, Vec<u8>), FetchError> {
        let (path, query) = url.split_once('?').map_or((url, ""), |(path, query)| (path, query));
        let separator = if query.is_empty() { "" } else { "?" };
        let url = format!("{path}.chunk-index{separator}{query}");
        let shown = format!("{location}.chunk-index");
        let (url, shown) = (&url, &shown);
        let bytes = repeat(self.timeout, &self.stats, || async move {
            let answer = self.get(url, shown, CHUNK_INDEX_MAX_BYTES as u64).await?;
            answer.body.read_to_end(shown, CHUNK_INDEX_MAX_BYTES).await
        })
        .await?;
        parse_index(shown, bytes, Some(digest))
    }

    /// The first bytes of an object of a web server.
    async fn get(&self, url: &str, shown: &str, bytes: u64) -> Result<RangeAnswer, ExchangeError> {
        let range = 0..bytes;
        let (authorization, past_caches) = (None, false);
        let patience = Patience::new(self.timeout);
        let request = RangeRequest { url, shown, range, authorization, past_caches, patience };
        get_range(&self.client, &request).await
    }

    pub(crate) fn repository(
        &self,
        registry: &str,
        name: &str,
        options: &RemoteOptions,
        right: AccessRight,
    ) -> Arc<Repository> {
        let is_insecure = options.insecure_registries.iter().any(|host| host == registry);
        let patience = Patience::new(self.timeout);
        let named = RepositoryName { registry, name, right, is_insecure, patience };
        let mut all = locked(&self.repositories);
        let key = format!("{registry}/{name}/{is_insecure}/{right:?}");
        if let Some((_, repository)) = all.iter().find(|(found, _)| *found == key) {
            return Arc::clone(repository);
        }
        let repository = Arc::new(Repository::new(&self.client, &self.stats, named));
        if all.len() >= REPOSITORIES_MAX {
            all.remove(0);
        }
        all.push((key, Arc::clone(&repository)));
        repository
    }

    /// The manifest of an image whose layers are of any kind.
    pub(crate) async fn container_manifest(
        &self,
        location: &RemoteLocation,
        options: &RemoteOptions,
    ) -> Result<Vec<u8>, FetchError> {
        let RemoteObject::Oci { registry, repository, tag, digest } = &location.object else {
            return Err(error(FetchErrorKind::Refused, location, "not an image of a registry"));
        };
        let repository = self.repository(registry, repository, options, AccessRight::Pull);
        let reference = digest.as_ref().or(tag.as_ref()).map_or("latest", String::as_str);
        self.manifest(location, &repository, reference).await
    }

    async fn resolve_oci(
        &self,
        location: &RemoteLocation,
        options: &RemoteOptions,
        repository: Arc<Repository>,
        reference: &str,
    ) -> Result<Resolution, FetchError> {
        let manifest = self.manifest(location, &repository, reference).await?;
        let layer = choose_layer(&manifest, location.layer.as_ref())
            .map_err(|detail| error(FetchErrorKind::Refused, location, detail))?;
        let index = match &layer.index {
            Some(place) if options.verify != VerifyMode::Off => {
                Some(self.layer_index(location, &repository, &layer, place).await?)
            }
            _ => None,
        };
        let verification =
            if index.is_some() { Verification::ChunkIndex } else { Verification::WholeDigestLater };
        let index_digest = index.as_ref().map(|(_, bytes)| ContentDigest::of(bytes).to_string());
        let index_digest = index_digest.as_deref();
        let object = ResolvedObject {
            shown: format!("{}@{}", repository.shown(), layer.digest),
            backend: Backend::Registry { repository, digest: layer.digest.to_string() },
            identity: ObjectIdentity::Digest(layer.digest.to_string()).with_index(index_digest),
            length: layer.length,
            validator: None,
            verification,
            digest: Some(layer.digest),
            index,
            has_ranges: true,
        };
        Ok(Resolution { object, answer: None })
    }

    /// The manifest of an image, by way of its index if it has one.
    async fn manifest(
        &self,
        location: &RemoteLocation,
        repository: &Repository,
        reference: &str,
    ) -> Result<Vec<u8>, FetchError> {
        let refused = |detail| error(FetchErrorKind::Refused, location, detail);
        let get = |reference: String| async move {
            repeat(self.timeout, &self.stats, || repository.get_manifest(&reference)).await
        };
        let (media_type, bytes) = get(reference.to_owned()).await?;
        let chosen = choose_manifest(&media_type, &bytes, location.platform.as_deref());
        match chosen.map_err(refused)? {
            None => Ok(bytes),
            Some(digest) => {
                let (media_type, bytes) = get(digest.to_string()).await?;
                match choose_manifest(&media_type, &bytes, None).map_err(refused)? {
                    None => Ok(bytes),
                    Some(_) => Err(refused("an image index lists an image index".to_owned())),
                }
            }
        }
    }

    async fn layer_index(
        &self,
        location: &RemoteLocation,
        repository: &Repository,
        layer: &Layer,
        place: &IndexPlace,
    ) -> Result<(Arc<ChunkIndex>, Vec<u8>), FetchError> {
        let shown = location.to_string();
        let (bytes, digest) = match place {
            IndexPlace::Embedded { range, digest } => {
                let limit = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                let (blob, shown) = (&layer.digest.to_string(), &shown);
                let bytes = repeat(self.timeout, &self.stats, || async move {
                    let answer = repository.get_blob(blob, range, false).await?;
                    answer.body.read_to_end(shown, limit).await
                })
                .await?;
                (bytes, digest.as_ref())
            }
            IndexPlace::Layer { digest } => {
                let bytes = repeat(self.timeout, &self.stats, || {
                    repository.get_small_blob(digest, CHUNK_INDEX_MAX_BYTES)
                })
                .await?;
                (bytes, Some(digest))
            }
        };
        parse_index(&shown, bytes, digest.map(ToString::to_string).as_deref())
    }

    fn remember(&self, location: &RemoteLocation, identity: &ObjectIdentity, answer: &RangeAnswer) {
        let Some(cache) = &self.cache else { return };
        let record = LocationRecord {
            identity: identity.clone(),
            length: answer.length,
            validator: answer.validator.clone(),
        };
        if let Ok(record) = serde_json::to_vec(&record) {
            // Only opening without a server needs it.
            cache.remember(&key_text(location), &record).ok();
        }
    }

    /// Whether the first chunk of what a location was last is in the cache.
    fn has_first_chunk(&self, location: &RemoteLocation) -> bool {
        let (Ok(record), Some(cache)) = (self.recall(location), &self.cache) else { return false };
        let Some(layout) = ChunkLayout::new(record.length) else { return false };
        let key = record.identity.key();
        let opened = cache
            .reader_files(&key)
            .and_then(|(data, records)| CachedObject::new(key, layout, data, records, None));
        opened.is_ok_and(|object| object.is_present(0))
    }

    fn recall(&self, location: &RemoteLocation) -> Result<LocationRecord, FetchError> {
        let absent = || {
            let detail = "it is not in the cache, and --offline forbids to ask its server";
            error(FetchErrorKind::Offline, location, detail)
        };
        let cache = self.cache.as_ref().ok_or_else(absent)?;
        let record = cache.recall(&key_text(location)).map_err(|_| absent())?;
        serde_json::from_slice(&record).map_err(|_| absent())
    }
}

/// A blob of which a manifest has told everything.
fn blob_object(repository: Arc<Repository>, blob: BlobReference) -> ResolvedObject {
    let digest = blob.digest.to_string();
    ResolvedObject {
        shown: format!("{}@{digest}", repository.shown()),
        backend: Backend::Registry { repository, digest: digest.clone() },
        identity: ObjectIdentity::Digest(digest),
        length: blob.length,
        validator: None,
        verification: Verification::WholeDigestLater,
        digest: Some(blob.digest),
        index: None,
        has_ranges: true,
    }
}

/// The whole location as text, its query included.
fn key_text(location: &RemoteLocation) -> String {
    // A location has no part that JSON cannot hold.
    serde_json::to_string(location).unwrap_or_default()
}

fn http_identity(url: &str, answer: &RangeAnswer) -> ObjectIdentity {
    let validator = answer.validator.clone().unwrap_or_else(|| {
        // Without a validator the object cannot be recognized: it is cached for this run only.
        let clock = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        format!("none {} {}", std::process::id(), clock.as_nanos())
    });
    ObjectIdentity::Validated { url: url.to_owned(), validator, length: answer.length }
}

fn parse_index(
    shown: &str,
    bytes: Vec<u8>,
    digest: Option<&str>,
) -> Result<(Arc<ChunkIndex>, Vec<u8>), FetchError> {
    let damaged = |detail: String| FetchError::new(FetchErrorKind::Damaged, shown, detail);
    let found = ContentDigest::of(&bytes).to_string();
    if let Some(digest) = digest
        && *digest != found
    {
        return Err(damaged(format!("the chunk index has the digest {found} instead of {digest}")));
    }
    match ChunkIndex::parse(&bytes) {
        Ok(index) => Ok((Arc::new(index), bytes)),
        Err(error) => Err(damaged(error.to_string())),
    }
}

fn error(kind: FetchErrorKind, location: &RemoteLocation, detail: impl Into<String>) -> FetchError {
    FetchError::new(kind, location.to_string(), detail)
}
