//! Images at URLs: the options, and the sources of an image as the library wants them. The only
//! file of the command that knows where the cache and the fetcher are.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Once};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ferrofs_image::{FileSource, ImageSource};
use ferrofs_remote::cache::{CacheDirectory, CachePlace};
use ferrofs_remote::protocol::{PushReport, PushRequest, RemoteOptions, Verification, VerifyMode};
use ferrofs_remote::{
    Companion, Connection, FetchClient, FetcherProgram, LayoutSource, Location, RemoteLocation,
    RemoteObject, RemoteSource, StoreSettings, push_image, serve_companion,
};
use ferrofs_workers::priority;
use serde::Serialize;

use crate::arguments::{ConnectionArguments, RemoteArguments, VerifyChoice};
use crate::exit_status::{CommandStatus, usage_error};
use crate::output::{self, escape};

/// Names the program that fetches, if it is not beside this one.
const FETCHER_VARIABLE: &str = "FERROFS_FETCH";
/// The name under which this program is the process that connects for a mount.
pub(crate) const COMPANION_NAME: &str = "ferrofs-connect";
/// The same for `ps` and `top`, which show 15 bytes.
const COMPANION_THREAD: &std::ffi::CStr = c"ferrofs-connect";
/// The running program, even if its file was renamed.
const ITSELF: &str = "/proc/self/exe";
/// The cache of root where no home directory is known, as when the system starts.
const SYSTEM_CACHE: &str = "/var/cache/ferrofs";
/// What errors are about.
const CACHE: &str = "the cache of remote images";
/// How long a fetch may take unless --fetch-timeout says otherwise, in seconds.
const TIMEOUT_SECONDS: u64 = 60;

/// Where an image and its devices are. `None` if all of them are local files.
pub(crate) struct RemoteImage {
    places: Vec<Location>,
}

/// What a mount of a remote image keeps beside its image.
pub(crate) struct RemoteMount {
    client: Arc<FetchClient>,
    companion: Arc<Companion>,
    opened: RefCell<Vec<OpenedLocation>>,
}

/// A remote image or device of a mount, as `--explain` shows it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OpenedLocation {
    /// Without its query.
    pub(crate) location: String,
    pub(crate) bytes: u64,
    /// What its bytes are compared with, beside the checksums of the cache.
    pub(crate) verification: &'static str,
    /// Of an image of a registry: the host that has named it, which may be a mirror.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) served_by: Option<String>,
}

impl OpenedLocation {
    fn new(location: &RemoteLocation, source: &RemoteSource) -> Self {
        let state = source.state();
        let verification = match state.verification {
            Verification::ChunkIndex => "each chunk, with a chunk index",
            Verification::WholeDigest => "the whole object, when it was downloaded",
            Verification::WholeDigestLater => {
                "not yet: there is only a digest of the whole object, and no chunk index"
            }
            _ => "none: there is no digest; the transport is trusted",
        };
        let served_by = state.served_by.clone();
        Self { location: location.to_string(), bytes: state.length, verification, served_by }
    }
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

    /// Whether something of it is not on this machine.
    pub(crate) fn needs_fetcher(&self) -> bool {
        let is_far = |place: &Location| match place {
            Location::Remote(location) => !location.is_layout(),
            _ => false,
        };
        self.places.iter().any(is_far)
    }

    /// Opens the image, from byte `offset` on, and its devices; for a mount with its client.
    ///
    /// # Errors
    /// A text that names the location: the fetcher cannot be started, or the object not be opened.
    pub(crate) fn open(
        &self,
        offset: u64,
        arguments: &RemoteArguments,
        mount: Option<&RemoteMount>,
    ) -> anyhow::Result<OpenedSources> {
        let client = match mount {
            Some(mount) => Some(Arc::clone(&mount.client)),
            None if self.needs_fetcher() => Some(Arc::new(connect(&arguments.connection)?)),
            None => None,
        };
        let mut sources = Vec::with_capacity(self.places.len());
        for (number, place) in self.places.iter().enumerate() {
            let start = if number == 0 { offset } else { 0 };
            let client = client.as_ref();
            sources.push(open_one(client, place, start, arguments, mount)?);
        }
        let devices = sources.split_off(1);
        let image = sources.pop().ok_or_else(|| anyhow!("no image"))?;
        Ok(OpenedSources { image, devices })
    }
}

/// Whether an argument is a location, and no path.
pub(crate) fn is_remote(argument: &Path) -> bool {
    matches!(Location::parse(argument.as_os_str()), Ok(Location::Remote(_)))
}

