//! Recirculation: the state of a translation that waits for the packet to be parsed again.
//!
//! States live in a fixed table that any thread appends to without a lock; an id is a place in it.
//! Equal states share a place, so that ids are bounded by what the flow tables can say.

use super::{Miss, Xlate};
use action::Op;
use flow::{PACKET_LINES, TunMetadata, at};
use openflow::{Action, Instruction, OfPort};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;
use telemetry::Drop;

/// Ids 1..=65535.
const PLACES: usize = 65_535;
/// How far a state may lie from where its hash points.
const PROBES: usize = 64;

/// What is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub bridge: u32,
    pub table: u8,
    pub cookie: u64,
    /// Lines 4 and 5 of the key.
    pub pipeline: [u64; 16],
    pub set: Vec<Action>,
    pub stack: Vec<(u128, u16)>,
    pub tun: Vec<TunMetadata>,
    pub rest: Vec<Instruction>,
}

impl State {
    pub fn in_port(&self) -> OfPort {
        let mut key = flow::Key::ZERO;
        key.words[PACKET_LINES * 8..].copy_from_slice(&self.pipeline);
        key.u32(at::OF_IN_PORT)
    }
}

/// All states.
pub(crate) struct Frozen {
    places: Box<[OnceLock<Box<State>>]>,
}

impl Default for Frozen {
    fn default() -> Self {
        Frozen { places: (0..PLACES).map(|_| OnceLock::new()).collect() }
    }
}

impl Frozen {
    #[inline]
    pub fn get(&self, id: u16) -> Option<&State> {
        self.places.get(usize::from(id).checked_sub(1)?)?.get().map(|s| &**s)
    }

    /// The id of a state; None when its part of the table is full.
    pub fn put(&self, state: State) -> Option<u16> {
        let mut h = DefaultHasher::new();
        state.hash(&mut h);
        let start = (h.finish() % PLACES as u64) as usize;
        let mut state = Some(Box::new(state));
        for i in 0..PROBES {
            let at = (start + i) % PLACES;
            // Whoever comes first fills the place; a loser only compares.
            if self.places[at].get().is_none() {
                match state.take().map(|s| self.places[at].set(s)) {
                    Some(Err(mine)) => state = Some(mine),
                    _ => return Some(at as u16 + 1),
                }
            }
            if self.places[at].get() == state.as_ref() {
                return Some(at as u16 + 1);
            }
        }
        None
    }
}

impl<'a> Xlate<'a, '_> {
    /// Ends this pass if something waits for the packet to be parsed again.
    pub(super) fn freeze(&mut self) {
        let Some(rest) = self.rest.take() else { return };
        if self.failed.is_some() {
            return;
        }
        self.commit();
        let state = self.state(rest);
        match self.shared.frozen.put(state) {
            Some(id) => self.op(Op::Recirc(id)),
            None => self.fail(Drop::RecircLimit),
        }
        self.set.clear();
    }

    /// Goes on where [`Xlate::freeze`] stopped.
    pub(super) fn resume(&mut self, f: &'a State) {
        self.key.words[PACKET_LINES * 8..].copy_from_slice(&f.pipeline);
        self.base = self.key;
        (self.table, self.cookie) = (f.table, f.cookie);
        self.set = f.set.iter().collect();
        self.stack = f.stack.clone();
        self.tun = f.tun.clone();
        self.note_bridge();
        self.note_table(|| "thaw".into());
        self.instructions(&f.rest);
        self.close();
        self.run_set();
        self.freeze();
        self.close();
    }

    /// A table lookup that may have to wait.
    pub(super) fn resubmit(&mut self, in_port: Option<OfPort>, table: u8) {
        self.table(table, in_port, Miss::Ignore);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_states_share_an_id() {
        let f = Frozen::default();
        let state = |table| State {
            bridge: 0,
            table,
            cookie: 0,
            pipeline: [0; 16],
            set: vec![],
            stack: vec![],
            tun: vec![],
            rest: vec![Instruction::Goto(table)],
        };
        let a = f.put(state(1)).unwrap();
        assert_eq!(f.put(state(1)), Some(a));
        let b = f.put(state(2)).unwrap();
        assert_ne!(a, b);
        assert_eq!(f.get(b), Some(&state(2)));
        assert_eq!(f.get(0), None);
    }
}
