#!/usr/bin/env python3
"""Builds a tree with LZ4 windows of two sizes at 4 KiB pclusters, and compares the images in size, in the bounce frames that
decoding takes when no page of the output is at hand, and with the tree.

  window_table.py FERROFS BENCH TREE [--windows=65535,16384] [--algorithms=lz4,lz4hc] [--work=DIR] [--report]

BENCH is ferrofs-bench, which decodes every extent through the frames (`windows`). The kernel mounts every image, and what
it shows is compared with TREE. Marks: a size within 0.5 % of that with the first window, and a peak of one frame for each
page that the window covers and one more, which takes a TREE with extents that long. The table is Markdown. Exit status 1
on a difference or, unless --report, if a mark is missed. Needs root.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import command_line
import mounted
import snapshot

SIZE_MARK = 0.005
PCLUSTER_BYTES = PAGE_BYTES = 4096


class WindowTable:
    """Programs, a tree, a place to work, and what is wrong."""

    def __init__(self, ferrofs, bench, tree, given):
        self.ferrofs, self.bench, self.tree = mounted.found(ferrofs), mounted.found(bench), tree
        if not self.ferrofs or not self.bench:
            sys.exit(f"window_table.py: no program {bench if self.ferrofs else ferrofs}")
        self.given, self.missed, self.differing = given, [], []
        self.work = tempfile.mkdtemp(prefix="window-table-", dir=given["work"])
        self.source = snapshot.take(tree)

    def image(self, algorithm, window):
        return os.path.join(self.work, f"{algorithm}-{window}.erofs")

    def build(self, algorithm, window):
        argv = [self.ferrofs, "build", "--quiet", "--progress=none", "--reproducible", f"-z{algorithm}",
                f"-C{PCLUSTER_BYTES}", f"--max-distance={window}", self.image(algorithm, window), self.tree]
        subprocess.run(argv, stdin=subprocess.DEVNULL, check=True)

    def compare(self, image):
        with mounted.Mount(mounted.System("kernel"), image, os.path.join(self.work, "mount")) as mount:
            lines = snapshot.differences(self.source, snapshot.take(mount.directory))
        self.differing += [f"{os.path.basename(image)}: {line}" for line in lines]

    def frames(self, images):
        """Of each image, the frames of every extent."""
        samples = os.path.join(self.work, "windows.json")
        subprocess.run([self.bench, "--json", samples, "windows", *images], stdout=subprocess.DEVNULL, check=True)
        with open(samples) as file:
            return [series["samples"] for series in json.load(file)["series"]]

    def table(self):
        windows = [int(window) for window in self.given["windows"].split(",")]
        columns = ("algorithm", "window, bytes", "image, KB", "of the first", "LZ4 extents", "frames, mean", "frames, peak",
                   "differences")
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for algorithm in self.given["algorithms"].split(","):
            images = [self.image(algorithm, window) for window in windows]
            for window, image in zip(windows, images):
                self.build(algorithm, window)
                self.compare(image)
            first = os.path.getsize(images[0])
            for window, image, frames in zip(windows, images, self.frames(images)):
                self.row(algorithm, window, image, first, frames)

    def row(self, algorithm, window, image, first, frames):
        name, size, peak = os.path.basename(image), os.path.getsize(image), int(max(frames))
        differences = sum(line.startswith(f"{name}: ") for line in self.differing)
        print(f"| {algorithm} | {window} | {size // 1024} | {size / first:.5f} | {len(frames)} "
              f"| {statistics.mean(frames):.2f} | {peak} | {differences} |", flush=True)
        if abs(size / first - 1) > SIZE_MARK:
            self.missed.append(f"{name}: its size is {size / first:.5f} of the first, further from 1 than {SIZE_MARK}")
        most = -(-window // PAGE_BYTES) + 1
        if peak != most:
            self.missed.append(f"{name}: {peak} frames at the peak, and not {most}")


def arguments():
    given = {"windows": "65535,16384", "algorithms": "lz4,lz4hc", "work": "/tmp", "report": ""}
    words, given = command_line.read(__doc__, given, switches=("report",), words=(3, 3))
    return *words, given


def main():
    *words, given = arguments()
    table = WindowTable(*words, given)
    try:
        table.table()
    finally:
        shutil.rmtree(table.work)
    for title, lines in (("what differs", table.differing), ("marks missed", table.missed)):
        if lines:
            print(f"\n{title}:\n" + "\n".join(f"* {line}" for line in lines[:20]))
    return 1 if table.differing or table.missed and not given["report"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, subprocess.CalledProcessError, mounted.MountFailed) as reason:
        sys.exit(f"window_table.py: {reason}")
