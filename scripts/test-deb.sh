#!/bin/bash
# The package in a bare Debian 12 that systemd runs (debootstrap, systemd-nspawn): installed beside a running
# ovs-vswitchd with DPDK, two guests and a tunnel, enabled, restarted, disabled, enabled and disabled by a command
# that is killed, enabled with a weftd that does not start, purged; traffic all the while. Minutes; as root.
# Usage: test-deb.sh [FOLDER OF weft AND weftd]
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/target/deb-test
scripts/deb.sh "${1:-target/release}"
deb=$(echo target/deb/weft_*.deb)
systemd-analyze verify --man=no target/deb/root/usr/lib/weft/ovs-vswitchd.service \
    target/deb/root/usr/lib/systemd/system/weft-standby.service 2>&1 | grep -v 'is not executable' || true
if [ ! -e "$root/ready" ]; then
    echo "weft: making a bare Debian in $root"
    rm -rf "$root"
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus bookworm "$root" >/dev/null
    cp /etc/apt/sources.list.d/*.sources "$root/etc/apt/sources.list.d/" 2>/dev/null && rm -f "$root/etc/apt/sources.list"
    wanted=$(dpkg-deb -f "$deb" Depends | sed 's/([^)]*)//g; s/,/ /g')
    chroot "$root" apt-get update -qq
    # shellcheck disable=SC2086
    chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        $wanted openvswitch-switch-dpdk dpdk-dev iproute2 iputils-ping procps >/dev/null
    touch "$root/ready"
fi
cp "$deb" "$root/root/weft.deb"
cat > "$root/root/test" <<'END'
set -eu
fail() { echo "test-deb: $*" >&2; exit 1; }
files() { find /etc /usr /opt /var/lib/weft -xdev \( -type f -o -type l \) 2>/dev/null | grep -v '/etc/openvswitch' | sort; }
show() {
    for i in br0 br1; do ovs-ofctl dump-flows --no-stats $i | sort; done
    ovs-ofctl -O OpenFlow13 dump-groups br0 | grep -v reply
    ip -4 -o addr show br0 | awk '{print $4}'; ip route show dev br0
    for i in v1 vx v3 vhu1 vhu2; do ovs-vsctl get interface $i ofport; done
    systemctl is-active ovs-vswitchd openvswitch-switch ovsdb-server
}
before() { update-alternatives --query ovs-vswitchd | grep -q '^Value: .*dpdk' || fail "the alternative is not what it was"; }
# weftd got ready beforehand, and is the unit's process like any other.
ready() {
    systemctl is-active -q weft-standby && fail "$1: it is still in its own unit"
    pid=$(cat /run/openvswitch/ovs-vswitchd.pid)
    grep -q -e --standby "/proc/$pid/cmdline" || fail "$1: it did not get ready beforehand"
    grep -q ovs-vswitchd.service "/proc/$pid/cgroup" || fail "$1: it is not in its unit"
    [ "$(systemctl show -P MainPID ovs-vswitchd)" = "$pid" ] || fail "$1: systemd does not know it"
}
runs() { ovs-appctl version | grep -q Weft; }
# How many milliseconds nothing came through while a command ran, between hosts and to each guest.
meanwhile() {
    for way in h1:10.0.0.2 h3:10.1.0.1 h3:10.1.0.2; do
        # A guest comes back to ovs-vswitchd a second or more after it began.
        for n in $(seq 30); do
            ip netns exec ${way%:*} ping -q -c 1 -W 1 ${way#*:} >/dev/null && break
            [ "$n" != 10 ] || { echo "test-deb:   the guests hang and start again"; pkill -9 -x dpdk-testpmd || true; }
        done
        [ "$n" -lt 30 ] || fail "nothing comes from ${way#*:} beforehand"
    done
    pingers=
    for way in h1:10.0.0.2 h3:10.1.0.1 h3:10.1.0.2; do
        ip netns exec ${way%:*} ping -i 0.01 -D ${way#*:} > /tmp/ping-$way & pingers="$pingers $!"
    done
    sleep 0.5; "$@" && rc=0 || rc=$?; sleep 0.5
    end=$(date +%s.%N)
    # shellcheck disable=SC2086
    kill -INT $pingers; wait $pingers || true
    for way in h1:10.0.0.2 h3:10.1.0.1 h3:10.1.0.2; do
        awk -v to=${way#*:} -v end="$end" -F'[][]' '/bytes from/ {n++; if (l && $2 - l > m) m = $2 - l; l = $2}
            END {if (!n) exit 1; if (end - l > m) m = end - l; printf "test-deb:   %s: nothing came through for %d ms\n", to, m * 1000}' /tmp/ping-$way ||
            fail "nothing comes from ${way#*:}"
    done
    return $rc
}
for i in $(seq 100); do systemctl is-active -q openvswitch-switch && break; sleep 0.2; done
# What a run that failed has left.
! dpkg -s weft >/dev/null 2>&1 || dpkg -P weft >/dev/null 2>&1
update-alternatives --quiet --set ovs-vswitchd /usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk
ovs-vsctl --no-wait set open . other_config:dpdk-init=true \
    "other_config:dpdk-extra=--no-pci --no-huge --legacy-mem --no-shconf -m 512"
systemctl restart ovs-vswitchd
ovs-vsctl --if-exists del-br br0 -- add-br br0 -- set bridge br0 datapath_type=netdev
ovs-vsctl --if-exists del-br br1 -- add-br br1 -- set bridge br1 datapath_type=netdev
ip addr add 10.0.0.254/24 dev br0; ip link set br0 up; ip route add 10.9.0.0/24 via 10.0.0.1 dev br0
for i in 1 2 3; do
    ip netns add h$i; ip link add v$i type veth peer name eth0 netns h$i; ip link set v$i up
    ip -n h$i link set eth0 up
done
for i in 1 2; do ip -n h$i addr add 10.0.0.$i/24 dev eth0; ovs-vsctl add-port br0 v$i; done
# Two guests that answer pings; both would answer what is flooded, so that flows say who gets what.
ovs-vsctl add-port br1 v3; ovs-ofctl del-flows br1; ip -n h3 addr add 10.1.0.9/24 dev eth0
ip netns exec h3 ethtool -K eth0 tx off >/dev/null 2>&1 || true
vdevs=
for i in 1 2; do
    vdevs="$vdevs --vdev net_virtio_user$i,path=/run/vhu$i,server=1,mac=02:00:00:00:00:0$i"
    ovs-vsctl add-port br1 vhu$i -- set interface vhu$i type=dpdkvhostuserclient options:vhost-server-path=/run/vhu$i
    ovs-ofctl add-flow br1 "dl_dst=02:00:00:00:00:0$i,actions=output:vhu$i"; ovs-ofctl add-flow br1 "in_port=vhu$i,actions=output:v3"
    ip -n h3 neigh add 10.1.0.$i lladdr 02:00:00:00:00:0$i dev eth0
done
rm -f /tmp/no-input; mkfifo /tmp/no-input; exec 3<>/tmp/no-input
# testpmd ends, or hangs, when the switch is killed while it connects: then the guests start again.
# shellcheck disable=SC2086
while :; do
    rm -f /run/vhu1 /run/vhu2
    dpdk-testpmd --no-pci --no-huge -m 256 --no-shconf --no-telemetry --file-prefix guests $vdevs -- \
        --forward-mode=icmpecho --auto-start --no-mlockall --total-num-mbufs=8192 <&3 >/dev/null 2>&1 || true
done &
for i in 1 2; do
    for n in $(seq 100); do ip netns exec h3 ping -q -c 1 -W 1 10.1.0.$i >/dev/null && break; done
    [ "$n" -lt 100 ] || fail "guest $i does not answer through ovs-vswitchd"
done
ovs-vsctl add-port br0 vx -- set interface vx type=vxlan options:remote_ip=192.0.2.9 options:key=7
ovs-ofctl del-flows br0; ovs-ofctl add-flow br0 "actions=resubmit(,3)"; ovs-ofctl add-flow br0 "table=3,cookie=7,actions=NORMAL"
ovs-ofctl -O OpenFlow13 add-group br0 group_id=4,type=all,bucket=output:1
ip netns exec h1 ping -q -c 2 10.0.0.2 >/dev/null
show > /tmp/before; files > /tmp/files
same() { show | diff /tmp/before - || fail "$1: the configuration is not the same"; }
echo "test-deb: install"; dpkg -i /root/weft.deb >/dev/null; same install; runs && fail "installing diverted the switch"
echo "test-deb: enable"; meanwhile weft enable; runs || fail "weftd does not run"; same enable; ready enable; weft top --once >/dev/null
echo "test-deb: restart"; old=$(cat /run/openvswitch/ovs-vswitchd.pid); meanwhile systemctl restart ovs-vswitchd
[ "$old" != "$(cat /run/openvswitch/ovs-vswitchd.pid)" ] || fail "it is not another one"; same restart; ready restart
ovs-vsctl get Open_vSwitch . other_config | grep flow-restore && fail "it waits for flows"
echo "test-deb: disable"; meanwhile weft disable; runs && fail "weftd runs"; same disable; before
# After so many seconds everything of a handover is killed.
killed() {
    weft "$1" >/tmp/said 2>&1 & sleep "$2"
    pkill -9 -x weft || true; wait $! 2>/dev/null || true
    # What was killed begins again by itself.
    for i in $(seq 600); do
        systemctl list-units --all --no-legend 'weft-handover-*' | grep -q . || break; sleep 0.1
    done
    weft "$1" >>/tmp/said 2>&1 || fail "$1 again: $(cat /tmp/said)"
    same "$1 killed after $2 s"
}
for after in 0.02 0.3 0.8 1.5; do
    echo "test-deb: enable and disable, killed after $after s"
    killed enable $after; runs || fail "weftd does not run"; killed disable $after; runs && fail "weftd runs"
done
echo "test-deb: enable with a weftd that does not start"
mv /usr/sbin/weftd /root/weftd; printf '#!/bin/sh\nexit 1\n' > /usr/sbin/weftd; chmod +x /usr/sbin/weftd
meanwhile weft enable && fail "it is said to have worked"; runs && fail "weftd runs"; same "going back"; mv /root/weftd /usr/sbin/weftd
echo "test-deb: enable twice, purge"; weft enable; weft enable || fail "it is an error to ask for what is so"
systemctl enable --quiet --now weft-web; meanwhile dpkg -P weft >/dev/null; same purge; runs && fail "weftd runs"; before
files | diff /tmp/files - || fail "something is left"
pgrep -x 'weft|weftd' && fail "a process is left"; [ ! -e /run/weft ] || fail "/run/weft is left"
echo "test-deb: ok"
END
name=weft-deb-$$
# A container sees no kernel modules; DPDK wants to know that there are none.
systemd-nspawn -q -D "$root" --boot --register=no --keep-unit --machine=$name --private-network --capability=all \
    --bind=/dev/net/tun --bind-ro=/sys/module >"$root/console" 2>&1 </dev/null &
container=$!
trap 'kill -TERM $container 2>/dev/null; wait $container 2>/dev/null || true' EXIT
for _ in $(seq 120); do
    init=$(pgrep -P $container -x systemd || true)
    [ -n "$init" ] && [ -S "$root/run/dbus/system_bus_socket" ] && break
    sleep 0.5
done
[ -n "$init" ] || { tail -5 "$root/console"; echo "weft: the container did not start" >&2; exit 1; }
nsenter -t "$init" -m -u -i -n -p /bin/sh /root/test
