//! Parsers of what the kernel and its users send, without the sockets: for the fuzzer (crate
//! `fuzz`).

pub use wire::gso::{Plan, SEGMENTS_PER_FRAME_MAX};
pub use wire::vnet::{VNET_LEN, VnetHeader};

/// Parses a datagram of a netlink socket; returns the number of link messages in it.
pub fn read_link_datagram(datagram: &[u8]) -> usize {
    let mut messages = 0;
    crate::netlink::read_datagram(datagram, &mut |_, _| messages += 1);
    messages
}

/// Parses a netlink message as an address, a route and a neighbour: the part behind its header of
/// 16 bytes.
pub fn read_underlay(message: &[u8]) {
    if let Some(body) = message.get(16..) {
        crate::underlay::read_body(body);
    }
}
