//! Executes operations on packets of the control side, some in each iteration of the worker: a
//! controller's packet may have thousands of outputs, and the worker serves other ports, too.

use super::fragments::Paused;
use super::injected::Work;
use super::interpret::{self, Sink, Start};
use crate::messages::Execute;
use crate::parse::frame::Frame;
use crate::tx::TxState;
use telemetry::Drop;

/// Operations on such packets in one iteration, at most: as many as a vector has packets.
const ITERATION_OPS_MAX: usize = packet::VECTOR;

/// Executes the operations of one iteration; returns how many.
#[cold]
pub(crate) fn run_iteration(tx: &mut TxState, vlan_limit: u8) -> usize {
    some(tx, vlan_limit, ITERATION_OPS_MAX)
}

/// Executes all operations that are left, before a port or bond number gets another meaning.
pub(crate) fn all(tx: &mut TxState, vlan_limit: u8) {
    while !tx.injected.is_empty() {
        some(tx, vlan_limit, usize::MAX);
    }
}

/// Drops the packets whose operations are not finished when the worker stops.
pub(crate) fn shut_down(tx: &mut TxState) {
    while let Some(work) = tx.injected.next() {
        if let Work::Rest(paused) = work {
            tx.dropped(paused.frame.in_port(), Drop::Shutdown);
            tx.free(paused.packet);
        }
    }
}

/// Executes up to `most` operations; returns how many.
fn some(tx: &mut TxState, vlan_limit: u8, most: usize) -> usize {
    let mut left = most;
    while left > 0
        && let Some(work) = tx.injected.next()
    {
        // A packet without operations is work, too.
        left -= 1;
        let mut later = Vec::new();
        left = match work {
            Work::All(e) => begin(&e, vlan_limit, tx, left, &mut later),
            Work::Rest(paused) => continue_paused(*paused, tx, left, &mut later),
        };
        later.into_iter().rev().for_each(|paused| tx.injected.push_front(paused));
        resume(tx);
    }
    most - left
}

/// Begins with a packet: executes up to `most` of its operations, and adds what is left to `later`.
/// Returns how many of `most` are left.
fn begin(
    e: &Execute,
    vlan_limit: u8,
    tx: &mut TxState,
    most: usize,
    later: &mut Vec<Paused>,
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

/// Continues a packet that waited, as [`begin`] does.
fn continue_paused(
    paused: Paused,
    tx: &mut TxState,
    most: usize,
    later: &mut Vec<Paused>,
) -> usize {
    let Paused { packet, frame, ops, position, why, .. } = paused;
    let start = Start { ops: &ops, behind: Some(position), why, most };
    interpret::run_some(tx, start, packet, frame, later)
}

/// Continues the operations of fragments whose datagram is complete.
#[inline]
pub(crate) fn resume(tx: &mut TxState) {
    while let Some(paused) = tx.ct.fragments.next() {
        if tx.is_misdirected(&paused) {
            tx.dropped(paused.frame.in_port(), Drop::NoPort);
            tx.free(paused.packet);
            continue;
        }
        match paused.paced {
            true => tx.injected.wait(paused),
            false => interpret::resume(tx, paused),
        }
    }
}
