//! The packet that the fast path of `ct` reads, once, before its connection is looked for.

use crate::extract::{Place, Seen, checksum_ok, window_scale};
use crate::machine::{Segment, TcpSegment};
use crate::tuple::Tuple;
use wire::tcp_flags::SYN;
use wire::{IP_TCP, IP_UDP, IPV6_LEN, Ipv4, TCP_LEN, UDP_LEN, Udp};

/// A TCP segment as the fast path reads it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FastSegment {
    /// Sequence number in the upper half, acknowledgement number.
    seq_ack: u64,
    /// The fourth word of the header: its length, flags, window.
    flags_window: u32,
    /// As in [`TcpSegment`].
    len: u32,
    wscale: u8,
}

impl FastSegment {
    /// Reads a segment as [`crate::extract::segment`] does; None: it is cut short.
    #[inline(always)]
    fn read(&mut self, b: &[u8]) -> Option<()> {
        let h: &[u8; TCP_LEN] = b.first_chunk()?;
        self.seq_ack = u64::from_be_bytes(*h[4..].first_chunk()?);
        self.flags_window = u32::from_be_bytes(*h[12..].first_chunk()?);
        let header_len = self.header_len();
        (header_len >= TCP_LEN).then_some(())?;
        self.len = b.len().checked_sub(header_len)? as u32;
        self.wscale = 0;
        if self.flags_window >> 16 & u32::from(SYN) != 0 {
            self.read_options(b);
        }
        Some(())
    }

    #[inline(always)]
    fn header_len(&self) -> usize {
        (self.flags_window >> 28) as usize * 4
    }

    #[inline(never)]
    fn read_options(&mut self, b: &[u8]) {
        self.wscale = window_scale(b.get(TCP_LEN..self.header_len()).unwrap_or_default());
    }

    #[inline(always)]
    pub(super) fn get(&self) -> TcpSegment {
        TcpSegment {
            flags: (self.flags_window >> 16 & 0xfff) as u16,
            seq: (self.seq_ack >> 32) as u32,
            ack: self.seq_ack as u32,
            window: self.flags_window as u16,
            len: self.len,
            wscale: self.wscale,
        }
    }
}

/// A packet as the fast path reads it: addresses, ports and the rest as entries hold them.
#[derive(Clone, Copy, Debug)]
pub struct FastPacket {
    /// Addresses of IPv4, the source's in the upper half; not used by IPv6.
    pub(super) addrs: u64,
    /// Addresses of IPv6, the source's first, upper words first; not used by IPv4.
    pub(super) addrs_v6: [u64; 4],
    pub(super) is_v6: bool,
    pub(super) ports: u32,
    /// Zone and protocol.
    pub(super) zone_proto: u32,
    pub(super) hash: u32,
    /// Number of the index bucket of the packet's tuple.
    pub(super) bucket: u32,
    /// 1 + the entry that may be the packet's connection; 0: none.
    pub(super) candidate: u32,
    /// What the state machine reads of a TCP segment; not used by UDP.
    pub(super) segment: FastSegment,
    /// Offsets of the IP header, the L4 header, and the end of the IP packet.
    places: [u16; 3],
}

impl FastPacket {
    /// A value that holds no packet.
    pub const NONE: FastPacket = FastPacket {
        addrs: 0,
        addrs_v6: [0; 4],
        is_v6: false,
        ports: 0,
        zone_proto: 0,
        hash: 0,
        bucket: 0,
        candidate: 0,
        segment: FastSegment { seq_ack: 0, flags_window: 0, len: 0, wscale: 0 },
        places: [0; 3],
    };

    /// Reads an IPv4 packet whose headers were parsed before, with these addresses (the source's in
    /// the upper half), and checks the checksums unless they are known to be right (`sound`). None:
    /// the fast path does not claim the packet.
    #[inline(always)]
    pub fn read_v4(
        &mut self,
        data: &[u8],
        (h, addrs): (FastHeaders, u64),
        zone: u16,
        sound: bool,
    ) -> Option<()> {
        (data.get(usize::from(h.l3))? >> 4 == 4).then_some(())?;
        (self.addrs, self.is_v6) = (addrs, false);
        self.read(data, h, zone)?;
        (sound || self.has_right_checksums(data)).then_some(())
    }

