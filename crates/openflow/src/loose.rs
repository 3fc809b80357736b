//! The flows that a loose request selects (OpenFlow 1.5.1, 6.4): those that match on at least its
//! fields.

use crate::{Match, prereq};
use flow::{Key, Mask, at};

/// Words of a key with what the packet's own headers hold: the first half of line 0, and line 1.
const HEADER_WORDS: [std::ops::Range<usize>; 2] =
    [0..(at::VLAN1 + 2).div_ceil(8), at::IPV6_SRC / 8..(at::IPV6_LABEL + 4) / 8];

/// The match of a loose request. A flow that matches on a header field is about packets with an
/// Ethernet header even if it does not match on `packet_type`, as in OVS: so the packet type
/// Ethernet selects it.
pub struct Loose<'a> {
    /// Values of the fields.
    pub key: &'a Key,
    /// The bits that selected flows match on, too; without the packet type Ethernet.
    pub mask: Mask,
    ethernet: bool,
}

impl<'a> Loose<'a> {
    /// The request's match.
    pub fn new(m: &'a Match) -> Self {
        let ethernet = prereq::is_ethernet(&m.key) && m.mask.u32(at::PACKET_TYPE) == u32::MAX;
        let mut mask = m.mask;
        if ethernet {
            mask.set_u32(at::PACKET_TYPE, 0);
        }
        Loose { key: &m.key, mask, ethernet }
    }

    /// True if the packet type selects a flow. `flow` is its match.
    pub fn packet_type_fits(&self, flow: impl FnOnce() -> (Key, Mask)) -> bool {
        !self.ethernet || {
            let (key, mask) = flow();
            prereq::is_ethernet(&key) && names_header(&mask)
        }
    }
}

/// True if a match with this mask is about a packet's own headers or its type, and not only about
/// where the packet is and came from. A flow that is not is for packets of any type.
pub fn names_header(mask: &Mask) -> bool {
    let mut headers = *mask;
    headers.set_u32(at::IN_PORT, 0); // with ct_state and flags, in the word of the inner VLAN
    mask.u32(at::PACKET_TYPE) != 0
        || HEADER_WORDS.into_iter().flatten().any(|i| headers.words[i] != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::Field;

    #[test]
    fn header_fields_are_told_from_metadata() {
        let about = |f: Field| {
            let mut mask = Mask::ZERO;
            f.set(&mut mask, f.full());
            names_header(&mask)
        };
        for f in [Field::EthSrc, Field::VlanTci, Field::Ipv4Src, Field::Ipv6Dst, Field::TcpFlags] {
            assert!(about(f), "{f:?}");
        }
        for f in [Field::ArpTha, Field::NdTarget, Field::Ipv6Label, Field::PacketType] {
            assert!(about(f), "{f:?}");
        }
        for f in [Field::InPort, Field::CtState, Field::CtMark, Field::Metadata, Field::TunId] {
            assert!(!about(f), "{f:?}");
        }
    }
}
