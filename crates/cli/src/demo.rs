//! `ferrofs demo`: mounts an image, compares every byte of the mount with what it must be, and
//! measures how fast it is read. Without FUSE, it compares a direct read of the image.

mod compare;
mod entry;
mod speed;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use compare::{FileTree, IMAGE, TreeComparer};
use entry::CurrentUser;
use ferrofs_extract::{Selection, measure};
use ferrofs_fuse::SessionEvent;
use ferrofs_fuse::attach::{AttachError, AttachOptions, Attachment, attach};
use ferrofs_image::Image;
use ferrofs_mount::{MountLogEvent, MountSettings, NegotiatedMount, ServedMount};
use ferrofs_workers::cpus::AvailableCpus;
use speed::{choose_files, measure_reads};

use crate::amount::{counted, human_bytes, human_time};
use crate::arguments::DemoArguments;
use crate::exit_status::CommandStatus;
use crate::output::{self, escape};
use crate::progress::ProgressDisplay;
use crate::resources::Resources;
use crate::signals::{ExitOnSignals, SecondSignal, StopRequest};
use crate::{read_stats, source};

/// A request that hangs fails after this time, so that the threads that wait for it can end.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// Readers of the second measurement where there are fewer CPUs.
const READERS_MIN: usize = 4;

struct Demo<'a> {
    arguments: &'a DemoArguments,
    stop: &'a StopRequest,
    resources: Resources,
    user: CurrentUser,
    image_path: PathBuf,
    mount_point: PathBuf,
    image: Image,
    expected: FileTree,
}

/// Runs the demonstration in a temporary directory, which is removed in any case.
///
/// # Errors
/// The image cannot be opened, a mount ends with an error, or a signal arrived.
pub(crate) fn run(
    arguments: &DemoArguments,
    signals: ExitOnSignals,
) -> anyhow::Result<CommandStatus> {
    let resources = Resources::of(&arguments.work)?;
    let stop = signals.into_stop_request(SecondSignal::Ignored)?;
    let directory = std::env::temp_dir().join(format!("ferrofs-demo-{}", std::process::id()));
    let terminal_form = escape(directory.as_os_str().as_bytes());
    fs::DirBuilder::new().mode(0o700).create(&directory).with_context(|| terminal_form.clone())?;
    let ended = Demo::new(arguments, &directory, &stop, resources).and_then(|demo| demo.run());
    let removed =
        fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {terminal_form}"));
    if let (Err(_), Err(error)) = (&ended, &removed) {
        output::print_message(format_args!("{error:#}"));
    }
    let status = ended?;
    removed?;
    Ok(status)
}

impl<'a> Demo<'a> {
    fn new(
        arguments: &'a DemoArguments,
        directory: &Path,
        stop: &'a StopRequest,
        resources: Resources,
    ) -> anyhow::Result<Self> {
        let mount_point = directory.join("mnt");
        fs::create_dir(&mount_point)?;
        let image_path = arguments.image.clone().unwrap_or_else(|| directory.join("demo.erofs"));
        if arguments.image.is_none() {
            fs::write(&image_path, IMAGE).context("cannot write the built-in image")?;
        }
        let image = source::open_for_work(&image_path, &arguments.read, &resources)?;
        let expected = match (&arguments.image, &arguments.source) {
            (None, _) => FileTree::Manifest,
            (Some(_), Some(source)) => FileTree::Directory(source.clone()),
            (Some(_), None) => FileTree::Image(image.clone()),
        };
        let user = CurrentUser::new();
        Ok(Self { arguments, stop, resources, user, image_path, mount_point, image, expected })
    }

    fn run(&self) -> anyhow::Result<CommandStatus> {
        let mut differences = 0;
        let shown = self.show(&mut differences);
        CommandStatus::from_failures(differences).after_output(shown)
    }

    /// Shows everything; `differences` is set as soon as they are counted. Before that, an output that nobody reads
    /// ends nothing: it would look like a comparison without differences.
    fn show(&self, differences: &mut u64) -> anyhow::Result<()> {
        match self.mount()? {
            Err(reason) => {
                self.announce(&format!("FUSE is not available: {reason}"))?;
                self.compare(&FileTree::Image(self.image.clone()), differences)?;
            }
            Ok(mount) => {
                let terminal_form = escape(self.mount_point.as_os_str().as_bytes());
                self.announce(&format!("mounted on {terminal_form} by user {}", self.user.uid))?;
                self.compare(&FileTree::Directory(self.mount_point.clone()), differences)?;
                mount.end()?;
                self.measure_mounts()?;
            }
        }
        if let Some(peak) = read_stats::process_peak_bytes() {
            self.print(&format!("  peak memory {}", human_bytes(peak)))?;
        }
        read_stats::print_stats(read_stats::collect(&self.resources, &self.image, None).as_ref());
        Ok(())
    }

