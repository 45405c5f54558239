//! The parts of the help that come after the options: what is not obvious, exit status, examples.

/// The first line of mkfs.erofs. The version is that of erofs-utils, whose command lines and output
/// the other names have.
pub(crate) const MKFS_BANNER: &str = "mkfs.erofs 1.9.4";

/// What `--version` prints behind the name of a program of erofs-utils. Scripts cut the version out
/// of the first line.
pub(crate) const MKFS_VERSION: &str = concat!(
    "(erofs-utils) 1.9.4\navailable compressors: lz4, lz4hc, lzma, deflate, libdeflate, zstd\nferrofs ",
    env!("CARGO_PKG_VERSION")
);
pub(crate) const FSCK_VERSION: &str = concat!(
    "(erofs-utils) 1.9.4\navailable decompressors: lz4, lz4hc, lzma, deflate, libdeflate, zstd\nferrofs ",
    env!("CARGO_PKG_VERSION")
);
pub(crate) const DUMP_VERSION: &str =
    concat!("(erofs-utils) 1.9.4\nferrofs ", env!("CARGO_PKG_VERSION"));

pub(crate) const EROFSFUSE_VERSION: &str = concat!("1.9.4\nferrofs ", env!("CARGO_PKG_VERSION"));
/// The first line of erofsfuse.
pub(crate) const EROFSFUSE_BANNER: &str = "erofsfuse 1.9.4";

pub(crate) const FERROFS: &str = "\
Examples:
  ferrofs demo                             mount a built-in image, check every byte, show its speed
  ferrofs info app.erofs                   show features and sizes of an image
  ferrofs ls -lR app.erofs                 list everything in it
  ferrofs cat app.erofs /etc/os-release    print one file
  ferrofs extract app.erofs tree/          extract all files
  ferrofs check app.erofs                  read every byte and report damage
  ferrofs build -z lz4hc app.erofs tree/   build an image from a directory
  ferrofs mount app.erofs dir/             mount it on dir/; `umount dir/` unmounts it
  ferrofs push app.erofs oci://HOST/APP:V1 publish it in a registry
  ferrofs pull oci://HOST/APP:V1 app.erofs download it again

Exit status: 0 success, 1 failure (such as a damaged image, or output that cannot be written), 2
wrong usage; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM, except for `ferrofs mount`.
Run `ferrofs SUBCOMMAND --help` for all options of a subcommand.";

pub(crate) const INFO: &str = "\
This subcommand reads only the superblock and the tables that the superblock refers to, such as the
table of devices. So the subcommand takes the same short time for an image of any size.

Exit status: 0 success, 1 the image is missing or damaged, or the output cannot be written, 2 wrong
usage; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.

Examples:
  ferrofs info app.erofs
  ferrofs info --offset=64k appimage.bin
  ferrofs info --json app.erofs | jq .incompatible_features";

