//! Connection tracking beside Linux's own: the same packets of TCP, UDP and ICMP, in an order that
//! a seed decides, through Weft and through a Linux router with nftables. The state of each packet,
//! what NAT makes of it, to which connection ICMP errors belong, and the connections that are kept
//! in the end have to be Linux's. Where OVS's userspace datapath is known to differ from Linux (it
//! judges windows otherwise, and takes connections up in their middle by one packet), it is the
//! judge: ovs-vswitchd gets the same packets, and what Weft says has to be said by one of both.

#[path = "../lab/mod.rs"]
mod lab;
mod script;
mod world;

use lab::*;
use script::{CLIENTS, Connection, OUTSIDE, ROUTER, SERVER, Script, VIRTUAL};
use std::collections::BTreeSet;
use std::path::Path;
use testkit::{Netns, Switch, SwitchConfig, available, privileged};
use world::{STATES, World};

/// Scripts (`WEFT_CT_SCRIPTS` says how many, 500 at most), and connections of each.
const SCRIPTS: u64 = 12;
const CONNECTIONS: usize = 40;
/// Least number of a hundred packets that have to be as Linux has them.
const LINUX_PERCENT_MIN: usize = 85;
/// How long entries are kept whatever their state: longer than a script takes on a busy machine.
const KEPT_SECONDS: &str = "900";

/// Timeouts of Linux that are shorter by default.
const LINUX_TIMEOUTS: [&str; 12] = [
    "tcp_timeout_close",
    "tcp_timeout_close_wait",
    "tcp_timeout_fin_wait",
    "tcp_timeout_last_ack",
    "tcp_timeout_max_retrans",
    "tcp_timeout_syn_recv",
    "tcp_timeout_syn_sent",
    "tcp_timeout_time_wait",
    "tcp_timeout_unacknowledged",
    "udp_timeout",
    "udp_timeout_stream",
    "icmp_timeout",
];
/// The keys of a timeout policy in table CT_Timeout_Policy; each gets one timeout, in seconds.
const POLICY: [&str; 13] = [
    "icmp_first",
    "icmp_reply",
    "tcp_close",
    "tcp_close_wait",
    "tcp_established",
    "tcp_fin_wait",
    "tcp_last_ack",
    "tcp_syn_recv",
    "tcp_syn_sent",
    "tcp_time_wait",
    "udp_first",
    "udp_multiple",
    "udp_single",
];

fn text(address: [u8; 4]) -> String {
    std::net::Ipv4Addr::from(address).to_string()
}

/// What nftables does: states into the DSCP, NAT of the first packet of a connection.
fn rules() -> String {
    let mut states = String::new();
    for (dscp, state) in STATES {
        let (name, reply) = state.split_once(' ').map_or((state, "original"), |s| (s.0, s.1));
        let direction =
            if name == "invalid" { String::new() } else { format!("ct direction {reply}") };
        if state != "invalid reply" {
            states += &format!("ct state {name} {direction} ip dscp set {dscp}\n");
        }
    }
    let hidden = CLIENTS[1..].iter().map(|c| text(*c)).collect::<Vec<_>>().join(", ");
    format!(
        "table ip t {{\n\
         chain f {{ type filter hook forward priority 0;\n{states}}}\n\
         chain d {{ type nat hook prerouting priority -100; ip daddr {} dnat to {};\n}}\n\
         chain s {{ type nat hook postrouting priority 100; ip saddr {{ {hidden} }} snat to {};\n}}\n\
         }}\n",
        text(VIRTUAL),
        text(SERVER),
        text(OUTSIDE),
    )
}

