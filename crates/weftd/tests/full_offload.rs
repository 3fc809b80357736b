//! `hw-offload` with an adapter that forwards by itself, the lab's emulated one: an uplink and two
//! virtual functions. Flows become its rules, the host sees the first packets only, and nothing
//! that the switch says is wrong for it.

mod lab;

use lab::*;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use testkit::{Netns, Switch, privileged};

/// Rules need some seconds of traffic first.
const LONG: Duration = Duration::from_secs(60);
/// The file `stats=` has 8-byte counters; where the adapter's begin, and which they are
/// (lab/generator/README.md).
const ADAPTER: usize = 34_880;
const CREATED: usize = 1;
const DESTROYED: usize = 3;
const STALE_HANDLES: usize = 4;
const DELIVERED: usize = 9;
/// Where it says how fast packets come, how many did, and how many were sent.
const RATE: usize = 32;
const CAME: usize = 64;
const SENT: usize = 1088;
/// What may be wrong with an adapter, and which that is.
const FAULTS: usize = 35_136;
const RESET: usize = 10;
const GONE: usize = 11;
const VOID_EVERY: usize = 13;
const LINK_DOWN: usize = 14;

/// What comes in: of twenty networks; the same in VXLAN, from four peers, 124 bytes without FCS.
const PACKETS: &str = "flows=1000,rules=20,rate=60000";
const TUNNELLED: &str = "kind=vxlan,flows=1000,guests=20,vnis=2,sources=4,size=128,rate=60000";
const PER_SECOND: u64 = 60_000;
/// Bytes of the latter without their outer headers.
const INNER_BYTES: u64 = 124 - 50;

/// A switch and an adapter: `src` is its uplink, `a` and `b` are virtual functions.
struct Bench<'a> {
    sw: Switch<'a>,
    /// Where counters are.
    dir: PathBuf,
}

