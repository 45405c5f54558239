#!/usr/bin/env python3
"""Mounts images with the kernel's EROFS and with ferrofs, and compares all that a program can see. Needs root.

  parity.py [--only=REGEX] [--options=ARGUMENTS] [--work=DIR] [--max=N] [--quick] [--strict] FERROFS IMAGE...

An IMAGE may be a directory: a set of images with a manifest.json that names their extra devices and offsets. ARGUMENTS come
before the image (`-o allow_other`: without it uid 65534 sees nothing). Images that the kernel refuses are named and
left out; those that only ferrofs refuses are differences. What must differ is in ALLOWED, and is counted and printed with its
reason; --strict allows nothing. Of other differences, the first N of each field are shown. Exit status 1 if there is one.
Fields, for each path, as root:
  names, dirent.*   what getdents64 lists, in any order, with inode number and type; the same with a small buffer, and
                    again after seeking to an entry (each mount must agree with itself)
  stat.*            all of statx but the device numbers, its mask and attributes included
  xattr.*           listed names, values, sizes without a buffer, errors for names that are absent or no names
  target            of symlinks
  content, mmap     by read and by page fault; where reading fails, which pages can be read
  seek.*            the map of data and holes; seeking past the end
  open.*, do.*      the answer to each way to open, and to each attempt to change something; names that are absent
  as-65534.*        what uid 65534 may see and open, and access(2) (access.* is that of root)
  statfs.*          once
Devices are only opened where both mounts have nodev. --quick leaves as-65534 and mmap out.
"""
import collections
import contextlib
import ctypes
import errno
import fcntl
import fnmatch
import functools
import hashlib
import json
import mmap
import multiprocessing
import os
import platform
import re
import stat
import struct

import harness
import mounted
import snapshot

LIBC = mounted.LIBC
GETDENTS64 = {"x86_64": 217}.get(platform.machine(), 61)
AT_SYMLINK_NOFOLLOW, STATX_ALL = 0x100, 0xFFF
NOBODY = 65534
PAGE = 4096
# Reads may be cut differently; what is compared is their sum.
PIECE = 1 << 20
# Larger files are not read twice.
MMAP_BYTES = 4 << 20
SEEK_POINTS = 3
IOCTLS = {"ioctl unknown": 0x1234, "ioctl flags": 0x80086601, "ioctl version": 0x80087601, "ioctl fsxattr": 0x801C581F,
          "ioctl fiemap": 0xC020660B, "ioctl fibmap": 1, "ioctl label": 0x81009431, "ioctl uuid": 0x80111500,
          "ioctl sysfs": 0x80811501, "setflags": 0x40086602}
ACLS = ["system.posix_acl_access", "system.posix_acl_default"]
ODD_XATTRS = ["user.absent", "trusted.absent", "security.absent", "security.capability", "system.absent", "noprefix",
              "user.", "user." + "n" * 250, "user." + "n" * 251, "erofs.absent", *ACLS]
STATX = [("mask", "I"), ("blksize", "I"), ("attributes", "Q"), ("nlink", "I"), ("uid", "I"), ("gid", "I"),
         ("mode", "H"), ("", "H"), ("ino", "Q"), ("size", "Q"), ("blocks", "Q"), ("attributes_mask", "Q")]
