#!/usr/bin/env python3
"""Treats mounts badly, and checks that nothing leaks, hangs or spreads; run it as root.

  abuse_mount.py [--cases=cycles,kill,truncate,overwrite,hang] [--cycles=10000] [--options=ARGUMENTS] [--work=DIR]
                 FERROFS IMAGE

IMAGE should hold compressed files, no fragments or shared data, and its inodes in the first half, as with build
--metadata-first (what lies where is asked of the kernel's EROFS).
  cycles     mounts, reads a file, and ends the mount by turns with umount, fusermount3 -u, SIGTERM, SIGINT and SIGHUP;
             counts mounts, processes, zombies, threads and open files of the system, slab and all memory of the kernel
  kill       SIGKILL while 8 readers read: all get errors; the directory is cleared with one command and mounts again
  truncate   half of the image is cut off under the mount, and put back: files that lie in the other half stay right, the
             rest is right or gives EIO or EUCLEAN; then all is right
  overwrite  a part is overwritten: files that lie elsewhere stay right; the daemon lives
  hang       the image lies on a mount whose daemon is stopped: one who reads, stats, lists or
             faults, several who read, and then the daemon die of SIGKILL (once SIGTERM) within 5 s; with --timeout
             they get EIO; and another daemon gives right bytes when the stopped one goes on
Exit status 1 if anything is not as said.
"""
import collections
import contextlib
import errno
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time

import harness
import mounted
import snapshot

# Number, logical and physical offset, as filefrag prints them.
EXTENT = re.compile(r"^ *\d+: *\d+\.\. *\d+: *(\d+)\.\.", re.MULTILINE)
END_SECONDS, READERS = 5, 8
# More than there are listeners on most machines, and a time after which requests fail.
MANY_READERS, TIME_LIMIT_SECONDS = 8, 2
# What the kernel answers for a daemon that is gone, or goes.
DEATHS = [os.strerror(number) for number in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)]
# Cycles before the first count: caches of the kernel fill with the first ones.
WARM_CYCLES = 50
# What a cycle may cost for good. A leaked inode, dentry or request of the kernel's is larger than both.
SLAB_BYTES_A_CYCLE, MEMORY_BYTES_A_CYCLE = 300, 4096
# Counters of the kernel are kept per CPU and swing by this much.
SWING_BYTES = 16 << 20
KERNEL_LOOKS = 40


def kernel_bytes():
    """Unreclaimable slab, and what is neither free, nor of a file, nor of a program. Where others work meanwhile, pages that
    are on their way from one to the next count as well, and the least of several looks is nearest."""
    others = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable", "PageTables", "SecPageTables")
    looks = []
    for _ in range(KERNEL_LOOKS):
        with open("/proc/meminfo") as file:
            memory = {line.split(":")[0]: int(line.split()[1]) << 10 for line in file}
        looks.append(memory["MemTotal"] - sum(memory.get(name, 0) for name in others))
        time.sleep(0.05)
    return memory["SUnreclaim"], min(looks)


def resource_counts(programs):
    """Everything of the system that could leak; processes, zombies and threads of these programs only."""
    mounted.cool()
    count = collections.Counter(processes=0, zombies=0, threads=0, mounts=len(mounted.mount_points()))
    for pid in mounted.pids():
        fields = mounted.stat_fields(pid)
        if fields and mounted.process_file(pid, "comm").strip() in programs:
            is_zombie = fields[0] == b"Z"
            # What process 1 inherits it reaps when it likes.
            count["zombies"] += is_zombie and fields[1] != b"1"
            count.update({} if is_zombie else {"processes": 1, "threads": int(fields[17])})
    with open("/proc/sys/fs/file-nr") as file:
        count["open files"] = int(file.read().split()[0])
    count["slab"], count["kernel"] = kernel_bytes()
    return dict(count)


def ways_to_end(mount):
    """(name, action) of each way to end a mount."""
    for argv in (["umount"], ["fusermount3", "-u"]):
        yield " ".join(argv), lambda argv=argv: harness.run_well(*argv, mount.directory)
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        yield name, lambda name=name: mount.signal(getattr(signal, name))


def files_of(root):
    """Regular files of more than nothing, by path below the root."""
    found = snapshot.walk(os.fsencode(root)).items()
    return sorted(os.fsdecode(path) for path, status in found if stat.S_ISREG(status.st_mode) and status.st_size)


