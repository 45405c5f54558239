# Makes what the calls of compatibility.txt need, in the present directory. $1: the folder of the originals; $2: that
# of the test images; $3: the step.
set -eu
originals=$1 images=$2 step=$3
mkfs="$originals/mkfs.erofs --quiet -T1700000000 -U clear"
is_root() { [ "$(id -u)" = 0 ]; }
if [ "$step" = tree ]; then
    cp "$images/lz4.erofs" "$images/lz4-fragments.erofs" "$images/chunk-blob.erofs" "$images/chunk-blob.blob" .
    chmod u+w ./*.erofs ./*.blob
    mkdir -p tree/sub/deeper upper/sub little/d between
    seq 1 20000 >tree/text
    cp tree/text tree/sub/copy
    echo hi >tree/small
    : >tree/empty
    ln -s sub/copy tree/link
    ln tree/small tree/sub/linked
    seq 1 7 300000 | tr 0-9 a-j >tree/random
    printf a.txt >tree/a.txt
    seq 1 700 >tree/sub/deeper/x.txt
    truncate -s 1M tree/hole
    mkfifo tree/fifo
    chmod 600 tree/empty
    chmod 4755 tree/a.txt
    if is_root; then
        mknod tree/whiteout c 0 0
        chown 70000:5 tree/random
    fi
    echo new >upper/new
    echo changed >upper/small
    echo y >upper/sub/y
    echo file >between/sub
    mkdir odd nothing
    truncate -s 300M odd/hole
    seq 1 3000 >odd/data
    echo x >odd/end.
    printf '65536 text\n0 random\n' >hints
    printf '1048577 text\n' >hints-1048577
    printf '2097152 text\n' >hints-2m
    printf 'x text\n' >hints-word
    printf '4k text\n' >hints-suffix
    printf '4096 (\n' >hints-bracket
    printf '4096\n' >hints-no-pattern
    printf '4096 1 text\n' >hints-algorithm
    printf '/(/.*)?  u:object_r:x:s0\n/text u:object_r:text:s0\n/vendor(/.*)?  u:object_r:v:s0\n/vendor/sub -d u:object_r:d:s0\n' >contexts
    head -c 20000 /dev/zero >nonsense
else
    find tree upper little between -exec touch -h -d @1600000000 {} +
    touch -d @1500000000.123456789 tree/text
    tar --xattrs --format=pax -cf t.tar -C tree ./
    gzip -nk t.tar
    xz -k t.tar
    $mkfs -Enoinline_data a.erofs tree
    $mkfs -Enoinline_data b.erofs upper
    $mkfs -Enoinline_data between.erofs between
    $mkfs -L 'a b' label.erofs tree
    $mkfs --offset=4096 offset.erofs little
    $mkfs --xattr-inode-digest digest.erofs upper
    $mkfs --chunksize=4096 --xattr-inode-digest odd.erofs odd
    $mkfs empty.erofs nothing
    head -c 100000 a.erofs >cut.erofs
    cp a.erofs sum.erofs
    printf '\377' | dd of=sum.erofs bs=1 seek=1072 conv=notrunc status=none
fi
