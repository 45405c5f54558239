#!/usr/bin/env python3
"""Times `ferrofs extract` and `check` with one and two threads against fsck.erofs: wall and CPU seconds.

  bench_extract.py FERROFS FSCK MEMORY_DIR DISK_DIR IMAGE...
                   [--rounds=5] [--verbs=memory,disk,check] [--jobs=2]

`memory` extracts to a new directory in MEMORY_DIR (a tmpfs), `disk` to one in DISK_DIR, `check` reads
every byte and writes nothing (fsck.erofs --extract). Runs are interleaved, after one unmeasured run of
each, so the image is in the page cache. Between runs, untimed, what was written is put out of the way
and synced. On the disk only contents go at once, and all inodes at the very end: for minutes ext4 looks
at each inode that was deleted lately before it makes a new one (recently_deleted), so that whoever
extracts where something was just removed takes ten times as long, whatever the program. The tables
hold medians, and minimum and maximum of the wall time; ratios are of medians. They are Markdown.
"""
import os
import shutil
import statistics
import sys
import time


def run(argv):
    """Runs a command; answers its wall and CPU seconds."""
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.execv(argv[0], argv)
    _, status, usage = os.wait4(child, 0)
    wall = time.monotonic() - begin
    if status:
        sys.exit(f"{argv}: wait status {status}")
    return wall, usage.ru_utime + usage.ru_stime


def commands(options, verb, image, output):
    """What is compared, in the order of the columns."""
    ferrofs, fsck, jobs = options["ferrofs"], options["fsck"], options["jobs"]
    if verb == "check":
        ours = [ferrofs, "check", "--quiet", "--progress=none"]
        return [[fsck, "--extract", image], *([*ours, f"--jobs={n}", image] for n in (1, jobs))]
    ours = [ferrofs, "extract", "--quiet", "--progress=none"]
    return [[fsck, f"--extract={output}", image],
            *([*ours, f"--jobs={n}", image, output] for n in (1, jobs))]


def retire(output, trash):
    """Empties every file of an output and keeps its inodes in the trash."""
    for folder, _, names in os.walk(output):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                os.truncate(path, 0)
    os.makedirs(trash, exist_ok=True)
    os.rename(output, os.path.join(trash, str(len(os.listdir(trash)))))


def measure(options, verb, image):
    """Wall and CPU seconds of every round, a list for each command."""
    place = {"memory": options["memory"], "disk": options["disk"], "check": None}[verb]
    output = place and os.path.join(place, f"bench-extract-{os.getpid()}")
    trash = os.path.join(options["disk"], f"bench-extract-trash-{os.getpid()}")
    samples = [[], [], []]
    for number in range(options["rounds"] + 1):
        for sample, argv in zip(samples, commands(options, verb, image, output)):
            if verb == "disk":
                os.sync()
            result = run(argv)
            if verb == "disk":
                retire(output, trash)
            elif output:
                shutil.rmtree(output)
            if number:
                sample.append(result)
    return samples


def row(samples):
    """The cells of an image."""
    wall = [[wall for wall, _ in sample] for sample in samples]
    theirs, one, many = (statistics.median(w) for w in wall)
    cpu = [statistics.median(cpu for _, cpu in sample) for sample in samples]
    cells = [f"{statistics.median(w):.3f} ({min(w):.3f}…{max(w):.3f}) | {c:.3f}" for w, c in zip(wall, cpu)]
    ratios = [one / theirs, many / theirs, many / one, cpu[2] / cpu[1]]
    return " | ".join(cells + [f"{ratio:.2f}" for ratio in ratios])


def main():
    given = dict(a[2:].split("=", 1) for a in sys.argv[1:] if a.startswith("--"))
    words = [a for a in sys.argv[1:] if not a.startswith("--")]
    if len(words) < 5:
        sys.exit(__doc__)
    ferrofs, fsck, memory, disk, *images = words
    jobs = int(given.get("jobs", "2"))
    options = {"ferrofs": ferrofs, "fsck": fsck, "memory": memory, "disk": disk, "jobs": jobs,
               "rounds": int(given.get("rounds", "5"))}
    for verb in given.get("verbs", "memory,disk,check").split(","):
        title = {"memory": "extract to memory", "disk": "extract to disk", "check": "check"}[verb]
        print(f"\n{title}; seconds\n\n| image | fsck.erofs wall | CPU | --jobs 1 wall | CPU | --jobs {jobs} wall | CPU "
              f"| 1 / fsck | {jobs} / fsck | {jobs} / 1 | CPU {jobs} / 1 |\n|{'---|' * 11}")
        for image in images:
            name = os.path.basename(image).removesuffix(".erofs")
            print(f"| {name} | {row(measure(options, verb, image))} |", flush=True)
    shutil.rmtree(os.path.join(disk, f"bench-extract-trash-{os.getpid()}"), ignore_errors=True)


main()
