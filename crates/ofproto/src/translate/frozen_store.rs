//! Where frozen states are kept.
//!
//! States are in places, which any thread fills without a lock ([`States::put`]); equal states
//! share a place. Each bridge has places of its own. A megaflow that names a state holds an [`Arc`]
//! of it ([`action::Decision::keep_alive`]). The control side frees states that no decision holds
//! and with which no packet was resolved for some seconds ([`Sweep`]).

use super::frozen::State;
use super::frozen_ids::{Ids, Where};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use sync::{Domain, Grace, Guard, Slot};

/// Number of places of one region.
const PLACES: usize = 1 << 15;
/// States of one bridge at a time, at most: half of its places, so that a free one is found in
/// [`PLACE_PROBES`].
const STATES_MAX: u32 = PLACES as u32 / 2;
/// Bytes of one bridge's states, at most, about.
const STATES_BYTES_MAX: usize = 64 << 20;
/// Number of regions. If there are more bridges than regions, bridges share them.
const REGIONS: usize = 1 << 10;
/// Places that are searched for a state, from the one that its hash names.
const PLACE_PROBES: usize = 64;
/// Time for which a state that no decision holds is kept, ns. Packets that were decided about with
/// it wait for less than this to be looked up again.
const UNUSED_NS_MAX: u64 = 3_000_000_000;
/// Places that one sweep examines: those of two bridges, in about 0.1 ms.
const SWEEP_PLACES_MAX: usize = 2 * PLACES;

/// A state, with its id and what the sweep knows of it.
pub(crate) struct Kept {
    pub id: u32,
    pub state: State,
    hash: u64,
    /// True: a packet was decided about with the state since the last sweep.
    touched: AtomicBool,
    /// True: the state is about to be freed, and is not found by its value any more.
    leaving: AtomicBool,
    /// True: a trace made the state, and it is found by its id only.
    traced: bool,
    /// Time since which no decision holds the state, ns; 0: one does. Only the control side writes
    /// this.
    unused_since: AtomicU64,
}

impl Kept {
    fn touch(&self) {
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
    }

    fn is(&self, hash: u64, state: &State) -> bool {
        let leaving = || self.leaving.load(Ordering::Acquire);
        self.hash == hash && !self.traced && !leaving() && self.state == *state
    }
}

/// A place for one state. Only the control side empties it.
type Place = Slot<Arc<Kept>>;

struct Region {
    places: Box<[Place]>,
    used: AtomicU32,
    bytes: AtomicUsize,
}

impl Region {
    fn new() -> Region {
        let places = (0..PLACES).map(|_| Place::default()).collect();
        Region { places, used: AtomicU32::new(0), bytes: AtomicUsize::new(0) }
    }

    /// Makes room for a state of so many bytes; false: there is none.
    fn enter(&self, bytes: usize) -> bool {
        let has_room = self.used.fetch_add(1, Ordering::Relaxed) < STATES_MAX;
        let held = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = has_room && held.saturating_add(bytes) <= STATES_BYTES_MAX;
        if !fits {
            self.leave(bytes);
        }
        fits
    }

