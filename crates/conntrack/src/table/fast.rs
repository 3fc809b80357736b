//! The fast path of `ct`, for packets of TCP and UDP whose connection has no helper, timeout policy
//! or parent, and for those that have no connection. What the fast path does not claim is left to
//! [`crate::track_seen`], which is its twin.

use super::entry::{Entry, Head, Packed, bit};
use super::fast_packet::FastPacket;
use super::{Ref, Table, Worker, refresh};
use crate::conn::{Meta, PacketConn, Translation, state};
use crate::machine::{self, Note, Verdict, stage};
use crate::policy::Class;
use crate::rewrite::{translate, translate_v4};
use action::Ct;

/// Control bits of a live entry of IPv6.
const LIVE_V6: u64 = bit::LIVE | bit::V6;

impl FastPacket {
    /// Tracks the packet at `now`, while its zone has this epoch. None: the fast path does not
    /// claim the packet, see [`Worker::track_fast`].
    #[inline(always)]
    fn track(&self, table: &Table, (epoch, now): (u16, u64)) -> Option<FastTracked> {
        let n = self.candidate.checked_sub(1)?;
        let entry = table.entries.get(n);
        let head = entry.head();
        let reply = self.belongs_to(table, n, &head)?;
        if !head.is_alive(epoch, now as u32) {
            return None;
        }
        let state = match self.keeps_state(table, &entry, (&head, reply), now) {
            true if reply => state::TRK | state::EST | state::RPL,
            true => state::TRK | state::EST,
            false => self.change_state(table, n, (head.control, reply), now)?,
        };
        Some(FastTracked { state, mark: head.mark(), entry: n, control: head.control, reply })
    }

    /// Compares the packet with the connection's tuples. Some(false): it has the original
    /// direction; Some(true): the reply direction; None: it is not the connection's.
    #[inline(always)]
    fn belongs_to(&self, table: &Table, n: u32, head: &Head) -> Option<bool> {
        match head.control & (bit::LIVE | bit::SPECIAL | bit::V6) {
            bit::LIVE if !self.is_v6 => head.matches_v4(self.addrs, self.ports, self.zone_proto),
            LIVE_V6 if self.is_v6 => self.belongs_to_v6(table, n, head.control),
            _ => None,
        }
    }

    #[inline(never)]
    fn belongs_to_v6(&self, table: &Table, n: u32, control: u64) -> Option<bool> {
        table.entries.get(n).matches(&Packed::new(&self.tuple()), control)
    }

    /// Moves the connection's windows and expiry, for a packet that changes no more than these.
    /// False: the packet changes more, or is invalid, and nothing was done.
    #[inline(always)]
    fn keeps_state(
        &self,
        table: &Table,
        entry: &Entry<'_>,
        (head, reply): (&Head, bool),
        now: u64,
    ) -> bool {
        // A call for each class, so that its timeout is a constant.
        let refresh = |class| {
            refresh(entry, head.expiry(), table.policies.millis(None, class), now as u32);
        };
        match self.is_tcp() {
            true if self.stays_established(entry, (head, reply)) => refresh(Class::TcpEstablished),
            false if head.state() == stage::BOTH_WAYS => refresh(Class::UdpMultiple),
            _ => return false,
        }
        true
    }

    /// Changes the windows of an established TCP connection by a segment. False: the segment
    /// changes more than windows, or is invalid, and nothing was done.
    #[inline(always)]
    fn stays_established(&self, entry: &Entry<'_>, (head, reply): (&Head, bool)) -> bool {
        let Some([src, dst]) = entry.established(head, reply) else { return false };
        let (mut new_src, mut new_dst) = (src, dst);
        let stays = machine::stay_established(&mut new_src, &mut new_dst, &self.segment.get());
        if stays {
            entry.set_window(usize::from(reply), &src, &new_src);
            entry.set_window(usize::from(!reply), &dst, &new_dst);
        }
        stays
    }

