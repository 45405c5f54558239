#!/usr/bin/env python3
"""Treats layers as container engines and image stores do, with FERROFS under the names of erofs-utils; needs root.

  layers.py [--cases=piped,merged] [--fsck=PROGRAM] [--work=DIR] FERROFS

  piped   a layer with whiteouts, attributes and hard links comes through a pipe, as it is and compressed, and becomes an
          image, which is checked, looked at, mounted by the kernel and by ferrofs, and compared with what the layer was
          made from; however it came, the image is the same; an archive that ends early becomes none
  merged  images of layers are merged, by reference and copied, and what the kernel shows of the result is compared with
          what its overlayfs shows of the layers: whiteouts, opaque directories, replaced types, hard links. With --fsck,
          fsck.erofs of erofs-utils decodes the result, too
Needs GNU tar, gzip, xz, zstd, setfattr, overlayfs and EROFS in the kernel. Exit status 1 on any difference.
"""
import contextlib
import os
import subprocess

import harness
import mounted
import snapshot
import test_trees

# In `layer` with the whiteouts of AUFS, as layers have them; in `wanted` with those of overlayfs, as it must look then.
WHITEOUTS = r"""
touch layer/sub/.wh.removed layer/sub/empty/.wh.too layer/sub/more/.wh..wh..opq
mkdir layer/.wh..wh.plnk
touch layer/.wh..wh.plnk/12.34
for name in sub/removed sub/empty/too; do
    mknod -m 644 wanted/$name c 0 0
    setfattr -n trusted.overlay.origin wanted/${name%/*}
done
setfattr -n trusted.overlay.opaque -v y wanted/sub/more
for tree in layer wanted; do
    setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 $tree/suid
    setfattr -n trusted.note -v here $tree/sub
done
find layer wanted -depth -exec touch -h -d '2024-05-06 07:08:09.123456789 UTC' {} +
"""
TAR = "tar --create --format=posix --sort=name --numeric-owner --xattrs --xattrs-include='*' --directory layer . | "
STACK = r"""
mkdir -p tree/1/{d/sub,o,w,t} tree/2/{d,o} tree/3/{d/sub,w,o} base/{o,w,d}
head -c 70000 /dev/urandom >tree/1/d/sub/random
ln tree/1/d/sub/random tree/1/linked
for name in o/old w/old t/old file; do echo 1 >tree/1/$name; done
seq 3000 >tree/1/d/text
echo 2 >tree/2/o/new
setfattr -n trusted.overlay.opaque -v y tree/2/o
for name in w file d/text; do mknod tree/2/$name c 0 0; done
for name in t d/two; do echo 2 >tree/2/$name; done
for name in w/fresh d/sub/three o/three; do echo 3 >tree/3/$name; done
seq 5000 >tree/3/d/text
setfattr -n trusted.overlay.opaque -v y tree/3/w
for name in o/base w/base d/base file; do echo base >base/$name; done
"""


