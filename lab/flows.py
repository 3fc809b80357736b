#!/usr/bin/env python3
"""Big flow tables, control side: Weft and ovs-vswitchd (datapath_type=netdev) under the same commands.

Usage: flows.py [-n FLOWS] [-s SHAPE,...] [-y SYSTEM,...] [-x STEP,...] [-d] [-o DIR]      (root)

For every shape a fresh switch of each system, in namespaces that end with it, goes through the steps
in the order of STEPS, those that were asked for. `load` is add-flows one by one; without it `fill` loads
them in one bundle. Of each step: wall seconds, CPU
seconds of the daemon, its highest and its last resident size, and what others felt meanwhile: the
longest OpenFlow echo on a second connection, and pings (100 per second) between two namespaces
through the switch: lost, and the longest round trip. `flow-mod` is apart: a flow-mod and a barrier at
a time, 3,000 times into the table of all flows and, by turns, 3,000 times into one of 100 flows in another bridge of
the same daemon; median and 99th percentile in microseconds.
A directory that has results already (-o) keeps them: a machine that is shared can be measured in pieces.
"""
import argparse, datetime, json, os, random, re, select, socket, statistics, struct, subprocess as sp
import sys, tempfile, threading, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DAEMONS = {
    "weft": (ROOT / "target/release/weftd", "weftd"),
    "ovs": (Path("/usr/lib/openvswitch-switch/ovs-vswitchd"), "ovs-vswitchd"),
}
STEPS = ["fill", "load", "flow-mod", "dump", "aggregate", "mod", "diff", "replace", "del-match", "del-cookie",
         "del", "bundle", "del-again", "monitor", "expiry"]


def ip(i):
    return f"{10 + (i >> 24)}.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}"


def shape_l3(i, n):
    return f"priority=100,ip,nw_dst={ip(i)}"


def shape_mac(i, n):
    return f"priority=100,dl_dst=02:00:{i >> 24:02x}:{i >> 16 & 255:02x}:{i >> 8 & 255:02x}:{i & 255:02x}"


def shape_five(i, n):
    return (f"priority=100,tcp,nw_src={ip(i * 7 % n)},nw_dst={ip(i)},tp_src={1024 + i % 50000},"
            f"tp_dst={i % 60000}")


def shape_mixed(i, n):
    """Twelve masks: prefixes, ports, addresses with VLANs."""
    kind, j = i % 12, i // 12
    if kind < 6:
        return f"priority=100,ip,nw_dst={ip(j << kind)}/{32 - kind}"
    if kind < 9:
        return f"priority=100,in_port={kind},udp,nw_src={ip(j)},tp_dst={j % 60000}"
    return f"priority=100,dl_vlan={kind},dl_dst=02:00:{j >> 24:02x}:{j >> 16 & 255:02x}:{j >> 8 & 255:02x}:{j & 255:02x}"


def shape_prio(i, n):
    return f"priority={1 + i % 60000},ip,nw_dst={ip(i)}"


SHAPES = {"l3": shape_l3, "mac": shape_mac, "five": shape_five, "mixed": shape_mixed, "prio": shape_prio}
# A match that a tenth to an eighth of the flows have, where the shape has one.
PART = {"l3": "ip,nw_dst=10.1.0.0/16", "five": "tcp,nw_dst=10.1.0.0/16", "mixed": "dl_vlan=10",
        "prio": "ip,nw_dst=10.1.0.0/16", "mac": "dl_dst=02:00:00:01:00:00/ff:ff:ff:ff:00:00"}


# All flows but the two that the pings need.
ALL = "cookie=0/0x8000"


def run(*argv, **kw):
    kw.setdefault("stderr", sp.STDOUT)
    done = sp.run([str(a) for a in argv], stdout=kw.pop("stdout", sp.PIPE), text=True, **kw)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, argv))}: {(done.stdout or '')[-500:]}")
    return done.stdout


