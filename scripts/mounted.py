"""Mounts an image with the kernel's EROFS or a daemon. Used by the scripts that compare and abuse mounts; needs root.

A `Mount` is used with `with`: it is ready inside, and afterwards unmounted and its daemon gone. What does not end within
LIMIT_SECONDS is killed and an error."""
import contextlib
import ctypes
import os
import signal
import subprocess
import time

import harness

LIMIT_SECONDS = 60
LIBC = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2


class MountFailed(OSError):
    """It refused, or never got ready; the text says what it said."""


class Kernel:
    """The kernel's EROFS over a loop device, with the extra devices and the offset of an image."""
    is_daemon = False

    def __init__(self, offset=0, devices=()):
        self.offset, self.devices = offset, devices

    def attach(self, image, directory):
        loops = []
        try:
            for device in self.devices:
                made = subprocess.run(["losetup", "--find", "--show", "--read-only", device], check=True, capture_output=True)
                loops.append(made.stdout.decode().strip())
            words = ["ro,nosuid,nodev,loop", f"offset={self.offset}", *(f"device={loop}" for loop in loops)]
            status, said = harness.run(["mount", "-t", "erofs", "-o", ",".join(words), image, directory])
        finally:
            # A loop device that is mounted goes away when it is not any more.
            for loop in loops:
                harness.run_well("losetup", "--detach", loop)
        if status:
            raise MountFailed(said.strip())


class Daemon:
    """A program that mounts, with its arguments before the image and the directory."""
    is_daemon = True

    def __init__(self, *command):
        self.command = command

    def attach(self, image, directory):
        argv = [*self.command, image, directory]
        try:
            status, text = harness.run(argv, timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired as expired:
            status, text = f"still running after {LIMIT_SECONDS} s", expired.output
        if status or not wait_until(lambda: is_mounted(directory), 5):
            raise MountFailed(f"{' '.join(argv)}: status {status}: {text.strip()[-500:]}")


def wait_until(is_so, seconds):
    """Whether it became so within the time."""
    return waited(is_so, seconds)[1]


def waited(is_so, seconds):
    """How long it took until it was so, and whether it became so within the time."""
    begin = time.monotonic()
    while not is_so():
        if time.monotonic() > begin + seconds:
            return time.monotonic() - begin, False
        time.sleep(0.005)
    return time.monotonic() - begin, True


def mount_points():
    """The directories that something is mounted on, in order of mounting."""
    with open("/proc/self/mounts", "rb") as mounts:
        return [line.split()[1].decode("unicode_escape") for line in mounts]


def is_mounted(directory):
    return os.path.realpath(directory) in mount_points()


def pids():
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def pids_that_name(words, besides):
    """Processes whose command line has all the words as arguments; zombies have no command line. Older processes are left
    out by number: to read the command line of one that hangs in a page fault hangs as well."""
    wanted = {os.fsencode(word) for word in words}
    return [pid for pid in pids() - besides - {os.getpid()} if wanted <= set(process_file(pid, "cmdline").split(b"\0"))]


def process_file(pid, name):
    """A file of a process in /proc; nothing if it has ended."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def stat_fields(pid):
    """The fields of /proc/PID/stat from the state on; nothing if it has ended."""
    return process_file(pid, "stat").rpartition(b") ")[2].split()


def is_alive(pid):
    return stat_fields(pid)[:1] not in ([], [b"Z"], [b"X"])


class Mount:
    """An image mounted by a system on a directory made for it."""

    def __init__(self, system, image, directory):
        self.system, self.image, self.directory = system, os.path.abspath(image), os.path.realpath(directory)
        self.daemons, self.before = [], set()

    def __enter__(self):
        self.before = pids()
        os.makedirs(self.directory, exist_ok=True)
        try:
            self.system.attach(self.image, self.directory)
        except BaseException:
            self.clear()
            raise
        self.daemons = self.named() if self.system.is_daemon else []
        return self

    def __exit__(self, *_):
        is_over = wait_until(lambda: not LIBC.umount2(os.fsencode(self.directory), 0), 5)
        reason = os.strerror(ctypes.get_errno())
        is_gone = is_over and wait_until(lambda: not any(map(is_alive, self.daemons)), LIMIT_SECONDS)
        self.clear()
        if not is_over:
            raise MountFailed(f"umount {self.directory}: {reason}")
        if not is_gone:
            raise MountFailed(f"the daemon outlived its mount by {LIMIT_SECONDS} s")

    def named(self):
        return pids_that_name((self.image, self.directory), self.before)

    def clear(self):
        """Whatever state it is in: nothing of it stays."""
        for pid in self.named():
            os.kill(pid, signal.SIGKILL)
        while is_mounted(self.directory) and not LIBC.umount2(os.fsencode(self.directory), MNT_DETACH):
            pass
        if os.path.isdir(self.directory):
            os.rmdir(self.directory)

    def signal(self, number):
        """Sends a signal to the daemons that live."""
        for pid in filter(is_alive, self.daemons):
            os.kill(pid, number)

    def daemon_cpu_seconds(self):
        """User and system time of the daemons with all their threads, living and dead."""
        fields = map(stat_fields, self.daemons)
        return sum(int(field[11]) + int(field[12]) for field in fields if field) / os.sysconf("SC_CLK_TCK")

    def daemon_peak_bytes(self):
        """The most memory that the daemons ever had."""
        lines = [line for pid in self.daemons for line in process_file(pid, "status").splitlines()]
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(b"VmHWM:"))


def cool():
    """Drops every cache of the system."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


@contextlib.contextmanager
def mounted_by(directory, *words):
    """What mount(8) with these words mounts on a directory that is made if it is not there."""
    os.makedirs(directory, exist_ok=True)
    harness.run_well("mount", *words, directory)
    try:
        yield directory
    finally:
        harness.run_well("umount", directory)


@contextlib.contextmanager
def new_file_system(directory, size_bytes=None, ext4=()):
    """A new file system on a directory: ext4 if there are arguments for mke2fs, else a tmpfs."""
    if not ext4:
        with mounted_by(directory, "-t", "tmpfs", "-o", f"size={size_bytes or 0}", "none"):
            yield directory
        return
    disk = directory + ".disk"
    try:
        with open(disk, "wb") as file:
            file.truncate(size_bytes)
        harness.run_well("mke2fs", "-q", "-F", "-t", "ext4", *ext4, disk)
        with mounted_by(directory, "-o", "loop,acl,user_xattr", disk):
            yield directory
    finally:
        os.unlink(disk)
