//! The fast path of `ct`: a packet of TCP or UDP whose connection has no helper, policy or
//! parent, and one without a connection. What the fast path cannot do it leaves alone, for
//! [`crate::track_seen`], which is its twin.

use super::entry::{Entry, Packed, bit};
use super::{Ref, Table, Worker, refresh};
use crate::conn::{Known, Meta, Translation, state};
use crate::extract::{Place, Seen, checksum_ok, window_scale};
use crate::machine::{self, Note, Segment, TcpSegment, Verdict, stage};
use crate::policy::Class;
use crate::rewrite::{translate, translate_v4};
use crate::tuple::Tuple;
use action::Ct;
use wire::tcp_flags::SYN;
use wire::{IP_TCP, IP_UDP, IPV6_LEN, Ipv4, TCP_LEN, UDP_LEN, Udp};

/// A packet as the fast path reads it: addresses, ports and the rest as entries hold them.
#[derive(Clone, Copy, Debug)]
pub struct FastPacket {
    /// Of IPv4.
    addrs: u64,
    /// Of IPv6.
    wide: [u64; 4],
    is_v6: bool,
    ports: u32,
    /// Zone and protocol.
    rest: u32,
    hash: u32,
    /// Where the index has it, if it does.
    bucket: u32,
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
        wide: [0; 4],
        is_v6: false,
        ports: 0,
        rest: 0,
        hash: 0,
        bucket: 0,
        candidate: 0,
        segment: NO_SEGMENT,
        places: [0; 3],
    };

    /// Reads an IPv4 packet whose headers were read before, with these addresses (the source's in
    /// the upper half), and checks the checksums that are not known to be right (`sound`). None: it
    /// is not one for the fast path.
    #[inline(always)]
    pub fn read_v4(
        &mut self,
        data: &[u8],
        (h, addrs): (FastHeaders, u64),
        zone: u16,
        sound: bool,
    ) -> Option<()> {
        let l3 = usize::from(h.l3);
        let [version, _, high, low] = *data.get(l3..)?.first_chunk()?;
        (self.addrs, self.is_v6) = (addrs, false);
        (version >> 4 == 4).then_some(())?;
        self.read(data, h, l3 + usize::from(u16::from_be_bytes([high, low])), zone)?;
        (sound || self.has_right_checksums(data)).then_some(())
    }

    /// [`FastPacket::read_v4`] for IPv6: addresses in two words each, the upper half first. None:
    /// it has extension headers, too.
    #[inline(never)]
    pub fn read_v6(
        &mut self,
        data: &[u8],
        (h, addrs): (FastHeaders, [u64; 4]),
        zone: u16,
        sound: bool,
    ) -> Option<()> {
        let l3 = usize::from(h.l3);
        let [version, _, _, _, high, low] = *data.get(l3..)?.first_chunk()?;
        (self.wide, self.is_v6) = (addrs, true);
        (version >> 4 == 6 && usize::from(h.l4) == l3 + IPV6_LEN).then_some(())?;
        let payload = usize::from(u16::from_be_bytes([high, low]));
        self.read(data, h, l3 + IPV6_LEN + payload, zone)?;
        (sound || self.has_right_checksums(data)).then_some(())
    }

    /// Reads what is behind the IP header of a packet that ends at `end`.
    #[inline(always)]
    fn read(&mut self, data: &[u8], h: FastHeaders, end: usize, zone: u16) -> Option<()> {
        let l4 = data.get(usize::from(h.l4)..end)?;
        match h.proto {
            IP_TCP => self.segment = fast_segment(l4)?,
            IP_UDP => {
                let said = usize::from(Udp::new(l4)?.length());
                (UDP_LEN..=l4.len()).contains(&said).then_some(())?;
            }
            _ => return None,
        }
        self.ports = h.ports;
        self.rest = u32::from(zone) << 16 | u32::from(h.proto) << 8;
        self.places = [h.l3, h.l4, end as u16];
        // Port 0 is no connection's.
        (h.ports >> 16 != 0 && h.ports as u16 != 0).then_some(())
    }

    /// Are the checksums of the IP header and of what it carries right?
    #[inline(never)]
    fn has_right_checksums(&self, data: &[u8]) -> bool {
        let [l3, l4, end] = self.places.map(usize::from);
        let header = data.get(l3..l4).unwrap_or_default();
        let right = self.is_v6 || Ipv4::new(header).is_some_and(|ip| ip.checksum_ok());
        right && data.get(l4..end).is_some_and(|b| checksum_ok(&self.tuple(), b))
    }

    fn is_tcp(&self) -> bool {
        self.rest >> 8 & 0xff == IP_TCP.into()
    }

    /// The packet as [`crate::extract()`] reads it.
    #[inline]
    pub fn seen(&self) -> Seen {
        let (tuple, segment, place) = (self.tuple(), self.segment(), self.place());
        Seen { tuple, related: false, segment, place }
    }

    #[inline]
    fn segment(&self) -> Segment {
        if self.is_tcp() { Segment::Tcp(self.segment) } else { Segment::Other }
    }

    #[inline]
    fn place(&self) -> Place {
        let [l3, l4, end] = self.places.map(usize::from);
        Place { l3, l4, end, inner: (0, 0) }
    }

    fn tuple(&self) -> Tuple {
        let word = |i: usize| u128::from(self.wide[i]);
        let (src, dst) = match self.is_v6 {
            true => (word(0) << 64 | word(1), word(2) << 64 | word(3)),
            false => ((self.addrs >> 32).into(), (self.addrs & 0xffff_ffff).into()),
        };
        Tuple {
            src,
            dst,
            sport: (self.ports >> 16) as u16,
            dport: self.ports as u16,
            proto: (self.rest >> 8) as u8,
            icmp_type: 0,
            v6: self.is_v6,
            zone: (self.rest >> 16) as u16,
        }
    }

    /// Is it a packet of this connection? True: an answer.
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

    /// Has the connection take note of the packet, and of when; its state bits. None: the packet
    /// is invalid or begins another connection, and nothing was done.
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

    /// Has an established connection of TCP take note of a segment; false: the segment changes more
    /// than windows, or is invalid, and nothing was done.
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
            Verdict::Again | Verdict::Invalid => return None,
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

