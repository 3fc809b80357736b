//! Learned addresses: a table that PMD threads read without a lock while one writer changes it.
//!
//! A slot is a tag (address and VLAN) and a value (port). The writer fills the value before the
//! tag; a reader that sees the same tag before and after reading the value has a value that
//! belonged to it. A removed slot keeps a tombstone; too many of them and the table is rebuilt.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sync::{Domain, Published};

const EMPTY: u64 = 0;
const TOMBSTONE: u64 = 1;

struct Slot {
    tag: AtomicU64,
    port: AtomicU32,
}

struct Slots {
    slots: Box<[Slot]>,
}

fn tag(vlan: u16, mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    // Bit 1 keeps a tag apart from EMPTY and TOMBSTONE.
    u64::from_be_bytes([a, b, c, d, e, f, 0, 0]) | u64::from(vlan & 0xfff) << 4 | 2
}

fn hash(tag: u64) -> usize {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

impl Slots {
    fn new(capacity: usize) -> Slots {
        let n = (capacity.max(8) * 2).next_power_of_two();
        let slot = || Slot { tag: AtomicU64::new(EMPTY), port: AtomicU32::new(0) };
        Slots { slots: (0..n).map(|_| slot()).collect() }
    }

    fn find(&self, tag: u64) -> Option<u32> {
        let mask = self.slots.len() - 1;
        for i in 0..=mask {
            let slot = &self.slots[(hash(tag) + i) & mask];
            match slot.tag.load(Ordering::Acquire) {
                EMPTY => return None,
                t if t == tag => {
                    let port = slot.port.load(Ordering::Acquire);
                    return (slot.tag.load(Ordering::Acquire) == tag).then_some(port);
                }
                _ => {}
            }
        }
        None
    }

    /// Sets a value; true when a fresh slot was taken.
    fn put(&self, tag: u64, port: u32) -> bool {
        let mask = self.slots.len() - 1;
        let at = |i| &self.slots[(hash(tag) + i) & mask];
        for i in 0..=mask {
            match at(i).tag.load(Ordering::Relaxed) {
                t if t == tag => {
                    at(i).port.store(port, Ordering::Release);
                    return false;
                }
                EMPTY => {
                    at(i).port.store(port, Ordering::Release);
                    at(i).tag.store(tag, Ordering::Release);
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    fn remove(&self, tag: u64) {
        let mask = self.slots.len() - 1;
        for i in 0..=mask {
            let slot = &self.slots[(hash(tag) + i) & mask];
            match slot.tag.load(Ordering::Relaxed) {
                t if t == tag => return slot.tag.store(TOMBSTONE, Ordering::Release),
                EMPTY => return,
                _ => {}
            }
        }
    }
}

/// The readers' side.
pub(crate) struct MacIndex {
    slots: Published<Slots>,
}

impl MacIndex {
    pub fn new(domain: Domain, capacity: usize) -> MacIndex {
        MacIndex { slots: Published::new(domain, Slots::new(capacity)) }
    }

    /// The OpenFlow port behind which an address was seen.
    pub fn find(&self, vlan: u16, mac: [u8; 6]) -> Option<u32> {
        // SAFETY: resolve() runs on an online reader, everything else on the writer.
        unsafe { self.slots.read() }.find(tag(vlan, mac))
    }
}

/// One learned or static address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacEntry {
    /// OpenFlow port.
    pub port: u32,
    /// VLAN id (0: untagged).
    pub vlan: u16,
    /// Address.
    pub mac: [u8; 6],
    /// When it was last seen, ns.
    pub used: u64,
    /// Set by hand (`fdb/add`): does not age or move.
    pub fixed: bool,
}

/// Counters of `fdb/stats-show`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MacStats {
    pub current: usize,
    pub fixed: usize,
    pub max: usize,
    pub learned: u64,
    pub expired: u64,
    pub evicted: u64,
    pub moved: u64,
}

/// The writer's side: ages, limits, statistics.
pub(crate) struct MacTable {
    entries: HashMap<(u16, [u8; 6]), MacEntry>,
    /// Slots taken since the index was built.
    taken: usize,
    pub max: usize,
    pub aging_ns: u64,
    stats: MacStats,
}

/// What a sighting changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// Nothing but the age.
    Refreshed,
    /// A new or moved address.
    Changed,
    /// An old address had to go to make room.
    Evicted(u16, [u8; 6]),
    /// A static entry, or the table is full of them.
    Refused,
}

impl MacTable {
    pub fn new(max: usize, aging_s: u32) -> MacTable {
        MacTable {
            entries: HashMap::new(),
            taken: 0,
            max: max.max(1),
            aging_ns: u64::from(aging_s) * 1_000_000_000,
            stats: MacStats::default(),
        }
    }

    /// Records that (`vlan`,`mac`) was seen on `port`.
    pub fn learn(
        &mut self,
        index: &MacIndex,
        vlan: u16,
        mac: [u8; 6],
        port: u32,
        now: u64,
    ) -> Learned {
        if let Some(e) = self.entries.get_mut(&(vlan, mac)) {
            if e.fixed {
                return Learned::Refused;
            }
            e.used = e.used.max(now);
            if e.port == port {
                return Learned::Refreshed;
            }
            e.port = port;
            self.stats.moved += 1;
            self.index(index, vlan, mac, port);
            return Learned::Changed;
        }
        let evicted = match self.entries.len() >= self.max {
            true => match self.evict(index) {
                None => return Learned::Refused,
                e => e,
            },
            false => None,
        };
        self.stats.learned += 1;
        self.entries.insert((vlan, mac), MacEntry { port, vlan, mac, used: now, fixed: false });
        self.index(index, vlan, mac, port);
        evicted.map_or(Learned::Changed, |(v, m)| Learned::Evicted(v, m))
    }

    /// Puts a static entry.
    pub fn add_static(&mut self, index: &MacIndex, vlan: u16, mac: [u8; 6], port: u32, now: u64) {
        self.entries.insert((vlan, mac), MacEntry { port, vlan, mac, used: now, fixed: true });
        self.index(index, vlan, mac, port);
    }

    /// Removes an entry, static or not.
    pub fn remove(&mut self, index: &MacIndex, vlan: u16, mac: [u8; 6]) -> bool {
        self.unindex(index, vlan, mac);
        self.entries.remove(&(vlan, mac)).is_some()
    }

    fn evict(&mut self, index: &MacIndex) -> Option<(u16, [u8; 6])> {
        let oldest = self.entries.values().filter(|e| !e.fixed).min_by_key(|e| e.used)?;
        let key = (oldest.vlan, oldest.mac);
        self.stats.evicted += 1;
        self.remove(index, key.0, key.1);
        Some(key)
    }

    fn index(&mut self, index: &MacIndex, vlan: u16, mac: [u8; 6], port: u32) {
        // SAFETY: this is the only writer.
        let slots = unsafe { index.slots.read() };
        if self.taken * 4 >= slots.slots.len() * 3 {
            return self.rebuild(index);
        }
        if slots.put(tag(vlan, mac), port) {
            self.taken += 1;
        }
    }

    fn unindex(&self, index: &MacIndex, vlan: u16, mac: [u8; 6]) {
        // SAFETY: this is the only writer.
        unsafe { index.slots.read() }.remove(tag(vlan, mac));
    }

    fn rebuild(&mut self, index: &MacIndex) {
        let slots = Slots::new(self.entries.len().max(1) * 2);
        for e in self.entries.values() {
            slots.put(tag(e.vlan, e.mac), e.port);
        }
        self.taken = self.entries.len();
        index.slots.publish(slots);
    }

    /// Removes what `gone` selects (static entries too); returns the removed.
    pub fn remove_if(
        &mut self,
        index: &MacIndex,
        gone: impl Fn(&MacEntry) -> bool,
    ) -> Vec<MacEntry> {
        let out: Vec<MacEntry> = self.entries.values().filter(|e| gone(e)).copied().collect();
        for e in &out {
            self.remove(index, e.vlan, e.mac);
        }
        out
    }

    /// Removes what is too old.
    pub fn expire(&mut self, index: &MacIndex, now: u64) -> Vec<MacEntry> {
        let age = self.aging_ns;
        let out = self.remove_if(index, |e| !e.fixed && now.saturating_sub(e.used) >= age);
        self.stats.expired += out.len() as u64;
        out
    }

    pub fn entries(&self) -> Vec<MacEntry> {
        let mut out: Vec<MacEntry> = self.entries.values().copied().collect();
        out.sort_by_key(|e| (e.vlan, e.mac));
        out
    }

    pub fn stats(&self) -> MacStats {
        let fixed = self.entries.values().filter(|e| e.fixed).count();
        MacStats { current: self.entries.len(), fixed, max: self.max, ..self.stats }
    }

    pub fn clear_stats(&mut self) {
        self.stats = MacStats::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(i: u64) -> [u8; 6] {
        i.to_be_bytes()[2..].try_into().unwrap()
    }

    #[test]
    fn learns_moves_ages_and_evicts() {
        let d = Domain::new();
        let index = MacIndex::new(d, 4);
        let mut t = MacTable::new(4, 300);
        assert_eq!(t.learn(&index, 1, mac(1), 7, 0), Learned::Changed);
        assert_eq!(t.learn(&index, 1, mac(1), 7, 5), Learned::Refreshed);
        assert_eq!(t.learn(&index, 1, mac(1), 8, 6), Learned::Changed);
        assert_eq!(index.find(1, mac(1)), Some(8));
        assert_eq!(index.find(2, mac(1)), None);
        for i in 2..5 {
            t.learn(&index, 1, mac(i), 1, 10);
        }
        assert_eq!(t.learn(&index, 1, mac(9), 1, 11), Learned::Evicted(1, mac(1)));
        assert_eq!(index.find(1, mac(1)), None);
        assert_eq!(t.expire(&index, 300_000_000_010).len(), 3);
        assert_eq!(t.stats().current, 1);
    }

    #[test]
    fn survives_churn() {
        let index = MacIndex::new(Domain::new(), 16);
        let mut t = MacTable::new(64, 1);
        for i in 0..10_000 {
            t.learn(&index, 0, mac(i), i as u32, i);
            assert_eq!(index.find(0, mac(i)), Some(i as u32));
        }
        for i in 10_000 - 64..10_000 {
            assert_eq!(index.find(0, mac(i)), Some(i as u32));
        }
        assert_eq!(index.find(0, mac(3)), None);
    }
}
