#!/usr/bin/env bash
# Remakes the test images: tests/data/*.erofs, their devices, and tests/data/manifest.json.
#
#   make-test-images.sh [OUTDIR]      default OUTDIR: tests/data of this repository
#
# Needs root, a Debian machine, and Linux 6.17 or later: the manifest says what the kernel shows of
# each image, after a comparison with the source tree. mkfs.erofs 1.9 comes from Debian's own
# packages, laid out with debootstrap in ${XDG_CACHE_HOME:-$HOME/.cache}/ferrofs-test-images; nothing
# but debootstrap is installed on the machine. The packaged mkfs.erofs writes blocks of at most 4 KiB;
# for the larger ones, the same package's source is compiled in that folder.
#
#   MKFS_EROFS=PROGRAM       uses that mkfs.erofs (1.9 or later) instead
#   MKFS_EROFS_64K=PROGRAM   uses that one for blocks of more than 4 KiB; where MKFS_EROFS is given
#                            without it, the images with such blocks are left out
#   DEMO_ROOT=DIR            takes the files of demo.erofs from this Debian root; the default is the
#                            laid out one, or / where MKFS_EROFS is given
#   SUITE=NAME               Debian suite to lay out, default sid
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here/../tests/data}
suite=${SUITE:-sid}

die() {
    echo "make-test-images.sh: $*" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || die "needs root, to make device nodes and to mount"

packages=erofs-utils,libpython3-stdlib,autoconf,automake,dpkg-dev,gcc,libc6-dev,libdeflate-dev,liblz4-dev
packages=$packages,liblzma-dev,libtool,libzstd-dev,make,patch,pkgconf,uuid-dev,zlib1g-dev
compile='
    export DEBIAN_FRONTEND=noninteractive
    mkdir -p /build
    cd /build
    apt-get update -qq -o Acquire::Check-Valid-Until=false # mirrors may be behind
    apt-get source -qq -o APT::Sandbox::User=root erofs-utils
    cd erofs-utils-*/
    autoreconf -fi
    MAX_BLOCK_SIZE=65536 ./configure --enable-lzma --with-libdeflate --with-libzstd --with-zlib --disable-fuse
    make -j2
    cp mkfs/mkfs.erofs /usr/bin/mkfs.erofs-64k
    rm -rf /build
    apt-get clean'

# Prints the root of a folder that holds the suite's erofs-utils and Python library.
lay_out_suite() {
    local cache=${XDG_CACHE_HOME:-$HOME/.cache}/ferrofs-test-images codename mirror
    local root=$cache/$suite
    if [ ! -e "$cache/.$suite-complete" ]; then
        command -v debootstrap >/dev/null || {
            apt-get update -qq >&2
            apt-get install -y -qq debootstrap >&2
        }
        codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-$suite}")
        mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $codename" | head -1)
        rm -rf "$root"
        mkdir -p "$cache"
        debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" >"$cache/log" 2>&1 &&
            echo "deb-src $mirror $suite main" >"$root/etc/apt/sources.list.d/source.list" &&
            chroot "$root" sh -euc "$compile" >>"$cache/log" 2>&1 || {
            tail -20 "$cache/log" >&2
            die "laying out $suite failed"
        }
        touch "$cache/.$suite-complete"
    fi
    echo "$root"
}

if [ -n "${MKFS_EROFS:-}" ]; then
    mkfs=("$MKFS_EROFS")
    mkfs_64k=(${MKFS_EROFS_64K:+"$MKFS_EROFS_64K"})
    demo_root=${DEMO_ROOT:-/}
else
    root=$(lay_out_suite)
    # The suite is newer than this machine, so its programs run through its own dynamic loader.
    loader=("$(echo "$root"/lib*/ld-linux*.so.* | cut -d' ' -f1)")
    loader+=(--library-path "$(echo "$root"/usr/lib/*-linux-gnu*)")
    mkfs=("${loader[@]}" "$root/usr/bin/mkfs.erofs")
    mkfs_64k=("${loader[@]}" "$root/usr/bin/mkfs.erofs-64k")
    [ -z "${MKFS_EROFS_64K:-}" ] || mkfs_64k=("$MKFS_EROFS_64K")
    demo_root=${DEMO_ROOT:-$root}
fi
version=$("${mkfs[@]}" --version | sed -n '1s/.*) //p')
case $version in
1.9* | 1.[1-9][0-9]* | [2-9].*) ;;
*) die "mkfs.erofs is version '$version', but 1.9 is needed" ;;
esac

mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
finish() {
    mountpoint -q "$work/trees" && umount "$work/trees"
    rm -rf "$work"
}
trap finish EXIT

