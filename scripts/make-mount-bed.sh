#!/bin/sh
# Builds what bench_mount.py measures: the images of a tree, of two large files, and of many small ones.
#
#   make-mount-bed.sh TREE DIR [CODEC...]      needs mkfs.erofs, mksquashfs and tar; MKFS and MKSQUASHFS name others
#
# In DIR it leaves, and keeps what is there already:
#   tree-CODEC.erofs, tree.sqfs   TREE
#   blob-CODEC.erofs, blob.sqfs   two files: `big` (512 MiB) and `random` (64 MiB), cut from a tar of TREE, repeated if short
#   many-plain.erofs, many.sqfs   100,000 small files: 20,000 in one directory, 80 directories of 1,000
# CODEC is ALGORITHM-CLUSTER; all of them without one. squashfs is zstd with blocks of 128 KiB.
set -eu

[ $# -ge 2 ] || { sed -n '4,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
tree=$1 bed=$2
shift 2
codecs=${*:-lz4-4k lz4hc-64k zstd-64k deflate-64k lzma-64k}
mkfs=${MKFS:-mkfs.erofs} mksquashfs=${MKSQUASHFS:-mksquashfs}
mkdir -p "$bed"

# Fixed times and a fixed UUID, so that a rebuilt image has the same bytes.
erofs() {
    [ -e "$1" ] && return
    target=$1 source=$2
    shift 2
    "$mkfs" --quiet -T1710000000 --mkfs-time -U 11111111-2222-3333-4444-555555555555 "$@" "$target.part" "$source"
    mv "$target.part" "$target"
}

squashfs() {
    [ -e "$2" ] && return
    # The slash follows a link to the tree.
    "$mksquashfs" "$1/" "$2.part" -comp zstd -b 131072 -quiet -no-progress -noappend
    mv "$2.part" "$2"
}

compression() {
    algorithm=${1%-*} size=${1##*-}
    echo "-z$algorithm -C$((${size%k} * 1024))"
}

blobs=$bed/blob-source
if [ ! -e "$blobs/random" ]; then
    mkdir -p "$blobs"
    # The second copy of the tar only fills up what a smaller tree leaves.
    { tar -C "$tree" -cf - . 2>/dev/null || :; tar -C "$tree" -cf - . 2>/dev/null || :; } | head -c 536870912 >"$blobs/big"
    dd if="$blobs/big" of="$blobs/random" bs=1M skip=200 count=64 status=none
fi

if [ ! -e "$bed/many-source" ]; then
    python3 - "$bed/many-source.part" <<'END'
import os
import sys

root, number = sys.argv[1], 0
for folder, count in [("flat", 20000), *((f"d{i:02}", 1000) for i in range(80))]:
    os.makedirs(os.path.join(root, folder))
    for i in range(count):
        name = f"f{i:05}" if folder == "flat" else f"small-file-{i:04}.txt"
        with open(os.path.join(root, folder, name), "wb") as file:
            file.write(b"file %d\n" % number * (1 + number * 7919 % 40))
        number += 1
END
    mv "$bed/many-source.part" "$bed/many-source"
fi

squashfs "$tree" "$bed/tree.sqfs"
squashfs "$blobs" "$bed/blob.sqfs"
erofs "$bed/many-plain.erofs" "$bed/many-source"
squashfs "$bed/many-source" "$bed/many.sqfs"
for codec in $codecs; do
    # shellcheck disable=SC2046 # two words
    erofs "$bed/tree-$codec.erofs" "$tree" $(compression "$codec")
    # shellcheck disable=SC2046
    erofs "$bed/blob-$codec.erofs" "$blobs" $(compression "$codec")
done
