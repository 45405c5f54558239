#!/usr/bin/env python3
"""Compares two read-only mounts of the same image in everything a program can see; run it as root.

  compare_mounts.py [--allow=FIELD:REASON]... [--max=N] [--quick] KERNEL_DIR OUR_DIR

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
FIELD may end in `*`, and go on with `=KERNEL>OURS`: then only these two answers may differ. Devices are only opened where both mounts have nodev. --quick leaves as-65534 and mmap out.
A difference that is allowed is counted and printed with its reason. Exit status: 0 no other, 1 differences, 2 usage.
"""
import collections
import ctypes
import errno
import fcntl
import fnmatch
import hashlib
import mmap
import os
import pickle
import platform
import stat
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
GETDENTS64 = {"x86_64": 217}.get(platform.machine(), 61)
AT_SYMLINK_NOFOLLOW, STATX_ALL = 0x100, 0xFFF
NOBODY = 65534
PAGE = 4096
# Reads may be cut differently; what is compared is their sum.
PIECE = 1 << 20
# Larger files are not read twice.
MMAP_BYTES = 4 << 20
SEEK_POINTS = 3
FS_IOC_GETFLAGS, FS_IOC_GETVERSION, FS_IOC_FSGETXATTR = 0x80086601, 0x80087601, 0x801C581F
FS_IOC_FIEMAP, FIBMAP, UNKNOWN_IOCTL, FS_IOC_GETFSLABEL = 0xC020660B, 1, 0x1234, 0x81009431
FS_IOC_GETFSUUID, FS_IOC_GETFSSYSFSPATH = 0x80111500, 0x80811501
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


def answer(action, *arguments, **named):
    """What an action answers: its value, or the name of its error."""
    try:
        return action(*arguments, **named)
    except OSError as error:
        return errno.errorcode.get(error.errno, error.errno)


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
    while True:
        count = call(LIBC.syscall, GETDENTS64, fd, buffer, size)
        if isinstance(count, str):
            return found + [(count.encode(), 0, 0, 0)]
        if not count:
            return found
        at = 0
        while at < count:
            ino, after, length, kind = struct.unpack_from("=QqHB", buffer, at)
            name = buffer.raw[at + 19:at + length].split(b"\0")[0]
            found.append((name, ino, kind, after))
            at += length


