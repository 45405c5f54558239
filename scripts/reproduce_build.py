#!/usr/bin/env python3
"""Builds the same tree in different circumstances, and compares the SHA-256 of the images.

  reproduce_build.py FERROFS [TREE] [--work=DIR] [--memory=DIR] [--cases=NAME,...] [--jobs=1,2,3,8] [--pause=61]

Without TREE, that of build_matrix.py is taken. DIR of --work should lie on a disk; DIR of --memory is by default a tmpfs
that is mounted for this. The circumstances:
  jobs N             that many workers (--jobs, or --workers under the name mkfs.erofs), each
  elsewhere          another time zone, locale, umask and working directory, and the tree by a relative path
  shuffled           a copy whose names were made in random order, with other inode numbers
  memory             a copy on the tmpfs, and the image there
  tar                the tree's archive, by GNU tar: --format=pax --sort=none, with xattrs; ACLs among
                     them, as --acls would name users that this machine knows by name
  tar by a pipe      the same on standard input
  later              again, after --pause seconds: not in the same minute
Sockets, which archives cannot hold, are left out of all copies, and of devices and pipes with several names each becomes one
of its own, as GNU tar takes them. The table is Markdown. Exit status 1 if any image differs. Needs root.
"""
import hashlib
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import time

import build_matrix
import command_line
import mounted

FIXED = ["--quiet", "-T1710000000", "--mkfs-time", "-U", "6f726566-7266-6566-6572-726f66730000"]
OURS = ["--quiet", "--progress=none", "--reproducible", "--force"]
# {case: (whether under the name mkfs.erofs, options)}
CASES = {
    "mkfs-plain": (True, ""),
    "mkfs-chunks": (True, "--chunksize=65536"),
    "mkfs-lz4-4k": (True, "-zlz4 -C4096"),
    "mkfs-lz4hc-64k-tails": (True, "-zlz4hc -C65536 -Eztailpacking"),
    "mkfs-deflate-64k-dedupe": (True, "-zdeflate -C65536 -Ededupe"),
    "mkfs-lz4hc-64k-fragments-dedupe-tails": (True, "-zlz4hc -C65536 -Efragments,dedupe,ztailpacking"),
    "mkfs-zstd-64k-all-fragments-dedupe": (True, "-zzstd -C65536 -Eall-fragments,dedupe"),
    "mkfs-lzma-1m": (True, "-zlzma -C1048576"),
    "mkfs-zstd-64k-48bit-fragments-dedupe": (True, "-zzstd -C65536 -E48bit,fragments,dedupe"),
    "mkfs-lz4hc-16k-directories-metabox": (True, "-zlz4hc -C16384 --zD -m4096"),
    "mkfs-lz4-aligned": (True, "-zlz4 --dsunit=16 --fsalignblks=64"),
    "build-plain": (False, ""),
    "build-zstd-64k-fragments-dedupe": (False, "-zzstd -C64k --fragments --dedupe --inline-pclusters"),
}


