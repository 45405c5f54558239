#!/usr/bin/env python3
"""Builds trees with many combinations of mkfs.erofs's options, and compares what readers see of each image with the tree.

  build_matrix.py [--peers=DIR] [--reader=FERROFS] [--work=DIR] [--only=REGEX] [--max=N] [--again] FERROFS [SOURCE...]

The first tree is made here: every type, xattrs of every kind, holes, repeats, long and short files; each SOURCE is
another. FERROFS is called as mkfs.erofs; the reader is FERROFS as well, but for a program whose name begins with mkfs.
  kernel     the kernel's EROFS over a loop device: types, modes, owners, times, links, devices, targets, xattrs, bytes
             in order and out of it
  extract    `ferrofs extract` of the reader
  check      `ferrofs check` of the reader
  fsck       `fsck.erofs --extract` of erofs-utils, from DIR of --peers or the PATH; to a directory and compared, where
             it can: not what it does wrong by itself (holes at the end of files in chunks are cut off)
  mount, erofsfuse   mounted by these, for blocks that are larger than a page, which the kernel refuses
--again builds the combinations of AGAIN once more in other circumstances, which must make the same image: other numbers of
workers; another time zone, locale, umask and working directory, and the tree by a relative path; a copy whose names were
made in random order; a copy and the image on a tmpfs; the archive that GNU tar makes of the tree (ACLs among the xattrs, as
--acls would name users that this machine knows), from a file and from a pipe; and after a minute. All of these are built
from a copy without what archives cannot hold: sockets, and several names of a device or pipe.
--only chooses by `NAME SOURCE` (names are in tests/build_matrix.toml); --max says how many differences are shown.
What is refused by name (exit status 1 or 2, a message, no image) is listed, and neither right nor wrong.
Tables are Markdown. Exit status 1 on any difference, or if fewer than 60 combinations are right although none was left
out. Needs root. A real system that mkfs.erofs packed, extracted and compared with its source:
  build_matrix.py --reader=ferrofs --only='^[a-z0-9]+-64k(-fragments-dedupe-tails)? ROOTFS' mkfs.erofs ROOTFS
"""
import os
import random
import re
import shutil
import stat
import subprocess
import tempfile
import time
import tomllib

import harness
import mounted
import snapshot
import test_trees

FEWEST = 60
BUILD_TIME = 1710000000
COMMON = [f"-T{BUILD_TIME}", "--quiet", "-U", "6f726566-7266-6566-6572-726f66730000"]
VERB = "build --quiet --progress=none --reproducible --force"
AGAIN = ["plain", "chunks-64k", "lz4-4k", "lz4hc-64k-tails", "deflate-64k-dedupe", "lz4hc-64k-fragments-dedupe-tails",
         "zstd-64k-all-fragments-dedupe", "lzma-1024k", "48bit-zstd-fragments-dedupe-tails", "directories-metabox-lz4hc",
         "aligned-lz4", "verb-plain", "verb-zstd"]
