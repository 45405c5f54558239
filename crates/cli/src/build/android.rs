//! Applies the files of Android's build system to a tree: owners, modes, capabilities and labels of
//! SELinux. Called by `import`.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ferrofs_builder::import::android_text::{FsConfig, LABEL_XATTR};
use ferrofs_builder::import::file_contexts::FileContexts;
use ferrofs_builder::tree::{NodeId, Tree};
use ferrofs_builder::{Error, ErrorKind};
use ferrofs_workers::CancelToken;

use crate::arguments::AndroidArguments;
use crate::output::escape;
use crate::text_file::read_text_file;

/// The largest of these files, in bytes; those of Android have some megabytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Changes the metadata of `tree` as the files say. Returns how many inodes the file of owners does
/// not name; they keep what they have.
///
/// # Errors
/// A file cannot be read or is malformed; the error names it and the line. Or the import was cancelled.
pub(super) fn apply(
    arguments: &AndroidArguments,
    tree: &mut Tree,
    cancel: &CancelToken,
) -> Result<u64, Error> {
    let mount_point = mount_point(arguments);
    let mut unnamed = 0;
    if let Some(path) = &arguments.fs_config_file {
        let text = read_text_file(path, FILE_BYTES_MAX).map_err(refused)?;
        let config = FsConfig::read(&escape(path.as_os_str().as_bytes()), &text);
        unnamed = set_owners(&config.map_err(refused)?, &mount_point, tree);
    }
    if let Some(path) = &arguments.file_contexts {
        let contexts = read_contexts(path).map_err(refused)?.cancel_token(cancel);
        set_labels(&contexts, &mount_point, tree).map_err(|why| match cancel.is_cancelled() {
            true => Error::new(ErrorKind::Cancelled),
            false => refused(why),
        })?;
    }
    Ok(unnamed)
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::InvalidOptions(why))
}

/// The warnings about options that were given and change nothing.
pub(super) fn ineffective(arguments: &AndroidArguments) -> Vec<String> {
    let product_out = "--product-out has no effect: owners come from --fs-config-file alone";
    let mount_point = format!("--mount-point has no effect without {PATH_FILES}");
    let given = [
        (arguments.product_out.is_some(), product_out.to_owned()),
        (is_mount_point_unused(arguments), mount_point),
    ];
    given.into_iter().filter_map(|(is_given, text)| is_given.then_some(text)).collect()
}

/// The options of the files that have paths below the mount point.
pub(super) const PATH_FILES: &str = "--file-contexts, --fs-config-file or --block-list-file";

/// Whether there is a mount point, but no file that has paths below it.
pub(super) fn is_mount_point_unused(arguments: &AndroidArguments) -> bool {
    let AndroidArguments { file_contexts, fs_config_file, block_list_file, .. } = arguments;
    let has_paths = [file_contexts, fs_config_file, block_list_file];
    arguments.mount_point.is_some() && has_paths.iter().all(|file| file.is_none())
}

/// The mount point without slashes at its ends; empty for the root.
pub(super) fn mount_point(arguments: &AndroidArguments) -> Vec<u8> {
    let given = arguments.mount_point.as_ref().map(|path| path.as_bytes()).unwrap_or_default();
    let names = given.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.collect::<Vec<_>>().join(&b'/')
}

/// Reads `file_contexts` and the files beside it that libselinux reads as well.
fn read_contexts(path: &Path) -> Result<FileContexts, String> {
    let mut contexts = FileContexts::default();
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().as_bytes().to_vec();
        name.extend(suffix.bytes());
        PathBuf::from(std::ffi::OsString::from_vec(name))
    };
    contexts.add(&escape(path.as_os_str().as_bytes()), &read_text_file(path, FILE_BYTES_MAX)?)?;
    for suffix in [".homedirs", ".local"] {
        let path = beside(suffix);
        if path.exists() {
            contexts.add(
                &escape(path.as_os_str().as_bytes()),
                &read_text_file(&path, FILE_BYTES_MAX)?,
            )?;
        }
    }
    for suffix in [".subs", ".subs_dist"] {
        let path = beside(suffix);
        if path.exists() {
            contexts.add_substitutions(&read_text_file(&path, FILE_BYTES_MAX)?);
        }
    }
    Ok(contexts.finish())
}

/// Gives every inode what the file says about its first path. The path of the root is empty, or the
/// mount point.
fn set_owners(config: &FsConfig, mount_point: &[u8], tree: &mut Tree) -> u64 {
    let mut paths: Vec<(NodeId, Vec<u8>)> = Vec::new();
    let mut is_done = vec![false; tree.len()];
    let Ok(()) = tree.walk(|path, id| {
        let is_new = is_done.get_mut(id.index()).is_some_and(|done| !std::mem::replace(done, true));
        if is_new {
            let path = host_path(mount_point, path);
            paths.push((id, path.strip_prefix(b"/").unwrap_or(&path).to_vec()));
        }
        Ok::<_, std::convert::Infallible>(())
    });
    let mut unnamed = 0;
    for (id, path) in paths {
        let mut node = tree.node_mut(id);
        let metadata = &mut node.metadata;
        let is_named =
            config.apply(&path, metadata) || id == Tree::ROOT && config.apply(b"", metadata);
        unnamed += u64::from(!is_named);
    }
    unnamed
}

/// Gives every inode the label of its first path, and no other.
fn set_labels(contexts: &FileContexts, mount_point: &[u8], tree: &mut Tree) -> Result<(), String> {
    let mut labels: Vec<(NodeId, Option<&[u8]>)> = Vec::new();
    let mut is_done = vec![false; tree.len()];
    tree.walk(|path, id| {
        if let Some(done) = is_done.get_mut(id.index())
            && !std::mem::replace(done, true)
        {
            let label = contexts.label(&host_path(mount_point, path), tree.file_type(id))?;
            labels.push((id, label));
        }
        Ok::<_, String>(())
    })?;
    for (id, label) in labels {
        let mut node = tree.node_mut(id);
        let xattrs = &mut node.metadata.xattrs;
        match label {
            Some(label) => xattrs.insert(LABEL_XATTR.into(), label.into()),
            None => xattrs.remove(LABEL_XATTR),
        };
    }
    Ok(())
}

/// The absolute path of a file when the image is mounted.
pub(super) fn host_path(mount_point: &[u8], path: &[u8]) -> Vec<u8> {
    let parts = [mount_point, path].into_iter().filter(|part| !part.is_empty());
    let mut host = Vec::with_capacity(mount_point.len() + path.len() + 2);
    for part in parts {
        host.push(b'/');
        host.extend(part);
    }
    if host.is_empty() {
        host.push(b'/');
    }
    host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_with_the_mount_point() {
        let given = |text: &str| {
            let mount_point = Some(text.into());
            let arguments = AndroidArguments { mount_point, ..AndroidArguments::default() };
            super::mount_point(&arguments)
        };
        assert_eq!((given("/vendor/"), given("a//b")), (b"vendor".to_vec(), b"a/b".to_vec()));
        assert_eq!(host_path(b"vendor", b"bin/sh"), b"/vendor/bin/sh");
        assert_eq!(host_path(b"vendor", b""), b"/vendor");
        assert_eq!((host_path(b"", b""), host_path(b"", b"a")), (b"/".to_vec(), b"/a".to_vec()));
    }
}
