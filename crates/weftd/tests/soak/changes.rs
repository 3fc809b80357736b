//! What comes and goes, at random but repeatable.

use crate::Guests;
use crate::lab::*;
use crate::peer::Peer;
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};
use testkit::{Netns, Noise, Switch};

/// Ports that come and go: name, settings (`DIR` is the switch's directory). Number 20 is the
/// first.
const PORTS: [(&str, &str); 13] = [
    ("s0", ""),
    ("tap0", "type=tap"),
    ("int0", "type=internal"),
    ("pat0", "type=patch options:peer=pat1"),
    ("null0", "type=dpdk options:dpdk-devargs=net_null0,no-rx=1"),
    ("pcap0", "type=dpdk options:dpdk-devargs=net_pcap0,rx_pcap=DIR/in.pcap,tx_pcap=/dev/null"),
    ("ring0", "type=dpdk options:dpdk-devargs=net_ring0"),
    ("dtap0", "type=dpdk options:dpdk-devargs=net_tap0,iface=dtap-dev"),
    (
        "memif0",
        "type=dpdk options:dpdk-devargs=net_memif0,role=server,socket=DIR/memif,socket-abstract=no",
    ),
    (
        "memif1",
        "type=dpdk options:dpdk-devargs=net_memif1,role=client,socket=DIR/memif,socket-abstract=no",
    ),
    ("afp0", "type=dpdk options:dpdk-devargs=net_af_packet0,iface=k0"),
    ("vhs", "type=dpdkvhostuser"),
    ("vhc", "type=dpdkvhostuserclient options:vhost-server-path=DIR/absent"),
];
const FIRST: usize = 20;
/// The index of `memif0`; `memif1` follows.
const MEMIF: usize = 8;

pub struct Changes<'a> {
    sw: &'a Switch<'a>,
    ns: &'a Netns,
    noise: Noise,
    there: [bool; PORTS.len()],
    bridge: bool,
    monitor: Option<Child>,
    done: u64,
}

impl<'a> Changes<'a> {
    pub fn new(sw: &'a Switch<'a>, ns: &'a Netns, seed: u64) -> Self {
        for (near, far) in [("s0", "s1"), ("k0", "k1")] {
            ns.ip(&format!("link add {near} type veth peer name {far}")).unwrap();
            ns.ip(&format!("link set {near} up")).unwrap();
            ns.ip(&format!("link set {far} up")).unwrap();
        }
        capture(&sw.dir().join("in.pcap"));
        let there = [false; PORTS.len()];
        Changes { sw, ns, noise: Noise(seed.max(1)), there, bridge: false, monitor: None, done: 0 }
    }

    /// How many changes there were.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// One change, whichever.
    pub fn one(&mut self, guests: &mut Guests) {
        // Weights, as some are slow.
        let kind = match self.noise.below(100) {
            0..40 => 0,
            40..65 => 1,
            65..72 => 2,
            72..79 => 3,
            79..86 => 4,
            86..91 => 5,
            91..94 => 6,
            94..97 => 7,
            _ => 8,
        };
        self.make(kind, guests);
    }

    /// Each kind of change, and each port twice.
    pub fn each_once(&mut self, guests: &mut Guests) {
        (0..PORTS.len()).for_each(|i| self.toggle(i));
        (0..9).for_each(|kind| self.make(kind, guests));
        (0..PORTS.len()).for_each(|i| self.toggle(i));
    }

    fn make(&mut self, kind: usize, guests: &mut Guests) {
        self.done += 1;
        match kind {
            0 => {
                let i = self.noise.below(PORTS.len());
                self.toggle(i);
            }
            1 => self.flows(),
            2 => self.settings(),
            3 => self.questions(),
            4 => self.bridge(),
            5 => self.controller(),
            6 => self.monitor(),
            7 => {
                self.sw.kill_db();
                self.sw.start_db().unwrap();
            }
            _ => {
                let which = self.noise.below(2);
                guests.replace(which);
            }
        }
    }

    fn toggle(&mut self, i: usize) {
        if i == MEMIF || i == MEMIF + 1 {
            // A client without its server is an error; either may leave first.
            let (first, second) =
                if self.there[MEMIF] { (i, 2 * MEMIF + 1 - i) } else { (MEMIF, MEMIF + 1) };
            self.flip(first);
            self.flip(second);
        } else {
            self.flip(i);
        }
        self.copies();
    }