def places(path):
    """Where the extents of a file begin in the image, as the kernel's EROFS says."""
    return [int(begin) for begin in EXTENT.findall(harness.run(["filefrag", "-v", "-b1", path])[1])]


def needs(root, image):
    """{path: [(begin, end)]}: the parts of the image that a file needs: its inode with its index and that of every directory
    above, and the data."""
    with open(image, "rb") as file:
        block = os.pread(file.fileno(), 128, 1024)
    # docs/format.md: blkszbits and meta_blkaddr of the superblock.
    metadata, files = struct.unpack_from("<I", block, 40)[0] << block[12], files_of(root)
    begins = {path: places(os.path.join(root, path))
              for path in {*files, *(above for path in files for above in ancestors(path))}}
    # How long a compressed extent is the kernel does not say; it ends where the next one begins at the latest.
    edges = sorted({place for found in begins.values() for place in found} | {os.path.getsize(image)})
    ends = dict(zip(edges, edges[1:]))

    def own(path):
        status = os.lstat(os.path.join(root, path))
        inode = metadata + status.st_ino * 32
        # Inode, xattrs and inline tail fit into two blocks; an index takes 8 bytes for each 4 KiB at most.
        return [(inode, inode + 8192 + status.st_size // 512), *((place, ends.get(place, place + 1)) for place in begins[path])]

    return {path: [part for one in (path, *ancestors(path)) for part in own(one)] for path in files}


def ancestors(path):
    while path:
        path = os.path.dirname(path)
        yield path


class Abuse(harness.Report):
    """The image, a place to work, and the cases."""
    forgiven = mounted.MountFailed

    def __init__(self, given, work):
        super().__init__(given, work)
        self.image, self.command = os.path.realpath(given.image), [given.ferrofs, "mount", *given.options.split()]
        self.system, self.directory = mounted.Daemon(*self.command), os.path.join(work, "mount")

    def cycles(self):
        total, ways = self.given.cycles, collections.Counter()
        begin, first, file, programs = time.monotonic(), None, None, {b"fusermount3"}
        for number in range(total + WARM_CYCLES):
            if number == WARM_CYCLES:
                first = resource_counts(programs)
            mount = mounted.Mount(self.system, self.image, self.directory).__enter__()
            programs |= {mounted.process_file(pid, "comm").strip() for pid in mount.daemons}
            # A file that is found once is the same in each cycle, so the walk is not repeated.
            file = file or files_of(self.directory)[0]
            harness.digest(os.path.join(self.directory, file))
            way, end = list(ways_to_end(mount))[number % 5]
            end()
            is_over = mounted.wait_until(lambda: not mounted.is_mounted(self.directory)
                                         and not any(map(mounted.is_alive, mount.daemons)), END_SECONDS)
            mount.clear()
            if not mount.daemons or not is_over:
                self.check(False, f"cycle {number}: {way} ended the mount and its daemon {mount.daemons}")
                return
            ways[way] += 1
            if number % 1000 == 999:
                print(f"     {number + 1} cycles, {time.monotonic() - begin:.0f} s: {resource_counts(programs)}", flush=True)
        print(f"     ended by {dict(ways)}")
        self.judge(first, resource_counts(programs), total)

    def judge(self, first, last, total):
        print(f"     before {first}\n     after  {last}")
        # The kernel counts open files in batches of 32 a CPU, or so.
        allowed = {"open files": max(128, 64 * os.cpu_count()), "slab": SWING_BYTES + SLAB_BYTES_A_CYCLE * total,
                   "kernel": SWING_BYTES * 2 + MEMORY_BYTES_A_CYCLE * total}
        for what, before in first.items():
            more = last[what] - before
            self.check(more <= allowed.get(what, 0), f"{what}: {before} before, {more:+} after {total} cycles")

    def kill(self):
        with mounted.Mount(self.system, self.image, self.directory) as mount:
            said = [tempfile.TemporaryFile() for _ in range(READERS)]
            # Each goes round for ever: what is in the page cache is read without the daemon.
            argv = ["sh", "-c", "while find . -type f -exec cat {} + > /dev/null; do :; done"]
            readers = [subprocess.Popen(argv, cwd=self.directory, stderr=out, start_new_session=True) for out in said]
            mounted.wait_until(lambda: mount.daemon_cpu_seconds() > 0.2, END_SECONDS)
            self.check(all(reader.poll() is None for reader in readers), f"{READERS} readers are at work")
            mount.signal(signal.SIGKILL)
            took, is_over = mounted.waited(lambda: all(reader.poll() is not None for reader in readers), END_SECONDS)
            self.check(is_over, f"all have ended {took:.2f} s after SIGKILL of the daemon")
            for reader, out in zip(readers, said):
                out.seek(0)
                text = out.read().decode(errors="replace").strip().split("\n")[-1]
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(reader.pid, signal.SIGKILL)
                reader.wait()
                self.check(any(word in text for word in DEATHS), f"a reader got an error: {text[-120:]}")
            if mounted.is_mounted(self.directory):
                # What the kernel has in its caches it shows without the daemon, listings among it.
                answer = harness.digest(os.path.join(self.directory, f"absent-{time.monotonic_ns()}"))
                self.check(answer == "ENOTCONN", f"the directory of a dead daemon answers {answer}")
                status, words = harness.run(["fusermount3", "-u", self.directory])
                self.check(status == 0 and not mounted.is_mounted(self.directory), f"fusermount3 -u clears it {words.strip()}")
            else:
                self.check(True, "the directory was cleared by itself")
            self.system.attach(self.image, self.directory)
            self.check(bool(os.listdir(self.directory)), "it mounts again")

    def layout(self, image):
        """What is right, and which parts of the image each file needs: {path: (digest, [(begin, end)])}."""
        with mounted.Mount(mounted.Kernel(), image, os.path.join(self.work, "kernel")) as kernel:
            parts = needs(kernel.directory, image)
            return {path: (harness.digest(os.path.join(kernel.directory, path)), part) for path, part in parts.items()}

    def damaged(self, what, image, layout, begin, end, may_be_wrong):
        """Reads every file after bytes from begin to end of the image were lost."""
        count = collections.Counter()
        for path, (right, parts) in layout.items():
            is_hit = any(first < end and last > begin for first, last in parts)
            found = harness.digest(os.path.join(self.directory, path))
            word = "right" if found == right else found if found.startswith("E") else "wrong bytes"
            count["hit" if is_hit else "elsewhere", word] += 1
        print("     " + ", ".join(f"{where}: {n} {word}" for (where, word), n in sorted(count.items())))
        allowed = {("elsewhere", "right"), ("hit", "right"), ("hit", "EIO"), ("hit", "EUCLEAN")}
        allowed |= {("hit", "wrong bytes")} if may_be_wrong else set()
        self.check(set(count) <= allowed, f"{what}: only files that lie there suffer")
        # Otherwise the damage would have missed everything, and nothing was shown.
        self.check(any(word != "right" for _, word in count) and count["elsewhere", "right"] > 0,
                   f"{what}: some files suffer, and some do not")

    def damage(self, what, begin, end, lose, may_be_wrong):
        """Mounts a copy, spoils it under the mount, reads, puts it back, and reads again."""
        image = shutil.copyfile(self.image, os.path.join(self.work, "copy.erofs"))
        layout = self.layout(image)
        with open(image, "rb") as file:
            kept = os.pread(file.fileno(), end - begin, begin)
        with mounted.Mount(self.system, image, self.directory) as mount:
            for path in list(layout)[::10]:
                harness.digest(os.path.join(self.directory, path))
            with open(image, "r+b") as file:
                lose(file)
            mounted.cool()
            self.damaged(what, image, layout, begin, end, may_be_wrong)
            with open(image, "r+b") as file:
                os.pwrite(file.fileno(), kept, begin)
            mounted.cool()
            wrong = [path for path, (right, _) in layout.items() if harness.digest(os.path.join(self.directory, path)) != right]
            self.check(not wrong or may_be_wrong, f"{what}: with the bytes back, {len(wrong)} files are wrong")
            self.check(bool(mount.daemons) and all(map(mounted.is_alive, mount.daemons)), f"{what}: the daemon lives")
        os.unlink(image)

    def truncate(self):
        middle = os.path.getsize(self.image) // 2 & -4096
        self.damage("truncate", middle, os.path.getsize(self.image), lambda file: file.truncate(middle), False)

    def overwrite(self):
        size = os.path.getsize(self.image)
        begin, length = size // 2 & -4096, min(16 << 20, size // 4)
        noise = os.urandom(length)
        self.damage("overwrite", begin, begin + length, lambda file: os.pwrite(file.fileno(), noise, begin), True)

    def hang(self):
        source, outer_image = os.path.join(self.work, "source"), os.path.join(self.work, "outer.erofs")
        os.mkdir(source)
        shutil.copyfile(self.image, os.path.join(source, "inner.erofs"))
        harness.run_well(self.given.ferrofs, "build", "--quiet", outer_image, source)
        shutil.rmtree(source)
        with mounted.Mount(self.system, outer_image, os.path.join(self.work, "outer")) as outer:
            self.hung(outer, os.path.join(outer.directory, "inner.erofs"))
        os.unlink(outer_image)

    def hung(self, outer, image):
        with mounted.Mount(self.system, image, self.directory):
            names = sorted(files_of(self.directory), key=lambda name: -os.path.getsize(os.path.join(self.directory, name)))
            paths = [os.path.join(self.directory, name) for name in names[:MANY_READERS]]
            right = harness.digest(paths[0])
        touch = "import mmap, os, sys; print(mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)[0])"
        ways = {"a reader": [["cat", paths[0]]], f"{MANY_READERS} readers": [["cat", path] for path in paths],
                "stat": [["stat", paths[0]]], "listing": [["ls", "-R", self.directory]],
                "page fault": [[sys.executable, "-c", touch, paths[0]]]}
        for name, commands in ways.items():
            self.waits(outer, image, name, commands)
        self.waits(outer, image, f"--timeout {TIME_LIMIT_SECONDS}", [["cat", path] for path in paths], TIME_LIMIT_SECONDS)
        with mounted.Mount(self.system, image, self.directory):
            self.check(harness.digest(paths[0]) == right, "when the source goes on, the bytes are right")

    def waits(self, outer, image, name, commands, time_limit=None):
        """Programs wait for a hung source until they are killed, or get EIO within the time limit; then the daemon is ended."""
        words = ["--timeout", str(time_limit)] if time_limit else []
        inner = mounted.Mount(mounted.Daemon(*self.command, *words), image, self.directory).__enter__()
        mounted.cool()
        # Opening must not wait for the source, where what waits is to be a read or a page fault.
        for argv in commands if commands[0][0] not in ("stat", "ls") else ():
            os.stat(argv[-1])
        outer.signal(signal.SIGSTOP)
        children, devnull = [], subprocess.DEVNULL
        try:
            children += [subprocess.Popen(argv, stdin=devnull, stdout=devnull, stderr=subprocess.PIPE) for argv in commands]
            self.wait_in_time(name, children, time_limit) if time_limit else self.wait_for_death(name, children)
            number = signal.SIGTERM if name == "a reader" else signal.SIGKILL
            inner.signal(number)
            took, is_over = mounted.waited(lambda: not any(map(mounted.is_alive, inner.daemons)), END_SECONDS)
            self.check(is_over and inner.daemons, f"{name}: the daemon ends {took:.2f} s after {number.name}")
        finally:
            outer.signal(signal.SIGCONT)
            inner.clear()
            for child in children:
                child.communicate(timeout=END_SECONDS)

    def wait_for_death(self, name, children):
        mounted.wait_until(lambda: any(child.poll() is not None for child in children), 2)
        waiting = [child for child in children if child.poll() is None]
        self.check(len(waiting) == len(children), f"{name}: {len(waiting)} wait for a hung source {state_of(children[0].pid)}")
        for child in children:
            child.kill()
        took, is_over = mounted.waited(lambda: all(child.poll() is not None for child in children), END_SECONDS)
        left = next((child.pid for child in children if child.poll() is None), 0)
        self.check(is_over, f"{name}: dead {took:.2f} s after SIGKILL {state_of(left)}")

    def wait_in_time(self, name, children, time_limit):
        # Several requests of a reader may run out one after the other.
        took, is_over = mounted.waited(lambda: all(child.poll() is not None for child in children), time_limit * 3 + END_SECONDS)
        for child in children:
            child.kill()
        said = [child.stderr.read().decode(errors="replace") for child in children]
        self.check(is_over and all(os.strerror(errno.EIO) in text for text in said),
                   f"{name}: {len(children)} readers have EIO after {took:.2f} s")


def state_of(pid):
    """The state letter and where in the kernel it waits, in brackets; nothing when it is gone."""
    fields = mounted.stat_fields(pid)
    return fields and f"(state {fields[0].decode()}, in {mounted.process_file(pid, 'wchan').decode()})" or ""


harness.main(Abuse.of, __doc__, "FERROFS IMAGE", cases=["cycles", "kill", "truncate", "overwrite", "hang"], cycles=10000,
             options="", work="/tmp")
