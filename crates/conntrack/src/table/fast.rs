//! The fast path of `ct`: a packet of TCP or UDP whose connection has no helper, policy or
//! parent, and one without a connection. What the fast path cannot do it leaves alone, for
//! [`crate::track_seen`], which is its twin.

use super::entry::{Entry, Packed, bit};
use super::fast_packet::FastPacket;
use super::{Ref, Table, Worker, refresh};
use crate::conn::{Known, Meta, Translation, state};
use crate::machine::{self, Note, Verdict, stage};
use crate::policy::Class;
use crate::rewrite::{translate, translate_v4};
use action::Ct;

/// Bits of a live entry of IPv6.
const LIVE_V6: u64 = bit::LIVE | bit::V6;

impl FastPacket {
    /// Compares the packet with the connection's tuples. Some(false): it has the direction of the
    /// first packet; Some(true): that of answers; None: it is not the connection's.
    #[inline(always)]
    fn belongs_to(&self, entry: &Entry<'_>, control: u64) -> Option<bool> {
        match control & (bit::LIVE | bit::SPECIAL | bit::V6) {
            bit::LIVE if !self.is_v6 => entry.matches_v4(self.addrs, self.ports, self.rest),
            LIVE_V6 if self.is_v6 => self.belongs_to_v6(entry, control),
            _ => None,
        }
    }

    #[inline(never)]
    fn belongs_to_v6(&self, entry: &Entry<'_>, control: u64) -> Option<bool> {
        entry.matches(&Packed::new(&self.tuple()), control)
    }

    /// Changes the connection as the packet makes it, and notes the time; returns the connection's
    /// state bits. None: the packet is invalid, and nothing was done, or it begins another
    /// connection, and this one has ended.
    #[inline(always)]
    fn update(
        &self,
        table: &Table,
        entry: &Entry<'_>,
        (control, reply): (u64, bool),
        now: u64,
    ) -> Option<u8> {
        let (class, stays) = match self.is_tcp() {
            true => (Class::TcpEstablished, self.stays_established(entry, (control, reply))),
            false => (Class::UdpMultiple, entry.peer(control, 0).state == stage::BOTH_WAYS),
        };
        if !stays {
            return self.change_state(table, entry, (control, reply), now);
        }
        refresh(entry, table.policies.millis(None, class), now as u32);
        Some(if reply { state::TRK | state::EST | state::RPL } else { state::TRK | state::EST })
    }

    /// Changes the windows of an established TCP connection as a segment makes them; false: the
    /// segment changes more than windows, or is invalid, and nothing was done.
    #[inline(always)]
    fn stays_established(&self, entry: &Entry<'_>, (control, reply): (u64, bool)) -> bool {
        let Some([src, dst]) = entry.established(control, reply) else { return false };
        let (mut new_src, mut new_dst) = (src, dst);
        let stays = machine::stay_established(&mut new_src, &mut new_dst, &self.segment);
        if stays {
            entry.set_window(usize::from(reply), &src, &new_src);
            entry.set_window(usize::from(!reply), &dst, &new_dst);
        }
        stays
    }

    /// [`FastPacket::update`] for a packet that changes the connection's state.
    #[inline(never)]
    fn change_state(
        &self,
        table: &Table,
        entry: &Entry<'_>,
        (control, reply): (u64, bool),
        now: u64,
    ) -> Option<u8> {
        let old = entry.peers(control);
        let (mut new, segment) = (old, self.segment());
        let check = table.limits.checks_sequence();
        let (verdict, class, note) = machine::update(&mut new, &segment, reply, check);
        let state = match verdict {
            Verdict::Valid if reply => state::EST | state::RPL,
            Verdict::Valid => state::EST,
            Verdict::StillNew => state::NEW,
            Verdict::Again => {
                table.end_entry(entry, control);
                return None;
            }
            Verdict::Invalid => return None,
        };
        let done = note == Note::None && table.change(entry, control, (&old, &new), class, now);
        done.then_some(state::TRK | state)
    }

    /// Translates the packet as its connection says; what its state says of that.
    #[inline(never)]
    fn translate(&self, data: &mut [u8], entry: &Entry<'_>, control: u64, reply: bool) -> u8 {
        let source = (control & bit::SOURCE != 0) != reply;
        let bit = if source { state::SNAT } else { state::DNAT };
        if self.is_v6 {
            let how = if source { Translation::Source } else { Translation::Destination };
            translate(data, &self.seen(), how, &entry.tuple(true, !reply));
            return bit;
        }
        let (addrs, ports) = entry.ends_v4(!reply);
        // The other direction's destination is this one's source.
        let addr = if source { addrs as u32 } else { (addrs >> 32) as u32 };
        translate_v4(data, &self.place(), source, (addr, ports.rotate_left(16)), !self.is_tcp());
        bit
    }
}

