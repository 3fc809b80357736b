#!/bin/bash
# Builds target/lab/guests and, beside it, bare-guests when they are older than their sources; prints the path of the first.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${CARGO_TARGET_DIR:-$here/../../target}/lab
mkdir -p "$out"
out=$(cd "$out" && pwd)
build() {
    [ "$out/$1" -nt "$here/$2" ] && return
    ${CC:-gcc} -std=gnu11 -O3 -march=native -Wall -Wextra -Werror "$here/$2" -o "$out/$1.$$" "${@:3}"
    mv "$out/$1.$$" "$out/$1"
}
# shellcheck disable=SC2046
build guests guests.c $(pkg-config --cflags libdpdk | sed 's/-march=[^ ]*//') $(pkg-config --libs libdpdk)
build bare-guests bare.c
echo "$out/guests"
