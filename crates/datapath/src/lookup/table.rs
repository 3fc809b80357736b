//! A worker's megaflow table: insertion, eviction, and what the policy measures. `classify.rs` has
//! the lookup.

use crate::batch::keys::{Ext, KeyRef, Line, Words};
use crate::cpu::Level;
use crate::lookup::compare::MaskLine;
use crate::lookup::flow_store::{LIVE, MASKS, Payload, Store};
use crate::lookup::mask::{self, FULL, PORT_ONLY};
use crate::lookup::port_classifier::{self, PortClassifier, PortLookup};
use crate::lookup::predictor::SubtablePredictor;
use crate::lookup::recirc_memo::RecircMemo;
use crate::lookup::search::Search;
use crate::lookup::signature_cache::SigCache;
use crate::lookup::subtable::Subtable;
use crate::lookup::subtable_memo::SubtableMemo;
use crate::mem::fold;
use crate::miss::policy::{CacheUse, NewFlows, PredictorUse};
use crate::miss::rates::{FULL_TABLE_FLOWS_RATIO, INTERVAL_MS, LookupCounts};
use crate::miss::seen_flows::{SAMPLE_FLOWS, SeenFlows};
use crate::parse::job::{ALL_BITS, Matched};
use crate::settings::Tri;
use crate::verify::levels::preferred_level;
use flow::{PortNo, at};
use packet::VECTOR;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a decision is to be stored: its subtable, its masked key, and the key's hash there.
pub(crate) struct InsertPosition {
    pub subtable: usize,
    pub(super) masked: Words,
    pub(super) hash: u64,
    /// The packet's addresses (word 2 of its key), for the predictor.
    pub(super) near: u64,
    /// The flow's hash, if the flow is in the fixed sample by which direct mode is judged.
    pub(super) in_fixed_sample: Option<u64>,
    /// [`Table::opened`] when this was computed: if it is another now, this position is invalid.
    pub(super) opened: u64,
}

/// Whether a flow may be stored, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// New flows are few, or most come back: each may be stored.
    Unlimited,
    /// The flow was not seen before; most such flows never come back.
    FirstSeen,
    /// The flow was seen before.
    SeenBefore,
    /// The flow was seen before, but packets would not be looked up in its subtable.
    Unprobed,
}

/// Megaflows below which masks are widened to whole bytes. There an additional mask costs more than
/// additional megaflows; above, it is the other way round. Whole bytes always: six times the
/// megaflows; never: 419 cycles a packet for 289 with 10k rules of an access list
/// (docs/perf/heuristics.md).
const WHOLE_BYTE_MASKS_FLOWS_MAX: u32 = 1 << 14;

/// Megaflow indices that are handled at once, at most: evicted at the end of a vector, or sorted
/// ([`Table::order_free`]). Sorting this many takes a microsecond.
pub(crate) const INDICES_AT_ONCE_MAX: u32 = 64;

/// The lines of a masked key.
fn lines(masked: &Words) -> (&Line, Ext) {
    let ext = std::array::from_fn(|l| *masked[8 * (l + 1)..].first_chunk().expect("eight words"));
    (masked.first_chunk().expect("eight words"), ext)
}

/// A megaflow used within this time is not evicted if others can be.
const RECENTLY_USED_MS: u64 = INTERVAL_MS / 2;

/// What a table remembers of masks and flows, stored or not.
pub(super) struct History {
    /// Subtables by mask.
    pub subtable_memo: SubtableMemo,
    /// Subtables by neighbourhood.
    pub predictor: SubtablePredictor,
    /// Flows that were seen, whether they are stored or not.
    pub seen_flows: SeenFlows,
    /// Megaflows of recirculated packets.
    pub recirculated: RecircMemo,
}

/// The indices of a store: which are free, and which megaflow is next examined for eviction.
struct Places {
    /// Indices that the control thread gave back.
    free: Vec<u32>,
    /// The lowest index that was never used.
    fresh: u32,
    /// The megaflow after which the search for one to evict goes on.
    eviction_hand: u32,
    /// A number that differs for megaflows that have the same index one after the other.
    generation: u16,
}

