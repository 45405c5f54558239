#!/usr/bin/env python3
"""Mounts images with the kernel's EROFS and with ferrofs, and compares all that can be seen (compare_mounts.py).

  parity.py [--only=REGEX] [--options=ARGUMENTS] [--work=DIR] [--max=N] [--quick] [--strict] FERROFS IMAGE-OR-DIR...

A directory is a golden set: images with a MANIFEST.json that names their extra devices and offsets. ARGUMENTS come
before the image (`-o allow_other`: without it uid 65534 sees nothing). Images that the kernel refuses are named and
left out; those that only ferrofs refuses are differences. What must differ is in ALLOWED; --strict allows nothing.
Exit status 1 on any other difference. Needs root.
"""
import json
import os
import re
import sys
import tempfile

import command_line
import compare_mounts
import mounted

FUSE_HAS_NO = "the kernel's FUSE has no request for it"
# Fields, as compare_mounts.py names them, that no FUSE daemon can answer as the kernel's EROFS does.
ALLOWED = {
    "stat.attributes": "immutable and compressed are not passed on by the kernel's FUSE",
    "stat.attributes_mask": "immutable and compressed are not passed on by the kernel's FUSE",
    "stat.mask": "EROFS has no access times and says so; FUSE cannot",
    "*open.direct": "the kernel's EROFS answers differently itself, over a loop device and without",
    "do.ioctl label": FUSE_HAS_NO,
    "do.ioctl uuid": FUSE_HAS_NO,
    "do.ioctl sysfs": FUSE_HAS_NO,
    "do.ioctl fiemap": FUSE_HAS_NO,
    "do.ioctl fibmap": "block numbers of a mount that has no block device mean nothing",
}
# Where no inode has an attribute, `field=KERNEL>OURS`.
NO_XATTRS = "once it is known that the image has no attribute at all, the kernel's FUSE is told so, and answers alone"
ALLOWED_WITHOUT_XATTRS = {"*xattr.*=ENODATA>ENOTSUP": NO_XATTRS, "*xattr.user.*=EINVAL>ENOTSUP": NO_XATTRS}
# In images of these names.
ALLOWED_IN = {"crafted-li-hole-full": {"seek.map": "holes in full indexes are of Linux 7.2; before, they are zeros"}}


def has_xattrs(root):
    """Whether anything has an attribute that root may list."""
    paths = [root] + [os.path.join(place, name) for place, folders, files in os.walk(root) for name in folders + files]
    return any(os.listxattr(path, follow_symlinks=False) for path in paths)


def images_of(words):
    """(name, image, devices, offset) of every image that is named, or stands in a manifest."""
    for word in words:
        if not os.path.isdir(word):
            yield os.path.basename(word), os.path.abspath(word), [], 0
            continue
        with open(os.path.join(word, "MANIFEST.json")) as file:
            for entry in json.load(file)["images"]:
                path = [os.path.abspath(os.path.join(word, name)) for name in (entry["file"], *entry["devices"])]
                yield entry["name"], path[0], path[1:], entry.get("image_offset", 0)


class Kernel(mounted.System):
    """The kernel's EROFS with the extra devices and the offset of an image."""

    def __init__(self, devices, offset):
        super().__init__("kernel")
        self.devices, self.offset = devices, offset

    def attach(self, image, directory):
        if self.offset:
            return mounted.loop_mount(image, directory, self.offset)
        return mounted.file_mount(image, directory, self.devices)


class Parity:
    """Options, and what was found of all images."""

    def __init__(self, ferrofs, given):
        self.ferrofs, self.given = mounted.found(ferrofs), given
        self.same, self.skipped, self.different = [], [], []
        self.work = tempfile.mkdtemp(prefix="parity-", dir=given["work"])
        if not self.ferrofs:
            sys.exit(f"parity.py: no program {ferrofs}")

    def image(self, name, image, devices, offset):
        print(f"\n## {name}", flush=True)
        arguments = ["mount", *self.given["options"].split()]
        for device in devices:
            arguments += ["--device", device]
        arguments += ["--offset", str(offset)] if offset else []
        try:
            with mounted.Mount(Kernel(devices, offset), image, os.path.join(self.work, "kernel")) as kernel:
                self.beside(name, image, kernel, mounted.System("ferrofs", self.ferrofs, arguments))
        except mounted.MountFailed as reason:
            print(f"the kernel refuses it: {reason}")
            self.skipped.append(name)

    def beside(self, name, image, kernel, system):
        try:
            with mounted.Mount(system, image, os.path.join(self.work, "ferrofs")) as ours:
                allowed = {} if self.given["strict"] else {**ALLOWED, **ALLOWED_IN.get(name, {})}
                if allowed and not has_xattrs(os.fsencode(kernel.directory)):
                    allowed.update(ALLOWED_WITHOUT_XATTRS)
                is_same = compare_mounts.compare(kernel.directory, ours.directory, allowed, int(self.given["max"]),
                                                 bool(self.given["quick"]))
        except mounted.MountFailed as reason:
            print(f"ferrofs: {reason}")
            is_same = False
        (self.same if is_same else self.different).append(name)


def main():
    given = {"only": "", "options": "-o allow_other", "work": "/tmp", "max": "5", "quick": "", "strict": ""}
    words, given = command_line.read(__doc__, given, switches=("quick", "strict"), words=(2, None))
    parity = Parity(words[0], given)
    for name, image, devices, offset in images_of(words[1:]):
        if re.search(given["only"], name):
            parity.image(name, image, devices, offset)
    os.rmdir(parity.work)
    print(f"\n{len(parity.same)} the same, {len(parity.different)} different ({' '.join(parity.different) or 'none'}), "
          f"{len(parity.skipped)} refused by the kernel ({' '.join(parity.skipped) or 'none'})")
    sys.exit(1 if parity.different or not parity.same else 0)


main()
