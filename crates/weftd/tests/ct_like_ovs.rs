//! Connection tracking: the same packets through Weft and ovs-vswitchd's userspace datapath; what
//! comes out, with `ct_state` in it, and the connections that are kept have to be equal.

mod lab;

use lab::*;
use testkit::{Frame, L4, Net, Netns, Probe, Switch, SwitchConfig, V4, privileged, veth};
use wire::tcp_flags::{ACK, FIN, PSH, RST, SYN};

/// What tracked packets of table 1 become: the state goes into the last byte of the source address.
const SHOW: &str = "move:NXM_NX_CT_STATE[0..7]->NXM_OF_ETH_SRC[0..7],\
                    move:NXM_NX_CT_MARK[0..7]->NXM_OF_ETH_SRC[8..15],output:3";
const CLIENT: [u8; 4] = [10, 0, 0, 1];
const SERVER: [u8; 4] = [10, 0, 0, 2];
/// What the client's address becomes in zone 7, and the one that stands for the server's in zone 8.
const OUTSIDE: [u8; 4] = [10, 0, 0, 99];
const VIRTUAL: [u8; 4] = [10, 0, 0, 98];

type Step = (u8, Frame);

fn ip(from: u8, src: [u8; 4], dst: [u8; 4], l4: L4) -> Step {
    let mac = |n| [2, 0, 0, 0, 0, n];
    (from, Frame::new(mac(from), mac(3 - from), Net::V4(V4::new(src, dst, l4))))
}

/// TCP of the client (1) or the server (2), of which the addresses may be translated.
fn tcp(from: u8, server: [u8; 4], client: [u8; 4], seq: u32, ack: u32, flags: u16) -> Step {
    match from {
        1 => ip(1, client, server, L4::Tcp(4000, 80, seq, ack, flags, Vec::new())),
        _ => ip(2, server, client, L4::Tcp(80, 4000, seq, ack, flags, Vec::new())),
    }
}

fn handshake(server: [u8; 4], client: [u8; 4], inside: ([u8; 4], [u8; 4])) -> Vec<Step> {
    vec![
        tcp(1, server, client, 100, 0, SYN),
        tcp(1, server, client, 100, 0, SYN),
        tcp(2, inside.0, inside.1, 500, 101, SYN | ACK),
        tcp(1, server, client, 101, 501, ACK),
        tcp(1, server, client, 101, 501, ACK | PSH),
        tcp(1, server, client, 101, 501, RST | SYN),
        tcp(1, server, client, 900_000, 501, RST | ACK),
        tcp(1, server, client, 101, 501, FIN | ACK),
        tcp(2, inside.0, inside.1, 501, 102, FIN | ACK),
        tcp(1, server, client, 102, 502, ACK),
    ]
}

/// The start of a packet, as an ICMP error cites it.
fn cited(step: &Step) -> Vec<u8> {
    step.1.bytes()[14..42].to_vec()
}

