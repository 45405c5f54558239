//! A repository with its mirrors: a mirror is asked first, and what it does not have, or has wrongly,
//! comes from the repository itself (docs/remote.md, I1 to I4).

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrofs_remote::ContentDigest;
use ferrofs_remote::protocol::{FetchError, FetchErrorKind};

use crate::http::{ExchangeError, RangeAnswer};
use crate::lock::lock;
use crate::registries_conf::PullFromMirror;
use crate::registry::Repository;
use crate::stats::Stats;

/// How long a mirror that failed is asked for nothing, unless the repository itself fails, too.
const REST: Duration = Duration::from_secs(60);

/// A repository and those that have the same.
#[derive(Debug)]
pub(crate) struct MirroredRepository {
    mirrors: Vec<Mirror>,
    origin: Arc<Repository>,
    /// `oci://REGISTRY/NAME` as the user knows it, for messages.
    display_name: String,
}

#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) repository: Arc<Repository>,
    pub(crate) pull: PullFromMirror,
    rests_until: Mutex<Option<Instant>>,
}

impl Mirror {
    pub(crate) fn new(repository: Arc<Repository>, pull: PullFromMirror) -> Self {
        Self { repository, pull, rests_until: Mutex::default() }
    }

    fn is_resting(&self) -> bool {
        lock(&self.rests_until).is_some_and(|until| Instant::now() < until)
    }

    fn rest(&self) {
        *lock(&self.rests_until) = Some(Instant::now() + REST);
    }
}

/// A manifest, and who has sent it.
pub(crate) struct ServedManifest {
    pub(crate) media_type: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) host: String,
}

impl MirroredRepository {
    pub(crate) fn new(mirrors: Vec<Mirror>, origin: Arc<Repository>, display_name: String) -> Self {
        Self { mirrors, origin, display_name }
    }

    pub(crate) fn display_name(&self) -> &str {
        &self.display_name
    }

    /// Who may send something of it: scheme and host of the registry, then of its mirrors.
    pub(crate) fn servers(&self) -> Vec<String> {
        let mirrors = self.mirrors.iter().map(|mirror| &mirror.repository);
        std::iter::once(&self.origin).chain(mirrors).map(|one| one.server()).collect()
    }

    pub(crate) fn stats(&self) -> &Stats {
        self.origin.stats()
    }

    /// Candidates: mirrors, the repository itself, and mirrors that rest, for the case that it fails.
    fn candidates<'r>(&'r self, by_digest: bool, past_caches: bool) -> Vec<MirrorCandidate<'r>> {
        let usable =
            self.mirrors.iter().filter(|mirror| !past_caches && mirror.pull.allows(by_digest));
        let (resting, awake): (Vec<_>, Vec<_>) = usable.partition(|mirror| mirror.is_resting());
        let of = |mirror: &'r Mirror| MirrorCandidate {
            repository: &mirror.repository,
            mirror: Some(mirror),
        };
        let origin = MirrorCandidate { repository: &self.origin, mirror: None };
        awake.into_iter().map(of).chain([origin]).chain(resting.into_iter().map(of)).collect()
    }

    /// Asks one after the other until one has answered. Returns the answer and who gave it.
    async fn try_candidates<T, F: Future<Output = Result<T, ExchangeError>>>(
        &self,
        by_digest: bool,
        past_caches: bool,
        request: impl Fn(Arc<Repository>) -> F,
    ) -> Result<(T, &Repository), ExchangeError> {
        let mut failure: Option<ExchangeError> = None;
        for MirrorCandidate { repository, mirror } in self.candidates(by_digest, past_caches) {
            // What the repository itself refuses, no mirror that rests is asked for.
            if failure.as_ref().is_some_and(|error| error.retry.is_none()) {
                break;
            }
            match (request(Arc::clone(repository)).await, mirror) {
                (Ok(answer), _) => {
                    Stats::add(&self.stats().mirror_requests, u64::from(mirror.is_some()));
                    return Ok((answer, repository));
                }
                (Err(_), Some(mirror)) => mirror.rest(),
                (Err(error), None) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| {
            let kind = FetchErrorKind::Unreachable;
            ExchangeError::transient(FetchError::new(
                kind,
                &self.display_name,
                "no registry was asked",
            ))
        }))
    }

    /// As [`Repository::get_manifest`].
    pub(crate) async fn get_manifest(
        &self,
        reference: &str,
    ) -> Result<ServedManifest, ExchangeError> {
        let by_digest = reference.parse::<ContentDigest>().is_ok();
        let request =
            |repository: Arc<Repository>| async move { repository.get_manifest(reference).await };
        let ((media_type, bytes), server) = self.try_candidates(by_digest, false, request).await?;
        Ok(ServedManifest { media_type, bytes, host: server.host().to_owned() })
    }

    /// As [`Repository::get_small_blob`].
    pub(crate) async fn get_small_blob(
        &self,
        digest: &ContentDigest,
        limit: usize,
    ) -> Result<Vec<u8>, ExchangeError> {
        let request = |repository: Arc<Repository>| async move {
            repository.get_small_blob(digest, limit).await
        };
        Ok(self.try_candidates(true, false, request).await?.0)
    }

    /// As [`Repository::get_blob`]; a mirror is a cache, too.
    pub(crate) async fn get_blob(
        &self,
        digest: &str,
        range: &Range<u64>,
        past_caches: bool,
    ) -> Result<RangeAnswer, ExchangeError> {
        let request = |repository: Arc<Repository>| async move {
            repository.get_blob(digest, range, past_caches).await
        };
        Ok(self.try_candidates(true, past_caches, request).await?.0)
    }

    /// An answer was wrong, or its body did not come: mirrors rest. False if none was asked.
    pub(crate) fn rest_mirrors(&self) -> bool {
        let mut was_asked = false;
        for mirror in self.mirrors.iter().filter(|mirror| !mirror.is_resting()) {
            mirror.rest();
            was_asked = true;
        }
        was_asked
    }
}

struct MirrorCandidate<'r> {
    repository: &'r Arc<Repository>,
    mirror: Option<&'r Mirror>,
}
