//! A mount that is being served: from the mounted device to the end of the mount.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use ferrofs_fuse::{Capabilities, Greeted, Session, SessionError, SessionOptions, Terms, Wanted};
use ferrofs_image::Image;

use crate::image_fs::ImageFs;
use crate::notice::Notice;
use crate::settings::Settings;
use crate::stats::Meters;

/// The largest read: what Linux grants at most without a system-wide setting.
const MAX_READ_BYTES: u32 = 1 << 20;
/// How many reads of the largest size the kernel may have under way for one who reads in order; it lowers that to the
/// limit of the mount's backing device info. Two CPUs decode for two reads. With more, page faults of programs that
/// start wait for what lies far around them, and files are read no faster.
const READS_AHEAD: u32 = 2;
/// The largest read where the reserve is small, in bytes: shorter ones cost more requests than they save memory.
const MIN_READ_BYTES: u32 = 64 << 10;

/// A mount that is being served.
pub struct Served {
    session: Session,
    file_system: Arc<ImageFs>,
}

/// A mount whose kernel has been greeted; no thread runs yet, so that the process can enter its sandbox.
#[derive(Debug)]
pub struct Ready {
    greeted: Greeted,
    settings: Settings,
}

impl Ready {
    /// Greets the kernel on `device`, which is mounted already.
    ///
    /// # Errors
    /// The kernel's protocol, or the device.
    pub fn new(device: OwnedFd, settings: &Settings) -> Result<Self, SessionError> {
        let options = SessionOptions {
            listeners: settings.listeners,
            wanted: wanted(settings),
            time_limit: settings.time_limit,
        };
        Ok(Self { greeted: Greeted::new(device, &options)?, settings: *settings })
    }

    /// What kernel and daemon agreed on.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        self.greeted.terms()
    }

    /// The descriptors that serving needs.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.greeted.descriptors()
    }

    /// Answers the kernel from `image`.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn serve(
        self,
        image: Image,
        tell: impl Fn(&Notice<'_>) + Send + Sync + 'static,
    ) -> Result<Served, SessionError> {
        image.measure_decoding();
        let meters = Arc::new(Meters::new(self.settings.listeners));
        let tell: Arc<dyn Fn(&Notice<'_>) + Send + Sync> = Arc::new({
            let meters = Arc::clone(&meters);
            move |notice: &Notice<'_>| {
                meters.noticed(notice);
                tell(notice);
            }
        });
        let (settings, terms) = (&self.settings, *self.greeted.terms());
        let file_system = ImageFs::new(image, settings, terms, meters, Arc::clone(&tell));
        let session = self.greeted.start(Arc::clone(&file_system) as _, move |event| {
            tell(&Notice::Session(event));
        })?;
        file_system.begin(session.notifier());
        Ok(Served { session, file_system })
    }
}

fn wanted(settings: &Settings) -> Wanted {
    let mut capabilities = Capabilities::ASYNC_READ
        .with(Capabilities::PARALLEL_DIROPS)
        .with(Capabilities::DO_READDIRPLUS)
        .with(Capabilities::READDIRPLUS_AUTO)
        .with(Capabilities::ASYNC_DIO)
        .with(Capabilities::MAX_PAGES)
        .with(Capabilities::CACHE_SYMLINKS)
        .with(Capabilities::NO_OPEN_SUPPORT)
        .with(Capabilities::NO_OPENDIR_SUPPORT)
        .with(Capabilities::IOCTL_DIR);
    if settings.has_xattrs && settings.has_acls {
        capabilities = capabilities.with(Capabilities::POSIX_ACL);
    }
    let max_read = max_read(settings);
    let listeners = u16::try_from(settings.listeners).unwrap_or(u16::MAX);
    Wanted {
        capabilities,
        max_read,
        max_readahead: max_read.saturating_mul(READS_AHEAD),
        max_background: listeners.saturating_mul(8).clamp(16, 256),
    }
}

/// The largest read, in bytes: a power of two that fits into a listener's share of the reserve.
fn max_read(settings: &Settings) -> u32 {
    let Some(share) = settings.reserve_share else { return MAX_READ_BYTES };
    let share = u32::try_from(share).unwrap_or(u32::MAX).clamp(MIN_READ_BYTES, MAX_READ_BYTES);
    1 << share.ilog2()
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Served {
    /// What kernel and daemon agreed on.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        self.session.terms()
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Waits for the end of the mount.
    pub fn join(self) {
        self.session.join();
        self.file_system.end();
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_READ_BYTES, MIN_READ_BYTES, max_read, wanted};
    use crate::settings::Settings;

    fn with_share(reserve_share: Option<u64>) -> Settings {
        Settings { reserve_share, ..Settings::default() }
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
    fn the_kernel_is_asked_for_that_and_for_twice_as_much_ahead() {
        let wanted = wanted(&with_share(Some(256 << 10)));
        assert_eq!((wanted.max_read, wanted.max_readahead), (256 << 10, 512 << 10));
    }
}
