//! Step 3, lookup: signature cache, then megaflow table; what is left is a miss. `find.rs` is what packets
//! go through, this file what changes the table.

mod classify;
mod compare;
pub(crate) mod flow_store;
mod guess;
pub(crate) mod mask;
mod place;
mod port_classifier;
mod signature_cache;
mod step;
mod subtable;
#[cfg(test)]
mod table_tests;

use crate::cpu::Level;
use crate::miss::seen_flows::Sight;
use crate::parse::{Ext, Line};
use crate::settings::{PortLookup, Tri};
use classify::Search;
pub(crate) use compare::agrees;
use flow::{PortNo, at};
use flow_store::{MASKS, PWORDS, Payload, Store};
use guess::Guesses;
use mask::{FULL, Words};
use packet::VECTOR;
use place::Places;
use port_classifier::Partition;
pub(crate) use port_classifier::Tally;
use signature_cache::SigCache;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use subtable::Subtable;

/// 64x64 -> 128 bits, folded.
#[inline]
pub(crate) fn fold(x: u64) -> u64 {
    let p = (x ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0xd6e8_feb8_6659_fd93_u128;
    (p as u64) ^ (p >> 64) as u64
}

/// Asks for a cache line.
#[inline]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint; any address is allowed.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast())
    };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = p;
}

/// The packet-side part of a key.
#[derive(Clone, Copy)]
pub(crate) struct KeyRef<'a> {
    pub line: &'a Line,
    pub ext: &'a Ext,
    /// Which of `ext` mean something; the others count as zero.
    pub have: u8,
}

impl KeyRef<'_> {
    /// Word `w` (0..32).
    #[inline]
    pub fn word(&self, w: usize) -> u64 {
        let line = w / 8;
        if line == 0 {
            self.line[w]
        } else if self.have & (1 << (line - 1)) != 0 {
            self.ext[line - 1][w % 8]
        } else {
            0
        }
    }
    /// All words.
    pub fn words(&self) -> Words {
        let mut words = [0; PWORDS];
        words[..7].copy_from_slice(&self.line[..7]);
        let ext = self.ext.iter().enumerate().filter(|(l, _)| self.have & (1 << l) != 0);
        ext.for_each(|(l, e)| words[8 * (l + 1)..8 * (l + 2)].copy_from_slice(e));
        words
    }
}

#[repr(align(64))]
pub(crate) struct Lines(pub [Line; VECTOR]);

/// Per-packet state of a vector: keys as lines, the rest in columns.
pub(crate) struct Keys {
    pub line: Box<Lines>,
    pub ext: Box<[Ext; VECTOR]>,
    pub have: [u8; VECTOR],
    pub hash: [u64; VECTOR],
    /// Rule found; 0: none.
    pub rule: [u32; VECTOR],
    /// Its program.
    pub program: [u32; VECTOR],
}

impl Keys {
    pub fn new() -> Self {
        Keys {
            line: Box::new(Lines([[0; 8]; VECTOR])),
            ext: Box::new([[[0; 8]; 3]; VECTOR]),
            have: [0; VECTOR],
            hash: [0; VECTOR],
            rule: [0; VECTOR],
            program: [0; VECTOR],
        }
    }
    /// Everything about packet `from` becomes that of packet `to`.
    pub fn copy(&mut self, from: usize, to: usize) {
        self.line.0[to] = self.line.0[from];
        self.have[to] = self.have[from];
        if self.have[from] != 0 {
            self.ext[to] = self.ext[from];
        }
        self.hash[to] = self.hash[from];
        self.rule[to] = self.rule[from];
        self.program[to] = self.program[from];
    }
    #[inline]
    pub fn get(&self, i: usize) -> KeyRef<'_> {
        KeyRef { line: &self.line.0[i], ext: &self.ext[i], have: self.have[i] }
    }
}

