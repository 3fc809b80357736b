//! Network service headers (RFC 8300) that are put in front of packets and removed.

use crate::actions::rewrite::Place;
use crate::batch::keys::Layout;
use crate::parse::frame::Frame;
use crate::parse::scalar::NSH;
use action::{Op, Payload};
use packet::Packet;
use telemetry::Drop;
use wire::{ETH_LEN, NSH_ETHERNET, NSH_LEN, Nsh, nsh_ethertype};

/// Makes the first `from` bytes of the packet `to` bytes long. Err: the packet is unchanged.
fn resize_front(p: &mut Packet, from: usize, to: usize) -> Result<(), Drop> {
    let fits = match to.checked_sub(from) {
        Some(more) => p.push_front(more),
        None => p.pull_front(from - to),
    };
    if fits { Ok(()) } else { Err(Drop::NoHeadroom) }
}

/// Writes an Ethernet header without addresses, which is only in memory.
fn unseen_header(d: &mut [u8], ethertype: u16) {
    d[..12].fill(0);
    d[12..ETH_LEN].copy_from_slice(&ethertype.to_be_bytes());
}

/// Executes an operation that puts a network service header in front of the packet or removes one.
/// Not inlined: that keeps the code of other operations small.
#[cold]
#[inline(never)]
pub(crate) fn change(op: &Op, p: &mut Packet, f: &mut Frame) -> Result<(), Drop> {
    match op {
        Op::PushNsh { payload, header } => push(p, &f.layout, *payload, header)?,
        _ => {
            let inner = pop(p, &Place { line: &f.line, layout: f.layout })?;
            f.set_unwrapped(inner != Payload::Frame);
        }
    }
    f.tags = f.vlan_limit;
    Ok(())
}

/// Puts a network service header in front of the packet. Err: the packet is unchanged.
fn push(p: &mut Packet, layout: &Layout, payload: Payload, header: &[u8]) -> Result<(), Drop> {
    let replaced = match payload {
        Payload::Frame => 0,
        Payload::Popped | Payload::Bare => usize::from(layout.l3),
    };
    let to = ETH_LEN + header.len();
    if p.len() - replaced + to > usize::from(u16::MAX) {
        return Err(Drop::TooLong);
    }
    resize_front(p, replaced, to)?;
    unseen_header(p.data_mut(), NSH);
    p.data_mut()[ETH_LEN..to].copy_from_slice(header);
    Ok(())
}

