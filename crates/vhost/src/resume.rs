//! The index at which a ring continues when the device that served it has vanished.
//!
//! A split ring itself has it: the index of used buffers is in the guest's memory. Of a packed ring
//! the front-end only knows what the last device answered when it was stopped in order, if it was;
//! after a crash QEMU says what was true when the guest's driver started. But the flags of the
//! ring's descriptors say the same. Each descriptor was last written by the driver (available: the
//! USED bit is the opposite of the AVAIL bit) or by the device (used: both bits are equal), and
//! both sides write in order, flipping their bits with each lap. So with a device that uses buffers
//! in order, the USED bit has one value before the device's position and the other one from there
//! on. The only exception are buffers of several descriptors: the device writes the first one, and
//! the others still look available.

use crate::batch::{DESC, Desc, flag};
use crate::memory::Memory;
use crate::{RingSetup, feature, raw};

const WRAP: u16 = 1 << 15;

/// What matters of one descriptor.
#[derive(Clone, Copy)]
struct Mark {
    avail: bool,
    used: bool,
    id: u16,
    /// True if the descriptor may be a later one of a buffer of several descriptors.
    rest: bool,
}

impl Mark {
    fn is_used(self) -> bool {
        self.avail == self.used
    }
}

/// The base at which a ring's device continues, in the form of [`RingSetup::base`]. For a split
/// ring: its index of used buffers. For a packed ring: the setup's base if the ring does not
/// contradict it, else what the ring says, else the setup's base.
///
/// # Safety
///
/// As for [`crate::Ring::new`].
pub unsafe fn resumed_base(setup: &RingSetup, memory: &Memory) -> u16 {
    let size = usize::from(setup.size);
    let [desc, _, used] = setup.areas;
    if setup.features & feature::RING_PACKED == 0 {
        if !memory.holds(used, 4) || !used.addr().is_multiple_of(4) {
            return setup.base;
        }
        // SAFETY: mapped and aligned, as was just checked; the index is the second word.
        return unsafe { raw::load16(used.add(2).cast()) };
    }
    if !memory.holds(desc, size * DESC) || !desc.addr().is_multiple_of(16) {
        return setup.base;
    }
    let read = |i: usize| {
        // SAFETY: the table is mapped and aligned, as was just checked.
        let desc = unsafe { Desc::read(desc.add(i * DESC)) };
        let (avail, used) = (desc.b & flag::AVAIL != 0, desc.b & flag::USED != 0);
        Mark { avail, used, id: desc.a, rest: false }
    };
    let chains = setup.features & feature::INDIRECT_DESC == 0;
    decide((0..size).map(read).collect(), setup.base, chains)
}

/// Decides where a packed ring continues. `chains`: buffers of several descriptors are to be
/// expected, as there are no indirect tables. Their later descriptors may have any flags, if the
/// first one is of another lap; only used descriptors count then.
fn decide(mut marks: Vec<Mark>, base: u16, chains: bool) -> u16 {
    let strict = find(&marks);
    find_rests(&mut marks);
    if agrees(&marks, base) || chains && agrees_with_used(&marks, base) {
        return base;
    }
    strict.or_else(|| find(&marks)).unwrap_or(base)
}

/// Finds descriptors that may be later ones of a used buffer: drivers give all descriptors of a
/// buffer its id.
fn find_rests(marks: &mut [Mark]) {
    for i in 1..marks.len() {
        let (before, m) = (marks[i - 1], &mut marks[i]);
        let alike = before.avail == m.avail && before.id == m.id;
        m.rest = !m.is_used() && alike && (before.is_used() || before.rest);
    }
}

/// True if a device can be at `base`.
fn agrees(marks: &[Mark], base: u16) -> bool {
    let (place, wrap) = (usize::from(base & !WRAP), base & WRAP != 0);
    marks.iter().enumerate().all(|(i, m)| m.used == (wrap == (i < place)) || m.rest)
}

