#!/usr/bin/env python3
"""Builds trees with many combinations of mkfs.erofs's options, and compares what readers see of each image with the tree.

  build_matrix.py FERROFS [SOURCE...] [--peers=DIR] [--work=DIR] [--only=REGEX] [--skip=REGEX] [--keep] [--list] [--max=N]

The first tree is made here: every type, xattrs of every kind, holes, repeats, long and short files; each SOURCE is
another. FERROFS is called as mkfs.erofs; a program whose name begins with mkfs is taken for one that only builds.
  kernel     the kernel's EROFS over a loop device: types, modes, owners, times, links, devices, targets, xattrs, bytes
             in order and out of it
  fsck       `fsck.erofs --extract` of erofs-utils, from DIR of --peers or the PATH; to a directory and compared, where
             it can: not what it does wrong by itself (holes at the end of files in chunks are cut off)
  check      `ferrofs check`
  ferrofs, erofsfuse   mounted by these, for blocks that are larger than a page, which the kernel refuses
--only and --skip choose by `NAME SOURCE`; --list lists the combinations; --max says how many differences are shown.
What is refused by name (exit status 1 or 2, a message, no image) is listed, and neither right nor wrong.
Tables are Markdown. Exit status 1 on any difference, or if fewer than 60 combinations are right although none was left
out. Needs root.
"""
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time

import mounted
import snapshot

FEWEST = 60
LIMIT_SECONDS = 1800
BUILD_TIME = 1710000000
COMMON = [f"-T{BUILD_TIME}", "--quiet", "-U", "6f726566-7266-6566-6572-726f66730000"]
PREFIXES = ["--xattr-prefix=user.infix.", "--xattr-prefix=trusted.overlay."]
CODECS = ["lz4", "lz4hc", "lzma", "deflate", "zstd"]
# Stands for the file beside the image.
BLOB = "BLOB"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# For --compress-hints=HINTS: some files alone, by each algorithm, with pclusters of several sizes.
HINTS = b"""# the first that fits counts
0 ^large/(same-a|noise)$
16384 0 ^large/repeats$
65536 1 ^large/
4096 2 ^crowd/0
131072 3 ^crowd/1.*x$
4096 crowd
"""
# What erofsfuse of erofs-utils 1.9 does not tell.
EROFSFUSE_LACKS = ("mtime", "nlink", "links")


