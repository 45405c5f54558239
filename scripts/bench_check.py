#!/usr/bin/env python3
"""Compares `ferrofs check --jobs 1` with `fsck.erofs --extract`: CPU seconds and peak memory.

  bench_check.py FERROFS FSCK IMAGE...          [--rounds=5]

Both read every byte of the image and write nothing. Runs are interleaved, after one unmeasured run
of each; the table holds medians, and minimum and maximum of the CPU time. It is Markdown. Peak memory
needs GNU time as `time`; without it the columns stay empty.
"""
import os
import shutil
import statistics
import subprocess
import sys
import tempfile


def run(argv):
    """Runs a command; answers its CPU seconds."""
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.execv(argv[0], argv)
    _, status, usage = os.wait4(child, 0)
    if status:
        sys.exit(f"{argv}: wait status {status}")
    return usage.ru_utime + usage.ru_stime


def peak(argv):
    """The peak memory of a command in MiB, as text. The kernel counts a process's memory from before
    its exec too, so the command must not be started from here but from something small."""
    time = shutil.which("time")
    if not time:
        return ""
    with tempfile.NamedTemporaryFile("r") as report:
        subprocess.run([time, "-f", "%M", "-o", report.name, *argv], check=True, capture_output=True)
        return f"{int(report.read()) / 1024:.1f}"


def main():
    options = [a for a in sys.argv[1:] if a.startswith("--")]
    ferrofs, fsck, *images = [a for a in sys.argv[1:] if not a.startswith("--")]
    rounds = int(dict(o[2:].split("=") for o in options).get("rounds", "5"))
    print("| image | ferrofs CPU s | fsck.erofs CPU s | ratio | ferrofs peak MiB | fsck.erofs peak MiB |")
    print("|---|---|---|---|---|---|")
    for image in images:
        commands = {"ours": [ferrofs, "check", "--jobs=1", "--progress=none", image],
                    "theirs": [fsck, "--extract", image]}
        samples = {name: [] for name in commands}
        for number in range(rounds + 1):
            for name, argv in commands.items():
                seconds = run(argv)
                if number:
                    samples[name].append(seconds)
        cpu = samples
        ours, theirs = (statistics.median(cpu[name]) for name in ("ours", "theirs"))
        spread = {name: f"{min(c):.3f}…{max(c):.3f}" for name, c in cpu.items()}
        print(f"| {os.path.basename(image)} | {ours:.3f} ({spread['ours']}) | {theirs:.3f} ({spread['theirs']}) "
              f"| {ours / theirs:.2f} | {peak(commands['ours'])} | {peak(commands['theirs'])} |", flush=True)


main()
