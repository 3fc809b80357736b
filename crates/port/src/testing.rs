//! Readers of what the kernel and its users say, without the sockets: for the fuzzer (crate
//! `fuzz`).

pub use crate::gso::{Plan, SEGMENTS_PER_FRAME_MAX};
pub use crate::vnet::{VNET_LEN, VnetHeader};

/// Reads a datagram of a netlink socket as the messages about links that are in it; how many there
/// are.
pub fn read_link_datagram(datagram: &[u8]) -> usize {
    let mut messages = 0;
    crate::netlink::read_datagram(datagram, &mut |_, _| messages += 1);
    messages
}

/// Reads a netlink message as an address, a route and a neighbour: what follows its header of 16
/// bytes.
pub fn read_underlay(message: &[u8]) {
    if let Some(body) = message.get(16..) {
        crate::underlay::read_body(body);
    }
}