/// Removes the network service header and what is in front of it; returns what was inside. Err: the
/// packet is unchanged.
fn pop(p: &mut Packet, place: &Place<'_>) -> Result<Payload, Drop> {
    let l3 = usize::from(place.layout.l3);
    let header = p.data().get(l3..).and_then(Nsh::new).filter(|_| place.eth_type() == NSH);
    let whole = header.and_then(|h| Some((h.whole(p.len() - l3)?, h.protocol())));
    let (len, protocol) = whole.filter(|(len, _)| *len >= NSH_LEN).ok_or(Drop::NshDecap)?;
    let behind = l3 + len;
    if protocol == NSH_ETHERNET {
        let fits = p.len() >= behind + ETH_LEN && p.pull_front(behind);
        return if fits { Ok(Payload::Frame) } else { Err(Drop::NshDecap) };
    }
    let ethertype = nsh_ethertype(protocol).ok_or(Drop::NshDecap)?;
    resize_front(p, behind, ETH_LEN)?;
    unseen_header(p.data_mut(), ethertype);
    Ok(Payload::Bare)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::same_effect::same;
    use crate::generate::{Rng, packet};

    const OUT: Op = Op::Output(3);

    fn push_nsh(payload: Payload, header: &[u8]) -> Op {
        Op::PushNsh { payload, header: header.into() }
    }

    /// A header with metadata of type 2: `context` words of it.
    fn header(protocol: u8, context: usize) -> Vec<u8> {
        let base = wire::nsh_flags_and_ttl(0, 63) | (2 + context as u16);
        [&base.to_be_bytes()[..], &[2, protocol, 0, 0, 7, 255], &vec![0xab; 4 * context]].concat()
    }

    #[test]
    fn a_frame_goes_in_and_comes_out_whole() {
        let pop = Op::PopNsh { framed: false };
        for seed in 0..500 {
            let mut r = Rng(seed);
            let d = packet(&mut r);
            let h = header(NSH_ETHERNET, r.below(20) as usize);
            let around = [&[0; 12][..], &[0x89, 0x4f], &h, &d].concat();
            let push = push_nsh(Payload::Frame, &h);
            assert_eq!(same(&d, &[push.clone(), OUT], &around, &[OUT]), None);
            let twice = [push.clone(), push_nsh(Payload::Bare, &header(4, 3)), pop.clone()];
            for between in [&twice[..1], &twice] {
                let ops = [between, &[pop.clone(), OUT]].concat();
                assert_eq!(same(&d, &ops, &d, &[OUT]), None, "{ops:?}");
            }
        }
    }

    #[test]
    fn packets_behind_tags_and_other_ethernet_headers_go_in_without_them() {
        let (ip, h) = ([0x45; 40], header(1, 0));
        let snap = [0, 48, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0];
        for ethernet in [&[8, 0][..], &[0x81, 0, 0, 5, 8, 0], &snap] {
            let d = [&[2; 12][..], ethernet, &ip].concat();
            let around = [&[0; 12][..], &[0x89, 0x4f], &h, &ip].concat();
            let ops = [push_nsh(Payload::Popped, &h), OUT];
            assert_eq!(same(&d, &ops, &around, &[OUT]), None);
            let back = [&[0; 12][..], &[8, 0], &ip].concat();
            assert_eq!(same(&around, &[Op::PopNsh { framed: true }, OUT], &back, &[OUT]), None);
        }
    }

    #[test]
    fn what_is_no_whole_header_ends_with_a_reason() {
        let pop = [Op::PopNsh { framed: true }, OUT];
        let bad = [Op::Drop(Drop::NshDecap)];
        let whole = [&[2; 12][..], &[0x89, 0x4f], &header(NSH_ETHERNET, 3), &[9; 14]].concat();
        for n in 14..whole.len() {
            assert_eq!(same(&whole[..n], &pop, &whole[..n], &bad), None, "{n}");
        }
        assert_eq!(same(&whole, &pop, &[9; 14], &[OUT]), None);
        // Version; length; length of metadata type 1, of an unknown type; next protocol.
        for (at, value) in [(14, 0x4f), (15, 0xc1), (15, 0xff), (16, 1), (17, 5), (17, 0)] {
            let mut wrong = whole.clone();
            wrong[at] = value;
            assert_eq!(same(&wrong, &pop, &wrong, &bad), None, "{at} {value}");
        }
        let mut none = whole.clone();
        (none[15], none[16]) = (0xc0, 3);
        assert_eq!(same(&none, &pop, &none, &bad), None);
        let ip = [&[2; 12][..], &[8, 0], &[9; 60]].concat();
        assert_eq!(same(&ip, &pop, &ip, &bad), None);
        let many = [&vec![push_nsh(Payload::Frame, &header(3, 0)); 300][..], &[OUT]].concat();
        assert_eq!(same(&ip, &many, &ip, &[Op::Drop(Drop::NoHeadroom)]), None);
    }

    /// Any header, cut or damaged, is removed by its length or ends the packet.
    #[test]
    fn generated_headers_are_removed_or_end_the_packet() {
        for seed in 0..5000 {
            let mut r = Rng(seed);
            let mut h = r.bytes(8);
            h[0] &= r.pick(&[0x3f, 0x3f, 0xff]);
            h[2] = r.pick(&[1, 2, 2, 3, 0]);
            h[3] = r.pick(&[1, 2, 3, 3, 4, 5]);
            if h[2] == 1 && r.chance(80) {
                h[1] = h[1] & 0xc0 | 6;
            }
            let n = r.below(300) as usize;
            let d = [&r.bytes(12)[..], &[0x89, 0x4f], &h, &r.bytes(n)].concat();
            let len = usize::from(h[1] & 0x3f) * 4;
            let (is_whole, inner) = (h[0] < 0x40 && len >= 8 && len <= 8 + n, 14 + len);
            let of_type = h[2] != 1 || len == 24;
            let pop = [Op::PopNsh { framed: true }, OUT];
            let (other, ops) = match (is_whole && of_type, h[3]) {
                (true, 3) if d.len() >= inner + 14 => (d[inner..].to_vec(), OUT),
                (true, 1 | 2 | 4) => {
                    let ethertype = [[8, 0], [0x86, 0xdd], [0, 0], [0x89, 0x4f]];
                    let ethertype = ethertype[usize::from(h[3]) - 1];
                    ([&[0; 12][..], &ethertype, &d[inner..]].concat(), OUT)
                }
                _ => (d.clone(), Op::Drop(Drop::NshDecap)),
            };
            assert_eq!(same(&d, &pop, &other, &[ops]), None, "{seed}");
        }
    }
}