/// Where a decision belongs: its subtable, its masked key and that one's hash there.
pub(crate) struct Spot {
    pub slot: usize,
    masked: Words,
    hash: u64,
    /// The packet's addresses.
    near: u64,
    /// The hash of its flow, if that is of the sample by which direct mode is judged.
    stays: Option<u64>,
    /// How many subtables had been opened: another in that place makes it worth nothing.
    opened: u64,
}

/// What is known of a flow that may be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Worth {
    /// There are few new ones, or most come back: each may have a place.
    Spare,
    /// It was never seen, and most of its kind never are again.
    New,
    /// It was seen before.
    Seen,
    /// So it was, but its packets are not looked up where it would be.
    Hidden,
}

/// Subtables whose buckets are in huge pages.
const HUGE: usize = 16;
/// Rules from which on each is stored under its own mask: up to here what a mask more costs counts,
/// beyond what a rule more costs.
const MANY: u32 = 1 << 14;

/// A masked key as lines.
fn lines(masked: &Words) -> (&Line, Ext) {
    let ext = std::array::from_fn(|l| *masked[8 * (l + 1)..].first_chunk().expect("eight words"));
    (masked.first_chunk().expect("eight words"), ext)
}

/// A rule's mask on line 0, next to the others.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct MaskLine {
    words: [u64; 7],
    ext: bool,
}

/// Subtables that are not visited in which a flow is looked for all the same, if it is of a sample.
const HIDDEN: usize = 4;

/// Rules among which the least recently used is evicted, and how many are looked at for them.
const EVICTION: (u32, u32) = (8, 256);

/// A rule used so lately stays if others can go.
const FRESH_MS: u64 = 50;

/// One worker's table: rules, subtables, cache. Written only by its worker.
pub(crate) struct Table {
    pub store: Arc<Store>,
    subtables: [Option<Box<Subtable>>; MASKS],
    masks: Box<[MaskLine; MASKS]>,
    /// By input port.
    partitions: Vec<Option<Box<Partition>>>,
    /// Packets are looked up in all subtables of their port, whatever that costs.
    exhaustive: bool,
    /// Where masks were placed.
    places: Places,
    /// Where flows near others are.
    guesses: Guesses,
    /// Flows that came and were not stored.
    sight: Sight,
    /// Ports with rules, and masks with rules.
    ports: usize,
    used: usize,
    /// Subtables opened so far.
    opened: u64,
    free: Vec<u32>,
    fresh: u32,
    /// Rules linked.
    pub live: u32,
    clock: u32,
    generation: u16,
    secret: u64,
    cache: Option<SigCache>,
    /// Some port's packets go through the cache.
    pub cache_on: bool,
    /// Some port is in direct mode.
    pub direct: bool,
    pub level: Level,
    /// Its `dead`: dead rules met by lookups since `take_dead`.
    search: Option<Box<Search>>,
    tally: Tally,
    /// Decisions since it was tuned, and their cycles.
    decisions: (u64, u64),
}

impl Table {
    /// Empty, with room for `capacity` rules.
    pub fn new(capacity: usize) -> Self {
        use std::hash::{BuildHasher, RandomState};
        let store = Arc::new(Store::new(capacity));
        let secret = RandomState::new().hash_one(0x5745_4654u32);
        store.set_mask(0, &FULL);
        let mut t = Table {
            store,
            subtables: std::array::from_fn(|_| None),
            masks: Box::new([MaskLine { words: [0; 7], ext: false }; MASKS]),
            partitions: Vec::new(),
            exhaustive: false,
            places: Places::new(),
            guesses: Guesses::new(),
            sight: Sight::new(),
            ports: 0,
            used: 0,
            opened: 0,
            free: Vec::new(),
            fresh: 1,
            live: 0,
            clock: 1,
            generation: 0,
            secret,
            cache: None,
            cache_on: false,
            direct: false,
            level: Level::preferred(),
            search: Some(Box::new(Search::new())),
            tally: Tally::default(),
            decisions: (0, 0),
        };
        t.open(0, FULL);
        t
    }

