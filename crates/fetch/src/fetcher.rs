//! All objects that are open: each exists once, whichever clients use it.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

use ferrofs_remote::protocol::{
    FetchError, FetchErrorKind, FetchStats, ObjectState, PushRequest, RemoteOptions,
};
use ferrofs_remote::{RemoteLocation, RemoteObject, StoreSettings};

use crate::backing::document_file;
use crate::blocking::blocking;
use crate::lock::lock;
use crate::object::{ObjectUse, RequestLimits, SharedObject, Store};
use crate::resolve::{Resolution, ResolveRequest, Resolver};
use crate::retry::Attempts;
use crate::space::CacheSpace;
use crate::upload::Upload;

/// The fetcher.
#[derive(Debug)]
pub(crate) struct Fetcher {
    pub(crate) resolver: Resolver,
    pub(crate) limits: Arc<RequestLimits>,
    pub(crate) store: Store,
    objects: Mutex<HashMap<String, Weak<SharedObject>>>,
    /// Held while an object of the cache gets its only writer.
    creating: tokio::sync::Mutex<()>,
    /// Locations that are being opened, with options and settings: whoever comes meanwhile gets the result.
    opening: Mutex<HashMap<(String, StoreSettings), Arc<ObjectOpening>>>,
}

/// An opening, and its result when that is known.
#[derive(Debug)]
struct ObjectOpening {
    result: tokio::sync::OnceCell<Result<ObjectUse, FetchError>>,
    attempts: Attempts,
}

/// How a location is opened.
#[derive(Debug)]
pub(crate) struct OpeningRequest<'a> {
    pub(crate) options: &'a RemoteOptions,
    /// The object must be this one.
    pub(crate) expected: Option<&'a ObjectState>,
    /// Of object stores, as the client has them.
    pub(crate) settings: &'a StoreSettings,
}

impl Fetcher {
    pub(crate) fn new(resolver: Resolver, limits: Arc<RequestLimits>, store: Store) -> Self {
        let (objects, opening) = (Mutex::default(), Mutex::default());
        let creating = tokio::sync::Mutex::default();
        Self { resolver, limits, store, objects, creating, opening }
    }

    /// Opens a location.
    pub(crate) async fn open(
        &self,
        location: &RemoteLocation,
        request: &OpeningRequest<'_>,
    ) -> Result<ObjectUse, FetchError> {
        let &OpeningRequest { options, expected, settings } = request;
        if let Some(open) = expected.and_then(|expected| self.find(&expected.key, expected.length))
        {
            open.restore();
            return Ok(open);
        }
        // With their time: who waits for longer does not share the attempts of who waits for less. Text that
        // came as JSON.
        let limit = options.limit();
        let name = serde_json::to_string(&(location, options)).unwrap_or_default();
        // Who may read it depends on the settings.
        let name = (name, settings.clone());
        let opening = {
            let mut all = lock(&self.opening);
            let opening = all.entry(name.clone()).or_insert_with(|| {
                // A mount that was served before waits for a server that comes back.
                let timeout = limit.unwrap_or(self.resolver.timeout);
                let attempts = match expected {
                    None => Attempts::of_unknown_host(timeout),
                    Some(_) => Attempts::new(timeout),
                };
                Arc::new(ObjectOpening { result: tokio::sync::OnceCell::new(), attempts })
            });
            Arc::clone(opening)
        };
        let attempts = &opening.attempts;
        let asking = async {
            let request = ResolveRequest { location, options, settings, attempts };
            opening.result.get_or_init(|| self.resolve(request)).await.clone()
        };
        let opened = attempts.wait(asking, limit, &location.to_string()).await;
        // The next one who opens it asks the server again.
        let mut all = lock(&self.opening);
        if all.get(&name).is_some_and(|other| Arc::ptr_eq(other, &opening)) {
            all.remove(&name);
        }
        drop(all);
        let shared = opened?;
        if let Some(expected) = expected
            && (expected.key != shared.state.key || expected.length != shared.state.length)
        {
            let detail = "the object has changed on the server";
            return Err(FetchError::new(FetchErrorKind::Changed, shared.display_name(), detail));
        }
        Ok(shared)
    }

    /// Asks the server of a location what it is, and opens that.
    async fn resolve(&self, request: ResolveRequest<'_>) -> Result<ObjectUse, FetchError> {
        let Resolution { object, answer } = self.resolver.resolve(request).await?;
        let _turn = self.creating.lock().await;
        let key = object.identity().key_text();
        let shared = match self.find(&key, object.length) {
            Some(shared) => {
                shared.request_from(object.backend);
                shared.restore();
                shared
            }
            None => {
                let limits = Arc::clone(&self.limits);
                // It waits for the disk.
                let shared = blocking(|| SharedObject::new(object, &self.store, limits))?;
                let mut objects = lock(&self.objects);
                objects.retain(|_, object| object.strong_count() > 0);
                objects.insert(key, Arc::downgrade(&shared));
                ObjectUse::new(shared)
            }
        };
        if let Some(answer) = answer {
            shared.adopt(answer);
        }
        Ok(shared)
    }

    /// The manifest of an OCI image, in a file.
    pub(crate) async fn manifest(
        &self,
        location: &RemoteLocation,
        options: &RemoteOptions,
    ) -> Result<File, FetchError> {
        let timeout = options.limit().unwrap_or(self.resolver.timeout);
        let attempts = &Attempts::of_unknown_host(timeout);
        let settings = &StoreSettings::default();
        let request = ResolveRequest { location, options, settings, attempts };
        let asking = self.resolver.container_manifest(request);
        let manifest = attempts.wait(asking, options.limit(), &location.to_string()).await?;
        document_file("manifest", &manifest).map_err(|error| {
            let detail = error.to_string();
            FetchError::new(FetchErrorKind::Exhausted, location.to_string(), detail)
        })
    }

    /// The upload of an image, which has yet to run.
    pub(crate) fn upload(
        &self,
        request: PushRequest,
        files: Vec<File>,
        done: Arc<AtomicU64>,
    ) -> Result<Upload, FetchError> {
        let RemoteObject::Oci { registry, repository, tag: Some(tag), digest: None } =
            &request.location.object
        else {
            let detail = "an image is published under a tag of a registry";
            let location = request.location.to_string();
            return Err(FetchError::new(FetchErrorKind::Refused, location, detail));
        };
        let resolver = &self.resolver;
        let repository = resolver.publication(registry, repository, &request.options)?;
        let tag = tag.clone();
        let timeout = request.options.limit().unwrap_or(resolver.timeout);
        Ok(Upload { repository, request, files, tag, timeout, done })
    }

    /// An object that is open. A registry can state a wrong length for what another one has.
    fn find(&self, key: &str, length: u64) -> Option<ObjectUse> {
        let found = lock(&self.objects).get(key).and_then(Weak::upgrade);
        found.filter(|object| object.state.length == length).map(ObjectUse::new)
    }

    pub(crate) fn stats(&self) -> FetchStats {
        let mut stats = self.limits.stats.snapshot();
        if let Some(space) = self.space() {
            (stats.cache_bytes, stats.evicted_bytes) = space.usage();
            stats.cache_limit = space.limit();
        }
        stats
    }

    /// The space on the disk, unless chunks are kept in memory only.
    pub(crate) fn space(&self) -> Option<&Arc<CacheSpace>> {
        match &self.store {
            Store::Disk(space) => Some(space),
            Store::Memory { .. } => None,
        }
    }
}
