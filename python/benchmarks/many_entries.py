#!/usr/bin/env python3
"""Walks, finds and globs images of 30,000 files in 300 directories and of 300,000 in 3,000; compares the time per entry.

    many_entries.py --work DIR

The images are made first, if they are missing in DIR. Each operation runs in a process of its own that does nothing
else, so that the memory that is shown is that of the operation, with the interpreter and fsspec. It ends with status 1
if an operation takes more than twice as long per entry for the large image, or 200 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SIZES = (30_000, 300_000)
MOST_BYTES = 200_000_000
MOST_RATIO = 2
ROUNDS = 3


def image_of(files: int, work: Path) -> Path:
    import ferrofs

    image = work / f"entries-{files}.erofs"
    if not image.exists():
        directories = files // 100
        entries = ((f"d{number % directories}/f{number}.txt", b"x") for number in range(files))
        ferrofs.build(entries, image, None)
    return image


def operation(name: str, image: Path) -> Callable[[], int]:
    if name == "Image.walk":
        import ferrofs

        opened = ferrofs.Image(image)
        return lambda: sum(len(files) for _, _, files in opened.walk())
    import fsspec

    fs = fsspec.filesystem("erofs", fo=str(image))
    return {
        "walk": lambda: sum(len(files) for _, _, files in fs.walk("")),
        "find": lambda: len(fs.find("")),
        "glob": lambda: len(fs.glob("**/*.txt")),
    }[name]


def measure(name: str, image: Path) -> None:
    """Prints microseconds of CPU time for each file, the best of some rounds, and the most memory of the process."""
    run = operation(name, image)
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        files = run()
        best = min(best, time.process_time() - started)
    assert image.name == f"entries-{files}.erofs", files
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([best / files * 1e6, memory]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        measure(chosen.one[0], Path(chosen.one[1]))
        return 0
    chosen.work.mkdir(parents=True, exist_ok=True)
    print(f"load {os.getloadavg()[0]:.1f}; us of CPU time per file, MB of the process")
    missed = False
    for name in ("Image.walk", "walk", "find", "glob"):
        results = []
        for files in SIZES:
            image = image_of(files, chosen.work)
            command = [sys.executable, __file__, "--work", str(chosen.work), "--one", name, str(image)]
            results.append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
        (small, _), (large, memory) = results
        missed |= large > MOST_RATIO * small or memory >= MOST_BYTES
        print(f"{name:10} {small:5.2f} {large:5.2f}  ratio {large / small:.2f}  {memory / 1e6:5.0f} MB")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
