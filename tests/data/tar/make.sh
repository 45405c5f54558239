#!/bin/bash
# Remakes the archives beside this file: one small tree as GNU tar, bsdtar and Python write it, in every format that
# they have. Wants root (devices, owners), GNU tar, bsdtar, Python 3, gzip, xz, zstd and setfattr.
set -euo pipefail
out=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/tree"
cd "$work/tree"

long=$(printf 'n%.0s' {1..120})
mkdir -p dir/sub "deep/$long" empty
printf 'hello\n' > dir/hello
ln dir/hello dir/sub/again
: > nothing
head -c 3000 /dev/zero | tr '\0' x > dir/xes
printf 'long\n' > "deep/$long/$long"
ln -s dir/hello link
ln -s "$long/$long" deep/far
mkfifo pipe
mknod null c 1 3
mknod disk b 8 17
truncate -s 300000 holes
printf 'start' | dd of=holes conv=notrunc status=none
printf 'middle' | dd of=holes conv=notrunc bs=1 seek=131072 status=none
printf 'a name in Latin-1\n' > "$(printf 'caf\351')"
setfattr -n user.note -v 'a=b' dir/hello
setfattr -n user.empty dir
setfattr -n trusted.bytes -v 0x00ff0a dir/xes
chmod 4755 dir/xes
chmod 1777 empty
chmod 640 dir/hello
chown -h 1000:100 dir/hello link
chown 70000:80000 dir/sub
find . -exec touch -h -d '2021-02-03 04:05:06.789012345 UTC' {} +
touch -h -d '1969-12-31 23:59:58.25 UTC' nothing
touch -d '2100-01-02 03:04:05.000000001 UTC' dir

common=(--create --sort=name --numeric-owner -b1)
attributes=(--xattrs --xattrs-include=*)
tar "${common[@]}" --format=gnu --file="$out/gnu.tar" .
tar "${common[@]}" --format=gnu --sparse --file="$out/gnu-sparse.tar" .
tar "${common[@]}" --format=posix "${attributes[@]}" --file="$out/pax.tar" .
for version in 0.0 0.1 1.0; do
    tar "${common[@]}" --format=posix "${attributes[@]}" --sparse --sparse-version=$version \
        --file="$out/pax-sparse-$version.tar" .
done
find . | LC_ALL=C sort | bsdtar --create --format=pax --numeric-owner --no-recursion --files-from=- --file="$out/bsd-pax.tar"
# What older formats cannot hold stays out of them.
short=(dir empty holes link)
tar "${common[@]}" --format=ustar --file="$out/ustar.tar" "${short[@]}" null disk pipe
tar "${common[@]}" --format=v7 --file="$out/v7.tar" "${short[@]}"
python3 - "$out" <<'PYTHON'
import sys, tarfile
for name, form in [("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)]:
    with tarfile.open(f"{sys.argv[1]}/python-{name}.tar", "w", format=form) as archive:
        paths = ["dir", "empty", "holes", "link", "null", "disk", "pipe"] if name == "ustar" else ["."]
        for path in paths:
            archive.add(path)
PYTHON
gzip -9 -n -c "$out/pax.tar" > "$out/pax.tar.gz"
xz -c "$out/pax.tar" > "$out/pax.tar.xz"
zstd -q -19 -c "$out/pax.tar" > "$out/pax.tar.zst"
# Several members, streams and frames.
half=$(($(stat -c %s "$out/pax.tar") / 2))
for kind in gzip xz zstd; do
    { head -c "$half" "$out/pax.tar" | "$kind" -c; tail -c "+$((half + 1))" "$out/pax.tar" | "$kind" -c; } \
        > "$out/pax-two.tar.$kind"
done
# Most of a tar is zeros.
for plain in "$out"/*.tar; do zstd -q -19 --rm -f "$plain" -o "$plain.zst"; done
