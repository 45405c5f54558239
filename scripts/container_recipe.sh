#!/usr/bin/env bash
# What container engines do with mkfs.erofs, fsck.erofs and dump.erofs, done with FERROFS under these names: a layer with
# whiteouts, attributes and hard links comes through a pipe, as it is and compressed, and becomes an image, which is
# checked, looked at, mounted and compared with what the layer was made from.
#
#   container_recipe.sh FERROFS
#
# As root the layer has devices and trusted attributes too, and the kernel mounts it; else FERROFS does, which takes FUSE.
# Needs GNU tar, gzip, xz, zstd, setfattr, getfattr and python3. Exit status 1 on any difference.
set -euo pipefail
export LC_ALL=C TZ=UTC

[ $# = 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
ferrofs=$(realpath -e -- "$1")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
mounted=
leave() {
    if [ -n "$mounted" ]; then umount "$work/mnt" 2>/dev/null || fusermount3 -u "$work/mnt"; fi
    rm -rf -- "$work"
}
trap leave EXIT
is_root() { [ "$(id -u)" = 0 ]; }
fail() { printf 'container_recipe.sh: %s\n' "$*" >&2; exit 1; }

mkdir "$work/bin" "$work/mnt"
for name in mkfs.erofs fsck.erofs dump.erofs; do ln -s -- "$ferrofs" "$work/bin/$name"; done
PATH=$work/bin:$PATH

# make_layer DIR: what every engine's tar holds; whiteouts follow in the way that the caller has them.
make_layer() {
    mkdir -p "$1/usr/bin" "$1/usr/share/doc" "$1/var/opaque" "$1/etc/gone"
    seq 100000 > "$1/usr/share/doc/numbers"
    head -c 300000 /dev/zero > "$1/usr/share/doc/zeros"
    printf '#!/bin/sh\necho hello\n' > "$1/usr/bin/hello"
    ln "$1/usr/bin/hello" "$1/usr/bin/again"
    ln -s ../../bin/hello "$1/usr/share/doc/link"
    ln -s "$(printf 'd%.0s/' {1..100})end" "$1/etc/far"
    : > "$1/etc/empty"
    printf 'kept\n' > "$1/var/opaque/new"
    printf 'long\n' > "$1/etc/$(printf 'n%.0s' {1..200})"
    setfattr -n user.note -v 'a=b' "$1/usr/bin/hello"
    setfattr -n user.empty "$1/usr"
    chmod 4755 "$1/usr/bin/hello"
    chmod 1777 "$1/var"
    mkfifo "$1/etc/pipe"
    if is_root; then
        mknod "$1/etc/null" c 1 3
        chown -h 1000:70000 "$1/etc/empty" "$1/etc/far"
        setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 "$1/usr/bin/hello"
        setfattr -n trusted.note -v here "$1/etc"
    fi
}

# With the whiteouts of AUFS, as layers have them; and, as root, with those of overlayfs, as it must look then.
make_layer "$work/layer"
: > "$work/layer/etc/.wh.removed"
: > "$work/layer/etc/gone/.wh.too"
: > "$work/layer/var/opaque/.wh..wh..opq"
mkdir "$work/layer/.wh..wh.plnk"
: > "$work/layer/.wh..wh.plnk/12.34"
make_layer "$work/wanted"
if is_root; then
    for name in etc/removed etc/gone/too; do
        mknod "$work/wanted/$name" c 0 0
        chmod 644 "$work/wanted/$name"
        setfattr -n trusted.overlay.origin "$work/wanted/${name%/*}"
    done
    setfattr -n trusted.overlay.opaque -v y "$work/wanted/var/opaque"
fi
for tree in layer wanted; do
    find "$work/$tree" -depth -exec touch -h -d '2024-05-06 07:08:09.123456789 UTC' {} +
done

as_tar() {
    tar --create --format=posix --sort=name --numeric-owner --xattrs --xattrs-include='*' \
        --directory "$work/layer" .
}

# compare IMAGE: what a mount shows is what the layer was made from.
compare() {
    local ignore=
    if is_root; then
        mount -t erofs -o ro,loop "$1" "$work/mnt"
    else
        # An ordinary user can make no whiteouts to compare with, and owns all that was made.
        ignore=--ignore=extra,nlink
        "$ferrofs" mount "$1" "$work/mnt"
    fi
    mounted=yes
    python3 "$here/compare_trees.py" $ignore "$work/wanted" "$work/mnt" || fail "$1 differs from what it was made from"
    umount "$work/mnt" 2>/dev/null || fusermount3 -u "$work/mnt"
    mounted=
}

first=
for way in cat 'gzip -c' 'xz -c' 'zstd -q -c'; do
    for options in '' '-zlz4hc,12 -C65536' '-zzstd -C65536 -Efragments,dedupe'; do
        image=$work/image.erofs
        # shellcheck disable=SC2086 # options are words
        said=$(as_tar | $way | mkfs.erofs --tar=f --aufs -Enoinline_data --quiet -T0 --mkfs-time -Uclear $options "$image" - 2>&1)
        [ -z "$said" ] || fail "mkfs.erofs --quiet said: $said"
        said=$(fsck.erofs "$image" 2>&1) || fail "fsck.erofs: $said"
        [ -z "$said" ] || fail "fsck.erofs said of a sound image: $said"
        dump.erofs "$image" | grep -q '^Filesystem blocksize: *4096$' || fail "dump.erofs tells no block size"
        dump.erofs --path=/usr/bin/hello "$image" | grep -q '^NID: ' || fail "dump.erofs tells no NID"
        dump.erofs --cat --path=/usr/share/doc/numbers "$image" | cmp - "$work/wanted/usr/share/doc/numbers"
        compare "$image"
        # However it came, the image is the same.
        sum="$options $(sha256sum < "$image")"
        if [ "$way" = cat ]; then first+="$sum"$'\n'; fi
        grep -qxF -e "$sum" <<< "$first" || fail "another image by $way"
        printf 'right: %-10s %s\n' "$way" "${options:-plain}"
        rm -f "$image"
    done
done

# A pipe that breaks must not become an image.
if as_tar | head -c 100000 | mkfs.erofs --tar=f --aufs --quiet "$work/cut.erofs" - 2> "$work/said"; then
    fail "mkfs.erofs took an archive that was cut"
fi
[ ! -e "$work/cut.erofs" ] || fail "mkfs.erofs left an image of an archive that was cut"
grep -q 'the archive ends inside' "$work/said" || fail "mkfs.erofs said: $(cat "$work/said")"
echo "right: a cut pipe is refused"