/// What was read of the headers of an IP packet that is no fragment.
#[derive(Clone, Copy, Debug)]
pub struct FastHeaders {
    /// Source port in the upper half, destination port; of a header that is cut short 0.
    pub ports: u32,
    /// IP protocol.
    pub proto: u8,
    /// Where the IP header is.
    pub l3: u16,
    /// Where the one behind it is.
    pub l4: u16,
}

/// [`segment`] of what follows an IP header; None: it is cut short.
#[inline(always)]
fn fast_segment(b: &[u8]) -> Option<TcpSegment> {
    let h: &[u8; TCP_LEN] = b.first_chunk()?;
    let word = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
    let last = word(12);
    let (header_len, flags) = ((last >> 28) as usize * 4, (last >> 16 & 0xfff) as u16);
    if header_len < TCP_LEN {
        return None;
    }
    let len = b.len().checked_sub(header_len)? as u32;
    let begins = flags & SYN != 0;
    let wscale = if begins { window_scale(&b[TCP_LEN..header_len]) } else { 0 };
    Some(TcpSegment { flags, seq: word(4), ack: word(8), window: last as u16, len, wscale })
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

const LIVE_V6: u64 = bit::LIVE | bit::V6;

const NO_SEGMENT: TcpSegment =
    TcpSegment { flags: 0, seq: 0, ack: 0, window: 0, len: 0, wscale: 0 };

/// Does this `ct` change nothing of connections that are there already, and translate at most?
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
    /// not one for the fast path, and nothing was done. `ct` is a fast one ([`is_fast`]).
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

    /// Fills what a packet without a connection carries from now on; false: it may have one, or is
    /// not one for the fast path, and nothing was done.
    #[inline]
    pub fn begin_fast(&self, ct: &Ct, p: &FastPacket, meta: &mut Meta<Ref>) -> bool {
        let table = &*self.table;
        let begins = p.candidate == 0
            && !ct.commit
            && machine::may_begin(&p.segment())
            && !table.expectations.are_in(ct.zone)
            // Another packet, or another thread, may have begun the connection meanwhile.
            && table.index.find(p.hash, |_| true).is_none();
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
