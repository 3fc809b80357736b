//! Frozen state: the state of a translation that waits for the packet to be looked up again.

use super::bytes::bytes_of_all;
use flow::{PACKET_LINES, TunMetadata, at};
use openflow::{Action, Instruction, OfPort};

/// The state of a translation that continues when the packet is looked up again.
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
    /// The outer header's fields, if actions wrote them; None: as in the packet.
    pub outer: Option<Box<Outer>>,
    /// True if the packet's `ct` fields are valid.
    pub conntracked: bool,
    /// Mirrors that have got the packet in this bridge, a bit each.
    pub mirrors: u32,
    /// Instructions to execute. Empty: the packet is looked up in `table`.
    pub rest: Vec<Instruction>,
}

/// Fields of the outer header, and the packet's mark: bytes 48..56 and line 2 of a key.
pub(crate) type Outer = [u64; 9];

pub(crate) const OUTER_WORDS: [usize; 9] = [6, 16, 17, 18, 19, 20, 21, 22, 23];

/// The outer header's fields, and the packet's mark, of a key.
pub(crate) fn outer(key: &flow::Key) -> Outer {
    OUTER_WORDS.map(|i| key.words[i])
}

impl State {
    /// The state in which a paused pipeline continues (NXT_RESUME).
    pub fn of_continuation(bridge: u32, r: &openflow::Resume) -> State {
        let c = &r.continuation;
        let mut key = r.matching.key;
        key.set_u32(at::ACTSET_OUTPUT, openflow::port::UNSET);
        // If no instruction is left, no table is looked up either.
        let rest = match c.rest.is_empty() {
            true => vec![Instruction::Apply(Vec::new())],
            false => c.rest.clone(),
        };
        State {
            bridge,
            table: c.table,
            cookie: c.cookie,
            pipeline: key.words[PACKET_LINES * 8..].try_into().unwrap_or([0; 16]),
            set: c.set.clone(),
            stack: c.stack.clone(),
            tun: r.matching.tun.clone(),
            outer: None,
            conntracked: c.conntracked,
            mirrors: c.mirrors,
            rest,
        }
    }

    /// Restores the fields of tunnels and connection tracking that a controller kept for a packet.
    pub fn restore(fields: &flow::Key, packet: &mut flow::Key) {
        OUTER_WORDS.iter().for_each(|i| packet.words[*i] |= fields.words[*i]);
        packet.set_u8(at::CT_STATE, fields.u8(at::CT_STATE));
        packet.set_u32(at::CT_MARK, fields.u32(at::CT_MARK));
        let tracked = at::CT_LABEL / 8..PACKET_LINES * 8;
        packet.words[tracked.clone()].copy_from_slice(&fields.words[tracked]);
    }

    /// Bytes that it takes, about.
    pub fn bytes(&self) -> usize {
        let instruction = |i: &Instruction| match i {
            Instruction::Apply(a) | Instruction::Write(a) => bytes_of_all(a),
            _ => 0,
        };
        size_of::<State>()
            + bytes_of_all(&self.set)
            + size_of_val(&*self.stack)
            + size_of_val(&*self.tun)
            + size_of_val(&*self.rest)
            + self.rest.iter().map(instruction).sum::<usize>()
    }

    /// The table in which the packet is looked up; 0 if actions are executed instead.
    pub fn resumed_at(&self) -> u8 {
        if self.rest.is_empty() { self.table } else { 0 }
    }

    pub fn in_port(&self) -> OfPort {
        let mut key = flow::Key::ZERO;
        key.words[PACKET_LINES * 8..].copy_from_slice(&self.pipeline);
        key.u32(at::OF_IN_PORT)
    }
}
