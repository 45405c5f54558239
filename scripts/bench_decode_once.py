#!/usr/bin/env python3
"""How often each cluster is decoded, by ferrofs, by fsck.erofs and through erofsfuse.

  bench_decode_once.py BENCH IMAGE...  [--fsck=fsck.erofs] [--fuse=erofsfuse] [--dump=dump.erofs]
                                       [--at-least=1048576] [--most-bytes=N] [--readers=1,64] [--limit=120]

BENCH is target/release/ferrofs-bench. Files of at least so many bytes (the first ones in the order of
their paths, until they have --most-bytes together) are read front to back in blocks of 128 KiB, by one
reader and by 64 at the same time; each row starts with nothing decoded. fsck.erofs decodes the whole
image instead (`--extract` without a directory). Decoder calls of the peers are counted by
count_decodes.c, which is compiled first (needs cc and linked codecs as shared libraries); a second run
without it gives the seconds. Clusters touched: the different places of compressed extents that dump.erofs
lists, or, where the image has a packed inode, the different inputs that erofsfuse decodes for one reader
(where the image is deduplicated, that is the same number). erofsfuse needs root and /dev/fuse; a run that takes longer than
--limit seconds is given up and says so. The table is Markdown.

Exit status 1 if ferrofs decodes a cluster more than 1.05 times on average, or does not say how often.
"""
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time

import command_line

BLOCK_BYTES = 128 << 10
MARK = 1.05
HERE = os.path.dirname(os.path.abspath(__file__))


class GivenUp(Exception):
    """It took longer than it may."""


def options():
    given = {"fsck": "fsck.erofs", "fuse": "erofsfuse", "dump": "dump.erofs", "at-least": str(1 << 20),
             "most-bytes": str(1 << 62), "readers": "1,64", "limit": "120"}
    words, given = command_line.read(__doc__, given, words=(2, None))
    return words[0], words[1:], given


