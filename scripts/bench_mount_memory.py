#!/usr/bin/env python3
"""Memory of a mount under many readers, and what it costs while nobody reads.

  bench_mount_memory.py [--memory=64M] [--readers=64] [--seconds=30] [--options=ARGUMENTS] [--parts=readers,idle]
                        [--work=DIR] [--report] FERROFS TREE IMAGE...

The images hold TREE. Each is mounted with --memory, and read whole by that many readers at once, with cold caches: the
largest resident set of the daemon (VmHWM) may be 1.05 of the limit, and the bytes must be those of TREE. Then, without
options: right after the mount, and again 10 s after the whole tree was read by 4 readers, VmRSS must be below 12 MB and
the daemon may take 0.1 % of a core over --seconds. Exit status 1 if not, unless --report. Needs root.
"""
import os
import subprocess
import sys
import tempfile
import time

import command_line
import mounted

PEAK_MARK = 1.05
IDLE_BYTES, IDLE_SHARE = 12_000_000, 0.001
QUIET_SECONDS = 10
FILES_A_READER = 16


def digests(root, readers):
    """sha256sum of every file, in order; and the seconds it took."""
    begin = time.monotonic()
    ran = subprocess.run(f"find . -type f -print0 | xargs -0 -P {readers} -n {FILES_A_READER} sha256sum", shell=True,
                         cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    errors = ran.stderr.decode(errors="replace").strip().split("\n")
    if ran.returncode:
        return [], time.monotonic() - begin, errors[0]
    return sorted(ran.stdout.split(b"\n")), time.monotonic() - begin, ""


def run_seconds(pids):
    """What the threads that live have run, to the nanosecond; /proc/PID/stat counts ticks of 10 ms."""
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                total += int(file.read().split()[0])
    return total / 1e9


class Bench:
    """Options, where to mount, and what was not as it should be."""

    def __init__(self, ferrofs, tree, given):
        self.ferrofs, self.tree, self.given, self.missed = mounted.found(ferrofs), tree, given, []
        self.work = tempfile.mkdtemp(prefix="bench-mount-memory-", dir=given["work"])
        if not self.ferrofs:
            sys.exit(f"bench_mount_memory.py: no program {ferrofs}")

    def mount(self, image, *arguments):
        system = mounted.System("ferrofs", self.ferrofs, ["mount", *self.given["options"].split(), *arguments])
        return mounted.Mount(system, image, os.path.join(self.work, "mount"))

    def judge(self, is_so, text):
        if not is_so:
            self.missed.append(text)
        return "" if is_so else "MISSED"

    def under_readers(self, images):
        memory, readers = self.given["memory"], int(self.given["readers"])
        limit = int(memory[:-1]) << {"K": 10, "M": 20, "G": 30}[memory[-1]]
        right, _, error = digests(self.tree, os.cpu_count())
        if error:
            sys.exit(f"bench_mount_memory.py: {self.tree}: {error}")
        print(f"\n### {readers} readers, `--memory {memory}`\n")
        print("| image | VmHWM MiB | of the limit | seconds | daemon CPU s | bytes | |\n|---|---|---|---|---|---|---|")
        for image in images:
            name = os.path.basename(image)
            mounted.cool(image)
            with self.mount(image, "--memory", memory) as mount:
                found, seconds, error = digests(mount.directory, readers)
                peak, cpu = mount.daemon_kib("VmHWM") << 10, mount.daemon_cpu_seconds()
            word = "same" if found == right else error or "differ"
            verdict = self.judge(0 < peak <= PEAK_MARK * limit and word == "same", f"{name}: {peak} bytes, bytes {word}")
            print(f"| {name} | {peak / (1 << 20):.1f} | {peak / limit:.2f} | {seconds:.2f} | {cpu:.2f} | {word} "
                  f"| {verdict} |", flush=True)

    def idle(self, images):
        seconds = float(self.given["seconds"])
        print(f"\n### idle for {seconds:.0f} s\n\n| image | when | VmRSS MB | share of a core | |\n|---|---|---|---|---|")
        for image in images:
            mounted.cool(image)
            with self.mount(image) as mount:
                self.rest(image, "right after the mount", mount, seconds)
                _, _, error = digests(mount.directory, 4)
                self.judge(not error, f"{os.path.basename(image)}: {error}")
                time.sleep(QUIET_SECONDS)
                self.rest(image, f"{QUIET_SECONDS} s after the whole tree", mount, seconds)

    def rest(self, image, when, mount, seconds):
        resident = mount.daemon_kib("VmRSS") << 10
        before, begin = run_seconds(mount.daemons), time.monotonic()
        time.sleep(seconds)
        share = (run_seconds(mount.daemons) - before) / (time.monotonic() - begin)
        name = os.path.basename(image)
        verdict = self.judge(0 < resident < IDLE_BYTES and 0 <= share < IDLE_SHARE,
                             f"{name}, {when}: {resident} bytes, {share:.4%}")
        print(f"| {name} | {when} | {resident / 1e6:.1f} | {share:.4%} | {verdict} |", flush=True)


def main():
    given = {"memory": "64M", "readers": "64", "seconds": "30", "options": "", "parts": "readers,idle", "work": "/tmp",
             "report": ""}
    words, given = command_line.read(__doc__, given, switches=("report",), words=(3, None))
    if not set(given["parts"].split(",")) <= {"readers", "idle"}:
        sys.exit(__doc__)
    bench = Bench(words[0], words[1], given)
    print(f"`{' '.join(bench.mount('IMAGE').system.command())}`")
    for part in given["parts"].split(","):
        {"readers": bench.under_readers, "idle": bench.idle}[part](words[2:])
    os.rmdir(bench.work)
    for text in bench.missed:
        print(f"missed: {text}")
    sys.exit(1 if bench.missed and not given["report"] else 0)


try:
    main()
except (OSError, mounted.MountFailed) as reason:
    sys.exit(f"bench_mount_memory.py: {reason}")
