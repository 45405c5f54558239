#!/usr/bin/env python3
"""Times builds: ferrofs under the name mkfs.erofs against mkfs.erofs of erofs-utils, and `ferrofs build` with and without
verification, against the marks. --pair leaves `ferrofs build` out.

  bench_build.py FERROFS TREE --mkfs=PROGRAM [--rounds=5] [--cases=lz4-4k,...] [--work=DIR] [--jobs=N] [--pair]
                 [--report] [--samples=FILE]

All get the same options. They take turns in every round, after one unmeasured one; the tree is read into the page cache
before each. Images are written to DIR of --work, all to the same file system, and removed and synced between runs, untimed.
ferrofs writes an image to the disk before it gives it its name, and mkfs.erofs leaves that to the system: a DIR in memory
(tmpfs) shows what the programs do, one on a disk also what the disk does. --jobs is for both (--workers), else as they like.
Columns: wall time as median (and range), CPU time of user and system, peak of resident memory (ru_maxrss), the image; ratios
are of medians, those of ferrofs to mkfs.erofs, each beside its mark. Tables are Markdown; before each run the load by other
programs is taken, and its median stands under the table. Exit status 1 if a mark is missed, unless --report.
"""
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

import command_line
import mounted

COMMON = ["-T1710000000", "-U", "6f726566-7266-6566-6572-726f66730000"]
THEIR_COMMON = ["--quiet", "--mkfs-time", *COMMON]
OUR_COMMON = ["build", "--quiet", "--progress=none", "--force", *COMMON]
# {case: (algorithm, bytes of a pcluster, {word of -E: option of `ferrofs build`}, mark of the wall time)}
CASES = {
    "lz4-4k": ("lz4", "4096", {}, 1.0),
    "lz4hc-4k": ("lz4hc", "4096", {}, 0.9),
    "lz4hc-64k": ("lz4hc", "65536", {}, 0.9),
    "zstd-64k": ("zstd", "65536", {}, 0.9),
    "deflate-64k": ("deflate", "65536", {}, 0.9),
    "lzma-64k": ("lzma", "65536", {}, 0.9),
    "lz4hc-64k-all": ("lz4hc", "65536", {"fragments": "--fragments", "dedupe": "--dedupe",
                                         "ztailpacking": "--inline-pclusters"}, 0.5),
}
CPU_MARK, PEAK_MARK, VERIFY_MARK = 1.0, 1.0, 1.1
SIZE_MARK, DEDUPE_SIZE_MARK = 1.005, 1.01
PEER, OURS, VERIFIED, UNVERIFIED = "mkfs.erofs", "ferrofs as mkfs.erofs", "ferrofs build", "ferrofs build --no-verify"
FIGURES = {"wall": 3, "CPU": 2, "peak": 1}


def run(program, argv):
    """One run; its figures."""
    with tempfile.TemporaryFile() as said:
        foreign = mounted.foreign_load()
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            try:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                os.execv(program, argv)
            finally:
                os._exit(127)
        _, status, usage = os.wait4(child, 0)
        wall = time.monotonic() - begin
        said.seek(0)
        if status:
            sys.exit(f"{' '.join(argv)}: wait status {status}: {said.read().decode(errors='replace')[-500:]}")
    return {"wall": wall, "CPU": usage.ru_utime + usage.ru_stime, "peak": usage.ru_maxrss / 1024, "foreign": foreign}


def warm(tree):
    """Reads all of the tree, so that it is in the page cache; answers its bytes."""
    total = 0
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb", buffering=0) as file:
                    while piece := file.read(1 << 20):
                        total += len(piece)
    return total


