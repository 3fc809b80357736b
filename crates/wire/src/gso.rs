//! Segmentation in software: a frame that the kernel left whole for the adapter (TSO, UDP GSO) is
//! divided into frames with their own lengths, sequence numbers, flags and checksums.

use crate::checksum::{Sum, internet, pseudo_v4, pseudo_v6};
use crate::vnet::{GSO_TCP_V4, GSO_TCP_V6, GSO_UDP, VnetHeader};
use crate::{Ipv4, Ipv6, Tcp, Udp, tcp_flags};

/// Segments of one frame, at most. Linux sends at least 48 bytes of TCP options and payload in a
/// segment (`tcp_min_snd_mss`), so 36 bytes of payload with timestamps: 64 kB are 1,821 such
/// segments.
pub const SEGMENTS_PER_FRAME_MAX: usize = 2_048;
/// Bit of the first byte of a GRE header: there is a checksum (RFC 2784).
const GRE_CHECKSUM: u8 = 0x80;

/// An IP header and its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layer {
    l3: usize,
    l4: usize,
    v6: bool,
    proto: u8,
}

/// How a frame is segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The header of a tunnel around the packet that is segmented.
    outer: Option<Layer>,
    inner: Layer,
    payload: usize,
    end: usize,
    size: usize,
}

impl Plan {
    /// Reads the frame's headers. None: they are not what the offload header says, or there would
    /// be more than [`SEGMENTS_PER_FRAME_MAX`] segments.
    pub fn new(frame: &[u8], h: &VnetHeader) -> Option<Plan> {
        let first = Layer::read(frame)?;
        let (outer, inner) = match h.needs_csum && h.csum_start != first.l4 {
            true => (Some(first.tunnel()?), Layer::inner(frame, h, first.l4)?),
            false => (None, first),
        };
        let rest = frame.get(inner.l4..)?;
        let head = match (h.gso, inner.v6, inner.proto) {
            (GSO_TCP_V4, false, crate::IP_TCP) | (GSO_TCP_V6, true, crate::IP_TCP) => {
                Tcp::new(rest)?.header_len()
            }
            (GSO_UDP, _, crate::IP_UDP) => Udp::new(rest).map(|_| crate::UDP_LEN)?,
            _ => return None,
        };
        let payload = inner.l4 + head;
        if h.gso_size == 0 || payload >= frame.len() {
            return None;
        }
        let plan = Plan { outer, inner, payload, end: frame.len(), size: h.gso_size };
        (plan.count() <= SEGMENTS_PER_FRAME_MAX).then_some(plan)
    }

    /// Number of segments.
    pub fn count(&self) -> usize {
        (self.end - self.payload).div_ceil(self.size)
    }

    /// Length of segment `i`, headers included, bytes.
    pub fn len(&self, i: usize) -> usize {
        let from = self.payload + i * self.size;
        self.payload + self.size.min(self.end - from)
    }

    /// Writes segment `i` of `frame` to `out`, which has `len(i)` bytes. None, with nothing useful
    /// written: `frame` is another frame than the planned one.
    pub fn write(&self, frame: &[u8], i: usize, out: &mut [u8]) -> Option<()> {
        let (head, body) = out.split_at_mut_checked(self.payload)?;
        let from = self.payload + i * self.size;
        head.copy_from_slice(frame.get(..self.payload)?);
        body.copy_from_slice(frame.get(from..from + body.len())?);
        match self.inner.proto {
            crate::IP_TCP => self.patch_tcp(i, out)?,
            // Not zero, so that the checksum is computed.
            _ => Udp::new(&mut out[self.inner.l4..])?.set_checksum(1),
        }
        // From the inside out: outer checksums cover the inner packet.
        self.inner.finish(i, out)?;
        match self.outer {
            Some(outer) => outer.finish(i, out),
            None => Some(()),
        }
    }

    fn patch_tcp(&self, i: usize, out: &mut [u8]) -> Option<()> {
        let mut tcp = Tcp::new(&mut out[self.inner.l4..])?;
        tcp.set_seq(tcp.seq().wrapping_add((i * self.size) as u32));
        let first = if i > 0 { tcp_flags::CWR } else { 0 };
        let last = if i + 1 < self.count() { tcp_flags::FIN | tcp_flags::PSH } else { 0 };
        tcp.set_ctl(tcp.ctl() & !(first | last));
        Some(())
    }
}

impl Layer {
    /// The first IP header of a frame.
    fn read(frame: &[u8]) -> Option<Layer> {
        let crate::L3 { at: l3, ethertype, .. } = crate::l3(frame)?;
        match ethertype {
            crate::ETH_IPV4 => {
                let ip = Ipv4::new(frame.get(l3..)?)?;
                Some(Layer { l3, l4: l3 + ip.header_len(), v6: false, proto: ip.proto() })
            }
            crate::ETH_IPV6 => {
                let ip = Ipv6::new(frame.get(l3..)?)?;
                let from = l3 + crate::IPV6_LEN;
                let w = crate::walk_extensions(frame.get(from..)?, ip.next())?;
                Some(Layer { l3, l4: from + w.at, v6: true, proto: w.proto })
            }
            _ => None,
        }
    }

