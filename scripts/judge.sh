#!/bin/bash
# Has OVS's own test suites (Debian's openvswitch-source, never copied into this repository) judge weftd:
# runs groups of one with weftd in ovs-vswitchd's place and compares what fails with the lists of judge-*.txt.
# Usage: judge.sh [--tls|--system|--dpdk|--tso] [WEFTD [GROUP...]]   WEFTD: target/debug/weftd.
# Without an option it is the unit suite, its ports dummies, and GROUPs are those named in `unit_groups`. No group that
# needs OpenSSL starts the daemon, so with --tls all do: the database and br0's OpenFlow go over TLS (scripts/judge-tls).
# With another option it is one with traffic, in network namespaces of its own, and all groups: --system the one of the
# userspace datapath, --dpdk the one of DPDK with testpmd as guests (it needs hugepages), --tso the first one with TSO.
# JUDGE_OVSTEST: OVS's own test program (tests/ovstest of its build), which is not packaged; groups that need it fail
# without. As root. JUDGE_DIR keeps the unpacked suite and its logs (tests/*testsuite.dir); else both go.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
suite=testsuite
tls=
case ${1:-} in
--tls) tls=yes ;;
--system) suite=system-userspace-testsuite ;;
--dpdk | --tso) suite=system-${1#--}-testsuite ;;
esac
[ "$suite$tls" = testsuite ] || shift
weftd=$(realpath "${1:-$here/../target/debug/weftd}")
shift || true
[ -x "$weftd" ] || { echo "judge: no $weftd: build it first" >&2; exit 1; }

dir=${JUDGE_DIR:-}
if [ -z "$dir" ]; then
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
fi

installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

# Installs the packages that are missing.
need() {
    for package; do
        installed "$package" || apt-get install -y -qq --no-install-recommends "$package" >/dev/null
    done
}

# Unpacks the suites and does what OVS's configure would have done for them.
prepare() {
    need openvswitch-source
    local from
    from=$(find /usr/src/openvswitch -name 'openvswitch*.tar*' | head -1)
    tar -C "$dir" -xf "$from"
    root=$(dirname "$(dirname "$(find "$dir" -path '*/tests/testsuite' | head -1)")")
    local tests=$root/tests
    cat > "$tests/atconfig" <<END
at_testdir='tests'
abs_builddir='$tests'
at_srcdir='.'
abs_srcdir='$tests'
at_top_srcdir='..'
abs_top_srcdir='$root'
at_top_build_prefix='../'
abs_top_builddir='$root'
at_top_builddir='..'
EXEEXT=''
AUTOTEST_PATH='tests'
SHELL=\${CONFIG_SHELL-'/bin/sh'}
END
    sed -e "s/@EGREP@/grep -E/; s!@PYTHON3@!/usr/bin/python3!; s/@HAVE_OPENSSL@/${tls:-no}/; s/@[A-Z0-9_]*@//g" \
        "$tests/atlocal.in" > "$tests/atlocal"
    ln -sfn "$root" "$dir/suite"
}

# Clients and servers of the traffic; a TFTP server is not among Debian's that the suite knows.
prepare_system() {
    need iproute2 iputils-ping tcpdump curl lftp ncat ethtool python3-pyftpdlib dpdk
    [ -d "$dir/python/tftpy" ] || /usr/bin/python3 -m pip install -q --target "$dir/python" tftpy 2>/dev/null
    export PYTHONPATH=$dir/python
}

[ -e "$dir/suite" ] || prepare
[ $suite = testsuite ] || prepare_system
mkdir -p "$dir/bin"
# The suite of DPDK looks for its lines in the log, the others stumble over them.
quiet='-vdpdk:err -vbridge:console:off'
[ $suite != system-dpdk-testsuite ] || quiet=
# An earlier run with --tls has left links.
rm -f "$dir"/bin/{ovs-vswitchd,ovsdb-server,ovs-ofctl}
printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$weftd" "$quiet" > "$dir/bin/ovs-vswitchd"
chmod +x "$dir/bin/ovs-vswitchd"
if [ -n "$tls" ]; then
    need openvswitch-common openssl
    export JUDGE_PKI=$dir/pki
    [ -d "$JUDGE_PKI" ] || {
        ovs-pki --dir="$JUDGE_PKI" --log="$dir/pki.log" init
        (cd "$JUDGE_PKI" && ovs-pki --dir="$JUDGE_PKI" --log="$dir/pki.log" req+sign judge switch >/dev/null)
    }
    mv "$dir/bin/ovs-vswitchd" "$dir/bin/weftd"
    for name in ovs-vswitchd ovsdb-server ovs-ofctl; do ln -sf "$here/judge-tls" "$dir/bin/$name"; done
fi
[ -z "${JUDGE_OVSTEST:-}" ] || ln -sf "$(realpath "$JUDGE_OVSTEST")" "$dir/bin/ovstest"
cd "$dir/suite/tests"

# The groups of one file of the unit suite.
groups_of() { sed -n "s/^\(at_help_all=\"\)\{0,1\}\([0-9]*\);$1\.at:.*/\2/p" testsuite; }

unit_groups='ofproto ofproto-dpif lacp tunnel[a-z0-9-]* learn classifier multipath bundle mcast-snooping'
if [ $# -eq 0 ] && [ $suite = testsuite ]; then
    set -f # the patterns are sed's, and the suite's files have such names
    for file in $unit_groups; do
        mapfile -t groups < <(groups_of "$file")
        set -- "$@" "${groups[0]}-${groups[-1]}"
    done
    set +f
fi
# Programs of the suite and what shells complete with: groups look for them in the PATH.
for name in appctl vsctl; do
    install -m 755 "../utilities/ovs-$name-bashcomp.bash" "$dir/bin"
done
run=(env PATH="$dir/bin:$PATH:$PWD" "./$suite")
if [ $suite = testsuite ]; then
    run+=(-j"$(nproc)")
else
    # Links and namespaces of the suite have fixed names: they get a network namespace and a /run/netns of their own.
    # DPDK sees no adapters of the machine: it says of some that it cannot use them, and no group allows that.
    run=(unshare --net --mount sh -c
        'mkdir -p /run/netns; mount -t tmpfs none /run/netns; mount -t tmpfs none /sys/bus/pci/devices
         ip link set lo up; exec "$@"' sh "${run[@]}")
fi
results=$dir/results
"${run[@]}" -d -C "$PWD" AUTOTEST_PATH= "$@" 2>/dev/null |
    grep -aE '^ *[0-9]+: .*(ok|FAILED|skipped)' | sort -n > "$results" || true
echo "passed $(grep -c ' ok$' "$results"), failed $(grep -c FAILED "$results"), skipped $(grep -c skipped "$results")"

# What fails though it is not known to, and what passes though it is known to fail.
known() { grep -hv '^#' "$here"/judge-*.txt | sed 's/ *|.*//'; }
title='s/^ *[0-9]*: //; s/ *\(ok\|FAILED.*\|skipped.*\)$//'
comm -23 <(grep FAILED "$results" | sed "$title" | sort -u) <(known | sort) > "$dir/worse"
comm -12 <(grep ' ok$' "$results" | sed "$title" | sort) <(known | sort) | sed 's/^/passes now: /'
sed 's/^/fails: /' "$dir/worse"
[ ! -s "$dir/worse" ]
