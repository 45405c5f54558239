#!/usr/bin/env bash
# Builds images of a real root file system, extracts each, and compares it with its source completely.
#
#   real-system.sh ROOTFS WORKDIR [FERROFS]      default FERROFS: target/release/ferrofs
#
# ROOTFS is a directory, for example one made by
#   debootstrap --variant=minbase --include=python3,perl,gcc,git bookworm ROOTFS
# Needs root, python3, and mkfs.erofs 1.9 on PATH or as MKFS_EROFS. Images stay in WORKDIR; what was
# extracted is removed.
set -euo pipefail
export LC_ALL=C TZ=UTC

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "real-system.sh: needs root, to keep owners and device nodes" >&2; exit 2; }
rootfs=$1 work=$2 ferrofs=${3:-$here/../target/release/ferrofs}
mkfs=${MKFS_EROFS:-mkfs.erofs}
mkdir -p "$work"

declare -A options=(
    [lz4]='-zlz4'
    [lz4hc-64k]='-zlz4hc -C65536'
    [zstd-64k]='-zzstd -C65536'
    [deflate-64k]='-zdeflate -C65536'
    [lzma-64k]='-zlzma -C65536'
    [combo]='-zlz4hc -C65536 -Efragments,dedupe,ztailpacking'
)
names=(lz4 lz4hc-64k zstd-64k deflate-64k lzma-64k combo)
failed=0
for name in "${names[@]}"; do
    image=$work/$name.erofs
    if [ ! -e "$image" ]; then
        # --mkfs-time keeps every file's own time.
        # shellcheck disable=SC2086
        "$mkfs" --quiet -T1710000000 --mkfs-time ${options[$name]} "$image" "$rootfs"
    fi
    rm -rf "$work/out"
    if ! "$ferrofs" extract --quiet --progress=none "$image" "$work/out"; then
        echo "$name: extract failed"
        failed=1
    fi
    # GNU diff names every pair of device nodes, FIFOs and sockets; compare_trees.py compares them.
    if diff -r --no-dereference "$rootfs" "$work/out" | grep -vE 'is a (character special file|block special file|fifo|socket)'; then
        echo "$name: diff found differences"
        failed=1
    fi
    printf '%s: ' "$name"
    "$here/compare_trees.py" "$rootfs" "$work/out" || failed=1
done
rm -rf "$work/out"
exit "$failed"