/// How an argument is shown in messages. The query of a URL may contain a signature.
pub(crate) fn terminal_form(argument: &Path) -> String {
    match Location::display_form(argument.as_os_str()) {
        Some(text) => escape(text.as_bytes()),
        None => escape(argument.as_os_str().as_encoded_bytes()),
    }
}

fn parse(argument: &OsStr) -> anyhow::Result<Location> {
    Location::parse(argument).map_err(|error| {
        usage_error(format_args!("{}: {error}", terminal_form(Path::new(argument))))
    })
}

fn open_one(
    client: Option<&Arc<FetchClient>>,
    place: &Location,
    start: u64,
    arguments: &RemoteArguments,
    mount: Option<&RemoteMount>,
) -> anyhow::Result<Arc<dyn ImageSource>> {
    match place {
        Location::Remote(location) if location.is_layout() => {
            let source = LayoutSource::open(location, verify_mode(arguments))
                .map_err(|error| anyhow!("{}", escape(error.to_string().as_bytes())))?;
            Ok(Arc::new(source.starting_at(start)))
        }
        Location::Remote(location) => {
            let client = client.ok_or_else(|| anyhow!("the location is not supported"))?;
            let source = open_remote(client, location, arguments)?;
            if source.state().in_memory {
                warn_uncached("the cache is full or cannot be written");
            }
            if let Some(mount) = mount {
                mount.opened.borrow_mut().push(OpenedLocation::new(location, &source));
            }
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
    let mut options = connection_options(&arguments.connection);
    options.offline = arguments.offline;
    options.verify = verify_mode(arguments);
    RemoteSource::open(client, location, &options, timeout(&arguments.connection))
        .map_err(|error| anyhow!("{}", escape(error.to_string().as_bytes())))
}

fn verify_mode(arguments: &RemoteArguments) -> VerifyMode {
    match arguments.verify {
        Some(VerifyChoice::Require) => VerifyMode::Require,
        Some(VerifyChoice::Off) => VerifyMode::Off,
        Some(VerifyChoice::Try) | None => VerifyMode::Try,
    }
}

/// How long a fetch may take.
fn timeout(arguments: &ConnectionArguments) -> Duration {
    Duration::from_secs(arguments.fetch_timeout.unwrap_or(TIMEOUT_SECONDS))
}

/// A client of the fetcher, and how long a fetch may take.
///
/// # Errors
/// The cache cannot be used, or the fetcher not be started.
pub(crate) fn client(
    arguments: &ConnectionArguments,
) -> anyhow::Result<(Arc<FetchClient>, Duration)> {
    Ok((Arc::new(connect(arguments)?), timeout(arguments)))
}

/// Publishes an image by the fetcher; see [`push_image`].
///
/// # Errors
/// As there.
pub(crate) fn push(
    request: &PushRequest,
    files: &[BorrowedFd<'_>],
    arguments: &ConnectionArguments,
    observer: &mut dyn FnMut(u64) -> io::Result<()>,
) -> anyhow::Result<PushReport> {
    Ok(push_image(&connector(arguments)?, request, files, observer)?)
}

/// The repository, tag and platform under which an image is published.
///
/// # Errors
/// The argument is something else (wrong usage).
pub(crate) fn parse_publication(argument: &Path) -> anyhow::Result<RemoteLocation> {
    let refused = |why: &str| {
        let text = terminal_form(argument);
        usage_error(format_args!("{text}: {why}; an image is published under oci://HOST/NAME:TAG"))
    };
    match parse(argument.as_os_str())? {
        Location::Remote(location) => match &location.object {
            RemoteObject::Oci { digest: None, .. } if location.layer.is_none() => Ok(location),
            RemoteObject::Oci { .. } => Err(refused("it names a digest or a layer")),
            _ => Err(refused("it is not a registry")),
        },
        _ => Err(refused("it is a path")),
    }
}

/// How the registries of a location are reached.
pub(crate) fn connection_options(arguments: &ConnectionArguments) -> RemoteOptions {
    let mut options = RemoteOptions::default();
    options.insecure_registries.clone_from(&arguments.insecure_registries);
    options.limit_ms = arguments.fetch_timeout.map(|seconds| seconds.saturating_mul(1000));
    options
}

/// Opens a remote image as a whole, without its devices.
///
/// # Errors
/// The argument is no location (wrong usage), or the object cannot be opened.
pub(crate) fn open_object(
    argument: &Path,
    arguments: &RemoteArguments,
) -> anyhow::Result<RemoteSource> {
    let Location::Remote(location) = parse(argument.as_os_str())? else {
        let text = escape(argument.as_os_str().as_encoded_bytes());
        return Err(usage_error(format_args!("{text}: a path, not a URL; copy the file instead")));
    };
    if location.is_layout() {
        let text = terminal_form(argument);
        return Err(usage_error(format_args!(
            "{text}: the image is on this machine; copy its blob instead"
        )));
    }
    let client = Arc::new(connect(&arguments.connection)?);
    open_remote(&client, &location, arguments)
}

impl RemoteMount {
    /// Starts the process that connects, and connects by it. No thread runs afterwards: the mount
    /// has yet to enter its sandbox.
    ///
    /// # Errors
    /// The cache cannot be used, the process or the fetcher not be started.
    pub(crate) fn connect(arguments: &RemoteArguments) -> anyhow::Result<Self> {
        // Errors of the directory are reported before a process is started.
        let path = match cache_place(&arguments.connection)? {
            CachePlace::Shared(cache) => std::path::absolute(cache.path()).context("the cache")?,
            CachePlace::Uncached { filled: Some(cache), .. } => {
                std::path::absolute(cache.path()).context("the cache")?
            }
            // The companion finds out the same.
            CachePlace::Uncached { .. } => PathBuf::new(),
        };
        let mut command = Command::new(ITSELF);
        std::os::unix::process::CommandExt::arg0(&mut command, COMPANION_NAME);
        command.arg(path).arg(fetcher());
        command.envs(arguments.store_variables.iter().map(|(name, value)| (name, value)));
        let companion = Companion::start(&mut command);
        let companion = companion.context("the process that connects to ferrofs-fetch")?;
        let companion = Arc::new(companion.cache_limit(arguments.connection.cache_size));
        // The companion has them; what decodes must not.
        ferrofs_mount::sandbox::clear_environment(StoreSettings::names())
            .context("the credentials cannot be removed from the memory of the mount")?;
        let client = FetchClient::without_thread(Box::new(Arc::clone(&companion)))?;
        if let Some(diagnostic) = companion.uncached_because() {
            warn_uncached(&diagnostic);
        }
        Ok(Self { client: Arc::new(client), companion, opened: RefCell::default() })
    }

    /// The connection to the fetcher, which stays open in the sandbox.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        self.client.connection()
    }

    /// The process that connects.
    pub(crate) fn companion(&self) -> &Companion {
        &self.companion
    }

    /// The locations that were opened.
    pub(crate) fn opened(&self) -> Vec<OpenedLocation> {
        self.opened.borrow().clone()
    }

    /// Starts the thread that receives, when the sandbox is entered.
    ///
    /// # Errors
    /// The system refuses the thread.
    pub(crate) fn start(&self) -> anyhow::Result<()> {
        let client = &self.client;
        std::thread::scope(|scope| {
            // The receiver inherits an ordinary priority from it: a server decides how much there is to receive.
            let body = || {
                priority::discard_inherited();
                client.start_receiver()
            };
            let named = std::thread::Builder::new().name("remote-start".to_owned());
            let started = named.spawn_scoped(scope, body).map(ScopedJoinHandle::join);
            started.and_then(|ended| ended.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
        })
        .context("cannot start a thread")
    }
}

/// Runs the process that connects for a mount, until the mount ends.
///
/// # Errors
/// It was not started by a mount.
pub(crate) fn run_companion(words: &[OsString]) -> anyhow::Result<CommandStatus> {
    let [cache, program] = words else {
        return Err(usage_error(format_args!("{COMPANION_NAME} is started by mounts only")));
    };
    // It was executed by a link, whose name it has got.
    rustix::thread::set_name(COMPANION_THREAD).ok();
    // It has the credentials of object stores in its environment, which no other process should read.
    let hidden = rustix::process::DumpableBehavior::NotDumpable;
    rustix::process::set_dumpable_behavior(hidden)?;
    let cache = match cache.is_empty() {
        true => CachePlace::uncached("there is no usable directory for it".to_owned()),
        false => CachePlace::of(Path::new(cache))?,
    };
    let fetcher = FetcherProgram::new(cache, PathBuf::from(program), Vec::new());
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    // The socket has one owner, so that its end is seen.
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    serve_companion(socket, fetcher)?;
    Ok(CommandStatus::Success)
}

/// The cache, for a verb that is about it.
///
/// # Errors
/// There is none.
pub(crate) fn open_cache(arguments: &ConnectionArguments) -> anyhow::Result<CacheDirectory> {
    match cache_place(arguments)? {
        CachePlace::Shared(cache) | CachePlace::Uncached { filled: Some(cache), .. } => Ok(cache),
        CachePlace::Uncached { diagnostic, .. } => Err(anyhow!("{CACHE}: {diagnostic}")),
    }
}

/// A client of the fetcher of a cache that is changed.
///
/// # Errors
/// The cache cannot be written, or the fetcher not be started.
pub(crate) fn connect_to_change(arguments: &ConnectionArguments) -> anyhow::Result<FetchClient> {
    if let CachePlace::Uncached { diagnostic, .. } = cache_place(arguments)? {
        return Err(anyhow!("{CACHE}: {diagnostic}"));
    }
    connect(arguments)
}

/// A client of the fetcher, which is started if none runs. Without a usable cache it works, with a
/// warning.
///
/// # Errors
/// The cache is one of others, or the fetcher cannot be started.
pub(crate) fn connect(arguments: &ConnectionArguments) -> anyhow::Result<FetchClient> {
    let connector = Arc::new(connector(arguments)?);
    let client = FetchClient::new(Box::new(Arc::clone(&connector)))?;
    if let Some(diagnostic) = connector.uncached_because() {
        warn_uncached(&diagnostic);
    }
    Ok(client)
}

fn connector(arguments: &ConnectionArguments) -> anyhow::Result<FetcherProgram> {
    let program = FetcherProgram::new(cache_place(arguments)?, fetcher(), Vec::new());
    Ok(program.cache_limit(arguments.cache_size))
}

/// Says once that nothing is cached.
fn warn_uncached(diagnostic: &str) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        let diagnostic = escape(diagnostic.as_bytes());
        output::print_message(format_args!("warning: nothing is cached: {diagnostic}"));
    });
}

