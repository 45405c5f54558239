#!/usr/bin/env python3
"""Mounts as an ordinary user, in namespaces, and where something is missing, and prints what is said; run it as root.

  mount_circumstances.py [--only=REGEX] [--user=1000] [--options=ARGUMENTS] [--work=DIR] FERROFS IMAGE

Each case runs in a mount namespace of its own, so /dev/fuse and fusermount3 of the system stay as they are. Where it
must mount, a file is read, and compared with the kernel's EROFS, and the mount is ended by who made it. Where it must
refuse, the status is not 0, the message names what is missing, and nothing is left behind. IMAGE must hold a file that
all may read. WORK must be reachable by all. Exit status 1 if a case goes otherwise.
"""
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile

import command_line
import mounted

# Until a daemon has gone after its mount.
PATIENCE_SECONDS = 5
LIMIT_SECONDS = 30
PLACES = ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"]

OPEN_DEVICE = "mknod $W/fuse c 10 229; chmod 666 $W/fuse; mount --bind $W/fuse /dev/fuse"
CLOSED_DEVICE = "mknod $W/fuse c 10 229; chmod 600 $W/fuse; mount --bind $W/fuse /dev/fuse"
NO_DEVICE = ("mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/zero c 1 5; "
             "mknod -m 666 /dev/urandom c 1 9; mknod -m 666 /dev/random c 1 8")
NO_HELPER = ("for place in " + " ".join(PLACES) + "; do for name in fusermount3 fusermount; do "
             "[ ! -e $place/$name ] || mount --bind $W/empty $place/$name; done; done")
NO_CONFIGURATION = "[ ! -e /etc/fuse.conf ] || mount --bind $W/empty /etc/fuse.conf"
# The shells' own command lines hold these words, too, but not side by side.
DAEMON = "pgrep -f \"image.erofs $D\""
DEAD = f"$F mount $O $I $D; kill -9 $({DAEMON}); while [ -n \"$({DAEMON})\" ]; do sleep 0.05; done"
USER = "setpriv --reuid=$U --regid=$U --clear-groups --inh-caps=-all"
# Who mounts, in which way it unmounts.
ROOT, NAMESPACE = "", USER + " unshare --user --map-root-user --mount"
MOUNTS, REFUSES, EITHER = "mounts", "refuses", "either"


class Case:
    """What is prepared by root, who mounts, with what command, and what must come of it."""

    def __init__(self, name, wanted, prepared="", who=ROOT, command="$F mount $O $I $D", end="umount $D", says=""):
        self.name, self.wanted, self.prepared, self.who = name, wanted, prepared, who
        self.command, self.end, self.says = command, end, says


HELPED = "fusermount3 -u $D"
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
    Case("root, no /dev/fuse", REFUSES, NO_DEVICE, says="/dev/fuse"),
    Case("user, no /dev/fuse", REFUSES, NO_DEVICE, USER, says="/dev/fuse"),
    Case("user, namespaces, no /dev/fuse", REFUSES, NO_DEVICE, NAMESPACE, says="/dev/fuse"),
    Case("user, directory of root", REFUSES, f"{OPEN_DEVICE}; chown 0:0 $D", USER, says="$D"),
    Case("user, allow_other not allowed", REFUSES, f"{OPEN_DEVICE}; {NO_CONFIGURATION}", USER,
         "$F mount -o allow_other $I $D", says="allow_other"),
    Case("user, image of root", REFUSES, OPEN_DEVICE, USER, "$F mount $O $W/secret.erofs $D", says="secret.erofs"),
    Case("no directory", REFUSES, command="$F mount $O $I $D/missing", says="missing"),
    Case("directory is a file", REFUSES, command="$F mount $O $I $W/empty", says="empty"),
    Case("no image", REFUSES, command="$F mount $O $W/missing.erofs $D", says="missing.erofs"),
    Case("empty image", REFUSES, command="$F mount $O $W/empty $D", says="empty"),
    Case("image of zeros", REFUSES, command="$F mount $O $W/zeros $D", says="zeros"),
    Case("image is a directory", REFUSES, command="$F mount $O $W $D"),
    Case("unknown option", REFUSES, command="$F mount -o nonsense $I $D", says="nonsense"),
    Case("dead mount on it", REFUSES, DEAD, says="$D"),
]


