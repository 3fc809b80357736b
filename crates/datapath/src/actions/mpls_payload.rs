//! Ethernet frames as the payload of an MPLS label stack entry.

use crate::actions::rewrite::Place;
use crate::parse::scalar::{MPLS, MPLS_MC};
use packet::Packet;
use telemetry::Drop;

/// Bytes of an Ethernet header without tags.
const ETHERNET_BYTES: usize = 14;
/// Bytes of an MPLS label stack entry.
const ENTRY_BYTES: usize = 4;

/// Puts an Ethernet header (destination, source) and a label stack entry in front of the frame.
pub(crate) fn frame_in_mpls(
    p: &mut Packet,
    [dst, src]: [[u8; 6]; 2],
    ethertype: u16,
    lse: u32,
) -> Result<(), Drop> {
    if !p.push_front(ETHERNET_BYTES + ENTRY_BYTES) {
        return Err(Drop::NoHeadroom);
    }
    let d = p.data_mut();
    d[..6].copy_from_slice(&dst);
    d[6..12].copy_from_slice(&src);
    d[12..14].copy_from_slice(&ethertype.to_be_bytes());
    d[14..18].copy_from_slice(&lse.to_be_bytes());
    Ok(())
}

/// Removes the top label stack entry and everything in front of it; a frame must be behind it.
pub(crate) fn frame_out_of_mpls(p: &mut Packet, place: &Place<'_>) -> Result<(), Drop> {
    let inner = place.layout.l3 as usize + ENTRY_BYTES;
    let fits = place.layout.sane && p.len() >= inner + ETHERNET_BYTES;
    if !matches!(place.eth_type(), MPLS | MPLS_MC) || !fits || !p.pull_front(inner) {
        return Err(Drop::BadAction);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::same_effect::same;
    use crate::generate::{Rng, packet};
    use action::Op;

    const OUT: Op = Op::Output(3);

    fn encap(ethertype: u16) -> Op {
        Op::EncapMpls { ethertype, lse: 0x0000_2140, dst: [2; 6], src: [4; 6] }
    }

    #[test]
    fn a_frame_goes_in_and_comes_out_whole() {
        let header = |ethertype: u16| {
            [&[2; 6][..], &[4; 6], &ethertype.to_be_bytes(), &[0, 0, 0x21, 0x40]].concat()
        };
        for seed in 0..500 {
            let mut r = Rng(seed);
            let d = packet(&mut r);
            let kind = r.pick(&[0x8847, 0x8848]);
            let around = [header(kind), d.clone()].concat();
            assert_eq!(same(&d, &[encap(kind), OUT], &around, &[OUT]), None);
            let tag = Op::PushVlan { tpid: 0x8100, tci: 5 };
            let push = Op::PushMpls { ethertype: 0x8847, lse: 0x3040 };
            let pop = Op::PopMpls { ethertype: kind };
            for between in [vec![], vec![tag.clone()], vec![push, tag.clone(), pop, tag]] {
                let ops = [&[encap(kind)], &between[..], &[Op::DecapMpls, OUT]].concat();
                assert_eq!(same(&d, &ops, &d, &[OUT]), None, "{ops:?}");
            }
        }
    }

    #[test]
    fn what_holds_no_frame_ends_with_a_reason() {
        let bad = [Op::Drop(Drop::BadAction)];
        let short = [&[2; 12][..], &[0x88, 0x47, 0, 0, 1, 64], &[9; 13]].concat();
        for n in 14..=short.len() {
            assert_eq!(same(&short[..n], &[Op::DecapMpls, OUT], &short[..n], &bad), None, "{n}");
        }
        let ip = [&[2; 12][..], &[8, 0], &[9; 60]].concat();
        assert_eq!(same(&ip, &[Op::DecapMpls, OUT], &ip, &bad), None);
        let many = [&vec![encap(0x8847); 300][..], &[OUT]].concat();
        assert_eq!(same(&ip, &many, &ip, &[Op::Drop(Drop::NoHeadroom)]), None);
    }
}
