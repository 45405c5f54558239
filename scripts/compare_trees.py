#!/usr/bin/env python3
"""compare_trees.py [--ignore=FIELD,...] [--max=N] SRC DST

Compares two directory trees completely; run it as root. No symlink is followed, names are bytes; what is compared stands in
snapshot.py: type mode uid gid mtime nlink rdev size target xattrs links jumps content.
`links` says which paths are one file, `jumps` are bytes read out of order, `missing` and `extra` are paths of one tree only.
Exit status: 0 equal, 1 differences or usage, 2 a read error.
"""
import os
import sys

import command_line
import snapshot


def main():
    (source, other), given = command_line.read(__doc__, {"ignore": "", "max": "200"})
    ignored, most = set(filter(None, given["ignore"].split(","))), int(given["max"])
    if ignored - {"missing", "extra", *snapshot.FIELDS}:
        sys.exit(__doc__)
    wanted = snapshot.take(source, ignored)
    lines = snapshot.differences(wanted, snapshot.take(other, ignored), ignored)
    lines += [f"unreadable: /{os.fsdecode(path)}" for path, found in wanted.items() if isinstance(found.get("content"), str)]
    print("".join(line + "\n" for line in lines[:most]), end="")
    if len(lines) > most:
        print(f"... {len(lines) - most} more")
    print(f"{len(wanted)} entries, {len(lines)} differences")
    return 1 if lines else 0


try:
    sys.exit(main())
except (OSError, ValueError) as error:
    print(f"compare_trees.py: {error}", file=sys.stderr)
    sys.exit(2)
