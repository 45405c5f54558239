#!/usr/bin/env python3
"""Mounts damaged images, looks at everything in them through the mount, and checks that the daemon stays well.

  corrupt_mounts.py [--only=REGEX] [--options=ARGUMENTS] [--work=DIR] [--verbose] FERROFS DIR

DIR holds a list.json: {"images": [{"file", "what", "expect"}]}, and maybe blob.bin, the extra device of images with
`blob` in their name. Each may be refused (`reject_mount` must be). What is mounted is walked, and read, within
LIMIT_SECONDS; an error may be one of ERRORS. Then the daemon must live, have used less than MEMORY_BYTES, and go after
the umount. Of a file of more than WHOLE_BYTES only some pieces are read: it may claim 2^63 bytes. Needs root.
Exit status 1 if anything is not as said.
"""
import collections
import errno
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import command_line
import mounted

LIMIT_SECONDS, END_SECONDS, MEMORY_BYTES = 10, 5, 256 << 20
WHOLE_BYTES, PIECE = 64 << 20, 1 << 20
# Names, directories and extents that are looked at; no image of the set has more that differ.
MOST_PATHS, MOST_POINTS = 20_000, 1000
# Damage; what the kernel says of a directory that holds itself and of numbers that no inode can have; and what is no
# damage at all: no attribute, no data behind a place, a name that goes nowhere.
ERRORS = {"EIO", "EUCLEAN", "ELOOP", "ENODATA", "ENXIO", "ENOENT", "EOPNOTSUPP", "ENOTSUP"}
FINDINGS = "--findings"