def directory(path):
    """What a directory lists, and whether it agrees with itself."""
    fd = answer(os.open, path, os.O_RDONLY | os.O_DIRECTORY)
    if isinstance(fd, str):
        return [], {"names": fd}
    try:
        listed = entries(fd, 1 << 16)
        names = [name for name, _, _, _ in listed]
        out = {"names": sorted(names), "dirent.ino": sorted((n, ino) for n, ino, _, _ in listed),
               "dirent.type": sorted((n, kind) for n, _, kind, _ in listed)}
        out["names.twice"] = [n for n, count in collections.Counter(names).items() if count > 1]
        os.lseek(fd, 0, os.SEEK_SET)
        out["dirent.small buffer"] = [n for n, _, _, _ in entries(fd, 320)] == names
        for point in sorted({0, len(listed) // 2, len(listed) - 1})[:SEEK_POINTS]:
            os.lseek(fd, listed[point][3], os.SEEK_SET)
            rest = [n for n, _, _, _ in entries(fd, 4096)]
            out.setdefault("dirent.seek", []).append(rest == names[point + 1:])
        out["dirent.seek"] = all(out.get("dirent.seek", [True]))
        out["dirent.read"] = answer(os.read, fd, 10)
        out["dirent.seek negative"] = answer(os.lseek, fd, -1, os.SEEK_SET)
        out["dirent.fsync"] = answer(os.fsync, fd)
        return [n for n in out["names"] if n not in (b".", b"..")], out
    finally:
        os.close(fd)


def xattrs(path):
    out = {}
    names = answer(os.listxattr, path, follow_symlinks=False)
    out["xattr.names"] = sorted(names) if isinstance(names, list) else names
    out["xattr.list size"] = call(LIBC.llistxattr, path, None, 0)
    if isinstance(names, list) and names:
        out["xattr.list small"] = call(LIBC.llistxattr, path, ctypes.create_string_buffer(1), 1)
    for name in (names if isinstance(names, list) else []) + ODD_XATTRS:
        out[f"xattr.{name}"] = answer(os.getxattr, path, name, follow_symlinks=False)
        out[f"xattr.{name} size"] = call(LIBC.lgetxattr, path, os.fsencode(name), None, 0)
        out[f"xattr.{name} small"] = call(LIBC.lgetxattr, path, os.fsencode(name), ctypes.create_string_buffer(1), 1)
    return out


def content(fd, size):
    """The bytes as a digest; where some cannot be read, which pages can, and theirs."""
    digest, at = hashlib.sha256(), 0
    while True:
        piece = answer(os.pread, fd, PIECE, at)
        if isinstance(piece, str):
            break
        if not piece:
            return at, digest.hexdigest()
        digest.update(piece)
        at += len(piece)
    digest, unreadable = hashlib.sha256(), []
    for at in range(0, size, PAGE):
        piece = answer(os.pread, fd, PAGE, at)
        if isinstance(piece, str):
            unreadable.append((at // PAGE, piece))
        else:
            digest.update(piece)
    return size, digest.hexdigest(), unreadable[:20], len(unreadable)


def holes(fd, size):
    """Where data and holes begin, by turns."""
    found, at, wants = [], 0, os.SEEK_DATA
    while at < size and len(found) < 10000:
        at = answer(os.lseek, fd, at, wants)
        found.append(at)
        if isinstance(at, str):
            break
        wants = os.SEEK_HOLE if wants == os.SEEK_DATA else os.SEEK_DATA
    return found


def regular(path, size, is_quick):
    fd = answer(os.open, path, os.O_RDONLY)
    if isinstance(fd, str):
        return {"content": fd}
    try:
        out = {"content": content(fd, size), "seek.map": holes(fd, size)}
        for name, place in (("end", size), ("past", size + 1), ("far", 1 << 62), ("negative", -1)):
            for wants in ("SEEK_DATA", "SEEK_HOLE", "SEEK_SET"):
                out[f"seek.{wants} {name}"] = answer(os.lseek, fd, place, getattr(os, wants))
        out["seek.SEEK_END"] = answer(os.lseek, fd, 0, os.SEEK_END)
        out["content.at the end"] = answer(os.pread, fd, 100, size)
        out["content.past the end"] = answer(os.pread, fd, 100, size + 12345)
        out["content.odd"] = answer(os.pread, fd, 4097, max(0, size // 2 - 2049))
        out["do.ftruncate"] = answer(os.ftruncate, fd, 0)
        out["do.fsync"] = answer(os.fsync, fd)
        out["do.write"] = answer(os.write, fd, b"x")
        out["do.fallocate"] = answer(os.posix_fallocate, fd, 0, 10)
        out["do.flock"] = answer(fcntl.flock, fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if size:
            out["do.mmap shared for writing"] = answer(mapped, fd, mmap.PROT_READ | mmap.PROT_WRITE)
            if size <= MMAP_BYTES and len(out["content"]) == 2 and not is_quick:
                out["mmap"] = answer(mapped, fd, mmap.PROT_READ)
        return out
    finally:
        os.close(fd)


def mapped(fd, protection):
    with mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=protection) as view:
        return hashlib.sha256(view).hexdigest()


def ioctls(path, flags):
    fd = answer(os.open, path, flags)
    if isinstance(fd, str):
        return {}
    out = {}
    for name, number in (("unknown", UNKNOWN_IOCTL), ("flags", FS_IOC_GETFLAGS), ("version", FS_IOC_GETVERSION),
                         ("fsxattr", FS_IOC_FSGETXATTR), ("fiemap", FS_IOC_FIEMAP), ("fibmap", FIBMAP),
                         ("label", FS_IOC_GETFSLABEL), ("uuid", FS_IOC_GETFSUUID), ("sysfs", FS_IOC_GETFSSYSFSPATH)):
        value = answer(fcntl.ioctl, fd, number, bytes(512))
        # Extents are places on the device; that they can be had is what counts.
        out[f"do.ioctl {name}"] = value if isinstance(value, str) or name != "fiemap" else "answered"
    out["do.setflags"] = answer(fcntl.ioctl, fd, 0x40086602, bytes(8))
    os.close(fd)
    return out


def refusals(path, is_directory):
    """What each attempt to change something is answered."""
    inside = os.path.join(path, b"absent") if is_directory else path + b".absent"
    attempts = {
        "chmod": lambda: os.chmod(path, 0o600) if not os.path.islink(path) else None,
        "chown": lambda: os.chown(path, 1, 1, follow_symlinks=False),
        "chown to none": lambda: os.chown(path, -1, -1, follow_symlinks=False),
        "utime": lambda: os.utime(path, (1, 1), follow_symlinks=False),
        "setxattr": lambda: os.setxattr(path, "user.x", b"x", follow_symlinks=False),
        "setxattr acl": lambda: os.setxattr(path, ACLS[0], b"\2\0\0\0", follow_symlinks=False),
        "removexattr": lambda: os.removexattr(path, "user.x", follow_symlinks=False),
        "removexattr acl": lambda: os.removexattr(path, ACLS[0], follow_symlinks=False),
        "unlink": lambda: os.unlink(path), "rmdir": lambda: os.rmdir(path),
        "rename": lambda: os.rename(path, inside), "rename to itself": lambda: os.rename(path, path),
        "link": lambda: os.link(path, inside, follow_symlinks=False), "symlink": lambda: os.symlink(b"x", inside),
        "symlink over": lambda: os.symlink(b"x", path), "mkdir": lambda: os.mkdir(inside),
        "mkdir over": lambda: os.mkdir(path), "mknod": lambda: os.mknod(inside, stat.S_IFIFO | 0o600),
        "mknod over": lambda: os.mknod(path, stat.S_IFIFO | 0o600),
        "create": lambda: os.close(os.open(inside, os.O_CREAT | os.O_WRONLY, 0o600)),
        "unlink absent": lambda: os.unlink(inside), "rmdir absent": lambda: os.rmdir(inside),
        "rename absent": lambda: os.rename(inside, inside + b"2"), "lookup absent": lambda: os.lstat(inside),
        "lookup inside": lambda: os.lstat(os.path.join(path, b"absent", b"absent")),
        "lookup long": lambda: os.lstat(os.path.join(path, b"n" * 256)),
        "lookup slash": lambda: bool(os.lstat(path + b"/")),
        "readlink": lambda: os.readlink(path),
    }
    if os.path.isfile(path) and not os.path.islink(path):
        attempts["truncate"] = lambda: os.truncate(path, 0)
        attempts["truncate longer"] = lambda: os.truncate(path, 1 << 40)
    return {f"do.{name}": answer(attempt) for name, attempt in attempts.items()}


def opening(path, flags):
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    os.close(fd)
    return "opens"


def opens(path, mode, may_open_devices):
    if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and not may_open_devices:
        return {}
    return {f"open.{name}": answer(opening, path, flags) for name, flags in OPENS.items()}


def access(path):
    ways = {"exists": os.F_OK, "read": os.R_OK, "write": os.W_OK, "execute": os.X_OK}
    # access(2) follows symlinks, and out of the mount they must not lead.
    if os.path.islink(path):
        return {}
    return {f"access.{name}": call(LIBC.access, path, way) for name, way in ways.items()}


def observe(path, is_quick, may_open_devices):
    """All that can be seen at a path; names below it, if it is a directory."""
    out = statx(path)
    mode, size, names = out.get("stat.mode", 0), out.get("stat.size", 0), []
    if stat.S_ISDIR(mode):
        names, listed = directory(path)
        out.update(listed)
        out.update(ioctls(path, os.O_RDONLY | os.O_DIRECTORY))
    if stat.S_ISLNK(mode):
        out["target"] = answer(os.readlink, path)
    if stat.S_ISREG(mode):
        out.update(regular(path, size, is_quick))
        out.update(ioctls(path, os.O_RDONLY))
    out.update(xattrs(path))
    out.update(opens(path, mode, may_open_devices))
    out.update(refusals(path, stat.S_ISDIR(mode)))
    out.update(access(path))
    return names, out


def observe_as_nobody(path, may_open_devices):
    """What is left to a stranger."""
    out = statx(path)
    mode = out.get("stat.mode", 0)
    out = {"stat": out.get("stat", "seen")}
    out.update(access(path))
    names = answer(os.listdir, path) if stat.S_ISDIR(mode) else []
    out["names"] = sorted(names) if isinstance(names, list) else names
    if not stat.S_ISLNK(mode):
        out.update(opens(path, mode, may_open_devices))
        out["do.chmod"] = answer(os.chmod, path, 0o600)
    if stat.S_ISREG(mode):
        out["content"] = answer(first_bytes, path)
    names = answer(os.listxattr, path, follow_symlinks=False)
    out["xattr.names"] = sorted(names) if isinstance(names, list) else names
    for name in (names if isinstance(names, list) else []) + ODD_XATTRS:
        out[f"xattr.{name}"] = answer(os.getxattr, path, name, follow_symlinks=False)
    for name, attempt in (("unlink", os.unlink), ("rmdir", os.rmdir), ("utime", os.utime)):
        out[f"do.{name}"] = answer(attempt, path) if not stat.S_ISLNK(mode) else None
    out["do.create"] = answer(opening, os.path.join(path, b"absent"), os.O_CREAT | os.O_WRONLY)
    return {f"as-{NOBODY}.{field}": value for field, value in out.items()}


def first_bytes(path):
    with open(path, "rb", buffering=0) as file:
        return file.read(100)


def start_nobody(root, paths, may_open_devices):
    """A child without rights that observes all paths and writes down what it sees; the end to read."""
    source, target = os.pipe()
    sys.stdout.flush()
    if os.fork():
        os.close(target)
        return os.fdopen(source, "rb")
    status = 1
    try:
        os.close(source)
        # The way to the mount may be closed to strangers; it is not what is compared.
        os.chdir(root)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        with os.fdopen(target, "wb") as pipe:
            for path in paths:
                pickle.dump(observe_as_nobody(path, may_open_devices), pipe)
        status = 0
    finally:
        os._exit(status)


class Comparison:
    """Differences by field, and the ones that are allowed."""

    def __init__(self, ours, theirs, allowed, limit, is_quick):
        self.theirs, self.ours, self.allowed, self.limit, self.is_quick = theirs, ours, allowed, limit, is_quick
        self.found, self.excused, self.paths, self.checks = collections.Counter(), collections.Counter(), [], 0
        flags = [os.statvfs(root).f_flag for root in (theirs, ours)]
        # 4 is ST_NODEV.
        self.may_open_devices = all(flag & 4 for flag in flags)

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
        pipes = [start_nobody(root, self.paths, self.may_open_devices) for root in (self.theirs, self.ours)]
        for path in self.paths:
            self.compare(path, *(pickle.load(pipe) for pipe in pipes))
        for pipe in pipes:
            pipe.close()
            os.wait()

    def statfs(self):
        x, y = ({f"statfs.{name}": getattr(os.statvfs(root), name) for name in dir(os.statvfs(root))
                 if name.startswith("f_") and name != "f_fsid"} for root in (self.theirs, self.ours))
        self.compare(b"", x, y)

    def run(self):
        self.statfs()
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
        only = [item for item in value if item not in other]
        return f"{len(value)} items, only here {only[:4]}"
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"


def compare(kernel, ours, allowed, limit=5, is_quick=False):
    """Compares two directories; whether nothing differs that is not allowed ({pattern of fields: reason})."""
    return Comparison(os.fsencode(ours), os.fsencode(kernel), allowed, limit, is_quick).run()


def main():
    allowed, limit, is_quick, words = {}, 5, False, []
    for word in sys.argv[1:]:
        if word.startswith("--allow=") and ":" in word:
            field, _, reason = word[8:].partition(":")
            allowed[field] = reason
        elif word.startswith("--max="):
            limit = int(word[6:])
        elif word == "--quick":
            is_quick = True
        elif word.startswith("--"):
            words = []
            break
        else:
            words.append(word)
    if len(words) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    return 0 if compare(*words, allowed, limit, is_quick) else 1


if __name__ == "__main__":
    sys.exit(main())
