#!/usr/bin/env python3
"""Mounts as an ordinary user, in namespaces, and where something is missing, and prints what is said; run it as root.

  mount_circumstances.py [--only=REGEX] [--user=1000] [--options=ARGUMENTS] [--work=DIR] FERROFS IMAGE

Each case runs in a mount namespace of its own, so /dev/fuse and fusermount3 of the system stay as they are. Where it
must mount, a file is read, and compared with the kernel's EROFS, and the mount is ended by who made it. Where it must
refuse, the status is not 0, the message names what is missing, and nothing is left behind. IMAGE must hold a file that
all may read. WORK must be reachable by all. Exit status 1 if a case goes otherwise. What is refused whoever mounts and
wherever (wrong arguments and images) is tested in crates/cli/tests/cli/mount.rs (what_is_missing_is_named_…).
"""
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections import namedtuple

import harness
import mounted

# Until a daemon has gone after its mount, and for everything.
END_SECONDS, LIMIT_SECONDS = 5, 30
PLACES = ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"]

OPEN_DEVICE = "mknod $W/fuse c 10 229; chmod 666 $W/fuse; mount --bind $W/fuse /dev/fuse"
CLOSED_DEVICE = OPEN_DEVICE.replace("666", "600")
NO_DEVICE = ("mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/zero c 1 5; "
             "mknod -m 666 /dev/urandom c 1 9; mknod -m 666 /dev/random c 1 8")
NO_HELPER = ("for place in " + " ".join(PLACES) + "; do for name in fusermount3 fusermount; do "
             "[ ! -e $place/$name ] || mount --bind $W/empty $place/$name; done; done")
NO_CONFIGURATION = "[ ! -e /etc/fuse.conf ] || mount --bind $W/empty /etc/fuse.conf"
# The shells' own command lines hold these words, too, but not side by side.
DAEMON = "pgrep -f \"image.erofs $D\""
DEAD = f"$F mount $O $I $D; kill -9 $({DAEMON}); while [ -n \"$({DAEMON})\" ]; do sleep 0.05; done"
USER = "setpriv --reuid=$U --regid=$U --clear-groups --inh-caps=-all"
NAMESPACE = USER + " unshare --user --map-root-user --mount"
MOUNTS, REFUSES, EITHER = "mounts", "refuses", "either"
HELPED = "fusermount3 -u $D"

# What is prepared by root, who mounts, with what command, how it is ended, and what a refusal names.
Case = namedtuple("Case", "name wanted prepared who command end says",
                  defaults=("", "", "$F mount $O $I $D", "umount $D", ""))
CASES = [
    Case("root", MOUNTS),
    Case("root, standard streams closed", MOUNTS, command="$F mount $O $I $D <&- >&- 2>&-"),
    Case("root, without fusermount3", MOUNTS, NO_HELPER),
    Case("user", MOUNTS, OPEN_DEVICE, USER, end=HELPED),
    Case("user, /dev/fuse is root's", EITHER, CLOSED_DEVICE, USER, end=HELPED),
    Case("user, without fusermount3", REFUSES, f"{OPEN_DEVICE}; {NO_HELPER}", USER, says="fusermount3"),
    Case("user, no new privileges", REFUSES, OPEN_DEVICE, USER + " --no-new-privs", says="fusermount3"),
    Case("user, user and mount namespace", MOUNTS, OPEN_DEVICE, NAMESPACE),
    Case("user, namespaces, without fusermount3", MOUNTS, f"{OPEN_DEVICE}; {NO_HELPER}", NAMESPACE),
    *(Case(f"{name}, no /dev/fuse", REFUSES, NO_DEVICE, who, says="/dev/fuse")
      for name, who in (("root", ""), ("user", USER), ("user, namespaces", NAMESPACE))),
    Case("user, directory of root", REFUSES, f"{OPEN_DEVICE}; chown 0:0 $D", USER, says="$D"),
    Case("user, allow_other not allowed", REFUSES, f"{OPEN_DEVICE}; {NO_CONFIGURATION}", USER,
         "$F mount -o allow_other $I $D", says="allow_other"),
    Case("user, image of root", REFUSES, OPEN_DEVICE, USER, "$F mount $O $W/secret.erofs $D", says="secret.erofs"),
    Case("empty image", REFUSES, command="$F mount $O $W/empty $D", says="empty"),
    Case("image of zeros", REFUSES, command="$F mount $O $W/zeros $D", says="zeros"),
    Case("dead mount on it", REFUSES, DEAD, says="$D"),
]


