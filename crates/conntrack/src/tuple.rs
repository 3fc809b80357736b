//! Tuples: what names a connection in one of its directions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::{IP_ICMP, IP_ICMPV6};

/// Addresses, protocol, ports and zone of a packet. Of ICMP both ports are the identifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address as a number; of IPv4 the low 32 bits.
    pub src: u128,
    /// Destination address; of IPv4 in the lower 32 bits.
    pub dst: u128,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// IP protocol.
    pub proto: u8,
    /// ICMP type; 0 with other protocols.
    pub icmp_type: u8,
    /// True: IPv6; false: IPv4.
    pub v6: bool,
    /// Zone.
    pub zone: u16,
}

impl Tuple {
    /// True if the protocol is ICMP or ICMPv6.
    pub fn is_icmp(&self) -> bool {
        self.proto == if self.v6 { IP_ICMPV6 } else { IP_ICMP }
    }

    /// The tuple of the opposite direction: source and destination exchanged, and of ICMP the type
    /// of the message that replies.
    #[must_use]
    pub fn reversed(&self) -> Tuple {
        let icmp_type = match self.is_icmp() {
            true => reply_type(self.icmp_type, self.v6).unwrap_or(0),
            false => 0,
        };
        Tuple {
            src: self.dst,
            dst: self.src,
            sport: self.dport,
            dport: self.sport,
            icmp_type,
            ..*self
        }
    }

    /// The values of `ct_tp_src` and `ct_tp_dst` for a connection whose first packet has this
    /// tuple: its ports, or ICMP's type and code.
    pub fn key_ports(&self) -> (u16, u16) {
        match self.is_icmp() {
            true => (u16::from(self.icmp_type), 0),
            false => (self.sport, self.dport),
        }
    }

    /// The source address.
    pub fn src_addr(&self) -> IpAddr {
        address(self.src, self.v6)
    }

    /// The destination address.
    pub fn dst_addr(&self) -> IpAddr {
        address(self.dst, self.v6)
    }
}

/// The IP address that a number of a [`Tuple`] stands for.
pub fn address(number: u128, v6: bool) -> IpAddr {
    match v6 {
        true => Ipv6Addr::from(number).into(),
        false => Ipv4Addr::from(number as u32).into(),
    }
}

/// The number that stands for an IP address in a [`Tuple`].
pub fn number(addr: &IpAddr) -> u128 {
    match addr {
        IpAddr::V4(a) => u32::from(*a).into(),
        IpAddr::V6(a) => u128::from(*a),
    }
}

/// The ICMP type of replies to messages of this type; None: messages of this type have no
/// connection of their own. RFC 792, RFC 4443.
pub fn reply_type(icmp_type: u8, v6: bool) -> Option<u8> {
    Some(match (icmp_type, v6) {
        (8, false) => 0,
        (0, false) => 8,
        (13, false) => 14,
        (14, false) => 13,
        (15, false) => 16,
        (16, false) => 15,
        (128, true) => 129,
        (129, true) => 128,
        _ => return None,
    })
}
