//! Connections that are begun and never answered, and a table that is full: what others have stays.

use action::{Ct, Nat, NatSide};
use conntrack::{Arrival, Count, IpHeader, Keeper, Meta, Table, Worker, state, track};
use std::sync::Arc;
use sync::{Domain, Reader};
use wire::IP_TCP;
use wire::tcp_flags::{ACK, RST, SYN};

/// Connections that there may be in these tests; a quarter may be half-open in one zone, and a port
/// may have as many as are left of these.
const TOTAL: u32 = 8192;
const SHARE: u32 = TOTAL / 4;
const SHARE_OF_ONE_PORT: u32 = SHARE / 2;
/// Connections that a flood of one port begins.
const FLOOD: u32 = 2 * SHARE;

struct Lab {
    table: Arc<Table>,
    keeper: Keeper,
    worker: Worker,
    reader: Reader,
    now: u64,
    /// The port that packets come in by.
    port: u16,
}

/// A direction of connection `n`: a TCP segment without data.
fn segment(n: u32, forth: bool, flags: u16, seq: u32, ack: u32) -> Vec<u8> {
    let stations = [(0x0a00_0000 | n, 1024), (0x0b00_0001, 80)];
    let [(src, sport), (dst, dport)] = if forth { stations } else { [stations[1], stations[0]] };
    let mut b = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, IP_TCP, 0, 0];
    b.extend([src.to_be_bytes(), dst.to_be_bytes()].concat());
    b.extend([u16::to_be_bytes(sport), dport.to_be_bytes()].concat());
    b.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
    b.extend([0x5000 | flags, 1000, 0, 0].map(u16::to_be_bytes).concat());
    b
}

impl Lab {
    fn new() -> Lab {
        let (domain, table) = (Domain::new(), Arc::new(Table::new()));
        table.limits.set_total(TOTAL);
        let (reader, keeper) = (domain.reader(), Keeper::new(&table, domain, 0));
        Lab { worker: Worker::new(&table), table, keeper, reader, now: 0, port: 1 }
    }

    /// Sends a packet through a zone, with commit; its state.
    fn send(&mut self, zone: u16, mut data: Vec<u8>) -> u8 {
        let (ct, mut meta) = (Ct { zone, commit: true, ..Ct::default() }, Meta::default());
        let (ip, came) =
            (IpHeader { l3: 0, sound: true }, Arrival { port: self.port, now: self.now });
        let _ = track(&mut self.worker, &ct, &mut data, ip, &mut meta, came);
        // What the keeper's thread and the worker's loop do.
        self.reader.quiescent();
        self.keeper.tend(self.now, 64);
        meta.state & !state::TRK
    }

    fn begin(&mut self, zone: u16, n: u32) -> u8 {
        self.send(zone, segment(n, true, SYN, 100, 0))
    }

    /// A port begins connections that are never answered; how many of them there are then.
    fn flood(&mut self, zone: u16, port: u16) -> u32 {
        self.port = port;
        let (before, first) = (self.table.zone_len(zone), u32::from(port) * 10_000);
        (first..first + FLOOD).for_each(|n| _ = self.begin(zone, n));
        self.table.zone_len(zone) - before
    }

    /// Connection `n` is answered, and goes on.
    fn establish(&mut self, zone: u16, n: u32) {
        self.begin(zone, n);
        self.send(zone, segment(n, false, SYN | ACK, 500, 101));
        assert!(self.is_established(zone, n), "connection {n}");
    }

    fn is_established(&mut self, zone: u16, n: u32) -> bool {
        self.send(zone, segment(n, true, ACK, 101, 501)) == state::EST
    }

    fn counted(&self, what: Count) -> u64 {
        self.table.counted()[what as usize]
    }
}

#[test]
fn what_is_never_answered_leaves_the_table_to_others() {
    let mut lab = Lab::new();
    (0..100).for_each(|n| lab.establish(1, n));
    (2..7).for_each(|port| _ = lab.flood(1, port));
    let flood = lab.table.zone_len(1) - 100;
    assert!((SHARE * 9 / 10..=SHARE).contains(&flood), "{flood}: no more than a quarter");
    lab.port = 1;
    assert!((0..100).all(|n| lab.is_established(1, n)));
    // Other zones begin connections as before.
    (0..1000).for_each(|n| lab.establish(2, n));
    assert_eq!(lab.table.len(), 1100 + flood);
    // Half a minute later all that was not answered is gone, and the zone begins connections again.
    lab.now += 32_000;
    while !lab.keeper.tend(lab.now, 10_000) {}
    assert_eq!(lab.table.zone_len(1), 100);
    lab.establish(1, 100);
}

#[test]
fn a_full_table_keeps_what_it_has() {
    let mut lab = Lab::new();
    (0..500).for_each(|n| lab.establish(1, n));
    for zone in 2..7 {
        (0..4).for_each(|n| _ = lab.flood(zone, 10 * zone + n));
    }
    assert_eq!(lab.table.len(), TOTAL, "full");
    let buckets = lab.table.bucket_count();
    (300..304).for_each(|port| _ = lab.flood(20, port));
    assert_eq!((lab.table.len(), lab.table.zone_len(20)), (TOTAL, 0));
    assert_eq!(lab.table.bucket_count(), buckets, "what is refused takes no memory");
    assert!(lab.counted(Count::Full) >= u64::from(4 * FLOOD));
    assert!((0..500).all(|n| lab.is_established(1, n)));
}

