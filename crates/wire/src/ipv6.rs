//! IPv6 and its extension headers (RFC 8200).

use crate::field::{get, header};
use crate::{IP_AH, IP_DSTOPTS, IP_FRAGMENT, IP_HOPOPTS, IP_ROUTING, IPV6_FRAG_LEN, IPV6_LEN};

header! {
    /// The fixed IPv6 header. `new` checks the version.
    Ipv6, IPV6_LEN, {
        /// Version (4 bits), traffic class (8 bits), flow label (20 bits).
        word0 set_word0: u32, 0;
        /// Bytes behind the fixed header.
        payload_len set_payload_len: u16, 4;
        /// Protocol of the first header behind.
        next set_next: u8, 6;
        /// Hop limit.
        hop_limit set_hop_limit: u8, 7;
        /// Source address.
        src set_src: [u8; 16], 8;
        /// Destination address.
        dst set_dst: [u8; 16], 24;
    }
}

impl<B: AsRef<[u8]>> Ipv6<B> {
    #[inline]
    fn fits(b: &[u8]) -> bool {
        b.len() >= IPV6_LEN && b[0] >> 4 == 6
    }

    /// Traffic class: DSCP (6 bits) and ECN (2 bits).
    #[inline]
    pub fn tclass(&self) -> u8 {
        (self.word0() >> 20) as u8
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn label(&self) -> u32 {
        self.word0() & 0xf_ffff
    }

    /// The bytes behind the fixed header up to the payload length, or up to the end when that
    /// says more.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let b = &self.bytes()[IPV6_LEN..];
        &b[..b.len().min(usize::from(self.payload_len()))]
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Ipv6<B> {
    /// Writes version 6 and zero class and label into raw bytes, so that [`Ipv6::new`] accepts
    /// them.
    pub fn init(mut bytes: B) -> Option<Self> {
        let b = bytes.as_mut();
        if b.len() < IPV6_LEN {
            return None;
        }
        b[..4].copy_from_slice(&[0x60, 0, 0, 0]);
        Self::new(bytes)
    }

    /// Sets the traffic class.
    #[inline]
    pub fn set_tclass(&mut self, v: u8) {
        self.set_word0(self.word0() & !0x0ff0_0000 | u32::from(v) << 20);
    }

    /// Sets the flow label (its low 20 bits).
    #[inline]
    pub fn set_label(&mut self, v: u32) {
        self.set_word0(self.word0() & !0xf_ffff | v & 0xf_ffff);
    }
}

/// What a fragment header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Where the fragment header starts, from the start of the walked bytes.
    pub at: usize,
    /// Offset of this fragment's bytes, in bytes.
    pub offset: usize,
    /// True if more fragments follow.
    pub more: bool,
    /// Identification.
    pub id: u32,
}

/// Where the walk over extension headers ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtWalk {
    /// Protocol of what starts at `at`. For a later fragment it is the protocol that the fragment
    /// header names, though `at` is in the middle of its bytes.
    pub proto: u8,
    /// Offset of the first byte that belongs to no extension header.
    pub at: usize,
    /// The first fragment header, if one was passed.
    pub fragment: Option<Fragment>,
    /// How many extension headers were passed.
    pub headers: usize,
}

/// Walks the extension headers in `b` (what stands behind the fixed header), the first of which is
/// of protocol `first`. Hop-by-hop, routing, destination, authentication and fragment headers are
/// passed; everything else ends the walk, and so does a fragment that is not the first one.
/// None when a header is cut short.
pub fn walk_extensions(b: &[u8], first: u8) -> Option<ExtWalk> {
    let mut w = ExtWalk { proto: first, at: 0, fragment: None, headers: 0 };
    loop {
        let rest = b.get(w.at..)?;
        let len = match w.proto {
            IP_HOPOPTS | IP_ROUTING | IP_DSTOPTS => (usize::from(*rest.get(1)?) + 1) * 8,
            IP_AH => (usize::from(*rest.get(1)?) + 2) * 4,
            IP_FRAGMENT => IPV6_FRAG_LEN,
            _ => return Some(w),
        };
        let header = rest.get(..len)?;
        if w.proto == IP_FRAGMENT && w.fragment.is_none() {
            w.fragment = Some(fragment(header, w.at));
        }
        let later = w.proto == IP_FRAGMENT && get::<u16>(header, 2) & 0xfff8 != 0;
        w.proto = header[0];
        w.at += len;
        w.headers += 1;
        if later {
            return Some(w);
        }
    }
}

fn fragment(header: &[u8], at: usize) -> Fragment {
    let word: u16 = get(header, 2);
    Fragment { at, offset: usize::from(word & 0xfff8), more: word & 1 != 0, id: get(header, 4) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IP_TCP, IP_UDP};
    use proptest::prelude::*;

    #[test]
    fn class_and_label_share_a_word() {
        let mut raw = [0xffu8; 40];
        let mut ip = Ipv6::init(&mut raw).unwrap();
        ip.set_tclass(0xab);
        ip.set_label(0x12345);
        assert_eq!((ip.tclass(), ip.label(), ip.word0()), (0xab, 0x12345, 0x6ab1_2345));
        assert!(Ipv6::new(&raw[..39]).is_none());
        raw[0] = 0x45;
        assert!(Ipv6::new(&raw).is_none());
    }

    #[test]
    fn no_extensions() {
        let w = walk_extensions(&[], IP_TCP).unwrap();
        assert_eq!((w.proto, w.at, w.fragment, w.headers), (IP_TCP, 0, None, 0));
    }

    #[test]
    fn chain_with_first_fragment() {
        let mut b = vec![IP_AH, 1];
        b.resize(16, 0);
        b.extend([IP_FRAGMENT, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        b.extend([IP_UDP, 0, 0, 1, 0, 0, 0, 9]);
        let w = walk_extensions(&b, IP_HOPOPTS).unwrap();
        assert_eq!((w.proto, w.at, w.headers), (IP_UDP, 36, 3));
        assert_eq!(w.fragment, Some(Fragment { at: 28, offset: 0, more: true, id: 9 }));
        for cut in 0..b.len() {
            assert_eq!(walk_extensions(&b[..cut], IP_HOPOPTS), None, "cut at {cut}");
        }
    }

    #[test]
    fn later_fragment_ends_the_walk() {
        let b = [IP_DSTOPTS, 0, 0x01, 0x08, 0, 0, 0, 1, 0xff, 0xff];
        let w = walk_extensions(&b, IP_FRAGMENT).unwrap();
        assert_eq!((w.proto, w.at), (IP_DSTOPTS, 8));
        assert_eq!(w.fragment.unwrap().offset, 264);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(b in proptest::collection::vec(any::<u8>(), 0..100), p: u8) {
            if let Some(w) = walk_extensions(&b, p) {
                prop_assert!(w.at <= b.len());
            }
            let _ = Ipv6::new(&b).map(|ip| ip.payload().len());
            let _ = crate::Ipv4::new(&b).map(|ip| ip.payload().len());
        }
    }
}
