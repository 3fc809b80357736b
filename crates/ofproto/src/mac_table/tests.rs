//! Tests of the MAC table: what it learns and forgets, for whom, and how much work that is.

use super::*;
use crate::growth::GROWN_ENTRIES;
use crate::mac_index::MacIndex;
use openflow::port;
use sync::{Domain, Writer};

const SECOND: u64 = 1_000_000_000;

fn mac(i: u64) -> [u8; 6] {
    i.to_be_bytes()[2..].try_into().unwrap()
}

/// An index with who writes it.
struct Index(MacIndex, Writer);

impl Index {
    fn writer(&self) -> MacWriter<'_> {
        self.0.writer(self.1.pin())
    }

    fn find(&self, vlan: u16, mac: [u8; 6]) -> Option<u32> {
        self.0.find(self.1.pin(), vlan, mac)
    }
}

fn table(max: usize) -> (Index, MacTable) {
    let writer = Domain::new().writer();
    (Index(MacIndex::new(writer.domain().clone(), 4), writer), MacTable::new(max, 300))
}

#[test]
fn learns_moves_ages_and_evicts() {
    let (index, mut t) = table(4);
    assert_eq!(t.learn(index.writer(), 1, mac(1), 7, 0), Learned::New);
    assert_eq!(t.learn(index.writer(), 1, mac(1), 7, 5), Learned::Refreshed);
    assert_eq!(t.learn(index.writer(), 1, mac(1), 8, 6), Learned::Moved);
    assert_eq!(index.find(1, mac(1)), Some(8));
    assert_eq!(index.find(2, mac(1)), None);
    for i in 2..5 {
        t.learn(index.writer(), 1, mac(i), 1, SECOND);
    }
    assert_eq!(t.learn(index.writer(), 1, mac(9), 2, SECOND), Learned::Evicted(1, mac(2)));
    assert_eq!(index.find(1, mac(2)), None);
    assert_eq!(t.expire(index.writer(), 301 * SECOND, 2).len(), 2);
    assert_eq!(t.expire(index.writer(), 301 * SECOND, 9).len(), 2);
    assert_eq!((t.stats().current, t.stats().moved, t.stats().expired), (0, 1, 4));
}

#[test]
fn survives_churn() {
    let (index, mut t) = table(64);
    for i in 0..10_000 {
        t.learn(index.writer(), 0, mac(i), i as u32, i);
        assert_eq!(index.find(0, mac(i)), Some(i as u32));
    }
    assert_eq!((t.entries().len(), t.stats().evicted), (64, 10_000 - 64));
    for e in t.entries() {
        assert_eq!(index.find(0, e.mac), Some(e.port));
    }
}

#[test]
fn the_port_with_the_most_entries_gives_up_its_oldest() {
    let (index, mut t) = table(100);
    for i in 0..10 {
        t.learn(index.writer(), 10, mac(i), 1, i);
    }
    for i in 1000..1100 {
        t.learn(index.writer(), 20, mac(i), 3, i);
    }
    assert!((0..10).all(|i| index.find(10, mac(i)) == Some(1)), "port 1 pays for port 3");
    assert!((1000..1010).all(|i| index.find(20, mac(i)).is_none()), "not the oldest went");
    // Seen again, an entry is no more the oldest; a newcomer's room comes from the largest as well.
    t.learn(index.writer(), 20, mac(1010), 3, 2000);
    assert_eq!(t.learn(index.writer(), 10, mac(11), 2, 2001), Learned::Evicted(20, mac(1011)));
    assert_eq!(index.find(20, mac(1010)), Some(3));
}