/// One worker's table: megaflows, subtables, signature cache. Only its worker writes it.
pub(crate) struct Table {
    pub store: Arc<Store>,
    pub(super) subtables: [Option<Box<Subtable>>; MASKS],
    pub(super) masks: Box<[MaskLine; MASKS]>,
    /// The port classifiers, by input port.
    pub(super) classifiers: Vec<Option<Box<PortClassifier>>>,
    /// True for tests that look packets up in all subtables of their port, whatever the policy
    /// says.
    #[cfg(test)]
    pub(super) exhaustive: bool,
    /// What is remembered of earlier packets.
    pub(super) history: History,
    /// Number of ports with megaflows.
    pub(super) ports: usize,
    /// Number of masks with megaflows.
    pub(super) used: usize,
    /// Number of subtables opened so far.
    pub(super) opened: u64,
    /// Which indices of the store are free.
    places: Places,
    /// Number of megaflows that are linked.
    pub live: u32,
    pub(super) secret: u64,
    pub(super) cache: Option<SigCache>,
    pub any_port: AnyPort,
    pub level: Level,
    /// Store each megaflow under its own mask, however few there are (`debug`).
    pub own_masks: bool,
    /// Working memory of lookups. `dead` in it: dead megaflows that lookups met since the last
    /// [`Table::take_dead`].
    pub(super) search: Option<Box<Search>>,
    /// Counts since the last [`Table::take_counts`].
    pub(super) counts: LookupCounts,
    miss_cost: MissCost,
}

/// What the policy of at least one port says.
#[derive(Default)]
pub(crate) struct AnyPort {
    /// Packets of the port go through the signature cache.
    pub cached: bool,
    /// Packets of the port are hashed for the signature cache: to use it, or to sample flows.
    pub hashed: bool,
    /// The port is in direct mode.
    pub direct: bool,
}

/// The measured cost of a miss.
#[derive(Default)]
struct MissCost {
    /// Misses since the last interval began, and their cycles.
    since: (u64, u64),
    /// Cycles of one miss, as last measured.
    cycles: u64,
}

impl MissCost {
    /// Ends an interval; returns the cycles of a miss.
    fn tune(&mut self) -> u64 {
        let (n, cycles) = std::mem::take(&mut self.since);
        self.cycles = cycles.checked_div(n).unwrap_or(self.cycles);
        self.cycles
    }
}

impl Table {
    /// An empty table with room for `capacity` megaflows.
    pub fn new(capacity: usize) -> Self {
        use std::hash::{BuildHasher, RandomState};
        let store = Arc::new(Store::new(capacity));
        let secret = RandomState::new().hash_one(0x5745_4654u32);
        store.set_mask(0, &FULL);
        let mut t = Table {
            store,
            subtables: std::array::from_fn(|_| None),
            masks: Box::new([MaskLine { words: [0; 7], ext: false }; MASKS]),
            classifiers: Vec::new(),
            #[cfg(test)]
            exhaustive: false,
            history: History {
                subtable_memo: SubtableMemo::new(),
                predictor: SubtablePredictor::new(),
                seen_flows: SeenFlows::new(),
                recirculated: RecircMemo::new(),
            },
            ports: 0,
            used: 0,
            opened: 0,
            places: Places { free: Vec::new(), fresh: 1, eviction_hand: 1, generation: 0 },
            live: 0,
            secret,
            cache: None,
            any_port: AnyPort::default(),
            level: preferred_level(),
            own_masks: false,
            search: Some(Box::new(Search::new())),
            counts: LookupCounts::default(),
            miss_cost: MissCost::default(),
        };
        t.open(0, FULL);
        t
    }

    /// Makes a new subtable of this mask in a place that no megaflow uses.
    fn open(&mut self, subtable: usize, mask: Words) {
        self.opened += 1;
        self.store.set_mask(subtable, &mask);
        let (secret, room) = (fold(self.secret ^ subtable as u64), self.store.capacity());
        // As many subtables are in huge pages as a packet visits.
        let sub =
            Subtable::new(mask, secret, room, subtable < port_classifier::SUBTABLES_PROBED_MAX);
        self.masks[subtable] = MaskLine { words: mask[..7].try_into().unwrap(), ext: sub.ext != 0 };
        self.subtables[subtable] = Some(Box::new(sub));
    }

    /// Number of masks with megaflows.
    pub fn masks(&self) -> usize {
        self.used
    }

    /// Counts packets that took the megaflow of the packet before them.
    pub fn followed(&mut self, n: u64) {
        self.counts.flow_hits += n;
    }

    /// Lookup counts since the last call.
    pub fn take_counts(&mut self) -> LookupCounts {
        std::mem::take(&mut self.counts)
    }

