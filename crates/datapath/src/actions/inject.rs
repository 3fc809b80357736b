//! Packets that the control side injects: operations on them go in turns of the worker, some a turn,
//! as a controller's packet may have thousands of outputs and the worker serves other ports, too.

use super::interpret::{self, Sink, Start};
use super::{fragments::Held, resume};
use crate::messages::Execute;
use crate::parse::frame::Frame;
use crate::tx::TxState;
use std::collections::VecDeque;
use telemetry::Drop;

/// Operations on such packets in one turn: as many as a vector has packets.
const TURN_OPS_MAX: usize = packet::VECTOR;

/// What is to be done.
pub(crate) enum Work {
    /// A packet with which nothing was done yet.
    All(Box<Execute>),
    /// The rest of a packet's operations.
    Rest(Held),
}

/// Packets that are to be injected, in order.
#[derive(Default)]
pub(crate) struct Injected {
    work: VecDeque<Work>,
    /// Packets that the control side has sent so far.
    sent: u64,
}

impl Injected {
    /// The control side sends a packet.
    pub fn push(&mut self, packet: Box<Execute>) {
        self.sent += 1;
        self.work.push_back(Work::All(packet));
    }

    /// Adds to what is to be done.
    pub fn add(&mut self, work: Work) {
        self.work.push_back(work);
    }

    /// True if nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
    }
}

/// Executes the operations of one turn; returns how many.
#[cold]
pub(crate) fn turn(tx: &mut TxState, vlan_limit: u8) -> usize {
    some(tx, vlan_limit, TURN_OPS_MAX)
}

/// Executes all that is to be executed, before a number gets another meaning.
pub(crate) fn all(tx: &mut TxState, vlan_limit: u8) {
    while !tx.injected.is_empty() {
        some(tx, vlan_limit, usize::MAX);
    }
}

/// Drops what is left when the worker stops.
pub(crate) fn shut_down(tx: &mut TxState) {
    for work in std::mem::take(&mut tx.injected.work) {
        if let Work::Rest(held) = work {
            tx.dropped(held.frame.in_port(), Drop::Shutdown);
            tx.free(held.packet);
        }
    }
}

fn some(tx: &mut TxState, vlan_limit: u8, most: usize) -> usize {
    let mut left = most;
    while left > 0
        && let Some(work) = tx.injected.work.pop_front()
    {
        // A packet without operations is work, too.
        left -= 1;
        let mut later = Vec::new();
        left = match work {
            Work::All(e) => begin(&e, vlan_limit, tx, left, &mut later),
            Work::Rest(held) => go_on(held, tx, left, &mut later),
        };
        later.into_iter().rev().for_each(|held| tx.injected.work.push_front(Work::Rest(held)));
        resume(tx);
    }
    if tx.injected.is_empty() {
        tx.has_injected(tx.injected.sent);
    }
    most - left
}

fn begin(
    e: &Execute,
    vlan_limit: u8,
    tx: &mut TxState,
    most: usize,
    later: &mut Vec<Held>,
) -> usize {
    tx.stats(e.in_port).injected.add(1);
    let frame = Frame::new(&e.packet, e.in_port, vlan_limit);
    match (frame, tx.make(&e.packet)) {
        (Some(f), Some(p)) => {
            let start = Start { ops: &e.ops, behind: None, why: Drop::Policy, most };
            return interpret::run_some(tx, start, p, f, later);
        }
        (None, made) => {
            tx.dropped(e.in_port, Drop::Truncated);
            made.into_iter().for_each(|p| tx.free(p));
        }
        (_, None) => tx.dropped(e.in_port, Drop::NoBuffer),
    }
    most
}

fn go_on(held: Held, tx: &mut TxState, most: usize, later: &mut Vec<Held>) -> usize {
    let Held { packet, frame, ops, at, why, .. } = held;
    let start = Start { ops: &ops, behind: Some(at), why, most };
    interpret::run_some(tx, start, packet, frame, later)
}