/// The cache that the user names, or the default one. A default one that cannot be used is no error:
/// nobody has asked for it.
///
/// # Errors
/// The directory that the user names is one of others.
fn cache_place(arguments: &ConnectionArguments) -> anyhow::Result<CachePlace> {
    if let Some(path) = &arguments.cache {
        return CachePlace::of(path).context(CACHE);
    }
    let Some(path) = default_cache() else {
        let diagnostic = "there is no home directory for it; name a directory with --cache=DIR";
        return Ok(CachePlace::uncached(diagnostic.to_owned()));
    };
    Ok(CachePlace::of(&path).unwrap_or_else(|error| CachePlace::uncached(error.to_string())))
}

/// The program that fetches.
fn fetcher() -> PathBuf {
    match std::env::var_os(FETCHER_VARIABLE) {
        Some(program) => named_program(PathBuf::from(program)),
        None => FetcherProgram::find(&std::env::current_exe().unwrap_or_default()),
    }
}

/// A program by its path, or by a name that is looked up in `PATH`. A companion has another working directory.
fn named_program(program: PathBuf) -> PathBuf {
    let is_path = program.as_os_str().as_encoded_bytes().contains(&b'/');
    // Without a working directory, a relative path leads nowhere in any case.
    is_path.then(|| std::path::absolute(&program).ok()).flatten().unwrap_or(program)
}

