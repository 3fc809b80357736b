#!/usr/bin/env python3
"""Packet speed of testpmd, OVS-DPDK and Weft on identical ports, interleaved, one core.

Usage: bench.py [-n REPETITIONS] [-s SECONDS] [-k KIND,...] [-o DIR]     (root; `make bench`)

Every run starts one system in a private network and mount namespace with hugepages, lets one
thread forward 64-byte packets for SECONDS, and reads two things: packets forwarded and CPU time of
that thread. Cycles per packet = CPU time x TSC rate / packets, so time in which another process
(or the hypervisor, as far as the kernel knows) had the core does not count.
Ports: net_pcap with infinite_rx=1 (packets made here, copied by the driver) to net_null.
Kinds: io     no lookup at all: testpmd io against Weft's port contract
       one    one UDP flow, one rule
       many   32,768 UDP flows, 1,000 disjoint rules of one mask (ip,nw_dst=10.x.y.0/24)
Everything it starts ends with it; hugepages are set back.
"""
import argparse, ctypes, datetime, json, os, re, shutil, signal, statistics, struct, subprocess as sp
import sys, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEFTD = ROOT / "target/release/weftd"
IO = ROOT / "target/release/examples/io"
OVS = Path("/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk")
HUGE = Path("/proc/sys/vm/nr_hugepages")
PAGES = 900
CORE = (os.cpu_count() or 1) - 1
RULES = 1000
# net_pcap keeps a buffer for each; Weft's pool has 65,535.
FLOWS = 32768
SYSTEMS = {
    "io": ["testpmd-io", "weft-contract"],
    "one": ["testpmd-io", "weft", "ovs-emc", "ovs-smc", "ovs-plain"],
    "many": ["testpmd-io", "weft", "ovs-emc", "ovs-smc", "ovs-plain"],
}
OVS_CONFIG = {
    "ovs-emc": "emc-insert-inv-prob=1",
    "ovs-smc": "emc-insert-inv-prob=0 other_config:smc-enable=true",
    "ovs-plain": "emc-insert-inv-prob=0",
}


