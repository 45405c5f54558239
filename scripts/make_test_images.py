#!/usr/bin/env python3
"""Remakes the test images from their manifest: tests/data/*.erofs, their devices, and tests/data/manifest.json.

  make_test_images.py [--mkfs=mkfs.erofs] [--mkfs-64k=PROGRAM] [--demo-root=/] [OUTDIR]

For a new image an entry is added to the manifest: "name", "tree" (few, nasty, data or demo, which test_trees.py writes),
"mkfs_argv", and "differs": what mkfs.erofs cannot keep of the tree (fields, or "missing" paths). Each image is mounted
by the kernel and compared with its tree; what the kernel shows goes to the manifest. For images that the kernel refuses
because their blocks are larger than its pages it is the tree.

Needs root and Linux 6.17 or later. PROGRAM is a mkfs.erofs that writes blocks of more than 4 KiB; the images with such
blocks are left out without it. --demo-root is a Debian root with the files of demo.erofs. OUTDIR is tests/data of this
repository unless it is given. tests/data/README.md says how to get the programs. Exit status 1 on any difference.
"""
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess

import harness
import mounted
import snapshot
import test_trees

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "../tests/data")
COMMON = ["-T1710000000", "--mkfs-time"]
# The order of directory entries and of attribute names reaches the images, so the trees lie on a file system whose hash
# has a fixed key.
SEED = "6f726566-7266-6566-6572-726f66730000"
EXT4 = ["-b", "4096", "-I", "256", "-O", "ea_inode,^has_journal", "-U", SEED,
        "-E", f"hash_seed={SEED},lazy_itable_init=0"]
# mkfs.erofs 1.9 writes heap memory that it never set into some images; so the allocator clears what it hands out.
ENVIRONMENT = {**os.environ, "LC_ALL": "C", "TZ": "UTC",
               "GLIBC_TUNABLES": "glibc.malloc.perturb=255:glibc.malloc.tcache_count=0"}
TYPES = {stat.S_IFREG: "reg", stat.S_IFDIR: "dir", stat.S_IFLNK: "lnk", stat.S_IFCHR: "chr", stat.S_IFBLK: "blk",
         stat.S_IFIFO: "fifo", stat.S_IFSOCK: "sock"}


def encoded(name):
    """UTF-8 names stand for themselves, the others (and those that start with "hex:") as hex:…"""
    try:
        text = name.decode()
        return "hex:" + name.hex() if text.startswith("hex:") else text
    except UnicodeDecodeError:
        return "hex:" + name.hex()