#[test]
fn static_entries_neither_move_nor_age_nor_are_evicted() {
    let (index, mut t) = table(2);
    t.learn(index.writer(), 0, mac(1), 5, 0);
    t.add_static(index.writer(), 0, mac(1), 6, 0);
    t.add_static(index.writer(), 0, mac(2), 6, 0);
    assert_eq!(t.learn(index.writer(), 0, mac(1), 5, 1), Learned::Refused);
    assert_eq!(t.learn(index.writer(), 0, mac(3), 5, 1), Learned::Refused, "no room");
    assert!(
        t.expire(index.writer(), 1000 * SECOND, 10).is_empty()
            && t.flush(index.writer()) == Some(vec![])
    );
    assert_eq!((t.stats().current, t.stats().fixed), (2, 2));
    t.remove_port(index.writer(), 6, 0);
    assert_eq!((t.stats().current, t.stats().fixed, index.find(0, mac(1))), (0, 0, None));
}

#[test]
fn a_port_teaches_a_burst_and_then_its_rate() {
    let (index, mut t) = table(8192);
    let mut next = 0;
    let mut flood = |t: &mut MacTable, n: u64, now: u64| {
        (0..n)
            .filter(|_| {
                (t.learn(index.writer(), 0, mac(next), 1, now), next += 1).0 != Learned::Limited
            })
            .count()
    };
    assert_eq!(flood(&mut t, 20_000, SECOND), 8192, "a whole table at once");
    assert_eq!(flood(&mut t, 20_000, 2 * SECOND), LEARN_RATE_MACS_PER_SECOND as usize);
    let passed_over = 40_000 - 8192 - LEARN_RATE_MACS_PER_SECOND;
    assert_eq!(t.limited().collect::<Vec<_>>(), [(1, passed_over)]);
    assert_eq!(t.take_limited(SECOND).count(), 1);
    t.passed_over(1, 7);
    assert_eq!(t.take_limited(60 * SECOND).count(), 0, "reported once a minute");
    assert_eq!(t.take_limited(61 * SECOND).collect::<Vec<_>>(), [(1, 7)]);
    // What it taught stays fresh, other ports are not affected, and moves cost as much as new
    // addresses do.
    let known = t.entries()[0];
    assert_eq!(t.learn(index.writer(), 0, known.mac, 1, 2 * SECOND), Learned::Refreshed);
    assert!(matches!(
        t.learn(index.writer(), 0, mac(1 << 40), 2, 2 * SECOND),
        Learned::Evicted(..)
    ));
    assert_eq!(t.learn(index.writer(), 0, mac(1 << 40), 1, 2 * SECOND), Learned::Limited);
    assert_eq!(t.learn(index.writer(), 0, known.mac, 2, 2 * SECOND), Learned::Moved);
}

/// Looks at entries per new address in a full table of `max`, flooded from one of two ports. No
/// growth until then moves very many.
fn steps(max: usize) -> u64 {
    let (index, mut t) = table(max);
    let n = max as u64;
    for i in 0..n {
        // Slowly enough to be no flood.
        let (before, room) = (t.nodes.steps.get(), t.by_mac.capacity());
        t.learn(index.writer(), 0, mac(i), (i % 2) as u32, i * LEARN_COST_NS);
        assert!(t.nodes.steps.get() - before <= 2 * GROWN_ENTRIES as u64, "{i}");
        assert!(t.by_mac.capacity() == room || i <= 2 * GROWN_ENTRIES as u64, "{i}");
    }
    assert_eq!(t.stats().current, max);
    let (mut most, mut now) = (0, n * LEARN_COST_NS);
    for i in n..n + 1000 {
        now += LEARN_COST_NS;
        let before = t.nodes.steps.get();
        assert!(matches!(t.learn(index.writer(), 0, mac(i), 1, now), Learned::Evicted(..)));
        most = most.max(t.nodes.steps.get() - before);
    }
    most
}

#[test]
fn a_new_address_costs_the_same_in_a_table_of_any_size() {
    let (small, large) = (steps(8192), steps(1_000_000));
    assert!(small == large && small <= 8, "{small} looks at entries, {large} in the large table");
}

