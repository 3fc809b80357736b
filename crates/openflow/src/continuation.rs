//! Pipelines that pause for a controller, and go on when it says so.

use crate::{Action, Instruction, Match};

/// What a paused pipeline needs to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Continuation {
    /// Names the bridge, and the daemon that it was in.
    pub bridge: [u8; 16],
    /// Values and their bits; the last one is on top.
    pub stack: Vec<(u128, u16)>,
    /// Mirrors that the packet has met, a bit each.
    pub mirrors: u32,
    /// What connection tracking says of the packet counts.
    pub conntracked: bool,
    /// Table of the rule that paused.
    pub table: u8,
    /// Cookie of the rule that paused.
    pub cookie: u64,
    /// What is still to be done.
    pub rest: Vec<Instruction>,
    /// The action set.
    pub set: Vec<Action>,
    /// Datapath port that the packet came in by; 0: none.
    pub odp_port: u32,
}

/// A packet whose pipeline goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// The packet, as the controller made it.
    pub data: Vec<u8>,
    /// The packet's pipeline fields.
    pub matching: Match,
    /// Where it goes on.
    pub continuation: Continuation,
}
