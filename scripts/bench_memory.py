#!/usr/bin/env python3
"""Peak memory against the limit: `ferrofs extract` and `check` with --memory, alone and in a cgroup.

  bench_memory.py FERROFS IMAGE... --source=TREE --work=DIR  [--memory=32M,64M,256M] [--jobs=N]
                  [--compare=each|smallest|none] [--fsck=fsck.erofs] [--squashfs=FILE --unsquashfs=unsquashfs]
                  [--mkfs=mkfs.erofs] [--no-cgroup]

The images hold TREE. DIR is where trees are extracted to; it must lie on a disk, since pages of tmpfs would
be charged to the cgroup, too. Each command runs once for its peak (the largest resident set that the kernel
saw, which is VmHWM), and once more in a memory cgroup that may use just as much and no swap, page cache
included. What was extracted is compared with TREE by compare_trees.py. Needs root and GNU time.

Peers stand beside it: fsck.erofs on each image, without a limit, since it takes none; unsquashfs with
-mem of each size on FILE; mkfs.erofs building an image of TREE with its defaults. Peers run only if named
(fsck.erofs: if found). Tables are Markdown. Exit status 1 if a peak is above 1.05 times the limit, a command
fails, something is killed, or bytes differ.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import control_group

MARK = 1.05
MIB = 1 << 20
# A command that takes longer hangs.
LIMIT_SECONDS = 600
HERE = os.path.dirname(os.path.abspath(__file__))


def options():
    given = {"source": None, "work": None, "memory": "32M,64M,256M", "jobs": None, "compare": "each",
             "fsck": shutil.which("fsck.erofs"), "squashfs": None, "unsquashfs": "unsquashfs", "mkfs": None,
             "no-cgroup": False}
    words = []
    for word in sys.argv[1:]:
        name, equals, value = word[2:].partition("=")
        if not word.startswith("--"):
            words.append(word)
        elif name in given and bool(equals) != (name == "no-cgroup"):
            given[name] = value or True
        else:
            sys.exit(__doc__)
    if len(words) < 2 or not given["source"] or not given["work"]:
        sys.exit(__doc__)
    if given["compare"] not in ("each", "smallest", "none"):
        sys.exit(__doc__)
    return words[0], words[1:], given


def bytes_of(text):
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]


def peak_of(argv):
    """(exit status, peak in bytes, seconds, what it said). The kernel counts what a process had before its
    exec, so it is started by GNU time, which is small, and not from here."""
    with tempfile.NamedTemporaryFile("r") as report:
        clock = time.monotonic()
        command = ["time", "--quiet", "-f", "%M", "-o", report.name, *argv]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True)
        try:
            said, _ = process.communicate(timeout=LIMIT_SECONDS)
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            status = "hangs"
        seconds = time.monotonic() - clock
        lines = report.read().split()
        return status, int(lines[-1]) << 10 if lines else 0, seconds, said


class Bench:
    """What all rows have in common, and whether all of them were right."""

    def __init__(self, ferrofs, given):
        self.ferrofs, self.given, self.is_right = ferrofs, given, True
        self.target = os.path.join(given["work"], "ferrofs-bench-memory-out")
        self.clear()

    def clear(self):
        subprocess.run(["rm", "-rf", self.target], check=True)

    def fault(self, text):
        self.is_right = False
        print(f"bench_memory.py: {text}", file=sys.stderr, flush=True)

    def command(self, verb, image, memory):
        argv = [self.ferrofs, verb, f"--memory={memory}", "--progress=none", "--quiet"]
        if self.given["jobs"]:
            argv.append(f"--jobs={self.given['jobs']}")
        return argv + [image] + ([self.target] if verb == "extract" else [])

    def compare(self, name):
        """Whether the tree is the source, as a word."""
        argv = [sys.executable, os.path.join(HERE, "compare_trees.py"), "--max=3", self.given["source"],
                self.target]
        found = subprocess.run(argv, capture_output=True, text=True)
        if found.returncode:
            self.fault(f"{name}: {found.stdout.strip()}")
            return "differs"
        return "same"

    def run(self, name, argv, is_compared):
        """One command; its cells: peak, seconds, comparison."""
        status, peak, seconds, said = peak_of(argv)
        if status:
            self.fault(f"{name}: status {status}: {said.strip()[-300:]}")
        word = self.compare(name) if is_compared and not status else ""
        self.clear()
        return status, peak, seconds, word

    def in_group(self, name, argv, limit_bytes, is_compared):
        """The same in a cgroup of that size; its cells as text."""
        control_group.flush_file_pages()
        with control_group.MemoryGroup(limit_bytes) as group:
            status, _, seconds, word = self.run(name, group.inside(argv), is_compared)
            killed, peak = group.killed(), group.peak_bytes()
        if killed:
            self.fault(f"{name}: {killed} killed for want of memory")
        charged = f"{peak / MIB:.1f}" if peak else ""
        return [str(killed), f"status {status}" if status else f"{seconds:.2f}", charged, word]

    def row(self, image, verb, memory, is_compared):
        limit_bytes, name = bytes_of(memory), f"{os.path.basename(image)}: {verb} --memory={memory}"
        is_compared = is_compared and verb == "extract"
        argv = self.command(verb, image, memory)
        status, peak, seconds, word = self.run(name, argv, is_compared)
        ratio = peak / limit_bytes
        if ratio > MARK:
            self.fault(f"{name}: peak {peak / MIB:.1f} MiB is {ratio:.2f} of the limit")
        cells = [os.path.basename(image), verb, memory, f"{peak / MIB:.1f}", f"{ratio:.2f}",
                 f"status {status}" if status else f"{seconds:.2f}", word]
        if not self.given["no-cgroup"]:
            cells += self.in_group(f"{name} in a cgroup", argv, limit_bytes, is_compared)
        print("| " + " | ".join(cells) + " |", flush=True)

    def peer(self, what, argv):
        status, peak, seconds, said = peak_of(argv)
        self.clear()
        end = f"status {status}: {said.strip()[-80:]}" if status else f"{seconds:.2f}"
        print(f"| {what} | {peak / MIB:.1f} | {end} |", flush=True)

    def peers(self, images, sizes):
        print("\n| peer | peak MiB | seconds |\n|---|---|---|")
        for image in images if self.given["fsck"] else []:
            name = os.path.basename(image)
            self.peer(f"fsck.erofs --extract=DIR {name}", [self.given["fsck"], f"--extract={self.target}", image])
            self.peer(f"fsck.erofs --extract {name}", [self.given["fsck"], "--extract", image])
        for memory in sizes if self.given["squashfs"] else []:
            argv = [self.given["unsquashfs"], "-q", "-n", "-mem", memory, "-d", self.target]
            self.peer(f"unsquashfs -mem {memory}", argv + [self.given["squashfs"]])
        if self.given["mkfs"]:
            built = os.path.join(self.given["work"], "ferrofs-bench-memory.erofs")
            self.peer("mkfs.erofs -zlz4hc", [self.given["mkfs"], "--quiet", "-zlz4hc", built,
                                             self.given["source"]])
            os.unlink(built)


def main():
    ferrofs, images, given = options()
    sizes = sorted(given["memory"].split(","), key=bytes_of)
    bench = Bench(ferrofs, given)
    header = ["image", "verb", "limit", "peak MiB", "peak / limit", "seconds", "bytes"]
    if not given["no-cgroup"]:
        header += ["killed in a cgroup", "seconds there", "charged MiB", "bytes there"]
    print("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|", flush=True)
    for image in images:
        for verb in ("extract", "check"):
            for memory in sizes:
                is_compared = given["compare"] == "each" or given["compare"] == "smallest" and memory == sizes[0]
                bench.row(image, verb, memory, is_compared)
    bench.peers(images, sizes)
    sys.exit(0 if bench.is_right else 1)


try:
    main()
except control_group.Unavailable as reason:
    sys.exit(f"bench_memory.py: {reason}; --no-cgroup leaves that part out")