pub(crate) const LS: &str = "\
If the output is a terminal, unprintable bytes of names are shown as \\xNN; otherwise names are
written unchanged. In JSON, a name that is not UTF-8 is an object {\"hex\": \"…\"} with its bytes.

Exit status: 0 success, 1 there is no such path or the image is damaged, 2 wrong usage; 129, 130 or
143 after SIGHUP, SIGINT or SIGTERM.

Examples:
  ferrofs ls app.erofs /usr/bin
  ferrofs ls -l app.erofs
  ferrofs ls -R --json app.erofs | jq -r 'select(.size > 1000000).path'";

pub(crate) const CAT: &str = "\
Exit status: 0 success, 1 there is no such file, or not all of it could be read, 2 wrong usage; 129,
130 or 143 after SIGHUP, SIGINT or SIGTERM.

Examples:
  ferrofs cat app.erofs /etc/passwd
  ferrofs cat app.erofs /usr/share/words | head";

pub(crate) const STAT: &str = "\
Exit status: 0 success, 1 there is no such path or the image is damaged, 2 wrong usage; 129, 130 or
143 after SIGHUP, SIGINT or SIGTERM.

Examples:
  ferrofs stat app.erofs /bin/ping
  ferrofs stat --json app.erofs / /etc | jq .xattrs";

pub(crate) const EXTRACT_USAGE: &str = "\
ferrofs extract [OPTIONS] <IMAGE> <DEST> [PATH]...
       ferrofs extract [OPTIONS] --tar <FILE> <IMAGE> [PATH]...";

pub(crate) const EXTRACT: &str = "\
A PATH selects the entry with this path, everything below it, and the directories above it. In a
pattern, *, ? and […] match within a name, {a,b} matches a or b, ** matches any number of
directories, and a backslash makes the next character literal. A PATH also selects the file with
exactly this name, so `usr/bin/[` needs no backslash. Quote patterns to protect them from the shell.

Whatever the image contains, nothing is written outside of DEST, except temporary entries beside it
(see below). A file that cannot be read completely is reported and not created; the other files are
extracted, and the exit status is 1. SIGINT, SIGTERM and SIGHUP stop the extraction and remove files
that are not complete. SIGKILL can leave hidden entries whose names end with .part, in DEST or
beside it. Only these entries are incomplete; remove them.

Root extracts everything: owners, device nodes and all extended attributes. Other users get what
their permissions allow; a summary lists what was left out. A file whose owner is not preserved gets
no set-user-id bit, and a file whose group is not preserved gets no set-group-id bit. For an image
from someone you do not trust, root can use --no-set-id and --no-devices. An existing directory
(DEST, or with --overwrite a directory in DEST) keeps its permissions until its contents are
extracted. Then it gets the permissions that the image has for it.

With --tar, the archive contains all owners, device nodes and attributes, even if an ordinary user
writes it. Sockets are left out, because tar cannot store them. The archive uses PAX headers,
nanosecond times, SCHILY.xattr for attributes and GNU.sparse 1.0 for sparse files. The same image
always gives the same bytes.

The archive FILE is created, or replaced, only when it is complete. If a file in the image cannot be
read completely, it is reported and left out. But a file that is too long to be held in memory stays
in the archive, and zeros replace the bytes that cannot be read. In both cases the exit status is 1.
With --tar -, the exit status is the only sign that the archive is complete, and the summary of
--json goes to stderr. To extract the whole archive with GNU tar, run as root:

  tar --xattrs --xattrs-include='*' -xpf FILE

Exit status: 0 everything was extracted, 1 something was not (each failure is reported), 2 wrong
usage; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.

Examples:
  ferrofs extract app.erofs tree/
  ferrofs extract app.erofs tree/ etc 'usr/lib/**/*.so'
  ferrofs extract --device=layer.blob --json app.erofs tree/
  ferrofs extract app.erofs --tar app.tar
  ferrofs extract app.erofs --tar - etc usr | zstd > part.tar.zst";

pub(crate) const CHECK: &str = "\
Exit status: 0 no damage, 1 damage was found or the image cannot be read, 2 wrong usage; 129, 130 or
143 after SIGHUP, SIGINT or SIGTERM.

Examples:
  ferrofs check app.erofs && echo undamaged
  ferrofs check --json app.erofs | jq -r '.problems[].path'";

pub(crate) const PULL: &str = "\
Parallel requests download the image through the cache. So an interrupted download continues where
it stopped, and `ferrofs mount` of the same URL reads the downloaded parts from the cache. FILE is
created (with --force: replaced) when it is complete, verified and on stable storage.

An image from a registry is always compared with its digest, even with --verify=off. An image from a
web server or an object store has a digest only if its URL ends with #index=sha256:…, the digest of
the chunk index that lies beside the image. If an image has no digest, ferrofs trusts the transport.
But with --verify=require, ferrofs refuses an image without a digest.

Exit status: 0 FILE is complete, 1 it was not created, 2 wrong usage; 129, 130 or 143 after SIGHUP,
SIGINT or SIGTERM. If only the summary cannot be written, the exit status is 1, although FILE is
complete.

Examples:
  ferrofs pull https://example.org/app.erofs app.erofs
  ferrofs pull oci://ghcr.io/owner/app:v1 app.erofs
  ferrofs pull --json --insecure-registry=localhost:5000 oci://localhost:5000/app app.erofs";

pub(crate) const PUSH: &str = "\
The image becomes the only layer of a container image, with the media type application/vnd.erofs. A
chunk index is a list of digests, with which `ferrofs mount URL` verifies each part that it reads.
If IMAGE has no chunk index (see `ferrofs build --chunk-index`), this subcommand appends one to the
uploaded copy. The same IMAGE always gets the same manifest. Blobs that the registry has already are
not uploaded again. Log in with docker, podman or skopeo.

Exit status: 0 the image is in the registry, 1 it is not, 2 wrong usage; 129, 130 or 143 after
SIGHUP, SIGINT or SIGTERM. If only the summary cannot be written, the exit status is 1, although the
image is in the registry.

Examples:
  ferrofs push app.erofs oci://ghcr.io/owner/app:v1
  ferrofs push app.erofs 'oci://ghcr.io/owner/app:v1-arm64#platform=linux/arm64'
  ferrofs push --json --insecure-registry=localhost:5000 app.erofs oci://localhost:5000/app:v1";

pub(crate) const STATS_USAGE: &str = "\
ferrofs stats [OPTIONS] <DIR>
       ferrofs stats [OPTIONS] --all";

pub(crate) const STATS: &str = "\
The process that serves the mount sends the statistics. Every user with read access to the mount can
query them, from every namespace that contains the mount. Counters start at zero when the image is
mounted. With mount --keep, they start at zero again when another process takes over. The latency of
an operation is the time from the receipt of the request until the kernel has the reply. Quantiles
are at most 12.5 % too high. An error is a reply that reports damage or an I/O failure; a name or an
attribute that does not exist is not an error. The list of the most read files shows inode numbers;
`find DIR -inum N -print -quit` prints the path.

--all queries the mounts of this user in this mount namespace and prints totals. Quantiles cannot be
added: for each quantile, --all prints the highest value of any mount. With --prometheus, it prints
the samples of each mount instead of totals. Mounts that do not answer within two seconds are left
out; the totals state their number.

Exit status: 0 success, 1 DIR is no mount of ferrofs or does not answer, 2 wrong usage; 129, 130 or
143 after SIGHUP, SIGINT or SIGTERM.

Examples:
  ferrofs stats mnt
  ferrofs stats --all
  ferrofs stats --json mnt | jq .operations.read.p99_us
  ferrofs stats --prometheus mnt > /var/lib/node_exporter/ferrofs.prom";

pub(crate) const LIST: &str = "\
The list shows the mounts of this user in this mount namespace: the age of each mount, the resident
memory of the process that serves it, and how often that process was restarted. The states are:

  served     a process serves the mount
  kept       the same, and the mount was made with --keep
  dead       the process has ended; `umount DIR` removes the mount
  no answer  the process does not answer within two seconds, or another mount covers the directory
  unknown    the statistics of the process cannot be read, for example because another version of
             ferrofs serves the mount

Exit status: 0 success, even if there is no mount, 1 the list cannot be read, 2 wrong usage; 129,
130 or 143 after SIGHUP, SIGINT or SIGTERM.

Examples:
  ferrofs list
  ferrofs list --json | jq -r 'select(.restarts > 0) | .mount'";

pub(crate) const CACHE: &str = "\
The cache keeps the parts of remote images that were read. The option --cache-size of other
subcommands limits its size, so pruning is seldom needed. An image that a mount or a running
subcommand has open is not removed. But --to may evict parts of such an image; they are fetched
again when they are read. The process ferrofs-fetch removes the files; this subcommand starts it if
it is not running.

`ferrofs cache verify` reads all cached parts, and exits with 1 if one of them is damaged. Damaged
parts are never used; they are fetched again when they are read.

Exit status: 0 success, 1 the cache cannot be used, or verify has found damage, 2 wrong usage; 129,
130 or 143 after SIGHUP, SIGINT or SIGTERM.

Examples:
  ferrofs cache list
  ferrofs cache list --json | jq -s 'map(.disk_bytes) | add'
  ferrofs cache prune --older-than=30d
  ferrofs cache prune --to=2g
  ferrofs cache verify";

pub(crate) const MOUNT_USAGE: &str = "\
ferrofs mount [OPTIONS] <IMAGE> <DIR>
       ferrofs mount --replace <DIR>
       ferrofs mount --reattach <DIR>";

pub(crate) const MOUNT: &str = "\
The command returns when the image is mounted, or prints why it could not be mounted. A background
process, the server, serves the mount. `umount DIR`, `fusermount3 -u DIR`, or a SIGTERM, SIGINT or
SIGHUP to the server unmounts it. While the mount is in use, `umount` and `fusermount3 -u` fail. A
signal works even then: it detaches the mount from the directory tree at once, and the server ends
when the mount is no longer used. A second signal ends the server immediately. If SIGKILL ends the
server, a helper process unmounts. With -o noauto_unmount, a mount that root made stays after
SIGKILL: every access fails with \"transport endpoint is not connected\" until `umount DIR` removes
it.

With --keep or -o keep, the mount survives the death of its server. A second, small process, the
holder, keeps the mount and starts the server again, as often as necessary. Open files and working
directories stay valid, and system calls wait for some milliseconds. On Linux before 6.9, calls in
progress when the server died fail with EIO. A file whose data crashes the server repeatedly gives
EIO, and the log names it. If the server cannot be started, the holder waits before the next
attempt; --reattach DIR makes it try at once. `ferrofs stats` shows the restarts. SIGTERM, SIGINT or
SIGHUP to the server or to the holder unmounts the image, as above.

--replace DIR takes over a mount made with --keep, for example after an upgrade: this program then
serves it. No call fails, and open files stay valid. Only root and the user who made the mount may
do this. --replace needs Linux 6.9 or later. It refuses mounts that were made with --foreground, and
mounts that this version of ferrofs cannot serve; a refused mount stays as it was.

The server enters a sandbox: it can open only a few files of /proc and /sys, and it has no
capability, even if root made the mount. --explain prints what it can still do; docs/trust.md
describes the sandbox. With --user NAME, root makes the mount, the user NAME owns it, and the server
runs as this user.

These options of -o are the long options above, with _ in place of -:
  allow_other, keep, offset=, device= (repeatable), partition=, no_checksum
  memory=, reserved_pages=, prefault, jobs=, cpus=, nice=, timeout=, busy_poll=, log=
  cache=, cache_size=, offline, verify=, fetch_timeout=, insecure_registry=

These options exist only in -o:
  ro                            no effect: every mount is read-only
  auto_unmount, noauto_unmount  see above [default: auto_unmount]
  exec, noexec                  [default: exec]
  suid, nosuid, dev, nodev      suid and dev are permitted to root only [default: nosuid,nodev]
  fsname=, subtype=             the source and type (fuse.SUBTYPE) that /proc/mounts shows
  max_read=                     maximum size of a read request, in bytes
  fsoffset=, image_offset=      the same as offset=; use image_offset= in /etc/fstab, because
                                mount(8) creates a loop device for offset=
  user_xattr, nouser_xattr      show or hide extended attributes user.* [default: user_xattr]
  acl, noacl                    noacl is the same as --no-acl [default: acl]
  remount                       succeeds only if it changes nothing that /proc/mounts shows

Options that only mount(8) interprets (nofail, user, noauto, _netdev, x-…) are accepted. Options
about access times (noatime and similar ones) are accepted without effect, because an image has no
access times. Options that request something that ferrofs always does (default_permissions,
kernel_cache, loop and others) are accepted, too. Every other option is an error, including rw,
because an EROFS image cannot be written.

Lines of /etc/fstab (ferrofs must be in /usr/bin, or linked as /sbin/mount.fuse.ferrofs):
  /srv/app.erofs  /mnt/app  fuse.ferrofs  ro,allow_other,nofail  0 0
  https://example.org/app.erofs  /mnt/app  fuse.ferrofs  ro,allow_other,nofail,_netdev  0 0

If root mounts the image, the kernel's readahead is set to the size that ferrofs requests. For other
users it stays at the system's limit, usually 128 KiB per file; --explain prints the command that
raises it.

Exit status: 0 the image is mounted (with --foreground: it was unmounted), 1 it could not be
mounted, or serving it failed later, 2 wrong usage.

Examples:
  ferrofs mount app.erofs dir/
  ferrofs mount -f --explain --memory 64m app.erofs dir/
  ferrofs mount -o offset=64k,fsname=app appimage.bin dir/
  mount -t fuse.ferrofs app.erofs dir/";

pub(crate) const EROFSFUSE: &str = "\
This is ferrofs, called as erofsfuse. Like the original, it ends with exit status 1 after --help and
--version. See `ferrofs mount --help` for the options of -o. The options kernel_cache, async_read,
clone_fd, big_writes and nonempty of libfuse are accepted; ferrofs always behaves as if they were
given. max_threads=N is the same as jobs=N, and debug the same as -d. max_idle_threads=N, sync,
dirsync and io_uring are accepted without effect. allow_root and nosymfollow are refused.

Examples:
  erofsfuse app.erofs dir/
  erofsfuse -f --offset=65536 appimage.bin dir/";

pub(crate) const MOUNT_FUSE_FERROFS: &str = "\
mount(8) runs this program for the type fuse.ferrofs. See `ferrofs mount --help` for the options of
-o.

Examples:
  mount -t fuse.ferrofs app.erofs dir/
  mount -t fuse.ferrofs -o allow_other,memory=64m app.erofs dir/";

/// What `mount.erofs --version` prints behind its name.
pub(crate) const MOUNT_EROFS_VERSION: &str = DUMP_VERSION;

pub(crate) const MOUNT_EROFS: &str = "\
This is ferrofs, called as mount.erofs. It mounts with FUSE, so it needs neither root nor the
kernel's EROFS driver. See `ferrofs mount --help` for the options of -o. cache_strategy= and dax,
which are for the kernel's driver, have no effect.

If -o contains oci.layer=, oci.blob=, oci.platform= or oci.insecure, SOURCE is the name of an image
in a registry, such as ubuntu:20.04. If it contains s3.endpoint=, s3.region=, s3.urlstyle= or
s3.sig=4, SOURCE is BUCKET/KEY. oci.username=, oci.password= and s3.passwd_file= are refused. Log in
to a registry with docker, podman or skopeo; for S3, set the variables AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY.

Exit status: 0 success, 1 everything else.

Examples:
  mount.erofs app.erofs dir/
  mount.erofs -t erofs.fuse -o fsoffset=65536 appimage.bin dir/
  mount.erofs -o oci.layer=0 registry.example.org/app:v1 dir/";

pub(crate) const DEMO: &str = "\
The demonstration mounts an image with FUSE as the current user, compares every file of the mount
with the expected contents and metadata, and measures how fast the mount is read. Without arguments
it uses a built-in image and its list of digests. With IMAGE alone, it compares the mount with IMAGE
as read without FUSE. With SOURCE, it compares the mount with that directory. It uses a temporary
directory, and removes it at the end, even after a signal.

Each measurement mounts the image again, so that the page cache is empty, and then opens, reads and
closes the files. The first measurement uses one reader. The second uses one reader for each CPU,
but at least four. If the image is large, both read only a part of it. If FUSE is not available, the
demonstration prints the reason and compares the image, read without FUSE, with the expected
contents.

Exit status: 0 no difference was found, 1 something was different or could not be read, 2 wrong
usage; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.

Examples:
  ferrofs demo
  ferrofs demo app.erofs
  sudo ferrofs demo app.erofs rootfs/";

pub(crate) const FSCK_EROFS: &str = "\
This is ferrofs, called as fsck.erofs. It reads every byte of every file on all CPUs, even without
--extract. There is one exception: if the image has devices and none of --device, --extract and
--xattr-inode-digest is given, it checks only the metadata. `ferrofs check` and `ferrofs extract`
have more options.

Exit status: 0 success, 1 everything else; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM. Below
-d3, nothing is printed on success.

Examples:
  fsck.erofs app.erofs
  fsck.erofs --extract=tree --xattrs --preserve app.erofs
  fsck.erofs --extract=etc --path=/etc app.erofs";

pub(crate) const DUMP_EROFS: &str = "\
This is ferrofs, called as dump.erofs. `ferrofs info`, `ls`, `stat` and `cat` show the same data in
another form; all but `cat` can also print JSON. Times are in UTC.

Exit status: 0 success, even if there is no such path or inode. If the image cannot be opened, the
status is 256 minus errno, for example 254 if the file does not exist (ENOENT is 2). It is 234
(EINVAL is 22) if the file is not an EROFS image, or for wrong usage.

Examples:
  dump.erofs app.erofs
  dump.erofs -e --path=/usr/bin/sudo app.erofs
  dump.erofs --ls --path=/etc app.erofs
  dump.erofs -S app.erofs";

pub(crate) const MKFS_EROFS: &str = "\
This is ferrofs, called as mkfs.erofs. Options have the names, meanings and defaults of erofs-utils
1.9, whose manual writes them as -b#, -C#, -d#, -m#, -T#, -UX, -x#, -zX, --xattr-prefix=X and so on.
Options without effect are accepted with a warning, which --quiet and -d0 suppress. Options that are
not supported are refused with a message. `ferrofs build` has more options.

Algorithms of -z with their levels and parameters, and in parentheses the defaults: lz4; lz4hc 0-12
(9); lzma 0-9 and 100-109 (6), dictsize up to 8388608, lc (3), lp (0) and pb (2), each at most 4,
with lc + lp at most 4; deflate 0-9 (1); libdeflate 0-12 (1); zstd 0-22 (3), dictsize up to 1048576.
Levels 100-109 of lzma are levels 0-9 of xz with --extreme. The word level= can be left out, as in
-zlzma,9.

Extended options of -E (a ^ in front switches one off): fragments, all-fragments,
fragdedupe=full|inode|off, dedupe, ztailpacking, inline_data (noinline_data also switches it off),
legacy-compress, force-inode-compact, force-inode-extended, force-inode-blockmap,
force-chunk-indexes, nosbcrc, xattr-name-filter, plain-xattr-prefixes, 48bit, dot-omitted. See
mkfs.erofs(1) of erofs-utils, or `ferrofs build --help`, which has most of them under other names.

If the environment variable SOURCE_DATE_EPOCH is set, it is the build time, and newer files get that
time as well. -T, --all-time and --mkfs-time then have no effect.

If FILE does not exist, it is created when the image is complete and verified. Without
--incremental, an existing FILE is emptied first and written in place. It stays the same file, with
its mode, owner and hard links, and holds no valid image until the new one is complete. Do not write
to an image that is mounted: its readers would see it change. `ferrofs build --force` replaces the
file and leaves the mounted one alone. To verify the image, every file in it is read and compared
with the source.

Exit status: 0 success, 1 everything else; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.

Examples:
  mkfs.erofs -zlz4hc,9 -C65536 app.erofs tree/
  mkfs.erofs -zzstd,level=12 -C65536 -Eall-fragments,dedupe -L app app.erofs tree/
  mkfs.erofs --chunksize=65536 --blobdev=app.blob app.erofs tree/
  mkfs.erofs --tar=i layer.erofs layer.tar
  mkfs.erofs --ovlfs-strip=1 all.erofs base.erofs app.erofs
  zcat layer.tar.gz | mkfs.erofs --tar=f --aufs --quiet -Enoinline_data layer.erofs -";

pub(crate) const BUILD: &str = "\
IMAGE is created (with --force: replaced) when the new image is complete, verified and on stable
storage. With --force, the new file keeps the mode and owner of the replaced file. To verify the
image, every file in it is read and compared with the source: contents, names, types, owners, times,
links and attributes. No image is created if a file differs, if a source file changes during the
build, or if the disk is full. Then the exit status is 1, and the message names the cause; for a
file that differs, also its path and the byte offset. --no-verify skips the comparison.

The bytes of an image depend on the source and the options, but never on --jobs or the order of
directory entries. By default, they also depend on the time and the host: the UUID is random, the
build time is the current time, and the default of --memory depends on the memory of the host. A
small --memory changes the bytes, because fewer duplicate parts, chunks and extended attributes are
found. If SOURCE is an archive, directories that have no entry in it get the current time. If an ACL
in an archive gives only the name of a user or group, and not the id, ferrofs takes the id from
/etc/passwd or /etc/group of the host.

With --reproducible, the same source and options give the same bytes on every host and at any time.
The UUID is then all zeros, unless --uuid is given. The build time is SOURCE_DATE_EPOCH, or, if that
is not set, the newest time in the source. The default of --memory is 256m. If SOURCE is an archive,
directories that have no entry in it get the time SOURCE_DATE_EPOCH, or 0 (1970) if that is not set.
An ACL that gives only the name of a user or group is an error. Owners, permissions and times of
files are still those of the source, unless options of the sections Content and Android, or
SOURCE_DATE_EPOCH, change them.

If the environment variable SOURCE_DATE_EPOCH is set, it is the build time even without
--reproducible, and files that are newer get that time, too. --time overrides SOURCE_DATE_EPOCH for
the build time, but not for the times of files.

Data that does not fit into --memory goes to an unnamed temporary file in $TMPDIR or, if that is not
set, in the directory of IMAGE (in /var/tmp if IMAGE is a block device). The summary states the size
of this file. Archives that are compressed with a window of more than about 5/8 of --memory are
refused: zstd --long=27 needs --memory=212m, and xz -9 needs 109m.

--dry-run reads the list of files, builds a sample of them in memory, and prints an estimate of the
size of the image.

A container image becomes one tree: ferrofs merges its layers and applies their whiteouts. Each
layer must have the digests that the image states, before and after decompression.

Exit status: 0 IMAGE is complete and verified, 1 it was not created, 2 wrong usage; 129, 130 or 143
after SIGHUP, SIGINT or SIGTERM. The files of --block-list-file and --container-config, and the
summary, are written after IMAGE: if one of them cannot be written, the exit status is 1, although
IMAGE is complete.

Examples:
  ferrofs build app.erofs tree/
  ferrofs build -z lz4hc app.erofs tree/                       fast to read
  ferrofs build -z zstd,level=15 --fragments --dedupe app.erofs tree/
  ferrofs build -z lzma,level=9 -C 1m --fragments=all --dedupe --inline-pclusters app.erofs tree/
  ferrofs build --reproducible --all-root -z lz4hc app.erofs tree/
  ferrofs build --whiteouts=apply app.erofs layer1.tar.gz layer2.tar.zst
  ferrofs build -z zstd --metadata-first --chunk-index app.erofs tree/      for a registry
  zcat rootfs.tar.gz | ferrofs build -z lz4 --json app.erofs -
  ferrofs build -z zstd app.erofs oci-layout:images:v1         a container image of umoci or skopeo
  ferrofs build -z zstd app.erofs oci://ghcr.io/owner/app:v1   one in a registry";