    /// Changes the state of connection `n`; returns the bits of `ct_state`. None: the packet is
    /// invalid, or another thread changed the connection meanwhile, and nothing was done; or the
    /// packet begins another connection, and this one has ended.
    #[inline(never)]
    fn change_state(
        &self,
        table: &Table,
        n: u32,
        (control, reply): (u64, bool),
        now: u64,
    ) -> Option<u8> {
        let entry = &table.entries.get(n);
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

    /// Translates the packet; returns the bit of `ct_state` that says so. Directions are shifts and
    /// no branches, which would be predicted wrongly.
    #[inline(never)]
    fn translate(&self, data: &mut [u8], entry: &Entry<'_>, control: u64, reply: bool) -> u8 {
        const { assert!(state::DNAT == state::SNAT << 1) };
        let source = (control & bit::SOURCE != 0) != reply;
        let bit = state::DNAT >> u32::from(source);
        if self.is_v6 {
            self.translate_v6(data, entry, (source, reply));
            return bit;
        }
        let (addrs, ports) = entry.ends_v4(!reply);
        // The other direction's destination is this one's source.
        let addr = (addrs >> (32 * u32::from(!source))) as u32;
        translate_v4(data, &self.place(), source, (addr, ports.rotate_left(16)), !self.is_tcp());
        bit
    }

    #[inline(never)]
    fn translate_v6(&self, data: &mut [u8], entry: &Entry<'_>, (source, reply): (bool, bool)) {
        let how = if source { Translation::Source } else { Translation::Destination };
        translate(data, &self.seen(), how, &entry.tuple(true, !reply));
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

impl FastTracked {
    /// A value of no packet.
    pub const NONE: FastTracked =
        FastTracked { state: 0, mark: 0, entry: 0, control: 0, reply: false };

    /// True if NAT translated the packet.
    #[inline]
    pub fn is_translated(&self) -> bool {
        self.state & (state::SNAT | state::DNAT) != 0
    }
}

#[inline(never)]
fn hash_v6(table: &Table, p: &FastPacket) -> u32 {
    table.secret.hash(&p.tuple())
}

/// True if this `ct` only tracks and translates packets of existing connections: it neither forces
/// a new one nor sets mark or label.
#[inline]
pub fn is_fast(ct: &Ct) -> bool {
    !ct.force && ct.mark.1 == 0 && ct.label.1 == 0
}

impl Worker {
    /// Hashes the packets' tuples, and prefetches their buckets of the index.
    #[inline(always)]
    pub fn prefetch_fast<'a>(&self, packets: impl Iterator<Item = &'a mut FastPacket>) {
        let table = &*self.table;
        let buckets = table.index.present();
        packets.for_each(|p| {
            p.hash = match p.is_v6 {
                true => hash_v6(table, p),
                false => table.secret.hash_v4(p.addrs, p.ports, p.zone_proto),
            };
            // The index may grow meanwhile: then a connection is perhaps not found in this bucket.
            p.bucket = table.index.prefetch_in(buckets, p.hash);
        });
    }

    /// Finds the entries that may be the packets' connections, once their buckets are in the cache,
    /// and prefetches them.
    #[inline(always)]
    pub fn prefetch_fast_entries<'a>(&self, packets: impl Iterator<Item = &'a mut FastPacket>) {
        let table = &*self.table;
        packets.for_each(|p| {
            p.candidate = table.index.candidate(p.bucket, p.hash);
            if p.candidate != 0 {
                table.entries.prefetch(p.candidate - 1, p.is_v6);
            }
        });
    }

    /// Tracks packets that no earlier `ct` of this zone tracked, in order, up to the first one that
    /// the fast path does not claim; returns how many these are. Nothing was done with the packet
    /// that is not claimed, except that a connection which it begins again has ended. `ct` is one
    /// for which [`is_fast`] is true.
    #[inline(never)]
    pub fn track_fast(
        &self,
        ct: &Ct,
        packets: &[FastPacket],
        now: u64,
        to: &mut [FastTracked],
    ) -> usize {
        let table = &*self.table;
        let epoch = table.counts.epoch(ct.zone);
        let mut count = 0;
        for (p, to) in packets.iter().zip(to) {
            let Some(tracked) = p.track(table, (epoch, now)) else { break };
            *to = tracked;
            count += 1;
        }
        count
    }

    /// Translates a packet that [`Worker::track_fast`] tracked, if its connection is translated,
    /// and notes it in the packet's state.
    #[inline]
    pub fn translate_fast(&self, p: &FastPacket, tracked: &mut FastTracked, data: &mut [u8]) {
        if tracked.control & bit::TRANSLATED != 0 {
            let entry = self.table.entries.get(tracked.entry);
            tracked.state |= p.translate(data, &entry, tracked.control, tracked.reply);
        }
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
        let conn_ref =
            Ref { entry: t.entry, generation: (control >> bit::GENERATION_SHIFT) as u16 };
        let packet_conn = PacketConn { conn_ref, reply: t.reply, related: false };
        meta.conn = ct.nat.is_none().then_some(packet_conn);
    }
}