def tsc_hz():
    """Cycles per second of the TSC, by measuring MHz as the kernel prints it."""
    return float(re.search(r"cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text())[1]) * 1e6


def checksum(header):
    s = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while s >> 16:
        s = (s & 0xFFFF) + (s >> 16)
    return ~s & 0xFFFF


def frame(flow):
    """64 bytes with FCS: 60 here. Destination and source port follow from the flow's number."""
    dst = 10 << 24 | (flow % RULES) << 8 | (flow // RULES) % 250 + 1
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 46, 0, 0, 64, 17, 0, 0x0B000001 + flow, dst)
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    udp = struct.pack("!HHHH", 1024 + flow % 50000, 80, 26, 0)
    return bytes.fromhex("020000000002020000000001") + b"\x08\x00" + ip + udp + bytes(18)


def write_pcap(path, flows):
    with open(path, "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for i in range(flows):
            data = frame(i * 40503 % flows)
            f.write(struct.pack("<IIII", 0, 0, len(data), len(data)) + data)


def cpu_ns(pid, name):
    """CPU time of a process's thread whose name begins with `name`."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith(name):
            return int((task / "schedstat").read_text().split()[0])
    raise RuntimeError(f"no thread {name} in {pid}")


def sh(*args, **kw):
    return sp.run([str(a) for a in args], check=True, capture_output=True, text=True, timeout=60, **kw).stdout


def devices(pcap):
    return f"net_pcap0,rx_pcap={pcap},infinite_rx=1", "net_null1,no-rx=1"


def die_with_me():
    """In a child: ends when the bench does (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def window(count, cpu, seconds):
    """(packets, ns) that `count` and `cpu` advance by in `seconds`."""
    a = (count(), cpu())
    time.sleep(seconds)
    b = (count(), cpu())
    return b[0] - a[0], b[1] - a[1]


def run_testpmd(pcap, seconds, tmp):
    rx, tx = devices(pcap)
    args = ["stdbuf", "-oL", "dpdk-testpmd", "-l", f"0,{CORE}", "--in-memory", "--no-pci", "--no-telemetry", "-m", "400", "--vdev", rx, "--vdev", tx,
            "--", "-i", "--nb-cores=1", "--forward-mode=io", "--total-num-mbufs=65535"]
    p = sp.Popen(args, stdin=sp.PIPE, stdout=sp.PIPE, stderr=sp.STDOUT, text=True, bufsize=1, preexec_fn=die_with_me)

    def ask(command, last):
        p.stdin.write(command + "\n")
        p.stdin.flush()
        seen = ""
        while last not in seen:
            line = p.stdout.readline()
            if not line:
                raise RuntimeError("testpmd ended:\n" + seen)
            seen += line
        return seen

    def count():
        return int(re.search(r"TX-packets:\s*(\d+)", ask("show port stats 1", "Tx-bps"))[1])

    try:
        ask("start", "packet forwarding")
        time.sleep(1)
        return window(count, lambda: cpu_ns(p.pid, f"rte-worker-{CORE}") , seconds)
    finally:
        p.kill()
        p.wait()


def run_contract(pcap, seconds, tmp):
    out = sh(IO, *devices(pcap), CORE, seconds)
    packets, ns = map(int, out.split()[-2:])
    return packets, ns


class Switch:
    """weftd or OVS-DPDK with two ports in bridge br0."""

    def __init__(self, daemon, tmp, other_config, pcap, rules):
        self.dir = Path(tempfile.mkdtemp(dir=tmp))
        self.env = dict(os.environ) | {k: str(self.dir) for k in ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR")}
        self.name = daemon.name if "dpdk" in daemon.name else "ovs-vswitchd"
        self.pids = []
        self.run("ip", "link", "set", "lo", "up")
        db = f"{self.dir}/conf.db"
        self.run("ovsdb-tool", "create", db, "/usr/share/openvswitch/vswitch.ovsschema")
        self.run("ovsdb-server", "--detach", "--no-chdir", "--pidfile", "-vconsole:off", "--log-file",
                 f"--remote=punix:{self.dir}/db.sock", db)
        extra = "--no-pci --in-memory" if "dpdk" in daemon.name else "--no-pci"
        config = f"dpdk-init=true other_config:dpdk-extra=\"{extra}\" other_config:dpdk-socket-mem=512 other_config:pmd-cpu-mask={1 << CORE:x} {other_config}"
        self.run("bash", "-c", f"ovs-vsctl --no-wait init; ovs-vsctl --no-wait set Open_vSwitch . other_config:{config}")
        self.run(daemon, "--detach", "--no-chdir", "--pidfile", "-vconsole:off", "--log-file", f"unix:{self.dir}/db.sock")
        rx, tx = devices(pcap)
        self.run("ovs-vsctl", "-t", "30", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail_mode=secure")
        (self.dir / "flows").write_text("".join(rules))
        self.run("ovs-ofctl", "add-flows", "br0", self.dir / "flows")
        for n, (port, dev) in enumerate((("tx0", tx), ("rx0", rx))):
            self.run("ovs-vsctl", "-t", "30", "add-port", "br0", port, "--", "set", "interface", port, "type=dpdk",
                     f"options:dpdk-devargs=\"{dev}\"", f"ofport_request={2 - n}")
        self.pid = int((self.dir / f"{self.name}.pid").read_text())

    def run(self, *args):
        return sh(*args, env=self.env)

    def ctl(self, *args):
        return self.run("ovs-appctl", "-t", self.name, *args)

    def received(self):
        return sum(int(n) for n in re.findall(r"packets received: (\d+)", self.ctl("dpif-netdev/pmd-stats-show")))

    def stop(self):
        for pidfile in list(self.dir.glob("*.pid")):
            try:
                pid = int(pidfile.read_text())
                os.kill(pid, signal.SIGTERM)
                for _ in range(100):
                    if not Path(f"/proc/{pid}").exists():
                        break
                    time.sleep(0.1)
                else:
                    os.kill(pid, signal.SIGKILL)
            except (OSError, ValueError):
                pass


def run_switch(daemon, other_config, pcap, rules, seconds, tmp, raw):
    s = Switch.__new__(Switch)
    try:
        s.__init__(daemon, tmp, other_config, pcap, rules)
        time.sleep(3)
        got = window(s.received, lambda: cpu_ns(s.pid, "pmd-c"), seconds)
        raw.append(s.ctl("dpif-netdev/pmd-stats-show") + s.ctl("dpif-netdev/pmd-perf-show", "-nh"))
        lost = s.run("ovs-ofctl", "dump-ports", "br0", "2")
        raw.append(lost)
        return got
    finally:
        s.stop()


def rules_of(kind):
    if kind == "many":
        return [f"priority=10,ip,nw_dst=10.{i >> 8}.{i & 255}.0/24,actions=output:2\n" for i in range(RULES)]
    return ["in_port=1,actions=output:2\n"]


def one_run(kind, system, pcap, seconds, tmp, raw):
    if system == "testpmd-io":
        return run_testpmd(pcap, seconds, tmp)
    if system == "weft-contract":
        return run_contract(pcap, seconds, tmp)
    if system == "weft":
        return run_switch(WEFTD, "other_config:x=1", pcap, rules_of(kind), seconds, tmp, raw)
    return run_switch(OVS, "other_config:" + OVS_CONFIG[system], pcap, rules_of(kind), seconds, tmp, raw)


def reserve():
    """Makes PAGES hugepages free, whatever others have of them."""
    info = Path("/proc/meminfo").read_text()
    total, free = (int(re.search(rf"HugePages_{k}:\s*(\d+)", info)[1]) for k in ("Total", "Free"))
    if free < PAGES:
        HUGE.write_text(str(total - free + PAGES))


def steal():
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])


def environment():
    cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())[1]
    commit = sp.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    version = lambda *a: (sp.run(a, capture_output=True, text=True).stdout.strip().splitlines() or ["none"])[0]
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "commit": commit,
        "cpu": cpu, "cpus": os.cpu_count(), "mhz": tsc_hz() / 1e6, "core": CORE, "kernel": os.uname().release,
        "dpdk": version("dpkg-query", "-W", "-f", "${Version}", "dpdk"),
        "ovs": version("dpkg-query", "-W", "-f", "${Version}", "openvswitch-switch-dpdk"),
        "rustc": version("rustc", "--version"), "hugepages": int(HUGE.read_text()), "load": os.getloadavg()[0],
    }


def table(kind, results, hz):
    """Lines of the table; ratios are against testpmd and against the best OVS."""
    cost = {s: [ns * hz / 1e9 / n for n, ns in runs] for s, runs in results.items() if runs}
    base = statistics.median(cost.get("testpmd-io", [float("nan")]))
    best = min((statistics.median(c) for s, c in cost.items() if s.startswith("ovs")), default=float("nan"))
    out = [f"{kind}: cycles per packet", f"{'system':<16}{'median':>8}{'min':>8}{'max':>8}{'runs':>6}{'% of testpmd':>14}{'x best OVS':>12}"]
    for s, c in cost.items():
        m = statistics.median(c)
        out.append(f"{s:<16}{m:8.1f}{min(c):8.1f}{max(c):8.1f}{len(c):6}{100 * base / m:14.1f}{best / m:12.2f}")
    return out


def measure(args, tmp):
    """Runs everything, interleaved; returns results by kind and the systems' own figures."""
    results = {k: {s: [] for s in SYSTEMS[k] if OVS.exists() or not s.startswith("ovs")} for k in args.kinds.split(",")}
    raw = []
    for kind in results:
        write_pcap(f"{tmp}/{kind}.pcap", FLOWS if kind == "many" else 1)
    for turn in range(args.n):
        for kind, systems in results.items():
            for system in systems:
                if args.only and system not in args.only.split(","):
                    continue
                raw.append(f"### {kind} {system} {turn}")
                reserve()
                try:
                    got = one_run(kind, system, f"{tmp}/{kind}.pcap", args.s, tmp, raw)
                except (sp.SubprocessError, RuntimeError, OSError) as e:
                    print(f"{kind} {system}: {e} {getattr(e, 'stderr', '')}", file=sys.stderr)
                    continue
                systems[system].append(got)
                raw.append(f"{got[0]} packets {got[1]} ns")
                print(f"{kind:<5} {system:<14} {got[1] / max(got[0], 1):8.2f} ns/packet", file=sys.stderr)
    return results, raw


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-n", type=int, default=5, help="repetitions")
    p.add_argument("-s", type=float, default=2, help="seconds per run")
    p.add_argument("-k", dest="kinds", default="io,one,many")
    p.add_argument("-o", dest="out", default=str(ROOT / "bench/results"))
    p.add_argument("--only", help="only these systems")
    args = p.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench: needs root (hugepages, namespaces)")
    if "WEFT_BENCH_INSIDE" not in os.environ:
        os.environ["WEFT_BENCH_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "-n", "-m", sys.executable] + sys.argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    before, tmp = HUGE.read_text(), tempfile.mkdtemp(prefix="weft-bench-")
    try:
        reserve()
        env, steal0 = environment(), steal()
        results, raw = measure(args, tmp)
    finally:
        HUGE.write_text(before)
        shutil.rmtree(tmp, ignore_errors=True)
    env["steal_ticks"] = steal() - steal0
    lines = [f"# {k}: {v}" for k, v in env.items()]
    for kind, systems in results.items():
        lines += [""] + table(kind, systems, env["mhz"] * 1e6)
    print("\n".join(lines))
    folder = Path(args.out) / f"{env['date'][:10]}-packets-{env['commit']}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.txt").write_text("\n".join(lines) + "\n")
    (folder / "raw.json").write_text(json.dumps({"environment": env, "packets_ns": results}, indent=1) + "\n")
    (folder / "raw.txt").write_text("\n".join(raw) + "\n")


main()