    /// Does what [`FastPacket::read_v4`] does, for IPv6 (addresses in two words each, the upper
    /// half first). None: also for a packet with extension headers.
    #[inline(never)]
    pub fn read_v6(
        &mut self,
        data: &[u8],
        (h, addrs): (FastHeaders, [u64; 4]),
        zone: u16,
        sound: bool,
    ) -> Option<()> {
        (data.get(usize::from(h.l3))? >> 4 == 6).then_some(())?;
        (usize::from(h.l4) == usize::from(h.l3) + IPV6_LEN).then_some(())?;
        (self.addrs_v6, self.is_v6) = (addrs, true);
        self.read(data, h, zone)?;
        (sound || self.has_right_checksums(data)).then_some(())
    }

    /// Reads the L4 header.
    #[inline(always)]
    fn read(&mut self, data: &[u8], h: FastHeaders, zone: u16) -> Option<()> {
        self.ports = h.ports;
        self.zone_proto = u32::from(zone) << 16 | u32::from(h.proto) << 8;
        self.places = [h.l3, h.l4, h.end];
        // Port 0 belongs to no connection.
        (h.ports >> 16 != 0 && h.ports as u16 != 0).then_some(())?;
        let l4 = data.get(usize::from(h.l4)..usize::from(h.end))?;
        match h.proto {
            IP_TCP => self.segment.read(l4),
            IP_UDP => {
                let said = usize::from(Udp::new(l4)?.length());
                (UDP_LEN..=l4.len()).contains(&said).then_some(())
            }
            _ => None,
        }
    }

    /// True if the checksums of the IP header and of its payload are right.
    #[inline(never)]
    fn has_right_checksums(&self, data: &[u8]) -> bool {
        let [l3, l4, end] = self.places.map(usize::from);
        let header = data.get(l3..l4).unwrap_or_default();
        let right = self.is_v6 || Ipv4::new(header).is_some_and(|ip| ip.checksum_ok());
        right && data.get(l4..end).is_some_and(|b| checksum_ok(&self.tuple(), b))
    }

    pub(super) fn is_tcp(&self) -> bool {
        self.zone_proto >> 8 & 0xff == IP_TCP.into()
    }

    /// The packet as [`crate::extract()`] reads it.
    #[inline]
    pub fn seen(&self) -> Seen {
        let (tuple, segment, place) = (self.tuple(), self.segment(), self.place());
        Seen { tuple, related: false, segment, place }
    }

    #[inline]
    pub(super) fn segment(&self) -> Segment {
        if self.is_tcp() { Segment::Tcp(self.segment.get()) } else { Segment::Other }
    }

    #[inline]
    pub(super) fn place(&self) -> Place {
        let [l3, l4, end] = self.places.map(usize::from);
        Place { l3, l4, end, inner: (0, 0) }
    }

    pub(super) fn tuple(&self) -> Tuple {
        let word = |i: usize| u128::from(self.addrs_v6[i]);
        let (src, dst) = match self.is_v6 {
            true => (word(0) << 64 | word(1), word(2) << 64 | word(3)),
            false => ((self.addrs >> 32).into(), (self.addrs & 0xffff_ffff).into()),
        };
        Tuple {
            src,
            dst,
            sport: (self.ports >> 16) as u16,
            dport: self.ports as u16,
            proto: (self.zone_proto >> 8) as u8,
            icmp_type: 0,
            v6: self.is_v6,
            zone: (self.zone_proto >> 16) as u16,
        }
    }
}

/// What the parser read of the headers of an IP packet that is no fragment.
#[derive(Clone, Copy, Debug)]
pub struct FastHeaders {
    /// Source port in the upper half, destination port; of a header that is cut short 0.
    pub ports: u32,
    /// IP protocol.
    pub proto: u8,
    /// Offset of the IP header.
    pub l3: u16,
    /// Offset of the L4 header.
    pub l4: u16,
    /// Where the IP packet ends, by its header.
    pub end: u16,
}
