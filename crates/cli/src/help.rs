//! The parts of the help that come after the options: examples and exit status.

pub(crate) const FERROFS: &str = "\
Examples:
  ferrofs demo                             unpack and mount a carried image, check every byte
  ferrofs info app.erofs                   what is this image?
  ferrofs ls -lR app.erofs                 everything in it
  ferrofs cat app.erofs /etc/os-release    one file
  ferrofs extract app.erofs tree/          all files
  ferrofs check app.erofs                  is every byte of it readable?
  ferrofs build -z lz4hc app.erofs tree/   build one from a directory, or from tars
  ferrofs mount app.erofs dir/             show it as a directory; umount dir/ ends that

Exit status: 0 all well, 1 the image or the output is bad, 2 wrong usage.
`ferrofs VERB --help` has more about each verb.";

pub(crate) const INFO: &str = "\
Only the superblock and what belongs to it is read, so this is quick however large the image is.

Examples:
  ferrofs info app.erofs
  ferrofs info --offset=64k appimage.bin
  ferrofs info --json app.erofs | jq .incompatible_features";

pub(crate) const LS: &str = "\
Names go to a terminal with unprintable bytes as \\xNN, and anywhere else as they are. In JSON a
name that is not UTF-8 is an object {\"hex\": \"…\"} of its bytes.

Examples:
  ferrofs ls app.erofs /usr/bin
  ferrofs ls -l app.erofs
  ferrofs ls -R --json app.erofs | jq -r 'select(.size > 1000000).path'";

pub(crate) const CAT: &str = "\
Examples:
  ferrofs cat app.erofs /etc/passwd
  ferrofs cat app.erofs /usr/share/words | head";

pub(crate) const STAT: &str = "\
Examples:
  ferrofs stat app.erofs /bin/ping
  ferrofs stat --json app.erofs / /etc | jq .xattrs";

pub(crate) const EXTRACT_USAGE: &str = "\
ferrofs extract [OPTIONS] <IMAGE> <DEST> [PATH]...
       ferrofs extract [OPTIONS] --tar <FILE> <IMAGE> [PATH]...";

pub(crate) const EXTRACT: &str = "\
A PATH selects itself and everything below, with the directories above it. In a pattern *, ? and
[…] match within a name, {a,b} is either, ** is any number of directories, and \\ takes the next
character as it is. Quote patterns, or the shell will use them up.

Nothing is written outside of DEST, whatever the image says. A file that cannot be read in full is
named and left out, the others are extracted, and the exit status is 1.

Root gets everything: owners, device nodes, all extended attributes. Others get what they may have,
and are told once what was left out; set-user-id and set-group-id are dropped from files whose
owner is not kept.

A tar keeps everything for everybody, but for sockets, which no tar can hold: PAX headers, times in
nanoseconds, attributes as SCHILY.xattr, sparse files as GNU.sparse 1.0. The same image gives the
same bytes, whatever the number of threads. GNU tar unpacks all of it, as root, with
tar --xattrs --xattrs-include='*' -xpf FILE. FILE appears, or replaces an older one, when it is
complete. A file that cannot be read in full is named and left out; one that is too long to be held
back is named and filled up with zeros; the exit status is 1. With --tar - it is the exit status
that says whether the tar is complete, and --json prints its summary on stderr.

Examples:
  ferrofs extract app.erofs tree/
  ferrofs extract app.erofs tree/ etc 'usr/lib/**/*.so'
  ferrofs extract --device=layer.blob --json app.erofs tree/
  ferrofs extract app.erofs --tar app.tar
  ferrofs extract app.erofs --tar - etc usr | zstd > part.tar.zst";

pub(crate) const CHECK: &str = "\
Examples:
  ferrofs check app.erofs && echo sound
  ferrofs check --json app.erofs | jq -r '.problems[].path'";

pub(crate) const STATS: &str = "\
The mount itself is asked, so whoever may read it may ask, from any namespace that sees it. Numbers
count from when it was mounted. The time of an operation begins when the mount takes the request and
ends when the kernel has the reply; quantiles are up to 12.5 % too long. An error is a reply which
says that something is broken, not one that a name or an attribute is not there. The most read files
are named by their inodes; find mnt -inum N -print -quit has the path.

Examples:
  ferrofs stats mnt
  ferrofs stats --json mnt | jq .operations.read.p99_us
  ferrofs stats --prometheus mnt > /var/lib/node_exporter/ferrofs.prom";

pub(crate) const MOUNT: &str = "\
The command returns when DIR shows the image, or says exactly why it cannot. A process stays behind and
serves it; `umount DIR`, `fusermount3 -u DIR`, or SIGTERM, SIGINT or SIGHUP to that process end it. If
somebody still uses the directory then, it is taken away at once and the process serves them until they
are done; a second signal ends it anyway. SIGKILL leaves a directory that says \"transport endpoint is
not connected\" where the process mounted by itself (as root); `umount DIR` clears it.

Options of -o: ro; allow_other; auto_unmount, noauto_unmount; exec, noexec; suid, nosuid, dev, nodev (root
only); fsname=, subtype=, max_read=; offset=, device= (again for each), no_checksum; memory=,
reserved_pages=, prefault, jobs=, cpus=, nice=; timeout=, log=; user_xattr, nouser_xattr, acl, noacl; words
that only mount(8) means, such as nofail, user, noauto, _netdev, x-…; times of access (noatime and the
like), which are never kept. Anything else is an error. rw is one,
too: nothing can be written.

/etc/fstab, with ferrofs in /usr/bin or linked as /sbin/mount.fuse.ferrofs:
  /srv/app.erofs  /mnt/app  fuse.ferrofs  ro,allow_other,nofail  0 0

As root, the kernel reads ahead as far as ferrofs asks. Others are kept to the system's 128 KiB a file; how to
lift that, --explain says.

Examples:
  ferrofs mount app.erofs dir/
  ferrofs mount -f --explain --memory 64m app.erofs dir/
  ferrofs mount -o offset=64k,fsname=app appimage.bin dir/
  mount -t fuse.ferrofs app.erofs dir/";

pub(crate) const EROFSFUSE: &str = "\
This is ferrofs under the name of erofsfuse: `ferrofs mount --help` says what -o takes. In addition, what
libfuse takes and is so anyway is accepted: kernel_cache, async_read, clone_fd, big_writes, nonempty; and
max_threads=N, which is jobs=N.

Examples:
  erofsfuse app.erofs dir/
  erofsfuse -f --offset=65536 appimage.bin dir/";

pub(crate) const MOUNT_FUSE_FERROFS: &str = "\
mount(8) runs this for the type fuse.ferrofs. `ferrofs mount --help` says what -o takes.

Examples:
  mount -t fuse.ferrofs app.erofs dir/
  mount -t fuse.ferrofs -o allow_other,memory=64m app.erofs dir/";

pub(crate) const DEMO: &str = "\
Without arguments the carried image is shown, and compared with its list of digests. With IMAGE
alone it is compared with a second reading of the image; with SOURCE, with that directory. All of
it happens in a directory for temporary files, which is removed in the end, also after SIGINT.

The image is unpacked, and then mounted by whoever runs this; both are compared, byte by byte. Then
it is read from fresh mounts, whose page cache is empty: whole files (opened, read, closed), and
single blocks of 4 KiB in no order, each once; by one reader, and by as many as there are CPUs, four
at least. Of a large image a part is read. As root the kernel's own EROFS does the same beside it.
If no mount can be made here, the reason is shown, and that is no failure.

Examples:
  ferrofs demo
  ferrofs demo app.erofs
  sudo ferrofs demo app.erofs rootfs/";

pub(crate) const FSCK_EROFS: &str = "\
This is ferrofs under the name of fsck.erofs. Every byte of every file is read, with or without --extract, by
all CPUs; `ferrofs check` and `ferrofs extract` can do more. Digests in extended attributes are not
compared: --xattr-inode-digest is refused.

Exit status: 0 all well, 1 anything else. Without -p and -d3, success prints nothing.

Examples:
  fsck.erofs app.erofs
  fsck.erofs --extract=tree --xattrs --preserve app.erofs
  fsck.erofs --extract=etc --path=/etc app.erofs";

pub(crate) const DUMP_EROFS: &str = "\
This is ferrofs under the name of dump.erofs; `ferrofs info`, `ls`, `stat` and `cat` tell the same in another
form, and in JSON. Times are in UTC.

Exit status: 0 all well, 1 anything else.

Examples:
  dump.erofs app.erofs
  dump.erofs -e --path=/usr/bin/sudo app.erofs
  dump.erofs --ls --path=/etc app.erofs
  dump.erofs -S app.erofs";

pub(crate) const MKFS_EROFS: &str = "\
This is ferrofs under the name of mkfs.erofs, with the names, meanings and defaults of erofs-utils 1.9, whose
manual writes options as -b#, -C#, -d#, -m#, -T#, -UX, -x#, -zX, --xattr-prefix=X and so on. What is not
supported is refused by name. `ferrofs build` can do more.

Algorithms of -z: lz4; lz4hc 0-12 (9); lzma 0-9, 100-109 (6), dictsize up to 8388608; deflate 0-9 (1);
libdeflate 0-12 (1); zstd 0-22 (3), dictsize up to 1048576. The level may stand alone, as in -zlzma,9.

Extended options of -E, ^ before one for the contrary: fragments, all-fragments, fragdedupe=full|inode|off,
dedupe, ztailpacking, inline_data (^inline_data or noinline_data), legacy-compress, force-inode-compact,
force-inode-extended, force-inode-blockmap, force-chunk-indexes, nosbcrc, xattr-name-filter,
plain-xattr-prefixes, 48bit, dot-omitted.

SOURCE_DATE_EPOCH is the time of the build, and files that are newer get it.

Exit status: 0 all well, 1 anything else. FILE appears, or replaces an older one, when it is whole and every
file has been read from it again and compared.

Examples:
  mkfs.erofs -zlz4hc,9 -C65536 app.erofs tree/
  mkfs.erofs -zzstd,level=12 -C65536 -Eall-fragments,dedupe -L app app.erofs tree/
  mkfs.erofs --chunksize=65536 --blobdev=app.blob app.erofs tree/
  mkfs.erofs --tar=i layer.erofs layer.tar
  mkfs.erofs --ovlfs-strip=1 all.erofs base.erofs app.erofs
  zcat layer.tar.gz | mkfs.erofs --tar=f --aufs --quiet -Enoinline_data layer.erofs -";

pub(crate) const BUILD: &str = "\
IMAGE appears, or with --force replaces an older one, when it is whole, on stable storage, and every file has
been read from it again and compared with the source: contents, names, types, owners, times, links and
attributes. A difference, a file that changes meanwhile, a full disk: then there is no image, the exit status
is 1, and the path and the byte are named. --no-verify leaves the comparison out.

The bytes of an image depend on the source and the options, never on --jobs, --memory, the order in which a
directory lists its entries, or the host's clock, but for what these set: the UUID is random, and the image's
time is now. --reproducible sets both: the UUID is all zeros, unless --uuid gives another; the time is that of
SOURCE_DATE_EPOCH, and newer files get it, too, or without it the newest time in the source; --time goes
before both. Owners, permissions and times of files are those of the source all the same; see Content for
what changes them.

SOURCE_DATE_EPOCH counts without --reproducible as well.

--dry-run lists the source, builds a part of it in memory, and tells what all of it would come to.

Examples:
  ferrofs build app.erofs tree/
  ferrofs build -z lz4hc app.erofs tree/                       quick to read
  ferrofs build -z zstd,level=15 --fragments --dedupe app.erofs tree/
  ferrofs build -z lzma,level=9 -C 1m --fragments=all --dedupe --inline-pclusters app.erofs tree/
  ferrofs build --reproducible --all-root -z lz4hc app.erofs tree/
  ferrofs build --whiteouts=apply app.erofs layer1.tar.gz layer2.tar.zst
  zcat rootfs.tar.gz | ferrofs build -z lz4 --json app.erofs -";