    fn leave(&self, bytes: usize) {
        self.used.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// All frozen states.
pub(crate) struct States {
    regions: Box<[OnceLock<Region>]>,
    ids: Ids,
    /// A keyed hash, so that packets cannot choose places.
    hasher: RandomState,
}

impl Default for States {
    fn default() -> Self {
        let regions = (0..REGIONS).map(|_| OnceLock::new()).collect();
        States { regions, ids: Ids::default(), hasher: RandomState::new() }
    }
}

impl States {
    fn region(&self, bridge: u32) -> Option<&Region> {
        let place = &self.regions[bridge as usize % REGIONS];
        if place.get().is_none() {
            // A thread that comes second finds the region that the first one made.
            let _ = place.set(Region::new());
        }
        place.get()
    }

    /// The state with this id.
    pub fn get<'g>(&'g self, guard: Guard<'g>, id: u32) -> Option<&'g Arc<Kept>> {
        let kept = self.at(guard, self.ids.get(id)?)?;
        kept.touch();
        (kept.id == id).then_some(kept)
    }

    /// The state that is in a place now.
    fn at<'g>(&'g self, guard: Guard<'g>, at: Where) -> Option<&'g Arc<Kept>> {
        self.regions[at.region].get()?.places[at.place].get(guard)
    }

    /// A new id, for a state that is about to be in this place.
    fn new_id(&self, guard: Guard<'_>, at: Where) -> Option<u32> {
        let in_use = |id, at| self.at(guard, at).is_some_and(|kept| kept.id == id);
        self.ids.next(at, in_use)
    }

    /// Stores a state, or finds an equal one; None: its bridge has as many states as it may have.
    /// What a trace stores gets a new id each time, as in OVS, until traces fill half the room.
    pub fn put(&self, guard: Guard<'_>, state: State, traced: bool) -> Option<Arc<Kept>> {
        let (hash, bridge) = (self.hasher.hash_one(&state), state.bridge);
        let region = self.region(bridge)?;
        let places = || (0..PLACE_PROBES).map(|i| (hash as usize).wrapping_add(i) % PLACES);
        for place in places() {
            if let Some(kept) = region.places[place].get(guard).filter(|k| k.is(hash, &state)) {
                kept.touch();
                return Some(kept.clone());
            }
        }
        let traced = traced && region.used.load(Ordering::Relaxed) < STATES_MAX / 2;
        let bytes = state.bytes();
        if !region.enter(bytes) {
            return None;
        }
        let new = |id, state| Kept {
            id,
            state,
            hash,
            touched: AtomicBool::new(true),
            leaving: AtomicBool::new(false),
            traced,
            unused_since: AtomicU64::new(0),
        };
        let mut kept = Arc::new(new(0, state));
        for place in places() {
            let at = &region.places[place];
            let mut there = at.get(guard);
            if there.is_none() {
                let of = Where { region: bridge as usize % REGIONS, place };
                let (Some(id), Some(k)) = (self.new_id(guard, of), Arc::get_mut(&mut kept)) else {
                    break;
                };
                k.id = id;
                if at.fill(Box::new(kept.clone())).is_ok() {
                    return Some(kept);
                }
                there = at.get(guard);
            }
            // Another thread may have stored an equal state meanwhile.
            if let Some(theirs) = there.filter(|t| t.is(hash, &kept.state)) {
                region.leave(bytes);
                theirs.touch();
                return Some(theirs.clone());
            }
        }
        region.leave(bytes);
        None
    }

    /// Number of states that a bridge has.
    #[cfg(test)]
    pub fn used(&self, bridge: u32) -> u32 {
        self.region(bridge).map_or(0, |r| r.used.load(Ordering::Relaxed))
    }
}

/// A state that is about to be freed.
struct Leaving {
    region: usize,
    place: usize,
    /// After this, no thread finds the state by its value. If no decision holds it then, it waits
    /// for a second grace period, after which no packet that met a megaflow with it is under way.
    grace: Grace,
    last: bool,
}

/// The control side's part of [`States`].
#[derive(Default)]
pub(crate) struct Sweep {
    region: usize,
    place: usize,
    leaving: VecDeque<Leaving>,
}

impl Sweep {
    /// Frees states that were not used for some seconds. Examines a bounded number of places;
    /// called each second.
    pub fn run(&mut self, guard: Guard<'_>, states: &States, domain: &Domain, now: u64) {
        self.free(guard, states, domain);
        let mut left = SWEEP_PLACES_MAX;
        for _ in 0..REGIONS {
            let Some(region) = states.regions[self.region].get() else {
                (self.region, self.place) = ((self.region + 1) % REGIONS, 0);
                continue;
            };
            let to = (self.place + left).min(PLACES);
            for place in self.place..to {
                if let Some(kept) = region.places[place].get(guard)
                    && is_unused(kept, now)
                {
                    kept.leaving.store(true, Ordering::Release);
                    let (region, grace) = (self.region, domain.grace());
                    self.leaving.push_back(Leaving { region, place, grace, last: false });
                }
            }
            left -= to - self.place;
            self.place = to;
            if left == 0 {
                break;
            }
            (self.region, self.place) = ((self.region + 1) % REGIONS, 0);
        }
    }

    fn free(&mut self, guard: Guard<'_>, states: &States, domain: &Domain) {
        for _ in 0..self.leaving.len() {
            let Some(mut l) = self.leaving.pop_front() else { return };
            let Some(region) = states.regions[l.region].get() else { continue };
            let place = &region.places[l.place];
            let Some(kept) = place.get(guard) else { continue };
            if !domain.passed(l.grace) {
                self.leaving.push_back(l);
            } else if is_held(kept) {
                kept.unused_since.store(0, Ordering::Relaxed);
                kept.leaving.store(false, Ordering::Release);
            } else if l.last {
                let bytes = kept.state.bytes();
                place.clear(domain);
                region.leave(bytes);
            } else {
                (l.grace, l.last) = (domain.grace(), true);
                self.leaving.push_back(l);
            }
        }
    }
}

/// True if a megaflow holds the state, or a packet was decided about with it since the last sweep.
fn is_held(kept: &Arc<Kept>) -> bool {
    kept.touched.swap(false, Ordering::Relaxed) || Arc::strong_count(kept) > 1
}

/// True if the state was not used for long enough to be freed.
fn is_unused(kept: &Arc<Kept>, now: u64) -> bool {
    if kept.leaving.load(Ordering::Relaxed) {
        return false;
    }
    let since = kept.unused_since.load(Ordering::Relaxed);
    let now_unused = if is_held(kept) { 0 } else { now.max(1) };
    if since == 0 || now_unused == 0 {
        kept.unused_since.store(now_unused, Ordering::Relaxed);
        return false;
    }
    now_unused.saturating_sub(since) >= UNUSED_NS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow::Instruction;
    use sync::Writer;

    fn state(bridge: u32, table: u8) -> State {
        State {
            bridge,
            table,
            cookie: 0,
            pipeline: [0; 16],
            set: vec![],
            stack: vec![],
            tun: vec![],
            outer: None,
            conntracked: false,
            mirrors: 0,
            rest: vec![Instruction::Goto(table)],
        }
    }

    fn get<'g>(s: &'g States, w: &'g Writer, id: u32) -> Option<&'g State> {
        s.get(w.pin(), id).map(|k| &k.state)
    }

    #[test]
    fn equal_states_share_an_id() {
        let (s, w) = (States::default(), Domain::new().writer());
        let a = s.put(w.pin(), state(0, 1), false).unwrap().id;
        assert_eq!(s.put(w.pin(), state(0, 1), false).unwrap().id, a);
        let b = s.put(w.pin(), state(0, 2), false).unwrap().id;
        assert_ne!(a, b);
        assert_ne!(s.put(w.pin(), state(1, 1), false).unwrap().id, a);
        assert_eq!(get(&s, &w, b), Some(&state(0, 2)));
        assert!(get(&s, &w, 0).is_none() && get(&s, &w, b ^ 1 << 31).is_none());
    }

    #[test]
    fn ids_count_from_one() {
        let (s, w) = (States::default(), Domain::new().writer());
        let ids = [(0, 1), (1, 1), (0, 2), (0, 1)]
            .map(|(bridge, table)| s.put(w.pin(), state(bridge, table), false).unwrap().id);
        assert_eq!(ids, [1, 2, 3, 1]);
    }

    #[test]
    fn what_a_trace_stores_is_its_own() {
        let (s, w) = (States::default(), Domain::new().writer());
        let put = |table, traced| s.put(w.pin(), state(0, table), traced).unwrap().id;
        assert_eq!([put(1, true), put(1, true), put(1, false)], [1, 2, 3]);
        assert_eq!([put(1, true), put(1, false)], [3, 3], "a real one is found");
        for table in 2..66u8 {
            for cookie in 0..128 {
                let traced = State { cookie, ..state(0, table) };
                let _ = s.put(w.pin(), traced, true);
            }
        }
        let again = || s.put(w.pin(), State { cookie: 127, ..state(0, 90) }, true).unwrap().id;
        assert_eq!(again(), again(), "there is room left for others");
        assert!(s.used(0) < STATES_MAX / 2 + 9);
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_state_goes_when_nothing_uses_it_and_its_id_is_another_ones() {
        let (s, domain, mut sweep) = (States::default(), Domain::new(), Sweep::default());
        let (w, mut reader) = (domain.writer(), domain.reader());
        let held = s.put(w.pin(), state(0, 1), false).unwrap();
        let id = held.id;
        for second in 1..20 {
            reader.quiescent();
            sweep.run(w.pin(), &s, &domain, second * SECOND);
        }
        assert_eq!(get(&s, &w, id), Some(&state(0, 1)), "held");
        drop(held);
        let mut second = 20;
        let mut run = |n: u64, quiescent: bool| {
            for _ in 0..n {
                second += 1;
                sweep.run(w.pin(), &s, &domain, second * SECOND);
                if quiescent {
                    reader.quiescent();
                }
            }
            s.used(0)
        };
        // The first sweep sees that it was looked up, the next that nothing holds it.
        assert_eq!(run(4, true), 1, "it waits");
        assert_eq!(run(9, false), 1, "a thread is still where it may know of it");
        assert_eq!(run(3, true), 0);
        assert!(get(&s, &w, id).is_none());
        let again = s.put(w.pin(), state(0, 1), false).unwrap();
        assert_ne!(again.id, id);
    }

    #[test]
    fn a_state_that_is_found_while_it_leaves_stays() {
        let (s, domain, mut sweep) = (States::default(), Domain::new(), Sweep::default());
        let (w, mut reader) = (domain.writer(), domain.reader());
        let id = s.put(w.pin(), state(0, 1), false).unwrap().id;
        for second in 1..7 {
            sweep.run(w.pin(), &s, &domain, second * SECOND);
        }
        assert_eq!(sweep.leaving.len(), 1);
        // A packet that was on its way is looked up now.
        assert!(get(&s, &w, id).is_some());
        reader.quiescent();
        sweep.run(w.pin(), &s, &domain, 8 * SECOND);
        assert!(sweep.leaving.is_empty());
        assert_eq!(s.put(w.pin(), state(0, 1), false).unwrap().id, id);
    }

    #[test]
    fn threads_agree_on_a_states_id() {
        let (s, domain) = (States::default(), Domain::new());
        let all: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let run = || {
                let reader = domain.reader();
                (0..200).map(|t| s.put(reader.pin(), state(0, t), false).unwrap().id).collect()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(all.iter().all(|ids| *ids == all[0]));
        assert_eq!(s.used(0), 200);
    }
}
