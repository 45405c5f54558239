#!/usr/bin/env python3
"""Times reading through mounts: ferrofs beside the kernel's EROFS, erofsfuse and squashfuse_ll, against the marks.

  bench_mount.py FERROFS BED [--experiments=tree,big,random,metadata] [--codecs=lz4-4k,...] [--rounds=5]
                 [--systems=kernel,kernel-file,erofsfuse,squashfuse_ll,ferrofs] [--erofsfuse=PROGRAM]
                 [--squashfuse=PROGRAM] [--options=ARGUMENTS] [--jobs=1,4] [--work=DIR] [--report] [--samples=FILE]
                 [--judge=kernel|kernel-file]

BED is what make-mount-bed.sh built. FERROFS may be `-`: only the others are measured. Needs root, and fio for `random`.
`kernel` is what mount(8) makes, over a loop device; `kernel-file` is mount(2) straight on the file. Marks against the
kernel are those against --judge.
  tree      find -type f | xargs -P R -n 64 cat, with R of --jobs readers, over the whole tree
  big       one file of 512 MiB from beginning to end, by dd bs=1M
  random    fio, psync: every block of 4 KiB of 64 MiB once, in random order, without readahead, by N jobs of --jobs, each
            in its own part of the file
  metadata  find, and ls -lR, over 100,000 inodes
Before each run all caches of the system are dropped, the image is read into the page cache, and it is mounted anew; the
programs that read are run once on something else. Systems take turns in every round. Tables are Markdown and hold
medians, with minimum and maximum. CPU is that of the readers and of the daemon (what the kernel's own threads do for the
kernel's EROFS is in neither). Under each table stands what other programs took of the CPUs just before the runs.
Exit status 1 if a mark is missed, unless --report.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import command_line
import mounted

CODECS = ["lz4-4k", "lz4hc-64k", "zstd-64k", "deflate-64k", "lzma-64k"]
# The most that ferrofs may take: {experiment: {(system, figure): {codec, or "": ratio}}}
MARKS = {
    "tree": {("erofsfuse", "wall"): {"": 0.70},
             ("kernel", "wall"): {"lz4-4k": 1.15, "lz4hc-64k": 1.15, "zstd-64k": 1.0, "deflate-64k": 0.60,
                                  "lzma-64k": 0.55}},
    "big": {("kernel", "wall"): {"": 1.0, "lz4-4k": 1 / 0.9}},
    "random": {("kernel", "mean"): {"": 1.1}, ("kernel", "p99"): {"": 1.0}},
    "metadata": {("kernel", "wall"): {"": 1.5}, ("erofsfuse", "wall"): {"": 0.5}},
}
IMAGES = {"tree": "tree", "big": "blob", "random": "blob", "metadata": "many"}
RANDOM_MIB = 64
BIG_MIB = 512


def reader(argv, directory):
    """Runs a reader in a directory; its wall and CPU seconds, and those of its children, and its output."""
    with tempfile.TemporaryFile() as output:
        begin = time.monotonic()
        child = subprocess.Popen(argv, cwd=directory, stdin=subprocess.DEVNULL, stdout=output)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.monotonic() - begin
        child.returncode = status
        output.seek(0)
        text = output.read().decode()
    if status:
        sys.exit(f"{argv}: wait status {status}")
    return {"wall": wall, "reader CPU": usage.ru_utime + usage.ru_stime}, text


def shell(text):
    return ["/bin/sh", "-c", text]


def fio(jobs):
    part = RANDOM_MIB // jobs
    return ["fio", "--name=random", "--filename=random", "--rw=randread", "--bs=4k", "--ioengine=psync", "--readonly",
            "--norandommap=0", "--randrepeat=1", "--fadvise_hint=random", "--invalidate=0", f"--size={part}m",
            f"--offset_increment={part}m", f"--numjobs={jobs}", "--group_reporting", "--output-format=json",
            "--percentile_list=50:99:99.9"]


def runs_of(experiment, jobs):
    """The commands of an experiment by name."""
    if experiment == "tree":
        return {f"{n} readers" if n > 1 else "1 reader":
                shell(f"find . -type f -print0 | xargs -0 -P {n} -n 64 cat > /dev/null") for n in jobs}
    if experiment == "big":
        return {"sequential": shell("exec dd if=big of=/dev/null bs=1M status=none")}
    if experiment == "random":
        return {f"{n} jobs" if n > 1 else "1 job": fio(n) for n in jobs}
    return {"find": shell("exec find . > /dev/null"), "ls -lR": shell("LC_ALL=C exec ls -lR . > /dev/null")}


def figures(experiment, argv, directory):
    """One run; its figures."""
    sample, text = reader(argv, directory)
    if experiment == "random":
        clat = json.loads(text)["jobs"][0]["read"]["clat_ns"]
        total = json.loads(text)["jobs"][0]["read"]["total_ios"]
        if total != RANDOM_MIB * 256:
            sys.exit(f"fio read {total} blocks instead of {RANDOM_MIB * 256}")
        sample.update(mean=clat["mean"] / 1000, p50=clat["percentile"]["50.000000"] / 1000,
                      p99=clat["percentile"]["99.000000"] / 1000, p999=clat["percentile"]["99.900000"] / 1000)
    return sample


class Bench:
    """Options, what was measured, and the marks that were missed."""

    def __init__(self, bed, given, systems):
        self.bed, self.given, self.systems = bed, given, systems
        self.rounds, self.missed, self.samples = int(given["rounds"]), [], []
        self.work = tempfile.mkdtemp(prefix="bench-mount-", dir=given["work"])
        self.warm = os.path.join(self.work, "warm")
        os.mkdir(self.warm)
        for name, size in (("big", 1 << 20), ("random", RANDOM_MIB << 20)):
            with open(os.path.join(self.warm, name), "wb") as file:
                file.truncate(size)

    def codecs(self, experiment):
        return ["plain"] if experiment == "metadata" else self.given["codecs"].split(",")

    def image(self, experiment, codec, system):
        kind = IMAGES[experiment]
        return os.path.join(self.bed, f"{kind}.sqfs" if system.takes == "squashfs" else f"{kind}-{codec}.erofs")

    def once(self, experiment, argv, system, image):
        """A run on a fresh mount with cold caches."""
        mounted.cool(image)
        with mounted.Mount(system, image, os.path.join(self.work, "mount")) as mount:
            reader(argv if experiment != "random" else ["fio", "--version"], self.warm)
            foreign = mounted.foreign_load()
            before = mount.daemon_cpu_seconds()
            sample = figures(experiment, argv, mount.directory)
            sample["daemon CPU"] = mount.daemon_cpu_seconds() - before
            sample["foreign"] = foreign
            sample["daemon peak"] = mount.daemon_kib("VmHWM") / 1024 if mount.daemons else 0
        return sample

    def measure(self, experiment, run, argv):
        """{codec: {system: [figures]}}; squashfs has one image for all codecs."""
        cells = {}
        for number in range(self.rounds):
            for index, codec in enumerate(self.codecs(experiment)):
                for system in self.systems:
                    row = cells.setdefault(codec, {})
                    if system.takes == "squashfs" and index:
                        row[system.name] = next(iter(cells.values()))[system.name]
                        continue
                    sample = self.once(experiment, argv, system, self.image(experiment, codec, system))
                    row.setdefault(system.name, []).append(sample)
                    self.samples.append({"experiment": experiment, "run": run, "codec": codec, "system": system.name,
                                         "round": number, **sample})
        return cells

    def verdict(self, experiment, run, codec, row):
        """Ratios of ferrofs to the others, each beside its mark where it has one."""
        words = []
        for (peer, figure), limits in MARKS[experiment].items():
            judge = self.given["judge"] if peer == "kernel" else peer
            for name in [name for name in row if name.startswith(peer)]:
                ratio = median(row["ferrofs"], figure) / median(row[name], figure)
                words.append(f"{figure} {ratio:.2f} of {name}")
                limit = limits.get(codec, limits.get(""))
                if name != judge:
                    continue
                words[-1] += f" (mark {limit:.2f}{'' if ratio <= limit else ', MISSED'})"
                if ratio > limit:
                    self.missed.append(f"{experiment}, {run}, {codec}: {words[-1]}")
        return "; ".join(words)

    def table(self, experiment, run, argv):
        cells = self.measure(experiment, run, argv)
        shown = ["mean", "p50", "p99", "p999"] if experiment == "random" else ["wall"]
        unit = "µs" if experiment == "random" else "seconds"
        print(f"\n### {experiment}, {run}; {unit}, CPU in seconds\n\n`{' '.join(argv)}`\n")
        print("| image | system | " + " | ".join(shown) + " | reader CPU | daemon CPU | daemon peak MiB | ferrofs against it |")
        print("|" + "---|" * (len(shown) + 6))
        for codec, row in cells.items():
            for name, samples in row.items():
                digits = 0 if experiment == "random" else 3
                columns = [spread(samples, figure, digits) for figure in shown]
                columns += [f"{median(samples, 'reader CPU'):.2f}", f"{median(samples, 'daemon CPU'):.2f}",
                            f"{median(samples, 'daemon peak'):.1f}"]
                if experiment == "big":
                    columns[0] += f" = {BIG_MIB / median(samples, 'wall'):.0f} MiB/s"
                columns.append(self.verdict(experiment, run, codec, row) if name == "ferrofs" else "")
                print(f"| {codec} | {name} | " + " | ".join(columns) + " |", flush=True)
        load = [sample["foreign"] for row in cells.values() for samples in row.values() for sample in samples]
        print(f"\nother programs: median {statistics.median(load):.2f}, at most {max(load):.2f} CPUs", flush=True)


def median(samples, figure):
    return statistics.median(sample[figure] for sample in samples)


def spread(samples, figure, digits):
    values = [sample[figure] for sample in samples]
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}…{max(values):.{digits}f})"


def options():
    given = {"experiments": "tree,big,random,metadata", "codecs": ",".join(CODECS), "rounds": "5",
             "systems": "kernel,kernel-file,erofsfuse,squashfuse_ll,ferrofs", "erofsfuse": "erofsfuse",
             "squashfuse": "squashfuse_ll", "options": "", "jobs": "1,4", "work": "/tmp", "report": False,
             "samples": None, "judge": "kernel"}
    words, given = command_line.read(__doc__, given, switches=("report",))
    if not set(given["experiments"].split(",")) <= set(MARKS):
        sys.exit(__doc__)
    return words[0], words[1], given


def systems_of(ferrofs, given):
    known = {"kernel": lambda: mounted.System("kernel"), "kernel-file": lambda: mounted.System("kernel-file"),
             "erofsfuse": lambda: mounted.System("erofsfuse", mounted.found(given["erofsfuse"])),
             "squashfuse_ll": lambda: mounted.System("squashfuse_ll", mounted.found(given["squashfuse"]),
                                                     takes="squashfs"),
             "ferrofs": lambda: mounted.System("ferrofs", mounted.found(ferrofs), ["mount", *given["options"].split()])}
    systems = []
    for name in given["systems"].split(","):
        if name == "ferrofs" and ferrofs == "-":
            continue
        system = known[name]()
        if not system.program and not name.startswith("kernel"):
            sys.exit(f"bench_mount.py: {name} is not installed")
        systems.append(system)
    # A mark without its judge would never be missed.
    names, wanted = {system.name for system in systems}, {given["judge"], "erofsfuse"}
    if "ferrofs" in names and not given["report"] and not wanted <= names:
        sys.exit(f"bench_mount.py: --systems lacks {', '.join(wanted - names)}; only --report can do without")
    return systems


def main():
    ferrofs, bed, given = options()
    bench = Bench(bed, given, systems_of(ferrofs, given))
    print("\n".join(f"* {system.name}: `{' '.join(system.command())}`" for system in bench.systems))
    for experiment in given["experiments"].split(","):
        for run, argv in runs_of(experiment, [int(n) for n in given["jobs"].split(",")]).items():
            bench.table(experiment, run, argv)
    if given["samples"]:
        with open(given["samples"], "w") as file:
            json.dump(bench.samples, file, indent=1)
    subprocess.run(["rm", "-rf", bench.work], check=True)
    if bench.missed:
        print("\nmarks missed:\n" + "\n".join(f"* {text}" for text in bench.missed))
    sys.exit(1 if bench.missed and not given["report"] else 0)


try:
    main()
except (OSError, mounted.MountFailed) as reason:
    sys.exit(f"bench_mount.py: {reason}")
