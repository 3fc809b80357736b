//! The ids of frozen states: they count from 1 over all bridges, as in Open vSwitch, and say in
//! which place a state is.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Ids that differ in more than these bits may be in use at the same time.
const INDEX_BITS: u32 = 22;
/// Ids are found in pieces, which are made when they are needed: of 32 KiB each.
const PIECE_BITS: u32 = 12;
/// Ids that are tried until one is not in use.
const ID_PROBES: u32 = 64;

/// A place of a region, below 2^16 both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Where {
    pub region: usize,
    pub place: usize,
}

type Piece = Box<[AtomicU64]>;

/// All ids. Each entry consists, from the high bits down, of an id, a region and a place; 0: none.
pub(super) struct Ids {
    pieces: Box<[OnceLock<Piece>]>,
    last: AtomicU32,
}

impl Default for Ids {
    fn default() -> Self {
        let pieces = (0..1 << (INDEX_BITS - PIECE_BITS)).map(|_| OnceLock::new()).collect();
        Ids { pieces, last: AtomicU32::new(0) }
    }
}

impl Ids {
    fn piece(&self, id: u32) -> &OnceLock<Piece> {
        &self.pieces[(id >> PIECE_BITS) as usize % self.pieces.len()]
    }

    /// Where the state with this id is, if it is still there.
    pub fn get(&self, id: u32) -> Option<Where> {
        let entry = self.piece(id).get()?[index(id)].load(Ordering::Acquire);
        (id_of(entry) == id && id != 0).then(|| place_of(entry))
    }

    /// The next id, for a state that is about to be in this place; None: too many are in use.
    pub fn next(&self, at: Where, in_use: impl Fn(u32, Where) -> bool) -> Option<u32> {
        (0..ID_PROBES).find_map(|_| {
            let id = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            let make = || (0..1 << PIECE_BITS).map(|_| AtomicU64::new(0)).collect();
            let entry = &self.piece(id).get_or_init(make)[index(id)];
            let before = entry.load(Ordering::Acquire);
            if id == 0 || before != 0 && in_use(id_of(before), place_of(before)) {
                return None;
            }
            let new = u64::from(id) << 32 | (at.region as u64) << 16 | at.place as u64;
            let taken = entry.compare_exchange(before, new, Ordering::Release, Ordering::Relaxed);
            taken.is_ok().then_some(id)
        })
    }
}

fn index(id: u32) -> usize {
    id as usize % (1 << PIECE_BITS)
}

fn id_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

fn place_of(entry: u64) -> Where {
    Where { region: usize::from((entry >> 16) as u16), place: usize::from(entry as u16) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Where = Where { region: 1023, place: 32767 };

    #[test]
    fn an_id_says_where_its_state_is() {
        let ids = Ids::default();
        assert!(ids.get(0).is_none() && ids.get(1).is_none());
        assert_eq!(ids.next(PLACE, |_, _| panic!("there is none")), Some(1));
        assert_eq!((ids.get(1), ids.get(1 + (1 << INDEX_BITS))), (Some(PLACE), None));
    }

    #[test]
    fn ids_in_use_are_passed_over_and_0_is_none() {
        let ids = Ids::default();
        let next = |last: u32, in_use: &dyn Fn(u32) -> bool| {
            ids.last.store(last, Ordering::Relaxed);
            ids.next(PLACE, |id, _| in_use(id))
        };
        (1..100).for_each(|id| assert_eq!(ids.next(PLACE, |_, _| true), Some(id)));
        let second = 1 << INDEX_BITS;
        assert_eq!(next(second, &|id| id < 10), Some(second + 10));
        assert_eq!(ids.get(9), Some(PLACE), "in use");
        assert_eq!(ids.get(10), None, "another one has its entry");
        assert_eq!(next(2 * second, &|_| true), None, "too many");
        assert_eq!(next(u32::MAX, &|_| false), Some(1));
    }
}
