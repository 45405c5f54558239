//! The command line of the verbs that copy whole images from and to servers. It only describes, as its parent. Used
//! by `pull` and `push`.

use std::path::PathBuf;

use clap::Args;

use super::{ConnectionArguments, ProgressArguments, RemoteArguments};
use crate::help;

/// Download a whole image.
#[derive(Args, Debug)]
#[command(after_help = help::PULL)]
pub(crate) struct PullArguments {
    /// The location of the image, such as https://host/app.erofs, s3://bucket/app.erofs or
    /// oci://host/name:tag
    #[arg(value_name = "URL")]
    pub(crate) location: PathBuf,

    /// The file to create when the download is complete
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Replace an existing file
    #[arg(short, long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) summary: SummaryArguments,

    #[command(flatten)]
    pub(crate) remote: Box<RemoteArguments>,
}

/// Publish an image in a registry.
#[derive(Args, Debug)]
#[command(after_help = help::PUSH)]
pub(crate) struct PushArguments {
    /// The image file
    pub(crate) image: PathBuf,

    /// The target: oci://HOST/REPOSITORY:TAG. If the image is not for the platform of this machine,
    /// append #platform=OS/ARCH
    #[arg(value_name = "URL")]
    pub(crate) location: PathBuf,

    /// Read the configuration of a container image from FILE, and take the entry point,
    /// environment, labels, user and platform from it. `ferrofs build --container-config` writes
    /// such a file
    #[arg(long, value_name = "FILE")]
    pub(crate) container_config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) summary: SummaryArguments,

    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

/// What a copy prints.
#[derive(Args, Debug)]
pub(crate) struct SummaryArguments {
    /// Print a summary as one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// Print errors only: no summary
    #[arg(short, long)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) progress: ProgressArguments,
}