    /// Dead megaflows that lookups met since the last call, to be unlinked at the end of the
    /// vector.
    pub fn take_dead(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.search_mut().dead)
    }

    fn search_mut(&mut self) -> &mut Search {
        self.search.get_or_insert_with(|| Box::new(Search::new()))
    }

    fn classifier_mut(&mut self, port: PortNo) -> &mut PortClassifier {
        let (no, secret) = (usize::from(port), self.secret);
        if self.classifiers.len() <= no {
            self.classifiers.resize_with(no + 1, || None);
        }
        self.classifiers[no].get_or_insert_with(|| Box::new(PortClassifier::new(port, secret)))
    }

    /// The subtable for a decision of this port with this mask: the remembered one if that is still
    /// valid, else the one that [`Table::choose_subtable`] chooses.
    fn subtable_for(&mut self, port: PortNo, mask: &Words) -> usize {
        // While megaflows are few, masks are kept few; later megaflows are as wide as possible,
        // whatever masks that takes.
        let few = self.live < WHOLE_BYTE_MASKS_FLOWS_MAX && !self.own_masks;
        let tag = SubtableMemo::tag(mask, port, few);
        if let Some(subtable) = self.history.subtable_memo.get(tag)
            && self.classifiers[usize::from(port)].as_ref().is_some_and(|p| p.uses(subtable))
            && self.subtables[subtable].as_ref().is_some_and(|s| mask::subset(mask, &s.mask))
        {
            return subtable;
        }
        let subtable =
            self.choose_subtable(port, &if few { mask::whole_bytes_mask(mask) } else { *mask });
        self.history.subtable_memo.put(tag, subtable);
        subtable
    }

    /// The subtable for a decision of this port with this mask. In this order: a subtable with this
    /// very mask, a new one, the one with the fewest bits more, the full one (0).
    fn choose_subtable(&mut self, port: PortNo, mask: &Words) -> usize {
        let ports = self.ports;
        let p = self.classifier_mut(port);
        let more = p.masks() < port_classifier::port_masks_max(ports + usize::from(p.live == 0));
        let p: &PortClassifier = self.classifiers[usize::from(port)].as_ref().expect("made above");
        let subs = &self.subtables;
        let equal = |subtable: &usize| subs[*subtable].as_ref().is_some_and(|s| s.mask == *mask);
        if let Some(subtable) = p.order.iter().map(|s| usize::from(*s)).find(equal) {
            return subtable;
        }
        if more && let Some(subtable) = (0..MASKS).find(equal) {
            return subtable;
        }
        let unused = |subtable: &usize| subs[*subtable].as_ref().is_none_or(|s| s.refs == 0);
        if more && let Some(subtable) = (1..MASKS).find(unused) {
            self.history.subtable_memo.forget();
            self.open(subtable, *mask);
            return subtable;
        }
        let wider =
            (1..MASKS).filter(|subtable| more || p.uses(*subtable)).filter_map(|subtable| {
                let sub = subs[subtable].as_ref()?;
                mask::subset(mask, &sub.mask).then_some((sub.weight, subtable))
            });
        wider.min().map_or(0, |(_, subtable)| subtable)
    }

    /// Where a decision about packets with this key and mask is to be stored.
    pub fn insert_position(&mut self, key: &Words, mask: &Words) -> InsertPosition {
        let port = port_of(key[4]);
        let subtable = self.subtable_for(port, &mask::exact(mask, key));
        let sub = self.subtables[subtable].as_ref().expect("placed in a subtable that exists");
        let masked: Words = std::array::from_fn(|w| key[w] & sub.mask[w]);
        let (line, ext) = lines(&masked);
        let hash = sub.hash(&KeyRef { line, ext: &ext, have: 7 });
        let (line, ext) = lines(key);
        let p = self.classifiers[usize::from(port)].as_ref();
        let in_fixed_sample =
            p.and_then(|p| p.samples.in_fixed_sample(&KeyRef { line, ext: &ext, have: 7 }));
        InsertPosition {
            subtable,
            masked,
            hash,
            near: key[2],
            in_fixed_sample,
            opened: self.opened,
        }
    }

    /// True if the position is still valid: no subtable was opened since it was computed.
    pub fn is_current(&self, position: &InsertPosition) -> bool {
        position.opened == self.opened
    }

    /// Prefetches what storing a decision here reads.
    pub fn prefetch(&self, position: &InsertPosition) {
        if let Some(sub) = &self.subtables[position.subtable] {
            sub.prefetch(position.hash);
            self.history.seen_flows.prefetch(position.hash);
            let p = self.classifiers[usize::from(port_of(position.masked[4]))].as_ref();
            if p.is_some_and(|p| p.policy.predictor != PredictorUse::Off) {
                self.history.predictor.prefetch(position.near);
            }
        }
    }

    /// The megaflow for packets with this key, if the table has one already, and its program. Also
    /// teaches the predictor the subtable, and counts for the policy whether the flow is new.
    pub fn find_existing(&mut self, position: &InsertPosition) -> Option<(u32, u32)> {
        let (line, ext) = lines(&position.masked);
        let found =
            self.probe(position.subtable, position.hash, &KeyRef { line, ext: &ext, have: 7 });
        let port = port_of(position.masked[4]);
        if self.classifier_mut(port).policy.predictor != PredictorUse::Off {
            self.history.predictor.put(position.near, position.subtable);
        }
        let p = self.classifier_mut(port);
        let Some(megaflow) = found else {
            p.rates.new_flows += 1;
            return None;
        };
        let direct = p.policy.new_flows == NewFlows::Direct;
        // In direct mode one packet of a sample stands for many that are not counted.
        p.hits[position.subtable] += if direct { SAMPLE_FLOWS / 2 } else { 1 };
        if position.in_fixed_sample.is_some() {
            let cached = p.policy.cache == CacheUse::On;
            p.rates.misses_returning.count(1, cached.into());
        }
        self.count(port.into(), LookupCounts { resolved: 1, ..LookupCounts::default() });
        Some(megaflow)
    }

    /// True if this missed packet is to be resolved in direct mode.
    #[inline]
    pub fn is_direct(&self, key: &KeyRef<'_>) -> bool {
        let p = self.classifiers.get(usize::from(port_of(key.line[4])));
        p.and_then(Option::as_deref).is_some_and(|p| p.is_direct(key))
    }

    /// Counts the resolution of a packet in direct mode; `answered`: the pipeline decided about it.
    #[inline]
    pub fn count_direct(&mut self, key: &KeyRef<'_>, answered: bool) {
        let p = self.classifier_mut(port_of(key.line[4]));
        p.rates.direct.count(1, answered.into());
        p.rates.new_flows += u64::from(answered);
    }

    /// Counts misses and the cycles that they took.
    pub fn count_misses(&mut self, misses: u64, cycles: u64) {
        self.miss_cost.since.0 += misses;
        self.miss_cost.since.1 += cycles;
    }

    /// Whether this flow may be stored, by whether it was seen before, which is recorded and
    /// counted for the policy.
    pub fn admit(&mut self, position: &InsertPosition) -> Admission {
        let p = &mut self.classifiers[usize::from(port_of(position.masked[4]))];
        let Some(p) = p.as_deref_mut().filter(|p| p.stores_few()) else {
            return Admission::Unlimited;
        };
        let mut again = self.history.seen_flows.test_and_set(position.hash);
        // The flow comes back even if its mask now leads to another position.
        again |= position
            .in_fixed_sample
            .is_some_and(|flow| self.history.seen_flows.test_and_set(fold(flow)));
        let admission = match again {
            // Flows of the fixed sample are stored only when they have come back, to show whether
            // flows do.
            false
                if p.policy.new_flows == NewFlows::MostReturn
                    && position.in_fixed_sample.is_none()
                    && p.pays(position.subtable) =>
            {
                Admission::Unlimited
            }
            false => Admission::FirstSeen,
            true if p.pays(position.subtable) => Admission::SeenBefore,
            true => Admission::Unprobed,
        };
        if position.in_fixed_sample.is_some() {
            let returning = admission == Admission::SeenBefore;
            p.rates.misses_returning.count(1, returning.into());
            // In direct mode a flow of the fixed sample is not stored: if it were, it would miss no
            // more and so not show that flows come back.
            if p.policy.new_flows == NewFlows::Direct {
                return Admission::FirstSeen;
            }
        }
        admission
    }

    /// The megaflow for a packet in one of these subtables, and its program.
    pub fn find_in(&mut self, subtables: &[usize], key: &KeyRef<'_>) -> Option<(u32, u32)> {
        subtables.iter().find_map(|subtable| {
            let hash = self.subtables[*subtable].as_ref()?.hash(key);
            self.probe(*subtable, hash, key)
        })
    }

    /// Records a packet's megaflow in the signature cache, if its port uses the cache.
    pub fn remember(&mut self, key: &KeyRef<'_>, megaflow: u32) {
        let port = usize::from(port_of(key.line[4]));
        let Some(union) = self.caching(port).filter(|_| megaflow != 0) else { return };
        let hash = union.hash(key);
        if let Some(cache) = &mut self.cache {
            let no_other_lost = cache.insert(hash, megaflow);
            self.classifier_mut(port as PortNo).rates.learned.count(1, no_other_lost.into());
        }
    }

    /// The megaflow of this key in a subtable, and its program; notes dead ones that it meets.
    fn probe(&mut self, subtable: usize, hash: u64, key: &KeyRef<'_>) -> Option<(u32, u32)> {
        let (sub, mut dead) = (self.subtables[subtable].as_deref()?, Vec::new());
        let found = self.search_all(sub, subtable, hash, key, &mut dead);
        self.search_mut().dead.append(&mut dead);
        (found.0 != 0).then_some(found)
    }

    /// Stores a decision for which the table has no megaflow; returns its index. None: the table is
    /// full.
    pub fn install(&mut self, position: &InsertPosition, program: u32, limit: u32) -> Option<u32> {
        if self.live >= limit {
            return None;
        }
        let idx = match self.places.free.last() {
            Some(i) => *i,
            None if (self.places.fresh as usize) <= self.store.capacity() => self.places.fresh,
            None => return None,
        };
        let sub = self.subtables[position.subtable].as_mut()?;
        self.places.generation = self.places.generation.wrapping_add(1);
        // Written before it is linked: splitting a bucket reads hashes from the store.
        let payload = Payload::new(program, position.subtable as u8, self.places.generation);
        self.store.write(idx, &position.masked, sub.ext != 0, payload, position.hash);
        if !sub.insert(&self.store, position.hash, idx) {
            self.store.unlink(idx);
            return None;
        }
        sub.refs += 1;
        self.used += usize::from(sub.len == 1);
        if self.places.free.pop().is_none() {
            self.places.fresh += 1;
        }
        self.live += 1;
        let port = port_of(position.masked[4]);
        if self.is_port_only(position) {
            self.classifier_mut(port).link_port_only(idx);
        }
        self.linked(port, position.subtable);
        Some(idx)
    }

    /// Computes the position and installs.
    #[cfg(test)]
    pub fn put(&mut self, key: &Words, mask: &Words, program: u32, limit: u32) -> Option<u32> {
        let position = self.insert_position(key, mask);
        self.install(&position, program, limit)
    }

    /// Unlinks a megaflow; returns its program if it was linked.
    pub fn unlink(&mut self, idx: u32) -> Option<u32> {
        let p = self.store.payload(idx);
        if p.0 & LIVE == 0 {
            return None;
        }
        let hash = self.store.counters(idx).hash.load(Ordering::Relaxed);
        let sub = self.subtables[p.mask()].as_mut()?;
        let found = sub.remove(hash, idx);
        debug_assert!(found, "a live megaflow is linked");
        self.used -= usize::from(sub.len == 0);
        self.store.unlink(idx);
        self.live -= 1;
        let port = port_of(self.store.word(idx, 4));
        self.classifier_mut(port).unlink_port_only(idx);
        self.unlinked(port, p.mask());
        Some(p.program())
    }

    /// True if the megaflow matches on nothing but the input port, and on packets that were not
    /// recirculated.
    fn is_port_only(&self, position: &InsertPosition) -> bool {
        let mask = self.subtables[position.subtable].as_ref().map(|sub| sub.mask);
        let others = || position.masked.iter().enumerate().any(|(w, v)| w != 4 && *v != 0);
        mask == Some(PORT_ONLY) && !others()
    }

    /// The megaflow and program that every packet of a port takes, if they can be known without
    /// reading the packet.
    #[inline]
    pub fn of_port(&self, port: PortNo) -> Option<(u32, u32)> {
        let megaflow = self.classifiers.get(usize::from(port))?.as_ref()?.sole()?;
        let payload = self.store.payload(megaflow);
        payload.usable().then(|| (megaflow, payload.program()))
    }

    /// What megaflows of the port match on: packets that agree on it have the same megaflow.
    #[inline]
    pub fn matched(&self, port: PortNo) -> &Matched {
        self.classifier(port.into()).map_or(&ALL_BITS, |p| &p.union.matched)
    }

    /// Counts a megaflow of the port that was linked.
    fn linked(&mut self, port: PortNo, subtable: usize) {
        let p = self.classifier_mut(port);
        let (first, new) = (p.link(subtable), p.live == 1);
        self.ports += usize::from(new);
        if first {
            self.reorder(port);
        }
    }

    /// Counts a megaflow of the port that was unlinked.
    fn unlinked(&mut self, port: PortNo, subtable: usize) {
        let p = self.classifier_mut(port);
        let (last, gone) = (p.unlink(subtable), p.live == 0);
        self.ports -= usize::from(gone);
        if last {
            self.reorder(port);
        }
    }

    /// Ranks the port's subtables again, as it has one more or one less.
    fn reorder(&mut self, port: PortNo) {
        let Some(p) = &mut self.classifiers[usize::from(port)] else { return };
        p.reorder(&self.subtables, self.secret);
    }

    /// Takes an index back: the control thread is done with the megaflow that was unlinked.
    pub fn release(&mut self, idx: u32) {
        let subtable = self.store.payload(idx).mask();
        if let Some(sub) = &mut self.subtables[subtable] {
            sub.refs -= 1;
            if sub.refs == 0 {
                self.history.subtable_memo.forget();
            }
        }
        self.places.free.push(idx);
    }

    /// Makes the lowest free index the next one, while free indices are few: dumps, which go by
    /// index, then show new flows in the order in which they come. Only with `own_masks`, whose
    /// users want OVS's output and not speed.
    pub fn order_free(&mut self) {
        if self.own_masks && self.places.free.len() <= INDICES_AT_ONCE_MAX as usize {
            self.places.free.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    /// The megaflow to evict. This examines the next megaflows until [`FULL_TABLE_FLOWS_RATIO`] are
    /// idle and of ports that have their share of the table or more, or 256 of any kind. Of these
    /// it chooses the least recently used, from a port below its share only if there is no other.
    pub fn victim(&mut self, now_ms: u64) -> Option<u32> {
        if self.live == 0 {
            return None;
        }
        let share = self.live / self.ports.max(1) as u32;
        let mut best: Option<((bool, u64), u32)> = None;
        let (mut seen, mut steps) = (0, 0);
        while seen < FULL_TABLE_FLOWS_RATIO && steps < self.places.fresh.min(VECTOR as u32) {
            self.places.eviction_hand = if self.places.eviction_hand + 1 >= self.places.fresh {
                1
            } else {
                self.places.eviction_hand + 1
            };
            if self.store.payload(self.places.eviction_hand).0 & LIVE == 0 {
                continue;
            }
            steps += 1;
            let port = usize::from(port_of(self.store.word(self.places.eviction_hand, 4)));
            let small = self.classifiers[port].as_ref().is_some_and(|p| p.live < share);
            let used =
                self.store.counters(self.places.eviction_hand).used_ms.load(Ordering::Relaxed);
            seen += u32::from(!small && used + RECENTLY_USED_MS <= now_ms);
            if best.is_none_or(|(b, _)| (small, used) < b) {
                best = Some(((small, used), self.places.eviction_hand));
            }
        }
        best.map(|(_, i)| i)
    }

    /// Ends an interval of 100 ms: ranks subtables and judges each port's policy.
    pub fn tune(&mut self, choice: Tri) {
        let miss_cycles = self.miss_cost.tune();
        self.history.recirculated.tune();
        self.any_port = AnyPort::default();
        for p in self.classifiers.iter_mut().flatten() {
            p.reorder(&self.subtables, self.secret);
            p.tune(choice, miss_cycles);
            self.any_port.cached |= p.policy.cache == CacheUse::On && p.live > 0;
            self.any_port.hashed |= p.policy.cache == CacheUse::On || p.policy.is_sampling();
            self.any_port.direct |= p.policy.new_flows == NewFlows::Direct;
        }
        if self.any_port.cached && self.cache.is_none() {
            self.cache = Some(SigCache::new(self.store.capacity()));
        }
    }

    /// What the control side may know of each port that has megaflows.
    pub fn snapshot(&self) -> Box<[PortLookup]> {
        self.classifiers.iter().flatten().filter(|p| p.live > 0).map(|p| p.snapshot()).collect()
    }
}

/// The input port of a key, from its word 4.
#[inline]
pub(crate) fn port_of(word: u64) -> PortNo {
    let b = word.to_ne_bytes();
    PortNo::from_be_bytes([b[at::IN_PORT - 32], b[at::IN_PORT - 31]])
}