class Bench:
    """Programs, options, and the marks that were missed."""

    def __init__(self, ferrofs, tree, given):
        self.ferrofs, self.peer, self.tree = mounted.found(ferrofs), mounted.found(given["mkfs"]), tree
        if not self.ferrofs or not self.peer:
            sys.exit(f"bench_build.py: no program {given['mkfs'] if self.ferrofs else ferrofs}")
        self.given, self.missed, self.samples = given, [], []
        self.work = tempfile.mkdtemp(prefix="bench-build-", dir=given["work"])
        self.image = os.path.join(self.work, "image.erofs")

    def commands(self, case):
        """{system: (program, its arguments with its name)}"""
        algorithm, pcluster, extended, _ = CASES[case]
        what = [f"-z{algorithm}", f"-C{pcluster}"]
        where = [self.image, self.tree]
        words = [f"-E{','.join(extended)}"] if extended else []
        jobs = self.given["jobs"]
        theirs = [PEER, *THEIR_COMMON, *what, *words, *([f"--workers={jobs}"] if jobs else []), *where]
        ours = ["ferrofs", *OUR_COMMON, *what, *extended.values(), *([f"--jobs={jobs}"] if jobs else []), *where]
        pair = {PEER: (self.peer, theirs), OURS: (self.ferrofs, theirs)}
        own = {VERIFIED: (self.ferrofs, ours), UNVERIFIED: (self.ferrofs, [*ours[:2], "--no-verify", *ours[2:]])}
        return pair if self.given["pair"] else {**pair, **own}

    def measure(self, case):
        """{system: [figures]}"""
        found = {}
        for number in range(int(self.given["rounds"]) + 1):
            for system, (program, argv) in self.commands(case).items():
                warm(self.tree)
                sample = run(program, argv)
                sample["bytes"] = os.path.getsize(self.image)
                os.unlink(self.image)
                os.sync()
                if number:
                    found.setdefault(system, []).append(sample)
                    self.samples.append({"case": case, "system": system, "round": number, **sample})
        return found

    def mark(self, case, what, ratio, limit):
        is_met = ratio <= limit
        text = f"{what} {ratio:.3f} (mark {limit}{'' if is_met else ', MISSED'})"
        if not is_met:
            self.missed.append(f"{case}: {text}")
        return text

    def verdict(self, case, system, found):
        """The ratios of one system, with their marks."""
        def ratio(figure, peer):
            return median(found[system], figure) / median(found[peer], figure)

        _, _, extended, wall_mark = CASES[case]
        if system == OURS:
            size_mark = DEDUPE_SIZE_MARK if "dedupe" in extended else SIZE_MARK
            marks = [("wall", wall_mark), ("CPU", CPU_MARK), ("peak", PEAK_MARK), ("bytes", size_mark)]
            return "; ".join(self.mark(case, figure, ratio(figure, PEER), limit) for figure, limit in marks)
        if system == VERIFIED:
            return self.mark(case, "verification: wall", ratio("wall", UNVERIFIED), VERIFY_MARK)
        return f"wall {ratio('wall', PEER):.3f}, CPU {ratio('CPU', PEER):.3f}" if system == UNVERIFIED else ""

    def table(self, case):
        found = self.measure(case)
        for system, samples in found.items():
            cells = [spread(samples, figure, digits) for figure, digits in FIGURES.items()]
            print(f"| {case} | {system} | {' | '.join(cells)} | {median(samples, 'bytes') / 1e6:.1f} "
                  f"| {self.verdict(case, system, found)} |", flush=True)


def median(samples, figure):
    return statistics.median(sample[figure] for sample in samples)


def spread(samples, figure, digits):
    values = [sample[figure] for sample in samples]
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if figure != "wall" else f"{middle} ({min(values):.{digits}f}…{max(values):.{digits}f})"


def arguments():
    given = {"mkfs": "mkfs.erofs", "rounds": "5", "cases": ",".join(CASES), "work": "/tmp", "jobs": "", "pair": "",
             "report": "", "samples": ""}
    words, given = command_line.read(__doc__, given, switches=("pair", "report"))
    if not set(given["cases"].split(",")) <= set(CASES):
        sys.exit(__doc__)
    return *words, given


def main():
    ferrofs, tree, given = arguments()
    bench = Bench(ferrofs, tree, given)
    print(f"{warm(tree) / 1e6:.1f} MB in files, {len(os.sched_getaffinity(0))} CPUs\n")
    print("| case | program | wall, s | CPU, s | peak, MiB | image, MB | ratios |\n|---|---|---|---|---|---|---|")
    for case in given["cases"].split(","):
        bench.table(case)
    load = [sample["foreign"] for sample in bench.samples]
    print(f"\nother programs: median {statistics.median(load):.2f}, at most {max(load):.2f} CPUs")
    if given["samples"]:
        with open(given["samples"], "w") as file:
            json.dump(bench.samples, file, indent=1)
    shutil.rmtree(bench.work)
    if bench.missed:
        print("\nmarks missed:\n" + "\n".join(f"* {text}" for text in bench.missed))
    return 1 if bench.missed and not given["report"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as reason:
        sys.exit(f"bench_build.py: {reason}")