AGAIN_SECONDS = 61
TAR = ["tar", "--format=pax", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--warning=no-timestamp"]
PREFIXES = "--xattr-prefix=user.infix. --xattr-prefix=trusted.overlay."
# Stands for the file beside the image.
BLOB = "BLOB"
SILENT = "(it said nothing)"
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
# What erofsfuse of erofs-utils 1.9 does not report.
EROFSFUSE_LACKS = ("mtime", "nlink", "links")


def combinations():
    """{name: options}, in the spelling of mkfs.erofs; or the verb build and its own."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/build_matrix.toml"), "rb") as file:
        found = {name: words.replace("PREFIXES", PREFIXES) for name, words in tomllib.load(file).items()}
    made = {name: [*COMMON, *([] if "--all-time" in words else ["--mkfs-time"]), *words.split()]
            for name, words in found.items()}
    return {**made, "verb-plain": VERB.split(),
            "verb-zstd": [*VERB.split(), "-zzstd", "-C64k", "--fragments", "--dedupe", "--inline-pclusters"]}


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
            look["xattrs"] = {**look["xattrs"], digest: b"sha256:" + bytes.fromhex(content)}
    for path, old in source.items():
        # A whiteout of overlayfs: its directory is marked, as mkfs.erofs does it, so that overlayfs looks for such.
        if stat.S_ISCHR(old["type"]) and old["rdev"] == (0, 0):
            above = looks[os.path.dirname(path)]
            above["xattrs"] = {"trusted.overlay.origin": b"", **above["xattrs"]}
    return looks


def has_special_file(options):
    """Directories in the packed inode, or inodes in a metabox."""
    return any(word.startswith("--zD") or re.match(r"-m\d", word) for word in options)


def has_packed_inode(options):
    return any(word.startswith("-E") and "fragments" in word for word in options) or has_special_file(options)


def is_misread_by_peers(options):
    """Inline pclusters and tables of chunks in a metabox, which erofs-utils 1.9 looks for in the image, even of its own."""
    return value(options, "-m") and any("ztailpacking" in word or "--chunksize" in word for word in options)


def first_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    useful = [line for line in lines if "erofs-utils" not in line and not re.match(r"mkfs\.erofs \S+$", line)]
    return (useful or lines or [SILENT])[0][:300]


def copy_tree(source, target, dice=None):
    """A copy of what an archive can hold; its names are made in random order if there are dice."""
    names = [path or b"." for path in snapshot.walk(os.fsencode(source))]
    if dice:
        dice.shuffle(names)
    os.mkdir(target)
    create = [*TAR, "--create", "--no-recursion", f"--directory={source}", "--null", "--files-from=-"]
    unpack = [*TAR, "--extract", "--preserve-permissions", "--delay-directory-restore", f"--directory={target}"]
    with tempfile.TemporaryFile() as listed, tempfile.TemporaryFile() as archive:
        listed.write(b"\0".join(names))
        for argv, how in ((create, {"stdin": listed, "stdout": archive}), (unpack, {"stdin": archive})):
            how["stdin"].seek(0)
            subprocess.run(argv, check=True, **how)


class Matrix(harness.Report):
    """Programs, options, and what was found."""

    def __init__(self, given, work):
        super().__init__(given, work)
        is_reader = not os.path.basename(given.ferrofs).startswith("mkfs")
        self.reader = harness.program(given.reader) if given.reader else is_reader and given.ferrofs
        if given.reader and not self.reader:
            raise OSError(f"--reader: no program {given.reader}")
        self.fsck, self.erofsfuse = (harness.program(os.path.join(given.peers, name)) for name in ("fsck.erofs", "erofsfuse"))
        if given.peers and not self.fsck and not self.erofsfuse:
            raise OSError(f"--peers: neither fsck.erofs nor erofsfuse in {given.peers}")
        self.image, self.blob, self.hints, self.tree, self.archive, self.memory = (
            os.path.join(work, name) for name in ("image.erofs", "image.blob", "hints", "tree", "copy.tar", "memory"))
        with open(self.hints, "wb") as file:
            file.write(HINTS)
        self.right, self.wrong, self.refused = [], [], []

    def build(self, options, source, jobs=None, image=None, **how):
        """Runs the builder; its exit status and what it says."""
        options = [word.replace(f"={BLOB}", f"={self.blob}").replace("=HINTS", f"={self.hints}") for word in options]
        is_verb = options[:1] == ["build"]
        jobs = [] if not jobs else [f"--jobs={jobs}" if is_verb else f"--workers={jobs}"]
        tar = ["--tar=f"] if source in ("-", self.archive) and not is_verb else []
        argv = ["ferrofs" if is_verb else "mkfs.erofs", *options, *jobs, *tar, image or self.image, source]
        return harness.run(argv, executable=self.given.ferrofs, **how)

    def place(self, options):
        """What readers have to be told of: --offset and --device."""
        return [word for word in options if word.startswith("--offset=")] + \
            [f"--device={self.blob}" for word in options if word.startswith("--blobdev=")]

    def by_mount(self, system, looks, without=()):
        with mounted.Mount(system, self.image, os.path.join(self.work, "mount")) as mount:
            self.judge(looks, snapshot.take(mount.directory, without), without)

    def by_kernel(self, options, looks):
        blobs = [self.blob] if value(options, "--blobdev=") else []
        self.by_mount(mounted.Kernel(int(value(options, "--offset=") or 0), blobs), looks)

    def by_erofsfuse(self, looks):
        try:
            return self.by_mount(mounted.Daemon(self.erofsfuse), looks, EROFSFUSE_LACKS)
        except mounted.MountFailed as reason:
            # As distributions compile it, it reads no blocks that are larger than a page.
            if "isn't supported on this platform" in str(reason):
                return "cannot"
            raise

    def judge(self, looks, found, without=()):
        lines = snapshot.differences(looks, found, without)
        if lines:
            more = len(lines) - self.given.max
            raise OSError("; ".join(lines[:self.given.max]) + (f"; {more} more" if more > 0 else ""))

    def read(self, *argv, after=()):
        """Runs a reader that must not fail."""
        status, said = harness.run([*argv, self.image, *after])
        if status:
            raise OSError(f"status {status}: {first_line(said)}")

    def by_extract(self, options, looks):
        self.read(self.reader, "extract", "-q", *self.place(options), after=[self.tree])
        self.judge(looks, snapshot.take(self.tree))

    def by_fsck(self, options, looks):
        # The packed inode cannot be extracted to a directory, so that all is only decoded.
        if has_packed_inode(options):
            self.read(self.fsck, "--extract", *self.place(options))
            return "decoded"
        self.read(self.fsck, f"--extract={self.tree}", *self.place(options))
        found = snapshot.take(self.tree, ["xattrs"])
        self.forgive(looks, found)
        return self.judge(looks, found, ["xattrs"])

    def forgive(self, looks, found):
        """A hole at the end that it cut off is put back: then all of the file must be right."""
        for path, entry in found.items():
            size = looks.get(path, {}).get("size", 0)
            if size > entry.get("size", 0) and "content" in entry:
                full = os.path.join(os.fsencode(self.tree), path)
                os.truncate(full, size)
                entry.update(size=size, content=harness.digest(full), jumps=snapshot.jumps(full, size))

    def steps(self, options, looks):
        """(column, what to do) of an image."""
        is_large = int(value(options, "-b") or 4096) > PAGE_BYTES
        if not is_large:
            yield "kernel", lambda: self.by_kernel(options, looks)
        elif self.reader:
            yield "mount", lambda: self.by_mount(mounted.Daemon(self.reader, "mount"), looks)
        if self.reader:
            yield "extract", lambda: self.by_extract(options, looks)
            yield "check", lambda: self.read(self.reader, "check", *self.place(options))
        if is_misread_by_peers(options):
            return
        if self.fsck and not is_large:
            yield "fsck", lambda: self.by_fsck(options, looks)
        if self.erofsfuse and (is_large or has_special_file(options)):
            yield "erofsfuse", lambda: self.by_erofsfuse(looks)

    def one(self, label, options, source, tree):
        begin = time.monotonic()
        status, said = self.build(options, source)
        seconds, is_made = time.monotonic() - begin, os.path.exists(self.image)
        if status in (1, 2) and first_line(said) != SILENT and not is_made:
            self.refused.append(f"{label}: {first_line(said)}")
            print(f"| {label} | refused | | {seconds:.1f} |", flush=True)
            return
        results, size = {}, os.path.getsize(self.image) if is_made else 0
        problems = [f"build: status {status}: {first_line(said)}"] if status else []
        for column, step in [] if problems else self.steps(options, wanted(tree, options)):
            try:
                results[column] = step() or "ok"
            except (OSError, subprocess.TimeoutExpired) as reason:
                results[column] = "WRONG"
                problems.append(f"{column}: {reason}")
            shutil.rmtree(self.tree, ignore_errors=True)
        if not problems and not results:
            problems.append("nobody read it: --reader or erofsfuse is missing")
        cells = ", ".join(f"{column} {result}" for column, result in results.items()) or "WRONG"
        print(f"| {label} | {cells} | {size} | {seconds:.1f} |", flush=True)
        for problem in problems:
            print(f"\n{label} ({' '.join(word for word in options if word not in COMMON)}): {problem}\n", flush=True)
        (self.wrong if problems else self.right).append(label)
        if is_made:
            os.unlink(self.image)

    def again(self, source):
        """Builds in several circumstances; a line for each combination."""
        copies = {name: os.path.join(self.work, name) for name in ("copy", "shuffled", "memory/copy")}
        firsts, options = {}, combinations()
        with mounted.new_file_system(self.memory):
            for name, copy in copies.items():
                copy_tree(source, copy, None if name == "copy" else random.Random(6))
                source = copies["copy"]
            harness.run_well(*TAR, "--create", "--sort=none", f"--file={self.archive}", f"--directory={source}", ".")
            for name in AGAIN:
                if re.search(self.given.only, f"{name} again"):
                    firsts[name] = time.monotonic(), self.digest(options[name], source, 1)
                    self.judge_again(name, firsts[name][1], self.circumstances(options[name], copies))
        for name, (begin, first) in firsts.items():
            time.sleep(max(0, begin + AGAIN_SECONDS - time.monotonic()))
            self.judge_again(name, first, [("later", self.digest(options[name], source))])

    def circumstances(self, options, copies):
        """(name, digest of the image) in each."""
        for jobs in (2, 3, 8):
            yield f"jobs {jobs}", self.digest(options, copies["copy"], jobs)
        place = {**os.environ, "TZ": "Asia/Kathmandu", "LC_ALL": "C", "HOME": "/nowhere"}
        yield "elsewhere", self.digest(options, "copy", cwd=self.work, env=place, umask=0o077)
        yield "shuffled", self.digest(options, copies["shuffled"])
        yield "memory", self.digest(options, copies["memory/copy"], image=os.path.join(self.memory, "image.erofs"))
        yield "tar", self.digest(options, self.archive)
        with subprocess.Popen(["cat", self.archive], stdout=subprocess.PIPE) as cat:
            yield "tar by a pipe", self.digest(options, "-", stdin=cat.stdout)

    def digest(self, options, source, jobs=None, image=None, **how):
        """The SHA-256 of an image, or what the builder said; the image is removed."""
        status, said = self.build(options, source, jobs, image, **how)
        if status:
            return f"status {status}: {first_line(said)}"
        digest = harness.digest(image or self.image)
        os.unlink(image or self.image)
        return digest

    def judge_again(self, name, first, found):
        results = [(where, "same" if digest == first and len(first) == 64 else f"DIFFERS ({digest})")
                   for where, digest in found]
        print(f"| {name} again | {', '.join(' '.join(result) for result in results)} | {first[:16]} | |", flush=True)
        is_right = all(word == "same" for _, word in results)
        (self.right if is_right else self.wrong).append(f"{name} again")

    def all(self):
        sources = {"zoo": None, **{os.path.basename(os.path.abspath(path)): path for path in self.given.source}}
        print("| combination, tree | seen by | bytes | build, s |\n|---|---|---|---|", flush=True)
        for name, source in sources.items():
            tree, source = None, source or test_trees.zoo(os.path.join(self.work, "zoo"))
            for combination, options in combinations().items():
                label = f"{combination} {name}"
                if not re.search(self.given.only, label):
                    continue
                tree = tree or snapshot.take(source)
                self.one(label, options, source, tree)
            if self.given.again:
                self.again(source)
        return self.end()

    def end(self):
        """The summary, and the exit status."""
        print(f"\n{len(self.right)} right, {len(self.wrong)} wrong, {len(self.refused)} refused")
        for title, lines in (("wrong", self.wrong), ("refused", self.refused)):
            if lines:
                print(f"\n{title}:\n" + "\n".join(f"* {line}" for line in lines))
        return 1 if self.wrong or not self.right or not self.given.only and len(self.right) < FEWEST else 0


if __name__ == "__main__":
    harness.main(Matrix.of, __doc__, "FERROFS [SOURCE...]", peers="", reader="", work="/tmp", only="", max=5, again=False)
