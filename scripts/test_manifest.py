#!/usr/bin/env python3
"""Write manifest.json of the test images:  test_manifest.py TREES IMAGES LIST MKFS_VERSION

LIST holds one line per image, NAME|TREE|FILE|DEVICES|OFFSET|DIFFERS|ARGUMENTS (see make-test-images.sh).
Each image in the folder IMAGES is mounted by the kernel and compared with TREES/TREE; only the fields
in DIFFERS may differ ("missing" permits missing paths). What the kernel shows goes to the manifest.
For images that the kernel refuses because their blocks are larger than its pages it is the source tree.
"""
import ctypes
import errno
import hashlib
import json
import os
import stat
import struct
import subprocess
import sys

TYPES = {stat.S_IFREG: "reg", stat.S_IFDIR: "dir", stat.S_IFLNK: "lnk", stat.S_IFCHR: "chr",
         stat.S_IFBLK: "blk", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "sock"}
libc = ctypes.CDLL(None, use_errno=True)


def encode(name):
    """UTF-8 names stand for themselves, the others (and those that start with "hex:") as hex:…"""
    try:
        s = name.decode()
        if not s.startswith("hex:"):
            return s
    except UnicodeDecodeError:
        pass
    return "hex:" + name.hex()


def scan(root):
    """All entries below root, by their path in bytes, with a leading slash."""
    root = os.fsencode(root)
    found, groups, todo = {}, {}, [b"/"]
    while todo:
        path = todo.pop()
        p = root + path
        st = os.lstat(p)
        kind = TYPES[stat.S_IFMT(st.st_mode)]
        e = {"path": encode(path), "type": kind, "mode": "%04o" % stat.S_IMODE(st.st_mode), "uid": st.st_uid,
             "gid": st.st_gid, "mtime": st.st_mtime_ns // 10**9, "mtime_nsec": st.st_mtime_ns % 10**9,
             "nlink": st.st_nlink}
        if kind == "reg":
            with open(p, "rb") as f:
                content = f.read()
            e["size"] = st.st_size
            e["sha256"] = hashlib.sha256(content).hexdigest()
            assert len(content) == st.st_size, path
        elif kind == "lnk":
            target = os.readlink(p)
            e["size"] = st.st_size
            e["target"] = encode(target)
            assert len(target) == st.st_size, path
        elif kind in ("chr", "blk"):
            e["rdev"] = [os.major(st.st_rdev), os.minor(st.st_rdev)]
        x = {k: os.getxattr(p, k, follow_symlinks=False).hex() for k in os.listxattr(p, follow_symlinks=False)}
        if x:
            e["xattrs"] = dict(sorted(x.items()))
        if kind == "dir":
            todo += [path.rstrip(b"/") + b"/" + n for n in os.listdir(p)]
        elif st.st_nlink > 1:
            groups.setdefault(st.st_ino, []).append(path)
        found[path] = e
    for paths in groups.values():
        for p in paths:
            found[p]["hardlink_group"] = encode(min(paths))
    return found


def differences(source, got, allowed):
    out = []
    for path in sorted(source.keys() | got.keys()):
        a, b = source.get(path), got.get(path)
        if a is None or b is None:
            if b is not None or "missing" not in allowed:
                out.append("%r is only in the %s" % (path, "image" if a is None else "source"))
            continue
        for f in sorted(a.keys() | b.keys()):
            if a.get(f) != b.get(f) and f not in allowed:
                out.append("%r %s: %.80s in the source, %.80s in the image" % (path, f, a.get(f), b.get(f)))
    return out


def listing(found):
    """The entries of a tree as they stand in the manifest: a hard-linked inode is written out once."""
    out = []
    for path in sorted(found):
        e = found[path]
        if e.get("hardlink_group", e["path"]) != e["path"]:
            e = {"path": e["path"], "same_as": e["hardlink_group"]}
        out.append(e)
    return out


def mount(image, at, devices, offset):
    """Returns None, or the name of the error."""
    if offset:
        r = subprocess.run(["mount", "-t", "erofs", "-o", "ro,loop,offset=%d" % offset, image, at], capture_output=True)
        return None if r.returncode == 0 else r.stderr.decode()
    data = ",".join("device=" + d for d in devices)
    if libc.mount(image.encode(), at.encode(), b"erofs", 1, data.encode() or None) == 0:
        return None
    return errno.errorcode.get(ctypes.get_errno(), "?")


def main():
    trees_dir, images_dir, list_file, version = sys.argv[1:]
    sources, trees, images, failed = {}, {}, [], False
    at = os.path.join(images_dir, "..", "mnt")
    os.makedirs(at, exist_ok=True)
    with open(list_file) as f:
        rows = [line.rstrip("\n").split("|") for line in f]
    for name, tree, file, devices, offset, differs, argv in rows:
        if tree not in sources:
            sources[tree] = scan(os.path.join(trees_dir, tree))
        devices, offset, allowed = devices.split(), int(offset), set(filter(None, differs.split(",")))
        image = os.path.join(images_dir, file)
        with open(image, "rb") as f:
            content = f.read()
        block_size = 1 << struct.unpack_from("<B", content, offset + 1024 + 12)[0]
        error = mount(image, at, [os.path.join(images_dir, d) for d in devices], offset)
        if error is None:
            try:
                found = scan(at)
            finally:
                subprocess.run(["umount", at], check=True)
        elif block_size > os.sysconf("SC_PAGESIZE") and not allowed:
            found = sources[tree]
        else:
            print("%s: the kernel refuses it: %s" % (name, error), file=sys.stderr)
            failed = True
            continue
        wrong = differences(sources[tree], found, allowed)
        for w in wrong[:10]:
            print("%s: %s" % (name, w), file=sys.stderr)
        failed |= bool(wrong)
        entries = listing(found)
        key = tree
        if entries != listing(sources[tree]):
            key += "-" + hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:8]
        trees[key] = entries
        images.append({"name": name, "file": file, "tree": key, "mkfs_argv": argv.split(), "devices": devices,
                       "offset": offset, "kernel": error is None, "block_size": block_size, "size": len(content),
                       "sha256": hashlib.sha256(content).hexdigest()})

    def one_line(v):
        return json.dumps(v, ensure_ascii=False, separators=(",", ":"))

    with open(os.path.join(images_dir, "manifest.json"), "w", encoding="utf-8") as f:
        f.write('{"mkfs":%s,"trees":{\n' % one_line("erofs-utils " + version))
        f.write(",\n".join("%s:[\n%s]" % (one_line(k), ",\n".join(map(one_line, trees[k]))) for k in sorted(trees)))
        f.write('},\n"images":[\n%s]}\n' % ",\n".join(map(one_line, images)))
    return 1 if failed else 0


sys.exit(main())