OPENS = {
    "read": os.O_RDONLY, "write": os.O_WRONLY, "read-write": os.O_RDWR, "truncate": os.O_RDONLY | os.O_TRUNC,
    "write-truncate": os.O_WRONLY | os.O_TRUNC, "append": os.O_WRONLY | os.O_APPEND, "create": os.O_RDONLY | os.O_CREAT,
    "create-exclusive": os.O_RDONLY | os.O_CREAT | os.O_EXCL, "create-write": os.O_WRONLY | os.O_CREAT,
    "directory": os.O_RDONLY | os.O_DIRECTORY, "path": os.O_PATH, "noatime": os.O_RDONLY | os.O_NOATIME,
    "temporary": os.O_TMPFILE | os.O_RDWR, "direct": os.O_RDONLY | os.O_DIRECT, "sync": os.O_RDONLY | os.O_SYNC,
}
FUSE_HAS_NO = "the kernel's FUSE has no request for it"
# Fields that no FUSE daemon can answer as the kernel's EROFS does.
ALLOWED = {
    "stat.attributes*": "immutable and compressed are not passed on by the kernel's FUSE",
    "stat.mask": "EROFS has no access times and says so; FUSE cannot",
    "*open.direct": "the kernel's EROFS answers differently itself, over a loop device and without",
    **dict.fromkeys((f"do.ioctl {name}" for name in ("label", "uuid", "sysfs", "fiemap")), FUSE_HAS_NO),
    "do.ioctl fibmap": "block numbers of a mount that has no block device mean nothing",
}
# Where no inode has an attribute: `field=KERNEL>OURS` allows these two answers only.
NO_XATTRS = "once it is known that the image has no attribute at all, the kernel's FUSE is told so, and answers alone"
ALLOWED_WITHOUT_XATTRS = {"*xattr.*=ENODATA>ENOTSUP": NO_XATTRS, "*xattr.user.*=EINVAL>ENOTSUP": NO_XATTRS}
# In images of these names.
ALLOWED_IN = {"crafted-li-hole-full": {"seek.map": "holes in full indexes are of Linux 7.2; before, they are zeros"}}


@contextlib.contextmanager
def opened(path, flags):
    """A descriptor, or the name of the error."""
    fd = harness.answer(os.open, path, flags)
    try:
        yield fd
    finally:
        if not isinstance(fd, str):
            os.close(fd)


def listed(path):
    names = harness.answer(os.listxattr, path, follow_symlinks=False)
    return sorted(names) if isinstance(names, list) else names


def call(function, *arguments):
    """What a function of the C library answers: a number, or the name of the error."""
    number = function(*arguments)
    return number if number >= 0 else errno.errorcode[ctypes.get_errno()]


def statx(path):
    """The fields of statx as a dictionary, without device numbers and mount id."""
    buffer = ctypes.create_string_buffer(256)
    status = call(LIBC.statx, -100, path, AT_SYMLINK_NOFOLLOW, STATX_ALL, buffer)
    if status:
        return {"stat": status}
    fields = dict(zip((name for name, _ in STATX), struct.unpack_from("=" + "".join(c for _, c in STATX), buffer)))
    del fields[""]
    for i, name in enumerate(("atime", "btime", "ctime", "mtime")):
        fields[name] = struct.unpack_from("=qI", buffer, 64 + 16 * i)
    fields["rdev"] = struct.unpack_from("=II", buffer, 128)
    # The mount id is asked of nobody, and so may come or not.
    fields["mask"] &= STATX_ALL
    return {f"stat.{name}": value for name, value in fields.items()}


def entries(fd, size):
    """[(name, inode number, type, offset of the next)] from where fd stands, with buffers of that size."""
    buffer, found = ctypes.create_string_buffer(size), []
    while count := call(LIBC.syscall, GETDENTS64, fd, buffer, size):
        if isinstance(count, str):
            return found + [(count.encode(), 0, 0, 0)]
        at = 0
        while at < count:
            ino, after, length, kind = struct.unpack_from("=QqHB", buffer, at)
            found.append((buffer.raw[at + 19:at + length].split(b"\0")[0], ino, kind, after))
            at += length
    return found