    /// The header, if it is one of a tunnel whose segments the kernel leaves whole.
    fn tunnel(self) -> Option<Layer> {
        let known = [crate::IP_UDP, crate::IP_GRE, crate::IP_IPIP, crate::IP_IPV6];
        known.contains(&self.proto).then_some(self)
    }

    /// The IP header in front of the transport header that the kernel names. The tunnel's header in
    /// between is not read: the IP header is found by its place, and by its length, which reaches
    /// to the frame's end.
    fn inner(frame: &[u8], h: &VnetHeader, behind: usize) -> Option<Layer> {
        let l4 = h.csum_start;
        let four = |len: usize| {
            let l3 = l4.checked_sub(len).filter(|l3| *l3 > behind)?;
            let ip = Ipv4::new(frame.get(l3..)?).filter(|ip| ip.header_len() == len)?;
            let whole = l3 + usize::from(ip.total_len()) == frame.len();
            whole.then_some(Layer { l3, l4, v6: false, proto: ip.proto() })
        };
        let six = || {
            let l3 = l4.checked_sub(crate::IPV6_LEN).filter(|l3| *l3 > behind)?;
            let ip = Ipv6::new(frame.get(l3..)?)?;
            let whole = l4 + usize::from(ip.payload_len()) == frame.len();
            whole.then_some(Layer { l3, l4, v6: true, proto: ip.next() })
        };
        (crate::IPV4_LEN..=60).step_by(4).find_map(four).or_else(six)
    }

    /// Writes lengths, identification and checksums of segment `i`.
    fn finish(&self, i: usize, out: &mut [u8]) -> Option<()> {
        let len = out.len() - self.l3;
        let pseudo = if self.v6 {
            let mut ip = Ipv6::new(&mut out[self.l3..])?;
            ip.set_payload_len((len - crate::IPV6_LEN) as u16);
            pseudo_v6(&ip.src(), &ip.dst(), self.proto, 0)
        } else {
            let mut ip = Ipv4::new(&mut out[self.l3..])?;
            ip.set_total_len(len as u16);
            ip.set_id(ip.id().wrapping_add(i as u16));
            ip.fill_checksum();
            pseudo_v4(ip.src(), ip.dst(), self.proto, 0)
        };
        self.transport(pseudo, out.get_mut(self.l4..)?)
    }

