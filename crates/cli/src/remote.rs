//! Images at URLs: the options, and the sources of an image as the library wants them. The only
//! file of the command that knows where the cache and the fetcher are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ferrofs_image::{FileSource, ImageSource};
use ferrofs_remote::cache::CacheDirectory;
use ferrofs_remote::protocol::{RemoteOptions, VerifyMode};
use ferrofs_remote::{FetchClient, FetcherProgram, Location, RemoteLocation, RemoteSource};

use crate::arguments::{RemoteArguments, VerifyChoice};
use crate::exit_status::usage_error;
use crate::output::escape;

/// Names the program that fetches, if it is not beside this one.
const FETCHER_VARIABLE: &str = "FERROFS_FETCH";
/// How long a fetch may take unless --fetch-timeout says otherwise, in seconds.
const TIMEOUT_SECONDS: u64 = 60;

/// Where an image and its devices are. `None` if all of them are local files.
pub(crate) struct RemoteImage {
    places: Vec<Location>,
}

/// An image and its devices, for [`OpenOptions::open_sources`](ferrofs_image::OpenOptions).
pub(crate) struct OpenedSources {
    pub(crate) image: Arc<dyn ImageSource>,
    pub(crate) devices: Vec<Arc<dyn ImageSource>>,
}

impl RemoteImage {
    /// Looks at the arguments of a verb.
    ///
    /// # Errors
    /// One of them begins like a URL and is none (wrong usage).
    pub(crate) fn of(image: &Path, devices: &[PathBuf]) -> anyhow::Result<Option<Self>> {
        let mut places = Vec::with_capacity(devices.len() + 1);
        for argument in std::iter::once(image).chain(devices.iter().map(PathBuf::as_path)) {
            places.push(parse(argument.as_os_str())?);
        }
        let is_remote = places.iter().any(|place| matches!(place, Location::Remote(_)));
        Ok(is_remote.then_some(Self { places }))
    }

    /// Opens the image, from byte `offset` on, and its devices.
    ///
    /// # Errors
    /// A text that names the location: the fetcher cannot be started, or the object not be opened.
    pub(crate) fn open(
        &self,
        offset: u64,
        arguments: &RemoteArguments,
    ) -> anyhow::Result<OpenedSources> {
        let client = Arc::new(connect(arguments)?);
        let mut sources = Vec::with_capacity(self.places.len());
        for (number, place) in self.places.iter().enumerate() {
            let start = if number == 0 { offset } else { 0 };
            sources.push(open_one(&client, place, start, arguments)?);
        }
        let devices = sources.split_off(1);
        let image = sources.pop().ok_or_else(|| anyhow!("no image"))?;
        Ok(OpenedSources { image, devices })
    }
}

/// How an argument is shown in messages. The query of a URL may contain a signature.
pub(crate) fn shown(argument: &Path) -> String {
    match Location::parse(argument.as_os_str()) {
        Ok(Location::Remote(location)) => escape(location.to_string().as_bytes()),
        _ => escape(argument.as_os_str().as_encoded_bytes()),
    }
}

fn parse(argument: &OsStr) -> anyhow::Result<Location> {
    Location::parse(argument).map_err(|error| {
        let text = argument.to_string_lossy();
        let text = text.split(['?', '#']).next().unwrap_or_default();
        usage_error(format_args!("{}: {error}", escape(text.as_bytes())))
    })
}

fn open_one(
    client: &Arc<FetchClient>,
    place: &Location,
    start: u64,
    arguments: &RemoteArguments,
) -> anyhow::Result<Arc<dyn ImageSource>> {
    match place {
        Location::Remote(location) => {
            let source = open_remote(client, location, arguments)?;
            Ok(Arc::new(source.starting_at(start)))
        }
        Location::Local(path) => {
            let source = FileSource::open(path, start);
            Ok(Arc::new(source.with_context(|| escape(path.as_os_str().as_encoded_bytes()))?))
        }
        _ => Err(anyhow!("the location is not supported")),
    }
}

fn open_remote(
    client: &Arc<FetchClient>,
    location: &RemoteLocation,
    arguments: &RemoteArguments,
) -> anyhow::Result<RemoteSource> {
    let mut options = RemoteOptions::default();
    options.offline = arguments.offline;
    options.insecure_registries.clone_from(&arguments.insecure_registries);
    options.verify = match arguments.verify {
        Some(VerifyChoice::Require) => VerifyMode::Require,
        Some(VerifyChoice::Off) => VerifyMode::Off,
        Some(VerifyChoice::Try) | None => VerifyMode::Try,
    };
    let seconds = arguments.fetch_timeout.unwrap_or(TIMEOUT_SECONDS);
    RemoteSource::open(client, location, &options, Duration::from_secs(seconds))
        .map_err(|error| anyhow!("{}", escape(error.to_string().as_bytes())))
}

fn connect(arguments: &RemoteArguments) -> anyhow::Result<FetchClient> {
    let path = match &arguments.cache {
        Some(path) => path.clone(),
        None => default_cache()?,
    };
    let cache = CacheDirectory::open(&path).context("the cache of remote images")?;
    let program = match std::env::var_os(FETCHER_VARIABLE) {
        Some(program) => PathBuf::from(program),
        None => FetcherProgram::find(&std::env::current_exe().unwrap_or_default()),
    };
    let connector = FetcherProgram::new(cache, program, Vec::new());
    Ok(FetchClient::new(Box::new(connector))?)
}

/// `ferrofs` in the user's folder for caches (XDG base directory specification).
fn default_cache() -> anyhow::Result<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let folder = folder.ok_or_else(|| {
        usage_error("there is no home directory for the cache; name one with --cache=DIR")
    })?;
    Ok(folder.join("ferrofs"))
}
