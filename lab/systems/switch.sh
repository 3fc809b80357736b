# An OVS-like daemon with the two generator ports, as the first process of a PID namespace: its end ends all.
# Environment: GENERATOR DPDK_EXTRA (more arguments of EAL) SOURCE SINK CORES (1 or 1,2 ...) HELPER_CORE DAEMON OTHER_CONFIG (key=value ...) RULES (a file for ovs-ofctl
# add-flows) APPCTL (commands, one per line) GUESTS (how many) GUEST_PROGRAM ROLE (source: SOURCE is the guests')
# FUNCTIONS (how many virtual functions of the source's adapter take packets) ADAPTER (what adapter that is)
# PACKED MTU (of all ports; 0: the usual) WEFT_GUEST_BUFFER WEFT_GUEST_PAGES
# TUNNEL (which of the generator's ports are in a bridge br-phy of their own, VXLAN between it and br0: none source sink both)
set -eu
export OVS_RUNDIR=$PWD OVS_LOGDIR=$PWD OVS_DBDIR=$PWD OVS_SYSCONFDIR=$PWD
quietly() { timeout 300 "$@" >>said 2>&1 || { tail -n 3 said >&2; tail -n 3 log >&2; exit 1; }; }
vsctl() { quietly ovs-vsctl -t 30 "$@"; }
# Guests that only move buffers need no driver.
bare_guests() {
    local sockets=() layout=split
    for ((i = 0; i < GUESTS; i++)); do sockets+=("$PWD/guest$i"); done
    [ "$PACKED" = 0 ] || layout=packed
    exec taskset -c "$HELPER_CORE" "$(dirname "$GUEST_PROGRAM")"/bare-guests $layout "$ROLE" "$PWD"/guests.counters \
        "${sockets[@]}" >guests.log 2>&1 </dev/null
}
exec 3<&0
touch log
mask=0 queues=0
for core in ${CORES//,/ }; do mask=$((mask | 1 << core)) queues=$((queues + 1)); done
ip link set lo up
quietly ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema
quietly ovsdb-server --detach --no-chdir --pidfile -vconsole:off --remote=punix:"$PWD"/db.sock conf.db
vsctl --no-wait init
vsctl --no-wait set Open_vSwitch . other_config:dpdk-init=true other_config:dpdk-socket-mem=1024 \
    other_config:pmd-cpu-mask="$(printf %x $mask)" \
    other_config:dpdk-extra="--no-pci --in-memory -d $GENERATOR ${DPDK_EXTRA:-}"
for pair in $OTHER_CONFIG; do vsctl --no-wait set Open_vSwitch . other_config:"$pair"; done
quietly "$DAEMON" --detach --no-chdir --pidfile -vconsole:off --log-file="$PWD"/log unix:"$PWD"/db.sock
vsctl add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure
# DPDK's interrupt thread, by which emulated adapters count, keeps off the cores that forward.
for task in /proc/"$(cat "$PWD"/*vswitchd*.pid)"/task/*; do
    [ "$(cat "$task"/comm)" != eal-intr-thread ] || quietly taskset -pc "$HELPER_CORE" "${task##*/}"
done
# As one change: else ovs-ofctl awaits a barrier for each flow, which is minutes for a million.
quietly ovs-ofctl --bundle add-flows br0 "$RULES"
while read -r command; do
    # shellcheck disable=SC2086
    [ -z "$command" ] || quietly ovs-appctl -t "$(ls "$PWD"/*vswitchd*.ctl)" $command
done <<<"$APPCTL"