    fn flip(&mut self, i: usize) {
        let (name, settings) = PORTS[i];
        if self.there[i] {
            vsctl(self.sw, &format!("del-port {name}"));
        } else {
            let settings = settings.replace("DIR", &self.sw.dir().display().to_string());
            let number = FIRST + i;
            vsctl(
                self.sw,
                &format!(
                    "add-port br0 {name} -- set interface {name} ofport_request={number} {settings}"
                ),
            );
            let error = iface(self.sw, name, "error");
            // One of two patch ports comes first.
            let alone = settings.starts_with("type=patch") && error.starts_with("No usable peer");
            assert!(error == "[]" || alone, "{name} {settings}: {error}");
            assert_eq!(iface(self.sw, name, "ofport"), number.to_string(), "{name}");
        }
        self.there[i] = !self.there[i];
    }

    /// The slow flow is copied to every port that is there.
    fn copies(&self) {
        let ports = (0..PORTS.len()).filter(|i| self.there[*i]);
        let buckets: String =
            ports.map(|i| format!(",bucket=actions=output:{}", FIRST + i)).collect();
        ofctl(self.sw, &format!("-OOpenFlow13 mod-group br0 group_id=1,type=all{buckets}"));
    }

    /// Flows that matter to the traffic (but not to where it goes) and many that do not.
    fn flows(&mut self) {
        let n = self.noise.below(50);
        let unrelated: String = (0..200)
            .map(|i| format!("cookie=1,udp,nw_src=10.1.{n}.{i},tp_dst={i},actions=drop\n"))
            .collect();
        let guests = ["3", "3,4", "resubmit(,7)"][self.noise.below(3)];
        let detour = format!(
            "cookie=1,priority=30,ip,in_port=1,nw_dst=10.0.0.2,actions=mod_nw_tos:{},2\n\
             cookie=1,table=5,priority=30,ip,nw_dst=10.253.0.0/255.255.0.{n},actions=dec_ttl,4\n\
             cookie=1,table=6,priority=30,actions={guests}\n\
             cookie=1,priority=30,udp,in_port=1,nw_src=10.0.0.1,tp_dst=5202,\
                actions=controller(max_len=64),group:1,2\n\
             cookie=1,table=7,actions=push_vlan:0x8100,set_field:4097->vlan_vid,pop_vlan,3\n",
            n * 4
        );
        match self.noise.below(5) {
            0 => self.stdin(&["add-flows", "br0", "-"], &unrelated),
            1 => self.stdin(&["-OOpenFlow13", "add-flows", "br0", "-"], &detour),
            2 => {
                let all = unrelated + &detour;
                self.stdin(&["-OOpenFlow14", "--bundle", "add-flows", "br0", "-"], &all);
            }
            3 => drop(ofctl(self.sw, "mod-flows br0 cookie=1/-1,table=7,actions=3")),
            _ => drop(ofctl(self.sw, "del-flows br0 cookie=1/-1")),
        }
    }

    fn stdin(&self, args: &[&str], text: &str) {
        self.sw.ofctl_stdin(args, text).unwrap();
    }

    fn settings(&mut self) {
        let words = [
            "set open . other_config:pmd-cpu-mask=3",
            "set open . other_config:pmd-cpu-mask=2",
            "set open . other_config:pmd-cpu-mask=1",
            "set interface gs other_config:pmd-rxq-affinity=0:0",
            "remove interface gs other_config pmd-rxq-affinity",
            "set open . other_config:tx-flush-interval=50",
            "remove open . other_config tx-flush-interval",
            "set open . other_config:flow-limit=1000",
            "remove open . other_config flow-limit",
            "set open . other_config:emc-insert-inv-prob=0 other_config:smc-enable=true",
            "set interface gp mtu_request=1400",
            "set interface gp mtu_request=1500",
            "set port s0 tag=7",
            "clear port s0 tag",
            "set bridge br0 other_config:mac-table-size=100",
        ];
        let i = self.noise.below(words.len());
        vsctl(self.sw, &format!("--if-exists {}", words[i]));
        let flap = self.noise.below(4);
        for dev in ["s0", "s1", "k1"].get(flap).iter() {
            self.ns.ip(&format!("link set {dev} down")).unwrap();
            self.ns.ip(&format!("link set {dev} up")).unwrap();
        }
    }

