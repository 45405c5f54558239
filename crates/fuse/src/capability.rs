//! What kernel and daemon agree on when a session starts: the bits of `INIT`, by name. Called by `negotiate`, and
//! by whoever explains a mount.

use std::fmt;

/// A set of the bits of `INIT`, both words in one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Reads ahead of a reader without waiting for each read.
    pub const ASYNC_READ: Self = Self(1 << 0);
    /// Replies to `LOOKUP` and `READDIRPLUS` carry attributes that are good for other names, too.
    pub const EXPORT_SUPPORT: Self = Self(1 << 4);
    /// The kernel notices that a file was changed behind its back; ours never are.
    pub const AUTO_INVAL_DATA: Self = Self(1 << 12);
    /// Listings may carry attributes.
    pub const DO_READDIRPLUS: Self = Self(1 << 13);
    /// ... and the kernel asks for them when somebody looks at them.
    pub const READDIRPLUS_AUTO: Self = Self(1 << 14);
    /// `O_DIRECT` reads do not wait for each other.
    pub const ASYNC_DIO: Self = Self(1 << 15);
    /// `ENOSYS` to `OPEN` means that no file needs opening.
    pub const NO_OPEN_SUPPORT: Self = Self(1 << 17);
    /// Several lookups and listings in one directory at a time.
    pub const PARALLEL_DIROPS: Self = Self(1 << 18);
    /// The kernel checks access control lists.
    pub const POSIX_ACL: Self = Self(1 << 20);
    /// Requests may be as large as `max_pages` says.
    pub const MAX_PAGES: Self = Self(1 << 22);
    /// Targets of symlinks are kept.
    pub const CACHE_SYMLINKS: Self = Self(1 << 23);
    /// `ENOSYS` to `OPENDIR` means that no directory needs opening.
    pub const NO_OPENDIR_SUPPORT: Self = Self(1 << 24);
    /// The second word counts.
    pub const INIT_EXT: Self = Self(1 << 30);
    /// `IOCTL` reaches directories.
    pub const IOCTL_DIR: Self = Self(1 << 11);

    /// All names.
    const NAMES: [(Self, &'static str); 14] = [
        (Self::ASYNC_READ, "async-read"),
        (Self::EXPORT_SUPPORT, "export-support"),
        (Self::IOCTL_DIR, "ioctl-dir"),
        (Self::AUTO_INVAL_DATA, "auto-inval-data"),
        (Self::DO_READDIRPLUS, "readdirplus"),
        (Self::READDIRPLUS_AUTO, "readdirplus-auto"),
        (Self::ASYNC_DIO, "async-dio"),
        (Self::NO_OPEN_SUPPORT, "no-open"),
        (Self::PARALLEL_DIROPS, "parallel-dirops"),
        (Self::POSIX_ACL, "posix-acl"),
        (Self::MAX_PAGES, "max-pages"),
        (Self::CACHE_SYMLINKS, "cache-symlinks"),
        (Self::NO_OPENDIR_SUPPORT, "no-opendir"),
        (Self::INIT_EXT, "init-ext"),
    ];

    /// Both together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What both have.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of `other` is in here.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The names of what is known of them, in the order of their bits.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(bit, _)| self.contains(*bit)).map(|(_, name)| name)
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, name) in self.names().enumerate() {
            if count > 0 {
                f.write_str(" ")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Capabilities;

    #[test]
    fn names_tell_what_is_in_a_set() {
        let both = Capabilities::ASYNC_READ.union(Capabilities::CACHE_SYMLINKS);
        assert_eq!(both.to_string(), "async-read cache-symlinks");
        assert!(both.contains(Capabilities::ASYNC_READ) && !both.contains(Capabilities::MAX_PAGES));
        assert_eq!(both.intersection(Capabilities::ASYNC_READ), Capabilities::ASYNC_READ);
    }
}
