//! Puts common outer headers in front of packets from a template: IPv4 and UDP without checksum,
//! with VXLAN or Geneve. `tunnel::header::push` is the twin, and puts on all other headers.

use crate::tunnel::header::source_port;
use action::{Payload, TunnelPush};
use packet::Packet;
use telemetry::Drop;
use wire::checksum::Sum;

/// Bytes of Ethernet, IPv4, UDP and VXLAN headers; the same for Geneve without its options.
const PLAIN: usize = 50;
/// Bytes of the header that are written in whole words.
const WORDS: usize = 48;

/// An outer header, complete except for the fields that differ from packet to packet.
pub(crate) struct Template {
    /// The first bytes, in memory order; 0 where a packet's own fields go.
    words: [u64; WORDS / 8],
    /// Bytes 48 and 49.
    last: [u8; PLAIN - WORDS],
    /// Checksum of the IPv4 header without its length.
    sum: u16,
    /// The first UDP source port, and the one behind the last.
    source_ports: (u16, u16),
    /// Geneve options.
    options: Box<[u8]>,
}

impl Template {
    /// A template for this header; None: it has no common form.
    pub fn new(t: &TunnelPush) -> Option<Template> {
        let mut h: [u8; PLAIN] = *t.header.first_chunk()?;
        let plain = t.kind.has_template() && !t.is_ipv6() && h[14] == 0x45 && !t.checksum();
        if !plain || t.payload != Payload::Frame || h[24..26] != [0, 0] {
            return None;
        }
        for filled_in in [16..18, 34..36, 38..40] {
            h[filled_in].fill(0);
        }
        Some(Template {
            words: std::array::from_fn(|i| u64::from_ne_bytes(h[8 * i..][..8].try_into().unwrap())),
            last: [h[48], h[49]],
            sum: Sum::default().bytes(&h[14..34]).fold(),
            source_ports: t.source_ports,
            options: t.header[PLAIN..].into(),
        })
    }

    /// Puts the header in front of the packet. Err: the packet is unchanged.
    #[inline]
    pub fn push(&self, p: &mut Packet, entropy: u32) -> Result<(), Drop> {
        let len = PLAIN + self.options.len();
        let Ok(whole) = u16::try_from(p.len() + len) else { return Err(Drop::TooLong) };
        if !p.push_front(len) {
            return Err(Drop::NoHeadroom);
        }
        let (total, udp) = (whole - 14, whole - 34);
        let sum = Sum::default().word(self.sum).word(total).finish();
        let [w0, w1, w2, w3, w4, w5] = self.words;
        let w4 = w4 | at(2, source_port(self.source_ports, entropy)) | at(6, udp);
        let d = p.data_mut();
        for (i, w) in [w0, w1, w2 | at(0, total), w3 | at(0, sum), w4, w5].into_iter().enumerate() {
            d[8 * i..8 * i + 8].copy_from_slice(&w.to_ne_bytes());
        }
        d[WORDS..PLAIN].copy_from_slice(&self.last);
        if !self.options.is_empty() {
            d[PLAIN..len].copy_from_slice(&self.options);
        }
        Ok(())
    }
}

/// A word whose bytes in memory are 0, except for `number` in network order at byte `i`.
#[inline]
fn at(i: u32, number: u16) -> u64 {
    (u64::from(number) << (48 - 8 * i)).to_be()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_where_they_should_be() {
        assert_eq!(at(2, 0x1234).to_ne_bytes(), [0, 0, 0x12, 0x34, 0, 0, 0, 0]);
        assert_eq!(at(6, 0x1234).to_ne_bytes(), [0, 0, 0, 0, 0, 0, 0x12, 0x34]);
    }
}
