//! Network service headers (RFC 8300).

use crate::field::header;
use crate::{ETH_IPV4, ETH_IPV6, ETH_NSH};

/// Bytes of the base header and the service path header.
pub const NSH_LEN: usize = 8;
/// Bytes of a header with metadata of type 1: four context headers.
pub const NSH_MD1_LEN: usize = 24;
/// The most bytes that a header's length field can say.
pub const NSH_LEN_MAX: usize = 63 * 4;
/// Metadata type: four context headers of fixed length.
pub const NSH_MD1: u8 = 1;
/// Metadata type: context headers of variable length.
pub const NSH_MD2: u8 = 2;
/// Next protocol: an Ethernet frame.
pub const NSH_ETHERNET: u8 = 3;

/// Next protocols that have an Ethertype.
const PROTOCOLS: [(u8, u16); 3] = [(1, ETH_IPV4), (2, ETH_IPV6), (4, ETH_NSH)];

/// The next protocol for what an Ethertype names; None: there is none.
pub fn nsh_protocol(ethertype: u16) -> Option<u8> {
    PROTOCOLS.iter().find(|(_, e)| *e == ethertype).map(|(p, _)| *p)
}

/// The Ethertype for a next protocol; None: it is an Ethernet frame, or not known.
pub fn nsh_ethertype(protocol: u8) -> Option<u16> {
    PROTOCOLS.iter().find(|(p, _)| *p == protocol).map(|(_, e)| *e)
}

header! {
    /// A network service header, without its context headers.
    Nsh, NSH_LEN, {
        /// Version, flags, TTL and length.
        base set_base: u16, 0;
        /// Metadata type, with four unassigned bits in front.
        md_type set_md_type: u8, 2;
        /// Next protocol.
        protocol set_protocol: u8, 3;
        /// Service path identifier (24 bits) and service index.
        path set_path: u32, 4;
    }
}

impl<B: AsRef<[u8]>> Nsh<B> {
    /// The bits of `base` that are flags (OAM, and one that is unassigned), and those of the TTL.
    pub const FLAGS_AND_TTL: u16 = 0x3fc0;

    #[inline]
    fn fits(b: &[u8]) -> bool {
        b.len() >= NSH_LEN
    }

    /// Version: 0.
    #[inline]
    pub fn version(&self) -> u8 {
        (self.base() >> 14) as u8
    }

    /// OAM (2) and the unassigned flag (1).
    #[inline]
    pub fn flags(&self) -> u8 {
        (self.base() >> 12) as u8 & 3
    }

    /// Time to live, 6 bits.
    #[inline]
    pub fn ttl(&self) -> u8 {
        (self.base() >> 6) as u8 & 0x3f
    }

    /// Bytes of the whole header, as it says itself.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.base() & 0x3f) * 4
    }

    /// The whole header's length, if version and length fit what is there and the metadata type;
    /// as in OVS, one of an unknown type may be shorter than its base.
    pub fn whole(&self, available: usize) -> Option<usize> {
        let len = self.header_len();
        let of_type = match self.md_type() {
            NSH_MD1 => len == NSH_MD1_LEN,
            NSH_MD2 => len >= NSH_LEN,
            _ => true,
        };
        (self.version() == 0 && of_type && len <= available).then_some(len)
    }
}

/// The bits of [`Nsh::base`] for flags and TTL; those that have no room are cut off.
pub fn nsh_flags_and_ttl(flags: u8, ttl: u8) -> u16 {
    u16::from(flags & 3) << 12 | u16::from(ttl & 0x3f) << 6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_header() {
        let raw = [0x2f, 0xc6, 1, 3, 0x12, 0x34, 0x56, 0xff];
        let h = Nsh::new(&raw).unwrap();
        assert_eq!((h.version(), h.flags(), h.ttl(), h.header_len()), (0, 2, 63, 24));
        assert_eq!((h.md_type(), h.protocol(), h.path()), (1, 3, 0x1234_56ff));
        assert_eq!(h.base() & Nsh::<&[u8]>::FLAGS_AND_TTL, nsh_flags_and_ttl(2, 63));
        assert_eq!(nsh_flags_and_ttl(0xff, 0xff), Nsh::<&[u8]>::FLAGS_AND_TTL);
        assert_eq!((h.whole(24), h.whole(23)), (Some(24), None));
        assert!(Nsh::new(&raw[..7]).is_none());
        // Another version; type 1 with another length; type 2 shorter than its base.
        for wrong in [[0x6f, 0xc6, 1, 3], [0x2f, 0xc5, 1, 3], [0x2f, 0xc1, 2, 3]] {
            let raw = [&wrong[..], &[0; 4]].concat();
            assert_eq!(Nsh::new(&raw[..]).unwrap().whole(252), None, "{wrong:?}");
        }
        for (p, e) in PROTOCOLS {
            assert_eq!((nsh_protocol(e), nsh_ethertype(p)), (Some(p), Some(e)));
        }
        assert_eq!((nsh_ethertype(NSH_ETHERNET), nsh_protocol(0x806)), (None, None));
    }
}
