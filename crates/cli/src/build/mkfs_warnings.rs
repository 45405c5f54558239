//! The options of mkfs.erofs that have no effect on a kind of source, in words. Called by `mkfs` and `import`.

use ferrofs_builder::import::TarContentMode;
use ferrofs_builder::{BuildOptions, Deduplication};

use super::mkfs_sizes::contents;
use super::request::{LayerData, SourceWarnings};
use crate::applets::mkfs::{MkfsArguments, TarMode};

/// The warnings about a source that is a directory or images, which is known when it is examined. `data` is what becomes
/// of the data of images.
pub(super) fn of_source(
    typed: &MkfsArguments,
    options: &BuildOptions,
    data: LayerData,
) -> SourceWarnings {
    // Adding to an image reads that image, with this limit.
    let is_limit_used = typed.incremental_mode().is_some();
    let of_directory = [
        (typed.aufs, "--aufs"),
        (typed.max_input.is_some() && !is_limit_used, "--max-input"),
        (typed.clean_mode().is_some(), "--clean"),
    ];
    let of_directory = given(of_directory);
    let mut of_images: Vec<_> = given(only_of_directories(typed))
        .map(|option| format!("{option} has no effect: the sources are images"))
        .collect();
    if data == LayerData::Referred {
        let of_data = given(options_of_data(typed, options));
        of_images.extend(of_data.map(|option| {
            format!(
                "{option} has no effect on data that stays in the source images; --clean=data copies it"
            )
        }));
    }
    SourceWarnings {
        of_directory: of_directory
            .map(|option| format!("{option} has no effect: the source is a directory"))
            .collect(),
        of_images,
    }
}

/// Adds the warnings about a source that is an archive.
pub(super) fn of_archive(typed: &MkfsArguments, warnings: &mut Vec<String>) {
    let clean = (typed.clean_mode().is_some(), "--clean");
    let options = only_of_directories(typed).into_iter().chain([clean]);
    warnings.extend(given(options).map(|option| format!("{option} has no effect with --tar")));
}

/// Options about data have no effect if no data is stored.
pub(super) fn leave_out_data(
    typed: &MkfsArguments,
    options: &mut BuildOptions,
    warnings: &mut Vec<String>,
) {
    let method = match contents(typed) {
        _ if typed.tar_mode() == Some(TarMode::MappedCopy) => {
            warnings.push("--tar=i,MAP: data is not left out, but copied".to_owned());
            options.inline_data = false;
            "--tar=i,MAP"
        }
        Some(TarContentMode::Index) => "--tar=i",
        Some(TarContentMode::HeadersOnly) => "--tar=headerball",
        Some(TarContentMode::Copy) | None => return,
    };
    let unused = options_of_data(typed, options);
    warnings.extend(given(unused).map(|option| format!("{option} has no effect with {method}")));
    let defaults = BuildOptions::default();
    options.algorithms = None;
    options.metabox_method = None;
    options.hints = defaults.hints;
    options.inline_pclusters = false;
    options.fragments = defaults.fragments;
    options.packed_pcluster_bytes = None;
    options.compress_directories = false;
    options.deduplication = Deduplication::Off;
    options.chunk_bytes = None;
    options.blob = None;
}

/// Each option that only the importer of directories honours, with whether it was given.
fn only_of_directories(typed: &MkfsArguments) -> [(bool, &'static str); 3] {
    [
        (typed.hard_dereference, "--hard-dereference"),
        (!typed.exclude_path.is_empty(), "--exclude-path"),
        (!typed.exclude_regex.is_empty(), "--exclude-regex"),
    ]
}

/// Each option about the data of files, with whether it was given.
fn options_of_data(typed: &MkfsArguments, options: &BuildOptions) -> [(bool, &'static str); 3] {
    [
        (options.algorithms.is_some(), "-z"),
        (typed.chunk_bytes.is_some(), "--chunksize"),
        (options.deduplication == Deduplication::On, "-E: dedupe"),
    ]
}

/// The names of the options that were given.
fn given(
    options: impl IntoIterator<Item = (bool, &'static str)>,
) -> impl Iterator<Item = &'static str> {
    options.into_iter().filter(|(is_given, _)| *is_given).map(|(_, option)| option)
}