    /// Compares a tree with the expected one, and sets the number of differences.
    fn compare(&self, found: &FileTree, number: &mut u64) -> anyhow::Result<()> {
        let name = self.expected.name();
        self.announce(&format!("comparing every byte and attribute with {name}"))?;
        let total = measure(&self.image, &Selection::default(), self.stop.token()).into();
        let style = self.arguments.progress.progress;
        let mut progress = ProgressDisplay::new(style, "compare", || total);
        let (expected, user, stop) = (&self.expected, self.user, self.stop);
        let started = Instant::now();
        let threads = self.resources.threads;
        let compared = TreeComparer { expected, found, user, threads, stop }.run(&mut progress);
        progress.finish(total);
        let compared =
            compared.map_err(|error| self.stop.check().err().map_or(error, Into::into))?;
        *number = compared.differences;
        if compared.unreadable > 0 && !self.arguments.read.quiet {
            let entries = counted(compared.unreadable, "entry", "entries");
            output::print_message(format_args!("{entries} not compared: permission denied"));
        }
        let differences = counted(compared.differences, "difference", "differences");
        let entries = counted(compared.done.entries, "entry", "entries");
        let (bytes, seconds) = (human_bytes(compared.done.bytes), started.elapsed().as_secs_f64());
        self.print(&format!("  {differences} in {entries}, {bytes} in {seconds:.2} s"))
    }

    /// Measures fresh mounts, whose page cache is empty.
    fn measure_mounts(&self) -> anyhow::Result<()> {
        let total = measure(&self.image, &Selection::default(), self.stop.token()).into();
        let files = choose_files(&self.image, total, self.stop)?;
        let count = counted(files.len() as u64, "file", "files");
        self.print(&format!("reading {count}, each time from a fresh mount"))?;
        let heads = ["readers", "p50", "p99", "MB/s"].map(|head| format!("{head:>10}"));
        self.print(&format!("  {:<8}{}", "mount", heads.concat()))?;
        for readers in [1, AvailableCpus::read().parallelism().max(READERS_MIN)] {
            let mount = self.mount()?.map_err(|error| anyhow!("{error}"))?;
            let speed = measure_reads(&self.mount_point, &files, readers, self.stop);
            mount.end()?;
            let (times, speed) = speed?;
            let [p50, p99] = [0.5, 0.99].map(|share| human_time(times.quantile(share)));
            self.print(&format!("  ferrofs {readers:>10}{p50:>10}{p99:>10}{speed:>10.1}"))?;
        }
        self.print("unmounted without errors")
    }

    /// Mounts the image, opened anew; the inner error is the reason why FUSE is not available.
    fn mount(&self) -> anyhow::Result<Result<DemoMount, AttachError>> {
        let read = &self.arguments.read;
        // The image is a file.
        let (image, _) = source::open_for_mount(&self.image_path, read, &self.resources)?;
        let options = AttachOptions::new(&self.image_path, "ferrofs");
        let attachment = match attach(&self.mount_point, &options) {
            Ok(attachment) => attachment,
            Err(error) => return Ok(Err(error)),
        };
        let settings = MountSettings::default().time_limit(Some(TIME_LIMIT));
        let settings = settings.listeners(self.resources.listeners());
        let device = attachment.device().try_clone().context("/dev/fuse")?;
        let mount = NegotiatedMount::new(device, &settings).map_err(|error| anyhow!("{error}"))?;
        let served = mount.serve(image, |event| match event {
            MountLogEvent::Session(SessionEvent::Unmounted) => {}
            _ => output::print_message(event),
        });
        let served = served.map_err(|error| anyhow!("{error}"))?;
        Ok(Ok(DemoMount { attachment, served }))
    }

    /// Prints a line, whether somebody reads it or not.
    fn announce(&self, text: &str) -> anyhow::Result<()> {
        output::print_unread(text)?;
        Ok(self.stop.check()?)
    }

    /// Prints a line of the results.
    fn print(&self, text: &str) -> anyhow::Result<()> {
        output::write_line(text)?;
        Ok(self.stop.check()?)
    }
}

/// A mount that this process serves. Dropping it unmounts, too.
struct DemoMount {
    attachment: Attachment,
    served: ServedMount,
}

impl DemoMount {
    fn end(mut self) -> anyhow::Result<()> {
        self.attachment.detach().map_err(|error| anyhow!("{error}"))?;
        self.served.join();
        Ok(())
    }
}