def directory(path):
    """What a directory lists, and whether it agrees with itself."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
        if isinstance(fd, str):
            return [], {"names": fd}
        found = entries(fd, 1 << 16)
        names = [name for name, _, _, _ in found]
        out = {"names": sorted(names), "dirent.ino": sorted((n, ino) for n, ino, _, _ in found),
               "dirent.type": sorted((n, kind) for n, _, kind, _ in found)}
        out["names.twice"] = [n for n, count in collections.Counter(names).items() if count > 1]
        os.lseek(fd, 0, os.SEEK_SET)
        out["dirent.small buffer"] = [n for n, _, _, _ in entries(fd, 320)] == names
        out["dirent.seek"] = True
        for point in sorted({0, len(found) // 2, len(found) - 1})[:SEEK_POINTS]:
            os.lseek(fd, found[point][3], os.SEEK_SET)
            out["dirent.seek"] &= [n for n, _, _, _ in entries(fd, 4096)] == names[point + 1:]
        out["dirent.read"] = harness.answer(os.read, fd, 10)
        out["dirent.seek negative"] = harness.answer(os.lseek, fd, -1, os.SEEK_SET)
        out["dirent.fsync"] = harness.answer(os.fsync, fd)
        return [n for n in out["names"] if n not in (b".", b"..")], out


def xattrs(path):
    names = listed(path)
    out = {"xattr.names": names, "xattr.list size": call(LIBC.llistxattr, path, None, 0)}
    if isinstance(names, list) and names:
        out["xattr.list small"] = call(LIBC.llistxattr, path, ctypes.create_string_buffer(1), 1)
    for name in (names if isinstance(names, list) else []) + ODD_XATTRS:
        out[f"xattr.{name}"] = harness.answer(os.getxattr, path, name, follow_symlinks=False)
        out[f"xattr.{name} size"] = call(LIBC.lgetxattr, path, os.fsencode(name), None, 0)
        out[f"xattr.{name} small"] = call(LIBC.lgetxattr, path, os.fsencode(name), ctypes.create_string_buffer(1), 1)
    return out


def content(fd, size):
    """The bytes as a digest; where some cannot be read, which pages can, and theirs."""
    digest, unreadable, at = hashlib.sha256(), [], 0
    while isinstance(piece := harness.answer(os.pread, fd, PIECE, at), bytes):
        if not piece:
            return at, digest.hexdigest()
        digest.update(piece)
        at += len(piece)
    digest = hashlib.sha256()
    for at in range(0, size, PAGE):
        piece = harness.answer(os.pread, fd, PAGE, at)
        if isinstance(piece, str):
            unreadable.append((at // PAGE, piece))
        else:
            digest.update(piece)
    return size, digest.hexdigest(), unreadable[:20], len(unreadable)


def holes(fd, size):
    """Where data and holes begin, by turns."""
    found, at, wants = [], 0, os.SEEK_DATA
    while at < size and len(found) < 10000:
        at = harness.answer(os.lseek, fd, at, wants)
        found.append(at)
        if isinstance(at, str):
            break
        wants = os.SEEK_HOLE if wants == os.SEEK_DATA else os.SEEK_DATA
    return found


def regular(path, size, is_quick):
    with opened(path, os.O_RDONLY) as fd:
        if isinstance(fd, str):
            return {"content": fd}
        out = {"content": content(fd, size), "seek.map": holes(fd, size)}
        for name, place in (("end", size), ("past", size + 1), ("far", 1 << 62), ("negative", -1)):
            for wants in ("SEEK_DATA", "SEEK_HOLE", "SEEK_SET"):
                out[f"seek.{wants} {name}"] = harness.answer(os.lseek, fd, place, getattr(os, wants))
        attempts = {
            "seek.SEEK_END": (os.lseek, fd, 0, os.SEEK_END), "content.at the end": (os.pread, fd, 100, size),
            "content.past the end": (os.pread, fd, 100, size + 12345),
            "content.odd": (os.pread, fd, 4097, max(0, size // 2 - 2049)), "do.ftruncate": (os.ftruncate, fd, 0),
            "do.fsync": (os.fsync, fd), "do.write": (os.write, fd, b"x"), "do.fallocate": (os.posix_fallocate, fd, 0, 10),
            "do.flock": (fcntl.flock, fd, fcntl.LOCK_SH | fcntl.LOCK_NB)}
        if size:
            attempts["do.mmap shared for writing"] = (mapped, fd, mmap.PROT_READ | mmap.PROT_WRITE)
            if size <= MMAP_BYTES and len(out["content"]) == 2 and not is_quick:
                attempts["mmap"] = (mapped, fd, mmap.PROT_READ)
        return {**out, **{name: harness.answer(*attempt) for name, attempt in attempts.items()}}


def mapped(fd, protection):
    with mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=protection) as view:
        return hashlib.sha256(view).hexdigest()


def ioctls(path, flags):
    out = {}
    with opened(path, flags) as fd:
        for name, number in IOCTLS.items() if not isinstance(fd, str) else ():
            value = harness.answer(fcntl.ioctl, fd, number, bytes(512))
            # Extents are places on the device; that they can be had is what counts.
            out[f"do.{name}"] = value if isinstance(value, str) or "fiemap" not in name else "answered"
    return out


def refusals(path, is_directory):
    """What each attempt to change something is answered."""
    inside = os.path.join(path, b"absent") if is_directory else path + b".absent"
    here = {"follow_symlinks": False}
    attempts = {
        "chown": (os.chown, path, 1, 1), "chown to none": (os.chown, path, -1, -1), "utime": (os.utime, path, (1, 1)),
        "setxattr": (os.setxattr, path, "user.x", b"x"), "setxattr acl": (os.setxattr, path, ACLS[0], b"\2\0\0\0"),
        "removexattr": (os.removexattr, path, "user.x"), "removexattr acl": (os.removexattr, path, ACLS[0]),
        "link": (os.link, path, inside)}
    out = {f"do.{name}": harness.answer(*attempt, **here) for name, attempt in attempts.items()}
    attempts = {
        "unlink": (os.unlink, path), "rmdir": (os.rmdir, path), "rename": (os.rename, path, inside),
        "rename to itself": (os.rename, path, path), "symlink": (os.symlink, b"x", inside),
        "symlink over": (os.symlink, b"x", path),
        "mkdir": (os.mkdir, inside), "mkdir over": (os.mkdir, path), "mknod": (os.mknod, inside, stat.S_IFIFO | 0o600),
        "mknod over": (os.mknod, path, stat.S_IFIFO | 0o600), "create": (opening, inside, os.O_CREAT | os.O_WRONLY),
        "unlink absent": (os.unlink, inside), "rmdir absent": (os.rmdir, inside),
        "rename absent": (os.rename, inside, inside + b"2"), "lookup absent": (os.lstat, inside), "lookup inside": (os.lstat, os.path.join(path, b"absent", b"absent")),
        "lookup long": (os.lstat, os.path.join(path, b"n" * 256)), "lookup slash": (os.path.getsize, path + b"/"),
        "readlink": (os.readlink, path)}
    if not os.path.islink(path):
        attempts["chmod"] = (os.chmod, path, 0o600)
        if os.path.isfile(path):
            attempts.update({"truncate": (os.truncate, path, 0), "truncate longer": (os.truncate, path, 1 << 40)})
    return {**out, **{f"do.{name}": harness.answer(*attempt) for name, attempt in attempts.items()}}


def opening(path, flags):
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    os.close(fd)
    return "opens"


def opens(path, mode, may_open_devices):
    if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and not may_open_devices:
        return {}
    return {f"open.{name}": harness.answer(opening, path, flags) for name, flags in OPENS.items()}


def access(path):
    # access(2) follows symlinks, and out of the mount they must not lead.
    ways = {} if os.path.islink(path) else {"exists": os.F_OK, "read": os.R_OK, "write": os.W_OK, "execute": os.X_OK}
    return {f"access.{name}": call(LIBC.access, path, way) for name, way in ways.items()}


def observe(path, is_quick, may_open_devices):
    """All that can be seen at a path; names below it, if it is a directory."""
    out = statx(path)
    mode, size, names = out.get("stat.mode", 0), out.get("stat.size", 0), []
    if stat.S_ISDIR(mode):
        names, found = directory(path)
        out.update(found, **ioctls(path, os.O_RDONLY | os.O_DIRECTORY))
    if stat.S_ISLNK(mode):
        out["target"] = harness.answer(os.readlink, path)
    if stat.S_ISREG(mode):
        out.update(regular(path, size, is_quick), **ioctls(path, os.O_RDONLY))
    return names, {**out, **xattrs(path), **opens(path, mode, may_open_devices), **refusals(path, stat.S_ISDIR(mode)),
                   **access(path)}


def observe_as_nobody(path, may_open_devices):
    """What is left to a stranger."""
    looks = statx(path)
    mode = looks.get("stat.mode", 0)
    out = {"stat": looks.get("stat", "seen"), **access(path), "xattr.names": listed(path)}
    names = harness.answer(os.listdir, path) if stat.S_ISDIR(mode) else []
    out["names"] = sorted(names) if isinstance(names, list) else names
    if not stat.S_ISLNK(mode):
        out.update(opens(path, mode, may_open_devices))
        out.update({f"do.{name}": harness.answer(attempt, path) for name, attempt in
                    (("chmod", lambda path: os.chmod(path, 0o600)), ("unlink", os.unlink), ("rmdir", os.rmdir),
                     ("utime", os.utime))})
    if stat.S_ISREG(mode):
        out["content"] = harness.digest(path)
    for name in (out["xattr.names"] if isinstance(out["xattr.names"], list) else []) + ODD_XATTRS:
        out[f"xattr.{name}"] = harness.answer(os.getxattr, path, name, follow_symlinks=False)
    out["do.create"] = harness.answer(opening, os.path.join(path, b"absent"), os.O_CREAT | os.O_WRONLY)
    return {f"as-{NOBODY}.{field}": value for field, value in out.items()}


def become_nobody(root):
    # The way to the mount may be closed to strangers; it is not what is compared.
    os.chdir(root)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def flags(root):
    """Its statfs, the identity of the file system aside."""
    found = os.statvfs(root)
    return {f"statfs.{name}": getattr(found, name) for name in dir(found) if name.startswith("f_") and name != "f_fsid"}


class Comparison:
    """Differences by field, and the ones that are allowed."""

    def __init__(self, theirs, ours, allowed, given):
        self.theirs, self.ours, self.allowed = os.fsencode(theirs), os.fsencode(ours), allowed
        self.limit, self.is_quick = given.max, given.quick
        self.found, self.excused, self.paths, self.checks = collections.Counter(), collections.Counter(), [], 0
        # 4 is ST_NODEV.
        self.may_open_devices = all(os.statvfs(root).f_flag & 4 for root in (theirs, ours))

    def reason(self, field, theirs, ours):
        seen = f"{field}={theirs}>{ours}"
        return next((pattern for pattern in self.allowed
                     if fnmatch.fnmatchcase(seen if "=" in pattern else field, pattern)), None)

    def compare(self, path, theirs, ours):
        for field in {**theirs, **ours}:
            x, y = theirs.get(field), ours.get(field)
            self.checks += 1
            if x == y:
                continue
            pattern = self.reason(field, x, y)
            if pattern:
                self.excused[pattern] += 1
                continue
            self.found[field] += 1
            if self.found[field] <= self.limit:
                print(f"{field}: {b'/' + path!r}: kernel {shown(x, y)}, ours {shown(y, x)}")

    def walk(self):
        todo = [b""]
        while todo:
            path = todo.pop()
            self.paths.append(path or b".")
            full = [os.path.join(root, path) if path else root for root in (self.theirs, self.ours)]
            (names, x), (others, y) = (observe(p, self.is_quick, self.may_open_devices) for p in full)
            self.compare(path, x, y)
            if stat.S_ISDIR(x.get("stat.mode", 0)) and stat.S_ISDIR(y.get("stat.mode", 0)):
                todo += [os.path.join(path, name) if path else name for name in reversed(names) if name in set(others)]

    def strangers(self):
        look = functools.partial(observe_as_nobody, may_open_devices=self.may_open_devices)
        with contextlib.ExitStack() as pools:
            seen = [pools.enter_context(multiprocessing.Pool(1, become_nobody, [root])).imap(look, self.paths, 64)
                    for root in (self.theirs, self.ours)]
            for path, theirs, ours in zip(self.paths, *seen):
                self.compare(path, theirs, ours)

    def run(self):
        self.compare(b"", flags(self.theirs), flags(self.ours))
        self.walk()
        if not self.is_quick:
            self.strangers()
        for pattern, count in sorted(self.excused.items()):
            print(f"allowed: {pattern}: {count} times: {self.allowed[pattern]}")
        for field, count in sorted(self.found.items()):
            print(f"differs: {field}: {count} times")
        print(f"{len(self.paths)} paths, {self.checks} answers compared, {sum(self.found.values())} differences, "
              f"{sum(self.excused.values())} allowed")
        return not self.found


def shown(value, other):
    """A value; of long lists only what the other has not."""
    if isinstance(value, list) and isinstance(other, list):
        return f"{len(value)} items, only here {[item for item in value if item not in other][:4]}"
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"


def has_xattrs(root):
    """Whether anything has an attribute that root may list."""
    return any(os.listxattr(os.path.join(root, path) if path else root, follow_symlinks=False) for path in snapshot.walk(root))


def images_of(words):
    """(name, image, devices, offset) of every image that is named, or stands in a manifest."""
    for word in words:
        if not os.path.isdir(word):
            yield os.path.basename(word), os.path.abspath(word), [], 0
            continue
        with open(next(entry.path for entry in os.scandir(word) if entry.name.lower() == "manifest.json")) as file:
            for entry in json.load(file)["images"]:
                image, *devices = (os.path.abspath(os.path.join(word, name)) for name in (entry["file"], *entry["devices"]))
                yield entry["name"], image, devices, entry.get("image_offset", entry.get("offset", 0))


class Parity(harness.Report):
    """Options, and what was found of all images."""

    def __init__(self, given, work):
        super().__init__(given, work)
        self.same, self.skipped, self.different = [], [], []

    def all(self):
        for name, image, devices, offset in images_of(self.given.image):
            if re.search(self.given.only, name):
                self.image(name, image, devices, offset)
        print(f"\n{len(self.same)} the same, {len(self.different)} different ({' '.join(self.different) or 'none'}), "
              f"{len(self.skipped)} refused by the kernel ({' '.join(self.skipped) or 'none'})")
        return 1 if self.different or not self.same else 0

    def image(self, name, image, devices, offset):
        print(f"\n## {name}", flush=True)
        arguments = [*self.given.options.split(), *(f"--device={device}" for device in devices), f"--offset={offset}"]
        try:
            with mounted.Mount(mounted.Kernel(offset, devices), image, os.path.join(self.work, "kernel")) as kernel:
                self.beside(name, image, kernel, mounted.Daemon(self.given.ferrofs, "mount", *arguments))
        except mounted.MountFailed as reason:
            print(f"the kernel refuses it: {reason}")
            self.skipped.append(name)

    def beside(self, name, image, kernel, system):
        try:
            with mounted.Mount(system, image, os.path.join(self.work, "ferrofs")) as ours:
                allowed = {} if self.given.strict else {**ALLOWED, **ALLOWED_IN.get(name, {})}
                if allowed and not has_xattrs(os.fsencode(kernel.directory)):
                    allowed.update(ALLOWED_WITHOUT_XATTRS)
                is_same = Comparison(kernel.directory, ours.directory, allowed, self.given).run()
        except mounted.MountFailed as reason:
            print(f"ferrofs: {reason}")
            is_same = False
        (self.same if is_same else self.different).append(name)


harness.main(Parity.of, __doc__, "FERROFS IMAGE...", only="", options="-o allow_other", work="/tmp", max=5, quick=False,
             strict=False)
