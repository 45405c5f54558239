//! The operations that are counted, by name. The order is that of the record and must stay.

use ferrofs_fuse::Operation;

/// What was asked of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// A name in a directory.
    Lookup,
    /// Attributes of an inode.
    GetAttr,
    /// The target of a symlink.
    ReadLink,
    /// Opening a file; asked once in the life of a mount where the kernel knows that no file needs it.
    Open,
    /// Bytes of a file.
    Read,
    /// Numbers of the file system.
    Statfs,
    /// An extended attribute.
    GetXattr,
    /// The names of the extended attributes.
    ListXattr,
    /// Opening a directory; as for files.
    OpenDir,
    /// Names of a directory.
    ReadDir,
    /// Names of a directory with attributes.
    ReadDirPlus,
    /// Where data or a hole begins.
    Lseek,
    /// A question such as that for these numbers.
    Ioctl,
}

impl OperationKind {
    /// All of them, in the order of the record.
    pub const ALL: [Self; 13] = [
        Self::Lookup,
        Self::GetAttr,
        Self::ReadLink,
        Self::Open,
        Self::Read,
        Self::Statfs,
        Self::GetXattr,
        Self::ListXattr,
        Self::OpenDir,
        Self::ReadDir,
        Self::ReadDirPlus,
        Self::Lseek,
        Self::Ioctl,
    ];

    /// The name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::GetAttr => "getattr",
            Self::ReadLink => "readlink",
            Self::Open => "open",
            Self::Read => "read",
            Self::Statfs => "statfs",
            Self::GetXattr => "getxattr",
            Self::ListXattr => "listxattr",
            Self::OpenDir => "opendir",
            Self::ReadDir => "readdir",
            Self::ReadDirPlus => "readdirplus",
            Self::Lseek => "lseek",
            Self::Ioctl => "ioctl",
        }
    }

    /// Where its row stands in the record.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    pub(crate) const fn of(operation: &Operation<'_>) -> Self {
        match operation {
            Operation::Lookup { .. } => Self::Lookup,
            Operation::GetAttr => Self::GetAttr,
            Operation::ReadLink => Self::ReadLink,
            Operation::Open => Self::Open,
            Operation::Read { .. } => Self::Read,
            Operation::Statfs => Self::Statfs,
            Operation::GetXattr { .. } => Self::GetXattr,
            Operation::ListXattr { .. } => Self::ListXattr,
            Operation::OpenDir => Self::OpenDir,
            Operation::ReadDir { .. } => Self::ReadDir,
            Operation::ReadDirPlus { .. } => Self::ReadDirPlus,
            Operation::Lseek { .. } => Self::Lseek,
            Operation::Ioctl { .. } => Self::Ioctl,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::OperationKind;

    #[test]
    fn every_kind_stands_at_its_place() {
        for (index, kind) in OperationKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index, "{}", kind.name());
        }
    }
}
