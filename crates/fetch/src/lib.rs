//! `ferrofs-fetch`: the process that fetches remote images for all ferrofs processes of a user. It
//! has the network, the credentials and the right to write the cache; it never decodes an image.
//! ferrofs starts it when it is needed, and it ends when it is not used.
//!
//! The program is a library with one function, so that the fuzz targets reach its modules.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a program reports on standard error")]

mod admission;
mod assemble;
mod backend;
mod backing;
mod blocking;
#[cfg(not(feature = "fuzzing"))]
mod credential_helper;
mod credential_http;
#[cfg_attr(feature = "fuzzing", path = "fuzzing/credentials.rs")]
mod credentials;
mod fetcher;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod http;
mod lock;
mod mirrors;
mod object;
mod registries_conf;
mod registry;
mod resolve;
mod retry;
mod server;
mod small_file;
mod space;
mod stats;
mod store;
mod store_access;
mod store_place;
mod store_refusal;
mod upload;
mod web;

use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use ferrofs_remote::cache::{CacheDirectory, FetcherSocket};
use ferrofs_remote::{CACHE_BUSY, CACHE_UNUSABLE, Connection};

use crate::fetcher::Fetcher;
use crate::object::{RequestLimits, Store};
use crate::resolve::Resolver;
use crate::space::CacheSpace;
use crate::stats::Stats;
use crate::web::WebClient;

/// How long work that is not asynchronous may go on at the end: looking up a name, and a credential helper,
/// which is killed after half of it.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Threads that receive and verify.
const THREADS: usize = 2;

/// Fetch remote EROFS images for ferrofs
///
/// ferrofs starts this program when necessary. For each user and each cache, one instance serves
/// all ferrofs processes.
#[derive(Debug, Parser)]
#[command(version, name = "ferrofs-fetch")]
struct FetcherArguments {
    /// The cache directory. Without --uncached, this option is required, and a directory that does
    /// not exist is created with mode 0700
    #[arg(long, value_name = "DIR", required_unless_present = "uncached")]
    cache: Option<PathBuf>,
    /// Do not write to a cache; keep a part of the fetched data in memory. Serve one client, over
    /// the socket that is standard input, until the client closes it. With --cache, read that cache
    /// as well
    #[arg(long)]
    uncached: bool,
    /// Retry a failed request for at most this number of seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    /// Exit after this number of seconds without a client. No effect with --uncached
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    idle: u64,
}

/// The program.
#[must_use]
pub fn run_program() -> ExitCode {
    match run(&FetcherArguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever has started this process goes on without a cache, and says so.
        Err(error) if error.is::<Unusable>() => ExitCode::from(CACHE_UNUSABLE),
        // Whoever has started this process finds the one that has the lock, or goes on without a cache.
        Err(error) if error.is::<Busy>() => ExitCode::from(CACHE_BUSY),
        Err(error) => {
            eprintln!("ferrofs-fetch: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The cache directory cannot be used.
#[derive(Debug)]
struct Unusable(std::io::Error);

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Unusable {}

/// Another process has the lock of the cache directory.
#[derive(Debug)]
struct Busy;

impl std::fmt::Display for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another process uses the cache directory")
    }
}

impl std::error::Error for Busy {}

fn run(arguments: &FetcherArguments) -> anyhow::Result<()> {
    // Before there are threads: buffers of chunks are returned to the system, whichever thread frees them.
    ferrofs_workers::memory::set_mmap_threshold();
    admission::raise_limits();
    admission::survive_file_size_limit();
    // Credentials must not be in a core dump, nor readable by other processes of the user.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .context("cannot forbid core dumps")?;
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        bail!("cannot set up TLS");
    }
    let cache = match (&arguments.cache, arguments.uncached) {
        (Some(path), true) => CacheDirectory::open_existing(path).ok(),
        (Some(path), false) => Some(CacheDirectory::open(path).map_err(Unusable)?),
        (None, _) => None,
    };
    let cache = cache.map(Arc::new);
    // The directory of the verb that has started this process must not stay busy.
    rustix::process::chdir("/").context("cannot enter /")?;
    match cache {
        Some(cache) if !arguments.uncached => serve_all(arguments, &cache),
        filled => serve_one(arguments, filled),
    }
}

/// Serves all clients of a cache until it is idle.
fn serve_all(arguments: &FetcherArguments, cache: &Arc<CacheDirectory>) -> anyhow::Result<()> {
    // First, so that nobody waits for a process that has no threads.
    let runtime = runtime()?;
    let Some(socket) = FetcherSocket::listen(cache).map_err(Unusable)? else { bail!(Busy) };
    let space = Arc::new(CacheSpace::new(Arc::clone(cache)).context("the cache")?);
    let fetcher = fetcher(arguments, Some(Arc::clone(cache)), Store::Disk(space))?;
    detach_from_parent().context("cannot open /dev/null")?;
    let idle = Duration::from_secs(arguments.idle);
    let served = admission::serve(socket.listener(), &fetcher, runtime.handle(), idle);
    drop(fetcher);
    // What still runs may change the cache: the next fetcher gets the lock when it has ended, or when this process has.
    let _lock = ManuallyDrop::new(socket.into_lock());
    runtime.shutdown_timeout(END_LIMIT);
    Ok(served?)
}

/// Serves the client that has started this process.
fn serve_one(
    arguments: &FetcherArguments,
    filled: Option<Arc<CacheDirectory>>,
) -> anyhow::Result<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let connection = Connection::new(socket).context("standard input is no socket of ferrofs")?;
    // The socket has one owner, so that its end is seen.
    let null = std::fs::File::open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    let store = Store::Memory { filled: filled.clone() };
    let fetcher = fetcher(arguments, filled, store)?;
    let runtime = runtime()?;
    detach_from_parent().context("cannot open /dev/null")?;
    server::serve_one(Arc::new(connection), &fetcher, runtime.handle());
    drop(fetcher);
    runtime.shutdown_timeout(END_LIMIT);
    Ok(())
}

fn fetcher(
    arguments: &FetcherArguments,
    cache: Option<Arc<CacheDirectory>>,
    store: Store,
) -> anyhow::Result<Arc<Fetcher>> {
    let web = WebClient::new().context("cannot set up HTTP")?;
    let stats = Arc::new(Stats::default());
    let timeout = Duration::from_secs(arguments.timeout);
    let limits = Arc::new(RequestLimits::new(timeout, Arc::clone(&stats)));
    let resolver = Resolver {
        web,
        cache,
        stats,
        timeout,
        repositories: std::sync::Mutex::default(),
        mirrored: std::sync::Mutex::default(),
        stores: std::sync::Mutex::default(),
    };
    Ok(Arc::new(Fetcher::new(resolver, limits, store)))
}

#[expect(clippy::exit, reason = "a panic that waits for ever cannot be unwound")]
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    // If the system refuses a thread, tokio panics, and the panic waits for the threads that were started.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("ferrofs-fetch: cannot start threads: {panic}");
        std::process::exit(1);
    }));
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("fetch")
        .enable_all()
        .build();
    std::panic::set_hook(hook);
    built.context("cannot start threads")
}

/// Standard error belongs to the verb that started this process. A program that reads the output of
/// that verb would otherwise wait until the fetcher ends.
fn detach_from_parent() -> std::io::Result<()> {
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}