def combinations():
    """{name: options}, in the spelling of mkfs.erofs."""
    found = {"plain": "", "plain-noinline": "-Enoinline_data", "plain-extended": "-Eforce-inode-extended",
             "plain-nosbcrc": "-Enosbcrc -L label", "plain-offset": "--offset=1048576"}
    for size in (4096, 16384, 65536, 1 << 20):
        found[f"chunks-{size >> 10}k"] = f"--chunksize={size}"
    found["chunks-indexes"] = "--chunksize=65536 -Eforce-chunk-indexes"
    found["chunks-blockmap"] = "--chunksize=16384 -Eforce-inode-blockmap"
    for name, words in (("", "--chunksize=65536"), ("-4k", "--chunksize=4096"), ("-dedupe", "--chunksize=4096 -Ededupe"),
                        ("-512", "-b512 --chunksize=4096"), ("-prefixes", " ".join(["--chunksize=16384", *PREFIXES]))):
        found[f"blob{name}"] = f"{words} --blobdev={BLOB}"
    found["chunks-dedupe"] = "--chunksize=4096 -Ededupe"
    found["dedupe-plain"] = "-Ededupe"
    for codec in CODECS:
        for size in ("4096", "16384", "65536", "262144", "1048576"):
            found[f"{codec}-{int(size) >> 10}k"] = f"-z{codec} -C{size}"
        found[f"{codec}-4k-tails"] = f"-z{codec} -C4096 -Eztailpacking"
        found[f"{codec}-64k-tails"] = f"-z{codec} -C65536 -Eztailpacking"
        found[f"{codec}-64k-fragments"] = f"-z{codec} -C65536 -Efragments"
        found[f"{codec}-64k-all-fragments"] = f"-z{codec} -C65536 -Eall-fragments"
        found[f"{codec}-4k-dedupe"] = f"-z{codec} -C4096 -Ededupe"
        found[f"{codec}-64k-dedupe"] = f"-z{codec} -C65536 -Ededupe"
        found[f"{codec}-64k-fragments-dedupe-tails"] = f"-z{codec} -C65536 -Efragments,dedupe,ztailpacking"
        found[f"{codec}-64k-all-fragments-dedupe"] = f"-z{codec} -C65536 -Eall-fragments,dedupe"
        found[f"{codec}-full-indexes"] = f"-z{codec} -C65536 -Elegacy-compress"
    found.update({
        "lz4-4k-fragments": "-zlz4 -C4096 -Efragments",
        "lz4-4k-full-indexes-tails": "-zlz4 -C4096 -Elegacy-compress,ztailpacking",
        "lz4hc-4k-fragments-dedupe": "-zlz4hc -C4096 -Efragments,dedupe",
        "lz4hc-16k-all-fragments-dedupe-tails": "-zlz4hc,12 -C16384 -Eall-fragments,dedupe,ztailpacking",
        "lz4hc-64k-fragments=64k": "-zlz4hc -C65536 -Efragments=65536",
        "lz4hc-full-indexes-fragments-dedupe": "-zlz4hc -C65536 -Elegacy-compress,fragments,dedupe",
        "zstd-1m-fragments-dedupe": "-zzstd -C1048576 -Efragments,dedupe",
        "lzma-1m-all-fragments-dedupe": "-zlzma -C1048576 -Eall-fragments,dedupe",
        "lzma-level-1-dictionary": "-zlzma,level=1,dictsize=65536 -C65536",
        "zstd-level-19-dictionary": "-zzstd,level=19,dictsize=65536 -C65536",
        "deflate-level-9": "-zdeflate,9 -C65536", "lz4hc-level-1": "-zlz4hc,1 -C16384",
        "two-algorithms": "-zlz4hc,9:zstd,3 -C65536", "extents-of-64k": "-zzstd -C65536 --max-extent-bytes=65536",
        "extents-of-4k": "-zlz4 -C4096 --max-extent-bytes=4096",
        "compressed-extended": "-zlz4hc -C16384 -Eforce-inode-extended",
        "compressed-noinline": "-zlz4hc -C16384 -Enoinline_data",
        "chunks-compressed": "-zlz4 --chunksize=65536", "chunks-compressed-zstd": "-zzstd -C65536 --chunksize=4096",
        "chunks-compressed-all": "-zlz4hc -C16384 --chunksize=16384 -Eall-fragments,dedupe,ztailpacking",
        "pcluster-alone": "-C65536", "two-levels": "-zzstd,1:zstd,15:zstd:zstd,9 -C65536 --compress-hints=HINTS",
        "fragments-4k-packed-64k": "-zlzma -C4096 -Efragments=65536",
        "all-fragments-packed-256k": "-zzstd -C16384 -Eall-fragments=262144,dedupe",
        "fragments-of-files": "-zlz4hc -C16384 -Efragments,fragdedupe=inode",
        "fragments-off": "-zlz4hc -C16384 -Efragments,fragdedupe=off",
        "all-fragments-off": "-zzstd -C65536 -Eall-fragments,^fragdedupe",
        "aligned": "--dsunit=8 --fsalignblks=64", "aligned-lz4": "-zlz4 --dsunit=16 -C16384",
        "aligned-packed": "-zzstd -C65536 --dsunit=3 --fsalignblks=1000 -Efragments,dedupe,ztailpacking",
        "aligned-chunks": "--dsunit=16 --chunksize=65536", "aligned-long-chunks": "--dsunit=16 --chunksize=4096",
        "aligned-chunks-indexes": "-b512 --dsunit=8 --chunksize=8192 -Eforce-chunk-indexes,dedupe",
        "metadata-zone": "-zlz4hc --MZ", "metadata-zone-plain": "--MZ=id",
        "48bit": "-E48bit", "48bit-lz4": "-zlz4 -C4096 -E48bit", "48bit-zstd": "-zzstd -C65536 -E48bit",
        "48bit-extended": "-E48bit,force-inode-extended", "48bit-one-time": "-E48bit --all-time -zlz4hc -C16384",
        "48bit-chunks": "-E48bit --chunksize=16384", "48bit-chunks-indexes": "-E48bit,force-chunk-indexes --chunksize=4096",
        "48bit-deflate-tails": "-zdeflate -C16384 -E48bit,ztailpacking",
        "48bit-zstd-fragments": "-zzstd -C65536 -E48bit,fragments",
        "48bit-lzma-all-fragments-dedupe": "-zlzma -C65536 -E48bit,all-fragments,dedupe",
        "48bit-lz4hc-dedupe": "-zlz4hc -C16384 -E48bit,dedupe",
        "48bit-zstd-fragments-dedupe-tails": "-zzstd -C16384 -E48bit,fragments,dedupe,ztailpacking",
        "48bit-full-indexes": "-zlz4hc -C16384 -E48bit,legacy-compress",
        "48bit-extents-of-64k": "-zzstd -C65536 -E48bit --max-extent-bytes=65536",
        "48bit-extents-of-4k": "-zzstd -C4096 -E48bit --max-extent-bytes=4096",
        "dot-omitted": "-E48bit,dot-omitted", "dot-omitted-lz4": "-zlz4hc -C16384 -Edot-omitted,fragments"})
    # Directories, inodes, and both, in files of their own, with each way to store data.
    special = {"directories": "--zD", "metabox": "-m4096", "directories-metabox": "--zD -m4096:zstd"}
    data = {"lz4hc": "-zlz4hc -C16384", "lz4-tails": "-zlz4 -C4096 -Eztailpacking", "zstd-fragments": "-zzstd -C65536 -Efragments",
            "lzma-all-fragments": "-zlzma -C65536 -Eall-fragments", "deflate-dedupe": "-zdeflate -C65536 -Ededupe",
            "lz4hc-everything": "-zlz4hc -C65536 -Eall-fragments,dedupe,ztailpacking",
            "lz4-full-indexes": "-zlz4 -C16384 -Elegacy-compress", "lz4-blocks-512": "-b512 -zlz4 -C4096",
            "zstd-blocks-16384": "-b16384 -zzstd -C65536 -Efragments"}
    for name, words in special.items():
        for form, way in data.items():
            found[f"{name}-{form}"] = f"{way} {words.replace('4096', '16384') if '-b16384' in way else words}"
    found.update({
        "metabox-plain": "-m4096", "metabox-plain-blocks-512": "-b512 -m512", "metabox-chunks": "-m4096 --chunksize=65536",
        "metabox-noinline": "-m4096 -Enoinline_data", "metabox-lz4-of-64k": "-zlz4 -C65536 -m65536",
        "metabox-extended-all-shared": "-zzstd -C65536 -m16384 -Eforce-inode-extended -x0",
        "metabox-prefixes": " ".join(["-zlz4 -m4096 -x0", *PREFIXES]), "metabox-lzma": "-zlz4:lzma -C65536 -m16384:lzma",
        "directories-no-xattrs": "-zzstd -C16384 --zD -x-1"})
    several = "--compress-hints=HINTS -zlz4hc:zstd:deflate:lzma"
    for name, words in (("", ""), ("-fragments", "-Efragments"), ("-dedupe", "-Ededupe"),
                        ("-all-fragments-dedupe", "-Eall-fragments,dedupe"), ("-tails", "-Eztailpacking"),
                        ("-fragments-dedupe-tails", "-C65536 -Efragments,dedupe,ztailpacking"),
                        ("-chunks", "--chunksize=16384 -Ededupe"), ("-full-indexes", "-Elegacy-compress"),
                        ("-blocks-512", "-b512 -C8192 -Efragments"), ("-blocks-1024", "-b1024 -Ededupe")):
        found[f"hints{name}"] = f"{several} {words}"
    for size in (512, 1024, 2048):
        found[f"blocks-{size}"] = f"-b{size}"
        found[f"blocks-{size}-lz4"] = f"-b{size} -zlz4 -C{size}"
        found[f"blocks-{size}-zstd"] = f"-b{size} -zzstd -C16384 -Efragments,dedupe,ztailpacking"
        found[f"blocks-{size}-chunks"] = f"-b{size} --chunksize={4 * size}"
        found[f"blocks-{size}-48bit"] = f"-b{size} -zzstd -C16384 -E48bit,dot-omitted,fragments,dedupe"
    for size in (8192, 16384, 32768, 65536):
        found[f"blocks-{size}"] = f"-b{size}"
        found[f"blocks-{size}-lz4hc"] = f"-b{size} -zlz4hc -C{size}"
        found[f"blocks-{size}-zstd"] = f"-b{size} -zzstd -C131072 -Eall-fragments,dedupe"
        found[f"blocks-{size}-deflate"] = f"-b{size} -zdeflate -C65536 -Efragments,ztailpacking"
        found[f"blocks-{size}-chunks"] = f"-b{size} --chunksize={2 * size}"
        found[f"blocks-{size}-48bit"] = f"-b{size} -zlz4hc -C131072 -E48bit,dot-omitted,dedupe"
    found.update({
        "xattrs-none": "-x-1", "xattrs-all-shared": "-x0", "xattrs-shared-above-1": "-x1 -zlz4hc",
        "xattrs-shared-above-1000": "-x1000", "xattrs-prefixes": " ".join(PREFIXES),
        "xattrs-prefixes-all-shared": " ".join(["-x0", *PREFIXES]),
        "xattrs-prefixes-packed": " ".join(["-zzstd -C65536 -Eall-fragments", *PREFIXES]),
        "xattrs-prefixes-plain": " ".join(["-zlz4 -Efragments,plain-xattr-prefixes", *PREFIXES]),
        "xattrs-digests": "--xattr-inode-digest", "xattrs-digests-named": "-zlz4 --xattr-inode-digest=trusted.erofs.fp",
        "xattrs-digests-prefixes": " ".join(["-zzstd -Efragments -x0 --xattr-inode-digest", *PREFIXES]),
        "xattrs-root": "--root-xattr-isize=1024", "xattrs-root-none": "-x-1 --root-xattr-isize=5000 -b1024",
        "xattrs-no-filter": "-E^xattr-name-filter", "all-root": "--all-root", "one-time": "--all-time",
        "owners": "--force-uid=70000 --force-gid=3",
        "owners-offset": "--force-uid=5 --force-gid=6 --uid-offset=10 --gid-offset=100000",
        "build-time-where-small": "--ignore-mtime", "no-hard-links": "--hard-dereference -zlz4hc",
        "compact-inodes": "-Eforce-inode-compact --all-time --force-uid=1000 --force-gid=1000",
        "compact-inodes-lz4": "-zlz4 -Eforce-inode-compact --all-time --all-root"})
    return {name: [*COMMON, *([] if "--all-time" in words else ["--mkfs-time"]), *words.split()]
            for name, words in found.items()}


