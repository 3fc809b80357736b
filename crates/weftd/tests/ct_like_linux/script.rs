//! What clients and servers say to each other: connections, and packets of them in an order that a
//! seed decides.

use testkit::Rng;
use wire::tcp_flags::{ACK, FIN, PSH, RST, SYN};

/// Addresses of clients: the first keeps its own, those of the others are translated.
pub const CLIENTS: [[u8; 4]; 3] = [[10, 0, 1, 1], [10, 0, 1, 2], [10, 0, 1, 3]];
/// What translated clients have in common behind the switch.
pub const OUTSIDE: [u8; 4] = [10, 0, 2, 99];
pub const SERVER: [u8; 4] = [10, 0, 2, 2];
/// What is translated to the server's address.
pub const VIRTUAL: [u8; 4] = [10, 0, 2, 98];
/// A router behind the switch, which sends ICMP errors.
pub const ROUTER: [u8; 4] = [10, 0, 2, 254];
/// Ports of clients are few: translated ones collide.
const CLIENT_PORTS: usize = 6;
/// Far outside of any window.
const FAR: u32 = 0x3000_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}
use Side::{Client, Server};

impl Side {
    pub fn other(self) -> Side {
        if self == Client { Server } else { Client }
    }
}

/// A connection as its client sees it. The ports of ICMP are identifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    pub proto: u8,
    pub client: ([u8; 4], u16),
    pub server: ([u8; 4], u16),
}

/// One packet.
#[derive(Clone, Debug)]
pub enum What {
    /// Sequence and acknowledgement number, flags, octets of data.
    Tcp(u32, u32, u16, usize),
    Udp(usize),
    /// A request of the client or an answer of the server.
    Echo,
    /// An ICMP error about the last packet that this side was sent, by the router if it is true.
    Error(bool),
    /// An ICMP error about a packet that was never sent.
    ErrorAboutNothing,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub connection: usize,
    pub from: Side,
    pub what: What,
    /// The transport checksum is wrong.
    pub spoiled: bool,
}

pub struct Script {
    pub connections: Vec<Connection>,
    pub steps: Vec<Step>,
}

impl Script {
    /// Some connections, packets of which come in any order.
    pub fn new(seed: u64, connections: usize) -> Script {
        let mut r = Rng::new(seed);
        let mut script = Script { connections: Vec::new(), steps: Vec::new() };
        let mut talks: Vec<(usize, std::vec::IntoIter<(Side, What)>)> = Vec::new();
        while script.connections.len() < connections {
            let c = connection(&mut r, seed);
            // Linux would give a port to a connection that is not translated, too, whose server
            // cannot tell it from one to the virtual address.
            let same = |o: &Connection| (o.proto, o.client) == (c.proto, c.client);
            let clash = script
                .connections
                .iter()
                .any(|o| *o == c || same(o) && (o.server.0 == VIRTUAL || c.server.0 == VIRTUAL));
            if !clash {
                talks.push((script.connections.len(), talk(&mut r, c.proto).into_iter()));
                script.connections.push(c);
            }
        }
        while !talks.is_empty() {
            let i = r.below(talks.len());
            let Some((from, what)) = talks[i].1.next() else {
                talks.swap_remove(i);
                continue;
            };
            let spoiled = r.percent(1);
            script.steps.push(Step { connection: talks[i].0, from, what, spoiled });
        }
        script
    }
}

/// Ports are those of no other seed; identifiers of ICMP are not shared, as OVS does not translate
/// them where they clash.
fn connection(r: &mut Rng, seed: u64) -> Connection {
    let proto = [wire::IP_TCP, wire::IP_UDP, wire::IP_ICMP][r.weighted(&[5, 3, 2])];
    // Both addresses of a connection are not translated: OVS has no such `ct`.
    let n = r.below(CLIENTS.len());
    let client = CLIENTS[n];
    let server = if client == CLIENTS[0] && r.percent(50) { VIRTUAL } else { SERVER };
    let own = if proto == wire::IP_ICMP { n * CLIENT_PORTS } else { 0 };
    let port = 10_000 + seed as u16 * 100 + (own + r.below(CLIENT_PORTS)) as u16;
    let to = if proto == wire::IP_ICMP { port } else { 80 + r.below(3) as u16 };
    Connection { proto, client: (client, port), server: (server, to) }
}