    /// Writes length and checksum of what is behind IP; `pseudo` does not include the length.
    fn transport(&self, pseudo: Sum, l4: &mut [u8]) -> Option<()> {
        let len = l4.len();
        let pseudo = pseudo.bytes(&(len as u32).to_be_bytes());
        match self.proto {
            crate::IP_TCP => {
                Tcp::new(&mut *l4)?.set_checksum(0);
                let sum = pseudo.bytes(l4).finish();
                Tcp::new(l4)?.set_checksum(sum);
            }
            crate::IP_UDP => {
                let mut udp = Udp::new(&mut *l4)?;
                udp.set_length(len as u16);
                // A tunnel's UDP header may have no checksum.
                if udp.checksum() != 0 {
                    udp.set_checksum(0);
                    let sum = pseudo.bytes(l4).finish_udp();
                    Udp::new(l4)?.set_checksum(sum);
                }
            }
            crate::IP_GRE if l4.first()? & GRE_CHECKSUM != 0 => {
                l4.get_mut(4..6)?.fill(0);
                let sum = internet(l4);
                l4[4..6].copy_from_slice(&sum.to_be_bytes());
            }
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(gso: u8, size: usize) -> VnetHeader {
        VnetHeader { needs_csum: false, gso, gso_size: size, csum_start: 0, csum_offset: 0 }
    }

    fn tcp_v4(payload: usize) -> Vec<u8> {
        let mut f = vec![0u8; 12];
        f.extend([8, 0]);
        f.resize(14 + 20 + 20, 0);
        let total = (40 + payload) as u16;
        let mut ip = Ipv4::init(&mut f[14..], 20).unwrap();
        ip.set_total_len(total);
        ip.set_proto(crate::IP_TCP);
        ip.set_id(0xffff);
        f[34 + 12] = 0x50;
        let mut tcp = Tcp::new(&mut f[34..]).unwrap();
        tcp.set_seq(u32::MAX - 50);
        let flags = tcp_flags::FIN | tcp_flags::PSH | tcp_flags::ACK | tcp_flags::CWR;
        tcp.set_ctl(0x5000 | flags);
        f.extend((0..payload).map(|i| i as u8));
        f
    }

    #[test]
    fn tcp_is_cut_and_every_sum_is_right() {
        let f = tcp_v4(250);
        let plan = Plan::new(&f, &header(GSO_TCP_V4, 100)).unwrap();
        assert_eq!((plan.count(), plan.len(0), plan.len(2)), (3, 154, 104));
        let mut whole: Vec<u8> = Vec::new();
        for i in 0..3 {
            let mut out = vec![0; plan.len(i)];
            plan.write(&f, i, &mut out).unwrap();
            let ip = Ipv4::new(&out[14..]).unwrap();
            assert!(ip.checksum_ok());
            assert_eq!(usize::from(ip.total_len()), out.len() - 14);
            assert_eq!(ip.id(), 0xffffu16.wrapping_add(i as u16));
            let sum = pseudo_v4(ip.src(), ip.dst(), ip.proto(), out.len() - 34);
            assert_eq!(sum.bytes(&out[34..]).finish(), 0);
            let tcp = Tcp::new(&out[34..]).unwrap();
            assert_eq!(tcp.seq(), (u32::MAX - 50).wrapping_add(100 * i as u32));
            assert_eq!(tcp.flags() & tcp_flags::FIN != 0, i == 2);
            assert_eq!(tcp.flags() & tcp_flags::CWR != 0, i == 0);
            whole.extend(&out[54..]);
        }
        assert_eq!(whole, f[54..]);
    }

    #[test]
    fn what_does_not_fit_the_header_is_refused() {
        let f = tcp_v4(250);
        assert_eq!(Plan::new(&f, &header(GSO_TCP_V6, 100)), None);
        assert_eq!(Plan::new(&f, &header(GSO_UDP, 100)), None);
        assert_eq!(Plan::new(&f, &header(GSO_TCP_V4, 0)), None);
        let inner = VnetHeader { needs_csum: true, csum_start: 84, ..header(GSO_TCP_V4, 100) };
        assert_eq!(Plan::new(&f, &inner), None);
        for cut in 0..55 {
            assert_eq!(Plan::new(&f[..cut], &header(GSO_TCP_V4, 100)), None, "cut at {cut}");
        }
    }

    #[test]
    fn udp_over_ipv6() {
        let mut f = vec![0u8; 12];
        f.extend([0x86, 0xdd]);
        f.resize(14 + 40 + 8 + 30, 7);
        let mut ip = Ipv6::init(&mut f[14..]).unwrap();
        ip.set_next(crate::IP_UDP);
        let plan = Plan::new(&f, &header(GSO_UDP, 16)).unwrap();
        for (i, len) in [(0, 24), (1, 22)] {
            let mut out = vec![0; plan.len(i)];
            plan.write(&f, i, &mut out).unwrap();
            let ip = Ipv6::new(&out[14..]).unwrap();
            assert_eq!(usize::from(ip.payload_len()), len);
            assert_eq!(usize::from(Udp::new(&out[54..]).unwrap().length()), len);
            let sum = pseudo_v6(&ip.src(), &ip.dst(), crate::IP_UDP, len).bytes(&out[54..]);
            assert_eq!(sum.finish(), 0);
        }
    }

    /// `inner` as a frame in VXLAN: UDP with a checksum to be made, or without.
    fn in_vxlan(inner: &[u8], sum: u16) -> Vec<u8> {
        let mut f = vec![0u8; 12];
        f.extend([8, 0]);
        f.resize(14 + 20 + 8 + 8, 0);
        let mut ip = Ipv4::init(&mut f[14..], 20).unwrap();
        ip.set_total_len((36 + inner.len()) as u16);
        ip.set_proto(crate::IP_UDP);
        let mut udp = Udp::new(&mut f[34..]).unwrap();
        udp.set_length((16 + inner.len()) as u16);
        udp.set_checksum(sum);
        f.extend(inner);
        f
    }

    #[test]
    fn what_is_in_a_tunnel_is_cut_with_the_tunnel_around_each_piece() {
        let inner = tcp_v4(250);
        let plain = Plan::new(&inner, &header(GSO_TCP_V4, 100)).unwrap();
        for sum in [0, 7] {
            let f = in_vxlan(&inner, sum);
            let h = VnetHeader { needs_csum: true, csum_start: 84, ..header(GSO_TCP_V4, 100) };
            let plan = Plan::new(&f, &h).unwrap();
            assert_eq!(plan.count(), 3);
            for i in 0..3 {
                let (mut out, mut alone) = (vec![0; plan.len(i)], vec![0; plain.len(i)]);
                plan.write(&f, i, &mut out).unwrap();
                plain.write(&inner, i, &mut alone).unwrap();
                assert_eq!(out[50..], alone);
                let (ip, udp) = (Ipv4::new(&out[14..]).unwrap(), Udp::new(&out[34..]).unwrap());
                assert!(ip.checksum_ok() && usize::from(ip.total_len()) == out.len() - 14);
                assert_eq!(usize::from(udp.length()), out.len() - 34);
                let right = pseudo_v4(ip.src(), ip.dst(), 17, out.len() - 34).bytes(&out[34..]);
                assert!(if sum == 0 { udp.checksum() == 0 } else { right.finish() == 0 });
            }
            // The inner packet's length tells where it starts: a wrong one is no packet.
            let mut bad = f.clone();
            bad[67] ^= 1;
            assert_eq!(Plan::new(&bad, &h), None);
            for cut in 0..f.len() {
                assert_eq!(Plan::new(&f[..cut], &h), None, "cut at {cut}");
            }
        }
    }
}