# The order of directory entries and of attribute names reaches the images, so the source trees lie
# on a file system whose hash seed is fixed.
mkdir "$work/trees" "$work/made"
truncate -s 256M "$work/ext4"
mke2fs -q -t ext4 -b 4096 -I 256 -O ea_inode,^has_journal -U 6f726566-7266-6566-6572-726f66730000 \
    -E hash_seed=6f726566-7266-6566-6572-726f66730000,lazy_itable_init=0 "$work/ext4"
mount -o loop,acl,user_xattr "$work/ext4" "$work/trees"
python3 "$here/test_trees.py" "$work/trees" "$demo_root"

made=$work/made
trees=$work/trees
list=$work/list
: >"$list"

# mkfs.erofs 1.9 writes heap memory that it never set into some images; this makes the allocator
# clear what it hands out, so that those images can be remade, too.
export GLIBC_TUNABLES=glibc.malloc.perturb=255:glibc.malloc.tcache_count=0

# uuid NAME: a fixed UUID for each image
uuid() {
    echo "ferrofs $1" | sha256sum | sed -E 's/^(.{8})(.{4}).(.{3}).(.{3})(.{12}).*/\1-\2-5\3-8\4-\5/'
}

# run_mkfs NAME SOURCE ARGUMENT...: makes NAME.erofs in the current folder
run_mkfs() {
    local name=$1 source=$2 program=("${mkfs[@]}")
    shift 2
    case " $* " in *' -b16384 '* | *' -b65536 '*) program=("${mkfs_64k[@]}") ;; esac
    "${program[@]}" --quiet --workers=0 "$@" "$name.erofs" "$source" >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        die "mkfs.erofs failed for $name"
    }
}

# record NAME TREE FILE DEVICES OFFSET DIFFERS ARGUMENT...: one line for test_manifest.py. Fields
# are separated by |, DEVICES and arguments by spaces. DIFFERS lists what may differ from the source
# tree, separated by commas.
record() {
    local IFS=' ' name=$1 tree=$2 file=$3 devices=$4 offset=$5 differs=$6
    shift 6
    echo "$name|$tree|$file|$devices|$offset|$differs|$*" >>"$list"
}

# image NAME TREE DIFFERS ARGUMENT...: makes and records an image of a source tree
image() {
    local name=$1 tree=$2 differs=$3 device='' a
    shift 3
    case $name in
    *b16384* | *b65536*)
        [ ${#mkfs_64k[@]} -gt 0 ] || {
            echo "make-test-images.sh: $name is left out, see MKFS_EROFS_64K" >&2
            return 0
        }
        ;;
    esac
    set -- -T1710000000 --mkfs-time "$@" -U "$(uuid "$name")"
    for a in "$@"; do
        case $a in --blobdev=*) device=${a#--blobdev=} ;; esac
    done
    (cd "$made" && run_mkfs "$name" "$trees/$tree" "$@")
    record "$name" "$tree" "$name.erofs" "$device" 0 "$differs" "$@"
}

coarse=mtime,mtime_nsec # compact inodes of 48-bit images hold unsigned 32-bit seconds

# Uncompressed layouts
image plain few '' '-E^inline_data'
image inline nasty ''
image compact nasty $coarse,uid,gid -Eforce-inode-compact --all-time --force-uid=1000 --force-gid=65535
image extended few '' -Eforce-inode-extended
image label-nosbcrc few '' -Enosbcrc -L fifteen-chars-x
image b512 nasty '' -b512
image b1024 few '' -b1024
image b2048 few '' -b2048
image b16384 few '' -b16384
image b65536 few '' -b65536
image dsunit few '' -b1024 --dsunit=4 --fsalignblks=16
image mz-inodes few '' --MZ=i
image chunk-map few '' --chunksize=4096 -Eforce-inode-blockmap
image chunk-indexes few '' -b512 --chunksize=1024 -Eforce-chunk-indexes
image chunk-blob few '' --chunksize=4096 --blobdev=chunk-blob.blob
image 48bit few $coarse -E48bit
image 48bit-extended few '' -E48bit,force-inode-extended
image dot-omitted nasty $coarse -Edot-omitted

# Extended attributes
prefixes="--xattr-prefix=trusted.overlay. --xattr-prefix=user.infix. --xattr-prefix=user.infixBB"
image xattr-none few xattrs -x-1
image xattr-all-shared nasty '' -x0
image xattr-no-filter few '' '-E^xattr-name-filter'
image xattr-prefix nasty '' $prefixes
image xattr-prefix-packed nasty '' -zlz4 -Efragments $prefixes
image xattr-root-room few '' --root-xattr-isize=1024
image xattr-digest few '' --xattr-inode-digest

