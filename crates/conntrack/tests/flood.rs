//! Connections that are begun and never answered, and a table that is full: what others have stays.

use action::Ct;
use conntrack::{At, Count, Keeper, Meta, Table, Worker, state, track};
use std::sync::Arc;
use sync::{Domain, Reader};
use wire::IP_TCP;
use wire::tcp_flags::{ACK, SYN};

/// Connections that there may be in these tests; a quarter may be half-open in one zone.
const TOTAL: u32 = 8192;
const SHARE: u32 = TOTAL / 4;

struct Lab {
    table: Arc<Table>,
    keeper: Keeper,
    worker: Worker,
    reader: Reader,
    now: u64,
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
        Lab { worker: Worker::new(&table), table, keeper, reader, now: 0 }
    }

    /// Sends a packet through a zone, with commit; its state.
    fn send(&mut self, zone: u16, mut data: Vec<u8>) -> u8 {
        let (ct, mut meta) = (Ct { zone, commit: true, ..Ct::default() }, Meta::default());
        let _ =
            track(&mut self.worker, &ct, &mut data, At { l3: 0, sound: true }, &mut meta, self.now);
        // What the keeper's thread and the worker's loop do.
        self.reader.quiescent();
        self.keeper.tend(self.now, 64);
        meta.state & !state::TRK
    }

    fn begin(&mut self, zone: u16, n: u32) -> u8 {
        self.send(zone, segment(n, true, SYN, 100, 0))
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
    (1000..1000 + TOTAL).for_each(|n| _ = lab.begin(1, n));
    assert_eq!(lab.table.zone_len(1), 100 + SHARE, "no more than a quarter");
    assert!((0..100).all(|n| lab.is_established(1, n)));
    // Other zones begin connections as before.
    (0..1000).for_each(|n| lab.establish(2, n));
    assert_eq!(lab.table.len(), 1100 + SHARE);
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
    for zone in 2..10 {
        (0..SHARE).for_each(|n| _ = lab.begin(zone, n));
    }
    assert_eq!(lab.table.len(), TOTAL, "full");
    let buckets = lab.table.bucket_count();
    (0..2 * TOTAL).for_each(|n| _ = lab.begin(20, n));
    assert_eq!((lab.table.len(), lab.table.zone_len(20)), (TOTAL, 0));
    assert_eq!(lab.table.bucket_count(), buckets, "what is refused takes no memory");
    assert!(lab.counted(Count::Full) >= u64::from(2 * TOTAL));
    assert!((0..500).all(|n| lab.is_established(1, n)));
}