/// True if a device can be at `base`, by the descriptors that the device wrote only.
fn agrees_with_used(marks: &[Mark], base: u16) -> bool {
    let (place, wrap) = (usize::from(base & !WRAP), base & WRAP != 0);
    let mut used = marks.iter().enumerate().filter(|(_, m)| m.is_used());
    used.all(|(i, m)| m.used == (wrap == (i < place)))
}

/// The position at which the USED bit changes, if it changes at one position only.
fn find(marks: &[Mark]) -> Option<u16> {
    let first = marks.first()?.used;
    let base = match marks.iter().position(|m| m.used != first && !m.rest) {
        Some(place) => place as u16 | if first { WRAP } else { 0 },
        None if first => 0,
        None => WRAP,
    };
    agrees(marks, base).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring of which driver and device are simulated.
    struct Sim {
        marks: Vec<Mark>,
        /// Descriptors made available and used, counted on; a buffer's length by its first.
        avail: usize,
        used: usize,
        lengths: Vec<usize>,
        next: u16,
    }

    impl Sim {
        fn new(size: usize) -> Sim {
            let marks = vec![Mark { avail: false, used: false, id: 0, rest: false }; size];
            Sim { marks, avail: 0, used: 0, lengths: Vec::new(), next: 0 }
        }

        fn lap(&self, at: usize) -> bool {
            (at / self.marks.len()).is_multiple_of(2)
        }

        fn offer(&mut self, descs: usize) {
            if self.avail + descs - self.used > self.marks.len() {
                return;
            }
            for at in self.avail..self.avail + descs {
                let (i, lap) = (at % self.marks.len(), self.lap(at));
                self.marks[i] = Mark { avail: lap, used: !lap, id: self.next, rest: false };
            }
            self.next = self.next.wrapping_add(1);
            self.avail += descs;
            self.lengths.push(descs);
        }

        fn take(&mut self) {
            if self.lengths.is_empty() {
                return;
            }
            let descs = self.lengths.remove(0);
            let (i, lap) = (self.used % self.marks.len(), self.lap(self.used));
            self.marks[i] = Mark { avail: lap, used: lap, ..self.marks[i] };
            self.used += descs;
        }

        fn base(&self) -> u16 {
            let wrap = if self.lap(self.used) { WRAP } else { 0 };
            (self.used % self.marks.len()) as u16 | wrap
        }
    }

    fn play(size: usize, steps: usize, seed: u64, descs: usize, mut see: impl FnMut(&Sim)) {
        let (mut sim, mut x) = (Sim::new(size), seed);
        for _ in 0..steps {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            match x >> 20 & 1 {
                0 => sim.offer(1 + (x >> 30) as usize % descs),
                _ => sim.take(),
            }
            see(&sim);
        }
    }

    /// Tries buffers of one descriptor each, as drivers make them that use indirect tables.
    #[test]
    fn a_ring_says_where_it_goes_on() {
        for (size, seed) in [(1, 3), (2, 5), (7, 7), (64, 11), (256, 13)] {
            play(size, 3000, seed, 1, |sim| {
                let marks = &sim.marks;
                assert!(agrees(marks, sim.base()), "{} of {size}", sim.base());
                assert_eq!(find(marks), Some(sim.base()));
            });
        }
    }

    /// What the front-end says is taken if it can be right, also of buffers of several descriptors.
    #[test]
    fn a_base_that_can_be_right_is_kept() {
        for (size, seed) in [(8, 17), (64, 19), (255, 23)] {
            play(size, 3000, seed, 4, |sim| {
                assert_eq!(decide(sim.marks.clone(), sim.base(), true), sim.base());
            });
        }
    }

    #[test]
    fn a_base_of_before_is_found_out() {
        let (mut seen, mut wrong) = (0, 0);
        play(64, 4000, 29, 1, |sim| {
            if sim.base() != WRAP {
                seen += 1;
                wrong += usize::from(agrees(&sim.marks, WRAP));
            }
        });
        assert!(seen > 1000 && wrong == 0, "{wrong} of {seen}");
    }
}