# Compression: indexes, physical clusters, algorithms
image lz4 data '' -zlz4
image lz4-full data '' -zlz4 -Elegacy-compress
image lz4hc-64k data '' -zlz4hc -C65536
image lz4hc-64k-full-ztail data '' -zlz4hc -C65536 -Elegacy-compress,ztailpacking
image lz4-b512-4k data '' -b512 -zlz4 -C4096
image lz4-b1024 few '' -b1024 -zlz4
image lz4-b16384 few '' -b16384 -zlz4
image deflate-fragments data '' -zdeflate,level=9 -Efragments
image libdeflate-16k-ztail data '' -zlibdeflate,level=12 -C16384 -Eztailpacking
image lzma data '' -zlzma
image lzma-64k-ztail data '' -zlzma,level=9,dictsize=65536,lc=1,lp=2,pb=0 -C65536 -Eztailpacking
image zstd-16k-ztail data '' -zzstd,level=19 -C16384 -Eztailpacking
image lzma-b65536-ztail few '' -b65536 -zlzma -C65536 -Eztailpacking

# Tails, fragments, shared data
image lz4-ztail data '' -zlz4 -Eztailpacking
image lz4hc-64k-ztail data '' -zlz4hc -C65536 -Eztailpacking
image lz4-fragments data '' -zlz4 -Efragments
image lz4hc-all-fragments data '' -zlz4hc -Eall-fragments
image lz4-dedupe data '' -zlz4 -Ededupe
image lz4hc-dedupe-fragments-ztail data '' -zlz4hc -Ededupe,fragments,ztailpacking
image zstd-64k-fragments data '' -zzstd -C65536 -Efragments
image zstd-b512-2k-fragments data '' -b512 -zzstd -C2048 -Efragments
image lzma-64k-all data '' -zlzma -C65536 -Ededupe,all-fragments,ztailpacking

# 48-bit layout: extents instead of indexes
image 48bit-lz4 data $coarse -zlz4 -E48bit
image 48bit-lz4-8k-fragments data $coarse -zlz4 -C8192 -E48bit,fragments
image 48bit-lz4hc-16k-dedupe data $coarse -zlz4hc -C16384 -E48bit,dedupe
image 48bit-zstd-64k-fragments data $coarse -zzstd -C65536 -E48bit,fragments
image 48bit-zstd-short-records data $coarse -zzstd -C65536 -E48bit --max-extent-bytes=65536

# Metadata: compressed directories, metadata zone, metabox
image zd-lz4 nasty '' -zlz4 --zD
image mz-lz4 few '' -zlz4 --MZ
image metabox nasty $coarse -m4096
image metabox-lz4-prefix nasty $coarse -zlz4 -m4096 $prefixes
image metabox-lz4-lzma-16k few $coarse -zlz4:lzma -C16384 -m16384:lzma
image metabox-zstd-zd-fragments nasty $coarse -zzstd -C16384 -m16384 --zD -Efragments

# Tar archives as the source. Sockets are no part of them.
tar --format=pax --pax-option='exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime' --sort=name \
    --numeric-owner --xattrs --xattrs-include='*' -C "$trees/few" -cf "$made/few.tar" .
tar --format=gnu --sort=name --numeric-owner --exclude=./hole -C "$trees/few" -cf "$work/gnu.tar" .
tar_image() {
    local name=$1 archive=$2 devices=$3 differs=$4
    shift 4
    set -- -T1710000000 --mkfs-time "$@" -U "$(uuid "$name")"
    (cd "$made" && run_mkfs "$name" "$archive" "$@")
    record "$name" few "$name.erofs" "$devices" 0 "$differs" "$@"
}
tar_image tar-full-lz4 few.tar '' '' --tar=f -zlz4
tar_image tar-index few.tar few.tar '' --tar=i
tar_image tar-index-flat "$work/gnu.tar" '' mtime_nsec,xattrs,missing --tar=i
cat "$work/gnu.tar" >>"$made/tar-index-flat.erofs"

# An image behind 64 KiB of something else
(
    cd "$made"
    set -- -T1710000000 --mkfs-time -zlz4 -U "$(uuid offset-64k)"
    run_mkfs offset-64k "$trees/few" "$@"
    mv offset-64k.erofs tail
    head -c 65536 <(yes 'This is not the image yet.') | cat - tail >offset-64k.erofs
    rm tail
    record offset-64k few offset-64k.erofs '' 65536 '' "$@"
)

image demo demo '' -zlz4hc,level=12 -C16384 -Efragments -L ferrofs-demo

python3 "$here/test_manifest.py" "$trees" "$made" "$list" "$version"
cp "$made"/* "$out"/
du -sh --apparent-size "$out"