def compile_shim(folder):
    shim = os.path.join(folder, "count_decodes.so")
    source = os.path.join(HERE, "count_decodes.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    return shim


def environment(shim, counts):
    """What makes a peer count; nothing if it is not to."""
    return dict(os.environ, LD_PRELOAD=shim, COUNT_DECODES=counts) if shim else dict(os.environ)


def counted(path):
    """The sums of all processes that decoded, and the file is gone."""
    total = {"decodes": 0, "distinct": 0, "bytes": 0}
    if os.path.exists(path):
        with open(path) as lines:
            for line in lines:
                for key, value in json.loads(line).items():
                    total[key] += value
        os.unlink(path)
    return total


def children_cpu():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def fsck_once(fsck, image, limit, env):
    cpu, clock = children_cpu(), time.monotonic()
    try:
        subprocess.run([fsck, "--extract", image], check=True, capture_output=True, env=env, timeout=limit)
    except subprocess.TimeoutExpired as late:
        raise GivenUp from late
    return time.monotonic() - clock, children_cpu() - cpu


class Mount:
    """An image through erofsfuse. Its process has ended when the block is left."""

    def __init__(self, fuse, image, env):
        self.point = tempfile.mkdtemp(prefix="ferrofs-bench-")
        self.process = subprocess.Popen([fuse, "-f", image, self.point], env=env,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        end = time.monotonic() + 20
        while not os.path.ismount(self.point):
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                sys.exit("erofsfuse does not mount (it needs root and /dev/fuse)")
            time.sleep(0.01)
        return self

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *_):
        if os.path.ismount(self.point) and subprocess.run(["umount", self.point]).returncode:
            subprocess.run(["umount", "-l", self.point], check=False)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.rmdir(self.point)


def files_of(tree, at_least, most_bytes):
    """Paths relative to the tree, in their order, each inode once, as ferrofs-bench chooses them; and their
    bytes."""
    found = []
    for folder, _, names in os.walk(os.fsencode(tree)):
        for name in names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_size >= at_least:
                found.append((os.path.relpath(path, os.fsencode(tree)), status.st_ino, status.st_size))
    chosen, seen, total = [], set(), 0
    for path, inode, size in sorted(found):
        if total < most_bytes and inode not in seen:
            seen.add(inode)
            chosen.append(os.fsdecode(path))
            total += size
    return chosen, total


def read_files(tree, files, end, sizes):
    block, total = memoryview(bytearray(BLOCK_BYTES)), 0
    for path in files:
        file = os.open(os.path.join(tree, path), os.O_RDONLY)
        try:
            while (count := os.readv(file, [block])) and time.monotonic() < end:
                total += count
        finally:
            os.close(file)
    sizes.append(total)


def fuse_once(fuse, image, choice, readers, limit, env):
    """Seconds, CPU seconds of erofsfuse, the files, their bytes, and the bytes of all files there are."""
    with Mount(fuse, image, env) as mount:
        files, size = files_of(mount.point, *choice)
        _, everything = files_of(mount.point, 1, 1 << 62)
        if not files:
            sys.exit(f"{image}: no file of that size")
        sizes, cpu, clock = [], mount.cpu(), time.monotonic()
        threads = [threading.Thread(target=read_files, args=(mount.point, files, clock + limit, sizes))
                   for _ in range(readers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds, cpu = time.monotonic() - clock, mount.cpu() - cpu
    if seconds >= limit:
        raise GivenUp
    if sizes != [size] * readers:
        sys.exit(f"{image}: a reader got something else than {size} bytes")
    return seconds, cpu, files, size, everything


def touched_clusters(dump, image, files):
    """Different places of compressed extents, or nothing where the image has fragments."""
    text = subprocess.run([dump, "-s", image], check=True, capture_output=True, text=True).stdout
    features = re.search(r"incompatible features:(.*)", text)
    if features and "fragments" in features[1]:
        return None
    places = set()
    for path in files:
        text = subprocess.run([dump, f"--path=/{path}", "-e", image], check=True, capture_output=True,
                              text=True).stdout
        for line in re.finditer(r"^\s*\d+:\s*\d+\.\.\s*\d+ \|\s*(\d+) :\s*(\d+)\.\.\s*\d+ \|\s*(\d+)", text, re.M):
            length, place, stored = map(int, line.groups())
            if length > stored:
                places.add(place)
    return len(places)


def row(image, who, readers, touched, counts, served, seconds, cpu):
    """Prints a row; its decodes a cluster, if they are known."""
    clusters, cells = None, ["", "", ""]
    if counts:
        clusters = counts["decodes"] / touched
        cells = [f"{counts['decodes']:.0f}", f"{clusters:.2f}", f"{counts['bytes'] / served:.2f}"]
    cells = [image, who, str(readers), str(touched), *cells, f"{served / 2**20:.0f}", f"{seconds:.2f}",
             f"{cpu:.2f}"]
    print("| " + " | ".join(cells) + " |", flush=True)
    return clusters


def given_up(image, who, readers, limit):
    print(f"| {image} | {who} | {readers} | | | | | | more than {limit:.0f} | |", flush=True)


def ours(bench, image, choice, size, readers, folder, limit):
    """Seconds, CPU seconds and counts of one run of ferrofs-bench reads, which must serve the same bytes."""
    found = os.path.join(folder, "reads.json")
    argv = [bench, "reads", image, f"--readers={readers}", f"--at-least={choice[0]}",
            f"--most-bytes={choice[1]}", f"--json={found}"]
    try:
        subprocess.run(argv, check=True, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired as late:
        raise GivenUp from late
    with open(found) as file:
        series = {entry["row"]: entry["samples"][0] for entry in json.load(file)["series"]}
    counts = None
    if "clusters decoded" in series:
        counts = {"decodes": series["clusters decoded"], "bytes": series["bytes decoded"]}
    if series["bytes served"] != size * readers:
        sys.exit(f"{image}: ferrofs-bench served {series['bytes served']} bytes, not {size} to each reader")
    return series["seconds"], series["CPU seconds"], counts


def main():
    bench, images, given = options()
    choice = int(given["at-least"]), int(given["most-bytes"])
    limit, is_held = float(given["limit"]), True
    fuse, fsck = shutil.which(given["fuse"]), shutil.which(given["fsck"])
    print("| image | who | readers | clusters touched | decoder calls | calls a cluster | bytes decoded per byte "
          "served | MiB served | seconds | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        shim, counts = compile_shim(folder), os.path.join(folder, "counts")
        for image in images:
            name = os.path.basename(image)
            touched = everything = None
            for readers in map(int, given["readers"].split(",")):
                try:
                    env = environment(shim, counts)
                    _, _, files, size, everything = fuse_once(fuse, image, choice, readers, limit, env)
                    found = counted(counts)
                    touched = (touched or touched_clusters(given["dump"], image, files)
                               or found["distinct"])
                    seconds, cpu, *_ = fuse_once(fuse, image, choice, readers, limit, environment(None, None))
                    row(name, "erofsfuse", readers, touched, found, size * readers, seconds, cpu)
                except GivenUp:
                    counted(counts)
                    given_up(name, "erofsfuse", readers, limit)
                if touched is None:
                    print(f"{name}: nothing to compare with", file=sys.stderr)
                    is_held = False
                    continue
                try:
                    seconds, cpu, found = ours(bench, image, choice, size, readers, folder, limit)
                    clusters = row(name, "ferrofs", readers, touched, found, size * readers, seconds, cpu)
                    is_held = is_held and clusters is not None and clusters <= MARK
                except GivenUp:
                    given_up(name, "ferrofs", readers, limit)
                    is_held = False
            if everything is None:
                continue
            try:
                fsck_once(fsck, image, limit, environment(shim, counts))
                found = counted(counts)
                seconds, cpu = fsck_once(fsck, image, limit, environment(None, None))
                row(name, "fsck.erofs, whole image", 1, found["distinct"], found, everything, seconds, cpu)
            except GivenUp:
                counted(counts)
                given_up(name, "fsck.erofs, whole image", 1, limit)
    sys.exit(0 if is_held else 1)


main()
