//! Serving a mount: FUSE_INIT, then the session. Called by the command.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use ferrofs_fuse::{
    Capabilities, InitParameters, InitRequest, ListenerGrowth, NegotiatedSession, Session,
    SessionError, SessionEvent, SessionOptions, Succession,
};
use ferrofs_image::Image;

use crate::image_fs::ImageFs;
use crate::settings::{LogCallback, MountLogEvent, MountSettings, ServingProcess};
use crate::stats::MountMetrics;

/// The largest read, in bytes: the most that Linux grants without a system-wide setting.
const MAX_READ_BYTES: u32 = 1 << 20;
/// How many reads of the largest size the kernel may have in flight for a sequential reader; it lowers that to the
/// limit of the mount's backing device info. Two CPUs decode for two reads. With more, page faults of starting
/// programs wait for distant data, and files are read no faster.
const READS_AHEAD: u32 = 2;
/// The largest read where the memory reserve is small, in bytes: shorter reads cost more requests than they save memory.
const MIN_READ_BYTES: u32 = 64 << 10;
/// The least that the kernel makes of the mount option `max_read`, in bytes.
const PAGE_BYTES: u32 = 4096;

/// A mount after FUSE_INIT. No thread runs yet, so the process can enter its sandbox.
#[derive(Debug)]
pub struct NegotiatedMount {
    negotiated: NegotiatedSession,
    settings: MountSettings,
    process: ServingProcess,
}

impl NegotiatedMount {
    /// Replies to FUSE_INIT on the `device` of a mounted file system.
    ///
    /// # Errors
    /// The kernel's protocol is too old, the file system is unmounted, or the device fails.
    pub fn new(device: OwnedFd, settings: &MountSettings) -> Result<Self, SessionError> {
        let negotiated = NegotiatedSession::new(device, &session_options(settings))?;
        Ok(Self { negotiated, settings: *settings, process: ServingProcess::default() })
    }

    /// The mount of another process that has answered FUSE_INIT, with its channels and the same number of listeners.
    ///
    /// # Errors
    /// The kernel was granted something that this version does not know.
    pub fn resumed(
        channels: Vec<OwnedFd>,
        init_parameters: InitParameters,
        settings: &MountSettings,
    ) -> Result<Self, SessionError> {
        let options = session_options(settings);
        let known = options.init_request.capabilities.union(Capabilities::INIT_EXT);
        // Earlier builds requested it. Listings are right either way.
        let known = known.union(Capabilities::READDIRPLUS_AUTO);
        if init_parameters.granted.0 & !known.0 != 0 {
            return Err(SessionError::Protocol);
        }
        let negotiated = NegotiatedSession::resumed(channels, init_parameters, &options);
        Ok(Self { negotiated, settings: *settings, process: ServingProcess::default() })
    }

    /// What kernel and daemon agreed on.
    #[must_use]
    pub fn init_parameters(&self) -> &InitParameters {
        self.negotiated.init_parameters()
    }

    /// Makes this the mount of one of several processes that serve it one after the other (docs/survival.md). It stores
    /// nothing ahead in the page cache: the kernel makes a store wait, even in a process that is killed, for pages that are
    /// being read, and those that such a process was reading come from its successor only, which waits for its end.
    #[must_use]
    pub fn with_succession(mut self, succession: Succession) -> Self {
        self.settings.readaround = false;
        Self { negotiated: self.negotiated.with_succession(succession), ..self }
    }

    /// Sets what the statistics report about this process.
    #[must_use]
    pub fn with_process(mut self, process: ServingProcess) -> Self {
        self.process = process;
        self
    }

    /// The number of listeners.
    #[must_use]
    pub fn listeners(&self) -> usize {
        self.negotiated.listeners()
    }

    /// The descriptors that serving needs.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.negotiated.descriptors()
    }

    /// Starts to serve `image`, and calls `on_event` for each event.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn serve(
        self,
        image: Image,
        on_event: impl Fn(&MountLogEvent<'_>) + Send + Sync + 'static,
    ) -> Result<ServedMount, SessionError> {
        image.measure_decoding();
        let metrics = MountMetrics::new(self.settings.listeners).of_process(self.process);
        let metrics = Arc::new(metrics);
        let on_event: Arc<LogCallback> = Arc::new({
            let metrics = Arc::clone(&metrics);
            move |event: &MountLogEvent<'_>| {
                metrics.record_event(event);
                on_event(event);
            }
        });
        let init_parameters = *self.negotiated.init_parameters();
        let file_system =
            ImageFs::new(image, self.settings, init_parameters, metrics, Arc::clone(&on_event));
        let of_image = Arc::clone(&file_system);
        let session =
            self.negotiated.start(Arc::clone(&file_system) as _, move |event| match event {
                SessionEvent::Banned { node } => of_image.report_banned(*node),
                event => on_event(&MountLogEvent::Session(event)),
            })?;
        file_system.set_notifier(session.notifier());
        Ok(ServedMount { session, file_system })
    }
}

