//! IPv4 (RFC 791).

use crate::field::header;
use crate::{IPV4_LEN, checksum};

header! {
    /// An IPv4 header with its options. `new` checks the version and that the header is complete;
    /// the total length is the sender's word and is not checked.
    Ipv4, IPV4_LEN, {
        /// DSCP (6 bits) and ECN (2 bits).
        tos set_tos: u8, 1;
        /// Bytes of header and payload.
        total_len set_total_len: u16, 2;
        /// Identification.
        id set_id: u16, 4;
        /// Flags (3 bits) and fragment offset (13 bits, in 8-byte units).
        frag set_frag: u16, 6;
        /// Time to live.
        ttl set_ttl: u8, 8;
        /// Protocol of the payload.
        proto set_proto: u8, 9;
        /// Header checksum.
        checksum set_checksum: u16, 10;
        /// Source address.
        src set_src: [u8; 4], 12;
        /// Destination address.
        dst set_dst: [u8; 4], 16;
    }
}

impl<B: AsRef<[u8]>> Ipv4<B> {
    #[inline]
    fn fits(b: &[u8]) -> bool {
        if b.len() < IPV4_LEN || b[0] >> 4 != 4 {
            return false;
        }
        let len = usize::from(b[0] & 15) * 4;
        len >= IPV4_LEN && len <= b.len()
    }

    /// Bytes of the header, 20..=60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes()[0] & 15) * 4
    }

    /// Fragment offset in bytes.
    #[inline]
    pub fn frag_offset(&self) -> usize {
        usize::from(self.frag() & 0x1fff) * 8
    }

    /// True if more fragments follow.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.frag() & 0x2000 != 0
    }

    /// True if the packet is a fragment of any kind.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.frag() & 0x3fff != 0
    }

    /// The bytes behind the header up to the total length, or up to the end when that says more.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let b = self.bytes();
        let (from, to) = (self.header_len(), usize::from(self.total_len()).min(b.len()));
        b.get(from..to).unwrap_or(&[])
    }

    /// True if the header checksum is right.
    #[inline]
    pub fn checksum_ok(&self) -> bool {
        checksum::internet(&self.bytes()[..self.header_len()]) == 0
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Ipv4<B> {
    /// Writes version 4 and a header of `len` bytes (a multiple of 4, 20..=60) into raw bytes, so
    /// that [`Ipv4::new`] accepts them.
    pub fn init(mut bytes: B, len: usize) -> Option<Self> {
        let b = bytes.as_mut();
        if !(IPV4_LEN..=60).contains(&len) || !len.is_multiple_of(4) || b.len() < len {
            return None;
        }
        b[0] = 0x40 | (len / 4) as u8;
        Self::new(bytes)
    }

    /// Computes and writes the header checksum.
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let sum = checksum::internet(&self.bytes()[..self.header_len()]);
        self.set_checksum(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header printed in many textbooks; its checksum is 0xb861.
    const KNOWN: [u8; 20] = [
        0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
        0xc7,
    ];

    #[test]
    fn known_checksum() {
        assert!(Ipv4::new(&KNOWN).unwrap().checksum_ok());
        let mut raw = KNOWN;
        let mut ip = Ipv4::new(&mut raw).unwrap();
        ip.set_checksum(0x1234);
        assert!(!ip.checksum_ok());
        ip.fill_checksum();
        assert_eq!(ip.checksum(), 0xb861);
    }

    #[test]
    fn bad_headers_are_refused() {
        let mut raw = KNOWN;
        raw[0] = 0x44;
        assert!(Ipv4::new(&raw).is_none(), "IHL below 5");
        raw[0] = 0x46;
        assert!(Ipv4::new(&raw).is_none(), "options missing");
        raw[0] = 0x65;
        assert!(Ipv4::new(&raw).is_none(), "version");
        assert!(Ipv4::new(&KNOWN[..19]).is_none());
        assert_eq!(Ipv4::new(&KNOWN).unwrap().payload(), &[] as &[u8]);
    }

    #[test]
    fn fragments() {
        let mut raw = KNOWN;
        let mut ip = Ipv4::new(&mut raw).unwrap();
        assert!(!ip.is_fragment(), "only don't-fragment is set");
        ip.set_frag(0x2001);
        assert!(ip.is_fragment() && ip.more_fragments() && ip.frag_offset() == 8);
    }
}