class Circumstances(harness.Report):
    """A place with all that the cases need."""

    def __init__(self, given, work):
        super().__init__(given, work)
        os.chmod(work, 0o755)
        program, copy, secret, self.directory = (os.path.join(work, name) for name in
                                                 ("ferrofs", "image.erofs", "secret.erofs", "mount"))
        # Where they lie may be closed to others.
        for source, target, mode in ((given.ferrofs, program, 0o755), (given.image, copy, 0o644), (given.image, secret, 0o600)):
            shutil.copyfile(source, target)
            os.chmod(target, mode)
        for name, size in (("empty", 0), ("zeros", 1 << 20)):
            with open(os.path.join(work, name), "wb") as file:
                file.truncate(size)
        self.words = {"W": work, "F": program, "I": copy, "D": self.directory, "O": given.options, "U": str(given.user)}
        with mounted.Mount(mounted.Kernel(), copy, os.path.join(work, "kernel")) as kernel:
            self.file, self.right = public_file(kernel.directory)

    def all(self):
        chosen = [case for case in CASES if re.search(self.given.only, case.name)]
        for case in chosen:
            self.run(case)
        return self.end() or not chosen

    def script(self, case):
        """What runs in the namespace. Marks divide what the steps say."""
        read = f"sha256sum < $D/{shlex.quote(self.file)}"
        inner = f"{case.command}; status=$?; echo; echo \"@ $status\"; [ $status != 0 ] || {{ {read}; {case.end}; }}"
        assigned = "; ".join(f"export {name}={shlex.quote(value)}" for name, value in self.words.items())
        return f"{assigned}; {case.prepared or ':'}; exec {case.who} sh -c {shlex.quote(inner)}"

    def run(self, case):
        os.mkdir(self.directory)
        os.chown(self.directory, self.given.user, self.given.user)
        before = mounted.pids()
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", self.script(case)]
        try:
            _, said = harness.run(argv, timeout=LIMIT_SECONDS, start_new_session=True)
        except subprocess.TimeoutExpired as expired:
            said = expired.output
        self.judge(case, said, before)
        os.rmdir(self.directory)
        if case.prepared.startswith("mknod"):
            os.unlink(os.path.join(self.work, "fuse"))

    def judge(self, case, text, before):
        message, separator, rest = text.partition("\n@ ")
        status, _, rest = rest.partition("\n")
        has_mounted, says = status == "0", case.says.replace("$D", self.directory)
        is_refused = separator and not has_mounted
        faults = [fault for is_so, fault in (
            (not separator, f"no status came within {LIMIT_SECONDS} s"),
            (separator and case.wanted != EITHER and has_mounted != (case.wanted == MOUNTS), "that should not be"),
            (has_mounted and not rest.startswith(self.right), f"{self.file} reads {rest.strip()!r}"),
            (has_mounted and len(rest.strip().split("\n")) > 1, f"the end says {rest.strip()!r}"),
            (is_refused and says not in message, f"the message does not name {says}"),
            (is_refused and not message.strip() or "panicked" in message, "that is no message")) if is_so]
        if not mounted.wait_until(lambda: not self.left(before), END_SECONDS):
            faults.append(f"left behind: {self.left(before)}")
            for pid in self.left(before):
                os.kill(pid, 9)
        self.check(not faults, "; ".join([f"{case.name}: {'mounts' if has_mounted else f'status {status}'}", *faults]))
        print("".join(f"     | {line}\n" for line in message.strip().split("\n") if line), end="", flush=True)

    def left(self, before):
        return [pid for pid in mounted.pids() - before
                if os.fsencode(self.directory) in mounted.process_file(pid, "cmdline") and mounted.is_alive(pid)]


def public_file(root):
    """A file that all may read, on a way that all may go, and its digest."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if os.lstat(os.path.join(folder, name)).st_mode & 0o5 == 0o5)
        for path in (os.path.join(folder, name) for name in sorted(names)):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o4 and status.st_size:
                return os.path.relpath(path, root), harness.digest(path)
    raise OSError("the image holds no file that all may read")


harness.main(Circumstances.of, __doc__, "FERROFS IMAGE", only="", user=1000, options="", work="/tmp")
