#!/usr/bin/env bash
# Merges images of layers with mkfs.erofs, and compares what the kernel shows of the result with what its overlayfs shows
# of the layers: whiteouts, opaque directories, replaced types, hard links; data referred to and copied.
#
#   compare_layers.sh FERROFS WORKDIR [FSCK]      FSCK: fsck.erofs of erofs-utils, which decodes the result, too
#
# Needs root, python3, overlayfs and EROFS in the kernel. WORKDIR is made, and holds the images afterwards. Exit status 1
# on any difference.
set -euo pipefail
export LC_ALL=C TZ=UTC

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
ferrofs=$(realpath "$1") fsck=${3:-}
mkdir "$2"
cd "$2"
loops=()

clean() {
    for place in stacked shown lower upper 3 2 1; do
        if mountpoint -q "$place"; then umount "$place"; fi
    done
    for loop in "${loops[@]}"; do losetup -d "$loop"; done
    loops=()
}
trap clean EXIT

mkfs() { (exec -a mkfs.erofs "$ferrofs" --quiet "$@"); }

make_layers() {
    mkdir -p tree/1/{d/sub,o,w,t} tree/2/{d,o} tree/3/{d/sub,w,o} base/{o,w,d} 1 2 3 lower upper shown stacked
    head -c 70000 /dev/urandom >tree/1/d/sub/random
    ln tree/1/d/sub/random tree/1/linked
    for name in o/old w/old t/old file; do echo 1 >tree/1/$name; done
    seq 3000 >tree/1/d/text
    echo 2 >tree/2/o/new
    setfattr -n trusted.overlay.opaque -v y tree/2/o
    for name in w file d/text; do mknod tree/2/$name c 0 0; done
    for name in t d/two; do echo 2 >tree/2/$name; done
    for name in w/fresh d/sub/three o/three; do echo 3 >tree/3/$name; done
    seq 5000 >tree/3/d/text
    setfattr -n trusted.overlay.opaque -v y tree/3/w
    for name in o/base w/base d/base file; do echo base >base/$name; done
}

compare() {
    echo "$1: $(python3 "$here/compare_trees.py" "$2" "$3")"
    umount "$3"
}

check_layers() {
    local name=$1 number loop devices='' given=()
    shift
    for number in 1 2 3; do
        mkfs "$@" "$number.erofs" "tree/$number"
        mount -t erofs -o loop,ro "$number.erofs" "$number"
        loop=$(losetup --find --show --read-only "$number.erofs")
        loops+=("$loop")
        devices+=",device=$loop"
        given+=("--device=$number.erofs")
    done
    mount -t overlay overlay -o lowerdir=3:2:1 lower
    mkfs --aufs --ovlfs-strip=1 stripped.erofs {1,2,3}.erofs
    mount -t erofs -o "loop,ro$devices" stripped.erofs shown
    compare "$name, referred to" lower shown
    "$ferrofs" check -q "${given[@]}" stripped.erofs
    if [ -n "$fsck" ]; then "$fsck" --extract "${given[@]}" stripped.erofs; fi
    mkfs --clean=data -zlz4hc --ovlfs-strip=1 copied.erofs {1,2,3}.erofs
    mount -t erofs -o loop,ro copied.erofs shown
    compare "$name, copied" lower shown
    # With its marks the result lies over a further layer as its layers do.
    mkfs marked.erofs {1,2,3}.erofs
    mount -t erofs -o "loop,ro$devices" marked.erofs shown
    mount -t overlay overlay -o lowerdir=3:2:1:base upper
    mount -t overlay overlay -o lowerdir=shown:base stacked
    compare "$name, over a base" upper stacked
    clean
}

make_layers
check_layers "inline tails"
check_layers "whole blocks" -Enoinline_data
check_layers "chunks" --chunksize=4096
check_layers "blocks of 512 bytes" -b512
