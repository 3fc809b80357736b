# An OVS-like daemon with the two generator ports, as the first process of a PID namespace: its end ends all.
# Environment: GENERATOR SOURCE SINK CORE DAEMON OTHER_CONFIG (key=value ...) RULES (a file for ovs-ofctl add-flows)
set -eu
export OVS_RUNDIR=$PWD OVS_LOGDIR=$PWD OVS_DBDIR=$PWD OVS_SYSCONFDIR=$PWD
quietly() { timeout 60 "$@" >>said 2>&1 || { tail -n 3 said >&2; tail -n 3 log >&2; exit 1; }; }
touch log
ip link set lo up
quietly ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema
quietly ovsdb-server --detach --no-chdir --pidfile -vconsole:off --remote=punix:"$PWD"/db.sock conf.db
quietly ovs-vsctl --no-wait init
quietly ovs-vsctl --no-wait set Open_vSwitch . other_config:dpdk-init=true other_config:dpdk-socket-mem=1024 \
    other_config:pmd-cpu-mask="$(printf %x $((1 << CORE)))" \
    other_config:dpdk-extra="--no-pci --in-memory -d $GENERATOR"
for pair in $OTHER_CONFIG; do quietly ovs-vsctl --no-wait set Open_vSwitch . other_config:"$pair"; done
quietly "$DAEMON" --detach --no-chdir --pidfile -vconsole:off --log-file="$PWD"/log unix:"$PWD"/db.sock
quietly ovs-vsctl -t 30 add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure
quietly ovs-ofctl add-flows br0 "$RULES"
quietly ovs-vsctl -t 30 add-port br0 sink -- set interface sink type=dpdk ofport_request=2 options:dpdk-devargs=\""$SINK"\"
quietly ovs-vsctl -t 30 add-port br0 source -- set interface source type=dpdk ofport_request=1 options:dpdk-devargs=\""$SOURCE"\"
for port in source sink; do
    error=$(ovs-vsctl get interface $port error)
    [ "$error" = "[]" ] || { echo "$port: $error" >&2; exit 1; }
done
echo ready
read -r _ || true