def manifest_entry(path, look):
    entry = {"path": encoded(b"/" + path), "type": TYPES[look["type"]], "mode": f"{look['mode']:04o}", "uid": look["uid"],
             "gid": look["gid"], "mtime": look["mtime"] // 10**9, "mtime_nsec": look["mtime"] % 10**9, "nlink": look["nlink"]}
    forms = {"size": ("size", int), "content": ("sha256", str), "target": ("target", encoded), "rdev": ("rdev", list)}
    for field, (name, form) in forms.items():
        if field in look:
            entry[name] = form(look[field])
    if look["xattrs"]:
        entry["xattrs"] = {name: value.hex() for name, value in sorted(look["xattrs"].items())}
    if "links" in look:
        entry["hardlink_group"] = encoded(b"/" + look["links"][0])
    return entry


def listing(looks):
    """The entries of a tree as they stand in the manifest: a hard-linked inode is written out once."""
    found = {path: manifest_entry(path, look) for path, look in looks.items()}
    return [{"path": entry["path"], "same_as": entry["hardlink_group"]}
            if entry.get("hardlink_group", entry["path"]) != entry["path"] else entry for _, entry in sorted(found.items())]


class Images:
    """Programs, trees, and the manifest that is being made."""

    def __init__(self, given, work, trees):
        self.given = given
        self.work, self.trees, self.made = work, trees, os.path.join(work, "made")
        self.sources, self.listings, self.entries, self.failed = {}, {}, [], []
        os.mkdir(self.made)
        pax = ["--format=pax", "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime", "--xattrs",
               "--xattrs-include=*"]
        for name, words in (("made/few.tar", pax), ("gnu.tar", ["--format=gnu", "--exclude=./hole"])):
            subprocess.run(["tar", *words, "--sort=name", "--numeric-owner", "-C", os.path.join(trees, "few"), "-cf",
                            os.path.join(work, name), "."], check=True, stderr=subprocess.DEVNULL)

    def image(self, entry):
        name, tree = entry["name"], entry["tree"].partition("-")[0]
        argv = entry["mkfs_argv"]
        if "-U" not in argv:
            digest = hashlib.sha256(f"ferrofs {name}\n".encode()).hexdigest()
            uuid = "-".join((digest[:8], digest[8:12], "5" + digest[12:15], "8" + digest[15:18], digest[18:30]))
            argv = [*COMMON, *argv, "-U", uuid]
        is_large = any(word in ("-b16384", "-b65536") for word in argv)
        program = self.given.mkfs_64k if is_large else self.given.mkfs
        if not program:
            print(f"{name} is left out, see --mkfs-64k")
            return
        source = os.path.join(self.trees, tree)
        if any(word.startswith("--tar=") for word in argv):
            # The flat one has its archive, by GNU tar, behind it.
            source = os.path.join(self.work, "gnu.tar") if name.endswith("-flat") else "few.tar"
        command = [program, "--quiet", "--workers=0", *argv, f"{name}.erofs", source]
        subprocess.run(command, check=True, cwd=self.made, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        image = os.path.join(self.made, name + ".erofs")
        with open(image, "rb") as file:
            content = file.read()
        content = (b"This is not the image yet.\n" * 65536)[:entry["offset"]] + content
        if name.endswith("-flat"):
            with open(source, "rb") as file:
                content += file.read()
        with open(image, "wb") as file:
            file.write(content)
        self.record({**entry, "mkfs_argv": argv}, tree, image, content)

    def record(self, entry, tree, image, content):
        name, offset, allowed = entry["name"], entry["offset"], entry["differs"]
        block_size = 1 << content[offset + 1024 + 12]
        source = self.sources[tree] = self.sources.get(tree) or snapshot.take(os.path.join(self.trees, tree))
        devices = [os.path.join(self.made, device) for device in entry["devices"]]
        is_refused = False
        try:
            with mounted.Mount(mounted.Kernel(offset, devices), image, os.path.join(self.work, "mount")) as mount:
                found = snapshot.take(mount.directory)
        except mounted.MountFailed as reason:
            found, is_refused = source, True
            if block_size <= os.sysconf("SC_PAGESIZE") or allowed:
                self.failed.append(f"{name}: the kernel refuses it: {reason}")
        kept = [{path: {**look, "mtime": look["mtime"] // 10**9} if "mtime_nsec" in allowed else look
                 for path, look in looks.items()} for looks in (source, found)]
        self.failed += [f"{name}: {line}" for line in snapshot.differences(*kept, allowed)[:10]]
        entries = listing(found)
        if entries != listing(source):
            tree += "-" + hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:8]
        self.listings[tree] = entries
        self.entries.append({
            "name": name, "file": f"{name}.erofs", "tree": tree, "mkfs_argv": entry["mkfs_argv"], "devices": entry["devices"],
            "offset": offset, **({"differs": allowed} if allowed else {}), "kernel": not is_refused, "block_size": block_size,
            "size": len(content), "sha256": hashlib.sha256(content).hexdigest()})

    def write_manifest(self, version):
        def line(value):
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

        def listed(lines):
            return "[\n" + ",\n".join(lines) + "]"

        trees = ",\n".join(f"{line(name)}:{listed(map(line, self.listings[name]))}" for name in sorted(self.listings))
        with open(os.path.join(self.made, "manifest.json"), "w", encoding="utf-8") as file:
            file.write(f'{{"mkfs":{line("erofs-utils " + version)},"trees":{{\n{trees}}},\n"images":{listed(map(line, self.entries))}}}\n')


def main(given):
    version = harness.run([given.mkfs, "--version"])[1].splitlines()[0].rpartition(") ")[2]
    if not re.match(r"1\.9|1\.[1-9][0-9]|[2-9]\.", version):
        raise OSError(f"mkfs.erofs is version {version!r}, but 1.9 is needed")
    with open(os.path.join(DATA, "manifest.json"), encoding="utf-8") as file:
        known = [{"devices": [], "offset": 0, "differs": [], **entry} for entry in json.load(file)["images"]]
    with harness.work_folder(None) as work, mounted.new_file_system(os.path.join(work, "trees"), 256 << 20, EXT4) as trees:
        test_trees.write(trees, given.demo_root)
        images = Images(given, work, trees)
        for entry in known:
            images.image(entry)
        images.write_manifest(version)
        shutil.copytree(images.made, given.outdir or DATA, dirs_exist_ok=True)
    print("".join(line + "\n" for line in images.failed), end="")
    print(f"{len(images.entries)} images, {len(images.failed)} differences")
    return 1 if images.failed or not images.entries else 0


if __name__ == "__main__":
    harness.main(main, __doc__, "[OUTDIR]", **{"mkfs": "mkfs.erofs", "mkfs-64k": "", "demo-root": "/"})
