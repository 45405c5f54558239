#!/usr/bin/env python3
"""Treats mounts badly, and checks that nothing leaks, hangs or spreads; run it as root.

  abuse_mount.py [--cases=cycles,kill,truncate,overwrite,hang] [--cycles=10000] [--options=ARGUMENTS] [--work=DIR]
                 [--mkfs=mkfs.erofs] [--outer=PROGRAM] FERROFS IMAGE

IMAGE should hold compressed files, and no fragments or shared data (what lies where is asked of the kernel's EROFS).
  cycles     mounts, reads a file, and ends the mount by turns with umount, fusermount3 -u, SIGTERM, SIGINT and SIGHUP;
             counts mounts, processes, zombies, threads and open files of the system, slab and all memory of the kernel
  kill       SIGKILL while 8 readers read: all get errors; the directory is cleared with one command and mounts again
  truncate   half of the image is cut off under the mount, and put back: files that lie in the other half stay right, the
             rest is right or gives EIO or EUCLEAN; then all is right
  overwrite  a part is overwritten: files that lie elsewhere stay right; the daemon lives
  hang       the image lies on a mount (by --outer, else FERROFS) whose daemon is stopped: one who reads, stats, lists or
             faults, several who read, and then the daemon die of SIGKILL (once SIGTERM) within 5 s; with --timeout
             they get EIO; and another daemon gives right bytes when the stopped one goes on
Exit status 1 if anything is not as said.
"""
import collections
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import command_line
import mounted

FS_IOC_FIEMAP = 0xC020660B
FIEMAP_LAST = 1
PATIENCE_SECONDS = 5
READERS = 8
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


class Report:
    """What was found, and whether all of it was as it should be."""

    def __init__(self):
        self.failed = []

    def check(self, is_so, text):
        print(f"{'ok  ' if is_so else 'FAIL'} {text}", flush=True)
        if not is_so:
            self.failed.append(text)
        return is_so


def meminfo():
    with open("/proc/meminfo") as file:
        return {line.split(":")[0]: int(line.split()[1]) << 10 for line in file}


def name_of(pid):
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def kernel_bytes():
    """What is neither free, nor of a file, nor of a program. Where others work meanwhile, pages that are on their way from
    one to the next count as well, and the least of several looks is nearest."""
    others = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable", "PageTables", "SecPageTables")
    least = None
    for _ in range(KERNEL_LOOKS):
        memory = meminfo()
        found = memory["MemTotal"] - sum(memory.get(name, 0) for name in others)
        least = found if least is None else min(least, found)
        time.sleep(0.05)
    return least


def resource_counts(programs):
    """Everything of the system that could leak; processes, zombies and threads of these programs only."""
    mounted.cool()
    memory, count = meminfo(), collections.Counter()
    for pid in mounted.pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b") ")[2].split()
            if name_of(pid) in programs:
                is_zombie = fields[0] == b"Z"
                # What process 1 inherits it reaps when it likes.
                count["zombies"] += is_zombie and fields[1] != b"1"
                count.update({} if is_zombie else {"processes": 1, "threads": int(fields[17])})
        except OSError:
            pass  # it ended meanwhile
    with open("/proc/sys/fs/file-nr") as file:
        count["open files"] = int(file.read().split()[0])
    return {"mounts": len(mounted.mount_points()), "processes": count["processes"], "zombies": count["zombies"],
            "threads": count["threads"], "open files": count["open files"], "slab": memory["SUnreclaim"],
            "kernel": kernel_bytes()}


def ways_to_end(directory, pids):
    def signals(number):
        return lambda: [os.kill(pid, number) for pid in pids if mounted.is_alive(pid)]

    def runs(*argv):
        return lambda: subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)

    ways = [("umount", runs("umount", directory)), ("fusermount3 -u", runs("fusermount3", "-u", directory))]
    return ways + [(name, signals(getattr(signal, name))) for name in ("SIGTERM", "SIGINT", "SIGHUP")]


def files_of(root):
    """Regular files of more than nothing, by path below the root."""
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path):
                found.append(os.path.relpath(path, root))
    return sorted(found)