class OpenFlow:
    """A 1.3 connection that knows hello, echo, flow-mod and barrier."""

    def __init__(self, path):
        self.sock, self.buf, self.xid = socket.socket(socket.AF_UNIX), b"", 10
        self.sock.connect(str(path))
        self.send(0, b"", version=4)
        self.wait(0)

    def send(self, kind, body, version=4):
        self.xid += 1
        self.sock.sendall(struct.pack("!BBHI", version, kind, 8 + len(body), self.xid) + body)
        return self.xid

    def wait(self, kind):
        while True:
            while len(self.buf) < 8 or len(self.buf) < struct.unpack("!H", self.buf[2:4])[0]:
                got = self.sock.recv(65536)
                if not got:
                    raise SystemExit("the switch closed a connection")
                self.buf += got
            length = struct.unpack("!H", self.buf[2:4])[0]
            message, self.buf = self.buf[:length], self.buf[length:]
            if message[1] == kind:
                return message
            if message[1] == 1:
                raise SystemExit(f"error: {message.hex()}")

    def echo(self):
        start = time.perf_counter()
        self.send(2, b"?")
        self.wait(3)
        return time.perf_counter() - start

    def change(self, address, command):
        """A flow-mod of ip,nw_dst=ADDRESS and a barrier; seconds."""
        match = bytes.fromhex("80000a020800") + bytes.fromhex("80001804") + struct.pack("!I", address)
        match = struct.pack("!HH", 1, 4 + len(match)) + match
        match += bytes(-len(match) % 8)
        act = struct.pack("!HHI", 4, 24, 0) + struct.pack("!HHIH6x", 0, 16, 1, 0)
        body = struct.pack("!QQBBHHHIIIH2x", 0, 0, 0, command, 0, 0, 100, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        body += match + (act if command == 0 else b"")
        both = struct.pack("!BBHI", 4, 14, 8 + len(body), 1) + body + struct.pack("!BBHI", 4, 20, 8, 2)
        start = time.perf_counter()
        self.sock.sendall(both)
        self.wait(21)
        return time.perf_counter() - start


class Echoes(threading.Thread):
    """The longest echo since it was last asked for."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.conn, self.longest, self.since = OpenFlow(path), 0.0, None
        self.start()

    def run(self):
        while True:
            self.since = time.perf_counter()
            self.longest = max(self.longest, self.conn.echo())
            self.since = None
            time.sleep(0.01)

    def take(self):
        waits = self.since
        out = max(self.longest, time.perf_counter() - waits if waits else 0)
        self.longest = 0.0
        return out


class Ping:
    """Pings from one namespace to the other, 100 per second."""

    def __init__(self, ns, address):
        self.argv = ["ip", "netns", "exec", ns, "ping", "-n", "-i", "0.01", "-W", "5", address]
        self.proc = None

    def start(self):
        self.proc = sp.Popen(self.argv, stdout=sp.PIPE, stderr=sp.DEVNULL, text=True)

    def stop(self):
        time.sleep(0.05)
        self.proc.send_signal(2)
        said = self.proc.communicate()[0]
        sent, got = map(int, re.search(r"(\d+) packets transmitted, (\d+) received", said).groups())
        rtt = re.search(r"= [\d.]+/[\d.]+/([\d.]+)/", said)
        return sent - got, float(rtt[1]) if rtt else float("nan")


class Switch:
    def __init__(self, system, dir):
        self.dir, self.system = dir, system
        os.environ.update({k: str(dir) for k in ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR")})
        run("mkdir", "-p", "/run/netns")
        run("mount", "-t", "tmpfs", "flows", "/run/netns")
        run("ip", "link", "set", "lo", "up")
        run("ovsdb-tool", "create", dir / "conf.db", "/usr/share/openvswitch/vswitch.ovsschema")
        run("ovsdb-server", "--detach", "--no-chdir", "--pidfile", "-vconsole:off",
            f"--remote=punix:{dir}/db.sock", dir / "conf.db")
        run("ovs-vsctl", "--no-wait", "init")
        binary, name = DAEMONS[system]
        run(binary, "--detach", "--no-chdir", "--pidfile", "-vconsole:off", f"--log-file={dir}/log",
            f"unix:{dir}/db.sock", stdout=sp.DEVNULL)
        pidfile = next(p for p in dir.glob("*.pid") if p.name != "ovsdb-server.pid")
        self.pid = int(pidfile.read_text())
        run("ovs-vsctl", "-t", "30", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev",
            "fail_mode=secure", "protocols=OpenFlow10,OpenFlow13,OpenFlow14")
        for i in (1, 2):
            run("ip", "netns", "add", f"flows{i}")
            run("ip", "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", f"flows{i}")
            run("ip", "link", "set", f"p{i}", "up")
            run("ip", "-n", f"flows{i}", "addr", "add", f"192.168.9.{i}/24", "dev", "eth0")
            run("ip", "-n", f"flows{i}", "link", "set", "eth0", "up")
            run("ip", "netns", "exec", f"flows{i}", "ethtool", "-K", "eth0", "tx", "off")
            run("ovs-vsctl", "-t", "30", "add-port", "br0", f"p{i}", "--", "set", "interface", f"p{i}",
                f"ofport_request={i}")
        self.base_flows()
        self.echoes = Echoes(dir / "br0.mgmt")
        self.ping = Ping("flows1", "192.168.9.2")
        run("ip", "netns", "exec", "flows1", "ping", "-c", "3", "-i", "0.2", "-W", "5", "192.168.9.2")

    def base_flows(self):
        for i in (1, 2):
            run("ovs-ofctl", "add-flow", "br0", f"priority=65000,cookie=0xffff,in_port={i},actions={3 - i}")

    def memory(self, key):
        return int(re.search(rf"{key}:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[1]) / 1024

    def cpu(self):
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def step(self, work):
        """Runs `work` and says what it cost."""
        self.echoes.take()
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        self.ping.start()
        cpu, start = self.cpu(), time.perf_counter()
        work()
        wall = time.perf_counter() - start
        # Work that a reply did not wait for still shows in the echoes.
        time.sleep(0.1)
        out = {"s": wall, "cpu_s": self.cpu() - cpu, "echo_ms": self.echoes.take() * 1e3}
        out["lost"], out["ping_ms"] = self.ping.stop()
        out["peak_mb"], out["rss_mb"] = self.memory("VmHWM"), self.memory("VmRSS")
        return out

    def flow_mods(self):
        """Into the big table and a small one by turns, so that both meet the same machine."""
        run("ovs-vsctl", "-t", "30", "add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=netdev",
            "fail_mode=secure", "protocols=OpenFlow10,OpenFlow13,OpenFlow14")
        conns = {"big": OpenFlow(self.dir / "br0.mgmt"), "small": OpenFlow(self.dir / "br1.mgmt")}
        for i in range(100):
            conns["small"].change(0x0C000000 + i, 0)
        out, n = {}, 3000
        for command, word in ((0, "add"), (4, "del")):
            times = {which: [] for which in conns}
            for i in range(n):
                for which, conn in conns.items():
                    times[which].append(conn.change(0x0B000000 + i, command) * 1e6)
            for which, t in times.items():
                out[f"{which}_{word}_us"] = statistics.median(t)
                out[f"{which}_{word}_p99"] = sorted(t)[n * 99 // 100]
        run("ovs-vsctl", "-t", "30", "del-br", "br1")
        return out


def ofctl(*args, out=None):
    run("ovs-ofctl", "-vpoll_loop:off", *args, stdout=out or sp.DEVNULL)


def count(expected, what="table=0"):
    said = run("ovs-ofctl", "dump-aggregate", "br0", what)
    got = int(re.search(r"flow_count=(\d+)", said)[1])
    if abs(got - expected) > 4:
        raise SystemExit(f"{got} flows instead of {expected}")


def experiment(system, shape, n, steps, dir):
    make = SHAPES[shape]
    flows, changed = dir / "flows", dir / "changed"
    with open(flows, "w") as f, open(changed, "w") as g:
        for i in range(n):
            line = f"cookie={hex(i % 10)},{make(i, n)},actions="
            f.write(line + "output:1\n")
            g.write(line + ("output:2\n" if i % 10 == 3 else "output:1\n"))
        base = "".join(f"cookie=0xffff,priority=65000,in_port={i},actions=output:{3 - i}\n" for i in (1, 2))
        f.write(base)
        g.write(base)
    s = Switch(system, dir)
    out = {"base": {"rss_mb": s.memory("VmRSS")}}

    def step(name, work):
        if name in steps or name == "fill":
            out[name] = s.step(work)
            print(f"{system:5}{shape:6}{name:11}", show(out[name]), flush=True)

    def difference():
        sp.run(["ovs-ofctl", "-vpoll_loop:off", "diff-flows", "br0", str(changed)], stdout=sp.DEVNULL)

    def monitored():
        watcher = sp.Popen(["ovs-ofctl", "monitor", "br0", "watch:"], stdout=sp.DEVNULL, stderr=sp.DEVNULL)
        time.sleep(0.3)
        ofctl("add-flows", "br0", few)
        watcher.kill()
        watcher.wait()

    def expiry():
        with open(few, "w") as f:
            for i in range(min(n, 100_000)):
                f.write(f"idle_timeout=3,hard_timeout={2 + i % 2 * 5},{make(i, n)},actions=output:1\n")
        ofctl("--bundle", "add-flows", "br0", few)
        for _ in range(300):
            time.sleep(0.1)
            if "flow_count=2" in run("ovs-ofctl", "dump-aggregate", "br0"):
                return
        raise SystemExit("flows did not time out")

    few = dir / "few"
    if "load" in steps:
        step("load", lambda: ofctl("add-flows", "br0", flows))
    else:
        step("fill", lambda: ofctl("--bundle", "add-flows", "br0", flows))
    count(n + 2)
    if "flow-mod" in steps:
        out["flow-mod"] = s.flow_mods()
        print(f"{system:5}{shape:6}flow-mod  ", show(out["flow-mod"]), flush=True)
    step("dump", lambda: ofctl("dump-flows", "br0"))
    step("aggregate", lambda: ofctl("dump-aggregate", "br0"))
    step("mod", lambda: ofctl("mod-flows", "br0", PART[shape] + ",actions=output:2"))
    step("diff", difference)
    step("replace", lambda: ofctl("replace-flows", "br0", changed))
    step("del-match", lambda: ofctl("del-flows", "br0", PART[shape]))
    step("del-cookie", lambda: ofctl("del-flows", "br0", "cookie=0x7/0xf"))
    if {"del", "bundle", "del-again", "monitor", "expiry"} & set(steps):
        step("del", lambda: ofctl("del-flows", "br0", ALL))
        ofctl("del-flows", "br0", ALL)
        out.setdefault("del", {})["after_mb"] = s.memory("VmRSS")
    step("bundle", lambda: ofctl("--bundle", "add-flows", "br0", flows))
    step("del-again", lambda: ofctl("del-flows", "br0", ALL))
    if "monitor" in steps:
        with open(flows) as f, open(few, "w") as g:
            g.writelines(line for _, line in zip(range(100_000), f))
        step("monitor", monitored)
        ofctl("del-flows", "br0", ALL)
    step("expiry", expiry)
    return out


def show(r):
    return "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in r.items())


def table(results):
    """One line for each shape and step, systems side by side; then the times of single flow-mods."""
    keys = ["s", "cpu_s", "peak_mb", "rss_mb", "echo_ms", "lost", "ping_ms"]
    mods = [f"{which}_{what}" for what in ("add_us", "add_p99", "del_us", "del_p99") for which in ("big", "small")]
    out = ""
    for keys, wanted in ((keys, lambda step: step != "flow-mod"), (mods, lambda step: step == "flow-mod")):
        lines = [f"{'flows':15}{'step':11}{'system':7}" + "".join(f"{k:>15}" for k in keys)]
        for shape, by_system in results.items():
            for step in filter(wanted, ["base"] + STEPS):
                for system, steps in by_system.items():
                    if row := steps.get(step):
                        cells = "".join(f"{row[k]:>15.1f}" if k in row else f"{'':15}" for k in keys)
                        lines.append(f"{shape:15}{step:11}{system:7}{cells}".rstrip())
        out += "\n".join(lines) + "\n\n" if len(lines) > 1 else ""
    return out


def inside(args):
    """In the namespaces: one system, one shape; the result as JSON in the file of -o."""
    with tempfile.TemporaryDirectory(prefix="flows-") as dir:
        out = experiment(args.systems[0], args.shapes[0], args.n, args.steps, Path(dir))
        Path(args.o).write_text(json.dumps(out))


def commit():
    return run("git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=7").strip()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    items = lambda text: text.split(",")
    p.add_argument("-n", type=int, default=1_000_000, help="flows")
    p.add_argument("-s", dest="shapes", type=items, default=list(SHAPES))
    p.add_argument("-y", dest="systems", type=items, default=list(DAEMONS))
    p.add_argument("-x", dest="steps", type=items, default=STEPS)
    p.add_argument("-o", help="directory of the results (default: bench/results/DATE-flows-COMMIT)")
    p.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.inside:
        return inside(args)
    dir = Path(args.o or ROOT / f"bench/results/{datetime.date.today()}-flows-{commit()}")
    raw = dir / "raw.json"
    results = json.loads(raw.read_text()) if raw.exists() else {}
    for shape in args.shapes:
        name = f"{shape}-{args.n}"
        for system in args.systems:
            with tempfile.NamedTemporaryFile() as out:
                # All that a switch made ends with these namespaces.
                run("unshare", "-n", "-m", "-p", "-f", "--kill-child", "--mount-proc", sys.executable, __file__,
                    "--inside", "-n", args.n, "-s", shape, "-y", system, "-x", ",".join(args.steps), "-o", out.name,
                    stdout=sys.stdout)
                results.setdefault(name, {}).setdefault(system, {}).update(json.load(open(out.name)))
    dir.mkdir(parents=True, exist_ok=True)
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    head = f"# {commit()}; {model[1] if model else ''}, {os.cpu_count()} CPUs; " \
           f"{run('ovs-vswitchd', '--version').splitlines()[0]}\n"
    raw.write_text(json.dumps(results, indent=1) + "\n")
    (dir / "table.txt").write_text(head + table(results))
    print(table(results))


if __name__ == "__main__":
    main()
