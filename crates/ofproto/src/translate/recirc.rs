//! Recirculation: a translation ends where the packet has to be parsed again, and continues from
//! there.

use super::frozen::{OUTER_WORDS, State};
use super::frozen_store::Kept;
use super::state::Miss;
use super::xlate::Xlate;
use action::Op;
use flow::{PACKET_LINES, at, flag};
use openflow::OfPort;
use std::sync::Arc;

impl<'a> Xlate<'a, '_> {
    /// Freezes the translation if actions wait for the packet to be parsed again; else they all
    /// were executed.
    pub(super) fn freeze(&mut self) {
        let Some(rest) = self.end.rest.take() else { return self.admit_dhcp() };
        if self.end.failed.is_some() {
            return;
        }
        if let Some(pause) = self.end.paused.take() {
            self.pause(&pause, rest);
            return self.packet.set.clear();
        }
        self.commit();
        let state = self.state(rest);
        match self.snapshot.shared.frozen.put(self.guard(), state, self.trace.is_some()) {
            Some(kept) => {
                self.op(Op::Recirc(kept.id));
                self.answer.holds.push(kept);
            }
            None => self.too_many_states(),
        }
        self.packet.set.clear();
    }

    /// Continues where [`Xlate::freeze`] stopped.
    pub(super) fn resume(&mut self, kept: &'a Arc<Kept>) {
        self.answer.holds.push(kept.clone());
        self.thaw(&kept.state);
    }

    /// Continues in a frozen state.
    pub(super) fn thaw(&mut self, f: &'a State) {
        self.key.words[PACKET_LINES * 8..].copy_from_slice(&f.pipeline);
        if let Some(outer) = &f.outer {
            OUTER_WORDS.iter().zip(&**outer).for_each(|(i, word)| self.key.words[*i] = *word);
        }
        self.base = self.key;
        if !self.is_ethernet() {
            self.clear_addresses();
            self.wc.set_u8(at::FLAGS, self.wc.u8(at::FLAGS) | flag::UNWRAPPED);
        }
        self.packet.ct.tracked = f.conntracked;
        if !f.conntracked {
            self.untrack();
        }
        (self.run.table, self.run.cookie) = (f.table, f.cookie);
        self.packet.set = f.set.iter().collect();
        self.packet.stack = f.stack.clone();
        self.tunnel.fields = f.tun.clone();
        (self.mirror.met, self.mirror.fresh) = (f.mirrors, true);
        self.note_bridge();
        self.note_thaw(f);
        match f.rest.is_empty() {
            true => {
                if let Some(cookie) = self.table(f.table, None, Miss::Honor) {
                    self.run.cookie = cookie;
                }
                self.trace_reopen();
            }
            false if self.admit_once() => self.instructions(&f.rest),
            false => {}
        }
        self.run_set();
        self.freeze();
        self.trace_close();
    }

    /// Looks a table up, or freezes if the packet has to be parsed before that.
    pub(super) fn resubmit(&mut self, in_port: Option<OfPort>, table: u8) {
        self.table(table, in_port, Miss::Ignore);
    }
}