def value(options, name):
    """Of the last option that begins so; or None."""
    return next((word[len(name):] for word in reversed(options) if word.startswith(name)), None)


def wanted(source, options):
    """How a tree must look in an image built with the options."""
    time_ns = BUILD_TIME * 10**9
    owners = {}
    for name in ("uid", "gid"):
        forced, offset = value(options, f"--force-{name}="), int(value(options, f"--{name}-offset=") or 0)
        forced = 0 if "--all-root" in options else forced and int(forced)
        owners[name] = lambda old, forced=forced, offset=offset: (old if forced is None else forced) + offset & 0xFFFFFFFF
    looks = {}
    for path, old in source.items():
        looks[path] = new = {**old, **{name: change(old[name]) for name, change in owners.items()}}
        if "--all-time" in options:
            new["mtime"] = time_ns
        elif "--ignore-mtime" in options:
            new["mtime"] = frozenset((old["mtime"], time_ns))
        if "-x-1" in options:
            new["xattrs"] = {}
        if "--hard-dereference" in options and "links" in old:
            first = source[old["links"][0]]
            new.update({"nlink": 1, **{name: first[name] for name in ("jumps", "content") if name in first}})
            del new["links"]
    digest = value(options, "--xattr-inode-digest=")
    for look in looks.values() if digest else ():
        if stat.S_ISREG(look["type"]) and look["size"]:
            content = look.get("content") or source[look["links"][0]]["content"]
            look["xattrs"] = {**look["xattrs"], digest: b"sha256:" + content}
    for path, old in source.items():
        # A whiteout of overlayfs: its directory is marked, as mkfs.erofs does it, so that overlayfs looks for such.
        if stat.S_ISCHR(old["type"]) and old["rdev"] == (0, 0):
            above = looks[os.path.dirname(path)]
            above["xattrs"] = {"trusted.overlay.origin": b"", **above["xattrs"]}
    return looks


