//! How to extract, and how to write a tar. Options are plain data with setters; the crate reads no
//! environment.

use ferrofs_workers::CancelToken;
use ferrofs_workers::memory::Budget;

use crate::selection::Selection;

/// How [`extract`](crate::extract) works.
///
/// ```
/// use ferrofs_extract::{ExistingFiles, ExtractOptions};
///
/// let options = ExtractOptions::new().existing(ExistingFiles::Replace).max_threads(Some(4));
/// assert_eq!(options.max_threads, Some(4));
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ExtractOptions {
    /// What happens to entries that exist in the destination.
    pub existing: ExistingFiles,
    /// Who owns the extracted entries.
    pub owners: OwnerPolicy,
    /// Which entries to extract.
    pub selection: Selection,
    /// The directory of the image that becomes the destination; empty for the root. Paths in errors
    /// and in the selection count from it.
    pub source_directory: Vec<u8>,
    /// Permission bits that entries do not get, as of a umask.
    pub umask: u32,
    /// Whether extended attributes are left out, ACLs and capabilities among them.
    pub skip_xattrs: bool,
    /// Whether files get neither set-user-id nor set-group-id bits, and no capabilities.
    pub skip_set_id: bool,
    /// Whether device nodes are left out.
    pub skip_devices: bool,
    /// Whether the destination itself gets no metadata of the image. One that exists keeps its own;
    /// a new one has mode 0700, so that nobody else can change what is extracted into it.
    pub skip_destination_metadata: bool,
    /// The most threads that work, the caller's included; never more than the available CPUs, and
    /// never less than one. `None`: as many as the available CPUs.
    pub max_threads: Option<usize>,
    /// The most repeated work, in bytes as of a [`WorkMeter`](ferrofs_image::WorkMeter); `None`:
    /// [the default for the image](ferrofs_image::WorkMeter::default_limit).
    pub max_work: Option<u64>,
    /// The most bytes of output, without holes; `None`: 16 GiB, and 8 KiB for each byte of the
    /// image, as of [`default_output_limit`](crate::default_output_limit).
    pub max_output: Option<u64>,
    /// Cancels the extraction, which then ends within a second with
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    pub cancel: CancelToken,
}

impl ExtractOptions {
    /// The defaults: into an empty directory, everything, with the owners of the image if the
    /// caller is root.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what happens to entries that exist in the destination.
    #[must_use]
    pub fn existing(mut self, existing: ExistingFiles) -> Self {
        self.existing = existing;
        self
    }

    /// Sets who owns the extracted entries.
    #[must_use]
    pub fn owners(mut self, owners: OwnerPolicy) -> Self {
        self.owners = owners;
        self
    }

    /// Sets which entries to extract.
    #[must_use]
    pub fn selection(mut self, selection: Selection) -> Self {
        self.selection = selection;
        self
    }

    /// Sets the directory of the image that becomes the destination.
    #[must_use]
    pub fn source_directory(mut self, path: impl Into<Vec<u8>>) -> Self {
        self.source_directory = path.into();
        self
    }

    /// Sets the permission bits that entries do not get.
    #[must_use]
    pub fn umask(mut self, umask: u32) -> Self {
        self.umask = umask;
        self
    }

    /// Sets whether extended attributes are left out.
    #[must_use]
    pub fn skip_xattrs(mut self, skip_xattrs: bool) -> Self {
        self.skip_xattrs = skip_xattrs;
        self
    }

    /// Sets whether files get neither set-id bits nor capabilities.
    #[must_use]
    pub fn skip_set_id(mut self, skip_set_id: bool) -> Self {
        self.skip_set_id = skip_set_id;
        self
    }

    /// Sets whether device nodes are left out.
    #[must_use]
    pub fn skip_devices(mut self, skip_devices: bool) -> Self {
        self.skip_devices = skip_devices;
        self
    }

    /// Sets whether the destination itself gets no metadata of the image.
    #[must_use]
    pub fn skip_destination_metadata(mut self, skip_destination_metadata: bool) -> Self {
        self.skip_destination_metadata = skip_destination_metadata;
        self
    }

