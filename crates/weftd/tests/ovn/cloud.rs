//! The cloud: two logical switches and a router, an outer network with a gateway port and a gateway
//! router, and what its users do.

use super::lab::{Pinger, QUIET, WAIT_TIME_MAX, vsctl, wait_for};
use super::rig::{Central, Hypervisor};
use super::services::{Service, ask, is_silent, join, resolve, send};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};
use testkit::{Netns, Raw, SwitchConfig, veth};

const SWITCHES: &str = r#"
    ls-add sw0
    ls-add sw1
    lr-add lr0
    lrp-add lr0 r0 00:00:00:00:ff:01 10.0.0.1/24
    lrp-add lr0 r1 00:00:00:00:ff:02 10.1.0.1/24
    lsp-add sw0 s0r
    lsp-set-type s0r router
    lsp-set-addresses s0r router
    lsp-set-options s0r router-port=r0
    lsp-add sw1 s1r
    lsp-set-type s1r router
    lsp-set-addresses s1r router
    lsp-set-options s1r router-port=r1
"#;

/// A gateway port of the distributed router on hv1, where packets are cut short at 1300 bytes, and
/// a gateway router on hv2 behind a switch of its own.
const GATEWAYS: &str = r#"
    ls-add ext
    lsp-add ext ext-net
    lsp-set-type ext-net localnet
    lsp-set-addresses ext-net unknown
    lsp-set-options ext-net network_name=physnet
    lrp-add lr0 rx 00:00:00:00:ff:03 172.16.0.1/24
    lsp-add ext extr
    lsp-set-type extr router
    lsp-set-addresses extr router
    lsp-set-options extr router-port=rx
    lrp-set-gateway-chassis rx hv1 20
    set logical_router_port rx options:gateway_mtu=1300
    lr-nat-add lr0 snat 172.16.0.1 10.0.0.0/24
    lr-nat-add lr0 dnat_and_snat 172.16.0.114 10.1.0.14
    lr-nat-add lr0 dnat_and_snat 172.16.0.113 10.1.0.13 vm3 00:00:00:00:fe:13
    ls-add join
    lr-add gr0
    set logical_router gr0 options:chassis=hv2 options:lb_force_snat_ip=100.64.0.2
    lrp-add gr0 gj 00:00:00:00:ff:05 100.64.0.2/24
    lrp-add lr0 rj 00:00:00:00:ff:06 100.64.0.1/24
    lsp-add join jg
    lsp-set-type jg router
    lsp-set-addresses jg router
    lsp-set-options jg router-port=gj
    lsp-add join jr
    lsp-set-type jr router
    lsp-set-addresses jr router
    lsp-set-options jr router-port=rj
    lrp-add gr0 gx 00:00:00:00:ff:04 172.16.0.2/24
    lsp-add ext extg
    lsp-set-type extg router
    lsp-set-addresses extg router
    lsp-set-options extg router-port=gx
    lr-route-add gr0 10.0.0.0/8 100.64.0.1
    lb-add outer 172.16.0.80:80 10.0.0.11:8000,10.0.0.12:8000
    lr-lb-add gr0 outer
"#;

/// vm2 may be asked by ICMP, on port 8000 by TCP and on 9000 by UDP, and may ask what it likes.
const RULES: &str = r#"
    acl-add sw0 from-lport 1000 inport=="vm2"&&ip4 allow-related
    acl-add sw0 to-lport 1000 outport=="vm2"&&ip4&&!ip4.mcast drop
    acl-add sw0 to-lport 1001 outport=="vm2"&&icmp4 allow-related
    acl-add sw0 to-lport 1002 outport=="vm2"&&tcp.dst==8000 allow-related
    acl-add sw0 to-lport 1003 outport=="vm2"&&udp.dst=={8000,9000} allow-related
"#;

/// What vm1 sends to that port is logged, some packets a second.
const LOG: &str = r#"
    meter-add few drop 3 pktps
    --log --severity=alert --name=quiet --meter=few acl-add sw0 from-lport 1005 inport=="vm1"&&udp.dst==7777 drop
"#;
/// More than the meter lets pass.
const LOGGED_PACKETS: usize = 300;