    fn questions(&mut self) {
        match self.noise.below(4) {
            0 => {
                appctl(self.sw, "dpctl/dump-flows -m");
                appctl(self.sw, "ofproto/trace br0 in_port=1,ip,nw_dst=10.0.0.2");
            }
            1 => {
                appctl(self.sw, "dpif-netdev/pmd-rxq-show");
                appctl(self.sw, "dpif-netdev/pmd-perf-show");
                appctl(self.sw, "dpif-netdev/pmd-stats-clear");
            }
            2 => {
                ofctl(self.sw, "dump-flows br0");
                ofctl(self.sw, "dump-ports br0");
                appctl(self.sw, "fdb/flush br0");
            }
            _ => {
                let frame = "ffffffffffff00000000000108060001080006040001000000000001\
                             0a00000100000000000a0000ff0000000000000000000000000000000000";
                ofctl(self.sw, &format!("packet-out br0 in_port=1,packet={frame},actions=group:1"));
                appctl(self.sw, "vlog/reopen");
            }
        }
    }

    /// The other bridge, at the far end of the patch port.
    fn bridge(&mut self) {
        self.bridge = !self.bridge;
        if self.bridge {
            add_bridge(self.sw, "br1");
            let patch = "set interface pat1 type=patch options:peer=pat0";
            vsctl(self.sw, &format!("add-port br1 pat1 -- {patch}"));
            vsctl(self.sw, "add-port br1 far -- set interface far type=internal");
        } else {
            vsctl(self.sw, "del-br br1");
        }
    }

    /// A controller is set, connects, changes a flow, and goes before or after its setting does.
    fn controller(&mut self) {
        if !self.bridge {
            self.bridge();
        }
        let path = self.sw.dir().join("controller");
        let listener = UnixListener::bind(&path).unwrap();
        vsctl(self.sw, &format!("set-controller br1 unix:{} ptcp:0:127.0.0.1", path.display()));
        let mut peer = Peer::accept(&listener, [4, 5, 6][self.noise.below(3)]);
        peer.flow_mod(1, 2);
        peer.barrier();
        if self.noise.below(2) == 0 {
            drop(peer);
            drop(listener);
            vsctl(self.sw, "del-controller br1");
        } else {
            vsctl(self.sw, "del-controller br1");
            assert!(peer.closed());
        }
        std::fs::remove_file(path).unwrap();
    }

    fn monitor(&mut self) {
        self.stop_monitor();
        let mut c = self.sw.command("ovs-ofctl");
        c.args(["monitor", "br0", "100", "watch:"]).stdout(Stdio::null()).stderr(Stdio::null());
        self.monitor = Some(c.spawn().unwrap());
    }

    fn stop_monitor(&mut self) {
        if let Some(mut child) = self.monitor.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Back to how it was at first.
    pub fn remove_all(&mut self) {
        for i in 0..PORTS.len() {
            if self.there[i] {
                self.toggle(i);
            }
        }
        if self.bridge {
            self.bridge();
        }
        self.stop_monitor();
        ofctl(self.sw, "del-flows br0 cookie=1/-1");
        for words in [
            "remove interface gs other_config pmd-rxq-affinity",
            "remove open . other_config tx-flush-interval",
            "remove open . other_config flow-limit",
            "set open . other_config:pmd-cpu-mask=1",
            "set interface gp mtu_request=1500",
        ] {
            vsctl(self.sw, words);
        }
        appctl(self.sw, "revalidator/purge");
    }
}

impl Drop for Changes<'_> {
    fn drop(&mut self) {
        self.stop_monitor();
    }
}

/// A capture of one frame that is not read.
fn capture(path: &std::path::Path) {
    let mut b = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1, 0, 0, 60, 60] {
        b.extend(word.to_le_bytes());
    }
    b.extend([2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5]);
    b.resize(b.len() + 46, 0);
    std::fs::write(path, b).unwrap();
}
