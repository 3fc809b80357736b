//! A bridge's learned addresses as PMD threads read them: without a lock, while one writer changes
//! them.
//!
//! An address is in one of two buckets of eight slots, which a keyed hash names: a reader examines
//! sixteen slots at most, whatever addresses there are. A slot is a tag (address and VLAN) and a
//! value: the port, and the generation of entries in which it was learned. Entries of generations
//! that ended are dead, though they are still there. The writer writes the value before the tag; a
//! reader that reads the same tag before and after the value has a value that belonged to the tag.
//! Removing an address empties its slot. When both buckets of an address are full, or half of all
//! slots are in use, the writer publishes a larger index under another key.

use crate::growth::GROWN_ENTRIES;
use openflow::{OfPort, port};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sync::{Domain, Guard, Published};

/// Slots of one bucket: eight tags fill a cache line.
const BUCKET_SLOTS: usize = 8;
/// The tag of an empty slot.
const EMPTY: u64 = 0;

#[repr(align(64))]
#[derive(Default)]
struct Bucket {
    tags: [AtomicU64; BUCKET_SLOTS],
    places: [AtomicU64; BUCKET_SLOTS],
}

impl Bucket {
    fn position(&self, tag: u64) -> Option<usize> {
        self.tags.iter().position(|t| t.load(Ordering::Acquire) == tag)
    }

    fn free(&self) -> usize {
        self.tags.iter().filter(|t| t.load(Ordering::Relaxed) == EMPTY).count()
    }
}

struct Slots {
    /// The buckets; their number is a power of two.
    buckets: Arc<[Bucket]>,
    /// Secret keys of the hash, so that senders cannot choose addresses that collide.
    keys: [u64; 2],
    dead: Dead,
}

/// Where an address is: its OpenFlow port, and in which generation that was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LearnedPort(u64);

/// Bits of a [`LearnedPort`] with the port; the bridge's own has the 16-bit number of OpenFlow 1.0
/// there.
const PORT_BITS: u32 = 16;
const LOCAL_16: u64 = port::LOCAL as u64 & 0xffff;

impl LearnedPort {
    pub fn new(port: OfPort, generation: u64) -> LearnedPort {
        LearnedPort(generation << PORT_BITS | u64::from(port) & 0xffff)
    }

    fn port(self) -> OfPort {
        match self.0 & 0xffff {
            LOCAL_16 => port::LOCAL,
            port => port as OfPort,
        }
    }

    fn generation(self) -> u64 {
        self.0 >> PORT_BITS
    }
}

/// Which learned addresses are dead, though they are still in the table: by the generation in
/// which they were learned.
#[derive(Clone, Default)]
pub(crate) struct Dead {
    /// Addresses of generations before this one are dead, whatever their port.
    pub all: u64,
    /// Addresses of a port (OpenFlow number) of generations before the one given here are dead.
    pub ports: BTreeMap<OfPort, u64>,
}

impl Dead {
    pub fn includes(&self, port: OfPort, generation: u64) -> bool {
        generation < self.all || self.ports.get(&port).is_some_and(|end| generation < *end)
    }
}

fn tag(vlan: u16, mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    // Bit 1 makes every tag differ from EMPTY.
    u64::from_be_bytes([a, b, c, d, e, f, 0, 0]) | u64::from(vlan & 0xfff) << 4 | 2
}

impl Slots {
    /// Slots for `entries` addresses: at least twice as many.
    fn new(entries: usize) -> Slots {
        let n = (entries * 2 / BUCKET_SLOTS).next_power_of_two().max(2);
        let secret = RandomState::new();
        let keys = [secret.hash_one(1u8), secret.hash_one(2u8) | 1];
        let buckets = (0..n).map(|_| Bucket::default()).collect();
        Slots { buckets, keys, dead: Dead::default() }
    }

    fn room(&self) -> usize {
        self.buckets.len() * BUCKET_SLOTS
    }

    /// The two buckets in which a tag may be.
    fn buckets(&self, tag: u64) -> [&Bucket; 2] {
        let product = u128::from(tag ^ self.keys[0]) * u128::from(self.keys[1]);
        let hash = product as u64 ^ (product >> 64) as u64;
        let mask = self.buckets.len() - 1;
        let (a, b) = (hash as usize & mask, (hash >> 32) as usize & mask);
        let b = if a == b { (b + 1) & mask } else { b };
        [&self.buckets[a], &self.buckets[b]]
    }

    fn find(&self, tag: u64) -> Option<OfPort> {
        let found = |b: &Bucket| {
            let i = b.position(tag)?;
            let place = b.places[i].load(Ordering::Acquire);
            (b.tags[i].load(Ordering::Acquire) == tag).then_some(LearnedPort(place))
        };
        let place = self.buckets(tag).into_iter().find_map(found)?;
        (!self.dead.includes(place.port(), place.generation())).then(|| place.port())
    }

    /// Sets a value; false: there is no room.
    fn put(&self, tag: u64, place: LearnedPort) -> bool {
        let both = self.buckets(tag);
        let known = both.iter().find_map(|b| Some((b, b.position(tag)?)));
        let emptier = if both[1].free() > both[0].free() { &both[1] } else { &both[0] };
        let Some((b, i)) = known.or_else(|| Some((emptier, emptier.position(EMPTY)?))) else {
            return false;
        };
        b.places[i].store(place.0, Ordering::Release);
        b.tags[i].store(tag, Ordering::Release);
        true
    }