fn session_options(settings: &MountSettings) -> SessionOptions {
    SessionOptions::new(init_request(settings))
        .listeners(settings.listeners)
        .growth(settings.growth)
        .time_limit(settings.time_limit)
        .busy_poll(settings.busy_poll)
        // One listener is asked for where a quota leaves no second CPU. Requests for a remote image may wait for a server.
        .cpu_sharing(
            !settings.busy_poll.is_zero()
                && settings.listeners > 1
                && !matches!(settings.growth, ListenerGrowth::AtOnce(_)),
        )
}

fn init_request(settings: &MountSettings) -> InitRequest {
    let mut capabilities = Capabilities::ASYNC_READ
        .union(Capabilities::EXPORT_SUPPORT)
        .union(Capabilities::PARALLEL_DIROPS)
        // Without READDIRPLUS_AUTO, with which the kernel requests attributes for the first page of a directory only, unless
        // the caller has used some by then. `readdir` decides which entries carry them.
        .union(Capabilities::DO_READDIRPLUS)
        .union(Capabilities::ASYNC_DIO)
        .union(Capabilities::MAX_PAGES)
        .union(Capabilities::CACHE_SYMLINKS)
        .union(Capabilities::NO_OPEN_SUPPORT)
        .union(Capabilities::NO_OPENDIR_SUPPORT)
        .union(Capabilities::IOCTL_DIR)
        .union(Capabilities::HAS_RESEND);
    if settings.has_xattrs && settings.has_acls {
        capabilities = capabilities.union(Capabilities::POSIX_ACL);
    }
    let max_read = max_read(settings);
    let listeners = match settings.growth {
        ListenerGrowth::AtOnce(most) => most.max(settings.listeners),
        _ => settings.listeners,
    };
    let listeners = u16::try_from(listeners).unwrap_or(u16::MAX);
    InitRequest::new(capabilities)
        .max_read(settings.max_read.map_or(max_read, |most| most.max(PAGE_BYTES).min(max_read)))
        .max_readahead(max_read.saturating_mul(READS_AHEAD))
        .max_background(listeners.saturating_mul(8).clamp(16, 256))
}

/// The largest read, in bytes: the largest power of two that fits in a listener's share of the memory reserve.
fn max_read(settings: &MountSettings) -> u32 {
    let Some(share) = settings.reserve_share else { return MAX_READ_BYTES };
    let share = u32::try_from(share).unwrap_or(u32::MAX).clamp(MIN_READ_BYTES, MAX_READ_BYTES);
    1 << share.ilog2()
}

/// A mount that is being served.
pub struct ServedMount {
    session: Session,
    file_system: Arc<ImageFs>,
}

impl fmt::Debug for ServedMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedMount").field("session", &self.session).finish_non_exhaustive()
    }
}

impl ServedMount {
    /// What kernel and daemon agreed on.
    #[must_use]
    pub fn init_parameters(&self) -> &InitParameters {
        self.session.init_parameters()
    }

    /// The session of the mount.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Waits until the file system is unmounted and all threads have ended.
    pub fn join(self) {
        self.session.join();
        self.file_system.shut_down();
    }
}

#[cfg(test)]
mod tests {
    use super::{ListenerGrowth, MAX_READ_BYTES, MIN_READ_BYTES, init_request, max_read};
    use crate::settings::MountSettings;

    fn with_share(reserve_share: Option<u64>) -> MountSettings {
        MountSettings::default().reserve_share(reserve_share)
    }

    #[test]
    fn reads_fit_into_a_share_of_the_reserve() {
        let largest = |share| max_read(&with_share(share));
        assert_eq!(largest(None), MAX_READ_BYTES);
        assert_eq!(largest(Some(256 << 10)), 256 << 10);
        assert_eq!(largest(Some(768 << 10)), 512 << 10);
        assert_eq!(largest(Some(2 << 20)), MAX_READ_BYTES);
        assert_eq!(largest(Some(u64::MAX)), MAX_READ_BYTES);
        assert_eq!(largest(Some(16 << 10)), MIN_READ_BYTES);
        assert_eq!(largest(Some(0)), MIN_READ_BYTES);
    }

    #[test]
    fn a_remote_image_has_many_requests_in_flight() {
        let settings = MountSettings::default();
        assert_eq!(init_request(&settings).max_background, 16);
        let settings = settings.growth(ListenerGrowth::AtOnce(32));
        assert_eq!(init_request(&settings).max_background, 256);
    }

    /// Statistics reported the largest read without it.
    #[test]
    fn the_mount_option_limits_reads_and_not_readahead() {
        let largest = |bytes| {
            let init_request = init_request(&MountSettings::default().max_read(Some(bytes)));
            assert_eq!(init_request.max_readahead, 2 * MAX_READ_BYTES);
            init_request.max_read
        };
        assert_eq!(largest(65_536), 65_536);
        assert_eq!(largest(u32::MAX), MAX_READ_BYTES);
        assert_eq!(largest(1), 4096);
    }

    #[test]
    fn readahead_is_twice_the_largest_read() {
        let init_request = init_request(&with_share(Some(256 << 10)));
        assert_eq!((init_request.max_read, init_request.max_readahead), (256 << 10, 512 << 10));
    }
}
