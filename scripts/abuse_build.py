#!/usr/bin/env python3
"""Interrupts builds, lets them run out of space, and changes their source, and checks that no image is ever wrong.

  abuse_build.py [--cases=kill,space,source] [--kills=200] [--sizes=50] [--changes=60] [--rng=N] [--work=DIR] FERROFS [TREE]

Without TREE, the zoo of test_trees.py is taken (for kill and space).
  kill    SIGKILL at random moments of builds that have not ended, every other one over an older image: under the name is
          nothing, or the older image as it was, or a whole one (the same bytes as of a build that was left alone), and
          nothing else is left behind but a file .NAME.PID.part, which only stays if the moment was between a link and a rename
  space   no space: half of the sizes on ext4, half on tmpfs, spread from nothing to a bit more than the image: exit status 1,
          a message that names the image, and nothing under the name, or an older image as it was
  source  a file of the source shrinks, grows, is replaced, vanishes, is overwritten in place, or its directory vanishes, at
          random moments of the build: either exit status 0, and every file in the image is as it was before or after; or
          a message that names the file, and no image
Exit status 1 if anything is not as said. Needs root.
"""
import collections
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time

import harness
import mounted
import snapshot
import test_trees

FIXED = ["--quiet", "--progress=none", "--reproducible", "--force"]
# By turns: whatever has another way through the builder.
FORMS = {"plain": [], "lz4": ["-zlz4", "-C4096"], "all": ["-zzstd", "-C65536", "--fragments", "--dedupe", "--inline-pclusters"],
         "chunks": ["--chunk-size=65536"]}
LEFTOVER = re.compile(r"\.image\.erofs\.\d+(\.\d+)?\.part")
OLDER = b"an older image\n" * 9999
VICTIM, VICTIM_BYTES = "victim/file", 24 << 20
NAME, EXTRA_BYTES = "image.erofs", 4 << 20


def write(path, mode, data):
    with open(path, mode) as file:
        file.write(data)


def replace(path, noise):
    # Beside the tree: a build must not see it under its first name.
    new = os.path.join(os.path.dirname(path), "..", "..", "new")
    write(new, "wb", noise)
    os.rename(new, path)