/// `ferrofs` in the user's folder for caches (XDG base directory specification). What mounts for
/// `/etc/fstab` has no home directory.
fn default_cache() -> Option<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    match folder {
        Some(folder) => Some(folder.join("ferrofs")),
        None => rustix::process::geteuid().is_root().then(|| PathBuf::from(SYSTEM_CACHE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount did not find it, as its companion has another working directory.
    #[test]
    fn a_relative_path_of_the_fetcher_is_made_absolute_and_a_name_is_not() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(named_program("build/ferrofs-fetch".into()), here.join("build/ferrofs-fetch"));
        assert_eq!(named_program("ferrofs-fetch".into()), Path::new("ferrofs-fetch"));
        assert_eq!(named_program("/opt/ferrofs-fetch".into()), Path::new("/opt/ferrofs-fetch"));
    }

    #[test]
    fn a_password_in_a_location_is_not_repeated() {
        for (text, terminal_form) in [
            ("https://user:s3cret@host/a.erofs", "https://…@host/a.erofs"),
            ("https://user:s3/cr?e#t@host/a?signature=s3cret", "https://…@host/a"),
            ("https://user:s3@cret@host:99999/a", "https://…@host:99999/a"),
            ("s3://key:s3cret@bucket/a", "s3://…@bucket/a"),
            ("oci://user:s3cret@host/a:v1", "oci://…@host/a:v1"),
            ("ftp://user:s3cret@host/a", "ftp://…@host/a"),
            ("https://s3cret@", "https://…@"),
            ("https:///a?signature=s3cret", "https:///a"),
        ] {
            let argument = Path::new(text);
            let error = parse(argument.as_os_str()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{terminal_form}: ")), "{error}");
            assert_eq!(super::terminal_form(argument), terminal_form);
        }
        assert_eq!(terminal_form(Path::new("a@b?c")), "a@b?c");
    }
}
