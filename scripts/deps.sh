#!/bin/bash
# Installs what is missing on Debian 12 to build, run and test Weft. Does nothing where all is there.
# Usage: deps.sh build|run|test|bench|avx512|deb   (each includes build; test and bench include run)
set -euo pipefail
packages=(build-essential pkg-config libdpdk-dev libssl-dev)
case ${1:-build} in
run | test | bench) packages+=(dpdk-dev openvswitch-switch openvswitch-common iproute2 iputils-ping procps ethtool tcpdump) ;;&
test) packages+=(openvswitch-switch-dpdk nftables iperf3 python3-venv tshark qemu-system-x86 busybox-static cpio ovn-central ovn-host openssl openvswitch-testcontroller) ;;
deb) packages+=(debootstrap systemd-container) ;;
avx512) packages+=(busybox-static cpio bochs bochs-term bochsbios isolinux syslinux-common xorriso) ;;
bench) packages+=(openvswitch-switch-dpdk autoconf automake libtool python3) ;;
esac
missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
command -v cargo >/dev/null || { echo "weft: a Rust toolchain (cargo) is needed" >&2; exit 1; }
# Says how far apt is, from its status lines: what it does, percent, and how long it takes at this pace.
progress() {
    local kind percent text left last=-10 began=$SECONDS
    while IFS=: read -r kind _ percent text; do
        percent=${percent%%.*}
        case $kind in dlstatus) kind=downloading ;; pmstatus) kind=installing ;; *) continue ;; esac
        [[ $percent =~ ^[0-9]+$ ]] || continue
        # A terminal's line is written over, elsewhere a line per ten percent will do.
        if [ -t 2 ] || [ $((percent - last)) -ge 10 ] || [ "$percent" -lt "$last" ]; then
            [ "$percent" -ge "$last" ] || began=$SECONDS
            left=
            [ "$percent" -lt 5 ] || left=", about $(((SECONDS - began) * (100 - percent) / percent)) s left"
            if [ -t 2 ]; then
                printf '\r\e[Kweft: %s: %s %%%s' "$kind" "$percent" "$left" >&2
            else
                echo "weft: $kind: $percent %$left" >&2
            fi
            last=$percent
        fi
    done
    [ ! -t 2 ] || printf '\r\e[K' >&2
}

# apt-get with this: waits while another program has apt's lock, tries a failed download once more, and
# shows the last lines of what failed.
apt() {
    local waited=0 tries=0 log
    log=$(mktemp)
    until apt-get -o DPkg::Lock::Timeout=0 -o APT::Status-Fd=3 "$@" 3>&1 >"$log" 2>&1 | progress; do
        if grep -q 'Could not get lock' "$log" && [ $waited -lt 600 ]; then
            [ $waited -gt 0 ] || echo "weft: another program is using apt; waiting for it (10 minutes at most)" >&2
            sleep 5
            waited=$((waited + 5))
        elif grep -qE 'Failed to fetch|Temporary failure|Unable to connect' "$log" && [ $tries = 0 ]; then
            echo "weft: a download failed; once more" >&2
            tries=1
            sleep 2
        else
            echo "weft: apt-get $1 failed; its last lines:" >&2
            tail -15 "$log" | sed 's/^/    /' >&2
            rm -f "$log"
            exit 1
        fi
    done
    rm -f "$log"
}

install() {
    [ "$(id -u)" = 0 ] || { echo "weft: as root, install: $*" >&2; exit 1; }
    echo "weft: installing Debian packages that are missing, and what they need: $*"
    # Debian's package would start its own switch; Weft takes that place, so nothing is started here.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' > $policy
        chmod +x $policy
        trap 'rm -f $policy' EXIT
    fi
    export DEBIAN_FRONTEND=noninteractive
    echo "weft: reading the lists of packages"
    apt update
    apt install -y --no-install-recommends "$@"
}
[ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
case ${1:-build} in test | avx512) "$(dirname "$0")/guest-kernel.sh" ;; esac