    fn remove(&self, tag: u64) {
        for b in self.buckets(tag) {
            if let Some(i) = b.position(tag) {
                b.tags[i].store(EMPTY, Ordering::Release);
            }
        }
    }
}

/// A bridge's learned addresses, for readers. The writer is the bridge's
/// [`super::mac_table::MacTable`].
pub(crate) struct MacIndex {
    slots: Published<Slots>,
}

impl MacIndex {
    /// An empty index with room for `entries` before it grows.
    pub fn new(domain: Domain, entries: usize) -> MacIndex {
        MacIndex { slots: Published::new(domain, Slots::new(entries)) }
    }

    /// The OpenFlow port behind which an address was seen.
    pub fn find(&self, guard: Guard<'_>, vlan: u16, mac: [u8; 6]) -> Option<OfPort> {
        self.slots.read(guard).find(tag(vlan, mac))
    }

    /// The writer's access. There is only one writer.
    pub fn writer<'a>(&'a self, guard: Guard<'a>) -> MacWriter<'a> {
        MacWriter { index: self, guard }
    }
}

/// The writer's access to an index.
#[derive(Clone, Copy)]
pub(crate) struct MacWriter<'a> {
    index: &'a MacIndex,
    guard: Guard<'a>,
}

impl MacWriter<'_> {
    fn slots(&self) -> &Slots {
        self.index.slots.read(self.guard)
    }

    /// Sets the place of an address; false: the index has to grow first ([`MacWriter::rebuild`]).
    /// `entries`: number of addresses, this one included.
    pub fn put(self, (vlan, mac, place): (u16, [u8; 6], LearnedPort), entries: usize) -> bool {
        let slots = self.slots();
        entries * 2 <= slots.room() && slots.put(tag(vlan, mac), place)
    }

    /// Publishes which entries are dead.
    pub fn kill(self, dead: &Dead) {
        let Slots { buckets, keys, .. } = self.slots();
        let (buckets, keys, dead) = (buckets.clone(), *keys, dead.clone());
        self.index.slots.publish(Slots { buckets, keys, dead });
    }

    /// Removes an address.
    pub fn remove(self, vlan: u16, mac: [u8; 6]) {
        self.slots().remove(tag(vlan, mac));
    }

    /// Publishes an index of these addresses (VLAN, address, place) with at least twice the room;
    /// if they are many, with room for `max`.
    pub fn rebuild(
        self,
        all: impl Iterator<Item = (u16, [u8; 6], LearnedPort)> + Clone,
        max: usize,
    ) {
        let room = self.slots().room();
        let mut entries = if room > GROWN_ENTRIES { room.max(max) } else { room };
        loop {
            let slots = Slots { dead: self.slots().dead.clone(), ..Slots::new(entries) };
            if all.clone().all(|(vlan, mac, place)| slots.put(tag(vlan, mac), place)) {
                return self.index.slots.publish(slots);
            }
            entries *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(i: u32) -> [u8; 6] {
        let [a, b, c, d] = i.to_be_bytes();
        [2, 0, a, b, c, d]
    }

    /// The number in the bytes that a vendor's prefix fills elsewhere.
    fn high(i: u32) -> [u8; 6] {
        let [_, b, c, d] = i.to_be_bytes();
        [d & 0xfe, c, b, d, 0, 0]
    }

    #[test]
    fn half_full_means_two_buckets_suffice() {
        for make in [mac, high] {
            let slots = Slots::new(1 << 14);
            let tags: std::collections::BTreeSet<u64> =
                (0..1u32 << 14).map(|i| tag((i & 0xfff) as u16, make(i))).collect();
            let placed = tags
                .iter()
                .filter(|t| slots.put(**t, LearnedPort::new(**t as u16 as u32, 0)))
                .count();
            assert!(placed + 1 >= tags.len(), "{placed} of {}", tags.len());
            let found = tags
                .iter()
                .filter(|t| slots.find(**t) == Some(LearnedPort::new(**t as u16 as u32, 0).port()))
                .count();
            assert_eq!(found, placed);
            tags.iter().for_each(|t| slots.remove(*t));
            assert!(slots.buckets.iter().all(|b| b.free() == BUCKET_SLOTS));
        }
    }

    #[test]
    fn two_indexes_place_one_address_differently() {
        let places = |s: &Slots| -> Vec<usize> {
            let base = s.buckets.as_ptr() as usize;
            (0..64).map(|i| s.buckets(tag(0, mac(i)))[0] as *const _ as usize - base).collect()
        };
        assert_ne!(places(&Slots::new(4096)), places(&Slots::new(4096)), "the hash is keyed");
    }

    #[test]
    fn grows_when_half_full() {
        let domain = Domain::new().writer();
        let index = MacIndex::new(domain.domain().clone(), 8);
        let (guard, writer) = (domain.pin(), index.writer(domain.pin()));
        let put = |i: u32| writer.put((0, mac(i), LearnedPort::new(i, 0)), i as usize + 1);
        assert!((0..8).all(put));
        assert!(!put(8));
        writer.rebuild((0..8).map(|i| (0, mac(i), LearnedPort::new(i, 0))), 9);
        assert!(put(8));
        assert!((0..9).all(|i| index.find(guard, 0, mac(i)) == Some(i)));
        writer.remove(0, mac(3));
        assert_eq!((index.find(guard, 0, mac(3)), index.find(guard, 1, mac(4))), (None, None));
    }
}
