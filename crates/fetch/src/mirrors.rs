//! A repository with its mirrors: a mirror is asked first, and what it does not have, or has wrongly,
//! comes from the repository itself (docs/remote.md, I1 to I4).

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrofs_remote::ContentDigest;
use ferrofs_remote::protocol::{FetchError, FetchErrorKind};

use crate::http::{ExchangeError, RangeAnswer};
use crate::lock::locked;
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
    shown: String,
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
        locked(&self.rests_until).is_some_and(|until| Instant::now() < until)
    }

    fn rest(&self) {
        *locked(&self.rests_until) = Some(Instant::now() + REST);
    }
}

/// A manifest, and who has sent it.
pub(crate) struct ServedManifest {
    pub(crate) media_type: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) host: String,
}

impl MirroredRepository {
    pub(crate) fn new(mirrors: Vec<Mirror>, origin: Arc<Repository>, shown: String) -> Self {
        Self { mirrors, origin, shown }
    }

    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    pub(crate) fn stats(&self) -> &Stats {
        self.origin.stats()
    }

    /// Whom to ask: mirrors, the repository itself, and mirrors that rest, for the case that it fails.
    fn candidates<'r>(&'r self, by_digest: bool, past_caches: bool) -> Vec<Candidate<'r>> {
        let usable = || {
            let all = self.mirrors.iter().filter(move |mirror| mirror.pull.allows(by_digest));
            all.filter(move |_| !past_caches)
        };
        let of =
            |mirror: &'r Mirror| Candidate { repository: &mirror.repository, mirror: Some(mirror) };
        let (resting, awake): (Vec<_>, Vec<_>) =
            usable().map(of).partition(|one| one.mirror.is_some_and(Mirror::is_resting));
        let origin = Candidate { repository: &self.origin, mirror: None };
        awake.into_iter().chain([origin]).chain(resting).collect()
    }

    /// As [`Repository::get_manifest`].
    pub(crate) async fn get_manifest(
        &self,
        reference: &str,
    ) -> Result<ServedManifest, ExchangeError> {
        let by_digest = reference.parse::<ContentDigest>().is_ok();
        let mut asking = Asking::default();
        for candidate in self.candidates(by_digest, false) {
            if asking.is_over() {
                break;
            }
            match candidate.repository.get_manifest(reference).await {
                Ok((media_type, bytes)) => {
                    let host = candidate.served(self.stats());
                    return Ok(ServedManifest { media_type, bytes, host });
                }
                Err(error) => asking.failed(&candidate, error),
            }
        }
        Err(asking.error(&self.shown))
    }

    /// As [`Repository::get_small_blob`].
    pub(crate) async fn get_small_blob(
        &self,
        digest: &ContentDigest,
        limit: usize,
    ) -> Result<Vec<u8>, ExchangeError> {
        let mut asking = Asking::default();
        for candidate in self.candidates(true, false) {
            if asking.is_over() {
                break;
            }
            match candidate.repository.get_small_blob(digest, limit).await {
                Ok(bytes) => {
                    candidate.served(self.stats());
                    return Ok(bytes);
                }
                Err(error) => asking.failed(&candidate, error),
            }
        }
        Err(asking.error(&self.shown))
    }

    /// As [`Repository::get_blob`]; a mirror is a cache, too.
    pub(crate) async fn get_blob(
        &self,
        digest: &str,
        range: &Range<u64>,
        past_caches: bool,
    ) -> Result<RangeAnswer, ExchangeError> {
        let mut asking = Asking::default();
        for candidate in self.candidates(true, past_caches) {
            if asking.is_over() {
                break;
            }
            match candidate.repository.get_blob(digest, range, past_caches).await {
                Ok(answer) => {
                    candidate.served(self.stats());
                    return Ok(answer);
                }
                Err(error) => asking.failed(&candidate, error),
            }
        }
        Err(asking.error(&self.shown))
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

struct Candidate<'r> {
    repository: &'r Repository,
    mirror: Option<&'r Mirror>,
}

impl Candidate<'_> {
    /// Its host.
    fn served(&self, stats: &Stats) -> String {
        if self.mirror.is_some() {
            Stats::add(&stats.mirror_requests, 1);
        }
        self.repository.host().to_owned()
    }
}

/// One request, while one after the other is asked.
#[derive(Default)]
struct Asking {
    /// That of the repository itself.
    error: Option<ExchangeError>,
}

impl Asking {
    /// What the repository itself refuses, no mirror that rests is asked for.
    fn is_over(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.retry.is_none())
    }

    fn failed(&mut self, candidate: &Candidate<'_>, error: ExchangeError) {
        match candidate.mirror {
            Some(mirror) => mirror.rest(),
            None => self.error = Some(error),
        }
    }

    fn error(self, shown: &str) -> ExchangeError {
        self.error.unwrap_or_else(|| {
            let kind = FetchErrorKind::Unreachable;
            ExchangeError::transient(FetchError::new(kind, shown, "no registry was asked"))
        })
    }
}