fn talk(r: &mut Rng, proto: u8) -> Vec<(Side, What)> {
    let mut all = match proto {
        wire::IP_TCP => Tcp::talk(r),
        _ => datagrams(r, proto),
    };
    for _ in 0..r.below(3) {
        let at = r.below(all.len());
        let error = [What::Error(false), What::Error(true), What::ErrorAboutNothing];
        let (from, error) = (r.pick(&[Client, Server]), error[r.weighted(&[4, 2, 1])].clone());
        all.insert(at + 1, (from, error));
    }
    all
}

/// The client first, then anybody.
fn datagrams(r: &mut Rng, proto: u8) -> Vec<(Side, What)> {
    let say = |r: &mut Rng, from| {
        let what = if proto == wire::IP_UDP { What::Udp(r.below(60)) } else { What::Echo };
        (from, what)
    };
    let mut all = vec![say(r, Client)];
    for _ in 0..r.below(8) {
        let from = r.pick(&[Client, Server]);
        all.push(say(r, from));
    }
    all
}

/// Both ends of a TCP connection: the next sequence number of each.
struct Tcp<'a> {
    r: &'a mut Rng,
    next: [u32; 2],
    all: Vec<(Side, What)>,
}

impl Tcp<'_> {
    /// A handshake or what comes without one, data, an end, and perhaps all of it once more.
    fn talk(r: &mut Rng) -> Vec<(Side, What)> {
        let again = r.percent(20);
        let mut tcp = Tcp { r, next: [0; 2], all: Vec::new() };
        for _ in 0..1 + usize::from(again) {
            tcp.begin();
            for _ in 0..tcp.r.below(6) {
                let (from, n) = (tcp.r.pick(&[Client, Server]), 1 + tcp.r.below(100));
                tcp.say(from, ACK | PSH, n);
            }
            tcp.end();
        }
        tcp.all
    }

    fn begin(&mut self) {
        // Some numbers wrap around soon.
        self.next = [0; 2].map(|_| self.r.next() as u32 | if self.r.percent(20) { !63 } else { 0 });
        match self.r.below(10) {
            0 => self.say(Client, ACK, 0),
            1 => {
                self.say(Server, SYN | ACK, 0);
                self.say(Client, ACK, 0);
            }
            _ => {
                self.say(Client, SYN, 0);
                self.say(Server, SYN | ACK, 0);
                self.say(Client, ACK, 0);
            }
        }
    }

    fn end(&mut self) {
        let first = self.r.pick(&[Client, Server]);
        match self.r.below(5) {
            0 => {}
            1 => self.say(first, RST | ACK, 0),
            _ => {
                self.say(first, FIN | ACK, 0);
                if self.r.percent(60) {
                    self.say(first.other(), ACK, 0);
                }
                self.say(first.other(), FIN | ACK, 0);
                self.say(first, ACK, 0);
            }
        }
    }

    /// One segment, which may be sent twice, and perhaps one that does not belong there before it.
    fn say(&mut self, from: Side, flags: u16, len: usize) {
        let (seq, ack) = (self.next[from as usize], self.next[from.other() as usize]);
        if self.r.percent(6) {
            self.stray(from, seq, ack);
        }
        let ack = if flags & ACK == 0 { 0 } else { ack };
        let segment = (from, What::Tcp(seq, ack, flags, len));
        if self.r.percent(10) {
            self.all.push(segment.clone());
        }
        self.all.push(segment);
        let counted = len as u32 + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        self.next[from as usize] = seq.wrapping_add(counted);
    }

    fn stray(&mut self, from: Side, seq: u32, ack: u32) {
        let (far, beyond) = (seq.wrapping_add(FAR), ack.wrapping_add(FAR));
        let (seq, ack, flags) = self.r.pick(&[
            (far, ack, ACK | PSH),
            (seq, beyond, ACK),
            (far, ack, RST | ACK),
            (seq, ack, 0),
            (seq, ack, SYN | FIN),
            (seq, ack, SYN | RST),
        ]);
        self.all.push((from, What::Tcp(seq, ack, flags, 0)));
    }
}