def block_bytes(options):
    return int(value(options, "-b") or 4096)


def has_special_file(options):
    """Directories in the packed inode, or inodes in a metabox."""
    return any(word.startswith("--zD") or re.match(r"-m\d", word) for word in options)


def has_packed_inode(options):
    return any(word.startswith("-E") and "fragments" in word for word in options) or has_special_file(options)


def is_misread_by_peers(options):
    """Inline pclusters and tables of chunks in a metabox, which erofs-utils 1.9 looks for in the image, even of its own."""
    return value(options, "-m") and any("ztailpacking" in word or "--chunksize" in word for word in options)


def noise(seed, size):
    """Numbers of a linear congruence, the same on every machine."""
    state, words = seed, []
    for _ in range(size // 4):
        state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        words.append((state >> 33 & 0xFFFFFFFF).to_bytes(4, "little"))
    return b"".join(words)


def make_zoo(path):
    """The trees of the test images, and what those are too small for."""
    os.mkdir(path)
    scripts = os.path.dirname(os.path.abspath(__file__))
    subprocess.run([sys.executable, os.path.join(scripts, "test_trees.py"), path], check=True)
    large = os.path.join(path, "large")
    os.mkdir(large)
    lines = b"".join(b"%06d %s the quick brown fox %d\n" % (n, noise(n, 8).hex().encode(), n * n) for n in range(40000))
    random = noise(7, 600000)
    files = {"lines": lines, "noise": random, "repeats": lines[:400000] + random[:300001] + lines[:400000],
             "moved": random[77777:] + lines[1234567:], "zeros": bytes(3 << 20),
             "mixed": b"".join(lines[n * 30000:][:30000] + random[n * 9000:][:9000] for n in range(60)),
             "same-a": lines[:70001], "same-b": lines[:70001], "nearly-same": lines[:70000] + b"!",
             "one-byte-more": lines[:65537], "one-block-less": lines[:(1 << 20) - 4096], "runs": b"a" * 5000000}
    for name, data in files.items():
        with open(os.path.join(large, name), "wb") as file:
            file.write(data)
    with open(os.path.join(large, "islands"), "wb") as file:
        for place in (0, 1 << 20, (3 << 20) + 5, 9 << 20):
            file.seek(place)
            file.write(lines[place % 9999:][:10000])
        file.truncate(12345678)
    crowd = os.path.join(path, "crowd")
    os.mkdir(crowd)
    for number in range(3000):
        with open(os.path.join(crowd, f"{number * 7919 % 3000:05d}-{'x' * (number % 90)}"), "wb") as file:
            file.write(lines[number * 11:][:number % 700])
    os.setxattr(path, "user.root", b"of the root")
    for folder in (large, crowd):
        for name in os.listdir(folder):
            number = sum(name.encode())
            os.utime(os.path.join(folder, name), ns=(0, (1600000000 + number) * 10**9 + 777 * number))
        os.utime(folder, ns=(0, 1650000000 * 10**9 + 5))
    os.utime(path, ns=(0, 1650000000 * 10**9 + 7))
    return path


def first_line(text):
    lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
    useful = [line for line in lines if "erofs-utils" not in line and not re.match(r"mkfs\.erofs \S+$", line)]
    return (useful or lines or ["(it said nothing)"])[0][:300]


def run(argv, **how):
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=LIMIT_SECONDS, **how)


