#!/usr/bin/env bash
# Makes the Debian package from the programs that are in target/release, with cargo-deb. The list of its files is in
# crates/cli/Cargo.toml; this script lays out in target/packaging what no build makes.
#
#   cargo build --release -p ferrofs -p ferrofs-fetch && packaging/build-deb.sh DIR
set -euo pipefail
out=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
readonly stage=target/packaging
readonly names=(mkfs.erofs fsck.erofs dump.erofs erofsfuse mount.erofs)
version=$(cargo metadata --format-version=1 --no-deps | python3 -c '
import json, sys
print(next(package["version"] for package in json.load(sys.stdin)["packages"] if package["name"] == "ferrofs"))')

rm -rf "$stage"
mkdir -p "$stage"/{man,other-man,completions,bash,links/bin,links/sbin,links/lib}
cargo run --quiet --locked -p xtask --profile test -- man "$stage/man"
cargo run --quiet --locked -p xtask --profile test -- completions "$stage/completions"

# Pages of names that erofs-utils has, too, lie beside their programs: "man" finds them there through PATH, and the
# alternatives point to them.
for name in "${names[@]}"; do
    mv "$stage"/man/"$name".[18] "$stage/other-man/"
    ln -s ../../../bin/ferrofs "$stage/links/lib/$name"
done
gzip -9n "$stage"/other-man/*
ln -s ../bin/ferrofs "$stage/links/sbin/mount.fuse.ferrofs"
touch "$stage/links/bin/ferrofs" # what the links lead to in the package

for file in "$stage"/completions/*.bash; do cp "$file" "$stage/bash/$(basename "$file" .bash)"; done
rm "$stage"/{completions/*mount.erofs*,bash/mount.erofs}

packaging/notices.py Cargo.toml ferrofs ferrofs-fetch | gzip -9n >"$stage/third-party-notices.gz"
cat >"$stage/changelog" <<END
ferrofs ($version-1) unstable; urgency=medium

  * See changelog.gz.

 -- The ferrofs authors <ferrofs@users.noreply.github.com>  $(date -uRd "@$SOURCE_DATE_EPOCH")
END
cargo deb --quiet --locked -p ferrofs --no-build --strip -o "$out/"
