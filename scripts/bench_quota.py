#!/usr/bin/env python3
"""Whether ferrofs uses the CPUs that it is granted, and no more: default --jobs against --jobs 1.

  bench_quota.py FERROFS IMAGE --work=DIR  [--rounds=5] [--verbs=check,extract] [--cpu=0]

Each verb runs free, bound to one CPU by taskset, in a cpuset of one CPU, and in a cgroup with the time of one
CPU (cpu.max "100000 100000"). Runs with and without --jobs 1 take turns, after one of each that is not timed,
in which its threads are counted: by looking at /proc/PID/task all the time, so that threads which live for
less than a millisecond may be missed. DIR is where trees are extracted to; removing them is not timed. Needs
root. The table is Markdown, medians with minimum and maximum.

Exit status 1 if, with one CPU, the default takes more than 1.05 times as long as --jobs 1, or a thread more.
"""
import os
import statistics
import subprocess
import sys
import time

import command_line
import control_group

MARK = 1.05
LOOK_SECONDS = 0.0005
LIMIT_SECONDS = 300


def options():
    given = {"work": None, "rounds": "5", "verbs": "check,extract", "cpu": "0"}
    words, given = command_line.read(__doc__, given)
    if not given["work"]:
        sys.exit(__doc__)
    return words[0], words[1], given


def threads_of(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except FileNotFoundError:
        return 0


def run(argv, is_watched):
    """(seconds, most threads seen, or None if nobody looked)."""
    clock, most = time.monotonic(), None
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while is_watched and process.poll() is None:
        most = max(most or 0, threads_of(process.pid))
        time.sleep(LOOK_SECONDS)
    try:
        said, _ = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        sys.exit(f"bench_quota.py: {argv} hangs")
    seconds = time.monotonic() - clock
    if process.returncode:
        sys.exit(f"bench_quota.py: {argv}: status {process.returncode}: {said.decode(errors='replace')[-300:]}")
    return seconds, most


def measure(wrap, commands, target, rounds):
    """Samples and threads of the commands, by name."""
    samples, threads = {name: [] for name in commands}, {}
    for number in range(rounds + 1):
        for name, argv in commands.items():
            seconds, most = run(wrap(argv), number == 0)
            subprocess.run(["rm", "-rf", target], check=True)
            if number:
                samples[name].append(seconds)
            else:
                threads[name] = most
    return samples, threads


def row(verb, where, samples, threads):
    cells, medians = [verb, where], {}
    for name in samples:
        medians[name] = statistics.median(samples[name])
        cells.append(f"{medians[name]:.3f} ({min(samples[name]):.3f}…{max(samples[name]):.3f})")
    ratio = medians["default"] / medians["one"]
    cells += [f"{ratio:.2f}", str(threads["default"]), str(threads["one"])]
    print("| " + " | ".join(cells) + " |", flush=True)
    return ratio <= MARK and threads["default"] <= threads["one"]


def main():
    ferrofs, image, given = options()
    target = os.path.join(given["work"], "ferrofs-bench-quota-out")
    subprocess.run(["rm", "-rf", target], check=True)
    rounds, is_held = int(given["rounds"]), True
    print("| verb | where | default s | --jobs 1 s | ratio | threads, default | threads, --jobs 1 |")
    print("|---|---|---|---|---|---|---|")
    for verb in given["verbs"].split(","):
        tail = ["--progress=none", "--quiet", image] + ([target] if verb == "extract" else [])
        commands = {"default": [ferrofs, verb, *tail], "one": [ferrofs, verb, "--jobs=1", *tail]}
        # With all CPUs more threads are what the default is for.
        row(verb, "free", *measure(list, commands, target, rounds))
        taskset = ["taskset", "-c", given["cpu"]]
        found = measure(lambda argv: taskset + argv, commands, target, rounds)
        is_held &= row(verb, "taskset, 1 CPU", *found)
        with control_group.CpusetGroup(given["cpu"]) as group:
            is_held &= row(verb, "cpuset, 1 CPU", *measure(group.inside, commands, target, rounds))
        with control_group.QuotaGroup(1) as group:
            is_held &= row(verb, "quota of 1 CPU", *measure(group.inside, commands, target, rounds))
    sys.exit(0 if is_held else 1)


try:
    main()
except control_group.Unavailable as reason:
    sys.exit(f"bench_quota.py: {reason}")