class Wrong(Exception):
    """A step failed; the text says how."""


class Matrix:
    """Programs, options, and what was found."""

    def __init__(self, ferrofs, given):
        self.given, self.only_builds = given, os.path.basename(ferrofs).startswith("mkfs")
        self.ferrofs = mounted.found(ferrofs)
        if not self.ferrofs:
            sys.exit(f"build_matrix.py: no program {ferrofs}")
        peers = given["peers"]
        self.fsck, self.erofsfuse = (mounted.found(os.path.join(peers, name) if peers else name)
                                     for name in ("fsck.erofs", "erofsfuse"))
        self.work = tempfile.mkdtemp(prefix="build-matrix-", dir=given["work"])
        self.image = os.path.join(self.work, "image.erofs")
        self.blob = os.path.join(self.work, "image.blob")
        self.hints = os.path.join(self.work, "hints")
        with open(self.hints, "wb") as file:
            file.write(HINTS)
        self.right, self.wrong, self.refused = [], [], []

    def mkfs(self, options, source):
        beside = {f"={BLOB}": f"={self.blob}", "=HINTS": f"={self.hints}"}
        for name, path in beside.items():
            options = [word.replace(name, path) for word in options]
        return run(["mkfs.erofs", *options, self.image, source], executable=self.ferrofs)

    def devices(self, options):
        """What readers have to be told of."""
        return [f"--device={self.blob}"] if value(options, "--blobdev=") else []

    def seen(self, attach, without=()):
        """What a mount shows."""
        directory = os.path.join(self.work, "mount")
        with mounted.Mount(attach, self.image, directory):
            return snapshot.take(directory, without)

    def by_kernel(self, options, looks):
        offset = int(value(options, "--offset=") or 0)
        blobs = [self.blob] if self.devices(options) else []
        system = mounted.System("kernel")
        system.attach = lambda image, directory: mounted.loop_mount(image, directory, offset, blobs)
        self.judge(looks, self.seen(system))

    def by_daemon(self, name, program, arguments, looks, without=()):
        self.judge(looks, self.seen(mounted.System(name, program, arguments), without), without)

    def by_erofsfuse(self, looks):
        try:
            return self.by_daemon("erofsfuse", self.erofsfuse, [], looks, EROFSFUSE_LACKS)
        except mounted.MountFailed as reason:
            # As distributions compile it, it reads no blocks that are larger than a page.
            if "isn't supported on this platform" in str(reason):
                return "cannot"
            raise

    def judge(self, looks, found, without=()):
        lines = snapshot.differences(looks, found, without)
        if lines:
            limit = int(self.given["max"])
            raise Wrong("; ".join(lines[:limit]) + (f"; {len(lines) - limit} more" if len(lines) > limit else ""))

    def by_fsck(self, options, looks):
        target = os.path.join(self.work, "extracted")
        offset = value(options, "--offset=")
        # The packed inode cannot be extracted to a directory, so that all is only decoded.
        is_decoded_only = has_packed_inode(options)
        where = "--extract" if is_decoded_only else f"--extract={target}"
        try:
            devices = self.devices(options)
            ran = run([self.fsck, where, *([f"--offset={offset}"] if offset else []), *devices, self.image])
            if ran.returncode:
                raise Wrong(f"status {ran.returncode}: {first_line(ran.stdout)}")
            if not is_decoded_only:
                found = snapshot.take(target, ["xattrs"])
                self.forgive(looks, found, target)
                self.judge(looks, found, ["xattrs"])
        finally:
            shutil.rmtree(target, ignore_errors=True)
        return "decoded" if is_decoded_only else "ok"

    def forgive(self, looks, found, target):
        """A hole at the end that it cut off is put back: then all of the file must be right."""
        for path, entry in found.items():
            missing = looks.get(path, {}).get("size", 0) - entry.get("size", 0)
            if missing > 0 and "content" in entry:
                full = os.path.join(os.fsencode(target), path)
                os.truncate(full, looks[path]["size"])
                entry.update(size=looks[path]["size"], content=snapshot.content(full),
                             jumps=snapshot.jumps(full, looks[path]["size"]))

    def by_check(self, options):
        offset = value(options, "--offset=")
        ran = run([self.ferrofs, "check", *([f"--offset={offset}"] if offset else []), *self.devices(options),
                   self.image])
        if ran.returncode:
            raise Wrong(f"status {ran.returncode}: {first_line(ran.stdout)}")

    def steps(self, options, looks):
        """(column, what to do) of an image."""
        if block_bytes(options) <= PAGE_BYTES:
            yield "kernel", lambda: self.by_kernel(options, looks)
        elif not self.only_builds:
            yield "ferrofs", lambda: self.by_daemon("ferrofs", self.ferrofs, ["mount"], looks)
        if not self.only_builds:
            yield "check", lambda: self.by_check(options)
        if is_misread_by_peers(options):
            return
        if self.fsck and block_bytes(options) <= PAGE_BYTES:
            yield "fsck", lambda: self.by_fsck(options, looks)
        if self.erofsfuse and (block_bytes(options) > PAGE_BYTES or has_special_file(options)):
            yield "erofsfuse", lambda: self.by_erofsfuse(looks)

    def one(self, label, options, source, tree):
        begin = time.monotonic()
        ran = self.mkfs(options, source)
        seconds = time.monotonic() - begin
        if ran.returncode in (1, 2) and first_line(ran.stdout) != "(it said nothing)" and not os.path.exists(self.image):
            self.refused.append(f"{label}: {first_line(ran.stdout)}")
            print(f"| {label} | refused | | {seconds:.1f} |", flush=True)
            return
        results, size = {}, os.path.getsize(self.image) if os.path.exists(self.image) else 0
        problems = [] if not ran.returncode else [f"build: status {ran.returncode}: {first_line(ran.stdout)}"]
        looks = {} if problems else wanted(tree, options)
        for column, step in [] if problems else self.steps(options, looks):
            try:
                results[column] = step() or "ok"
            except (Wrong, OSError, mounted.MountFailed, subprocess.TimeoutExpired) as reason:
                results[column] = "WRONG"
                problems.append(f"{column}: {reason}")
        cells = ", ".join(f"{column} {result}" for column, result in results.items()) or "WRONG"
        print(f"| {label} | {cells} | {size} | {seconds:.1f} |", flush=True)
        options = " ".join(word for word in options if word not in COMMON)
        for problem in problems:
            print(f"\n{label} ({options}): {problem}\n", flush=True)
        (self.wrong if problems else self.right).append(label)
        if problems and self.given["keep"]:
            shutil.copyfile(self.image, f"{self.work}/{label.replace(' ', '-').replace('/', '-')}.erofs")
        if os.path.exists(self.image):
            os.unlink(self.image)

    def all(self, sources):
        print("| combination, tree | seen by | bytes | build, s |\n|---|---|---|---|", flush=True)
        for name, source in sources.items():
            tree = None
            for combination, options in combinations().items():
                label = f"{combination} {name}"
                if not re.search(self.given["only"], label) or self.given["skip"] and re.search(self.given["skip"], label):
                    continue
                if source is None:
                    source = make_zoo(os.path.join(self.work, "zoo"))
                tree = tree or snapshot.take(source)
                self.one(label, options, source, tree)


