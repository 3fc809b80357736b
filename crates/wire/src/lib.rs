//! Headers on the wire: constants, checked views, checksums, segmentation of frames and merging of
//! segments.
//!
//! *Place*: ground row. *Knows*: byte positions of protocol headers and how their checksums are
//! made. *Does not know*: packets' buffers, flows, fields of OpenFlow, ports.
//!
//! A view such as [`Ipv4`] wraps any byte container (`&[u8]`, `&mut [u8]`, an array). Its `new`
//! checks once that the header fits, so that getters and setters cannot fail afterwards. Numbers
//! are given and taken in host order, addresses as bytes in network order. Nothing allocates and
//! nothing panics on bad bytes.

#![forbid(unsafe_code)]

pub mod checksum;
pub mod consts;
mod crc32c;
mod field;
pub mod gso;
mod icmp;
mod ipv4;
mod ipv6;
mod l2;
mod l4;
mod lldp;
pub mod merge;
mod nsh;
mod tunnel;
pub mod vnet;

pub use consts::*;
pub use crc32c::{crc32c, sctp_checksum};
pub use icmp::{Icmp, Nd, NdOption, NdOptions};
pub use ipv4::Ipv4;
pub use ipv6::{ExtWalk, Fragment, Ipv6, walk_extensions};
pub use l2::{Arp, Ethernet, L3, VlanTag, l3, vlan_at};
pub use l4::{Sctp, Tcp, Udp, tcp_flags};
pub use lldp::{
    LLDP_FRAME_BYTES_MAX, LldpAssignment, LldpElement, LldpId, LldpRefusal, LldpSelf, LldpUnit,
    read_lldp,
};
pub use nsh::*;
pub use tunnel::{MplsLse, Vxlan};

/// An Ethernet address.
pub type Mac = [u8; 6];
/// The broadcast Ethernet address.
pub const BROADCAST: Mac = [0xff; 6];

/// True if the group bit is set (multicast or broadcast).
#[inline]
pub fn is_group(mac: &Mac) -> bool {
    mac[0] & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every view of every piece of noise, with everything derived from it.
        #[test]
        fn noise_never_panics(b in proptest::collection::vec(any::<u8>(), 0..120)) {
            let b = &b[..];
            let _ = (l3(b), vlan_at(b, 12), MplsLse::read(b), sctp_checksum(b), crc32c(b));
            let _ = Arp::new(b).map(|a| a.is_ethernet_ipv4());
            let _ = Ipv4::new(b).map(|i| (i.payload().len(), i.checksum_ok(), i.frag_offset()));
            let _ = Ipv6::new(b).map(|i| walk_extensions(i.payload(), i.next()));
            let _ = Tcp::new(b).map(|t| (t.header_len(), t.flags(), t.checksum()));
            let _ = Udp::new(b).map(|u| u.checksum());
            let _ = Sctp::new(b).map(|s| s.checksum());
            let _ = Icmp::new(b).map(|i| i.echo());
            let _ = Vxlan::new(b).map(|v| v.vni());
            let _ = Nsh::new(b).map(|n| (n.whole(b.len()), n.flags(), n.ttl()));
            if let Some(nd) = Nd::new(b) {
                prop_assert!(nd.options().all(|o| o.len >= 8 && o.at + o.len <= b.len()));
            }
        }
    }
}
