//! From a location to an object: which server, which identity, how long, how it is verified. The
//! first bytes come with the answer and are kept.

use std::ops::Range;
use std::sync::Arc;

use ferrofs_remote::cache::{CacheDirectory, CachedObject, ChunkLayout, ObjectIdentity};
use ferrofs_remote::protocol::{FetchError, FetchErrorKind, RemoteOptions, VerifyMode};
use ferrofs_remote::{
    CHUNK_INDEX_MAX_BYTES, ChunkIndex, ContentDigest, RemoteLocation, RemoteObject, StoreSettings,
};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::blocking::blocking;
use crate::credential_http::CredentialHttp;
use crate::http::{ObjectRange, RangeAnswer, StallLimit, read_range};
use crate::lock::lock;
use crate::mirrors::{Mirror, MirroredRepository, ServedManifest};
use crate::object::{IndexDocument, ResolvedObject};
use crate::registries_conf::{RegistriesConf, RepositoryPlace, RepositoryPlaces};
use crate::registry::{AccessRight, Repository, RepositoryName};
use crate::retry::Attempts;
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
    /// With the digest of its chunk index, if it has one.
    identity: ObjectIdentity,
    length: u64,
    validator: Option<String>,
}

/// An object and the answer that brought its length, whose body is still to come.
pub(crate) struct Resolution {
    pub(crate) object: ResolvedObject,
    pub(crate) answer: Option<RangeAnswer>,
}

