#!/bin/bash
# Builds ovs-vswitchd of the installed version from Debian's package openvswitch-source with -O3 -march=native, once,
# into target/lab/ovs-native-VERSION. Prints its path.
# Usage: ovs-native.sh [--no-build]     fails if it was not built yet
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${CARGO_TARGET_DIR:-$here/../../target}/lab
mkdir -p "$out"
out=$(cd "$out" && pwd)
version=$(dpkg-query -W -f '${Version}' openvswitch-switch-dpdk 2>/dev/null) ||
    { echo "ovs-native: openvswitch-switch-dpdk is not installed (scripts/deps.sh bench)" >&2; exit 1; }
dir=$out/ovs-native-$version
daemon=$dir/ovs-vswitchd

build() {
    local work=$dir.work
    rm -rf "$work"
    mkdir -p "$work"
    cd "$work"
    echo "ovs-native: building OVS $version from openvswitch-source; this takes minutes, once" >&2
    apt-get -qq -o APT::Sandbox::User=root download "openvswitch-source=$version"
    dpkg-deb -x openvswitch-source_*.deb .
    tar xzf usr/src/openvswitch/openvswitch.tar.gz
    cd "$(dirname "$(find . -name configure.ac -not -path '*/usr/*' | head -n 1)")"
    [ -x configure ] || ./boot.sh
    ./configure --with-dpdk=shared --disable-shared --disable-ssl --disable-libcapng CFLAGS="-O3 -march=native -g1"
    # Only what the daemon needs: the generated sources, then the program.
    printf 'include Makefile\nbuilt-sources: $(BUILT_SOURCES)\n' >built.mk
    make -f built.mk built-sources
    make -j"$(nproc)" vswitchd/ovs-vswitchd
    mkdir "$work/done"
    cp vswitchd/ovs-vswitchd "$work/done/"
    mv -T "$work/done" "$dir"
    rm -rf "$work"
}

if [ ! -x "$daemon" ] && [ "${1:-}" = --no-build ]; then
    echo "ovs-native: OVS was not built for this machine yet; lab/systems/ovs-native.sh does, in some minutes" >&2
    exit 1
elif [ ! -x "$daemon" ]; then
    (set -e; build) >"$out/ovs-native.log" 2>&1 ||
        { tail -n 5 "$out/ovs-native.log" >&2; echo "ovs-native: the build failed; see $out/ovs-native.log" >&2; exit 1; }
fi
echo "$daemon"