impl<'a> Bench<'a> {
    /// Packets of twenty networks come in.
    fn new(ns: &'a Netns, hw: &str) -> Bench<'a> {
        let bench = Bench::without_uplink(ns, hw);
        bench.port("br0", "src", 1, &format!("net_weftgen0,{PACKETS},{hw}"));
        bench
    }

    /// Packets come in to the addresses of `br-phy`, and in them those of twenty guests and two
    /// networks out of `vx`.
    fn tunnelled(ns: &'a Netns, hw: &str) -> Bench<'a> {
        let bench = Bench::without_uplink(ns, hw);
        let sw = &bench.sw;
        add_bridge(sw, "br-phy");
        vsctl(sw, "set bridge br-phy other_config:hwaddr=02:00:00:00:00:00");
        ns.ip("addr add 172.31.0.1/12 dev br-phy").unwrap();
        ns.ip("link set br-phy up").unwrap();
        bench.add_tunnel();
        bench.port("br-phy", "src", 1, &format!("net_weftgen0,{TUNNELLED},{hw}"));
        bench
    }

    fn add_tunnel(&self) {
        let options = "ofport_request=4 options:remote_ip=flow options:key=flow";
        vsctl(&self.sw, &format!("add-port br0 vx -- set interface vx type=vxlan {options}"));
    }

    fn without_uplink(ns: &'a Netns, hw: &str) -> Bench<'a> {
        let sw = start(ns);
        let extra = format!("other_config:dpdk-extra=--no-pci -d {}", generator().display());
        sw.vsctl(&["set", "Open_vSwitch", ".", &extra, "other_config:hw-offload=true"]).unwrap();
        sw.stop_daemon().unwrap();
        sw.start_daemon().unwrap();
        add_bridge(&sw, "br0");
        ofctl(&sw, "del-flows br0");
        let dir = std::env::temp_dir().join(format!("weft-full-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let bench = Bench { sw, dir };
        bench.port("br0", "a", 2, &format!("net_weftgen1,{hw},role=vf,vf=0,order=sink"));
        bench.port("br0", "b", 3, &format!("net_weftgen2,{hw},role=vf,vf=1,order=sink"));
        bench
    }

    fn port(&self, bridge: &str, name: &str, number: u16, device: &str) {
        let stats = self.dir.join(name);
        let more = format!("adapter=x,stats={}", stats.display());
        let devargs = format!("options:dpdk-devargs=\"vdev:{device},{more}\"");
        let number = format!("ofport_request={number}");
        let kind = ["--", "set", "interface", name, "type=dpdk", &number, &devargs];
        let all: Vec<&str> = ["add-port", bridge, name].into_iter().chain(kind).collect();
        self.sw.vsctl(&all).unwrap();
    }

    /// A counter of a port's adapter.
    fn adapter(&self, port: &str, counter: usize) -> u64 {
        word(&self.dir.join(port), ADAPTER + 8 * counter)
    }

    /// Writes a number into a port's file.
    fn write(&self, port: &str, at: usize, value: u64) {
        let file = std::fs::File::options().write(true).open(self.dir.join(port)).unwrap();
        file.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
    }

    /// Packets of all queues, of those that came or were sent.
    fn packets(&self, port: &str, from: usize) -> u64 {
        (0..16).map(|queue| word(&self.dir.join(port), from + 64 * queue)).sum()
    }

    /// What was sent to a virtual function, by the adapter or by the host.
    fn got(&self, port: &str) -> u64 {
        self.adapter(port, DELIVERED) + self.packets(port, SENT)
    }

    /// No packets come, all that did are where they go: how many the host has lost, and each
    /// virtual function got.
    fn rest(&self) -> [u64; 3] {
        self.write("src", RATE, 0);
        let host = || {
            let sent = self.packets("a", SENT) + self.packets("b", SENT);
            // The uplink's begins again when it is opened again.
            self.packets("src", CAME).wrapping_sub(sent)
        };
        let all = || [host(), self.got("a"), self.got("b")];
        let sum = || all().into_iter().fold(0, u64::wrapping_add);
        self.wait_for("the last packets", || is_still(sum));
        all()
    }

    /// Packets take turns between both: since `before` as many came to each, and the host lost
    /// none.
    fn assert_all_went_right(&self, before: [u64; 3], what: &str) {
        let [lost, a, b] = self.rest();
        let (a, b) = (a - before[1], b - before[2]);
        assert_eq!(lost, before[0], "{what}: {a} {b}");
        assert!(a > 0 && a.abs_diff(b) < 100, "{what}: {a} {b}");
        self.write("src", RATE, PER_SECOND);
    }

    /// Flows that the adapter forwards.
    fn full(&self) -> usize {
        let all = appctl(&self.sw, "dpctl/dump-flows -m type=offloaded");
        all.matches("offloaded:yes, dp:dpdk, actions:").count()
    }

    fn wait_for(&self, what: &str, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            let show = self.sw.appctl(&["offload/show"]).unwrap_or_default();
            let why = self.sw.appctl(&["offload/why"]).unwrap_or_default();
            assert!(began.elapsed() < LONG, "{what}: {show}{why}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Changes all flows; what the barrier took.
    fn change(&self, even: u16, odd: u16) -> Duration {
        self.add(&flows(even, odd, &|i| format!("ip,nw_dst=16.0.{i}.0/24")))
    }

    /// Changes all flows of packets that come out of the tunnel; what the barrier took.
    fn change_guests(&self, even: u16, odd: u16) -> Duration {
        let guest =
            |i: u16| format!("in_port=4,tun_id={},dl_dst=02:00:01:00:00:{i:02x}", 100 + i % 2);
        self.add(&flows(even, odd, &guest))
    }

    fn add(&self, flows: &str) -> Duration {
        let began = Instant::now();
        self.sw.ofctl_stdin(&["add-flows", "br0", "-"], flows).unwrap();
        began.elapsed()
    }

    /// Does something, and the barrier behind it says that all rules of before are gone.
    fn ends_all<T>(&self, what: &str, change: impl Fn() -> T) {
        let made = self.adapter("src", CREATED);
        change();
        assert!(self.adapter("src", DESTROYED) >= made, "{what}");
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn word(file: &Path, at: usize) -> u64 {
    let bytes = std::fs::read(file).unwrap();
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Twenty flows: even ones to one port, odd ones to the other.
fn flows(even: u16, odd: u16, which: &dyn Fn(u16) -> String) -> String {
    let one = |i: u16| {
        let out = if i.is_multiple_of(2) { even } else { odd };
        format!("{},actions=output:{out}\n", which(i))
    };
    (0..20).map(one).collect()
}

/// True if this stays as it is for a while.
fn is_still(n: impl Fn() -> u64) -> bool {
    let before = n();
    std::thread::sleep(Duration::from_millis(200));
    n() == before
}

/// A number behind a text in a command's answer.
fn number(all: &str, before: &str) -> u64 {
    let rest = all.split(before).nth(1).unwrap_or_else(|| panic!("{before}: {all}"));
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{before}: {all}"))
}

#[test]
fn the_host_sees_the_first_packets_only() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let bench = Bench::new(&ns, "hw=full");
    let sw = &bench.sw;
    bench.change(2, 3);
    bench.wait_for("20 rules", || bench.full() == 20);
    assert_eq!(appctl(sw, "dpctl/dump-flows -m type=ovs").matches("in_port(src)").count(), 0);
    assert!(appctl(sw, "offload/why 16.0.7.0").starts_with("offloaded-fully: "));
    reasons_add_up(sw);
    // Counters grow, though the host has no packets.
    let host = || number(&appctl(sw, "dpif-netdev/pmd-stats-show"), "packets received: ");
    let flow = || number(&ofctl(sw, "dump-flows br0 ip,nw_dst=16.0.7.0/24"), "n_packets=");
    let sent = || number(&ofctl(sw, "dump-ports br0 2"), "tx pkts=");
    bench.wait_for("the last packets of before", || is_still(host));
    let (received, counted, out) = (host(), flow(), sent());
    bench.wait_for("counters", || flow() > counted + 3000 && sent() > out + 30_000);
    assert_eq!(host(), received);
    // What the switch says was sent is what the virtual functions got, but for what is counted
    // late.
    let slack = 60_000;
    let (said, got) = (sent(), bench.got("a"));
    assert!(said + slack >= got && said <= got + slack, "{said} {got}");
    // A barrier's reply leaves when the rules of before are gone.
    for round in 0..4 {
        let (even, odd) = if round % 2 == 0 { (3, 3) } else { (2, 3) };
        bench.ends_all(&format!("round {round}"), || bench.change(even, odd));
        bench.wait_for("20 rules again", || bench.full() == 20);
    }
    // A flow in use does not time out, though no packet of it is the host's.
    ofctl(sw, "del-flows br0 ip,nw_dst=16.0.4.0/24");
    ofctl(sw, "add-flow br0 ip,nw_dst=16.0.4.0/24,idle_timeout=2,actions=output:2");
    bench.wait_for("the flow", || {
        appctl(sw, "offload/why 16.0.4.0").starts_with("offloaded-fully: ")
    });
    std::thread::sleep(Duration::from_secs(5));
    assert!(ofctl(sw, "dump-flows br0 ip,nw_dst=16.0.4.0/24").contains("idle_timeout=2"));
    // Drops are the adapter's, too.
    ofctl(sw, "mod-flows br0 ip,nw_dst=16.0.6.0/24,actions=drop");
    bench.wait_for("a rule that drops", || {
        appctl(sw, "dpctl/dump-flows -m type=dpdk").contains("dp:dpdk, actions:drop")
    });
    sw.vsctl(&["set", "Open_vSwitch", ".", "other_config:hw-offload=false"]).unwrap();
    let before = host();
    bench.wait_for("the host's packets", || host() > before + 20_000);
    assert_eq!(bench.full(), 0);
}

/// A limit is the host's to keep: the adapter forwards nothing through a port that has one.
#[test]
fn what_is_limited_is_forwarded_by_the_host() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let bench = Bench::new(&ns, "hw=full");
    let sw = &bench.sw;
    bench.change(2, 3);
    bench.wait_for("20 rules", || bench.full() == 20);
    let limit = "type=egress-policer other-config:cir=64000 other-config:cbs=6400";
    vsctl(sw, &format!("set port a qos=@q -- --id=@q create qos {limit}"));
    bench.wait_for("only rules to b", || bench.full() == 10);
    let why = appctl(sw, "offload/why 16.0.2.0");
    assert!(why.contains("limited: ") && !why.contains("offloaded-fully"), "{why}");
    reasons_add_up(sw);
    // At least 46 bytes each behind the Ethernet header; without the limit 30,000 in a second.
    let (began, before) = (Instant::now(), bench.got("a"));
    std::thread::sleep(Duration::from_secs(1));
    let came = bench.got("a") - before;
    let most = (6_400.0 + 64_000.0 * began.elapsed().as_secs_f64()) / 46.0;
    assert!(came > 0 && (came as f64) < most, "{came} of {most}");
    vsctl(sw, "clear port a qos");
    bench.wait_for("20 rules again", || bench.full() == 20);
    vsctl(sw, "set interface src ingress_policing_kpkts_rate=1");
    bench.wait_for("no rules", || bench.full() == 0);
    vsctl(sw, "set interface src ingress_policing_kpkts_rate=0");
    bench.wait_for("20 rules again", || bench.full() == 20);
}

/// Outer headers end in the adapter: one rule for the underlay's megaflow and a guest's, each
/// counted as what it is.
#[test]
fn tunnels_end_in_the_adapter() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let bench = Bench::tunnelled(&ns, "hw=full");
    let sw = &bench.sw;
    bench.change_guests(2, 3);
    // Those of the guests, and the underlay's.
    bench.wait_for("20 rules", || bench.full() == 21);
    assert_eq!(appctl(sw, "offload/show").matches("rules that forward: 20 ").count(), 1);
    let outer = appctl(sw, "offload/why tnl_pop");
    assert!(outer.starts_with("offloaded-fully: "), "{outer}");
    reasons_add_up(sw);
    let host = || number(&appctl(sw, "dpif-netdev/pmd-stats-show"), "packets received: ");
    bench.wait_for("the last packets of before", || is_still(host));
    let dump = || ofctl(sw, "dump-flows br0 dl_dst=02:00:01:00:00:07");
    let came = |bridge: &str, port: u16| {
        number(&ofctl(sw, &format!("dump-ports {bridge} {port}")), "rx pkts=")
    };
    let sent = || number(&ofctl(sw, "dump-ports br0 2"), "tx pkts=");
    let (received, counted, out) = (host(), number(&dump(), "n_packets="), sent());
    let (outside, inside) = (came("br-phy", 1), came("br0", 4));
    bench.wait_for("counters", || {
        number(&dump(), "n_packets=") > counted + 3000
            && sent() > out + 30_000
            && came("br-phy", 1) > outside + 60_000
            && came("br0", 4) > inside + 60_000
    });
    assert_eq!(host(), received);
    let flow = dump();
    assert_eq!(number(&flow, "n_bytes="), INNER_BYTES * number(&flow, "n_packets="), "{flow}");
    let (said, got, slack) = (sent(), bench.got("a"), 60_000);
    assert!(said + slack >= got && said <= got + slack, "{said} {got}");
    // Guests move: a barrier's reply leaves when no packet goes to where they were.
    for round in 0..4 {
        let (even, odd) = if round % 2 == 0 { (3, 3) } else { (2, 3) };
        bench.ends_all(&format!("round {round}"), || bench.change_guests(even, odd));
        bench.wait_for("20 rules again", || bench.full() == 21);
    }
    // What the underlay does with outer packets, and whether there is a tunnel, ends all of them,
    // too.
    bench.ends_all("the underlay", || {
        ofctl(sw, "add-flow br-phy udp,nw_src=172.16.0.0/12,actions=drop");
        ofctl(sw, "del-flows br-phy udp");
    });
    bench.wait_for("20 rules again", || bench.full() == 21);
    let made = bench.adapter("src", CREATED);
    vsctl(sw, "del-port vx");
    bench.wait_for("no rules", || bench.full() == 0 && bench.adapter("src", DESTROYED) >= made);
    bench.add_tunnel();
    bench.wait_for("20 rules again", || bench.full() == 21);
    let before = bench.adapter("b", DELIVERED);
    bench.wait_for("packets", || bench.adapter("b", DELIVERED) > before + 10_000);
}

/// Rules that end slowly: all end at once, so a barrier takes a little longer and no more.
#[test]
fn a_slow_adapter_delays_a_barrier_little() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let bench = Bench::new(&ns, "hw=full,hw_delay=50000,hw_rules=12");
    bench.change(2, 3);
    assert!(ofctl(&bench.sw, "dump-ports br0 2").contains("tx pkts="));
    bench.wait_for("12 rules", || bench.full() == 12);
    let made = bench.adapter("src", CREATED);
    let took = bench.change(3, 2);
    assert!(bench.adapter("src", DESTROYED) >= made);
    let show = appctl(&bench.sw, "offload/show");
    eprintln!("ovs-ofctl took {took:?}; {}", show.lines().find(|l| l.contains("longest")).unwrap());
    assert!(took < Duration::from_secs(2), "{took:?} {show}");
    assert!(number(&show, "all rules ended ") > 0 && number(&show, "overdue ") == 0, "{show}");
    reasons_add_up(&bench.sw);
    bench.wait_for("12 rules again", || bench.full() == 12);
}

/// An adapter that takes a mask for less than it says, or tagged packets for untagged ones,
/// forwards nothing: probes show it. Marks that say too much are not believed. Each time one line
/// tells it.
#[test]
fn an_adapter_that_matches_too_much_sends_nothing_elsewhere() {
    if !privileged() {
        return;
    }
    let _turn = turn();
    const FORWARDS: &str = "the adapter matches more than rules ask for";
    const MARKS: &str = "packets of other flows came with the marks of";
    for (tunnelled, hw, line) in [
        (false, "hw=full,hw_widen=ignore", FORWARDS),
        (false, "hw=full,hw_vlan=0", FORWARDS),
        (true, "hw=full,hw_widen=ignore", FORWARDS),
        (false, "hw=full,hw_widen=ignore,hw_transfer=0", MARKS),
    ] {
        let ns = Netns::new().unwrap();
        let bench = if tunnelled { Bench::tunnelled(&ns, hw) } else { Bench::new(&ns, hw) };
        let before = bench.rest();
        if tunnelled {
            bench.change_guests(2, 3)
        } else {
            bench.change(2, 3)
        };
        bench.write("src", RATE, PER_SECOND);
        bench.wait_for(line, || bench.sw.log().contains(line));
        let why = appctl(&bench.sw, "offload/why");
        assert!(why.contains("wider: the adapter matches more than it is asked to"), "{hw}: {why}");
        assert_eq!(bench.full(), 0, "{hw}");
        reasons_add_up(&bench.sw);
        bench.assert_all_went_right(before, hw);
        if line == FORWARDS {
            assert_eq!(bench.sw.log().matches(line).count(), 1, "{hw}");
        }
    }
}

/// After a reset the uplink is opened again; removals of rules and rules without effect end nothing
/// but the gain. One line tells each.
#[test]
fn rules_that_go_or_do_nothing_lose_nothing() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let bench = Bench::new(&ns, "hw=full");
    bench.rest();
    bench.change(2, 3);
    bench.write("src", RATE, PER_SECOND);
    bench.wait_for("20 rules", || bench.full() == 20);
    let fault = |which: usize, value: u64| bench.write("src", FAULTS + 8 * which, value);
    let logged = |line: &str| bench.sw.log().matches(line).count();
    let upset = "src: the adapter was reset or removed, its rules are gone";
    fault(RESET, 1);
    bench.wait_for("a reset", || logged("interface src: the adapter was reset") == 1);
    bench.wait_for("the uplink", || logged("added interface src on port 1") == 2);
    let before = bench.rest();
    bench.write("src", RATE, PER_SECOND);
    bench.wait_for("20 rules again", || bench.full() == 20);
    bench.assert_all_went_right(before, "reset");
    let upsets = logged(upset);
    fault(GONE, 1);
    bench.wait_for("a removal", || logged(upset) == upsets + 1 && bench.full() == 0);
    fault(GONE, 0);
    bench.wait_for("20 rules again", || bench.full() == 20);
    bench.assert_all_went_right(before, "removal");
    // Every third rule from now on is taken and has no effect.
    fault(VOID_EVERY, 3);
    bench.change(2, 3);
    let show = || appctl(&bench.sw, "offload/show src");
    let nothing = |show: &str| {
        let rest = show.split("more than is asked for, ").nth(1).unwrap();
        rest.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    bench.wait_for("rules that do nothing", || nothing(&show()) > 0);
    bench.wait_for("a line", || logged("rules forwarded nothing: withdrawn") > 0);
    bench.assert_all_went_right(before, "rules without effect");
    assert!(bench.full() > 0 && bench.full() < 20);
    reasons_add_up(&bench.sw);
    assert_eq!(bench.adapter("src", STALE_HANDLES), 0);
}

/// Changes of the adapter's link that are asked for by an interrupt are seen before links are
/// looked at, which is once per second. The adapter itself takes up to 100 ms.
#[test]
fn an_interrupt_reports_changes_of_the_link() {
    const CHANGES: u64 = 12;
    const SOON: Duration = Duration::from_millis(450);
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let bench = Bench::new(&ns, "hw=full");
    vsctl(&bench.sw, "set interface src options:dpdk-lsc-interrupt=true");
    bench.wait_for("the uplink", || bench.sw.log().matches("added interface src").count() == 2);
    let is_down = || {
        let all = ofctl(&bench.sw, "dump-ports-desc br0");
        let state = all.split("(src)").nth(1).and_then(|src| src.split("state:").nth(1));
        state.is_some_and(|state| state.trim_start().starts_with("LINK_DOWN"))
    };
    let change = |n: u64| {
        let down = n.is_multiple_of(2);
        bench.write("src", FAULTS + 8 * LINK_DOWN, down.into());
        let start = Instant::now();
        bench.wait_for("the link", || is_down() == down);
        start.elapsed()
    };
    let took: Vec<Duration> = (0..CHANGES).map(change).collect();
    // Without the interrupt half of them would be.
    let soon = took.iter().filter(|t| **t < SOON).count();
    assert!(soon >= 9, "{took:?}");
}
