# testpmd between the two generator ports, as the first process of a PID namespace: its end ends all.
# With a guest (GUESTS=1) between a generator port and a vhost port: what the bare library costs; what an echoing guest
# sends leaves by SOURCE.
# Environment: GENERATOR SOURCE SINK CORES (1 or 1,2 ...) MODE HELPER_CORE GUESTS GUEST_PROGRAM ROLE PACKED MTU WEFT_GUEST_BUFFER WEFT_GUEST_PAGES
set -eu
exec 3<&0
mkfifo commands
exec 4<>commands
vdevs=(--vdev "$SOURCE" --vdev "$SINK")
if [ "$GUESTS" = 1 ]; then
    vhost="net_vhost0,iface=$PWD/guest0,client=1"
    generator=()
    vdevs=(--vdev "$SOURCE" --vdev "$vhost")
    if [ "$ROLE" = source ]; then
        vdevs=(--vdev "$vhost" --vdev "$SINK")
        "$GUEST_PROGRAM" -d "$GENERATOR" -l "$HELPER_CORE" --in-memory --single-file-segments --no-pci --no-telemetry \
            --vdev="net_virtio_user0,path=$PWD/guest0,server=1,queues=1,queue_size=1024,packed_vq=$PACKED,mrg_rxbuf=0,vectorized=1" \
            --vdev="$SOURCE" -- "$PWD"/guests.counters >guests.log 2>&1 </dev/null &
    else
        layout=split
        [ "$PACKED" = 0 ] || layout=packed
        taskset -c "$HELPER_CORE" "$(dirname "$GUEST_PROGRAM")"/bare-guests $layout "$ROLE" "$PWD"/guests.counters \
            "$PWD"/guest0 >guests.log 2>&1 </dev/null &
    fi
    guests=$!
    until [ -S guest0 ]; do
        kill -0 $guests || { tail -n 3 guests.log >&2; exit 1; }
        sleep 0.05
    done
fi
[ "$MTU" = 0 ] || large=(--mbuf-size=$((MTU + 512)) --max-pkt-len=$((MTU + 18)))
# Its main thread does not forward: it is thread 0, on the core for the rest.
lcores="0@$HELPER_CORE" queues=0
for core in ${CORES//,/ }; do queues=$((queues + 1)) lcores+=",$queues@$core"; done
dpdk-testpmd --lcores "$lcores" --in-memory --no-pci --no-telemetry -d "$GENERATOR" "${vdevs[@]}" \
    -- -i --nb-cores=$queues --rxq=$queues --txq=$queues --forward-mode="$MODE" --auto-start --no-lsc-interrupt --total-num-mbufs=32768 \
    ${large[@]+"${large[@]}"} <&4 >log 2>&1 &
until grep -q 'packet forwarding' log; do
    kill -0 $! || { tail -n 3 log >&2; exit 1; }
    sleep 0.05
done
echo ready
read -r _ <&3 || true