/// Makes a Linux router of a namespace.
fn route(middle: &Netns) {
    for (dev, own, side, others) in [
        ("v1", "10.0.1.254", "01", CLIENTS.to_vec()),
        ("v2", "10.0.2.253", "02", vec![SERVER, OUTSIDE, VIRTUAL, ROUTER]),
    ] {
        middle.ip(&format!("addr add {own}/24 dev {dev}")).unwrap();
        for other in others {
            let mac = format!("02:00:00:00:00:{side}");
            let words = format!("neigh add {} lladdr {mac} dev {dev} nud permanent", text(other));
            middle.ip(&words).unwrap();
        }
    }
    let set = |path: &str, value: &str| {
        middle.run(|| std::fs::write(format!("/proc/sys/net/{path}"), value)).unwrap();
    };
    set("ipv4/ip_forward", "1");
    for dev in ["all", "v1", "v2"] {
        set(&format!("ipv4/conf/{dev}/rp_filter"), "0");
        set(&format!("ipv4/conf/{dev}/send_redirects"), "0");
    }
    LINUX_TIMEOUTS.iter().for_each(|t| set(&format!("netfilter/nf_conntrack_{t}"), KEPT_SECONDS));
    let file = std::env::temp_dir().join(format!("weft-nft-{}", std::process::id()));
    std::fs::write(&file, rules()).unwrap();
    let loaded = middle.exec(&["nft", "-f", &file.display().to_string()]);
    std::fs::remove_file(&file).unwrap();
    loaded.unwrap();
}

/// The OpenFlow flows that do to packets what the ruleset of nftables does in the Linux router.
fn flows() -> String {
    let mut all = String::from("table=0,ip,actions=ct(zone=1,nat,table=1)\n");
    let begin = |what: &str, nat: &str| {
        format!(
            "table=1,priority=40,ip,{what}ct_state=+new-inv+trk,\
             actions=ct(commit,zone=1{nat},table=2)\n"
        )
    };
    for client in &CLIENTS[1..] {
        let nat = format!(",nat(src={})", text(OUTSIDE));
        all += &begin(&format!("in_port=1,nw_src={},", text(*client)), &nat);
    }
    let nat = format!(",nat(dst={})", text(SERVER));
    all += &begin(&format!("in_port=1,nw_dst={},", text(VIRTUAL)), &nat);
    all += &begin("", "").replace("priority=40", "priority=30");
    all += "table=1,priority=1,actions=resubmit(,2)\n";
    for (dscp, state) in STATES {
        let (name, reply) = state.split_once(' ').map_or((state, "-rpl"), |s| (s.0, "+rpl"));
        let (priority, name) = match name {
            "invalid" => (30, "inv"),
            "related" => (20, "rel"),
            "new" => (10, "new"),
            _ => (10, "est"),
        };
        let (match_, tos) = (format!("ct_state=+trk+{name}{reply}"), dscp << 2);
        for (from, to) in [(1, 2), (2, 1)] {
            all += &format!(
                "table=2,priority={priority},ip,in_port={from},{match_},\
                 actions=dec_ttl,mod_nw_tos:{tos},output:{to}\n"
            );
        }
    }
    all
}

/// A switch with both sides at ports 1 and 2.
fn switch(middle: &Netns, config: SwitchConfig) -> Switch<'_> {
    let sw = Switch::start(middle, config).unwrap();
    add_bridge(&sw, "br0");
    for (i, (near, _)) in world::DEVICES.into_iter().enumerate() {
        vsctl(
            &sw,
            &format!("add-port br0 {near} -- set interface {near} ofport_request={}", i + 1),
        );
    }
    let policy = POLICY.map(|t| format!("{t}={KEPT_SECONDS}")).join(" ");
    vsctl(
        &sw,
        &format!(
            "--id=@d create datapath datapath_version=0 -- set open . datapaths:netdev=@d \
             -- add-zone-tp netdev zone=1 {policy}"
        ),
    );
    ofctl(&sw, "del-flows br0");
    sw.ofctl_stdin(&["add-flows", "br0", "-"], &flows()).unwrap();
    sw
}

/// What follows each occurrence of a word in a line.
fn after<'a>(line: &'a str, word: &str) -> Vec<&'a str> {
    let rest = line.match_indices(word).map(|(at, _)| &line[at + word.len()..]);
    rest.map(|rest| rest.split([' ', ',', ')']).next().unwrap_or("")).collect()
}

