//! The announcement of a guest that was migrated to this host.

/// Bytes of an announcement: the shortest Ethernet frame, without its checksum.
pub(crate) const RARP_BYTES: usize = 60;

/// A broadcast RARP request of the owner of `mac` for its own address (RFC 903), from which
/// switches learn its port.
#[cold]
pub(crate) fn rarp(mac: [u8; 6]) -> [u8; RARP_BYTES] {
    let mut frame = [0; RARP_BYTES];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    // Type RARP; Ethernet and IPv4, addresses of 6 and 4 bytes; operation 3.
    frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(&mac);
    frame[32..38].copy_from_slice(&mac);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_are_rarp_requests() {
        let frame = rarp([2, 0, 0, 0, 0, 7]);
        assert_eq!(frame[..14], [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7, 0x80, 0x35]);
        assert_eq!((&frame[22..28], &frame[32..38]), (&frame[6..12], &frame[6..12]));
    }
}
