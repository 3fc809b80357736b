//! Step 3, lookup: signature cache, then megaflow table; what is left is a miss.

pub(crate) mod mask;
mod sigcache;
pub(crate) mod store;
mod subtable;
#[cfg(test)]
mod tests;

use crate::parse::{Ext, Line};
use crate::types::Tri;
use mask::{FULL, Words};
use packet::VECTOR;
use sigcache::SigCache;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::{MASKS, Payload, Store};
use subtable::{Hasher, Subtable};

/// 64x64 -> 128 bits, folded.
#[inline]
pub(crate) fn fold(x: u64) -> u64 {
    let p = (x ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0xd6e8_feb8_6659_fd93_u128;
    (p as u64) ^ (p >> 64) as u64
}

/// Asks for a cache line.
#[inline]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; any address is allowed.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
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
        std::array::from_fn(|w| if w == 7 { 0 } else { self.word(w) })
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

/// What a batch of lookups did.
#[derive(Default, Clone, Copy)]
pub(crate) struct Tally {
    pub cache_hits: u64,
    pub flow_hits: u64,
    pub visits: u64,
    /// Flow hits that the cache, being on, did not know.
    pub learned: u64,
}

impl Tally {
    fn hits(&self) -> u64 {
        self.cache_hits + self.flow_hits
    }
}

/// Where a decision belongs: its subtable, its masked key and that one's hash there.
pub(crate) struct Spot {
    pub slot: usize,
    masked: Words,
    hash: u64,
}

/// Numbers of the 1-bits.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

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

/// One worker's table: rules, subtables, cache. Written only by its worker.
pub(crate) struct Table {
    pub store: Arc<Store>,
    subtables: [Option<Box<Subtable>>; MASKS],
    masks: Box<[MaskLine; MASKS]>,
    /// Subtables with rules, most hit first.
    order: Vec<u8>,
    free: Vec<u32>,
    fresh: u32,
    /// Rules linked.
    pub live: u32,
    clock: u32,
    generation: u16,
    secret: u64,
    cache: Option<SigCache>,
    pub cache_on: bool,
    /// Of the union of all masks: what the cache hashes.
    union: Hasher,
    /// Dead rules met by lookups since `take_dead`.
    dead: Vec<u32>,
    tally: Tally,
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
            order: Vec::with_capacity(MASKS),
            free: Vec::new(),
            fresh: 1,
            live: 0,
            clock: 1,
            generation: 0,
            secret,
            cache: None,
            cache_on: false,
            union: Hasher::new(&[0; 32], secret),
            dead: Vec::new(),
            tally: Tally::default(),
        };
        t.open(0, FULL);
        t
    }

    fn open(&mut self, slot: usize, mask: Words) {
        self.store.set_mask(slot, &mask);
        let sub = Subtable::new(mask, fold(self.secret ^ slot as u64), self.store.capacity());
        self.masks[slot] = MaskLine { words: mask[..7].try_into().unwrap(), ext: sub.ext };
        self.subtables[slot] = Some(Box::new(sub));
    }

    /// Masks with rules.
    pub fn masks(&self) -> usize {
        self.order.len()
    }

    /// Packets took over what the packet before them found.
    pub fn followed(&mut self, n: u64) {
        self.tally.flow_hits += n;
    }

    /// Counts since the last call.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    #[inline]
    fn verify(&self, idx: u32, mask: usize, key: &KeyRef<'_>) -> bool {
        let (rule, m) = (self.store.line(idx), &self.masks[mask]);
        let mut diff = 0;
        for ((k, m), r) in key.line.iter().zip(&m.words).zip(rule) {
            diff |= (k & m) ^ r;
        }
        diff == 0 && (!m.ext || self.verify_ext(idx, mask, key))
    }

    fn verify_ext(&self, idx: u32, mask: usize, key: &KeyRef<'_>) -> bool {
        let Some(sub) = &self.subtables[mask] else { return false };
        let rule = self.store.ext(idx);
        (8..32).all(|w| (key.word(w) ^ rule[(w - 8) / 8][w % 8]) & sub.mask[w] == 0)
    }

    /// Looks up the packets whose numbers are in `todo`; leaves those it did not find, in order.
    pub fn classify(&mut self, keys: &mut Keys, todo: &mut Vec<u8>) {
        let caching = self.cache_on && self.cache.is_some() && !self.order.is_empty();
        if caching {
            self.by_cache(keys, todo);
        }
        let mut unknown = [0u8; VECTOR];
        let n_unknown = todo.len();
        if caching {
            unknown[..n_unknown].copy_from_slice(todo);
        }
        for n in 0..self.order.len() {
            if todo.is_empty() {
                break;
            }
            self.by_subtable(self.order[n] as usize, keys, todo);
        }
        if caching {
            self.learn(keys, &unknown[..n_unknown]);
        }
    }

    fn cache_hash(&self, key: &KeyRef<'_>) -> u64 {
        self.union.hash(key)
    }

    fn by_cache(&mut self, keys: &mut Keys, todo: &mut Vec<u8>) {
        let cache = self.cache.as_ref().unwrap();
        for i in todo.iter().map(|i| *i as usize) {
            let h = self.cache_hash(&keys.get(i));
            keys.hash[i] = h;
            cache.prefetch(h);
        }
        for i in todo.iter().map(|i| *i as usize) {
            let c = cache.candidate(keys.hash[i]);
            keys.rule[i] = c;
            prefetch(self.store.line_ptr(c));
            prefetch(self.store.counters(c));
        }
        let before = todo.len();
        todo.retain(|i| {
            let i = *i as usize;
            if keys.rule[i] == 0 {
                return true;
            }
            let (key, mut hit) = (keys.get(i), (0, 0));
            let found = cache.search(keys.hash[i], |idx| {
                let p = self.store.payload(idx);
                let ok = p.usable() && self.verify(idx, p.mask(), &key);
                hit = (idx, p.program());
                ok
            });
            if found {
                (keys.rule[i], keys.program[i]) = hit;
            }
            !found
        });
        self.tally.cache_hits += (before - todo.len()) as u64;
    }

    fn by_subtable(&mut self, slot: usize, keys: &mut Keys, todo: &mut Vec<u8>) {
        let sub = self.subtables[slot].as_deref().expect("ordered subtables exist");
        let visits = todo.len();
        for i in todo.iter().map(|i| *i as usize) {
            let h = sub.hash(&keys.get(i));
            keys.hash[i] = h;
            sub.prefetch(h);
        }
        let mut search = [false; VECTOR];
        for i in todo.iter().map(|i| *i as usize) {
            let (c, more) = sub.candidate(keys.hash[i]);
            (keys.rule[i], search[i]) = (c, more);
            if c != 0 {
                prefetch(self.store.line_ptr(c));
                prefetch(self.store.counters(c));
            }
        }
        let mut dead = std::mem::take(&mut self.dead);
        todo.retain(|i| {
            let i = *i as usize;
            let c = keys.rule[i];
            let key = keys.get(i);
            if c != 0 {
                let p = self.store.payload(c);
                if p.usable() && self.verify(c, slot, &key) {
                    keys.program[i] = p.program();
                    return false;
                }
            }
            if search[i] {
                let (idx, program) = self.search(sub, slot, keys.hash[i], &key, &mut dead);
                (keys.rule[i], keys.program[i]) = (idx, program);
                return idx == 0;
            }
            true
        });
        self.dead = dead;
        let hits = (visits - todo.len()) as u64;
        self.tally.visits += visits as u64;
        self.tally.flow_hits += hits;
        self.subtables[slot].as_mut().unwrap().hits += hits;
    }

    fn search(
        &self,
        sub: &Subtable,
        slot: usize,
        hash: u64,
        key: &KeyRef<'_>,
        dead: &mut Vec<u32>,
    ) -> (u32, u32) {
        let mut hit = (0, 0);
        sub.search(hash, |idx| {
            let p = self.store.payload(idx);
            if !self.verify(idx, slot, key) {
                return false;
            }
            if !p.usable() {
                dead.push(idx);
                return false;
            }
            hit = (idx, p.program());
            true
        });
        hit
    }

    /// Puts rules into the cache that subtables found for these packets.
    fn learn(&mut self, keys: &Keys, found: &[u8]) {
        let Some(mut cache) = self.cache.take() else { return };
        for i in found.iter().map(|i| *i as usize).filter(|i| keys.rule[*i] != 0) {
            self.tally.learned += 1;
            cache.insert(self.cache_hash(&keys.get(i)), keys.rule[i]);
        }
        self.cache = Some(cache);
    }

    /// Dead rules that lookups came across; to be unlinked when the vector is done.
    pub fn take_dead(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.dead)
    }

    /// The subtable for a decision with this mask: its own, a new one, the smallest that looks at
    /// more, at last the full one.
    fn place(&mut self, mask: &Words) -> usize {
        let equal = |s: &Option<Box<Subtable>>| s.as_ref().is_some_and(|s| s.mask == *mask);
        if let Some(slot) = self.subtables.iter().position(equal) {
            return slot;
        }
        let unused = |s: &Option<Box<Subtable>>| s.as_ref().is_none_or(|s| s.refs == 0);
        if let Some(slot) = (1..MASKS).find(|i| unused(&self.subtables[*i])) {
            self.open(slot, *mask);
            return slot;
        }
        let wider = (1..MASKS).filter_map(|i| {
            let m = &self.subtables[i].as_ref().unwrap().mask;
            mask::subset(mask, m).then(|| (mask::weight(m), i))
        });
        wider.min().map_or(0, |(_, i)| i)
    }

    /// Where a decision about packets like `key` belongs.
    pub fn spot(&mut self, key: &Words, mask: &Words) -> Spot {
        let slot = self.place(&mask::quantise(mask, key));
        let sub = self.subtables[slot].as_ref().expect("placed in a subtable that exists");
        let masked: Words = std::array::from_fn(|w| key[w] & sub.mask[w]);
        let (line, ext) = lines(&masked);
        let hash = sub.hash(&KeyRef { line, ext: &ext, have: 7 });
        Spot { slot, masked, hash }
    }

    /// The rule that is there already, and its program.
    pub fn known(&mut self, spot: &Spot) -> Option<(u32, u32)> {
        let (line, ext) = lines(&spot.masked);
        self.probe(spot.slot, spot.hash, &KeyRef { line, ext: &ext, have: 7 })
    }

    /// The rule for a packet in one of these subtables (a bit each), and its program.
    pub fn among(&mut self, slots: u64, key: &KeyRef<'_>) -> Option<(u32, u32)> {
        bits(slots).find_map(|slot| {
            let hash = self.subtables[slot].as_ref()?.hash(key);
            self.probe(slot, hash, key)
        })
    }

    fn probe(&mut self, slot: usize, hash: u64, key: &KeyRef<'_>) -> Option<(u32, u32)> {
        let (sub, mut dead) = (self.subtables[slot].as_deref()?, Vec::new());
        let found = self.search(sub, slot, hash, key, &mut dead);
        self.dead.append(&mut dead);
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
        let first = sub.len == 1;
        if self.free.pop().is_none() {
            self.fresh += 1;
        }
        self.live += 1;
        if first {
            self.reorder();
        }
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
        if p.0 & store::LIVE == 0 {
            return None;
        }
        let hash = self.store.counters(idx).hash.load(Ordering::Relaxed);
        let sub = self.subtables[p.mask()].as_mut()?;
        let found = sub.remove(hash, idx);
        debug_assert!(found, "a live rule is linked");
        let empty = sub.len == 0;
        self.store.unlink(idx);
        self.live -= 1;
        if empty {
            self.reorder();
        }
        Some(p.program())
    }

    /// Control is done with a rule that was unlinked.
    pub fn release(&mut self, idx: u32) {
        let slot = self.store.payload(idx).mask();
        if let Some(sub) = &mut self.subtables[slot] {
            sub.refs -= 1;
        }
        self.free.push(idx);
    }

    /// The least recently used of the next few rules.
    pub fn victim(&mut self) -> Option<u32> {
        let mut oldest: Option<(u64, u32)> = None;
        let (mut seen, mut steps) = (0, 0);
        while seen < 8 && steps < self.fresh.min(4096) {
            self.clock = if self.clock + 1 >= self.fresh { 1 } else { self.clock + 1 };
            steps += 1;
            if self.store.payload(self.clock).0 & store::LIVE == 0 {
                continue;
            }
            seen += 1;
            let used = self.store.counters(self.clock).used_ms.load(Ordering::Relaxed);
            if oldest.is_none_or(|(u, _)| used < u) {
                oldest = Some((used, self.clock));
            }
        }
        oldest.map(|(_, i)| i)
    }

    /// Ranks subtables anew and recomputes what the cache hashes.
    pub fn reorder(&mut self) {
        let subs = &mut self.subtables;
        self.order.clear();
        self.order.extend(
            (0..MASKS as u8).filter(|i| subs[*i as usize].as_ref().is_some_and(|s| s.len > 0)),
        );
        self.order.sort_by_key(|i| std::cmp::Reverse(subs[*i as usize].as_ref().unwrap().hits));
        let mut union = [0; 32];
        for s in self.order.iter().map(|i| subs[*i as usize].as_ref().unwrap()) {
            union.iter_mut().zip(&s.mask).for_each(|(u, m)| *u |= m);
        }
        self.union = Hasher::new(&union, self.secret);
    }

    /// Every 100 ms: rank, forget old hits, decide about the cache. `visits_per_hit`: measured.
    pub fn tune(&mut self, choice: Tri, recent: Tally) {
        self.reorder();
        for s in self.subtables.iter_mut().flatten() {
            s.hits /= 2;
        }
        let on = match choice {
            Tri::On => true,
            Tri::Off => false,
            Tri::Auto => cache_pays(self.cache_on, self.order.len(), recent),
        };
        let room = self.cache.as_ref().map_or(0, SigCache::flows);
        // Many packets were not in it, and as many as would turn it over in a second.
        let missed = recent.learned * 8 > recent.hits() && recent.learned as usize * 8 > room;
        let short = room < self.live as usize * 2 || missed;
        if on && (room == 0 || short && room < self.store.capacity()) {
            let flows = (room * 2).max(self.live as usize * 4).max(1 << 16);
            self.cache = Some(SigCache::new(flows));
        }
        self.cache_on = on;
    }
}

/// A cache probe costs little more than a subtable visit. Without it: visits per hit is what it would
/// save. With it: what it saves on hits must exceed the probes that fail.
fn cache_pays(on: bool, masks: usize, t: Tally) -> bool {
    let hits = t.hits();
    if hits < 256 {
        return on;
    }
    if !on {
        return t.visits as f64 / hits as f64 > 1.75;
    }
    let rate = t.cache_hits as f64 / hits as f64;
    // Average visits a miss of the cache costs, as an estimate of what a hit saves.
    let visits =
        if t.flow_hits > 64 { t.visits as f64 / t.flow_hits as f64 } else { masks as f64 / 2.0 };
    rate * visits > 1.25
}