fn plain() -> Vec<Step> {
    let there = ip(1, CLIENT, SERVER, L4::Udp(5000, 53, b"ask".to_vec()));
    let back = ip(2, SERVER, CLIENT, L4::Udp(53, 5000, b"answer".to_vec()));
    let echo = |from, kind| {
        let (src, dst) = if from == 1 { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
        ip(from, src, dst, L4::Icmp(kind, 0, [0, 9, 0, 1], b"echo".to_vec()))
    };
    let unreachable = ip(2, SERVER, CLIENT, L4::Icmp(3, 3, [0; 4], cited(&there)));
    let stray = ip(1, CLIENT, SERVER, L4::Icmp(3, 3, [0; 4], cited(&echo(2, 8))));
    let mut steps = handshake(SERVER, CLIENT, (SERVER, CLIENT));
    steps.extend([there.clone(), there, unreachable, back, echo(2, 0), echo(1, 8), echo(1, 8)]);
    steps.extend([echo(2, 0), echo(1, 8), stray, tcp(1, SERVER, CLIENT, 7, 7, 0)]);
    steps.push(ip(1, CLIENT, SERVER, L4::Udp(0, 53, Vec::new())));
    steps.push(ip(1, CLIENT, SERVER, L4::Other(47, vec![0; 8])));
    steps.push(ip(2, SERVER, CLIENT, L4::Other(47, vec![0; 8])));
    steps
}

fn source() -> Vec<Step> {
    let there = ip(1, CLIENT, SERVER, L4::Udp(5001, 53, b"ask".to_vec()));
    let outside = ip(1, OUTSIDE, SERVER, L4::Udp(5001, 53, b"ask".to_vec()));
    let mut steps = handshake(SERVER, CLIENT, (SERVER, OUTSIDE));
    steps.extend([there, ip(2, SERVER, OUTSIDE, L4::Udp(53, 5001, b"answer".to_vec()))]);
    steps.push(ip(2, SERVER, OUTSIDE, L4::Icmp(3, 3, [0; 4], cited(&outside))));
    steps.push(ip(2, [10, 0, 0, 254], OUTSIDE, L4::Icmp(11, 0, [0; 4], cited(&outside))));
    steps
}

fn destination() -> Vec<Step> {
    handshake(VIRTUAL, CLIENT, (SERVER, CLIENT))
}

/// Flows that keep what port 1 begins.
fn flows(zone: u16, nat: &str) -> Vec<String> {
    let exec = "exec(set_field:0x5/0xff->ct_mark,set_field:0x77->ct_label)";
    let first = if nat.is_empty() { "" } else { ",nat" };
    let commit = if nat.is_empty() { String::new() } else { format!(",nat({nat})") };
    vec![
        format!("table=0,ip,actions=ct(zone={zone},table=1{first})"),
        format!(
            "table=1,priority=40000,ip,in_port=1,ct_state=+new-inv+trk,\
             actions=ct(commit,zone={zone}{commit},table=2,{exec})"
        ),
        format!("table=1,ip,actions={SHOW}"),
        format!("table=2,ip,actions={SHOW}"),
    ]
}

/// Sends everything through a switch; what came out, and what is kept.
fn run(config: SwitchConfig) -> Vec<String> {
    let (ns, far) = (Netns::new().unwrap(), Netns::new().unwrap());
    let sw = Switch::start(&ns, config).unwrap();
    add_bridge(&sw, "br0");
    let mut probe = Probe::new();
    for i in 1..=3 {
        let (near, end) = (format!("v{i}"), format!("e{i}"));
        veth((&ns, &near), (&far, &end)).unwrap();
        ns.ipv6_off(&near).unwrap();
        far.ipv6_off(&end).unwrap();
        probe.add(&far, &end).unwrap();
        vsctl(&sw, &format!("add-port br0 {near} -- set interface {near} ofport_request={i}"));
    }
    let mut seen = Vec::new();
    for (zone, nat, steps) in
        [(5, "", plain()), (7, "src=10.0.0.99", source()), (8, "dst=10.0.0.2", destination())]
    {
        ofctl(&sw, "del-flows br0");
        flows(zone, nat)
            .iter()
            .for_each(|flow| drop(sw.ofctl(&["add-flow", "br0", flow]).unwrap()));
        for (n, (port, frame)) in steps.iter().enumerate() {
            let out = probe.inject(&format!("e{port}"), &frame.bytes(), QUIET).unwrap();
            seen.push(format!("zone {zone}, packet {n}: {out:02x?}"));
        }
        let mut kept: Vec<String> = appctl(&sw, &format!("dpctl/dump-conntrack -m zone={zone}"))
            .lines()
            .map(String::from)
            .collect();
        kept.sort();
        seen.extend(kept);
    }
    seen
}

#[test]
fn packets_have_the_states_and_addresses_that_ovs_gives_them() {
    if !privileged() {
        return;
    }
    let _turn = turn();
    let ours = run(SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    let theirs = run(SwitchConfig::oracle());
    let differ: Vec<_> = ours.iter().zip(&theirs).filter(|(a, b)| a != b).collect();
    assert!(differ.is_empty(), "Weft (left) and ovs-vswitchd (right): {differ:#?}");
    assert_eq!(ours.len(), theirs.len());
    let kept = |what: &str| ours.iter().any(|line| line.contains(what));
    assert!(kept("protoinfo") && kept("zone=7"), "nothing was committed");
}
