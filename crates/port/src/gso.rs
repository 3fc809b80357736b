//! Segmentation in software: a frame that the kernel left whole for the adapter (TSO, UDP GSO) is
//! cut into frames with lengths, sequence numbers, flags and checksums of their own.

use crate::vnet::VnetHeader;
use wire::checksum::{pseudo_v4, pseudo_v6};
use wire::{Ipv4, Ipv6, Tcp, Udp, tcp_flags};

const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP_ANY: u8 = 5;

/// How a frame is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    l3: usize,
    l4: usize,
    payload: usize,
    end: usize,
    size: usize,
    v6: bool,
    tcp: bool,
}

impl Plan {
    /// Reads the frame's headers; None when they are not what the offload header says (among them
    /// frames with tunnels inside).
    pub fn new(frame: &[u8], h: &VnetHeader) -> Option<Plan> {
        let l3 = wire::l3(frame)?;
        let at = l3.at;
        let (v6, proto, l4) = match l3.ethertype {
            wire::ETH_IPV4 => {
                let ip = Ipv4::new(frame.get(at..)?)?;
                (false, ip.proto(), at + ip.header_len())
            }
            wire::ETH_IPV6 => {
                let ip = Ipv6::new(frame.get(at..)?)?;
                let from = at + wire::IPV6_LEN;
                let w = wire::walk_extensions(frame.get(from..)?, ip.next())?;
                (true, w.proto, from + w.at)
            }
            _ => return None,
        };
        let rest = frame.get(l4..)?;
        let (tcp, head) = match (h.gso, v6, proto) {
            (TCP_V4, false, wire::IP_TCP) | (TCP_V6, true, wire::IP_TCP) => {
                (true, Tcp::new(rest)?.header_len())
            }
            (UDP_ANY, _, wire::IP_UDP) => (false, Udp::new(rest).map(|_| wire::UDP_LEN)?),
            _ => return None,
        };
        let payload = l4 + head;
        let misplaced = h.needs_csum && h.csum_start != l4;
        if misplaced || h.gso_size == 0 || payload >= frame.len() {
            return None;
        }
        Some(Plan { l3: at, l4, payload, end: frame.len(), size: h.gso_size, v6, tcp })
    }

    /// How many segments.
    pub fn count(&self) -> usize {
        (self.end - self.payload).div_ceil(self.size)
    }

    /// Bytes of segment `i`, headers included.
    pub fn len(&self, i: usize) -> usize {
        let from = self.payload + i * self.size;
        self.payload + self.size.min(self.end - from)
    }

    /// Writes segment `i` of `frame` to `out`, which is `len(i)` bytes long. None (nothing useful
    /// written) only when `frame` is not the one planned for.
    pub fn write(&self, frame: &[u8], i: usize, out: &mut [u8]) -> Option<()> {
        let (head, body) = out.split_at_mut_checked(self.payload)?;
        let from = self.payload + i * self.size;
        head.copy_from_slice(frame.get(..self.payload)?);
        body.copy_from_slice(frame.get(from..from + body.len())?);
        self.patch_l4(i, out)?;
        if self.v6 { self.patch_v6(out) } else { self.patch_v4(i, out) }
    }

    fn patch_v4(&self, i: usize, out: &mut [u8]) -> Option<()> {
        let len = out.len() - self.l3;
        let mut ip = Ipv4::new(&mut out[self.l3..])?;
        ip.set_total_len(len as u16);
        ip.set_id(ip.id().wrapping_add(i as u16));
        ip.fill_checksum();
        let pseudo = pseudo_v4(ip.src(), ip.dst(), ip.proto(), 0);
        self.sum(pseudo, out)
    }

    fn patch_v6(&self, out: &mut [u8]) -> Option<()> {
        let len = out.len() - self.l3 - wire::IPV6_LEN;
        let mut ip = Ipv6::new(&mut out[self.l3..])?;
        ip.set_payload_len(len as u16);
        let proto = if self.tcp { wire::IP_TCP } else { wire::IP_UDP };
        let pseudo = pseudo_v6(&ip.src(), &ip.dst(), proto, 0);
        self.sum(pseudo, out)
    }

    fn patch_l4(&self, i: usize, out: &mut [u8]) -> Option<()> {
        let len = out.len() - self.l4;
        let l4 = &mut out[self.l4..];
        if !self.tcp {
            Udp::new(l4)?.set_length(len as u16);
            return Some(());
        }
        let mut tcp = Tcp::new(l4)?;
        tcp.set_seq(tcp.seq().wrapping_add((i * self.size) as u32));
        let first = if i > 0 { tcp_flags::CWR } else { 0 };
        let last = if i + 1 < self.count() { tcp_flags::FIN | tcp_flags::PSH } else { 0 };
        tcp.set_ctl(tcp.ctl() & !(first | last));
        Some(())
    }

    /// Writes the transport checksum; `pseudo` lacks the length.
    fn sum(&self, pseudo: wire::checksum::Sum, out: &mut [u8]) -> Option<()> {
        let l4 = out.get_mut(self.l4..)?;
        let pseudo = pseudo.bytes(&(l4.len() as u32).to_be_bytes());
        if self.tcp {
            Tcp::new(&mut *l4)?.set_checksum(0);
            let sum = pseudo.bytes(l4).finish();
            Tcp::new(l4)?.set_checksum(sum);
        } else {
            Udp::new(&mut *l4)?.set_checksum(0);
            let sum = pseudo.bytes(l4).finish_udp();
            Udp::new(l4)?.set_checksum(sum);
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
        ip.set_proto(wire::IP_TCP);
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
        let plan = Plan::new(&f, &header(TCP_V4, 100)).unwrap();
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
        assert_eq!(Plan::new(&f, &header(TCP_V6, 100)), None);
        assert_eq!(Plan::new(&f, &header(UDP_ANY, 100)), None);
        assert_eq!(Plan::new(&f, &header(TCP_V4, 0)), None);
        let inner = VnetHeader { needs_csum: true, csum_start: 84, ..header(TCP_V4, 100) };
        assert_eq!(Plan::new(&f, &inner), None);
        for cut in 0..55 {
            assert_eq!(Plan::new(&f[..cut], &header(TCP_V4, 100)), None, "cut at {cut}");
        }
    }

    #[test]
    fn udp_over_ipv6() {
        let mut f = vec![0u8; 12];
        f.extend([0x86, 0xdd]);
        f.resize(14 + 40 + 8 + 30, 7);
        let mut ip = Ipv6::init(&mut f[14..]).unwrap();
        ip.set_next(wire::IP_UDP);
        let plan = Plan::new(&f, &header(UDP_ANY, 16)).unwrap();
        for (i, len) in [(0, 24), (1, 22)] {
            let mut out = vec![0; plan.len(i)];
            plan.write(&f, i, &mut out).unwrap();
            let ip = Ipv6::new(&out[14..]).unwrap();
            assert_eq!(usize::from(ip.payload_len()), len);
            assert_eq!(usize::from(Udp::new(&out[54..]).unwrap().length()), len);
            let sum = pseudo_v6(&ip.src(), &ip.dst(), wire::IP_UDP, len).bytes(&out[54..]);
            assert_eq!(sum.finish(), 0);
        }
    }
}
