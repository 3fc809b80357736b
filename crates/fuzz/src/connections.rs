//! IP packets through `ct`: the table that packet threads share against its slow twin.

use crate::within;
use action::{Ct, Nat, NatSide};
use conntrack::{Arrival, CLASSES, IpHeader, Keeper, Meta, Model, Store, Table, Worker, track};
use std::cell::RefCell;
use std::sync::Arc;
use sync::{Domain, Reader};

/// Packets of one input.
const PACKETS_MOST: usize = 64;
/// Milliseconds that one packet may take.
const PACKET_MS_MOST: u64 = 20;
/// The policy of all connections, its timeouts, and longer than those.
const POLICY: u32 = 1;
const TIMEOUT_SECONDS: u32 = 60;
const ALL_ENDED_MS: u64 = 70_000;
/// Steps of the keeper at a time.
const STEPS: usize = 10_000;
const ZONES: u16 = 4;

struct Lab {
    table: Arc<Table>,
    keeper: Keeper,
    worker: Worker,
    reader: Reader,
    model: Model,
    now: u64,
}

impl Lab {
    fn new() -> Lab {
        let (domain, table) = (Domain::new(), Arc::new(Table::new()));
        let (reader, now) = (domain.reader(), 1_000_000);
        let keeper = Keeper::new(&table, domain, now);
        let model = Model::default();
        for policies in [&table.policies, &model.policies] {
            policies.set(POLICY, &[Some(TIMEOUT_SECONDS); CLASSES]);
        }
        Lab { worker: Worker::new(&table), table, keeper, reader, model, now }
    }

    /// Nothing is known any more.
    fn clear(&mut self) {
        (0..ZONES).for_each(|zone| self.table.flush_zone(zone));
        self.model.flush(None);
        self.tend();
    }

    fn tend(&mut self) {
        self.reader.quiescent();
        while !self.keeper.tend(self.now, STEPS) {}
        assert_eq!(self.table.len() as usize, self.model.all(self.now).count());
    }
}

thread_local! {
    static LAB: RefCell<Lab> = RefCell::new(Lab::new());
}

/// What is asked for: bits of two bytes.
fn asked(what: u8, more: u8) -> Ct {
    let address = std::net::IpAddr::from([10, 0, 0, 9]);
    // One address and one port: which of several is taken depends on each table's key.
    let side = |side| Nat {
        side: Some(side),
        addresses: Some((address, address)),
        ports: Some((7, 7)),
        ..Nat::default()
    };
    let nat = match more & 3 {
        1 => Some(Nat::default()),
        2 => Some(side(NatSide::Source)),
        3 => Some(side(NatSide::Destination)),
        _ => None,
    };
    let translates = more & 2 != 0;
    Ct {
        zone: u16::from(what) % ZONES,
        commit: what & 12 != 0 || translates,
        force: what & 8 != 0,
        mark: (u32::from(more >> 4), 0xf),
        label: (u128::from(more >> 4) << 100, 0xf << 100),
        timeout: Some(POLICY),
        nat,
        ..Ct::default()
    }
}

/// What a packet learns and becomes.
fn tracked<S: Store>(
    store: &mut S,
    list: &[Ct],
    data: &[u8],
    sound: bool,
    now: u64,
) -> (impl PartialEq + std::fmt::Debug, Vec<u8>) {
    let (mut data, mut meta, mut all) = (data.to_vec(), Meta::default(), Vec::new());
    for ct in list {
        let edit = track(
            store,
            ct,
            &mut data,
            IpHeader { l3: 0, sound },
            &mut meta,
            Arrival { port: 1, now },
        );
        let edit = edit.map(|e| format!("{e:?}"));
        all.push((edit, meta.state, meta.zone, meta.mark, meta.label, meta.tuple));
    }
    (all, data)
}

pub fn run(data: &[u8]) {
    LAB.with_borrow_mut(|lab| {
        lab.clear();
        let mut rest = data;
        for _ in 0..PACKETS_MOST {
            let Some(([what, more, len], tail)) = rest.split_first_chunk::<3>() else { break };
            let (packet, tail) = tail.split_at(usize::from(*len).min(tail.len()));
            rest = tail;
            if what & 0x80 != 0 {
                lab.now += ALL_ENDED_MS;
                lab.tend();
            }
            let mut list = vec![asked(*what, *more)];
            if what & 0x40 != 0 {
                list.push(asked(what >> 2, more >> 2));
            }
            let (sound, now) = (what & 0x30 != 0, lab.now);
            let ours = within(PACKET_MS_MOST, "a packet", || {
                tracked(&mut lab.worker, &list, packet, sound, now)
            });
            let (all, bytes) = tracked(&mut lab.model, &list, packet, sound, now);
            assert_eq!(format!("{:?}", ours.0), format!("{all:?}"), "the twin differs");
            assert_eq!(ours.1, bytes, "the twin's packet differs");
        }
    });
}

pub fn seeds() -> Vec<Vec<u8>> {
    use testkit::{Frame, L4, Net, V4, V6};
    const HERE: [u8; 4] = [10, 0, 0, 1];
    const THERE: [u8; 4] = [10, 0, 0, 2];
    let ip = |net| Frame::new([2; 6], [4; 6], net).bytes()[14..].to_vec();
    let v4 = |forth: bool, l4| {
        let (a, b) = if forth { (HERE, THERE) } else { (THERE, HERE) };
        ip(Net::V4(V4::new(a, b, l4)))
    };
    let v6 = |forth: bool, l4| {
        let (a, b) = if forth { ([1; 16], [2; 16]) } else { ([2; 16], [1; 16]) };
        ip(Net::V6(V6::new(a, b, l4)))
    };
    let one = |what: u8, more: u8, packet: Vec<u8>| {
        [vec![what, more, packet.len() as u8], packet].concat()
    };
    let tcp = |forth: bool, seq, ack, flags| {
        let (from, to) = if forth { (9, 80) } else { (80, 9) };
        L4::Tcp(from, to, seq, ack, flags, vec![])
    };
    let steps = [
        (true, 100, 0, 2),
        (false, 500, 101, 18),
        (true, 101, 501, 16),
        (true, 101, 501, 17),
        (false, 501, 102, 17),
    ];
    let mut all = Vec::new();
    for more in [0, 1, 2, 3] {
        let dialogue = |six: bool| {
            let each = steps.iter().map(|(forth, seq, ack, flags)| {
                let l4 = tcp(*forth, *seq, *ack, *flags);
                one(0x14, more, if six { v6(*forth, l4) } else { v4(*forth, l4) })
            });
            each.collect::<Vec<_>>().concat()
        };
        all.extend([dialogue(false), dialogue(true)]);
        let udp = |forth: bool| {
            let (from, to) = if forth { (5, 53) } else { (53, 5) };
            v4(forth, L4::Udp(from, to, vec![1; 4]))
        };
        let begun = udp(true);

        let error = v4(false, L4::Icmp(3, 3, [0; 4], begun));
        all.push(
            [
                one(4, more, udp(true)),
                one(0x41, 0, udp(false)),
                one(0x14, more, error),
                one(0x84, 0, udp(false)),
            ]
            .concat(),
        );
    }
    let echo = |kind: u8| L4::Icmp(kind, 0, [0, 7, 0, 1], vec![]);
    all.push(
        [
            one(0x14, 0, v4(true, echo(8))),
            one(0x14, 0, v4(false, echo(0))),
            one(0x1c, 0, v4(false, echo(8))),
        ]
        .concat(),
    );
    all
}