    fn open(&mut self, slot: usize, mask: Words) {
        self.opened += 1;
        self.store.set_mask(slot, &mask);
        let (secret, room) = (fold(self.secret ^ slot as u64), self.store.capacity());
        let sub = Subtable::new(mask, secret, room, slot < HUGE);
        self.masks[slot] = MaskLine { words: mask[..7].try_into().unwrap(), ext: sub.ext };
        self.subtables[slot] = Some(Box::new(sub));
    }

    /// Masks with rules.
    pub fn masks(&self) -> usize {
        self.used
    }

    /// Packets took over what the packet before them found.
    pub fn followed(&mut self, n: u64) {
        self.tally.flow_hits += n;
    }

    /// Counts since the last call.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Dead rules that lookups came across; to be unlinked when the vector is done.
    pub fn take_dead(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.search_mut().dead)
    }

    fn search_mut(&mut self) -> &mut Search {
        self.search.get_or_insert_with(|| Box::new(Search::new()))
    }

    fn partition_mut(&mut self, port: PortNo) -> &mut Partition {
        let (no, secret) = (usize::from(port), self.secret);
        if self.partitions.len() <= no {
            self.partitions.resize_with(no + 1, || None);
        }
        self.partitions[no].get_or_insert_with(|| Box::new(Partition::new(port, secret)))
    }

    /// The subtable for a decision of this port with this mask, as it was found before if that holds.
    fn place(&mut self, port: PortNo, mask: &Words) -> usize {
        // Few masks while rules are few; then the widest rules, whatever masks that takes.
        let few = self.live < MANY;
        let tag = Places::tag(mask, port, few);
        if let Some(slot) = self.places.get(tag)
            && self.partitions[usize::from(port)].as_ref().is_some_and(|p| p.uses(slot))
            && self.subtables[slot].as_ref().is_some_and(|s| mask::subset(mask, &s.mask))
        {
            return slot;
        }
        let slot = self.find_place(port, &if few { mask::quantise(mask) } else { *mask });
        self.places.put(tag, slot);
        slot
    }

    /// The subtable for a decision of this port with this mask: its own, a new one, the smallest of
    /// the port's that looks at more, at last the full one.
    fn find_place(&mut self, port: PortNo, mask: &Words) -> usize {
        let ports = self.ports;
        let p = self.partition_mut(port);
        let more = p.masks() < port_classifier::share(ports + usize::from(p.live == 0));
        let p: &Partition = self.partitions[usize::from(port)].as_ref().expect("made above");
        let subs = &self.subtables;
        let equal = |slot: &usize| subs[*slot].as_ref().is_some_and(|s| s.mask == *mask);
        if let Some(slot) = p.order.iter().map(|s| usize::from(*s)).find(equal) {
            return slot;
        }
        if more && let Some(slot) = (0..MASKS).find(equal) {
            return slot;
        }
        let unused = |slot: &usize| subs[*slot].as_ref().is_none_or(|s| s.refs == 0);
        if more && let Some(slot) = (1..MASKS).find(unused) {
            self.places.forget();
            self.open(slot, *mask);
            return slot;
        }
        let wider = (1..MASKS).filter(|slot| more || p.uses(*slot)).filter_map(|slot| {
            let sub = subs[slot].as_ref()?;
            mask::subset(mask, &sub.mask).then_some((sub.weight, slot))
        });
        wider.min().map_or(0, |(_, slot)| slot)
    }

    /// Where a decision about packets like `key` belongs.
    pub fn spot(&mut self, key: &Words, mask: &Words) -> Spot {
        let port = port_of(key[4]);
        let slot = self.place(port, &mask::exact(mask, key));
        let sub = self.subtables[slot].as_ref().expect("placed in a subtable that exists");
        let masked: Words = std::array::from_fn(|w| key[w] & sub.mask[w]);
        let (line, ext) = lines(&masked);
        let hash = sub.hash(&KeyRef { line, ext: &ext, have: 7 });
        let (line, ext) = lines(key);
        let p = self.partitions[usize::from(port)].as_ref();
        let stays = p.and_then(|p| p.direct.stays(&KeyRef { line, ext: &ext, have: 7 }));
        Spot { slot, masked, hash, near: key[2], stays, opened: self.opened }
    }

    /// Is this still where the decision belongs?
    pub fn holds(&self, spot: &Spot) -> bool {
        spot.opened == self.opened
    }

    /// Brings the bucket closer.
    pub fn prefetch(&self, spot: &Spot) {
        if let Some(sub) = &self.subtables[spot.slot] {
            sub.prefetch(spot.hash);
            self.sight.prefetch(spot.hash);
            let p = self.partitions[usize::from(port_of(spot.masked[4]))].as_ref();
            if p.is_some_and(|p| p.guesses.on) {
                self.guesses.prefetch(spot.near);
            }
        }
    }

    /// The rule for packets like `key` that is there already, and its program.
    pub fn known(&mut self, spot: &Spot, key: &Words) -> Option<(u32, u32)> {
        let (line, ext) = lines(&spot.masked);
        let found = self.probe(spot.slot, spot.hash, &KeyRef { line, ext: &ext, have: 7 });
        let found = found.map(|rule| (spot.slot, rule)).or_else(|| self.hidden(key));
        let port = port_of(spot.masked[4]);
        if self.partition_mut(port).guesses.on {
            self.guesses.put(spot.near, spot.slot);
        }
        let p = self.partition_mut(port);
        let Some((slot, rule)) = found else {
            p.decided();
            return None;
        };
        p.hits[slot] += p.direct.stands_for();
        if spot.stays.is_some() {
            p.direct.asked(p.cache_on);
        }
        self.tally(port.into(), Tally { resolved: 1, ..Tally::default() });
        Some(rule)
    }

    /// A rule for packets like `key` where those of its port are not looked up, and which subtable that is. In direct mode
    /// only samples come here: by them it shows that a visit would pay, though decisions have other masks by now.
    fn hidden(&mut self, key: &Words) -> Option<(usize, (u32, u32))> {
        let port = port_of(key[4]);
        let p = self.partitions[usize::from(port)].as_ref().filter(|p| p.direct.on)?;
        let mut slots = [0; HIDDEN];
        let (_, hidden) = p.order.split_at(p.walk.min(p.order.len()));
        let n = hidden.len().min(HIDDEN);
        slots[..n].copy_from_slice(&hidden[..n]);
        let (line, ext) = lines(key);
        let key = KeyRef { line, ext: &ext, have: 7 };
        let mut slots = slots[..n].iter().map(|slot| usize::from(*slot));
        slots.find_map(|slot| Some((slot, self.among(&[slot], &key)?)))
    }

    /// Shall nothing but what to do be asked about this packet, which was not found?
    #[inline]
    pub fn goes_direct(&self, key: &KeyRef<'_>) -> bool {
        let p = self.partitions.get(usize::from(port_of(key.line[4])));
        p.and_then(Option::as_deref).is_some_and(|p| p.direct.takes(key))
    }

    /// So it was; did the pipeline answer?
    #[inline]
    pub fn went_direct(&mut self, key: &KeyRef<'_>, answered: bool) {
        let p = self.partition_mut(port_of(key.line[4]));
        p.direct.went(answered);
        if answered {
            p.decided();
        }
    }

    /// So many decisions took so many cycles.
    pub fn spent(&mut self, decisions: u64, cycles: u64) {
        self.decisions.0 += decisions;
        self.decisions.1 += cycles;
    }

    /// What is known of the worth of storing this flow.
    pub fn worth(&mut self, spot: &Spot) -> Worth {
        let p = &mut self.partitions[usize::from(port_of(spot.masked[4]))];
        let Some(p) = p.as_deref_mut().filter(|p| p.pressed()) else { return Worth::Spare };
        let mut again = self.sight.again(spot.hash);
        // The flow comes back, even if its mask has another place by now.
        again |= spot.stays.is_some_and(|flow| self.sight.again(fold(flow)));
        let worth = match again {
            // Those that show whether flows come back have to do so first.
            false if p.direct.most && spot.stays.is_none() && p.pays(spot.slot) => Worth::Spare,
            false => Worth::New,
            true if p.pays(spot.slot) => Worth::Seen,
            true => Worth::Hidden,
        };
        if spot.stays.is_some() {
            let hidden = worth == Worth::Hidden && p.hidden_pays();
            p.direct.asked(worth == Worth::Seen || hidden);
            // While others are not stored it is not either: else it would come back no more, and they would.
            if p.direct.on {
                return Worth::New;
            }
        }
        worth
    }

    /// The rule for a packet in one of these subtables, and its program.
    pub fn among(&mut self, slots: &[usize], key: &KeyRef<'_>) -> Option<(u32, u32)> {
        slots.iter().find_map(|slot| {
            let hash = self.subtables[*slot].as_ref()?.hash(key);
            self.probe(*slot, hash, key)
        })
    }

    /// The cache, if it is on for its port, shall know the rule of this packet.
    pub fn remember(&mut self, key: &KeyRef<'_>, rule: u32) {
        let port = usize::from(port_of(key.line[4]));
        let Some(union) = self.caching(port).filter(|_| rule != 0) else { return };
        let hash = union.hash(key);
        if let Some(cache) = &mut self.cache {
            cache.insert(hash, rule);
            self.tally(port, Tally { learned: 1, ..Tally::default() });
        }
    }

    fn probe(&mut self, slot: usize, hash: u64, key: &KeyRef<'_>) -> Option<(u32, u32)> {
        let (sub, mut dead) = (self.subtables[slot].as_deref()?, Vec::new());
        let found = self.search_all(sub, slot, hash, key, &mut dead);
        self.search_mut().dead.append(&mut dead);
        (found.0 != 0).then_some(found)
    }

    /// Stores a decision where nothing is known; None when there is no room.
    pub fn install(&mut self, spot: &Spot, program: u32, limit: u32) -> Option<u32> {
        if self.live >= limit {
            return None;
        }
        let idx = match self.free.last() {
            Some(i) => *i,
            None if (self.fresh as usize) <= self.store.capacity() => self.fresh,
            None => return None,
        };
        let sub = self.subtables[spot.slot].as_mut()?;
        self.generation = self.generation.wrapping_add(1);
        // Written before it is linked: splitting a bucket reads hashes from the store.
        let payload = Payload::new(program, spot.slot as u8, self.generation);
        self.store.write(idx, &spot.masked, sub.ext, payload, spot.hash);
        if !sub.insert(&self.store, spot.hash, idx) {
            self.store.unlink(idx);
            return None;
        }
        sub.refs += 1;
        self.used += usize::from(sub.len == 1);
        if self.free.pop().is_none() {
            self.fresh += 1;
        }
        self.live += 1;
        self.linked(port_of(spot.masked[4]), spot.slot);
        Some(idx)
    }

    /// Spot and install in one.
    #[cfg(test)]
    pub fn put(&mut self, key: &Words, mask: &Words, program: u32, limit: u32) -> Option<u32> {
        let spot = self.spot(key, mask);
        self.install(&spot, program, limit)
    }

    /// Unlinks a rule; its program when it was linked.
    pub fn unlink(&mut self, idx: u32) -> Option<u32> {
        let p = self.store.payload(idx);
        if p.0 & flow_store::LIVE == 0 {
            return None;
        }
        let hash = self.store.counters(idx).hash.load(Ordering::Relaxed);
        let sub = self.subtables[p.mask()].as_mut()?;
        let found = sub.remove(hash, idx);
        debug_assert!(found, "a live rule is linked");
        self.used -= usize::from(sub.len == 0);
        self.store.unlink(idx);
        self.live -= 1;
        self.unlinked(port_of(self.store.word(idx, 4)), p.mask());
        Some(p.program())
    }

    fn linked(&mut self, port: PortNo, slot: usize) {
        let p = self.partition_mut(port);
        let (first, new) = (p.link(slot), p.live == 1);
        self.ports += usize::from(new);
        if first {
            self.reorder(port);
        }
    }

    fn unlinked(&mut self, port: PortNo, slot: usize) {
        let p = self.partition_mut(port);
        let (last, gone) = (p.unlink(slot), p.live == 0);
        self.ports -= usize::from(gone);
        if last {
            self.reorder(port);
        }
    }

    fn reorder(&mut self, port: PortNo) {
        let Some(p) = &mut self.partitions[usize::from(port)] else { return };
        p.reorder(&self.subtables, self.secret);
    }

    /// Control is done with a rule that was unlinked.
    pub fn release(&mut self, idx: u32) {
        let slot = self.store.payload(idx).mask();
        if let Some(sub) = &mut self.subtables[slot] {
            sub.refs -= 1;
            if sub.refs == 0 {
                self.places.forget();
            }
        }
        self.free.push(idx);
    }

    /// Which rule goes when there are too many: the least recently used of the next few that are idle
    /// and whose ports have their share of the table or more; if there are none near, any.
    pub fn victim(&mut self, now_ms: u64) -> Option<u32> {
        if self.live == 0 {
            return None;
        }
        let share = self.live / self.ports.max(1) as u32;
        let mut best: Option<((bool, u64), u32)> = None;
        let (mut seen, mut steps) = (0, 0);
        while seen < EVICTION.0 && steps < EVICTION.1.min(self.fresh) {
            self.clock = if self.clock + 1 >= self.fresh { 1 } else { self.clock + 1 };
            if self.store.payload(self.clock).0 & flow_store::LIVE == 0 {
                continue;
            }
            steps += 1;
            let port = usize::from(port_of(self.store.word(self.clock, 4)));
            let small = self.partitions[port].as_ref().is_some_and(|p| p.live < share);
            let used = self.store.counters(self.clock).used_ms.load(Ordering::Relaxed);
            seen += u32::from(!small && used + FRESH_MS <= now_ms);
            if best.is_none_or(|(b, _)| (small, used) < b) {
                best = Some(((small, used), self.clock));
            }
        }
        best.map(|(_, i)| i)
    }

    /// Every 100 ms: rank, forget old hits, decide for each port about the cache.
    pub fn tune(&mut self, choice: Tri) {
        let mut recent = Tally::default();
        self.partitions.iter().flatten().for_each(|p| recent.add(p.recent));
        let pushed = self.cache.as_mut().map_or(0, SigCache::take_replaced) as u64;
        let filling = pushed * 4 < recent.learned;
        let (n, cycles) = std::mem::take(&mut self.decisions);
        let decision = cycles.checked_div(n).unwrap_or(0);
        (self.cache_on, self.direct) = (false, false);
        for p in self.partitions.iter_mut().flatten() {
            p.reorder(&self.subtables, self.secret);
            p.tune(choice, filling, decision);
            self.cache_on |= p.cache_on && p.live > 0;
            self.direct |= p.direct.on;
        }
        if self.cache_on && self.cache.is_none() {
            self.cache = Some(SigCache::new(self.store.capacity()));
        }
    }

    /// What it says about each port that has rules.
    pub fn show(&self) -> Box<[PortLookup]> {
        self.partitions.iter().flatten().filter(|p| p.live > 0).map(|p| p.show()).collect()
    }
}

/// The input port in word 4 of a key.
#[inline]
fn port_of(word: u64) -> PortNo {
    let b = word.to_ne_bytes();
    PortNo::from_be_bytes([b[at::IN_PORT - 32], b[at::IN_PORT - 31]])
}
