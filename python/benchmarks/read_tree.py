#!/usr/bin/env python3
"""Reads every file of one tree from Python, through ferrofs and through other archives, and prints MB/s.

    read_tree.py TREE --work DIR [--image IMAGE] [--rounds 5] [--peers DIR]

TREE is a directory. Archives of it that are missing in DIR are made first: zip (deflated and stored), tar, SquashFS
(gzip, by mksquashfs) and EROFS (lz4hc, clusters of 64 KiB). Each candidate reads in a process of its own, and the
candidates take turns. Archives and plain files are in the page cache before a run; the kernel's mount is a new one for
each run, so that its inodes and pages are not. Candidates whose library or privilege is missing are named and left out.
The time includes opening the archive.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def files_below(root: str) -> Iterator[str]:
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path) and not os.path.islink(path):
                yield path


def shared_out(threads: int, items: list, read: Callable) -> int:
    """The sum of `read` over `items`; each thread takes every `threads`-th item."""
    if threads == 1:
        return sum(map(read, items))
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda part: sum(map(read, items[part::threads])), range(threads)))


def read_file(path: str) -> int:
    with open(path, "rb", buffering=0) as file:
        return len(file.read())


def plain(source: Path, threads: int) -> int:
    return shared_out(threads, list(files_below(str(source))), read_file)


def with_ferrofs(source: Path, threads: int) -> int:
    import ferrofs

    with ferrofs.Image(source) as image:
        infos = [info for info in image.infolist() if info.is_file()]
        return shared_out(threads, infos, lambda info: len(image.read(info)))


def with_zipfile(source: Path, threads: int) -> int:
    with zipfile.ZipFile(source) as archive:
        return shared_out(threads, archive.infolist(), lambda info: len(archive.read(info)))


def with_tarfile(source: Path, threads: int) -> int:
    with tarfile.open(source) as archive:
        members = [member for member in archive if member.isfile()]
        return shared_out(threads, members, lambda member: len(archive.extractfile(member).read()))


def with_ratarmount(source: Path, threads: int) -> int:
    from ratarmountcore.mountsource.formats.squashfs import SquashFSMountSource

    archive = SquashFSMountSource(str(source))
    found, pending = [], ["/"]
    while pending:
        directory = pending.pop()
        for name, info in (archive.list(directory) or {}).items():
            path = f"{directory.rstrip('/')}/{name}"
            if info.mode & 0o170000 == 0o040000:
                pending.append(path)
            elif info.mode & 0o170000 == 0o100000:
                found.append(info)

    def read(info: object) -> int:
        with archive.open(info) as file:
            return len(file.read())

    return shared_out(threads, found, read)


def with_pysquashfs(source: Path, threads: int) -> int:
    from PySquashfsImage import SquashFsImage

    with SquashFsImage.from_file(str(source)) as image:
        found = [entry for entry in image if entry.is_file]
        return shared_out(threads, found, lambda entry: len(entry.read_bytes()))


READERS = {
    "plain files": (plain, "tree"),
    "kernel's mount": (plain, "erofs"),
    "ferrofs": (with_ferrofs, "erofs"),
    "zipfile, stored": (with_zipfile, "t0.zip"),
    "zipfile, deflated": (with_zipfile, "t.zip"),
    "tarfile": (with_tarfile, "t.tar"),
    "ratarmount, SquashFS": (with_ratarmount, "t.sqfs"),
    "PySquashfsImage": (with_pysquashfs, "t.sqfs"),
}


def make_archives(tree: Path, work: Path, image: Path, peers: Path) -> None:
    for name, method in [("t.zip", zipfile.ZIP_DEFLATED), ("t0.zip", zipfile.ZIP_STORED)]:
        if not (work / name).exists():
            with zipfile.ZipFile(work / name, "w", method, strict_timestamps=False) as archive:
                for path in files_below(str(tree)):
                    archive.write(path, os.path.relpath(path, tree))
    if not (work / "t.tar").exists():
        subprocess.run(["tar", "-cf", work / "t.tar", "-C", tree, "."], check=True)
    if not (work / "t.sqfs").exists():
        search = f"{peers}:{os.environ['PATH']}"
        mksquashfs = shutil.which("mksquashfs", path=search)
        if mksquashfs:
            command = [mksquashfs, tree, work / "t.sqfs", "-comp", "gzip", "-no-fragments", "-quiet", "-no-progress"]
            subprocess.run(command, check=True)
    if not image.exists():
        import ferrofs

        ferrofs.build(tree, image, compression="lz4hc", pcluster_size=65536)


@contextlib.contextmanager
def mounted(image: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as point:
        subprocess.run(["mount", "-t", "erofs", "-o", "loop,ro", image, point], check=True)
        try:
            yield Path(point)
        finally:
            subprocess.run(["umount", point], check=True)


def run_once(name: str, source: Path, threads: int) -> dict:
    command = [sys.executable, __file__, "--one", name, str(threads), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    lines = done.stdout.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"no result: {done.stdout[-80:]!r} {done.stderr[-80:]!r}")
    return json.loads(lines[-1])


def one(name: str, threads: int, source: Path) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    size = READERS[name][0](source, threads)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps({"bytes": size, "mb_s": size / took / 1e6, "cpu": used}))


def measure(arguments: argparse.Namespace, image: Path) -> None:
    samples: dict[tuple[str, int], list[dict]] = {}
    missing: dict[tuple[str, int], str] = {}
    for _ in range(arguments.rounds):
        for name, (_, kind) in READERS.items():
            place = {"tree": arguments.tree, "erofs": image}.get(kind, arguments.work / kind)
            for threads in (1, 2):
                if (name, threads) in missing:
                    continue
                try:
                    with contextlib.ExitStack() as stack:
                        warm = files_below(str(place)) if place.is_dir() else [str(place)]
                        sum(map(read_file, warm))
                        kernel = name == "kernel's mount"
                        source = stack.enter_context(mounted(image)) if kernel else place
                        samples.setdefault((name, threads), []).append(run_once(name, source, threads))
                except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                    missing[name, threads] = str(error)
    kernel = samples.get(("kernel's mount", 1))
    base = statistics.median(run["mb_s"] for run in kernel) if kernel else None
    print("| who | threads | MB/s, median (least, most) | of the kernel's mount, 1 thread | CPU s | MB |\n|---|---|---|---|---|---|")
    for (name, threads), runs in samples.items():
        if (name, threads) in missing:
            continue
        rates = sorted(run["mb_s"] for run in runs)
        middle = statistics.median(rates)
        ratio = f"{middle / base:.2f}" if base else "-"
        cpu = statistics.median(run["cpu"] for run in runs)
        print(f"| {name} | {threads} | {middle:.0f} ({rates[0]:.0f}, {rates[-1]:.0f}) | {ratio} | {cpu:.2f} | {runs[0]['bytes'] / 1e6:.1f} |")
    for (name, threads), why in missing.items():
        print(f"left out: {name}, threads: {threads}: {why}", file=sys.stderr)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        return one(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="directory for the archives")
    parser.add_argument("--image", type=Path, help="EROFS image of TREE (default: WORK/t.erofs)")
    parser.add_argument("--peers", type=Path, default=Path("/nonexistent"), help="directory with mksquashfs")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    image = arguments.image or arguments.work / "t.erofs"
    make_archives(arguments.tree, arguments.work, image, arguments.peers)
    measure(arguments, image)


if __name__ == "__main__":
    main()
