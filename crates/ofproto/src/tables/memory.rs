//! The memory that the flows of each bridge take: a controller makes as many as it likes, with
//! actions of up to 64 KiB each.

use openflow::{Action, Instruction, Learn, LearnSpec};
use std::collections::HashMap;

/// Bytes of a flow without actions, as a rule, in tables and records.
const FLOW_BYTES: usize = 700;
/// Bytes that the flows of all bridges take, at most, where it is not known what the machine has.
const BYTES_MAX: u64 = 8 << 30;

/// Bytes that the flows of each bridge take, about.
pub(crate) struct FlowMemory {
    by_bridge: HashMap<u32, u64>,
    total: u64,
    /// Bytes for all bridges together. One bridge may have as many as others have left of these,
    /// so one alone has half of them.
    pub max: u64,
}

impl Default for FlowMemory {
    fn default() -> Self {
        FlowMemory { by_bridge: HashMap::new(), total: 0, max: BYTES_MAX }
    }
}

impl FlowMemory {
    /// True if flows of this bridge may take so many bytes more.
    pub fn has_room(&self, bridge: u32, bytes: u64) -> bool {
        let own = self.by_bridge.get(&bridge).copied().unwrap_or(0);
        bytes == 0 || own.saturating_add(bytes) <= self.max.saturating_sub(self.total)
    }

    /// Flows of a bridge took so many bytes, and take so many now.
    pub fn change(&mut self, bridge: u32, from: u32, to: u32) {
        let own = self.by_bridge.entry(bridge).or_default();
        *own = *own + u64::from(to) - u64::from(from);
        self.total = self.total + u64::from(to) - u64::from(from);
        if *own == 0 {
            self.by_bridge.remove(&bridge);
        }
    }
}

/// Bytes of a flow with these instructions, about.
pub(crate) fn flow_bytes(instructions: &[Instruction]) -> u32 {
    let of = |instruction: &Instruction| match instruction {
        Instruction::Apply(actions) | Instruction::Write(actions) => bytes(actions),
        _ => 0,
    };
    let all = FLOW_BYTES + instructions.iter().map(of).sum::<usize>();
    u32::try_from(all).unwrap_or(u32::MAX)
}

/// Bytes of a list of actions.
pub(crate) fn bytes(actions: &[Action]) -> usize {
    actions.iter().map(|action| size_of::<Action>() + more(action)).sum()
}

/// Bytes of an action besides its place in the list.
fn more(action: &Action) -> usize {
    match action {
        Action::Clone(actions) => bytes(actions),
        Action::Ct(ct) => size_of_val(&**ct) + bytes(&ct.actions),
        Action::Nat(nat) => size_of_val(&**nat),
        Action::Learn(learn) => size_of::<Learn>() + learn.specs.len() * size_of::<LearnSpec>(),
        Action::Bundle(bundle) => size_of_val(&**bundle) + size_of_val(&bundle.members[..]),
        Action::Note(note) => note.len(),
        Action::Controller { userdata, .. } => userdata.len(),
        _ => 0,
    }
}
