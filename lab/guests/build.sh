#!/bin/bash
# Builds target/lab/guests when it is older than its source; prints its path.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${CARGO_TARGET_DIR:-$here/../../target}/lab
mkdir -p "$out"
program=$(cd "$out" && pwd)/guests
if [ ! "$program" -nt "$here/guests.c" ]; then
    # shellcheck disable=SC2046
    ${CC:-gcc} -std=gnu11 -O3 -march=native -Wall -Wextra -Werror $(pkg-config --cflags libdpdk | sed 's/-march=[^ ]*//') \
        "$here/guests.c" -o "$program.$$" $(pkg-config --libs libdpdk)
    mv "$program.$$" "$program"
fi
echo "$program"
