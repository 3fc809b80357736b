#!/bin/bash
# Usage: scripts/sanitize.sh [short|full]
# Tests under the address sanitizer (vhost, dpdk), the thread sanitizer (sync, classifier, datapath's workers) and Miri
# (sync, packet, vhost, classifier). `short` leaves out what takes minutes to build or to run. The sanitizers need a
# nightly compiler, Miri its component; what is not there is said, with the command that brings it.
set -uo pipefail
cd "$(dirname "$0")/.."
how=${1:-full} host=x86_64-unknown-linux-gnu status=0

run() { # NAME FLAGS cargo-arguments...
    local name=$1 flags=$2
    shift 2
    echo "sanitize: $name sanitizer: cargo test $*"
    CARGO_TARGET_DIR=$PWD/target/sanitize/$name RUSTFLAGS=$flags cargo +nightly test -q --target $host "$@" ||
        { echo "sanitize: $name sanitizer: FAILED"; status=1; }
}

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "sanitize: SKIPPED: no nightly compiler (rustup toolchain install nightly)"
    exit 0
fi

# Leaks are looked for by the tests' own pools; DPDK's memory is never given back.
export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0 PROPTEST_CASES=${PROPTEST_CASES:-16}
run address -Zsanitizer=address -p vhost
[ "$how" = short ] || run address -Zsanitizer=address -p dpdk --lib

# One test at a time runs on the main thread: the test harness's own channels are not instrumented either.
export TSAN_OPTIONS="suppressions=$PWD/scripts/tsan.supp"
thread="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"
run thread "$thread" -p sync --test threads -- --test-threads=1
run thread "$thread" -p classifier --test concurrent -- --test-threads=1
[ "$how" = short ] || run thread "$thread" -p datapath --test live --test barriers -- --test-threads=1

if cargo +nightly miri --version >/dev/null 2>&1; then
    export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-tree-borrows" PROPTEST_CASES=2
    for crate in sync packet vhost classifier; do
        [ "$how" = full ] || continue
        echo "sanitize: Miri: $crate"
        CARGO_TARGET_DIR=$PWD/target/sanitize/miri cargo +nightly miri test -q -p $crate ||
            { echo "sanitize: Miri: $crate: FAILED"; status=1; }
    done
else
    echo "sanitize: Miri: SKIPPED: not installed (rustup +nightly component add miri rust-src)"
fi
exit $status