/// A location that is being opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolveRequest<'a> {
    pub(crate) location: &'a RemoteLocation,
    pub(crate) options: &'a RemoteOptions,
    /// Of object stores.
    pub(crate) settings: &'a StoreSettings,
    /// How exchanges with servers are repeated.
    pub(crate) attempts: &'a Attempts,
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
    /// What is at a location.
    pub(crate) async fn resolve(
        &self,
        request: ResolveRequest<'_>,
    ) -> Result<Resolution, FetchError> {
        let ResolveRequest { location, options, settings, .. } = request;
        if let (RemoteObject::Oci { registry, repository, .. }, Some(blob)) =
            (&location.object, location.blob)
        {
            let repository = self.mirrored(registry, repository, options)?;
            return Ok(Resolution { object: blob_object(repository, &blob), answer: None });
        }
        let resolution = match &location.object {
            RemoteObject::Oci { registry, repository, tag, digest } => {
                let repository = self.mirrored(registry, repository, options)?;
                let reference = digest.as_ref().or(tag.as_ref()).map_or("latest", String::as_str);
                if options.offline {
                    self.recall_layer(request, repository)?
                } else {
                    self.resolve_oci(request, repository, reference).await?
                }
            }
            object => {
                let named = self.direct(location, object, settings)?;
                let record_key = named.record_key(location, options);
                if options.offline {
                    self.recall_object(location, &record_key, |_| {
                        (location.to_string(), named.backend)
                    })?
                } else {
                    let wants_index = options.verify != VerifyMode::Off;
                    let wanted = location.index.as_ref().filter(|_| wants_index);
                    self.resolve_named(request, named, &record_key, wanted).await?
                }
            }
        };
        if options.verify == VerifyMode::Require && resolution.object.index.is_none() {
            let detail = "--verify=require needs a chunk index, and the image has none";
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
        let mut all = lock(&self.stores);
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
        request: ResolveRequest<'_>,
        named: NamedObject,
        record_key: &str,
        index: Option<&String>,
    ) -> Result<Resolution, FetchError> {
        let ResolveRequest { location, attempts, .. } = request;
        let display_name = location.to_string();
        let index = match index {
            Some(digest) => Some(self.index_beside(request, &named.beside, digest).await?),
            None => None,
        };
        let bytes = if self.has_first_chunk(location, record_key) { 1 } else { FIRST_BYTES };
        let (range, name, past_caches) = (&(0..bytes), &*display_name, false);
        let wanted = ObjectRange { range, validator: None, past_caches, display_name: name };
        let backend = &named.backend;
        let answer = attempts.repeat(&self.stats, || backend.get_range(&wanted)).await?;
        let object = ResolvedObject {
            display_name,
            backend: named.backend,
            object: named_identity(&named.url, &answer),
            length: answer.length,
            validator: answer.validator.clone(),
            served_by: None,
            index,
            has_ranges: answer.range.end <= bytes,
        };
        self.remember(record_key, &object);
        Ok(Resolution { object, answer: Some(answer) })
    }

    /// Without a server: as it was when it was opened last, with the chunk index that was used then.
    fn recall_object(
        &self,
        location: &RemoteLocation,
        record_key: &str,
        server: impl FnOnce(&ObjectIdentity) -> (String, Backend),
    ) -> Result<Resolution, FetchError> {
        let LocationRecord { identity, length, validator } = self.recall(location, record_key)?;
        let (object, index) = match identity {
            ObjectIdentity::Indexed { object, index } => {
                let key = object.clone().with_index(Some(&index)).key();
                let cached = self.cache.as_ref().and_then(|cache| cache.chunk_index(&key).ok());
                let bytes = cached.ok_or_else(|| absent(location))?;
                let display_name = format!("the chunk index of {location} in the cache");
                (*object, Some(parse_index(&display_name, bytes, &index)?))
            }
            // Older versions recorded it of a blob that nobody had verified, whoever had sent it.
            ObjectIdentity::Digest(_) => return Err(absent(location)),
            object => (object, None),
        };
        let (display_name, backend) = server(&object);
        let has_ranges = true;
        let object = ResolvedObject {
            display_name,
            backend,
            object,
            length,
            validator,
            served_by: None,
            index,
            has_ranges,
        };
        Ok(Resolution { object, answer: None })
    }

    /// The same of a layer of a registry.
    fn recall_layer(
        &self,
        request: ResolveRequest<'_>,
        repository: Arc<MirroredRepository>,
    ) -> Result<Resolution, FetchError> {
        let ResolveRequest { location, options, .. } = request;
        let record_key = record_key(location, options);
        self.recall_object(location, &record_key, |object| {
            let digest = match object {
                ObjectIdentity::Digest(digest) | ObjectIdentity::Blob { digest, .. } => {
                    digest.clone()
                }
                _ => String::new(),
            };
            let display_name = format!("{}@{digest}", repository.display_name());
            (display_name, Backend::Registry { repository, digest })
        })
    }

    /// The chunk index that lies beside an object.
    async fn index_beside(
        &self,
        request: ResolveRequest<'_>,
        beside: &Backend,
        digest: &str,
    ) -> Result<IndexDocument, FetchError> {
        let ResolveRequest { location, attempts, .. } = request;
        let display_name = &format!("{location}.chunk-index");
        let limit = CHUNK_INDEX_MAX_BYTES;
        let get = |range: Range<u64>| async move {
            let range = &range;
            let wanted = ObjectRange { range, validator: None, past_caches: false, display_name };
            beside.get_range(&wanted).await?.at_most(limit, display_name)
        };
        let range = &(0..limit as u64);
        let bytes = attempts.repeat(&self.stats, || read_range(range, display_name, get)).await?;
        parse_index(display_name, bytes, digest)
    }

    /// A repository with its mirrors, as the configuration of the user has them now.
    fn mirrored(
        &self,
        registry: &str,
        name: &str,
        options: &RemoteOptions,
    ) -> Result<Arc<MirroredRepository>, FetchError> {
        let (display_name, places) = configured_places(registry, name)?;
        let insecure = &options.insecure_registries;
        let key = format!("{display_name} {places:?} {insecure:?}");
        let make = || {
            let pull = |place| self.repository(place, options, AccessRight::Pull);
            let mirrors = places.mirrors.iter();
            let mirrors = mirrors.map(|mirror| Mirror::new(pull(&mirror.place), mirror.pull));
            MirroredRepository::new(mirrors.collect(), pull(&places.origin), display_name.clone())
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
        let is_it = |host: &String| host.eq_ignore_ascii_case(registry);
        let is_insecure = *is_insecure || options.insecure_registries.iter().any(is_it);
        let stall_limit = StallLimit::new(self.timeout);
        let named = RepositoryName { registry, name, right, is_insecure, stall_limit };
        let key = format!("{registry}/{name}/{is_insecure}/{right:?}");
        let make = || Repository::new(&self.web, &self.stats, named);
        remembered(&self.repositories, key, make)
    }

    /// The manifest of an image whose layers are of any kind.
    pub(crate) async fn container_manifest(
        &self,
        request: ResolveRequest<'_>,
    ) -> Result<Vec<u8>, FetchError> {
        let ResolveRequest { location, options, .. } = request;
        let RemoteObject::Oci { registry, repository, tag, digest } = &location.object else {
            return Err(error(FetchErrorKind::Refused, location, "not an image of a registry"));
        };
        let repository = self.mirrored(registry, repository, options)?;
        let reference = digest.as_ref().or(tag.as_ref()).map_or("latest", String::as_str);
        Ok(self.manifest(request, &repository, reference).await?.bytes)
    }

    async fn resolve_oci(
        &self,
        request: ResolveRequest<'_>,
        repository: Arc<MirroredRepository>,
        reference: &str,
    ) -> Result<Resolution, FetchError> {
        let ResolveRequest { location, options, .. } = request;
        let ServedManifest { bytes: manifest, host: served_by, .. } =
            self.manifest(request, &repository, reference).await?;
        let layer = choose_layer(&manifest, location.layer.as_ref())
            .map_err(|detail| error(FetchErrorKind::Refused, location, detail))?;
        let index = match &layer.index {
            Some(place) if options.verify != VerifyMode::Off => {
                Some(self.layer_index(request, &repository, &layer, place).await?)
            }
            _ => None,
        };
        let blob = BlobReference { digest: layer.digest, length: layer.length };
        let object = ResolvedObject {
            served_by: Some(served_by),
            // Its chunks are compared with the index, so that it does not matter who sends them.
            object: match &index {
                Some(_) => ObjectIdentity::Digest(layer.digest.to_string()),
                None => blob_identity(&repository, &blob),
            },
            index,
            ..blob_object(repository, &blob)
        };
        self.remember(&record_key(location, options), &object);
        Ok(Resolution { object, answer: None })
    }

    /// The manifest of an image, by way of its index if it has one.
    async fn manifest(
        &self,
        request: ResolveRequest<'_>,
        repository: &MirroredRepository,
        reference: &str,
    ) -> Result<ServedManifest, FetchError> {
        let ResolveRequest { location, attempts, .. } = request;
        let refused = |detail| error(FetchErrorKind::Refused, location, detail);
        let get = |reference: String| async move {
            attempts.repeat(&self.stats, || repository.get_manifest(&reference)).await
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
        request: ResolveRequest<'_>,
        repository: &MirroredRepository,
        layer: &Layer,
        place: &IndexPlace,
    ) -> Result<IndexDocument, FetchError> {
        let ResolveRequest { location, attempts, .. } = request;
        let display_name = &location.to_string();
        let (range, digest) = match place {
            IndexPlace::Embedded { range, digest } => (range, digest.to_string()),
            IndexPlace::Layer { digest } => {
                let bytes = attempts
                    .repeat(&self.stats, || {
                        repository.get_small_blob(digest, CHUNK_INDEX_MAX_BYTES)
                    })
                    .await?;
                return parse_index(display_name, bytes, &digest.to_string());
            }
        };
        let blob = &layer.digest.to_string();
        let get = |past_caches| async move {
            let get_part = |part: Range<u64>| async move {
                repository.get_blob(blob, &part, past_caches).await
            };
            attempts.repeat(&self.stats, || read_range(range, display_name, get_part)).await
        };
        match parse_index(display_name, get(false).await?, &digest) {
            // Once more past mirrors and caches, as the chunks.
            Err(error) if error.kind == FetchErrorKind::Damaged => {
                repository.rest_mirrors();
                parse_index(display_name, get(true).await?, &digest)
            }
            other => other,
        }
    }

    fn remember(&self, record_key: &str, object: &ResolvedObject) {
        let Some(cache) = &self.cache else { return };
        let record = LocationRecord {
            identity: object.identity(),
            length: object.length,
            validator: object.validator.clone(),
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
        let cache = self.cache.as_ref().ok_or_else(|| absent(location))?;
        let record = cache.recall(record_key).map_err(|_| absent(location))?;
        serde_json::from_slice(&record).map_err(|_| absent(location))
    }
}

fn absent(location: &RemoteLocation) -> FetchError {
    let detail = "it is not in the cache, and --offline forbids requests to its server";
    error(FetchErrorKind::Offline, location, detail)
}

/// Where a repository is by `registries.conf`, and how it is shown.
fn configured_places(registry: &str, name: &str) -> Result<(String, RepositoryPlaces), FetchError> {
    let display_name = format!("oci://{registry}/{name}");
    let places = blocking(RegistriesConf::load).and_then(|conf| conf.places(registry, name));
    match places {
        Ok(places) => Ok((display_name, places)),
        Err(detail) => Err(FetchError::new(FetchErrorKind::Refused, display_name, detail)),
    }
}

/// That with this key, made if there is none. Of too many the oldest is forgotten.
fn remembered<T>(
    all: &std::sync::Mutex<Vec<(String, Arc<T>)>>,
    key: String,
    make: impl FnOnce() -> T,
) -> Arc<T> {
    let mut all = lock(all);
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
fn blob_object(repository: Arc<MirroredRepository>, blob: &BlobReference) -> ResolvedObject {
    let digest = blob.digest.to_string();
    ResolvedObject {
        display_name: format!("{}@{digest}", repository.display_name()),
        object: blob_identity(&repository, blob),
        backend: Backend::Registry { repository, digest },
        length: blob.length,
        validator: None,
        served_by: None,
        index: None,
        has_ranges: true,
    }
}

/// The identity of a blob without a chunk index. What one registry sends under a digest is never taken
/// for what another one has: anybody can name the digests of others.
fn blob_identity(repository: &MirroredRepository, blob: &BlobReference) -> ObjectIdentity {
    let BlobReference { digest, length } = *blob;
    ObjectIdentity::Blob { servers: repository.servers(), digest: digest.to_string(), length }
}

/// Names the record of what a location was: the whole location with its query, and whether its chunk
/// index was used.
fn record_key(location: &RemoteLocation, options: &RemoteOptions) -> String {
    // A location has no part that JSON cannot hold.
    let text = serde_json::to_string(location).unwrap_or_default();
    match options.verify {
        VerifyMode::Off => format!("{text} verify=off"),
        VerifyMode::Try | VerifyMode::Require => text,
    }
}

impl NamedObject {
    /// The same for an object store with the URL, which depends on settings.
    fn record_key(&self, location: &RemoteLocation, options: &RemoteOptions) -> String {
        let text = record_key(location, options);
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
    display_name: &str,
    bytes: Vec<u8>,
    digest: &str,
) -> Result<IndexDocument, FetchError> {
    let damaged = |detail: String| FetchError::new(FetchErrorKind::Damaged, display_name, detail);
    let found = ContentDigest::of(&bytes).to_string();
    if *digest != found {
        return Err(damaged(format!("the chunk index has the digest {found} instead of {digest}")));
    }
    match ChunkIndex::parse(&bytes) {
        Ok(index) => Ok(IndexDocument { index: Arc::new(index), bytes, digest: found }),
        Err(error) => Err(damaged(error.to_string())),
    }
}

fn error(kind: FetchErrorKind, location: &RemoteLocation, detail: impl Into<String>) -> FetchError {
    FetchError::new(kind, location.to_string(), detail)
}