/// What the fast path found out about a packet; the rest its connection says
/// ([`Worker::describe`]).
#[derive(Clone, Copy, Debug)]
pub struct FastTracked {
    /// Bits of [`state`].
    pub state: u8,
    /// The connection's mark.
    pub mark: u32,
    entry: u32,
    /// The entry's control word, as the packet met it.
    control: u64,
    reply: bool,
}

/// True if this `ct` changes nothing of connections that exist, but translates their packets at
/// most.
#[inline]
pub fn is_fast(ct: &Ct) -> bool {
    !ct.force && ct.mark.1 == 0 && ct.label.1 == 0
}

impl Worker {
    /// Asks for the cache line where the index has a packet's connection.
    #[inline]
    pub fn ask_fast(&self, p: &mut FastPacket) {
        p.hash = match p.is_v6 {
            true => self.table.secret.of(&p.tuple()),
            false => self.table.secret.of_v4(p.addrs, p.ports, p.rest),
        };
        p.bucket = self.table.index.prefetch(p.hash);
    }

    /// Asks for the cache line of the connection, once that came.
    #[inline]
    pub fn ask_fast_entry(&self, p: &mut FastPacket) {
        p.candidate = self.table.index.candidate(p.bucket, p.hash);
        if p.candidate != 0 {
            self.table.entries.prefetch(p.candidate - 1, p.is_v6);
        }
    }

    /// Sends a packet through connection tracking that no `ct` of its zone has seen; None: it is
    /// not one for the fast path, and nothing was done, but that a connection ended which the
    /// packet begins again. `ct` is a fast one ([`is_fast`]).
    #[inline]
    pub fn track_fast(
        &self,
        ct: &Ct,
        p: &FastPacket,
        data: &mut [u8],
        now: u64,
    ) -> Option<FastTracked> {
        let table = &*self.table;
        let n = p.candidate.checked_sub(1)?;
        let entry = table.entries.get(n);
        let control = entry.control();
        let reply = p.belongs_to(&entry, control)?;
        if !table.is_alive(&entry, control, now as u32) {
            return None;
        }
        let mut state = p.update(table, &entry, (control, reply), now)?;
        if ct.nat.is_some() && control & bit::TRANSLATED != 0 {
            state |= p.translate(data, &entry, control, reply);
        }
        Some(FastTracked { state, mark: entry.mark(), entry: n, control, reply })
    }

    /// Fills what a packet without a connection carries from now on; false: it has one, or is not
    /// one for the fast path, and nothing was done.
    #[inline]
    pub fn begin_fast(&self, ct: &Ct, p: &FastPacket, meta: &mut Meta<Ref>, now: u64) -> bool {
        let table = &*self.table;
        // Another packet, or another thread, may have begun the connection meanwhile.
        let has = |n| table.has_tuple(n, &Packed::new(&p.tuple()), now as u32).is_some();
        let begins = !ct.commit
            && machine::may_begin(&p.segment())
            && !table.expectations.are_in(ct.zone)
            && table.index.find(p.hash, has).is_none();
        if begins {
            let state = state::TRK | state::NEW;
            let tuple = Some(p.tuple());
            *meta = Meta { state, zone: ct.zone, mark: 0, label: 0, tuple, conn: None };
        }
        begins
    }

    /// All that a packet carries of its connection from now on. Before the worker's next quiescent
    /// point, so the entry is the connection's still.
    #[inline]
    pub fn describe(&self, ct: &Ct, t: &FastTracked, meta: &mut Meta<Ref>) {
        let (entry, control) = (self.table.entries.get(t.entry), t.control);
        meta.state = t.state;
        meta.zone = ct.zone;
        meta.mark = t.mark;
        meta.label = if control & bit::LABELLED != 0 { entry.label() } else { 0 };
        meta.tuple = Some(entry.tuple(control & bit::V6 != 0, false));
        let at = Ref { entry: t.entry, generation: (control >> bit::GENERATION_SHIFT) as u16 };
        let known = Known { at, reply: t.reply, related: false };
        meta.conn = ct.nat.is_none().then_some(known);
    }
}