    /// Sets the most threads that work, the caller's included.
    #[must_use]
    pub fn max_threads(mut self, max_threads: Option<usize>) -> Self {
        self.max_threads = max_threads;
        self
    }

    /// Sets the most repeated work, in bytes.
    #[must_use]
    pub fn max_work(mut self, max_work: Option<u64>) -> Self {
        self.max_work = max_work;
        self
    }

    /// Sets the most bytes of output.
    #[must_use]
    pub fn max_output(mut self, max_output: Option<u64>) -> Self {
        self.max_output = max_output;
        self
    }

    /// Sets the token that cancels the extraction.
    #[must_use]
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = token.clone();
        self
    }
}

/// What happens to entries that exist in the destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExistingFiles {
    /// The destination must be new or empty.
    #[default]
    Refuse,
    /// Directories are used again; anything else that exists stays and counts as a failure.
    Keep,
    /// Directories are used again; anything else is removed and made anew. A symlink is never
    /// followed, and a directory is never removed.
    Replace,
}

/// Who owns the extracted entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnerPolicy {
    /// The owner in the image if the caller is root; an owner that cannot be set is skipped.
    #[default]
    IfRoot,
    /// The owner in the image; an owner that cannot be set is a failure.
    Image,
    /// The caller. If that is root, files get neither set-id bits nor capabilities: they would give
    /// the rights of root to whoever runs them.
    Caller,
}

/// How [`write_tar`](crate::write_tar) works.
///
/// ```
/// use ferrofs_extract::{HolePolicy, WriteTarOptions};
///
/// let options = WriteTarOptions::new().holes(HolePolicy::Zeros);
/// assert_eq!(options.holes, HolePolicy::Zeros);
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct WriteTarOptions {
    /// Which entries to write.
    pub selection: Selection,
    /// How holes are written.
    pub holes: HolePolicy,
    /// The most threads that work, the caller's included; `None`: one for each available CPU. The
    /// stream is the same whatever their number is.
    pub max_threads: Option<usize>,
    /// The budget that the segments in flight are charged to. They take 2 MiB each, four for each
    /// thread, but no more than a quarter of the budget. The table of inodes with several names is
    /// charged to it, too. `None`: nothing is charged.
    pub budget: Option<Budget>,
    /// The most repeated work, as of [`ExtractOptions::max_work`].
    pub max_work: Option<u64>,
    /// The most bytes of the stream; `None`: as of [`ExtractOptions::max_output`].
    pub max_output: Option<u64>,
    /// Cancels the work, which then ends within a second with
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), unless the output blocks.
    pub cancel: CancelToken,
}

impl WriteTarOptions {
    /// The defaults: everything, with maps of holes, and no budget.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets which entries to write.
    #[must_use]
    pub fn selection(mut self, selection: Selection) -> Self {
        self.selection = selection;
        self
    }

    /// Sets how holes are written.
    #[must_use]
    pub fn holes(mut self, holes: HolePolicy) -> Self {
        self.holes = holes;
        self
    }

    /// Sets the most threads that work, the caller's included.
    #[must_use]
    pub fn max_threads(mut self, max_threads: Option<usize>) -> Self {
        self.max_threads = max_threads;
        self
    }

    /// Sets the budget that the segments in flight are charged to.
    #[must_use]
    pub fn budget(mut self, budget: &Budget) -> Self {
        self.budget = Some(budget.clone());
        self
    }

    /// Sets the most repeated work, in bytes.
    #[must_use]
    pub fn max_work(mut self, max_work: Option<u64>) -> Self {
        self.max_work = max_work;
        self
    }

    /// Sets the most bytes of output.
    #[must_use]
    pub fn max_output(mut self, max_output: Option<u64>) -> Self {
        self.max_output = max_output;
        self
    }

    /// Sets the token that cancels the work.
    #[must_use]
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = token.clone();
        self
    }
}

/// How the holes of files are written to a tar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HolePolicy {
    /// A map of the data takes the place of holes of 4 KiB and more (GNU.sparse 1.0), which GNU
    /// tar, libarchive, Go and Python know.
    #[default]
    Sparse,
    /// Holes are written as zeros, for readers that know plain PAX only.
    Zeros,
}
