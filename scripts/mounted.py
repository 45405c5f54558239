"""Mounts an image with the kernel's EROFS, a peer or ferrofs, and tells what its daemon used. Used by the scripts that
compare and abuse mounts; needs root.

A `Mount` is used with `with`: it is ready inside, and afterwards unmounted and its daemon gone. What does not end within
LIMIT_SECONDS is killed and an error."""
import ctypes
import os
import shutil
import signal
import subprocess
import time

LIMIT_SECONDS = 60
TICKS = os.sysconf("SC_CLK_TCK")
LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MNT_DETACH = 1, 2, 4, 2


class MountFailed(Exception):
    """It refused, or never got ready; the text says what it said."""


def file_mount(image, directory, devices=()):
    """The kernel's EROFS straight on the file, as Linux 6.12 and later can. It decodes in whoever reads."""
    data = ",".join(f"device={device}" for device in devices)
    if LIBC.mount(os.fsencode(image), os.fsencode(directory), b"erofs", MS_RDONLY | MS_NOSUID | MS_NODEV,
                  os.fsencode(data) or None):
        raise MountFailed(f"mount: {os.strerror(ctypes.get_errno())}")


def loop_mount(image, directory, offset=0, blobs=()):
    """The kernel's EROFS over a loop device, as mount(8) does it. It decodes readahead in a thread on each CPU."""
    loops = []
    try:
        for blob in blobs:
            loops.append(subprocess.run(["losetup", "--find", "--show", "--read-only", blob], check=True,
                                        capture_output=True, text=True).stdout.strip())
        words = ["ro,nosuid,nodev,loop", f"offset={offset}", *(f"device={loop}" for loop in loops)]
        ran = subprocess.run(["mount", "-t", "erofs", "-o", ",".join(words), image, directory],
                             capture_output=True, text=True, errors="replace")
    finally:
        # A loop device that is mounted goes away when it is not any more.
        for loop in loops:
            subprocess.run(["losetup", "--detach", loop], check=True)
    if ran.returncode:
        raise MountFailed(ran.stderr.strip())


class System:
    """One way to mount: `kernel` (over a loop device), `kernel-file` (without), or a program with its arguments before the
    image and the directory."""

    def __init__(self, name, program=None, arguments=()):
        self.name, self.program, self.arguments = name, program, list(arguments)

    def command(self, image="IMAGE", directory="DIR"):
        if not self.program:
            # mount(8) before util-linux 2.41 cannot leave the loop device out.
            return {"kernel": ["mount", "-t", "erofs", "-o", "ro,nosuid,nodev,loop", image, directory],
                    "kernel-file": [f"mount(\"{image}\", \"{directory}\", \"erofs\", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL)"]}[self.name]
        return [self.program, *self.arguments, image, directory]

    def attach(self, image, directory):
        if not self.program:
            return (loop_mount if self.name == "kernel" else file_mount)(image, directory)
        # A daemon keeps what it inherited, so a pipe would never end: what it says goes to a file.
        with open(directory + ".said", "w+b") as said:
            child = subprocess.Popen(self.command(image, directory), stdin=subprocess.DEVNULL, stdout=said,
                                     stderr=said)
            try:
                status = child.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                status = f"still running after {LIMIT_SECONDS} s"
            said.seek(0)
            text = said.read().decode(errors="replace").strip()
        os.unlink(directory + ".said")
        if status or not wait_until(lambda: is_mounted(directory), 5):
            raise MountFailed(f"{' '.join(self.command(image, directory))}: status {status}: {text[-500:]}")
        return None


def wait_until(is_so, seconds):
    """Whether it became so within the time."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def mount_points():
    """The directories that something is mounted on, in order of mounting."""
    with open("/proc/self/mounts", "rb") as mounts:
        return [line.split()[1].decode("unicode_escape") for line in mounts]


def is_mounted(directory):
    return os.path.realpath(directory) in mount_points()


def pids():
    return {name for name in os.listdir("/proc") if name.isdigit()}


def pids_that_name(words, besides):
    """Processes whose command line has all the words as arguments; zombies have no command line. Older processes are left
    out by name: to read the command line of one that hangs in a page fault hangs as well."""
    wanted, found = {os.fsencode(word) for word in words}, []
    for name in pids() - besides:
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if wanted <= set(file.read().split(b"\0")) and int(name) != os.getpid():
                    found.append(int(name))
        except OSError:
            pass  # it ended meanwhile
    return found


def cpu_seconds(pid):
    """User and system time of a process with all its threads, living and dead."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def status_kib(pid, field):
    """A size from /proc/PID/status, such as VmHWM, in KiB."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    raise KeyError(field)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b") ")[2][:1] not in b"ZX"
    except OSError:
        return False


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
        if self.system.program:
            self.daemons = self.named()
        return self

    def __exit__(self, *_):
        for _ in range(100):
            if not LIBC.umount2(os.fsencode(self.directory), 0):
                break
            time.sleep(0.05)
        else:
            text = os.strerror(ctypes.get_errno())
            self.clear()
            raise MountFailed(f"umount {self.directory}: {text}")
        gone = wait_until(lambda: not any(map(is_alive, self.daemons)), LIMIT_SECONDS)
        self.clear()
        if not gone:
            raise MountFailed(f"{self.system.name}: its daemon outlived the mount by {LIMIT_SECONDS} s")

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

    def daemon_cpu_seconds(self):
        return sum(map(cpu_seconds, self.daemons))

    def daemon_kib(self, field):
        return sum(status_kib(pid, field) for pid in self.daemons)


def cool(*images):
    """Drops every cache of the system, then reads the images into the page cache."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")
    for image in images:
        with open(image, "rb", buffering=0) as source:
            while source.read(1 << 20):
                pass


def found(program):
    """The full path of a program, or None: it is not installed."""
    return shutil.which(program) and os.path.abspath(shutil.which(program))