def digest(path):
    """Of the bytes; or the name of the error."""
    try:
        with open(path, "rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))


def places(path):
    """Where the extents of a file begin in the image, as the kernel's EROFS says."""
    found, at = [], 0
    fd = os.open(path, os.O_RDONLY)
    try:
        while True:
            asked = bytearray(struct.pack("=QQIIII", at, (1 << 63) - 1, 0, 0, 256, 0) + bytes(56 * 256))
            fcntl.ioctl(fd, FS_IOC_FIEMAP, asked)
            count = struct.unpack_from("=I", asked, 20)[0]
            for i in range(count):
                logical, physical, length, _, _, flags = struct.unpack_from("=QQQQQI", asked, 32 + 56 * i)
                found.append(physical)
                at = logical + length
                if flags & FIEMAP_LAST:
                    return found
            if not count:
                return found
    finally:
        os.close(fd)


class Needs:
    """Which parts of the image a path needs: its inode with its index and that of every directory above, and the data."""

    def __init__(self, root, image):
        with open(image, "rb") as file:
            file.seek(1024)
            block = file.read(128)
        # docs/format.md: blkszbits and meta_blkaddr of the superblock.
        self.metadata = struct.unpack_from("<I", block, 40)[0] << block[12]
        self.root, self.files = root, files_of(root)
        self.begins = {path: places(os.path.join(root, path))
                       for path in {*self.files, *(above for path in self.files for above in ancestors(path))}}
        # How long a compressed extent is the kernel does not say; it ends where the next one begins at the latest.
        edges = sorted({place for found in self.begins.values() for place in found} | {os.path.getsize(image)})
        self.ends = dict(zip(edges, edges[1:]))

    def of(self, path):
        parts = []
        for one in (path, *ancestors(path)):
            stat = os.lstat(os.path.join(self.root, one))
            inode = self.metadata + stat.st_ino * 32
            # Inode, xattrs and inline tail fit into two blocks; an index takes 8 bytes for each 4 KiB at most.
            parts.append((inode, inode + 8192 + stat.st_size // 512))
            parts += [(place, self.ends.get(place, place + 1)) for place in self.begins[one]]
        return parts


def ancestors(path):
    while path:
        path = os.path.dirname(path)
        yield path


class Abuse:
    """The image, a place to work, and the cases."""

    def __init__(self, ferrofs, image, given):
        self.given, self.report = given, Report()
        self.image, self.ferrofs = os.path.realpath(image), mounted.found(ferrofs)
        if not self.ferrofs:
            sys.exit(f"abuse_mount.py: no program {ferrofs}")
        self.system = mounted.System("ferrofs", self.ferrofs, ["mount", *given["options"].split()])
        self.work = tempfile.mkdtemp(prefix="abuse-mount-", dir=given["work"])
        self.directory = os.path.join(self.work, "mount")

    def cycles(self):
        total, ways = int(self.given["cycles"]), collections.Counter()
        begin, first, file, programs = time.monotonic(), None, None, {"fusermount3"}
        for number in range(total + WARM_CYCLES):
            if number == WARM_CYCLES:
                first = resource_counts(programs)
            mount = mounted.Mount(self.system, self.image, self.directory).__enter__()
            programs |= set(map(name_of, mount.daemons))
            # A file that is found once is the same in each cycle, so the walk is not repeated.
            file = file or files_of(self.directory)[0]
            digest(os.path.join(self.directory, file))
            way, end = ways_to_end(self.directory, mount.daemons)[number % 5]
            end()
            is_over = mounted.wait_until(lambda: not mounted.is_mounted(self.directory)
                                         and not any(map(mounted.is_alive, mount.daemons)), PATIENCE_SECONDS)
            mount.clear()
            if not mount.daemons or not is_over:
                self.report.check(False, f"cycle {number}: {way} ended the mount and its daemon {mount.daemons}")
                return
            ways[way] += 1
            if number % 1000 == 999:
                print(f"     {number + 1} cycles, {time.monotonic() - begin:.0f} s: {resource_counts(programs)}", flush=True)
        self.judge(first, resource_counts(programs), total)
        print(f"     ended by {dict(ways)}")

    def judge(self, first, last, total):
        print(f"     before {first}\n     after  {last}")
        for what in ("mounts", "processes", "zombies", "threads"):
            self.report.check(last[what] <= first[what], f"{what}: {first[what]} before, {last[what]} after {total} cycles")
        more = last["open files"] - first["open files"]
        # The kernel counts open files in batches of 32 a CPU, or so.
        self.report.check(more <= max(128, 64 * os.cpu_count()), f"open files of the system: {more:+}")
        grown, taken = last["slab"] - first["slab"], last["kernel"] - first["kernel"]
        self.report.check(grown <= SWING_BYTES + SLAB_BYTES_A_CYCLE * total, f"unreclaimable slab: {grown:+} bytes")
        self.report.check(taken <= SWING_BYTES * 2 + MEMORY_BYTES_A_CYCLE * total, f"memory of the kernel: {taken:+} bytes")

    def kill(self):
        with mounted.Mount(self.system, self.image, self.directory) as mount:
            said = [tempfile.TemporaryFile() for _ in range(READERS)]
            # Each goes round for ever: what is in the page cache is read without the daemon.
            round_and_round = "while find . -type f -exec cat {} + > /dev/null; do :; done"
            readers = [subprocess.Popen(["sh", "-c", round_and_round], cwd=self.directory, stderr=out,
                                        start_new_session=True) for out in said]
            mounted.wait_until(lambda: mount.daemon_cpu_seconds() > 0.2, PATIENCE_SECONDS)
            self.report.check(all(r.poll() is None for r in readers), f"{READERS} readers are at work")
            began = time.monotonic()
            for pid in mount.daemons:
                os.kill(pid, signal.SIGKILL)
            is_over = mounted.wait_until(lambda: all(r.poll() is not None for r in readers), PATIENCE_SECONDS)
            self.report.check(is_over, f"all have ended {time.monotonic() - began:.2f} s after SIGKILL of the daemon")
            for reader, out in zip(readers, said):
                out.seek(0)
                text = out.read().decode(errors="replace").strip().split("\n")[-1]
                kill_group(reader)
                self.report.check(any(word in text for word in DEATHS), f"a reader got an error: {text[-120:]}")
            self.cleared_and_mounted_again()

    def cleared_and_mounted_again(self):
        if mounted.is_mounted(self.directory):
            try:
                # What the kernel has in its caches it shows without the daemon, listings among it.
                os.lstat(os.path.join(self.directory, f"absent-{time.monotonic_ns()}"))
                answer = "finds what is not there"
            except OSError as error:
                answer = errno.errorcode[error.errno]
            self.report.check(answer == "ENOTCONN", f"the directory of a dead daemon answers {answer}")
            ran = subprocess.run(["fusermount3", "-u", self.directory], capture_output=True, text=True)
            self.report.check(ran.returncode == 0 and not mounted.is_mounted(self.directory),
                              f"fusermount3 -u clears it {ran.stderr.strip()}")
        else:
            self.report.check(True, "the directory was cleared by itself")
        self.system.attach(self.image, self.directory)
        self.report.check(bool(os.listdir(self.directory)), "it mounts again")

    def copy(self):
        image = os.path.join(self.work, "copy.erofs")
        shutil.copyfile(self.image, image)
        return image

    def layout(self, image):
        """What is right, and which parts of the image each file needs: {path: (digest, [(begin, end)])}."""
        with mounted.Mount(mounted.System("kernel-file"), image, os.path.join(self.work, "kernel")) as kernel:
            needs = Needs(kernel.directory, image)
            return {path: (digest(os.path.join(kernel.directory, path)), needs.of(path))
                    for path in needs.files}

    def damaged(self, what, image, layout, begin, end, may_be_wrong):
        """Reads every file after bytes from begin to end of the image were lost."""
        count = collections.Counter()
        for path, (right, parts) in layout.items():
            is_hit = any(first < end and last > begin for first, last in parts)
            found = digest(os.path.join(self.directory, path))
            word = "right" if found == right else found if found.startswith("E") else "wrong bytes"
            count["hit" if is_hit else "elsewhere", word] += 1
        print("     " + ", ".join(f"{where}: {n} {word}" for (where, word), n in sorted(count.items())))
        allowed = {("elsewhere", "right"), ("hit", "right"), ("hit", "EIO"), ("hit", "EUCLEAN")}
        allowed |= {("hit", "wrong bytes")} if may_be_wrong else set()
        self.report.check(set(count) <= allowed, f"{what}: only files that lie there suffer")
        # Otherwise the damage would have missed everything, and nothing was shown.
        self.report.check(any(word != "right" for _, word in count) and count["elsewhere", "right"] > 0,
                          f"{what}: some files suffer, and some do not")

    def damage(self, what, begin, end, lose, may_be_wrong):
        """Mounts a copy, spoils it under the mount, reads, puts it back, and reads again."""
        image = self.copy()
        layout = self.layout(image)
        with open(image, "rb") as file:
            file.seek(begin)
            kept = file.read(end - begin)
        with mounted.Mount(self.system, image, self.directory) as mount:
            for path in list(layout)[::10]:
                digest(os.path.join(self.directory, path))
            with open(image, "r+b") as file:
                lose(file)
            mounted.cool()
            self.damaged(what, image, layout, begin, end, may_be_wrong)
            with open(image, "r+b") as file:
                file.seek(begin)
                file.write(kept)
            mounted.cool()
            wrong = [path for path, (right, _) in layout.items() if digest(os.path.join(self.directory, path)) != right]
            self.report.check(not wrong or may_be_wrong, f"{what}: with the bytes back, {len(wrong)} files are wrong")
            self.report.check(bool(mount.daemons) and all(map(mounted.is_alive, mount.daemons)),
                              f"{what}: the daemon lives")
        os.unlink(image)

    def truncate(self):
        size = os.path.getsize(self.image)
        middle = size // 2 & -4096
        self.damage("truncate", middle, size, lambda file: file.truncate(middle), False)

    def overwrite(self):
        size = os.path.getsize(self.image)
        begin, length = size // 2 & -4096, min(16 << 20, size // 4)

        def lose(file):
            file.seek(begin)
            file.write(os.urandom(length))

        self.damage("overwrite", begin, begin + length, lose, True)

    def hang(self):
        source, outer_image = os.path.join(self.work, "source"), os.path.join(self.work, "outer.erofs")
        os.mkdir(source)
        os.link(self.image, os.path.join(source, "inner.erofs")) if same_device(self.image, source) else \
            shutil.copyfile(self.image, os.path.join(source, "inner.erofs"))
        subprocess.run([self.given["mkfs"], "--quiet", outer_image, source], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(source)
        program = self.given["outer"]
        outer_system = mounted.System("outer", mounted.found(program)) if program else self.system
        with mounted.Mount(outer_system, outer_image, os.path.join(self.work, "outer")) as outer:
            self.hung(outer, os.path.join(outer.directory, "inner.erofs"))
        os.unlink(outer_image)

    def hung(self, outer, image):
        with mounted.Mount(self.system, image, self.directory):
            names = sorted(files_of(self.directory), key=lambda name: -os.path.getsize(os.path.join(self.directory, name)))
            paths = [os.path.join(self.directory, name) for name in names[:MANY_READERS]]
            right = digest(paths[0])
        touch = "import mmap, os, sys; print(mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)[0])"
        ways = {"a reader": [["cat", paths[0]]], f"{MANY_READERS} readers": [["cat", path] for path in paths],
                "stat": [["stat", paths[0]]], "listing": [["ls", "-R", self.directory]],
                "page fault": [[sys.executable, "-c", touch, paths[0]]]}
        for name, commands in ways.items():
            self.waits_and_dies(outer, image, name, commands)
        self.ends_in_time(outer, image, paths)
        with mounted.Mount(self.system, image, self.directory):
            self.report.check(digest(paths[0]) == right, "when the source goes on, the bytes are right")

    def hang_under(self, outer, image, system, warm):
        """Mounts the inner image; whatever is not looked at by `warm` needs the source, which hangs from here on."""
        inner = mounted.Mount(system, image, self.directory).__enter__()
        mounted.cool()
        warm()
        stop(outer, signal.SIGSTOP)
        return inner

    def waits_and_dies(self, outer, image, name, commands):
        is_about_data = commands[0][0] not in ("stat", "ls")
        # Opening must not wait for the source, where what waits is to be a page fault.
        warm = (lambda: [os.stat(argv[-1]) for argv in commands]) if is_about_data else lambda: None
        inner = self.hang_under(outer, image, self.system, warm)
        children = []
        try:
            children = [subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL) for argv in commands]
            mounted.wait_until(lambda: any(child.poll() is not None for child in children), 2)
            waiting = [child for child in children if child.poll() is None]
            self.report.check(len(waiting) == len(children),
                              f"{name}: {len(waiting)} wait for a hung source {state_of(children[0].pid)}")
            began = time.monotonic()
            for child in children:
                child.kill()
            is_over = mounted.wait_until(lambda: all(child.poll() is not None for child in children), PATIENCE_SECONDS)
            left = next((child.pid for child in children if child.poll() is None), 0)
            self.report.check(is_over, f"{name}: dead {time.monotonic() - began:.2f} s after SIGKILL {state_of(left)}")
            self.daemon_dies(inner, signal.SIGTERM if name == "a reader" else signal.SIGKILL)
        finally:
            stop(outer, signal.SIGCONT)
            inner.clear()
            for child in children:
                child.wait(PATIENCE_SECONDS)

    def daemon_dies(self, inner, number):
        daemons = [pid for pid in inner.daemons if mounted.is_alive(pid)]
        began = time.monotonic()
        for pid in daemons:
            os.kill(pid, number)
        is_over = mounted.wait_until(lambda: not any(map(mounted.is_alive, daemons)), PATIENCE_SECONDS)
        self.report.check(is_over and bool(daemons),
                          f"the daemon ends {time.monotonic() - began:.2f} s after {signal.Signals(number).name}")

    def ends_in_time(self, outer, image, paths):
        """With a time limit nobody needs to be killed."""
        system = mounted.System("ferrofs", self.ferrofs, [*self.system.arguments, "--timeout", str(TIME_LIMIT_SECONDS)])
        inner = self.hang_under(outer, image, system, lambda: [os.stat(path) for path in paths])
        try:
            began = time.monotonic()
            readers = [subprocess.Popen(["cat", path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE) for path in paths]
            wanted = os.strerror(errno.EIO)
            # Several requests of a reader may run out one after the other.
            limit = TIME_LIMIT_SECONDS * 3 + PATIENCE_SECONDS
            is_over = mounted.wait_until(lambda: all(reader.poll() is not None for reader in readers), limit)
            took = time.monotonic() - began
            for reader in readers:
                reader.kill()
            said = [reader.communicate()[1].decode(errors="replace") for reader in readers]
            self.report.check(is_over and all(wanted in text for text in said),
                              f"--timeout {TIME_LIMIT_SECONDS}: {len(readers)} readers have EIO after {took:.2f} s")
            self.daemon_dies(inner, signal.SIGKILL)
        finally:
            stop(outer, signal.SIGCONT)
            inner.clear()


def same_device(path, other):
    return os.stat(path).st_dev == os.stat(other).st_dev


def stop(mount, number):
    for pid in mount.daemons:
        os.kill(pid, number)


def kill_group(child):
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all of it has ended
    child.wait()


def state_of(pid):
    """The state letter and where in the kernel it waits, in brackets; nothing when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/wchan") as wchan:
            return f"(state {stat.read().rpartition(') ')[2][0]}, in {wchan.read()})"
    except OSError:
        return ""


def main():
    given = {"cases": "cycles,kill,truncate,overwrite,hang", "cycles": "10000", "options": "", "work": "/tmp",
             "mkfs": "mkfs.erofs", "outer": ""}
    words, given = command_line.read(__doc__, given)
    abuse = Abuse(*words, given)
    for case in given["cases"].split(","):
        print(f"\n## {case}", flush=True)
        try:
            getattr(abuse, case)()
        except mounted.MountFailed as reason:
            abuse.report.check(False, f"{case}: {reason}")
    shutil.rmtree(abuse.work)
    print(f"\n{len(abuse.report.failed)} failed")
    sys.exit(1 if abuse.report.failed else 0)


main()
