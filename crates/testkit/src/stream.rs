//! Segments of a TCP connection.

use crate::fix_checksums;
use wire::{ETH_LEN, IP_TCP, IPV4_LEN, IPV6_LEN, Ipv4, Ipv6, Tcp, tcp_flags};

/// Bytes of the TCP headers: 12 are options.
const TCP_HEADER: usize = 32;

/// Frames of segments that follow each other from `seq` on, with payloads of these lengths and
/// right checksums; the last one has PSH.
pub fn tcp_stream(v6: bool, seq: u32, lens: &[usize]) -> Vec<Vec<u8>> {
    let mut next = seq;
    let frame = |(i, len): (usize, &usize)| {
        let l4 = ETH_LEN + if v6 { IPV6_LEN } else { IPV4_LEN };
        let mut f = vec![2u8, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        f.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
        f.resize(l4 + TCP_HEADER, 0);
        f.extend((0..*len).map(|b| (b * 7 + i) as u8));
        let tcp_len = f.len() - l4;
        if v6 {
            let mut ip = Ipv6::init(&mut f[ETH_LEN..]).expect("room for IPv6");
            ip.set_payload_len(tcp_len as u16);
            ip.set_next(IP_TCP);
        } else {
            let mut ip = Ipv4::init(&mut f[ETH_LEN..], IPV4_LEN).expect("room for IPv4");
            ip.set_total_len((IPV4_LEN + tcp_len) as u16);
            ip.set_proto(IP_TCP);
            ip.set_ttl(64);
            ip.set_src([10, 9, 0, 1]);
            ip.set_dst([10, 9, 0, 2]);
            ip.set_id(0xfff8u16.wrapping_add(i as u16));
        }
        f[l4 + 12] = 0x80;
        let mut tcp = Tcp::new(&mut f[l4..]).expect("room for TCP");
        tcp.set_seq(next);
        let push = if i + 1 == lens.len() { tcp_flags::PSH } else { 0 };
        tcp.set_ctl(0x8000 | tcp_flags::ACK | push);
        fix_checksums(&mut f);
        next = next.wrapping_add(*len as u32);
        f
    };
    lens.iter().enumerate().map(frame).collect()
}
