//! Changes on their way from the switch half to packets and to connections.

use super::{Shared, State};
use crate::of::async_msgs::{self, Origin};
use crate::of::change::SLICE_FLOWS_MAX;
use export::Traffic;
use std::time::Duration;

impl State {
    /// Tells the packet side what may have changed since the last call.
    pub fn flush_changes(&mut self) {
        let regions = self.ofproto.take_regions();
        if !regions.is_empty() {
            self.pending.tickets.push_back(self.dp.invalidate(&regions));
        }
        if let Some(stale) = self.ofproto.take_stale() {
            self.pending.tickets.push_back(self.dp.invalidate_stale(Box::new(stale)));
        }
        self.deliver(None);
    }

    /// Tells connections what happened; `origin`: the request that brought it about.
    pub fn deliver(&mut self, origin: Origin) {
        let events = self.ofproto.take_events();
        if !events.is_empty() {
            async_msgs::events(self, events, origin);
        }
    }

    /// The last invalidation that was asked for, counted from 1.
    pub fn last_change(&self) -> u64 {
        self.pending.tickets_done + self.pending.tickets.len() as u64
    }

    /// Invalidations that did not reach every packet yet, as far as is known.
    pub fn changes_ahead(&self) -> usize {
        self.pending.tickets.len()
    }

    /// True if what [`State::last_change`] counted up to `change` has reached every packet.
    pub fn settled(&mut self, change: u64) -> bool {
        let now_ms = datapath::now_ms();
        self.dp.poll(now_ms);
        let done = self.pending.tickets.iter().take_while(|t| self.dp.ticket_done(**t)).count();
        let passed = self.offload.pass(&mut self.dp, now_ms, done);
        self.pending.tickets.drain(..passed);
        self.pending.tickets_done += passed as u64;
        self.pending.tickets_done >= change
    }

    /// Brings the rules' counters up to date with the packet side.
    pub fn collect(&mut self) {
        self.dp.fold();
        self.collect_some(usize::MAX);
    }

    /// As [`State::collect`], after [`datapath::Datapath::fold`], for `most` lists of counters.
    /// True: there is more.
    fn collect_some(&mut self, most: usize) -> bool {
        let (ofproto, export) = (&mut self.ofproto, &mut self.observers.export);
        self.dp.collect_some(most, &mut |used| {
            let used_ns = used.used_ms * 1_000_000;
            for (id, bytes) in action::credited(used.credits, used.packets, used.bytes) {
                ofproto.credit(id, used.packets, bytes, used_ns);
            }
            if let Some(effects) = used.effects {
                let (packets, bytes) = (used.packets, used.bytes);
                export.used(effects, Traffic { packets, bytes, used_ms: used.used_ms });
            }
            if let Some(effects) = used.effects.filter(|_| !used.reported) {
                ofproto.effects(effects, used_ns);
            }
        })
    }
}

/// Brings the rules' counters up to date, and has what their packets teach learned again, some
/// cached flows at a time.
pub async fn collect(state: &Shared) {
    let turn = state.borrow().pending.collecting.clone();
    let _held = turn.lock().await;
    state.borrow_mut().dp.fold();
    while state.borrow_mut().collect_some(SLICE_FLOWS_MAX) {
        state.borrow_mut().flush_changes();
        tokio::task::yield_now().await;
    }
}

/// Waits until every change made so far is seen by every packet. Changes that others make meanwhile
/// do not prolong it.
pub async fn wait_for_changes(state: &Shared) {
    let change = state.borrow().last_change();
    for round in 0u32.. {
        let progress = {
            let mut s = state.borrow_mut();
            if s.settled(change) {
                return;
            }
            s.pending.progress.clone()
        };
        // Few rounds only: waiting without sleep keeps the workers from their cores.
        if round < 8 {
            tokio::task::yield_now().await;
        } else {
            let _ = tokio::time::timeout(Duration::from_millis(1), progress.notified()).await;
        }
    }
}