#[test]
fn a_flood_in_one_vlan_leaves_the_addresses_of_another() {
    use crate::VlanMode;
    let mut lab = crate::tests::Lab::new();
    lab.sw.install_default_flow(lab.br, 0).unwrap();
    for (port, tag) in [(2, 10), (3, 20), (4, 10)] {
        lab.port(port, VlanMode::Access(tag));
    }
    lab.send("in_port=2,udp,dl_src=02:00:00:00:0a:01,dl_dst=02:00:00:00:0a:02");
    (0..20_000).for_each(|i| lab.sw.learn(lab.br.0, 20, mac(i + (2 << 40)), 3, 2));
    assert_eq!(lab.sw.fdb_stats(lab.br).unwrap().current, 8192);
    let back = "in_port=4,udp,dl_src=02:00:00:00:0a:02,dl_dst=02:00:00:00:0a:01";
    assert_eq!(lab.send(back), "12", "it is not flooded");
    // What the packet side could not tell of is counted on the port, or at least somewhere.
    let before = lab.sw.macs_not_learned();
    assert_eq!(lab.sw.fdb_limited(lab.br).unwrap(), [(3, before)]);
    lab.sw.passed_over(13, 5);
    lab.sw.passed_over(999, 6);
    assert_eq!(lab.sw.fdb_limited(lab.br).unwrap(), [(3, before + 5)]);
    assert_eq!(lab.sw.macs_not_learned(), before + 11);
}

/// Where ports have as many addresses, those of ovs-vswitchd's test "MAC table overflow fairness"
/// give one up.
#[test]
fn of_ports_with_as_many_the_same_give_up_as_in_ovs() {
    let (index, mut t) = table(10);
    for i in 0..10 {
        t.learn(index.writer(), 0, mac(i), i as u32 / 2 + 1, i * SECOND);
    }
    for i in 10..26 {
        t.learn(index.writer(), 0, mac(i), 6, i * SECOND);
    }
    let mut left: Vec<_> = t.entries().iter().map(|e| (e.port, e.mac[5])).collect();
    left.sort_unstable();
    let old = [(1, 1), (2, 3), (3, 4), (3, 5), (4, 7), (5, 8), (5, 9)];
    assert_eq!(left, [&old[..], &[(6, 23), (6, 24), (6, 25)]].concat());
}

/// An iteration over a large table reads few places a turn, finds each remaining entry once, and no
/// removed entry.
#[test]
fn a_walk_over_the_table_looks_at_few_places_at_a_time() {
    const ENTRIES: u64 = 10_000;
    const LOOKS: usize = 64;
    let (index, mut t) = table(ENTRIES as usize);
    (0..ENTRIES).for_each(|i| _ = t.learn(index.writer(), 1, mac(i), (i % 500) as u32, i));
    let stays = |i: u64| !i.is_multiple_of(3);
    (0..ENTRIES).filter(|i| !stays(*i)).for_each(|i| _ = t.remove(index.writer(), 1, mac(i)));
    for enough in [1, 7, usize::MAX] {
        let (mut found, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let (before, steps) = (found.len(), t.nodes.steps.get());
            next = t.entries_from(from, LOOKS, &mut |e| {
                found.push(e.mac);
                found.len() - before < enough
            });
            assert!(t.nodes.steps.get() - steps <= LOOKS as u64);
            assert!(found.len() - before <= enough);
        }
        found.sort();
        assert!(found.into_iter().eq((0..ENTRIES).filter(|i| stays(*i)).map(mac)));
    }
}

const MANY: u64 = 100_000;

/// A full table, of which every second address is behind port 1.
fn full() -> (Index, MacTable) {
    let (index, mut t) = table(MANY as usize);
    (0..MANY).for_each(|i| _ = t.learn(index.writer(), 1, mac(i), 1 + (i % 2) as u32, i * SECOND));
    t.add_static(index.writer(), 1, mac(4), 1, 0);
    t.add_static(index.writer(), 2, mac(4), port::LOCAL, 0);
    (index, t)
}

