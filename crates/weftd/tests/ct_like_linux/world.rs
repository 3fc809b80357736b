//! Something that tracks connections between clients and servers, and what it makes of packets.

use crate::script::{
    CLIENTS, Connection, OUTSIDE, ROUTER, SERVER, Script, Side, Step, VIRTUAL, What,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use testkit::{Frame, L4, Net, Netns, Raw, V4, fix_checksums, veth};
use wire::Ipv4;

/// How long a packet may take through a busy machine.
const PASSAGE_TIME_MAX: Duration = Duration::from_secs(10);
/// After so much of a packet an ICMP error ends.
const CITED: usize = 28;
/// Type of an echo request of ICMP.
const ECHO_REQUEST: u8 = 8;
/// Where the IP header of a frame begins, and the transport header, as there are no options.
const L3: usize = 14;
const L4_AT: usize = 34;

/// What the middle between both sides says of a packet, in its DSCP.
pub const STATES: [(u8, &str); 8] = [
    (1, "new"),
    (2, "established"),
    (3, "related"),
    (4, "invalid"),
    (9, "new reply"),
    (10, "established reply"),
    (11, "related reply"),
    (12, "invalid reply"),
];

/// The MAC address of a side, and that of the middle's port to it.
fn macs(side: Side) -> ([u8; 6], [u8; 6]) {
    let n = side as u8 + 1;
    ([2, 0, 0, 0, 0, n], [2, 0, 0, 0, 1, n])
}

/// The device of the middle, and the other end of its cable.
pub const DEVICES: [(&str, &str); 2] = [("v1", "e1"), ("v2", "e2")];

/// Cables from the middle to both sides.
pub fn cables(middle: &Netns, sides: &Netns) {
    for (side, (near, far)) in [Side::Client, Side::Server].into_iter().zip(DEVICES) {
        veth((middle, near), (sides, far)).unwrap();
        let mac = macs(side).1.map(|b| format!("{b:02x}")).join(":");
        middle.ip(&format!("link set {near} address {mac}")).unwrap();
        for (ns, dev) in [(middle, near), (sides, far)] {
            ns.ipv6_off(dev).unwrap();
            ns.offloads_off(dev).unwrap();
        }
    }
}

/// The sides of a middle.
pub struct World {
    ends: [Raw; 2],
    /// By connection: how the server sees the client.
    seen: BTreeMap<usize, ([u8; 4], u16)>,
    /// By connection and side: the packet that this side got last, from the IP header on.
    last: BTreeMap<(usize, usize), Vec<u8>>,
}

impl World {
    pub fn new(sides: &Netns) -> World {
        let ends = DEVICES.map(|(_, far)| Raw::open(sides, far).unwrap());
        World { ends, seen: BTreeMap::new(), last: BTreeMap::new() }
    }

    /// Before other connections.
    pub fn forget(&mut self) {
        self.seen.clear();
        self.last.clear();
    }

    /// Sends the step's packet and says what came out.
    pub fn pass(&mut self, script: &Script, n: usize) -> String {
        let step = &script.steps[n];
        let connection = &script.connections[step.connection];
        let frame = self.frame(connection, step, n as u16 + 1);
        self.ends[step.from as usize].send(&frame).unwrap();
        let Some(out) = self.receive(step.from, n as u16 + 1) else { return "nothing".into() };
        let to = step.from.other() as usize;
        let error = matches!(step.what, What::Error(_) | What::ErrorAboutNothing);
        if step.from == Side::Client && !error && state(&out) != "invalid" {
            self.seen.insert(step.connection, source(&out[L3..]));
        }
        self.last.insert((step.connection, to), out[L3..].to_vec());
        self.describe(step.connection, &out)
    }

    fn frame(&self, c: &Connection, step: &Step, id: u16) -> Vec<u8> {
        let client = match step.from {
            Side::Client => c.client,
            Side::Server => *self.seen.get(&step.connection).unwrap_or(&c.client),
        };
        let server = match step.from {
            Side::Client => c.server,
            Side::Server => (SERVER, c.server.1),
        };
        let ((src, sport), (dst, dport)) = match step.from {
            Side::Client => (client, server),
            Side::Server => (server, client),
        };
        let (mut src, mut dst, mut ttl) = (src, dst, 64);
        let word = |id: u16| [(id >> 8) as u8, id as u8, 0, 1];
        let l4 = match &step.what {
            What::Tcp(seq, ack, flags, n) => {
                L4::Tcp(sport, dport, *seq, *ack, *flags, vec![b'd'; *n])
            }
            What::Udp(n) => L4::Udp(sport, dport, vec![b'u'; *n]),
            What::Echo => {
                let kind = if step.from == Side::Client { ECHO_REQUEST } else { 0 };
                L4::Icmp(kind, 0, word(client.1), b"echo".to_vec())
            }
            What::Error(router) => {
                let cited = self.last.get(&(step.connection, step.from as usize));
                let cited = cited.cloned().unwrap_or_else(|| unheard_of(dst, src));
                // Any host on the way may report it; the report goes to the sender.
                dst = source(&cited).0;
                if *router && step.from == Side::Server {
                    src = ROUTER;
                }
                ttl = 63;
                L4::Icmp(3, 1, [0; 4], cited[..CITED.min(cited.len())].to_vec())
            }
            What::ErrorAboutNothing => L4::Icmp(3, 3, [0; 4], unheard_of(dst, src)),
        };
        let mut ip = V4::new(src, dst, l4);
        (ip.id, ip.ttl) = (id, ttl);
        let (own, port) = macs(step.from);
        let mut bytes = Frame::new(own, port, Net::V4(ip)).bytes();
        if step.spoiled {
            let at = checksum_at(bytes[L3 + 9]);
            bytes[at] ^= 0x55;
        }
        bytes
    }

    /// What comes with this identification, at the other side or, turned back, at the same.
    fn receive(&self, from: Side, id: u16) -> Option<Vec<u8>> {
        let end = Instant::now() + PASSAGE_TIME_MAX;
        while Instant::now() < end {
            for (side, wait) in [(from.other(), 5), (from, 0)] {
                let until = Instant::now() + Duration::from_millis(wait);
                while let Some(frame) = self.ends[side as usize].receive(until) {
                    let ip = frame.get(L3..).and_then(Ipv4::new);
                    if frame[12..14] == [8, 0] && ip.is_some_and(|ip| ip.id() == id) {
                        return Some(frame);
                    }
                }
            }
        }
        None
    }

    /// State, addresses and everything behind them, with names for what may differ.
    fn describe(&self, n: usize, frame: &[u8]) -> String {
        let mut repaired = frame.to_vec();
        fix_checksums(&mut repaired);
        let sums = if repaired == frame { "" } else { ", wrong checksums" };
        let proto = frame[L3 + 9];
        let (mut rest, at) = (frame[L4_AT..].to_vec(), checksum_at(proto) - L4_AT);
        rest[at..at + 2].fill(0);
        let mut cited = String::new();
        let error = proto == wire::IP_ICMP && rest[0] == 3;
        if error && rest.len() >= 8 + CITED {
            let inner = rest.split_off(8);
            let sum = Ipv4::new(&inner[..]).is_some_and(|ip| ip.checksum_ok());
            cited = format!(" about {}, {sum}", self.route(n, &inner));
        }
        match proto {
            wire::IP_ICMP if !error => rest[4..6].fill(0),
            wire::IP_ICMP => {}
            _ => rest[..4].fill(0),
        }
        let (state, route) = (state(frame), self.route(n, &frame[L3..]));
        format!("{state}: {route}{cited} ttl {} {rest:02x?}{sums}", frame[L3 + 8])
    }

    /// From where to where, as names.
    fn route(&self, n: usize, ip: &[u8]) -> String {
        let (src, dst) = (source(ip), destination(ip));
        let name = |(address, port): ([u8; 4], u16)| {
            // Each chooses ports of its own.
            let own = self.seen.get(&n) == Some(&(address, port));
            let port = match port {
                _ if own && address == OUTSIDE => "its".to_string(),
                p => p.to_string(),
            };
            let names = [(OUTSIDE, "outside"), (SERVER, "server"), (VIRTUAL, "virtual")];
            let host = names.iter().find(|n| n.0 == address).map_or_else(
                || {
                    let i = CLIENTS.iter().position(|a| *a == address);
                    i.map_or_else(|| format!("{address:?}"), |i| format!("client{i}"))
                },
                |n| n.1.to_string(),
            );
            format!("{host}:{port}")
        };
        format!("{} > {}", name(src), name(dst))
    }

    /// Two connections that the server cannot tell apart.
    pub fn clash(&self, script: &Script) -> Option<(usize, usize)> {
        let of = |n: &usize| {
            let c = &script.connections[*n];
            (c.proto, self.seen[n], if c.proto == wire::IP_ICMP { 0 } else { c.server.1 })
        };
        let all: Vec<_> = self.seen.keys().collect();
        all.iter().enumerate().find_map(|(i, a)| {
            let same = all[..i].iter().find(|b| of(a) == of(b));
            same.map(|b| (**a, **b))
        })
    }
}

/// What the middle says of a frame.
fn state(frame: &[u8]) -> &'static str {
    let dscp = frame[L3 + 1] >> 2;
    let state = STATES.iter().find(|s| s.0 == dscp).map_or("untracked", |s| s.1);
    // Linux has no direction of what is invalid.
    if state == "invalid reply" { "invalid" } else { state }
}

