//! The fast path of `ct`: an IPv4 packet of TCP or UDP whose connection has no helper, policy or
//! parent, and whose state it leaves as it is. What it cannot do it leaves alone, for
//! [`crate::track_seen`], which is its twin.

use super::entry::{Entry, bit};
use super::{Ref, Table, Worker, refresh};
use crate::conn::{Known, Meta, Translation, state};
use crate::extract::{Place, Seen, segment};
use crate::machine::{self, Segment, TcpSegment};
use crate::policy::Class;
use crate::rewrite::translate;
use crate::tuple::Tuple;
use action::Ct;
use wire::{IP_TCP, IP_UDP, Ipv4, Tcp, UDP_LEN, Udp};

/// A packet as the fast path reads it: addresses, ports and the rest as entries hold them.
#[derive(Clone, Copy, Debug)]
pub struct FastPacket {
    addrs: u64,
    ports: u32,
    /// Zone and protocol.
    rest: u32,
    hash: u32,
    /// 1 + the entry that may be its connection's; 0: none.
    candidate: u32,
    /// Of TCP.
    segment: TcpSegment,
    /// Where the IP header, the one behind it, and the end of the IP packet are.
    places: [u16; 3],
}

impl FastPacket {
    /// Of no packet.
    pub const NONE: FastPacket = FastPacket {
        addrs: 0,
        ports: 0,
        rest: 0,
        hash: 0,
        candidate: 0,
        segment: NO_SEGMENT,
        places: [0; 3],
    };

    /// Reads a packet whose IP header is at `l3` and whose checksums are right; None: it is not one
    /// for the fast path.
    #[inline(always)]
    pub fn read(&mut self, data: &[u8], l3: usize, zone: u16) -> Option<()> {
        let b = data.get(l3..)?;
        let ip = Ipv4::new(b)?;
        let (len, total) = (ip.header_len(), usize::from(ip.total_len()));
        if ip.is_fragment() {
            return None;
        }
        let l4 = b.get(len..total)?;
        match ip.proto() {
            IP_TCP => self.segment = segment(&Tcp::new(l4)?, l4),
            IP_UDP => {
                let said = usize::from(Udp::new(l4)?.length());
                (UDP_LEN..=l4.len()).contains(&said).then_some(())?;
            }
            _ => return None,
        }
        let word = |at: &[u8]| at.first_chunk().map(|b| u32::from_be_bytes(*b));
        let (src, dst) = (word(&b[12..])?, word(&b[16..])?);
        self.addrs = u64::from(src) << 32 | u64::from(dst);
        self.ports = word(l4)?;
        self.rest = u32::from(zone) << 16 | u32::from(ip.proto()) << 8;
        self.places = [l3, l3 + len, l3 + total].map(|at| at as u16);
        // Port 0 is no connection's.
        (self.ports >> 16 != 0 && self.ports as u16 != 0).then_some(())
    }

    /// Has the connection take note of the packet, and of when; its state bits. None: it changes
    /// more than windows, or is invalid, and nothing was done.
    #[inline(always)]
    fn update(
        &self,
        table: &Table,
        entry: &Entry<'_>,
        (control, reply): (u64, bool),
        now: u64,
    ) -> Option<u8> {
        let (i, j) = (usize::from(reply), usize::from(!reply));
        let class = if self.rest >> 8 & 0xff == IP_TCP.into() {
            let (src, dst) = (entry.peer(control, i), entry.peer(control, j));
            let (mut new_src, mut new_dst) = (src, dst);
            if !machine::stay_established(&mut new_src, &mut new_dst, &self.segment) {
                return None;
            }
            entry.set_window(i, &src, &new_src);
            entry.set_window(j, &dst, &new_dst);
            Class::TcpEstablished
        } else if entry.peer(control, 0).state == machine::stage::BOTH_WAYS {
            Class::UdpMultiple
        } else {
            return None;
        };
        refresh(entry, table.policies.millis(None, class), now as u32);
        Some(if reply { state::TRK | state::EST | state::RPL } else { state::TRK | state::EST })
    }

    /// Translates the packet as its connection says; what its state says of that.
    #[inline]
    fn translate(&self, data: &mut [u8], entry: &Entry<'_>, control: u64, reply: bool) -> u8 {
        let source = (control & bit::SOURCE != 0) != reply;
        let [l3, l4, end] = self.places.map(usize::from);
        let seen = Seen {
            tuple: Tuple::default(),
            related: false,
            segment: Segment::Other,
            place: Place { l3, l4, end, inner: (0, 0) },
        };
        let (how, bit) = match source {
            true => (Translation::Source, state::SNAT),
            false => (Translation::Destination, state::DNAT),
        };
        translate(data, &seen, how, &entry.tuple_v4(!reply));
        bit
    }
}

const NO_SEGMENT: TcpSegment =
    TcpSegment { flags: 0, seq: 0, ack: 0, window: 0, len: 0, wscale: 0 };

/// Does this `ct` only look at connections that are there already, and translate?
#[inline]
pub fn is_fast(ct: &Ct) -> bool {
    !ct.force && ct.mark.1 == 0 && ct.label.1 == 0
}

impl Worker {
    /// Asks for the cache line where the index has a packet's connection.
    #[inline]
    pub fn ask_fast(&self, p: &mut FastPacket) {
        p.hash = self.table.secret.of_v4(p.addrs, p.ports, p.rest);
        self.table.index.prefetch(p.hash);
    }

    /// Asks for the cache line of the connection, once that came.
    #[inline]
    pub fn ask_fast_entry(&self, p: &mut FastPacket) {
        if let Some(n) = self.table.index.candidate(p.hash) {
            self.table.entries.prefetch(n);
            p.candidate = n + 1;
        }
    }

    /// Sends a packet through connection tracking that no `ct` of its zone has seen; false: it is
    /// not one for the fast path, and nothing was done. `ct` is a fast one ([`is_fast`]).
    #[inline]
    pub fn track_fast(
        &self,
        ct: &Ct,
        p: &FastPacket,
        data: &mut [u8],
        meta: &mut Meta<Ref>,
        now: u64,
    ) -> bool {
        let table = &*self.table;
        let Some(n) = p.candidate.checked_sub(1) else { return false };
        let entry = table.entries.get(n);
        let control = entry.control();
        if control & (bit::LIVE | bit::SPECIAL | bit::V6 | bit::HALF_OPEN) != bit::LIVE {
            return false;
        }
        let Some(reply) = entry.matches_v4(p.addrs, p.ports, p.rest) else { return false };
        if !table.is_alive(&entry, control, now as u32) {
            return false;
        }
        let Some(state) = p.update(table, &entry, (control, reply), now) else { return false };
        meta.state = state;
        if ct.nat.is_some() && control & bit::TRANSLATED != 0 {
            meta.state |= p.translate(data, &entry, control, reply);
        }
        meta.zone = ct.zone;
        meta.mark = entry.mark();
        meta.label = if control & bit::LABELLED != 0 { entry.label() } else { 0 };
        meta.tuple = Some(entry.tuple_v4(false));
        let at = Ref { entry: n, generation: (control >> bit::GENERATION_SHIFT) as u16 };
        meta.conn = ct.nat.is_none().then_some(Known { at, reply, related: false });
        true
    }
}
