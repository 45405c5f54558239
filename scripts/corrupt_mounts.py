#!/usr/bin/env python3
"""Mounts damaged images, looks at everything in them through the mount, and checks that the daemon stays well.

  corrupt_mounts.py [--only=REGEX] [--options=ARGUMENTS] [--work=DIR] FERROFS DIR

DIR holds a list.json: {"images": [{"file", "what", "expect"}]}, and maybe blob.bin, the extra device of images with
`blob` in their name. Each may be refused (`reject_mount` must be). What is mounted is walked, and read, within
LIMIT_SECONDS; an error may be one of ERRORS. Then the daemon must live, have used less than MEMORY_BYTES, and go after
the umount. Of a file of more than WHOLE_BYTES only some pieces are read: it may claim 2^63 bytes. Needs root.
Exit status 1 if anything is not as said.
"""
import collections
import errno
import json
import multiprocessing
import os
import re
import stat
import time

import harness
import mounted

LIMIT_SECONDS, END_SECONDS, MEMORY_BYTES = 10, 5, 256 << 20
WHOLE_BYTES, PIECE = 64 << 20, 1 << 20
# Names, directories and extents that are looked at; no image of the set has more that differ.
MOST_PATHS, MOST_POINTS = 20_000, 1000
# Damage; what the kernel says of a directory that holds itself and of numbers that no inode can have; and what is no
# damage at all: no attribute, no data behind a place, a name that goes nowhere.
ERRORS = {"EIO", "EUCLEAN", "ELOOP", "ENODATA", "ENXIO", "ENOENT", "EOPNOTSUPP", "ENOTSUP"}


class Look:
    """What is found below a mount, and how often which question was answered with which error."""

    def __init__(self):
        self.errors, self.paths = collections.Counter(), 0

    def call(self, what, action, *arguments, **named):
        try:
            return action(*arguments, **named)
        except OSError as error:
            self.errors[what, errno.errorcode.get(error.errno, str(error.errno))] += 1
            return None

    def walk(self, root):
        """In a process of its own, which may hang: how many paths, and {(question, error): times}."""
        self.call("statfs", os.statvfs, root)
        todo = [root]
        while todo and self.paths < MOST_PATHS:
            path = todo.pop()
            self.paths += 1
            found = self.call("stat", os.lstat, path)
            for name in self.call("list attributes", os.listxattr, path, follow_symlinks=False) or []:
                self.call("attribute", os.getxattr, path, name, follow_symlinks=False)
            if found and stat.S_ISDIR(found.st_mode):
                todo += [os.path.join(path, name) for name in self.call("list", os.listdir, path) or []]
            elif found and stat.S_ISLNK(found.st_mode):
                self.call("target", os.readlink, path)
            elif found and stat.S_ISREG(found.st_mode):
                self.file(path, found.st_size)
        return self.paths, self.errors

    def file(self, path, size):
        fd = self.call("open", os.open, path, os.O_RDONLY)
        if fd is None:
            return
        at = 0
        for point in range(MOST_POINTS):
            at = self.call("seek", os.lseek, fd, at, os.SEEK_HOLE if point % 2 else os.SEEK_DATA)
            if at is None or at >= size:
                break
        for at in range(0, size, PIECE) if size <= WHOLE_BYTES else (0, PIECE, size // 2, size - PIECE, size - 1):
            self.call("read", os.pread, fd, min(PIECE, size - at), at)
        os.close(fd)


class Corrupt(harness.Report):
    """Options, and what was found of all images."""

    def __init__(self, given, work):
        super().__init__(given, work)
        self.refused, self.errors, self.slowest, self.largest = 0, collections.Counter(), (0, ""), (0, "")

    def expect(self, entry, is_so, text):
        super().expect(is_so, f"{entry['file']} ({entry['what']}): {text}")

    def image(self, entry):
        arguments, blob = self.given.options.split(), os.path.join(self.given.dir, "blob.bin")
        if "blob" in entry["file"] and os.path.exists(blob):
            arguments += ["--device", blob]
        system = mounted.Daemon(self.given.ferrofs, "mount", *arguments)
        image, began = os.path.join(self.given.dir, entry["file"]), time.monotonic()
        try:
            with mounted.Mount(system, image, os.path.join(self.work, "m")) as mount:
                self.expect(entry, entry["expect"] != "reject_mount", "it mounts, and should not")
                self.looked_at(entry, mount, began)
                ended = time.monotonic()
            self.expect(entry, time.monotonic() - ended < END_SECONDS, "the end of the mount takes long")
        except mounted.MountFailed as reason:
            said = str(reason).partition("status ")[2]
            self.refused += 1
            self.expect(entry, said.startswith("1: ") and "panick" not in said, f"refused with status {said}")

    def looked_at(self, entry, mount, began):
        with multiprocessing.Pool(1) as pool:
            try:
                paths, errors = pool.apply_async(Look().walk, [mount.directory]).get(LIMIT_SECONDS)
            except multiprocessing.TimeoutError:
                self.expect(entry, False, f"looking at it takes more than {LIMIT_SECONDS} s")
                mount.signal(9)
                return
        seconds, peak = time.monotonic() - began, mount.daemon_peak_bytes()
        self.slowest = max(self.slowest, (seconds, entry["file"]))
        self.largest = max(self.largest, (peak, entry["file"]))
        self.errors.update(errors)
        for (what, name), count in errors.items():
            self.expect(entry, name in ERRORS, f"{count} times {what}: {name}")
        self.expect(entry, all(map(mounted.is_alive, mount.daemons)) and bool(mount.daemons), "the daemon lives")
        self.expect(entry, peak < MEMORY_BYTES, f"memory {peak}")
        self.expect(entry, paths < MOST_PATHS, "the walk does not end")
        damage = sum(count for (_, name), count in errors.items() if name in ("EIO", "EUCLEAN"))
        self.expect(entry, damage > 0 or entry["expect"] != "reject_read", "nothing was refused")

    def all(self):
        with open(os.path.join(self.given.dir, "list.json")) as file:
            entries = [entry for entry in json.load(file)["images"] if re.search(self.given.only, entry["file"])]
        for entry in entries:
            self.image(entry)
        for (what, name), times in sorted(self.errors.items()):
            print(f"{what}: {name}: {times} times")
        (seconds, slowest), (peak, largest) = self.slowest, self.largest
        print(f"slowest {seconds:.2f} s {slowest}; largest {peak / (1 << 20):.1f} MiB {largest}")
        print(f"{len(entries)} images, {self.refused} refused")
        return self.end() or not entries


harness.main(Corrupt.of, __doc__, "FERROFS DIR", only="", options="", work="/tmp")
