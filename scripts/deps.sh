#!/bin/bash
# Installs what is missing on Debian 12 to build, run and test Weft. Does nothing where all is there.
# Usage: deps.sh build|run|test|bench|avx512|deb   (each includes build; test and bench include run)
set -euo pipefail
packages=(build-essential pkg-config libdpdk-dev)
case ${1:-build} in
run | test | bench) packages+=(dpdk-dev openvswitch-switch openvswitch-common iproute2 iputils-ping procps ethtool tcpdump) ;;&
test) packages+=(openvswitch-switch-dpdk iperf3 python3-venv tshark qemu-system-x86 busybox-static cpio) ;;
deb) packages+=(debootstrap systemd-container) ;;
avx512) packages+=(busybox-static cpio bochs bochs-term bochsbios isolinux syslinux-common xorriso) ;;
bench) packages+=(openvswitch-switch-dpdk autoconf automake libtool python3) ;;
esac
missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
command -v cargo >/dev/null || { echo "weft: a Rust toolchain (cargo) is needed" >&2; exit 1; }
install() {
    [ "$(id -u)" = 0 ] || { echo "weft: as root, install: $*" >&2; exit 1; }
    echo "weft: installing $*"
    # Debian's package would start its own switch; Weft takes that place, so nothing is started here.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' > $policy
        chmod +x $policy
        trap 'rm -f $policy' EXIT
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
[ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
case ${1:-build} in test | avx512) "$(dirname "$0")/guest-kernel.sh" ;; esac
