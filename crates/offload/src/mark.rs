//! Marks of 24 bits: a slot, and a generation that counts the uses of the slot.

use std::collections::VecDeque;

/// Slots of a port. Slots 0 and 65,535 are not used: mark 0 means "no mark", and ConnectX adapters
/// keep the last 16 for themselves.
pub const SLOTS: usize = 1 << 16;

/// How long a slot that was given back is not used again, milliseconds: packets that waited in
/// receive rings are gone by then. A ring of 4,096 packets at 10,000 packets per second holds 0.4
/// s.
const REST_MS: u64 = 1000;

/// The number that a rule writes into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark(u32);

impl Mark {
    fn new(slot: u16, generation: u8) -> Mark {
        Mark(u32::from(slot) << 8 | u32::from(generation))
    }

    /// The mark with this number; None: no rule has it.
    pub fn of(number: u32) -> Option<Mark> {
        let mark = Mark(number);
        (number >> 24 == 0 && mark.slot() != 0 && mark.slot() != u16::MAX).then_some(mark)
    }

    /// The mark as a number of at most 24 bits.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The slot.
    pub fn slot(self) -> u16 {
        (self.0 >> 8) as u16
    }

    /// How often the slot was used before, modulo 256.
    pub fn generation(self) -> u8 {
        self.0 as u8
    }
}

/// The marks of one port.
pub(crate) struct Marks {
    /// Slots from this one on were never used.
    fresh: u16,
    generations: Vec<u8>,
    /// Slots that were given back, and when; the first one is used next.
    resting: VecDeque<(u16, u64)>,
    used: usize,
}

impl Marks {
    pub fn new() -> Marks {
        Marks { fresh: 1, generations: Vec::new(), resting: VecDeque::new(), used: 0 }
    }

    /// Number of marks in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// A mark that no packet has; None: all slots are in use or were given back too lately.
    pub fn take(&mut self, now_ms: u64) -> Option<Mark> {
        let rested = self.resting.front().is_some_and(|(_, since)| now_ms >= since + REST_MS);
        let mark = if rested {
            let (slot, _) = self.resting.pop_front()?;
            let generation = &mut self.generations[usize::from(slot)];
            *generation = generation.wrapping_add(1);
            Mark::new(slot, *generation)
        } else {
            let slot = self.fresh;
            if usize::from(slot) + 1 == SLOTS {
                return None;
            }
            self.fresh += 1;
            self.generations.resize(usize::from(slot) + 1, 0);
            Mark::new(slot, 0)
        };
        self.used += 1;
        Some(mark)
    }

    /// Gives a mark back, whose rule is removed from the adapter.
    pub fn give_back(&mut self, mark: Mark, now_ms: u64) {
        self.used -= 1;
        self.resting.push_back((mark.slot(), now_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn no_mark_is_zero_or_reserved_and_all_are_different() {
        let mut marks = Marks::new();
        let all: Vec<u32> = std::iter::from_fn(|| marks.take(0)).map(Mark::number).collect();
        assert_eq!(all.len(), SLOTS - 2);
        assert!(all.iter().all(|m| *m > 0 && *m < 0xff_fff0));
        assert!(all.windows(2).all(|w| w[0] < w[1]));
        assert_eq!(marks.take(1 << 40), None, "none rests");
    }

    proptest! {
        /// Whatever order: a mark is not out twice, and a slot rests before it is out again, as
        /// another mark.
        #[test]
        fn slots_rest(steps in proptest::collection::vec((any::<bool>(), 0u64..400), 1..400)) {
            let (mut marks, mut now) = (Marks::new(), 0);
            let mut out: Vec<Mark> = Vec::new();
            let mut back = BTreeMap::<u16, (u64, Mark)>::new();
            for (take, pause) in steps {
                now += pause;
                if take || out.is_empty() {
                    let mark = marks.take(now).expect("there are more slots than steps");
                    prop_assert!(out.iter().all(|m| m.slot() != mark.slot()));
                    if let Some((since, old)) = back.get(&mark.slot()) {
                        prop_assert!(now >= since + REST_MS && *old != mark);
                    }
                    out.push(mark);
                } else {
                    let mark = out.swap_remove(now as usize % out.len());
                    back.insert(mark.slot(), (now, mark));
                    marks.give_back(mark, now);
                }
                prop_assert_eq!(marks.used(), out.len());
            }
        }
    }
}
