# testpmd between the two generator ports, as the first process of a PID namespace: its end ends all.
# Environment: GENERATOR SOURCE SINK CORE MODE HELPER_CORE
set -eu
exec 3<&0
mkfifo commands
exec 4<>commands
dpdk-testpmd -l "$HELPER_CORE,$CORE" --in-memory --no-pci --no-telemetry -d "$GENERATOR" --vdev "$SOURCE" --vdev "$SINK" \
    -- -i --nb-cores=1 --forward-mode="$MODE" --auto-start --no-lsc-interrupt --total-num-mbufs=32768 <&4 >log 2>&1 &
until grep -q 'packet forwarding' log; do
    kill -0 $! || { tail -n 3 log >&2; exit 1; }
    sleep 0.05
done
echo ready
read -r _ <&3 || true
