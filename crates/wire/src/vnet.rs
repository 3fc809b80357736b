//! The virtio-net header in front of frames from a packet socket, and checksums that the kernel
//! left undone.

use crate::checksum::Sum;

/// Bytes of the header (`struct virtio_net_hdr`, without the number of buffers).
pub const VNET_LEN: usize = 10;
const NEEDS_CSUM: u8 = 1;
/// Values of [`VnetHeader::gso`]: TCP over IPv4.
pub const GSO_TCP_V4: u8 = 1;
/// TCP over IPv6.
pub const GSO_TCP_V6: u8 = 4;
/// UDP.
pub const GSO_UDP: u8 = 5;
/// Offset of the checksum in an SCTP header; TCP's is 16, UDP's 6.
const SCTP_SUM: usize = 8;

/// What the kernel left undone on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VnetHeader {
    /// True: the checksum is to be completed.
    pub needs_csum: bool,
    /// Kind of segmentation: 0 none, [`GSO_TCP_V4`], [`GSO_TCP_V6`], [`GSO_UDP`].
    pub gso: u8,
    /// Payload bytes of each segment.
    pub gso_size: usize,
    /// Where the checksummed bytes start, from the start of the frame.
    pub csum_start: usize,
    /// Offset of the checksum from `csum_start`.
    pub csum_offset: usize,
}

impl VnetHeader {
    /// Reads the header; its numbers are in the machine's order.
    pub fn read(raw: &[u8; VNET_LEN]) -> Self {
        let word = |at: usize| usize::from(u16::from_ne_bytes([raw[at], raw[at + 1]]));
        VnetHeader {
            needs_csum: raw[0] & NEEDS_CSUM != 0,
            gso: raw[1] & 0x7f,
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    /// Writes the header of a frame whose own headers have `header_len` bytes.
    pub fn write(&self, header_len: usize, raw: &mut [u8; VNET_LEN]) {
        let words = [header_len, self.gso_size, self.csum_start, self.csum_offset];
        (raw[0], raw[1]) = (if self.needs_csum { NEEDS_CSUM } else { 0 }, self.gso);
        for (to, word) in raw[2..].chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&(word as u16).to_ne_bytes());
        }
    }
}

/// Completes the checksum of a frame whose checksum field holds the sum of the pseudo header (for
/// SCTP: anything). False, and the frame is unchanged: the positions are not in the frame.
#[must_use]
pub fn complete_checksum(frame: &mut [u8], start: usize, offset: usize) -> bool {
    let Some(area) = frame.get_mut(start..).filter(|a| a.len() >= offset + 2) else {
        return false;
    };
    if offset == SCTP_SUM {
        let Some(sum) = crate::sctp_checksum(area) else { return false };
        area[offset..offset + 4].copy_from_slice(&sum);
        return true;
    }
    let sum = Sum::default().bytes(area).finish_udp();
    area[offset..offset + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum;

    #[test]
    fn udp_sum_is_completed() {
        let mut frame = vec![0u8; 14];
        frame.extend([0, 53, 0, 54, 0, 11, 0, 0, 1, 2, 3]);
        let pseudo = checksum::pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 17, 11);
        frame[20..22].copy_from_slice(&pseudo.fold().to_be_bytes());
        assert!(complete_checksum(&mut frame, 14, 6));
        assert_eq!(pseudo.bytes(&frame[14..]).finish(), 0);
    }

    #[test]
    fn bad_positions_are_refused() {
        let mut frame = vec![0u8; 20];
        assert!(!complete_checksum(&mut frame, 19, 6) && !complete_checksum(&mut frame, 99, 0));
        assert!(!complete_checksum(&mut frame, 10, SCTP_SUM), "SCTP header cut short");
        assert_eq!(frame, [0; 20]);
    }

    #[test]
    fn sctp_gets_its_crc() {
        let mut frame = vec![9u8; 40];
        assert!(complete_checksum(&mut frame, 14, SCTP_SUM));
        let sum = crate::sctp_checksum(&frame[14..]).unwrap();
        assert_eq!((frame[22..26].to_vec(), frame[26]), (sum.to_vec(), 9));
    }

    #[test]
    fn header_fields() {
        let mut raw = [0u8; VNET_LEN];
        (raw[0], raw[1]) = (1, 0x81);
        raw[4..6].copy_from_slice(&1448u16.to_ne_bytes());
        raw[6..8].copy_from_slice(&34u16.to_ne_bytes());
        let h = VnetHeader::read(&raw);
        assert!(h.needs_csum && h.gso == 1 && h.gso_size == 1448 && h.csum_start == 34);
    }
}
