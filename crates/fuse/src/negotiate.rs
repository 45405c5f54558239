//! The first request of a session: which protocol, which capabilities, which sizes. Pure: a request in, a reply and
//! the parameters out. Called by `session`.

use crate::capability::Capabilities;
use crate::error::SessionError;
use crate::operation::read_prefix;
use crate::wire::{self, InHeader, InitIn, InitInMore, InitOut, opcode};

/// Pages of memory on the wire.
const PAGE_BYTES: u32 = 4096;
/// The least that the kernel takes for writes; there will be none, and the buffer for requests may be small.
const MAX_WRITE_BYTES: u32 = 4096;
/// What a request takes at most without data to write: a header, two names, attributes.
pub(crate) const REQUEST_BYTES: usize = 8192 + 4096;
/// What a kernel grants that knows no number of pages.
const OLD_MAX_PAGES: u32 = 32;

/// What a daemon wants.
#[derive(Clone, Copy, Debug)]
pub struct InitRequest {
    /// Capabilities; those that the kernel does not offer are done without.
    pub capabilities: Capabilities,
    /// Bytes of the largest read.
    pub max_read: u32,
    /// Bytes that the kernel may read ahead; it lowers that to its own limit.
    pub max_readahead: u32,
    /// How many requests that nobody waits for may be under way, such as readahead.
    pub max_background: u16,
}

/// What a session runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitParameters {
    /// The protocol version of the kernel.
    pub protocol: (u32, u32),
    /// What the kernel offered.
    pub offered: Capabilities,
    /// What was requested.
    pub requested: Capabilities,
    /// What both have.
    pub granted: Capabilities,
    /// Bytes of the largest read.
    pub max_read: u32,
    /// Bytes that the kernel said it reads ahead at most, and what was requested.
    pub max_readahead: (u32, u32),
    /// Requests that nobody waits for.
    pub max_background: u16,
}

/// How to go on.
#[derive(Debug)]
pub(crate) enum Negotiation {
    /// Send this; the session has begun.
    Agreed { unique: u64, reply: InitOut, init_parameters: InitParameters },
    /// Send this: our version. The kernel asks again with one that both know.
    Retry { unique: u64, reply: InitOut },
}

pub(crate) fn negotiate(
    request: &[u8],
    init_request: &InitRequest,
) -> Result<Negotiation, SessionError> {
    let (header, body) = read_prefix::<InHeader>(request).ok_or(SessionError::Protocol)?;
    if header.opcode != opcode::INIT {
        return Err(SessionError::Protocol);
    }
    let (init, more) = read_prefix::<InitIn>(body).ok_or(SessionError::Protocol)?;
    let unique = header.unique;
    if init.major > wire::MAJOR {
        let reply = InitOut { major: wire::MAJOR, minor: wire::MINOR, ..InitOut::default() };
        return Ok(Negotiation::Retry { unique, reply });
    }
    if init.major < wire::MAJOR || init.minor < wire::OLDEST_MINOR {
        return Err(SessionError::OldKernel { major: init.major, minor: init.minor });
    }
    let mut offered = Capabilities(u64::from(init.flags));
    if offered.contains(Capabilities::INIT_EXT) {
        let more = read_prefix::<InitInMore>(more).ok_or(SessionError::Protocol)?.0;
        offered = offered.union(Capabilities(u64::from(more.flags2) << 32));
    }
    let requested = init_request.capabilities.union(Capabilities::INIT_EXT);
    let granted = requested.intersection(offered);
    let max_pages = if granted.contains(Capabilities::MAX_PAGES) {
        u16::try_from(init_request.max_read.div_ceil(PAGE_BYTES)).unwrap_or(u16::MAX)
    } else {
        0
    };
    let reads = if max_pages > 0 { u32::from(max_pages) } else { OLD_MAX_PAGES };
    let max_readahead = init_request.max_readahead.min(init.max_readahead);
    let reply = InitOut {
        major: wire::MAJOR,
        minor: wire::MINOR,
        max_readahead,
        flags: low(granted),
        max_background: init_request.max_background,
        congestion_threshold: congestion(init_request.max_background),
        max_write: MAX_WRITE_BYTES,
        time_gran: 1,
        max_pages,
        flags2: low(Capabilities(granted.0 >> 32)),
        ..InitOut::default()
    };
    let init_parameters = InitParameters {
        protocol: (init.major, init.minor),
        offered,
        requested,
        granted,
        max_read: reads.saturating_mul(PAGE_BYTES),
        max_readahead: (init.max_readahead, init_request.max_readahead),
        max_background: init_request.max_background,
    };
    Ok(Negotiation::Agreed { unique, reply, init_parameters })
}

/// From how many on the kernel calls the mount congested, and reads less ahead.
fn congestion(max_background: u16) -> u16 {
    max_background.saturating_sub(max_background / 4).max(1)
}

fn low(bits: Capabilities) -> u32 {
    u32::try_from(bits.0 & u64::from(u32::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    const INIT_REQUEST: InitRequest = InitRequest {
        capabilities: Capabilities::ASYNC_READ
            .union(Capabilities::MAX_PAGES)
            .union(Capabilities::POSIX_ACL),
        max_read: 1 << 20,
        max_readahead: 8 << 20,
        max_background: 32,
    };

    fn init(major: u32, minor: u32, flags: u32) -> Vec<u8> {
        let header = InHeader {
            len: 0,
            opcode: opcode::INIT,
            unique: 2,
            node: 0,
            uid: 0,
            gid: 0,
            pid: 0,
            extension_words: 0,
            padding: 0,
        };
        let init = InitIn { major, minor, max_readahead: 131_072, flags };
        [header.as_bytes(), init.as_bytes(), InitInMore::default().as_bytes()].concat()
    }

    fn agreed(request: &[u8]) -> (InitOut, InitParameters) {
        match negotiate(request, &INIT_REQUEST) {
            Ok(Negotiation::Agreed { unique: 2, reply, init_parameters }) => {
                (reply, init_parameters)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_what_is_offered_is_granted() {
        let (reply, init_parameters) = agreed(&init(7, 45, 1 | 1 << 22 | 1 << 5));
        assert_eq!(init_parameters.granted.to_string(), "async-read max-pages");
        assert_eq!(reply.flags, 1 | 1 << 22);
        assert_eq!((reply.max_pages, init_parameters.max_read), (256, 1 << 20));
        assert_eq!(reply.max_readahead, 131_072);
    }

    #[test]
    fn an_old_kernel_gets_small_reads() {
        let (reply, init_parameters) = agreed(&init(7, 27, 1));
        assert_eq!((reply.max_pages, init_parameters.max_read), (0, 131_072));
    }

    #[test]
    fn a_kernel_that_is_too_old_is_refused_by_version() {
        let refused = negotiate(&init(7, 22, 1), &INIT_REQUEST).err();
        assert_eq!(refused, Some(SessionError::OldKernel { major: 7, minor: 22 }));
    }

    #[test]
    fn a_kernel_of_the_future_is_asked_to_speak_our_version() {
        match negotiate(&init(8, 0, 1), &INIT_REQUEST) {
            Ok(Negotiation::Retry { unique: 2, reply }) => assert_eq!(reply.major, 7),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_first_request_of_another_kind_ends_the_session() {
        let mut request = init(7, 45, 1);
        request[4] = 1;
        assert_eq!(negotiate(&request, &INIT_REQUEST).err(), Some(SessionError::Protocol));
        assert_eq!(
            negotiate(&init(7, 45, 1)[..50], &INIT_REQUEST).err(),
            Some(SessionError::Protocol)
        );
    }
}
