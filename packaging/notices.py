#!/usr/bin/env python3
"""Prints the copyright notices and licence texts of all crates from outside that the named crates are compiled from.

usage: notices.py MANIFEST CRATE...

Equal texts are printed once. The text of Apache-2.0 is left out where a crate is also offered under another licence.
"""
import json
import subprocess
import sys
from pathlib import Path

PREFIXES = ("LICEN", "COPY", "NOTICE", "UNLICENSE")


def linked(metadata, names):
    """The packages that the named ones are compiled from, without those of tests and build scripts."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [package["id"] for package in metadata["packages"] if package["name"] in names and package["source"] is None]
    found = set()
    while waiting:
        package = waiting.pop()
        if package not in found:
            found.add(package)
            deps = nodes[package]["deps"]
            waiting += [dep["pkg"] for dep in deps if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    return [package for package in metadata["packages"] if package["id"] in found and package["source"]]


def texts(package):
    folder = Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name.upper().startswith(PREFIXES))
    chosen = [path for path in files if "APACHE" not in path.name.upper()] or files
    return [path.read_text(errors="replace").strip() for path in chosen]


def main(manifest, *names):
    host = next(line.split()[1] for line in subprocess.check_output(["rustc", "-vV"], text=True).splitlines() if line.startswith("host:"))
    command = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={host}", f"--manifest-path={manifest}"]
    users = {}
    for package in sorted(linked(json.loads(subprocess.check_output(command)), names), key=lambda package: (package["name"], package["version"])):
        for text in texts(package) or [f"Licence: {package['license']}"]:
            users.setdefault(text, []).append(f"{package['name']} {package['version']} ({package['license']})")
    for text, packages in users.items():
        print("=" * 78, *packages, "-" * 78, text, "", sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