#[test]
fn a_port_leaves_its_zone_to_other_ports() {
    let mut lab = Lab::new();
    assert_eq!(lab.flood(1, 2), SHARE_OF_ONE_PORT);
    assert_eq!(lab.counted(Count::PortHalfOpen), u64::from(FLOOD - SHARE_OF_ONE_PORT));
    // What is answered counts no longer, so others begin connections as long as these are.
    lab.port = 1;
    (0..2 * SHARE).for_each(|n| lab.establish(1, n));
    assert_eq!(lab.flood(1, 3), SHARE_OF_ONE_PORT / 2, "half of what the first one left");
    lab.port = 1;
    lab.establish(1, 2 * SHARE);
    assert_eq!(lab.counted(Count::HalfOpen), 0, "the zone is never full");
}

#[test]
fn a_port_has_no_more_in_many_zones_than_one_zone_may_have() {
    let mut lab = Lab::new();
    let all: u32 = (1..20).map(|zone| lab.flood(zone, 2)).sum();
    assert!((SHARE_OF_ONE_PORT..=SHARE).contains(&all), "{all}");
    lab.port = 1;
    (1..20).for_each(|zone| lab.establish(zone, 1));
}

#[test]
fn what_a_flush_ends_is_the_ports_no_more() {
    let mut lab = Lab::new();
    assert_eq!(lab.flood(1, 2), SHARE_OF_ONE_PORT);
    lab.table.flush_zone(1);
    while !lab.keeper.tend(lab.now, 10_000) {}
    assert_eq!(lab.flood(1, 2), SHARE_OF_ONE_PORT);
    lab.now += 32_000;
    while !lab.keeper.tend(lab.now, 10_000) {}
    assert_eq!((lab.table.len(), lab.flood(1, 2)), (0, SHARE_OF_ONE_PORT), "nor what timed out");
}

#[test]
fn ports_that_are_used_again_leave_memory_to_others() {
    const CONNECTIONS: u32 = TOTAL / 8 * 7;
    let mut lab = Lab::new();
    // A round replaces the connections of the one before, which have not expired: together more
    // than there is memory for.
    for round in 0..32 {
        (0..CONNECTIONS).for_each(|n| lab.establish(1, n));
        (0..CONNECTIONS).for_each(|n| _ = lab.send(1, segment(n, true, RST, 101, 501)));
        lab.now += 2_000;
        while !lab.keeper.tend(lab.now, 10_000) {}
        assert_eq!(lab.counted(Count::Full), 0, "round {round}");
    }
    assert!(lab.table.len() <= CONNECTIONS);
}

/// A station connects from one port again and again, before the keeper looks at what ended.
#[test]
fn a_port_that_is_used_again_leaves_its_bucket_to_others() {
    let mut lab = Lab::new();
    for _ in 0..1000 {
        lab.establish(1, 7);
        lab.send(1, segment(7, true, RST, 101, 501));
    }
    assert_eq!(lab.counted(Count::Full), 0);
    let buckets = lab.table.bucket_count();
    assert_eq!(lab.table.buckets(0..buckets).sum::<usize>(), 1);
}

#[test]
fn a_small_table_has_no_shares() {
    let mut lab = Lab::new();
    lab.table.limits.set_total(100);
    assert_eq!(lab.flood(1, 2), 100);
    assert_eq!(lab.counted(Count::PortHalfOpen), 0);
}

/// Ports that NAT has in these tests, for each server: whoever takes them all has each further
/// packet search them.
const NAT_PORTS: u16 = 100;

impl Lab {
    /// Sends the first packet of connection `n` to a server, with a translation of its source;
    /// true: it got one.
    fn translate(&mut self, n: u16, server: u8) -> bool {
        let addresses = Some(([9, 9, 9, 9].into(), [9, 9, 9, 9].into()));
        let ports = Some((2000, 2000 + NAT_PORTS - 1));
        let nat = Some(Nat { side: Some(NatSide::Source), addresses, ports, ..Nat::default() });
        let ct = Ct { zone: 1, commit: true, nat, ..Ct::default() };
        let (mut data, mut meta) = (segment(n.into(), true, SYN, 100, 0), Meta::default());
        data[19] = server;
        let (ip, came) =
            (IpHeader { l3: 0, sound: true }, Arrival { port: self.port, now: self.now });
        let before = self.table.zone_len(1);
        let _ = track(&mut self.worker, &ct, &mut data, ip, &mut meta, came);
        self.table.zone_len(1) > before
    }

    /// As many connections to a server, each in a millisecond of its own.
    fn take_ports(&mut self, server: u8, ports: u16) {
        for n in 0..ports {
            self.now += 1;
            assert!(self.translate(n, server), "{n} of {server}");
        }
    }
}

/// Who has taken all ports of one server has little time of the worker to search for more, and so
/// may not find the last one of another server; other ports do.
#[test]
fn searches_of_one_port_that_find_nothing_are_bounded() {
    const SERVERS: u8 = 8;
    let mut lab = Lab::new();
    lab.take_ports(0, NAT_PORTS);
    let mut found = 0;
    for server in 1..=SERVERS {
        lab.take_ports(server, NAT_PORTS - 1);
        lab.now += 1;
        assert!((1000..1100).all(|n| !lab.translate(n, 0)), "all ports are taken");
        let got = lab.translate(NAT_PORTS, server);
        found += u8::from(got);
        lab.port = 2;
        assert!(got || lab.translate(NAT_PORTS, server), "another port has its own tries");
        lab.port = 1;
    }
    assert!(found < SERVERS, "tries of a millisecond were used up");
}