const BALANCERS: &str = r#"
    lb-add lb0 30.0.0.1:80 10.0.0.12:8000
    lb-add lb1 30.0.0.1:53 10.0.0.12:9000 udp
    lb-add lb2 30.0.0.2:80 10.0.0.11:8000,10.1.0.14:8000
    ls-lb-add sw0 lb0
    ls-lb-add sw0 lb1
    ls-lb-add sw0 lb2
    ls-lb-add sw1 lb0
"#;

/// Machines: name, hypervisor, switch, address.
const MACHINES: [(&str, usize, &str, [u8; 4]); 4] = [
    ("vm1", 0, "sw0", [10, 0, 0, 11]),
    ("vm2", 1, "sw0", [10, 0, 0, 12]),
    ("vm3", 1, "sw1", [10, 1, 0, 13]),
    ("vm4", 0, "sw1", [10, 1, 0, 14]),
];

pub struct Cloud<'a> {
    central: &'a Central,
    hv: [Hypervisor<'a>; 2],
    /// vm1 to vm4.
    vms: Vec<Netns>,
    /// 172.16.0.200, in the outer network.
    outer: &'a Netns,
}

/// The cloud with all that stays the same in it.
pub fn with(encap: &str, daemons: [SwitchConfig; 2], f: impl FnOnce(&mut Cloud<'_>)) {
    let central = Central::start(encap);
    let (one, two, outer) = (Netns::new().unwrap(), Netns::new().unwrap(), Netns::new().unwrap());
    veth((&one, "eth0"), (&two, "eth0")).unwrap();
    veth((&one, "ex0"), (&two, "ex0")).unwrap();
    veth((&one, "ex1"), (&outer, "eth0")).unwrap();
    for (ns, dev) in [(&one, "eth0"), (&two, "eth0"), (&outer, "eth0")] {
        ns.offloads_off(dev).unwrap();
    }
    outer.ip("addr add 172.16.0.200/24 dev eth0").unwrap();
    outer.ip("route add 10.0.0.0/8 via 172.16.0.1").unwrap();
    let [a, b] = daemons;
    let hv = [
        Hypervisor::start(&one, a, 1, &central, encap),
        Hypervisor::start(&two, b, 2, &central, encap),
    ];
    hv.iter().for_each(|hv| drop(vsctl(&hv.sw, "add-port br-ex ex0")));
    vsctl(&hv[0].sw, "add-port br-ex ex1");
    central.nb(SWITCHES);
    let mut cloud = Cloud { central: &central, hv, vms: Vec::new(), outer: &outer };
    for (name, hv, switch, address) in MACHINES {
        let vm = cloud.machine(name, hv, switch, address);
        cloud.vms.push(vm);
    }
    cloud.central.sync();
    f(&mut cloud);
    cloud.hv.iter().for_each(Hypervisor::assert_no_errors);
}

/// `what` at the beginning of a line, and how long it took.
fn step<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let start = std::time::Instant::now();
    eprint!("{what}...");
    let t = f();
    eprintln!(" {} ms", start.elapsed().as_millis());
    t
}

fn ip(a: [u8; 4]) -> IpAddr {
    a.into()
}

