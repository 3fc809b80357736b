//! The pieces of which a frame is sent: its headers and its packets.

use libc::iovec;
use packet::{BURST, Packet};
use wire::merge::Merged;
use wire::vnet::VNET_LEN;

/// Packets that are merged into one frame, at most. A frame of 64 kB has 45 of the usual size.
pub const FRAME_PACKETS_MAX: usize = 64;
/// Pieces of a burst's frames, at most: a header for each packet and its data, and the packets that
/// the last frame has beyond the burst.
pub const VECTORS_MAX: usize = 2 * BURST + FRAME_PACKETS_MAX;

/// Lists the pieces of a frame of these packets, which were merged if they are more than one;
/// returns how many pieces those are, at most two for each packet.
pub fn vectors_of(packets: &[Packet], merged: Option<&Merged>, to: &mut [iovec]) -> usize {
    const NONE: &[u8] = &[0; VNET_LEN];
    let (first, skip) = merged.map_or((NONE, 0), |m| (m.headers(), m.header_len));
    let pieces = packets.iter().map(|p| &p.data()[skip..]);
    let mut n = 0;
    for (to, piece) in to.iter_mut().zip(std::iter::once(first).chain(pieces)) {
        *to = iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
        n += 1;
    }
    n
}
