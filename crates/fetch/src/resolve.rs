//! From a location to an object: which server, which identity, how long, how it is verified. The
//! first bytes come with the answer and are kept.

use std::sync::Arc;

use ferrofs_remote::cache::{CacheDirectory, CachedObject, ChunkLayout, ObjectIdentity};
use ferrofs_remote::protocol::{
    FetchError, FetchErrorKind, RemoteOptions, Verification, VerifyMode,
};
use ferrofs_remote::{
    CHUNK_INDEX_MAX_BYTES, ChunkIndex, ContentDigest, RemoteLocation, RemoteObject, StoreSettings,
};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::blocking::blocking;
use crate::credential_http::CredentialHttp;
use crate::http::{ObjectRange, RangeAnswer, StallLimit};
use crate::lock::locked;
use crate::mirrors::{Mirror, MirroredRepository, ServedManifest};
use crate::object::ResolvedObject;
use crate::registries_conf::{RegistriesConf, RepositoryPlace, RepositoryPlaces};
use crate::registry::{AccessRight, Repository, RepositoryName};
use crate::retry::repeat;
use crate::stats::Stats;
use crate::store::StoreObject;
use crate::store_access::StoreAccess;
use crate::store_place::StorePlace;
use crate::web::WebClient;
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

/// An object with a name, whose content may change.
struct NamedObject {
    /// For its identity; without credentials.
    url: String,
    backend: Backend,
    /// Its chunk index.
    beside: Backend,
}

/// Finds objects.
#[derive(Debug)]
pub(crate) struct Resolver {
    pub(crate) web: WebClient,
    pub(crate) cache: Option<Arc<CacheDirectory>>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) timeout: std::time::Duration,
    /// The repositories that were used last, so that all requests of one share a token.
    pub(crate) repositories: std::sync::Mutex<Vec<(String, Arc<Repository>)>>,
    /// The same with their mirrors.
    pub(crate) mirrored: std::sync::Mutex<Vec<(String, Arc<MirroredRepository>)>>,
    /// The same for buckets, with what each client set for them.
    pub(crate) stores: std::sync::Mutex<Vec<Arc<StoreAccess>>>,
}

impl Resolver {
    pub(crate) async fn resolve(
        &self,
        location: &RemoteLocation,
        options: &RemoteOptions,
        settings: &StoreSettings,
    ) -> Result<Resolution, FetchError> {
        if let (RemoteObject::Oci { registry, repository, .. }, Some(blob)) =
            (&location.object, location.blob)
        {
            let repository = self.mirrored(registry, repository, options)?;
            return Ok(Resolution { object: blob_object(repository, blob), answer: None });
        }
        let resolution = match &location.object {
            RemoteObject::Oci { .. } if options.offline => {
                let detail = "an image of a registry cannot be opened with --offline";
                return Err(error(FetchErrorKind::Offline, location, detail));
            }
            RemoteObject::Oci { registry, repository, tag, digest } => {
                let repository = self.mirrored(registry, repository, options)?;
                let reference = digest.as_ref().or(tag.as_ref()).map_or("latest", String::as_str);
                self.resolve_oci(location, options, repository, reference).await?
            }
            object => {
                let named = self.direct(location, object, settings)?;
                if options.offline {
                    self.recall_named(location, named)?
                } else {
                    self.resolve_named(location, named).await?
                }
            }
        };
        let verification = resolution.object.verification;
        if options.verify == VerifyMode::Require && verification != Verification::ChunkIndex {
            let detail = "--verify=require needs a chunk index, and there is none for it";
            return Err(error(FetchErrorKind::Refused, location, detail));
        }
        Ok(resolution)
    }

