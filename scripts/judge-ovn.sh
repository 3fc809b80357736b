#!/bin/bash
# Has OVN's own test suites judge weftd: runs groups of one with weftd in ovs-vswitchd's place, and Debian's ovn-northd,
# ovn-controller and ovs-* tools. They are in no Debian package: OVN is its source tree, of the version that Debian has.
# Usage: judge-ovn.sh [--system] OVN [WEFTD [GROUP...]]   WEFTD: target/debug/weftd; ovs-vswitchd itself: "".
# Without an option it is the unit suite, whose ports are dummies and which starts a daemon for each hypervisor; with
# --system the one with traffic of the userspace datapath. Most groups are there four times, for northd's threads and
# for what ovn-controller monitors: without GROUPs the last of each four is run.
# JUDGE_OVSTEST: OVN's own test program (tests/ovstest of its build), without which groups that compare packets fail.
# As root. JUDGE_DIR keeps the suite and its logs (tests/*testsuite.dir); else both go.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
suite=testsuite
[ "${1:-}" != --system ] || { suite=system-userspace-testsuite; shift; }
ovn=$(realpath "${1:?a source tree of OVN}")
weftd=${2-$here/../target/debug/weftd}
shift $(($# > 1 ? 2 : 1))
dir=${JUDGE_DIR:-}
if [ -z "$dir" ]; then
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
fi

for package in autoconf openvswitch-source openvswitch-switch ovn-central ovn-host python3-scapy xxd ncat tcpdump curl; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
        apt-get install -y -qq --no-install-recommends "$package" >/dev/null
done

# What OVN's configure would have done. Debian's ovn-controller warns of a plug-in for adapters at each start.
prepare() {
    mkdir -p "$dir/bin" "$dir/ovs"
    cp -r "$ovn"/{tests,utilities,m4} "$ovn"/*.ovsschema "$dir"
    tar -C "$dir/ovs" --strip-components=1 -xf "$(find /usr/src/openvswitch -name 'openvswitch*.tar*' | head -1)"
    ovs=$(dirname "$(dirname "$(find "$dir/ovs" -name vswitch.ovsschema)")")
    for name in NAME TARNAME VERSION STRING BUGREPORT URL; do echo "m4_define([AT_PACKAGE_$name],[ovn])"; done > "$dir/package.m4"
    (cd "$dir" && for s in testsuite system-userspace-testsuite; do
        autom4te --language=autotest -I . -o "tests/$s" "tests/$s.at"
        sed -i 's#^/timeval\.\*Unreasonably.*#&\n/vif_plug_provider/d#' "tests/$s"
    done)
    cat > "$dir/tests/atconfig" <<END
at_testdir='tests'
abs_builddir='$dir/tests'
at_srcdir='.'
abs_srcdir='$dir/tests'
at_top_srcdir='..'
abs_top_srcdir='$dir'
at_top_build_prefix='../'
abs_top_builddir='$dir'
at_top_builddir='..'
EXEEXT=''
AUTOTEST_PATH='tests'
SHELL=\${CONFIG_SHELL-'/bin/sh'}
ovs_srcdir='$ovs'
END
    sed -e "s/@EGREP@/grep -E/; s!@PYTHON3@!/usr/bin/python3!; s/@[A-Z0-9_]*@/no/g" \
        "$dir/tests/atlocal.in" > "$dir/tests/atlocal"
}

[ -e "$dir/tests/atlocal" ] || prepare
rm -f "$dir/bin/ovs-vswitchd"
if [ -n "$weftd" ]; then
    printf '#!/bin/sh\nexec "%s" -vdpdk:err -vbridge:console:off "$@"\n' "$(realpath "$weftd")" > "$dir/bin/ovs-vswitchd"
    chmod +x "$dir/bin/ovs-vswitchd"
fi
[ -z "${JUDGE_OVSTEST:-}" ] || ln -sf "$(realpath "$JUDGE_OVSTEST")" "$dir/bin/ovstest"
cd "$dir/tests"
if [ $# -eq 0 ]; then
    last='-- parallelization=no -- ovn_monitor_all=no$'
    mapfile -t groups < <("./$suite" -l | sed -n "s/^ *\([0-9]*\): \(ovn\|ovn-controller\|system-ovn\)\.at.*$last/\1/p")
    set -- "${groups[@]}"
fi
# Groups end daemons by name, and their links and namespaces have fixed names.
unshare --net --mount --pid --fork --mount-proc sh -c \
    'mkdir -p /run/netns; mount -t tmpfs none /run/netns; mount -t tmpfs none /sys/bus/pci/devices
     ip link set lo up; exec "$@"' sh \
    env PATH="$dir/bin:$PATH" "./$suite" -d -C "$PWD" AUTOTEST_PATH= "$@" 2>/dev/null |
    grep --line-buffered -aE '^ *[0-9]+: .*(ok|FAILED|skipped)'
