//! Decapsulation in one pass: an outer packet that a known rule would decapsulate loses its header
//! before lookup, so that only the inner packet is looked up.
//!
//! A terminator is a copy of such a rule, and good as long as the rule is: any rule that a packet
//! matches is a right decision about it. What does not fit (IP options, checksums, extensions, bad
//! headers) is left to the two steps (`tunnel::pop`), which also find the terminators.

use crate::lookup::store::{PWORDS, Store};
use crate::parse::Line;
use crate::tunnel::Plain;
use action::Op;
use flow::PortNo;

/// Rules worth a look at every packet: one underlay address and port each, more or less.
const MOST: usize = 4;

/// A rule that decapsulates.
pub(crate) struct Terminator {
    rule: u32,
    /// Its payload when it was copied: another one is another rule.
    payload: u64,
    key: [u64; 7],
    mask: [u64; 7],
    /// The tunnels' datapath port.
    pub port: PortNo,
    pub header: Plain,
    /// What it is a copy of.
    pub pop: Op,
    /// Outer packets of this vector, to be credited.
    pub packets: u64,
    pub bytes: u64,
}

impl Terminator {
    /// A copy of a live rule that does `pop` and looks at line 0 only.
    fn new(store: &Store, rule: u32, pop: &Op) -> Option<Terminator> {
        let Op::TunnelPop { port, kind, options } = pop else { return None };
        let header = Plain::new(*kind, options.clone())?;
        let p = store.payload(rule);
        let mask = |w| store.mask_word(p.mask(), w);
        if !p.usable() || (8..PWORDS).any(|w| mask(w) != 0) {
            return None;
        }
        let (key, mask) = (*store.line(rule), std::array::from_fn(mask));
        let (payload, port, pop) = (p.0, *port, pop.clone());
        Some(Terminator { rule, payload, key, mask, port, header, pop, packets: 0, bytes: 0 })
    }

    #[inline]
    fn takes(&self, line: &Line) -> bool {
        let words = line.iter().zip(&self.key).zip(&self.mask);
        words.fold(0, |d, ((l, k), m)| d | (l & m) ^ k) == 0
    }
}

/// The terminators of one worker.
#[derive(Default)]
pub(crate) struct Terminators {
    list: Vec<Terminator>,
    /// Which one the next newcomer replaces.
    turn: usize,
}

impl Terminators {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// This rule does `ops`, which is decapsulation.
    #[cold]
    pub fn learn(&mut self, store: &Store, rule: u32, ops: &[Op]) {
        let [pop] = ops else { return };
        if rule == 0 || self.list.iter().any(|t| t.rule == rule) {
            return;
        }
        let Some(new) = Terminator::new(store, rule, pop) else { return };
        match self.list.len() < MOST {
            true => self.list.push(new),
            false => {
                self.list[self.turn % MOST] = new;
                self.turn += 1;
            }
        }
    }

    /// Forgets rules that are no more.
    pub fn refresh(&mut self, store: &Store) {
        self.list.retain(|t| store.payload(t.rule).0 == t.payload);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// The terminator for a packet with this key line; which.
    #[inline]
    pub fn find(&self, line: &Line) -> Option<usize> {
        self.list.iter().position(|t| t.takes(line))
    }

    #[inline]
    pub fn get(&mut self, i: usize) -> &mut Terminator {
        &mut self.list[i]
    }

    /// Credits the rules; how many packets that was.
    pub fn count(&mut self, store: &Store, now_ms: u64) -> u64 {
        let mut all = 0;
        for t in self.list.iter_mut().filter(|t| t.packets > 0) {
            store.counters(t.rule).add(t.packets, t.bytes, now_ms);
            all += t.packets;
            (t.packets, t.bytes) = (0, 0);
        }
        all
    }
}
