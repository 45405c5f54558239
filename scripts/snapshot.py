"""A directory tree as it is seen: all that an image keeps of it, for comparison. Used by the scripts that prove builds.

No symlink is followed, names are bytes; `links` says which paths are one file. Files are read by several threads: first here
and there, backwards (`jumps`), then from beginning to end, as a reader that jumps sees what one that does not never sees."""
import concurrent.futures
import errno
import hashlib
import os
import stat

import harness

READERS = 4
# A place in the middle of a page, and more than a page from it.
JUMP_BYTES = 5000
FIELDS = ("type", "mode", "uid", "gid", "mtime", "nlink", "rdev", "size", "target", "xattrs", "links", "jumps", "content")


def take(root, without=()):
    """{path below the root: {field: value}} of a tree; the root is b"". What cannot be read is an error's name."""
    root = os.fsencode(root)
    stats = walk(root)
    names = {}
    for path, found in stats.items():
        if not stat.S_ISDIR(found.st_mode) and found.st_nlink > 1:
            names.setdefault((found.st_dev, found.st_ino), []).append(path)
    links = {path: tuple(sorted(group)) for group in names.values() for path in group}
    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        entries = pool.map(lambda path: entry(root, path, stats[path], links.get(path), without), stats)
        return dict(zip(stats, entries))


def walk(root):
    """{path: its lstat}"""
    found, todo = {b"": os.lstat(root)}, [b""]
    while todo:
        folder = todo.pop()
        for name in os.listdir(os.path.join(root, folder) if folder else root):
            path = os.path.join(folder, name)
            if path in found:
                raise OSError(errno.EEXIST, "listed twice", path)
            found[path] = os.lstat(os.path.join(root, path))
            if stat.S_ISDIR(found[path].st_mode):
                todo.append(path)
    return found


def entry(root, path, found, links, without):
    mode, full = found.st_mode, os.path.join(root, path) if path else root
    fields = {"type": stat.S_IFMT(mode), "mode": stat.S_IMODE(mode), "uid": found.st_uid, "gid": found.st_gid,
              "mtime": found.st_mtime_ns, "nlink": found.st_nlink}
    if "xattrs" not in without:
        fields["xattrs"] = harness.answer(xattrs, full)
    if links:
        fields["links"] = links
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        fields["rdev"] = (os.major(found.st_rdev), os.minor(found.st_rdev))
    if stat.S_ISLNK(mode):
        fields["target"], fields["size"] = harness.answer(os.readlink, full), found.st_size
    if stat.S_ISREG(mode):
        fields["size"] = found.st_size
        # Of the names of one file, the first is read.
        if not links or links[0] == path:
            fields["jumps"] = harness.answer(jumps, full, found.st_size)
            fields["content"] = harness.digest(full)
    return fields


def xattrs(path):
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)}


def jumps(path, size):
    """Bytes from the end, the middle and the first third, read in this order."""
    if size <= JUMP_BYTES:
        return b""
    with open(path, "rb", buffering=0) as file:
        places = (size - JUMP_BYTES, size // 2, size // 3)
        return hashlib.sha256(b"".join(os.pread(file.fileno(), JUMP_BYTES, place) for place in places)).digest()


def differences(wanted, found, without=()):
    """What differs, a line each. Where a value is wanted that is a set, one of it must be found."""
    lines = [f"{word}: /{shown(path)}" for word, one, other in (("missing", wanted, found), ("extra", found, wanted))
             if word not in without for path in one.keys() - other.keys()]
    for path in sorted(wanted.keys() & found.keys()):
        for field in FIELDS:
            one, other = wanted[path].get(field), found[path].get(field)
            if field in without or one == other or isinstance(one, frozenset) and other in one:
                continue
            # File systems that do not count the links of directories, such as btrfs, say 1.
            if field == "nlink" and stat.S_ISDIR(wanted[path]["type"]) and one == 1:
                continue
            lines.append(f"{field}: /{shown(path)}: {shown(one, field)} became {shown(other, field)}")
    return lines


def shown(value, field=None):
    if field == "mode" and value is not None:
        return oct(value)
    if field in ("jumps", "content") and value is not None:
        return (value if isinstance(value, str) else value.hex())[:12]
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 200 else text[:200] + "…"
