"""Control groups for measurements: made for one command, removed afterwards. Version 1 or 2, whichever has
the controller. Called by bench_memory.py and bench_quota.py; needs root.

A command gets into a group by `inside`, which puts a small shell before it: the shell enters the group and
becomes the command, so that everything the command uses is charged there from its start."""
import os
import subprocess
import time

PREFIX = "ferrofs-bench-"


class Unavailable(Exception):
    """There is no such group to be had; the text says why."""


def hierarchy(controller):
    """(version, mount point) of the hierarchy with that controller."""
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            fields, _, kind = line.rstrip("\n").partition(" - ")
            point, kind = fields.split()[4], kind.split()
            if kind[0] == "cgroup" and controller in kind[2].split(","):
                return 1, point
            if kind[0] == "cgroup2":
                with open(os.path.join(point, "cgroup.subtree_control")) as control:
                    if controller in control.read().split():
                        return 2, point
    raise Unavailable(f"no cgroup hierarchy that is mounted has the controller {controller} "
                      f"(for version 2: echo +{controller} > cgroup.subtree_control at its root)")


class Group:
    """A group below the root of one controller's hierarchy. Use it with `with`."""

    def __init__(self, controller):
        self.version, root = hierarchy(controller)
        self.folder = os.path.join(root, f"{PREFIX}{os.getpid()}")
        try:
            os.mkdir(self.folder)
        except OSError as error:
            raise Unavailable(f"making {self.folder}: {error}") from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # The last process may still be on its way out.
        for _ in range(100):
            try:
                os.rmdir(self.folder)
                return
            except OSError:
                time.sleep(0.02)
        os.rmdir(self.folder)

    def write(self, file, text):
        with open(os.path.join(self.folder, file), "w") as target:
            target.write(text)

    def read(self, file):
        with open(os.path.join(self.folder, file)) as source:
            return source.read()

    def inside(self, argv):
        """The command that runs argv in the group."""
        procs = os.path.join(self.folder, "cgroup.procs")
        return ["/bin/sh", "-c", f'echo $$ > {procs} && exec "$@"', "sh", *argv]


class MemoryGroup(Group):
    """A group that may use so many bytes, and no swap."""

    def __init__(self, limit_bytes):
        super().__init__("memory")
        try:
            if self.version == 2:
                self.write("memory.max", str(limit_bytes))
                self.write("memory.swap.max", "0")
            else:
                self.write("memory.limit_in_bytes", str(limit_bytes))
                self.write("memory.swappiness", "0")
        except OSError as error:
            self.__exit__()
            raise Unavailable(f"limiting {self.folder}: {error}") from error

    def killed(self):
        """Processes that were killed for want of memory."""
        text = self.read("memory.events" if self.version == 2 else "memory.oom_control")
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        raise Unavailable("this kernel does not count kills for want of memory")

    def peak_bytes(self):
        """The most that was charged, page cache included; None on a kernel that does not say."""
        try:
            return int(self.read("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"))
        except FileNotFoundError:
            return None


class QuotaGroup(Group):
    """A group that gets the time of so many CPUs."""

    def __init__(self, cpus):
        super().__init__("cpu")
        if self.version == 2:
            self.write("cpu.max", f"{int(cpus * 100000)} 100000")
        else:
            self.write("cpu.cfs_period_us", "100000")
            self.write("cpu.cfs_quota_us", str(int(cpus * 100000)))


class CpusetGroup(Group):
    """A group that may run on these CPUs only, such as "0"."""

    def __init__(self, cpus):
        super().__init__("cpuset")
        if self.version == 1:
            parent = os.path.dirname(self.folder)
            with open(os.path.join(parent, "cpuset.mems")) as mems:
                self.write("cpuset.mems", mems.read().strip())
        self.write("cpuset.cpus", cpus)


def flush_file_pages():
    """Writes dirty pages out, so that the next command does not pay for those of the last."""
    subprocess.run(["sync"], check=True)
