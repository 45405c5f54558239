"""The source trees of the test images, and a larger one for the scripts that build.

Needs root and a file system with device nodes, nanosecond times from 1901 to 2446, and all four xattr namespaces.
Everything but the demo depends on this file alone: contents come from SHAKE-256, and mtimes from a counter."""
import glob
import hashlib
import os
import shutil
import stat
import struct

ALL = 0xFFFFFFFF
# What make_test_images.py gives to mkfs.erofs as --xattr-prefix occurs in these names.
LONG_PREFIX_NAMES = ["trusted.overlay.metacopy", "user.infix.one", "user.infix.two", "user.infixBBthree", "user.infix."]
DEMO_PACKAGES = ["asyncio", "collections", "concurrent", "email", "html", "http", "importlib", "json", "logging",
                 "tomllib", "unittest", "urllib", "wsgiref"]


def noise(key, size):
    return hashlib.shake_256(key.encode()).digest(size)


def text(key, size, vocabulary=400):
    """Lines of made-up words, the short ones more frequent; compresses about as well as prose."""
    rnd, words = noise("vocabulary", 16 * vocabulary), []
    for i in range(vocabulary):
        r = rnd[16 * i:16 * i + 16]
        n = min(1 + (i * 11 // vocabulary + r[0] % 4) // 2, 7)
        words.append("".join("bcdfghklmnprstvz"[r[2 * j + 1] & 15] + "aeiou"[r[2 * j + 2] % 5] for j in range(n)))
    rnd = noise("text " + key, 4 * (size // 3 + 8))
    out, column, total = [], 0, 0
    for a, b in struct.iter_unpack("<HH", rnd):
        word = words[(a * b >> 16) * vocabulary >> 16]
        column += len(word) + 1
        out.append(word + ("\n" if column > 70 else " "))
        column = 0 if column > 70 else column
        total += len(word) + 1
        if total >= size:
            break
    return "".join(out).encode()[:size]


def lines(size):
    """Numbered lines; compresses very well."""
    return b"".join(b"%07d all work and no play makes a dull test\n" % i for i in range(size // 47 + 1))[:size]


def acl(*entries):
    """The xattr form of a POSIX ACL from (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)


ACL_ACCESS = acl((1, 6, ALL), (2, 7, 1000), (2, 4, 2000), (4, 4, ALL), (8, 6, 1000), (16, 7, ALL), (32, 4, ALL))
ACL_DEFAULT = acl((1, 7, ALL), (2, 5, 4294967294), (4, 5, ALL), (16, 5, ALL), (32, 0, ALL))
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)  # cap_net_raw+ep


class Tree:
    def __init__(self, root):
        self.root = os.fsencode(root)
        self.times = []
        self.here = b""
        os.mkdir(self.root, 0o755)
        self.note(b"")

    def note(self, path, mtime=None):
        k = len(self.times) + 1
        if mtime is None:
            mtime = (1700000000 + 61 * k) * 10**9 + 123456789 * k % 10**9
        self.times.append((path, mtime))

    def path(self, name):
        rel = os.path.join(self.here, os.fsencode(name))
        return rel, os.path.join(self.root, rel)

    def finish(self, name, mode, uid, gid, mtime, xattrs):
        rel, p = self.path(name)
        os.lchown(p, uid, gid)
        if mode is not None:
            os.chmod(p, mode)
        for k, v in (xattrs or {}).items():
            os.setxattr(p, k, v, follow_symlinks=False)
        self.note(rel, mtime)

    def dir(self, name, mode=0o755, uid=0, gid=0, mtime=None, xattrs=None):
        """Makes a directory below the root and enters it."""
        self.here = b""
        os.mkdir(self.path(name)[1])
        self.finish(name, mode, uid, gid, mtime, xattrs)
        self.here = os.fsencode(name)

    def file(self, name, data=b"", mode=0o644, uid=0, gid=0, mtime=None, xattrs=None):
        with open(self.path(name)[1], "wb") as f:
            f.write(data)
        self.finish(name, mode, uid, gid, mtime, xattrs)

    def sparse(self, name, size, *pieces):
        with open(self.path(name)[1], "wb") as f:
            for offset, data in pieces:
                f.seek(offset)
                f.write(data)
            f.truncate(size)
        self.finish(name, 0o644, 0, 0, None, None)

    def node(self, name, kind, major=0, minor=0, mode=0o600, xattrs=None):
        os.mknod(self.path(name)[1], kind | 0o600, os.makedev(major, minor))
        self.finish(name, mode, 0, 0, None, xattrs)

    def link(self, name, target):
        """A hard link to a path below the root."""
        os.link(os.path.join(self.root, os.fsencode(target)), self.path(name)[1], follow_symlinks=False)

    def symlink(self, name, target, xattrs=None):
        os.symlink(target, self.path(name)[1])
        self.finish(name, None, 0, 0, None, xattrs)

    def close(self):
        for rel, t in reversed(self.times):
            os.utime(os.path.join(self.root, rel) if rel else self.root, ns=(t, t), follow_symlinks=False)


def few(path):
    """A small tree with a bit of everything that tar archives and chunk-based images can hold."""
    t = Tree(path)
    t.file("a.txt", text("a", 3000))
    t.file("b.txt", text("b", 5000), mode=0o600, uid=1000, gid=1000)
    t.file("block", noise("block", 4096))
    t.file("blocks", noise("blocks", 8192))
    t.file("empty")
    t.sparse("hole", 9000, (0, b"head"), (4200, b"middle"))
    t.link("linked", "a.txt")
    t.symlink("link", "sub/c.txt")
    t.symlink("long-link", "/".join(["directory-%02d" % i for i in range(30)]))
    t.file("suid", b"#!/bin/sh\nid\n", mode=0o4755)
    t.file("x", b"x", xattrs={"user.comment": b"a comment", "user.other": noise("other", 40)})
    t.file("n" * 150 + ".long", b"long name\n")
    t.dir("sub", 0o750, 1000, 100)
    t.file("c.txt", text("a", 8000)[3000:])
    t.file("same-as-b.txt", text("b", 5000))
    t.node("fifo", stat.S_IFIFO, mode=0o640)
    t.node("zero", stat.S_IFCHR, 1, 5, 0o666)
    t.node("disk", stat.S_IFBLK, 259, 70000, 0o660)
    t.dir("sub/empty")
    t.dir("sub/more")
    for i in range(8):
        t.file("f%d" % i, lines(40 * i * i))
    t.close()


def nasty(path):
    """Metadata of every kind; little data."""
    t = Tree(path)
    os.setxattr(path, "user.rootattr", b"root")
    t.dir("acl", 0o1777, xattrs={"system.posix_acl_default": ACL_DEFAULT, "system.posix_acl_access": ACL_ACCESS})
    t.file("file", b"acl", xattrs={"system.posix_acl_access": ACL_ACCESS})
    t.file("inherits", b"acl")
    t.dir("bigdir")
    for i in range(10):
        t.file("entry-%02d-" % i + "abcdefghij" * 18, b"" if i else b"forty names\n")
    for i in range(40):
        t.link("other-%02d-" % i + "klmnopqrst" * 18, b"bigdir/entry-00-" + b"abcdefghij" * 18)
    t.dir("content")
    t.file("noise", noise("noise", 4200))
    t.file("text", text("nasty", 6000))
    t.sparse("hole", 8192)
    t.sparse("hole-tail", 13000, (0, b"head"), (4096, text("hole", 4096)))
    t.dir("deep")
    name = "deep"
    for i in range(20):
        name += "/l%02d" % i
        t.dir(name)
    t.file("bottom", b"bottom\n")
    t.dir("emptydir")
    t.dir("links")
    t.file("a", b"three names\n" * 60)
    t.dir("links/sub")
    t.link("c", "links/a")
    t.here = b"links"
    t.link("b", "links/a")
    t.symlink("absolute", "/etc/passwd")
    t.symlink("dangling", "no/such/file")
    t.link("dangling-hard", "links/dangling")
    t.symlink("dot", ".")
    t.symlink("long", "/".join("x%03d" % i + "y" * 95 for i in range(40)))
    t.symlink("loop", "loop")
    t.symlink("not-utf-8", b"\xff\xfe/\x80")
    t.symlink("up", "../content/text")
    t.dir("names")
    for name in [b"\x01control", b" leading space", b"!before-dot", b"-rf", b"--help", b".hidden", b"..twice", b"...",
                 b"Upper", b"upper", b"back\\slash", b"colon:", b"hex:6869", b"new\nline", b"quote\"'`", b"tab\there",
                 b"*?[x]", b"$(id)", b"\x7f", b"\x80\xff not utf-8", "grün-日本-🦀".encode(), b"e\xcc\x81", b"\xc3\xa9",
                 b"trailing.", b"a", b"ab", b"abc", b"n" * 255, "ü".encode() * 127 + b"!"]:
        t.file(name, name[:20])
    t.dir("perm")
    t.file("secret", b"secret", mode=0o000, uid=1000)
    t.file("all-bits", b"", mode=0o7777)
    t.file("suid", b"#!/bin/sh\n", mode=0o4755)
    t.file("sgid", b"#!/bin/sh\n", mode=0o2755, gid=50)
    for name, number in (("65535", 65535), ("65536", 65536), ("max", 4294967294)):
        t.file("uid-" + name, b"", uid=number, gid=number)
    t.dir("perm/private", 0o700, 1000, 1000)
    t.file("file", b"private\n", mode=0o600, uid=1000, gid=1000)
    t.dir("perm/shared", 0o2775, 0, 50)
    t.dir("sizes")
    for n in [0, 1, 31, 32, 63, 64, 511, 512, 513, 1024, 4032, 4064, 4095, 4096, 4097]:
        t.file("%d" % n, lines(n))
    t.dir("times")
    # 1710000000 is the build time. mkfs.erofs 1.9 drops the nanoseconds of files with that very second.
    for s, ns in [(-2147483648, 0), (-2, 500000000), (0, 0), (1, 999999999), (1709999999, 1), (1710000000, 0),
                  (1710000001, 1), (2147483647, 123), (2147483648, 0), (4294967295, 0), (4294967296, 7), (8589934592, 1)]:
        t.file("%d.%09d" % (s, ns), b"t", mtime=s * 10**9 + ns)
    # mkfs.erofs gives a directory with a 0:0 character device this attribute anyway.
    t.dir("types", xattrs={"trusted.overlay.origin": b""})
    t.node("null", stat.S_IFCHR, 1, 3, 0o666)
    t.link("null-hard", "types/null")
    t.node("chr-minor", stat.S_IFCHR, 511, 70000)
    t.node("blk", stat.S_IFBLK, 7, 123, 0o660)
    t.node("blk-max", stat.S_IFBLK, 4095, 1048575)
    t.node("whiteout", stat.S_IFCHR, 0, 0, 0o000)
    t.node("fifo", stat.S_IFIFO, mode=0o640)
    t.node("socket", stat.S_IFSOCK, mode=0o755)
    t.dir("xattr", xattrs={"user.dir": b"directory"})
    t.file("binary", b"1", xattrs={"user.binary": bytes(range(256))})
    t.file("big-value", b"1", xattrs={"user.big": noise("big", 3000)})
    t.file("empty-value", b"1", xattrs={"user.empty": b"", "user.full": b"full", "trusted.empty": b""})
    t.file("caps", b"caps", mode=0o755, xattrs={"security.capability": CAPABILITY})
    t.file("long-name", b"1", xattrs={"user." + "n" * 250: b"long", "trusted." + "t" * 247: b""})
    t.file("many", b"1", xattrs={"user.many%02d" % i: b"%d" % (i * i) for i in range(40)})
    t.file("namespaces", b"1", xattrs={"user.grün": b"u", "trusted.t": b"t", "security.selinux": b"system_u:object_r:bin_t:s0\0"})
    t.file("prefixes", b"1", xattrs={n: n.encode() for n in LONG_PREFIX_NAMES})
    t.file("prefixes-2", b"1", xattrs={n: n.encode() for n in LONG_PREFIX_NAMES[:2]})
    for i in range(5):
        t.file("shared%d" % i, b"%d" % i, xattrs={"user.shared": b"the same everywhere", "user.own": b"%d" % i})
    t.symlink("symlink", "many", xattrs={"trusted.onlink": b"x"})
    t.node("fifo", stat.S_IFIFO, xattrs={"trusted.onfifo": b"y"})
    t.node("chr", stat.S_IFCHR, 5, 6, xattrs={"security.ferrofs": b"z"})
    t.close()


def data(path):
    """Contents of every kind; little metadata."""
    t = Tree(path)
    base = text("base", 20000)
    t.dir("text")
    t.file("5k", text("5k", 5000))
    t.file("20k", base)
    t.file("36k", text("36k", 36000, 100))
    t.dir("same")
    t.file("whole", base)
    t.file("tail", base[9999:])
    t.file("moved", noise("moved", 777) + base[:9000])
    t.file("inside", text("in", 2000) + base[8192:18432] + text("out", 3000))
    t.link("hard", "text/20k")
    t.dir("noise")
    for n in [1, 100, 4096, 4097]:
        t.file("%d" % n, noise("noise %d" % n, n))
    t.file("between", lines(9000) + noise("between", 5000) + lines(9000))
    t.file("striped", b"".join(lines(1500) + noise("stripe %d" % i, 700) for i in range(8)))
    t.dir("zeros")
    t.file("one-more", bytes(49153))
    t.file("end", text("end", 3000) + bytes(100000))
    t.sparse("hole-tail", 131072, (0, lines(5000)), (70000, b"island"))
    t.sparse("hole", 40960)
    t.dir("sizes")
    for n in [0, 1, 511, 513, 4095, 4096, 4097, 8193, 16385, 65535, 65536, 65537]:
        t.file("%d" % n, lines(n))
    t.dir("align")
    for i in range(5):
        # Moves the index behind the inode by 8 bytes at a time.
        t.file("%d" % i, (b"index %d\n" % i * 8000)[:9000 + 13000 * i], xattrs={"user.a": b"v" * (8 * i + 1)})
    t.dir("small", 0o2775, 1000, 1000)
    for i in range(4):
        t.file("small-file-with-a-name-%02d" % i, text("small %d" % i, 150 * i), mode=0o4755 if i == 3 else 0o640, uid=i)
    t.symlink("link", "../text/20k")
    t.close()


def demo(path, root):
    """Python's library sources and Debian's licence texts, from a Debian root folder."""
    libs = [d for d in glob.glob(os.path.join(root, "usr/lib/python3.*")) if os.path.exists(d + "/asyncio/tasks.py")]
    if not libs:
        raise SystemExit("test_trees.py: no Python library below %s/usr/lib; use --demo-root" % root)
    lib = max(libs, key=lambda d: int(d.rsplit(".", 1)[1]))

    licences = os.path.join(root, "usr/share/common-licenses")
    parts = ["[a-g]*.py", "LICENSE.txt", *(f"{package}/**/*.py" for package in DEMO_PACKAGES)]
    for base, name, patterns in ((lib, os.path.basename(lib), parts), (licences, "licences", ["*"])):
        for part in (part for pattern in patterns for part in glob.glob(pattern, root_dir=base, recursive=True)):
            source, target = os.path.join(base, part), os.path.join(path, name, part)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(source, target, follow_symlinks=False)
            if not os.path.islink(source):
                os.chmod(target, 0o644)
            time = os.lstat(source).st_mtime_ns // 10**9 * 10**9
            os.utime(target, ns=(time, time), follow_symlinks=False)
    for at, dirs, files in os.walk(path, topdown=False):
        newest = max(os.lstat(os.path.join(at, f)).st_mtime_ns for f in dirs + files)
        os.chmod(at, 0o755)
        os.utime(at, ns=(newest, newest))


def write(out, demo_root=None):
    """Makes few, nasty and data in the folder, and demo from a Debian root."""
    os.umask(0o022)
    for tree in (few, nasty, data):
        tree(os.path.join(out, tree.__name__))
    if demo_root:
        demo(os.path.join(out, "demo"), demo_root)


def zoo(path):
    """Makes and gives a tree that holds all of these, and what they are too small for."""
    os.mkdir(path)
    write(path)
    rows = b"".join(b"%06d %s the quick brown fox %d\n" % (n, noise("%d" % n, 8).hex().encode(), n * n) for n in range(40000))
    random = noise("zoo", 600000)
    files = {"lines": rows, "noise": random, "repeats": rows[:400000] + random[:300001] + rows[:400000],
             "moved": random[77777:] + rows[1234567:], "zeros": bytes(3 << 20),
             "mixed": b"".join(rows[n * 30000:][:30000] + random[n * 9000:][:9000] for n in range(60)),
             "same-a": rows[:70001], "same-b": rows[:70001], "nearly-same": rows[:70000] + b"!",
             "one-byte-more": rows[:65537], "one-block-less": rows[:(1 << 20) - 4096], "runs": b"a" * 5000000}
    large, crowd = (Tree(os.path.join(path, name)) for name in ("large", "crowd"))
    for name, content in files.items():
        large.file(name, content)
    large.sparse("islands", 12345678, *((place, rows[place % 9999:][:10000]) for place in (0, 1 << 20, (3 << 20) + 5, 9 << 20)))
    for n in range(3000):
        crowd.file(f"{n * 7919 % 3000:05d}-{'x' * (n % 90)}", rows[n * 11:][:n % 700])
    large.close()
    crowd.close()
    os.setxattr(path, "user.root", b"of the root")
    os.utime(path, ns=(0, 1650000000 * 10**9 + 7))
    return path
