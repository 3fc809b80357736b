//! Values of OpenFlow's `packet_type`: a namespace and a type in it, 16 bits each.

/// The packet begins with an Ethernet header.
pub const ETHERNET: u32 = 0;
/// In a decap: what the header that is removed says is behind it.
pub const NEXT_HEADER: u32 = 0xfffe;
/// What is not known to be anything.
pub const UNKNOWN: u32 = 0xffff_ffff;
/// The namespace of packets that begin with what an Ethertype names.
const ETHERTYPES: u32 = 1;

/// A packet that begins with what this Ethertype names.
pub const fn of_ethertype(ethertype: u16) -> u32 {
    ETHERTYPES << 16 | ethertype as u32
}

/// The Ethertype that names what the packet begins with.
pub const fn ethertype(packet_type: u32) -> Option<u16> {
    if packet_type >> 16 == ETHERTYPES { Some(packet_type as u16) } else { None }
}