def arguments():
    given = {"peers": "", "work": "/tmp", "only": "", "skip": "", "max": "5", "keep": "", "list": ""}
    words = []
    for word in sys.argv[1:]:
        name, equals, text = word[2:].partition("=")
        if not word.startswith("--"):
            words.append(word)
        elif name in given and bool(equals) != (name in ("keep", "list")):
            given[name] = text or "yes"
        else:
            sys.exit(__doc__)
    if not words and not given["list"]:
        sys.exit(__doc__)
    return words, given


def main():
    words, given = arguments()
    if given["list"]:
        print("\n".join(f"{name}: {' '.join(word for word in options if word not in COMMON)}"
                        for name, options in combinations().items()))
        return 0
    matrix = Matrix(words[0], given)
    matrix.all({"zoo": None, **{os.path.basename(os.path.abspath(path)): path for path in words[1:]}})
    print(f"\n{len(matrix.right)} right, {len(matrix.wrong)} wrong, {len(matrix.refused)} refused")
    for title, lines in (("wrong", matrix.wrong), ("refused", matrix.refused)):
        if lines:
            print(f"\n{title}:\n" + "\n".join(f"* {line}" for line in lines))
    if not matrix.wrong or not given["keep"]:
        shutil.rmtree(matrix.work)
    is_whole = not given["only"] and not given["skip"]
    return 1 if matrix.wrong or not matrix.right or is_whole and len(matrix.right) < FEWEST else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as reason:
        sys.exit(f"build_matrix.py: {reason}")