def copy_tree(source, target, order):
    """A copy of what an archive can hold, its names made in the order in which `order` picks them from a list."""
    folders, links, made = [(b"", os.lstat(source))], {}, []
    source, target = os.fsencode(source), os.fsencode(target)
    os.mkdir(target)
    while folders:
        place, found = folders.pop(order(len(folders)))
        made.append((place, found))
        names = sorted(os.listdir(os.path.join(source, place)))
        while names:
            path = os.path.join(place, names.pop(order(len(names))))
            found = os.lstat(os.path.join(source, path))
            key = (found.st_dev, found.st_ino)
            if stat.S_ISSOCK(found.st_mode):
                continue
            if stat.S_ISDIR(found.st_mode):
                os.mkdir(os.path.join(target, path))
                folders.append((path, found))
            elif key in links and (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                os.link(os.path.join(target, links[key]), os.path.join(target, path), follow_symlinks=False)
            else:
                links[key] = path
                copy_one(os.path.join(source, path), os.path.join(target, path), found)
                dress(source, target, path, found)
    for place, found in reversed(made):
        dress(source, target, place, found)
    # Whatever was made in a directory changed its time.
    for place, found in reversed(made):
        os.utime(os.path.join(target, place), ns=(found.st_mtime_ns, found.st_mtime_ns))


def copy_one(source, target, found):
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(found.st_mode):
        shutil.copyfile(source, target)
    else:
        os.mknod(target, found.st_mode, found.st_rdev)


def dress(source, target, path, found):
    """Owner, mode, attributes and time."""
    one, other = os.path.join(source, path), os.path.join(target, path)
    os.lchown(other, found.st_uid, found.st_gid)
    if not stat.S_ISLNK(found.st_mode):
        os.chmod(other, stat.S_IMODE(found.st_mode))
    wanted = {name: os.getxattr(one, name, follow_symlinks=False) for name in os.listxattr(one, follow_symlinks=False)}
    # A default ACL of the directory above gave it some already.
    for name in set(os.listxattr(other, follow_symlinks=False)) - wanted.keys():
        os.removexattr(other, name, follow_symlinks=False)
    for name, value in wanted.items():
        os.setxattr(other, name, value, follow_symlinks=False)
    os.utime(other, ns=(found.st_mtime_ns, found.st_mtime_ns), follow_symlinks=False)


class Reproduction:
    """The program, the copies, and the digests."""

    def __init__(self, ferrofs, given):
        self.ferrofs, self.given = mounted.found(ferrofs), given
        if not self.ferrofs:
            sys.exit(f"reproduce_build.py: no program {ferrofs}")
        self.work = tempfile.mkdtemp(prefix="reproduce-build-", dir=given["work"])
        self.memory = given["memory"] and tempfile.mkdtemp(prefix="reproduce-build-", dir=given["memory"])
        self.is_mounted, self.digests = not self.memory, {}
        if self.is_mounted:
            self.memory = os.path.join(self.work, "memory")
            os.mkdir(self.memory)
            subprocess.run(["mount", "-t", "tmpfs", "none", self.memory], check=True)
        self.tree, self.shuffled = os.path.join(self.work, "tree"), os.path.join(self.work, "shuffled")
        self.in_memory, self.archive = os.path.join(self.memory, "tree"), os.path.join(self.work, "tree.tar")

    def prepare(self, tree):
        if not tree:
            tree = build_matrix.make_zoo(os.path.join(self.work, "zoo"))
        dice = random.Random(6)
        copy_tree(tree, self.tree, lambda count: 0)
        for copy in (self.shuffled, self.in_memory):
            copy_tree(self.tree, copy, lambda count: dice.randrange(count) if count else 0)
        subprocess.run(["tar", "--create", f"--file={self.archive}", "--format=pax", "--sort=none", "--numeric-owner",
                        "--xattrs", "--xattrs-include=*", "--directory", self.tree, "."], check=True)

    def build(self, case, source, jobs=2, image=None, **how):
        """The SHA-256 of an image; of nothing if there is none."""
        image = image or os.path.join(self.work, "image.erofs")
        is_mkfs, words = CASES[case]
        is_tar = source in ("-", self.archive)
        if is_mkfs:
            argv = ["mkfs.erofs", *FIXED, f"--workers={jobs}", *words.split(), *(["--tar=f"] if is_tar else [])]
        else:
            argv = ["ferrofs", "build", *OURS, f"--jobs={jobs}", *words.split()]
        how = {"stdin": subprocess.DEVNULL, **how}
        ran = subprocess.run([*argv, image, source], executable=self.ferrofs, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, **how)
        if ran.returncode:
            return f"status {ran.returncode}: {ran.stdout.decode(errors='replace').strip()[-300:]}"
        with open(image, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.unlink(image)
        return digest

    def by_pipe(self, case):
        with open(self.archive, "rb") as archive, subprocess.Popen(["cat"], stdin=archive, stdout=subprocess.PIPE) as cat:
            return self.build(case, "-", stdin=cat.stdout)

    def circumstances(self, case):
        """{circumstance: digest}"""
        jobs = [int(count) for count in self.given["jobs"].split(",")]
        found = {f"jobs {count}": self.build(case, self.tree, count) for count in jobs}
        place = {**os.environ, "TZ": "Asia/Kathmandu", "LC_ALL": "C", "HOME": "/nowhere"}
        found["elsewhere"] = self.build(case, "tree", cwd=self.work, env=place, umask=0o077)
        found["shuffled"] = self.build(case, self.shuffled)
        found["memory"] = self.build(case, self.in_memory, image=os.path.join(self.memory, "image.erofs"))
        found["tar"] = self.build(case, self.archive)
        found["tar by a pipe"] = self.by_pipe(case)
        return found

    def clear(self):
        if self.is_mounted:
            subprocess.run(["umount", self.memory], check=True)
        else:
            shutil.rmtree(self.memory)
        shutil.rmtree(self.work)


def report(digests):
    """The table; the cases that differ."""
    names = list(next(iter(digests.values())))
    print("| case | SHA-256 | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 2))
    differing = []
    for case, found in digests.items():
        first = found[names[0]]
        is_same = {name: digest == first and len(digest) == 64 for name, digest in found.items()}
        print(f"| {case} | {first[:16]} | " + " | ".join("same" if is_same[name] else "DIFFERS" for name in names) + " |")
        for said in dict.fromkeys(found[name] for name in names if not is_same[name]):
            where = ", ".join(name for name in names if found[name] == said and not is_same[name])
            differing.append(f"{case}: {where}: {said[:400]}")
    return differing


def arguments():
    given = {"work": "/tmp", "memory": "", "cases": ",".join(CASES), "jobs": "1,2,3,8", "pause": "61"}
    words, given = command_line.read(__doc__, given, words=(1, 2))
    if not set(given["cases"].split(",")) <= set(CASES):
        sys.exit(__doc__)
    return words[0], words[1] if len(words) == 2 else None, given


def main():
    ferrofs, tree, given = arguments()
    reproduction = Reproduction(ferrofs, given)
    try:
        reproduction.prepare(tree)
        cases = given["cases"].split(",")
        digests, begins = {}, {}
        for case in cases:
            begins[case] = time.monotonic()
            digests[case] = reproduction.circumstances(case)
        for case in cases:
            time.sleep(max(0, begins[case] + float(given["pause"]) - time.monotonic()))
            digests[case]["later"] = reproduction.build(case, reproduction.tree)
    finally:
        reproduction.clear()
    differing = report(digests)
    if differing:
        print("\nwhat differs:\n" + "\n".join(f"* {line}" for line in differing))
    return 1 if differing else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, subprocess.CalledProcessError) as reason:
        sys.exit(f"reproduce_build.py: {reason}")
