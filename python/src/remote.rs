//! Images at URLs, as the command opens them: through the fetcher program and the cache on disk.

use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferrofs_image::{ImageSource, RemoteStats};
use ferrofs_remote::cache::CachePlace;
use ferrofs_remote::protocol::RemoteOptions;
use ferrofs_remote::{FetchClient, FetcherProgram, Location, RemoteLocation, RemoteSource};
use pyo3::prelude::*;

use crate::calls::{detached, handle_signals};
use crate::errors::{Failure, ServerError};

/// Names the program that fetches, as for the command.
const FETCHER_VARIABLE: &str = "FERROFS_FETCH";
/// How long a fetch may take, as for the command.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How a text that names an image is shown in messages: of a URL, without what may be a password or a signature.
#[pyo3::pyfunction]
pub(crate) fn display_form(text: OsString) -> OsString {
    Location::display_form(&text).map_or(text, OsString::from)
}

/// Opens the object at `url` as an image that begins at its byte `start`.
///
/// What reads the environment of the process runs attached: `os.environ` of another thread may change
/// it otherwise meanwhile. What may wait runs detached.
pub(crate) fn open(py: Python<'_>, url: &str, start: u64) -> PyResult<Arc<dyn ImageSource>> {
    let shown = display_form(url.into());
    let shown = shown.as_encoded_bytes();
    let refused = |error: io::Error| Failure::of_io(&error).at(shown).remote();
    let location: RemoteLocation = url.parse().map_err(|error| {
        Failure::new("RemoteError", "EINVAL", format!("{error}")).at(shown).raise(py)
    })?;
    let folder = cache_directory();
    // A cache that cannot be used is no error: nothing is cached then.
    let cache = py.detach(|| match folder {
        Some(folder) => {
            CachePlace::of(&folder).unwrap_or_else(|error| CachePlace::uncached(error.to_string()))
        }
        None => CachePlace::uncached("there is no home directory for it".to_owned()),
    });
    let program = std::env::var_os(FETCHER_VARIABLE).map_or_else(
        || FetcherProgram::find(&std::env::current_exe().unwrap_or_default()),
        PathBuf::from,
    );
    let connector = FetcherProgram::new(cache, program, Vec::new());
    let options = RemoteOptions::default();
    let source = detached(py, || {
        let client = Arc::new(FetchClient::new(Box::new(connector)).map_err(refused)?);
        client.set_interruption(handle_signals);
        RemoteSource::open(&client, &location, &options, TIMEOUT).map_err(refused)
    })?;
    Ok(Arc::new(ServedSource(source.starting_at(start))))
}

/// The object at a URL. Its errors are told apart from those of files and of the format.
#[derive(Debug)]
struct ServedSource(RemoteSource);

fn served(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), ServerError(error))
}

impl ImageSource for ServedSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buffer).map_err(served)
    }

    fn length(&self) -> u64 {
        self.0.length()
    }

    fn current_length(&self) -> u64 {
        self.0.current_length()
    }

    fn will_need(&self, offset: u64, bytes: u64) {
        self.0.will_need(offset, bytes);
    }

    fn is_remote(&self) -> bool {
        self.0.is_remote()
    }

    fn remote_stats(&self) -> Option<RemoteStats> {
        self.0.remote_stats()
    }

    fn make_ready(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        self.0.make_ready(ranges).map_err(served)
    }
}

/// `ferrofs` in the user's folder for caches (XDG base directory specification).
fn cache_directory() -> Option<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(folder.join("ferrofs"))
}
