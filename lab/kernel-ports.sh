#!/bin/bash
# Ports of the kernel: iperf3 and ping between two namespaces through Weft and through ovs-vswitchd
# (datapath_type=netdev), by veth ports and by internal ones. As root; everything ends with the script.
# Usage: kernel-ports.sh [ROUNDS [DAEMON-OF-WEFT...]]     default: 3 rounds, target/release/weftd
# ovs-vswitchd does not complete checksums that a veth leaves to the adapter, so the hosts' TCP works with
# `ethtool -K eth0 tx off` only; "veth off" is Weft with that, too. "tso": with userspace-tso-enable.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
seconds=4
if [ -z "${KERNEL_PORTS_INSIDE-}" ]; then
    for tool in iperf3 ethtool ovsdb-server ovs-vswitchd python3; do
        command -v "$tool" >/dev/null || { echo "kernel-ports: no $tool (scripts/deps.sh test)" >&2; exit 1; }
    done
    rounds=${1:-3}
    shift || true
    [ $# -gt 0 ] || set -- "$root/target/release/weftd"
    inside() {
        KERNEL_PORTS_INSIDE=1 timeout -k 1 90 \
            unshare --net --mount --pid --fork --mount-proc --kill-child bash "$0" "$@" 2>/dev/null || true
    }
    for _ in $(seq "$rounds"); do
        for weft in "$@"; do
            weft=$(realpath "$weft")
            for how in "veth on" "veth off" "internal on" "internal tso"; do inside "$weft" $how; done
        done
        for how in "veth off" "veth tso" "internal on" "internal tso"; do inside ovs-vswitchd $how; done
    done
    exit
fi

daemon=$1 kind=$2 offloads=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OVS_RUNDIR=$dir OVS_LOGDIR=$dir OVS_DBDIR=$dir OVS_SYSCONFDIR=$dir
mount -t tmpfs none /run
mkdir -p /run/netns
cd "$dir"
ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server --detach --no-chdir --pidfile --log-file --remote="punix:$dir/db.sock" conf.db
ovs-vsctl --no-wait init
[ "$offloads" != tso ] || ovs-vsctl --no-wait set open . other_config:userspace-tso-enable=true
"$daemon" --no-chdir --pidfile --log-file="$dir/log" "unix:$dir/db.sock" >/dev/null 2>&1 &
switch=$!
ovs-vsctl --timeout=20 add-br br0 -- set bridge br0 datapath_type=netdev
for i in 1 2; do
    ip netns add "host$i"
    if [ "$kind" = veth ]; then
        ip link add "port$i" type veth peer name eth0 netns "host$i"
        ip link set "port$i" up
        [ "$offloads" != off ] || ip netns exec "host$i" ethtool -K eth0 tx off >/dev/null
        ovs-vsctl --timeout=20 add-port br0 "port$i"
    else
        ovs-vsctl --timeout=20 add-port br0 "port$i" -- set interface "port$i" type=internal
        ip link set "port$i" netns "host$i"
        ip -n "host$i" link set "port$i" name eth0
    fi
    ip -n "host$i" link set eth0 up
    ip -n "host$i" addr add "10.0.0.$i/24" dev eth0
done
sleep 1
host() { ip netns exec "$@"; }
host host1 ping -c 3 -i 0.2 10.0.0.2 >/dev/null
host host2 iperf3 -s -D
sleep 0.5
rate() { # iperf3's arguments: Gbit/s that came
    host host1 timeout 30 iperf3 -c 10.0.0.2 -t "$seconds" -J "$@" | python3 -c '
import json, sys
print("%.2f" % (json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 1e9))'
}
one=$(rate) four=$(rate -P 4) back=$(rate -R)
rtt=$(host host1 ping -q -c 500 -i 0.002 10.0.0.2 | sed -n 's|.*= [0-9.]*/\([0-9.]*\)/.*|\1|p')
case $daemon in ovs*) name=OVS ;; *) name=Weft ;; esac
echo "$name, $kind, offloads $offloads: TCP $one Gbit/s, four connections $four, back $back; ping $rtt ms"
kill -9 "$switch"