    /// An object that has a name of its own, and no digest.
    fn direct(
        &self,
        location: &RemoteLocation,
        object: &RemoteObject,
        settings: &StoreSettings,
    ) -> Result<NamedObject, FetchError> {
        if let RemoteObject::Http { url } = object {
            let (path, query) = url.split_once('?').map_or((&**url, ""), |parts| parts);
            let separator = if query.is_empty() { "" } else { "?" };
            let stall_limit = StallLimit::new(self.timeout);
            let of = |url: String| Backend::Http { web: self.web.clone(), url, stall_limit };
            return Ok(NamedObject {
                url: url.clone(),
                backend: of(url.clone()),
                beside: of(format!("{path}.chunk-index{separator}{query}")),
            });
        }
        let Some((place, key)) = StorePlace::of(object) else {
            let detail = "this kind of location is not supported by this fetcher";
            return Err(error(FetchErrorKind::Refused, location, detail));
        };
        let access = self.store_access(place, settings);
        let stall_limit = StallLimit::new(self.timeout);
        let of = |key: &str| StoreObject::new(self.web.direct(), &access, key, stall_limit);
        let (object, beside) = (of(key)?, of(&format!("{key}.chunk-index"))?);
        let url = object.url.clone();
        Ok(NamedObject { url, backend: Backend::Store(object), beside: Backend::Store(beside) })
    }

    /// The access to a bucket with these settings, so that all its objects share credentials.
    fn store_access(&self, place: StorePlace, settings: &StoreSettings) -> Arc<StoreAccess> {
        let mut all = locked(&self.stores);
        let is_it = |one: &&Arc<StoreAccess>| one.place == place && one.settings == *settings;
        if let Some(access) = all.iter().find(is_it) {
            return Arc::clone(access);
        }
        let http =
            CredentialHttp::new(self.web.direct(), &self.stats, StallLimit::new(self.timeout));
        let access = Arc::new(StoreAccess::new(place, settings.clone(), http));
        if all.len() >= REPOSITORIES_MAX {
            all.remove(0);
        }
        all.push(Arc::clone(&access));
        access
    }

    async fn resolve_named(
        &self,
        location: &RemoteLocation,
        named: NamedObject,
    ) -> Result<Resolution, FetchError> {
        let shown = location.to_string();
        let index = match &location.index {
            Some(digest) => Some(self.index_beside(location, &named.beside, digest).await?),
            None => None,
        };
        let record_key = named.record_key(location);
        let bytes = if self.has_first_chunk(location, &record_key) { 1 } else { FIRST_BYTES };
        let (range, shown_here, past_caches) = (&(0..bytes), &*shown, false);
        let wanted = ObjectRange { range, validator: None, past_caches, shown: shown_here };
        let backend = &named.backend;
        let answer = repeat(self.timeout, &self.stats, || backend.get_range(&wanted)).await?;
        let identity = named_identity(&named.url, &answer).with_index(location.index.as_deref());
        self.remember(&record_key, &identity, &answer);
        let verification =
            if index.is_some() { Verification::ChunkIndex } else { Verification::None };
        let object = ResolvedObject {
            shown,
            backend: named.backend,
            identity,
            length: answer.length,
            validator: answer.validator.clone(),
            verification,
            digest: None,
            served_by: None,
            index,
            has_ranges: answer.range.end <= bytes,
        };
        Ok(Resolution { object, answer: Some(answer) })
    }

    /// Without a server: as it was when it was opened last.
    fn recall_named(
        &self,
        location: &RemoteLocation,
        named: NamedObject,
    ) -> Result<Resolution, FetchError> {
        let record = self.recall(location, &named.record_key(location))?;
        let object = ResolvedObject {
            shown: location.to_string(),
            backend: named.backend,
            identity: record.identity,
            length: record.length,
            validator: record.validator,
            verification: Verification::None,
            digest: None,
            served_by: None,
            index: None,
            has_ranges: true,
        };
        Ok(Resolution { object, answer: None })
    }

    /// The chunk index that lies beside an object.
    async fn index_beside(
        &self,
        location: &RemoteLocation,
        beside: &Backend,
        digest: &str,
    ) -> Result<(Arc<ChunkIndex>, Vec<u8>), FetchError> {
        let shown = &format!("{location}.chunk-index");
        let range = &(0..CHUNK_INDEX_MAX_BYTES as u64);
        let wanted = ObjectRange { range, validator: None, past_caches: false, shown };
        let wanted = &wanted;
        let bytes = repeat(self.timeout, &self.stats, || async move {
            let answer = beside.get_range(wanted).await?;
            answer.body.read_to_end(shown, CHUNK_INDEX_MAX_BYTES).await
        })
        .await?;
        parse_index(shown, bytes, Some(digest))
    }

