#!/usr/bin/env python3
"""compare_trees.py [--ignore=field,...] [--max=N] [--dirsize] SRC DST

Compares two directory trees completely; run it as root. No symlink is followed, names are bytes.
Fields: missing extra type size content mode uid gid mtime nlink rdev xattrs target hardlinks
  missing/extra  a path that only SRC / only DST has
  size           of regular files and symlinks (and directories with --dirsize)
  content        byte-for-byte comparison of regular files
  mtime          seconds and nanoseconds; "mtime_nsec" in --ignore compares the seconds only
  xattrs         every name in every namespace, with its value, listed by SRC and DST
  hardlinks      which paths are the same inode (non-directories with nlink > 1)
Exit status: 0 equal, 1 differences, 2 usage or a read error.
"""
import os
import stat
import sys

IGNORABLE = {"missing", "extra", "type", "size", "content", "mode", "uid", "gid", "mtime", "mtime_nsec",
             "nlink", "rdev", "xattrs", "target", "hardlinks"}


def walk(root):
    """{relative path: lstat}; the root is b''"""
    out = {b"": os.lstat(root)}
    todo = [b""] if stat.S_ISDIR(out[b""].st_mode) else []
    while todo:
        d = todo.pop()
        with os.scandir(os.path.join(root, d) if d else root) as it:
            for e in it:
                rel = os.path.join(d, e.name) if d else e.name
                if rel in out:
                    print("double entry in directory: %r" % rel)
                    walk.errors += 1
                    continue
                st = os.lstat(os.path.join(root, rel))
                out[rel] = st
                if stat.S_ISDIR(st.st_mode):
                    todo.append(rel)
    return out


walk.errors = 0


def xattrs(p):
    names = os.listxattr(p, follow_symlinks=False)
    out = {}
    for n in names:
        try:
            out[n] = os.getxattr(p, n, follow_symlinks=False)
        except OSError as ex:
            out[n] = "unreadable: %s" % ex
    if len(out) != len(names):
        out["(list)"] = "a name is listed twice"
    return out


def same_bytes(a, b):
    """offset of the first difference, -1 if equal"""
    pos = 0
    with open(a, "rb", buffering=0) as fa, open(b, "rb", buffering=0) as fb:
        while True:
            x, y = fa.read(1 << 20), fb.read(1 << 20)
            while len(x) < len(y):
                more = fa.read(len(y) - len(x))
                if not more:
                    break
                x += more
            while len(y) < len(x):
                more = fb.read(len(x) - len(y))
                if not more:
                    break
                y += more
            if x != y:
                n = min(len(x), len(y))
                for i in range(0, n, 4096):
                    if x[i:i + 4096] != y[i:i + 4096]:
                        for j in range(i, n):
                            if x[j] != y[j]:
                                return pos + j
                return pos + n
            if not x:
                return -1
            pos += len(x)


def groups(tree):
    by = {}
    for rel, st in tree.items():
        if not stat.S_ISDIR(st.st_mode) and st.st_nlink > 1:
            by.setdefault((st.st_dev, st.st_ino), []).append(rel)
    return {r: tuple(sorted(g)) for g in by.values() for r in g}


def main():
    ignore, limit, dirsize, pos = set(), 200, False, []
    for a in sys.argv[1:]:
        if a.startswith("--ignore="):
            ignore |= set(filter(None, a[9:].split(",")))
        elif a.startswith("--max="):
            limit = int(a[6:])
        elif a == "--dirsize":
            dirsize = True
        elif a in ("-h", "--help"):
            print(__doc__)
            return 0
        else:
            pos.append(a)
    if len(pos) != 2 or ignore - IGNORABLE:
        print(__doc__, file=sys.stderr)
        return 2
    src, dst = (os.fsencode(p).rstrip(b"/") or b"/" for p in pos)
    a, b = walk(src), walk(dst)
    counts = {}

    def diff(field, rel, x=None, y=None):
        if field in ignore:
            return
        counts[field] = counts.get(field, 0) + 1
        if sum(counts.values()) <= limit:
            print("%s: %r%s" % (field, b"/" + rel, "" if x is None else ": %r != %r" % (x, y)))

    ga, gb = groups(a), groups(b)
    for rel in sorted(a.keys() | b.keys()):
        if rel not in b:
            diff("missing", rel)
            continue
        if rel not in a:
            diff("extra", rel)
            continue
        s, t = a[rel], b[rel]
        if stat.S_IFMT(s.st_mode) != stat.S_IFMT(t.st_mode):
            diff("type", rel, oct(stat.S_IFMT(s.st_mode)), oct(stat.S_IFMT(t.st_mode)))
            continue
        m = s.st_mode
        ps, pt = (os.path.join(r, rel) if rel else r for r in (src, dst))
        if stat.S_IMODE(m) != stat.S_IMODE(t.st_mode):
            diff("mode", rel, oct(stat.S_IMODE(m)), oct(stat.S_IMODE(t.st_mode)))
        for f in ("uid", "gid", "nlink"):
            x, y = getattr(s, "st_" + f), getattr(t, "st_" + f)
            # File systems that do not count the links of directories, such as btrfs, say 1.
            is_counted = not (f == "nlink" and stat.S_ISDIR(m) and 1 in (x, y))
            if x != y and is_counted:
                diff(f, rel, x, y)
        x, y = s.st_mtime_ns, t.st_mtime_ns
        if "mtime_nsec" in ignore:
            x, y = x // 10**9, y // 10**9
        if x != y:
            diff("mtime", rel, x, y)
        if (stat.S_ISREG(m) or stat.S_ISLNK(m) or (dirsize and stat.S_ISDIR(m))) and s.st_size != t.st_size:
            diff("size", rel, s.st_size, t.st_size)
        if (stat.S_ISCHR(m) or stat.S_ISBLK(m)) and s.st_rdev != t.st_rdev:
            diff("rdev", rel, (os.major(s.st_rdev), os.minor(s.st_rdev)), (os.major(t.st_rdev), os.minor(t.st_rdev)))
        if "xattrs" not in ignore:
            x, y = xattrs(ps), xattrs(pt)
            if x != y:
                ks = sorted(k for k in x.keys() | y.keys() if x.get(k) != y.get(k))
                diff("xattrs", rel, {k: x.get(k) for k in ks}, {k: y.get(k) for k in ks})
        if stat.S_ISLNK(m) and "target" not in ignore:
            x, y = os.readlink(ps), os.readlink(pt)
            if x != y:
                diff("target", rel, x, y)
        if ga.get(rel) != gb.get(rel):
            diff("hardlinks", rel, ga.get(rel), gb.get(rel))
        if stat.S_ISREG(m) and "content" not in ignore:
            try:
                at = same_bytes(ps, pt)
            except OSError as ex:
                diff("content", rel, "readable", str(ex))
                continue
            if at >= 0:
                diff("content", rel, "first difference at byte %d" % at, "")
    n = sum(counts.values())
    if n > limit:
        print("... %d more" % (n - limit))
    print("%d entries, %d differences%s" % (len(a), n, " " + str(counts) if counts else ""))
    return 1 if n or walk.errors else 0


try:
    sys.exit(main())
except (OSError, ValueError) as ex:
    print("compare_trees.py: %s" % ex, file=sys.stderr)
    sys.exit(2)
