"""What the scripts share: command lines, programs that end in time, folders to work in, and the list of failed checks."""
import argparse
import contextlib
import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile

# No program that a script runs may take longer.
LIMIT_SECONDS = 1800


def program(name):
    """The full path of a program; None if it is not installed."""
    path = shutil.which(name)
    return path and os.path.abspath(path)


def parse(usage, operands, **options):
    """Reads the command line, and ends the script with 2 if it is wrong.

    `operands` are words: NAME, [NAME] that may be absent, NAME... for one or more, [NAME...] for any number. FERROFS must be a
    program, and is its full path afterwards. `options` are defaults: False is a switch, a number takes a number, a list takes
    some of its words, separated by commas, and anything else takes text."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=usage, formatter_class=plain, allow_abbrev=False)
    for word in operands.split():
        count = {(True, True): "*", (True, False): "?", (False, True): "+"}.get((word[0] == "[", "..." in word))
        parser.add_argument(word.strip("[].").lower(), metavar=word.strip("[]."), nargs=count)
    for name, default in options.items():
        kind = {"action": "store_true"} if default is False else {"type": type(default), "default": default}
        if isinstance(default, list):
            kind["type"] = lambda text, words=default: [words[words.index(word)] for word in text.split(",")]
        parser.add_argument("--" + name, **kind)
    given = parser.parse_args()
    if "ferrofs" in given:
        given.ferrofs = program(given.ferrofs) or parser.error(f"no program {given.ferrofs}")
    return given


def run(argv, timeout=LIMIT_SECONDS, **how):
    """Runs a program without input; its exit status and all that it printed, as one text. A daemon that it leaves behind keeps
    what it inherited, so that a pipe would never end: what it says goes to a file."""
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(argv, **{"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said, **how})
        try:
            status = child.wait(timeout)
        except subprocess.TimeoutExpired as expired:
            os.killpg(child.pid, signal.SIGKILL) if how.get("start_new_session") else child.kill()
            child.wait()
            said.seek(0)
            expired.output = said.read().decode(errors="replace")
            raise
        said.seek(0)
        return status, said.read().decode(errors="replace")


def run_well(*argv):
    """Runs a program that must not fail."""
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def answer(action, *arguments, **named):
    """What an action answers: its value, or the name of its error."""
    try:
        return action(*arguments, **named)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))


def digest(path):
    """Of the bytes of a file, as hex; or the name of the error."""
    def read():
        with open(path, "rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return answer(read)


@contextlib.contextmanager
def work_folder(parent):
    """A new folder, which stays if the script is ended by an error: something may still be mounted in it."""
    path = tempfile.mkdtemp(prefix=script() + "-", dir=parent)
    yield path
    shutil.rmtree(path)


def script():
    return os.path.splitext(os.path.basename(sys.argv[0]))[0]


class Report:
    """The command line, a folder to work in, what was checked there, and what of it was not as it should be."""
    forgiven = ()

    def __init__(self, given, work):
        self.given, self.work, self.failed = given, work, []

    @classmethod
    def of(cls, given):
        """Has an object do everything in a new folder; the exit status."""
        with work_folder(given.work) as work:
            return cls(given, work).all()

    def all(self):
        """Runs the methods that --cases names. An error that is forgiven is one case that failed."""
        for case in self.given.cases:
            print(f"\n## {case}", flush=True)
            try:
                getattr(self, case)()
            except self.forgiven as reason:
                self.check(False, f"{case}: {reason}")
        return self.end()

    def check(self, is_so, text):
        print(f"{'ok  ' if is_so else 'FAIL'} {text}", flush=True)
        if not is_so:
            self.failed.append(text)
        return is_so

    def expect(self, is_so, text):
        """The same, and silent where it is so."""
        return is_so or self.check(False, text)

    def end(self):
        """The last line, and the exit status."""
        print(f"\n{len(self.failed)} failed")
        return 1 if self.failed else 0


def main(body, *words, **options):
    """Runs a script with what `parse` reads: what it returns is the exit status, and what the system refuses is a message."""
    try:
        sys.exit(body(parse(*words, **options)))
    except (OSError, subprocess.SubprocessError) as reason:
        sys.exit(f"{script()}: {reason}")
