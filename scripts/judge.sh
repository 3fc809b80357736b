#!/bin/bash
# Has OVS's own test suite (Debian's openvswitch-source, never copied into this repository) judge weftd:
# runs groups of it with weftd in ovs-vswitchd's place and compares what fails with judge-*.txt.
# Usage: judge.sh [WEFTD [GROUP...]]   WEFTD: target/debug/weftd; GROUPs: those of ofproto.at and tunnel*.at.
# As root. JUDGE_DIR keeps the unpacked suite and its logs (tests/testsuite.dir); else both go.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
weftd=$(realpath "${1:-$here/../target/debug/weftd}")
shift || true
[ -x "$weftd" ] || { echo "judge: no $weftd: build it first" >&2; exit 1; }

dir=${JUDGE_DIR:-}
if [ -z "$dir" ]; then
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
fi

# Unpacks the suite and does what OVS's configure would have done for it.
prepare() {
    dpkg-query -W -f '${Status}' openvswitch-source 2>/dev/null | grep -q 'ok installed' ||
        apt-get install -y -qq --no-install-recommends openvswitch-source >/dev/null
    local from
    from=$(find /usr/src/openvswitch -name 'openvswitch*.tar*' | head -1)
    tar -C "$dir" -xf "$from"
    root=$(dirname "$(dirname "$(find "$dir" -path '*/tests/testsuite' | head -1)")")
    local tests=$root/tests
    cat > "$tests/atconfig" <<EOF
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
EOF
    sed -e "s/@EGREP@/grep -E/; s/@PYTHON3@/python3/; s/@HAVE_OPENSSL@/no/; s/@[A-Z0-9_]*@//g" \
        "$tests/atlocal.in" > "$tests/atlocal"
    mkdir -p "$dir/bin"
    printf '#!/bin/sh\nexec "%s" -vdpdk:err -vbridge:console:off "$@"\n' "$weftd" > "$dir/bin/ovs-vswitchd"
    chmod +x "$dir/bin/ovs-vswitchd"
    ln -sfn "$root" "$dir/suite"
}

[ -e "$dir/suite" ] || prepare
cd "$dir/suite/tests"
if [ $# -eq 0 ]; then
    for suite in ofproto 'tunnel[a-z0-9-]*'; do
        mapfile -t groups < <(sed -n "s/^\(at_help_all=\"\)\{0,1\}\([0-9]*\);$suite\.at:.*/\2/p" testsuite)
        set -- "$@" "${groups[0]}-${groups[-1]}"
    done
fi
results=$dir/results
env PATH="$dir/bin:$PATH" ./testsuite -j"$(nproc)" -d -C "$PWD" AUTOTEST_PATH= "$@" 2>/dev/null |
    grep -aE '^ *[0-9]+: .*(ok|FAILED|skipped)' | sort -n > "$results" || true
echo "passed $(grep -c ' ok$' "$results"), failed $(grep -c FAILED "$results"), skipped $(grep -c skipped "$results")"

# What fails though it is not known to, and what passes though it is known to fail.
known() { grep -hv '^#' "$here"/judge-*.txt | sed 's/ *|.*//'; }
title='s/^ *[0-9]*: //; s/ *\(ok\|FAILED.*\|skipped.*\)$//'
comm -23 <(grep FAILED "$results" | sed "$title" | sort) <(known | sort) > "$dir/worse"
comm -12 <(grep ' ok$' "$results" | sed "$title" | sort) <(known | sort) | sed 's/^/passes now: /'
sed 's/^/fails: /' "$dir/worse"
[ ! -s "$dir/worse" ]
