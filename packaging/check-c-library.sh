#!/usr/bin/env bash
# Checks the C library as it will be installed: its symbols are those of the header, and the examples compile as C99 and as C++ and
# run without a report of valgrind. What is not installed here (valgrind, libarchive) is named and left out.
#
#   packaging/check-c-library.sh ROOT IMAGE      the library is in ROOT/usr, the examples in ROOT/examples; IMAGE is any image
set -euo pipefail

root=$(realpath "$1")
image=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_PATH=$root/usr/lib/pkgconfig LD_LIBRARY_PATH=$root/usr/lib LC_ALL=C

without() { echo "check-c-library: without $1" >&2; }

nm -D --defined-only "$root/usr/lib/libferrofs.so" | sed -n 's/.* T \([a-z_]*\)@@.*/\1/p' | sort >"$work/defined"
sed -n 's/^[a-z].*[ *]\(ferrofs_[a-z_]*\)(.*/\1/p' "$root/usr/include/ferrofs.h" | sort -u >"$work/declared"
if ! diff "$work/declared" "$work/defined" || [[ ! -s $work/defined ]]; then
    echo "check-c-library: the symbols of the library (>) are not those of the header (<)" >&2
    exit 1
fi

read -ra flags < <(pkg-config --cflags --libs ferrofs)
programs=(list build)
if pkg-config --exists libarchive; then programs+=(totar); else without libarchive; fi
for name in "${programs[@]}"; do
    more=()
    if [[ $name == totar ]]; then more=(-larchive); fi
    for compiler in "cc -std=c99" "c++ -std=c++11 -x c++"; do
        $compiler -pedantic -Wall -Werror "$root/examples/$name.c" -x none -o "$work/$name" "${flags[@]}" "${more[@]}"
    done
done
run=()
if valgrind --version >"$work/version" 2>&1; then
    run=(valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite --show-leak-kinds=definite)
else
    without valgrind
fi
mkdir "$work/tree"
cp "$root"/examples/*.c "$work/tree/"
"${run[@]}" "$work/build" "$work/tree" "$work/built.erofs" >"$work/output"
for one in "$image" "$work/built.erofs"; do
    "${run[@]}" "$work/list" "$one" >"$work/output"
    if [[ -x $work/totar ]]; then "${run[@]}" "$work/totar" "$one" "$work/a.tar"; fi
done
echo "check-c-library: $(wc -l <"$work/defined") symbols; ${programs[*]}: clean${run[0]:+ under valgrind}" >&2