    /// A repository with its mirrors, as the configuration of the user has them now.
    fn mirrored(
        &self,
        registry: &str,
        name: &str,
        options: &RemoteOptions,
    ) -> Result<Arc<MirroredRepository>, FetchError> {
        let (shown, places) = configured_places(registry, name)?;
        let insecure = &options.insecure_registries;
        let key = format!("{shown} {places:?} {insecure:?}");
        let make = || {
            let pull = |place| self.repository(place, options, AccessRight::Pull);
            let mirrors = places.mirrors.iter();
            let mirrors = mirrors.map(|mirror| Mirror::new(pull(&mirror.place), mirror.pull));
            MirroredRepository::new(mirrors.collect(), pull(&places.origin), shown.clone())
        };
        Ok(remembered(&self.mirrored, key, make))
    }

    /// The repository in which an image is published: never a mirror.
    pub(crate) fn publication(
        &self,
        registry: &str,
        name: &str,
        options: &RemoteOptions,
    ) -> Result<Arc<Repository>, FetchError> {
        let (_, places) = configured_places(registry, name)?;
        Ok(self.repository(&places.origin, options, AccessRight::Push))
    }

    fn repository(
        &self,
        place: &RepositoryPlace,
        options: &RemoteOptions,
        right: AccessRight,
    ) -> Arc<Repository> {
        let RepositoryPlace { registry, name, is_insecure } = place;
        let is_insecure = *is_insecure || options.insecure_registries.contains(registry);
        let stall_limit = StallLimit::new(self.timeout);
        let named = RepositoryName { registry, name, right, is_insecure, stall_limit };
        let key = format!("{registry}/{name}/{is_insecure}/{right:?}");
        let make = || Repository::new(&self.web, &self.stats, named);
        remembered(&self.repositories, key, make)
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
        let repository = self.mirrored(registry, repository, options)?;
        let reference = digest.as_ref().or(tag.as_ref()).map_or("latest", String::as_str);
        Ok(self.manifest(location, &repository, reference).await?.bytes)
    }

    async fn resolve_oci(
        &self,
        location: &RemoteLocation,
        options: &RemoteOptions,
        repository: Arc<MirroredRepository>,
        reference: &str,
    ) -> Result<Resolution, FetchError> {
        let ServedManifest { bytes: manifest, host: served_by, .. } =
            self.manifest(location, &repository, reference).await?;
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
            served_by: Some(served_by),
            index,
            has_ranges: true,
        };
        Ok(Resolution { object, answer: None })
    }

    /// The manifest of an image, by way of its index if it has one.
    async fn manifest(
        &self,
        location: &RemoteLocation,
        repository: &MirroredRepository,
        reference: &str,
    ) -> Result<ServedManifest, FetchError> {
        let refused = |detail| error(FetchErrorKind::Refused, location, detail);
        let get = |reference: String| async move {
            repeat(self.timeout, &self.stats, || repository.get_manifest(&reference)).await
        };
        let found = get(reference.to_owned()).await?;
        let platform = location.platform.as_deref();
        let chosen = choose_manifest(&found.media_type, &found.bytes, platform);
        match chosen.map_err(refused)? {
            None => Ok(found),
            Some(digest) => {
                let found = get(digest.to_string()).await?;
                match choose_manifest(&found.media_type, &found.bytes, None).map_err(refused)? {
                    None => Ok(found),
                    Some(_) => Err(refused("an image index lists an image index".to_owned())),
                }
            }
        }
    }

    async fn layer_index(
        &self,
        location: &RemoteLocation,
        repository: &MirroredRepository,
        layer: &Layer,
        place: &IndexPlace,
    ) -> Result<(Arc<ChunkIndex>, Vec<u8>), FetchError> {
        let shown = &location.to_string();
        let (range, digest) = match place {
            IndexPlace::Embedded { range, digest } => (range, digest.as_ref()),
            IndexPlace::Layer { digest } => {
                let bytes = repeat(self.timeout, &self.stats, || {
                    repository.get_small_blob(digest, CHUNK_INDEX_MAX_BYTES)
                })
                .await?;
                return parse_index(shown, bytes, Some(&digest.to_string()));
            }
        };
        let digest = digest.map(ToString::to_string);
        let blob = &layer.digest.to_string();
        let get = |past_caches| async move {
            let bytes = repeat(self.timeout, &self.stats, || async move {
                let answer = repository.get_blob(blob, range, past_caches).await?;
                answer.read_part(shown, range).await
            })
            .await?;
            Ok::<_, FetchError>(bytes)
        };
        match parse_index(shown, get(false).await?, digest.as_deref()) {
            // Once more past mirrors and caches, as the chunks.
            Err(error) if error.kind == FetchErrorKind::Damaged => {
                repository.rest_mirrors();
                parse_index(shown, get(true).await?, digest.as_deref())
            }
            other => other,
        }
    }

    fn remember(&self, record_key: &str, identity: &ObjectIdentity, answer: &RangeAnswer) {
        let Some(cache) = &self.cache else { return };
        let record = LocationRecord {
            identity: identity.clone(),
            length: answer.length,
            validator: answer.validator.clone(),
        };
        if let Ok(record) = serde_json::to_vec(&record) {
            // Only opening without a server needs it.
            cache.remember(record_key, &record).ok();
        }
    }

    /// Whether the first chunk of what a location was last is in the cache.
    fn has_first_chunk(&self, location: &RemoteLocation, record_key: &str) -> bool {
        let recalled = self.recall(location, record_key);
        let (Ok(record), Some(cache)) = (recalled, &self.cache) else { return false };
        let Some(layout) = ChunkLayout::new(record.length) else { return false };
        let key = record.identity.key();
        let opened = cache
            .reader_files(&key)
            .and_then(|(data, records)| CachedObject::new(key, layout, data, records, None));
        opened.is_ok_and(|object| object.is_present(0))
    }

    fn recall(
        &self,
        location: &RemoteLocation,
        record_key: &str,
    ) -> Result<LocationRecord, FetchError> {
        let absent = || {
            let detail = "it is not in the cache, and --offline forbids requests to its server";
            error(FetchErrorKind::Offline, location, detail)
        };
        let cache = self.cache.as_ref().ok_or_else(absent)?;
        let record = cache.recall(record_key).map_err(|_| absent())?;
        serde_json::from_slice(&record).map_err(|_| absent())
    }
}

