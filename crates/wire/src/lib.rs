//! Headers on the wire: constants, checked views, checksums.
//!
//! *Place*: ground row. *Knows*: byte positions of protocol headers and how their checksums are
//! made. *Does not know*: packets' buffers, flows, fields of OpenFlow, ports.
//!
//! A view such as [`Ipv4`] wraps any byte container (`&[u8]`, `&mut [u8]`, an array). Its `new`
//! checks once that the header fits, so that getters and setters cannot fail afterwards. Numbers
//! are given and taken in host order, addresses as bytes in network order. Nothing allocates and
//! nothing panics on bad bytes.

pub mod checksum;
pub mod consts;
mod crc32c;
mod field;
mod icmp;
mod ipv4;
mod ipv6;
mod l2;
mod l4;
mod tunnel;

pub use consts::*;
pub use crc32c::{crc32c, sctp_checksum};
pub use icmp::{Icmp, Nd, NdOption, NdOptions};
pub use ipv4::Ipv4;
pub use ipv6::{ExtWalk, Fragment, Ipv6, walk_extensions};
pub use l2::{Arp, Ethernet, L3, VlanTag, l3, vlan_at};
pub use l4::{Sctp, Tcp, Udp, tcp_flags};
pub use tunnel::{MplsLse, Vxlan};

/// An Ethernet address.
pub type Mac = [u8; 6];
/// The broadcast Ethernet address.
pub const BROADCAST: Mac = [0xff; 6];

/// Is the group bit set (multicast or broadcast)?
#[inline]
pub fn is_group(mac: &Mac) -> bool {
    mac[0] & 1 != 0
}
