//! All objects that are open: each exists once, whichever clients use it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use ferrofs_remote::RemoteLocation;
use ferrofs_remote::protocol::{
    FetchError, FetchErrorKind, FetchStats, ObjectState, RemoteOptions,
};

use crate::lock::locked;
use crate::object::{Limits, SharedObject};
use crate::resolve::{Resolution, Resolver};

/// The fetcher.
#[derive(Debug)]
pub(crate) struct Fetcher {
    pub(crate) resolver: Resolver,
    pub(crate) limits: Arc<Limits>,
    objects: Mutex<HashMap<String, Weak<SharedObject>>>,
    /// One client at a time opens a location, so that the others find it open.
    opening: tokio::sync::Mutex<()>,
}

impl Fetcher {
    pub(crate) fn new(resolver: Resolver, limits: Arc<Limits>) -> Self {
        Self { resolver, limits, objects: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }

    /// Opens a location. With `expected` the object must be that one.
    pub(crate) async fn open(
        &self,
        location: &RemoteLocation,
        options: &RemoteOptions,
        expected: Option<&ObjectState>,
    ) -> Result<Arc<SharedObject>, FetchError> {
        if let Some(open) = expected.and_then(|expected| self.find(&expected.key)) {
            return Ok(open);
        }
        let Resolution { object, answer } = self.resolver.resolve(location, options).await?;
        let _turn = self.opening.lock().await;
        let key = object.identity.key_text();
        if let Some(expected) = expected
            && (expected.key != key || expected.length != object.length)
        {
            let detail = "the object has changed on the server";
            return Err(FetchError::new(FetchErrorKind::Changed, object.shown, detail));
        }
        let shared = match self.find(&key) {
            Some(shared) => shared,
            None => {
                let cache = self.resolver.cache.as_deref();
                let shared = SharedObject::new(object, cache, Arc::clone(&self.limits))?;
                let mut objects = locked(&self.objects);
                objects.retain(|_, object| object.strong_count() > 0);
                objects.insert(key, Arc::downgrade(&shared));
                shared
            }
        };
        if let Some(answer) = answer {
            shared.adopt(answer);
        }
        Ok(shared)
    }

    fn find(&self, key: &str) -> Option<Arc<SharedObject>> {
        locked(&self.objects).get(key).and_then(Weak::upgrade)
    }

    pub(crate) fn stats(&self) -> FetchStats {
        self.limits.stats.snapshot()
    }
}
