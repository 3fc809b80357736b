//! The fast path of `ct`, for packets of TCP and UDP whose connection has no helper, timeout policy
//! or parent, and for those that have no connection. What the fast path does not claim is left to
//! [`crate::track_seen`], which is its twin.

use super::entry::{Entry, Packed, bit};
use super::fast_packet::FastPacket;
use super::{Ref, Table, Worker, refresh};
use crate::conn::{Known, Meta, Translation, state};
use crate::machine::{self, Note, Verdict, stage};
use crate::policy::Class;
use crate::rewrite::{translate, translate_v4};
use action::Ct;

/// Control bits of a live entry of IPv6.
const LIVE_V6: u64 = bit::LIVE | bit::V6;

impl FastPacket {
    /// Compares the packet with the connection's tuples. Some(false): it has the original
    /// direction; Some(true): the reply direction; None: it is not the connection's.
    #[inline(always)]
    fn belongs_to(&self, entry: &Entry<'_>, control: u64) -> Option<bool> {
        match control & (bit::LIVE | bit::SPECIAL | bit::V6) {
            bit::LIVE if !self.is_v6 => entry.matches_v4(self.addrs, self.ports, self.zone_proto),
            LIVE_V6 if self.is_v6 => self.belongs_to_v6(entry, control),
            _ => None,
        }
    }

    #[inline(never)]
    fn belongs_to_v6(&self, entry: &Entry<'_>, control: u64) -> Option<bool> {
        entry.matches(&Packed::new(&self.tuple()), control)
    }

    /// Changes the connection's state by the packet, and moves its expiry; returns the bits of
    /// `ct_state`. None: the packet is invalid, another thread changed the connection meanwhile,
    /// and nothing was done; or the packet begins another connection, and this one has ended.
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

    /// Changes the windows of an established TCP connection by a segment. False: the segment
    /// changes more than windows, or is invalid, and nothing was done.
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

    /// Does what [`FastPacket::update`] does, for a packet that changes more than windows and
    /// expiry.
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
            Verdict::Reopens => {
                table.end_entry(entry, control);
                return None;
            }
            Verdict::Invalid => return None,
        };
        let done = note == Note::None && table.change(entry, control, (&old, &new), class, now);
        done.then_some(state::TRK | state)
    }

    /// Translates the packet; returns the bit of `ct_state` that says so.
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

/// The result of the fast path for a packet; [`Worker::describe`] adds what only the entry has.
#[derive(Clone, Copy, Debug)]
pub struct FastTracked {
    /// Bits of [`state`].
    pub state: u8,
    /// The connection's mark.
    pub mark: u32,
    entry: u32,
    /// The entry's control word when the packet was tracked.
    control: u64,
    reply: bool,
}

/// True if this `ct` only tracks and translates packets of existing connections: it neither forces
/// a new one nor sets mark or label.
#[inline]
pub fn is_fast(ct: &Ct) -> bool {
    !ct.force && ct.mark.1 == 0 && ct.label.1 == 0
}

impl Worker {
    /// Hashes the packet's tuple, and prefetches its bucket of the index.
    #[inline]
    pub fn prefetch_fast(&self, p: &mut FastPacket) {
        p.hash = match p.is_v6 {
            true => self.table.secret.hash(&p.tuple()),
            false => self.table.secret.hash_v4(p.addrs, p.ports, p.zone_proto),
        };
        p.bucket = self.table.index.prefetch(p.hash);
    }

    /// Finds the entry that may be the packet's connection, once the bucket is in the cache, and
    /// prefetches it.
    #[inline]
    pub fn prefetch_fast_entry(&self, p: &mut FastPacket) {
        p.candidate = self.table.index.candidate(p.bucket, p.hash);
        if p.candidate != 0 {
            self.table.entries.prefetch(p.candidate - 1, p.is_v6);
        }
    }

    /// Tracks a packet that no earlier `ct` of this zone tracked. None: the fast path does not
    /// claim it and nothing was done, except that a connection which the packet begins again has
    /// ended. `ct` is one for which [`is_fast`] is true.
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

    /// Fills the metadata of a packet that has no connection and whose `ct` does not commit one.
    /// False: the packet has one, or the fast path does not claim it, and nothing was done.
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

    /// Fills the metadata of a packet that the fast path tracked. It is called before the worker's
    /// next quiescent point: until then the entry is not used for another connection.
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