/// Where the checksum of a transport protocol is in a frame.
fn checksum_at(proto: u8) -> usize {
    L4_AT
        + match proto {
            wire::IP_TCP => 16,
            wire::IP_UDP => 6,
            _ => 2,
        }
}

/// The first 28 octets of a datagram that was never sent.
fn unheard_of(src: [u8; 4], dst: [u8; 4]) -> Vec<u8> {
    let ip = V4::new(src, dst, L4::Udp(9, 9, Vec::new()));
    Frame::new([0; 6], [0; 6], Net::V4(ip)).bytes()[L3..].to_vec()
}

/// Address and port, or identifier, at which a packet comes from.
fn source(ip: &[u8]) -> ([u8; 4], u16) {
    (ip[12..16].try_into().unwrap(), port(ip, 20))
}

fn destination(ip: &[u8]) -> ([u8; 4], u16) {
    (ip[16..20].try_into().unwrap(), port(ip, 22))
}

fn port(ip: &[u8], at: usize) -> u16 {
    let at = match (ip[9], ip[20]) {
        (wire::IP_ICMP, 0 | ECHO_REQUEST) => 24,
        (wire::IP_ICMP, _) => return 0,
        _ => at,
    };
    u16::from_be_bytes([ip[at], ip[at + 1]])
}