mtu=()
[ "$MTU" = 0 ] || mtu=(mtu_request="$MTU")
source_bridge=br0 sink_bridge=br0
if [ "$TUNNEL" != none ]; then
    [ "$TUNNEL" = sink ] || source_bridge=br-phy
    [ "$TUNNEL" = source ] || sink_bridge=br-phy
    vsctl add-br br-phy -- set bridge br-phy datapath_type=netdev fail_mode=secure \
        other_config:hwaddr='"02:00:00:00:00:00"'
    quietly ovs-ofctl add-flow br-phy in_port=1,actions=LOCAL
    quietly ovs-ofctl add-flow br-phy in_port=LOCAL,actions=output:2
    quietly ip addr add 172.31.0.1/12 dev br-phy
    quietly ip link set br-phy up
    quietly ovs-appctl -t "$(ls "$PWD"/*vswitchd*.ctl)" tnl/arp/set br-phy 172.16.0.1 06:00:00:00:00:01
    vsctl add-port br0 vxlan -- set interface vxlan type=vxlan ofport_request=3 options:remote_ip=flow options:key=flow
fi

# One process plays guests $1 to $2 - 1.
start_guests() {
    local vdevs=() i
    for ((i = $1; i < $2; i++)); do
        vdevs+=("--vdev=net_virtio_user$i,path=$PWD/guest$i,server=1,queues=1,queue_size=1024,packed_vq=$PACKED,mrg_rxbuf=0,vectorized=1")
    done
    "$GUEST_PROGRAM" -d "$GENERATOR" -l "$HELPER_CORE" --in-memory --single-file-segments --no-pci --no-telemetry \
        "${vdevs[@]}" --vdev="$SOURCE" -- "$PWD"/guests.counters >guests.log 2>&1 </dev/null &
}

wait_for_socket() {
    for ((n = 0; n < 400; n++)); do
        [ ! -S "$1" ] || return 0
        kill -0 $! || break
        sleep 0.05
    done
    tail -n 3 guests.log >&2
    exit 1
}

guest_port() {
    port=(add-port br0 guest$1 -- set interface guest$1 type=dpdkvhostuserclient ofport_request=$((10 + $1))
        options:vhost-server-path="$PWD"/guest$1 "${mtu[@]}")
}

if [ "$GUESTS" -gt 0 ] && [ "$ROLE" = source ]; then
    # A guest's port listens and waits until the switch is there; then the next one begins.
    for ((i = 0; i < GUESTS; i++)); do
        # A generator has 16 queues (and Debian's DPDK 32 ports per process).
        [ $((i % 16)) != 0 ] || start_guests $i $((i + 16 < GUESTS ? i + 16 : GUESTS))
        wait_for_socket "$PWD"/guest$i
        guest_port $i
        vsctl "${port[@]}"
    done
elif [ "$GUESTS" -gt 0 ]; then
    bare_guests &
    all=()
    for ((i = 0; i < GUESTS; i++)); do
        wait_for_socket "$PWD"/guest$i
        guest_port $i
        all+=(-- "${port[@]}")
    done
    vsctl "${all[@]}"
fi
if [ "$GUESTS" -gt 0 ]; then
    up=()
    for ((i = 0; i < GUESTS; i++)); do up+=(-- wait-until interface guest$i link_state=up); done
    vsctl "${up[@]}"
fi
add_dpdk() {
    vsctl add-port $4 $1 -- set interface $1 type=dpdk ofport_request=$2 options:dpdk-devargs=\""$3"\" \
        options:n_rxq=$queues "${mtu[@]}"
    error=$(ovs-vsctl get interface $1 error)
    [ "$error" = "[]" ] || { echo "$1: $error" >&2; tail -n 3 log >&2; exit 1; }
}
add_dpdk sink 2 "$SINK" $sink_bridge
for ((i = 0; i < FUNCTIONS; i++)); do
    add_dpdk vf$i $((10 + i)) "vdev:net_weftgen$((2 + i)),$ADAPTER,adapter=lab,role=vf,vf=$i,representor=[$i],order=sink,stats=$PWD/vf$i.counters" br0
done
[ "$ROLE" = source ] || add_dpdk source 1 "$SOURCE" $source_bridge
echo ready
read -r _ <&3 || true