class Circumstances:
    """A place with all that the cases need."""

    def __init__(self, ferrofs, image, given):
        self.given, self.failed = given, []
        self.work = tempfile.mkdtemp(prefix="mount-circumstances-", dir=given["work"])
        os.chmod(self.work, 0o755)
        program, self.directory = os.path.join(self.work, "ferrofs"), os.path.join(self.work, "mount")
        # Where it lies may be closed to others.
        shutil.copy(ferrofs, program)
        os.chmod(program, 0o755)
        open(os.path.join(self.work, "empty"), "w").close()
        with open(os.path.join(self.work, "zeros"), "wb") as file:
            file.truncate(1 << 20)
        copy = os.path.join(self.work, "image.erofs")
        shutil.copyfile(image, copy)
        os.chmod(copy, 0o644)
        shutil.copyfile(copy, os.path.join(self.work, "secret.erofs"))
        os.chmod(os.path.join(self.work, "secret.erofs"), 0o600)
        self.words = {"W": self.work, "F": program, "I": copy, "D": self.directory, "O": given["options"],
                      "U": given["user"]}
        with mounted.Mount(mounted.System("kernel-file"), copy, os.path.join(self.work, "kernel")) as kernel:
            self.file, self.right = public_file(kernel.directory)

    def script(self, case):
        """What runs in the namespace. Marks divide what the steps say."""
        read = f"sha256sum < $D/{shlex.quote(self.file)}"
        inner = f"{case.command}; status=$?; echo; echo \"@ $status\"; [ $status != 0 ] || {{ {read}; {case.end}; }}"
        outer = f"{case.prepared or ':'}; exec {case.who} sh -c {shlex.quote(inner)}"
        assigned = "; ".join(f"export {name}={shlex.quote(value)}" for name, value in self.words.items())
        return f"{assigned}; {outer}"

    def run(self, case):
        os.mkdir(self.directory)
        os.chown(self.directory, int(self.given["user"]), int(self.given["user"]))
        before = mounted.pids()
        # A daemon would hold a pipe open; files it may hold.
        with open(os.path.join(self.work, "said"), "w+") as said:
            child = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", self.script(case)],
                                     stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
            try:
                child.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, 9)
                child.wait()
            said.seek(0)
            text = said.read()
        self.judge(case, text, before)
        os.rmdir(self.directory)
        if os.path.exists(os.path.join(self.work, "fuse")):
            os.unlink(os.path.join(self.work, "fuse"))

    def judge(self, case, text, before):
        message, mark, rest = text.partition("\n@ ")
        status, _, rest = rest.partition("\n")
        faults, has_mounted = [], status == "0"
        if not mark:
            faults.append(f"no status came within {LIMIT_SECONDS} s")
        elif case.wanted != EITHER and has_mounted != (case.wanted == MOUNTS):
            faults.append(f"it {'mounts' if has_mounted else 'refuses'}, and should not")
        if has_mounted and not rest.startswith(self.right):
            faults.append(f"{self.file} reads {rest.strip()!r}")
        if has_mounted and len(rest.strip().split("\n")) > 1:
            faults.append(f"the end says {rest.strip()!r}")
        says = case.says.replace("$D", self.directory)
        if mark and not has_mounted and says not in message:
            faults.append(f"the message does not name {says}")
        if mark and not has_mounted and not message.strip() or "panicked" in message:
            faults.append("that is no message")
        if not mounted.wait_until(lambda: not self.left(before), PATIENCE_SECONDS):
            faults.append(f"left behind: {self.left(before)}")
            for pid in self.left(before):
                os.kill(pid, 9)
        print(f"\n{'FAIL' if faults else 'ok  '} {case.name}: {'mounts' if has_mounted else f'status {status}'}")
        print("".join(f"     | {line}\n" for line in message.strip().split("\n") if line), end="")
        print("".join(f"     FAIL {fault}\n" for fault in faults), end="", flush=True)
        self.failed += [case.name] if faults else []

    def left(self, before):
        found = []
        for pid in mounted.pids() - before:
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    found += [int(pid)] if os.fsencode(self.directory) in file.read() and mounted.is_alive(pid) else []
            except OSError:
                pass  # it ended meanwhile
        return found


def public_file(root):
    """A file that all may read, on a way that all may go, and its digest."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if os.lstat(os.path.join(folder, name)).st_mode & 0o5 == 0o5)
        for name in sorted(names):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o4 and status.st_size:
                with open(path, "rb") as file:
                    return os.path.relpath(path, root), hashlib.sha256(file.read()).hexdigest()
    sys.exit("mount_circumstances.py: the image holds no file that all may read")


def main():
    given = {"only": "", "user": "1000", "options": "", "work": "/tmp"}
    words, given = command_line.read(__doc__, given)
    circumstances = Circumstances(*words, given)
    chosen = [case for case in CASES if re.search(given["only"], case.name)]
    for case in chosen:
        circumstances.run(case)
    shutil.rmtree(circumstances.work)
    print(f"\n{len(chosen)} cases, {len(circumstances.failed)} failed: {'; '.join(circumstances.failed) or 'none'}")
    sys.exit(1 if circumstances.failed or not chosen else 0)


main()