/// Entries of `/proc/net/nf_conntrack` or `dpctl/dump-conntrack`, whose words agree in this: both
/// tuples without the port that NAT gave.
fn kept(lines: &str) -> BTreeSet<String> {
    let of = |line: &str| {
        let proto = ["tcp", "udp", "icmp"].into_iter().find(|p| line.contains(p))?;
        let (src, dst) = (after(line, "src="), after(line, "dst="));
        let port = after(line, if proto == "icmp" { "id=" } else { "sport=" })[0];
        Some(format!("{proto} {}:{port} > {}, {} > {}", src[0], dst[0], src[1], dst[1]))
    };
    lines.lines().filter_map(of).collect()
}

/// How a line of `kept` about the connection begins.
fn begin(c: &Connection) -> String {
    let proto = match c.proto {
        wire::IP_TCP => "tcp",
        wire::IP_UDP => "udp",
        _ => "icmp",
    };
    format!("{proto} {}:{} > {},", text(c.client.0), c.client.1, text(c.server.0))
}

#[test]
fn packets_have_the_states_and_addresses_that_linux_gives_them() {
    let there = Path::new("/usr/sbin/nft").exists();
    if !privileged() || !available(there, "the package nftables") {
        return;
    }
    let _turn = turn();
    let middles = [0; 3].map(|_| Netns::new().unwrap());
    let sides = [0; 3].map(|_| Netns::new().unwrap());
    middles.iter().zip(&sides).for_each(|(middle, sides)| world::cables(middle, sides));
    route(&middles[0]);
    let ours = switch(&middles[1], SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    let _theirs = switch(&middles[2], SwitchConfig::oracle());
    let mut worlds = sides.each_ref().map(World::new);
    let (mut packets, mut as_linux, mut wrong) = (0, 0, Vec::new());
    let scripts = std::env::var("WEFT_CT_SCRIPTS").map_or(SCRIPTS, |n| n.parse().unwrap());
    for seed in 0..scripts {
        let script = Script::new(seed, CONNECTIONS);
        let mut differ = BTreeSet::new();
        for (n, step) in script.steps.iter().enumerate() {
            let [linux, weft, ovs] = worlds.each_mut().map(|w| w.pass(&script, n));
            packets += 1;
            // Linux does not translate what is invalid, OVS does.
            let same = weft == linux || [&weft, &linux].iter().all(|s| s.starts_with("invalid"));
            as_linux += usize::from(same);
            if same {
                continue;
            }
            differ.insert(step.connection);
            if weft != ovs {
                let c = &script.connections[step.connection];
                wrong.push(format!(
                    "seed {seed}, packet {n}: {step:?} of {c:?}\n\
                     Linux {linux}\nWeft  {weft}\nOVS   {ovs}"
                ));
            }
        }
        let read = || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
        let (linux, weft) = (middles[0].run(read), appctl(&ours, "dpctl/dump-conntrack"));
        let (linux, weft) = (kept(&linux), kept(&weft));
        for (n, c) in script.connections.iter().enumerate().filter(|(n, _)| !differ.contains(n)) {
            let of = |all: &BTreeSet<String>| {
                all.iter().filter(|l| l.starts_with(&begin(c))).cloned().collect::<Vec<_>>()
            };
            if of(&linux) != of(&weft) {
                wrong.push(format!(
                    "seed {seed}, connection {n}: {:?} {:?}",
                    of(&linux),
                    of(&weft)
                ));
            }
        }
        // Linux does give the port of a connection that was closed once more.
        let clash = worlds[1].clash(&script);
        assert!(clash.is_none(), "seed {seed}: two connections with one port: {clash:?}");
        worlds.iter_mut().for_each(World::forget);
    }
    eprintln!("{as_linux} of {packets} packets as Linux has them");
    assert!(
        wrong.is_empty(),
        "{} are wrong\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(packets > 100 * scripts as usize && as_linux * 100 > packets * LINUX_PERCENT_MIN);
}