CHANGES = {"shrinks": lambda path, _: os.truncate(path, os.path.getsize(path) // 2 + 1),
           "grows": lambda path, noise: write(path, "ab", noise[:1234567]), "is replaced": replace,
           "vanishes": lambda path, _: os.unlink(path), "is overwritten": lambda path, noise: write(path, "r+b", noise),
           "its directory vanishes": lambda path, _: shutil.rmtree(os.path.dirname(path))}


class Abuse(harness.Report):
    """The program, a tree, a place to work, and what failed."""

    def __init__(self, given, work):
        super().__init__(given, work)
        self.dice, self.given.tree = random.Random(given.rng), given.tree or test_trees.zoo(os.path.join(work, "zoo"))
        self.place = os.path.join(work, "place")
        os.mkdir(self.place)

    def start(self, form, tree, place):
        argv = ["ferrofs", "build", *FIXED, *FORMS[form], os.path.join(place, NAME), tree]
        return subprocess.Popen(argv, executable=self.given.ferrofs, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, errors="replace")

    def undisturbed(self, form, tree):
        """Seconds, digest and bytes of a build that is left alone; the image stays."""
        image, begin = os.path.join(self.place, NAME), time.monotonic()
        child = self.start(form, tree, self.place)
        text = child.communicate()[0]
        seconds = time.monotonic() - begin
        if child.returncode:
            raise OSError(f"{form}: status {child.returncode}: {text}")
        harness.run_well(self.given.ferrofs, "check", "--quiet", image)
        return seconds, harness.digest(image), os.path.getsize(image)

    def set_older(self, place, is_there):
        image = os.path.join(place, NAME)
        if os.path.exists(image):
            os.unlink(image)
        if is_there:
            write(image, "wb", OLDER)
        return harness.digest(image)

    def left(self, place, label, allowed=()):
        """What lies beside the image, and is removed."""
        others = sorted(set(os.listdir(place)) - {NAME, "lost+found"})
        for name in others:
            self.expect(any(pattern.fullmatch(name) for pattern in allowed), f"{label}: {name} was left behind")
            os.unlink(os.path.join(place, name))
        return others

    def kill(self):
        counts, tree = collections.Counter(), self.given.tree
        # The second time nothing has to be read any more.
        known = {form: [self.undisturbed(form, tree) for _ in range(2)][-1] for form in FORMS}
        wanted = self.given.kills
        for number in range(4 * wanted):
            if number - counts["finished"] == wanted:
                break
            form = list(FORMS)[number % len(FORMS)]
            seconds, whole, _ = known[form]
            older = self.set_older(self.place, number // len(FORMS) % 2)
            # Every fourth where the image gets its name.
            moment = seconds * self.dice.uniform(0.9 if number // 8 % 4 == 0 else 0, 1.05)
            label = f"kill {number}, {form}, after {moment:.3f} of {seconds:.3f} s"
            child = self.start(form, tree, self.place)
            time.sleep(moment)
            child.send_signal(signal.SIGKILL)
            text = child.communicate()[0]
            found = harness.digest(os.path.join(self.place, NAME))
            self.expect(child.returncode in (0, -signal.SIGKILL), f"{label}: status {child.returncode}: {text}")
            self.expect(child.returncode or found == whole, f"{label}: it ended well, and its image is another one")
            self.expect(found in (older, whole), f"{label}: under the name is neither the image nor what was there")
            counts["whole" if found == whole else "nothing" if found == "ENOENT" else "older"] += 1
            counts["finished"] += child.returncode == 0
            counts["part files"] += len(self.left(self.place, label, [LEFTOVER]))
        print(f"kill: {dict(counts)}", flush=True)
        killed = counts["nothing"] + counts["older"] + counts["whole"] - counts["finished"]
        self.expect(killed >= wanted, f"kill: only {killed} builds were killed before they ended")

    def space(self):
        tree, total, counts = self.given.tree, self.given.sizes, collections.Counter()
        known = {form: self.undisturbed(form, tree) for form in FORMS}
        for number in range(total):
            form, kind = list(FORMS)[number % len(FORMS)], ("tmpfs", "ext4")[number // len(FORMS) % 2]
            _, whole, size = known[form]
            # From a quarter of a MiB, so that the file system itself can be made.
            room = (256 << 10) + int((size + EXTRA_BYTES) * number / max(1, total - 1)) // 4096 * 4096
            room += (2 << 20) if kind == "ext4" else 0
            counts[self.in_room(form, kind, room, whole, size, tree)] += 1
        print(f"space: {dict(counts)}", flush=True)

    def in_room(self, form, kind, room, whole, size, tree):
        """A build on a file system of that size; what became of it."""
        label, place = f"space, {form} of {size} bytes on {kind} of {room}", os.path.join(self.work, "room")
        with mounted.new_file_system(place, room, ["-O", "^has_journal", "-m", "0"] if kind == "ext4" else ()):
            older = self.set_older(place, room % 3 == 0)
            child = self.start(form, tree, place)
            text = child.communicate()[0]
            found = harness.digest(os.path.join(place, NAME))
            self.left(place, label)
        if child.returncode == 0:
            self.expect(found == whole, f"{label}: exit status 0, and the image is another one")
            return "fitted"
        is_said = os.path.join(place, NAME) in text and "No space left" in text
        self.expect(child.returncode == 1 and is_said, f"{label}: status {child.returncode}: {text}")
        self.expect(found == older, f"{label}: what lies under the name is not what was there")
        return "refused"

    def source(self):
        counts, noise = collections.Counter(), test_trees.noise("changed", VICTIM_BYTES)
        forms = list(FORMS)
        times = {form: self.undisturbed(form, self.make_source())[0] for form in forms}
        for number in range(self.given.changes):
            form, change = forms[number % len(forms)], list(CHANGES)[number // len(forms) % len(CHANGES)]
            moment = self.dice.uniform(0, times[form])
            label = f"source, {form}: {VICTIM} {change} after {moment:.3f} of {times[form]:.3f} s"
            counts[self.changed(form, change, moment, label, noise)] += 1
        print(f"source: {dict(counts)}", flush=True)

    def make_source(self):
        """A new tree with a large file that is to change, among others that are not."""
        tree = os.path.join(self.work, "source")
        shutil.rmtree(tree, ignore_errors=True)
        line = b"the file before anything happened to it, line %09d\n"
        os.makedirs(os.path.join(tree, os.path.dirname(VICTIM)))
        for name in ("before", "later"):
            os.mkdir(os.path.join(tree, name))
            for number in range(200):
                write(os.path.join(tree, name, str(number)), "wb", line % number * (number * 3))
        write(os.path.join(tree, VICTIM), "wb", b"".join(line % number for number in range(VICTIM_BYTES // len(line % 0))))
        return tree

    def changed(self, form, change, moment, label, noise):
        """A build while a file changes; what became of it."""
        tree, image = self.make_source(), os.path.join(self.place, NAME)
        self.set_older(self.place, False)
        before = snapshot.take(tree)
        child = self.start(form, tree, self.place)
        timer = threading.Timer(moment, CHANGES[change], (os.path.join(tree, VICTIM), noise))
        timer.start()
        text = child.communicate()[0]
        timer.join()
        self.left(self.place, label)
        if child.returncode:
            is_named = os.path.dirname(VICTIM) in text
            self.expect(child.returncode == 1 and is_named, f"{label}: status {child.returncode}: {text}")
            self.expect(not os.path.exists(image), f"{label}: it failed, and left an image")
            return "refused"
        after = snapshot.take(tree)
        with mounted.Mount(mounted.Kernel(), image, os.path.join(self.work, "mount")) as mount:
            found = snapshot.take(mount.directory)
        self.judge(before, after, found, label)
        return "built"

    def judge(self, before, after, found, label):
        """Every entry as before or as after; a directory may have one entry of each, and one that vanishes is empty before
        that."""
        for path in before.keys() | after.keys() | found.keys():
            old, new, seen = (tree.get(path) for tree in (before, after, found))
            is_directory = seen and old and old["type"] == seen["type"] and "content" not in seen
            if seen in (old, new) or is_directory and (new or not any(other.startswith(path + b"/") for other in found)):
                continue
            name = os.fsdecode(path)
            lines = snapshot.differences({path: old or {}}, {path: seen or {}}) if seen else ["it is missing"]
            self.expect(False, f"{label}: exit status 0, and /{name} is neither as before nor as after: {'; '.join(lines)}")


harness.main(Abuse.of, __doc__, "FERROFS [TREE]", cases=["kill", "space", "source"], kills=200, sizes=50, changes=60, rng=6,
             work="/tmp")