/// Sweeps some entries at a time, and counts looks at entries.
fn sweep(index: &Index, t: &mut MacTable) {
    while t.unswept > 0 {
        let (unswept, before) = (t.unswept, t.nodes.steps.get());
        assert_eq!(t.sweep(index.writer(), 100), unswept.min(100));
        let steps = t.nodes.steps.get() - before;
        assert!(steps <= 500, "{steps} looks at entries");
    }
    assert!(t.unswept_ports.is_empty() && t.dead.ports.is_empty());
}

#[test]
fn what_is_flushed_is_dead_at_once_and_goes_some_at_a_time() {
    let (index, mut t) = full();
    let before = t.nodes.steps.get();
    assert_eq!(t.flush(index.writer()), None, "many");
    assert!(t.nodes.steps.get() - before <= 10);
    let fixed = [(1, mac(4), 1), (2, mac(4), port::LOCAL)];
    let there = |t: &MacTable| t.entries().into_iter().map(|e| (e.vlan, e.mac, e.port));
    assert!(
        there(&t).eq(fixed)
            && (0..MANY).filter(|i| *i != 4).all(|i| index.find(1, mac(i)).is_none())
    );
    assert_eq!((index.find(1, mac(4)), index.find(2, mac(4))), (Some(1), Some(port::LOCAL)));
    assert_eq!((t.stats().current, t.flush(index.writer())), (2, Some(vec![])));
    assert!(!t.remove_learned(index.writer(), 1, mac(7)) && !t.remove(index.writer(), 1, mac(8)));
    // What is learned now is new, moves no address, and evicts none.
    let now = 2 * MANY * SECOND;
    for i in [5, 6, MANY + 1] {
        assert_eq!(t.learn(index.writer(), 1, mac(i), 1, now), Learned::New);
        assert_eq!(index.find(1, mac(i)), Some(1));
    }
    assert!(t.by_mac.len() <= MANY as usize);
    let few = t.flush(index.writer()).unwrap();
    assert_eq!(few, [(1, mac(MANY + 1)), (1, mac(6)), (1, mac(5))]);
    assert_eq!(t.learn(index.writer(), 1, mac(6), 2, now), Learned::New);
    sweep(&index, &mut t);
    assert_eq!((t.by_mac.len(), t.stats().current, t.stats().fixed), (3, 3, 2));
    assert_eq!((index.find(1, mac(6)), index.find(1, mac(5)), t.stats().moved), (Some(2), None, 0));
}

#[test]
fn what_a_port_leaves_is_dead_at_once_and_goes_some_at_a_time() {
    let (index, mut t) = full();
    let before = t.nodes.steps.get();
    let learned = t.remove_port(index.writer(), 1, 1000);
    assert!(t.nodes.steps.get() - before <= 1020);
    assert_eq!((learned.len(), learned[0]), (1000, (1, mac(MANY - 2))), "the latest");
    let behind = |t: &MacTable, port| t.entries().iter().filter(|e| e.port == port).count();
    assert_eq!((behind(&t, 1), behind(&t, 2)), (0, MANY as usize / 2));
    assert_eq!((index.find(1, mac(6)), index.find(1, mac(7))), (None, Some(2)));
    // Another port under its number has what it teaches itself, and no more.
    let now = 2 * MANY * SECOND;
    assert_eq!(t.learn(index.writer(), 1, mac(6), 1, now), Learned::New);
    assert_eq!(t.learn(index.writer(), 1, mac(7), 1, now), Learned::Moved);
    assert_eq!(t.learn(index.writer(), 1, mac(8), 2, now), Learned::New);
    assert_eq!([6, 7, 8, 10].map(|i| index.find(1, mac(i))), [Some(1), Some(1), Some(2), None]);
    sweep(&index, &mut t);
    assert_eq!((behind(&t, 1), behind(&t, 2)), (2, MANY as usize / 2));
    assert_eq!([6, 7, 8, 10].map(|i| index.find(1, mac(i))), [Some(1), Some(1), Some(2), None]);
    assert_eq!(t.remove_port(index.writer(), 1, 1000), [(1, mac(7)), (1, mac(6))]);
    assert!(t.unswept == 0 && !t.ports.contains_key(&1));
}
