#!/bin/bash
# Usage: scripts/fuzz.sh [TARGET|all] [SECONDS for each]     fuzzes, guided by coverage (libFuzzer)
#        scripts/fuzz.sh TARGET FILE                         runs one input again
# With a nightly compiler the address sanitizer watches too. Inputs that were interesting stay in target/fuzz/corpus,
# those that failed in target/fuzz/failed, with a line on how to run them again and one for the seeds' file.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-all} what=${2:-60}

host=x86_64-unknown-linux-gnu
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags="$flags -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
if cargo +nightly --version >/dev/null 2>&1; then
    toolchain=+nightly flags="$flags -Zsanitizer=address"
else
    toolchain=+stable
    echo "fuzz: no nightly compiler (rustup toolchain install nightly): without the address sanitizer" >&2
fi
command -v c++ >/dev/null || { echo "fuzz: libFuzzer needs a C++ compiler (Debian: g++)" >&2; exit 1; }
# Memory that is leaked once per process, when it ends, is no defect; what grows meets -rss_limit_mb.
export ASAN_OPTIONS=detect_leaks=0
export CARGO_TARGET_DIR=$PWD/target/fuzz/build
RUSTFLAGS=$flags cargo $toolchain build -q --release --target $host --manifest-path crates/fuzz/libfuzzer/Cargo.toml
program=$CARGO_TARGET_DIR/$host/release/weft-libfuzzer

if [ -f "$what" ]; then
    WEFT_FUZZ_TARGET=$target exec "$program" "$what"
fi
[ "$target" != all ] || target=$(ls crates/fuzz/seeds | sed 's/\.hex$//')
mkdir -p target/fuzz/failed
status=0
for t in $target; do
    corpus=target/fuzz/corpus/$t log=target/fuzz/$t.log
    mkdir -p "$corpus"
    echo "fuzz: $t for $what s"
    if WEFT_FUZZ_TARGET=$t WEFT_FUZZ_SEEDS=$corpus "$program" "$corpus" -max_total_time="$what" -max_len=4096 \
        -timeout=20 -rss_limit_mb=4096 -artifact_prefix="target/fuzz/failed/$t-" >"$log" 2>&1; then
        grep -E '^(Done|#.*DONE)' "$log" | tr '\n' ' '; echo
    else
        status=1
        grep -E 'panicked|ERROR|SUMMARY|^[a-z].*took' -A1 "$log" | head -8
        file=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
        echo "fuzz: $t FAILED ($log); again: scripts/fuzz.sh $t $file; a line for crates/fuzz/seeds/$t.hex:"
        [ -z "$file" ] || od -An -v -tx1 "$file" | tr -d ' \n'
        echo
    fi
done
exit $status