impl Cloud<'_> {
    fn machine(&self, name: &str, hv: usize, switch: &str, address: [u8; 4]) -> Netns {
        let [_, net, _, host] = address;
        let mac = format!("00:00:00:00:01:{host:02x}");
        let text = Ipv4Addr::from(address).to_string();
        self.central.nbctl(&["lsp-add", switch, name]);
        self.central.nbctl(&["lsp-set-addresses", name, &format!("{mac} {text}")]);
        let vm = self.hv[hv].machine(name, &mac);
        vm.ip(&format!("addr add {text}/24 dev eth0")).unwrap();
        vm.ip(&format!("route add default via 10.{net}.0.1")).unwrap();
        self.central.nbctl(&["wait-until", "Logical_Switch_Port", name, "up=true"]);
        vm
    }

    fn vm(&self, n: usize) -> &Netns {
        &self.vms[n - 1]
    }

    fn reach(&self, from: usize, to: usize) {
        let to = MACHINES[to - 1].3;
        self.vm(from)
            .ping(ip(to), WAIT_TIME_MAX)
            .unwrap_or_else(|e| panic!("vm{from} to {to:?}: {e}\n{}", self.traces()));
    }

    /// Where packets may have gone, for whoever reads of a failure.
    fn traces(&self) -> String {
        let asked = ["tnl/neigh/show", "ovs/route/show", "dpctl/dump-flows", "coverage/show"];
        let of = |hv: &Hypervisor<'_>| {
            let all = asked.map(|what| format!("{what}\n{}\n", hv.sw.appctl(&[what]).unwrap()));
            all.concat() + &hv.sw.log()
        };
        self.hv.each_ref().map(of).join("the other hypervisor\n")
    }

    /// Every pair of machines, on one switch and over the router, in both directions.
    fn switches_and_routers(&self) {
        for from in 1..=4 {
            (1..=4).filter(|to| *to != from).for_each(|to| self.reach(from, to));
        }
    }

    fn says(&self, from: usize, proto: &str, to: &str, want: &str) {
        let said = ask(self.vm(from), proto, to).unwrap_or_else(|e| panic!("vm{from}: {e}"));
        assert_eq!(said, want, "vm{from} asks {proto} {to}");
    }

    pub fn everything(&mut self) {
        for hv in &self.hv {
            let shown = vsctl(&hv.sw, "list-dp-cap netdev");
            let has = |name: &str| assert!(shown.contains(name), "{name} in {shown}");
            ["ct_zero_snat=true", "ct_flush=true", "max_hash_alg=1"].into_iter().for_each(has);
        }
        step("switches and routers", || self.switches_and_routers());
        let mut services: Vec<_> = [(1, 8000), (2, 8000), (2, 9000), (2, 9001), (4, 8000)]
            .map(|(vm, port)| Service::start(self.vm(vm), &format!("vm{vm}"), port))
            .into();
        services.push(Service::start(self.outer, "outer", 8000));
        step("rules", || self.rules());
        step("load balancers", || self.load_balancers());
        step("NAT and gateways", || self.gateways());
        step("gateways that stand in for each other", || self.standby());
        step("long packets", || self.long_packets());
        step("DHCP and DNS", || self.dhcp_and_dns());
        step("groups", || self.multicast());
        step("ACL log", || self.acl_log());
        step("changes", || self.changes());
        step("restarts", || self.restarts());
        step("restarts of the switch", || self.switch_restarts());
        if self.hv[1].sw.daemon() != self.hv[0].sw.daemon() {
            step("flows of the other switch", || self.same_flows());
        }
        drop(services);
    }

    fn rules(&self) {
        self.central.nb(RULES);
        self.central.sync();
        for from in [1, 4] {
            self.reach(from, 2);
            let own = Ipv4Addr::from(MACHINES[from - 1].3);
            for (proto, port) in [("tcp", 8000), ("udp", 9000)] {
                self.says(from, proto, &format!("10.0.0.12:{port}"), &format!("vm2 {own}"));
            }
            for proto in ["tcp", "udp"] {
                assert!(is_silent(self.vm(from), proto, "10.0.0.12:9001"), "{proto} from vm{from}");
            }
        }
        // Answers to what vm2 asks are related, though nothing allows them.
        self.reach(2, 1);
        for proto in ["tcp", "udp"] {
            self.says(2, proto, "10.0.0.11:8000", "vm1 10.0.0.12");
        }
    }

    fn load_balancers(&self) {
        self.central.nb(BALANCERS);
        self.central.sync();
        self.says(1, "tcp", "30.0.0.1:80", "vm2 10.0.0.11");
        self.says(1, "udp", "30.0.0.1:53", "vm2 10.0.0.11");
        self.says(4, "tcp", "30.0.0.1:80", "vm2 10.1.0.14");
        // To itself: the hairpin.
        self.says(2, "tcp", "30.0.0.1:80", "vm2 30.0.0.1");
        self.says(2, "udp", "30.0.0.1:53", "vm2 30.0.0.1");
        let mut all = std::collections::BTreeSet::new();
        wait_for("connections on both backends", || {
            all.insert(ask(self.vm(2), "tcp", "30.0.0.2:80").unwrap());
            all.len() == 2
        });
        assert!(all.contains("vm1 10.0.0.12") && all.contains("vm4 10.0.0.12"), "{all:?}");
    }

    fn gateways(&self) {
        self.central.nb(GATEWAYS);
        self.central.sync();
        for vm in [1, 2] {
            self.vm(vm).ping(ip([172, 16, 0, 200]), WAIT_TIME_MAX).unwrap();
            self.says(vm, "tcp", "172.16.0.200:8000", "outer 172.16.0.1");
        }
        self.says(3, "tcp", "172.16.0.200:8000", "outer 172.16.0.113");
        self.says(4, "udp", "172.16.0.200:8000", "outer 172.16.0.114");
        for last in [113, 114] {
            self.outer.ping(ip([172, 16, 0, last]), WAIT_TIME_MAX).unwrap();
        }
        let said = ask(self.outer, "tcp", "172.16.0.114:8000").unwrap();
        assert_eq!(said, "vm4 172.16.0.200");
        let mut all = std::collections::BTreeSet::new();
        wait_for("connections on both machines behind the gateway router", || {
            all.insert(ask(self.outer, "tcp", "172.16.0.80:80").unwrap());
            all.len() == 2
        });
        assert!(all.contains("vm1 100.64.0.2") && all.contains("vm2 100.64.0.2"), "{all:?}");
    }

    /// Two chassis for one gateway port: ovn-controller has their tunnels watched by BFD.
    fn standby(&self) {
        let sb = |words: &str| self.central.sbctl(&words.split(' ').collect::<Vec<_>>());
        for (priority, chassis) in [("10", "hv1"), ("30", "hv2"), ("5", "hv1")] {
            self.central.nbctl(&["lrp-set-gateway-chassis", "rx", "hv2", priority]);
            // Until then each takes the other for dead.
            (0..2).for_each(|hv| self.watches(hv));
            wait_for("the gateway's place", || {
                let at = sb("--bare --columns=chassis find port_binding logical_port=cr-rx");
                sb(&format!("--bare --columns=_uuid find chassis name={chassis}")) == at
            });
            self.central.sync();
            self.vm(1).ping(ip([172, 16, 0, 200]), WAIT_TIME_MAX).unwrap();
        }
    }

    /// The tunnel's BFD session is up.
    fn watches(&self, hv: usize) {
        wait_for("a BFD session", || self.tunnel(hv, "bfd_status:forwarding") == "true");
    }

    /// A value of the interface that is the tunnel from one hypervisor to the other.
    fn tunnel(&self, hv: usize, column: &str) -> String {
        let name = format!("ovn-hv{}-0", 2 - hv);
        let said = vsctl(&self.hv[hv].sw, &format!("--if-exists get interface {name} {column}"));
        said.trim_matches('"').to_string()
    }

    /// A rule that drops and tells, behind a meter.
    fn acl_log(&self) {
        self.central.nb(LOG);
        self.central.sync();
        let logged = || {
            let log = self.hv[0].controller_log();
            let lines = log.lines().filter(|l| l.contains("|acl_log(") && l.contains("\"quiet\""));
            lines.map(String::from).collect::<Vec<_>>()
        };
        let socket = self.vm(1).run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
        let send = |n: usize| (0..n).for_each(|_| drop(socket.send_to(b"?", "10.0.0.12:7777")));
        wait_for("a line in the log", || {
            send(1);
            !logged().is_empty()
        });
        let line = logged().pop().unwrap();
        for part in ["verdict=drop", "severity=alert", "nw_src=10.0.0.11", "tp_dst=7777"] {
            assert!(line.contains(part), "{part} in {line}");
        }
        let (before, start) = (logged().len(), Instant::now());
        send(LOGGED_PACKETS);
        // ovn-controller has taken in what passed the meter.
        self.central.sync();
        let (n, most) = (logged().len() - before, 3 * (start.elapsed().as_secs() as usize + 2));
        assert!(n <= most, "{n} of {LOGGED_PACKETS} logged, where {most} may be");
        self.central.nb("acl-del sw0 from-lport 1005 inport==\"vm1\"&&udp.dst==7777");
        self.central.sync();
    }

    /// The router says which length its gateway's network takes.
    fn long_packets(&self) {
        for vm in [1, 2] {
            let ping = |bytes: &str| {
                let words =
                    ["-c", "3", "-i", "0.2", "-W", "1", "-M", "do", "-s", bytes, "172.16.0.200"];
                let out = self.vm(vm).command("ping").args(words).output().unwrap();
                String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
            };
            let short = ping("1200");
            assert!(short.contains(" 0% packet loss"), "vm{vm}: {short}");
            wait_for("an ICMP error", || {
                let long = ping("1390");
                long.contains("mtu = 1300") || long.contains("mtu=1300")
            });
            self.vm(vm).ip("route flush cache").unwrap();
        }
    }

    fn dhcp_and_dns(&self) {
        let net = "10.0.0.0/24";
        self.central.nbctl(&["dhcp-options-create", net]);
        let cidr = format!("cidr={net}");
        let id = self.central.nbctl(&["--bare", "--columns=_uuid", "find", "dhcp_options", &cidr]);
        let values =
            "lease_time=3600 router=10.0.0.1 server_id=10.0.0.1 server_mac=00:00:00:00:ff:09";
        self.central.nb(&format!(
            "dhcp-options-set-options {id} {values}
             lsp-set-dhcpv4-options vm1 {id}
             lsp-set-dhcpv4-options vm2 {id}
             --id=@d create dns records:vm2.test=10.0.0.12
             add logical_switch sw0 dns_records @d"
        ));
        self.central.sync();
        for (vm, own) in [(1, "10.0.0.11"), (2, "10.0.0.12")] {
            let words =
                ["udhcpc", "-i", "eth0", "-n", "-q", "-f", "-t", "8", "-T", "1", "-s", "/bin/true"];
            let out = self.vm(vm).command("busybox").args(words).output().unwrap();
            let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
            assert!(said.contains(&format!("lease of {own} obtained")), "vm{vm}: {said}");
            let found = resolve(self.vm(vm), [10, 0, 0, 1], "vm2.test");
            assert_eq!(found, Some(Ipv4Addr::new(10, 0, 0, 12)), "vm{vm}");
        }
    }

    /// To all, and to who has joined.
    fn multicast(&self) {
        let (group, port) = (Ipv4Addr::new(239, 1, 1, 1), 5000);
        let all = Ipv4Addr::new(224, 0, 0, 251);
        let open = join(self.vm(2), all, [10, 0, 0, 12].into(), port + 1);
        wait_for("a packet to all", || {
            send(self.vm(1), (all, port + 1), 1);
            open.recv(&mut [0; 64]).is_ok()
        });
        self.central.nb("set logical_switch sw0 other_config:mcast_snoop=true");
        self.central.sync();
        let member = join(self.vm(2), group, [10, 0, 0, 12].into(), port);
        wait_for("the group", || self.central.sbctl(&["list", "igmp_group"]).contains("239.1.1.1"));
        wait_for("a packet to the group", || {
            send(self.vm(1), (group, port), 1);
            member.recv(&mut [0; 64]).is_ok()
        });
        let other = Raw::open(self.vm(1), "eth0").unwrap();
        send(self.vm(2), (group, port), 5);
        while let Some(frame) = other.receive(Instant::now() + QUIET) {
            assert_ne!(frame.get(30..34), Some(&group.octets()[..]), "vm1 has not joined");
        }
    }

    /// What comes and goes while packets run.
    fn changes(&self) {
        let pinger = Pinger::start(self.vm(1), ip([10, 1, 0, 13]));
        for hv in [0, 1] {
            let vm = self.machine("vm9", hv, "sw0", [10, 0, 0, 19]);
            self.central.sync();
            vm.ping(ip([10, 0, 0, 11]), WAIT_TIME_MAX).unwrap();
            vm.ping(ip([10, 1, 0, 13]), WAIT_TIME_MAX).unwrap();
            self.central.nb(r#"acl-add sw0 to-lport 1011 outport=="vm9"&&icmp4 drop"#);
            self.central.sync();
            let deaf = || self.vm(1).ping(ip([10, 0, 0, 19]), Duration::ZERO).is_err();
            assert!(deaf(), "the rule holds when the change is acknowledged");
            self.central.nb("acl-del sw0 to-lport 1011 outport==\"vm9\"&&icmp4");
            self.central.sync();
            self.vm(1).ping(ip([10, 0, 0, 19]), WAIT_TIME_MAX).unwrap();
            vsctl(&self.hv[hv].sw, "del-port c-vm9");
            self.central.nb("lsp-del vm9");
            self.central.sync();
            assert!(deaf(), "it has gone");
        }
        let (sent, answered) = pinger.stop();
        assert!(answered + 10 >= sent, "{answered} of {sent} answered while others came and went");
    }

    /// ovn-controller comes back, and so does traffic.
    fn restarts(&mut self) {
        let local = Pinger::start(self.vm(1), ip([10, 1, 0, 14]));
        self.hv[0].kill_controller();
        self.reach(1, 2);
        self.hv[0].start_controller();
        self.central.sync();
        self.switches_and_routers();
        let (sent, answered) = local.stop();
        // It clears all flows and begins anew.
        assert!(0 < answered, "none of {sent} answered beside a new ovn-controller");
    }

    /// The switch comes back under ovn-controller and traffic: all is installed anew, and no host
    /// asks for it. The other hypervisor finds out that it was away.
    fn switch_restarts(&mut self) {
        let local = Pinger::start(self.vm(1), ip([10, 1, 0, 14]));
        let flaps = |cloud: &Self| cloud.tunnel(1, "bfd_status:flap_count").parse::<u64>().unwrap();
        let before = flaps(self);
        self.hv[0].sw.kill_daemon();
        wait_for("the loss to be found", || self.tunnel(1, "bfd_status:forwarding") == "false");
        self.hv[0].sw.start_daemon().unwrap();
        self.reach(1, 4);
        self.central.sync();
        self.switches_and_routers();
        self.watches(1);
        assert!(flaps(self) >= before + 2);
        self.vm(1).ping(ip([172, 16, 0, 200]), WAIT_TIME_MAX).unwrap();
        self.says(4, "tcp", "30.0.0.1:80", "vm2 10.1.0.14");
        let (sent, answered) = local.stop();
        assert!(0 < answered && answered < sent, "{answered} of {sent} answered");
    }

    /// ovs-vswitchd on the first hypervisor, under the same ovn-controller, has the flows that Weft
    /// had.
    fn same_flows(&mut self) {
        let flows = |hv: &Hypervisor<'_>| {
            let said = hv.sw.ofctl(&["-O", "OpenFlow15", "--no-stats", "dump-flows", "br-int"]);
            let mut all: Vec<String> = said.unwrap().lines().map(String::from).collect();
            all.sort();
            all
        };
        let (ours, daemon) = (flows(&self.hv[0]), self.hv[0].sw.daemon().to_path_buf());
        assert!(ours.len() > 500, "{} flows", ours.len());
        self.hv[0].sw.kill_daemon();
        let other = self.hv[1].sw.daemon().to_path_buf();
        self.hv[0].sw.set_daemon(&other);
        self.hv[0].sw.start_daemon().unwrap();
        self.reach(1, 4);
        self.central.sync();
        let mut theirs = Vec::new();
        let equal = (0..100).any(|_| {
            theirs = flows(&self.hv[0]);
            theirs == ours || {
                std::thread::sleep(Duration::from_millis(100));
                false
            }
        });
        let only = |a: &[String], b: &[String]| {
            a.iter().filter(|l| !b.contains(l)).take(20).cloned().collect::<Vec<_>>().join("\n")
        };
        let (ours_only, theirs_only) = (only(&ours, &theirs), only(&theirs, &ours));
        assert!(equal, "only Weft:\n{ours_only}\nonly ovs-vswitchd:\n{theirs_only}");
        self.hv[0].sw.kill_daemon();
        self.hv[0].sw.set_daemon(&daemon);
        self.hv[0].sw.start_daemon().unwrap();
        self.reach(1, 2);
    }
}