class Look:
    """What is found below a mount, and what is answered with which error."""

    def __init__(self):
        self.errors, self.paths = collections.Counter(), 0

    def ask(self, what, action, *arguments, **named):
        try:
            return action(*arguments, **named)
        except OSError as error:
            self.errors[what, errno.errorcode.get(error.errno, str(error.errno))] += 1
            return None

    def walk(self, root):
        self.ask("statfs", os.statvfs, root)
        todo = [root]
        while todo and self.paths < MOST_PATHS:
            path = todo.pop()
            self.paths += 1
            found = self.ask("stat", os.lstat, path)
            for name in self.ask("list attributes", os.listxattr, path, follow_symlinks=False) or []:
                self.ask("attribute", os.getxattr, path, name, follow_symlinks=False)
            if not found:
                continue
            kind = found.st_mode & 0o170000
            if kind == 0o040000:
                todo += [os.path.join(path, name) for name in self.ask("list", os.listdir, path) or []]
            elif kind == 0o120000:
                self.ask("target", os.readlink, path)
            elif kind == 0o100000:
                self.file(path, found.st_size)

    def file(self, path, size):
        fd = self.ask("open", os.open, path, os.O_RDONLY)
        if fd is None:
            return
        at, wants = 0, os.SEEK_DATA
        for _ in range(MOST_POINTS):
            at = self.ask("seek", os.lseek, fd, at, wants)
            if at is None or at >= size:
                break
            wants = os.SEEK_HOLE if wants == os.SEEK_DATA else os.SEEK_DATA
        pieces = range(0, size, PIECE) if size <= WHOLE_BYTES else (0, PIECE, size // 2, size - PIECE, size - 1)
        for at in pieces:
            self.ask("read", os.pread, fd, min(PIECE, size - at), at)
        os.close(fd)


def look(root):
    """In a process of its own, which may hang."""
    found = Look()
    found.walk(root)
    json.dump({"paths": found.paths, "errors": [[*what, count] for what, count in found.errors.items()]}, sys.stdout)


class Corrupt:
    """Options, and what was found of all images."""

    def __init__(self, ferrofs, directory, given):
        self.ferrofs, self.directory, self.given = mounted.found(ferrofs), directory, given
        self.work = tempfile.mkdtemp(prefix="corrupt-mounts-", dir=given["work"])
        self.failed, self.refused, self.errors = [], 0, collections.Counter()
        self.slowest, self.largest = (0, ""), (0, "")
        if not self.ferrofs:
            sys.exit(f"corrupt_mounts.py: no program {ferrofs}")

    def check(self, entry, is_so, text):
        if not is_so:
            print(f"FAIL {entry['file']} ({entry['what']}): {text}", flush=True)
            self.failed.append(entry["file"])

    def image(self, entry):
        arguments = ["mount", *self.given["options"].split()]
        blob = os.path.join(self.directory, "blob.bin")
        if "blob" in entry["file"] and os.path.exists(blob):
            arguments += ["--device", blob]
        system = mounted.System("ferrofs", self.ferrofs, arguments)
        began = time.monotonic()
        try:
            with mounted.Mount(system, os.path.join(self.directory, entry["file"]), os.path.join(self.work, "m")) as mount:
                self.check(entry, entry["expect"] != "reject_mount", "it mounts, and should not")
                self.looked_at(entry, mount, began)
                ended = time.monotonic()
            self.check(entry, time.monotonic() - ended < END_SECONDS, "the end of the mount takes long")
        except mounted.MountFailed as reason:
            said = str(reason).partition("status ")[2]
            self.refused += 1
            self.check(entry, said.startswith("1: ") and "panick" not in said, f"refused with status {said}")
            if self.given["verbose"]:
                print(f"{entry['file']} ({entry['what']}): {said}")

    def looked_at(self, entry, mount, began):
        child = subprocess.Popen([sys.executable, __file__, FINDINGS, mount.directory], stdout=subprocess.PIPE)
        try:
            said = json.loads(child.communicate(timeout=LIMIT_SECONDS)[0])
        except subprocess.TimeoutExpired:
            self.check(entry, False, f"looking at it takes more than {LIMIT_SECONDS} s")
            for pid in mount.daemons:
                os.kill(pid, 9)
            child.kill()
            child.wait()
            return
        seconds, peak = time.monotonic() - began, mount.daemon_kib("VmHWM") << 10
        self.slowest = max(self.slowest, (seconds, entry["file"]))
        self.largest = max(self.largest, (peak, entry["file"]))
        for what, name, count in said["errors"]:
            self.errors[what, name] += count
            self.check(entry, name in ERRORS, f"{count} times {what}: {name}")
        self.check(entry, all(map(mounted.is_alive, mount.daemons)) and bool(mount.daemons), "the daemon lives")
        self.check(entry, peak < MEMORY_BYTES, f"memory {peak}")
        self.check(entry, said["paths"] < MOST_PATHS, "the walk does not end")
        if entry["expect"] == "reject_read":
            damage = sum(count for _, name, count in said["errors"] if name in ("EIO", "EUCLEAN"))
            self.check(entry, damage > 0, "nothing was refused")
        if self.given["verbose"]:
            print(f"{entry['file']} ({entry['what']}): {said} {seconds:.2f} s {peak >> 20} MiB")

    def summary(self, count):
        for (what, name), times in sorted(self.errors.items()):
            print(f"{what}: {name}: {times} times")
        print(f"slowest {self.slowest[0]:.2f} s {self.slowest[1]}; largest {self.largest[0] / (1 << 20):.1f} MiB "
              f"{self.largest[1]}")
        print(f"{count} images, {self.refused} refused, {len(set(self.failed))} failed")


def main():
    if sys.argv[1:2] == [FINDINGS]:
        return look(sys.argv[2])
    given = {"only": "", "options": "", "work": "/tmp", "verbose": ""}
    words, given = command_line.read(__doc__, given, switches=("verbose",))
    corrupt = Corrupt(*words, given)
    with open(os.path.join(words[1], "list.json")) as file:
        entries = [entry for entry in json.load(file)["images"] if re.search(given["only"], entry["file"])]
    for entry in entries:
        corrupt.image(entry)
    os.rmdir(corrupt.work)
    corrupt.summary(len(entries))
    return 1 if corrupt.failed or not entries else 0


sys.exit(main())