class Layers(harness.Report):
    """Layers in a folder to work in."""

    def at(self, name):
        return os.path.join(self.work, name)

    def tool(self, name, *arguments, **how):
        """Runs FERROFS under a name; what it says. It must not fail."""
        status, said = harness.run([name, *arguments], executable=self.given.ferrofs, cwd=self.work, **how)
        if status:
            raise OSError(f"{name} {' '.join(arguments)}: status {status}: {said}")
        return said

    def shell(self, script):
        subprocess.run(["bash", "-euc", script], check=True, cwd=self.work)

    def compare(self, text, wanted, found):
        lines = snapshot.differences(snapshot.take(wanted), snapshot.take(found))
        self.check(not lines, "; ".join([text, *lines[:5]]))

    def piped(self):
        for tree in ("layer", "wanted"):
            test_trees.few(self.at(tree))
        self.shell(WHITEOUTS)
        for options in ([], ["-zlz4hc,12", "-C65536"], ["-zzstd", "-C65536", "-Efragments,dedupe"]):
            sums = {way: self.one_pipe(way, options) for way in ("cat", "gzip -c", "xz -c", "zstd -q -c")}
            self.check(len(set(sums.values())) == 1, f"the same image {' '.join(options)} however it came: {sums}")
        with subprocess.Popen(["bash", "-c", TAR + "head -c 30000"], cwd=self.work, stdout=subprocess.PIPE) as source:
            status, said = harness.run(["mkfs.erofs", "--tar=f", "--aufs", "--quiet", self.at("cut.erofs"), "-"],
                                       executable=self.given.ferrofs, stdin=source.stdout)
        self.check(status == 1 and "the archive ends inside" in said and not os.path.exists(self.at("cut.erofs")),
                   f"an archive that was cut is refused: {said.strip()}")

    def one_pipe(self, way, options):
        """Builds, looks and compares; the digest of the image."""
        image, label = self.at("image.erofs"), f"{way}, {' '.join(options)}"
        with subprocess.Popen(["bash", "-c", TAR + way], cwd=self.work, stdout=subprocess.PIPE) as source:
            said = self.tool("mkfs.erofs", "--tar=f", "--aufs", "-Enoinline_data", "--quiet", "-T0", "--mkfs-time", "-Uclear",
                             *options, image, "-", stdin=source.stdout)
        self.check(not said + self.tool("fsck.erofs", image), f"{label}: nothing is said of a sound image")
        looks = [self.tool("dump.erofs", *words, image) for words in ([], ["--path=/a.txt"])]
        is_told = ["Filesystem", "blocksize:", "4096"] in map(str.split, looks[0].splitlines()) and looks[1].find("\nNID: ") > 0
        self.check(is_told, f"{label}: dump.erofs tells block size and NID")
        with open(self.at("wanted/sub/c.txt")) as text:
            self.check(self.tool("dump.erofs", "--cat", "--path=/sub/c.txt", image) == text.read(), f"{label}: --cat")
        for system in (mounted.Kernel(), mounted.Daemon(self.given.ferrofs, "mount")):
            with mounted.Mount(system, image, self.at("mnt")) as mount:
                self.compare(f"{label}: {type(system).__name__}", self.at("wanted"), mount.directory)
        digest = harness.digest(image)
        os.unlink(image)
        return digest

    def merged(self):
        self.shell(STACK)
        for name, options in (("inline tails", []), ("whole blocks", ["-Enoinline_data"]), ("chunks", ["--chunksize=4096"]),
                              ("blocks of 512 bytes", ["-b512"])):
            with contextlib.ExitStack() as mounts:
                self.one_stack(name, options, mounts)

    def one_stack(self, name, options, mounts):
        images = [self.at(f"{number}.erofs") for number in (1, 2, 3)]
        devices = [f"--device={image}" for image in images]
        for number, image in enumerate(images, 1):
            self.tool("mkfs.erofs", "--quiet", *options, image, f"tree/{number}")
            mounts.enter_context(mounted.Mount(mounted.Kernel(), image, self.at(str(number))))
        lower, upper = (mounts.enter_context(self.overlay(*folders)) for folders in (("3", "2", "1"), ("3", "2", "1", "base")))
        for text, words, referred in (("referred to", ["--aufs", "--ovlfs-strip=1"], images),
                                      ("copied", ["--clean=data", "-zlz4hc", "--ovlfs-strip=1"], []), ("marked", [], images)):
            result = self.at("merged.erofs")
            self.tool("mkfs.erofs", "--quiet", *words, result, *images)
            with mounted.Mount(mounted.Kernel(devices=referred), result, self.at("shown")) as shown:
                if text != "marked":
                    self.compare(f"{name}, {text}", lower, shown.directory)
                else:
                    # With its marks the result lies over a further layer as its layers do.
                    with self.overlay("shown", "base") as stacked:
                        self.compare(f"{name}, over a base", upper, stacked)
            self.tool("ferrofs", "check", "-q", *(devices if referred else []), result)
            if self.given.fsck and referred:
                harness.run_well(self.given.fsck, "--extract", *devices, result)
            os.unlink(result)

    def overlay(self, *lower):
        """What overlayfs shows of folders, the uppermost first."""
        lowers = "lowerdir=" + ":".join(map(self.at, lower))
        return mounted.mounted_by(self.at("overlay-" + "-".join(lower)), "-t", "overlay", "-o", lowers, "overlay")


os.environ.update(LC_ALL="C", TZ="UTC")
harness.main(Layers.of, __doc__, "FERROFS", cases=["piped", "merged"], fsck="", work="/tmp")