/// Where a repository is by `registries.conf`, and how it is shown.
fn configured_places(registry: &str, name: &str) -> Result<(String, RepositoryPlaces), FetchError> {
    let shown = format!("oci://{registry}/{name}");
    let places = blocking(RegistriesConf::load).and_then(|conf| conf.places(registry, name));
    match places {
        Ok(places) => Ok((shown, places)),
        Err(detail) => Err(FetchError::new(FetchErrorKind::Refused, shown, detail)),
    }
}

/// That with this key, made if there is none. Of too many the oldest is forgotten.
fn remembered<T>(
    all: &std::sync::Mutex<Vec<(String, Arc<T>)>>,
    key: String,
    make: impl FnOnce() -> T,
) -> Arc<T> {
    let mut all = locked(all);
    if let Some((_, found)) = all.iter().find(|(found, _)| *found == key) {
        return Arc::clone(found);
    }
    let made = Arc::new(make());
    if all.len() >= REPOSITORIES_MAX {
        all.remove(0);
    }
    all.push((key, Arc::clone(&made)));
    made
}

/// A blob of which a manifest has told everything.
fn blob_object(repository: Arc<MirroredRepository>, blob: BlobReference) -> ResolvedObject {
    let digest = blob.digest.to_string();
    ResolvedObject {
        shown: format!("{}@{digest}", repository.shown()),
        backend: Backend::Registry { repository, digest: digest.clone() },
        identity: ObjectIdentity::Digest(digest),
        length: blob.length,
        validator: None,
        verification: Verification::WholeDigestLater,
        digest: Some(blob.digest),
        served_by: None,
        index: None,
        has_ranges: true,
    }
}

impl NamedObject {
    /// Names the record of what it was: the whole location with its query, and for an object store
    /// the URL, which depends on settings.
    fn record_key(&self, location: &RemoteLocation) -> String {
        // A location has no part that JSON cannot hold.
        let text = serde_json::to_string(location).unwrap_or_default();
        match &self.backend {
            Backend::Store(object) => format!("{text} {}", object.url),
            _ => text,
        }
    }
}

fn named_identity(url: &str, answer: &RangeAnswer) -> ObjectIdentity {
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
