//! Right checksums for a frame that was written or changed by hand.

use wire::checksum::{Sum, pseudo_v4, pseudo_v6};
use wire::{Icmp, Ipv4, Ipv6, Tcp, Udp};

/// Recomputes every checksum of an IPv4 or IPv6 frame: IPv4 header, TCP, UDP (unless zero over
/// IPv4), SCTP, ICMP, ICMPv6. Fragments keep the transport checksum they have, as do headers that
/// are cut short.
pub fn fix_checksums(frame: &mut [u8]) {
    let Some(l3) = wire::l3(frame) else { return };
    if let Some(packet) = frame.get_mut(l3.at..) {
        fix_l3(packet, l3.ethertype);
    }
}

/// [`fix_checksums`] of a network-layer packet of the given Ethertype.
pub(crate) fn fix_l3(packet: &mut [u8], ethertype: u16) {
    match ethertype {
        wire::ETH_IPV4 => drop(fix_v4(packet)),
        wire::ETH_IPV6 => drop(fix_v6(packet)),
        _ => {}
    }
}

fn fix_v4(packet: &mut [u8]) -> Option<()> {
    let mut ip = Ipv4::new(&mut *packet)?;
    ip.fill_checksum();
    if ip.is_fragment() {
        return None;
    }
    let (from, len, proto) = (ip.header_len(), ip.payload().len(), ip.proto());
    let pseudo = pseudo_v4(ip.src(), ip.dst(), proto, len);
    fix_l4(packet.get_mut(from..from + len)?, proto, pseudo, false)
}

fn fix_v6(packet: &mut [u8]) -> Option<()> {
    let ip = Ipv6::new(&*packet)?;
    let w = wire::walk_extensions(ip.payload(), ip.next())?;
    if w.fragment.is_some_and(|f| f.more || f.offset > 0) {
        return None;
    }
    let len = ip.payload().len() - w.at;
    let pseudo = pseudo_v6(&ip.src(), &ip.dst(), w.proto, len);
    let from = wire::IPV6_LEN + w.at;
    fix_l4(packet.get_mut(from..from + len)?, w.proto, pseudo, true)
}

fn fix_l4(b: &mut [u8], proto: u8, pseudo: Sum, v6: bool) -> Option<()> {
    match proto {
        wire::IP_TCP => {
            Tcp::new(&mut *b)?.set_checksum(0);
            let sum = pseudo.bytes(b).finish();
            Tcp::new(b)?.set_checksum(sum);
        }
        wire::IP_UDP => {
            let mut udp = Udp::new(&mut *b)?;
            if udp.checksum() == 0 && !v6 {
                return None;
            }
            udp.set_checksum(0);
            let sum = pseudo.bytes(b).finish_udp();
            Udp::new(b)?.set_checksum(sum);
        }
        wire::IP_SCTP => {
            let sum = wire::sctp_checksum(b)?;
            wire::Sctp::new(b)?.set_checksum(sum);
        }
        wire::IP_ICMP | wire::IP_ICMPV6 => {
            let start = if proto == wire::IP_ICMPV6 { pseudo } else { Sum::default() };
            Icmp::new(&mut *b)?.set_checksum(0);
            let sum = start.bytes(b).finish();
            Icmp::new(b)?.set_checksum(sum);
        }
        _ => {}
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Frame, L4, Net, V4, V6, strategy};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_panics(mut b in proptest::collection::vec(any::<u8>(), 0..120), v6: bool) {
            fix_l3(&mut b, if v6 { wire::ETH_IPV6 } else { wire::ETH_IPV4 });
            fix_checksums(&mut b);
        }

        #[test]
        fn repairs_what_was_broken(f in strategy::frame()) {
            let right = f.bytes();
            let mut again = right.clone();
            fix_checksums(&mut again);
            prop_assert_eq!(again, right);
        }
    }

    #[test]
    fn sums_verify() {
        let l4 = L4::Tcp(1, 2, 3, 4, 0x12, vec![1, 2, 3]);
        let b =
            Frame::new([0; 6], [0; 6], Net::V4(V4::new([1, 2, 3, 4], [5, 6, 7, 8], l4.clone())))
                .bytes();
        let ip = Ipv4::new(&b[14..]).unwrap();
        let sum = pseudo_v4(ip.src(), ip.dst(), 6, 23).bytes(ip.payload());
        assert!(ip.checksum_ok() && sum.finish() == 0);
        let b = Frame::new([0; 6], [0; 6], Net::V6(V6::new([1; 16], [2; 16], l4))).bytes();
        let ip = Ipv6::new(&b[14..]).unwrap();
        assert_eq!(pseudo_v6(&ip.src(), &ip.dst(), 6, 23).bytes(ip.payload()).finish(), 0);
    }
}
